/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of keys that a task of flash attention on AMX visits. Without a block mask a block is a run of keys at
 * an absolute position. With one, it is the chunks of as many mask blocks as it holds, of those that any head of the
 * task has: small blocks far apart cost no more than a run. Chunks are counted from the first mask block of the block
 * row on, so that nothing depends on which rows a task has.
 */
#ifndef EJKI_FLASH_AMX_BLOCKS_H
#define EJKI_FLASH_AMX_BLOCKS_H

#include "operations/attention/cpu/amx/amx_store.h"

/* Lists the chunks of the next run of keys. */
static void amx_next_run(amx_state *s, int64_t low, int64_t high) {
    const int64_t keys = s->problem->keys, block = s->following;
    s->following += s->plan->chunks * AMX_CHUNK;
    s->first = ejki_max(low - block, 0) / AMX_CHUNK;
    s->end = ejki_cdiv(ejki_min(s->following, high) - block, AMX_CHUNK);
    for (int64_t c = s->first; c <= s->end; c++) {
        const int64_t key = ejki_min(keys, block + c * AMX_CHUNK);
        s->chunk[c] = (amx_chunk){.key = key, .end = ejki_min(keys, key + AMX_CHUNK), .place = c};
    }
}

/* Lists the chunks of the next mask blocks, as many as there is room for. */
static void amx_next_mask_blocks(amx_state *s, int64_t low, int64_t high) {
    const ejki_flash_problem *p = s->problem;
    block_mask_walk *mask_walk = &s->mask_walk;
    int64_t mask_block = -mask_walk->count, place = 0;
    s->load++;
    s->first = s->end = 0;
    for (int64_t c = 0; c < s->plan->chunks && s->following < high; c++) {
        const bool enters = s->following >= mask_walk->end;
        if (enters) block_mask_walk_step(mask_walk, p);
        if (enters || c == 0) {
            mask_block += mask_walk->count;
            for (int64_t i = 0; i < mask_walk->count; i++)
                s->now[mask_block + i] = mask_walk->cursor[i].now;
            if (s->plan->kept > 0)
                place = amx_store_slot(s, mask_walk->first / p->block_mask.block_kv);
        }
        const int64_t key = s->following, end = ejki_min(key + AMX_CHUNK, mask_walk->end);
        s->chunk[c] = (amx_chunk){
            .key = key,
            .end = end,
            .first = mask_walk->first,
            .mask_block = mask_block,
            .place = s->plan->kept == 0 ? c : place + (key - mask_walk->first) / AMX_CHUNK,
            .hides = mask_walk->masks || end < key + AMX_CHUNK};
        s->end = c + 1;
        if (end <= low) s->first = s->end;
        s->following = end < mask_walk->end ? end : block_mask_walk_next(mask_walk, p);
    }
    const int64_t key = ejki_min(s->following, p->keys);
    s->chunk[s->end] = (amx_chunk){.key = key, .end = ejki_min(p->keys, key + AMX_CHUNK)};
}

/* Starts at the first block in which rows of the task may see keys of [low, high). */
static void amx_first_block(amx_state *s, int64_t low) {
    const ejki_flash_problem *p = s->problem;
    const int64_t keys = s->plan->chunks * AMX_CHUNK;
    s->following = low / keys * keys;
    if (s->mask_walk.count == 0) return;
    block_mask_walk_begin(&s->mask_walk, p, s->task.kv_head,
                          s->task.first_row / s->plan->region_rows);
    s->following = block_mask_walk_next(&s->mask_walk, p);
}

/* Lists the next block's chunks; false if no block is left. */
static bool amx_next_block(amx_state *s, int64_t low, int64_t high) {
    do {
        if (s->following >= high) return false;
        if (s->mask_walk.count > 0)
            amx_next_mask_blocks(s, low, high);
        else
            amx_next_run(s, low, high);
    } while (s->first >= s->end);
    return true;
}

/* Keys of a chunk that the block mask lets a row see. */
static uint32_t amx_mask_block_keys(const amx_state *s, const flash_row *r,
                                    const amx_chunk *chunk) {
    const ejki_flash_problem *p = s->problem;
    const ejki_mask_block *mask_block =
        &s->now[chunk->mask_block + (s->mask_walk.count == 1 ? 0 : r->head % p->group)];
    const int64_t count = mask_block->state == 0 ? 0 : chunk->end - chunk->key;
    if (mask_block->block == NULL) return amx_first(count);
    const int64_t row = r->query - s->mask_walk.row * p->block_mask.block_q;
    return amx_bytes(
        mask_block->block + row * p->block_mask.block_row + (chunk->key - chunk->first), count);
}

#endif
