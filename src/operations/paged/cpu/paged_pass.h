/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of few rows over the keys, or the values, of a block: addresses, and what is prefetched beside. */
#ifndef EJKI_PAGED_PASS_H
#define EJKI_PAGED_PASS_H

#include "operations/paged/cpu/paged_few.h"

/* What stays the same while products of a block are made, where the compiler would look again after every store. */
typedef struct few_pass {
    const paged_few *f;
    bool values;
    const char *const *row, *const *tail;
    paged_size low, high, rows, dim, tail_dim, depth;
    paged_size step, tail_step; /* bytes from head to head */
    const float *query;
    float *scores, *sums;
    operand_seen seen;
} few_pass;

static inline few_pass pass_of(const paged_few *f, bool values) {
    const paged_problem *p = f->j->p;
    const paged_plan *t = &f->j->work->plan;
    const paged_cache *c = values ? &p->value : &p->key;
    return (few_pass){.f = f,
                      .values = values,
                      .row = values ? f->block->value : f->block->key,
                      .tail = f->block->tail,
                      .low = f->block->low,
                      .high = f->block->high,
                      .rows = f->j->rows,
                      .dim = values ? p->value_dim : p->dim,
                      .tail_dim = p->tail_dim,
                      .depth = values ? t->width : t->depth,
                      .step = c->head * paged_bytes(c->dtype),
                      .tail_step = p->key_tail.head * paged_bytes(p->key_tail.dtype),
                      .query = f->query,
                      .scores = f->scores,
                      .sums = f->sums,
                      .seen = operand_seen_none()};
}

/* out[i] = from[i] + step. Four pointers stay in registers, more are in memory, where a loop is as good. */
static inline __attribute__((always_inline)) void step_rows(const char *const *from, const int n,
                                                            paged_size step, const char **out) {
    if (n <= 4)
        EJKI_UNROLL for (int i = 0; i < n; i++) out[i] = from[i] + step;
    else
        EJKI_UNROLL_NOT for (int i = 0; i < n; i++) out[i] = from[i] + step;
}

/* Addresses of `n` rows from t on, `step` bytes behind the item's first head; zeros have no heads. */
static inline __attribute__((always_inline)) void rows_at(const few_pass *s, const char *const *row,
                                                          paged_size t, const int n,
                                                          paged_size step, const char **out) {
    if (t >= s->low && t + n <= s->high)
        step_rows(row + t, n, step, out);
    else
        head_rows(row, t, n, step, s->f->block, out);
}

/* What is prefetched beside a step of a head: rows that are read later, or what is left of them in the order of memory.
 * NULL: nothing. */
typedef struct few_ahead {
    bool any, single, first_level; /* whether at all; lines of single rows, for which cache */
    const char *const *row;
    paged_size from;       /* row[0] is beside row `from` */
    paged_size head, step; /* bytes to the head, and from head to head */
    paged_prefetch memory;
} few_ahead;

static inline few_ahead ahead_of(const paged_few *f, bool any) {
    return (few_ahead){.any = any, .single = f->single, .first_level = f->first_level};
}

/* Begins with `count` rows from t on of head h. */
static inline void begin_ahead(few_ahead *a, const few_pass *s, paged_size h, paged_size t,
                               paged_size count) {
    const paged_few *f = s->f;
    const paged_problem *p = f->j->p;
    paged_size at = t + f->rows_ahead, head = h + f->heads_ahead;
    if (head >= f->j->heads) {
        head -= f->j->heads;
        at += VL;
    }
    const bool ends = at >= BLOCK, values = s->values != ends;
    if (ends) at -= BLOCK;
    const char *const *rows = values ? f->block->value : ends ? f->next->key : f->block->key;
    if (!values && ends && f->next->high == 0) rows = NULL;
    const paged_cache *c = values ? &p->value : &p->key;
    if (!a->single) {
        begin_rows(&a->memory, f, c, rows, values ? p->value_dim : p->dim, head, at, count);
        return;
    }
    a->row = rows ? rows + at : NULL;
    a->from = t;
    a->step = c->head * paged_bytes(c->dtype);
    a->head = (head - h) * a->step;
}

/* What is prefetched beside `n` rows from t on of head h, `bytes` bytes; `other` if nothing is left. */
static inline __attribute__((always_inline)) void lines_beside(few_ahead *a, const int n,
                                                               paged_size bytes, paged_size h,
                                                               paged_size t, const char *other,
                                                               paged_lines *out) {
    out->any = !a->single || a->row;
    out->side = !a->single;
    out->first_level = a->first_level;
    out->step = (uintptr_t)(a->single ? LINE : n * LINE);
    if (!a->single) {
        out->row[0] = (uintptr_t)prefetch_next(&a->memory, bytes, other);
    } else if (a->row) {
        const uintptr_t behind = (uintptr_t)(a->head + h * a->step);
        EJKI_UNROLL for (int k = 0; k < n; k++) out->row[k] =
            (uintptr_t)a->row[t - a->from + k] + behind;
    }
}

/* Rows of a pass, head after head, and what is prefetched beside them. */
typedef struct few_heads {
    const char *row[VL], *tail[VL];
    paged_lines prefetch;
} few_heads;

/* Of `n` rows; all of it are 400 bytes, which took 3 % of a call. */
static inline __attribute__((always_inline)) void no_heads(few_heads *s, const int n) {
    EJKI_UNROLL for (int k = 0; k < n; k++) {
        s->row[k] = s->tail[k] = NULL;
        s->prefetch.row[k] = 0;
    }
    s->prefetch.step = 0;
    s->prefetch.any = s->prefetch.side = s->prefetch.first_level = false;
}

/* The `n` rows from t on of head h, of which the first head of a step is `first`: those of the next are a step away.
 * What is prefetched begins with `count` rows, or goes on if that is 0. */
static inline __attribute__((always_inline)) void
find_heads(const few_pass *p, few_ahead *ahead, const int n, paged_size bytes, paged_size first,
           paged_size h, paged_size t, bool prefetches, paged_size count, few_heads *s) {
    const bool whole = t >= p->low && t + n <= p->high;
    const bool has_tail = !p->values && p->tail_dim > 0;
    if (h > first && whole) {
        step_rows(s->row, n, p->step, s->row);
        if (has_tail) step_rows(s->tail, n, p->tail_step, s->tail);
    } else {
        rows_at(p, p->row, t, n, h * p->step, s->row);
        if (has_tail) rows_at(p, p->tail, t, n, h * p->tail_step, s->tail);
    }
    if (!prefetches || !ahead->any) return;
    if (count > 0) begin_ahead(ahead, p, h, t, count);
    if (h == first || !ahead->single)
        lines_beside(ahead, n, bytes, h, t, s->row[0], &s->prefetch);
    else if (s->prefetch.any)
        EJKI_UNROLL for (int k = 0; k < n; k++) s->prefetch.row[k] += (uintptr_t)ahead->step;
}

#endif
