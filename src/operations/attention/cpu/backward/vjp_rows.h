/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradients of attention do with rows before and after their tasks: δ, sums of d_query, gradients of sinks.
 */
#ifndef EJKI_VJP_ROWS_H
#define EJKI_VJP_ROWS_H

#include "operations/attention/cpu/backward/vjp_plan.h"
#include "operations/attention/cpu/backward/vjp_scores.h"
#include "operations/attention/shared/sequences.h"

/* What the workers of one run share. */
typedef struct vjp_shared {
    const ejki_flash_vjp_problem *problem;
    vjp_plan plan;
    ejki_vjp_tasks tasks;
    float *workers_memory, *lse, *delta, *query_sums;
    _Atomic int32_t *progress; /* of each block of rows: blocks of keys that have been added */
    int32_t workers;
    _Atomic int64_t next;
} vjp_shared;

static const void *vjp_cotangent(const ejki_flash_vjp_problem *v, const flash_row *r) {
    return flash_row_at(&v->out_cotangent, v->forward.dtype, r);
}

/* Where a row's gradient is summed, `row` of all rows of all heads. */
static float *vjp_query_sum(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                            const flash_row *r, int64_t row) {
    if (shared->query_sums) return shared->query_sums + row * own->forward.head_dim;
    return flash_row_at(&own->d_query, EJK_DTYPE_F32, r);
}

static void vjp_zero_query(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                           const flash_row *r, int64_t row) {
    if (own->forward.head_dim > 0)
        memset(vjp_query_sum(shared, own, r, row), 0,
               (size_t)own->forward.head_dim * sizeof(float));
}

/* δ of up to VL rows, less the cotangents of lse. It adds up in the order of the products <dO, value>, so that
 * where out is one value, and the two cancel, nothing is left of them. */
static void vjp_delta(const ejki_flash_vjp_problem *v, const flash_row *rows, int64_t count,
                      float *delta) {
    const ejki_flash_problem *p = &v->forward;
    const void *out[VL] = {NULL}, *cotangent[VL] = {NULL};
    for (int64_t i = 0; i < count; i++) {
        out[i] = flash_out(p, &rows[i]);
        cotangent[i] = vjp_cotangent(v, &rows[i]);
    }
    const vf sum = vjp_dots(p->dtype, out, cotangent, count, p->value_dim);
    v_store_first(delta, sum, count);
    for (int64_t i = 0; v->has_lse_cotangent && i < count; i++)
        delta[i] -= *flash_at(&v->lse_cotangent, &rows[i]);
}

/* Does something with up to VL rows of a sequence, the first of which is row `n` of all. */
typedef void (*vjp_rows_step)(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                              const flash_row *rows, int64_t count, int64_t n);

/* Rows from row n of a sequence on, up to VL of them. */
static int64_t vjp_take_rows(const ejki_flash_problem *p, const ejki_vjp_sequence *s, int64_t n,
                             int64_t end, flash_row rows[VL]) {
    const int64_t count = ejki_min(VL, end - n);
    int64_t kv_head = n / s->rows, row = n % s->rows;
    for (int64_t i = 0; i < count; i++, row++) {
        if (row == s->rows) {
            row = 0;
            kv_head++;
        }
        rows[i] = flash_row_of(p, 0, kv_head, row);
    }
    return count;
}

/* Calls `step` for a worker's share of the rows of each sequence, and `prefetch` one step ahead with the same rows. */
static void vjp_each_row(const vjp_shared *shared, int64_t index, vjp_rows_step prefetch,
                         vjp_rows_step step) {
    const int64_t kv_heads = shared->problem->forward.kv_heads;
    for (int64_t b = 0; b < shared->tasks.batch; b++) {
        const ejki_vjp_sequence *s = &shared->tasks.sequence[b];
        const int64_t all = kv_heads * s->rows, share = ejki_cdiv(all, shared->workers);
        const ejki_flash_vjp_problem own = ejki_flash_vjp_part(shared->problem, b);
        const int64_t end = ejki_min(all, (index + 1) * share);
        flash_row rows[2][VL];
        int64_t count = 0, next;
        for (int64_t n = index * share, panel_stride = 0; n < end || count > 0;
             panel_stride = !panel_stride) {
            next = n < end ? vjp_take_rows(&own.forward, s, n, end, rows[panel_stride]) : 0;
            if (next > 0) prefetch(shared, &own, rows[panel_stride], next, s->first_row + n);
            if (count > 0) step(shared, &own, rows[!panel_stride], count, s->first_row + n - count);
            n += next;
            count = next;
        }
    }
}

