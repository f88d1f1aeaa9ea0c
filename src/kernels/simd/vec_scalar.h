/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary in portable C: four floats in the compilers' generic vector type, so that any
 * processor can run it and a compiler with 128-bit registers uses them; vec_avx512.h says what the words
 * mean. v_fma is not fused here: without the instruction it would be a call each time.
 */
#ifndef EJKI_VEC_H
#define EJKI_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensor/convert.h"

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t v_uint __attribute__((vector_size(16)));
typedef uint64_t vw __attribute__((vector_size(16)));
typedef uint16_t v_halves __attribute__((vector_size(8)));
#define VL 4

static inline vf v_zero(void) {
    return (vf){0};
}
static inline vf v_set1(float x) {
    return (vf){x, x, x, x};
}
static inline vf v_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void v_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}
static inline void v_stream(float *p, vf v) {
    v_store(p, v);
}
static inline void v_streamed(void) {}
static inline vf v_load_first(const float *p, int64_t n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}
static inline void v_store_first(float *p, vf v, int64_t n) {
    memcpy(p, &v, (size_t)n * sizeof *p);
}
/* Conversions as in tensor/convert.h, four at a time: lane by lane they are slower, and longer to compile. */
static inline v_uint v_mask(vi mask, v_uint x, v_uint y) {
    return (x & (v_uint)mask) | (y & ~(v_uint)mask);
}
static inline vf v_from_bf16(v_uint bits) {
    const v_uint quiet = (v_uint)((vi)(bits & 0x7fffu) > 0x7f80) & 0x00400000u;
    return (vf)(bits << 16 | quiet);
}
static inline v_uint v_to_bf16(vf v) {
    const v_uint bits = (v_uint)v, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return v_mask((vi)(bits & 0x7fffffffu) > 0x7f800000, bits >> 16 | 0x0040u, rounded);
}
static inline vf v_from_f16(v_uint bits) {
    const vi magnitude = (vi)(bits & 0x7fffu);
    const v_uint shifted = (v_uint)magnitude << 13;
    const v_uint subnormal = (v_uint)(__builtin_convertvector(magnitude, vf) * 0x1p-24f);
    const v_uint finite = v_mask(magnitude < 0x0400, subnormal, shifted + 0x38000000u);
    const v_uint special = shifted | 0x7f800000u | ((v_uint)(magnitude > 0x7c00) & 0x00400000u);
    return (vf)((bits & 0x8000u) << 16 | v_mask(magnitude < 0x7c00, finite, special));
}
static inline v_uint v_to_f16(vf v) {
    const v_uint bits = (v_uint)v, magnitude = bits & 0x7fffffffu;
    const vi small = (vi)magnitude < 0x38800000;
    const v_uint most = {0x47800000u, 0x47800000u, 0x47800000u, 0x47800000u};
    const v_uint capped = v_mask((vi)magnitude < (vi)most, magnitude, most);
    const v_uint normal = (capped - 0x38000000u + 0x0fffu + (capped >> 13 & 1u)) >> 13;
    const vf half = {0.5f, 0.5f, 0.5f, 0.5f};
    const v_uint subnormal = (v_uint)((vf)(magnitude & (v_uint)small) + half) - (v_uint)half;
    const v_uint nan = (magnitude >> 13 & 0x03ffu) | 0x7e00u;
    const v_uint number = v_mask(small, subnormal, normal);
    return (bits >> 16 & 0x8000u) | v_mask((vi)magnitude > 0x7f800000, nan, number);
}
static inline v_uint v_load_halves(const void *p) {
    v_halves halves;
    memcpy(&halves, p, sizeof halves);
    return __builtin_convertvector(halves, v_uint);
}
static inline v_uint v_load_halves_first(const void *p, int64_t n) {
    uint16_t bits[VL] = {0};
    memcpy(bits, p, (size_t)n * sizeof *bits);
    return v_load_halves(bits);
}
static inline void v_store_halves_first(void *p, v_uint bits, int64_t n) {
    const v_halves halves = __builtin_convertvector(bits, v_halves);
    memcpy(p, &halves, (size_t)n * sizeof(uint16_t));
}
static inline vf v_load_bf16_first(const void *p, int64_t n) {
    return v_from_bf16(v_load_halves_first(p, n));
}
static inline vf v_load_f16_first(const void *p, int64_t n) {
    return v_from_f16(v_load_halves_first(p, n));
}
static inline void v_store_bf16_first(void *p, vf v, int64_t n) {
    v_store_halves_first(p, v_to_bf16(v), n);
}
static inline void v_store_f16_first(void *p, vf v, int64_t n) {
    v_store_halves_first(p, v_to_f16(v), n);
}
static inline vf v_load_bf16(const void *p) {
    return v_from_bf16(v_load_halves(p));
}
static inline vf v_load_f16(const void *p) {
    return v_from_f16(v_load_halves(p));
}
static inline void v_store_bf16(void *p, vf v) {
    v_store_bf16_first(p, v, VL);
}
static inline void v_store_f16(void *p, vf v) {
    v_store_f16_first(p, v, VL);
}
static inline vf v_load_u8(const void *p) {
    const uint8_t *b = p;
    return (vf){(float)b[0], (float)b[1], (float)b[2], (float)b[3]};
}
static inline vf v_load_u4(const void *p) {
    const uint8_t *b = p;
    return (vf){(float)(b[0] & 15), (float)(b[0] >> 4), (float)(b[1] & 15), (float)(b[1] >> 4)};
}
static inline vf v_load_u4_of(const void *p, const float table[16]) {
    const uint8_t *b = p;
    return (vf){table[b[0] & 15], table[b[0] >> 4], table[b[1] & 15], table[b[1] >> 4]};
}
static inline vw v_multiply(vw a, vw b) {
    return (a & 0xffffffffu) * (b & 0xffffffffu);
}
static inline vw v_zip_even(vw a, vw b) {
    return (vw){a[0], b[0]};
}
static inline vw v_zip_odd(vw a, vw b) {
    return (vw){a[1], b[1]};
}
static inline vf v_add(vf a, vf b) {
    return a + b;
}
static inline vf v_sub(vf a, vf b) {
    return a - b;
}
static inline vf v_mul(vf a, vf b) {
    return a * b;
}
static inline vf v_div(vf a, vf b) {
    return a / b;
}
static inline vf v_fma(vf a, vf b, vf c) {
    return a * b + c;
}
/* Rounded once, by way of f64: it is the difference of a score to a row's largest, where a product that is
 * rounded by itself would cost all the digits that large scores have in common. */
