/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of causal_conv1d in vectors. A task is SEGMENT tokens of up to COLUMNS channels. The first pass computes
 * sums anew and keeps the cotangents of them in floats, for W - 1 tokens beyond its own too, and adds up gradients of
 * weight and bias; the second is the same window over these cotangents, with the taps backwards. Gradients of weight
 * and bias of all segments are added up in order: bits do not depend on threads.
 */
#include "kernels/simd/vec.h"

#include <math.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/causal_conv1d/window.h"

enum { SEGMENT = 128, TILE = 512 };

typedef struct segment {
    tile t;
    float *d_sums;  /* [SEGMENT + width][stride]: cotangents of sums */
    float *extra;   /* [width + 1][stride]: those of the final state, the last row 0 */
    float *turned;  /* taps backwards */
    float *weights; /* [width + 1][pitch], of this segment, from the tile's first channel on */
    int64_t pitch;
} segment;

/* Cotangents of the sums of some tokens, at some columns; adds to the gradients of the taps if they are `own`. */
INLINE void d_sums_at(const ejk_dtype dtype, const int width, const int tokens, const segment *s,
                      const void *const *rows, const void *const *cotangents, float *to,
                      const bool own, const lanes l) {
    const tile *t = &s->t;
    const int64_t at = floats_at(l);
    vf z[TOKENS], d[TOKENS];
    EJKI_UNROLL for (int r = 0; r < tokens; r++) {
        z[r] = v_load(t->bias + at);
        d[r] = lanes_of(dtype, cotangents[r], l);
    }
    if (t->p->silu) window_sums(dtype, width, tokens, rows, l, t->taps, t->stride, z);
    EJKI_UNROLL for (int r = 0; r < tokens; r++) {
        if (t->p->silu) d[r] = v_mul(d[r], v_silu_slope(z[r], v_sigmoid_of(dtype, z[r])));
        v_store(to + r * t->stride + at, d[r]);
    }
    if (!own) return;
    float *sums = s->weights + at;
    for (int i = 0; i <= width; i++, sums += s->pitch) {
        vf sum = v_load(sums);
        EJKI_UNROLL for (int r = 0; r < tokens; r++) sum =
            i == width ? v_add(sum, d[r]) : v_fma(d[r], lanes_of(dtype, rows[r + i], l), sum);
        v_store(sums, sum);
    }
}

INLINE void d_sums_of(const ejk_dtype dtype, const int width, const int tokens, const segment *s,
                      const void *const *rows, const void *const *cotangents, float *to,
                      const bool own) {
    const int64_t columns = s->t.columns, line = LINE / element_size(dtype);
    int64_t c = 0;
    for (; c + 2 * VL <= columns; c += 2 * VL) {
        for (int64_t i = -c & (line - 1); i < 2 * VL; i += line)
            for (int r = 0; r < tokens; r++) {
                prefetch_row(dtype, &s->t, rows[r + width - 1], c + i, s->t.p->x.step);
                prefetch_row(dtype, &s->t, cotangents[r], c + i, s->t.p->y.step);
            }
        EJKI_UNROLL for (int half = 0; half < 2; half++) d_sums_at(
            dtype, width, tokens, s, rows, cotangents, to, own, (lanes){.c = c, .half = half});
    }
    for (; c < columns; c += VL)
        d_sums_at(dtype, width, tokens, s, rows, cotangents, to, own,
                  (lanes){.c = c, .half = 2, .left = ejki_min(columns - c, VL)});
}

/* Four tokens of four taps, as most models have it, or one. */
#define D_SUMS(name, dtype)                                                                        \
    static __attribute__((noinline)) void name(                                                    \
        const segment *s, int tokens, const void *const *rows, const void *const *cotangents,      \
        float *to, bool own) {                                                                     \
        if (tokens == TOKENS)                                                                      \
            d_sums_of(dtype, 4, TOKENS, s, rows, cotangents, to, true);                            \
        else                                                                                       \
            d_sums_of(dtype, (int)s->t.p->width, 1, s, rows, cotangents, to, own);                 \
    }
D_SUMS(d_sums_f32, EJK_DTYPE_F32)
D_SUMS(d_sums_bf16, EJK_DTYPE_BF16)
D_SUMS(d_sums_f16, EJK_DTYPE_F16)

