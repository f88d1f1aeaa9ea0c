/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of gradients in chunks, and their way over the tokens of a unit of heads: what the way back needs of it. */
#ifndef EJKI_RECURRENT_GRADIENT_PASS_BODY_H
#define EJKI_RECURRENT_GRADIENT_PASS_BODY_H

#include "operations/recurrent/cpu/chunk/back_tile.h"
#include "operations/recurrent/cpu/chunk/rows_body.h"
#include "operations/recurrent/cpu/scan/gradient_put_body.h"
#include "operations/recurrent/cpu/scan/gradient_tasks_body.h"

#include <string.h>

/* Rows of X in a slab: those of the last tile of a chunk that begins late may lie behind the cell. */
enum { X_ROWS = CHUNK + TILE_ROWS, X_SLAB = X_ROWS * TILE_COLUMNS };

/* Heads that are worked on together at most; a group should be units enough for parts of it to be tasks. */
enum { MOST_UNIT = 4 };

/* Heads that take turns at most: their rows follow each other in memory, and what is kept grows with them. */
enum { MOST_SPAN = 4 };

/*
 * A cell is CHUNK steps; a chunk lies in one, and is all of it but where segments end. What is kept of a cell and a
 * head lies together: the state before it [slabs][pitch][TILE_COLUMNS], X [slabs][X_ROWS][TILE_COLUMNS] and rest
 * [CHUNK][CHUNK] of delta rules, own [CHUNK][CHUNK] with decays of key channels; X and products with the rows of tokens
 * where these lie in the cell. Heads of a unit follow each other. A call that is given states and errors has no cells,
 * but room for the state of a head, and c.x for X of a slab.
 */
typedef struct work {
    head_work at; /* first: back_span() is given this */
    chunk c;
    back b;
    float *cells, *nothing, *chunk_memory; /* nothing: a state of 0 */
    float *d_states;                       /* of the unit's heads */
    rec_size state_size, cell_size, x_size, rest_size;
    bool given;     /* states and errors */
    rec_size first; /* of the heads that take turns; at.h is the one at hand */
} work;

static rec_size unit_of(const rec_problem *p) {
    const rec_size shared =
        p->heads > 0 ? common_divisor(p->heads / p->query_heads, p->heads / p->key_heads) : 1;
    rec_size unit = p->key_decay ? 1 : MOST_UNIT;
    while (shared % unit != 0 || (unit > 2 && shared < unit * MOST_PARTS)) unit--;
    return unit;
}

/* Where nothing is added up, groups that take turns are one, as long as `threads` are as busy. */
static void join_groups(head_work *w, rec_size threads) {
    const rec_size all = w->p->sequences * w->groups, busy = ejki_cdiv(all, threads);
    rec_size n = sum_floats(w) > 0 ? 1 : ejki_min(MOST_SPAN / w->in_group, w->groups);
    while (n > 1 && (w->groups % n != 0 || ejki_cdiv(all / n, threads) * n > busy)) n--;
    if (n <= 1) return;
    w->groups /= n;
    w->in_group *= n;
    w->span = w->in_group;
}

static void measure(const rec_problem *p, rec_size threads, work *w) {
    const bool delta = p->update == REC_DELTA;
    measure_heads(p, TILE_COLUMNS, unit_of(p), &w->at);
    w->at.pitch = pitch_of(p);
    join_groups(&w->at, threads);
    w->b.slabs = slabs_of(p);
    w->b.columns = w->at.value_pitch;
    w->state_size = w->at.value_pitch * w->at.pitch;
    w->given = delta && p->view[REC_STATES].present && p->view[REC_ERRORS].present;
    w->x_size = delta ? w->b.slabs * X_SLAB : 0;
    w->rest_size = delta ? SQUARE : 0;
    w->cell_size = w->state_size + w->x_size + w->rest_size + (p->key_decay ? SQUARE : 0);
}

/* Deals out a worker's memory from `at`; returns how many floats there are. */
static rec_size deal_out(work *w, float *at) {
    const rec_problem *p = w->at.p;
    back *b = &w->b;
    const rec_size cells = ejki_cdiv(p->tokens, CHUNK) + 1, rows = CHUNK * w->at.pitch;
    const rec_size columns = CHUNK * w->at.value_pitch, sums = CHUNK * VL;
    float **const place[] = {
        &w->cells,    &w->nothing,  &w->chunk_memory, &b->d_out,  &b->u,    &b->y, &b->d_out_turned,
        &b->u_turned, &b->y_turned, &b->d_own,        &b->d_rest, &b->m,    &b->n, &b->m_turned,
        &b->n_turned, &b->dq,       &b->dk,           &b->dl,     &b->q,    &b->k, &b->left,
        &w->d_states, &b->met,      &b->rows,         &b->betas,  &b->skips};
    const rec_size size[] = {w->given ? w->state_size : cells * w->at.span * w->cell_size,
                             w->state_size,
                             chunk_floats(p),
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
                             w->at.span * w->state_size,
                             w->at.pitch,
                             3 * rows,
                             sums,
                             sums};
    rec_size used = 0;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (at) *place[i] = at + used;
        used += ejki_round_up(size[i], 16);
    }
    return used;
}

