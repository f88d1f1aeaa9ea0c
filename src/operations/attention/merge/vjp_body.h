/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of attention_merge in vectors, with the blocks of merge_body.h. Of a block, first what part n weighs in
 * each row, exp(l_n - lse), lanes along the rows; then row by row, lanes along Dv,
 *
 *     delta = <d_out, out> - d_lse      d_o_n = w_n d_out      d_l_n = w_n (<d_out, o_n> - delta)
 *
 * each part being read and its gradient written once; last d_l_n, lanes along the rows again. A part of weight 0 is not
 * read. delta is kept for the sinks: each head adds up its own in order, in float64, and then heads that share them.
 */
#include "operations/attention/merge/merge_block.h"

typedef struct vjp_task {
    const ejki_merge_vjp_problem *v;
    int64_t b, first, rows, head, heads;
    float *weights, *dots; /* [heads][parts][ROWS]; of the latter, behind the parts, delta */
    float *deltas;         /* [B, Hq, T] if sinks are wanted */
    bool streams;
} vjp_task;

/* What the whole problem's memory is made of, in bytes. */
typedef struct vjp_plan {
    int64_t task, deltas, sums, workers_at;
} vjp_plan;

static bool vjp_plan_of(const ejki_merge_vjp_problem *v, vjp_plan *plan) {
    const ejki_merge_problem *p = &v->forward;
    int64_t heads = 0, rows = 0;
    *plan = (vjp_plan){0};
    if (!ejki_mul(p->batch, p->heads, &heads) || !ejki_mul(heads, p->queries, &rows) ||
        !ejki_mul(p->parts + 1, 2 * HEADS * ROWS * 4, &plan->task))
        return false;
    if (!v->wants_sinks) return true;
    if (!ejki_mul(rows, 4, &plan->deltas) || !ejki_add(plan->deltas, 63, &plan->deltas) ||
        !ejki_mul(heads, p->sink_count * 8, &plan->sums) || !ejki_add(plan->sums, 63, &plan->sums))
        return false;
    plan->deltas &= ~INT64_C(63);
    plan->sums &= ~INT64_C(63);
    return ejki_add(plan->deltas, plan->sums, &plan->workers_at);
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* Numbers of the block's rows from `row` on, T contiguous; the others get 0. */
static vf vjp_load(const vjp_task *t, const ejki_float *from, int64_t row) {
    float values[VL] = {0};
    memcpy(values, from + row, (size_t)ejki_min(t->rows - row, VL) * sizeof *values);
    return v_load(values);
}

static const ejki_float *vjp_logs(const vjp_task *t, const ejki_merge_rows *logs, int64_t h,
                                  int64_t n) {
    return logs->data + merge_lse_start(logs, &(merge_row){t->b, h, t->first}, n);
}

/* 2^((l - lse) log2 e). Where lse is -inf, so is l: less 0 it stays that. */
static inline vf vjp_weight(vf l, vf lse) {
    const vf base = v_select_gt(v_set1(-3.0e38f), lse, v_zero(), lse);
    return v_exp2(v_mul(v_sub(l, base), v_set1(LOG2E)));
}

static void vjp_weigh(const vjp_task *t, int64_t h, float *weights) {
    const ejki_merge_problem *p = &t->v->forward;
    const merge_row r = {t->b, h, t->first};
    const ejki_float *merged = p->merged_lse.data + merge_scalar_start(&p->merged_lse, &r);
    for (int64_t row = 0; row < t->rows; row += VL) {
        const vf lse = vjp_load(t, merged, row);
        for (int64_t n = 0; n < p->parts; n++)
            v_store(weights + n * ROWS + row,
                    vjp_weight(vjp_load(t, vjp_logs(t, &p->lse, h, n), row), lse));
    }
}

/* <a, b>, and weight · a onto `to` where that is not NULL. */
static inline __attribute__((always_inline)) float vjp_part(const ejk_dtype dtype, const void *a,
                                                            const void *b, int64_t size,
                                                            float weight, void *to, bool streams) {
    const vf w = v_set1(weight);
    vf even = v_zero(), odd = v_zero();
    int64_t d = 0;
    for (; d + 2 * VL <= size; d += 2 * VL) {
        const void *next = element_at(dtype, b, d);
        const vf x = v_widen(dtype, element_at(dtype, a, d));
        const vf y = v_widen(dtype, element_at(dtype, a, d + VL));
        even = v_fma(x, v_widen(dtype, next), even);
        odd = v_fma(y, v_widen(dtype, element_at(dtype, next, VL)), odd);
        __builtin_prefetch((const char *)next + AHEAD, 0, 2);
        if (!to) continue;
        put(dtype, element_at(dtype, to, d), v_mul(w, x), streams);
        put(dtype, element_at(dtype, to, d + VL), v_mul(w, y), streams);
    }
    for (; d < size; d += VL) {
        const int64_t left = ejki_min(size - d, VL);
        const vf x = v_widen_first(dtype, element_at(dtype, a, d), left);
        even = v_fma(x, v_widen_first(dtype, element_at(dtype, b, d), left), even);
        if (to) v_narrow_first(dtype, element_at(dtype, to, d), v_mul(w, x), left);
    }
    return v_sum(v_add(even, odd));
}

static inline __attribute__((always_inline)) void vjp_clear(const ejk_dtype dtype, void *to,
                                                            int64_t size) {
    for (int64_t d = 0; d < size; d += VL)
        v_narrow_first(dtype, element_at(dtype, to, d), v_zero(), ejki_min(size - d, VL));
}

static inline __attribute__((always_inline)) void vjp_row(const ejk_dtype dtype, const vjp_task *t,
                                                          const merge_row *r, const float *weights,
                                                          float *dots) {
    const ejki_merge_vjp_problem *v = t->v;
    const ejki_merge_problem *p = &v->forward;
    const int64_t size = p->value_dim;
    const void *d_out = element_at(dtype, v->d_out.data, merge_out_start(&v->d_out, r));
    const void *out = element_at(dtype, p->out.data, merge_out_start(&p->out, r));
    if (v->wants_lse || v->wants_sinks)
        dots[p->parts * ROWS] = vjp_part(dtype, d_out, out, size, 0, NULL, false);
    for (int64_t n = 0; n < p->parts && (v->wants_lse || v->wants_parts); n++) {
        const void *part = element_at(dtype, p->part.data, merge_part_start(&p->part, r, n));
        void *to = NULL;
        if (v->wants_parts)
            to = element_at(dtype, v->d_part.data, merge_part_start(&v->d_part, r, n));
        const float weight = weights[n * ROWS];
        dots[n * ROWS] = 0;
        if (weight != 0)
            dots[n * ROWS] =
                vjp_part(dtype, d_out, part, size, weight, to, may_stream(dtype, to, t->streams));
        else if (to)
            vjp_clear(dtype, to, size);
    }
}

static void vjp_any_row(const vjp_task *t, const merge_row *r) {
    const ejki_merge_problem *p = &t->v->forward;
    const int64_t at = (r->h - t->head) * (p->parts + 1) * ROWS + (r->i - t->first);
    if (p->dtype == EJK_DTYPE_F32)
        vjp_row(EJK_DTYPE_F32, t, r, t->weights + at, t->dots + at);
    else if (p->dtype == EJK_DTYPE_BF16)
        vjp_row(EJK_DTYPE_BF16, t, r, t->weights + at, t->dots + at);
    else
        vjp_row(EJK_DTYPE_F16, t, r, t->weights + at, t->dots + at);
}

/* delta and d_l_n of a head's rows. */
static void vjp_finish(const vjp_task *t, int64_t h, const float *weights, const float *dots) {
    const ejki_merge_vjp_problem *v = t->v;
    const ejki_merge_problem *p = &v->forward;
    const merge_row r = {t->b, h, t->first};
    for (int64_t row = 0; row < t->rows; row += VL) {
        const size_t bytes = (size_t)ejki_min(t->rows - row, VL) * sizeof(float);
        vf delta = v_load(dots + p->parts * ROWS + row);
        if (v->has_lse_cotangent)
            delta =
                v_sub(delta, vjp_load(t, v->d_lse.data + merge_scalar_start(&v->d_lse, &r), row));
        float lanes[VL];
        v_store(lanes, delta);
        if (t->deltas)
            memcpy(t->deltas + (t->b * p->heads + h) * p->queries + t->first + row, lanes, bytes);
        for (int64_t n = 0; v->wants_lse && n < p->parts; n++) {
            const vf w = v_load(weights + n * ROWS + row);
            const vf d_score = v_mul(w, v_sub(v_load(dots + n * ROWS + row), delta));
            /* Where the weight is 0 delta may be anything. A weight that is NaN is not above 0 either. */
            v_store(lanes, v_select_gt(v_abs(w), v_zero(), d_score, w));
            memcpy(v->d_part_lse.data + merge_lse_start(&v->d_part_lse, &r, n) + row, lanes, bytes);
        }
    }
}

/* ---- Sinks ------------------------------------------------------------------------------------------ */

typedef struct vjp_shared {
    const ejki_merge_vjp_problem *v;
    vjp_plan plan;
    char *memory;
    int32_t workers;
} vjp_shared;

/* A head's share in the gradients of its sinks, rows in order. */
static void vjp_head(void *argument, int64_t index) {
    const vjp_shared *s = argument;
    const ejki_merge_problem *p = &s->v->forward;
    const merge_row r = {index / p->heads, index % p->heads, 0};
    const ejki_float *merged = p->merged_lse.data + merge_scalar_start(&p->merged_lse, &r);
    const float *deltas = (const float *)(const void *)s->memory + index * p->queries;
    double *sums = (double *)(void *)(s->memory + s->plan.deltas) + index * p->sink_count;
    for (int64_t m = 0; m < p->sink_count; m++) {
        const vf sink = v_set1((float)merge_sink(p, r.h, m)), zero = v_zero();
        double sum = 0;
        for (int64_t i = 0; i < p->queries; i += VL) {
            const int64_t count = ejki_min(p->queries - i, VL);
            float lanes[VL] = {0};
            memcpy(lanes, merged + i, (size_t)count * sizeof *lanes);
            const vf w = vjp_weight(sink, v_load(lanes));
            const vf share = v_mul(w, v_load_first(deltas + i, count));
            v_store(lanes, v_select_gt(v_abs(w), zero, share, w));
            for (int64_t k = 0; k < count; k++) sum -= (double)lanes[k];
        }
        sums[m] = sum;
    }
}

static void vjp_write_sinks(const vjp_shared *s) {
    const ejki_merge_vjp_problem *v = s->v;
    const ejki_merge_problem *p = &v->forward;
    const double *sums = (const double *)(const void *)(s->memory + s->plan.deltas);
    const int64_t heads = v->d_sink_stride_h ? p->sink_group : p->heads;
    for (int64_t first = 0, group = 0; first < p->heads; first += heads, group++)
        for (int64_t m = 0; m < p->sink_count; m++) {
            double sum = 0;
            for (int64_t b = 0; b < p->batch; b++)
                for (int64_t h = first; h < first + heads; h++)
                    sum += sums[(b * p->heads + h) * p->sink_count + m];
            row_store(p->dtype, v->d_sinks, group * v->d_sink_stride_h + m, sum);
        }
}

/* ---- Tasks ------------------------------------------------------------------------------------------ */

static ejk_status vjp_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    (void)parameters;
    const ejki_merge_vjp_problem *v = problem;
    const ejki_merge_problem *p = &v->forward;
    vjp_plan plan;
    int64_t tasks, bytes;
    if (!vjp_plan_of(v, &plan) || !ejki_mul(p->batch, row_blocks(p), &tasks) ||
        !ejki_mul(tasks, head_blocks(p), &tasks) || !ejki_mul(plan.task, threads, &bytes) ||
        !ejki_add(bytes, plan.workers_at, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld parts of %lld x %lld rows cannot be counted",
                         (long long)p->parts, (long long)p->batch, (long long)p->queries);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks));
    launch->workspace_bytes = (size_t)(plan.workers_at + plan.task * launch->workers);
    return EJK_OK;
}

