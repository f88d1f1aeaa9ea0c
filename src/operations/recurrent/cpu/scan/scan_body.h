/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence token by token, in vectors of columns of the state: what serves every member, short sequences and
 * steps. A task is a range of columns of a head of a sequence. Its columns lie in slabs [Dk][width], as wide as half of
 * an L1 cache allows, and each slab takes BLOCK tokens at a time, whose rows are prepared once for all slabs. A token
 * is two passes over a slab: sums X and Y, then the update (token_body.h). Where a sequence is one block, the first
 * token reads the initial state where it lies and the last one writes the final state where it goes, so that a step
 * moves a state once in each direction. States [Dv][Dk] of a step have their keys in the lanes: turned_body.h.
 *
 * Columns never meet, and rows are added up in their order: bits do not depend on slabs or threads.
 *
 * What is kept for gradients is written along the way: states before blocks, and errors with the outputs.
 */
#include "kernels/declare.h"
#include "kernels/simd/subnormal.h"
#include "operations/recurrent/cpu/scan/slab_body.h"
#include "operations/recurrent/cpu/scan/token_body.h"
#include "operations/recurrent/cpu/scan/turned_body.h"
#include "operations/recurrent/shared/kept.h"

#include <string.h>

/*
 * Bytes of a slab are at most SLAB, unless it is a vector wide or passes by once only. Neighbouring heads take a block
 * in turn, as many as have TOGETHER bytes of states: RWKV-7, 4 heads of 64 x 64 on Zen 5, took 8.2 instead of 10.7 ms,
 * since a head's tokens by themselves are pieces of 256 bytes; prefetching them 2 to 32 tokens ahead had no effect.
 */
enum { BLOCK = 16, SLAB = 16384, TOGETHER = 1 << 18, MOST_TOGETHER = 8 };

_Static_assert(REC_KEPT_STEPS % BLOCK == 0, "states are kept before blocks");

static void put_errors(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size at,
                       vf error) {
    const rec_view *errors = &p->view[REC_ERRORS];
    const rec_size place = rec_at(errors, b, t, h) + at;
    v_narrow_some(EJK_DTYPE_F32, element_at(EJK_DTYPE_F32, errors->data, place), error,
                  p->value_size - at);
}

/* Writes out of the columns from `at` on; *u is then what is added to them, *x what a_i is of, *dv their decay. */
INLINE void finish(const rec_problem *p, const int update, const bool has_dv, const rec_sequence *q,
                   rec_size h, const token *t, rec_size at, vf y, vf *x, vf *u, vf *dv) {
    const rec_view *value = &p->view[REC_VALUE], *gv = &p->view[REC_GV], *out = &p->view[REC_OUT];
    const rec_size own = rec_at(value, q->batch, t->t, rec_head(p, h, p->value_heads));
    const rec_size left = p->value_size - at;
    *dv = v_set1(1);
    *u = v_zero();
    if (left <= 0) return;
    *u = view_part(value, own, at, p->value_size);
    if (has_dv) {
        *dv = gate_exp(view_part(gv, rec_at(gv, q->batch, t->t, h), at, p->value_size));
        if (update == REC_DELTA) *x = v_mul(*x, *dv);
        if (p->read != REC_BEFORE) y = v_mul(y, *dv);
    }
    y = v_fma(v_set1(t->own), *u, y);
    if (update == REC_ADD) *u = v_mul(v_set1(t->beta), *u);
    if (update == REC_DELTA) {
        const vf error = v_sub(*u, *x);
        if (p->view[REC_ERRORS].present) put_errors(p, q->batch, t->t, h, at, error);
        *u = v_mul(v_set1(t->beta), error);
    }
    y = v_fma(v_set1(t->qk), *u, y);
    if (update == REC_RANK_ONE) y = v_fma(v_set1(t->qa), *x, y);
    const rec_size place = rec_at(out, q->batch, t->t, h) + at;
    v_narrow_some((ejk_dtype)out->dtype, element_at((ejk_dtype)out->dtype, out->data, place), y,
                  left);
}

