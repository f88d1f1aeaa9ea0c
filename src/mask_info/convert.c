/* SPDX-License-Identifier: Apache-2.0 */
/* Into the arguments of attention calls, into splash masks, and back from these. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Arguments of calls ------------------------------------------------------------------------------ */

/* Whether the limits are one pair of numbers for all batches, which leaves something to be seen. */
static bool plain(const ejk_mask_info *info) {
    const ejki_band *band = &info->band;
    if (band->low == NULL || info->batch == 0 || band->chunk != 0) return false;
    for (int64_t b = 1; b < info->batch; b++)
        if (band->low[b] != band->low[0] || band->high[b] != band->high[0]) return false;
    return band->low[0] <= band->high[0];
}

/* As numbers of a call: causal up to i + high, a window down from it to i + low. */
static void put_numbers(const ejki_band *band, ejk_mask_info_args *args) {
    int64_t low = band->low[0], high = band->high[0];
    args->causal = high < FAR;
    if (high < FAR) args->causal_offset = ejk_int(high);
    if (low <= -FAR) return;
    args->sliding_window.left = ejk_int(high < FAR ? high - low : 0);
    if (high >= FAR) args->causal_offset = ejk_int(low);
}

ejk_status ejk_mask_info_attention_args(const ejk_mask_info *info, bool numbers,
                                        ejk_mask_info_args *out) {
    TRACE_CALL("attention_args");
    NEED(info);
    NEED(out);
    EJKI_TRY(ejki_info_require(info, "attention_args"));
    ejk_mask_info_args args = {0};
    bool simple = plain(info) && numbers;
    if (simple) put_numbers(&info->band, &args);
    if (info->band.low != NULL && !simple) {
        ejki_info_array *all = NULL;
        EJKI_TRY(ejki_info_form(info, FORM_MASK, EJK_DTYPE_BOOL, &all));
        args.attention_mask = all->owned.tensor;
    } else if (info->elements != NULL) {
        args.attention_mask = info->elements->owned.tensor;
    } else {
        args.q_segment_ids = info->q_source->owned.tensor;
        args.kv_segment_ids = info->kv_source->owned.tensor;
    }
    *out = args;
    return EJK_OK;
}

/* ---- Splash masks ------------------------------------------------------------------------------------ */

/* Whether ids hide nothing of a batch: one segment, no padding. */
static bool one_segment(const ejk_mask_info *info, int64_t batch) {
    if (info->elements != NULL || info->q == 0 || info->kv == 0) return false;
    const int32_t *q = ejki_ids(info->q_source) + batch * info->q;
    const int32_t *kv = ejki_ids(info->kv_source) + batch * info->kv;
    bool one = q[0] >= 0;
    for (int64_t i = 0; i < info->q; i++) one &= q[i] == q[0];
    for (int64_t j = 0; j < info->kv; j++) one &= kv[j] == q[0];
    return one;
}

/* Limits of chunks as splash masks have them: below the diagonal. */
static ejk_status chunked_mask(const ejk_mask_info *info, const int64_t *shape, ejk_window window,
                               ejk_splash_mask **out) {
    ejk_splash_mask *chunked = NULL, *local = NULL;
    EJKI_TRY(ejk_chunked_causal_mask_create(shape, info->band.chunk, NULL, &chunked));
    if (!window.left.set && window.right.value == 0) {
        *out = chunked;
        return EJK_OK;
    }
    ejk_status status = ejk_local_mask_create(shape, window, 0, NULL, &local);
    if (status == EJK_OK) status = ejk_logical_and_create(chunked, local, out);
    ejk_splash_mask_release(local);
    ejk_splash_mask_release(chunked);
    return status;
}

/* The limits of a batch alone. NULL in `*out` if no splash mask says them. */
static ejk_status structured(const ejk_mask_info *info, int64_t batch, ejk_splash_mask **out) {
    const int64_t shape[2] = {info->q, info->kv};
    const ejki_band *band = &info->band;
    if (band->low == NULL) return ejk_full_mask_create(shape, out);
    int64_t low = band->low[batch], high = band->high[batch];
    ejk_window window = {0};
    if (low > -FAR) window.left = ejk_int(-low);
    if (high < FAR) window.right = ejk_int(high);
    if (band->chunk != 0) return high <= 0 ? chunked_mask(info, shape, window, out) : EJK_OK;
    if (window.left.set) return ejk_local_mask_create(shape, window, 0, NULL, out);
    if (window.right.set) return ejk_causal_mask_create(shape, high, NULL, out);
    return ejk_full_mask_create(shape, out);
}

