/* SPDX-License-Identifier: Apache-2.0 */
/* Masks whose elements are known when the kernel runs: every block is kept, and no two are compared. */
#include "base/bits.h"
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

struct dynamic {
    const ejki_mask_call *call;
    const uint8_t *elements; /* of the first head */
    int64_t head_stride, row_stride, column_stride;
    ejki_grid grid;
    uint8_t *blocks; /* [heads][rows][columns][bq][bkv], for dkv the last two exchanged */
};

static void copy_row(const uint8_t *from, int64_t stride, int64_t count, uint8_t *to) {
    if (stride == 1)
        for (int64_t i = 0; i < count; i++) to[i] = from[i] != 0;
    else
        for (int64_t i = 0; i < count; i++) to[i] = from[i * stride] != 0;
}

/* What was seen of a block. */
struct seen {
    bool any, all;
};

static void look(struct seen *seen, const uint8_t *bytes, int64_t count) {
    bool any, all;
    ejki_scan_bytes(bytes, count, &any, &all);
    seen->any |= any;
    seen->all &= all;
}

/* A block for dkv: pieces are read as long as memory likes it, and turned into whole lines of the block. */
static struct seen turn_block(const struct dynamic *dynamic, const uint8_t *from, uint8_t *out) {
    enum { HEIGHT = 64, WIDTH = 512 };
    const ejki_mask_call *call = dynamic->call;
    struct seen seen = {.all = true};
    uint8_t piece[HEIGHT * WIDTH];
    for (int64_t a = 0; a < call->bq; a += HEIGHT)
        for (int64_t b = 0; b < call->bkv; b += WIDTH) {
            int64_t rows = ejki_min(HEIGHT, call->bq - a);
            int64_t columns = ejki_min(WIDTH, call->bkv - b);
            for (int64_t i = 0; i < rows; i++)
                copy_row(from + (a + i) * dynamic->row_stride + b * dynamic->column_stride,
                         dynamic->column_stride, columns, piece + i * columns);
            look(&seen, piece, rows * columns);
            ejki_transpose_bytes(piece, columns, rows, columns, out + b * call->bq + a, call->bq);
        }
    return seen;
}

static struct seen copy_block(const struct dynamic *dynamic, int64_t head, int64_t row,
                              int64_t column, uint8_t *out) {
    const ejki_mask_call *call = dynamic->call;
    const uint8_t *from = dynamic->elements + head * dynamic->head_stride +
                          row * dynamic->row_stride + column * dynamic->column_stride;
    if (call->dkv) return turn_block(dynamic, from, out);
    struct seen seen = {.all = true};
    for (int64_t a = 0; a < call->bq; a++, from += dynamic->row_stride, out += call->bkv) {
        copy_row(from, dynamic->column_stride, call->bkv, out);
        look(&seen, out, call->bkv);
    }
    return seen;
}

/* One block row of one head. */
static void process_row(void *dynamic_, int64_t index) {
    struct dynamic *dynamic = dynamic_;
    const ejki_mask_call *call = dynamic->call;
    int64_t head = index / call->rows, i = index % call->rows, size = call->bq * call->bkv;
    int64_t shard_row = head % call->shard_heads * call->shard_rows + i % call->shard_rows;
    for (int64_t j = 0; j < call->columns; j++) {
        int64_t cell = index * call->columns + j;
        uint8_t *block = dynamic->blocks + cell * size;
        struct seen seen = copy_block(dynamic, head, i * call->bq, j * call->bkv, block);
        bool partial = seen.any && !seen.all;
        int64_t next = call->dkv ? i % call->shard_rows : j;
        dynamic->grid.states[cell] = seen.all ? FULL : partial ? PARTIAL : EMPTY;
        dynamic->grid.next[0][cell] = (int32_t)(seen.any ? next : 0);
        dynamic->grid.next[1][cell] = (int32_t)(partial ? shard_row * call->columns + j : 0);
    }
}

/* The element types follow from these bounds, not from the values. */
static ejk_status find_bounds(const ejki_mask_call *call, int64_t bounds[2], int64_t *cells,
                              int64_t *bytes) {
    int64_t size;
    bounds[0] = call->dkv ? call->shard_rows : call->columns;
    if (ejki_mul(call->shard_heads * call->shard_rows, call->columns, &bounds[1]) &&
        ejki_mul(call->heads, call->cells, cells) && ejki_mul(call->bq, call->bkv, &size) &&
        ejki_mul(*cells, size, bytes) && bounds[1] - 1 <= INT32_MAX)
        return EJK_OK;
    return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                  "%lld heads of %lld x %lld blocks cannot be numbered in 32 bits",
                  (long long)call->heads, (long long)call->rows, (long long)call->columns);
}