static void vjp_prefetch_lines(const void *at, int64_t bytes) {
    for (int64_t n = 0; n < bytes; n += 64) __builtin_prefetch((const char *)at + n, 0, 2);
}

/* Rows of a head may lie far apart, so that nothing else prefetches them in time. */
static void vjp_prefetch_first(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                               const flash_row *rows, int64_t count, int64_t n) {
    const ejki_flash_problem *p = &own->forward;
    const int64_t bytes = p->value_dim * element_size(p->dtype);
    for (int64_t i = 0; i < count; i++) {
        vjp_prefetch_lines(flash_out(p, &rows[i]), bytes);
        vjp_prefetch_lines(vjp_cotangent(own, &rows[i]), bytes);
        if (own->wants_query && !shared->plan.stores_first)
            vjp_prefetch_lines(vjp_query_sum(shared, own, &rows[i], n + i),
                               p->head_dim * (int64_t)sizeof(float));
    }
}

static void vjp_begin_rows(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                           const flash_row *rows, int64_t count, int64_t n) {
    const ejki_flash_problem *p = &own->forward;
    vjp_delta(own, rows, count, shared->delta + n);
    for (int64_t i = 0; i < count; i++) {
        shared->lse[n + i] = *flash_at(&p->lse, &rows[i]);
        if (shared->lse[n + i] == -INFINITY) shared->delta[n + i] = 0;
        if (own->wants_query && !shared->plan.stores_first)
            vjp_zero_query(shared, own, &rows[i], n + i);
    }
}

/* Zeros for a worker's share of the blocks of rows that have no keys in any task, where others need none. */
static void vjp_zero_queries(const vjp_shared *shared, int64_t index) {
    const vjp_plan *t = &shared->plan;
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    if (!v->wants_query || !t->stores_first) return;
    for (int64_t block = index; block < t->row_blocks; block += shared->workers) {
        const vjp_range rows = vjp_block_rows(t, block);
        int64_t low, high;
        vjp_extent(p, rows.first, rows.end - rows.first, &low, &high);
        if (low < high) continue;
        for (int64_t head = 0; head < p->batch * p->kv_heads; head++) {
            const ejki_flash_vjp_problem own = ejki_flash_vjp_part(v, head / p->kv_heads);
            for (int64_t i = rows.first; i < rows.end; i++) {
                const flash_row r = flash_row_of(&own.forward, 0, head % p->kv_heads, i);
                vjp_zero_query(shared, &own, &r, head * t->all_rows + i);
            }
        }
    }
}

/*
 * Keys of the tasks that write a row of d_bias: those with keys of its block of rows. None where d_bias is summed, or
 * where more than positions decides.
 */
static vjp_range vjp_bias_written(const vjp_plan *t, const ejki_flash_problem *p, int64_t query,
                                  int64_t head) {
    vjp_range keys = {0, 0};
    if (!t->bias_once || p->layout != EJKI_FLASH_DENSE || t->mask_blocks > 0) return keys;
    const vjp_range rows = vjp_block_rows(t, (query * p->group + head % p->group) / t->rows);
    int64_t low, high;
    vjp_extent(p, rows.first, rows.end - rows.first, &low, &high);
    low = ejki_max(low, 0);
    high = ejki_min(high, p->keys);
    if (low >= high) return keys;
    return (vjp_range){low / t->keys * t->keys, ejki_min(p->keys, ejki_round_up(high, t->keys))};
}

/*
 * Zeros for a worker's share of the rows of d_bias, where no task writes: the same places for a head's rows
 * of a block.
 */
