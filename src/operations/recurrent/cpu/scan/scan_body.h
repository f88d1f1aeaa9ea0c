/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence token by token, in vectors of columns of the state: what serves every member, short sequences and
 * steps. A task is a range of columns of a head of a sequence. Its columns lie in slabs [Dk][width], as wide as half of
 * an L1 cache allows, and each slab takes BLOCK tokens at a time, whose rows are prepared once for all slabs. A token
 * is two passes over a slab: sums X and Y, then the update (token_body.h). Where a sequence is one block, the first
 * token reads the initial state where it lies and the last one writes the final state where it goes, so that a step
 * moves a state once in each direction. States [Dv][Dk] of a step have their keys in the lanes: turned_body.h.
 *
 * Columns never meet, and rows are added up two by two in their order: bits do not depend on slabs or threads.
 */
#include "kernels/simd/vec.h"

#include <string.h>

#include "kernels/declare.h"
#include "operations/recurrent/cpu/scan/token_body.h"

/* Columns of a slab are at most WIDEST vectors, and its bytes SLAB, unless it is one vector wide. */
enum { BLOCK = 16, WIDEST = 4, SLAB = 16384 };

/* Columns of a state in floats: row i is i * stride on. */
typedef struct slab {
    float *data;
    rec_size stride;
} slab;

/* ---- A token and a slab ------------------------------------------------------------------------------ */

/* X and Y; what is in odd rows is added up apart. */
INLINE void sum_rows(const int width, const bool has_x, const token *t, rec_size rows, slab from,
                     vf *x, vf *y) {
    vf odd_x[WIDEST], odd_y[WIDEST];
    for (int w = 0; w < width; w++) x[w] = y[w] = odd_x[w] = odd_y[w] = v_zero();
    rec_size i = 0;
    const float *at = from.data;
    for (; i + 2 <= rows; i += 2, at += 2 * from.stride) {
        const vf x0 = has_x ? v_set1(t->x[i]) : v_zero(), y0 = v_set1(t->y[i]);
        const vf x1 = has_x ? v_set1(t->x[i + 1]) : v_zero(), y1 = v_set1(t->y[i + 1]);
        for (int w = 0; w < width; w++) {
            const vf even = v_load(at + w * VL), odd = v_load(at + from.stride + w * VL);
            if (has_x) x[w] = v_fma(x0, even, x[w]), odd_x[w] = v_fma(x1, odd, odd_x[w]);
            y[w] = v_fma(y0, even, y[w]);
            odd_y[w] = v_fma(y1, odd, odd_y[w]);
        }
    }
    for (int w = 0; w < width && i < rows; w++) {
        const vf s = v_load(at + w * VL);
        if (has_x) x[w] = v_fma(v_set1(t->x[i]), s, x[w]);
        y[w] = v_fma(v_set1(t->y[i]), s, y[w]);
    }
    for (int w = 0; w < width; w++) x[w] = v_add(x[w], odd_x[w]), y[w] = v_add(y[w], odd_y[w]);
}

INLINE void update_rows(const int width, const bool has_a, const bool has_dv, const token *t,
                        rec_size rows, slab from, slab to, const vf *u, const vf *x, const vf *dv) {
    const float *at = from.data;
    float *place = to.data;
    for (rec_size i = 0; i < rows; i++, at += from.stride, place += to.stride) {
        const vf d = v_set1(t->d[i]), k = v_set1(t->k[i]), a = v_set1(has_a ? t->a[i] : 0);
        for (int w = 0; w < width; w++) {
            vf s = v_mul(d, v_load(at + w * VL));
            if (has_dv) s = v_mul(s, dv[w]);
            s = v_fma(k, u[w], s);
            if (has_a) s = v_fma(a, x[w], s);
            v_store(place + w * VL, s);
        }
    }
}

