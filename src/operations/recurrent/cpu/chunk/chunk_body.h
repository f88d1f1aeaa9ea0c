/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence chunk by chunk, for sums and delta rules with decays of heads or of key channels: what tokens of a
 * chunk do to each other, and what they read from and add to the state, are products of matrices. G being the sum of
 * the gates since the chunk began, and S the state before it,
 *
 *     U = beta (V - e^G K S - (K K' decays below the diagonal) U),   U = beta V without a delta rule
 *     out = e^G Q S + (Q K' decays down to the diagonal) U,   S = e^G S + K' (decays to the end of the chunk) U
 *
 * No inverse is formed: as chunks of a head follow each other, U is solved for directly. A task is a range of columns
 * of one or several heads of a sequence, which take turns at each chunk, and those that share query and key have their
 * products formed once.
 * Columns lie in slabs [Dk][TILE_COLUMNS], which with Dk = 128 fill half of an L1 cache, and a slab takes all steps of
 * a chunk before the next one.
 *
 * What is kept for gradients is the state before each CHUNK steps, and X of U = beta X.
 *
 * Chunks lie at multiples of CHUNK tokens of their sequence and end early where a segment does. Columns never meet, and
 * sums run in the order of tokens and channels: bits depend neither on slabs nor on threads.
 */
#include <ejkernel/device.h>

#include "kernels/declare.h"
#include "kernels/simd/subnormal.h"
#include "operations/recurrent/cpu/chunk/gates_body.h"
#include "operations/recurrent/cpu/chunk/rows_body.h"
#include "operations/recurrent/cpu/chunk/tile.h"
#include "operations/recurrent/cpu/scan/token_body.h"
#if defined(EJKI_TIER_AMX) || defined(EJKI_TIER_AVX512_BF16)
#define IN_PAIRS
#include "operations/recurrent/cpu/chunk/bf16_dot/pairs.h"
#endif

#include <string.h>

/* Heads that share products of rows at most. */
enum { MOST_SHARED = 8 };

#ifndef IN_PAIRS
/* Products of floats; bf16_dot/pairs.h has the same words. */
static rec_size pair_floats(const rec_problem *p) {
    (void)p;
    return 0;
}
static rec_size operand_floats(const rec_problem *p) {
    (void)p;
    return 0;
}
static void begin_pairs(chunk *c, float *memory) {
    (void)c;
    (void)memory;
}
static void pair_state(const chunk *c, float *state) {
    (void)c;
    (void)state;
}
static void end_pairs(const chunk *c) {
    (void)c;
}
static bool shared_in_pairs(chunk *c, rec_size h) {
    (void)c;
    (void)h;
    return false;
}
static bool head_in_pairs(chunk *c, rec_size h) {
    (void)c;
    (void)h;
    return false;
}
static bool meet_state(chunk *c, float *state, const float **k_met, const float **q_met) {
    (void)c;
    (void)state;
    (void)k_met;
    (void)q_met;
    return false;
}
static void add_tokens(chunk *c, float *state) {
    (void)c;
    (void)state;
}
#endif

/* ---- Chunks ------------------------------------------------------------------------------------------ */

static void clear_row(const rec_view *v, rec_size at, rec_size columns) {
    for (rec_size i = 0; i < columns && v->present; i++)
        element_store((ejk_dtype)v->dtype, v->data, at + i, 0);
}
static void clear_out(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size c,
                      rec_size end) {
    const rec_view *out = &p->view[REC_OUT], *errors = &p->view[REC_ERRORS];
    clear_row(out, rec_at(out, b, t, h) + c, end - c);
    clear_row(errors, rec_at(errors, b, t, h) + c, end - c);
}

/* Columns `at` on of the state before a step, to where it is kept. */
static void store_kept(const chunk *c, rec_size step, rec_size h, rec_size at, const float *from) {
    const rec_view *v = &c->p->view[REC_STATES];
    const rec_size columns = ejki_min(c->p->value_size - at, TILE_COLUMNS);
    const rec_size first = rec_kept_at(c->p, &c->sequence, step, h) + at * v->stride[3];
    for (rec_size i = 0; i < c->p->key_size; i++, from += TILE_COLUMNS) {
        const rec_size row = first + i * v->stride[2];
        for (rec_size j = 0; j < columns && v->stride[3] == 1; j += VL)
            v_narrow_some(EJK_DTYPE_F32, element_at(EJK_DTYPE_F32, v->data, row + j),
                          v_load(from + j), columns - j);
        for (rec_size j = 0; j < columns && v->stride[3] != 1; j++)
            element_store(EJK_DTYPE_F32, v->data, row + j * v->stride[3], from[j]);
    }
}

/* X of a slab, if it is wanted. */
static void put_errors(const chunk *c, rec_size h, rec_size at) {
    const rec_view *v = &c->p->view[REC_ERRORS];
    for (rec_size i = 0; i < c->count && v->present; i++) {
        const rec_size place = rec_at(v, c->sequence.batch, c->token[i], h) + at;
        for (rec_size j = 0; j < TILE_COLUMNS && at + j < c->p->value_size; j += VL)
            v_narrow_some(EJK_DTYPE_F32, element_at(EJK_DTYPE_F32, v->data, place + j),
                          v_load(c->x + i * TILE_COLUMNS + j), c->p->value_size - at - j);
    }
}

/* out = e^G Q S + P U, columns `at` on; Q S is `met`, or made. Rows of U behind a token are not touched, so that what
 * they hold, be it NaN, does not reach it. */
INLINE void write_out(chunk *c, rec_size h, rec_size at, const float *state, const float *met) {
    const rec_view *out = &c->p->view[REC_OUT];
    const ejk_dtype dtype = (ejk_dtype)out->dtype;
    const rec_size columns = c->p->value_size;
    for (rec_size r = 0; r < c->rows; r += TILE_ROWS) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        const float *own = c->own + r * CHUNK, *u = c->u + r * TILE_COLUMNS;
        tile_met(c, c->q, r, state, met, sum);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            const vf seen = v_set1(c->seen[r + i]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = v_mul(seen, sum[i][j]);
        }
        tile(r, own, CHUNK, 1, c->u, sum);
        EJKI_UNROLL for (int k = 0; k < TILE_ROWS; k++) {
            vf row[TILE_VECTORS];
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) row[j] =
                v_load(u + k * TILE_COLUMNS + j * VL);
            EJKI_UNROLL for (int i = k; i < TILE_ROWS; i++)
                EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                    v_fma_one(own + i * CHUNK + r + k, row[j], sum[i][j]);
        }
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            if (r + i >= c->count) break;
            const rec_size place = rec_at(out, c->sequence.batch, c->token[r + i], h) + at;
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) if (at + j * VL < columns)
                v_narrow_some(dtype, element_at(dtype, out->data, place + j * VL), sum[i][j],
                              columns - at - j * VL);
        }
    }
}

