/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker of the gradients of flash attention on AMX, and what it does not leave to tiles: scores that are more
 * than a product; rows and keys with elements that tiles would not multiply right ("odd" ones), which are packed as
 * 0 and added here, one by one; finished gradients.
 */
#ifndef EJKI_AMX_VJP_ROWS_H
#define EJKI_AMX_VJP_ROWS_H

#include "kernels/flash_attention/amx_vjp_slopes.h"

typedef struct amx_vjp_state {
    const ejki_flash_vjp_problem *problem;
    const amx_vjp_plan *plan;
    bool general; /* scores are more than products */
    float scale;  /* of raw products to base 2; 1 if amx_modify() has done it */
    amx_exp exp;
    uint16_t *keys, *values, *across, *queries, *cotangents, *query_rows, *cotangent_rows;
    uint16_t *weights, *slopes, *pairs;
    float *d_keys, *d_values, *d_queries, *stage, *scratch;
    amx_vjp_tile *tile;
    amx_vjp_chunk *chunk;
    const float *delta;           /* of the strip */
    float *sums;                  /* of the strip's d_query */
    int64_t batch, kv_head, head; /* head: that of the strip */
    int64_t block, key, key_end;  /* keys of the task */
    int64_t row, count, tiles;    /* queries of the strip */
} amx_vjp_state;

static inline const char *amx_vjp_at(const ejki_bthd *t, int64_t batch, int64_t i, int64_t head) {
    return amx_place(t->data, batch * t->stride_b + i * t->stride_t + head * t->stride_h);
}

static inline float amx_vjp_lse(const ejki_flash_problem *p, int64_t batch, int64_t head,
                                int64_t i) {
    return p->lse.data[batch * p->lse.stride_b + head * p->lse.stride_h + i * p->lse.stride_t];
}

static inline float amx_vjp_dot(const char *a, const char *b, int64_t width) {
    vf sum = v_zero();
    for (int64_t d = 0; d < width; d += VL)
        sum = v_fma(amx_widen(a + 2 * d, width - d), amx_widen(b + 2 * d, width - d), sum);
    return v_sum(sum);
}

/* ---- Scores ------------------------------------------------------------------------------------------- */

/* A row's place among even and odd rows. */
static inline int64_t amx_vjp_place(int64_t row) {
    return row % 2 * 16 + row % 16 / 4 * 4 + row / 16 * 2 + row % 4 / 2;
}

/* The products of an odd unit: those of pairs that see each other. */
static __attribute__((noinline)) void amx_vjp_slow_products(const amx_vjp_state *s, int64_t tile,
                                                            int64_t chunk, float *scores,
                                                            float *products) {
    const ejki_flash_vjp_problem *v = s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_tile *t = &s->tile[tile];
    const int64_t first = s->key + chunk * AMX_CHUNK;
    memset(scores, 0, AMX_ROWS * AMX_CHUNK * sizeof *scores);
    memset(products, 0, AMX_ROWS * AMX_CHUNK * sizeof *products);
    for (int64_t i = 0; i < t->count; i++) {
        int64_t low, high;
        ejki_flash_visible(p, t->row + i, &low, &high);
        if (amx_vjp_lse(p, s->batch, s->head, t->row + i) == -INFINITY) continue;
        const char *query = amx_vjp_at(&p->query, s->batch, t->row + i, s->head);
        const char *cotangent = amx_vjp_at(&v->out_cotangent, s->batch, t->row + i, s->head);
        for (int64_t j = ejki_max(low, first); j < ejki_min(high, first + AMX_CHUNK); j++) {
            const int64_t at = (j - first) * AMX_ROWS;
            scores[at + i] =
                amx_vjp_dot(query, amx_vjp_at(&p->key, s->batch, j, s->kv_head), p->head_dim);
            products[at + amx_vjp_place(i)] = amx_vjp_dot(
                cotangent, amx_vjp_at(&p->value, s->batch, j, s->kv_head), p->value_dim);
        }
    }
}

/* to[j][i] = from[i][j], 32 by 32. */
static inline void amx_vjp_flip(const float *from, float *to) {
    for (int n = 0; n < 4; n++) {
        const int i = n / 2 * 16, j = n % 2 * 16;
        vf block[16];
        for (int k = 0; k < 16; k++) block[k] = v_load(from + (i + k) * 32 + j);
        v_transpose(block);
        for (int k = 0; k < 16; k++) v_store(to + (j + k) * 32 + i, block[k]);
    }
}

/* Raw products become scores; returns what slopes of the soft cap are, if there is one. Both halves of the scratch
 * are used. */
static __attribute__((noinline)) float *amx_vjp_modify(const amx_vjp_state *s, int64_t tile,
                                                       int64_t chunk, float *scores) {
    const ejki_flash_problem *p = &s->problem->forward;
    const amx_vjp_tile *t = &s->tile[tile];
    const int64_t key = s->key + chunk * AMX_CHUNK, count = ejki_min(AMX_CHUNK, p->keys - key);
    float *rows = s->scratch, *caps = s->scratch + AMX_ROWS * AMX_CHUNK;
    const vf factor = v_set1((float)(p->soft_cap != 0 ? p->scale / p->soft_cap : 0));
    for (int64_t n = 0; p->soft_cap != 0 && n < AMX_ROWS * AMX_CHUNK; n += VL) {
        const vf th = v_tanh(v_mul(v_load(scores + n), factor));
        v_store(caps + n, v_mul(v_sub(v_set1(1), th), v_add(v_set1(1), th)));
    }
    amx_vjp_flip(scores, rows);
    for (int64_t i = 0; i < t->count; i++) {
        const flash_row r = {
            .batch = s->batch, .head = s->head, .kv_head = s->kv_head, .query = t->row + i};
        amx_modify(p, &r, key, count, rows + i * AMX_CHUNK);
    }
    amx_vjp_flip(rows, scores);
    return p->soft_cap != 0 ? caps : NULL;
}

