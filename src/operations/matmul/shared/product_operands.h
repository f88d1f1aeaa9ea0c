/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of a block of the depth: rows of a, columns of b, and what of b is asked for. */
#ifndef EJKI_PRODUCT_OPERANDS_H
#define EJKI_PRODUCT_OPERANDS_H

#include "operations/matmul/shared/product_block.h"
#include "operations/matmul/shared/product_finish.h"
#include "operations/matmul/shared/product_pack.h"
#ifdef TILE_AMX
#include "operations/matmul/shared/amx/product_tiles.h"
#endif
#ifndef TILE_BF16_DOT
#include "operations/matmul/shared/product_quant.h"
#endif

/* Where elements `first` on of the depth of a tile of rows from row t on lie. What the tile has too much is row t. */
INLINE void rows_of_a(const ejk_dtype dtype, const product_block *k, mm_size t, mm_size first,
                      const void *row[TILE_ROWS]) {
    const mm_product *p = k->p;
    const mm_segment *s = k->s;
    for (mm_size i = 0; i < TILE_ROWS; i++) {
        const mm_size own = s->first + k->row + t + (t + i < k->rows ? i : 0);
        const mm_size at = p->gather.present ? mm_number(&p->gather, own) : own;
        row[i] = element_at(dtype, p->a.data,
                            s->a + at * p->a.row + mm_step(p, &p->a, s->step + first, p->a.column));
    }
}

INLINE void pack_a(const ejk_dtype dtype, product_block *k, mm_size first, mm_size depth) {
    const mm_product *p = k->p;
    const mm_segment *s = k->s;
    const void *from[2 * PRODUCT_DEPTH];
    const bool gathers = p->gather.present;
    for (mm_size d = 0; p->a.flipped && d < depth; d++) {
        const mm_size step = s->step + first + d;
        const mm_size at = gathers ? mm_number(&p->gather, step) : step;
        from[d] = element_at(dtype, p->a.data,
                             s->a + mm_step(p, &p->a, at, p->a.column) + s->first + k->row);
    }
    for (mm_size t = 0; t < k->rows; t += TILE_ROWS) {
        float *target = k->a + t * PRODUCT_DEPTH;
        bool *fit = &k->fit[t / TILE_ROWS];
        const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
        *fit = true;
        if (p->a.ones) {
            pack_ones(PRODUCT_DEPTH * TILE_ROWS, target);
            continue;
        }
        if (p->a.flipped) {
#ifdef TILE_AMX
            *fit = tiles_pack_across(from, rows, depth, target);
#else
            *fit = pack_columns_side_by_side(dtype, from, rows, depth, target);
#endif
            for (mm_size d = 0; d < depth; d++) from[d] = element_at(dtype, from[d], TILE_ROWS);
            continue;
        }
        const void *row[TILE_ROWS];
        rows_of_a(dtype, k, t, first, row);
#ifdef TILE_AMX
        *fit = tiles_pack_rows(row, depth, target);
#else
        *fit = pack_rows_side_by_side(dtype, row, depth, target);
#endif
    }
}

TYPED_DEFINE(void, pack_a, (product_block * k, mm_size first, mm_size depth), k, first, depth)

/* Where element `first` of the depth of a column of b lies. */
static const void *b_at(ejk_dtype dtype, const product_block *k, mm_size first, mm_size column) {
    const mm_product *p = k->p;
    return element_at(dtype, p->b.data,
                      k->s->b + mm_step(p, &p->b, k->s->step + first, p->b.row) +
                          column * p->b.column);
}

