/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causal_conv1d in vectors. A task is SEGMENT tokens of up to COLUMNS channels, four tokens at a time; rows ahead, four
 * of floats where a task has all columns, are prefetched meanwhile. Results of calls larger than a cache go past the
 * caches, which would read their lines first. States follow when all results are there, as one that is updated in place
 * is read until then.
 */
#include "kernels/simd/vec.h"

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/causal_conv1d/window.h"

/* Bytes of results from which on they go past the caches. */
enum { SEGMENT = 64, STREAMED = 4 << 20 };

/* `tokens` results at some columns. */
INLINE void results(const ejk_dtype dtype, const int width, const int tokens, const int silu,
                    const tile *t, const void *const *rows, const lanes l, vf *sum) {
    const vf bias = v_load(t->bias + floats_at(l));
    EJKI_UNROLL for (int r = 0; r < tokens; r++) sum[r] = bias;
    window_sums(dtype, width, tokens, rows, l, t->taps, t->stride, sum);
    EJKI_UNROLL for (int r = 0; r < tokens; r++) if (silu) sum[r] = v_silu_of(dtype, sum[r]);
}

INLINE void group_of(const ejk_dtype dtype, const int width, const int tokens, const int silu,
                     const bool stream, const tile *t, const void *const *rows, void *const *out) {
    const int64_t line = LINE / element_size(dtype);
    vf sum[2][TOKENS];
    int64_t c = 0;
    for (; c + 2 * VL <= t->columns; c += 2 * VL) {
        for (int64_t i = -c & (line - 1); i < 2 * VL; i += line)
            for (int r = 0; r < tokens; r++)
                prefetch_row(dtype, t, rows[r + width - 1], c + i, t->p->x.step);
        EJKI_UNROLL for (int half = 0; half < 2; half++)
            results(dtype, width, tokens, silu, t, rows, (lanes){.c = c, .half = half}, sum[half]);
        EJKI_UNROLL for (int r = 0; r < tokens; r++)
            v_narrow_halves(dtype, stream, element_at(dtype, out[r], c), sum[0][r], sum[1][r]);
    }
    for (; c < t->columns; c += VL) {
        const lanes l = {.c = c, .half = 2, .left = ejki_min(t->columns - c, VL)};
        results(dtype, width, tokens, silu, t, rows, l, sum[0]);
        EJKI_UNROLL for (int r = 0; r < tokens; r++)
            v_narrow_some(dtype, element_at(dtype, out[r], c), sum[0][r], l.left);
    }
}

static __attribute__((noinline)) void group_any(ejk_dtype dtype, const tile *t, int tokens,
                                                const void *const *rows, void *const *out) {
    const int width = (int)t->p->width, silu = t->p->silu;
    for (int r = 0; r < tokens; r++) group_of(dtype, width, 1, silu, false, t, rows + r, out + r);
}

/* Four tokens of four taps, as most models have it. */
#define GROUP(name, dtype, stream)                                                                 \
    static __attribute__((noinline)) void name(const tile *t, const void *const *rows,             \
                                               void *const *out) {                                 \
        if (t->p->silu)                                                                            \
            group_of(dtype, 4, TOKENS, 1, stream, t, rows, out);                                   \
        else                                                                                       \
            group_of(dtype, 4, TOKENS, 0, stream, t, rows, out);                                   \
    }
GROUP(group_f32, EJK_DTYPE_F32, false)
GROUP(group_f32_stream, EJK_DTYPE_F32, true)
GROUP(group_bf16, EJK_DTYPE_BF16, false)
GROUP(group_bf16_stream, EJK_DTYPE_BF16, true)
GROUP(group_f16, EJK_DTYPE_F16, false)

static void group(ejk_dtype dtype, bool stream, const tile *t, int tokens, const void *const *rows,
                  void *const *out) {
    if (t->p->width != 4 || tokens != TOKENS)
        group_any(dtype, t, tokens, rows, out);
    else if (dtype == EJK_DTYPE_F32)
        (stream ? group_f32_stream : group_f32)(t, rows, out);
    else if (dtype == EJK_DTYPE_BF16)
        (stream ? group_bf16_stream : group_bf16)(t, rows, out);
    else
        group_f16(t, rows, out);
}

