/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/blocksparse/problem.h"

#include "base/base.h"

/* A line of mask blocks, a row's or a column's, whose names have to ascend below `limit`. */
typedef struct line {
    const ejki_block_mask *block_mask;
    int64_t mask_head, row, column;
    int64_t last, limit;
} line;

static ejk_status check_cell(line *at) {
    const ejki_block_mask *p = at->block_mask;
    const int64_t state = ejki_block_list_at(&p->state, at->mask_head, at->row, at->column);
    if (state == 0) return EJK_OK;
    if (state != 1 && state != 2)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_block_mask[%lld,%lld,%lld] is %lld, expected 0, 1 or 2", p->name,
                         (long long)at->mask_head, (long long)at->row, (long long)at->column,
                         (long long)state);
    const int64_t next = ejki_block_list_at(&p->next, at->mask_head, at->row, at->column);
    if (next <= at->last || next >= at->limit)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_data_next[%lld,%lld,%lld] is %lld, expected above %lld, the one "
                         "before it, and below %lld blocks",
                         p->name, (long long)at->mask_head, (long long)at->row,
                         (long long)at->column, (long long)next, (long long)at->last,
                         (long long)at->limit);
    at->last = next;
    if (state == 2 || p->has_function) return EJK_OK;
    if (p->blocks == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_block_mask[%lld,%lld,%lld] is 1, a partial block, but "
                         "%s_partial_mask_blocks and mask_function are not given",
                         p->name, (long long)at->mask_head, (long long)at->row,
                         (long long)at->column, p->name);
    const int64_t id = ejki_block_list_at(&p->id, at->mask_head, at->row, at->column);
    if (id >= 0 && id < p->block_count) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s_mask_next[%lld,%lld,%lld] is %lld, expected at least 0 and below %lld "
                     "blocks",
                     p->name, (long long)at->mask_head, (long long)at->row, (long long)at->column,
                     (long long)id, (long long)p->block_count);
}

ejk_status ejki_block_mask_check(const ejki_flash_problem *problem,
                                 const ejki_block_mask *block_mask) {
    const ejki_block_mask *p = block_mask;
    if (p->mask_heads == 0) return EJK_OK;
    const int64_t lines = p->by_column ? p->columns : p->rows;
    const int64_t mask_blocks = p->by_column ? p->rows : p->columns;
    const int64_t limit =
        p->by_column ? problem->queries / p->block_q : problem->keys / p->block_kv;
    for (int64_t mask_head = 0; mask_head < p->mask_heads; mask_head++)
        for (int64_t n = 0; n < lines; n++) {
            line at = {.block_mask = p, .mask_head = mask_head, .last = -1, .limit = limit};
            for (int64_t mask_block = 0; mask_block < mask_blocks; mask_block++) {
                at.row = p->by_column ? mask_block : n;
                at.column = p->by_column ? n : mask_block;
                EJKI_TRY(check_cell(&at));
            }
        }
    return EJK_OK;
}