/* The first pass: rows of s->d_sums from `token` on, up to the last that a gradient before `stop` needs. */
static void take_d_sums(const segment *s, seq_range range, int64_t token, int64_t stop) {
    const conv_problem *p = s->t.p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t count = stop - token, all = count + p->width - 1;
    const void *rows[TOKENS + CONV_MOST_TAPS], *cotangents[TOKENS];
    for (int64_t k = 0, tokens; k < all; k += tokens) {
        float *to = s->d_sums + k * s->t.stride;
        tokens = p->width == 4 && k + TOKENS <= count ? TOKENS : 1;
        if (token + k >= range.end) {
            memset(to, 0, (size_t)s->t.stride * sizeof *to);
            continue;
        }
        window_rows(dtype, &s->t, range, token + k, tokens, rows);
        for (int64_t r = 0; r < tokens; r++)
            cotangents[r] = row_at(dtype, &s->t, &p->y, range.row, token + k + r);
        (dtype == EJK_DTYPE_F32    ? d_sums_f32
         : dtype == EJK_DTYPE_BF16 ? d_sums_bf16
                                   : d_sums_f16)(s, (int)tokens, rows, cotangents, to, k < count);
    }
}

/* The second pass: gradients of some tokens at VL columns of floats, from `base` and the cotangents of their sums. */
INLINE void gradients_at(const int width, const int tokens, const segment *s,
                         const void *const *rows, const float *const *base, int64_t at, vf *sum) {
    const lanes l = {.c = at, .half = 2, .left = VL};
    EJKI_UNROLL for (int r = 0; r < tokens; r++) sum[r] = v_load(base[r] + at);
    window_sums(EJK_DTYPE_F32, width, tokens, rows, l, s->turned, s->t.stride, sum);
}

INLINE void gradients_of(const ejk_dtype dtype, const int width, const int tokens, const segment *s,
                         const void *const *rows, const float *const *base, void *const *to) {
    const int64_t columns = s->t.columns;
    vf sum[2][TOKENS];
    int64_t c = 0;
    for (; c + 2 * VL <= columns; c += 2 * VL) {
        EJKI_UNROLL for (int half = 0; half < 2; half++)
            gradients_at(width, tokens, s, rows, base, c + half * VL, sum[half]);
        EJKI_UNROLL for (int r = 0; r < tokens; r++)
            v_narrow_halves(dtype, false, element_at(dtype, to[r], c), sum[0][r], sum[1][r]);
    }
    for (; c < columns; c += VL) {
        gradients_at(width, tokens, s, rows, base, c, sum[0]);
        EJKI_UNROLL for (int r = 0; r < tokens; r++)
            v_narrow_some(dtype, element_at(dtype, to[r], c), sum[0][r], columns - c);
    }
}

#define GRADIENTS(name, dtype)                                                                     \
    static __attribute__((noinline)) void name(const segment *s, int64_t tokens,                   \
                                               const void *const *rows, const float *const *base,  \
                                               void *const *to) {                                  \
        if (tokens == TOKENS && s->t.p->width == 4)                                                \
            gradients_of(dtype, 4, TOKENS, s, rows, base, to);                                     \
        else                                                                                       \
            for (int64_t r = 0; r < tokens; r++)                                                   \
                gradients_of(dtype, (int)s->t.p->width, 1, s, rows + r, base + r, to + r);         \
    }
GRADIENTS(gradients_f32, EJK_DTYPE_F32)
GRADIENTS(gradients_bf16, EJK_DTYPE_BF16)
GRADIENTS(gradients_f16, EJK_DTYPE_F16)

/* Cotangents of the entries of a final state that are tokens, as rows. */
static void take_extra(const segment *s, int64_t n) {
    const conv_problem *p = s->t.p;
    for (int64_t c = 0; c < s->t.columns; c++)
        for (int64_t i = 0; i < p->width - 1; i++)
            s->extra[i * s->t.stride + c] =
                element_load((ejk_dtype)p->dtype, p->after.data,
                             conv_state_at(&p->after, n, s->t.first + c) + i);
    for (int64_t i = 0; i < p->width - 1; i++)
        v_put_in_order((ejk_dtype)p->dtype, false, s->extra + i * s->t.stride, s->t.columns);
}

