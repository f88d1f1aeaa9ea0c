/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products of bf16, which tiles of AMX and VDPBF16PS read alike. */
#ifndef EJKI_RECURRENT_CHUNK_OPERANDS_H
#define EJKI_RECURRENT_CHUNK_OPERANDS_H

#include <immintrin.h>

#include "operations/recurrent/cpu/chunk/rows_body.h"

_Static_assert(CHUNK == 32 && TILE_COLUMNS == 32, "a chunk is a step, a slab two blocks");

/* Operands are made of blocks of 16 rows of 16 pairs, which a tile of AMX holds. */
enum { STEP = 32, BLOCK_SIZE = 512, BLOCK_ROWS = 16, MOST_TERMS = 3 };

typedef struct chunk_pairs {
    rec_size steps;       /* of key channels */
    int terms;            /* numbers of bf16 that an element of U is, ... */
    int state_terms;      /* and one of the state */
    float *k_met, *q_met; /* [CHUNK][TILE_COLUMNS]: products with the state */
    /* Left operands: [half of the tokens][step] and [16 channels]; right ones: [term][step][half of the columns]. */
    uint16_t *q, *k, *k_columns, *k_right, *u;
} chunk_pairs;

INLINE __m512i round_both(vf a, vf b) {
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* Two rows of 16 columns as rows of right operands, one for each term, `apart` elements from each other. */
INLINE void pair_rows(const int terms, vf even, vf odd, rec_size apart, uint16_t *to) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    EJKI_UNROLL for (int n = 0; n < terms; n++, to += apart) {
        const __m512i pairs = _mm512_permutexvar_epi16(order, round_both(even, odd));
        _mm512_storeu_si512(to, pairs);
        if (n + 1 == terms) break;
        const __m512i second = _mm512_set1_epi32((int)0xffff0000u);
        even = v_sub(even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
        odd = v_sub(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, second)));
    }
}

#endif