/* Columns from c on; those from value_size on are none. how: as sum_rows() has it. */
INLINE void step(const rec_problem *p, const int width, const prefetching *how, const int update,
                 const bool has_dv, const rec_sequence *q, rec_size h, const token *t, rec_size c,
                 slab from, slab to) {
    vf x[WIDEST], y[WIDEST], u[WIDEST], dv[WIDEST];
    sum_rows(width, update != REC_ADD, how, t->x, t->y, p->key_size, from, x, y);
    for (int w = 0; w < width; w++)
        finish(p, update, has_dv, q, h, t, c + w * VL, y[w], &x[w], &u[w], &dv[w]);
    update_rows(width, update == REC_RANK_ONE, has_dv, t, p->key_size, from, to, u, x, dv);
}

INLINE void step_of(const rec_problem *p, const int width, const prefetching *how,
                    const rec_sequence *q, rec_size h, const token *t, rec_size c, slab from,
                    slab to) {
    if (p->value_decay)
        step(p, width, how, p->update, true, q, h, t, c, from, to);
    else if (p->update == REC_ADD)
        step(p, width, how, REC_ADD, false, q, h, t, c, from, to);
    else if (p->update == REC_DELTA)
        step(p, width, how, REC_DELTA, false, q, h, t, c, from, to);
    else
        step(p, width, how, REC_RANK_ONE, false, q, h, t, c, from, to);
}

static void step_any(const rec_problem *p, int width, const rec_sequence *q, rec_size h,
                     const token *t, rec_size c, slab from, slab to) {
    if (width == 8 && WIDEST == 8)
        step_of(p, WIDEST, NULL, q, h, t, c, from, to);
    else if (width == 4)
        step_of(p, 4, NULL, q, h, t, c, from, to);
    else if (width == 2)
        step_of(p, 2, NULL, q, h, t, c, from, to);
    else
        step_of(p, 1, NULL, q, h, t, c, from, to);
}

/* ---- States ------------------------------------------------------------------------------------------ */

/* A state that may be used where it lies: floats, with a step of 1 along `axis`, 2 or 3. */
static bool is_direct(const rec_view *v, const rec_sequence *q, int axis) {
    return v->present && q->row >= 0 && v->stride[axis] == 1 && v->dtype == EJK_DTYPE_F32;
}

/* Where columns c on lie in a tensor of states, if a slab may be used there. */
static bool state_slab(const rec_problem *p, int role, const rec_sequence *q, rec_size h,
                       rec_size c, int width, slab *at) {
    const rec_view *v = &p->view[role];
    if (!is_direct(v, q, 3) || c + width * VL > p->value_size) return false;
    *at = (slab){element_at(EJK_DTYPE_F32, v->data, rec_state_at(v, q->row, h) + c), v->stride[2]};
    return true;
}

