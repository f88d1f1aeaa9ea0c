/* SPDX-License-Identifier: Apache-2.0 */
/* From the arrays of a MaskInfo to a block mask. Their entries are looked at by each execution, not here. */
#include "operations/attention/blocksparse/blocksparse_attention_steps.h"

#include "base/base.h"
#include "kernels/tokens.cuh"

#include <string.h>

/* Beyond every position; far enough from the ends of int64 that a position can be added. */
#define FAR (INT64_C(1) << 61)

static ejki_block_list grid_of(const ejk_tensor *t) {
    return (ejki_block_list){NULL, t->strides[0], t->strides[1], (int64_t)ejk_dtype_size(t->dtype)};
}

static ejk_status check_given(const ejki_block_mask_args *grid) {
    const ejk_tensor *needed[] = {grid->next, grid->state};
    static const char *const names[] = {"data_next", "block_mask"};
    for (int i = 0; i < 2; i++)
        if (!ejk_tensor_present(needed[i]))
            return ejki_fail(
                EJK_STATUS_INVALID_ARGUMENT,
                "%s_%s is not given, expected it beside the other arrays of a MaskInfo", grid->name,
                names[i]);
    if (ejk_tensor_present(grid->id) == ejk_tensor_present(grid->blocks)) return EJK_OK;
    const bool has_id = ejk_tensor_present(grid->id);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s_%s is given alone, expected %s_%s too",
                     grid->name, has_id ? "mask_next" : "partial_mask_blocks", grid->name,
                     has_id ? "partial_mask_blocks" : "mask_next");
}

/* Blocks of `size` have to be a whole number of `length`. */
static ejk_status check_block(const ejki_block_mask_args *grid, const char *axis, int64_t size,
                              int64_t length) {
    if (size >= 1 && length % size == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s: blocks of %lld %s, expected at least 1 that divides %lld", grid->name,
                     (long long)size, axis, (long long)length);
}

static ejk_status check_blocks(const ejki_block_mask_args *grid, const ejki_block_mask *p) {
    if (!ejk_tensor_present(grid->blocks)) return EJK_OK;
    const int64_t *shape = grid->blocks->shape;
    const int64_t rows = p->by_column ? p->block_kv : p->block_q;
    const int64_t columns = p->by_column ? p->block_q : p->block_kv;
    if (shape[1] == rows && shape[2] == columns) return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_SHAPE,
        "%s_partial_mask_blocks has blocks of [%lld,%lld], expected [%lld,%lld] by its "
        "grids and block sizes",
        grid->name, (long long)shape[1], (long long)shape[2], (long long)rows, (long long)columns);
}

ejk_status ejki_block_mask_of(const ejki_block_mask_args *grid, const ejki_flash_problem *problem,
                              ejki_block_mask *out) {
    if (!ejki_block_mask_given(grid)) return EJK_OK;
    EJKI_TRY(check_given(grid));
    const int64_t *shape = grid->state->shape, mask_heads = shape[0];
    const bool has_blocks = ejk_tensor_present(grid->blocks);
    const int64_t lines = shape[grid->by_column ? 2 : 1];
    const int64_t length = grid->by_column ? problem->keys : problem->queries;
    const int64_t other = grid->by_column ? problem->queries : problem->keys;
    if (mask_heads < 1 || problem->query_heads % mask_heads != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s_block_mask has %lld planes, expected a divisor of the %lld heads",
                         grid->name, (long long)mask_heads, (long long)problem->query_heads);
    if (lines < 1 || length % lines != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s_block_mask has %lld %s of blocks, expected a divisor of %lld",
                         grid->name, (long long)lines, grid->by_column ? "columns" : "rows",
                         (long long)length);
    int64_t size = grid->block.value;
    if (!grid->block.set) {
        if (!has_blocks)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s_%s_blocksize is not set, expected it where no partial blocks tell",
                             grid->name, grid->by_column ? "q" : "kv");
        size = grid->blocks->shape[2];
    }
    EJKI_TRY(check_block(grid, grid->by_column ? "queries" : "keys", size, other));
    EJKI_TRY(check_block(grid, grid->by_column ? "keys" : "queries", length / lines, length));
    out->name = grid->name;
    out->mask_heads = mask_heads;
    out->rows = shape[1];
    out->columns = shape[2];
    out->heads_per_mask = ejki_max(1, problem->query_heads / mask_heads);
    out->block_q = grid->by_column ? size : length / lines;
    out->block_kv = grid->by_column ? length / lines : size;
    out->by_column = grid->by_column;
    out->next = grid_of(grid->next);
    out->state = grid_of(grid->state);
    EJKI_TRY(check_blocks(grid, out));
    if (!has_blocks) return EJK_OK;
    out->id = grid_of(grid->id);
    out->block_count = grid->blocks->shape[0];
    out->block_stride = grid->blocks->strides[0];
    out->block_row = grid->blocks->strides[1];
    return EJK_OK;
}