static void vjp_work(void *argument, int64_t index) {
    const vjp_shared *s = argument;
    const ejki_merge_vjp_problem *v = s->v;
    const ejki_merge_problem *p = &v->forward;
    const int64_t each = (p->parts + 1) * ROWS;
    vjp_task t = {.v = v,
                  .weights =
                      (float *)(void *)(s->memory + s->plan.workers_at + index * s->plan.task),
                  .deltas = v->wants_sinks ? (float *)(void *)s->memory : NULL};
    t.dots = t.weights + HEADS * each;
    t.streams =
        p->parts * p->batch * p->queries * p->heads * p->value_dim * element_size(p->dtype) >
        STREAMED;
    const int64_t blocks = row_blocks(p) * head_blocks(p), tasks = p->batch * blocks;
    for (int64_t n = tasks * index / s->workers; n < tasks * (index + 1) / s->workers; n++) {
        t.b = n / blocks;
        t.first = n % blocks / head_blocks(p) * ROWS;
        t.rows = ejki_min(p->queries - t.first, ROWS);
        t.head = n % head_blocks(p) * HEADS;
        t.heads = ejki_min(p->heads - t.head, HEADS);
        for (int64_t h = 0; h < t.heads; h++) vjp_weigh(&t, t.head + h, t.weights + h * each);
        for (int64_t i = t.first; i < t.first + t.rows; i++)
            for (int64_t h = t.head; h < t.head + t.heads; h++)
                vjp_any_row(&t, &(merge_row){t.b, h, i});
        for (int64_t h = 0; h < t.heads; h++)
            vjp_finish(&t, t.head + h, t.weights + h * each, t.dots + h * each);
    }
#ifdef MERGE_STREAM
    MERGE_FENCE();
#endif
}

static ejk_status vjp_run(const ejk_run *run) {
    vjp_shared s = {.v = run->problem, .memory = run->workspace, .workers = run->workers};
    (void)vjp_plan_of(s.v, &s.plan); /* prepare() refused what does not fit */
    const ejki_merge_problem *p = &s.v->forward;
    memset(s.memory + s.plan.workers_at, 0, (size_t)(s.plan.task * run->workers));
    ejk_parallel_for(run->threads, run->workers, vjp_work, &s);
    if (!s.v->wants_sinks) return EJK_OK;
    ejk_parallel_for(run->threads, p->batch * p->heads, vjp_head, &s);
    vjp_write_sinks(&s);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = vjp_prepare, .run = vjp_run)
