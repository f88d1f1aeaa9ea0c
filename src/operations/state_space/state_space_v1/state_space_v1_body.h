/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_space_v1 in vectors, token by token. A task is a slab of channels of a sequence. CHUNK tokens at a time, step
 * sizes and inputs are computed first; then, tile after tile, BLOCK numbers of its states run through these tokens in
 * registers, so that nearly all that is left is an exponential, 10 of 14 instructions. b and c are floats in a buffer,
 * of which products take numbers for all lanes. States lie across vectors: they are transposed on their way.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "kernels/simd/subnormal.h"
#include "kernels/simd/vec_halves.h"
#include "operations/state_space/state_space_v1/scan.h"

/* At E=2048 chunks of 64 took longer than 16, when tiles read rows themselves. */
enum { SLAB = 128, CHUNK = 16 };

/* A worker's buffers. */
typedef struct worker {
    slab s;
    float *h;                       /* [states][stride] */
    float *b, *c;                   /* [CHUNK][states of the call] */
    float *step, *input, *y, *gate; /* [CHUNK][SLAB] */
} worker;

/* `count` numbers of the states of a tile, from k on; a constant. */
INLINE void run_block(const int count, worker *w, int64_t e, int64_t k, int64_t tokens) {
    const int64_t stride = w->s.stride, states = w->s.p->states;
    const float *b = w->b + k, *c = w->c + k;
    float *h = w->h + k * stride + e;
    vf state[BLOCK], decay[BLOCK];
    EJKI_UNROLL for (int i = 0; i < count; i++) {
        state[i] = v_load(h + i * stride);
        decay[i] = v_load(w->s.a + (k + i) * stride + e);
    }
    for (int64_t t = 0; t < tokens; t++, b += states, c += states) {
        const int64_t at = t * SLAB + e;
        const vf step = v_load(w->step + at), input = v_load(w->input + at);
        vf y = v_load(w->y + at), other = v_zero();
        EJKI_UNROLL for (int i = 0; i < count; i++) {
            const vf faded = v_mul(v_exp2_near(v_mul(decay[i], step)), state[i]);
            state[i] = v_fma_one(b + i, input, faded);
            if (i % 2)
                other = v_fma_one(c + i, state[i], other);
            else
                y = v_fma_one(c + i, state[i], y);
        }
        v_store(w->y + at, v_add(y, other));
    }
    EJKI_UNROLL for (int i = 0; i < count; i++) v_store(h + i * stride, state[i]);
}

/* Rows of a slab, a token after the other: step sizes, inputs, what passes by the states, and gates. Tiles then have
 * nothing to do with memory, where rows that are a power of 2 apart meet in the same sets of a cache. */
INLINE void take_tokens(const ejk_dtype dtype, worker *w, seq_range range, int64_t token,
                        int64_t tokens) {
    const slab *s = &w->s;
    const scan_problem *p = s->p;
    const int64_t ahead = token + tokens + CHUNK <= range.end ? CHUNK : 0;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t e = 0; e < s->channels; e += VL) {
            const int64_t at = t * SLAB + e;
            const vf x = channels_of(dtype, s, &p->x, range.row, token + t, e, ahead);
            const vf step = step_of(p, raw_step(dtype, s, range.row, token + t, e, ahead));
            if (ahead && e * element_size(dtype) % LINE == 0)
                __builtin_prefetch(channel_at(dtype, s, &p->y, range.row, token + t + ahead, e), 1,
                                   2);
            v_store(w->step + at, step);
            v_store(w->input + at, v_mul(step, x));
            v_store(w->y + at, v_mul(v_load(s->d + e), x));
            if (!p->has_gate) continue;
            const vf gate = channels_of(dtype, s, &p->gate, range.row, token + t, e, ahead);
            v_store(w->gate + at, v_silu_of(dtype, gate));
        }
}
INLINE void put_tokens(const ejk_dtype dtype, const worker *w, seq_range range, int64_t token,
                       int64_t tokens) {
    const slab *s = &w->s;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t e = 0; e < s->channels; e += VL) {
            vf y = v_load(w->y + t * SLAB + e);
            if (s->p->has_gate) y = v_mul(y, v_load(w->gate + t * SLAB + e));
            v_narrow_some(dtype, channel_at(dtype, s, &s->p->y, range.row, token + t, e), y,
                          s->channels - e);
        }
}