static void run_slab(chunk *c, rec_size h, rec_size at, float *state) {
    const bool delta = c->p->update == REC_DELTA;
    const float *k_met, *q_met;
    load_values(c, h, at);
    if (meet_state(c, state, &k_met, &q_met)) {
        if (delta) solve(c, NULL, k_met, c->x);
        put_errors(c, h, at);
        write_out(c, h, at, NULL, q_met);
        add_tokens(c, state);
        return;
    }
    if (delta) solve(c, state, NULL, c->x);
    put_errors(c, h, at);
    write_out(c, h, at, state, NULL);
    update_state(c, state, state);
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

/* Heads `head` to head + heads - 1 of a sequence, columns first to last - 1; every `shared` heads have the same query
 * and key. */
typedef struct task {
    rec_size head, heads, shared, first, last;
} task;

/* Heads with the same query and key whose products of rows are formed once: as many as leave tasks enough. */
static rec_size shared_heads(const rec_problem *p, int32_t threads) {
    const rec_size all = p->sequences * p->heads;
    rec_size heads = ejki_min(p->heads / p->query_heads, p->heads / p->key_heads);
    if (p->key_decay) return 1;
    while (heads > 1 &&
           (heads > MOST_SHARED || all < threads * heads ||
            p->heads / p->query_heads % heads != 0 || p->heads / p->key_heads % heads != 0))
        heads--;
    return heads;
}

/* Heads of a task and parts of its columns. */
typedef struct division {
    rec_size shared, heads, parts;
} division;

/*
 * The division by which the thread with most to do is done soonest: products of rows, which each part of the columns
 * forms again, are as much as a quarter of what is done with all columns. Of those as fast it is the one with most
 * heads and then fewest parts. Rows of neighbouring heads follow each other in memory: those of one head alone, at a
 * stride, take 1.13 to 1.2 times as long to come (Cascade Lake). Their states stay within half of an L2 cache.
 */
static division divide(const rec_problem *p, int32_t workers) {
    const rec_size shared = shared_heads(p, workers), slabs = slabs_of(p);
    const rec_size state = slabs * pitch_of(p) * TILE_COLUMNS * (rec_size)sizeof(float);
    const rec_size cache = ejk_cpu()->l2_bytes > 0 ? ejk_cpu()->l2_bytes : 1 << 20;
    const rec_size most = ejki_min(ejki_max(cache / 2 / state, shared), p->heads);
    division best = {.shared = shared, .heads = shared, .parts = 1};
    rec_size least = INT64_MAX;
    for (rec_size heads = most / shared * shared; heads > 0; heads -= shared)
        for (rec_size parts = 1; parts <= slabs && p->heads % heads == 0; parts++) {
            const rec_size turns = ejki_cdiv(p->sequences * p->heads / heads * parts, workers);
            const rec_size time = turns * heads * (slabs + 4 * ejki_cdiv(slabs, parts));
            if (time >= least) continue;
            least = time;
            best.heads = heads;
            best.parts = parts;
        }
    return best;
}

/* Floats of a slab of a state, with its operand. */
static rec_size slab_floats(const rec_problem *p) {
    return pitch_of(p) * TILE_COLUMNS + operand_floats(p);
}

/* Floats of a chunk and of the states of a task. */
static rec_size worker_floats(const rec_problem *p, const division *d) {
    return chunk_floats(p) + pair_floats(p) + d->heads * slabs_of(p) * slab_floats(p);
}

/* How many times a head prefetches. */
static rec_size units_of(const chunk *c, const task *t) {
    const rec_size slabs = ejki_cdiv(t->last - t->first, TILE_COLUMNS);
    const rec_size passes = c->p->update == REC_DELTA ? 2 : 1;
    const rec_size steps = c->pairs ? 1 : ejki_cdiv(c->p->key_size, CHUNK);
    return slabs * (passes * steps * c->rows + c->pitch) / TILE_ROWS;
}

/* What comes after head i of a task: the next one, or the first, of the tokens from step n on. */
static void ask_ahead(chunk *c, const task *t, rec_size i, rec_size n) {
    const rec_problem *p = c->p;
    const rec_size end = c->sequence.end - c->sequence.begin;
    const bool last = i + 1 == t->heads;
    const rec_size next = last ? t->head : t->head + i + 1;
    const rec_size from = last ? n : (n - 1) / CHUNK * CHUNK;
    c->ahead = (ahead){.rows = ejki_min(CHUNK, end - from)};
    if (c->ahead.rows <= 0) return;
    ask_rows(c, REC_VALUE, from, rec_head(p, next, p->value_heads), t->first, t->last - t->first);
    ask_rows(c, REC_OUT, from, next, t->first, t->last - t->first);
    if (p->view[REC_ERRORS].present)
        ask_rows(c, REC_ERRORS, from, next, t->first, t->last - t->first);
    if (t->last - t->first == p->value_size) ask_kept(c, from, next);
    if ((i + 1) % t->shared == 0) {
        ask_rows(c, REC_QUERY, from, rec_head(p, next, p->query_heads), 0, p->key_size);
        ask_rows(c, REC_KEY, from, rec_head(p, next, p->key_heads), 0, p->key_size);
        if (p->view[REC_GK].present)
            ask_rows(c, REC_GK, from, next, 0, p->key_size);
        else if (p->g_is_wide)
            ask_rows(c, REC_G, from, next, 0, p->key_size);
    }
    share_out(&c->ahead, units_of(c, t));
}

/* States of all heads of a task before a step. */
static void keep_states(const chunk *c, const task *t, rec_size step, const float *states) {
    const rec_size slabs = ejki_cdiv(t->last - t->first, TILE_COLUMNS);
    for (rec_size n = 0; n < t->heads * slabs; n++)
        store_kept(c, step, t->head + n / slabs, t->first + n % slabs * TILE_COLUMNS,
                   states + n * slab_floats(c->p));
}

static void run_task(chunk *c, const task *t, float *states) {
    const rec_size size = slab_floats(c->p);
    const rec_size slabs = ejki_cdiv(t->last - t->first, TILE_COLUMNS);
    for (rec_size n = 0; n < t->heads * slabs; n++) {
        load_slab(c, REC_INITIAL, t->head + n / slabs, t->first + n % slabs * TILE_COLUMNS,
                  states + n * size);
        pair_state(c, states + n * size);
    }
    for (rec_size n = 0; n < c->sequence.end - c->sequence.begin;) {
        bool resets;
        const rec_size begin = n;
        bool keeps = c->p->view[REC_STATES].present && n % CHUNK == 0;
        n = next_chunk(c, n, &resets);
        if (keeps && (resets || c->count == 0)) {
            keep_states(c, t, begin, states);
            keeps = false;
        }
        for (int i = 0; i < c->paddings; i++)
            for (rec_size h = 0; h < t->heads; h++)
                clear_out(c->p, c->sequence.batch, c->padding[i], t->head + h, t->first, t->last);
        if (resets) memset(states, 0, (size_t)(t->heads * slabs * size) * sizeof *states);
        if (c->count == 0) continue;
        for (rec_size i = 0; i < t->heads; i++) {
            const rec_size h = t->head + i;
            if (i % t->shared == 0 && !shared_in_pairs(c, h)) load_shared(c, h);
            if (!head_in_pairs(c, h)) load_products(c, h);
            ask_ahead(c, t, i, n);
            for (rec_size j = 0; j < slabs; j++) {
                float *state = states + (i * slabs + j) * size;
                if (keeps) store_kept(c, begin, h, t->first + j * TILE_COLUMNS, state);
                run_slab(c, h, t->first + j * TILE_COLUMNS, state);
            }
        }
    }
    for (rec_size n = 0; n < t->heads * slabs; n++)
        store_slab(c, REC_FINAL, t->head + n / slabs, t->first + n % slabs * TILE_COLUMNS,
                   states + n * size);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const rec_problem *p = run->problem;
    const division d = divide(p, run->workers);
    const rec_size floats = worker_floats(p, &d);
    float *memory = (float *)run->workspace + index * floats;
    chunk c = {.p = p, .scale = (float)p->scale, .pitch = pitch_of(p)};
    float *states = memory + chunk_floats(p) + pair_floats(p);
    memset(memory, 0, (size_t)(states - memory) * sizeof *memory);
    place_chunk(&c, memory);
    begin_pairs(&c, memory + chunk_floats(p));
    const unsigned mode = flush_subnormals();
    const rec_size slabs = slabs_of(p), parts = d.parts, units = p->heads / d.heads;
    const rec_size tasks = p->sequences * units * parts;
    for (rec_size n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        const rec_size part = n % parts;
        const task t = {.head = n / parts % units * d.heads,
                        .heads = d.heads,
                        .shared = d.shared,
                        .first = slabs * part / parts * TILE_COLUMNS,
                        .last = ejki_min(slabs * (part + 1) / parts * TILE_COLUMNS, p->value_size)};
        c.sequence = rec_sequence_of(p, n / parts / units);
        run_task(&c, &t, states);
    }
    restore_subnormals(mode);
    end_pairs(&c);
    if (index > 0) return;
    for (rec_size t = rec_covered(p); t < p->tokens; t++)
        for (rec_size h = 0; h < p->heads; h++) clear_out(p, 0, t, h, 0, p->value_size);
    rec_clear_kept(p);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    (void)parameters;
    const rec_size tasks = p->sequences * p->heads * slabs_of(p);
    launch->workers = (int32_t)ejki_max(ejki_min(threads, tasks), 1);
    const division d = divide(p, launch->workers);
    launch->workspace_bytes =
        (size_t)launch->workers * (size_t)worker_floats(p, &d) * sizeof(float);
    return EJK_OK;
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .priority = 10,
             .needs = "sums or delta rules, without decays of value "
                      "channels, from 32 tokens a sequence on",
             .applicable = chunks_apply, .prepare = prepare, .run = run)
