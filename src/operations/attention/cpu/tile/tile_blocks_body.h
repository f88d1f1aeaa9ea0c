/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks a task of the tiled kernel goes to, and in which order tasks are taken.
 */
#ifndef EJKI_TILE_BLOCKS_BODY_H
#define EJKI_TILE_BLOCKS_BODY_H

#include "operations/attention/cpu/tile/tile_types.h"

#include <stdatomic.h>

/* The task of an index: heads one after the other, so that groups of a head find its keys in the cache;
 * in a head the last rows first, which under a causal mask are the longest. */
static tile_task tile_task_of(const ejki_flash_problem *p, const tile_plan *t, int64_t index) {
    if (index >= t->tasks) return (tile_task){0};
    const int64_t half = index - t->whole, place = half < 0 ? index : t->whole + half / 2;
    const int64_t group = t->order ? t->order[place] : place;
    const int64_t head = group / t->groups;
    tile_task task = {.batch = head / p->kv_heads, .kv_head = head % p->kv_heads};
    const int64_t at = t->groups - 1 - group % t->groups, part = at % t->region_groups;
    task.first_row = at / t->region_groups * t->region_rows + part * t->rows;
    task.rows = ejki_min(t->rows, t->region_rows - part * t->rows);
    if (half < 0) return task;
    const int64_t upper = ejki_min(task.rows, ejki_round_up(ejki_cdiv(task.rows, 2), TILE_ROWS));
    if (half % 2) return (tile_task){task.batch, task.kv_head, task.first_row, upper};
    task.first_row += upper;
    task.rows -= upper;
    return task;
}

/* The first key that a task will need, near enough to prefetch it. */
static int64_t tile_first_key(const ejki_flash_problem *p, const tile_plan *t,
                              const tile_task *task) {
    int64_t key, end;
    ejki_flash_visible(p, task->first_row / p->group, &key, &end);
    if (p->block_mask.mask_heads > 0)
        key =
            ejki_max(key, block_mask_first_key(p, task->kv_head, task->first_row / t->region_rows));
    return ejki_min(key, p->keys) / t->keys * t->keys;
}

/* Finds out which tiles see anything of the block by mask and segments; false if none does. */
static bool tile_find_visible(tile_state *s) {
    const ejki_flash_problem *p = s->problem;
    bool any = false;
    if (!flash_hides_keys(p)) return true;
    for (int64_t i = 0; i < s->task.rows; i++) {
        bool *visible = &s->extent[i / TILE_ROWS].visible;
        if (i % TILE_ROWS == 0) *visible = false;
        if (!*visible) *visible = flash_any_visible(p, &s->row[i], s->block, s->end, s->visible);
        any |= *visible;
    }
    return any;
}

/* Goes to the next block that exists and in which a row of the task sees keys of [low, high). */
static bool tile_next_block(tile_state *s, int64_t low, int64_t high) {
    const ejki_flash_problem *p = s->problem;
    if (low >= high) return false; /* half a task without rows has not begun its mask blocks */
    do {
        if (s->mask_walk.count > 0 && s->following >= s->mask_walk.end) {
            s->following = block_mask_walk_next(&s->mask_walk, p);
            if (s->following >= high) return false;
            block_mask_walk_step(&s->mask_walk, p);
        }
        s->block = s->following;
        s->following += s->plan->keys;
        s->end = ejki_min(s->following, high);
        if (s->mask_walk.count > 0) s->end = ejki_min(s->end, s->mask_walk.end);
        if (s->block >= high) return false;
    } while (s->end <= low || !tile_find_visible(s));
    s->mask_walk.hide =
        s->mask_walk.masks || (s->mask_walk.count > 0 && (s->end - s->block) % TILE_COLUMNS);
    return true;
}

static int32_t tile_weight(const ejki_flash_problem *p, const tile_plan *t, int64_t group) {
    return block_mask_weight(p, t->groups, t->region_groups, group);
}

/*
 * Groups in the order in which several workers take them: heavy ones first, so that no worker is left with
 * one at the end. Groups of about the same weight stay in order, near their neighbours.
 */
static void tile_order(const ejki_flash_problem *p, const tile_plan *t, int64_t *order) {
    int64_t place[64] = {0};
    const int64_t groups = p->batch * p->kv_heads * t->groups;
    for (int64_t g = 0; g < groups; g++) place[tile_weight(p, t, g)]++;
    int64_t before = 0;
    for (int32_t weight = 63; weight >= 0; weight--) {
        const int64_t count = place[weight];
        place[weight] = before;
        before += count;
    }
    for (int64_t g = 0; g < groups; g++) order[place[tile_weight(p, t, g)]++] = g;
}

/* Claims *count tasks and answers the first: by the handful at first, the last quarter one by one. */
static inline int64_t tile_claim(const tile_plan *t, _Atomic int64_t *next, int64_t *count) {
    const int64_t index = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    const int64_t claims = t->whole * 3 / 4 / t->claim;
    *count = index < claims ? t->claim : 1;
    return index < claims ? index * t->claim : index - claims + claims * t->claim;
}

#endif
