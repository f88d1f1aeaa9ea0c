/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the recurrence, token by token backwards, in vectors of columns of the state. A task is a group of
 * heads of a sequence that share a query, key or value: their gradients are sums over these heads, in floats, in
 * order. For each head the states before every SEGMENT-th token are kept on the way there; backwards, those inside
 * of a segment are computed again, a slab of columns at a time, so that they stay in an L2 cache. A token is two
 * passes over the cotangent dS of the state: the sums dU = Σ k_i dS_i and dH = Σ a_i dS_i, then everything else
 * (back_rows()), where the read's own part of dS, q_i · d_out, is added on the fly. Sums over columns are collected
 * for VL rows and added up across lanes together.
 *
 * With S̄ the decayed state, u what k was multiplied by, X = Σ b_i S_i of rank-one updates (of others u / β is kept in
 * its place), v' = −β dU for delta rules:
 *
 *     dq = S̄ d_out + k (u·d_out) + a (X·d_out)         dk = dS u + S̄ v'            dS̄ = dS + k v'
 *     da = dS X,  db = S dH                            dg_i = Σ_j dS̄ S̄              dS ← e^g dS̄ + b dH
 */
#include "kernels/declare.h"
#include "operations/recurrent/cpu/scan/gradient_put_body.h"
#include "operations/recurrent/cpu/scan/gradient_tasks_body.h"
#include "operations/recurrent/cpu/scan/slab_body.h"
#include "operations/recurrent/cpu/scan/token_body.h"

#include <string.h>

/* Bytes of the states of a segment: half of an L2 cache. */
enum { STATES = 1 << 19, LEAST_SEGMENT = 8, MOST_SEGMENT = 64 };

/* Sizes in floats, and memory of a worker. */
typedef struct work {
    head_work at; /* first: back_head() is given this */
    rec_size segment, slab_size, slabs;
    int width;
    float *rows, *gradients, *states, *kept, *d_state, *checkpoints;
    token token[MOST_SEGMENT];
    gradient gradient[MOST_SEGMENT];
} work;

static void measure(const rec_problem *p, work *w) {
    w->width = p->value_size > VL ? 2 : 1;
    measure_heads(p, w->width * VL, 1, &w->at);
    w->at.pitch = row_pitch(p);
    w->slabs = w->at.value_pitch / (w->width * VL);
    w->slab_size = p->key_size * w->width * VL;
    const rec_size fit = STATES / ejki_max(w->slab_size * (rec_size)sizeof(float), 1);
    w->segment = ejki_max(ejki_min(fit, MOST_SEGMENT), LEAST_SEGMENT);
}

/* Deals out a worker's memory from `at`; returns how many floats there are. */
static rec_size deal_out(work *w, float *at) {
    const rec_problem *p = w->at.p;
    float **const place[] = {&w->rows, &w->gradients, &w->states,
                             &w->kept, &w->d_state,   &w->checkpoints};
    const rec_size segments = p->tokens / w->segment + 1;
    const rec_size size[] = {w->segment * TOKEN_ROWS * w->at.pitch,
                             w->segment * GRADIENT_ROWS * w->at.pitch,
                             (w->segment + 1) * w->slab_size,
                             w->segment * 4 * VL,
                             w->slabs * w->slab_size,
                             segments * w->slabs * w->slab_size};
    rec_size used = 0;
    for (int i = 0; i < 6; i++) {
        if (at) *place[i] = at + used;
        used += ejki_round_up(size[i], 16);
    }
    return used;
}

/* ---- A token and a slab ------------------------------------------------------------------------------ */

/* What a token has in a slab: u and X as they were on the way there, d_out with the scale. */
typedef struct columns {
    vf u[2], x[2], dv[2], d_out[2], du[2], dh[2], back[2];
} columns;

