/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many rows of a KV head, as in prefilling and in decoding of latents: a block of keys and values is gathered from its
 * pages and packed, keys transposed into panels, and used by all tiles of PAGED_ROWS rows of the item. Lines of the
 * next block are prefetched while products run.
 */
#ifndef EJKI_PAGED_TILES_H
#define EJKI_PAGED_TILES_H

#include "operations/paged/cpu/paged_operands.h"
#include "operations/paged/cpu/paged_scores.h"

#ifdef PAGED_AMX
#include "operations/paged/cpu/amx/paged_amx_products.h"
#else
#include "operations/paged/cpu/paged_products.h"
#endif

typedef struct paged_many {
    const paged_job *j;
    paged_size depth;
    float *query, *sums, *lanes, *totals, *keys, *values, *scores, *key_scale, *value_scale, *rest;
    paged_row *row;
    paged_size tile; /* rows of a tile, which has room for PAGED_ROWS */
    paged_block *block, *next;
    paged_scale scale;
    bool fit; /* the block's values are finite, or all rows see them */
    paged_prefetch prefetch_key, prefetch_value;
    paged_size lines_each; /* that a product prefetches */
} paged_many;

/* ---- Packing ---------------------------------------------------------------------------------------- */

/* Lanes of VL keys become columns of a panel: target[lane][column]. */
static inline __attribute__((always_inline)) void
pack_keys(const ejk_dtype dtype, const char *const *key, paged_size dim, float *target) {
    const int64_t size = stored_size(dtype);
    vf block[VL];
    paged_size d = 0;
    for (; d + LANES <= dim; d += LANES, target += VL * TILE_COLUMNS) {
        EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] = v_operand(dtype, key[i] + d * size);
        v_transpose(block);
        EJKI_UNROLL for (int i = 0; i < VL; i++) v_store(target + i * TILE_COLUMNS, block[i]);
    }
    if (d == dim) return;
    for (int i = 0; i < VL; i++) block[i] = v_operand_first(dtype, key[i] + d * size, dim - d);
    v_transpose(block);
    for (paged_size i = 0; i < lanes_of(dim - d); i++) v_store(target + i * TILE_COLUMNS, block[i]);
}

static inline __attribute__((always_inline)) void
pack_all_keys(const ejk_dtype dtype, paged_many *m, const char *const *rows, paged_size dim,
              paged_size at, paged_size low, paged_size high) {
    for (paged_size t = low; t < high; t += VL)
        pack_keys(dtype, rows + t, dim,
                  m->keys + t / TILE_COLUMNS * TILE_COLUMNS * m->depth + at * TILE_COLUMNS +
                      t % TILE_COLUMNS);
}

static inline __attribute__((always_inline)) void
pack_all_values(const ejk_dtype dtype, paged_many *m, paged_size low, paged_size high) {
    const paged_size width = m->j->work->plan.width;
    paged_range range = range_none();
    for (paged_size t = low; t < high; t += PAGED_PACK)
        range = pack_values(dtype, m->block->value + t, m->j->p->value_dim,
                            m->values + t / PAGED_PACK * width, range);
    m->fit = range_is_fit(range) || (PAGED_PACK == 1 && sees_alike(m->j, m->block));
}