/* `columns` columns of b from `column` on, to panels. */
INLINE bool pack_b(const ejk_dtype dtype, const product_block *k, mm_size first, mm_size depth,
                   mm_size column, mm_size columns, float *target) {
    const mm_product *p = k->p;
#ifndef TILE_BF16_DOT
    if (p->quant.present) {
        pack_quant(&p->quant, k->s->held, k->s->step + first, depth, column, columns, target);
        return true;
    }
#endif
    const void *b = b_at(dtype, k, first, column);
#ifdef TILE_AMX
    const int64_t words = ejki_cdiv(depth, TILE_UNIT);
    if (p->b.flipped) return tiles_pack_columns(b, p->b.column, depth, columns, target);
    tiles_fill(words, pack_room(words), columns, target);
#else
    if (p->b.flipped) return pack_b_columns(dtype, b, p->b.column, depth, columns, target);
#endif
    return pack_b_rows(dtype, b, p->b.row, depth, columns, target);
}

TYPED_DEFINE(bool, pack_b,
             (const product_block *k, mm_size first, mm_size depth, mm_size column, mm_size columns,
              float *target),
             k, first, depth, column, columns, target)

#ifndef TILE_AMX
/* Packed b times its scales; `words` are floats. */
static void scale_b(const product_block *k, mm_size first, mm_size words, mm_size column,
                    mm_size columns, float *target) {
    const mm_product *p = k->p;
    const ejk_dtype dtype = dtype_of(&p->scale);
    const mm_size held = k->s->held;
    for (mm_size at = first, end; at < first + words && !p->scale.flipped; at = end) {
        end = ejki_min((at / p->block + 1) * p->block, first + words);
        const void *scale = element_at(dtype, p->scale.data, mm_scale_at(p, held, at, column));
        pack_scaled(dtype, scale, words, at - first, end - first, columns, target);
    }
    for (mm_size w = 0; w < words && p->scale.flipped; w++)
        for (mm_size j = 0; j < columns; j++)
            target[(j / TILE_COLUMNS * words + w) * TILE_COLUMNS + j % TILE_COLUMNS] *=
                element_load(dtype, p->scale.data, mm_scale_at(p, held, first + w, column + j));
}

#endif

/* `words` rows or columns of b at `b` will be packed after `tiles` tiles. */
static void look_ahead(ejk_dtype dtype, product_block *k, const void *b, mm_size depth,
                       mm_size columns, int64_t tiles) {
    const mm_view *v = &k->p->b;
    product_ahead *ahead = &k->ahead;
    const int64_t across = (v->flipped ? depth : columns) * element_size(dtype);
    *ahead = (product_ahead){.row = b, .bytes = across};
    if (!b || across == 0 || k->p->quant.present) return;
    ahead->rows = v->flipped ? columns : depth;
    ahead->stride = (v->flipped ? v->column : v->row) * element_size(dtype);
    ahead->each = ejki_cdiv(ejki_cdiv(across, 64) * ahead->rows, ejki_max(tiles, 1));
}

#ifdef TILE_AMX
/* Asks for n of the lines. */
INLINE void ask_lines(product_ahead *ahead, int64_t n) {
    for (; n > 0 && ahead->rows > 0; n--) {
        __builtin_prefetch(ahead->row + ahead->line, 0, 2);
        ahead->line += 64;
        if (ahead->line < ahead->bytes) continue;
        ahead->line = 0;
        ahead->row += ahead->stride;
        ahead->rows--;
    }
}

/* Whole panels of whole pairs; `lines` lines are asked for with each row of words. */
static __attribute__((noinline)) bool pack_panels(product_block *k, const char *b, int64_t words,
                                                  int64_t panels, int64_t lines, float *target) {
    const int64_t stride = k->p->b.row * element_size(EJK_DTYPE_BF16);
    v_tiny tiny = v_tiny_none();
    for (int64_t w = 0; w < words; w++, b += 2 * stride, target += TILE_COLUMNS) {
        float *to = target;
        ask_lines(&k->ahead, lines);
        for (int64_t i = 0; i < panels; i++, to += words * TILE_COLUMNS) {
            const vf first = v_load_pairs(b + i * 4 * VL);
            const vf second = v_load_pairs(b + stride + i * 4 * VL);
            tiny = v_tiny_with(v_tiny_with(tiny, first), second);
            v_zip_rows(first, second, to, to + VL);
        }
    }
    return !v_tiny_found(tiny);
}
#endif

#endif
