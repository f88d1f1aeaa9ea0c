/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many rows on AMX: the second-level cache holds HELD_COLUMNS columns of b for a block of the depth, packed
 * once, and rows pass by, a tile of rows and HELD_WORDS words of it in the first-level cache at a time. Beside tiles,
 * which leave vectors idle, the words that come next are packed and the sums of the panel before become results. Sums
 * are those of product_dense.h, step by step.
 */
#ifndef EJKI_PRODUCT_HELD_H
#define EJKI_PRODUCT_HELD_H

#include "operations/matmul/shared/product_operands.h"
#include "operations/matmul/shared/product_results.h"

/* Words of a tile of rows that come next: lines of TILE_STEP words, those of a row one after the other. */
typedef struct held_rows {
    const void *const *row;
    float *to;
    int64_t steps, step, i; /* of a row; of the next line */
    v_tiny tiny;
    bool fit; /* those that are packed already are fit for products */
} held_rows;

/* Packs n lines. */
INLINE void held_pack(held_rows *r, int64_t n) {
    for (; n > 0 && r->i < TILE_ROWS; n--) {
        const vf v = v_load_pairs((const char *)r->row[r->i] + r->step * (4 * TILE_STEP));
        r->tiny = v_tiny_with(r->tiny, v);
        v_store(r->to + (r->step * TILE_ROWS + r->i) * TILE_STEP, v);
        if (++r->step < r->steps) continue;
        r->step = 0;
        r->i++;
    }
}

/* Sums of a panel that wait to become results; they lie in rows of TILE_COLUMNS. */
typedef struct held_results {
    const float *sums;
    char *to;
    int64_t stride, rows; /* in bytes; rows left */
    ejk_dtype dtype;
} held_results;

INLINE void held_store_as(const ejk_dtype dtype, held_results *r, int64_t n) {
    for (; n > 0 && r->rows > 0; n--, r->rows--, r->sums += TILE_COLUMNS, r->to += r->stride)
        EJKI_UNROLL for (int j = 0; j < TILE_COLUMNS; j += VL)
            v_narrow(dtype, r->to + j * element_size(dtype), v_load(r->sums + j));
}

/* Makes results of n rows. */
INLINE void held_store(held_results *r, int64_t n) {
    if (r->rows > 0) ELEMENT_CALL(r->dtype, held_store_as, r, n);
}

/* What is done beside the products of a panel, at each of its steps. */
typedef struct held_beside {
    held_rows rows;
    held_results results;
    int64_t lines, each;   /* lines of rows and rows of results of a step */
    held_results expected; /* of this panel: where they go to is asked for */
} held_beside;

INLINE void held_ask(held_results *r, int64_t n) {
    for (; n > 0 && r->rows > 0; n--, r->rows--, r->to += r->stride)
        for (int64_t at = 0; at < TILE_COLUMNS * element_size(r->dtype); at += 64)
            __builtin_prefetch(r->to + at, 0, 2);
}

/* Sums of a tile of rows with a panel, from those at `from` on if `add`. What goes on beside is kept in registers. */
INLINE void held_panel(const bool both, int64_t words, const float *a, const float *b,
                       const float *from, float *to, bool add, held_beside *d) {
    held_rows rows = d->rows;
    held_results results = d->results, expected = d->expected;
    const int64_t lines = d->lines, each = d->each;
    tiles_begin(both, from, add);
    for (int64_t w = 0; w < words; w += TILE_STEP) {
        held_ask(&expected, each);
        tiles_add(both, false, true, a + w * TILE_ROWS, b + w * TILE_COLUMNS);
        held_pack(&rows, lines);
        held_store(&results, each);
        AMX_BARRIER();
    }
    tiles_end(both, to);
    d->rows.step = rows.step;
    d->rows.i = rows.i;
    d->rows.tiny = rows.tiny;
    d->results.sums = results.sums;
    d->results.to = results.to;
    d->results.rows = results.rows;
    d->expected.rows = 0;
}
/* Functions of their own, as it takes all registers. */
static __attribute__((noinline)) void held_panel_whole(int64_t words, const float *a,
                                                       const float *b, const float *from, float *to,
                                                       bool add, held_beside *d) {
    held_panel(true, words, a, b, from, to, add, d);
}
static __attribute__((noinline)) void held_panel_upper(int64_t words, const float *a,
                                                       const float *b, const float *from, float *to,
                                                       bool add, held_beside *d) {
    held_panel(false, words, a, b, from, to, add, d);
}