static void tokens_of(const segment *s, int64_t row, int64_t n, int64_t token, int64_t stop) {
    const conv_problem *p = s->t.p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t w = p->width - 1, stride = s->t.stride;
    const seq_range range = seq_of(&p->sequences, n);
    if (token - range.begin < w) tile_take_state(dtype, &s->t, n);
    take_d_sums(s, range, token, stop);
    if (!p->d_x.data) return;
    const int64_t kept =
        p->has_after ? range.end - w : stop; /* tokens from there on are a final state's */
    if (kept < stop) take_extra(s, n);
    for (int64_t k = 0; k < stop - token; k += TOKENS) {
        const int64_t count = ejki_min(stop - token - k, TOKENS);
        const void *rows[TOKENS + CONV_MOST_TAPS];
        const float *base[TOKENS];
        void *to[TOKENS];
        for (int64_t i = 0; i < count + w; i++) rows[i] = s->d_sums + (k + i) * stride;
        for (int64_t r = 0; r < count; r++) {
            const int64_t late = token + k + r - kept;
            base[r] = s->extra + (late >= 0 ? late : w) * stride;
            to[r] = row_at(dtype, &s->t, &p->d_x, row, token + k + r);
        }
        (dtype == EJK_DTYPE_F32    ? gradients_f32
         : dtype == EJK_DTYPE_BF16 ? gradients_bf16
                                   : gradients_f16)(s, count, rows, base, to);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t stride_of(const conv_problem *p) {
    return ejki_min(ejki_round_up(ejki_max(p->channels, 1), LINE / 2), TILE);
}
static int64_t segments_of(const conv_problem *p) {
    return p->batch * ejki_cdiv(p->sequences.tokens, SEGMENT);
}
/* Of one worker, and of the sums of all segments. */
static int64_t own_floats(const conv_problem *p) {
    return tile_floats(p, stride_of(p)) + (SEGMENT + 3 * p->width + 1) * stride_of(p);
}
static int64_t pitch_of(const conv_problem *p) {
    return ejki_round_up(p->channels, LINE / 4);
}
static int64_t sum_floats(const conv_problem *p) {
    return segments_of(p) * (p->width + 1) * pitch_of(p);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const conv_problem *p = problem;
    const int64_t tasks = segments_of(p) * ejki_cdiv(p->channels, stride_of(p));
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, ejki_max(tasks, p->sequences.count)));
    launch->workspace_bytes =
        (size_t)(launch->workers * own_floats(p) + sum_floats(p)) * sizeof(float);
    return EJK_OK;
}

static float *sums_of(const ejk_run *run) {
    return (float *)run->workspace + run->workers * own_floats(run->problem);
}

static void open_segment(segment *s, const conv_problem *p, int64_t first, prefetching how,
                         float *memory) {
    const int64_t stride = stride_of(p);
    tile_open((ejk_dtype)p->dtype, &s->t, p, first, ejki_min(p->channels - first, stride), stride,
              how, memory);
    s->d_sums = memory + tile_floats(p, stride);
    s->extra = s->d_sums + (SEGMENT + p->width) * stride;
    s->turned = s->extra + (p->width + 1) * stride;
    memset(s->extra, 0, (size_t)((p->width + 1) * stride) * sizeof(float));
    for (int64_t i = 0; i < p->width; i++)
        memcpy(s->turned + i * stride, s->t.taps + (p->width - 1 - i) * stride,
               (size_t)stride * sizeof(float));
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const conv_problem *p = run->problem;
    const sequences *q = &p->sequences;
    const int64_t stride = stride_of(p), all = segments_of(p), each = ejki_cdiv(q->tokens, SEGMENT);
    const int64_t tasks = all * ejki_cdiv(p->channels, stride);
    segment s = {.t = {.first = -1}};
    for (int64_t k = tasks * index / run->workers; k < tasks * (index + 1) / run->workers; k++) {
        const int64_t first = k / all * stride, row = k % all / each, at = k % all % each * SEGMENT;
        if (first != s.t.first)
            open_segment(&s, p, first, prefetching_of(run->parameters),
                         (float *)run->workspace + index * own_floats(p));
        s.pitch = pitch_of(p);
        s.weights = sums_of(run) + k % all * (p->width + 1) * s.pitch + first;
        for (int64_t i = 0; i <= p->width; i++)
            memset(s.weights + i * s.pitch, 0,
                   (size_t)ejki_round_up(s.t.columns, LINE / 4) * sizeof(float));
        const int64_t end = ejki_min(at + SEGMENT, q->tokens);
        for (int64_t token = at; token < end;) {
            const int64_t n = seq_find(q, row, token), stop = seq_stop(q, n, token, end);
            if (n >= 0)
                tokens_of(&s, row, n, token, stop);
            else if (p->d_x.data)
                for (int64_t i = token; i < stop; i++)
                    memset(row_at((ejk_dtype)p->dtype, &s.t, &p->d_x, row, i), 0,
                           (size_t)(s.t.columns * element_size((ejk_dtype)p->dtype)));
            token = stop;
        }
    }
}