/* Columns c to c + width·VL - 1 of the state, of which those from `columns` on are no columns. */
INLINE void step(const rec_problem *p, const int width, const int update, const bool has_dv,
                 const rec_sequence *q, rec_size h, const token *t, rec_size c, slab from,
                 slab to) {
    const rec_view *value = &p->view[REC_VALUE], *gv = &p->view[REC_GV], *out = &p->view[REC_OUT];
    const bool before = p->read == REC_BEFORE;
    const rec_size place = rec_at(out, q->batch, t->t, h);
    const rec_size own = rec_at(value, q->batch, t->t, rec_head(p, h, p->value_heads));
    vf x[WIDEST], y[WIDEST], u[WIDEST], dv[WIDEST];
    sum_rows(width, update != REC_ADD, t, p->key_size, from, x, y);
    for (int w = 0; w < width; w++) {
        const rec_size at = c + w * VL;
        dv[w] = v_set1(1);
        u[w] = at < p->value_size ? view_part(value, own, at, p->value_size) : v_zero();
        if (has_dv && at < p->value_size) {
            dv[w] = v_exp(view_part(gv, rec_at(gv, q->batch, t->t, h), at, p->value_size));
            if (update == REC_DELTA) x[w] = v_mul(x[w], dv[w]);
            if (!before) y[w] = v_mul(y[w], dv[w]);
        }
        vf sum = v_fma(v_set1(t->own), u[w], y[w]);
        if (update == REC_DELTA) u[w] = v_mul(v_set1(t->beta), v_sub(u[w], x[w]));
        sum = v_fma(v_set1(t->qk), u[w], sum);
        if (update == REC_RANK_ONE) sum = v_fma(v_set1(t->qa), x[w], sum);
        if (at < p->value_size)
            v_narrow_some((ejk_dtype)out->dtype,
                          element_at((ejk_dtype)out->dtype, out->data, place + at), sum,
                          p->value_size - at);
    }
    update_rows(width, update == REC_RANK_ONE, has_dv, t, p->key_size, from, to, u, x, dv);
}

INLINE void step_of(const rec_problem *p, const int width, const rec_sequence *q, rec_size h,
                    const token *t, rec_size c, slab from, slab to) {
    if (p->value_decay)
        step(p, width, p->update, true, q, h, t, c, from, to);
    else if (p->update == REC_ADD)
        step(p, width, REC_ADD, false, q, h, t, c, from, to);
    else if (p->update == REC_DELTA)
        step(p, width, REC_DELTA, false, q, h, t, c, from, to);
    else
        step(p, width, REC_RANK_ONE, false, q, h, t, c, from, to);
}

static void step_any(const rec_problem *p, int width, const rec_sequence *q, rec_size h,
                     const token *t, rec_size c, slab from, slab to) {
    if (width == 4)
        step_of(p, 4, q, h, t, c, from, to);
    else if (width == 2)
        step_of(p, 2, q, h, t, c, from, to);
    else
        step_of(p, 1, q, h, t, c, from, to);
}

/* ---- States ------------------------------------------------------------------------------------------ */

/* Columns c on of the state of a head, in a slab of `width` vectors; 0 where there is none. */
static void load_state(const rec_problem *p, const rec_sequence *q, rec_size h, rec_size c,
                       int width, slab to) {
    const rec_view *v = &p->view[REC_INITIAL];
    const rec_size columns = ejki_min(p->value_size - c, width * VL);
    memset(to.data, 0, (size_t)(p->key_size * to.stride) * sizeof *to.data);
    if (!v->present || q->row < 0) return;
    const rec_size at = rec_state_at(v, q->row, h) + c * v->stride[3];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j += v->stride[3] == 1 ? VL : 1) {
            const rec_size from = at + i * v->stride[2] + j * v->stride[3];
            if (v->stride[3] == 1)
                v_store_first(to.data + i * to.stride + j, view_part(v, from - j, j, columns),
                              ejki_min(columns - j, VL));
            else
                to.data[i * to.stride + j] = view_load(v, from);
        }
}

static void store_state(const rec_problem *p, const rec_sequence *q, rec_size h, rec_size c,
                        int width, slab from) {
    const rec_view *v = &p->view[REC_FINAL];
    const rec_size columns = ejki_min(p->value_size - c, width * VL);
    if (!v->present || q->row < 0) return;
    const rec_size at = rec_state_at(v, q->row, h) + c * v->stride[3];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            element_store((ejk_dtype)v->dtype, v->data, at + i * v->stride[2] + j * v->stride[3],
                          from.data[i * from.stride + j]);
}

