/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of sums and delta rules in chunks, as chunk_body.h computes these. On the way there the state before each
 * chunk is kept, with X of the solve and the products between tokens: 1.4 states of a head a chunk. With dS the
 * cotangent of the state behind the chunk, S the state before it, P and A what U is multiplied by in out and X,
 *
 *     dU = (decays to the end) K dS + P' d_out + A' dX,  dX = beta dU (from the last token on),  d_beta = dU X
 *     dQ = e^G d_out S' + (d_out U' decays) K,           dK = ... of both, and of (decays to the end) U dS'
 *     dS before = e^(G of the chunk) dS + (e^G Q)' d_out - (e^G K)' dX
 *
 * d_out has the scale. Columns meet only in what is summed over them: d_value and the cotangents of states have the
 * same bits with other columns beside them.
 */
#include "kernels/declare.h"
#include "operations/recurrent/cpu/chunk/back_gates_body.h"
#include "operations/recurrent/cpu/chunk/back_tile.h"
#include "operations/recurrent/cpu/chunk/rows_body.h"
#include "operations/recurrent/cpu/scan/gradient_put_body.h"
#include "operations/recurrent/cpu/scan/gradient_tasks_body.h"

#include <string.h>

/* Rows of X in a slab: those of the last tile of a chunk that begins late may lie behind the cell. */
enum { X_ROWS = CHUNK + TILE_ROWS, X_SLAB = X_ROWS * TILE_COLUMNS };

/*
 * A cell is CHUNK steps; a chunk lies in one, and is all of it but where segments end. What is kept of a cell lies
 * together: the state before it [slabs][pitch][TILE_COLUMNS], X [slabs][X_ROWS][TILE_COLUMNS], own and rest
 * [CHUNK][CHUNK], X and products with the rows of tokens where these lie in the cell.
 */
typedef struct work {
    head_work at; /* first: back_head() is given this */
    chunk c;
    back b;
    float *cells, *nothing, *chunk_memory; /* nothing: a state of 0 */
    rec_size state_size, cell_size;
} work;

static void measure(const rec_problem *p, work *w) {
    measure_heads(p, TILE_COLUMNS, &w->at);
    w->at.pitch = pitch_of(p);
    w->b.slabs = slabs_of(p);
    w->b.columns = w->at.value_pitch;
    w->state_size = w->at.value_pitch * w->at.pitch;
    w->cell_size = w->state_size + w->b.slabs * X_SLAB + 2 * SQUARE;
}

/* Deals out a worker's memory from `at`; returns how many floats there are. */
static rec_size deal_out(work *w, float *at) {
    const rec_problem *p = w->at.p;
    back *b = &w->b;
    const rec_size cells = ejki_cdiv(p->tokens, CHUNK) + 1, rows = CHUNK * w->at.pitch;
    const rec_size columns = CHUNK * w->at.value_pitch, sums = CHUNK * VL;
    float **const place[] = {&w->cells,
                             &w->nothing,
                             &w->chunk_memory,
                             &w->at.sum[0],
                             &w->at.sum[1],
                             &w->at.sum[2],
                             &b->d_out,
                             &b->u,
                             &b->y,
                             &b->d_out_turned,
                             &b->u_turned,
                             &b->y_turned,
                             &b->d_own,
                             &b->d_rest,
                             &b->m,
                             &b->n,
                             &b->m_turned,
                             &b->n_turned,
                             &b->dq,
                             &b->dk,
                             &b->dl,
                             &b->q,
                             &b->k,
                             &b->left,
                             &b->d_state,
                             &b->met,
                             &b->rows,
                             &b->betas};
    const rec_size size[] = {cells * w->cell_size,
                             w->state_size,
                             chunk_floats(p),
                             sum_size(&w->at, REC_QUERY),
                             sum_size(&w->at, REC_KEY),
                             sum_size(&w->at, REC_VALUE),
                             columns,
                             columns,
                             columns,
                             columns,
                             columns,
                             columns,
                             SQUARE,
                             SQUARE,
                             SQUARE,
                             SQUARE,
                             SQUARE,
                             SQUARE,
                             rows,
                             rows,
                             rows,
                             rows,
                             rows,
                             rows,
                             w->state_size,
                             w->at.pitch,
                             3 * rows,
                             sums};
    rec_size used = 0;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (at) *place[i] = at + used;
        used += ejki_round_up(size[i], 16);
    }
    return used;
}

