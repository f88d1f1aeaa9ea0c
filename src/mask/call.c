/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a call's numbers, its memory, and who owns the result. */
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

#define BAD(reason, ...) REFUSE(INVALID_ARGUMENT, reason, __VA_ARGS__)

static ejk_status at_least_one(const char *name, int64_t value) {
    if (value >= 1) return EJK_OK;
    return BAD(INVALID_ARGUMENT, "%s is %lld, expected at least 1", name, (long long)value);
}

static ejk_status check_divides(const ejki_mask_call *call) {
    if (call->q % call->bq != 0)
        return BAD(Q_BLOCK_SIZE, "q_block_size = %lld does not divide the query length, %lld",
                   (long long)call->bq, (long long)call->q);
    if (call->kv % call->bkv != 0)
        return BAD(KV_BLOCK_SIZE, "kv_block_size = %lld does not divide the key length, %lld",
                   (long long)call->bkv, (long long)call->kv);
    if (call->q % call->q_shards != 0)
        return BAD(Q_SEQ_SHARDS, "q_seq_shards = %lld does not divide the query length, %lld",
                   (long long)call->q_shards, (long long)call->q);
    if (call->q / call->q_shards % call->bq != 0)
        return BAD(Q_BLOCK_SIZE_PER_SHARD,
                   "q_block_size = %lld does not divide the query length of a shard, %lld",
                   (long long)call->bq, (long long)(call->q / call->q_shards));
    if (call->heads % call->head_shards != 0)
        return BAD(HEAD_SHARDS, "head_shards = %lld does not divide the number of heads, %lld",
                   (long long)call->head_shards, (long long)call->heads);
    return EJK_OK;
}

static ejk_status check_flag(const char *name, ejk_opt_bool flag) {
    if (flag == EJK_UNSET || flag == EJK_TRUE || flag == EJK_FALSE) return EJK_OK;
    return BAD(INVALID_ARGUMENT, "%s is %d, expected EJK_UNSET, EJK_TRUE or EJK_FALSE", name,
               (int)flag);
}

ejk_status ejki_mask_call_check(const int64_t *shape, const ejk_process_mask_args *args, bool dkv,
                                ejki_mask_call *out) {
    ejki_mask_call call = {.heads = shape[0], .q = shape[1], .kv = shape[2]};
    EJKI_TRY(check_flag("is_dkv", args->is_dkv));
    EJKI_TRY(check_flag("downcast_smem_data", args->downcast_smem_data));
    EJKI_TRY(check_flag("shrink_grid", args->shrink_grid));
    call.bq = args->block_shape[0];
    call.bkv = args->block_shape[1];
    call.head_shards = args->head_shards.set ? args->head_shards.value : 1;
    call.q_shards = args->q_seq_shards.set ? args->q_seq_shards.value : 1;
    call.dkv = args->is_dkv == EJK_UNSET ? dkv : args->is_dkv == EJK_TRUE;
    call.narrow = args->downcast_smem_data != EJK_FALSE;
    call.shrink = args->shrink_grid != EJK_FALSE;
    call.threads = args->threads;
    call.max_bytes = args->max_bytes > 0 ? args->max_bytes : INT64_MAX;
    EJKI_TRY(at_least_one("the number of heads", call.heads));
    EJKI_TRY(at_least_one("the query length", call.q));
    EJKI_TRY(at_least_one("the key length", call.kv));
    EJKI_TRY(at_least_one("block_shape[0]", call.bq));
    EJKI_TRY(at_least_one("block_shape[1]", call.bkv));
    EJKI_TRY(at_least_one("head_shards", call.head_shards));
    EJKI_TRY(at_least_one("q_seq_shards", call.q_shards));
    EJKI_TRY(check_divides(&call));
    call.rows = call.q / call.bq;
    call.columns = call.kv / call.bkv;
    call.shard_heads = call.heads / call.head_shards;
    call.shard_rows = call.rows / call.q_shards;
    if (call.rows > INT32_MAX || call.columns > INT32_MAX ||
        !ejki_mul(call.rows, call.columns, &call.cells))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "%lld x %lld blocks cannot be numbered in 32 bits: expected larger blocks",
                      (long long)call.rows, (long long)call.columns);
    *out = call;
    return EJK_OK;
}

ejk_status ejki_mask_check_array(const ejki_mask_call *call, int64_t count, int64_t size) {
    int64_t bytes;
    if (ejki_mul(count, size, &bytes) && bytes <= call->max_bytes) return EJK_OK;
    return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                  "an array of %lld entries of %lld bytes is asked for, more than the limit of "
                  "%lld bytes",
                  (long long)count, (long long)size, (long long)call->max_bytes);
}

ejk_status ejki_mask_alloc(const ejki_mask_call *call, int64_t count, int64_t size, void *out) {
    EJKI_TRY(ejki_mask_check_array(call, count, size));
    void *memory = ejki_allocate(count * size);
    if (memory == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory of %lld bytes could not be had",
                      (long long)(count * size));
    memcpy(out, &memory, sizeof memory);
    return EJK_OK;
}

/* ---- The owner ------------------------------------------------------------------------------------- */

struct owner {
    void *arrays[ARRAYS];
};

ejk_status ejki_info_open(ejk_splash_mask_info *info) {
    memset(info, 0, sizeof *info);
    info->owner = calloc(1, sizeof(struct owner));
    if (info->owner != NULL) return EJK_OK;
    return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for a result could not be had");
}

void ejki_info_keep(ejk_splash_mask_info *info, int place, void *array) {
    ((struct owner *)info->owner)->arrays[place] = array;
}

void ejk_splash_mask_info_close(ejk_splash_mask_info *info) {
    if (info == NULL) return;
    struct owner *owner = info->owner;
    for (int i = 0; owner != NULL && i < ARRAYS; i++) free(owner->arrays[i]);
    free(owner);
    ejk_splash_mask_release((ejk_splash_mask *)info->mask_function);
    memset(info, 0, sizeof *info);
}
