/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of MaskInfos. The mask is the same for all heads and made of units: the smallest blocks that are whole
 * blocks of every grid of the call. Each row of units has as many alive, the one on the diagonal (of causal, where
 * nothing else is said) and others at random distances from it, the same in each row, so that columns have as many too.
 * Their share is that of the option "alive"; without it a half, and in a block list with fewer mask blocks than
 * blocks as many as it has mask blocks. Blocks on the diagonal are partial, a lower triangle, where every grid has
 * partial blocks and blocks are of one size, so that all block lists say the same; the others that are alive are full.
 */
#include "operations/attention/blocksparse/blocksparse_attention_steps.h"
#include "operations/attention/flash/flash_attention_steps.h"

#include "base/base.h"
#include "ops/core/fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const ejk_input_option ejki_blocksparse_input_options[2] = {
    {"alive", "share of the blocks of a MaskInfo that are not empty, as 0.25; at least one a row"},
    {"lengths", "of the sequences that segment ids tell apart, as flash_attention has it"}};

/* The mask of a call: unit (i, j) is alive if the distance of j from i's diagonal is, modulo `columns`. */
typedef struct units {
    int64_t rows, columns;     /* of units; 0 rows = there is no grid, or it has no blocks */
    int64_t block_q, block_kv; /* of a unit */
    int64_t count;             /* alive in each row */
    bool partial;              /* units on the diagonal are partial blocks */
    bool *alive;               /* by distance */
} units;

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static int64_t diagonal_of(const units *u, int64_t row) {
    return ejki_max(0, (int64_t)((double)(row + 1) * (double)u->columns / (double)u->rows) - 1);
}

static bool is_alive(const units *u, int64_t row, int64_t column) {
    const int64_t distance = diagonal_of(u, row) - column;
    return u->alive[distance < 0 ? distance + u->columns : distance];
}

/* Sizes of units, and the most that may be alive in a row so that each grid has mask blocks for them. */
static void measure(const ejki_flash_problem *problem, const ejki_block_mask *const *block_masks,
                    int32_t count, units *u) {
    *u = (units){.block_q = 1, .block_kv = 1, .partial = true};
    const ejki_block_mask *first = NULL;
    for (int32_t i = 0; i < count; i++) {
        const ejki_block_mask *p = block_masks[i];
        if (p->mask_heads == 0) continue;
        if (!first) first = p;
        u->block_q = common_multiple(u->block_q, p->block_q);
        u->block_kv = common_multiple(u->block_kv, p->block_kv);
        u->partial = u->partial && p->block_count > 0 && !p->has_function &&
                     p->block_q == first->block_q && p->block_kv == first->block_kv;
    }
    if (!first) return;
    u->rows = problem->queries / u->block_q;
    u->columns = problem->keys / u->block_kv;
    if (u->columns == 0) u->rows = 0;
    u->count = u->columns;
    for (int32_t i = 0; i < count && u->rows > 0; i++) {
        const ejki_block_mask *p = block_masks[i];
        if (p->mask_heads == 0) continue;
        const int64_t room =
            p->by_column ? p->rows * p->block_q / u->block_q / ejki_cdiv(u->rows, u->columns)
                         : p->columns * p->block_kv / u->block_kv;
        u->count = ejki_min(u->count, room);
    }
}

/* How many are alive; `whole` if the call says of itself that all are. */
static ejk_status resolve(units *u, bool whole, const ejk_inputs *how) {
    const char *text = ejki_wish(how, "alive");
    if (text) {
        char *end;
        const double share = strtod(text, &end);
        if (end == text || *end != 0 || !(share > 0 && share <= 1))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "alive is '%.32s', expected a number above 0, at most 1", text);
        const int64_t wanted = ejki_max(1, llround(share * (double)u->columns));
        u->count = ejki_min(u->count, wanted);
    } else if (!whole && u->count == u->columns) {
        u->count = ejki_cdiv(u->columns, 2);
    }
    u->alive = calloc((size_t)u->columns + 1, sizeof *u->alive);
    if (!u->alive) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask");
    u->alive[0] = u->count > 0;
    /* As many of the others, each with the probability that is left. */
    int64_t left = u->count - 1;
    for (int64_t i = 1; i < u->columns && left > 0; i++) {
        const uint64_t draw = ejki_random_at(how->seed, (uint64_t)i) % (uint64_t)(u->columns - i);
        if ((int64_t)draw >= left) continue;
        u->alive[i] = true;
        left--;
    }
    return EJK_OK;
}

/* Writes a mask block of an array that has data. */
static void put(const ejki_block_list *grid, int64_t mask_head, int64_t row, int64_t column,
                int64_t value) {
    if (!grid->data) return;
    const ejk_tensor array = {.data = (void *)(uintptr_t)grid->data,
                              .dtype = grid->size == 1   ? EJK_DTYPE_I8
                                       : grid->size == 2 ? EJK_DTYPE_I16
                                       : grid->size == 4 ? EJK_DTYPE_I32
                                                         : EJK_DTYPE_I64};
    ejki_element_set(&array, mask_head * grid->stride_p + row * grid->stride_r + column, value);
}

