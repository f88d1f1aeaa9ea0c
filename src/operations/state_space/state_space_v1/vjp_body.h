/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of state_space_v1 in vectors. A task is a slab of channels and all sequences. It walks through a sequence
 * once and keeps the states at the start of each CHUNK tokens; then, from the last chunk to the first, BLOCK numbers of
 * the states of a tile are computed anew, with their decays, and their cotangents run backwards in registers.
 *
 * Gradients of b and c are sums over channels: those of a slab stay vectors until its last tile, then go to memory of
 * the slab's own, and those of all slabs are added up in order: bits do not depend on threads.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "kernels/simd/subnormal.h"
#include "operations/state_space/state_space_v1/scan.h"

enum { SLAB = 128, CHUNK = 32 };

/* A worker's buffers: per slab, per chunk of a tile, per block of a chunk. */
typedef struct worker {
    slab s;
    float *h, *d_h, *d_a, *d_d, *d_bias; /* [states][stride], [stride] */
    float *b, *c;                        /* [CHUNK][states of the call] */
    float *sums_b, *sums_c;              /* [CHUNK][states of the call][VL] */
    float *starts;                       /* [chunks][states][stride] */
    float step[CHUNK * VL], raw[CHUNK * VL], x[CHUNK * VL], y[CHUNK * VL], dy[CHUNK * VL];
    float d_step[CHUNK * VL], d_input[CHUNK * VL];
    float states[(CHUNK + 1) * BLOCK * VL], decays[CHUNK * BLOCK * VL];
} worker;

/* Tokens of a chunk, of a tile. */
typedef struct chunk {
    seq_range range;
    int64_t token, tokens, e;
} chunk;

/* ---- Forwards ---------------------------------------------------------------------------------------- */

/* States of a block after each token; reads are added to w->y. */
INLINE void walk_block(const int count, worker *w, const chunk *at, int64_t k, const float *from,
                       float *to) {
    const int64_t stride = w->s.stride, states = w->s.p->states;
    vf state[BLOCK], decay[BLOCK];
    EJKI_UNROLL for (int i = 0; i < count; i++) {
        state[i] = v_load(from + (k + i) * stride + at->e);
        decay[i] = v_load(w->s.a + (k + i) * stride + at->e);
        v_store(w->states + i * VL, state[i]);
    }
    for (int64_t t = 0; t < at->tokens; t++) {
        const float *b = w->b + t * states + k, *c = w->c + t * states + k;
        const vf step = v_load(w->step + t * VL), input = v_mul(step, v_load(w->x + t * VL));
        vf y = v_load(w->y + t * VL);
        EJKI_UNROLL for (int i = 0; i < count; i++) {
            const vf factor = v_exp2_near(v_mul(decay[i], step));
            state[i] = v_fma_one(b + i, input, v_mul(factor, state[i]));
            y = v_fma_one(c + i, state[i], y);
            v_store(w->decays + (t * BLOCK + i) * VL, factor);
            v_store(w->states + ((t + 1) * BLOCK + i) * VL, state[i]);
        }
        v_store(w->y + t * VL, y);
    }
    EJKI_UNROLL for (int i = 0; to && i < count; i++)
        v_store(to + (k + i) * stride + at->e, state[i]);
}

/* What both passes need of a tile's tokens. */
static void take_tokens(worker *w, const chunk *at) {
    const slab *s = &w->s;
    for (int64_t t = 0; t < at->tokens; t++) {
        const vf raw = raw_step((ejk_dtype)s->p->dtype, s, at->range.row, at->token + t, at->e, 0);
        const vf x = channels_of((ejk_dtype)s->p->dtype, s, &s->p->x, at->range.row, at->token + t,
                                 at->e, 0);
        v_store(w->raw + t * VL, raw);
        v_store(w->step + t * VL, step_of(s->p, raw));
        v_store(w->x + t * VL, x);
        v_store(w->y + t * VL, v_mul(v_load(s->d + at->e), x));
    }
}

static void take_chunk(worker *w, const chunk *at) {
    take_rows(&w->s, &w->s.p->b, at->range.row, at->token, at->tokens, w->b);
    take_rows(&w->s, &w->s.p->c, at->range.row, at->token, at->tokens, w->c);
}

static int64_t room(const slab *s) {
    return s->states * s->stride;
}

