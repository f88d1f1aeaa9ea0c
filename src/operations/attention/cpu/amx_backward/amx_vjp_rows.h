/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of a worker of the gradients on AMX, and what does not go through tiles: soft cap and bias of scores; special
 * rows and keys, whose elements AMX would flush to 0 or overflow on, which are packed as 0 and added one by one;
 * output.
 */
#ifndef EJKI_AMX_VJP_ROWS_H
#define EJKI_AMX_VJP_ROWS_H

#include "operations/attention/cpu/amx_backward/amx_vjp_steps.h"

/* A worker's memory and the task that it is at. Sequences and batch entries are problems of their own. */
typedef struct amx_vjp_state {
    ejki_flash_vjp_problem problem;
    amx_vjp_plan plan;
    bool score_mod; /* soft cap or bias */
    bool has_form;  /* weights and dS may be made by `form` */
    bool
        degree_4; /* soft cap by a polynomial of degree 4: degree 2 failed on the last score tile */
    bool special_keys; /* a chunk of the block is special */
    bool hides_keys;   /* amx_vjp_hides_keys() */
    float scale;       /* of raw products to base 2 */
    amx_form form;
    amx_exp exp;
    uint16_t *keys, *values, *keys_transposed, *queries, *cotangents, *query_rows, *cotangent_rows;
    uint16_t *weights, *d_scores, *pairs;
    float *d_keys, *d_values, *d_queries, *stage, *scratch;
    float *bias; /* sums of its gradient */
    uint16_t *bias_pairs,
        *d_bias_pairs; /* of each tile beside the panel and chunk of it: bias, d_bias */
    float *bias_tops;  /* the largest magnitudes of these biases */
    amx_vjp_tile *tile;
    amx_vjp_chunk *chunk;
    uint8_t *state;    /* of each tile and chunk: amx_vjp_visible.h */
    uint32_t *visible; /* where it is looked up: keys visible to each row, by tile and chunk */
    ejki_mask_block *mask_block;
    int64_t sequence, kv_head, head;   /* head: that of the row block */
    int64_t first_row;                 /* of the sequence, among those of all heads of all */
    int64_t first_row_block;           /* of the KV head */
    int64_t block, key, key_end;       /* keys of the task */
    int64_t row, count, tiles;         /* queries of the row block */
    int64_t score_tiles;               /* tiles by chunks in which a key is visible */
    amx_vjp_range ahead;               /* queries that are prefetched, */
    int64_t ahead_head, prefetch_rate; /* their head, and how many at each score tile */
    const float *ahead_sums;           /* NULL, or those of the head */
} amx_vjp_state;

static inline const char *amx_vjp_at(const ejki_bthd *t, int64_t i, int64_t head) {
    return amx_address(t->data, i * t->stride_t + head * t->stride_h);
}

static inline float amx_vjp_lse(const ejki_flash_problem *p, int64_t head, int64_t i) {
    return p->lse.data[head * p->lse.stride_h + i * p->lse.stride_t];
}

static inline float amx_vjp_dot(const char *a, const char *b, int64_t width) {
    vf sum = v_zero();
    for (int64_t d = 0; d < width; d += VL)
        sum = v_fma(amx_widen(a + 2 * d, width - d), amx_widen(b + 2 * d, width - d), sum);
    return v_sum(sum);
}

/* ---- Scores ------------------------------------------------------------------------------------------- */

/* Index of a row among even rows first, odd rows after. */
static inline int64_t amx_vjp_even_odd(int64_t row) {
    return row % 2 * 16 + row % 16 / 4 * 4 + row / 16 * 2 + row % 4 / 2;
}

