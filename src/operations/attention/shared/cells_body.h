/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of keys that a task of the tiled kernel visits where a pattern says which exist: those that any
 * head of the task has, ascending. A head without the block hides it whole; one that has it in part hides
 * what its elements say.
 */
#ifndef EJKI_CELLS_BODY_H
#define EJKI_CELLS_BODY_H

#include "operations/attention/shared/scores_body.h"

/* Where a plane's row of the grid is read. */
typedef struct tile_cell {
    int64_t plane, at; /* the next cell that is not empty */
    int64_t column;    /* what it names; INT64_MAX at the end */
    ejki_cell now;     /* of the block that the task is at; state 0 if this head lacks it */
} tile_cell;

typedef struct tile_cells {
    tile_cell *cell;
    int64_t count; /* 0 = no pattern; 1 = one plane for all heads of the task; else one per head */
    int64_t row;   /* block row of the task */
    int64_t first, end; /* keys of the block that it is at */
    bool masks;         /* some head hides some of it */
    bool hide;          /* or it has columns beyond its keys */
} tile_cells;

static inline int64_t tile_cell_count(const ejki_flash_problem *p) {
    if (p->pattern.planes == 0) return 0;
    return p->group == 1 || p->pattern.plane_heads % p->group == 0 ? 1 : p->group;
}

static inline void tile_cell_seek(const ejki_pattern *p, tile_cell *cell, int64_t row) {
    cell->at = ejki_pattern_seek(p, cell->plane, row, cell->at);
    cell->column =
        cell->at < p->columns ? ejki_grid_at(&p->next, cell->plane, row, cell->at) : INT64_MAX;
}

static inline void tile_cells_begin(tile_cells *c, const ejki_flash_problem *p, int64_t kv_head,
                                    int64_t row) {
    c->row = row;
    c->first = c->end = 0;
    for (int64_t i = 0; i < c->count; i++) {
        c->cell[i] = (tile_cell){.plane = (kv_head * p->group + i) / p->pattern.plane_heads};
        tile_cell_seek(&p->pattern, &c->cell[i], row);
    }
}

static inline int64_t tile_cells_column(const tile_cells *c) {
    int64_t column = INT64_MAX;
    for (int64_t i = 0; i < c->count; i++) column = ejki_min(column, c->cell[i].column);
    return column;
}

/* First key of the block that comes next; INT64_MAX if none does. */
static inline int64_t tile_cells_next(const tile_cells *c, const ejki_flash_problem *p) {
    const int64_t column = tile_cells_column(c);
    return column == INT64_MAX ? column : column * p->pattern.block_kv;
}

/* Goes there; it has to be there. */
static inline void tile_cells_step(tile_cells *c, const ejki_flash_problem *p) {
    const ejki_pattern *pattern = &p->pattern;
    const int64_t column = tile_cells_column(c);
    c->first = column * pattern->block_kv;
    c->end = c->first + pattern->block_kv;
    c->masks = false;
    for (int64_t i = 0; i < c->count; i++) {
        tile_cell *cell = &c->cell[i];
        cell->now = (ejki_cell){0};
        if (cell->column == column) {
            cell->now = ejki_pattern_cell(pattern, cell->plane, c->row, cell->at++);
            tile_cell_seek(pattern, cell, c->row);
        }
        c->masks |= cell->now.state == 0 || cell->now.block != NULL;
    }
}

/* The first key of a task, by its first head. */
static inline int64_t tile_cells_first(const ejki_flash_problem *p, int64_t kv_head, int64_t row) {
    tile_cell cell = {.plane = kv_head * p->group / p->pattern.plane_heads};
    tile_cell_seek(&p->pattern, &cell, row);
    return cell.column == INT64_MAX ? p->keys : cell.column * p->pattern.block_kv;
}

/* Blocks of a row of the grid that are not empty, of all heads of a key head together. */
static inline int64_t tile_cells_alive(const ejki_flash_problem *p, int64_t kv_head, int64_t row) {
    const ejki_pattern *pattern = &p->pattern;
    int64_t count = 0;
    for (int64_t i = 0; i < tile_cell_count(p); i++) {
        const int64_t plane = (kv_head * p->group + i) / pattern->plane_heads;
        for (int64_t column = 0; column < pattern->columns; column++)
            count += ejki_grid_at(&pattern->state, plane, row, column) != 0;
    }
    return count;
}

/*
 * Writes -inf over those of `width` scores of a row, the first being that of key `key`, that the pattern
 * hides, and from key `end` on over all. `allowed` is scratch of VL bytes.
 */
static inline void tile_cells_hide(const tile_cells *c, const ejki_flash_problem *p,
                                   const flash_row *r, int64_t key, int64_t end, int64_t width,
                                   float *scores, uint8_t *allowed) {
    const ejki_cell *cell = &c->cell[c->count == 1 ? 0 : r->head % p->group].now;
    const int64_t count = cell->state == 0 ? 0 : ejki_min(width, end - key);
    int64_t j = count / VL * VL;
    if (cell->block != NULL) {
        const int64_t row = r->query - c->row * p->pattern.block_q;
        const uint8_t *own = cell->block + row * p->pattern.block_row + (key - c->first);
        for (int64_t n = 0; n < j; n += VL)
            v_store(scores + n, v_allow(v_load(scores + n), own + n));
        if (j == width) return;
        /* Never a byte beyond the row. */
        memset(allowed, 0, VL);
        memcpy(allowed, own + j, (size_t)(count - j));
        v_store(scores + j, v_allow(v_load(scores + j), allowed));
        j += VL;
    }
    for (; j < width; j += VL) v_store(scores + j, v_keep(v_load(scores + j), -j, count - j));
}

#endif
