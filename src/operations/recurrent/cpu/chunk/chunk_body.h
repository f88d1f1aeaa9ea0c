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
 * of one or several heads of a sequence, the heads of a group that share query and key, whose products are formed once.
 * Columns lie in slabs [Dk][TILE_COLUMNS], which with Dk = 128 fill half of an L1 cache, and a slab takes all steps of
 * a chunk before the next one.
 *
 * Chunks lie at multiples of CHUNK tokens of their sequence and end early where a segment does. Columns never meet, and
 * sums run in the order of tokens and channels: bits depend neither on slabs nor on threads.
 */
#include "kernels/declare.h"
#include "operations/recurrent/cpu/chunk/gates_body.h"
#include "operations/recurrent/cpu/chunk/tile.h"
#include "operations/recurrent/cpu/scan/token_body.h"

#include <string.h>

/* Heads whose states are worked on by turns at most: 8 states of 128 x 128 are half of an L2 cache. */
enum { MOST_SHARED = 8 };

/* ---- States ------------------------------------------------------------------------------------------ */

/* Columns c on of the state of a head into a slab; 0 where there is none. */
static void load_slab(const rec_problem *p, const rec_sequence *s, rec_size h, rec_size c,
                      rec_size pitch, float *to) {
    const rec_view *v = &p->view[REC_INITIAL];
    const rec_size columns = ejki_min(p->value_size - c, TILE_COLUMNS);
    memset(to, 0, (size_t)(pitch * TILE_COLUMNS) * sizeof *to);
    if (!v->present || s->row < 0) return;
    const rec_size at = rec_state_at(v, s->row, h) + c * v->stride[3];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            to[i * TILE_COLUMNS + j] = view_load(v, at + i * v->stride[2] + j * v->stride[3]);
}

static void store_slab(const rec_problem *p, const rec_sequence *s, rec_size h, rec_size c,
                       const float *from) {
    const rec_view *v = &p->view[REC_FINAL];
    const rec_size columns = ejki_min(p->value_size - c, TILE_COLUMNS);
    if (!v->present || s->row < 0) return;
    const rec_size at = rec_state_at(v, s->row, h) + c * v->stride[3];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            element_store((ejk_dtype)v->dtype, v->data, at + i * v->stride[2] + j * v->stride[3],
                          from[i * TILE_COLUMNS + j]);
}

/* ---- Chunks ------------------------------------------------------------------------------------------ */

static void clear_out(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size c,
                      rec_size end) {
    const rec_view *out = &p->view[REC_OUT];
    for (; c < end; c++)
        element_store((ejk_dtype)out->dtype, out->data, rec_at(out, b, t, h) + c, 0);
}

/* A row of query or key, times its factor; its place behind key_size stays 0. */
INLINE void load_scaled(const rec_problem *p, const rec_view *v, rec_size index, rec_size pitch,
                        float scale, float *to) {
    load_row(v, index, p->key_size, to);
    const float factor = normalise_row(p, to, pitch);
    (void)factor;
    if (scale == 1) return;
    for (rec_size d = 0; d < pitch; d += VL) v_store(to + d, v_mul(v_set1(scale), v_load(to + d)));
}

static void load_rows(chunk *c, rec_size h) {
    const rec_problem *p = c->p;
    const rec_view *q = &p->view[REC_QUERY], *k = &p->view[REC_KEY];
    const rec_size b = c->sequence.batch, pitch = c->pitch;
    const rec_size q_head = rec_head(p, h, p->query_heads), k_head = rec_head(p, h, p->key_heads);
    for (int i = 0; i < c->count; i++) {
        const rec_size t = c->token[i];
        load_scaled(p, q, rec_at(q, b, t, q_head), pitch, (float)p->scale, c->q + i * pitch);
        load_scaled(p, k, rec_at(k, b, t, k_head), pitch, 1, c->k + i * pitch);
    }
    const size_t rest = (size_t)((c->rows - c->count) * pitch) * sizeof(float);
    memset(c->q + c->count * pitch, 0, rest);
    memset(c->k + c->count * pitch, 0, rest);
}

