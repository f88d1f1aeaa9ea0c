/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/blocksparse/problem.h"

#include "base/base.h"

/* A line of cells, a row's or a column's, whose names have to ascend below `limit`. */
typedef struct line {
    const ejki_pattern *pattern;
    int64_t plane, row, column;
    int64_t last, limit;
} line;

static ejk_status check_cell(line *at) {
    const ejki_pattern *p = at->pattern;
    const int64_t state = ejki_grid_at(&p->state, at->plane, at->row, at->column);
    if (state == 0) return EJK_OK;
    if (state != 1 && state != 2)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_block_mask[%lld,%lld,%lld] is %lld, expected 0, 1 or 2", p->name,
                         (long long)at->plane, (long long)at->row, (long long)at->column,
                         (long long)state);
    const int64_t next = ejki_grid_at(&p->next, at->plane, at->row, at->column);
    if (next <= at->last || next >= at->limit)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_data_next[%lld,%lld,%lld] is %lld, expected above %lld, the one "
                         "before it, and below %lld blocks",
                         p->name, (long long)at->plane, (long long)at->row, (long long)at->column,
                         (long long)next, (long long)at->last, (long long)at->limit);
    at->last = next;
    if (state == 2 || p->has_function) return EJK_OK;
    if (p->blocks == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s_block_mask[%lld,%lld,%lld] is 1, a partial block, but "
                         "%s_partial_mask_blocks and mask_function are not given",
                         p->name, (long long)at->plane, (long long)at->row, (long long)at->column,
                         p->name);
    const int64_t id = ejki_grid_at(&p->id, at->plane, at->row, at->column);
    if (id >= 0 && id < p->block_count) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s_mask_next[%lld,%lld,%lld] is %lld, expected at least 0 and below %lld "
                     "blocks",
                     p->name, (long long)at->plane, (long long)at->row, (long long)at->column,
                     (long long)id, (long long)p->block_count);
}

ejk_status ejki_pattern_check(const ejki_flash_problem *problem, const ejki_pattern *pattern) {
    const ejki_pattern *p = pattern;
    if (p->planes == 0) return EJK_OK;
    const int64_t lines = p->by_column ? p->columns : p->rows;
    const int64_t cells = p->by_column ? p->rows : p->columns;
    const int64_t limit =
        p->by_column ? problem->queries / p->block_q : problem->keys / p->block_kv;
    for (int64_t plane = 0; plane < p->planes; plane++)
        for (int64_t n = 0; n < lines; n++) {
            line at = {.pattern = p, .plane = plane, .last = -1, .limit = limit};
            for (int64_t cell = 0; cell < cells; cell++) {
                at.row = p->by_column ? cell : n;
                at.column = p->by_column ? n : cell;
                EJKI_TRY(check_cell(&at));
            }
        }
    return EJK_OK;
}
