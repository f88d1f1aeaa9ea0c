/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Visibility of chunks of keys to tiles of rows: by positions, or, where mask, segments or partial mask blocks hide
 * keys too, by words, one a row, in the weights' order, which are looked up before a row block is packed.
 */
#ifndef EJKI_AMX_VJP_VISIBLE_H
#define EJKI_AMX_VJP_VISIBLE_H

#include "operations/attention/cpu/amx/amx_visible.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_rows.h"

enum { AMX_VJP_NONE, AMX_VJP_SOME, AMX_VJP_ALL };

/* ---- Row blocks ----------------------------------------------------------------------------------------- */

/* Keys that any of some queries sees by its position. Where that grows from query to query, the first and the last
 * one see the ends. */
static inline amx_vjp_range amx_vjp_extent(const ejki_flash_problem *p, amx_vjp_range rows) {
    amx_vjp_range visible, own;
    ejki_flash_visible(p, rows.first, &visible.first, &own.end);
    ejki_flash_visible(p, rows.end - 1, &own.first, &visible.end);
    for (int64_t i = rows.first; p->block_mask.has_positions && i < rows.end; i++) {
        ejki_flash_visible(p, i, &own.first, &own.end);
        visible.first = ejki_min(visible.first, own.first);
        visible.end = ejki_max(visible.end, own.end);
    }
    return visible;
}

/*
 * Looks up a mask head's mask blocks of row i in columns [first, end), walking over the row once. Beyond `mask_block`
 * nothing is written where there is none: those are 0.
 */
static inline void amx_vjp_mask_blocks(const ejki_block_mask *t, int64_t mask_head, int64_t i,
                                       int64_t first, int64_t end, ejki_mask_block *mask_block) {
    memset(mask_block, 0, (size_t)(end - first) * sizeof *mask_block);
    for (int64_t at = ejki_block_mask_seek(t, mask_head, i, 0); at < t->columns;
         at = ejki_block_mask_seek(t, mask_head, i, at + 1)) {
        const int64_t j = ejki_block_list_at(&t->next, mask_head, i, at);
        if (j >= end) return;
        if (j >= first) mask_block[j - first] = ejki_block_mask_at(t, mask_head, i, at);
    }
}

/*
 * Sets the bits of the key blocks in which the mask blocks of block row i lie, within the range that positions allow.
 */
static inline void amx_vjp_note(const ejki_flash_problem *p, const amx_vjp_plan *t,
                                int64_t mask_head, int64_t i, amx_vjp_range visible,
                                uint64_t *block_bits) {
    const ejki_block_mask *block_mask = &p->block_mask;
    for (int64_t j = 0; j < p->keys / block_mask->block_kv;) {
        ejki_mask_block mask_block[64];
        const int64_t end = ejki_min(j + 64, p->keys / block_mask->block_kv);
        amx_vjp_mask_blocks(block_mask, mask_head, i, j, end, mask_block);
        for (int64_t n = 0; n < end - j; n++) {
            if (mask_block[n].state == 0) continue;
            const int64_t first = ejki_max(visible.first, (j + n) * block_mask->block_kv);
            const int64_t last = ejki_min(visible.end, (j + n + 1) * block_mask->block_kv) - 1;
            if (first > last) continue;
            for (int64_t block = amx_vjp_block_at(&t->keys, first);
                 block <= amx_vjp_block_at(&t->keys, last); block++)
                block_bits[block / 64] |= (uint64_t)1 << block % 64;
        }
        j = end;
    }
}

/* The key blocks in which a row block has scores: a bit each where there is a block mask, else a range. */
typedef struct amx_vjp_key_blocks {
    const uint64_t *block_bits;
    int64_t first, end;
} amx_vjp_key_blocks;

