/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of a block with codes whose groups run along the depth. */
#ifndef EJKI_PRODUCT_SUMS_H
#define EJKI_PRODUCT_SUMS_H

#include "operations/matmul/shared/product_block.h"
#include "operations/matmul/shared/product_groups.h"

static const void *group_row_of(ejk_dtype dtype, const product_block *k, mm_size i) {
    const mm_product *p = k->p;
    const mm_size own = k->s->first + k->row + i;
    const mm_size at = p->gather.present ? mm_number(&p->gather, own) : own;
    return element_at(dtype, p->a.data, k->s->a + at * p->a.row);
}

/* Rows of the block, which stay for all its columns. What a tile has too much is row 0. */
static void group_pack_rows(ejk_dtype dtype, product_block *k, const packed_form *form) {
    group_rows *r = &k->packed;
    if (k->packed_group == k->s->group && k->packed_row == k->row) return;
    k->packed_group = k->s->group;
    k->packed_row = k->row;
    r->tile = k->rows <= FEW_ROWS ? k->rows : TILE_ROWS;
    r->depth = group_words(form);
    r->capacity = k->capacity;
    r->words = k->a;
    r->sums = k->a + k->capacity * r->depth;
    r->scales = r->sums + k->capacity * group_blocks(form);
    r->begins = (int32_t *)(void *)(r->scales + k->capacity * group_blocks(form));
    r->some_unfit = false;
    for (mm_size i = 0; i < ejki_round_up(k->rows, r->tile); i++)
        rows_pack(dtype, form, k->p->quant.rounds, group_middle(&k->p->quant),
                  group_row_of(dtype, k, i < k->rows ? i : 0), i, r);
}

static group_codes group_codes_of(product_block *k) {
    const mm_quant *q = &k->p->quant;
    group_codes c = {.q = q, .matrix = k->s->held, .factor = 1};
    mm_quant kept = *q;
    if (q->packed) {
        const uint8_t *at = (const uint8_t *)q->codes + k->s->held * q->code_group;
        packed_header h;
        memcpy(&h, at, sizeof h);
        kept.scale_type = h.scale_type;
        kept.zero_type = h.zero_type;
        c.factor = h.factor;
        c.nan = h.has_nan;
        c.at = at + PACKED_HEADER;
    } else if (q->has_factor) {
        memcpy(&c.factor, q->factor, sizeof c.factor);
    }
    c.form = packed_form_of(&kept, mm_columns_of_b(k->p), k->p->depth);
    c.table = codes_table_of(q);
    c.kind = codes_kind(q);
#ifdef TILE_AMX
    const int64_t streams = ejki_cdiv(c.form.rows, PACKED_COLUMNS) * c.form.stream;
    c.end = (uintptr_t)c.at + (uintptr_t)streams;
    c.gap = (uintptr_t)(q->code_group - streams);
#endif
    c.own = (uint8_t *)(k->b + GROUP_DEPTH * TILE_COLUMNS + k->capacity * GROUP_COLUMNS);
    return c;
}

/* Columns of b: those of the block, or of the half of it that begins at a panel. */
typedef struct group_part {
    mm_size from, columns;
    float *sums;
} group_part;

/* Totals of `width` columns of b from `first` on to where results are made of them. */
static void group_place(const product_block *k, const group_part *part, mm_size first,
                        mm_size width, const float *totals) {
    const mm_size low = ejki_max(first, part->from) - first;
    const mm_size high = ejki_min(first + width, part->from + part->columns) - first;
    for (mm_size i = 0; i < k->rows; i++, totals += width)
        for (mm_size j = low, n; j < high; j += n) {
            const mm_size at = first + j - part->from, in = at % TILE_COLUMNS;
            n = ejki_min(TILE_COLUMNS - in, high - j);
            memcpy(part->sums + (at / TILE_COLUMNS * k->capacity + i) * TILE_COLUMNS + in,
                   totals + j, (size_t)n * sizeof *totals);
        }
}