static void vjp_zero_bias_rows(const vjp_shared *shared, int64_t index) {
    const vjp_plan *t = &shared->plan;
    const ejki_flash_problem *p = &shared->problem->forward;
    const ejki_bias_gradient *bias = &shared->problem->d_bias;
    const int64_t queries = bias->stride_t ? p->queries : 1, size = element_size(p->dtype);
    const int64_t heads = bias->stride_h ? p->query_heads : 1;
    const int64_t share = ejki_cdiv(t->bias_rows, shared->workers);
    const int64_t end = ejki_min(t->bias_rows, (index + 1) * share);
    for (int64_t n = index * share, count; n < end; n += count) {
        const int64_t query = n % queries, head = n / queries % heads, own = head % p->group;
        const int64_t block = (query * p->group + own) / t->rows;
        const int64_t last = ejki_cdiv((block + 1) * t->rows - own, p->group);
        count = ejki_min(end - n, ejki_min(last, queries) - query);
        char *row = element_at(p->dtype, bias->data,
                               n / queries / heads * bias->stride_b + head * bias->stride_h +
                                   query * bias->stride_t);
        const vjp_range written = vjp_bias_written(t, p, query, head);
        for (int64_t i = 0; i < count; i++, row += bias->stride_t * size) {
            vjp_zero_bias(row, written.first * size, t->bias_streams);
            vjp_zero_bias(element_at(p->dtype, row, written.end), (p->keys - written.end) * size,
                          t->bias_streams);
        }
    }
}

/* A worker's share of what comes first: statistics of rows, and zeros where others will add or nobody. */
static void vjp_begin(void *argument, int64_t index) {
    const vjp_shared *shared = argument;
    const ejki_flash_vjp_problem *v = shared->problem;
    vjp_zero_bias_rows(shared, index);
    vjp_each_row(shared, index, vjp_prefetch_first, vjp_begin_rows);
    vjp_zero_queries(shared, index);
    ejki_flash_vjp_clear(v, index, shared->workers);
    v_streamed();
}

static void vjp_end_rows(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                         const flash_row *rows, int64_t count, int64_t n) {
    const ejk_dtype dtype = own->forward.dtype;
    const int64_t width = own->forward.head_dim;
    for (int64_t i = 0; i < count; i++) {
        const float *sums = vjp_query_sum(shared, own, &rows[i], n + i);
        void *out = flash_row_at(&own->d_query, dtype, &rows[i]);
        for (int64_t d = 0; d < width; d += VL)
            v_narrow_some(dtype, element_at(dtype, out, d),
                          v_widen_some(EJK_DTYPE_F32, sums + d, width - d), width - d);
    }
}

static void vjp_prefetch_last(const vjp_shared *shared, const ejki_flash_vjp_problem *own,
                              const flash_row *rows, int64_t count, int64_t n) {
    const int64_t width = own->forward.head_dim;
    for (int64_t i = 0; i < count; i++)
        vjp_prefetch_lines(flash_row_at(&own->d_query, own->forward.dtype, &rows[i]),
                           width * element_size(own->forward.dtype));
    (void)shared, (void)n; /* sums lie one after the other */
}

/* What comes last in 16 bits: sums of rows are rounded. */
static void vjp_end(void *argument, int64_t index) {
    vjp_each_row(argument, index, vjp_prefetch_last, vjp_end_rows);
}

/* Gradients of the sinks of one head, or of all where they share them: sums in f64, over heads of a batch entry and
 * their rows in order. */
static void vjp_sink(const vjp_shared *shared, int64_t sink_head) {
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const bool all = v->d_sink_stride_h == 0;
    const int64_t heads = all ? p->query_heads : p->sink_group;
    const int64_t first = all ? 0 : sink_head * p->sink_group;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const float sink = element_load(p->dtype, p->sinks, sink_head * p->sink_stride_h + n);
        double sum = 0;
        for (int64_t b = 0; b < shared->tasks.batch; b++) {
            const ejki_vjp_sequence *s = &shared->tasks.sequence[b];
            for (int64_t head = first; head < first + heads; head++) {
                const int64_t at = s->first_row + head / p->group * s->rows + head % p->group;
                const float *lse = shared->lse + at, *delta = shared->delta + at;
                for (int64_t row = 0; row < s->rows; row += p->group)
                    if (lse[row] != -INFINITY)
                        sum -= (double)expf(sink - lse[row]) * (double)delta[row];
            }
        }
        element_store(p->dtype, v->d_sinks, sink_head * v->d_sink_stride_h + n, (float)sum);
    }
}

static void vjp_sinks(void *argument, int64_t index) {
    const vjp_shared *shared = argument;
    const ejki_flash_problem *p = &shared->problem->forward;
    const int64_t heads =
        shared->problem->d_sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    for (int64_t head = index; head < heads; head += shared->workers) vjp_sink(shared, head);
}

#endif