static inline amx_vjp_key_blocks amx_vjp_key_blocks_of(const ejki_flash_problem *p,
                                                       const amx_vjp_plan *t, amx_vjp_range rows,
                                                       const uint64_t *block_bits) {
    if (p->block_mask.mask_heads > 0) return (amx_vjp_key_blocks){block_bits, 0, t->key_blocks};
    const amx_vjp_range visible = amx_vjp_extent(p, rows);
    if (visible.first >= visible.end) return (amx_vjp_key_blocks){.end = 0};
    return (amx_vjp_key_blocks){.first = amx_vjp_block_at(&t->keys, visible.first),
                                .end = amx_vjp_block_at(&t->keys, visible.end - 1) + 1};
}

static inline bool amx_vjp_has_key_block(const amx_vjp_key_blocks *m, int64_t block) {
    return block >= m->first && block < m->end &&
           (m->block_bits == NULL || (m->block_bits[block / 64] >> block % 64 & 1));
}

/* The key block before or after one, as `step` is −1 or 1, in which the row block has scores; −1 if there is none. */
static inline int64_t amx_vjp_neighbour(const amx_vjp_key_blocks *m, int64_t block, int64_t step) {
    block = step > 0 ? ejki_max(block + 1, m->first) : ejki_min(block, m->end) - 1;
    while (block >= m->first && block < m->end && !amx_vjp_has_key_block(m, block)) block += step;
    return block >= m->first && block < m->end ? block : -1;
}

/* ---- Rows --------------------------------------------------------------------------------------------- */

/* Keys of a chunk, the first being `key` of the block, that rows 0-15 or 16-31 see by their positions. */
static inline __m512i amx_vjp_positions(const amx_vjp_tile *t, int64_t key, int half) {
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi32(-1);
    const __m512i at = _mm512_set1_epi32((int)key);
    const __m512i first = _mm512_cvtepi16_epi32(
        _mm256_loadu_si256((const __m256i *)(const void *)(t->first + 16 * half)));
    const __m512i end = _mm512_cvtepi16_epi32(
        _mm256_loadu_si256((const __m256i *)(const void *)(t->end + 16 * half)));
    const __m512i from =
        _mm512_sllv_epi32(ones, _mm512_max_epi32(_mm512_sub_epi32(first, at), zero));
    const __m512i to = _mm512_sllv_epi32(ones, _mm512_max_epi32(_mm512_sub_epi32(end, at), zero));
    return _mm512_andnot_si512(to, from);
}

/* Keys [key, key + count) that a partial mask block lets a row see. */
static inline uint32_t amx_vjp_in_block(const ejki_block_mask *t, const uint8_t *block, int64_t row,
                                        int64_t key, int64_t count) {
    const int64_t i = row % t->block_q, j = key % t->block_kv;
    return amx_bytes(block + i * t->block_row + j, count);
}

/* Clears bits of keys that mask, segments, positions and a partial mask block, if not NULL, hide. */
static inline void amx_vjp_hide(const amx_vjp_state *s, const amx_vjp_tile *t, int64_t key,
                                const uint8_t *block, uint32_t *words) {
    const ejki_flash_problem *p = &s->problem.forward;
    const int64_t count = ejki_min(AMX_CHUNK, s->key_end - key);
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t row = t->row + amx_vjp_row(n / 2) + n % 2;
        if (words[n] == 0) continue;
        if (block) words[n] &= amx_vjp_in_block(&p->block_mask, block, row, key, count);
        const flash_row r = {.head = s->head, .query = row};
        words[n] = amx_visible_keys(p, &r, key, count, words[n]);
    }
}

/* ---- Tiles beside chunks ------------------------------------------------------------------------------ */

static inline uint8_t *amx_vjp_state_of(const amx_vjp_state *s, int64_t tile, int64_t chunk) {
    return s->state + tile * s->plan.chunks + chunk;
}

static inline uint32_t *amx_vjp_words_of(const amx_vjp_state *s, int64_t tile, int64_t chunk) {
    return s->visible + (tile * s->plan.chunks + chunk) * AMX_ROWS;
}