static ejk_status make_info(struct dynamic *dynamic, ejk_splash_mask_info *info) {
    const ejki_mask_call *call = dynamic->call;
    ejki_grid *grid = &dynamic->grid;
    int64_t bounds[2] = {0}, cells = 0, bytes = 0;
    EJKI_TRY(find_bounds(call, bounds, &cells, &bytes));
    *grid = (ejki_grid){call->heads, 1, call->rows, call->columns, NULL, {NULL, NULL}};
    EJKI_TRY(ejki_mask_alloc(call, bytes, 1, &dynamic->blocks));
    ejki_info_keep(info, PARTIAL_BLOCKS, dynamic->blocks);
    EJKI_TRY(ejki_mask_alloc(call, cells, 1, &grid->states));
    EJKI_TRY(ejki_mask_alloc(call, cells, sizeof(int32_t), &grid->next[0]));
    EJKI_TRY(ejki_mask_alloc(call, cells, sizeof(int32_t), &grid->next[1]));
    ejk_parallel_for(call->threads, call->heads * call->rows, process_row, dynamic);
    const int64_t shape[5] = {call->heads, call->rows, call->columns,
                              call->dkv ? call->bkv : call->bq, call->dkv ? call->bq : call->bkv};
    info->partial_mask_blocks = ejk_tensor_contiguous(dynamic->blocks, EJK_DTYPE_BOOL, 5, shape);
    info->is_dynamic_mask = true;
    return ejki_grid_publish(call, grid, bounds, info);
}

static ejk_status check_mask(const ejk_tensor *mask) {
    if (mask->rank != 3)
        return REFUSE(INVALID_SHAPE, MASK_NOT_3D, "mask has %d axes, expected 3", (int)mask->rank);
    if (mask->dtype != EJK_DTYPE_BOOL)
        return REFUSE(INVALID_DTYPE, MASK_NOT_BOOL, "mask is of %s, expected bool",
                      ejk_dtype_name(mask->dtype));
    ejki_splash_reason_set(EJK_SPLASH_REASON_INVALID_ARGUMENT);
    EJKI_TRY(ejk_tensor_check(mask, "mask"));
    if (mask->device_type != EJK_DEVICE_CPU)
        return REFUSE(UNAVAILABLE, INVALID_ARGUMENT,
                      "mask lies on device type %d, expected the CPU", (int)mask->device_type);
    return EJK_OK;
}

static ejk_status process(const char *name, const ejk_process_dynamic_mask_args *args, bool dkv,
                          ejk_splash_mask_info *out) {
    if (args == NULL || out == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s: args or out is NULL", name);
    ejki_mask_call call;
    const ejk_tensor *mask = &args->mask;
    EJKI_TRY(check_mask(mask));
    ejk_process_mask_args numbers = {.block_shape = {args->block_shape[0], args->block_shape[1]},
                                     .is_dkv = args->is_dkv,
                                     .downcast_smem_data = args->downcast_smem_data,
                                     .head_shards = args->head_shards,
                                     .q_seq_shards = args->q_seq_shards,
                                     .shrink_grid = args->shrink_grid,
                                     .threads = args->threads,
                                     .max_bytes = args->max_bytes};
    EJKI_TRY(ejki_mask_call_check(mask->shape, &numbers, dkv, &call));
    struct dynamic dynamic = {.call = &call,
                              .elements = mask->data,
                              .head_stride = mask->strides[0],
                              .row_stride = mask->strides[1],
                              .column_stride = mask->strides[2]};
    ejk_splash_mask_info info;
    EJKI_TRY(ejki_info_open(&info));
    ejk_status status = make_info(&dynamic, &info);
    ejki_grid_free(&dynamic.grid);
    if (status == EJK_OK)
        *out = info;
    else
        ejk_splash_mask_info_close(&info);
    return status;
}

ejk_status ejk_process_dynamic_mask(const ejk_process_dynamic_mask_args *args,
                                    ejk_splash_mask_info *out) {
    return process("ejk_process_dynamic_mask", args, false, out);
}

ejk_status ejk_process_dynamic_mask_dkv(const ejk_process_dynamic_mask_args *args,
                                        ejk_splash_mask_info *out) {
    return process("ejk_process_dynamic_mask_dkv", args, true, out);
}
