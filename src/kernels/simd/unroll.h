/* SPDX-License-Identifier: Apache-2.0 */
/* How a compiler is to lay out code. */
#ifndef EJKI_UNROLL_H
#define EJKI_UNROLL_H

/* A function whose constant arguments become constants in its body. */
#define INLINE static inline __attribute__((always_inline))

/* A function that is compiled once, whatever its callers know of its arguments. */
#if defined(__clang__)
#define EJKI_SHARED __attribute__((noinline))
#else
#define EJKI_SHARED __attribute__((noinline, noclone))
#endif

/* Before a loop whose count is a small constant: no loop is left, and arrays it indexes become registers. */

#if defined(__clang__)
#define EJKI_UNROLL       _Pragma("clang loop unroll(full)")
#define EJKI_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#define EJKI_UNROLL_NOT   _Pragma("clang loop unroll(disable)")
#else
#define EJKI_UNROLL       _Pragma("GCC unroll 32")
#define EJKI_UNROLL_TWICE _Pragma("GCC unroll 2")
#define EJKI_UNROLL_NOT   _Pragma("GCC unroll 1")
#endif

#endif
