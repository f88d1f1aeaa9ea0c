/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of distinct partial blocks. Blocks are numbered in the order they are met, masks first, then
 * row-major. Where a mask looks alike along every diagonal (causal and local masks, and what is made of
 * them), a block's place on its diagonal decides its contents, and it is evaluated once only.
 */
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

/* A growing table: the slots hold an id + 1, or 0. */
struct table {
    const ejki_mask_call *call;
    int64_t block_bytes;
    uint8_t *blocks;
    uint64_t *hashes;
    int64_t count, room;
    int32_t *slots;
    int64_t slot_count; /* a power of two, at least twice the count */
};

static uint64_t hash_bytes(const uint8_t *bytes, int64_t count) {
    uint64_t hash = 0x243f6a8885a308d3u, word = 0;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    for (; i < count; i++) hash = (hash ^ bytes[i]) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 31;
}

static ejk_status out_of_memory(void) {
    return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for partial blocks could not be had");
}

static ejk_status grow_slots(struct table *table) {
    int64_t slot_count = table->slot_count > 0 ? table->slot_count * 2 : 64;
    int32_t *slots = calloc((size_t)slot_count, sizeof *slots);
    if (slots == NULL) return out_of_memory();
    for (int64_t id = 0; id < table->count; id++) {
        uint64_t slot = table->hashes[id];
        while (slots[slot & (uint64_t)(slot_count - 1)] != 0) slot++;
        slots[slot & (uint64_t)(slot_count - 1)] = (int32_t)(id + 1);
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = slot_count;
    return EJK_OK;
}

static ejk_status grow(struct table *table) {
    int64_t room = table->room > 0 ? table->room * 2 : 4, bytes;
    if (!ejki_mul(room, table->block_bytes, &bytes) ||
        table->count * table->block_bytes > table->call->max_bytes - table->block_bytes)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "more than %lld distinct partial blocks of %lld bytes are needed, more than "
                      "the limit of %lld bytes",
                      (long long)table->count, (long long)table->block_bytes,
                      (long long)table->call->max_bytes);
    uint8_t *blocks = realloc(table->blocks, (size_t)bytes);
    if (blocks == NULL) return out_of_memory();
    table->blocks = blocks;
    uint64_t *hashes = realloc(table->hashes, (size_t)room * sizeof *hashes);
    if (hashes == NULL) return out_of_memory();
    table->hashes = hashes;
    table->room = room;
    return EJK_OK;
}

/* The block is evaluated into the place behind the last one, and stays there if it is new. */
static ejk_status add(struct table *table, const ejk_splash_mask *mask, int64_t i, int64_t j,
                      int32_t *id) {
    const ejki_mask_call *call = table->call;
    if (table->count >= INT32_MAX - 1)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT, "partial blocks cannot be numbered in 32 bits");
    if (table->count == table->room) EJKI_TRY(grow(table));
    if (2 * (table->count + 1) > table->slot_count) EJKI_TRY(grow_slots(table));
    uint8_t *block = table->blocks + table->count * table->block_bytes;
    ejki_mask_block(mask, i * call->bq, j * call->bkv, call->bq, call->bkv, block);
    uint64_t hash = hash_bytes(block, table->block_bytes), last = (uint64_t)table->slot_count - 1;
    for (uint64_t slot = hash;; slot++) {
        int32_t held = table->slots[slot & last];
        if (held == 0) {
            table->hashes[table->count] = hash;
            table->slots[slot & last] = (int32_t)++table->count;
            *id = (int32_t)(table->count - 1);
            return EJK_OK;
        }
        if (table->hashes[held - 1] == hash &&
            memcmp(table->blocks + (held - 1) * table->block_bytes, block,
                   (size_t)table->block_bytes) == 0) {
            *id = held - 1;
            return EJK_OK;
        }
    }
}

/* ---- Diagonals ------------------------------------------------------------------------------------- */

