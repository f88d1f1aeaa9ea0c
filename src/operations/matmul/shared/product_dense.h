/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of a block whose operands are packed for a depth at a time. */
#ifndef EJKI_PRODUCT_DENSE_H
#define EJKI_PRODUCT_DENSE_H

#include "operations/matmul/shared/product_operands.h"
#include "operations/matmul/shared/product_results.h"
#ifdef TILE_AMX
#include "operations/matmul/shared/amx/product_beside.h"
#include "operations/matmul/shared/amx/product_held.h"
#else
#include "operations/matmul/shared/product_stream.h"
#endif

#include <string.h>

/* ---- Tiles ------------------------------------------------------------------------------------------ */

#ifndef TILE_AMX
/* Whether tiles of this tier may pack b. */
#define TILE_PACKS (VL == 16 && TILE_UNIT == 1)
/* Rows that lie behind the one that a tile packs: as far ahead lines are asked for into the first-level cache. */
enum { TILE_PACKS_AHEAD = 6 };

/* Where sums of a tile go, and what is asked for meanwhile: sums of the next tile, NULL for none, the rows that results
 * go to, and lines that b has later. */
typedef struct tile_places {
    float *to;
    int64_t row; /* from one row of `to` to the next */
    const float *next;
    uintptr_t out; /* `out_bytes` of each of its rows, which are `out_row` apart; 0: nothing */
    uintptr_t out_row, out_bytes;
    bool near; /* sums are asked for into the first-level cache */
    product_ahead *ahead;
    const char *raw; /* b as it lies in memory, for a tile that packs it */
    int64_t stride;  /* bytes from one of its rows to the next */
} tile_places;

typedef void (*tile_fn)(int64_t words, const float *a, float *b, const float *c, bool add,
                        const tile_places *places);

/* Takes the next of the lines that are asked for. */
INLINE const char *take_line(product_ahead *ahead) {
    const char *line = ahead->row + ahead->line;
    ahead->line += 64;
    if (ahead->line >= ahead->bytes) {
        ahead->line = 0;
        ahead->row += ahead->stride;
        ahead->rows--;
    }
    return line;
}

/* One word of the depth: where `packs`, a row of b becomes one of its panel first. */
INLINE void tile_step(const bool packs, const ejk_dtype dtype, const int rows, const float *a,
                      float *b, const char *raw, int64_t stride, vf sum[TILE_ROWS][TILE_VECTORS]) {
    if (packs) {
        const uintptr_t later = (uintptr_t)raw + (uintptr_t)(TILE_PACKS_AHEAD * stride);
        EJKI_UNROLL for (int at = 0; at < TILE_COLUMNS * element_size(dtype); at += 64)
            __builtin_prefetch((const void *)(later + (uintptr_t)at), 0, 3);
        EJKI_UNROLL for (int j = 0; j < TILE_COLUMNS; j += VL)
            v_store(b + j, v_widen(dtype, element_at(dtype, raw, j)));
    }
    gemm_step(rows, TILE_VECTORS, a, 1, b, sum);
}

/* One line is asked for at a step, so that requests never queue up. */
INLINE void tile(const bool packs, const ejk_dtype dtype, const int rows, int64_t words,
                 const float *a, float *b, const float *c, bool add, const tile_places *places) {
    const float *end = a + words * TILE_ROWS;
    const char *raw = places->raw;
    const int64_t stride = places->stride, row = places->row;
    float *to = places->to;
    vf sum[TILE_ROWS][TILE_VECTORS];
#define TILE_STEP_ON                                                                               \
    {                                                                                              \
        tile_step(packs, dtype, rows, a, b, raw, stride, sum);                                     \
        a += TILE_ROWS, b += TILE_COLUMNS;                                                         \
        if (packs) raw += stride;                                                                  \
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++)
        sum[i][j] = add ? v_load(c + i * TILE_COLUMNS + j * VL) : v_zero();
    const float *line = places->next, *last = line ? line + rows * TILE_COLUMNS : NULL;
    for (; places->near && line < last && a < end; line += 16) {
        __builtin_prefetch(line, 0, 3);
        TILE_STEP_ON
    }
    for (; line < last && a < end; line += 16) {
        __builtin_prefetch(line, 0, 2);
        TILE_STEP_ON
    }
    uintptr_t out = places->out;
    for (int i = 0; out && i < rows && a < end; i++, out += places->out_row) {
        for (uintptr_t j = 0; j < places->out_bytes; j += 64)
            __builtin_prefetch((const void *)(out + j), 0, 2);
        TILE_STEP_ON
    }
    product_ahead ahead = *places->ahead;
    for (int64_t n = ahead.each; n > 0 && ahead.rows > 0 && a < end; n--) {
        __builtin_prefetch(take_line(&ahead), 0, 2);
        TILE_STEP_ON
    }
    *places->ahead = ahead;
    EJKI_UNROLL_TWICE while (a < end) TILE_STEP_ON
#undef TILE_STEP_ON
        EJKI_UNROLL for (int i = 0; i < rows; i++)
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                v_store(to + i * row + j * VL, sum[i][j]);
}

