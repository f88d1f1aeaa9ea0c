/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of sums and delta rules in chunks, as chunk_body.h computes these. On the way there the state before each
 * chunk is kept, of delta rules with X of the solve and the products between tokens, 1.4 states of a head. With dS the
 * cotangent of the state behind the chunk, S the state before it, P and A what U is multiplied by in out and X,
 *
 *     dU = (decays to the end) K dS + P' d_out + A' dX,  dX = beta dU (from the last token on),  d_beta = dU X
 *     dQ = e^G d_out S' + (d_out U' decays) K,           dK = ... of both, and of (decays to the end) U dS'
 *     dS before = e^(G of the chunk) dS + (e^G Q)' d_out - (e^G K)' dX
 *
 * A call that is given states and X of the forward call goes backwards only; products between tokens are made again.
 *
 * U = beta V of sums by step sizes, whose d_beta is dU V. d_out has the scale. Heads that share query and key are
 * worked on together, up to MOST_UNIT of them: products of rows, and of d_out U' with rows, are formed once. Columns
 * meet only in what is summed over them: d_value and the cotangents of states have the same bits with other columns
 * beside them.
 */
#include "kernels/declare.h"
#include "operations/recurrent/cpu/chunk/back_gates_body.h"
#include "operations/recurrent/cpu/chunk/gradient_pass_body.h"
#include "operations/recurrent/cpu/scan/gradient_tasks_body.h"

#include <string.h>

/* ---- A chunk ----------------------------------------------------------------------------------------- */

static void load_unit(work *w) {
    chunk *c = &w->c;
    load_queries(c, w->at.h);
    load_keys(c, w->at.h);
    if (w->at.p->key_decay) return;
    pack_transposed(c->q, c->pitch, c->rows, c->pitch, c->qt);
    pack_transposed(c->k, c->pitch, c->rows, c->pitch, c->kt);
    multiply_rows(c, c->q, c->qk);
    if (w->given) multiply_rows(c, c->k, c->kk);
}

/* The state before a chunk, products and decays, of a call that is given what else is made on the way there. Rows get
 * their decays of channels while products are made of them. */
static void load_given(work *w, rec_size begin, bool resets) {
    chunk *c = &w->c;
    back *b = &w->b;
    const bool key_decay = w->at.p->key_decay;
    const size_t bytes = (size_t)(c->rows * c->pitch) * sizeof(float);
    for (rec_size s = 0; s < b->slabs && !resets; s++)
        load_kept(c, begin, w->at.h, s * TILE_COLUMNS, w->cells + s * c->pitch * TILE_COLUMNS);
    if (key_decay) {
        memcpy(b->q, c->q, bytes);
        memcpy(b->k, c->k, bytes);
    }
    load_products(c, w->at.h);
    for (rec_size i = 0; i < c->rows * CHUNK; i += VL)
        v_store(c->rest + i, v_sub(v_zero(), v_load(c->rest + i)));
    if (!key_decay) return;
    memcpy(c->q, b->q, bytes);
    memcpy(c->k, b->k, bytes);
    decay_rows(c, b);
}

static void load_back(work *w, const bool delta, rec_size begin, bool resets) {
    chunk *c = &w->c;
    memset(w->b.betas, 0, CHUNK * VL * sizeof(float));
    memset(w->b.skips, 0, CHUNK * VL * sizeof(float));
    w->b.d_state = d_state_of(w);
    if (w->given) {
        load_given(w, begin, resets);
        return;
    }
    load_betas(c, w->at.h);
    restore_products(w, delta, begin);
    if (w->at.p->key_decay) {
        load_channel_decays(c, w->at.h);
        decay_rows(c, &w->b);
        return;
    }
    head_decays(c, w->at.h);
    apply_head_decays(c, false, false);
}