/* ---- Sums of odd rows and keys ------------------------------------------------------------------------ */

/* sums[16 columns at each step] += factor · source. */
static inline void amx_vjp_add_row(float factor, const char *source, int64_t width, float *sums) {
    for (int64_t d = 0; d < width; d += VL, sums += AMX_SUMS)
        v_store(sums, v_fma(v_set1(factor), amx_widen(source + 2 * d, width - d), v_load(sums)));
}

/* What an odd tile of rows adds to the gradients of a panel's keys. */
static __attribute__((noinline)) void amx_vjp_add_odd_rows(const amx_vjp_state *s, int64_t tile,
                                                           int64_t panel) {
    const ejki_flash_vjp_problem *v = s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_plan *t = s->plan;
    for (int64_t j = 0; j < AMX_VJP_PANEL; j++) {
        const int64_t at = (j / 16 * (t->rows / AMX_ROWS) + tile) * AMX_ELEMENT + j % 16 * AMX_ROWS;
        const int64_t key = panel * AMX_VJP_PANEL + j, sum = key % 16 * 16;
        for (int64_t n = 0; n < AMX_ROWS; n++) {
            const int64_t row = s->tile[tile].row + amx_vjp_row(n / 2) + n % 2;
            const float weight = ejk_bf16_to_f32(s->weights[at + n]);
            const float slope = ejk_bf16_to_f32(s->slopes[at + n]);
            if (weight != 0)
                amx_vjp_add_row(weight, amx_vjp_at(&v->out_cotangent, s->batch, row, s->head),
                                p->value_dim,
                                s->d_values + key / 16 * t->value_wide * AMX_SUMS + sum);
            if (slope != 0)
                amx_vjp_add_row(slope, amx_vjp_at(&p->query, s->batch, row, s->head), p->head_dim,
                                s->d_keys + key / 16 * t->wide * AMX_SUMS + sum);
        }
    }
}

/* What an odd chunk of keys adds to the gradients of a tile of rows. */
static __attribute__((noinline)) void amx_vjp_add_odd_keys(const amx_vjp_state *s, int64_t tile,
                                                           int64_t chunk) {
    const ejki_flash_problem *p = &s->problem->forward;
    const amx_vjp_plan *t = s->plan;
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t column = 2 * tile + n / 16;
        const uint16_t *pairs =
            s->pairs + (column * (t->keys / AMX_CHUNK) + chunk) * AMX_ELEMENT + n % 16 * 2;
        float *sums = s->sums + column * t->wide * AMX_SUMS + n % 16;
        for (int64_t j = 0; j < AMX_CHUNK; j++) {
            const float slope = ejk_bf16_to_f32(pairs[j / 2 * 32 + j % 2]);
            if (slope == 0) continue;
            const char *key =
                amx_vjp_at(&p->key, s->batch, s->key + chunk * AMX_CHUNK + j, s->kv_head);
            for (int64_t d = 0; d < p->head_dim; d++)
                sums[d * 16] += slope * (float)amx_element(key, d);
        }
    }
}

/* ---- Finished gradients ------------------------------------------------------------------------------- */

static inline void amx_vjp_write(char *target, vf v, int64_t count) {
    _mm256_mask_storeu_epi16(target, v_first(ejki_min(VL, count)), amx_narrow(v));
}

/* Writes factor times the sums of the task's keys, of `wide` tiles each. */
static inline void amx_vjp_write_keys(const amx_vjp_state *s, const ejki_bthd *target,
                                      const float *sums, int64_t wide, int64_t width,
                                      float factor) {
    for (int64_t n = 0; n < s->key_end - s->key; n++) {
        char *out =
            amx_place(target->data, s->batch * target->stride_b + (s->key + n) * target->stride_t +
                                        s->kv_head * target->stride_h);
        const float *from = sums + n / 16 * wide * AMX_SUMS + n % 16 * 16;
        for (int64_t d = 0; d < width; d += VL, from += AMX_SUMS)
            amx_vjp_write(out + 2 * d, v_mul(v_load(from), v_set1(factor)), width - d);
    }
}

/* Writes scale times the sums of the strip's queries. */
static inline void amx_vjp_write_queries(const amx_vjp_state *s) {
    const ejki_bthd *target = &s->problem->d_query;
    const ejki_flash_problem *p = &s->problem->forward;
    const vf scale = v_set1((float)p->scale);
    for (int64_t column = 0; column < 2 * s->tiles; column++)
        for (int64_t d = 0; d < p->head_dim; d += VL) {
            const float *from = s->sums + (column * s->plan->wide + d / VL) * AMX_SUMS;
            vf block[16];
            for (int i = 0; i < 16; i++) block[i] = v_mul(v_load(from + 16 * i), scale);
            v_transpose(block);
            for (int64_t i = 0; i < 16; i++) {
                const int64_t row = column / 2 * AMX_ROWS + amx_vjp_row(i) + column % 2;
                if (row >= s->count) continue;
                char *out = amx_place(target->data, s->batch * target->stride_b +
                                                        (s->row + row) * target->stride_t +
                                                        s->head * target->stride_h);
                amx_vjp_write(out + 2 * d, block[i], p->head_dim - d);
            }
        }
}

#endif