/* Step sizes, vectors of them at once. */
static void load_steps(chunk *c, rec_size h) {
    const rec_view *g = &c->p->view[REC_G], *bias = &c->p->view[REC_DT_BIAS];
    const float own = bias->present ? view_load(bias, h * bias->stride[2]) : 0;
    for (int i = 0; i < c->count; i++)
        c->beta[i] = own + view_load(g, rec_at(g, c->sequence.batch, c->token[i], h));
    for (int i = 0; i < c->count; i += VL)
        v_store(c->beta + i, step_size(c->p, v_load(c->beta + i)));
    for (int i = c->count; i < CHUNK; i++) c->beta[i] = 0;
}

static void load_betas(chunk *c, rec_size h) {
    if (c->p->by_step) {
        load_steps(c, h);
        return;
    }
    for (int i = 0; i < c->rows; i++)
        c->beta[i] = i < c->count ? load_beta(c->p, &c->sequence, c->token[i], h) : 0;
}

/* Columns `at` on of the values. */
static void load_values(chunk *c, rec_size h, rec_size at) {
    const rec_view *v = &c->p->view[REC_VALUE];
    const rec_size size = c->p->value_size, head = rec_head(c->p, h, c->p->value_heads);
    for (int i = 0; i < c->rows; i++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            const bool none = i >= c->count || at + j >= size;
            const rec_size row = none ? 0 : rec_at(v, c->sequence.batch, c->token[i], head);
            v_store(c->u + i * TILE_COLUMNS + j, none ? v_zero() : view_part(v, row, at + j, size));
        }
}

/* What heads with the same query and key share. */
static void load_shared(chunk *c, rec_size h) {
    load_rows(c, h);
    if (c->p->key_decay) return;
    pack_transposed(c->q, c->pitch, c->count, c->pitch, c->qt);
    pack_transposed(c->k, c->pitch, c->count, c->pitch, c->kt);
    multiply_rows(c, c->qt, c->qk);
    if (c->p->update == REC_DELTA) multiply_rows(c, c->kt, c->kk);
}

static void load_head(chunk *c, rec_size h) {
    const rec_problem *p = c->p;
    const bool delta = p->update == REC_DELTA;
    load_betas(c, h);
    if (!p->key_decay) {
        head_decays(c, h);
        apply_head_decays(c, h, delta);
        return;
    }
    for (int i = 0; i < c->rows; i++) {
        float *row = c->d + i * c->pitch;
        if (i < c->count)
            load_decays(p, &c->sequence, c->token[i], h, c->pitch, c->beta[i], row);
        else
            for (rec_size d = 0; d < c->pitch; d += VL) v_store(row + d, v_set1(1));
        c->since[i] = c->until[i] = 1;
    }
    if (delta)
        channel_products(c, true);
    else
        channel_products(c, false);
    pack_transposed(c->q, c->pitch, c->count, c->pitch, c->qt);
    if (delta) pack_transposed(c->carried, c->pitch, c->count, c->pitch, c->kt);
}