/* Columns of slab s: d_out with the scale, and U of X, or of the values, which c->u gets of sums by step sizes. */
static void load_columns(work *w, const float *x, rec_size s) {
    chunk *c = &w->c;
    const rec_problem *p = w->at.p;
    float *d_out = w->b.d_out + s * CHUNK * TILE_COLUMNS, *u = w->b.u + s * CHUNK * TILE_COLUMNS;
    if (p->update == REC_ADD) {
        if (!p->by_step) c->u = u;
        load_values(c, w->at.h, s * TILE_COLUMNS);
    }
    if (p->view[REC_D_OUT].present)
        load_part(c, REC_D_OUT, w->at.h, s * TILE_COLUMNS, TILE_COLUMNS, p->value_size,
                  (float)p->scale, d_out, TILE_COLUMNS);
    else
        memset(d_out, 0, CHUNK * TILE_COLUMNS * sizeof *d_out);
    if (p->update == REC_ADD && !p->by_step) return;
    for (rec_size i = 0; i < c->rows; i++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL)
            v_store(u + i * TILE_COLUMNS + j,
                    v_mul(v_set1(c->beta[i]), v_load(x + i * TILE_COLUMNS + j)));
}

static void put_values(const work *w, rec_size s) {
    const float *y = w->b.y + s * CHUNK * TILE_COLUMNS;
    const bool delta = w->at.p->update == REC_DELTA;
    const places to = places_of(&w->at, REC_VALUE);
    for (int i = 0; i < w->c.count; i++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            const vf own = v_load(y + i * TILE_COLUMNS + j);
            add_part(&to, w->c.token[i], s * TILE_COLUMNS + j, delta ? v_sub(v_zero(), own) : own);
        }
}