/* Products of a special score tile, for visible pairs only. `visible` is in the weights' order. */
static __attribute__((noinline)) void amx_vjp_slow_products(const amx_vjp_state *s, int64_t tile,
                                                            int64_t chunk, const uint32_t *visible,
                                                            float *scores, float *products) {
    const ejki_flash_vjp_problem *v = &s->problem;
    const ejki_flash_problem *p = &v->forward;
    const int64_t first = s->key + chunk * AMX_CHUNK;
    memset(scores, 0, AMX_ROWS * AMX_CHUNK * sizeof *scores);
    memset(products, 0, AMX_ROWS * AMX_CHUNK * sizeof *products);
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t i = amx_vjp_row(n / 2) + n % 2, row = s->tile[tile].row + i;
        for (uint32_t left = visible[n]; left; left &= left - 1) {
            const int64_t j = __builtin_ctz(left), at = j * AMX_ROWS;
            scores[at + i] = amx_vjp_dot(amx_vjp_at(&p->query, row, s->head),
                                         amx_vjp_at(&p->key, first + j, s->kv_head), p->head_dim);
            products[at + amx_vjp_even_odd(i)] =
                amx_vjp_dot(amx_vjp_at(&v->out_cotangent, row, s->head),
                            amx_vjp_at(&p->value, first + j, s->kv_head), p->value_dim);
        }
    }
}

/* Where a row's bias of the keys from `key` on begins. */
static inline const char *amx_vjp_bias_row(const amx_vjp_state *s, int64_t row, int64_t key) {
    const ejki_flash_problem *p = &s->problem.forward;
    return amx_address(p->bias.data, s->head * p->bias.stride_h + row * p->bias.stride_t + key);
}

/* Prefetches the bias of a tile beside a panel. */
static inline void amx_vjp_prefetch_bias(const amx_vjp_state *s, int64_t tile, int64_t panel) {
    const amx_vjp_tile *t = &s->tile[tile];
    for (int64_t chunk = 2 * panel; tile < s->tiles && chunk < 2 * panel + 2; chunk++) {
        if (s->state[tile * s->plan.chunks + chunk] == 0) continue;
        for (int64_t i = 0; i < t->count; i++)
            amx_prefetch_line(amx_vjp_bias_row(s, t->row + i, s->key + chunk * AMX_CHUNK));
    }
}

/* Packs a score tile's bias, pairs of keys by rows; returns the largest magnitude, NaN if there is one. */
static __attribute__((noinline)) float amx_vjp_pack_bias(const amx_vjp_state *s, int64_t tile,
                                                         int64_t chunk, uint16_t *to) {
    const amx_vjp_tile *t = &s->tile[tile];
    const int64_t key = s->key + chunk * AMX_CHUNK;
    const int64_t count = ejki_min(AMX_CHUNK, s->key_end - key);
    const int64_t stride = 2 * s->problem.forward.bias.stride_t;
    const char *row = amx_vjp_bias_row(s, t->row, key);
    __m512i top = _mm512_setzero_si512();
    for (int64_t first = 0; first < AMX_ROWS; first += 16, to += AMX_ELEMENT) {
        vf block[16];
        for (int64_t i = 0; i < 16; i++) {
            __m512i bits = _mm512_setzero_si512();
            if (first + i < t->count && count > 0) bits = amx_load(row, count);
            row += stride;
            top = amx_larger(top, bits);
            block[i] = _mm512_castsi512_ps(bits);
        }
        amx_vjp_store_transposed(block, to);
    }
    return amx_top(top);
}

/* Packs the bias of all tiles of a panel before its products, so that lines of a row are read one after the other. */
static inline void amx_vjp_pack_bias_panel(amx_vjp_state *s, int64_t panel) {
    for (int64_t n = 0; n < 2 * s->tiles; n++) {
        const int64_t tile = n / 2, chunk = 2 * panel + n % 2;
        if (n % 2 == 0) amx_vjp_prefetch_bias(s, tile + 1, panel);
        if (s->state[tile * s->plan.chunks + chunk] != 0)
            s->bias_tops[n] =
                amx_vjp_pack_bias(s, tile, chunk, s->bias_pairs + n * AMX_VJP_BIAS_PAIRS);
    }
}