/* Whether the value at (row, column) follows from row - column alone. */
static bool is_diagonal(const ejk_splash_mask *mask) {
    bool all = mask->part_count > 0;
    switch (mask->kind) {
    case EJK_SPLASH_MASK_FULL: return true;
    case EJK_SPLASH_MASK_CAUSAL:
    case EJK_SPLASH_MASK_LOCAL: return mask->q_sequence == NULL;
    case EJK_SPLASH_MASK_LOGICAL_AND:
    case EJK_SPLASH_MASK_LOGICAL_OR:
    case EJK_SPLASH_MASK_LOGICAL_NOT:
        for (int64_t i = 0; i < mask->part_count; i++) all = all && is_diagonal(mask->parts[i]);
        return all;
    default: return false;
    }
}

/* Ids of the blocks on a mask's diagonals: an open table by i * bq - j * bkv. */
struct diagonals {
    int64_t size; /* a power of two, more than the diagonals there are; 0 = not in use */
    int64_t *keys;
    int32_t *ids; /* -1 = free */
};

/* Without the memory it takes, blocks are evaluated one by one. */
static void open_diagonals(const ejki_mask_call *call, struct diagonals *diagonals) {
    int64_t most = call->rows + call->columns, size = 64;
    if (call->bq != call->bkv) most = ejki_min(call->cells, 16 * most);
    while (size < 2 * most) size *= 2;
    diagonals->keys = calloc((size_t)size, sizeof *diagonals->keys);
    diagonals->ids = malloc((size_t)size * sizeof *diagonals->ids);
    if (diagonals->keys == NULL || diagonals->ids == NULL) return;
    memset(diagonals->ids, -1, (size_t)size * sizeof *diagonals->ids);
    diagonals->size = size;
}

/* The slot of a diagonal: its own, a free one, or NULL if a few are taken by others. */
static int32_t *diagonal_slot(struct diagonals *diagonals, int64_t key) {
    uint64_t slot = (uint64_t)key * 0x9e3779b97f4a7c15u >> 20;
    for (int tries = 0; diagonals->size > 0 && tries < 16; tries++, slot++) {
        int64_t place = (int64_t)(slot & (uint64_t)(diagonals->size - 1));
        if (diagonals->ids[place] < 0) diagonals->keys[place] = key;
        if (diagonals->keys[place] == key) return &diagonals->ids[place];
    }
    return NULL;
}

static ejk_status number_blocks(struct table *table, const ejk_splash_mask *mask,
                                const uint8_t *states, int32_t *ids) {
    const ejki_mask_call *call = table->call;
    struct diagonals diagonals = {0};
    ejk_status status = EJK_OK;
    if (is_diagonal(mask)) open_diagonals(call, &diagonals);
    for (int64_t i = 0; i < call->rows && status == EJK_OK; i++)
        for (int64_t j = 0; j < call->columns && status == EJK_OK; j++) {
            int64_t cell = i * call->columns + j;
            if (states[cell] != PARTIAL) continue;
            int32_t *known = diagonal_slot(&diagonals, i * call->bq - j * call->bkv);
            if (known == NULL || *known < 0)
                status = add(table, mask, i, j, &ids[cell]);
            else
                ids[cell] = *known;
            if (known != NULL && status == EJK_OK) *known = ids[cell];
        }
    free(diagonals.keys);
    free(diagonals.ids);
    return status;
}

ejk_status ejki_partial_table(const ejki_mask_call *call, ejki_masks *masks) {
    struct table table = {.call = call};
    if (memchr(masks->states, PARTIAL, (size_t)(masks->count * call->cells)) == NULL) return EJK_OK;
    if (!ejki_mul(call->bq, call->bkv, &table.block_bytes))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "the elements of a block of %lld x %lld cannot be counted",
                      (long long)call->bq, (long long)call->bkv);
    EJKI_TRY(ejki_mask_alloc(call, masks->count * call->cells, sizeof(int32_t), &masks->ids));
    ejk_status status = EJK_OK;
    for (int64_t u = 0; u < masks->count && status == EJK_OK; u++)
        status = number_blocks(&table, masks->masks[u], masks->states + u * call->cells,
                               masks->ids + u * call->cells);
    free(table.slots);
    free(table.hashes);
    if (status != EJK_OK) {
        free(table.blocks);
        return status;
    }
    uint8_t *fitting = realloc(table.blocks, (size_t)(table.count * table.block_bytes));
    masks->blocks = fitting != NULL ? fitting : table.blocks;
    masks->block_count = table.count;
    return EJK_OK;
}
