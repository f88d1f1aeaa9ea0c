/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling in vectors. A task is a stretch of columns of a run of a row; it reads its tokens in the order of
 * memory, ROWS at a time, onto float32 sums that stay in a cache. Sums of SEGMENT tokens are added up in their order,
 * which keeps rounding small and is the same however columns are dealt out. Each line asks for one AHEAD bytes on by
 * PREFETCHT1: on Zen 4 prefetches into L1 hardly overlap.
 *
 * The gradient divides a row once and copies it to its tokens.
 */
#include "kernels/simd/vec.h"

#include "base/base.h"
#include "kernels/declare.h"
#include "kernels/simd/vec_element.h"
#include "operations/pooling/mean_pooling/problem.cuh"

/* Columns of a task at most: two rows of float32 sums of that many fit an L2 cache with room to spare. */
enum { COLUMNS = 16384, SEGMENT = 128, ROWS = 4, LINE = 64, AHEAD = 32768 };

#define INLINE static inline __attribute__((always_inline))

/* Adds `rows` tokens, a constant, to the sums in their order. */
INLINE void add_tokens(const ejk_dtype dtype, const int rows, const void *x, int64_t stride,
                       int64_t size, float *sums) {
    const int64_t line = LINE / element_size(dtype);
    int64_t c = 0;
    for (; c + line <= size; c += line) {
        for (int r = 0; r < rows; r++)
            __builtin_prefetch((const char *)element_at(dtype, x, r * stride + c) + AHEAD, 0, 2);
        for (int64_t k = c; k < c + line; k += VL) {
            vf sum = v_load(sums + k);
            for (int r = 0; r < rows; r++)
                sum = v_add(sum, v_widen(dtype, element_at(dtype, x, r * stride + k)));
            v_store(sums + k, sum);
        }
    }
    for (; c < size; c += VL) {
        const int64_t left = ejki_min(size - c, VL);
        vf sum = v_load_first(sums + c, left);
        for (int r = 0; r < rows; r++)
            sum = v_add(sum, v_widen_some(dtype, element_at(dtype, x, r * stride + c), left));
        v_store_first(sums + c, sum, left);
    }
}

INLINE void add_segment(const ejk_dtype dtype, const void *x, int64_t stride, int64_t tokens,
                        int64_t size, float *sums) {
    int64_t t = 0;
    for (; t + ROWS <= tokens; t += ROWS)
        add_tokens(dtype, ROWS, element_at(dtype, x, t * stride), stride, size, sums);
    for (; t < tokens; t++)
        add_tokens(dtype, 1, element_at(dtype, x, t * stride), stride, size, sums);
}

/* Sums of `tokens` tokens; `own` is room for those of a segment. */
INLINE void add_all(const ejk_dtype dtype, const void *x, int64_t stride, int64_t tokens,
                    int64_t size, float *sums, float *own) {
    memset(sums, 0, (size_t)size * sizeof *sums);
    add_segment(dtype, x, stride, ejki_min(tokens, SEGMENT), size, sums);
    for (int64_t t = SEGMENT; t < tokens; t += SEGMENT) {
        memset(own, 0, (size_t)size * sizeof *own);
        add_segment(dtype, element_at(dtype, x, t * stride), stride, ejki_min(tokens - t, SEGMENT),
                    size, own);
        for (int64_t c = 0; c < size; c += VL) {
            const int64_t left = ejki_min(size - c, VL);
            v_store_first(sums + c,
                          v_add(v_load_first(sums + c, left), v_load_first(own + c, left)), left);
        }
    }
}

