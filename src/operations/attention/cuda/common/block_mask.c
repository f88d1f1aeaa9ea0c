/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block masks on a GPU. block_mask.cu turns the block index lists of the call into one entry for each block of
 * scores at the start of each execution: the lists are data that nobody has checked.
 */
#include "operations/attention/cuda/common/launch.h"

/* A predicate by indices only narrows the offsets; one chunk is as good as the other's. */
static bool follows_indices(const ejki_block_mask *t) {
    return t->has_function && !t->has_positions && (t->function_chunk == 0 || t->chunk == 0);
}

static bool is_function(const ejki_block_mask *t) {
    return t->has_function && !follows_indices(t);
}

static bool has_chunk(const ejki_block_mask *t) {
    return t->chunk > 0 || (follows_indices(t) && t->function_chunk > 0);
}

void ejki_flash_cuda_add_visibility(ejki_cuda_constants *constants, const ejki_flash_problem *p) {
    const ejki_block_mask *t = &p->block_mask;
    if (has_chunk(t)) ejki_cuda_add(constants, "CHUNKED", 1);
    if (is_function(t)) ejki_cuda_add(constants, "FUNCTION", 1);
    if (p->positions.given) ejki_cuda_add(constants, "POSITIONS", 1);
    if (t->mask_heads == 0) return;
    ejki_cuda_add(constants, "MASK_QUERIES", t->block_q);
    ejki_cuda_add(constants, "MASK_KEYS", t->block_kv);
}

ejki_cuda_visibility ejki_flash_cuda_visibility_of(const ejki_flash_problem *p, int *block_mask) {
    const ejki_block_mask *t = &p->block_mask;
    const ejki_positions *at = &p->positions;
    const bool indices = follows_indices(t) && t->chunk == 0;
    return (ejki_cuda_visibility){
        .block_mask = block_mask,
        .blocks = t->blocks,
        .block_stride = t->block_stride,
        .query_stride = t->by_column ? 1 : t->block_row,
        .key_stride = t->by_column ? t->block_row : 1,
        .chunk = indices ? t->function_chunk : t->chunk,
        .chunk_offset = indices ? 0 : t->chunk_offset,
        .positions = t->has_positions ? t->positions : NULL,
        .function_first = t->function_first,
        .function_last = t->function_last,
        .function_chunk = t->function_chunk,
        .query_positions = at->query,
        .key_positions = at->key,
        .query_positions_b = at->query_stride_b,
        .key_positions_b = at->key_stride_b,
        .position_first = at->first,
        .position_last = at->last,
        .position_chunk = at->chunk,
        .position_offset = at->chunk_offset,
        .heads_per_mask = (int)ejki_max(1, t->heads_per_mask),
        .positions_are_i64 = at->are_i64,
    };
}

int64_t ejki_flash_cuda_first_offset(const ejki_flash_problem *p) {
    const bool narrows = follows_indices(&p->block_mask);
    return narrows ? ejki_max(p->first_offset, p->block_mask.function_first) : p->first_offset;
}

int64_t ejki_flash_cuda_last_offset(const ejki_flash_problem *p) {
    const bool narrows = follows_indices(&p->block_mask);
    return narrows ? ejki_min(p->last_offset, p->block_mask.function_last) : p->last_offset;
}

/* ---- Cells ---------------------------------------------------------------------------------------------- */

enum { ALIGNMENT = 256 };

/* -1 = more than can be counted. */
int64_t ejki_flash_cuda_block_mask_bytes(const ejki_flash_problem *p) {
    const ejki_block_mask *t = &p->block_mask;
    int64_t bytes;
    if (t->mask_heads == 0) return 0;
    if (!ejki_mul(p->queries / t->block_q, p->keys / t->block_kv, &bytes) ||
        !ejki_mul(bytes, t->mask_heads * (int64_t)sizeof(int), &bytes) ||
        !ejki_add(bytes, ALIGNMENT - 1, &bytes))
        return -1;
    return bytes / ALIGNMENT * ALIGNMENT;
}

ejk_status ejki_flash_cuda_ready_block_mask(ejk_launch *launch, int32_t slot,
                                            const ejki_flash_problem *p) {
    const ejki_cuda_constants none = {.count = 0};
    if (p->block_mask.mask_heads == 0) return EJK_OK;
    return ejki_cuda_ready(launch, slot, "operations/attention/cuda/common/block_mask.cu",
                           "block_mask", &none);
}

static ejki_cuda_block_list list_of(const ejki_block_list *grid) {
    return (ejki_cuda_block_list){grid->data, grid->stride_p, grid->stride_r, (int)grid->size};
}

ejk_status ejki_flash_cuda_begin_block_mask(const ejk_run *run, int32_t slot,
                                            const ejki_flash_problem *p, int *block_mask) {
    const ejki_block_mask *t = &p->block_mask;
    if (t->mask_heads == 0) return EJK_OK;
    ejki_cuda_block_lists lists = {
        .next = list_of(&t->next),
        .state = list_of(&t->state),
        .id = list_of(&t->id),
        .block_mask = block_mask,
        .block_count = t->has_function ? -1
                       : t->blocks     ? t->block_count
                                       : 0,
        .mask_heads = (int)t->mask_heads,
        .rows = (int)t->rows,
        .columns = (int)t->columns,
        .block_rows = (int)(p->queries / t->block_q),
        .block_columns = (int)(p->keys / t->block_kv),
        .by_column = t->by_column,
    };
    const ejki_cuda_work work = {.slot = slot,
                                 .blocks = t->mask_heads * (t->by_column ? t->columns : t->rows),
                                 .splits = 1,
                                 .threads = 128};
    return ejki_cuda_begin(run, &work, &lists);
}

ejk_status ejki_flash_cuda_check_block_lists(const ejki_flash_problem *p) {
    const ejki_block_mask *t = &p->block_mask;
    const int64_t position = p->positions.are_i64 ? 8 : 4;
    if (t->mask_heads > 0) {
        EJKI_TRY(ejki_cuda_check_address(t->next.data, t->next.size, "data_next"));
        EJKI_TRY(ejki_cuda_check_address(t->state.data, t->state.size, "block_mask"));
        if (t->id.data) EJKI_TRY(ejki_cuda_check_address(t->id.data, t->id.size, "mask_next"));
    }
    if (t->has_positions) EJKI_TRY(ejki_cuda_check_address(t->positions, 4, "q_sequence"));
    if (!p->positions.given) return EJK_OK;
    EJKI_TRY(ejki_cuda_check_address(p->positions.query, position, "q_positions"));
    return ejki_cuda_check_address(p->positions.key, position, "kv_positions");
}
