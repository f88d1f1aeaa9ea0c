/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys of a task the rows of a block see, by positions, mask, segments and block mask alike: looked up once
 * before anything is computed. Of a tile beside a panel of keys two words say which columns any row sees, and
 * which all rows see; only where they differ does each row have a word of its own.
 */
#ifndef EJKI_VJP_VISIBLE_H
#define EJKI_VJP_VISIBLE_H

#include "operations/attention/cpu/tile/tile_shape.h"

#include "kernels/simd/gemm_body.h"
#include "operations/attention/flash/vjp_problem.h"
#include "operations/attention/shared/block_mask_body.h"

/* A word with a bit for each column of a panel. */
#define VJP_EVERY ((uint32_t)((UINT64_C(1) << TILE_COLUMNS) - 1))

/* Some rows of a block, and keys [low, high) that any of them sees by its position, [least, most) that all
 * of them see. */
typedef struct vjp_tile {
    int64_t first, rows;
    int64_t low, high, least, most;
    int64_t first_panel, end_panel; /* from the first that any row sees to the last */
    uint32_t *any, *all;            /* of each panel */
} vjp_tile;

/* Segment ids of a panel's keys. */
typedef struct vjp_ids {
    int64_t least, most;
} vjp_ids;

/* A block of rows beside a task's keys. */
typedef struct vjp_block {
    const ejki_flash_vjp_problem *problem;
    bool rescales;        /* scores are more than scaled products */
    bool scales_d_scores; /* dS is more than weights times differences */
    bool hides_keys;      /* mask, segments or partial blocks hide keys */
    bool exact;           /* products have to be exact for small numbers */
    int64_t key, end;     /* keys of the task */
    int64_t most_panels;  /* of any task */
    float scale;
    v_cap cap;      /* from products to tanh */
    flash_row *row; /* without keys where it sees none at all */
    vjp_tile *tile, *tile_end;
    uint32_t *visible; /* of each row and panel */
    vjp_ids *ids;      /* of each panel */
    ejki_mask_block *mask_block;
    int64_t
        mask_blocks; /* 0 = no block mask; 1 = one mask head for all heads of the group; else one per head */
    const float *lse, *delta;
    float *caps,
        *kept; /* derivative of the soft cap, of a panel; multiplier of dropout, of a tile */
    const char **bias_row; /* of each row, from the task's first key on */
    char **d_bias_row;
    bool bias_once, bias_streams; /* as in vjp_plan */
    float *bias; /* sums of the task's keys, where d_bias cannot hold them; else NULL */
    int64_t bias_keys, bias_key, bias_step; /* of a row; the first one; rows from head to head */
} vjp_block;

/* Keys that any of `count` rows of a KV head sees by its position. Where that grows from row to row, the
 * first and the last one see the ends. */
static inline void vjp_extent(const ejki_flash_problem *p, int64_t row, int64_t count, int64_t *low,
                              int64_t *high) {
    int64_t first, end;
    const int64_t last = (row + count - 1) / p->group;
    ejki_flash_visible(p, row / p->group, low, &end);
    ejki_flash_visible(p, last, &first, high);
    if (!p->block_mask.has_positions) return;
    for (int64_t i = row / p->group; i <= last; i++) {
        ejki_flash_visible(p, i, &first, &end);
        *low = ejki_min(*low, first);
        *high = ejki_max(*high, end);
    }
}

/* Looks up the mask blocks that query i and key j of a KV head lie in. False: there is none. */
static inline bool vjp_find_mask_blocks(const ejki_flash_problem *p, int64_t kv_head, int64_t i,
                                        int64_t j, int64_t count, ejki_mask_block *mask_block) {
    bool found = count == 0;
    for (int64_t g = 0; g < count; g++) {
        const int64_t mask_head = (kv_head * p->group + g) / p->block_mask.heads_per_mask;
        mask_block[g] = ejki_block_mask_find(&p->block_mask, mask_head, i / p->block_mask.block_q,
                                             j / p->block_mask.block_kv);
        found |= mask_block[g].state != 0;
    }
    return found;
}

/* Cuts a block of rows into tiles. */
static inline void vjp_cut(vjp_block *block, int64_t count) {
    vjp_tile *tile = block->tile;
    uint32_t *words = block->tile->any;
    for (int64_t at = 0; at < count; at += tile->rows, tile++, words += 2 * block->most_panels) {
        *tile = (vjp_tile){.first = at,
                           .rows = gemm_rows(count - at),
                           .low = INT64_MAX,
                           .most = INT64_MAX,
                           .any = words,
                           .all = words + block->most_panels};
        for (int64_t i = at; i < at + tile->rows; i++) {
            const flash_row *r = &block->row[i];
            tile->least = ejki_max(tile->least, r->first);
            tile->most = ejki_min(tile->most, r->end);
            if (r->first >= r->end) continue;
            tile->low = ejki_min(tile->low, r->first);
            tile->high = ejki_max(tile->high, r->end);
        }
    }
    block->tile_end = tile;
}

/* Bits of the bytes, up to TILE_COLUMNS of them, that are not 0. */
static inline uint32_t vjp_bits(const uint8_t *bytes, int64_t count) {
    uint8_t padded[TILE_COLUMNS] = {0};
    if (count < TILE_COLUMNS) bytes = memcpy(padded, bytes, (size_t)count);
    uint32_t bits = 0;
    for (int n = 0; n < TILE_COLUMNS; n += 8) {
        uint64_t x;
        memcpy(&x, bytes + n, sizeof x);
        if (x == 0) continue;
        x |= (x & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x7f7f7f7f7f7f7f7f);
        x = x >> 7 & UINT64_C(0x0101010101010101);
        bits |= (uint32_t)(x * UINT64_C(0x0102040810204080) >> 56) << n;
    }
    return bits;
}