static float *slab_of(float *state, rec_size pitch, rec_size s) {
    return state + s * pitch * TILE_COLUMNS;
}

/* What is kept of the cell of a step, and of that the X of a slab and the products, rows from that step on. */
static float *cell_of(const work *w, rec_size step) {
    return w->cells + step / CHUNK * w->cell_size;
}
static float *x_of(const work *w, rec_size step, rec_size slab) {
    return cell_of(w, step) + w->state_size + slab * X_SLAB + step % CHUNK * TILE_COLUMNS;
}
static float *products_of(const work *w, rec_size step) {
    return cell_of(w, step) + w->state_size + w->b.slabs * X_SLAB + step % CHUNK * CHUNK;
}

/* ---- On the way there -------------------------------------------------------------------------------- */

/* Keeps what lies between tokens, or puts it back, -rest in place of rest. `begin` is the chunk's first step. */
static void keep_products(const work *w, rec_size begin) {
    const chunk *c = &w->c;
    float *to = products_of(w, begin);
    memcpy(to, c->rest, (size_t)(c->count * CHUNK) * sizeof *to);
    if (w->at.p->key_decay) memcpy(to + SQUARE, c->own, (size_t)(c->count * CHUNK) * sizeof *to);
}
static void restore_products(const work *w, rec_size begin) {
    const chunk *c = &w->c;
    const float *from = products_of(w, begin);
    for (rec_size i = 0; i < c->rows * CHUNK; i += VL) {
        const bool none = i >= c->count * CHUNK;
        v_store(c->rest + i, none ? v_zero() : v_sub(v_zero(), v_load(from + i)));
        if (w->at.p->key_decay) v_store(c->own + i, none ? v_zero() : v_load(from + SQUARE + i));
    }
}

/* Asks for rows of a tensor of the head, or of the one that it reads. */
static void ask_tensor(work *w, int role, rec_size n, rec_size heads, rec_size size) {
    const rec_problem *p = w->at.p;
    if (p->view[role].present) ask_rows(&w->c, role, n, rec_head(p, w->at.h, heads), 0, size);
}

/*
 * Asks for the cell from step n on: of query, key, gates and, on the way there, the value, else d_out and, where they
 * are written to, the gradients of the three; and for the memory of what is kept.
 */
static void ask_cell(work *w, rec_size n, bool backwards) {
    chunk *c = &w->c;
    const rec_problem *p = w->at.p;
    const rec_size steps = w->at.q.end - w->at.q.begin;
    c->ahead = (ahead){.each = 1};
    if (n < 0 || n >= steps) return;
    c->ahead.rows = ejki_min(CHUNK, steps - n);
    c->ahead.kept = (const char *)cell_of(w, n);
    c->ahead.end = c->ahead.kept + w->cell_size * (rec_size)sizeof(float);
    if (backwards || p->key_decay) ask_tensor(w, REC_QUERY, n, p->query_heads, p->key_size);
    ask_tensor(w, REC_KEY, n, p->key_heads, p->key_size);
    ask_tensor(w, p->view[REC_GK].present ? REC_GK : REC_G, n, p->heads,
               p->key_decay ? p->key_size : 1);
    if (!backwards || p->update == REC_ADD)
        ask_tensor(w, REC_VALUE, n, p->value_heads, p->value_size);
    if (!backwards) return;
    ask_tensor(w, REC_D_OUT, n, p->heads, p->value_size);
    for (int role = REC_QUERY; role <= REC_VALUE && w->at.in_group == 1; role++)
        ask_tensor(w, REC_D(role), n, p->heads, role == REC_VALUE ? p->value_size : p->key_size);
}