/* Results of tokens of one sequence, or 0 of none. */
static void tokens_of(const tile *t, bool stream, int64_t row, int64_t n, int64_t token,
                      int64_t stop) {
    const conv_problem *p = t->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const void *rows[TOKENS + CONV_MOST_TAPS];
    void *out[TOKENS];
    if (n < 0) {
        for (; token < stop; token++)
            memset(row_at(dtype, t, &p->y, row, token), 0,
                   (size_t)(t->columns * element_size(dtype)));
        return;
    }
    const seq_range range = seq_of(&p->sequences, n);
    if (token - range.begin < p->width - 1) tile_take_state(dtype, t, n);
    for (; token < stop; token += TOKENS) {
        const int64_t count = ejki_min(stop - token, TOKENS);
        window_rows(dtype, t, range, token, count, rows);
        for (int64_t r = 0; r < count; r++) out[r] = row_at(dtype, t, &p->y, row, token + r);
        group(dtype, stream, t, (int)count, rows, out);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t columns_of(const conv_problem *p) {
    return ejki_min(ejki_round_up(ejki_max(p->channels, 1), LINE / 2), COLUMNS);
}
static int64_t tasks_of(const conv_problem *p) {
    return p->batch * ejki_cdiv(p->sequences.tokens, SEGMENT) *
           ejki_cdiv(p->channels, columns_of(p));
}
static bool writes_states(const conv_problem *p) {
    return p->has_after && p->width > 1;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const conv_problem *p = problem;
    const int64_t states = writes_states(p) ? p->sequences.count : 0;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, ejki_max(tasks_of(p), states)));
    launch->workspace_bytes =
        (size_t)(launch->workers * tile_floats(p, columns_of(p))) * sizeof(float);
    return EJK_OK;
}

/* Rows of whole lines, so that vectors can be written past the caches. */
static bool streams(const conv_problem *p) {
    const int64_t size = element_size((ejk_dtype)p->dtype), line = LINE / size;
    const double bytes =
        (double)p->batch * (double)p->sequences.tokens * (double)p->channels * (double)size;
    return p->dtype != EJK_DTYPE_F16 && bytes >= STREAMED && (uintptr_t)p->y.data % LINE == 0 &&
           p->y.step % line == 0 && p->y.batch % line == 0;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const conv_problem *p = run->problem;
    const sequences *s = &p->sequences;
    const int64_t stride = columns_of(p), segments = ejki_cdiv(s->tokens, SEGMENT);
    const int64_t tasks = tasks_of(p);
    const bool stream = streams(p);
    float *memory = (float *)run->workspace + index * tile_floats(p, stride);
    tile t = {.first = -1};
    for (int64_t k = tasks * index / run->workers; k < tasks * (index + 1) / run->workers; k++) {
        const int64_t first = k / segments / p->batch * stride, row = k / segments % p->batch;
        if (first != t.first)
            tile_open((ejk_dtype)p->dtype, &t, p, first, ejki_min(p->channels - first, stride),
                      stride, prefetching_of(run->parameters), memory);
        const int64_t end = ejki_min((k % segments + 1) * SEGMENT, s->tokens);
        for (int64_t token = k % segments * SEGMENT; token < end;) {
            const int64_t n = seq_find(s, row, token), stop = seq_stop(s, n, token, end);
            tokens_of(&t, stream, row, n, token, stop);
            token = stop;
        }
    }
    if (stream) v_streamed();
}

/* Entry i of the final state of a sequence; entries ascend, so that a state that is updated in place is read before it
 * is written. */
static void put_state(const conv_problem *p, seq_range range, int64_t from, int64_t to, int64_t i) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t w = p->width - 1, j = range.end - range.begin + i, step = p->after.channel;
    void *target = element_at(dtype, p->after.data, conv_state_at(&p->after, to, 0) + i);
    if (j >= w)
        copy_elements(dtype, target, step,
                      element_at(dtype, p->x.data, conv_at(&p->x, range.row, range.begin + j - w)),
                      1, p->channels);
    else if (from >= 0)
        copy_elements(dtype, target, step,
                      element_at(dtype, p->before.data, conv_state_at(&p->before, from, 0) + j),
                      p->before.channel, p->channels);
    else
        for (int64_t c = 0; c < p->channels; c++) element_store(dtype, target, c * step, 0);
}

static void work_states(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const conv_problem *p = run->problem;
    const int64_t count = p->sequences.count;
    for (int64_t n = count * index / run->workers; n < count * (index + 1) / run->workers; n++) {
        const int64_t to = conv_slot(p, 1, n), from = conv_slot(p, p->has_before, n);
        for (int64_t i = 0; to >= 0 && i < p->width - 1; i++)
            put_state(p, seq_of(&p->sequences, n), from, to, i);
    }
}

static ejk_status run(const ejk_run *run) {
    const conv_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (writes_states(p))
        ejk_parallel_for(run->threads, run->workers, work_states, (void *)(uintptr_t)run);
    return EJK_OK;
}

static const ejk_parameter parameters_of_line[] = {PREFETCH_HINT,
                                                   PREFETCH_BYTES(4 * TOKENS * COLUMNS)};
EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = parameters_of_line, .parameter_count = 2,
             .prepare = prepare, .run = run)