/* Elements of `from`, floats or of the type, divided by `count`. */
INLINE void divide(const ejk_dtype from_dtype, const ejk_dtype to_dtype, const void *from,
                   int64_t size, float count, void *to) {
    const vf divisor = v_set1(count);
    for (int64_t c = 0; c < size; c += VL) {
        const int64_t left = ejki_min(size - c, VL);
        const vf value = v_widen_some(from_dtype, element_at(from_dtype, from, c), left);
        v_narrow_some(to_dtype, element_at(to_dtype, to, c), v_div(value, divisor), left);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------ */

typedef struct task {
    const pool_problem *p;
    pool_size b, step, run, first,
        size; /* columns first … first + size - 1 of a row or of tokens */
    float *sums, *own;
} task;

INLINE void mean(const ejk_dtype dtype, const task *t) {
    const pool_problem *p = t->p;
    const pool_range range = pool_of_row(p, t->step);
    const pool_size tokens = range.end - range.begin;
    const void *x =
        element_at(dtype, p->x.data, pool_start(p, &p->x, t->b, range.begin, t->run) + t->first);
    add_all(dtype, x, p->x.step, tokens, t->size, t->sums, t->own);
    divide(EJK_DTYPE_F32, dtype, t->sums, t->size, (float)ejki_max(tokens, 1),
           element_at(dtype, p->y.data, pool_start(p, &p->y, t->b, t->step, t->run) + t->first));
}

/* Tokens from t->step on that share a row, up to `end`; returns behind them. */
INLINE pool_size share(const ejk_dtype dtype, const task *t, pool_size end) {
    const pool_problem *p = t->p;
    const pool_range range = pool_of_token(p, t->step);
    const size_t bytes = (size_t)(t->size * element_size(dtype));
    const pool_size stop = pool_least(range.end, end);
    memset(t->sums, 0, bytes);
    if (range.row >= 0)
        divide(
            dtype, dtype,
            element_at(dtype, p->y.data, pool_start(p, &p->y, t->b, range.row, t->run) + t->first),
            t->size, (float)(range.end - range.begin), t->sums);
    for (pool_size token = t->step; token < stop; token++)
        memcpy(element_at(dtype, p->x.data, pool_start(p, &p->x, t->b, token, t->run) + t->first),
               t->sums, bytes);
    return stop;
}

static void any_mean(const task *t) {
    if (t->p->dtype == EJK_DTYPE_F32)
        mean(EJK_DTYPE_F32, t);
    else if (t->p->dtype == EJK_DTYPE_BF16)
        mean(EJK_DTYPE_BF16, t);
    else
        mean(EJK_DTYPE_F16, t);
}

static pool_size any_share(const task *t, pool_size end) {
    if (t->p->dtype == EJK_DTYPE_F32) return share(EJK_DTYPE_F32, t, end);
    if (t->p->dtype == EJK_DTYPE_BF16) return share(EJK_DTYPE_BF16, t, end);
    return share(EJK_DTYPE_F16, t, end);
}

/* Steps of a task: one row, or as many tokens as a segment has. */
static pool_size steps_of(const pool_problem *p) {
    return p->gradient ? ejki_cdiv(p->tokens, SEGMENT) : p->rows;
}

/* Columns are cut to lines where there are fewer rows than four for each thread. */
static pool_size columns_of(const pool_problem *p, int32_t threads) {
    const pool_size tasks = ejki_max(p->batch * steps_of(p) * pool_runs(p), 1);
    const pool_size cuts = threads > 1 ? ejki_cdiv(4 * (pool_size)threads, tasks) : 1;
    const pool_size line = LINE / element_size((ejk_dtype)p->dtype);
    return ejki_min(ejki_round_up(ejki_cdiv(ejki_max(p->width, 1), cuts), line), COLUMNS);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const pool_problem *p = problem;
    const pool_size tasks =
        p->batch * steps_of(p) * pool_runs(p) * ejki_cdiv(p->width, columns_of(p, threads));
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks));
    const pool_size columns = columns_of(p, launch->workers); /* as work() has them */
    launch->workspace_bytes = (size_t)(launch->workers * 2 * columns) * sizeof(float);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const pool_problem *p = run->problem;
    const pool_size runs = pool_runs(p), steps = steps_of(p);
    const pool_size columns = columns_of(p, run->workers);
    const pool_size cuts = ejki_cdiv(p->width, columns), tasks = p->batch * steps * runs * cuts;
    task t = {.p = p, .sums = (float *)run->workspace + index * 2 * columns};
    t.own = t.sums + columns;
    for (pool_size n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        t.first = n % cuts * columns;
        t.size = ejki_min(p->width - t.first, columns);
        t.run = n / cuts % runs;
        t.step = n / cuts / runs % steps;
        t.b = n / cuts / runs / steps;
        if (!p->gradient) {
            any_mean(&t);
            continue;
        }
        const pool_size end = ejki_min((t.step + 1) * SEGMENT, p->tokens);
        for (t.step *= SEGMENT; t.step < end;) t.step = any_share(&t, end);
    }
}

static ejk_status run(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
