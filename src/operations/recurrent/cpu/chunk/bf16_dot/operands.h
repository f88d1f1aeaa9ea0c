/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products of bf16, which tiles of AMX and VDPBF16PS read alike. */
#ifndef EJKI_RECURRENT_CHUNK_OPERANDS_H
#define EJKI_RECURRENT_CHUNK_OPERANDS_H

#include "operations/recurrent/cpu/chunk/rows_body.h"

_Static_assert(CHUNK == 32 && TILE_COLUMNS == 32, "a chunk is a step, a slab two blocks");

/* Operands are made of blocks of 16 rows of 16 pairs, which a tile of AMX holds. */
enum { STEP = 32, BLOCK_SIZE = 512, BLOCK_ROWS = 16, MOST_TERMS = 3 };

typedef struct chunk_pairs {
    rec_size steps;       /* of key channels */
    int terms;            /* numbers of bf16 that an element of the state and of U is */
    float *k_met, *q_met; /* [CHUNK][TILE_COLUMNS]: products with the state */
    /* Left operands: [half of the tokens][step] and [16 channels]; right ones: [term][step][half of the columns]. */
    uint16_t *q, *k, *k_columns, *k_right, *state, *u;
} chunk_pairs;

#endif
