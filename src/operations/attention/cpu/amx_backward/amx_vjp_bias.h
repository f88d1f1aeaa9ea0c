/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of the bias. Where each element is of one pair it is written as it is; where elements are sums, a task
 * has sums in f32 of its keys. Tasks that add to the same elements are one after the other.
 */
#ifndef EJKI_AMX_VJP_BIAS_H
#define EJKI_AMX_VJP_BIAS_H

#include "operations/attention/cpu/amx/amx_visible.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_rows.h"

/* True if each element of the gradient is of one pair. */
static inline bool amx_vjp_writes_bias_once(const amx_vjp_state *s) {
    return s->problem.wants_bias && s->plan.bias_heads == 0;
}

/*
 * Up to 32 elements of a row of the gradient; where they are a line of memory, past the caches: nobody reads
 * them soon.
 */
static inline void amx_vjp_put_bias(char *target, __m512i elements, int64_t count) {
    if (count >= AMX_CHUNK && (uintptr_t)target % 64 == 0)
        _mm512_stream_si512((__m512i *)(void *)target, elements);
    else
        _mm512_mask_storeu_epi16(target, amx_first(count), elements);
}

static inline char *amx_vjp_bias_out(const amx_vjp_state *s, int64_t row, int64_t key) {
    const ejki_bias_gradient *bias = &s->problem.d_bias;
    return amx_address(bias->data, s->head * bias->stride_h + row * bias->stride_t + key);
}

/* Where a score tile's d_bias is in bf16, pairs of keys by even rows and, `odd` elements on, by odd ones. */
typedef struct amx_vjp_d_bias {
    const uint16_t *pairs;
    int64_t odd;
} amx_vjp_d_bias;

static inline amx_vjp_d_bias amx_vjp_d_bias_of(const amx_vjp_state *s, int64_t tile,
                                               int64_t chunk) {
    const int64_t chunks = s->plan.chunks;
    if (s->problem.forward.soft_cap != 0)
        return (amx_vjp_d_bias){s->d_bias_pairs + (2 * tile + chunk % 2) * AMX_VJP_BIAS_PAIRS,
                                AMX_ELEMENT};
    return (amx_vjp_d_bias){s->pairs + (tile * 2 * chunks + chunk) * AMX_ELEMENT,
                            chunks * AMX_ELEMENT};
}

/* d_bias of a tile's rows, one of them even and the other odd, beside a panel. */
static inline void amx_vjp_write_bias_rows(const amx_vjp_state *s, int64_t tile, int64_t panel,
                                           int64_t odd) {
    const amx_vjp_tile *t = &s->tile[tile];
    vf block[2][16];
    bool there[2];
    for (int64_t c = 0; c < 2; c++) {
        const int64_t chunk = 2 * panel + c;
        there[c] = s->state[tile * s->plan.chunks + chunk] != 0;
        if (!there[c]) continue;
        const amx_vjp_d_bias d_bias = amx_vjp_d_bias_of(s, tile, chunk);
        for (int64_t i = 0; i < 16; i++)
            block[c][i] =
                _mm512_castsi512_ps(_mm512_load_si512(d_bias.pairs + odd * d_bias.odd + 32 * i));
        v_transpose(block[c]);
    }
    for (int64_t i = 0; i < 16; i++) {
        const int64_t row = amx_vjp_row(i) + odd;
        for (int64_t c = 0; row < t->count && c < 2; c++) {
            const int64_t key = s->key + (2 * panel + c) * AMX_CHUNK;
            if (there[c])
                amx_vjp_put_bias(amx_vjp_bias_out(s, t->row + row, key),
                                 _mm512_castps_si512(block[c][i]), s->key_end - key);
        }
    }
}

/* The gradient of a panel's bias: both lines of a row one after the other, which memory takes in 60 % of the time. */
static __attribute__((noinline)) void amx_vjp_write_bias_panel(const amx_vjp_state *s,
                                                               int64_t panel) {
    for (int64_t n = 0; n < s->tiles; n++) {
        if (s->state[n * s->plan.chunks + 2 * panel] == 0 &&
            s->state[n * s->plan.chunks + 2 * panel + 1] == 0)
            continue;
        amx_vjp_write_bias_rows(s, n, panel, 0);
        amx_vjp_write_bias_rows(s, n, panel, 1);
    }
}