#define TILE_DEFINE(n)                                                                             \
    static __attribute__((noinline)) void tile_##n(int64_t words, const float *a, float *b,        \
                                                   const float *c, bool add,                       \
                                                   const tile_places *places) {                    \
        tile(false, EJK_DTYPE_F32, n, words, a, b, c, add, places);                                \
    }
TILE_ROW_COUNTS(TILE_DEFINE)

#if TILE_PACKS
INLINE void tile_packing(const ejk_dtype dtype, int64_t words, const float *a, float *b,
                         const float *c, bool add, const tile_places *places) {
    tile(true, dtype, TILE_ROWS, words, a, b, c, add, places);
}
TYPED_DEFINE(void, tile_packing,
             (int64_t words, const float *a, float *b, const float *c, bool add,
              const tile_places *places),
             words, a, b, c, add, places)
#endif

/* The smallest tile that has `rows` rows; what it has more is not looked at. */
static tile_fn tile_of(int64_t rows) {
    tile_fn best = NULL;
#define TILE_TAKE(n)                                                                               \
    if (rows <= n) best = tile_##n;
    TILE_ROW_COUNTS(TILE_TAKE)
#undef TILE_TAKE
    return best;
}

#ifdef TILE_BF16_DOT
/* In floats, in the order of VDPBF16PS. */
static void tile_exact(int64_t rows, int64_t words, const float *a, const float *b, const float *c,
                       bool add, const tile_places *places) {
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j += VL) {
            vf sum = add ? v_load(c + i * TILE_COLUMNS + j) : v_zero();
            for (int64_t k = 0; k < words; k++) {
                const vf x = v_set1(a[k * TILE_ROWS + i]), y = v_load(b + k * TILE_COLUMNS + j);
                sum = v_fma(v_of_second(x), v_of_second(y), sum);
                sum = v_fma(v_of_first(x), v_of_first(y), sum);
            }
            v_store(places->to + i * places->row + j, sum);
        }
}
#endif
#endif

/* ---- A block ---------------------------------------------------------------------------------------- */

#ifdef TILE_AMX
/* Products of a tile of rows with a panel of words, while lines are asked for, some at each step. */
INLINE void tile_words(const bool both, int64_t words, const float *a, const float *b, float *c,
                       bool add, product_ahead *ahead) {
    tiles_begin(both, c, add);
    for (int64_t w = 0; w < words; w += TILE_STEP) {
        ask_lines(ahead, ahead->each);
        tiles_add(both, true, false, a + w * TILE_ROWS, b + w * TILE_COLUMNS);
    }
    tiles_end(both, c);
}

/* Products of a block's rows with a piece of `panels` panels, words `from` to from + words - 1 of the depth; sums are
 * those of the first panel. */
static void multiply_piece(product_block *k, int64_t panels, int64_t from, int64_t words, bool fit,
                           bool add, float *sums) {
    const float *b = k->b;
    for (int64_t n = 0; n < panels;
         n++, sums += k->capacity * TILE_COLUMNS, b += words * TILE_COLUMNS)
        for (mm_size t = 0; t < k->rows; t += TILE_ROWS) {
            const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
            const float *a = k->a + t * PRODUCT_DEPTH + from * TILE_ROWS;
            float *c = sums + t * TILE_COLUMNS;
            if (!fit || !k->fit[t / TILE_ROWS])
                tiles_exact(rows, words, a, b, c, add);
            else if (rows > 16)
                tile_words(true, words, a, b, c, add, &k->ahead);
            else
                tile_words(false, words, a, b, c, add, &k->ahead);
        }
}

/*
 * Columns of b with elements `first` on of the depth, which k->a has: a piece of the depth after the other is packed
 * and meets all rows, so that the first-level cache has what comes from b. Meanwhile the next piece is asked for; what
 * is behind the last one begins at `then`.
 */
