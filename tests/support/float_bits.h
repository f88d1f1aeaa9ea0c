/* SPDX-License-Identifier: Apache-2.0 */
/* Floats and their bits. */
#ifndef TESTS_SUPPORT_FLOAT_BITS_H
#define TESTS_SUPPORT_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