/* The first pass over a sequence. */
static void keep_starts(worker *w, seq_range range) {
    const slab *s = &w->s;
    const int64_t states = s->p->states;
    float *start = w->starts;
    for (chunk at = {.range = range, .token = range.begin}; at.token < range.end;
         at.token += CHUNK, start += room(s)) {
        at.tokens = ejki_min(range.end - at.token, CHUNK);
        memcpy(start, w->h, (size_t)room(s) * sizeof *start);
        if (at.token + CHUNK >= range.end) return;
        take_chunk(w, &at);
        for (at.e = 0; at.e < s->channels; at.e += VL) {
            int64_t k = 0;
            take_tokens(w, &at);
            for (; k + BLOCK <= states; k += BLOCK) walk_block(BLOCK, w, &at, k, w->h, w->h);
            for (; k < states; k++) walk_block(1, w, &at, k, w->h, w->h);
        }
    }
}

/* ---- Backwards --------------------------------------------------------------------------------------- */

INLINE void add_to(float *sum, vf a, vf b) {
    v_store(sum, v_fma(a, b, v_load(sum)));
}

/* Cotangents of a block run through its tokens backwards; a is times log2(e), what it multiplies is divided. */
INLINE void return_block(const int count, worker *w, const chunk *at, int64_t k) {
    const int64_t stride = w->s.stride, states = w->s.p->states;
    vf d_h[BLOCK], d_a[BLOCK];
    EJKI_UNROLL for (int i = 0; i < count; i++) {
        d_h[i] = v_load(w->d_h + (k + i) * stride + at->e);
        d_a[i] = v_load(w->d_a + (k + i) * stride + at->e);
    }
    for (int64_t t = at->tokens - 1; t >= 0; t--) {
        const float *b = w->b + t * states + k, *c = w->c + t * states + k;
        float *sums_b = w->sums_b + (t * states + k) * VL,
              *sums_c = w->sums_c + (t * states + k) * VL;
        const vf dy = v_load(w->dy + t * VL), step = v_load(w->step + t * VL);
        const vf input = v_mul(step, v_load(w->x + t * VL));
        vf d_input = v_load(w->d_input + t * VL), d_step = v_load(w->d_step + t * VL);
        EJKI_UNROLL for (int i = 0; i < count; i++) {
            const vf decay = v_load(w->decays + (t * BLOCK + i) * VL);
            const vf a = v_load(w->s.a + (k + i) * stride + at->e);
            add_to(sums_c + i * VL, dy, v_load(w->states + ((t + 1) * BLOCK + i) * VL));
            d_h[i] = v_fma_one(c + i, dy, d_h[i]);
            add_to(sums_b + i * VL, d_h[i], input);
            d_input = v_fma_one(b + i, d_h[i], d_input);
            d_h[i] = v_mul(d_h[i], decay);
            const vf faded = v_mul(d_h[i], v_load(w->states + (t * BLOCK + i) * VL));
            d_step = v_fma(a, faded, d_step);
            d_a[i] = v_fma(step, faded, d_a[i]);
        }
        v_store(w->d_input + t * VL, d_input);
        v_store(w->d_step + t * VL, d_step);
    }
    EJKI_UNROLL for (int i = 0; i < count; i++) {
        v_store(w->d_h + (k + i) * stride + at->e, d_h[i]);
        v_store(w->d_a + (k + i) * stride + at->e, d_a[i]);
    }
}

/* Cotangents of what is read, from those of out. */
static void take_cotangents(worker *w, const chunk *at) {
    const slab *s = &w->s;
    const scan_problem *p = s->p;
    for (int64_t t = 0; t < at->tokens; t++) {
        const int64_t token = at->token + t;
        vf dy = channels_of((ejk_dtype)s->p->dtype, s, &p->y, at->range.row, token, at->e, 0);
        if (p->has_gate)
            dy = v_mul(dy, v_silu(channels_of((ejk_dtype)s->p->dtype, s, &p->gate, at->range.row,
                                              token, at->e, 0)));
        v_store(w->dy + t * VL, dy);
        v_store(w->d_step + t * VL, v_zero());
        v_store(w->d_input + t * VL, v_zero());
    }
}

static void put(const slab *s, const scan_rows *rows, const chunk *at, int64_t t, vf value) {
    if (rows->data)
        v_narrow_some(
            (ejk_dtype)s->p->dtype,
            channel_at((ejk_dtype)s->p->dtype, s, rows, at->range.row, at->token + t, at->e), value,
            s->channels - at->e);
}

/* The slope of the step size over dt. */
INLINE vf step_slope(const scan_problem *p, vf raw) {
    const vf one = v_set1(1.0f), least = v_set1((float)p->least), most = v_set1((float)p->most);
    const vf step = p->softplus ? v_softplus(raw) : raw;
    vf slope = p->softplus ? v_sigmoid(raw) : one;
    slope = v_select_gt(least, step, v_zero(), slope);
    return v_select_gt(step, most, v_zero(), slope);
}

