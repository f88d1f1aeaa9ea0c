/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows on AMX, whose time is that of b on its way from memory: while a block of b, BESIDE_WORDS words
 * of the depth of BESIDE_COLUMNS columns, meets all rows, vectors pack the next one, be it of the next matrix, in the
 * order of memory, and ask for lines further on. Both are in the second-level cache; a tile of rows with the words of a
 * block stays in the first. Sums are those of product_dense.h, step by step.
 */
#ifndef EJKI_PRODUCT_BESIDE_H
#define EJKI_PRODUCT_BESIDE_H

#include "operations/matmul/shared/product_operands.h"
#include "operations/matmul/shared/product_results.h"

/* Whether columns are packed beside products of few rows. */
static bool may_pack_beside(const mm_product *p) {
    return p->split != MM_DEPTH && !p->run && !p->gated && !p->fold_by && !p->quant.present &&
           !p->a.flipped && !p->a.ones && !p->b.flipped && p->depth > 0 &&
           p->depth % (TILE_STEP * TILE_UNIT) == 0;
}
/* Floats from a panel of `words` words to the next one. */
static int64_t beside_apart(int64_t words) {
    return (words + BESIDE_ROOM) * TILE_COLUMNS;
}
/* Floats that a block takes. */
static mm_size beside_size(const mm_product *p) {
    return ejki_min(ejki_cdiv(p->columns, TILE_COLUMNS), BESIDE_COLUMNS / TILE_COLUMNS) *
           beside_apart(ejki_min(p->depth / TILE_UNIT, BESIDE_WORDS));
}
static bool packs_beside(const product_block *k) {
    return may_pack_beside(k->p) && k->rows <= BESIDE_ROWS && k->columns % TILE_COLUMNS == 0;
}

/* A block of b that is being packed: `left` rows of words, panels from `panel` on of the first one. */
typedef struct beside_pack {
    const char *from;
    float *to;
    int64_t stride, panels, apart; /* bytes of a row of b; floats from one panel to the next */
    int64_t panel, left;
    v_tiny tiny;
} beside_pack;

/* Packs n times a panel's words of a row. */
INLINE void beside_some(beside_pack *r, int64_t n) {
    enum { AHEAD = 16 }; /* rows that are asked for lie so far behind */
    for (; n > 0 && r->left > 0; n--) {
        const vf first = v_load_pairs(r->from), second = v_load_pairs(r->from + r->stride);
        const uintptr_t later = (uintptr_t)r->from + (uintptr_t)(AHEAD * r->stride);
        __builtin_prefetch((const void *)later, 0, 2);
        __builtin_prefetch((const void *)(later + (uintptr_t)r->stride), 0, 2);
        r->tiny = v_tiny_with(v_tiny_with(r->tiny, first), second);
        v_zip_rows(first, second, r->to, r->to + VL);
        r->from += 4 * VL;
        r->to += r->apart;
        if (++r->panel < r->panels) continue;
        r->panel = 0;
        r->from += 2 * r->stride - r->panels * 4 * VL;
        r->to += TILE_COLUMNS - r->panels * r->apart;
        r->left--;
    }
}

/* Products of a tile of rows with a panel; at each step n panels' words are packed. */
INLINE void beside_panel(const bool both, int64_t words, const float *a, const float *b,
                         float *sums, bool add, beside_pack *pack, int64_t n) {
    beside_pack own = *pack; /* in registers */
    tiles_begin(both, sums, add);
    for (int64_t w = 0; w < words; w += TILE_STEP) {
        tiles_add(both, false, true, a + w * TILE_ROWS, b + w * TILE_COLUMNS);
        beside_some(&own, n);
        AMX_BARRIER();
    }
    tiles_end(both, sums);
    pack->from = own.from;
    pack->to = own.to;
    pack->panel = own.panel;
    pack->left = own.left;
    pack->tiny = own.tiny;
}
static __attribute__((noinline)) void beside_whole(int64_t words, const float *a, const float *b,
                                                   float *sums, bool add, beside_pack *pack,
                                                   int64_t n) {
    beside_panel(true, words, a, b, sums, add, pack, n);
}
static __attribute__((noinline)) void beside_upper(int64_t words, const float *a, const float *b,
                                                   float *sums, bool add, beside_pack *pack,
                                                   int64_t n) {
    beside_panel(false, words, a, b, sums, add, pack, n);
}

/* Where a block of b is: words `word` on of the block of the depth that begins at `first`, columns `column` on. */
typedef struct beside_place {
    mm_size first, column, word;
} beside_place;

/* Words of the block of the depth at `first`. */
static mm_size beside_depth(const product_block *k, mm_size first) {
    return ejki_min((k->s->depth - first) / TILE_UNIT, PRODUCT_DEPTH);
}