/* Zeros for rows of the row block and keys [key, end). */
static inline void amx_vjp_zero_bias(const amx_vjp_state *s, amx_vjp_range rows, int64_t key,
                                     int64_t end) {
    for (int64_t row = rows.first; row < rows.end; row++) {
        char *target = amx_vjp_bias_out(s, row, key);
        for (int64_t left = end - key; left > 0; left -= AMX_CHUNK, target += 2 * AMX_CHUNK)
            amx_vjp_put_bias(target, _mm512_setzero_si512(), left);
    }
}

/* The same for chunks of the block of which tiles of the row block see nothing. */
static inline void amx_vjp_zero_hidden_bias(const amx_vjp_state *s) {
    const int64_t chunks = ejki_cdiv(s->key_end - s->key, AMX_CHUNK);
    for (int64_t n = 0; n < s->tiles; n++) {
        const amx_vjp_range rows = {s->tile[n].row, s->tile[n].row + s->tile[n].count};
        const uint8_t *state = s->state + n * s->plan.chunks;
        for (int64_t c = 0, end; c < chunks; c = end + 1) {
            for (end = c; end < chunks && state[end] == 0;) end++;
            if (end > c)
                amx_vjp_zero_bias(s, rows, s->key + c * AMX_CHUNK,
                                  ejki_min(s->key_end, s->key + end * AMX_CHUNK));
        }
    }
}

/* Adds 16 changes of a row's scores, the first being that of key `at` of the block, to the sums. */
static inline void amx_vjp_sum_bias_row(const amx_vjp_state *s, int64_t row, int64_t at,
                                        vf d_bias) {
    const ejki_bias_gradient *bias = &s->problem.d_bias;
    const amx_vjp_plan *t = &s->plan;
    const int64_t head = bias->stride_h ? s->head - s->kv_head * s->problem.forward.group : 0;
    const int64_t own = head * t->bias_queries + (bias->stride_t ? row : 0);
    float *sum = s->bias + own * t->chunks * AMX_CHUNK + at;
    v_store(sum, v_add(v_load(sum), d_bias));
}

/* A score tile's d_bias, [32 keys][even rows, odd rows], to the sums. */
static __attribute__((noinline)) void amx_vjp_sum_bias(const amx_vjp_state *s, int64_t tile,
                                                       int64_t chunk, const float *d_bias) {
    const amx_vjp_tile *t = &s->tile[tile];
    for (int n = 0; n < 4; n++) {
        const int64_t key = n / 2 * 16, odd = n % 2;
        vf block[16];
        for (int64_t k = 0; k < 16; k++)
            block[k] = v_load(d_bias + (key + k) * AMX_ROWS + 16 * odd);
        v_transpose(block);
        for (int64_t i = 0; i < 16; i++)
            if (amx_vjp_row(i) + odd < t->count)
                amx_vjp_sum_bias_row(s, t->row + amx_vjp_row(i) + odd, chunk * AMX_CHUNK + key,
                                     block[i]);
    }
}

/*
 * Zeros for tokens of no sequence, where elements are sums, and where nothing adds to any: a worker's share
 * of the rows.
 */
static inline void amx_vjp_clear_bias(const ejki_flash_vjp_problem *v, int64_t index,
                                      int64_t workers) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bias_gradient *bias = &v->d_bias;
    const int64_t queries = bias->stride_t ? p->queries : 1;
    const int64_t heads = bias->stride_h ? p->query_heads : 1;
    const int64_t rows = v->wants_bias ? (bias->stride_b ? p->batch : 1) * heads * queries : 0;
    for (int64_t n = index; n < rows; n += workers)
        memset(amx_address(bias->data, n / queries / heads * bias->stride_b +
                                           n / queries % heads * bias->stride_h +
                                           n % queries * bias->stride_t),
               0, (size_t)p->keys * sizeof(uint16_t));
}

/* Rounds the sums of a block of keys to the gradient of a batch entry's and KV head's bias. */
static inline void amx_vjp_write_bias(const float *sums, const amx_vjp_plan *t,
                                      const ejki_flash_vjp_problem *v, int64_t batch,
                                      int64_t kv_head, amx_vjp_range keys) {
    const ejki_bias_gradient *bias = &v->d_bias;
    for (int64_t n = 0; n < t->bias_heads * t->bias_queries; n++, sums += t->chunks * AMX_CHUNK) {
        const int64_t head = kv_head * v->forward.group + n / t->bias_queries;
        char *out = amx_address(bias->data, batch * bias->stride_b + head * bias->stride_h +
                                                n % t->bias_queries * bias->stride_t + keys.first);
        for (int64_t j = 0; j < keys.end - keys.first; j += 2 * VL)
            amx_write_both(out + 2 * j, v_load(sums + j), v_load(sums + j + VL),
                           keys.end - keys.first - j);
    }
}

#endif