static void put_tokens(worker *w, const chunk *at) {
    const slab *s = &w->s;
    const scan_problem *p = s->p;
    vf d_d = v_load(w->d_d + at->e), d_bias = v_load(w->d_bias + at->e);
    for (int64_t t = 0; t < at->tokens; t++) {
        const vf x = v_load(w->x + t * VL), dy = v_load(w->dy + t * VL);
        const vf step = v_load(w->step + t * VL), d_input = v_load(w->d_input + t * VL);
        const vf natural = v_mul(v_load(w->d_step + t * VL), v_set1(1 / LOG2_E));
        const vf d_raw = v_mul(v_fma(d_input, x, natural), step_slope(p, v_load(w->raw + t * VL)));
        put(s, &p->d_x, at, t, v_fma(d_input, step, v_mul(dy, v_load(s->d + at->e))));
        put(s, &p->d_dt, at, t, d_raw);
        d_d = v_fma(dy, x, d_d);
        d_bias = v_add(d_bias, d_raw);
        if (!p->d_gate.data) continue;
        const vf z = channels_of((ejk_dtype)s->p->dtype, s, &p->gate, at->range.row, at->token + t,
                                 at->e, 0);
        const vf out =
            channels_of((ejk_dtype)s->p->dtype, s, &p->y, at->range.row, at->token + t, at->e, 0);
        put(s, &p->d_gate, at, t,
            v_mul(v_mul(out, v_load(w->y + t * VL)), v_silu_slope(z, v_sigmoid(z))));
    }
    v_store(w->d_d + at->e, d_d);
    v_store(w->d_bias + at->e, d_bias);
}

/* Sums over lanes of `count` vectors. */
static void put_sums(const float *from, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i += VL) {
        vf rows[VL];
        for (int64_t j = 0; j < VL; j++)
            rows[j] = i + j < count ? v_load(from + (i + j) * VL) : v_zero();
        v_store_first(to + i, v_sums(rows), ejki_min(count - i, VL));
    }
}

static void return_chunk(worker *w, chunk *at, const float *start, float *sums_b, float *sums_c) {
    const slab *s = &w->s;
    const int64_t states = s->p->states, count = at->tokens * states;
    take_chunk(w, at);
    memset(w->sums_b, 0, (size_t)(count * VL) * sizeof(float));
    memset(w->sums_c, 0, (size_t)(count * VL) * sizeof(float));
    for (at->e = 0; at->e < s->channels; at->e += VL) {
        int64_t k = 0;
        take_tokens(w, at);
        take_cotangents(w, at);
        for (; k + BLOCK <= states; k += BLOCK) {
            walk_block(BLOCK, w, at, k, start, NULL);
            return_block(BLOCK, w, at, k);
        }
        for (; k < states; k++) {
            walk_block(1, w, at, k, start, NULL);
            return_block(1, w, at, k);
        }
        put_tokens(w, at);
    }
    put_sums(w->sums_b, count, sums_b);
    put_sums(w->sums_c, count, sums_c);
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t chunks_of(const scan_problem *p) {
    return ejki_cdiv(p->sequences.tokens, CHUNK);
}
static int64_t own_floats(const scan_problem *p) {
    const int64_t states = states_of(p);
    return slab_floats(p, SLAB) + ((3 + chunks_of(p)) * states + 2) * SLAB +
           2 * CHUNK * states * (1 + VL);
}
/* Of b or c of a slab: [rows, tokens, states]. */
static int64_t sum_floats(const scan_problem *p) {
    return p->batch * p->sequences.tokens * p->states;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const scan_problem *p = problem;
    const int64_t slabs = slabs_of(p, SLAB);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, slabs));
    launch->workspace_bytes =
        (size_t)(launch->workers * own_floats(p) + 2 * slabs * sum_floats(p)) * sizeof(float);
    return EJK_OK;
}

static float *sums_of(const ejk_run *run, int64_t index, int which) {
    const scan_problem *p = run->problem;
    return (float *)run->workspace + run->workers * own_floats(p) +
           (2 * index + which) * sum_floats(p);
}

static void open_worker(worker *w, const scan_problem *p, float *memory) {
    const int64_t states = states_of(p), each = states * SLAB, rows = CHUNK * states;
    w->h = memory + slab_floats(p, SLAB);
    w->d_h = w->h + each;
    w->d_a = w->d_h + each;
    w->d_d = w->d_a + each;
    w->d_bias = w->d_d + SLAB;
    w->b = w->d_bias + SLAB;
    w->c = w->b + rows;
    w->sums_b = w->c + rows;
    w->sums_c = w->sums_b + rows * VL;
    w->starts = w->sums_c + rows * VL;
}

