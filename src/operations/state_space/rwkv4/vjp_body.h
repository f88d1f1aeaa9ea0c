/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of rwkv4 in vectors. A task is a slab of channels and all sequences. It walks through a sequence once and
 * keeps the states at the start of each CHUNK tokens; then, from the last chunk to the first, the states of its tokens
 * are computed anew and cotangents run backwards. Sums over tokens have a fixed order: bits do not depend on threads.
 *
 * What later tokens read of a state does not change if its shift grows and the sums shrink as much: only final_state's
 * own shift does. So cotangents of the sums alone go back in time, and beside them what final_state adds to that of the
 * shift, until the token whose key was the maximum takes it.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/state_space/rwkv4/wkv.h"

enum { SLAB = 64, CHUNK = 32, STATE = STATE_NUMBERS * SLAB };

/* A worker's buffers, rows of SLAB floats. */
typedef struct worker {
    slab s;
    float *d, *d_rate, *d_bonus; /* d: cotangents of the state */
    float *chunk;                /* states of a chunk, [CHUNK][STATE_NUMBERS] rows */
    float *starts;               /* states at the start of each chunk */
} worker;

/* Tokens t to t + count - 1, whose states before them go to `to`, STATE floats each. */
INLINE void walk(const ejk_dtype dtype, const slab *s, seq_range range, int64_t t, int64_t count,
                 float *to) {
    for (int64_t i = 0; i < count; i++, to += to ? STATE : 0) {
        if (to) memcpy(to, s->states, STATE * sizeof *to);
        for (int64_t c = 0; c < s->channels; c += VL) {
            float *state = s->states + c;
            const vf k = channels_of(dtype, s, &s->p->k, range, t + i, c);
            const vf v = channels_of(dtype, s, &s->p->v, range, t + i, c);
            const vf shift = v_load(state + SHIFT * SLAB), rate = v_load(s->rate + c);
            const weights kept = weigh(v_max(v_set1((float)LEAST_SHIFT), v_sub(shift, rate)), k);
            advance(state, SLAB, v_load(state + SUM_VALUES * SLAB),
                    v_load(state + SUM_WEIGHTS * SLAB), shift, rate, k, v, &kept);
        }
    }
}

INLINE void put_row(const ejk_dtype dtype, const slab *s, const wkv_rows *rows, seq_range range,
                    int64_t t, int64_t c, vf value) {
    if (rows->data)
        v_narrow_some(dtype, channel_at(dtype, s, rows, range, t, c), value, s->channels - c);
}

/* VL channels of a token; `state` is that before it. */
INLINE void return_token(const ejk_dtype dtype, worker *w, seq_range range, int64_t t, int64_t c,
                         const float *state) {
    const slab *s = &w->s;
    float *d = w->d + c;
    const vf k = channels_of(dtype, s, &s->p->k, range, t, c);
    const vf v = channels_of(dtype, s, &s->p->v, range, t, c);
    const vf values = v_load(state + SUM_VALUES * SLAB), sums = v_load(state + SUM_WEIGHTS * SLAB);
    const token a = token_of(values, sums, v_load(state + SHIFT * SLAB), v_load(s->rate + c),
                             v_load(s->bonus + c), k, v);
    const vf d_values = v_load(d + SUM_VALUES * SLAB), d_sums = v_load(d + SUM_WEIGHTS * SLAB);
    const vf d_shift = v_load(d + SHIFT * SLAB),
             d_out = channels_of(dtype, s, &s->p->y, range, t, c);
    const vf d_above = v_select_gt(v_abs(a.sum), v_zero(), v_div(d_out, a.sum), a.sum);
    const vf d_sum = v_sub(v_zero(), v_mul(d_above, a.out));
    const vf own = v_mul(a.read.own, v_fma(seen(a.read.own, v), d_above, d_sum));
    const vf kept = v_mul(a.kept.own, v_fma(seen(a.kept.own, v), d_values, d_sums));
    const vf faded = v_mul(a.kept.before, v_fma(values, d_values, v_mul(sums, d_sums)));
    const vf on_shift = v_select_gt(a.kept.excess, v_zero(), d_shift, v_zero());
    put_row(dtype, s, &s->p->d_k, range, t, c, v_add(v_add(own, kept), v_sub(d_shift, on_shift)));
    put_row(dtype, s, &s->p->d_v, range, t, c,
            v_fma(a.read.own, d_above, v_mul(a.kept.own, d_values)));
    v_store(w->d_bonus + c, v_add(v_load(w->d_bonus + c), own));
    v_store(w->d_rate + c, v_add(v_load(w->d_rate + c), v_add(faded, on_shift)));
    v_store(d + SUM_VALUES * SLAB, v_fma(a.read.before, d_above, v_mul(a.kept.before, d_values)));
    v_store(d + SUM_WEIGHTS * SLAB, v_fma(a.read.before, d_sum, v_mul(a.kept.before, d_sums)));
    v_store(d + SHIFT * SLAB, on_shift);
}

/* ---- Sequences --------------------------------------------------------------------------------------- */

