/* SPDX-License-Identifier: Apache-2.0 */
/* Masks known beforehand, processed: ejk_process_mask() and ejk_process_mask_dkv(). */
#include "base/bits.h"
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

/* ---- Distinct masks -------------------------------------------------------------------------------- */

/* Up to so many heads, masks are compared one with another; beyond, by hash first. */
enum { FEW_HEADS = 32 };

/* Numbers the heads' masks in the order they are first met. hashes may be NULL. */
static void number_masks(const ejk_splash_mask *heads, const uint64_t *hashes, int64_t *slots,
                         int64_t slot_count, ejki_masks *out) {
    for (int64_t h = 0; h < heads->part_count; h++) {
        const ejk_splash_mask *mask = heads->parts[h];
        int64_t number = 0;
        if (hashes == NULL) {
            while (number < out->count && !ejk_splash_mask_equal(out->masks[number], mask))
                number++;
        } else {
            uint64_t slot = hashes[h], last = (uint64_t)slot_count - 1;
            while (slots[slot & last] >= 0 &&
                   !ejk_splash_mask_equal(out->masks[slots[slot & last]], mask))
                slot++;
            if (slots[slot & last] < 0) slots[slot & last] = out->count;
            number = slots[slot & last];
        }
        if (number == out->count) out->masks[out->count++] = mask;
        out->of_head[h] = number;
    }
}

static ejk_status find_masks(const ejki_mask_call *call, const ejk_splash_mask *heads,
                             ejki_masks *out) {
    uint64_t *hashes = NULL;
    int64_t *slots = NULL, slot_count = 64;
    EJKI_TRY(ejki_mask_alloc(call, call->heads, sizeof *out->masks, &out->masks));
    EJKI_TRY(ejki_mask_alloc(call, call->heads, sizeof *out->of_head, &out->of_head));
    ejk_status status = EJK_OK;
    if (call->heads > FEW_HEADS) {
        while (slot_count < 2 * call->heads) slot_count *= 2;
        status = ejki_mask_alloc(call, call->heads, sizeof *hashes, &hashes);
        if (status == EJK_OK) status = ejki_mask_alloc(call, slot_count, sizeof *slots, &slots);
        for (int64_t h = 0; h < call->heads && status == EJK_OK; h++)
            hashes[h] = ejk_splash_mask_hash(heads->parts[h]);
        if (status == EJK_OK) memset(slots, -1, (size_t)slot_count * sizeof *slots);
    }
    if (status == EJK_OK) number_masks(heads, hashes, slots, slot_count, out);
    free(hashes);
    free(slots);
    return status;
}

static void free_masks(ejki_masks *masks) {
    free(masks->masks);
    free(masks->of_head);
    free(masks->states);
    free(masks->hashes);
    free(masks->ids);
    free(masks->blocks);
}

/* ---- States ---------------------------------------------------------------------------------------- */

struct state_loop {
    const ejki_mask_call *call;
    const ejki_masks *masks;
    int64_t strips; /* tasks of a block row; masks with structure use the first only */
    atomic_bool failed;
};

static bool is_dense(const ejk_splash_mask *mask) {
    return mask->kind == EJK_SPLASH_MASK_NUMPY;
}

static void find_states_of_row(void *loop_, int64_t index) {
    struct state_loop *loop = loop_;
    const ejki_mask_call *call = loop->call;
    int64_t strip = index % loop->strips, line = index / loop->strips, row = line % call->rows;
    const ejk_splash_mask *mask = loop->masks->masks[line / call->rows];
    uint8_t *states = loop->masks->states + line * call->columns;
    if (is_dense(mask))
        ejki_dense_scan(call, mask, row, strip, loop->masks->secret, states,
                        loop->masks->hashes + line * call->columns);
    else if (strip == 0 &&
             !ejki_mask_states(mask, row * call->bq, call->bq, call->bkv, call->columns, states))
        atomic_store(&loop->failed, true);
}

/* Zeros where dense masks are added up. */
static ejk_status open_hashes(const ejki_mask_call *call, ejki_masks *masks) {
    for (int64_t u = 0; u < masks->count; u++) {
        if (!is_dense(masks->masks[u])) continue;
        if (masks->hashes == NULL)
            EJKI_TRY(ejki_mask_alloc(call, masks->count * call->cells, sizeof *masks->hashes,
                                     &masks->hashes));
        memset(masks->states + u * call->cells, 0, (size_t)call->cells);
        memset(masks->hashes + u * call->cells, 0, (size_t)call->cells * sizeof *masks->hashes);
    }
    return EJK_OK;
}