/* What the state needs of a chunk. Queries are met on the way back, unless they share what is done for keys. */
static void load_passing(work *w, bool delta) {
    chunk *c = &w->c;
    if (w->at.p->key_decay) {
        load_shared(c, w->at.h);
        load_head(c, w->at.h);
        return;
    }
    load_keys(c, w->at.h);
    load_betas(c, w->at.h);
    head_decays(c, w->at.h);
    if (!delta) return;
    pack_transposed(c->k, c->pitch, c->count, c->pitch, c->kt);
    multiply_rows(c, c->kt, c->kk);
    apply_head_decays(c, true, false);
}

/* A chunk from step `begin` on; the state behind it, unless `after` is NULL. */
static void pass_chunk(work *w, rec_size begin, float *state, float *after) {
    chunk *c = &w->c;
    const bool delta = w->at.p->update == REC_DELTA;
    load_passing(w, delta);
    keep_products(w, begin);
    ask_cell(w, (begin / CHUNK + 1) * CHUNK, false);
    for (rec_size s = 0; s < w->b.slabs && (delta || after); s++) {
        const float *own = slab_of(state, c->pitch, s);
        load_values(c, w->at.h, s * TILE_COLUMNS);
        if (delta) solve(c, own, x_of(w, begin, s));
        if (after) update_state(c, own, slab_of(after, c->pitch, s));
    }
}

/* A state ends with a cell: where a chunk ends before, the next one begins with none. */
static void pass_over(work *w) {
    chunk *c = &w->c;
    const rec_size steps = w->at.q.end - w->at.q.begin;
    for (rec_size n = 0; n < steps;) {
        bool resets;
        const rec_size begin = n;
        float *state = cell_of(w, begin), *after = state + w->cell_size;
        n = next_chunk(c, n, &resets);
        if (n % CHUNK != 0 || n == steps) after = NULL;
        if (c->count > 0)
            pass_chunk(w, begin, resets ? w->nothing : state, after);
        else if (after)
            memcpy(after, state, (size_t)w->state_size * sizeof *state);
    }
}

/* ---- And back ---------------------------------------------------------------------------------------- */

static void load_chunk(work *w, rec_size begin) {
    chunk *c = &w->c;
    const rec_problem *p = w->at.p;
    load_queries(c, w->at.h);
    load_keys(c, w->at.h);
    load_betas(c, w->at.h);
    restore_products(w, begin);
    memset(w->b.betas, 0, CHUNK * VL * sizeof(float));
    if (p->key_decay) {
        load_channel_decays(c, w->at.h);
        decay_rows(c, &w->b);
        pack_transposed(w->b.left, c->pitch, c->rows, c->pitch, c->kt);
        return;
    }
    head_decays(c, w->at.h);
    pack_transposed(c->q, c->pitch, c->rows, c->pitch, c->qt);
    pack_transposed(c->k, c->pitch, c->rows, c->pitch, c->kt);
    multiply_rows(c, c->qt, c->qk);
    apply_head_decays(c, false, false);
}

/* Columns of slab s: d_out with the scale, and U of X or of the values. */
static void load_columns(work *w, const float *x, rec_size s) {
    chunk *c = &w->c;
    const rec_problem *p = w->at.p;
    const rec_view *v = &p->view[REC_D_OUT];
    float *d_out = w->b.d_out + s * CHUNK * TILE_COLUMNS, *u = w->b.u + s * CHUNK * TILE_COLUMNS;
    const vf scale = v_set1((float)p->scale);
    if (p->update == REC_ADD) {
        c->u = u;
        load_values(c, w->at.h, s * TILE_COLUMNS);
    }
    for (int i = 0; i < c->rows; i++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            const rec_size at = s * TILE_COLUMNS + j;
            const bool none = i >= c->count || at >= p->value_size;
            const rec_size row = none ? 0 : rec_at(v, w->at.q.batch, c->token[i], w->at.h);
            v_store(d_out + i * TILE_COLUMNS + j,
                    none || !v->present ? v_zero()
                                        : v_mul(scale, view_part(v, row, at, p->value_size)));
            if (p->update == REC_DELTA)
                v_store(u + i * TILE_COLUMNS + j,
                        v_mul(v_set1(c->beta[i]), v_load(x + i * TILE_COLUMNS + j)));
        }
}