INLINE void load_columns(const work *w, const int width, const token *t, rec_size c,
                         const float *kept, columns *to) {
    const rec_problem *p = w->at.p;
    const rec_view *gv = &p->view[REC_GV], *d_out = &p->view[REC_D_OUT];
    for (int n = 0; n < width; n++) {
        const rec_size at = c + n * VL;
        to->dv[n] = v_set1(1);
        to->d_out[n] = v_zero();
        to->u[n] = v_load(kept + n * VL);
        to->x[n] = v_load(kept + (2 + n) * VL);
        if (at >= p->value_size) continue;
        if (gv->present)
            to->dv[n] = gate_exp(
                view_part(gv, rec_at(gv, w->at.q.batch, t->t, w->at.h), at, p->value_size));
        if (d_out->present)
            to->d_out[n] = v_mul(
                v_set1((float)p->scale),
                view_part(d_out, rec_at(d_out, w->at.q.batch, t->t, w->at.h), at, p->value_size));
    }
}

/* The slab after a token, from the one before; u and X are kept. */
INLINE void advance(const work *w, const int width, const token *t, rec_size c, slab from, slab to,
                    float *kept) {
    const rec_problem *p = w->at.p;
    const rec_view *value = &p->view[REC_VALUE], *gv = &p->view[REC_GV];
    const rec_size own = rec_at(value, w->at.q.batch, t->t, rec_head(p, w->at.h, p->value_heads));
    vf x[2], y[2], u[2], dv[2];
    for (int n = 0; n < width; n++) x[n] = v_zero();
    if (p->update != REC_ADD) sum_rows(width, false, NULL, t->x, t->x, p->key_size, from, y, x);
    for (int n = 0; n < width; n++) {
        const rec_size at = c + n * VL;
        const bool is_there = at < p->value_size;
        u[n] = is_there ? view_part(value, own, at, p->value_size) : v_zero();
        dv[n] = v_set1(1);
        if (gv->present && is_there) {
            dv[n] = gate_exp(
                view_part(gv, rec_at(gv, w->at.q.batch, t->t, w->at.h), at, p->value_size));
            if (p->update == REC_DELTA) x[n] = v_mul(x[n], dv[n]);
        }
        if (p->update == REC_DELTA) {
            x[n] = v_sub(u[n], x[n]);
            u[n] = v_mul(v_set1(t->beta), x[n]);
        } else if (p->update == REC_ADD) {
            x[n] = u[n];
            u[n] = v_mul(v_set1(t->beta), x[n]);
        }
        v_store(kept + n * VL, u[n]);
        v_store(kept + (2 + n) * VL, x[n]);
    }
    if (p->update == REC_RANK_ONE)
        update_rows(width, true, true, t, p->key_size, from, to, u, x, dv);
    else
        update_rows(width, false, true, t, p->key_size, from, to, u, x, dv);
}

/* Adds the lanes of each of VL rows, or of as many as there are, to their numbers in `to`. */
INLINE void add_lanes(const vf *rows, float *to) {
    v_store(to, v_add(v_load(to), v_sums(rows)));
}

/* Rows i to i + n - 1 of the token's second pass. */
INLINE void back_rows(const work *w, const int width, const bool rank, const token *t, rec_size i,
                      rec_size n, slab before, slab d, const columns *at, gradient *g, vf *d_head,
                      vf *d_value) {
    const bool old = w->at.p->read == REC_BEFORE;
    vf dq[VL], dk[VL], dg[VL], da[VL], db[VL];
    for (rec_size r = 0; r < n; r++) {
        const float *from = before.data + (i + r) * before.stride;
        float *place = d.data + (i + r) * d.stride;
        const vf decay = v_set1(t->d[i + r]), k = v_set1(t->k[i + r]), q = v_set1(t->q[i + r]);
        dq[r] = dk[r] = dg[r] = da[r] = db[r] = v_zero();
        for (int c = 0; c < width; c++) {
            const vf s = v_load(from + c * VL), factor = v_mul(decay, at->dv[c]);
            const vf decayed = v_mul(s, factor), own = v_mul(q, at->d_out[c]);
            vf ds = v_load(place + c * VL);
            if (!old) ds = v_add(ds, own);
            dq[r] = v_fma(old ? s : decayed, at->d_out[c], dq[r]);
            dk[r] = v_fma(ds, at->u[c], v_fma(decayed, at->back[c], dk[r]));
            if (rank) {
                da[r] = v_fma(ds, at->x[c], da[r]);
                db[r] = v_fma(s, at->dh[c], db[r]);
            }
            ds = v_fma(k, at->back[c], ds);
            const vf gate = v_mul(ds, decayed);
            dg[r] = v_add(dg[r], gate);
            d_value[c] = v_add(d_value[c], gate);
            ds = v_mul(ds, factor);
            if (rank) ds = v_fma(v_set1(t->b[i + r]), at->dh[c], ds);
            if (old) ds = v_add(ds, own);
            v_store(place + c * VL, ds);
        }
        *d_head = v_add(*d_head, dg[r]);
    }
    for (rec_size r = n; r < VL; r++) dq[r] = dk[r] = dg[r] = da[r] = db[r] = v_zero();
    add_lanes(dq, g->q + i);
    add_lanes(dk, g->k + i);
    if (w->at.p->key_decay) add_lanes(dg, g->g + i);
    if (!rank) return;
    add_lanes(da, g->a + i);
    add_lanes(db, g->b + i);
}