static beside_block beside_block_at(const product_block *k, const beside_place *at) {
    return (beside_block){
        .b = b_at(EJK_DTYPE_BF16, k, at->first + at->word * TILE_UNIT, k->column + at->column),
        .words = ejki_min(beside_depth(k, at->first) - at->word, BESIDE_WORDS),
        .columns = ejki_min(k->columns - at->column, BESIDE_COLUMNS)};
}

/* What comes next: the rest of the block of the depth, other columns, the next block; false: there is none. */
static bool beside_next(const product_block *k, beside_place *at) {
    at->word += BESIDE_WORDS;
    if (at->word < beside_depth(k, at->first)) return true;
    at->word = 0;
    at->column += BESIDE_COLUMNS;
    if (at->column < k->columns) return true;
    at->column = 0;
    at->first += PRODUCT_DEPTH * TILE_UNIT;
    return at->first < k->s->depth;
}

/* What comes behind all of them. */
static beside_block beside_block_after(const product_block *k) {
    const mm_size words = ejki_min(k->s->depth / TILE_UNIT, BESIDE_WORDS);
    return (beside_block){
        .b = k->after, .words = words, .columns = ejki_min(k->after_columns, BESIDE_COLUMNS)};
}

static float *beside_room(const product_block *k, int place) {
    return k->b + place * beside_size(k->p);
}

/* Begins to pack a block, to the place that the other one does not have. */
static beside_pack beside_begin(product_block *k, const beside_block *block) {
    const bool some = block->b && block->columns % TILE_COLUMNS == 0;
    k->beside_place = !k->beside_place;
    return (beside_pack){.from = block->b,
                         .to = beside_room(k, k->beside_place),
                         .stride = k->p->b.row * element_size(EJK_DTYPE_BF16),
                         .panels = block->columns / TILE_COLUMNS,
                         .apart = beside_apart(block->words),
                         .left = some ? block->words : 0,
                         .tiny = v_tiny_none()};
}
static void beside_end(product_block *k, const beside_block *block, beside_pack *pack) {
    beside_some(pack, pack->left * pack->panels);
    k->beside = *block;
    k->beside.fit = !v_tiny_found(pack->tiny);
}

/* Products of all rows with the block that is packed, while the next one is. */
static void beside_multiply(product_block *k, const beside_place *at, const beside_block *next) {
    const beside_block now = k->beside;
    const int64_t panels = now.columns / TILE_COLUMNS;
    const float *b = beside_room(k, k->beside_place);
    float *sums = k->sums + (at->column - k->sums_from) * k->capacity;
    beside_pack pack = beside_begin(k, next);
    const int64_t steps = ejki_cdiv(k->rows, TILE_ROWS) * panels * (now.words / TILE_STEP);
    const int64_t each = ejki_cdiv(pack.left * pack.panels, steps);
    const bool add = at->first > 0 || at->word > 0;
    for (mm_size t = 0; t < k->rows; t += TILE_ROWS)
        for (int64_t n = 0; n < panels; n++) {
            const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
            const float *a = k->a + t * PRODUCT_DEPTH + at->word * TILE_ROWS;
            const float *own = b + n * beside_apart(now.words);
            float *c = sums + (n * k->capacity + t) * TILE_COLUMNS;
            if (!now.fit || !k->fit[t / TILE_ROWS])
                tiles_exact(rows, now.words, a, own, c, add);
            else if (rows > 16)
                beside_whole(now.words, a, own, c, add, &pack, each);
            else
                beside_upper(now.words, a, own, c, add, &pack, each);
        }
    beside_end(k, next, &pack);
}

/* Sums of a block; results are made of them, too. */
static void sum_beside(product_block *k) {
    const mm_size depth = k->s->depth, capacity = k->capacity;
    const bool at_once = depth <= PRODUCT_DEPTH * TILE_UNIT;
    beside_place at = {0}, then;
    k->capacity = ejki_round_up(k->rows, TILE_ROWS);
    k->sums_from = 0;
    for (bool more = true; more; at = then) {
        const beside_block block = beside_block_at(k, &at);
        const beside_block *ready = &k->beside;
        if (at.column == 0 && at.word == 0)
            CALL_TYPED(EJK_DTYPE_BF16, pack_a, k, at.first, beside_depth(k, at.first) * TILE_UNIT);
        if (ready->b != block.b || ready->words != block.words || ready->columns != block.columns) {
            beside_pack pack = beside_begin(k, &block);
            beside_end(k, &block, &pack);
        }
        then = at;
        more = beside_next(k, &then);
        const beside_block next = more ? beside_block_at(k, &then) : beside_block_after(k);
        /* Sums that become results at once need no room but that of the first ones. */
        if (at_once) k->sums_from = at.column;
        beside_multiply(k, &at, &next);
        if (at.first + (at.word + block.words) * TILE_UNIT == depth)
            finish_columns(k, at.column, at.column + block.columns);
    }
    k->sums_from = 0;
    k->capacity = capacity;
}

#endif
