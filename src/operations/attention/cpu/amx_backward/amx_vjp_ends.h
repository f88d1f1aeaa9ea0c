/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workers of the gradients on AMX share, and what they do before and after their tasks: δ, zeros where no
 * task writes, gradients of sinks.
 */
#ifndef EJKI_AMX_VJP_ENDS_H
#define EJKI_AMX_VJP_ENDS_H

#include "operations/attention/cpu/amx_backward/amx_vjp_bias.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_visible.h"

#include <stdatomic.h>

typedef struct amx_vjp_shared {
    const ejki_flash_vjp_problem *problem;
    amx_vjp_plan plan;
    ejki_vjp_tasks tasks;
    char *memory;        /* of all workers */
    float *sums, *delta; /* of all rows; of d_query, and δ */
    _Atomic int32_t *
        progress; /* of each row block: one more than the block of keys that was added last, or 0 */
    uint64_t *block_bits; /* of each row block, where there is a block mask: amx_vjp_visible.h */
    int32_t workers;
    _Atomic int64_t next;
} amx_vjp_shared;

/* Enters a sequence: what is its own, and the plan that goes with it. */
static inline void amx_vjp_enter(const amx_vjp_shared *shared, int64_t sequence,
                                 ejki_flash_vjp_problem *own, amx_vjp_plan *plan) {
    *own = ejki_flash_vjp_part(shared->problem, sequence);
    *plan = shared->plan;
    if (shared->problem->forward.layout != EJKI_FLASH_DENSE)
        amx_vjp_plan_enter(plan, &own->forward, &shared->tasks.sequence[sequence]);
}

/* ---- Before ------------------------------------------------------------------------------------------- */

static inline float amx_vjp_delta(const ejki_flash_vjp_problem *v, int64_t head, int64_t i) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bht *l = &v->lse_cotangent;
    const float sum = amx_vjp_dot(amx_vjp_at(&p->out, i, head),
                                  amx_vjp_at(&v->out_cotangent, i, head), p->value_dim);
    return v->has_lse_cotangent ? sum - l->data[head * l->stride_h + i * l->stride_t] : sum;
}

#define AMX_VJP_DELTA_AHEAD 16 /* rows that are prefetched before δ takes them */

/* A row block's list of key blocks and δ of its rows; zeros its d_query if the list is empty. */
static inline void amx_vjp_begin_row_block(const ejki_flash_vjp_problem *v, const amx_vjp_plan *t,
                                           int64_t head, amx_vjp_range rows, uint64_t *block_bits,
                                           float *delta) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_block_mask *block_mask = &p->block_mask;
    if (block_mask->mask_heads > 0) {
        const amx_vjp_range visible = amx_vjp_extent(p, rows);
        memset(block_bits, 0, (size_t)t->block_words * sizeof *block_bits);
        for (int64_t i = rows.first / block_mask->block_q; i * block_mask->block_q < rows.end; i++)
            amx_vjp_note(p, t, head / block_mask->heads_per_mask, i, visible, block_bits);
    }
    const amx_vjp_key_blocks visible_blocks = amx_vjp_key_blocks_of(p, t, rows, block_bits);
    const bool alone = amx_vjp_neighbour(&visible_blocks, -1, 1) < 0;
    for (int64_t i = rows.first; i < rows.end; i++) {
        if (i + AMX_VJP_DELTA_AHEAD < rows.end) {
            amx_prefetch(amx_vjp_at(&p->out, i + AMX_VJP_DELTA_AHEAD, head), 2 * p->value_dim);
            amx_prefetch(amx_vjp_at(&v->out_cotangent, i + AMX_VJP_DELTA_AHEAD, head),
                         2 * p->value_dim);
        }
        const bool blank = amx_vjp_lse(p, head, i) == -INFINITY;
        delta[i] = blank ? 0 : amx_vjp_delta(v, head, i);
        if (v->wants_query && alone && p->head_dim > 0)
            memset(amx_vjp_query_out(v, i, head), 0, (size_t)p->head_dim * sizeof(uint16_t));
    }
}