static void run_sequence(worker *w, int64_t n, float *sums_b, float *sums_c) {
    const slab *s = &w->s;
    const scan_problem *p = s->p;
    const seq_range range = seq_of(&p->sequences, n);
    const int64_t from = scan_slot(p, p->has_before, n), to = scan_slot(p, p->has_after, n);
    for (int64_t e = 0; e < s->channels; e += VL) {
        take_states(s, &p->before, from, -1, e, w->h);
        take_states(s, &p->after, to, -1, e, w->d_h);
    }
    keep_starts(w, range);
    for (int64_t i = ejki_cdiv(range.end - range.begin, CHUNK) - 1; i >= 0; i--) {
        chunk at = {.range = range, .token = range.begin + i * CHUNK};
        const int64_t sum = (range.row * p->sequences.tokens + at.token) * p->states;
        at.tokens = ejki_min(range.end - at.token, CHUNK);
        return_chunk(w, &at, w->starts + i * room(s), sums_b + sum, sums_c + sum);
    }
    for (int64_t e = 0; p->d_before.data && e < s->channels; e += VL)
        put_states(s, &p->d_before, n, e, w->d_h);
}

static void put_list(const slab *s, const scan_states *to, const float *from) {
    for (int64_t e = 0; to->data && e < s->channels; e++)
        element_store((ejk_dtype)to->dtype, to->data, scan_state_at(to, 0, s->first + e), from[e]);
}

/* Tokens of no sequence, of a slab's channels. */
static void clear(const slab *s, const scan_rows *rows) {
    const sequences *q = &s->p->sequences;
    const size_t bytes = (size_t)(s->channels * element_size((ejk_dtype)s->p->dtype));
    for (int64_t t = q->packed ? seq_end(q, q->count) : q->tokens; rows->data && t < q->tokens; t++)
        memset(channel_at((ejk_dtype)s->p->dtype, s, rows, 0, t, 0), 0, bytes);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const scan_problem *p = run->problem;
    const int64_t slabs = slabs_of(p, SLAB), end = slabs * (index + 1) / run->workers;
    float *memory = (float *)run->workspace + index * own_floats(p);
    worker w;
    open_worker(&w, p, memory);
    const unsigned mode = flush_subnormals();
    for (int64_t i = slabs * index / run->workers; i < end; i++) {
        slab_open(&w.s, p, i, SLAB, memory);
        memset(w.d_a, 0, (size_t)(room(&w.s) + 2 * SLAB) * sizeof(float));
        for (int64_t n = 0; n < p->sequences.count; n++)
            run_sequence(&w, n, sums_of(run, i, 0), sums_of(run, i, 1));
        for (int64_t e = 0; p->d_a.data && e < w.s.channels; e += VL)
            put_states(&w.s, &p->d_a, 0, e, w.d_a);
        put_list(&w.s, &p->d_d, w.d_d);
        put_list(&w.s, &p->d_dt_bias, w.d_bias);
        clear(&w.s, &p->d_x);
        clear(&w.s, &p->d_dt);
        clear(&w.s, &p->d_gate);
    }
    restore_subnormals(mode);
}

/* A row of b or c: sums of the group's slabs, or 0 of no sequence. */
static void add_row(const ejk_run *run, const scan_rows *rows, int which, int64_t token,
                    int64_t group) {
    const scan_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t row = token / p->sequences.tokens, t = token % p->sequences.tokens;
    const int64_t slabs = slabs_of(p, SLAB) / p->groups;
    const bool any = seq_find(&p->sequences, row, t) >= 0;
    void *to = element_at(dtype, rows->data, scan_at(rows, row, t, group));
    for (int64_t k = 0; k < p->states; k += VL) {
        const int64_t left = ejki_min(p->states - k, VL);
        vf sum = v_zero();
        for (int64_t i = 0; any && i < slabs; i++)
            sum = v_add(
                sum,
                v_load_first(sums_of(run, group * slabs + i, which) + token * p->states + k, left));
        v_narrow_some(dtype, element_at(dtype, to, k), sum, left);
    }
}

static void work_sums(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const scan_problem *p = run->problem;
    const int64_t count = p->batch * p->sequences.tokens, end = count * (index + 1) / run->workers;
    for (int64_t token = count * index / run->workers; token < end; token++)
        for (int64_t group = 0; group < p->groups; group++) {
            if (p->d_b.data) add_row(run, &p->d_b, 0, token, group);
            if (p->d_c.data) add_row(run, &p->d_c, 1, token, group);
        }
}

static ejk_status run(const ejk_run *run) {
    const scan_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (p->d_b.data || p->d_c.data)
        ejk_parallel_for(run->threads, run->workers, work_sums, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = types_apply,
             .needs = "a, d, dt_bias, states of 32 bits or less", .prepare = prepare, .run = run)
