/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forms, computed from what a mask is made of. A slot is filled under the lock, once, and published; reads
 * that find it filled take no lock.
 */
#include "mask_info/info.h"

#include <ejkernel/sequence.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rows of the mask -------------------------------------------------------------------------------- */

void ejki_info_row(const ejk_mask_info *info, int64_t b, int64_t h, int64_t row, int64_t column,
                   int64_t count, uint8_t *out) {
    int64_t first, last;
    ejki_band_columns(&info->band, b, row, info->kv, &first, &last);
    first = ejki_min(ejki_max(first, column), column + count);
    last = ejki_max(ejki_min(last, column + count), first);
    memset(out, 0, (size_t)count);
    if (info->elements != NULL) {
        int64_t at = ((b * info->heads + h) * info->q + row) * info->kv;
        if (last > first)
            memcpy(out + first - column, ejki_bytes(info->elements) + at + first,
                   (size_t)(last - first));
        return;
    }
    int32_t id = ejki_ids(info->q_source)[b * info->q + row];
    if (id < 0) return;
    const int32_t *keys = ejki_ids(info->kv_source) + b * info->kv;
    for (int64_t j = first; j < last; j++) out[j - column] = keys[j] == id;
}

static ejk_status produce_truth(const ejk_mask_info *info, ejki_info_array **out) {
    if (info->elements != NULL && info->band.low == NULL) {
        *out = ejki_info_array_retain(info->elements);
        return EJK_OK;
    }
    int64_t shape[4] = {info->batch, info->heads, info->q, info->kv};
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, 4, shape, out));
    uint8_t *row = ejki_bytes(*out);
    for (int64_t b = 0; b < info->batch; b++)
        for (int64_t h = 0; h < info->heads; h++)
            for (int64_t i = 0; i < info->q; i++, row += info->kv)
                ejki_info_row(info, b, h, i, 0, info->kv, row);
    return EJK_OK;
}

/* ---- Ids from a mask --------------------------------------------------------------------------------- */

/* What row `i` holds in the heads from `head` to `end`, all of them together; bytes of one row each. */
static void agreed_row(const ejk_mask_info *info, int64_t b, int64_t head, int64_t end, int64_t i,
                       uint8_t *row, uint8_t *one) {
    memset(row, 1, (size_t)info->kv);
    for (int64_t h = head; h < end; h++) {
        ejki_info_row(info, b, h, i, 0, info->kv, one);
        for (int64_t j = 0; j < info->kv; j++) row[j] &= one[j];
    }
}