static void put_value_gate(const work *w, const token *t, rec_size c, vf value) {
    put_part(w->at.p, REC_GV, gradient_at(&w->at, REC_GV, t->t), c, w->at.p->value_size, value);
}

/* d becomes the cotangent of the slab before the token. */
INLINE void back(const work *w, const int width, const bool rank, const token *t, rec_size c,
                 slab before, slab d, const float *kept, gradient *g) {
    const rec_problem *p = w->at.p;
    const bool delta = p->update == REC_DELTA;
    columns at;
    vf d_value[2] = {v_zero(), v_zero()}, d_head = v_zero(), d_beta = v_zero();
    vf along_u = v_zero(), along_x = v_zero();
    load_columns(w, width, t, c, kept, &at);
    sum_rows(width, rank, NULL, t->a, t->k, p->key_size, d, at.dh, at.du);
    const places values = places_of(&w->at, REC_VALUE);
    for (int n = 0; n < width; n++) {
        at.du[n] = v_fma(v_set1(g->qk), at.d_out[n], at.du[n]);
        if (rank) at.dh[n] = v_fma(v_set1(g->qa), at.d_out[n], at.dh[n]);
        at.back[n] = delta ? v_mul(v_set1(-t->beta), at.du[n]) : v_zero();
        if (!rank) d_beta = v_fma(at.du[n], at.x[n], d_beta);
        along_u = v_fma(at.u[n], at.d_out[n], along_u);
        along_x = v_fma(at.x[n], at.d_out[n], along_x);
        vf dv = rank ? at.du[n] : v_mul(v_set1(t->beta), at.du[n]);
        dv = v_fma(v_set1(g->own), at.d_out[n], dv);
        add_part(&values, t->t, c + n * VL, dv);
    }
    rec_size i = 0;
    for (; i + VL <= p->key_size; i += VL)
        back_rows(w, width, rank, t, i, VL, before, d, &at, g, &d_head, d_value);
    if (i < p->key_size)
        back_rows(w, width, rank, t, i, p->key_size - i, before, d, &at, g, &d_head, d_value);
    g->beta += v_sum(d_beta);
    g->head += v_sum(d_head);
    g->along_u += v_sum(along_u);
    g->along_x += v_sum(along_x);
    for (int n = 0; n < width; n++) put_value_gate(w, t, c + n * VL, d_value[n]);
}

/* ---- To tensors -------------------------------------------------------------------------------------- */

/* What a bonus adds: out has scale Σ q u k · v. */
static void add_bonus(const head_work *w, const token *t, gradient *g, float *part) {
    const rec_view *u = &w->p->view[REC_BONUS];
    float *sum = part + 2 + row_pitch(w->p);
    for (rec_size c = 0; c < w->p->key_size && u->present; c += VL) {
        const vf q = v_load(t->q + c), k = v_load(t->k + c), along = v_set1(g->along_u);
        const vf own = v_mul(view_part(u, w->h * u->stride[2], c, w->p->key_size), along);
        v_store(g->q + c, v_fma(own, k, v_load(g->q + c)));
        v_store(g->k + c, v_fma(own, q, v_load(g->k + c)));
        v_store(sum + c, v_fma(v_mul(q, k), along, v_load(sum + c)));
    }
}