static inline vf v_fma_one(const float *a, vf b, vf c) {
    return v_fma(v_set1(*a), b, c);
}
static inline vf v_fms(vf a, vf b, vf c) {
    typedef double vd __attribute__((vector_size(32)));
    const vd x = __builtin_convertvector(a, vd), y = __builtin_convertvector(b, vd);
    return __builtin_convertvector(x * y - __builtin_convertvector(c, vd), vf);
}
/* x where the mask's lanes are all ones, y where they are 0. */
static inline vf v_blend(vi mask, vf x, vf y) {
    return (vf)(((vi)x & mask) | ((vi)y & ~mask));
}
static inline vf v_select_gt(vf a, vf b, vf x, vf y) {
    return v_blend(a > b, x, y);
}
static inline bool v_any_gt(vf a, vf b) {
    return a[0] > b[0] || a[1] > b[1] || a[2] > b[2] || a[3] > b[3];
}
static inline vf v_max(vf a, vf b) {
    return v_blend(a > b, a, b);
}
static inline vf v_min(vf a, vf b) {
    return v_blend(a < b, a, b);
}
static inline vf v_abs(vf a) {
    const vi magnitude = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    return (vf)((vi)a & magnitude);
}
static inline vf v_copysign(vf magnitude, vf sign) {
    const vi bit = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN};
    return v_blend(bit, sign, magnitude);
}
static inline float v_sum(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
static inline float v_largest(vf v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
static inline vf v_sums(const vf r[VL]) {
    return (vf){v_sum(r[0]), v_sum(r[1]), v_sum(r[2]), v_sum(r[3])};
}
static inline vf v_largests(const vf r[VL]) {
    return (vf){v_largest(r[0]), v_largest(r[1]), v_largest(r[2]), v_largest(r[3])};
}

/* As on AVX2. */
static inline vf v_exp2(vf y) {
    const vf magic = v_set1(12582912.0f);
    y = v_min(v_set1(128.0f), v_max(v_set1(-127.0f), y));
    const vf t = y + magic;
    const vf f = y - (t - magic);
    vf p = v_set1(0.00015353361959569156f);
    p = p * f + v_set1(0.0013398875016719103f);
    p = p * f + v_set1(0.00961843691766262f);
    p = p * f + v_set1(0.055503323674201965f);
    p = p * f + v_set1(0.24022647738456726f);
    p = p * f + v_set1(0.6931471824645996f);
    p = p * f + v_set1(1.0f);
    return p * (vf)(((v_uint)t << 23) + (127u << 23));
}

static inline vf v_exp2_near(vf y) {
    return v_exp2(y);
}

static inline vf v_keep(vf v, int64_t low, int64_t high) {
    const int32_t a = low < 0 ? 0 : low > VL ? VL : (int32_t)low;
    const int32_t b = high < 0 ? 0 : high > VL ? VL : (int32_t)high;
    const vi lanes = {0, 1, 2, 3}, from = {a, a, a, a}, to = {b, b, b, b};
    return v_blend((lanes >= from) & (lanes < to), v, v_set1(-__builtin_inff()));
}
static inline vf v_allow(vf v, const uint8_t *bytes) {
    const vi lanes = {bytes[0], bytes[1], bytes[2], bytes[3]};
    return v_blend(lanes == (vi){0}, v_set1(-__builtin_inff()), v);
}
static inline vf v_where(vf v, uint32_t bits) {
    const int32_t b = (int32_t)(bits & 15);
    const vi lanes = {b & 1, b & 2, b & 4, b & 8};
    return v_blend(lanes != (vi){0}, v, v_zero());
}

static inline void v_transpose(vf r[VL]) {
    const vf a = r[0], b = r[1], c = r[2], d = r[3];
    r[0] = (vf){a[0], b[0], c[0], d[0]};
    r[1] = (vf){a[1], b[1], c[1], d[1]};
    r[2] = (vf){a[2], b[2], c[2], d[2]};
    r[3] = (vf){a[3], b[3], c[3], d[3]};
}

#endif
