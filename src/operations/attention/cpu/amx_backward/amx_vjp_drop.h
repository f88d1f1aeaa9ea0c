/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys dropout keeps, a word for each of 32 rows: the function of dropout.h, eight quads of keys at a time. */
#ifndef EJKI_AMX_VJP_DROP_H
#define EJKI_AMX_VJP_DROP_H

#include "operations/attention/cpu/amx_backward/amx_vjp_rows.h"

/* Bits of 32 keys from a multiple of four on. Lanes are quads of keys in 64 bits, of which Philox uses the lower half
 * and leaves anything in the upper. */
static inline uint32_t amx_vjp_keeps(const ejki_flash_problem *p, int64_t head, int64_t row,
                                     int64_t key) {
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i first_factor = _mm512_set1_epi64(0xD2511F53u);
    const __m512i second_factor = _mm512_set1_epi64(0xCD9E8D57u);
    const __m512i threshold = _mm512_set1_epi32((int)ejki_dropout_threshold(p->dropout));
    uint32_t k0 = (uint32_t)p->dropout_seed, k1 = (uint32_t)(p->dropout_seed >> 32);
    __m512i c0 = _mm512_add_epi64(lanes, _mm512_set1_epi64(key / 4)), c1 = _mm512_set1_epi64(row);
    __m512i c2 = _mm512_set1_epi64(head), c3 = _mm512_set1_epi64(p->first_sequence);
    for (int round = 0; round < 10; round++) {
        const __m512i a = _mm512_mul_epu32(c0, first_factor);
        const __m512i b = _mm512_mul_epu32(c2, second_factor);
        c0 =
            _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(b, 32), c1), _mm512_set1_epi64(k0));
        c2 =
            _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(a, 32), c3), _mm512_set1_epi64(k1));
        c1 = b;
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m512i low = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
    const __m512i high = _mm512_mask_blend_epi32(0xaaaa, c2, _mm512_slli_epi64(c3, 32));
    return _pdep_u32(_mm512_cmpge_epu32_mask(low, threshold), 0x33333333u) |
           _pdep_u32(_mm512_cmpge_epu32_mask(high, threshold), 0xccccccccu);
}

/* The words of a tile and the keys from `key` on, even rows first. `visible`, in the weights' order, says which
 * count. */
static __attribute__((noinline)) void amx_vjp_keep(const amx_vjp_state *s, int64_t tile,
                                                   int64_t key, const uint32_t *visible,
                                                   uint32_t *kept) {
    const ejki_flash_problem *p = &s->problem.forward;
    const int64_t first = key / 4 * 4;
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t row = s->tile[tile].row + amx_vjp_row(n / 2) + n % 2;
        uint32_t *word = kept + n % 2 * 16 + n / 2;
        *word = 0;
        if (visible[n] == 0) continue;
        *word = amx_vjp_keeps(p, s->head, row, first);
        if (key == first) continue;
        const uint64_t later = amx_vjp_keeps(p, s->head, row, first + AMX_CHUNK);
        *word = (uint32_t)((later << 32 | *word) >> (key - first));
    }
}

#endif
