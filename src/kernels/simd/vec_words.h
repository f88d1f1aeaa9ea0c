/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of 32 bits in the vector vocabulary; include after a vec_*.h. Each tier has the words
 *   v_words, v_words_at(p)       VL words, at any address; C's operators work on them
 *   v_bits(v), v_of_bits(w)      floats as words, and back
 *   v_numbers(w)                 words below 2^31 as floats
 *   v_table_of(t), v_entries(w, table)       entries of 16 floats by the lowest four bits of each word
 */
#ifndef EJKI_VEC_WORDS_H
#define EJKI_VEC_WORDS_H

#include "kernels/simd/vec.h"

typedef uint32_t v_words __attribute__((vector_size(4 * VL)));
typedef int32_t v_whole __attribute__((vector_size(4 * VL)));

static inline v_words v_words_at(const void *p) {
    v_words words;
    __builtin_memcpy(&words, p, sizeof words);
    return words;
}
static inline v_words v_bits(vf v) {
    return (v_words)v;
}
static inline vf v_of_bits(v_words words) {
    return (vf)words;
}

#if defined(__AVX512F__) && VL == 16
static inline vf v_numbers(v_words words) {
    return _mm512_cvtepi32_ps((__m512i)words);
}
typedef vf v_table;
static inline v_table v_table_of(const float table[16]) {
    return _mm512_loadu_ps(table);
}
static inline vf v_entries(v_words words, v_table table) {
    return _mm512_permutexvar_ps((__m512i)words, table);
}
#elif defined(__AVX2__) && VL == 8
static inline vf v_numbers(v_words words) {
    return _mm256_cvtepi32_ps((__m256i)words);
}
typedef struct v_table {
    vf low, high;
} v_table;
static inline v_table v_table_of(const float table[16]) {
    return (v_table){_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)};
}
static inline vf v_entries(v_words words, v_table table) {
    const vf low = _mm256_permutevar8x32_ps(table.low, (__m256i)words);
    const vf high = _mm256_permutevar8x32_ps(table.high, (__m256i)words);
    return _mm256_blendv_ps(low, high, (vf)(words << 28));
}
#elif defined(__ARM_NEON) && defined(EJKI_TIER_NEON)
static inline vf v_numbers(v_words words) {
    return vcvtq_f32_u32((uint32x4_t)words);
}
typedef uint8x16x4_t v_table;
static inline v_table v_table_of(const float table[16]) {
    return vld1q_u8_x4((const uint8_t *)table);
}
/* Bytes 4 i to 4 i + 3 are entry i. */
static inline vf v_entries(v_words words, v_table table) {
    const v_words bytes = (words & 15) * 0x04040404u + 0x03020100u;
    return (vf)vqtbl4q_u8(table, (uint8x16_t)bytes);
}
#else
static inline vf v_numbers(v_words words) {
    return (vf) __builtin_convertvector((v_whole)words, vf);
}
typedef const float *v_table;
static inline v_table v_table_of(const float table[16]) {
    return table;
}
static inline vf v_entries(v_words words, v_table table) {
    float lanes[VL];
    for (int i = 0; i < VL; i++) lanes[i] = table[words[i] & 15];
    return v_load(lanes);
}
#endif

#endif