static void sum_pieces(ejk_dtype dtype, product_block *k, mm_size first, mm_size depth,
                       mm_size column, mm_size columns, const void *then, float *sums) {
    const int64_t words = pack_room(ejki_cdiv(depth, TILE_UNIT)), most = shape_piece(k->rows);
    const int64_t panels = ejki_cdiv(columns, TILE_COLUMNS);
    for (int64_t from = 0, some; from < words; from += some) {
        some = ejki_min(words - from, most);
        const mm_size at = first + from * TILE_UNIT;
        const mm_size own = ejki_min(depth - from * TILE_UNIT, some * TILE_UNIT);
        const bool whole =
            !k->p->b.flipped && columns % TILE_COLUMNS == 0 && own == some * TILE_UNIT;
        const int64_t steps = panels * ejki_cdiv(k->rows, TILE_ROWS) * (some / TILE_STEP);
        /* Where tiles take little time half of the lines are asked for while a piece is packed. */
        const bool early = whole && shape_is_flat(k->rows);
        look_ahead(dtype, k, from + some < words ? b_at(dtype, k, at + own, column) : then, own,
                   PACK_COLUMNS, early ? 2 * steps : steps);
        const bool fit = whole ? pack_panels(k, b_at(dtype, k, at, column), some, panels,
                                             early ? panels : 0, k->b)
                               : CALL_TYPED(dtype, pack_b, k, at, own, column, columns, k->b);
        multiply_piece(k, panels, from, some, fit, first > 0 || from > 0, sums);
    }
}
#else
/* Rows whose sums of whole panels are results, which tiles store: none, or those of whole tiles. */
static mm_size rows_stored(const product_block *k, bool last) {
    const mm_product *p = k->p;
    const bool stores = last && !p->fold_by && is_plain(k) && dtype_of(&p->out) == EJK_DTYPE_F32;
    return stores ? k->rows / TILE_ROWS * TILE_ROWS : 0;
}

/* Whether a row of sums becomes one of results, as it lies. */
static bool writes(const mm_product *p) {
    return !p->gated && !p->fold_by && !adds_up(p);
}

/* Panels of b that are multiplied: `count` of them, packed for `words` words. Sums are those of the first one, those of
 * the first `stored` rows in the first `whole` panels are results, which begin at `out`; NULL: others are. */
typedef struct product_panels {
    int64_t count, words;
    bool fit, add;
    bool by_rows; /* sums are results, and are kept for a tile's rows only */
    float *sums;
    mm_size first, end; /* columns of the block */
    mm_size stored;
    int64_t whole;
    void *out;
    const char *raw; /* b where it lies, if the first rows' tiles are to pack it */
} product_panels;

/* Rows `t` on of a block, as many as a tile has, with panel `n`. */
INLINE void multiply_tile(product_block *k, const product_panels *panels, tile_fn all, tile_fn rest,
                          mm_size t, int64_t n, tile_places *places) {
    const int64_t words = panels->words;
    const bool last = t + TILE_ROWS >= k->rows;
    const float *a = k->a + t * PRODUCT_DEPTH;
    float *b = k->b + n * words * TILE_COLUMNS;
    float *c = panels->sums + (n * k->capacity + t - k->sums_row) * TILE_COLUMNS;
    const bool stores = t < panels->stored && n < panels->whole;
    const mm_view *out = &k->p->out;
    const mm_size at = t * out->row + n * TILE_COLUMNS;
    places->out = panels->out ? (uintptr_t)element_at(dtype_of(out), panels->out, at) : 0;
    places->to = stores ? element_at(EJK_DTYPE_F32, panels->out, at) : c;
    places->row = stores ? out->row : TILE_COLUMNS;
    const bool fresh = !panels->add && (stores || panels->by_rows);
    places->next = last || fresh ? NULL : c + TILE_ROWS * TILE_COLUMNS;
#ifdef TILE_BF16_DOT
    if (!panels->fit || !k->fit[t / TILE_ROWS]) {
        tile_exact(ejki_min(k->rows - t, TILE_ROWS), words, a, b, c, panels->add, places);
        return;
    }
#elif TILE_PACKS
    if (panels->raw && t == 0) {
        const ejk_dtype dtype = dtype_of(&k->p->b);
        places->raw = element_at(dtype, panels->raw, n * TILE_COLUMNS);
        CALL_TYPED(dtype, tile_packing, words, a, b, c, panels->add, places);
        return;
    }
#endif
    (last ? rest : all)(words, a, b, c, panels->add, places);
}

