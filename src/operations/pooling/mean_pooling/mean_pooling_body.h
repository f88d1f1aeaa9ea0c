/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling in vectors, as docs/kernels/mean_pooling.md describes it: ROWS tokens at a time onto float32 sums,
 * SEGMENT of them by themselves. Each line that is read prefetches another.
 */
#include "kernels/simd/vec.h"

#include "base/base.h"
#include "kernels/declare.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/vec_element.h"
#include "operations/pooling/mean_pooling/problem.cuh"

/* Columns of a task at most: two rows of float32 sums of that many fit an L2 cache with room to spare. */
enum { COLUMNS = 16384, SEGMENT = 128, ROWS = 4, LINE = 64, PAGE = 4096 };

/* Adds `rows` tokens, a constant, to the sums in their order. */
INLINE void add_tokens(const ejk_dtype dtype, const int rows, const void *x, int64_t stride,
                       int64_t size, prefetching how, float *sums) {
    const int64_t line = LINE / element_size(dtype);
    int64_t c = 0;
    for (; c + line <= size; c += line) {
        for (int r = 0; r < rows; r++) prefetch_behind(how, element_at(dtype, x, r * stride + c));
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

/* Sums of `tokens` tokens; `own` is room for those of a segment. */
INLINE void add_all(const ejk_dtype dtype, const void *x, int64_t stride, int64_t tokens,
                    int64_t size, prefetching how, float *sums, float *own) {
    memset(sums, 0, (size_t)size * sizeof *sums);
    for (int64_t first = 0; first < tokens; first += SEGMENT) {
        const int64_t end = ejki_min(tokens, first + SEGMENT);
        float *to = first ? own : sums;
        const void *at = element_at(dtype, x, first * stride);
        int64_t t = first;
        if (first) memset(own, 0, (size_t)size * sizeof *own);
        /* Two rows of a page are two streams, of which some processors follow one: they go apart. */
        if (stride * element_size(dtype) == PAGE / 2 && (uintptr_t)at % PAGE < PAGE / 2)
            add_tokens(dtype, 1, at, stride, size, how, to), t++;
        for (; t + ROWS <= end; t += ROWS)
            add_tokens(dtype, ROWS, element_at(dtype, x, t * stride), stride, size, how, to);
        for (; t < end; t++)
            add_tokens(dtype, 1, element_at(dtype, x, t * stride), stride, size, how, to);
        for (int64_t c = 0; first && c < size; c += VL) {
            const int64_t n = ejki_min(size - c, VL);
            v_store_first(sums + c, v_add(v_load_first(sums + c, n), v_load_first(own + c, n)), n);
        }
    }
}

/* Elements of `from`, floats or of the type, divided by `count`; of `next` a line a vector is prefetched. */
INLINE void divide(const ejk_dtype from_dtype, const ejk_dtype to_dtype, const void *from,
                   int64_t size, float count, void *to, prefetching how, const char *next) {
    const vf divisor = v_set1(count);
    for (int64_t c = 0; c < size; c += VL) {
        const int64_t left = ejki_min(size - c, VL);
        prefetch_behind(how, next + c / VL * LINE);
        const vf value = v_widen_some(from_dtype, element_at(from_dtype, from, c), left);
        v_narrow_some(to_dtype, element_at(to_dtype, to, c), v_div(value, divisor), left);
    }
}

/* Columns first to first + size - 1 of a run of a row, or of a segment of tokens. */
typedef struct task {
    const pool_problem *p;
    ejki_item at;
    ejki_size first, size;
    prefetching how;
    float *sums, *own;
} task;

INLINE void *place_of(ejk_dtype dtype, const task *t, const ejki_tokens *of, ejki_size step) {
    return element_at(dtype, of->data, ejki_run_start(&t->p->runs, of, &t->at, step) + t->first);
}

INLINE void mean(const ejk_dtype dtype, const task *t) {
    const pool_problem *p = t->p;
    const ejki_range range = ejki_chunk_of_row(&p->chunks, t->at.step);
    const ejki_size tokens = range.end - range.begin;
    add_all(dtype, place_of(dtype, t, &p->x, range.begin), p->x.step, tokens, t->size, t->how,
            t->sums, t->own);
    divide(EJK_DTYPE_F32, dtype, t->sums, t->size, (float)ejki_max(tokens, 1),
           place_of(dtype, t, &p->y, t->at.step), t->how, place_of(dtype, t, &p->x, range.end));
}

/* Tokens from t->at.step on that share a row, up to `end`; returns behind them. */
INLINE ejki_size share(const ejk_dtype dtype, const task *t, ejki_size end) {
    const pool_problem *p = t->p;
    const ejki_range range = ejki_chunk_of_token(&p->chunks, t->at.step);
    const size_t bytes = (size_t)(t->size * element_size(dtype));
    const ejki_size stop = ejki_min(range.end, end);
    memset(t->sums, 0, bytes);
    if (range.row >= 0)
        divide(dtype, dtype, place_of(dtype, t, &p->y, range.row), t->size,
               (float)(range.end - range.begin), t->sums, t->how, (const char *)t->own);
    for (ejki_size token = t->at.step; token < stop; token++)
        memcpy(place_of(dtype, t, &p->x, token), t->sums, bytes);
    return stop;
}

/* Steps of a task: one row, or as many tokens as a segment has. */
static ejki_size steps_of(const pool_problem *p) {
    return p->gradient ? ejki_cdiv(p->chunks.tokens, SEGMENT) : p->rows;
}

/* Columns are cut to lines where there are fewer rows than four for each thread. */
static ejki_size columns_of(const pool_problem *p, int32_t threads) {
    const ejki_size tasks = ejki_max(pool_items(p, steps_of(p)), 1);
    const ejki_size cuts = threads > 1 ? ejki_cdiv(4 * (ejki_size)threads, tasks) : 1;
    const ejki_size line = LINE / element_size((ejk_dtype)p->dtype);
    return ejki_min(ejki_round_up(ejki_cdiv(ejki_max(p->runs.width, 1), cuts), line), COLUMNS);
}

static ejki_size tasks_of(const pool_problem *p, ejki_size columns) {
    return pool_items(p, steps_of(p)) * ejki_cdiv(p->runs.width, columns);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const pool_problem *p = problem;
    const ejki_size tasks = tasks_of(p, columns_of(p, threads));
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks));
    const ejki_size columns = columns_of(p, launch->workers); /* as work() has them */
    launch->workspace_bytes = (size_t)(launch->workers * 2 * columns) * sizeof(float);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const pool_problem *p = run->problem;
    const ejki_size columns = columns_of(p, run->workers), tasks = tasks_of(p, columns);
    const ejki_size cuts = ejki_cdiv(p->runs.width, columns);
    task t = {.p = p, .how = prefetching_of(run->parameters)};
    t.sums = (float *)run->workspace + index * 2 * columns;
    t.own = t.sums + columns;
    for (ejki_size n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        t.at = ejki_item_at(&p->runs, steps_of(p), n / cuts);
        t.first = n % cuts * columns;
        t.size = ejki_min(p->runs.width - t.first, columns);
        if (!p->gradient) {
            ELEMENT_CALL((ejk_dtype)p->dtype, mean, &t);
            continue;
        }
        const ejki_size end = ejki_min((t.at.step + 1) * SEGMENT, p->chunks.tokens);
        for (t.at.step *= SEGMENT; t.at.step < end;)
            t.at.step = ELEMENT_CALL((ejk_dtype)p->dtype, share, &t, end);
    }
}

EJKI_DEFINE_RUN(work)
static const ejk_parameter parameters_of_line[] = {PREFETCH_HINT, PREFETCH_BYTES(32768)};
EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = parameters_of_line, .parameter_count = 2,
             .prepare = prepare, .run = run)