static ejk_status find_states(const ejki_mask_call *call, ejki_masks *masks) {
    EJKI_TRY(ejki_mask_alloc(call, masks->count * call->cells, 1, &masks->states));
    EJKI_TRY(open_hashes(call, masks));
    masks->secret = ejki_hash_secret();
    struct state_loop loop = {.call = call, .masks = masks, .strips = 1};
    if (masks->hashes != NULL) loop.strips = ejki_dense_strips(call);
    atomic_init(&loop.failed, false);
    ejk_parallel_for(call->threads, masks->count * call->rows * loop.strips, find_states_of_row,
                     &loop);
    for (int64_t u = 0; u < masks->count; u++)
        if (is_dense(masks->masks[u]))
            ejki_dense_resolve(call->cells, masks->states + u * call->cells,
                               masks->hashes + u * call->cells);
    if (atomic_load(&loop.failed))
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT,
                      "memory for states of blocks could not be had");
    return ejki_masks_decide(call, masks);
}

/* ---- The result ------------------------------------------------------------------------------------ */

/* Whether the heads of every shard share one mask. */
static bool shards_are_uniform(const ejki_mask_call *call, const ejki_masks *masks) {
    for (int64_t h = 0; h < call->heads; h++)
        if (masks->of_head[h] != masks->of_head[h - h % call->shard_heads]) return false;
    return true;
}

static int64_t planes_of(const ejki_mask_call *call, const ejki_masks *masks) {
    if (masks->count == 1) return 1;
    return shards_are_uniform(call, masks) ? call->head_shards : call->heads;
}

/* The grid of all planes; of one, to be copied, if there is but one mask. */
static ejk_status make_grid(const ejki_mask_call *call, const ejki_masks *masks, ejki_grid *grid) {
    bool uniform = shards_are_uniform(call, masks);
    grid->planes = planes_of(call, masks);
    grid->copies = masks->count == 1 ? call->head_shards : 1;
    grid->rows = call->rows;
    grid->columns = call->columns;
    int64_t cells = grid->planes * call->cells, *mask_of_plane = NULL;
    EJKI_TRY(ejki_mask_alloc(call, cells, 1, &grid->states));
    EJKI_TRY(ejki_mask_alloc(call, cells, sizeof(int32_t), &grid->next[0]));
    if (masks->ids != NULL) EJKI_TRY(ejki_mask_alloc(call, cells, sizeof(int32_t), &grid->next[1]));
    EJKI_TRY(ejki_mask_alloc(call, grid->planes, sizeof *mask_of_plane, &mask_of_plane));
    for (int64_t r = 0; r < grid->planes; r++) {
        mask_of_plane[r] = masks->of_head[uniform ? r * call->shard_heads : r];
        memcpy(grid->states + r * call->cells, masks->states + mask_of_plane[r] * call->cells,
               (size_t)call->cells);
    }
    int64_t group = uniform ? 1 : call->shard_heads;
    for (int a = 0; a < 2; a++)
        if (grid->next[a] != NULL)
            ejki_grid_fill(call, masks, mask_of_plane, grid->planes, group, a == 1, grid->next[a]);
    free(mask_of_plane);
    return EJK_OK;
}

static ejk_status publish_blocks(const ejki_mask_call *call, ejki_masks *masks,
                                 ejk_splash_mask_info *info) {
    if (masks->blocks == NULL) return EJK_OK;
    ejki_info_keep(info, PARTIAL_BLOCKS, masks->blocks);
    info->partial_mask_blocks =
        ejk_tensor_3d(masks->blocks, EJK_DTYPE_BOOL, masks->block_count,
                      call->dkv ? call->bkv : call->bq, call->dkv ? call->bq : call->bkv);
    masks->blocks = NULL;
    return EJK_OK;
}

/* The predicate in the blocks' place. */
static ejk_status publish_function(const ejki_mask_call *call, const ejk_splash_mask *mask,
                                   ejk_splash_mask_info *info) {
    int32_t *positions = NULL;
    EJKI_TRY(ejki_mask_alloc(call, call->q, sizeof *positions, &positions));
    for (int64_t i = 0; i < call->q; i++) positions[i] = (int32_t)ejki_mask_position(mask, i);
    ejki_info_keep(info, Q_SEQUENCE, positions);
    info->q_sequence = ejk_tensor_1d(positions, EJK_DTYPE_I32, call->q);
    info->mask_function = ejk_splash_mask_retain(mask);
    return EJK_OK;
}