static void put_rank_one(const head_work *w, const token *t, gradient *g) {
    const rec_view *a = &w->p->view[REC_A];
    for (rec_size c = 0; c < w->p->key_size && w->p->multiply; c += VL) {
        const vf kk = v_sub(v_zero(), v_load(t->b + c)), da = v_load(g->a + c);
        const vf own = view_part(a, rec_at(a, w->q.batch, t->t, w->h), c, w->p->key_size);
        v_store(g->b + c, v_fms(own, da, v_load(g->b + c)));
        v_store(g->a + c, v_mul(kk, da));
    }
    put_row(w, REC_A, t->t, w->p->key_size, g->a);
    put_row(w, REC_B, t->t, w->p->key_size, g->b);
}

/* All that a token has collected goes where it belongs. */
static void put_token(const head_work *w, const token *t, gradient *g) {
    const rec_problem *p = w->p;
    if (p->read == REC_BEFORE)
        add_bonus(w, t, g, part_of(w));
    else if (g->along_u != 0 || g->along_x != 0)
        for (rec_size c = 0; c < w->pitch; c += VL) {
            vf d = v_fma(v_load(t->k + c), v_set1(g->along_u), v_load(g->q + c));
            if (p->update == REC_RANK_ONE) d = v_fma(v_load(t->a + c), v_set1(g->along_x), d);
            v_store(g->q + c, d);
        }
    const places q = places_of(w, REC_QUERY), k = places_of(w, REC_KEY);
    add_vector(w, &q, t->t, g->q, t->q, t->q_norm);
    add_vector(w, &k, t->t, g->k, t->k, t->k_norm);
    if (p->update == REC_RANK_ONE) put_rank_one(w, t, g);
    put_numbers(w, t, g);
}

/* ---- A segment --------------------------------------------------------------------------------------- */

/* Tokens of steps n to end - 1 that count; those that do not are answered with `padding`. */
static int load_segment(work *w, rec_size n, rec_size end, bool padding) {
    const rec_problem *p = w->at.p;
    const bool before = p->read == REC_BEFORE;
    int count = 0;
    for (; n < end; n++) {
        const rec_turn turn = rec_turn_of(p, &w->at.q, n);
        const rec_size place = rec_token(p, &w->at.q, n);
        if (!turn.counts) {
            if (padding) put_nothing(&w->at, place);
            continue;
        }
        token *t = &w->token[count];
        gradient *g = &w->gradient[count];
        float *memory = w->gradients + count * GRADIENT_ROWS * w->at.pitch;
        *t = token_in(w->rows + count * TOKEN_ROWS * w->at.pitch, w->at.pitch);
        load_token(p, &w->at.q, place, w->at.h, w->at.pitch, t);
        t->resets = turn.resets;
        memset(memory, 0, (size_t)(GRADIENT_ROWS * w->at.pitch) * sizeof *memory);
        *g = (gradient){.q = memory,
                        .k = memory + w->at.pitch,
                        .g = memory + 2 * w->at.pitch,
                        .a = memory + 3 * w->at.pitch,
                        .b = memory + 4 * w->at.pitch,
                        .qk = before ? 0 : dot(t->q, t->k, w->at.pitch),
                        .qa = p->update == REC_RANK_ONE ? dot(t->q, t->a, w->at.pitch) : 0,
                        .own = before ? bonus_of(p, w->at.h, t) : skip_of(p, w->at.h)};
        count++;
    }
    return count;
}

INLINE slab slab_in(const work *w, float *data) {
    return (slab){data, w->width * VL};
}

static void clear_slab(const work *w, slab s) {
    memset(s.data, 0, (size_t)w->slab_size * sizeof *s.data);
}

