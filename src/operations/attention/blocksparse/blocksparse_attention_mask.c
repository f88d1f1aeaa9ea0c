/* SPDX-License-Identifier: Apache-2.0 */
/* MaskInfos from masks, and from MaskInfos the arguments of calls. */
#include <ejkernel/blocksparse_attention.h>
#include <ejkernel/cuda.h>
#include <ejkernel/flash_attention.h>

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* ---- From a mask -------------------------------------------------------------------------------------- */

/* The largest divisor of a length up to 128. */
static int64_t block_of(int64_t length) {
    int64_t size = ejki_min(length, 128);
    while (size > 1 && length % size != 0) size--;
    return size;
}

static bool is_function(const ejk_splash_mask *mask) {
    return ejk_splash_mask_kind_of(mask) == EJK_SPLASH_MASK_FUNCTION;
}

/* A user's predicate cannot be an argument; as a part of another mask it becomes elements. */
static ejk_status with_elements(const ejk_splash_mask *mask, ejk_splash_mask **out) {
    int64_t shape[3];
    ejk_splash_mask *full = NULL;
    (void)ejk_splash_mask_shape(mask, shape);
    EJKI_TRY(ejk_full_mask_create(shape, &full));
    const ejk_status status = ejk_logical_and_create(mask, full, out);
    ejk_splash_mask_release(full);
    return status;
}

/* The multi-head mask to be processed: a reference of the caller's. */
static ejk_status heads_of(const ejk_splash_mask *mask, ejk_splash_mask **out) {
    if (ejk_splash_mask_kind_of(mask) == EJK_SPLASH_MASK_MULTI_HEAD) {
        int64_t shape[3];
        (void)ejk_splash_mask_shape(mask, shape);
        bool own = false;
        for (int64_t h = 0; h < shape[0]; h++) own |= is_function(ejk_splash_mask_head(mask, h));
        if (!own) {
            *out = ejk_splash_mask_retain(mask);
            return EJK_OK;
        }
        /* Equal heads stay equal: the first stands for those that are. */
        for (int64_t h = 1; h < shape[0]; h++)
            if (!ejk_splash_mask_equal(ejk_splash_mask_head(mask, 0),
                                       ejk_splash_mask_head(mask, h))) {
                *out = ejk_splash_mask_retain(mask); /* of several masks all become elements */
                return EJK_OK;
            }
        return heads_of(ejk_splash_mask_head(mask, 0), out);
    }
    ejk_splash_mask *elements = NULL;
    if (is_function(mask)) EJKI_TRY(with_elements(mask, &elements));
    const ejk_splash_mask *list[1] = {elements ? elements : mask};
    const ejk_status status = ejk_multi_head_mask_create(list, 1, out);
    ejk_splash_mask_release(elements);
    return status;
}

static ejk_status process(const ejk_splash_mask *heads, const ejk_blocksparse_mask_options *options,
                          ejk_blocksparse_mask_info *out) {
    int64_t shape[3];
    (void)ejk_splash_mask_shape(heads, shape);
    ejk_process_mask_args args = {.mask = heads,
                                  .shrink_grid = options->shrink_grid,
                                  .threads = options->threads,
                                  .max_bytes = options->max_bytes};
    for (int i = 0; i < 2; i++) {
        args.block_shape[i] =
            options->block_shape[i] ? options->block_shape[i] : block_of(shape[1 + i]);
        out->fwd_block_shape[i] = out->dq_block_shape[i] = out->dkv_block_shape[i] =
            args.block_shape[i];
    }
    EJKI_TRY(ejk_process_mask(&args, &out->fwd));
    if (options->forward_only) return EJK_OK;
    EJKI_TRY(ejk_process_mask(&args, &out->dq));
    return ejk_process_mask_dkv(&args, &out->dkv);
}