static void run_slab(chunk *c, rec_size h, rec_size at, float *state) {
    load_values(c, h, at);
    if (c->p->update == REC_DELTA) solve(c, state);
    write_out(c, h, at, state);
    update_state(c, state);
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

/* Heads `head` to head + heads - 1 of a sequence, columns first to last - 1. */
typedef struct task {
    rec_size head, heads, first, last;
} task;

static rec_size pitch_of(const rec_problem *p) {
    return ejki_round_up(p->key_size, 16);
}
static rec_size slabs_of(const rec_problem *p) {
    return ejki_cdiv(p->value_size, TILE_COLUMNS);
}

/* Heads of a task: as many of those with the same query and key as leave tasks enough. */
static rec_size shared_heads(const rec_problem *p, int32_t threads) {
    const rec_size all = p->sequences * p->heads, tasks = threads > 1 ? 2 * threads : 1;
    rec_size heads = ejki_min(p->heads / p->query_heads, p->heads / p->key_heads);
    if (p->key_decay) return 1;
    while (heads > 1 &&
           (heads > MOST_SHARED || all < tasks * heads || p->heads / p->query_heads % heads != 0 ||
            p->heads / p->key_heads % heads != 0))
        heads--;
    return heads;
}

static rec_size parts_of(const rec_problem *p, int32_t workers) {
    const rec_size tasks = ejki_max(p->sequences * p->heads / shared_heads(p, workers), 1);
    return ejki_max(ejki_min(slabs_of(p), ejki_cdiv(2 * workers, tasks)), 1);
}

/* Floats of a chunk, and of the states of a task. */
static rec_size chunk_floats(const rec_problem *p) {
    const rec_size pitch = pitch_of(p);
    return (6 * CHUNK + 10) * pitch + 4 * CHUNK * CHUNK + CHUNK * TILE_COLUMNS;
}
static rec_size worker_floats(const rec_problem *p, int32_t workers) {
    return chunk_floats(p) + shared_heads(p, workers) * slabs_of(p) * pitch_of(p) * TILE_COLUMNS;
}

static void place_chunk(chunk *c, float *memory) {
    const rec_size rows = CHUNK * c->pitch;
    c->q = memory;
    c->k = c->q + rows;
    c->d = c->k + rows;
    c->carried = c->d + rows;
    c->qt = c->carried + rows;
    c->kt = c->qt + rows;
    c->hats = c->kt + rows;
    c->total = c->hats + 8 * c->pitch;
    c->whole = c->total + c->pitch;
    c->qk = c->whole + c->pitch;
    c->kk = c->qk + CHUNK * CHUNK;
    c->own = c->kk + CHUNK * CHUNK;
    c->rest = c->own + CHUNK * CHUNK;
    c->u = c->rest + CHUNK * CHUNK;
}

/* Asks for a row of `bytes` for each step from n on. */
static void ask_rows(chunk *c, int role, rec_size n, rec_size head, rec_size at, rec_size size) {
    const rec_view *v = &c->p->view[role];
    ahead *a = &c->ahead;
    const rec_size from = rec_token(c->p, &c->sequence, n);
    const rec_size bytes = element_size((ejk_dtype)v->dtype);
    a->row[a->count] = view_at(v, rec_at(v, c->sequence.batch, from, head) + at);
    a->step[a->count] = (c->p->reverse ? -1 : 1) * v->stride[1] * bytes;
    a->bytes[a->count++] = size * bytes;
}

/* Rows are asked for in equal numbers before all tiles of a head. */
static void share_out(chunk *c, const task *t) {
    const rec_size slabs = ejki_cdiv(t->last - t->first, TILE_COLUMNS);
    const rec_size passes = c->p->update == REC_DELTA ? 2 : 1;
    const rec_size tiles = slabs * (passes * c->rows + c->pitch) / TILE_ROWS;
    c->ahead.each = (int)ejki_cdiv(c->ahead.rows * c->ahead.count, tiles);
}

/* What comes after head h of a task: the values of the next one, or the tokens from step n on, of the first. */
static void ask_ahead(chunk *c, const task *t, rec_size h, rec_size n) {
    const rec_problem *p = c->p;
    const rec_size end = c->sequence.end - c->sequence.begin;
    const bool last = h + 1 == t->head + t->heads;
    const rec_size next = last ? t->head : h + 1;
    const rec_size from = last ? n : (n - 1) / CHUNK * CHUNK;
    c->ahead = (ahead){.rows = ejki_min(CHUNK, end - from)};
    if (c->ahead.rows <= 0) return;
    ask_rows(c, REC_VALUE, from, rec_head(p, next, p->value_heads), t->first, t->last - t->first);
    ask_rows(c, REC_OUT, from, next, t->first, t->last - t->first);
    share_out(c, t);
    if (!last) return;
    ask_rows(c, REC_QUERY, from, rec_head(p, next, p->query_heads), 0, p->key_size);
    ask_rows(c, REC_KEY, from, rec_head(p, next, p->key_heads), 0, p->key_size);
    if (p->view[REC_GK].present)
        ask_rows(c, REC_GK, from, next, 0, p->key_size);
    else if (p->g_is_wide)
        ask_rows(c, REC_G, from, next, 0, p->key_size);
    share_out(c, t);
}

/* Tokens from step n on that are a chunk; the step behind them. */
static rec_size next_chunk(chunk *c, const task *t, rec_size n, bool *resets) {
    const rec_size end = c->sequence.end - c->sequence.begin;
    const rec_size stop = ejki_min(n / CHUNK * CHUNK + CHUNK, end);
    c->count = 0;
    *resets = false;
    for (; n < stop; n++) {
        const rec_turn turn = rec_turn_of(c->p, &c->sequence, n);
        const rec_size place = rec_token(c->p, &c->sequence, n);
        if (turn.resets && c->count > 0) break;
        *resets |= turn.resets;
        if (turn.counts) c->token[c->count++] = place;
        for (rec_size h = 0; h < t->heads && !turn.counts; h++)
            clear_out(c->p, c->sequence.batch, place, t->head + h, t->first, t->last);
    }
    c->rows = (int)ejki_round_up(c->count, TILE_ROWS);
    return n;
}

static void run_task(chunk *c, const task *t, float *states) {
    const rec_size size = c->pitch * TILE_COLUMNS;
    const rec_size slabs = ejki_cdiv(t->last - t->first, TILE_COLUMNS);
    for (rec_size n = 0; n < t->heads * slabs; n++)
        load_slab(c->p, &c->sequence, t->head + n / slabs, t->first + n % slabs * TILE_COLUMNS,
                  c->pitch, states + n * size);
    for (rec_size n = 0; n < c->sequence.end - c->sequence.begin;) {
        bool resets;
        n = next_chunk(c, t, n, &resets);
        if (resets) memset(states, 0, (size_t)(t->heads * slabs * size) * sizeof *states);
        if (c->count == 0) continue;
        load_shared(c, t->head);
        for (rec_size i = 0; i < t->heads; i++) {
            load_head(c, t->head + i);
            ask_ahead(c, t, t->head + i, n);
            for (rec_size j = 0; j < slabs; j++)
                run_slab(c, t->head + i, t->first + j * TILE_COLUMNS,
                         states + (i * slabs + j) * size);
        }
    }
    for (rec_size n = 0; n < t->heads * slabs; n++)
        store_slab(c->p, &c->sequence, t->head + n / slabs, t->first + n % slabs * TILE_COLUMNS,
                   states + n * size);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const rec_problem *p = run->problem;
    const rec_size floats = worker_floats(p, run->workers);
    float *memory = (float *)run->workspace + index * floats;
    chunk c = {.p = p, .pitch = pitch_of(p)};
    memset(memory, 0, (size_t)chunk_floats(p) * sizeof *memory);
    place_chunk(&c, memory);
    const rec_size shared = shared_heads(p, run->workers), slabs = slabs_of(p);
    const rec_size parts = parts_of(p, run->workers), units = p->heads / shared;
    const rec_size tasks = p->sequences * units * parts;
    for (rec_size n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        const rec_size part = n % parts;
        const task t = {.head = n / parts % units * shared,
                        .heads = shared,
                        .first = slabs * part / parts * TILE_COLUMNS,
                        .last = ejki_min(slabs * (part + 1) / parts * TILE_COLUMNS, p->value_size)};
        c.sequence = rec_sequence_of(p, n / parts / units);
        run_task(&c, &t, memory + chunk_floats(p));
    }
    if (index > 0) return;
    for (rec_size t = rec_covered(p); t < p->tokens; t++)
        for (rec_size h = 0; h < p->heads; h++) clear_out(p, 0, t, h, 0, p->value_size);
}

/* Sequences shorter than a chunk are better walked through token by token. */
static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    return p->update != REC_RANK_ONE && p->read == REC_AFTER && !p->value_decay && p->heads > 0 &&
           p->key_size >= 16 && p->value_size > 0 && p->tokens >= CHUNK &&
           (!p->packed || p->tokens >= CHUNK * p->sequences);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    (void)parameters;
    const rec_size tasks = p->sequences * p->heads * slabs_of(p);
    launch->workers = (int32_t)ejki_max(ejki_min(threads, tasks), 1);
    launch->workspace_bytes =
        (size_t)launch->workers * (size_t)worker_floats(p, launch->workers) * sizeof(float);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .priority = 10,
             .needs = "sums or delta rules read after the update, without decays of value "
                      "channels, from 32 tokens a sequence on",
             .applicable = applicable, .prepare = prepare, .run = run)
