/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/builtin.h"

#define EJKI_IMPLEMENTATION(symbol) extern const ejk_implementation symbol;
#include "kernels/kernels.inc"
#undef EJKI_IMPLEMENTATION

const ejk_implementation *const ejki_builtin_implementations[] = {
#define EJKI_IMPLEMENTATION(symbol) &symbol,
#include "kernels/kernels.inc"
#undef EJKI_IMPLEMENTATION
};

const int32_t ejki_builtin_implementation_count =
    (int32_t)(sizeof ejki_builtin_implementations / sizeof ejki_builtin_implementations[0]);
