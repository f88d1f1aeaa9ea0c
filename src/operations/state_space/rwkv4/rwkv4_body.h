/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rwkv4 in vectors. A task is a slab of channels of a sequence: token by token, in the order of memory, with the slab's
 * states in the first-level cache. Two exponentials and a division for a token of a channel.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/state_space/rwkv4/wkv.h"

enum { SLAB = 512 };

INLINE void run_token(const ejk_dtype dtype, const slab *s, seq_range range, int64_t t) {
    for (int64_t c = 0; c < s->channels; c += VL) {
        float *state = s->states + c;
        const vf k = channels_of(dtype, s, &s->p->k, range, t, c);
        const vf v = channels_of(dtype, s, &s->p->v, range, t, c);
        const vf values = v_load(state + SUM_VALUES * s->stride), rate = v_load(s->rate + c);
        const vf sums = v_load(state + SUM_WEIGHTS * s->stride);
        const vf shift = v_load(state + SHIFT * s->stride);
        const token a = token_of(values, sums, shift, rate, v_load(s->bonus + c), k, v);
        advance(state, s->stride, values, sums, shift, rate, k, v, &a.kept);
        v_narrow_some(dtype, channel_at(dtype, s, &s->p->y, range, t, c), a.out, s->channels - c);
    }
}

/* The type is a constant where time counts. */
#define TOKENS(name, dtype)                                                                        \
    static __attribute__((noinline)) void name(const slab *s, seq_range range) {                   \
        for (int64_t t = 0; t < range.end - range.begin; t++) run_token(dtype, s, range, t);       \
    }
TOKENS(tokens_f32, EJK_DTYPE_F32)
TOKENS(tokens_bf16, EJK_DTYPE_BF16)
TOKENS(tokens_f16, EJK_DTYPE_F16)

static int64_t tasks_of(const wkv_problem *p) {
    return slabs_of(p, SLAB) * p->sequences.count;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const wkv_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks_of(p)));
    launch->workspace_bytes = (size_t)(launch->workers * slab_floats(SLAB)) * sizeof(float);
    return EJK_OK;
}

static void run_sequence(const slab *s, int64_t n) {
    const wkv_problem *p = s->p;
    const seq_range range = seq_of(&p->sequences, n);
    const int64_t to = wkv_slot(p, p->has_after, n);
    take_states(s, wkv_slot(p, p->has_before, n));
    if (p->dtype == EJK_DTYPE_F32)
        tokens_f32(s, range);
    else if (p->dtype == EJK_DTYPE_BF16)
        tokens_bf16(s, range);
    else
        tokens_f16(s, range);
    for (int64_t c = 0; to >= 0 && c < s->channels; c += VL)
        for (int i = 0; i < STATE_NUMBERS; i++)
            put_list(s, &p->after, to, i, c, v_load(s->states + i * s->stride + c));
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const wkv_problem *p = run->problem;
    const int64_t count = p->sequences.count, slabs = slabs_of(p, SLAB), tasks = tasks_of(p);
    float *memory = (float *)run->workspace + index * slab_floats(SLAB);
    int64_t open = -1;
    slab s;
    for (int64_t i = tasks * index / run->workers; i < tasks * (index + 1) / run->workers; i++) {
        if (i / count != open) slab_open(&s, p, open = i / count, SLAB, memory);
        run_sequence(&s, i % count);
    }
    for (int64_t i = slabs * index / run->workers; i < slabs * (index + 1) / run->workers; i++) {
        slab_open(&s, p, i, SLAB, memory);
        clear(&s, &p->y);
    }
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = types_apply,
             .needs = "w, u, states of 32 bits or less", .prepare = prepare, .run = run)
