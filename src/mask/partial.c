/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of distinct partial blocks. Blocks are numbered in the order they are met, masks first, then
 * row-major. Where a mask looks alike along every diagonal (causal and local masks, and what is made of
 * them), a block's place on its diagonal decides its contents, and it is evaluated once only.
 *
 * Blocks are found equal by hash and then compared; the steps that touch elements run on all threads.
 */
#include "base/bits.h"
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

/* A partial block that has to be looked at. */
struct entry {
    int64_t cell; /* of all masks */
    uint64_t hash;
    int32_t
        first; /* the first entry it may equal, in the end the one it does: itself if it is that */
    bool settled; /* `first` is final */
};

struct table {
    const ejki_mask_call *call;
    const ejki_masks *masks;
    struct entry *entries;
    int64_t count, room;
    int32_t *slots; /* an entry's number + 1, or 0 */
    int64_t slot_count;
    int32_t *distinct; /* the entries that are their own first, in order */
    int64_t distinct_count;
    uint8_t *blocks;                       /* of these */
    int64_t block_bytes, part_rows, parts; /* a block is copied in parts of so many rows */
};

static ejk_status out_of_memory(void) {
    return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for partial blocks could not be had");
}

static const ejk_splash_mask *mask_of(const struct table *table, int64_t cell) {
    return table->masks->masks[cell / table->call->cells];
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

/* ---- Entries --------------------------------------------------------------------------------------- */

/* One more, not yet compared with any; its hash is known for dense masks only. */
static ejk_status add(struct table *table, int64_t cell, int32_t *number) {
    if (table->count == table->room) {
        int64_t room = table->room > 0 ? table->room * 2 : 64;
        struct entry *entries = NULL;
        if (room <= INT32_MAX)
            entries = realloc(table->entries, (size_t)room * sizeof *table->entries);
        if (entries == NULL) return out_of_memory();
        table->entries = entries;
        table->room = room;
    }
    uint64_t hash =
        mask_of(table, cell)->kind == EJK_SPLASH_MASK_NUMPY ? table->masks->hashes[cell] : 0;
    *number = (int32_t)table->count;
    table->entries[table->count++] = (struct entry){.cell = cell, .hash = hash};
    return EJK_OK;
}

/* An entry's number for each partial block of one mask; what is known to be equal shares one. */
static ejk_status enter_blocks(struct table *table, int64_t mask) {
    const ejki_mask_call *call = table->call;
    const uint8_t *states = table->masks->states;
    int32_t *ids = table->masks->ids;
    bool dense = table->masks->masks[mask]->kind == EJK_SPLASH_MASK_NUMPY;
    struct diagonals diagonals = {0};
    ejk_status status = EJK_OK;
    if (is_diagonal(table->masks->masks[mask])) open_diagonals(call, &diagonals);
    for (int64_t i = 0; i < call->rows && status == EJK_OK; i++)
        for (int64_t j = 0; j < call->columns && status == EJK_OK; j++) {
            int64_t cell = mask * call->cells + i * call->columns + j;
            if (states[cell] != PARTIAL) continue;
            int32_t *known = diagonal_slot(&diagonals, i * call->bq - j * call->bkv);
            if (dense && table->masks->hashes[cell] == 0)
                ids[cell] = ids[cell - 1];
            else if (known != NULL && *known >= 0)
                ids[cell] = *known;
            else
                status = add(table, cell, &ids[cell]);
            if (known != NULL && status == EJK_OK) *known = ids[cell];
        }
    free(diagonals.keys);
    free(diagonals.ids);
    return status;
}

static void hash_entry(void *table_, int64_t index) {
    const struct table *table = table_;
    struct entry *entry = &table->entries[index];
    if (entry->hash != 0) return;
    entry->hash = ejki_block_hash(table->call, mask_of(table, entry->cell),
                                  entry->cell % table->call->cells, table->masks->secret);
}

/* ---- Which are equal ------------------------------------------------------------------------------- */

/* Elements of dense masks are compared as they lie there first: as a rule their bytes are equal too. */
static bool same_row(const ejk_splash_mask *a, int64_t a_row, int64_t a_column,
                     const ejk_splash_mask *b, int64_t b_row, int64_t b_column, int64_t count) {
    enum { PIECE = 1024 };
    uint8_t x[PIECE], y[PIECE];
    if (a->kind == EJK_SPLASH_MASK_NUMPY && b->kind == EJK_SPLASH_MASK_NUMPY &&
        memcmp(a->elements + a_row * a->row_stride + a_column,
               b->elements + b_row * b->row_stride + b_column, (size_t)count) == 0)
        return true;
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t length = ejki_min(count - done, PIECE);
        ejki_mask_row(a, a_row, a_column + done, length, x);
        ejki_mask_row(b, b_row, b_column + done, length, y);
        if (memcmp(x, y, (size_t)length) != 0) return false;
    }
    return true;
}