/* Between the cotangent of a state's shift and what it is beyond that of the sums: `sign` 1 or -1. */
static void shift_cotangent(worker *w, const float *state, float sign) {
    for (int64_t c = 0; c < w->s.channels; c += VL) {
        float *d = w->d + c;
        const vf sums =
            v_fma(v_load(state + SUM_VALUES * SLAB + c), v_load(d + SUM_VALUES * SLAB),
                  v_mul(v_load(state + SUM_WEIGHTS * SLAB + c), v_load(d + SUM_WEIGHTS * SLAB)));
        v_store(d + SHIFT * SLAB, v_fma(v_set1(sign), sums, v_load(d + SHIFT * SLAB)));
    }
}

INLINE void run_sequence(const ejk_dtype dtype, worker *w, int64_t n) {
    const slab *s = &w->s;
    const wkv_problem *p = s->p;
    const seq_range range = seq_of(&p->sequences, n);
    const int64_t length = range.end - range.begin, to = wkv_slot(p, p->has_after, n);
    take_states(s, wkv_slot(p, p->has_before, n));
    for (int64_t t = 0; t < length; t += CHUNK) {
        memcpy(w->starts + t / CHUNK * STATE, s->states, STATE * sizeof(float));
        walk(dtype, s, range, t, ejki_min(length - t, CHUNK), NULL);
    }
    for (int64_t c = 0; c < s->channels; c += VL)
        for (int i = 0; i < STATE_NUMBERS; i++)
            v_store(w->d + i * SLAB + c, to >= 0 ? list_at(s, &p->after, to, i, c) : v_zero());
    shift_cotangent(w, s->states, -1);
    for (int64_t i = ejki_cdiv(length, CHUNK) - 1; i >= 0; i--) {
        const int64_t count = ejki_min(length - i * CHUNK, CHUNK);
        memcpy(s->states, w->starts + i * STATE, STATE * sizeof(float));
        walk(dtype, s, range, i * CHUNK, count, w->chunk);
        for (int64_t t = count - 1; t >= 0; t--)
            for (int64_t c = 0; c < s->channels; c += VL)
                return_token(dtype, w, range, i * CHUNK + t, c, w->chunk + t * STATE + c);
    }
    take_states(s, wkv_slot(p, p->has_before, n));
    shift_cotangent(w, s->states, 1);
    for (int64_t c = 0; c < s->channels; c += VL)
        for (int i = 0; i < STATE_NUMBERS; i++)
            put_list(s, &p->d_before, n, i, c, v_load(w->d + i * SLAB + c));
}

/* The type is a constant where time counts. */
#define SEQUENCE(name, dtype)                                                                      \
    static __attribute__((noinline)) void name(worker *w, int64_t n) {                             \
        run_sequence(dtype, w, n);                                                                 \
    }
SEQUENCE(sequence_f32, EJK_DTYPE_F32)
SEQUENCE(sequence_bf16, EJK_DTYPE_BF16)
SEQUENCE(sequence_f16, EJK_DTYPE_F16)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t own_floats(const wkv_problem *p) {
    return slab_floats(SLAB) + 2 * SLAB +
           STATE * (1 + CHUNK + ejki_cdiv(p->sequences.tokens, CHUNK));
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const wkv_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, slabs_of(p, SLAB)));
    launch->workspace_bytes = (size_t)(launch->workers * own_floats(p)) * sizeof(float);
    return EJK_OK;
}

static void run_slab(worker *w) {
    const wkv_problem *p = w->s.p;
    void (*sequence)(worker *, int64_t) = p->dtype == EJK_DTYPE_F32    ? sequence_f32
                                          : p->dtype == EJK_DTYPE_BF16 ? sequence_bf16
                                                                       : sequence_f16;
    memset(w->d_rate, 0, 2 * SLAB * sizeof(float));
    for (int64_t n = 0; n < p->sequences.count; n++) sequence(w, n);
    for (int64_t c = 0; c < w->s.channels; c += VL) {
        /* A rate of infinity keeps nothing: its sum is 0, and so is the gradient. */
        const vf sum = v_load(w->d_rate + c);
        const vf d_w = v_sub(v_zero(), v_mul(sum, v_load(w->s.rate + c)));
        put_list(&w->s, &p->d_w, 0, 0, c, v_select_gt(v_abs(sum), v_zero(), d_w, sum));
        put_list(&w->s, &p->d_u, 0, 0, c, v_load(w->d_bonus + c));
    }
    clear(&w->s, &p->d_k);
    clear(&w->s, &p->d_v);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const wkv_problem *p = run->problem;
    const int64_t slabs = slabs_of(p, SLAB), end = slabs * (index + 1) / run->workers;
    float *memory = (float *)run->workspace + index * own_floats(p);
    worker w = {.d = memory + slab_floats(SLAB)};
    w.d_rate = w.d + STATE;
    w.d_bonus = w.d_rate + SLAB;
    w.chunk = w.d_bonus + SLAB;
    w.starts = w.chunk + CHUNK * STATE;
    for (int64_t i = slabs * index / run->workers; i < end; i++) {
        slab_open(&w.s, p, i, SLAB, memory);
        run_slab(&w);
    }
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = types_apply,
             .needs = "w, u, states of 32 bits or less", .prepare = prepare, .run = run)
