/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of elements in the vectors of a tier: elements_of_tier.c is compiled for each. */
#ifndef TESTS_KERNELS_ELEMENTS_H
#define TESTS_KERNELS_ELEMENTS_H

#define CHECK_OF(check, tier)  CHECK_OF_(check, tier)
#define CHECK_OF_(check, tier) check##_##tier

#define ELEMENT_CHECKS(X, ...)                                                                     \
    X(every_code_of_16_bits_is_widened, __VA_ARGS__)                                               \
    X(every_code_of_8_bits_is_widened, __VA_ARGS__)                                                \
    X(floats_are_rounded_as_one_by_one, __VA_ARGS__)                                               \
    X(halves_hold_each_element_once, __VA_ARGS__)                                                  \
    X(powers_and_inverses_are_near, __VA_ARGS__)

#endif