/* What is kept of the cell of a step and the head at hand; and of that X of a slab and products, from that step on. */
static float *cell_of(const work *w, rec_size step) {
    if (w->given) return w->cells;
    return w->cells + (step / CHUNK * w->at.span + w->at.h - w->first) * w->cell_size;
}
static float *x_of(const work *w, rec_size step, rec_size slab) {
    if (w->given) return w->c.x;
    return cell_of(w, step) + w->state_size + slab * X_SLAB + step % CHUNK * TILE_COLUMNS;
}
static float *rest_of(const work *w, rec_size step) {
    return cell_of(w, step) + w->state_size + w->x_size + step % CHUNK * CHUNK;
}
static float *own_of(const work *w, rec_size step) {
    return rest_of(w, step) + w->rest_size;
}

/* Columns `at` on of the state before a step that the forward call kept. */
static void load_kept(const chunk *c, rec_size step, rec_size h, rec_size at, float *to) {
    const rec_view *v = &c->p->view[REC_STATES];
    const rec_size columns = ejki_min(c->p->value_size - at, TILE_COLUMNS);
    const rec_size first = rec_kept_at(c->p, &c->sequence, step, h) + at * v->stride[3];
    for (rec_size i = 0; i < c->pitch; i++, to += TILE_COLUMNS) {
        const rec_size row = first + i * v->stride[2], some = i < c->p->key_size ? columns : 0;
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL)
            v_store(to + j,
                    j < some && v->stride[3] == 1
                        ? v_widen_some(EJK_DTYPE_F32, element_at(EJK_DTYPE_F32, v->data, row + j),
                                       some - j)
                        : v_zero());
        for (rec_size j = 0; j < some && v->stride[3] != 1; j++)
            to[j] = view_load(v, row + j * v->stride[3]);
    }
}

/* The cotangent of the state of the head at hand. */
static float *d_state_of(const work *w) {
    return w->d_states + (w->at.h - w->first) * w->state_size;
}

/* ---- On the way there -------------------------------------------------------------------------------- */

/* Keeps what lies between tokens, or puts it back, -rest in place of rest. `begin` is the chunk's first step. */
static void keep_products(const work *w, const bool delta, rec_size begin) {
    const chunk *c = &w->c;
    const size_t bytes = (size_t)(c->count * CHUNK) * sizeof(float);
    if (delta) memcpy(rest_of(w, begin), c->rest, bytes);
    if (w->at.p->key_decay) memcpy(own_of(w, begin), c->own, bytes);
}
static void restore_products(const work *w, const bool delta, rec_size begin) {
    const chunk *c = &w->c;
    const float *rest = rest_of(w, begin), *own = own_of(w, begin);
    for (rec_size i = 0; i < c->rows * CHUNK; i += VL) {
        const bool none = i >= c->count * CHUNK;
        if (delta) v_store(c->rest + i, none ? v_zero() : v_sub(v_zero(), v_load(rest + i)));
        if (w->at.p->key_decay) v_store(c->own + i, none ? v_zero() : v_load(own + i));
    }
}

/* Asks for rows of a tensor of the head, or of the one that it reads. */
static void ask_tensor(work *w, int role, rec_size n, rec_size heads, rec_size size) {
    const rec_problem *p = w->at.p;
    if (p->view[role].present) ask_rows(&w->c, role, n, rec_head(p, w->at.h, heads), 0, size);
}

/* Asks for what is kept of the cell of step n, a part with each row of it. */
static void ask_cell(work *w, rec_size n) {
    ahead *a = &w->c.ahead;
    const rec_size part = w->cell_size * (rec_size)sizeof(float) / CHUNK;
    a->row[a->count] = (const char *)cell_of(w, n);
    a->step[a->count] = a->bytes[a->count] = part;
    a->count++;
}

/* How many times a head prefetches, backwards at least. */
static rec_size units_of(const work *w, bool backwards) {
    const bool delta = w->at.p->update == REC_DELTA;
    const rec_size solved = delta ? CHUNK * ejki_cdiv(w->at.p->key_size, CHUNK) : 0;
    const rec_size passes = delta ? 3 * PANELS + 2 : 2 * PANELS + 1;
    return w->b.slabs * (backwards ? passes * w->c.pitch : solved + w->c.pitch) / TILE_ROWS;
}