/* The same of sums by step sizes, whose values U has beta times, and out what passes by the state of. */
static void put_stepped_values(const work *w, rec_size s) {
    const chunk *c = &w->c;
    const rec_size slab = s * CHUNK * TILE_COLUMNS;
    const vf skip = v_set1(skip_of(w->at.p, w->at.h));
    const places to = places_of(&w->at, REC_VALUE);
    for (rec_size i = 0; i < c->count; i++) {
        vf beta = v_load(w->b.betas + i * VL), past = v_load(w->b.skips + i * VL);
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            const rec_size at = i * TILE_COLUMNS + j;
            const vf v = v_load(c->u + at), d_u = v_load(w->b.y + slab + at);
            const vf d_out = v_load(w->b.d_out + slab + at);
            beta = v_fma(d_u, v, beta);
            past = v_fma(d_out, v, past);
            add_part(&to, c->token[i], s * TILE_COLUMNS + j,
                     v_fma(v_set1(c->beta[i]), d_u, v_mul(skip, d_out)));
        }
        v_store(w->b.betas + i * VL, beta);
        v_store(w->b.skips + i * VL, past);
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
    const float *keys = w->at.p->key_decay ? b->left : c->k;
    for (rec_size s = 0; s < b->slabs; s++) {
        const rec_size at = s * CHUNK * TILE_COLUMNS;
        const float *x = delta ? x_of(w, begin, s) : c->u;
        if (w->given)
            load_part(c, REC_ERRORS, w->at.h, s * TILE_COLUMNS, TILE_COLUMNS, w->at.p->value_size,
                      1, c->x, TILE_COLUMNS);
        load_columns(w, x, s);
        back_solve(c, delta, keys, b->d_state + s * c->pitch * TILE_COLUMNS, b->d_out + at, x,
                   b->y + at, b->betas);
        if (w->at.p->by_step)
            put_stepped_values(w, s);
        else
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

/* What is the head's own goes where it belongs; and what heads of the unit share. */
static void put_head(const work *w) {
    for (rec_size i = 0; i < w->c.count; i++) {
        const token t = {.beta = w->c.beta[i], .t = w->c.token[i]};
        const gradient g = {.g = w->b.rows + (2 * CHUNK + i) * w->c.pitch,
                            .beta = v_sum(v_load(w->b.betas + i * VL)),
                            .along_x = v_sum(v_load(w->b.skips + i * VL)),
                            .head = w->b.gate[i]};
        put_numbers(&w->at, &t, &g);
    }
}
static void put_unit(const work *w) {
    const chunk *c = &w->c;
    const float *dq = w->b.rows, *dk = dq + CHUNK * c->pitch;
    const places q = places_of(&w->at, REC_QUERY), k = places_of(&w->at, REC_KEY);
    for (rec_size i = 0; i < c->count; i++) {
        const rec_size row = i * c->pitch;
        add_vector(&w->at, &q, c->token[i], dq + row, c->q + row, c->q_norm[i]);
        add_vector(&w->at, &k, c->token[i], dk + row, c->k + row, c->k_norm[i]);
    }
}

INLINE void back_chunk(work *w, const bool delta, rec_size begin, bool resets) {
    chunk *c = &w->c;
    back *b = &w->b;
    const rec_size first = w->at.h, end = first + w->at.unit;
    load_unit(w);
    for (; w->at.h < end; w->at.h++) {
        const float *state = resets ? w->nothing : cell_of(w, begin);
        load_back(w, delta, begin, resets);
        ask_next(w, begin, (begin / CHUNK - 1) * CHUNK, true);
        back_columns(w, delta, begin);
        if (w->at.p->key_decay) {
            back_channel_decays(c, b, delta, state);
        } else {
            const unit_end in = {w->at.h == first, w->at.h + 1 == end};
            back_head_decays(c, b, delta, in, state);
        }
        put_head(w);
        if (resets) memset(b->d_state, 0, (size_t)w->state_size * sizeof(float));
    }
    w->at.h = first;
    put_unit(w);
}

static void put_paddings(work *w) {
    for (w->at.h = w->first; w->at.h < w->first + w->at.span; w->at.h++)
        for (int i = 0; i < w->c.paddings; i++) put_nothing(&w->at, w->c.padding[i]);
    w->at.h = w->first;
}

/* ---- Heads that take turns --------------------------------------------------------------------------------- */

/* The chunks of a cell, from the last one on. */
static void back_cell(work *w, rec_size cell, rec_size end) {
    chunk *c = &w->c;
    rec_size begin[CHUNK];
    int count = 0;
    bool resets;
    for (rec_size n = cell * CHUNK; n < end; n = next_chunk(c, n, &resets)) begin[count++] = n;
    while (count-- > 0) {
        next_chunk(c, begin[count], &resets);
        put_paddings(w);
        if (c->count == 0) continue;
        for (; w->at.h < w->first + w->at.span; w->at.h += w->at.unit)
            if (w->at.p->update == REC_DELTA)
                back_chunk(w, true, begin[count], resets);
            else
                back_chunk(w, false, begin[count], resets);
        w->at.h = w->first;
    }
}

static void back_span(head_work *at) {
    work *w = (work *)at;
    chunk *c = &w->c;
    const rec_size steps = w->at.q.end - w->at.q.begin, slab = w->at.pitch * TILE_COLUMNS;
    w->first = w->at.h;
    *c = (chunk){.p = w->at.p, .scale = 1, .sequence = w->at.q, .pitch = w->at.pitch};
    memset(w->chunk_memory, 0, (size_t)chunk_floats(w->at.p) * sizeof(float));
    memset(w->nothing, 0, (size_t)w->state_size * sizeof(float));
    place_chunk(c, w->chunk_memory);
    for (; w->at.h < w->first + w->at.span; w->at.h++)
        for (rec_size s = 0; s < w->b.slabs; s++) {
            if (!w->given)
                load_slab(c, REC_INITIAL, w->at.h, s * TILE_COLUMNS, cell_of(w, 0) + s * slab);
            load_slab(c, REC_D_FINAL, w->at.h, s * TILE_COLUMNS, d_state_of(w) + s * slab);
        }
    w->at.h = w->first;
    if (!w->given) pass_over(w);
    for (rec_size cell = ejki_cdiv(steps, CHUNK); cell-- > 0;)
        back_cell(w, cell, ejki_min((cell + 1) * CHUNK, steps));
    for (; w->at.h < w->first + w->at.span; w->at.h++)
        for (rec_size s = 0; s < w->b.slabs; s++)
            store_slab(c, REC_D(REC_INITIAL), w->at.h, s * TILE_COLUMNS, d_state_of(w) + s * slab);
}

static void with_work(const rec_problem *p, rec_size threads, float *memory, back_then_fn then,
                      void *argument) {
    work w;
    measure(p, threads, &w);
    then(&w.at, deal_out(&w, memory), argument);
}

static const back_kernel kernel = {with_work, back_span};

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    return back_prepare(&kernel, problem, threads, launch);
}

static ejk_status run(const ejk_run *run) {
    return back_run(&kernel, run);
}

/* Gradients of reading before the update go token by token. */
static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    return chunks_apply(p) && p->read == REC_AFTER;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .priority = 10,
             .needs = "sums or delta rules read after the update, without decays of value "
                      "channels, from 32 tokens a sequence on",
             .applicable = applicable, .prepare = prepare, .run = run)