/* ---- Sums of segments, and initial states ------------------------------------------------------------ */

static void work_sums(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const conv_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t all = segments_of(p), pitch = pitch_of(p), taps = p->width + 1;
    const int64_t pairs = ejki_cdiv(p->channels, 2 * VL);
    for (int64_t v = pairs * index / run->workers; v < pairs * (index + 1) / run->workers; v++) {
        const int64_t c = v * 2 * VL, left = ejki_min(p->channels - c, 2 * VL);
        for (int64_t i = 0; i < taps; i++) {
            float sums[2 * VL] = {0};
            for (int64_t at = 0; at < left; at += VL) {
                vf sum = v_zero();
                for (int64_t k = 0; k < all; k++)
                    sum = v_add(sum, v_load(sums_of(run) + (k * taps + i) * pitch + c + at));
                v_store(sums + at, sum);
            }
            v_put_in_order(dtype, true, sums, left);
            for (int64_t l = 0; l < left; l++)
                if (i < p->width && p->d_weight.data)
                    element_store(dtype, p->d_weight.data,
                                  conv_state_at(&p->d_weight, 0, c + l) + i, sums[l]);
                else if (i == p->width && p->d_bias)
                    element_store(dtype, p->d_bias, c + l, sums[l]);
        }
    }
}

/* Entry j of an extended sequence. */
static float entry(const conv_problem *p, seq_range range, int64_t slot, int64_t c, int64_t j) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t token = range.begin + j - p->width + 1;
    if (j >= p->width - 1)
        return element_load(dtype, p->x.data, conv_at(&p->x, range.row, token) + c);
    return slot < 0 ? 0
                    : element_load(dtype, p->before.data, conv_state_at(&p->before, slot, c) + j);
}

/* A channel of a sequence: the state's share of its first W - 1 sums, and of a final state that it reaches. */
static void initial_channel(const conv_problem *p, int64_t n, seq_range range, int64_t c) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t w = p->width - 1, length = range.end - range.begin;
    const int64_t slot = conv_slot(p, p->has_before, n), tap = conv_state_at(&p->weight, 0, c);
    float gradient[CONV_MOST_TAPS] = {0};
    for (int64_t j = length; j < w && p->has_after; j++)
        gradient[j] =
            element_load(dtype, p->after.data, conv_state_at(&p->after, n, c) + j - length);
    for (int64_t t = 0; t < ejki_min(w, length); t++) {
        float d = element_load(dtype, p->y.data, conv_at(&p->y, range.row, range.begin + t) + c);
        float z = p->has_bias ? element_load(dtype, p->bias, c) : 0;
        for (int64_t i = 0; p->silu && i <= w; i++)
            z += element_load(dtype, p->weight.data, tap + i) * entry(p, range, slot, c, t + i);
        const float s = 1 / (1 + expf(-z));
        if (p->silu) d *= s * (1 + z * (1 - s));
        for (int64_t j = t; j < w; j++)
            gradient[j] += d * element_load(dtype, p->weight.data, tap + j - t);
    }
    for (int64_t j = 0; j < w; j++)
        element_store(dtype, p->d_before.data, conv_state_at(&p->d_before, n, c) + j, gradient[j]);
}

static void work_initial(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const conv_problem *p = run->problem;
    const int64_t count = p->sequences.count;
    for (int64_t n = count * index / run->workers; n < count * (index + 1) / run->workers; n++)
        for (int64_t c = 0; c < p->channels; c++)
            initial_channel(p, n, seq_of(&p->sequences, n), c);
}

static ejk_status run(const ejk_run *run) {
    const conv_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (p->d_weight.data || p->d_bias)
        ejk_parallel_for(run->threads, run->workers, work_sums, (void *)(uintptr_t)run);
    if (p->d_before.data && p->width > 1)
        ejk_parallel_for(run->threads, run->workers, work_initial, (void *)(uintptr_t)run);
    return EJK_OK;
}

static const ejk_parameter parameters_of_line[] = {PREFETCH_HINT,
                                                   PREFETCH_BYTES(4 * TOKENS * TILE)};
EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = parameters_of_line, .parameter_count = 2,
             .prepare = prepare, .run = run)