/* Keys of a panel in the segment of a row. */
static inline uint32_t vjp_same_segment(const vjp_block *block, const flash_row *r, int64_t key,
                                        int64_t count) {
    const ejki_flash_problem *p = &block->problem->forward;
    const vjp_ids *ids = &block->ids[(key - block->key) / TILE_COLUMNS];
    const int64_t own = flash_id(p, flash_ids_of(p, p->query_segments, r->batch), r->query);
    if (own < 0 || own < ids->least || own > ids->most) return 0;
    if (ids->least == ids->most) return VJP_EVERY;
    const void *all = flash_ids_of(p, p->key_segments, r->batch);
    uint32_t bits = 0;
    for (int64_t j = 0; j < count; j++) bits |= (uint32_t)(flash_id(p, all, key + j) == own) << j;
    return bits;
}

/* Keys of a panel that the block mask lets a row see. */
static inline uint32_t vjp_in_mask_block(const vjp_block *block, const flash_row *r, int64_t key,
                                         int64_t count) {
    const ejki_flash_problem *p = &block->problem->forward;
    const ejki_block_mask *block_mask = &p->block_mask;
    const ejki_mask_block *mask_block =
        &block->mask_block[block->mask_blocks == 1 ? 0 : r->head - r->kv_head * p->group];
    if (mask_block->state == 0) return 0;
    if (mask_block->block == NULL) return VJP_EVERY;
    const int64_t i = r->query % block_mask->block_q, j = key % block_mask->block_kv;
    return vjp_bits(mask_block->block + i * block_mask->block_row + j, count);
}

/* Keys of the panel from `key` on that a row sees. */
static inline uint32_t vjp_row_visible(const vjp_block *block, const flash_row *r, int64_t key) {
    const ejki_flash_problem *p = &block->problem->forward;
    const int64_t first = ejki_max(r->first - key, 0);
    const int64_t end = ejki_min(ejki_min(r->end, block->end) - key, TILE_COLUMNS);
    if (first >= end) return 0;
    uint32_t bits = (uint32_t)((UINT64_C(1) << end) - (UINT64_C(1) << first));
    if (!block->hides_keys) return bits;
    const int64_t count = ejki_min(block->end - key, TILE_COLUMNS);
    if (block->mask_blocks > 0) bits &= vjp_in_mask_block(block, r, key, count);
    if (bits != 0 && p->has_segments) bits &= vjp_same_segment(block, r, key, count);
    if (bits != 0 && p->positions.given) bits &= flash_visible_positions(p, r, key, count);
    if (bits != 0 && p->has_mask) bits &= vjp_bits(flash_mask_row(p, r) + key, count);
    return bits;
}

static inline void vjp_find_visible_keys(vjp_block *block, const vjp_tile *tile, int64_t panel) {
    const int64_t key = block->key + panel * TILE_COLUMNS;
    const bool none = tile->low >= key + TILE_COLUMNS || tile->high <= key;
    tile->any[panel] = tile->all[panel] = none ? 0 : VJP_EVERY;
    if (none || (!block->hides_keys && tile->least <= key && tile->most >= key + TILE_COLUMNS &&
                 block->end >= key + TILE_COLUMNS))
        return;
    uint32_t any = 0, all = VJP_EVERY;
    for (int64_t i = tile->first; i < tile->first + tile->rows; i++) {
        const uint32_t bits = vjp_row_visible(block, &block->row[i], key);
        block->visible[i * block->most_panels + panel] = bits;
        any |= bits;
        all &= bits;
    }
    tile->any[panel] = any;
    tile->all[panel] = all;
}

/* Looks up what the tiles of the block see. Returns how many pairs of a tile and a panel see anything. */
static inline int64_t vjp_find_visible(vjp_block *block) {
    const int64_t panels = ejki_cdiv(block->end - block->key, TILE_COLUMNS);
    int64_t visible = 0;
    for (vjp_tile *tile = block->tile; tile < block->tile_end; tile++) {
        tile->first_panel = tile->end_panel = 0;
        for (int64_t panel = 0; panel < panels; panel++) {
            vjp_find_visible_keys(block, tile, panel);
            if (tile->any[panel] == 0) continue;
            if (tile->end_panel == 0) tile->first_panel = panel;
            tile->end_panel = panel + 1;
            visible++;
        }
    }
    return visible;
}

/* What segments the keys of a task are in. */
static inline void vjp_find_segments(vjp_block *block, int64_t batch) {
    const ejki_flash_problem *p = &block->problem->forward;
    if (!p->has_segments) return;
    const void *all = flash_ids_of(p, p->key_segments, batch);
    for (int64_t key = block->key; key < block->end; key += TILE_COLUMNS) {
        vjp_ids ids = {INT64_MAX, INT64_MIN};
        for (int64_t j = key; j < ejki_min(block->end, key + TILE_COLUMNS); j++) {
            const int64_t id = flash_id(p, all, j);
            ids.least = ejki_min(ids.least, id);
            ids.most = ejki_max(ids.most, id);
        }
        block->ids[(key - block->key) / TILE_COLUMNS] = ids;
    }
}

/* Keys of a panel that a row sees: its own word where its tile's differ. */
static inline uint32_t vjp_visible(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                                   int64_t i) {
    return tile->all[panel] == VJP_EVERY
               ? VJP_EVERY
               : block->visible[(tile->first + i) * block->most_panels + panel];
}

#endif