static void put_values(const work *w, rec_size s) {
    const float *y = w->b.y + s * CHUNK * TILE_COLUMNS;
    const bool delta = w->at.p->update == REC_DELTA;
    for (int i = 0; i < w->c.count; i++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            const vf own = v_load(y + i * TILE_COLUMNS + j);
            add_part(&w->at, REC_VALUE, w->c.token[i], s * TILE_COLUMNS + j, w->at.p->value_size,
                     delta ? v_sub(v_zero(), own) : own);
        }
}

/* What the chunk's rows meet of the state gets their decays of the head; for those of channels rows have them. */
static void apply_head_scales(work *w, const bool delta) {
    const chunk *c = &w->c;
    const back *b = &w->b;
    for (rec_size s = 0; s < b->slabs; s++) {
        const rec_size at = s * CHUNK * TILE_COLUMNS;
        scale_tokens(c, c->since, b->d_out + at);
        if (delta) scale_tokens(c, c->since, b->y + at);
    }
    for (rec_size panel = 0; panel * TILE_COLUMNS < c->rows; panel++)
        for (rec_size i = 0; i < b->columns; i++)
            for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
                float *at = b->u_turned + (panel * b->columns + i) * TILE_COLUMNS + j;
                v_store(at, v_mul(v_load(c->until + panel * TILE_COLUMNS + j), v_load(at)));
            }
}

/* Columns slab after slab, to where they meet. */
static void back_columns(work *w, const bool delta, rec_size begin) {
    chunk *c = &w->c;
    back *b = &w->b;
    for (rec_size s = 0; s < b->slabs; s++) {
        const rec_size at = s * CHUNK * TILE_COLUMNS;
        const float *x = x_of(w, begin, s);
        load_columns(w, x, s);
        back_solve(c, delta, slab_of(b->d_state, c->pitch, s), b->d_out + at, x, b->y + at,
                   b->betas);
        put_values(w, s);
        turn(c, b, s, b->u, b->u_turned);
    }
    multiply_columns(c, b, b->d_out, b->d_own);
    if (delta) multiply_columns(c, b, b->y, b->d_rest);
    if (!w->at.p->key_decay) apply_head_scales(w, delta);
    for (rec_size s = 0; s < b->slabs; s++) {
        turn(c, b, s, b->d_out, b->d_out_turned);
        if (delta) turn(c, b, s, b->y, b->y_turned);
    }
}

static void put_tokens(const work *w) {
    const chunk *c = &w->c;
    for (rec_size i = 0; i < c->count; i++) {
        float *rows = w->b.rows + i * c->pitch;
        const token t = {.q = c->q + i * c->pitch,
                         .k = c->k + i * c->pitch,
                         .q_norm = c->q_norm[i],
                         .k_norm = c->k_norm[i],
                         .beta = c->beta[i],
                         .t = c->token[i]};
        gradient g = {.q = rows,
                      .k = rows + CHUNK * c->pitch,
                      .g = rows + 2 * CHUNK * c->pitch,
                      .beta = v_sum(v_load(w->b.betas + i * VL)),
                      .head = w->b.gate[i]};
        put_token(&w->at, &t, &g);
    }
}

