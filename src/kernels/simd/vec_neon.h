/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AArch64 NEON; vec_avx512.h says what the words mean. */
#ifndef EJKI_VEC_H
#define EJKI_VEC_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t vf;
typedef uint64_t vw __attribute__((vector_size(16)));
#define VL 4

static inline vf v_zero(void) {
    return vdupq_n_f32(0.0f);
}
static inline vf v_set1(float x) {
    return vdupq_n_f32(x);
}
static inline vf v_load(const float *p) {
    return vld1q_f32(p);
}
static inline void v_store(float *p, vf v) {
    vst1q_f32(p, v);
}
static inline void v_stream(float *p, vf v) {
    v_store(p, v);
}
static inline void v_streamed(void) {}
static inline vf v_load_first(const float *p, int64_t n) {
    float lanes[VL] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vld1q_f32(lanes);
}
static inline void v_store_first(float *p, vf v, int64_t n) {
    float lanes[VL];
    vst1q_f32(lanes, v);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}
static inline vf v_load_bf16_first(const void *p, int64_t n) {
    uint16_t bits[VL] = {0};
    memcpy(bits, p, (size_t)n * sizeof *bits);
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bits), 16));
}
static inline vf v_load_f16_first(const void *p, int64_t n) {
    uint16_t bits[VL] = {0};
    memcpy(bits, p, (size_t)n * sizeof *bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits)));
}
static inline void v_store_bf16_first(void *p, vf v, int64_t n) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v), high = vshrq_n_u32(bits, 16);
    const uint32x4_t half = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
    const uint32x4_t nearest = vshrq_n_u32(vaddq_u32(bits, half), 16);
    const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    const uint16x4_t rounded = vmovn_u32(vbslq_u32(vceqq_f32(v, v), nearest, quiet));
    memcpy(p, &rounded, (size_t)n * sizeof(uint16_t));
}
static inline void v_store_f16_first(void *p, vf v, int64_t n) {
    const float16x4_t rounded = vcvt_f16_f32(v);
    memcpy(p, &rounded, (size_t)n * sizeof(uint16_t));
}
static inline vf v_load_bf16(const void *p) {
    return v_load_bf16_first(p, VL);
}
static inline vf v_load_f16(const void *p) {
    return v_load_f16_first(p, VL);
}
static inline void v_store_bf16(void *p, vf v) {
    v_store_bf16_first(p, v, VL);
}
static inline void v_store_f16(void *p, vf v) {
    v_store_f16_first(p, v, VL);
}
static inline vf v_load_u8(const void *p) {
    const uint8_t *b = p;
    const float lanes[VL] = {(float)b[0], (float)b[1], (float)b[2], (float)b[3]};
    return vld1q_f32(lanes);
}
static inline vf v_load_u4(const void *p) {
    const uint8_t *b = p;
    const float lanes[VL] = {(float)(b[0] & 15), (float)(b[0] >> 4), (float)(b[1] & 15),
                             (float)(b[1] >> 4)};
    return vld1q_f32(lanes);
}
static inline vf v_load_u4_of(const void *p, const float table[16]) {
    const uint8_t *b = p;
    const float lanes[VL] = {table[b[0] & 15], table[b[0] >> 4], table[b[1] & 15],
                             table[b[1] >> 4]};
    return vld1q_f32(lanes);
}
static inline vw v_multiply(vw a, vw b) {
    return (vw)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}
static inline vw v_zip_even(vw a, vw b) {
    return (vw)vzip1q_u64((uint64x2_t)a, (uint64x2_t)b);
}
static inline vw v_zip_odd(vw a, vw b) {
    return (vw)vzip2q_u64((uint64x2_t)a, (uint64x2_t)b);
}
static inline vf v_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
static inline vf v_select_gt(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vcgtq_f32(a, b), x, y);
}
static inline bool v_any_gt(vf a, vf b) {
    return vmaxvq_u32(vcgtq_f32(a, b)) != 0;
}
static inline vf v_max(vf a, vf b) {
    return v_select_gt(a, b, a, b);
}
static inline vf v_min(vf a, vf b) {
    return v_select_gt(b, a, a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf v_fma_one(const float *a, vf b, vf c) {
    return v_fma(v_set1(*a), b, c);
}
static inline vf v_fms(vf a, vf b, vf c) {
    return vfmaq_f32(vnegq_f32(c), a, b);
}
static inline vf v_abs(vf a) {
    return vabsq_f32(a);
}
static inline vf v_copysign(vf magnitude, vf sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
static inline float v_sum(vf v) {
    return vaddvq_f32(v);
}
static inline float v_largest(vf v) {
    return vmaxnmvq_f32(v);
}
static inline vf v_sums(const vf r[VL]) {
    return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3]));
}
static inline vf v_largests(const vf r[VL]) {
    return vpmaxq_f32(vpmaxq_f32(r[0], r[1]), vpmaxq_f32(r[2], r[3]));
}

/* As on AVX2, with the processor's own rounding to nearest. */
static inline vf v_exp2(vf y) {
    y = v_min(v_set1(128.0f), v_max(v_set1(-127.0f), y));
    const vf r = vrndnq_f32(y);
    const vf f = vsubq_f32(y, r);
    vf p = vdupq_n_f32(0.00015353361959569156f);
    p = v_fma(p, f, vdupq_n_f32(0.0013398875016719103f));
    p = v_fma(p, f, vdupq_n_f32(0.00961843691766262f));
    p = v_fma(p, f, vdupq_n_f32(0.055503323674201965f));
    p = v_fma(p, f, vdupq_n_f32(0.24022647738456726f));
    p = v_fma(p, f, vdupq_n_f32(0.6931471824645996f));
    p = v_fma(p, f, vdupq_n_f32(1.0f));
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(r), vdupq_n_s32(127)), 23);
    return vmulq_f32(p, vreinterpretq_f32_s32(power));
}

static inline vf v_exp2_near(vf y) {
    return v_exp2(y);
}

static inline vf v_keep(vf v, int64_t low, int64_t high) {
    const int32_t a = low < 0 ? 0 : low > VL ? VL : (int32_t)low;
    const int32_t b = high < 0 ? 0 : high > VL ? VL : (int32_t)high;
    const int32x4_t lanes = {0, 1, 2, 3};
    const uint32x4_t keep =
        vandq_u32(vcgeq_s32(lanes, vdupq_n_s32(a)), vcltq_s32(lanes, vdupq_n_s32(b)));
    return vbslq_f32(keep, v, vdupq_n_f32(-__builtin_inff()));
}
static inline vf v_allow(vf v, const uint8_t *bytes) {
    const uint32_t lanes[VL] = {bytes[0], bytes[1], bytes[2], bytes[3]};
    return vbslq_f32(vceqq_u32(vld1q_u32(lanes), vdupq_n_u32(0)), vdupq_n_f32(-__builtin_inff()),
                     v);
}
static inline vf v_where(vf v, uint32_t bits) {
    const uint32x4_t lanes = {1, 2, 4, 8};
    const uint32x4_t set = vtstq_u32(vdupq_n_u32(bits), lanes);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), set));
}

static inline void v_transpose(vf r[VL]) {
    const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

#endif