/* 0 where a row or column holds a true, else −1, for each group of heads. */
static ejk_status collapse(const ejk_mask_info *info, int64_t groups, int64_t heads, int32_t *q,
                           int32_t *kv) {
    uint8_t *row = calloc((size_t)ejki_max(info->kv, 1), 2);
    if (row == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a row of a mask");
    uint8_t *one = row + info->kv;
    for (int64_t g = 0; g < groups * info->batch; g++) {
        int64_t b = g / groups, head = g % groups * heads;
        for (int64_t j = 0; j < info->kv; j++) kv[g * info->kv + j] = -1;
        for (int64_t i = 0; i < info->q; i++) {
            agreed_row(info, b, head, head + heads, i, row, one);
            int32_t *id = &q[g * info->q + i];
            *id = -1;
            for (int64_t j = 0; j < info->kv; j++)
                if (row[j]) *id = kv[g * info->kv + j] = 0;
        }
    }
    free(row);
    return EJK_OK;
}

/* Fills both slots at once; the one that was asked for goes to `out` and is stored by the caller. */
static ejk_status produce_ids(ejk_mask_info *info, bool per_head, bool keys,
                              ejki_info_array **out) {
    ejki_info_array *side[2] = {NULL, NULL};
    int64_t q_shape[3] = {info->batch, info->heads, info->q};
    int64_t kv_shape[3] = {info->batch, info->heads, info->kv};
    if (!per_head) {
        q_shape[1] = info->q;
        kv_shape[1] = info->kv;
    }
    EJKI_TRY(ejki_info_require(info, "segment_ids"));
    ejk_status status = ejki_info_array_create(EJK_DTYPE_I32, 2 + per_head, q_shape, &side[0]);
    if (status == EJK_OK)
        status = ejki_info_array_create(EJK_DTYPE_I32, 2 + per_head, kv_shape, &side[1]);
    if (status == EJK_OK)
        status = collapse(info, per_head ? info->heads : 1, per_head ? 1 : info->heads,
                          ejki_ids(side[0]), ejki_ids(side[1]));
    if (status != EJK_OK) {
        ejki_info_array_release(side[0]);
        ejki_info_array_release(side[1]);
        return status;
    }
    ejki_form first = per_head ? FORM_Q_HEAD_IDS : FORM_Q_IDS;
    atomic_store_explicit(&info->slots[first + !keys][0], side[!keys], memory_order_release);
    *out = side[keys];
    return EJK_OK;
}

/* ---- Forms of ids ------------------------------------------------------------------------------------ */

static ejk_status like(const ejki_info_array *ids, ejki_info_array **out) {
    return ejki_info_array_create(EJK_DTYPE_I32, ids->owned.tensor.rank, ids->owned.tensor.shape,
                                  out);
}

/* 0, 1, 2 … along runs of one id; `padding` elsewhere. */
static void count_runs(const int32_t *ids, int64_t length, int32_t padding, int32_t *out) {
    for (int64_t i = 0; i < length; i++) {
        if (ids[i] < 0)
            out[i] = padding;
        else
            out[i] = i > 0 && ids[i - 1] == ids[i] ? out[i - 1] + 1 : 0;
    }
}

/* How many are valid up to each, less one, and at least 0. */
static void count_valid(const int32_t *ids, int64_t length, int32_t *out) {
    int32_t valid = 0;
    for (int64_t i = 0; i < length; i++) {
        valid += ids[i] >= 0;
        out[i] = valid > 0 ? valid - 1 : 0;
    }
}

static ejk_status produce_from_ids(ejk_mask_info *info, ejki_form form, ejki_info_array **out) {
    ejki_info_array *ids = NULL;
    ejki_form source = form == FORM_KV_POSITIONS ? FORM_KV_IDS : FORM_Q_IDS;
    EJKI_TRY(ejki_info_locked(info, source, EJK_DTYPE_UNSET, &ids));
    EJKI_TRY(like(ids, out));
    const ejk_tensor *t = &ids->owned.tensor;
    int64_t length = t->shape[t->rank - 1], count = ejk_tensor_count(t);
    for (int64_t at = 0; at < count; at += length) {
        const int32_t *row = ejki_ids(ids) + at;
        int32_t *result = ejki_ids(*out) + at;
        if (form == FORM_Q_RUN)
            count_valid(row, length, result);
        else if (form == FORM_Q_VALID)
            for (int64_t i = 0; i < length; i++) result[i] = row[i] >= 0;
        else
            count_runs(row, length, form == FORM_KV_POSITIONS ? INT32_MAX : -1, result);
    }
    return EJK_OK;
}

/* ---- Forms in any type ------------------------------------------------------------------------------- */

static ejk_status cast(const ejki_info_array *from, ejk_dtype dtype, ejki_info_array **out) {
    ejki_info_array *array = NULL;
    const ejk_tensor *t = &from->owned.tensor;
    EJKI_TRY(ejki_info_array_create(dtype, t->rank, t->shape, &array));
    ejk_status status = ejk_tensor_copy(t, &array->owned.tensor);
    if (status != EJK_OK) {
        ejki_info_array_release(array);
        return status;
    }
    *out = array;
    return EJK_OK;
}

static ejk_status produce_mask(ejk_mask_info *info, ejk_dtype dtype, ejki_info_array **out) {
    EJKI_TRY(ejki_info_require(info, "attention_mask"));
    if (dtype == EJK_DTYPE_BOOL) return produce_truth(info, out);
    ejki_info_array *truth = NULL;
    EJKI_TRY(ejki_info_locked(info, FORM_MASK, EJK_DTYPE_BOOL, &truth));
    return cast(truth, dtype, out);
}

/* The bits of the lowest finite number of a floating type, in its lowest bytes. */
static uint64_t lowest(ejk_dtype dtype) {
    switch (dtype) {
    case EJK_DTYPE_F64: return UINT64_C(0xffefffffffffffff);
    case EJK_DTYPE_F32: return UINT64_C(0xff7fffff);
    case EJK_DTYPE_BF16: return UINT64_C(0xff7f);
    case EJK_DTYPE_F16: return UINT64_C(0xfbff);
    default: return 0;
    }
}

static ejk_status produce_bias(ejk_mask_info *info, ejk_dtype dtype, ejki_info_array **out) {
    ejki_info_array *truth = NULL;
    EJKI_TRY(ejki_info_locked(info, FORM_MASK, EJK_DTYPE_BOOL, &truth));
    EJKI_TRY(ejki_info_array_create(dtype, 4, truth->owned.tensor.shape, out));
    const uint8_t *visible = ejki_bytes(truth);
    int64_t count = ejk_tensor_count(&truth->owned.tensor);
    uint64_t hidden = lowest(dtype);
    void *data = ejki_bytes(*out);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = visible[i] ? 0 : hidden;
        switch (ejk_dtype_size(dtype)) {
        case 8: ((uint64_t *)data)[i] = bits; break;
        case 4: ((uint32_t *)data)[i] = (uint32_t)bits; break;
        default: ((uint16_t *)data)[i] = (uint16_t)bits; break;
        }
    }
    return EJK_OK;
}