INLINE void back_chunk(work *w, const bool delta, rec_size begin, const float *state) {
    chunk *c = &w->c;
    back *b = &w->b;
    load_chunk(w, begin);
    ask_cell(w, (begin / CHUNK - 1) * CHUNK, true);
    back_columns(w, delta, begin);
    meet_states(c, b, state);
    if (w->at.p->key_decay) {
        back_channel_decays(c, b, delta, state);
        back_state(c, b, delta, b->q, b->k);
    } else {
        back_head_decays(c, b, delta, state);
        back_state(c, b, delta, c->q, c->k);
    }
    put_tokens(w);
}

/* The chunks of a cell, from the last one on. */
static void back_cell(work *w, rec_size cell, rec_size end) {
    chunk *c = &w->c;
    rec_size begin[CHUNK];
    int count = 0;
    bool resets;
    for (rec_size n = cell * CHUNK; n < end; n = next_chunk(c, n, &resets)) begin[count++] = n;
    while (count-- > 0) {
        next_chunk(c, begin[count], &resets);
        for (int i = 0; i < c->paddings; i++) put_nothing(&w->at, c->padding[i]);
        if (c->count == 0) continue;
        const float *state = resets ? w->nothing : cell_of(w, begin[count]);
        if (w->at.p->update == REC_DELTA)
            back_chunk(w, true, begin[count], state);
        else
            back_chunk(w, false, begin[count], state);
        if (resets) memset(w->b.d_state, 0, (size_t)w->state_size * sizeof(float));
    }
}

static void back_head(head_work *at) {
    work *w = (work *)at;
    chunk *c = &w->c;
    const rec_size steps = w->at.q.end - w->at.q.begin;
    *c = (chunk){.p = w->at.p, .scale = 1, .sequence = w->at.q, .pitch = w->at.pitch};
    memset(w->chunk_memory, 0, (size_t)chunk_floats(w->at.p) * sizeof(float));
    memset(w->nothing, 0, (size_t)w->state_size * sizeof(float));
    place_chunk(c, w->chunk_memory);
    for (rec_size s = 0; s < w->b.slabs; s++) {
        load_slab(c, REC_INITIAL, w->at.h, s * TILE_COLUMNS, slab_of(w->cells, c->pitch, s));
        load_slab(c, REC_D_FINAL, w->at.h, s * TILE_COLUMNS, slab_of(w->b.d_state, c->pitch, s));
    }
    pass_over(w);
    for (rec_size cell = ejki_cdiv(steps, CHUNK); cell-- > 0;)
        back_cell(w, cell, ejki_min((cell + 1) * CHUNK, steps));
    for (rec_size s = 0; s < w->b.slabs; s++)
        store_slab(c, REC_D(REC_INITIAL), w->at.h, s * TILE_COLUMNS,
                   slab_of(w->b.d_state, c->pitch, s));
}

static void do_tasks(void *argument, int64_t index) {
    const ejk_run *run = argument;
    work w;
    measure(run->problem, &w);
    const rec_size size = deal_out(&w, NULL);
    deal_out(&w, (float *)run->workspace + index * size);
    w.at.partial = (float *)run->workspace + run->workers * size;
    back_tasks(&w.at, index, run->workers, back_head);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    work w;
    (void)parameters;
    measure(problem, &w);
    plan_tasks(&w.at, deal_out(&w, NULL), threads, launch);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    work w;
    ejk_parallel_for(run->threads, run->workers, do_tasks, (void *)(uintptr_t)run);
    measure(run->problem, &w);
    put_totals(run->problem, (const float *)run->workspace + run->workers * deal_out(&w, NULL));
    return EJK_OK;
}

/* Gradients of step sizes, and of reading before the update, go token by token. */
static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    return chunks_apply(p) && p->read == REC_AFTER && !p->by_step;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .priority = 10,
             .needs =
                 "sums or delta rules read after the update, without step sizes or decays of value "
                 "channels, from 32 tokens a sequence on",
             .applicable = applicable, .prepare = prepare, .run = run)
