/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages head by head in float32, where prefetch_hint says so: keys, and values, of a head are read one after the other,
 * as they lie in memory. On Zen 4 that took 2.87 ms where four at a time took 3.86 (8192 keys of 8 heads, huge pages;
 * with 4 KiB pages 4.64 and 4.69); bf16, which arithmetic bounds, took 5 % longer so.
 */
#ifndef EJKI_PAGED_IN_ORDER_H
#define EJKI_PAGED_IN_ORDER_H

#include "operations/paged/cpu/paged_pass.h"

/* Scores of ORDER_ROWS rows of a head with VL keys from t on. */
static void score_in_order(const few_pass *p, few_ahead *ahead, paged_size h, paged_size t) {
    enum { KEYS = VL / ORDER_ROWS };
    const paged_size bytes = KEYS * p->dim * (paged_size)sizeof(float);
    begin_ahead(ahead, p, h, t, VL);
    for (paged_size k = t; k < t + VL; k += KEYS) {
        const char *key[KEYS];
        float products[VL];
        vf sum[VL];
        rows_at(p, p->row, k, KEYS, h * p->step, key);
        const char *next = prefetch_next(&ahead->memory, bytes, key[0]);
        EJKI_UNROLL for (int i = 0; i < KEYS; i++) {
            const float *query = p->query + h * ORDER_ROWS * p->depth;
            vf own[ORDER_ROWS];
            EJKI_UNROLL for (int r = 0; r < ORDER_ROWS; r++) own[r] = v_zero();
            for (paged_size d = 0; d < p->dim; d += VL, query += ORDER_ROWS * VL) {
                const vf v = v_stored(EJK_DTYPE_F32, key[i] + d * (paged_size)sizeof(float));
                if (d % (LINE / (int)sizeof(float)) == 0)
                    __builtin_prefetch(next, 0, 2), next += LINE;
                EJKI_UNROLL for (int r = 0; r < ORDER_ROWS; r++) own[r] =
                    v_fma(v_load(query + r * VL), v, own[r]);
            }
            EJKI_UNROLL for (int r = 0; r < ORDER_ROWS; r++) sum[r * KEYS + i] = own[r];
        }
        v_store(products, v_sums(sum));
        for (int r = 0; r < ORDER_ROWS; r++)
            memcpy(p->scores + (h * ORDER_ROWS + r) * BLOCK + k, products + r * KEYS,
                   sizeof products / ORDER_ROWS);
    }
}

/* Sums of two rows of a head, ORDER_COLUMNS of them, take in VL values; half as many lines are prefetched as read. */
static const char *add_two(const char *const *value, paged_size d, const float *weights,
                           float *sums, const char *next) {
    enum { VECTORS = ORDER_COLUMNS / VL, PAIR = 2, EACH = PAIR * LINE / (int)sizeof(float) / VL };
    vf sum[PAIR][VECTORS];
    EJKI_UNROLL for (int i = 0; i < PAIR; i++) EJKI_UNROLL for (int j = 0; j < VECTORS; j++)
        sum[i][j] = v_load(sums + (j * ORDER_ROWS + i) * VL);
    for (int k = 0; k < VL; k++) {
        const char *from = value[k] + d * (paged_size)sizeof(float);
        const vf first = v_set1(weights[k]), second = v_set1(weights[BLOCK + k]);
        EJKI_UNROLL for (int j = 0; j < VECTORS; j++) {
            const vf v = v_stored(EJK_DTYPE_F32, from + j * VL * (int)sizeof(float));
            if (next && j % EACH == 0) __builtin_prefetch(next, 0, 2), next += LINE;
            sum[0][j] = v_fma(first, v, sum[0][j]);
            sum[1][j] = v_fma(second, v, sum[1][j]);
        }
    }
    EJKI_UNROLL for (int i = 0; i < PAIR; i++) EJKI_UNROLL for (int j = 0; j < VECTORS; j++)
        v_store(sums + (j * ORDER_ROWS + i) * VL, sum[i][j]);
    return next;
}

/* Sums of ORDER_ROWS rows of a head take in VL values from t on. */
static void add_in_order(const few_pass *p, few_ahead *ahead, paged_size h, paged_size t,
                         bool prefetches) {
    const char *value[VL], *next = NULL;
    const float *weights = p->scores + h * ORDER_ROWS * BLOCK + t;
    rows_at(p, p->row, t, VL, h * p->step, value);
    if (prefetches) {
        begin_ahead(ahead, p, h, t, VL);
        next = prefetch_next(&ahead->memory, VL * p->dim * (paged_size)sizeof(float), value[0]);
    }
    for (paged_size d = 0; d < p->dim; d += ORDER_COLUMNS) {
        float *sums = p->sums + h * ORDER_ROWS * p->depth + d * ORDER_ROWS;
        for (int r = 0; r < ORDER_ROWS; r += 2)
            next = add_two(value, d, weights + r * BLOCK, sums + r * VL, next);
    }
}

#endif
