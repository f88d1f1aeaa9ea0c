/* SPDX-License-Identifier: Apache-2.0 */
/* The implementations of every kernels.list as an array, for those who need no registry. */
#ifndef EJKI_KERNELS_BUILTIN_H
#define EJKI_KERNELS_BUILTIN_H

#include <ejkernel/registry.h>

extern const ejk_implementation *const ejki_builtin_implementations[];
extern const int32_t ejki_builtin_implementation_count;

#endif