/* The slab after the segment's tokens, in place. */
static void pass_over(const work *w, int count, rec_size c, slab s) {
    for (int i = 0; i < count; i++) {
        if (w->token[i].resets) clear_slab(w, s);
        if (w->width == 2)
            advance(w, 2, &w->token[i], c, s, s, w->kept);
        else
            advance(w, 1, &w->token[i], c, s, s, w->kept);
    }
}

INLINE void back_over(work *w, const int width, const bool rank, int count, rec_size c, slab d) {
    for (int i = 0; i < count; i++) {
        const slab from = slab_in(w, w->states + i * w->slab_size);
        if (w->token[i].resets) clear_slab(w, from);
        advance(w, width, &w->token[i], c, from, slab_in(w, from.data + w->slab_size),
                w->kept + i * 4 * VL);
    }
    for (int i = count; i-- > 0;) {
        back(w, width, rank, &w->token[i], c, slab_in(w, w->states + i * w->slab_size), d,
             w->kept + i * 4 * VL, &w->gradient[i]);
        if (w->token[i].resets) clear_slab(w, d);
    }
}

static void back_segment(work *w, int count, const float *checkpoint) {
    const bool rank = w->at.p->update == REC_RANK_ONE;
    for (rec_size s = 0; s < w->slabs; s++) {
        const rec_size c = s * w->width * VL;
        const slab d = slab_in(w, w->d_state + s * w->slab_size);
        memcpy(w->states, checkpoint + s * w->slab_size, (size_t)w->slab_size * sizeof *w->states);
        if (w->width == 2 && rank)
            back_over(w, 2, true, count, c, d);
        else if (w->width == 2)
            back_over(w, 2, false, count, c, d);
        else if (rank)
            back_over(w, 1, true, count, c, d);
        else
            back_over(w, 1, false, count, c, d);
    }
    for (int i = 0; i < count; i++) put_token(&w->at, &w->token[i], &w->gradient[i]);
}

/* ---- A head ------------------------------------------------------------------------------------------ */

static void move_states(const work *w, int role, float *slabs, bool load) {
    const rec_view *v = &w->at.p->view[role];
    for (rec_size s = 0; s < w->slabs; s++) {
        const rec_size c = s * w->width * VL;
        const slab at = slab_in(w, slabs + s * w->slab_size);
        if (load)
            load_state(w->at.p, v, w->at.q.index, w->at.h, c, w->width, at);
        else
            store_state(w->at.p, v, w->at.q.index, w->at.h, c, w->width, at);
    }
}

static void back_head(head_work *at) {
    work *w = (work *)at;
    const rec_size steps = w->at.q.end - w->at.q.begin, size = w->slabs * w->slab_size;
    if (w->at.p->key_size == 0)
        memset(w->rows, 0, (size_t)(w->segment * TOKEN_ROWS * w->at.pitch) * sizeof *w->rows);
    move_states(w, REC_INITIAL, w->checkpoints, true);
    for (rec_size n = 0; n + w->segment < steps; n += w->segment) {
        float *from = w->checkpoints + n / w->segment * size;
        const int count = load_segment(w, n, n + w->segment, false);
        memcpy(from + size, from, (size_t)size * sizeof *from);
        for (rec_size s = 0; s < w->slabs; s++)
            pass_over(w, count, s * w->width * VL, slab_in(w, from + size + s * w->slab_size));
    }
    move_states(w, REC_D_FINAL, w->d_state, true);
    for (rec_size end = steps; end > 0;) {
        const rec_size begin = (end - 1) / w->segment * w->segment;
        const int count = load_segment(w, begin, end, true);
        back_segment(w, count, w->checkpoints + begin / w->segment * size);
        end = begin;
    }
    move_states(w, REC_D(REC_INITIAL), w->d_state, false);
}

static void with_work(const rec_problem *p, rec_size threads, float *memory, back_then_fn then,
                      void *argument) {
    (void)threads;
    work w;
    measure(p, &w);
    then(&w.at, deal_out(&w, memory), argument);
}

static const back_kernel kernel = {with_work, back_head};

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    return back_prepare(&kernel, problem, threads, launch);
}

static ejk_status run(const ejk_run *run) {
    return back_run(&kernel, run);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