void ejki_block_mask_bind(const ejki_block_mask_args *grid, ejki_block_mask *out) {
    if (!ejki_block_mask_given(grid)) return;
    out->next.data = grid->next->data;
    out->state.data = grid->state->data;
    out->id.data = grid->id->data;
    out->blocks = grid->blocks->data;
}

static int64_t limited(int64_t value) {
    return ejki_max(-FAR, ejki_min(value, FAR));
}

/* What is hidden by index is now hidden by position. */
static ejk_status use_positions(const ejk_blocksparse_attention_args *args,
                                ejki_flash_problem *problem) {
    const ejk_tensor *query = &args->q_positions, *key = &args->kv_positions;
    const bool by_query = ejk_tensor_present(query), by_key = ejk_tensor_present(key);
    if (!by_query && !by_key) return EJK_OK;
    if (by_query && by_key && query->dtype != key->dtype)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "kv_positions has type %s, expected %s as q_positions",
                         ejk_dtype_name(key->dtype), ejk_dtype_name(query->dtype));
    problem->positions = (ejki_positions){
        .given = true,
        .are_i64 = (by_query ? query : key)->dtype == EJK_DTYPE_I64,
        .query_stride_b = by_query ? query->strides[0] : 0,
        .key_stride_b = by_key ? key->strides[0] : 0,
        .first = problem->first_offset,
        .last = problem->last_offset,
        .chunk = problem->block_mask.chunk,
        .chunk_offset = args->causal_offset.set ? problem->block_mask.chunk_offset : 0,
    };
    problem->first_offset = -FAR;
    problem->last_offset = FAR;
    problem->block_mask.chunk = 0;
    return EJK_OK;
}

ejk_status ejki_limits_of(const ejk_blocksparse_attention_args *args, ejki_flash_problem *problem) {
    ejki_block_mask *p = &problem->block_mask;
    const ejk_window interval = args->mask_interval;
    if (args->sequence_parallelism_mesh_axis_name[0] != '\0')
        return ejki_fail(
            EJK_STATUS_UNAVAILABLE,
            "sequence_parallelism_mesh_axis_name is '%s', but queries cannot be spread "
            "over a mesh in this version: leave it empty",
            args->sequence_parallelism_mesh_axis_name);
    EJKI_TRY(ejki_chunk_size(&args->chunk_size, &p->chunk));
    p->chunk_offset = limited(args->causal_offset.set ? args->causal_offset.value
                                                      : problem->keys - problem->queries);
    EJKI_TRY(use_positions(args, problem));
    p->has_function = strcmp(args->mask_function, "interval") == 0;
    if (!p->has_function) {
        if (args->mask_function[0] != '\0' && strcmp(args->mask_function, "none") != 0)
            return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "mask_function is '%s', expected interval",
                             args->mask_function);
        return EJK_OK;
    }
    if (args->mask_chunk_size < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "mask_chunk_size is %lld, expected at least 0",
                         (long long)args->mask_chunk_size);
    p->has_positions = ejk_tensor_present(&args->q_sequence);
    p->function_first = interval.left.set ? -limited(interval.left.value) : -FAR;
    p->function_last = interval.right.set ? limited(interval.right.value) : FAR;
    p->function_chunk = args->mask_chunk_size;
    return EJK_OK;
}