/* ---- Columns that are held ------------------------------------------------------------------------- */

/* Whether columns of b are held while rows pass by; all rows of a segment, not PRODUCT_ROWS, if all of the depth is. */
static bool may_hold(const mm_product *p) {
    return p->split != MM_DEPTH && p->depth > 0 && !p->quant.present && !p->a.flipped &&
           !p->a.ones && !p->fold_by;
}
static bool may_hold_all(const mm_product *p) {
    return may_hold(p) && !p->gated && p->depth <= PRODUCT_DEPTH * TILE_UNIT &&
           (!p->run || p->run >= p->depth);
}

/* Columns of b that are held, with a block of the depth. */
typedef struct held_columns {
    mm_size first, depth, words;
    mm_size column, columns; /* of the block of the product */
    bool fit[HELD_COLUMNS / PACK_COLUMNS];
    bool adds, ends;  /* sums go on; results are made of them */
    float *sums;      /* of the first panel */
    mm_size sums_row; /* 0: of one tile of rows only; else from one row to the next */
    held_beside beside;
    const void *row[TILE_ROWS]; /* of beside.rows */
    _Alignas(64) float sums_last[2][TILE_ROWS * TILE_COLUMNS];
} held_columns;

/* Packs them, while lines HELD_AHEAD rows on are asked for; `column` is that of b. */
static void hold_columns(ejk_dtype dtype, product_block *k, held_columns *h, mm_size column) {
    enum { HELD_AHEAD = 16 };
    for (mm_size j = 0, some; j < h->columns; j += some) {
        some = ejki_min(h->columns - j, PACK_COLUMNS);
        float *target = k->a + j * h->words;
        const mm_size panels = some / TILE_COLUMNS, ahead = h->depth - HELD_AHEAD;
        const bool whole =
            !k->p->b.flipped && some % TILE_COLUMNS == 0 && h->depth == h->words * TILE_UNIT;
        const void *next = b_at(dtype, k, h->first + HELD_AHEAD, column + j);
        look_ahead(dtype, k, ahead > 0 ? next : NULL, ahead, some, 1);
        h->fit[j / PACK_COLUMNS] =
            whole ? pack_panels(k, b_at(dtype, k, h->first, column + j), h->words, panels,
                                TILE_UNIT * panels, target)
                  : CALL_TYPED(dtype, pack_b, k, h->first, h->depth, column + j, some, target);
    }
}

/* Words `from` on of rows t on are to be packed next, to `to`; at once if that is not whole lines. */
static void held_begin_rows(ejk_dtype dtype, const product_block *k, held_columns *h, mm_size t,
                            mm_size from, float *to) {
    held_rows *r = &h->beside.rows;
    *r = (held_rows){.row = h->row, .to = to, .i = TILE_ROWS, .tiny = v_tiny_none(), .fit = true};
    if (t >= k->rows) return;
    rows_of_a(dtype, k, t, h->first + from * TILE_UNIT, h->row);
    const mm_size depth = ejki_min(h->depth - from * TILE_UNIT, HELD_WORDS * TILE_UNIT);
    if (depth % (TILE_STEP * TILE_UNIT) != 0) {
        r->fit = tiles_pack_rows(h->row, depth, to);
        return;
    }
    r->steps = depth / (TILE_STEP * TILE_UNIT);
    r->i = 0;
}

/* Where results of rows t to t + rows - 1 and of a panel, columns j on of the block, go to. */
static held_results held_results_of(const product_block *k, mm_size t, mm_size rows, mm_size j) {
    const mm_view *out = &k->p->out;
    const ejk_dtype dtype = dtype_of(out);
    const mm_size at = k->s->out + (k->s->first + k->row + t) * out->row + k->column + j;
    return (held_results){.to = element_at(dtype, out->data, at),
                          .stride = out->row * element_size(dtype),
                          .rows = rows,
                          .dtype = dtype};
}

/* Makes results of a panel's sums, or leaves that to the next panel's products if they `wait`. */
static void held_end(product_block *k, held_columns *h, bool waits, mm_size t, mm_size rows,
                     mm_size j, float *sums) {
    held_beside *d = &h->beside;
    held_store(&d->results, TILE_ROWS);
    if (waits) {
        d->results = held_results_of(k, t, rows, j);
        d->results.sums = sums;
        return;
    }
    float *const all = k->sums;
    k->sums = sums;
    k->sums_from = j;
    k->sums_row = t;
    finish_part(k, t, t + rows, j, ejki_min(j + TILE_COLUMNS, h->column + h->columns));
    k->sums = all;
    k->sums_from = k->sums_row = 0;
}