static bool fits(const ejki_block_list *grid, int64_t value) {
    return grid->size >= 8 || value < INT64_C(1) << (8 * grid->size - 1);
}

typedef struct mask_block {
    int64_t state, next, id;
} mask_block;

/* A mask block of a line, counted along it. */
static void put_cell(const ejki_block_mask *p, int64_t mask_head, int64_t line, int64_t at,
                     mask_block c) {
    const int64_t row = p->by_column ? at : line, column = p->by_column ? line : at;
    put(&p->state, mask_head, row, column, c.state);
    put(&p->next, mask_head, row, column, c.next);
    if (p->block_count > 0) put(&p->id, mask_head, row, column, c.id);
}

/* A row of mask blocks, or by column a column: the blocks that are alive, each at its own place if there is one for
 * all. */
static void fill_line(const units *u, const ejki_block_mask *p, int64_t blocks, int64_t mask_head,
                      int64_t line) {
    const int64_t mask_blocks = p->by_column ? p->rows : p->columns;
    int64_t at = 0;
    for (int64_t i = 0; i < mask_blocks; i++)
        put_cell(p, mask_head, line, i,
                 (mask_block){.next = mask_blocks >= blocks && i < blocks ? i : 0});
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t i = (p->by_column ? block : line) * p->block_q / u->block_q;
        const int64_t j = (p->by_column ? line : block) * p->block_kv / u->block_kv;
        if (!is_alive(u, i, j) || at >= mask_blocks || !fits(&p->next, block)) continue;
        const bool partial = u->partial && j == diagonal_of(u, i);
        const int64_t id = partial ? i % p->block_count : 0;
        if (partial && !fits(&p->id, id)) continue;
        put_cell(p, mask_head, line, mask_blocks >= blocks ? block : at++,
                 (mask_block){.state = partial ? 1 : 2, .next = block, .id = id});
    }
}

static void fill_blocks(const ejki_block_mask *p) {
    if (!p->blocks) return;
    for (int64_t n = 0; n < p->block_count; n++) {
        uint8_t *block = (uint8_t *)(uintptr_t)p->blocks + n * p->block_stride;
        for (int64_t a = 0; a < p->block_q; a++)
            for (int64_t b = 0; b < p->block_kv; b++)
                block[p->by_column ? b * p->block_row + a : a * p->block_row + b] =
                    (double)b * (double)p->block_q < (double)(a + 1) * (double)p->block_kv;
    }
}

static void fill_block_mask(const ejki_flash_problem *problem, const units *u,
                            const ejki_block_mask *p) {
    const int64_t lines = p->by_column ? p->columns : p->rows;
    const int64_t blocks =
        p->by_column ? problem->queries / p->block_q : problem->keys / p->block_kv;
    for (int64_t mask_head = 0; mask_head < p->mask_heads; mask_head++)
        for (int64_t line = 0; line < lines; line++) fill_line(u, p, blocks, mask_head, line);
    fill_blocks(p);
}

ejk_status ejki_block_masks_fill(const ejki_flash_problem *problem,
                                 const ejki_block_mask *const *block_masks, int32_t count,
                                 const ejk_inputs *how) {
    units u;
    measure(problem, block_masks, count, &u);
    if (u.rows == 0) return EJK_OK;
    EJKI_TRY(resolve(&u, block_masks[0]->mask_heads == 0, how));
    for (int32_t i = 0; i < count; i++)
        if (block_masks[i]->mask_heads > 0) fill_block_mask(problem, &u, block_masks[i]);
    free(u.alive);
    return EJK_OK;
}

/* first, first + 1, … in each batch entry, along the last axis. */
static void count_up(const ejk_tensor *positions, int64_t first) {
    if (!ejk_tensor_present(positions) || !positions->data) return;
    const int32_t last = positions->rank - 1;
    for (int64_t b = 0; b < (last > 0 ? positions->shape[0] : 1); b++)
        for (int64_t i = 0; i < positions->shape[last]; i++)
            ejki_element_set(positions,
                             (last > 0 ? b * positions->strides[0] : 0) +
                                 i * positions->strides[last],
                             first + i);
}

/* The last query is at the position of the last key, as without positions. */
ejk_status ejki_blocksparse_inputs(const ejk_blocksparse_attention_args *args, const ejk_axes *axes,
                                   const ejk_inputs *how) {
    const int64_t ahead = ejk_axes_get(axes, "S") - ejk_axes_get(axes, "T");
    const bool by_query = ejk_tensor_present(&args->q_positions);
    const ejk_flash_attention_args flash = {.q_segment_ids = args->q_segment_ids,
                                            .kv_segment_ids = args->kv_segment_ids};
    count_up(&args->q_positions, ahead);
    count_up(&args->kv_positions, by_query ? 0 : -ahead);
    count_up(&args->q_sequence, 0);
    return ejki_flash_inputs(&flash, axes, how);
}