/* Bytes that a block takes in the arrays of a call, all of them held at once; results as narrow as can be. */
static int64_t bytes_of_block(const ejki_mask_call *call, const ejki_masks *masks, bool function) {
    int64_t id = sizeof *masks->ids, result = call->narrow ? 1 : id;
    bool dense = false, table = false;
    for (int64_t u = 0; u < masks->count; u++) {
        dense = dense || is_dense(masks->masks[u]);
        table = table || (!function && masks->masks[u]->kind != EJK_SPLASH_MASK_FULL);
    }
    int64_t of_masks = 1 + (table ? id : 0) + (dense ? (int64_t)sizeof *masks->hashes : 0);
    int64_t of_planes = 1 + (1 + table) * id + (2 + table) * result;
    return masks->count * of_masks + planes_of(call, masks) * of_planes;
}

/* What is needed whatever the masks hold: refused before a state is looked for. */
static ejk_status check_sizes(const ejki_mask_call *call, const ejki_masks *masks, bool function) {
    int64_t each = bytes_of_block(call, masks, function), bytes;
    if (!ejki_mul(each, call->cells, &bytes) || bytes > call->max_bytes)
        return REFUSE(
            OVERFLOW, INVALID_ARGUMENT,
            "%lld x %lld blocks take %lld bytes each, together more than the limit of %lld bytes: "
            "expected larger blocks",
            (long long)call->rows, (long long)call->columns, (long long)each,
            (long long)call->max_bytes);
    if (!function) return EJK_OK;
    if (call->q - 1 > INT32_MAX)
        return REFUSE(
            OVERFLOW, INVALID_ARGUMENT,
            "the query length is %lld, expected at most 2^31 for a computable mask, whose "
            "positions are int32",
            (long long)call->q);
    return ejki_mask_check_array(call, call->q, sizeof(int32_t));
}

static ejk_status make_info(const ejki_mask_call *call, ejki_masks *masks, ejki_grid *grid,
                            ejk_splash_mask_info *info) {
    bool function = masks->count == 1 && ejk_splash_mask_computable(masks->masks[0]);
    EJKI_TRY(check_sizes(call, masks, function));
    EJKI_TRY(find_states(call, masks));
    if (!function) EJKI_TRY(ejki_partial_table(call, masks));
    EJKI_TRY(make_grid(call, masks, grid));
    if (call->shrink && masks->count == 1) EJKI_TRY(ejki_grid_shrink(call, grid));
    EJKI_TRY(ejki_grid_publish(call, grid, NULL, info));
    return function ? publish_function(call, masks->masks[0], info)
                    : publish_blocks(call, masks, info);
}

static ejk_status process(const char *name, const ejk_process_mask_args *args, bool dkv,
                          ejk_splash_mask_info *out) {
    if (args == NULL || args->mask == NULL || out == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s: args, args->mask or out is NULL",
                      name);
    ejki_mask_call call;
    int64_t shape[3];
    if (ejk_splash_mask_shape(args->mask, shape) != 3)
        return REFUSE(INVALID_SHAPE, MASK_NOT_3D,
                      "mask has the shape (%lld, %lld), expected a multi-head mask of three axes",
                      (long long)shape[0], (long long)shape[1]);
    EJKI_TRY(ejki_mask_call_check(shape, args, dkv, &call));
    ejki_masks masks = {0};
    ejki_grid grid = {0};
    ejk_splash_mask_info info;
    EJKI_TRY(ejki_info_open(&info));
    ejk_status status = find_masks(&call, args->mask, &masks);
    if (status == EJK_OK) status = make_info(&call, &masks, &grid, &info);
    ejki_grid_free(&grid);
    free_masks(&masks);
    if (status == EJK_OK)
        *out = info;
    else
        ejk_splash_mask_info_close(&info);
    return status;
}

ejk_status ejk_process_mask(const ejk_process_mask_args *args, ejk_splash_mask_info *out) {
    return process("ejk_process_mask", args, false, out);
}

ejk_status ejk_process_mask_dkv(const ejk_process_mask_args *args, ejk_splash_mask_info *out) {
    return process("ejk_process_mask_dkv", args, true, out);
}