static void settle_entry(void *table_, int64_t index) {
    const struct table *table = table_;
    const ejki_mask_call *call = table->call;
    struct entry *entry = &table->entries[index];
    if (entry->settled) return;
    int64_t x = entry->cell % call->cells, first = table->entries[entry->first].cell,
            y = first % call->cells;
    bool same = true;
    for (int64_t i = 0; same && i < call->bq; i++)
        same = same_row(mask_of(table, entry->cell), x / call->columns * call->bq + i,
                        x % call->columns * call->bkv, mask_of(table, first),
                        y / call->columns * call->bq + i, y % call->columns * call->bkv, call->bkv);
    entry->settled = same;
}

/*
 * A round: entries that are not settled are given the first of their hash among them, which is settled by
 * that. Gives the number of those to be compared.
 */
static int64_t group_entries(struct table *table) {
    int64_t open = 0;
    uint64_t last = (uint64_t)table->slot_count - 1;
    memset(table->slots, 0, (size_t)table->slot_count * sizeof *table->slots);
    for (int64_t e = 0; e < table->count; e++) {
        struct entry *entry = &table->entries[e];
        if (entry->settled) continue;
        uint64_t slot = entry->hash >> 1;
        while (table->slots[slot & last] != 0 &&
               table->entries[table->slots[slot & last] - 1].hash != entry->hash)
            slot++;
        int32_t *held = &table->slots[slot & last];
        entry->settled = *held == 0;
        if (*held == 0) *held = (int32_t)e + 1;
        entry->first = *held - 1;
        open += !entry->settled;
    }
    return open;
}

/* As a rule there is one round: each more takes blocks that differ and have the same hash. */
static ejk_status find_equal(struct table *table) {
    table->slot_count = 64;
    while (table->slot_count < 2 * table->count) table->slot_count *= 2;
    table->slots = malloc((size_t)table->slot_count * sizeof *table->slots);
    table->distinct = malloc((size_t)table->count * sizeof *table->distinct);
    if (table->slots == NULL || table->distinct == NULL) return out_of_memory();
    ejk_parallel_for(table->call->threads, table->count, hash_entry, table);
    while (group_entries(table) > 0)
        ejk_parallel_for(table->call->threads, table->count, settle_entry, table);
    return EJK_OK;
}

/* ---- The table ------------------------------------------------------------------------------------- */

/* Numbers the distinct ones in order, and gives every partial block the number of its own. */
static void number_blocks(struct table *table, int64_t cells) {
    int32_t *numbers = table->slots; /* by entry; the slots are not needed any more */
    for (int64_t e = 0; e < table->count; e++) {
        int32_t first = table->entries[e].first;
        if (first == e) {
            table->distinct[table->distinct_count] = (int32_t)e;
            numbers[e] = (int32_t)table->distinct_count++;
        } else {
            numbers[e] = numbers[first];
        }
    }
    for (int64_t c = 0; c < cells; c++)
        if (table->masks->states[c] == PARTIAL)
            table->masks->ids[c] = numbers[table->masks->ids[c]];
}