ejk_status ejk_blocksparse_mask_info_create(const ejk_splash_mask *mask,
                                            const ejk_blocksparse_mask_options *options,
                                            ejk_blocksparse_mask_info *out) {
    static const ejk_blocksparse_mask_options defaults;
    if (mask == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", mask == NULL ? "mask" : "out");
    ejk_splash_mask *heads = NULL;
    EJKI_TRY(heads_of(mask, &heads));
    ejk_blocksparse_mask_info info = {.fwd = {.owner = NULL}};
    const ejk_status status = process(heads, options ? options : &defaults, &info);
    ejk_splash_mask_release(heads);
    if (status == EJK_OK)
        *out = info;
    else
        ejk_blocksparse_mask_info_close(&info);
    return status;
}

static void close_copies(void *owner);

void ejk_blocksparse_mask_info_close(ejk_blocksparse_mask_info *info) {
    if (info == NULL) return;
    close_copies(info->owner);
    ejk_splash_mask_info_close(&info->fwd);
    ejk_splash_mask_info_close(&info->dq);
    ejk_splash_mask_info_close(&info->dkv);
    *info = (ejk_blocksparse_mask_info){.fwd = {.owner = NULL}};
}

/* ---- On a GPU ----------------------------------------------------------------------------------------- */

/* Copies of the arrays of the three. */
enum { COPIES = 15 };
typedef struct copies {
    ejk_owned_tensor list[COPIES];
    int32_t count;
} copies;

static void close_copies(void *owner) {
    copies *own = owner;
    for (int32_t i = 0; own != NULL && i < own->count; i++) ejk_owned_tensor_close(&own->list[i]);
    free(own);
}

static ejk_status move_tensor(int32_t device, copies *own, ejk_tensor *tensor) {
    ejk_owned_tensor there;
    if (!ejk_tensor_present(tensor)) return EJK_OK;
    EJKI_TRY(ejk_device_tensor_create(device, tensor->dtype, tensor->rank, tensor->shape, &there));
    own->list[own->count++] = there;
    EJKI_TRY(ejk_device_copy(tensor, &there.tensor, NULL));
    *tensor = there.tensor;
    return EJK_OK;
}

static ejk_status move_arrays(int32_t device, copies *own, ejk_splash_mask_info *info) {
    EJKI_TRY(move_tensor(device, own, &info->data_next));
    EJKI_TRY(move_tensor(device, own, &info->mask_next));
    EJKI_TRY(move_tensor(device, own, &info->block_mask));
    EJKI_TRY(move_tensor(device, own, &info->partial_mask_blocks));
    return move_tensor(device, own, &info->q_sequence);
}

ejk_status ejk_blocksparse_mask_info_to_device(const ejk_blocksparse_mask_info *info,
                                               int32_t device, ejk_blocksparse_mask_info *out) {
    if (info == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", info == NULL ? "info" : "out");
    copies *own = calloc(1, sizeof *own);
    if (own == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a MaskInfo");
    ejk_blocksparse_mask_info there = *info;
    ejk_splash_mask_info *const parts[] = {&there.fwd, &there.dq, &there.dkv};
    there.owner = own;
    for (int i = 0; i < 3; i++) {
        parts[i]->owner = NULL;
        ejk_splash_mask_retain(parts[i]->mask_function);
    }
    ejk_status status = EJK_OK;
    for (int i = 0; i < 3 && status == EJK_OK; i++) status = move_arrays(device, own, parts[i]);
    if (status == EJK_OK)
        *out = there;
    else
        ejk_blocksparse_mask_info_close(&there);
    return status;
}

/* ---- Into arguments ----------------------------------------------------------------------------------- */

static bool is_there(const ejk_splash_mask_info *info) {
    return ejk_tensor_present(&info->block_mask);
}

/* Blocks of a dynamic MaskInfo lie by head, row and column: one list of them. */
static ejk_status list_of_blocks(const ejk_tensor *blocks, ejk_tensor *out) {
    *out = *blocks;
    if (!ejk_tensor_present(blocks) || blocks->rank == 3) return EJK_OK;
    int64_t shape[3] = {1, 0, 0};
    if (blocks->rank != 5)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "partial_mask_blocks has %d axes, expected 3 or 5", (int)blocks->rank);
    for (int i = 0; i < 3; i++)
        if (!ejki_mul(shape[0], blocks->shape[i], &shape[0]))
            return ejki_fail(EJK_STATUS_OVERFLOW, "partial_mask_blocks has too many blocks");
    shape[1] = blocks->shape[3];
    shape[2] = blocks->shape[4];
    *out = ejk_tensor_contiguous(blocks->data, blocks->dtype, 3, shape);
    return EJK_OK;
}

/* What a predicate says, as the numbers of mask_function. */
static ejk_status function_of(const ejk_splash_mask_info *info,
                              ejk_blocksparse_attention_args *args) {
    if (info->mask_function == NULL) return EJK_OK;
    if (!ejk_splash_mask_interval(info->mask_function, &args->mask_interval,
                                  &args->mask_chunk_size))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "mask_function is a %s mask, expected causal, local or chunked_causal",
                         ejk_splash_mask_kind_name(ejk_splash_mask_kind_of(info->mask_function)));
    memcpy(args->mask_function, "interval", sizeof "interval");
    args->q_sequence = info->q_sequence;
    return EJK_OK;
}

static ejk_status check_shape(const int64_t *shape, const char *name) {
    if (shape[0] >= 1 && shape[1] >= 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s_block_shape is {%lld, %lld}, expected at least 1 each", name,
                     (long long)shape[0], (long long)shape[1]);
}

static ejk_status refuse_second(bool there) {
    if (!there) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "a MaskInfo or mask_function is in args already, expected neither");
}

