/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of keys that a task of the tiled kernel visits where a block mask says which exist: those that any
 * head of the task has, ascending. A head without the block hides it whole; one that has it in part hides
 * what its elements say.
 */
#ifndef EJKI_BLOCK_MASK_BODY_H
#define EJKI_BLOCK_MASK_BODY_H

#include "operations/attention/shared/scores_body.h"

/* Where a mask head's row of the block list is read. */
typedef struct block_mask_cursor {
    int64_t mask_head, at; /* the next mask block that is not empty */
    int64_t column;        /* what it names; INT64_MAX at the end */
    ejki_mask_block now;   /* of the block that the task is at; state 0 if this head lacks it */
} block_mask_cursor;

typedef struct block_mask_walk {
    block_mask_cursor *cursor;
    int64_t
        count; /* 0 = no block mask; 1 = one mask head for all heads of the task; else one per head */
    int64_t row;        /* block row of the task */
    int64_t first, end; /* keys of the block that it is at */
    bool masks;         /* some head hides some of it */
    bool hide;          /* or it has columns beyond its keys */
} block_mask_walk;

static inline int64_t block_mask_cursor_count(const ejki_flash_problem *p) {
    if (p->block_mask.mask_heads == 0) return 0;
    return p->group == 1 || p->block_mask.heads_per_mask % p->group == 0 ? 1 : p->group;
}

static inline void block_mask_cursor_seek(const ejki_block_mask *p, block_mask_cursor *cursor,
                                          int64_t row) {
    cursor->at = ejki_block_mask_seek(p, cursor->mask_head, row, cursor->at);
    cursor->column = cursor->at < p->columns
                         ? ejki_block_list_at(&p->next, cursor->mask_head, row, cursor->at)
                         : INT64_MAX;
}

static inline void block_mask_walk_begin(block_mask_walk *c, const ejki_flash_problem *p,
                                         int64_t kv_head, int64_t row) {
    c->row = row;
    c->first = c->end = 0;
    for (int64_t i = 0; i < c->count; i++) {
        c->cursor[i] = (block_mask_cursor){.mask_head = (kv_head * p->group + i) /
                                                        p->block_mask.heads_per_mask};
        block_mask_cursor_seek(&p->block_mask, &c->cursor[i], row);
    }
}

static inline int64_t block_mask_walk_column(const block_mask_walk *c) {
    int64_t column = INT64_MAX;
    for (int64_t i = 0; i < c->count; i++) column = ejki_min(column, c->cursor[i].column);
    return column;
}

/* First key of the block that comes next; INT64_MAX if none does. */
static inline int64_t block_mask_walk_next(const block_mask_walk *c, const ejki_flash_problem *p) {
    const int64_t column = block_mask_walk_column(c);
    return column == INT64_MAX ? column : column * p->block_mask.block_kv;
}

/* Goes there; it has to be there. */
static inline void block_mask_walk_step(block_mask_walk *c, const ejki_flash_problem *p) {
    const ejki_block_mask *block_mask = &p->block_mask;
    const int64_t column = block_mask_walk_column(c);
    c->first = column * block_mask->block_kv;
    c->end = c->first + block_mask->block_kv;
    c->masks = false;
    for (int64_t i = 0; i < c->count; i++) {
        block_mask_cursor *cursor = &c->cursor[i];
        cursor->now = (ejki_mask_block){0};
        if (cursor->column == column) {
            cursor->now = ejki_block_mask_at(block_mask, cursor->mask_head, c->row, cursor->at++);
            block_mask_cursor_seek(block_mask, cursor, c->row);
        }
        c->masks |= cursor->now.state == 0 || cursor->now.block != NULL;
    }
}

/* The first key of a task, by its first head. */
static inline int64_t block_mask_first_key(const ejki_flash_problem *p, int64_t kv_head,
                                           int64_t row) {
    block_mask_cursor cursor = {.mask_head = kv_head * p->group / p->block_mask.heads_per_mask};
    block_mask_cursor_seek(&p->block_mask, &cursor, row);
    return cursor.column == INT64_MAX ? p->keys : cursor.column * p->block_mask.block_kv;
}

/* Blocks of a row of the block list that are not empty, of all heads of a KV head together. */
static inline int64_t block_mask_count_blocks(const ejki_flash_problem *p, int64_t kv_head,
                                              int64_t row) {
    const ejki_block_mask *block_mask = &p->block_mask;
    int64_t count = 0;
    for (int64_t i = 0; i < block_mask_cursor_count(p); i++) {
        const int64_t mask_head = (kv_head * p->group + i) / block_mask->heads_per_mask;
        for (int64_t column = 0; column < block_mask->columns; column++)
            count += ejki_block_list_at(&block_mask->state, mask_head, row, column) != 0;
    }
    return count;
}

/* About how many blocks a group of rows visits, `groups` for each KV head and `region_groups` for each row of the
 * block list, the last first: 0, or 1 + the power of two. */
static inline int32_t block_mask_weight(const ejki_flash_problem *p, int64_t groups,
                                        int64_t region_groups, int64_t group) {
    const int64_t kv_head = group / groups % p->kv_heads;
    int64_t count =
        block_mask_count_blocks(p, kv_head, (groups - 1 - group % groups) / region_groups);
    int32_t weight = 0;
    for (; count > 0; count >>= 1) weight++;
    return weight;
}

/*
 * Writes -inf over those of `width` scores of a row, the first being that of key `key`, that the block mask
 * hides, and from key `end` on over all. `visible` is scratch of VL bytes.
 */
static inline void block_mask_hide(const block_mask_walk *c, const ejki_flash_problem *p,
                                   const flash_row *r, int64_t key, int64_t end, int64_t width,
                                   float *scores, uint8_t *visible) {
    const ejki_mask_block *found = &c->cursor[c->count == 1 ? 0 : r->head % p->group].now;
    const int64_t count = found->state == 0 ? 0 : ejki_min(width, end - key);
    int64_t j = count / VL * VL;
    if (found->block != NULL) {
        const int64_t row = r->query - c->row * p->block_mask.block_q;
        const uint8_t *own = found->block + row * p->block_mask.block_row + (key - c->first);
        for (int64_t n = 0; n < j; n += VL)
            v_store(scores + n, v_allow(v_load(scores + n), own + n));
        if (j == width) return;
        /* Never a byte beyond the row. */
        memset(visible, 0, VL);
        memcpy(visible, own + j, (size_t)(count - j));
        v_store(scores + j, v_allow(v_load(scores + j), visible));
        j += VL;
    }
    for (; j < width; j += VL) v_store(scores + j, v_keep(v_load(scores + j), -j, count - j));
}

#endif
