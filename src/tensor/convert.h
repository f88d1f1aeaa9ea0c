/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element from one floating type to another, in arithmetic on the bits and without branches, so that
 * loops over these vectorise for any machine. NaN stays NaN: it becomes quiet and keeps the leading bits of
 * its payload. Subnormals of the 16-bit types are right even where the caller's thread flushes them in f32.
 */
#ifndef EJKI_TENSOR_CONVERT_H
#define EJKI_TENSOR_CONVERT_H

#include <ejkernel/tensor.h>

#include <string.h>

static inline uint32_t ejki_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ejki_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `yes` or `no` by masks: a conditional would let the compiler branch around the arithmetic of one side. */
static inline uint32_t ejki_select(bool condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0 - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float ejki_bf16_to_f32(uint16_t bits) {
    int32_t magnitude = bits & 0x7fff;
    uint32_t quiet = ejki_select(magnitude > 0x7f80, 0x00400000u, 0);
    return ejki_f32_from_bits((uint32_t)bits << 16 | quiet);
}

static inline uint16_t ejki_f32_to_bf16(float value) {
    uint32_t bits = ejki_f32_bits(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    /* A half less one, and one more if the last bit kept is odd: ties go to even. */
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x0040u;
    return (uint16_t)ejki_select(magnitude > 0x7f800000, nan, rounded);
}

static inline float ejki_f16_to_f32(uint16_t bits) {
    int32_t magnitude = bits & 0x7fff;
    uint32_t shifted = (uint32_t)magnitude << 13;
    uint32_t normal = shifted + 0x38000000u; /* the exponents' biases differ by 112 */
    uint32_t subnormal = ejki_f32_bits((float)magnitude * 0x1p-24f);
    uint32_t special = shifted | ejki_select(magnitude > 0x7c00, 0x7fc00000u, 0x7f800000u);
    uint32_t finite = ejki_select(magnitude < 0x0400, subnormal, normal);
    return ejki_f32_from_bits((uint32_t)(bits & 0x8000) << 16 |
                              ejki_select(magnitude < 0x7c00, finite, special));
}

static inline uint16_t ejki_f32_to_f16(float value) {
    uint32_t bits = ejki_f32_bits(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    bool is_small = magnitude < 0x38800000; /* below 2^-14, the least normal f16 */
    /* 2^16 and all above it is infinity; what rounds up to 2^16 gets there by its own carry. */
    uint32_t capped = ejki_select(magnitude < 0x47800000, (uint32_t)magnitude, 0x47800000u);
    uint32_t normal = (capped - 0x38000000u + 0x0fffu + (capped >> 13 & 1u)) >> 13;
    /* The last bit of a float in [1/2, 1) is worth 2^-24, as that of a subnormal f16: the sum rounds. */
    float small = ejki_f32_from_bits(ejki_select(is_small, (uint32_t)magnitude, 0));
    uint32_t subnormal = ejki_f32_bits(small + 0.5f) - ejki_f32_bits(0.5f);
    uint32_t nan = ((uint32_t)magnitude >> 13 & 0x03ffu) | 0x7e00u;
    uint32_t number = ejki_select(is_small, subnormal, normal);
    return (uint16_t)((bits >> 16 & 0x8000u) | ejki_select(magnitude > 0x7f800000, nan, number));
}

/*
 * f64 to f32, rounded to odd: an inexact value becomes the neighbour whose last bit is set. Rounding that to
 * any type at least two bits narrower gives what rounding the f64 at once would have given.
 */
static inline float ejki_f64_to_f32_odd(double value) {
    float nearest = (float)value;
    double difference = (double)nearest - value;
    uint32_t bits = ejki_f32_bits(nearest);
    bool inexact = difference < 0 || difference > 0;
    bool away = value < 0 ? difference < 0 : difference > 0;
    return inexact ? ejki_f32_from_bits((bits - away) | 1u) : nearest;
}

static inline uint16_t ejki_f64_to_bf16(double value) {
    return ejki_f32_to_bf16(ejki_f64_to_f32_odd(value));
}

static inline uint16_t ejki_f64_to_f16(double value) {
    return ejki_f32_to_f16(ejki_f64_to_f32_odd(value));
}

/* ---- 8-bit floats ------------------------------------------------------------------------------------- */

static inline float ejki_e4m3_to_f32(uint8_t code) {
    uint32_t magnitude = code & 0x7fu;
    uint32_t normal = (magnitude << 20) + 0x3c000000u; /* the exponents' biases differ by 120 */
    uint32_t subnormal = ejki_f32_bits((float)(int32_t)magnitude * 0x1p-9f);
    uint32_t finite = ejki_select(magnitude < 0x08, subnormal, normal);
    return ejki_f32_from_bits((uint32_t)(code & 0x80u) << 24 |
                              ejki_select(magnitude == 0x7f, 0x7fc00000u, finite));
}

/* The high byte of a float16. */
static inline float ejki_e5m2_to_f32(uint8_t code) {
    return ejki_f16_to_f32((uint16_t)(code << 8));
}

static inline float ejki_e8m0_to_f32(uint8_t code) {
    uint32_t power = ejki_select(code == 0, 0x00400000u, (uint32_t)code << 23);
    return ejki_f32_from_bits(ejki_select(code == 0xff, 0x7fc00000u, power));
}

/*
 * To 8 bits with `mantissa` bits of mantissa: the greatest number stands for all above it, infinity too. `one`
 * is a float whose last bit is worth that of a subnormal, so that the sum rounds.
 */
static inline uint8_t ejki_f32_to_f8(float value, int mantissa, uint32_t bias_difference,
                                     uint32_t least_normal, uint32_t greatest, float one) {
    uint32_t bits = ejki_f32_bits(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    int dropped = 23 - mantissa;
    uint32_t capped = ejki_select(magnitude < greatest, magnitude, greatest);
    uint32_t rebiased = capped - (bias_difference << 23);
    uint32_t normal =
        (rebiased + (1u << (dropped - 1)) - 1 + (rebiased >> dropped & 1u)) >> dropped;
    bool is_small = magnitude < least_normal;
    float small = ejki_f32_from_bits(ejki_select(is_small, magnitude, 0));
    uint32_t subnormal = ejki_f32_bits(small + one) - ejki_f32_bits(one);
    uint32_t number = ejki_select(is_small, subnormal, normal);
    return (uint8_t)((bits >> 24 & 0x80u) | ejki_select(magnitude > 0x7f800000u, 0x7fu, number));
}

static inline uint8_t ejki_f32_to_e4m3(float value) {
    return ejki_f32_to_f8(value, 3, 120, 0x3c800000u, 0x43e00000u, 0x1p14f);
}

static inline uint8_t ejki_f32_to_e5m2(float value) {
    return ejki_f32_to_f8(value, 2, 112, 0x38800000u, 0x47600000u, 0x1p7f);
}

/* Zero and all below 2^-127 are 2^-127, the rest is as in the other two; numbers below zero are none. */
static inline uint8_t ejki_f32_to_e8m0(float value) {
    uint32_t bits = ejki_f32_bits(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0x3fffffu + (magnitude >> 23 & 1u)) >> 23;
    uint32_t power = ejki_select(magnitude<0x00800000u, magnitude> 0x00600000u, normal);
    uint32_t capped = ejki_select(power < 0xfe, power, 0xfe);
    bool none = magnitude > 0x7f800000u || bits > 0x80000000u;
    return (uint8_t)ejki_select(none, 0xff, capped);
}

static inline uint8_t ejki_f64_to_e4m3(double value) {
    return ejki_f32_to_e4m3(ejki_f64_to_f32_odd(value));
}

static inline uint8_t ejki_f64_to_e5m2(double value) {
    return ejki_f32_to_e5m2(ejki_f64_to_f32_odd(value));
}

static inline uint8_t ejki_f64_to_e8m0(double value) {
    return ejki_f32_to_e8m0(ejki_f64_to_f32_odd(value));
}

/*
 * Converts `count` elements that lie `step` bytes apart, from any type to any, by the rules of
 * ejk_tensor_copy(). Any address and any step will do; source and target must not overlap.
 */
void ejki_convert_run(const void *source, int64_t source_step, ejk_dtype source_dtype, void *target,
                      int64_t target_step, ejk_dtype target_dtype, int64_t count);

#endif