static inline uint8_t amx_vjp_find_state(const amx_vjp_state *s, int64_t tile, int64_t chunk,
                                         const uint8_t *block) {
    const ejki_flash_problem *p = &s->problem.forward;
    const amx_vjp_tile *t = &s->tile[tile];
    const int64_t key = s->key + chunk * AMX_CHUNK;
    if (t->low >= key + AMX_CHUNK || t->high <= key) return AMX_VJP_NONE;
    const bool whole = t->least <= key && t->most >= key + AMX_CHUNK;
    const bool hides = block || flash_hides_keys(p);
    if (whole && !hides) return AMX_VJP_ALL;
    if (!s->hides_keys) return AMX_VJP_SOME;
    uint32_t *words = amx_vjp_words_of(s, tile, chunk);
    const __m512i ones = _mm512_set1_epi32(-1);
    uint32_t any = 0, all = 0;
    for (int half = 0; half < 2; half++)
        _mm512_store_si512(words + 16 * half, amx_vjp_positions(t, chunk * AMX_CHUNK, half));
    if (hides) amx_vjp_hide(s, t, key, block, words);
    for (int half = 0; half < 2; half++) {
        const __m512i own = _mm512_load_si512(words + 16 * half);
        any |= (uint32_t)_mm512_test_epi32_mask(own, own) << 16 * half;
        all |= (uint32_t)_mm512_cmpeq_epi32_mask(own, ones) << 16 * half;
    }
    return any == 0 ? AMX_VJP_NONE : all == t->rows ? AMX_VJP_ALL : AMX_VJP_SOME;
}

/* Looks at the chunks of keys [first, end), counted from the block, which lie in one mask block or in none. */
static inline void amx_vjp_find_states(amx_vjp_state *s, int64_t tile, int64_t first, int64_t end,
                                       const uint8_t *block) {
    amx_vjp_tile *t = &s->tile[tile];
    for (int64_t chunk = first / AMX_CHUNK; chunk < ejki_cdiv(end, AMX_CHUNK); chunk++) {
        const uint8_t state = amx_vjp_find_state(s, tile, chunk, block);
        *amx_vjp_state_of(s, tile, chunk) = state;
        t->visible |= state != AMX_VJP_NONE;
        s->score_tiles += state != AMX_VJP_NONE;
    }
}

/* Looks up what a tile sees of the block. `mask_block` has those of its rows and the block, NULL without a block
 * mask. */
static inline void amx_vjp_find_visible(amx_vjp_state *s, int64_t tile,
                                        const ejki_mask_block *mask_block) {
    const int64_t size = s->problem.forward.block_mask.block_kv;
    if (!mask_block) {
        amx_vjp_find_states(s, tile, 0, s->key_end - s->key, NULL);
        return;
    }
    for (int64_t j = s->key / size; j * size < s->key_end; j++, mask_block++)
        if (mask_block->state != 0)
            amx_vjp_find_states(s, tile, ejki_max(0, j * size - s->key),
                                ejki_min(s->key_end, (j + 1) * size) - s->key, mask_block->block);
}

static inline bool amx_vjp_is_visible(const amx_vjp_state *s, int64_t tile, int64_t chunk) {
    return *amx_vjp_state_of(s, tile, chunk) != AMX_VJP_NONE;
}

/* The words of a tile and a chunk that it sees; `own` has room for them. */
static inline const uint32_t *amx_vjp_words(const amx_vjp_state *s, int64_t tile, int64_t chunk,
                                            uint32_t *own) {
    if (s->hides_keys && *amx_vjp_state_of(s, tile, chunk) == AMX_VJP_SOME)
        return amx_vjp_words_of(s, tile, chunk);
    for (int half = 0; half < 2; half++)
        _mm512_storeu_si512(own + 16 * half,
                            amx_vjp_positions(&s->tile[tile], chunk * AMX_CHUNK, half));
    return own;
}

#endif