static ejk_status set_forward(ejk_blocksparse_attention_args *args,
                              const ejk_blocksparse_mask_info *info) {
    EJKI_TRY(refuse_second(ejk_tensor_present(&args->fwd_block_mask) || args->mask_function[0]));
    EJKI_TRY(check_shape(info->fwd_block_shape, "fwd"));
    EJKI_TRY(list_of_blocks(&info->fwd.partial_mask_blocks, &args->fwd_partial_mask_blocks));
    EJKI_TRY(function_of(&info->fwd, args));
    args->fwd_data_next = info->fwd.data_next;
    args->fwd_mask_next = info->fwd.mask_next;
    args->fwd_block_mask = info->fwd.block_mask;
    args->fwd_kv_blocksize = ejk_int(info->fwd_block_shape[1]);
    return EJK_OK;
}

static ejk_status check_info(const void *args, const ejk_blocksparse_mask_info *info) {
    if (args != NULL && info != NULL && is_there(&info->fwd)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s",
                     args == NULL   ? "args is NULL"
                     : info == NULL ? "info is NULL"
                                    : "fwd of info is empty, expected a MaskInfo");
}

ejk_status ejk_blocksparse_attention_set_mask_info(ejk_blocksparse_attention_args *args,
                                                   const ejk_blocksparse_mask_info *info) {
    EJKI_TRY(check_info(args, info));
    ejk_blocksparse_attention_args own = *args;
    EJKI_TRY(set_forward(&own, info));
    *args = own;
    return EJK_OK;
}

ejk_status ejk_blocksparse_attention_vjp_set_mask_info(ejk_blocksparse_attention_vjp_args *args,
                                                       const ejk_blocksparse_mask_info *info) {
    EJKI_TRY(check_info(args, info));
    ejk_blocksparse_attention_args forward = {.lse = args->lse};
    ejk_blocksparse_attention_vjp_args own = *args;
    memcpy(&forward, args, offsetof(ejk_blocksparse_attention_args, out));
    EJKI_TRY(refuse_second(ejk_tensor_present(&args->dq_block_mask) ||
                           ejk_tensor_present(&args->dkv_block_mask)));
    EJKI_TRY(set_forward(&forward, info));
    memcpy(&own, &forward, offsetof(ejk_blocksparse_attention_args, out));
    if (is_there(&info->dq)) {
        EJKI_TRY(check_shape(info->dq_block_shape, "dq"));
        EJKI_TRY(list_of_blocks(&info->dq.partial_mask_blocks, &own.dq_partial_mask_blocks));
        own.dq_data_next = info->dq.data_next;
        own.dq_mask_next = info->dq.mask_next;
        own.dq_block_mask = info->dq.block_mask;
        own.dq_kv_blocksize = ejk_int(info->dq_block_shape[1]);
    }
    if (is_there(&info->dkv)) {
        EJKI_TRY(check_shape(info->dkv_block_shape, "dkv"));
        EJKI_TRY(list_of_blocks(&info->dkv.partial_mask_blocks, &own.dkv_partial_mask_blocks));
        own.dkv_data_next = info->dkv.data_next;
        own.dkv_mask_next = info->dkv.mask_next;
        own.dkv_block_mask = info->dkv.block_mask;
        own.dkv_q_blocksize = ejk_int(info->dkv_block_shape[0]);
    }
    *args = own;
    return EJK_OK;
}

