/* SPDX-License-Identifier: Apache-2.0 */
/* An item of few rows, and what is prefetched while it is computed. */
#ifndef EJKI_PAGED_FEW_H
#define EJKI_PAGED_FEW_H

#include "operations/paged/cpu/paged_operands.h"
#include "operations/paged/cpu/paged_scores.h"

enum { CODES = 128 }; /* of 8-bit floats without their signs */

typedef struct paged_few {
    const paged_job *j;
    paged_size count; /* rows of all heads */
    float *query, *sums, *lanes, *totals, *scores, *key_scale, *value_scale;
    float *tile_query;             /* queries as tiles take them, on AMX */
    bool tiles;                    /* sums are in the order of tiles of AMX */
    bool bytes;                    /* tiles are of bytes: amx/paged_amx_bytes.h has what follows */
    bool byte_query[ROWS_AT_ONCE]; /* whether queries of a head are */
    float query_unit[ROWS_AT_ONCE],
        wrong[ROWS_AT_ONCE];    /* units of a row's query, and of its weights, summed */
    uint8_t codes[2][2][CODES]; /* of keys and values: upper and lower halves of bf16 */
    paged_row *row;
    bool exact;                  /* weights times values key by key */
    int key_step, value_step;    /* rows of a head before those of the next head */
    bool together;               /* a step takes all heads of some keys */
    bool key_order, value_order; /* products take one key, one value after the other */
    bool single, first_level;    /* prefetches are of lines of single rows; for the first level */
    int rows_ahead, heads_ahead; /* distance of prefetches, in the order of reading */
    paged_block *block, *next;
    paged_prefetch prefetch;
} paged_few;

/* Addresses of `n` rows for a head, `step` bytes behind the item's first; zeros have no heads. */
static EJKI_SHARED void head_rows(const char *const *rows, paged_size t, int n, paged_size step,
                                  const paged_block *b, const char **out) {
    for (int i = 0; i < n; i++)
        out[i] = rows[t + i] + (t + i >= b->low && t + i < b->high ? step : 0);
}

/* Begins to prefetch `count` rows from t on of head h: at the first head those of all, if they lie side by side, else
 * of each its own. */
static inline void begin_rows(paged_prefetch *a, const paged_few *f, const paged_cache *c,
                              const char *const *rows, paged_size dim, paged_size h, paged_size t,
                              paged_size count) {
    const paged_size size = paged_bytes(c->dtype);
    const bool together = c->head == dim;
    if (h > 0 && together) return;
    prefetch_rows(a, rows ? rows + t : NULL, rows ? count : 0, h * c->head * size,
                  (together ? f->j->heads : 1) * dim * size);
}
static inline void begin_prefetch(paged_few *f, const paged_cache *c, const char *const *rows,
                                  paged_size dim, paged_size h, paged_size t, paged_size count) {
    begin_rows(&f->prefetch, f, c, rows, dim, h, t, count);
}

#endif