static ejk_status dense_mask(const ejk_mask_info *info, int64_t batch, int64_t head,
                             ejk_splash_mask **out) {
    ejki_info_array *all = NULL;
    EJKI_TRY(ejki_info_form(info, FORM_MASK, EJK_DTYPE_BOOL, &all));
    int64_t at = (batch * info->heads + head) * info->q * info->kv;
    ejk_tensor view = ejk_tensor_2d(ejki_bytes(all) + at, EJK_DTYPE_BOOL, info->q, info->kv);
    return ejk_numpy_mask_create(&view, out);
}

static ejk_status head_mask(const ejk_mask_info *info, int64_t batch, int64_t head,
                            ejk_splash_mask **out) {
    ejk_splash_mask *mask = NULL;
    if (one_segment(info, batch)) EJKI_TRY(structured(info, batch, &mask));
    if (mask == NULL) EJKI_TRY(dense_mask(info, batch, head, &mask));
    *out = mask;
    return EJK_OK;
}

ejk_status ejk_mask_info_to_splash_mask(const ejk_mask_info *info, int64_t batch, int64_t heads,
                                        ejk_splash_mask **out) {
    TRACE_CALL("to_splash_mask");
    NEED(info);
    NEED(out);
    EJKI_TRY(ejki_info_require(info, "to_splash_mask"));
    if (batch < 0 || batch >= info->batch)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "batch is %" PRId64 ", expected 0 or more and below %" PRId64, batch,
                         info->batch);
    if (heads < 1 || (info->heads != 1 && heads != info->heads))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "heads is %" PRId64 ", expected %s%" PRId64,
                         heads, info->heads == 1 ? "at least " : "", info->heads);
    ejk_splash_mask **masks = calloc((size_t)heads, sizeof *masks);
    if (masks == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %" PRId64 " masks", heads);
    ejk_status status = EJK_OK;
    for (int64_t h = 0; status == EJK_OK && h < heads; h++) {
        if (h > 0 && info->heads == 1)
            masks[h] = ejk_splash_mask_retain(masks[0]);
        else
            status = head_mask(info, batch, h, &masks[h]);
    }
    if (status == EJK_OK)
        status = ejk_multi_head_mask_create((const ejk_splash_mask *const *)masks, heads, out);
    for (int64_t h = 0; h < heads; h++) ejk_splash_mask_release(masks[h]);
    free(masks);
    return status;
}

static ejk_status read_heads(const ejk_splash_mask *mask, int64_t heads, int64_t batches,
                             ejki_info_array *elements) {
    const int64_t *shape = elements->owned.tensor.shape;
    int64_t plane = shape[2] * shape[3], start[2] = {0, 0};
    uint8_t *bytes = ejki_bytes(elements);
    for (int64_t h = 0; h < heads; h++) {
        const ejk_splash_mask *one = ejk_splash_mask_head(mask, h);
        ejk_tensor view = ejk_tensor_2d(bytes + h * plane, EJK_DTYPE_BOOL, shape[2], shape[3]);
        EJKI_TRY(ejk_splash_mask_read(one != NULL ? one : mask, start, &shape[2], &view));
    }
    for (int64_t b = 1; b < batches; b++)
        memcpy(bytes + b * heads * plane, bytes, (size_t)(heads * plane));
    return EJK_OK;
}

ejk_status ejk_mask_info_from_splash_mask(const ejk_splash_mask *mask, int64_t batch_size,
                                          const ejk_mask_info_options *options,
                                          ejk_mask_info **out) {
    TRACE_CALL("from_splash_mask");
    NEED(mask);
    NEED(out);
    int64_t lengths[3] = {0};
    bool several = ejk_splash_mask_shape(mask, lengths) == 3;
    if (batch_size < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "batch_size is %" PRId64 ", expected 0 or more", batch_size);
    int64_t heads = several ? lengths[0] : 1, q = lengths[several], kv = lengths[several + 1];
    ejki_info_array *elements = NULL;
    ejk_status status = EJK_OK;
    int64_t shape[4] = {batch_size, heads, q, kv};
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, 4, shape, &elements));
    if (batch_size > 0) status = read_heads(mask, heads, batch_size, elements);
    if (status == EJK_OK)
        status = ejk_mask_info_from_attention_mask(&elements->owned.tensor, options, out);
    ejki_info_array_release(elements);
    return status;
}