INLINE void run_tokens(const ejk_dtype dtype, worker *w, seq_range range, int64_t token,
                       int64_t tokens) {
    take_tokens(dtype, w, range, token, tokens);
    for (int64_t e = 0; e < w->s.channels; e += VL) {
        int64_t k = 0;
        for (; k + BLOCK <= w->s.p->states; k += BLOCK) run_block(BLOCK, w, e, k, tokens);
        for (; k < w->s.p->states; k++) run_block(1, w, e, k, tokens);
    }
    put_tokens(dtype, w, range, token, tokens);
}

#define TOKENS(name, dtype)                                                                        \
    static __attribute__((noinline)) void name(worker *w, seq_range range, int64_t token,          \
                                               int64_t tokens) {                                   \
        run_tokens(dtype, w, range, token, tokens);                                                \
    }
TOKENS(tokens_f32, EJK_DTYPE_F32)
TOKENS(tokens_bf16, EJK_DTYPE_BF16)
TOKENS(tokens_f16, EJK_DTYPE_F16)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t own_floats(const scan_problem *p) {
    return slab_floats(p, SLAB) + states_of(p) * SLAB + 2 * CHUNK * states_of(p) + 4 * CHUNK * SLAB;
}
static int64_t tasks_of(const scan_problem *p) {
    return slabs_of(p, SLAB) * p->sequences.count;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const scan_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks_of(p)));
    launch->workspace_bytes = (size_t)(launch->workers * own_floats(p)) * sizeof(float);
    return EJK_OK;
}

static void run_sequence(worker *w, int64_t n) {
    const slab *s = &w->s;
    const scan_problem *p = s->p;
    const seq_range range = seq_of(&p->sequences, n);
    const int64_t from = scan_slot(p, p->has_before, n), to = scan_slot(p, p->has_after, n);
    void (*const run_some)(worker *, seq_range, int64_t, int64_t) =
        p->dtype == EJK_DTYPE_F32    ? tokens_f32
        : p->dtype == EJK_DTYPE_BF16 ? tokens_bf16
                                     : tokens_f16;
    const int64_t next = n + 1 < p->sequences.count ? scan_slot(p, p->has_before, n + 1) : -1;
    for (int64_t e = 0; e < s->channels; e += VL) take_states(s, &p->before, from, next, e, w->h);
    for (int64_t token = range.begin; token < range.end; token += CHUNK) {
        const int64_t tokens = ejki_min(range.end - token, CHUNK);
        take_rows(s, &p->b, range.row, token, tokens, w->b);
        take_rows(s, &p->c, range.row, token, tokens, w->c);
        run_some(w, range, token, tokens);
    }
    for (int64_t e = 0; to >= 0 && e < s->channels; e += VL) put_states(s, &p->after, to, e, w->h);
}

/* Tokens of no sequence, of a slab's channels. */
static void clear(const slab *s) {
    const sequences *q = &s->p->sequences;
    const size_t bytes = (size_t)(s->channels * element_size((ejk_dtype)s->p->dtype));
    for (int64_t t = q->packed ? seq_end(q, q->count) : q->tokens; t < q->tokens; t++)
        memset(channel_at((ejk_dtype)s->p->dtype, s, &s->p->y, 0, t, 0), 0, bytes);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const scan_problem *p = run->problem;
    const int64_t count = p->sequences.count, slabs = slabs_of(p, SLAB), tasks = tasks_of(p);
    float *memory = (float *)run->workspace + index * own_floats(p);
    worker w = {.h = memory + slab_floats(p, SLAB)};
    w.b = w.h + states_of(p) * SLAB;
    w.c = w.b + CHUNK * states_of(p);
    w.step = w.c + CHUNK * states_of(p);
    w.input = w.step + CHUNK * SLAB;
    w.y = w.input + CHUNK * SLAB;
    w.gate = w.y + CHUNK * SLAB;
    int64_t open = -1;
    const unsigned mode = flush_subnormals();
    for (int64_t k = tasks * index / run->workers; k < tasks * (index + 1) / run->workers; k++) {
        if (k / count != open) slab_open(&w.s, p, open = k / count, SLAB, memory);
        run_sequence(&w, k % count);
    }
    restore_subnormals(mode);
    for (int64_t i = slabs * index / run->workers; i < slabs * (index + 1) / run->workers; i++) {
        slab_open(&w.s, p, i, SLAB, memory);
        clear(&w.s);
    }
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = types_apply,
             .needs = "a, d, dt_bias, states of 32 bits or less", .prepare = prepare, .run = run)