/* Base-2 scores from raw products and packed bias; the derivative of a soft cap goes to the scratch. */
static __attribute__((noinline)) void amx_vjp_modify(const amx_vjp_state *s, const uint32_t *bias,
                                                     float *scores) {
    const ejki_flash_problem *p = &s->problem.forward;
    const bool caps = p->soft_cap != 0;
    float *d_scores = s->scratch + AMX_VJP_CAPS;
    const vf scale = v_set1((float)(caps ? p->scale / p->soft_cap : p->scale * LOG2_E));
    const vf cap = v_set1((float)(p->soft_cap * LOG2_E));
    for (int64_t n = 0; n < AMX_ROWS * AMX_CHUNK; n += VL) {
        const int64_t key = n / AMX_ROWS, index = n % AMX_ROWS * 16 + key / 2 * 16;
        vf z = v_mul(v_load(scores + n), scale);
        if (caps) {
            z = v_tanh(z);
            v_store(d_scores + n, v_mul(v_sub(v_set1(1), z), v_add(v_set1(1), z)));
            z = v_mul(z, cap);
        }
        if (p->has_bias) {
            const __m512i pair = _mm512_loadu_si512(bias + index);
            const __m512i own = key % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32(-65536))
                                        : _mm512_slli_epi32(pair, 16);
            const vf b = _mm512_castsi512_ps(own);
            z = amx_bias_hides(b, v_fma(b, v_set1((float)LOG2_E), z));
        }
        v_store(scores + n, z);
    }
}

/* ---- Sums of special rows and keys ------------------------------------------------------------------------ */

/* sums[16 columns at each step] += factor · source. */
static inline void amx_vjp_add_row(float factor, const char *source, int64_t width, float *sums) {
    for (int64_t d = 0; d < width; d += VL, sums += AMX_SUMS)
        v_store(sums, v_fma(v_set1(factor), amx_widen(source + 2 * d, width - d), v_load(sums)));
}

/* Adds a special tile of rows to d_key and d_value of a panel. */
static __attribute__((noinline)) void amx_vjp_add_special_rows(const amx_vjp_state *s, int64_t tile,
                                                               int64_t panel) {
    const ejki_flash_vjp_problem *v = &s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_plan *t = &s->plan;
    for (int64_t j = 0; j < AMX_VJP_PANEL; j++) {
        const int64_t at = (j / 16 * t->tiles + tile) * AMX_ELEMENT + j % 16 * AMX_ROWS;
        const int64_t key = panel * AMX_VJP_PANEL + j, sum = key % 16 * 16;
        for (int64_t n = 0; n < AMX_ROWS; n++) {
            const int64_t row = s->tile[tile].row + amx_vjp_row(n / 2) + n % 2;
            const float weight = ejk_bf16_to_f32(s->weights[at + n]);
            const float d_score = ejk_bf16_to_f32(s->d_scores[at + n]);
            if (weight != 0)
                amx_vjp_add_row(weight, amx_vjp_at(&v->out_cotangent, row, s->head), p->value_dim,
                                s->d_values + key / 16 * t->value_tiles * AMX_SUMS + sum);
            if (d_score != 0)
                amx_vjp_add_row(d_score, amx_vjp_at(&p->query, row, s->head), p->head_dim,
                                s->d_keys + key / 16 * t->head_tiles * AMX_SUMS + sum);
        }
    }
}

/* Adds a special chunk of keys to d_query of a tile of rows. */
static __attribute__((noinline)) void amx_vjp_add_special_keys(const amx_vjp_state *s, int64_t tile,
                                                               int64_t chunk) {
    const ejki_flash_problem *p = &s->problem.forward;
    const amx_vjp_plan *t = &s->plan;
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const uint16_t *pairs =
            s->pairs + ((2 * tile + n / 16) * t->chunks + chunk) * AMX_ELEMENT + n % 16 * 2;
        float *sums = s->tile[tile].sums + n / 16 * t->head_tiles * AMX_SUMS + n % 16;
        for (int64_t j = 0; j < AMX_CHUNK; j++) {
            const float d_score = ejk_bf16_to_f32(pairs[j / 2 * 32 + j % 2]);
            if (d_score == 0) continue;
            const char *key = amx_vjp_at(&p->key, s->key + chunk * AMX_CHUNK + j, s->kv_head);
            for (int64_t d = 0; d < p->head_dim; d++)
                sums[d * 16] += d_score * (float)amx_element(key, d);
        }
    }
}