/* One token of states that both lie with their keys in a row. */
static bool run_turned(const rec_problem *p, const prefetching *how, const rec_sequence *q,
                       rec_size h, const token *t, rec_size first, rec_size last) {
    const rec_view *from = &p->view[REC_INITIAL], *to = &p->view[REC_FINAL];
    if (!is_direct(from, q, 2) || !is_direct(to, q, 2)) return false;
    const float *source = element_at(EJK_DTYPE_F32, from->data, rec_state_at(from, q->row, h));
    float *target = element_at(EJK_DTYPE_F32, to->data, rec_state_at(to, q->row, h));
    step_turned(p, how, q, h, t, first, last, source, from->stride[3], target, to->stride[3]);
    return true;
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

typedef struct worker {
    const rec_problem *p;
    float *rows;   /* of BLOCK tokens */
    float *states; /* slabs of a head */
    rec_size pitch;
    int width; /* of slabs, in vectors */
    prefetching how;
    token block[BLOCK];
} worker;

static int width_of(const rec_problem *p) {
    int width = WIDEST;
    while (width > 1 && (p->key_size * width * VL * (int)sizeof(float) > SLAB ||
                         (width / 2) * VL >= p->value_size))
        width /= 2;
    return width;
}

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

/* Tokens of the block that begins with step n: how many of them count. */
static int load_block(worker *w, const rec_sequence *q, rec_size h, rec_size n, rec_size end,
                      rec_size first, rec_size last) {
    const rec_problem *p = w->p;
    int count = 0;
    for (rec_size i = n; i < end; i++) {
        const rec_turn turn = rec_turn_of(p, q, i);
        const rec_size t = rec_token(p, q, i);
        if (!turn.counts) {
            clear_out(p, q->batch, t, h, first, last);
            continue;
        }
        w->block[count] = token_in(w->rows + count * TOKEN_ROWS * w->pitch, w->pitch);
        load_token(p, q, t, h, w->pitch, &w->block[count]);
        w->block[count++].resets = turn.resets;
    }
    return count;
}

/* The block's tokens over a slab, which begins in `from` and ends in `to`; `own` is where it lies in between. */
static void run_block(worker *w, const rec_sequence *q, rec_size h, int count, rec_size c,
                      slab from, slab own, slab to) {
    for (int i = 0; i < count; i++) {
        slab source = i == 0 ? from : own;
        if (w->block[i].resets) {
            memset(own.data, 0, (size_t)(w->p->key_size * own.stride) * sizeof *own.data);
            source = own;
        }
        step_any(w->p, w->width, q, h, &w->block[i], c, source, i + 1 == count ? to : own);
    }
}

/* One token that reads and writes states where they lie, by whole rows if they are not too long: memory then passes by
 * in its order. The columns done. */
static rec_size run_wide(worker *w, const rec_sequence *q, rec_size h, rec_size c, rec_size last) {
    slab from, to;
    if (c + WIDEST * VL > last || w->block[0].resets ||
        !state_slab(w->p, REC_INITIAL, q, h, c, WIDEST, &from) ||
        !state_slab(w->p, REC_FINAL, q, h, c, WIDEST, &to))
        return 0;
    step_of(w->p, WIDEST, &w->how, q, h, &w->block[0], c, from, to);
    return WIDEST * VL;
}

/* Columns from c on of a sequence of one block, `count` of whose tokens count. */
static void run_slab(worker *w, const rec_sequence *q, rec_size h, int count, rec_size c) {
    const slab own = {w->states, w->width * VL};
    slab from = own, to = own;
    if (count == 0 || !state_slab(w->p, REC_INITIAL, q, h, c, w->width, &from))
        load_state(w->p, &w->p->view[REC_INITIAL], q->row, h, c, w->width, own);
    const bool direct = count > 0 && state_slab(w->p, REC_FINAL, q, h, c, w->width, &to);
    run_block(w, q, h, count, c, from, own, to);
    if (!direct) store_state(w->p, &w->p->view[REC_FINAL], q->row, h, c, w->width, own);
}

/* A sequence of one block: columns first to last - 1. */
static void run_short(worker *w, const rec_sequence *q, rec_size h, rec_size first, rec_size last) {
    const int count = load_block(w, q, h, 0, q->end - q->begin, first, last);
    if (count == 1 && !w->block[0].resets &&
        run_turned(w->p, &w->how, q, h, &w->block[0], first, last))
        return;
    for (rec_size c = first; c < last;) {
        const rec_size done = count == 1 ? run_wide(w, q, h, c, last) : 0;
        if (!done) run_slab(w, q, h, count, c);
        c += done ? done : w->width * VL;
    }
}

/* Floats of a head's states in slabs. */
static rec_size state_floats(const rec_problem *p) {
    return p->key_size * ejki_round_up(p->value_size, width_of(p) * VL);
}

static rec_size together(const rec_problem *p) {
    const rec_size bytes = ejki_max(state_floats(p), 1) * (rec_size)sizeof(float);
    return ejki_max(ejki_min(ejki_min(TOGETHER / bytes, MOST_TOGETHER), p->heads), 1);
}

static void run_long(worker *w, const rec_sequence *q, rec_size h, rec_size heads, rec_size first,
                     rec_size last) {
    const rec_size columns = w->width * VL, size = w->p->key_size * columns;
    const rec_size slabs = ejki_cdiv(last - first, columns), steps = q->end - q->begin;
    for (rec_size i = 0; i < heads * slabs; i++)
        load_state(w->p, &w->p->view[REC_INITIAL], q->row, h + i / slabs,
                   first + i % slabs * columns, w->width, (slab){w->states + i * size, columns});
    for (rec_size n = 0; n < steps; n += BLOCK)
        for (rec_size i = 0; i < heads; i++) {
            const int count = load_block(w, q, h + i, n, ejki_min(n + BLOCK, steps), first, last);
            for (rec_size s = 0; s < slabs; s++) {
                const slab own = {w->states + (i * slabs + s) * size, columns};
                if (n % REC_KEPT_STEPS == 0)
                    store_at(w->p, &w->p->view[REC_STATES], rec_kept_at(w->p, q, n, h + i),
                             first + s * columns, w->width, own);
                run_block(w, q, h + i, count, first + s * columns, own, own, own);
            }
        }
    for (rec_size i = 0; i < heads * slabs; i++)
        store_state(w->p, &w->p->view[REC_FINAL], q->row, h + i / slabs,
                    first + i % slabs * columns, w->width, (slab){w->states + i * size, columns});
}

/* Parts that the slabs of a head are dealt out in: few heads leave threads idle otherwise. */
static rec_size parts_of(const rec_problem *p, int32_t workers) {
    const rec_size slabs = ejki_cdiv(p->value_size, width_of(p) * VL);
    const rec_size heads = ejki_max(p->sequences * p->heads, 1);
    return ejki_max(ejki_min(slabs, ejki_cdiv(2 * workers, heads)), 1);
}

static size_t worker_floats(const rec_problem *p) {
    return (size_t)(BLOCK * TOKEN_ROWS * row_pitch(p) + together(p) * state_floats(p) + VL);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    (void)parameters;
    const rec_size slabs = ejki_cdiv(p->value_size, width_of(p) * VL);
    const rec_size tasks = p->sequences * p->heads * ejki_max(slabs, 1);
    launch->workers = (int32_t)ejki_max(ejki_min(threads, tasks), 1);
    launch->workspace_bytes = (size_t)launch->workers * worker_floats(p) * sizeof(float);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const rec_problem *p = run->problem;
    worker w = {.p = p,
                .width = width_of(p),
                .pitch = row_pitch(p),
                .how = prefetching_of(run->parameters)};
    w.rows = (float *)run->workspace + (size_t)index * worker_floats(p);
    w.states = w.rows + BLOCK * TOKEN_ROWS * w.pitch;
    if (p->key_size == 0) memset(w.rows, 0, BLOCK * TOKEN_ROWS * VL * sizeof *w.rows);
    const rec_size columns = w.width * VL, slabs = ejki_cdiv(p->value_size, columns);
    const rec_size parts = parts_of(p, run->workers), tasks = p->sequences * p->heads * parts;
    const rec_size end = tasks * (index + 1) / run->workers;
    const unsigned mode = flush_subnormals();
    for (rec_size n = tasks * index / run->workers, count; n < end; n += count) {
        const rec_size part = n % parts, h = n / parts % p->heads;
        const rec_sequence q = rec_sequence_of(p, n / parts / p->heads);
        const rec_size first = slabs * part / parts * columns;
        const rec_size last = ejki_min(slabs * (part + 1) / parts * columns, p->value_size);
        count = 1;
        if (q.end - q.begin <= BLOCK && !rec_keeps(p)) {
            run_short(&w, &q, h, first, last);
            continue;
        }
        if (parts == 1) count = ejki_min(ejki_min(end - n, p->heads - h), together(p));
        run_long(&w, &q, h, count, first, last);
    }
    restore_subnormals(mode);
    if (index > 0) return;
    for (rec_size t = rec_covered(p); t < p->tokens; t++)
        for (rec_size h = 0; h < p->heads; h++) clear_out(p, 0, t, h, 0, p->value_size);
    rec_clear_kept(p);
}

EJKI_DEFINE_RUN(work)

static const ejk_parameter parameters_of_line[] = {PREFETCH_HINT, PREFETCH_BYTES(8192)};
EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = parameters_of_line, .parameter_count = 2,
             .prepare = prepare, .run = run)