/* Where columns c on lie in a tensor of states, if a slab may be used there. */
static bool state_slab(const rec_problem *p, int role, const rec_sequence *q, rec_size h,
                       rec_size c, int width, slab *at) {
    const rec_view *v = &p->view[role];
    if (!v->present || q->row < 0 || v->stride[3] != 1 || v->dtype != EJK_DTYPE_F32 ||
        c + width * VL > p->value_size)
        return false;
    *at = (slab){element_at(EJK_DTYPE_F32, v->data, rec_state_at(v, q->row, h) + c), v->stride[2]};
    return true;
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

typedef struct worker {
    const rec_problem *p;
    float *rows;   /* of BLOCK tokens */
    float *states; /* slabs of a head */
    rec_size pitch;
    int width; /* of slabs, in vectors */
    token block[BLOCK];
} worker;

static int width_of(const rec_problem *p) {
    int width = WIDEST;
    while (width > 1 && (p->key_size * width * VL * (int)sizeof(float) > SLAB ||
                         (width / 2) * VL >= p->value_size))
        width /= 2;
    return width;
}

static void clear_out(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size c,
                      rec_size end) {
    const rec_view *out = &p->view[REC_OUT];
    for (; c < end; c++)
        element_store((ejk_dtype)out->dtype, out->data, rec_at(out, b, t, h) + c, 0);
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

/* A sequence of one block: columns first to last - 1. */
static void run_short(worker *w, const rec_sequence *q, rec_size h, rec_size first, rec_size last) {
    const rec_size columns = w->width * VL;
    const slab own = {w->states, columns};
    const int count = load_block(w, q, h, 0, q->end - q->begin, first, last);
    for (rec_size c = first; c < last; c += columns) {
        slab from = own, to = own;
        if (count == 0 || !state_slab(w->p, REC_INITIAL, q, h, c, w->width, &from))
            load_state(w->p, q, h, c, w->width, own);
        const bool direct = count > 0 && state_slab(w->p, REC_FINAL, q, h, c, w->width, &to);
        run_block(w, q, h, count, c, from, own, to);
        if (!direct) store_state(w->p, q, h, c, w->width, own);
    }
}

static void run_long(worker *w, const rec_sequence *q, rec_size h, rec_size first, rec_size last) {
    const rec_size columns = w->width * VL, size = w->p->key_size * columns;
    for (rec_size c = first; c < last; c += columns)
        load_state(w->p, q, h, c, w->width,
                   (slab){w->states + (c - first) / columns * size, columns});
    for (rec_size n = 0; n < q->end - q->begin; n += BLOCK) {
        const int count =
            load_block(w, q, h, n, ejki_min(n + BLOCK, q->end - q->begin), first, last);
        for (rec_size c = first; c < last; c += columns) {
            const slab own = {w->states + (c - first) / columns * size, columns};
            run_block(w, q, h, count, c, own, own, own);
        }
    }
    for (rec_size c = first; c < last; c += columns)
        store_state(w->p, q, h, c, w->width,
                    (slab){w->states + (c - first) / columns * size, columns});
}

/* Parts that the slabs of a head are dealt out in: few heads leave threads idle otherwise. */
static rec_size parts_of(const rec_problem *p, int32_t workers) {
    const rec_size slabs = ejki_cdiv(p->value_size, width_of(p) * VL);
    const rec_size heads = ejki_max(p->sequences * p->heads, 1);
    return ejki_max(ejki_min(slabs, ejki_cdiv(2 * workers, heads)), 1);
}

static size_t worker_floats(const rec_problem *p) {
    const rec_size columns = ejki_round_up(p->value_size, width_of(p) * VL);
    return (size_t)(BLOCK * TOKEN_ROWS * row_pitch(p) + p->key_size * columns + VL);
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
    worker w = {.p = p, .width = width_of(p), .pitch = row_pitch(p)};
    w.rows = (float *)run->workspace + (size_t)index * worker_floats(p);
    w.states = w.rows + BLOCK * TOKEN_ROWS * w.pitch;
    if (p->key_size == 0) memset(w.rows, 0, BLOCK * TOKEN_ROWS * VL * sizeof *w.rows);
    const rec_size columns = w.width * VL, slabs = ejki_cdiv(p->value_size, columns);
    const rec_size parts = parts_of(p, run->workers), tasks = p->sequences * p->heads * parts;
    for (rec_size n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        const rec_size part = n % parts, h = n / parts % p->heads;
        const rec_sequence q = rec_sequence_of(p, n / parts / p->heads);
        const rec_size first = slabs * part / parts * columns;
        const rec_size last = ejki_min(slabs * (part + 1) / parts * columns, p->value_size);
        if (q.end - q.begin <= BLOCK)
            run_short(&w, &q, h, first, last);
        else
            run_long(&w, &q, h, first, last);
    }
    if (index > 0) return;
    for (rec_size t = rec_covered(p); t < p->tokens; t++)
        for (rec_size h = 0; h < p->heads; h++) clear_out(p, 0, t, h, 0, p->value_size);
}

static ejk_status run(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