/* Products of rows t on, whose words `from` to from + words - 1 are at `a`, with all columns. */
static void held_multiply(product_block *k, held_columns *h, mm_size t, mm_size from, mm_size words,
                          const float *a, bool fit) {
    const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
    const int64_t panels = ejki_cdiv(h->columns, TILE_COLUMNS), steps = words / TILE_STEP;
    const bool ends = h->ends && from + words == h->words, adds = h->adds || from > 0;
    held_beside *d = &h->beside;
    d->lines = ejki_cdiv(TILE_ROWS * d->rows.steps, panels * steps);
    d->each = ejki_cdiv(TILE_ROWS, steps);
    for (int64_t n = 0; n < panels; n++) {
        const float *b = k->a + (n * h->words + from) * TILE_COLUMNS;
        float *sums = h->sums + n * k->capacity * TILE_COLUMNS + t * h->sums_row, *to = sums;
        const mm_size j = h->column + n * TILE_COLUMNS;
        const bool waits = ends && is_plain(k) && (n + 1) * TILE_COLUMNS <= h->columns;
        if (waits) d->expected = held_results_of(k, t, rows, j);
        if (!fit || !h->fit[n * TILE_COLUMNS / PACK_COLUMNS]) {
            held_store(&d->results, TILE_ROWS);
            tiles_exact(rows, words, a, b, sums, adds);
        } else {
            if (ends) to = h->sums_last[n % 2];
            if (rows > 16)
                held_panel_whole(words, a, b, sums, to, adds, d);
            else
                held_panel_upper(words, a, b, sums, to, adds, d);
        }
        if (ends) held_end(k, h, waits, t, rows, j, to);
    }
}

/* Sums of all rows of the block with the columns that are held. */
static void held_sum(ejk_dtype dtype, product_block *k, held_columns *h) {
    enum { PLACE = HELD_WORDS * TILE_ROWS };
    held_rows *r = &h->beside.rows;
    int place = 0;
    h->beside.results.rows = h->beside.expected.rows = 0;
    held_begin_rows(dtype, k, h, 0, 0, k->b);
    held_pack(r, TILE_ROWS * r->steps);
    for (mm_size t = 0; t < k->rows; t += TILE_ROWS)
        for (mm_size from = 0, words; from < h->words; from += words) {
            words = ejki_min(h->words - from, HELD_WORDS);
            const bool fit = r->fit && !v_tiny_found(r->tiny), more = from + words < h->words;
            const float *a = k->b + place * PLACE;
            place = !place;
            held_begin_rows(dtype, k, h, more ? t : t + TILE_ROWS, more ? from + words : 0,
                            k->b + place * PLACE);
            held_multiply(k, h, t, from, words, a, fit);
            held_pack(r, TILE_ROWS * r->steps);
        }
    held_store(&h->beside.results, TILE_ROWS);
}

/* True if results are made of the sums, too. */
static bool sum_held(ejk_dtype dtype, product_block *k) {
    const mm_product *p = k->p;
    const bool halves = p->gated && !p->interleaved;
    const mm_size wide = p->gated && p->interleaved ? 2 : 1;
    const mm_size columns = k->columns * wide, depth = k->s->depth;
    const int64_t each = ejki_cdiv(columns, TILE_COLUMNS);
    held_columns h;
    k->sums_from = 0;
    for (int half = 0; half <= halves; half++)
        for (mm_size j = 0; j < columns; j += h.columns) {
            h.column = j;
            h.columns = ejki_min(columns - j, HELD_COLUMNS);
            h.sums = k->sums;
            if (p->gated) h.sums += (half * each * TILE_COLUMNS + j) * k->capacity;
            for (h.first = 0; h.first < depth; h.first += h.depth) {
                h.depth = ejki_min(depth - h.first, PRODUCT_DEPTH * TILE_UNIT);
                if (p->run) h.depth = ejki_min(h.depth, p->run - h.first % p->run);
                h.words = pack_room(ejki_cdiv(h.depth, TILE_UNIT));
                h.adds = h.first > 0;
                h.ends = h.first + h.depth == depth && !p->gated;
                h.sums_row = h.ends && !h.adds ? 0 : TILE_COLUMNS;
                hold_columns(dtype, k, &h, k->column * wide + (half ? p->columns : 0) + j);
                held_sum(dtype, k, &h);
            }
        }
    return !p->gated;
}

#endif