/* A MaskInfo of the CPU becomes one where `query` lies. */
static ejk_status move_beside(const ejk_tensor *query, ejk_blocksparse_mask_info *info) {
    ejk_blocksparse_mask_info there;
    if (query->device_type != EJK_DEVICE_CUDA) return EJK_OK;
    EJKI_TRY(ejk_blocksparse_mask_info_to_device(info, query->device_index, &there));
    ejk_blocksparse_mask_info_close(info);
    *info = there;
    return EJK_OK;
}

ejk_status ejk_blocksparse_attention_masked(ejk_context *context,
                                            const ejk_blocksparse_attention_args *args,
                                            const ejk_splash_mask *mask) {
    if (args == NULL || mask == NULL) return ejk_blocksparse_attention(context, args);
    const ejk_blocksparse_mask_options options = {.forward_only = true};
    ejk_blocksparse_attention_args own = *args;
    ejk_blocksparse_mask_info info;
    EJKI_TRY(ejk_blocksparse_mask_info_create(mask, &options, &info));
    ejk_status status = move_beside(&args->query, &info);
    if (status == EJK_OK) status = ejk_blocksparse_attention_set_mask_info(&own, &info);
    if (status == EJK_OK) status = ejk_blocksparse_attention(context, &own);
    ejk_blocksparse_mask_info_close(&info); /* which on a GPU waits until the call is done */
    return status;
}

/* ---- From a MaskInfo of the library ------------------------------------------------------------------- */

static ejk_status check_positions(const ejk_blocksparse_attention_args *args) {
    const bool query = ejk_tensor_present(&args->q_positions);
    if (!query && !ejk_tensor_present(&args->kv_positions)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s is given beside mask_info, expected one of them",
                     query ? "q_positions" : "kv_positions");
}

ejk_status ejk_blocksparse_attention_set_masks(ejk_blocksparse_attention_args *args,
                                               const ejk_mask_info *info) {
    if (args == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    /* With a limit of the call's own, those of the object go into its mask: they mean indices. */
    ejk_flash_attention_args masks = {.query = args->query,
                                      .attention_mask = args->attention_mask,
                                      .q_segment_ids = args->q_segment_ids,
                                      .kv_segment_ids = args->kv_segment_ids,
                                      .causal = true};
    ejk_tensor query, key;
    EJKI_TRY(check_positions(args));
    EJKI_TRY(ejk_flash_attention_set_mask_info(&masks, info));
    EJKI_TRY(ejk_mask_info_q_positions(info, &query));
    EJKI_TRY(ejk_mask_info_kv_positions(info, &key));
    if (args->query.device_type == EJK_DEVICE_CUDA) {
        EJKI_TRY(ejk_mask_info_on_device(info, args->query.device_index, &query));
        EJKI_TRY(ejk_mask_info_on_device(info, args->query.device_index, &key));
    }
    args->attention_mask = masks.attention_mask;
    args->q_segment_ids = masks.q_segment_ids;
    args->kv_segment_ids = masks.kv_segment_ids;
    args->q_positions = query;
    args->kv_positions = key;
    return EJK_OK;
}

ejk_status ejk_blocksparse_attention_vjp_set_masks(ejk_blocksparse_attention_vjp_args *args,
                                                   const ejk_mask_info *info) {
    if (args == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    const size_t inputs = offsetof(ejk_blocksparse_attention_args, out);
    ejk_blocksparse_attention_args forward = {.causal = false};
    memcpy(&forward, args, inputs);
    EJKI_TRY(ejk_blocksparse_attention_set_masks(&forward, info));
    memcpy(args, &forward, inputs);
    return EJK_OK;
}