/* What ids alone say. */
static ejk_status produce_segments(ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                                   ejki_info_array **out) {
    ejki_info_array *q = NULL, *kv = NULL, *array = NULL;
    EJKI_TRY(ejki_info_locked(info, FORM_Q_IDS, EJK_DTYPE_UNSET, &q));
    EJKI_TRY(ejki_info_locked(info, FORM_KV_IDS, EJK_DTYPE_UNSET, &kv));
    if (q->owned.tensor.rank != 2)
        return ejki_fail(
            EJK_STATUS_INVALID_SHAPE,
            "get_qkv_masks: segment ids are stored per head, expected [B,Q] and [B,K]");
    int64_t shape[4] = {info->batch, 1, info->q, info->kv};
    int64_t side[2] = {info->batch, form == FORM_SEGMENT_Q_MASK ? info->q : info->kv};
    bool whole = form == FORM_SEGMENT_MASK;
    EJKI_TRY(ejki_info_array_create(dtype, whole ? 4 : 2, whole ? shape : side, &array));
    ejk_status status = EJK_OK;
    if (whole) {
        status = ejk_segment_ids_to_mask(NULL, &q->owned.tensor, &kv->owned.tensor, 0, NULL, NULL,
                                         &array->owned.tensor);
    } else {
        const ejki_info_array *ids = form == FORM_SEGMENT_Q_MASK ? q : kv;
        ejki_info_array *valid = NULL;
        status = like(ids, &valid);
        if (status == EJK_OK) {
            int64_t count = ejk_tensor_count(&ids->owned.tensor);
            for (int64_t i = 0; i < count; i++) ejki_ids(valid)[i] = ejki_ids(ids)[i] >= 0;
            status = ejk_tensor_copy(&valid->owned.tensor, &array->owned.tensor);
        }
        ejki_info_array_release(valid);
    }
    if (status != EJK_OK) {
        ejki_info_array_release(array);
        return status;
    }
    *out = array;
    return EJK_OK;
}

/* ---- Slots ------------------------------------------------------------------------------------------- */

ejk_status ejki_info_produce(ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                             ejki_info_array **out) {
    switch (form) {
    case FORM_Q_IDS: return produce_ids(info, false, false, out);
    case FORM_KV_IDS: return produce_ids(info, false, true, out);
    case FORM_Q_HEAD_IDS: return produce_ids(info, true, false, out);
    case FORM_KV_HEAD_IDS: return produce_ids(info, true, true, out);
    case FORM_Q_POSITIONS:
    case FORM_KV_POSITIONS:
    case FORM_Q_VALID:
    case FORM_Q_RUN: return produce_from_ids(info, form, out);
    case FORM_MASK: return produce_mask(info, dtype, out);
    case FORM_BIAS: return produce_bias(info, dtype, out);
    case FORM_SEGMENT_Q_MASK:
    case FORM_SEGMENT_KV_MASK:
    case FORM_SEGMENT_MASK: return produce_segments(info, form, dtype, out);
    case FORMS: break;
    }
    return ejki_fail(EJK_STATUS_INTERNAL, "form %d of a mask info does not exist", (int)form);
}

ejk_status ejki_info_locked(ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                            ejki_info_array **out) {
    _Atomic(ejki_info_array *) *slot = &info->slots[form][dtype];
    ejki_info_array *array = atomic_load_explicit(slot, memory_order_acquire);
    if (array == NULL) {
        EJKI_TRY(ejki_info_produce(info, form, dtype, &array));
        atomic_store_explicit(slot, array, memory_order_release);
    }
    *out = array;
    return EJK_OK;
}

ejk_status ejki_info_form(const ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                          ejki_info_array **out) {
    ejk_mask_info *filled = (ejk_mask_info *)info; /* what is read is no change of the mask */
    ejki_info_array *array =
        atomic_load_explicit(&filled->slots[form][dtype], memory_order_acquire);
    if (array != NULL) {
        *out = array;
        return EJK_OK;
    }
    pthread_mutex_lock(&filled->lock);
    ejk_status status = ejki_info_locked(filled, form, dtype, out);
    pthread_mutex_unlock(&filled->lock);
    return status;
}