/*
 * Asks for what comes behind the head at hand: for the next one of the unit, or for the first one of the cell from step
 * `next` on. It is the value, and on the way back d_out and gradients that are written to, and what is kept; for the
 * first head query, key and gates, too.
 */
static void ask_next(work *w, rec_size begin, rec_size next, bool backwards) {
    chunk *c = &w->c;
    const rec_problem *p = w->at.p;
    const rec_size h = w->at.h, steps = w->at.q.end - w->at.q.begin;
    const bool last = h + 1 == w->first + w->at.span;
    const bool loads = (h + 1 - w->first) % w->at.unit == 0;
    const rec_size n = last ? next : begin / CHUNK * CHUNK;
    c->ahead = (ahead){.rows = 0};
    if (n < 0 || n >= steps) return;
    w->at.h = last ? w->first : h + 1;
    c->ahead.rows = ejki_min(CHUNK, steps - n);
    if (w->given) {
        ask_kept(c, n, w->at.h);
        ask_tensor(w, REC_ERRORS, n, p->heads, p->value_size);
    } else
        ask_cell(w, n);
    if (loads && (backwards || p->key_decay))
        ask_tensor(w, REC_QUERY, n, p->query_heads, p->key_size);
    if (loads) ask_tensor(w, REC_KEY, n, p->key_heads, p->key_size);
    ask_tensor(w, p->view[REC_GK].present ? REC_GK : REC_G, n, p->heads,
               p->key_decay ? p->key_size : 1);
    if (!backwards || p->update == REC_ADD)
        ask_tensor(w, REC_VALUE, n, p->value_heads, p->value_size);
    if (backwards) {
        ask_tensor(w, REC_D_OUT, n, p->heads, p->value_size);
        for (int role = loads ? REC_QUERY : REC_VALUE; role <= REC_VALUE; role++)
            if (w->at.shared[role] == 0)
                ask_tensor(w, REC_D(role), n, heads_of(p, role),
                           role == REC_VALUE ? p->value_size : p->key_size);
    }
    share_out(&c->ahead, units_of(w, backwards));
    w->at.h = h;
}

/* What the states need of a chunk. Queries are met on the way back, unless they share what is done for keys. */
static void load_unit_passing(work *w, const bool delta) {
    chunk *c = &w->c;
    if (w->at.p->key_decay) {
        load_shared(c, w->at.h);
        return;
    }
    load_keys(c, w->at.h);
    if (!delta) return;
    pack_transposed(c->k, c->pitch, c->count, c->pitch, c->kt);
    multiply_rows(c, c->k, c->kk);
}
static void load_head_passing(work *w, const bool delta) {
    chunk *c = &w->c;
    if (w->at.p->key_decay) {
        load_products(c, w->at.h);
        return;
    }
    load_betas(c, w->at.h);
    head_decays(c, w->at.h);
    if (delta) apply_head_decays(c, true, false);
    for (rec_size i = 0; i < CHUNK && w->at.p->by_step; i += VL)
        v_store(c->until + i, v_mul(v_load(c->beta + i), v_load(c->until + i)));
}

/* A chunk from step `begin` on; the state behind it, unless it is not wanted. */
static void pass_chunk(work *w, const bool delta, rec_size begin, bool resets, bool stores) {
    chunk *c = &w->c;
    const rec_size next = (begin / CHUNK + 1) * CHUNK;
    const float *state = resets ? w->nothing : cell_of(w, begin);
    load_head_passing(w, delta);
    keep_products(w, delta, begin);
    ask_next(w, begin, next, false);
    for (rec_size s = 0; s < w->b.slabs && (delta || stores); s++) {
        const rec_size at = s * c->pitch * TILE_COLUMNS;
        load_values(c, w->at.h, s * TILE_COLUMNS);
        if (delta) solve(c, state + at, NULL, x_of(w, begin, s));
        if (stores) update_state(c, state + at, cell_of(w, next) + at);
    }
}

/* A state ends with a cell: where a chunk ends before, the next one begins with none. */
static void pass_over(work *w) {
    chunk *c = &w->c;
    const bool delta = w->at.p->update == REC_DELTA;
    const rec_size steps = w->at.q.end - w->at.q.begin, end = w->first + w->at.span;
    for (rec_size n = 0; n < steps;) {
        bool resets;
        const rec_size begin = n;
        n = next_chunk(c, n, &resets);
        const bool stores = n % CHUNK == 0 && n < steps;
        for (w->at.h = w->first; w->at.h < end; w->at.h++)
            if (c->count > 0) {
                if ((w->at.h - w->first) % w->at.unit == 0) load_unit_passing(w, delta);
                pass_chunk(w, delta, begin, resets, stores);
            } else if (stores)
                memcpy(cell_of(w, n), cell_of(w, begin), (size_t)w->state_size * sizeof(float));
        w->at.h = w->first;
    }
}

#endif