/* The factor of all values, and rows that have been left out. */
static void group_settle(ejk_dtype dtype, const product_block *k, const group_codes *c,
                         const uint8_t *stream, mm_size first, mm_size width, float *totals) {
    const int column = (int)(first % PACKED_COLUMNS);
    if (c->factor != 1)
        for (mm_size i = 0; i < k->rows * width; i += VL)
            v_store(totals + i, v_mul(v_load(totals + i), v_set1(c->factor)));
    for (mm_size i = 0; (c->nan || k->packed.some_unfit) && i < k->rows; i++)
        if (c->nan || k->packed.unfit[i])
            group_row(dtype, c, group_row_of(dtype, k, i), stream, column, column + (int)width,
                      totals + i * width);
}

/* Columns of `count` streams from `at` on with more than FEW_ROWS rows. Totals of whole panels are made in place. */
static void group_sum_many(ejk_dtype dtype, product_block *k, group_codes *c,
                           const group_part *part, mm_size at, int count) {
    const mm_size first = at * PACKED_COLUMNS, end = part->from + part->columns;
    const int low = (int)ejki_max(part->from - first, 0) / TILE_COLUMNS * TILE_COLUMNS;
    const int high = (int)ejki_min(end - first, count * PACKED_COLUMNS);
    const bool in_place = part->from % TILE_COLUMNS == 0;
    float *words = k->b, *totals = words + GROUP_DEPTH * TILE_COLUMNS;
    if (in_place) totals = part->sums + (first + low - part->from) * k->capacity;
    const uint8_t *stream[GROUP_STREAMS];
    bool nan[GROUP_STREAMS];
    for (int i = 0; i < count; i++) {
        stream[i] = group_stream(c, at + i, i);
        nan[i] = c->nan;
    }
    group_many(c, &k->packed, k->rows, stream, low, high, words, totals);
    for (int column = low; column < high; column += TILE_COLUMNS) {
        float *own = totals + (column - low) * k->capacity;
        c->nan = nan[column / PACKED_COLUMNS];
        group_settle(dtype, k, c, stream[column / PACKED_COLUMNS], first + column, TILE_COLUMNS,
                     own);
        if (!in_place) group_place(k, part, first + column, TILE_COLUMNS, own);
    }
}

/* The same with up to FEW_ROWS rows. Several streams are those of a packed matrix. */
static void group_sum_few(ejk_dtype dtype, product_block *k, group_codes *c, const group_part *part,
                          mm_size at, int count) {
    float *totals = k->b + GROUP_DEPTH * TILE_COLUMNS;
    const uint8_t *stream = group_stream(c, at, 0);
    few_of(k->rows, c->kind)(c, &k->packed, stream, count, totals);
    for (int i = 0; i < count; i++, totals += k->rows * PACKED_COLUMNS) {
        const mm_size first = (at + i) * PACKED_COLUMNS;
        group_settle(dtype, k, c, stream + i * c->form.stream, first, PACKED_COLUMNS, totals);
        group_place(k, part, first, PACKED_COLUMNS, totals);
    }
}

static void group_sum(ejk_dtype dtype, product_block *k, group_codes *c, const group_part *part) {
    const mm_size end = ejki_cdiv(part->from + part->columns, PACKED_COLUMNS);
    const bool few = k->rows <= FEW_ROWS;
    const int most = !few ? GROUP_STREAMS : c->q->packed ? group_places() : 1;
    for (mm_size at = part->from / PACKED_COLUMNS, count; at < end; at += count) {
        count = ejki_min(end - at, most);
        if (few)
            group_sum_few(dtype, k, c, part, at, (int)count);
        else
            group_sum_many(dtype, k, c, part, at, (int)count);
    }
}

static void sum_groups(ejk_dtype dtype, product_block *k) {
    const mm_product *p = k->p;
    const bool halves = p->gated && !p->interleaved;
    const mm_size wide = p->gated && p->interleaved ? 2 : 1, columns = k->columns * wide;
    const mm_size panel = k->capacity * TILE_COLUMNS, each = ejki_cdiv(columns, TILE_COLUMNS);
    group_codes c = group_codes_of(k);
    if (k->s->depth == 0)
        memset(k->sums, 0, (size_t)((halves ? 2 : 1) * each * panel) * sizeof *k->sums);
    if (k->s->depth == 0) return;
    group_pack_rows(dtype, k, &c.form);
    for (int half = 0; half <= halves; half++)
        group_sum(dtype, k, &c,
                  &(group_part){.from = k->column * wide + (half ? p->columns : 0),
                                .columns = columns,
                                .sums = k->sums + half * each * panel});
}

#endif