/* Products of a tile of rows with a panel, `i` and `n` of a block's. */
typedef struct product_tiles {
    tile_fn all, rest;
    int64_t rows; /* tiles of rows */
    tile_places places;
} product_tiles;

static product_tiles tiles_of(product_block *k) {
    const mm_view *b = &k->p->b, *out = &k->p->out;
    const int64_t size = element_size(dtype_of(out));
    return (product_tiles){.all = tile_of(TILE_ROWS),
                           .rest = tile_of((k->rows - 1) % TILE_ROWS + 1),
                           .rows = ejki_cdiv(k->rows, TILE_ROWS),
                           .places = {.ahead = &k->ahead,
                                      .near = shape_is_small() && shape_is_flat(k->rows),
                                      .stride = b->row * element_size(dtype_of(b)),
                                      .out_row = (uintptr_t)(out->row * size),
                                      .out_bytes = (uintptr_t)(TILE_COLUMNS * size)}};
}

/* Products of a block's rows with panels of b, one panel after the other. */
static void multiply_by_panels(product_block *k, const product_panels *panels) {
    product_tiles tiles = tiles_of(k);
    for (int64_t n = 0; n < panels->count; n++)
        for (int64_t i = 0; i < tiles.rows; i++)
            multiply_tile(k, panels, tiles.all, tiles.rest, i * TILE_ROWS, n, &tiles.places);
    if (panels->stored == 0) return;
    finish_part(k, panels->stored, k->rows, panels->first, panels->end);
    finish_part(k, 0, panels->stored, panels->first + panels->whole * TILE_COLUMNS, panels->end);
}

/*
 * The same, a tile's rows after the other, where they are all of the depth: results are made of the sums of a tile's
 * rows, in the first-level cache, and written side by side, as many as b is packed for.
 */
static void multiply_by_rows(product_block *k, const product_panels *panels) {
    product_tiles tiles = tiles_of(k);
    for (int64_t i = 0; i < tiles.rows; i++) {
        const mm_size t = i * TILE_ROWS, stored = t < panels->stored ? panels->whole : 0;
        k->sums_row = t;
        for (int64_t n = 0; n < panels->count; n++)
            multiply_tile(k, panels, tiles.all, tiles.rest, t, n, &tiles.places);
        finish_part(k, t, ejki_min(t + TILE_ROWS, k->rows), panels->first + stored * TILE_COLUMNS,
                    panels->end);
    }
    k->sums_row = 0;
}

/* Whether elements of b are multiplied as they are. */
static bool is_bare(const mm_product *p) {
    return !p->quant.present && !(p->scale.present && p->split != MM_DEPTH);
}

/* Whether the first rows' tiles pack `columns` columns of b. */
static bool tiles_pack(const product_block *k, mm_size columns) {
    return TILE_PACKS && shape_is_small() && is_bare(k->p) && !k->p->b.flipped &&
           k->rows >= TILE_ROWS && columns % TILE_COLUMNS == 0;
}

/* Whether b is read without being packed. */
static bool streams(const product_block *k) {
    const mm_product *p = k->p;
    if (!is_bare(p)) return false;
    return k->rows <= (p->b.flipped ? TILE_ROWS : shape_stream_rows());
}

/* `columns` columns of b from `column` on, which are not packed. */
static void stream_b(ejk_dtype dtype, product_block *k, mm_size first, mm_size depth,
                     mm_size column, mm_size columns, const void *after, float *sums) {
    const mm_product *p = k->p;
    const void *b = b_at(dtype, k, first, column);
    const stream s = {k->a, sums, k->rows, k->capacity, k->fit};
    if (p->b.flipped)
        CALL_TYPED(dtype, stream_columns, &s, b, p->b.column, depth, columns, after, first > 0);
    else
        stream_rows(dtype, &s, b, p->b.row, depth, columns, after, first > 0);
}
#endif

