/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of few rows: where they lie, and what becomes of them without products. paged_rows.h includes it. */
#ifndef EJKI_PAGED_SUMS_H
#define EJKI_PAGED_SUMS_H

#include "operations/paged/cpu/paged_few.h"
#ifdef PAGED_AMX
#include "operations/paged/cpu/amx/paged_amx_rows.h"
#endif

/* Where a row's vectors lie: those of rows that are multiplied together take turns. Tiles have row after row. */
typedef struct few_place {
    paged_size first; /* rows before those that take turns */
    paged_size lane;  /* the row among these */
    paged_size step;  /* vectors from one of the row to the next */
} few_place;

static few_place place_of(const paged_few *f, paged_size head, paged_size r, bool tiles) {
    const paged_size rows = f->j->rows, fours = rows & ~(paged_size)3;
    paged_size start = r, turns = 1;
    if (tiles) return (few_place){.first = head * rows + r, .step = 1};
    if (r < fours) {
        start = r & ~(paged_size)3;
        turns = 4;
    } else if (rows - fours >= 2 && r < fours + 2) {
        start = fours;
        turns = 2;
    }
    return (few_place){.first = head * rows + start, .step = turns, .lane = r - start};
}
/* The first vector of a row among rows of `width` floats. */
static float *place_in(float *rows, few_place at, paged_size width) {
    return rows + at.first * width + at.lane * VL;
}

static bool has_tiles(const paged_few *f) {
#ifdef PAGED_AMX
    return f->tiles;
#else
    (void)f;
    return false;
#endif
}

/* A row's sums in the order of memory, whole, to `to`; `back`: from there, as products leave them. */
static void move_sums(const paged_few *f, paged_size i, bool back, float *to) {
    const paged_problem *p = f->j->p;
    const paged_size width = f->j->work->plan.width;
    const few_place at = place_of(f, i / f->j->rows, i % f->j->rows, has_tiles(f));
    const float unit = line_unit((ejk_dtype)p->value.dtype);
    float *sums = place_in(f->sums, at, width);
    if (back && !has_tiles(f)) put_sums_in_order(p->value.dtype, false, to, p->value_dim);
    for (paged_size d = 0; d < width; d += VL)
        if (back)
            v_store(sums + d * at.step, v_mul(v_load(to + d), v_set1(1 / unit)));
        else
            v_store(to + d, v_mul(v_load(sums + d * at.step), v_set1(unit)));
    if (!back && !has_tiles(f)) put_sums_in_order(p->value.dtype, true, to, p->value_dim);
}

/* One row, key by key, what has a weight: values may be NaN that the row does not see. */
static void add_seen(const paged_few *f, paged_size i, paged_size h, float *sums) {
    const paged_problem *p = f->j->p;
    const ejk_dtype dtype = (ejk_dtype)p->value.dtype;
    for (paged_size t = f->block->low; t < f->block->high; t++) {
        const float weight = weight_at(f->scores + i * BLOCK, t);
        const char *value = f->block->value[t] + h * p->value.head * stored_size(dtype);
        for (paged_size d = 0; weight != 0 && d < p->value_dim; d += VL) {
            const vf v = v_stored_first(dtype, value + d * stored_size(dtype),
                                        paged_least(p->value_dim - d, VL));
            v_store(sums + d, v_fma(v_set1(weight), v, v_load(sums + d)));
        }
    }
}

/* The same, whatever order sums have. */
static void add_seen_any(paged_few *f, paged_size i, paged_size h) {
    float *sums = f->value_scale + BLOCK;
#ifdef PAGED_AMX
    const paged_size width = f->j->work->plan.width;
    if (f->tiles) order_sums(f, false, f->sums + i * width, sums);
#endif
    move_sums(f, i, false, sums);
    add_seen(f, i, h, sums);
    move_sums(f, i, true, sums);
#ifdef PAGED_AMX
    if (f->tiles) order_sums(f, true, f->sums + i * width, sums);
#endif
}

/* Sums of `count` heads take in the NaN of values that products did not see. */
static __attribute__((noinline)) void spoil_sums(const paged_few *f, paged_size first,
                                                 paged_size count) {
    const paged_problem *p = f->j->p;
    const paged_size step = p->value.head * paged_bytes(p->value.dtype);
    float *sums = f->value_scale + BLOCK;
    for (paged_size h = first; h < first + count; h++)
        for (paged_size i = h * f->j->rows; i < (h + 1) * f->j->rows; i++) {
            move_sums(f, i, false, sums);
            for (paged_size t = f->block->low; t < f->block->high; t++) {
                const char *value = f->block->value[t] + h * step;
                for (paged_size d = 0; d < p->value_dim; d++)
                    if (operand_is_nan((uint8_t)value[d])) sums[d] = NAN;
            }
            move_sums(f, i, true, sums);
        }
}

#endif