#define PACKS_OF(T)                                                                                \
    static __attribute__((noinline)) void pack_keys_##T(paged_many *m, const char *const *rows,    \
                                                        paged_size dim, paged_size at,             \
                                                        paged_size low, paged_size high) {         \
        pack_all_keys(EJK_DTYPE_##T, m, rows, dim, at, low, high);                                 \
    }                                                                                              \
    static __attribute__((noinline)) void pack_values_##T(paged_many *m, paged_size low,           \
                                                          paged_size high) {                       \
        pack_all_values(EJK_DTYPE_##T, m, low, high);                                              \
    }
OPERAND_TYPES(PACKS_OF)
#define KEYS_CASE(T)                                                                               \
    case EJK_DTYPE_##T:                                                                            \
        pack_keys_##T(m, rows, dim, at, low, high);                                                \
        break;
#define ROWS_CASE(T)                                                                               \
    case EJK_DTYPE_##T: pack_values_##T(m, low, high); break;

static void pack_any_keys(paged_many *m, int dtype, const char *const *rows, paged_size dim,
                          paged_size at, paged_size low, paged_size high) {
    switch (dtype) {
        OPERAND_TYPES(KEYS_CASE)
    default: break;
    }
}

static void pack_any_values(paged_many *m, int dtype, paged_size low, paged_size high) {
    switch (dtype) {
        OPERAND_TYPES(ROWS_CASE)
    default: break;
    }
}

static void pack_block(paged_many *m, paged_size low, paged_size high) {
    const paged_problem *p = m->j->p;
    pack_any_keys(m, p->key.dtype, m->block->key, p->dim, 0, low, high);
    if (p->tail_dim > 0)
        pack_any_keys(m, p->key_tail.dtype, m->block->tail, p->tail_dim, lanes_of(p->dim), low,
                      high);
    pack_any_values(m, p->value.dtype, low, high);
    if (p->key.scaled_rows)
        find_scales(m->j, m->block, &p->key, m->j->head, m->j->work->plan.keys, m->key_scale);
    if (p->value.scaled_rows)
        find_scales(m->j, m->block, &p->value, m->j->head, m->j->work->plan.keys, m->value_scale);
}

/* ---- Asking for the next block ---------------------------------------------------------------------- */

static void begin_next(paged_many *m, paged_size products) {
    const paged_problem *p = m->j->p;
    const paged_block *b = m->next;
    const paged_size count = paged_most(b->high - b->low, 0);
    const paged_size key = p->dim * paged_bytes(p->key.dtype);
    const bool latent = p->value.data == p->key.data;
    const paged_size value = latent ? 0 : p->value_dim * paged_bytes(p->value.dtype);
    prefetch_rows(&m->prefetch_key, b->key + b->low, count, 0, key);
    prefetch_rows(&m->prefetch_value, b->value + b->low, count, 0, value);
    m->lines_each =
        count * (ejki_cdiv(key, LINE) + ejki_cdiv(value, LINE)) / paged_most(products, 1) + 1;
    m->lines_each = paged_least(m->lines_each, GEMM_LINES);
}

/* The next of `a`, row after row, as far as there is room. */
static inline void list_lines(paged_prefetch *a, paged_size room, gemm_prefetch *lines) {
    paged_size n = lines->count;
    while (n < room && a->row != a->end) {
        const char *row = *a->row;
        for (; n < room && a->at < a->bytes; a->at += LINE)
            lines->line[n++] = (const float *)(const void *)(row + a->at);
        if (a->at < a->bytes) break;
        a->at = 0;
        a->row++;
    }
    lines->count = n;
}

static void next_lines(paged_many *m, gemm_prefetch *lines) {
    lines->near = false;
    lines->count = 0;
    list_lines(&m->prefetch_key, m->lines_each, lines);
    list_lines(&m->prefetch_value, m->lines_each, lines);
}

/* ---- Tiles ------------------------------------------------------------------------------------------ */

/* Rows of a tile: of 16 it has 8, as a tile of 4 beside one of 12 takes as long. */
static paged_size rows_of_tile(paged_size rows) {
    return PAGED_ROWS == 12 && rows == 16 ? 8 : PAGED_ROWS;
}
/* Where row i lies. */
static paged_size slot_of(const paged_many *m, paged_size i) {
    return m->tile == PAGED_ROWS ? i : i / m->tile * PAGED_ROWS + i % m->tile;
}
/* Column d of the sums of a row at `slot`. */
static float *sum_at(const paged_many *m, paged_size slot, paged_size d) {
    const paged_size tile = slot / PAGED_ROWS * PAGED_ROWS;
    return m->sums + tile * m->j->work->plan.sum_width +
           d / TILE_COLUMNS * TILE_COLUMNS * PAGED_ROWS + (slot - tile) * TILE_COLUMNS +
           d % TILE_COLUMNS;
}

/* Weights of row i from its scores; its sums are brought to its new maximum. */
static void many_weights(paged_many *m, paged_size i, float *z, paged_size low, paged_size high) {
    const paged_job *j = m->j;
    const float *values = j->p->value.scaled_rows ? m->value_scale : NULL;
    m->scale.key = j->p->key.scaled_rows ? m->key_scale + low : NULL;
    const float most =
        finish_scores(j, &m->row[i], &m->scale, m->block->first + low, high - low, z + low);
    const float factor = finish_weights(&m->row[i], most, high - low, z + low, m->lanes + i * VL);
    const paged_size slot = slot_of(m, i);
    if (factor != 1)
        for (paged_size d = 0; d < j->work->plan.width; d += VL) {
            float *sum = sum_at(m, slot, d);
            v_store(sum, v_mul(v_load(sum), v_set1(factor)));
        }
    end_weights(z, low, high, values, factor, m->totals + i * TOTAL_LANES);
}

/* One row, key by key, what has a weight. */
static void add_seen_rows(paged_many *m, paged_size i, const float *z, paged_size low,
                          paged_size high) {
    const paged_size width = m->j->work->plan.width, slot = slot_of(m, i);
    for (paged_size t = low; t < high; t++) {
        const float weight = weight_at(z, t);
        for (paged_size d = 0; weight != 0 && d < width; d += VL) {
            float *sum = sum_at(m, slot, d);
            const vf v = packed_value(m->values, width, t, d);
            v_store(sum, v_fma(v_set1(weight), v, v_load(sum)));
        }
    }
}

/* `rows` rows from i on, of one tile, and keys low to high - 1 of the block, a multiple of TILE_COLUMNS. */
static void attend_tile(paged_many *m, paged_size i, int rows, paged_size low, paged_size high) {
    const paged_size width = m->j->work->plan.width, slot = slot_of(m, i);
    const float *query = query_at(m->query, m->depth, slot);
    float *scores = m->scores + slot % PAGED_ROWS * SCORE_STRIDE;
    gemm_prefetch lines;
    for (paged_size c = low; c < high; c += TILE_COLUMNS) {
        next_lines(m, &lines);
        multiply_panel(rows, m->depth, query, m->keys + c * m->depth, scores + c, &lines);
    }
    for (int r = 0; r < rows; r++) many_weights(m, i + r, scores + r * SCORE_STRIDE, low, high);
    for (int r = 0; !m->fit && r < rows; r++)
        add_seen_rows(m, i + r, scores + r * SCORE_STRIDE, low, high);
    for (paged_size d = 0; m->fit && d < width; d += TILE_COLUMNS) {
        next_lines(m, &lines);
        add_panel(rows, paged_least(TILE_COLUMNS, width - d), (high - low) / PAGED_PACK,
                  scores + low / PAGED_PACK, m->values + low / PAGED_PACK * width + d, width,
                  sum_at(m, slot, d), &lines);
    }
}

/* All tiles; each leaves out panels that none of its rows sees. */
static void many_block(paged_many *m) {
    const paged_job *j = m->j;
    const paged_block *b = m->block;
    const paged_size low = b->low / TILE_COLUMNS * TILE_COLUMNS;
    const paged_size high = ejki_round_up(b->high, TILE_COLUMNS);
    const paged_size panels =
        (high - low) / TILE_COLUMNS + ejki_cdiv(j->work->plan.width, TILE_COLUMNS);
    pack_block(m, low, high);
    begin_next(m, ejki_cdiv(j->rows, m->tile) * panels);
    for (paged_size tile = 0; tile < j->rows; tile += m->tile) {
        const paged_size end = paged_least(tile + m->tile, j->rows);
        paged_size first = high, last = low;
        for (paged_size i = tile; i < end; i++) {
            first = paged_least(first, m->row[i].low - b->first);
            last = paged_most(last, m->row[i].high - b->first);
        }
        first = paged_most(first / TILE_COLUMNS * TILE_COLUMNS, low);
        last = paged_least(ejki_round_up(last, TILE_COLUMNS), high);
        for (paged_size i = tile; first < last && i < end;) {
            const int rows = rows_at_once(end - i);
            attend_tile(m, i, rows, first, last);
            i += rows;
        }
    }
}

static void bind_many(paged_many *m, const paged_job *j) {
    const paged_plan *t = &j->work->plan;
    *m = (paged_many){.j = j, .query = j->memory};
    m->depth = many_depth(j->p);
    m->sums = m->query + t->rows * m->depth;
    m->lanes = m->sums + t->rows * t->sum_width;
    m->totals = m->lanes + t->rows * VL;
    m->keys = m->totals + t->rows * TOTAL_LANES;
    m->values = m->keys + t->keys * m->depth;
    m->scores = m->values + t->keys * t->width;
    m->rest = m->scores + PAGED_ROWS * SCORE_STRIDE;
    m->key_scale = m->rest + t->scratch;
    m->value_scale = m->key_scale + TILE_KEYS;
    m->row = (paged_row *)(void *)(m->value_scale + TILE_KEYS);
    m->scale = score_scale(j->p, j->head);
    m->tile = rows_of_tile(j->rows);
    const paged_size rows = ejki_cdiv(j->rows, m->tile) * PAGED_ROWS;
    memset(m->query, 0, (size_t)(rows * m->depth) * sizeof(float));
    memset(m->sums, 0, (size_t)(rows * t->sum_width) * sizeof(float));
    memset(m->lanes, 0, (size_t)(rows * VL) * sizeof(float));
    memset(m->totals, 0, (size_t)(rows * TOTAL_LANES) * sizeof(float));
    /* Packing leaves lanes and columns out. */
    if (PAGED_PACK > 1) memset(m->keys, 0, (size_t)(m->scores - m->keys) * sizeof(float));
}

static void attend_many(const paged_job *j) {
    const paged_plan *t = &j->work->plan;
    paged_block blocks[2];
    paged_many m;
    bind_many(&m, j);
    for (paged_size i = 0; i < j->rows; i++) {
        m.row[i] = row_of(j, i);
        load_query(j->p, &m.row[i], query_at(m.query, m.depth, slot_of(&m, i)), lanes_of(j->p->dim),
                   QUERY_STEP, m.rest);
    }
    m.block = &blocks[0];
    m.next = &blocks[1];
    begin_products();
    const paged_size start = j->low / t->keys * t->keys;
    if (j->low < j->high) find_block(j, start, t->keys, m.block);
    for (paged_size first = start; j->low < j->high && first < j->high; first += t->keys) {
        m.next->low = m.next->high = 0;
        if (first + t->keys < j->high) find_block(j, first + t->keys, t->keys, m.next);
        many_block(&m);
        paged_block *done = m.block;
        m.block = m.next;
        m.next = done;
    }
    end_products();
    for (paged_size i = 0; i < j->rows; i++) {
        const paged_size slot = slot_of(&m, i);
        for (paged_size d = 0; d < t->width; d += VL)
            v_store(m.rest + d, v_load(sum_at(&m, slot, d)));
        const float sum = v_sum(v_load(m.lanes + i * VL));
        const paged_state state = {m.row[i].most, sum, total_of(sum, m.totals + i * TOTAL_LANES)};
        put_row(j, &m.row[i], m.rest, state);
    }
}

#endif