/* True if results are made of the sums, too: of those of the last block of the depth while they are in the caches. */
static bool sum_block(ejk_dtype dtype, product_block *k) {
    const mm_product *p = k->p;
    const bool halves = p->gated && !p->interleaved;
    const mm_size wide = p->gated && p->interleaved ? 2 : 1;
    const mm_size column = k->column * wide, columns = k->columns * wide, depth = k->s->depth;
    const int64_t each = ejki_cdiv(columns, TILE_COLUMNS), panels = halves ? 2 * each : each;
    bool finished = false;
#ifdef TILE_AMX
    if (packs_beside(k)) {
        sum_beside(k);
        return true;
    }
    k->beside.b = NULL; /* its memory is used */
    if (may_hold(p) && k->rows > HELD_ROWS) return sum_held(dtype, k);
    k->sums_from = 0;
#endif
    if (depth == 0)
        memset(k->sums, 0, (size_t)(panels * k->capacity * TILE_COLUMNS) * sizeof *k->sums);
    for (mm_size first = 0, own; first < depth; first += own) {
        own = ejki_min(depth - first, shape_depth(k->rows, p->b.flipped) * TILE_UNIT);
        if (p->run) own = ejki_min(own, p->run - first % p->run);
        const mm_size next = first + own;
        const bool last = next == depth;
        const void *b = last ? k->after : b_at(dtype, k, next, column);
        CALL_TYPED(dtype, pack_a, k, first, own);
#ifndef TILE_AMX
        const int64_t words = ejki_cdiv(own, TILE_UNIT);
        if (streams(k)) {
            for (int half = 0; half <= halves; half++)
                stream_b(dtype, k, first, own, column + (half ? p->columns : 0), columns, b,
                         k->sums + half * each * k->capacity * TILE_COLUMNS);
            continue;
        }
        const bool by_rows = VL == 16 && first == 0 && last && !p->gated && !p->fold_by;
        const mm_size wide_pack =
            by_rows ? PACK_COLUMNS * PRODUCT_DEPTH / words / TILE_COLUMNS * TILE_COLUMNS
                    : PACK_COLUMNS;
        /* A whole block would leave the second-level cache before it is packed. */
        const bool panels_ahead = !shape_is_short(k->rows, p->b.flipped);
        if (!panels_ahead)
            look_ahead(dtype, k, b, last ? own : ejki_min(own, depth - next), columns,
                       panels * ejki_cdiv(k->rows, TILE_ROWS));
#endif
        for (int half = 0; half <= halves; half++) {
            float *sums = k->sums + half * each * k->capacity * TILE_COLUMNS;
            const mm_size from = column + (half ? p->columns : 0);
            for (mm_size j = 0, some; j < columns; j += some) {
#ifdef TILE_AMX
                some = ejki_min(columns - j, PACK_COLUMNS);
                /* Sums that become results at once need no room but that of the first ones. */
                const bool at_once = first == 0 && last && !p->gated;
                if (at_once) k->sums_from = j;
                sum_pieces(dtype, k, first, own, from + j, some,
                           j + some < columns ? b_at(dtype, k, first, from + j + some) : b,
                           sums + (at_once ? 0 : j * k->capacity));
#else
                some = ejki_min(columns - j, wide_pack);
                const char *raw = tiles_pack(k, some) ? b_at(dtype, k, first, from + j) : NULL;
                const bool fit =
                    raw || CALL_TYPED(dtype, pack_b, k, first, own, from + j, some, k->b);
                if (p->scale.present && p->split != MM_DEPTH)
                    scale_b(k, first, own, from + j, some, k->b);
                if (panels_ahead) {
                    const bool more = j + some < columns, second = !more && half < halves;
                    const mm_size left = more ? columns - j - some : columns;
                    look_ahead(dtype, k,
                               more     ? b_at(dtype, k, first, from + j + some)
                               : second ? b_at(dtype, k, first, column + p->columns)
                                        : b,
                               more || second || last ? own : ejki_min(own, depth - next),
                               ejki_min(left, wide_pack),
                               ejki_cdiv(some, TILE_COLUMNS) * ejki_cdiv(k->rows, TILE_ROWS));
                }
                const mm_size stored = rows_stored(k, last);
                const mm_size whole = some / TILE_COLUMNS;
                const mm_size at = k->s->out + (k->s->first + k->row) * p->out.row + k->column + j;
                void *out =
                    last && writes(p) ? element_at(dtype_of(&p->out), p->out.data, at) : NULL;
                const product_panels packed = {.count = ejki_cdiv(some, TILE_COLUMNS),
                                               .words = words,
                                               .fit = fit,
                                               .add = first > 0,
                                               .by_rows = by_rows,
                                               .sums = sums + j * k->capacity,
                                               .first = j,
                                               .end = j + some,
                                               .stored = stored,
                                               .whole = whole,
                                               .out = out,
                                               .raw = raw};
                (by_rows ? multiply_by_rows : multiply_by_panels)(k, &packed);
                if (by_rows || stored > 0) continue;
#endif
                if (last && !p->gated) finish_columns(k, j, j + some);
            }
        }
        finished = last && !p->gated;
    }
    return finished;
}

#endif
