/* SPDX-License-Identifier: Apache-2.0 */
/* Before a loop whose count is a small constant: no loop is left, and arrays it indexes become registers. */
#ifndef EJKI_UNROLL_H
#define EJKI_UNROLL_H

#if defined(__clang__)
#define EJKI_UNROLL       _Pragma("clang loop unroll(full)")
#define EJKI_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define EJKI_UNROLL       _Pragma("GCC unroll 32")
#define EJKI_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

#endif