/* A worker's share of what comes first. */
static inline void amx_vjp_begin(void *argument, int64_t index) {
    const amx_vjp_shared *shared = argument;
    const int64_t heads = shared->problem->forward.query_heads;
    int64_t row_block = 0;
    const amx_vjp_plan *all = &shared->plan;
    if (all->bias_heads > 0 || all->bias_groups == 0 ||
        shared->problem->forward.layout != EJKI_FLASH_DENSE)
        amx_vjp_clear_bias(shared->problem, index, shared->workers);
    for (int64_t n = 0; n < shared->tasks.batch; n++) {
        ejki_flash_vjp_problem own;
        amx_vjp_plan t;
        amx_vjp_enter(shared, n, &own, &t);
        float *delta = shared->delta + shared->tasks.sequence[n].first_row;
        for (int64_t i = 0; i < heads * t.head_row_blocks; i++, row_block++) {
            if (row_block % shared->workers != index) continue;
            const int64_t head = i / t.head_row_blocks;
            amx_vjp_begin_row_block(
                &own, &t, head, amx_vjp_block_range(&t.queries, i % t.head_row_blocks),
                shared->block_bits + row_block * t.block_words, delta + head * own.forward.queries);
        }
    }
    ejki_flash_vjp_clear(shared->problem, index, shared->workers);
}

/* ---- After -------------------------------------------------------------------------------------------- */

static inline __m256 amx_half(vf v, int half) {
    return half ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v);
}

/* Adds what the rows of a sequence's head add to the gradient of a sink, lane by lane. */
static inline void amx_vjp_add_sink(const ejki_flash_problem *p, int64_t head, const float *delta,
                                    float sink, __m512d sums[2]) {
    for (int64_t first = 0; first < p->queries; first += VL) {
        const int64_t count = ejki_min(VL, p->queries - first);
        float own[VL];
        for (int64_t i = 0; i < VL; i++)
            own[i] = i < count ? amx_vjp_lse(p, head, first + i) : -INFINITY;
        const vf lse = v_load(own), change = v_load_first(delta + first, count);
        const __mmask16 some = _mm512_cmp_ps_mask(lse, v_set1(-INFINITY), _CMP_NEQ_UQ);
        const vf share = v_exp2(v_mul(v_sub(v_set1(sink), lse), v_set1((float)LOG2_E)));
        for (int half = 0; half < 2; half++) {
            const __mmask8 there = (__mmask8)(some >> 8 * half);
            const __m512d a = _mm512_cvtps_pd(amx_half(share, half));
            const __m512d b = _mm512_cvtps_pd(amx_half(change, half));
            sums[half] = _mm512_mask3_fnmadd_pd(a, b, sums[half], there);
        }
    }
}

/* Gradients of the sinks of one head, or of all where they share them: sums in f64, over rows in order. */
static inline void amx_vjp_sink(const amx_vjp_shared *shared, int64_t sink_head) {
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const bool all = v->d_sink_stride_h == 0;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const double sink = amx_element(p->sinks, sink_head * p->sink_stride_h + n);
        __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
        for (int64_t b = 0; b < shared->tasks.batch; b++) {
            const ejki_flash_problem own = ejki_flash_part(p, b);
            const float *delta = shared->delta + shared->tasks.sequence[b].first_row;
            for (int64_t head = 0; head < p->query_heads; head++)
                if (all || head / p->sink_group == sink_head)
                    amx_vjp_add_sink(&own, head, delta + head * own.queries, (float)sink, sums);
        }
        const double sum = _mm512_reduce_add_pd(_mm512_add_pd(sums[0], sums[1]));
        const uint16_t bits = ejk_f32_to_bf16((float)sum);
        memcpy(amx_address(v->d_sinks, sink_head * v->d_sink_stride_h + n), &bits, sizeof bits);
    }
}

static inline void amx_vjp_sinks(void *argument, int64_t index) {
    const amx_vjp_shared *shared = argument;
    const ejki_flash_problem *p = &shared->problem->forward;
    const int64_t heads =
        shared->problem->d_sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    for (int64_t head = index; head < heads; head += shared->workers) amx_vjp_sink(shared, head);
}

#endif