enum { TURNED = 64 }; /* rows that are turned at once: a line of the turned block */

/* Rows of a block whose first element is at (first, column), turned for dkv. */
static void turn_rows(const ejki_mask_call *call, const ejk_splash_mask *mask, int64_t first,
                      int64_t column, int64_t row, int64_t rows, uint8_t *out) {
    enum { WIDTH = 512 };
    uint8_t piece[TURNED * WIDTH];
    for (int64_t a = row; a < row + rows; a += TURNED)
        for (int64_t b = 0; b < call->bkv; b += WIDTH) {
            int64_t columns = ejki_min(WIDTH, call->bkv - b);
            int64_t count = ejki_min(TURNED, row + rows - a);
            ejki_mask_block(mask, first + a, column + b, count, columns, piece);
            ejki_transpose_bytes(piece, columns, count, columns, out + b * call->bq + a, call->bq);
        }
}

static void copy_part(void *table_, int64_t index) {
    const struct table *table = table_;
    const ejki_mask_call *call = table->call;
    int64_t block = index / table->parts, row = index % table->parts * table->part_rows;
    int64_t rows = ejki_min(table->part_rows, call->bq - row);
    int64_t cell = table->entries[table->distinct[block]].cell, within = cell % call->cells;
    const ejk_splash_mask *mask = mask_of(table, cell);
    uint8_t *out = table->blocks + block * table->block_bytes;
    int64_t first = within / call->columns * call->bq, column = within % call->columns * call->bkv;
    if (call->dkv)
        turn_rows(call, mask, first, column, row, rows, out);
    else
        ejki_mask_block(mask, first + row, column, rows, call->bkv, out + row * call->bkv);
}

static ejk_status copy_blocks(struct table *table) {
    enum { PART_BYTES = 1 << 18 };
    const ejki_mask_call *call = table->call;
    int64_t bytes, limit = call->max_bytes;
    if (!ejki_mul(table->distinct_count, table->block_bytes, &bytes) || bytes > limit)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "%lld distinct partial blocks of %lld bytes are needed, more than the limit "
                      "of %lld bytes",
                      (long long)table->distinct_count, (long long)table->block_bytes,
                      (long long)limit);
    table->blocks = ejki_allocate(bytes);
    if (table->blocks == NULL) return out_of_memory();
    table->part_rows = ejki_cdiv(PART_BYTES, call->bkv);
    if (call->dkv) table->part_rows = ejki_round_up(table->part_rows, TURNED);
    table->part_rows = ejki_min(table->part_rows, call->bq);
    table->parts = ejki_cdiv(call->bq, table->part_rows);
    ejk_parallel_for(call->threads, table->distinct_count * table->parts, copy_part, table);
    return EJK_OK;
}

static ejk_status make_table(struct table *table) {
    const ejki_masks *masks = table->masks;
    for (int64_t u = 0; u < masks->count; u++) EJKI_TRY(enter_blocks(table, u));
    EJKI_TRY(find_equal(table));
    number_blocks(table, masks->count * table->call->cells);
    return copy_blocks(table);
}

ejk_status ejki_partial_table(const ejki_mask_call *call, ejki_masks *masks) {
    struct table table = {.call = call, .masks = masks};
    if (memchr(masks->states, PARTIAL, (size_t)(masks->count * call->cells)) == NULL) return EJK_OK;
    if (!ejki_mul(call->bq, call->bkv, &table.block_bytes))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "the elements of a block of %lld x %lld cannot be counted",
                      (long long)call->bq, (long long)call->bkv);
    EJKI_TRY(ejki_mask_check_array(call, 1, table.block_bytes)); /* one at least is needed */
    EJKI_TRY(ejki_mask_alloc(call, masks->count * call->cells, sizeof(int32_t), &masks->ids));
    ejk_status status = make_table(&table);
    masks->blocks = table.blocks;
    masks->block_count = table.distinct_count;
    free(table.entries);
    free(table.slots);
    free(table.distinct);
    return status;
}