/* ---- Finished gradients ------------------------------------------------------------------------------- */

/* Writes factor times the sums of the task's keys, of `wide` tiles each. */
static inline void amx_vjp_write_keys(const amx_vjp_state *s, const ejki_bthd *target,
                                      const float *sums, int64_t wide, int64_t width,
                                      float factor) {
    for (int64_t n = 0; n < s->key_end - s->key; n++) {
        char *out = amx_address(target->data,
                                (s->key + n) * target->stride_t + s->kv_head * target->stride_h);
        const float *from = sums + n / 16 * wide * AMX_SUMS + n % 16 * 16;
        for (int64_t d = 0; d < width; d += 2 * VL, from += 2 * AMX_SUMS)
            amx_write_both(out + 2 * d, v_mul(v_load(from), v_set1(factor)),
                           v_mul(v_load(from + AMX_SUMS), v_set1(factor)), width - d);
    }
}

/* Where a query's gradient is written. */
static inline char *amx_vjp_query_out(const ejki_flash_vjp_problem *v, int64_t row, int64_t head) {
    return amx_address(v->d_query.data, row * v->d_query.stride_t + head * v->d_query.stride_h);
}

/* Writes scale times a tile's sums. */
static inline void amx_vjp_write_tile(const amx_vjp_state *s, const amx_vjp_tile *t) {
    const ejki_flash_problem *p = &s->problem.forward;
    const vf scale = v_set1((float)p->scale);
    for (int64_t column = 0; column < 2; column++)
        for (int64_t d = 0; d < p->head_dim; d += 2 * VL) {
            const float *from = t->sums + (column * s->plan.head_tiles + d / VL) * AMX_SUMS;
            vf block[2][16];
            for (int n = 0; n < 2; n++) {
                for (int i = 0; i < 16; i++)
                    block[n][i] = v_mul(v_load(from + n * AMX_SUMS + 16 * i), scale);
                v_transpose(block[n]);
            }
            for (int64_t i = 0; i < 16; i++) {
                const int64_t row = amx_vjp_row(i) + column;
                if (row < t->count)
                    amx_write_both(amx_vjp_query_out(&s->problem, t->row + row, s->head) + 2 * d,
                                   block[0][i], block[1][i], p->head_dim - d);
            }
        }
}

/* ---- Sums that blocks of keys share --------------------------------------------------------------------- */

/* Mask of the rows of a column that exist; column 0 has the even rows, column 1 the odd ones. */
static inline __mmask16 amx_vjp_row_mask(int64_t column, int64_t count) {
    uint32_t places = 0;
    for (int64_t i = 0; i < 16; i++) places |= (uint32_t)(amx_vjp_row(i) + column < count) << i;
    return (__mmask16)places;
}

/* Sums of a partial tile are shared in compressed form, without rows that do not exist. */
static inline void amx_vjp_unfold(const amx_vjp_state *s, const amx_vjp_tile *t,
                                  const float *from) {
    float *to = t->sums;
    for (int64_t column = 0; column < 2; column++) {
        const __mmask16 places = amx_vjp_row_mask(column, t->count);
        for (int64_t n = 0; n < 16 * s->plan.head_tiles; n++, to += 16) {
            v_store(to, _mm512_maskz_expandloadu_ps(places, from));
            from += __builtin_popcount(places);
        }
    }
}
static inline void amx_vjp_fold(const amx_vjp_state *s, const amx_vjp_tile *t, float *to) {
    const float *from = t->sums;
    for (int64_t column = 0; column < 2; column++) {
        const __mmask16 places = amx_vjp_row_mask(column, t->count);
        for (int64_t n = 0; n < 16 * s->plan.head_tiles; n++, from += 16) {
            _mm512_mask_compressstoreu_ps(to, places, v_load(from));
            to += __builtin_popcount(places);
        }
    }
}

#endif
