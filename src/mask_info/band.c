/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a row's columns, held as numbers: causal, windows, chunks. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ----------------------------------------------------------------------------------------- */

static int64_t far_sum(int64_t a, int64_t b) {
    int64_t sum;
    if (!ejki_add(a, b, &sum)) sum = a < 0 ? -FAR : FAR;
    return ejki_max(ejki_min(sum, FAR), -FAR);
}

static ejk_status allocate(int64_t batch, ejki_band *out) {
    int64_t *numbers = calloc((size_t)ejki_max(batch, 1) * 2, sizeof *numbers);
    if (numbers == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask info");
    *out = (ejki_band){numbers, numbers + ejki_max(batch, 1), 0};
    return EJK_OK;
}

void ejki_band_close(ejki_band *band) {
    free(band->low);
    *band = (ejki_band){0};
}

ejk_status ejki_band_copy(const ejki_band *from, int64_t batch, ejki_band *out) {
    ejki_band band = {0};
    if (from->low != NULL) {
        EJKI_TRY(allocate(batch, &band));
        memcpy(band.low, from->low, (size_t)batch * sizeof *band.low);
        memcpy(band.high, from->high, (size_t)batch * sizeof *band.high);
        band.chunk = from->chunk;
    }
    *out = band;
    return EJK_OK;
}

ejk_status ejki_band_open(ejk_mask_info *info) {
    if (info->band.low != NULL) return EJK_OK;
    EJKI_TRY(allocate(info->batch, &info->band));
    for (int64_t b = 0; b < info->batch; b++) {
        info->band.low[b] = -FAR;
        info->band.high[b] = FAR;
    }
    return EJK_OK;
}

void ejki_band_narrow(ejki_band *band, int64_t b, int64_t offset, ejk_window window) {
    if (window.left.set) band->low[b] = ejki_max(band->low[b], far_sum(offset, -window.left.value));
    if (window.right.set)
        band->high[b] = ejki_min(band->high[b], far_sum(offset, window.right.value));
}

void ejki_band_columns(const ejki_band *band, int64_t b, int64_t row, int64_t columns,
                       int64_t *first, int64_t *last) {
    int64_t from = 0, to = columns;
    if (band->low != NULL) {
        from = ejki_max(from, row + band->low[b]);
        to = ejki_min(to, row + band->high[b] + 1);
    }
    if (band->chunk > 0) {
        int64_t start = row / band->chunk * band->chunk;
        from = ejki_max(from, start);
        if (start <= columns - band->chunk) to = ejki_min(to, start + band->chunk);
    }
    *first = from;
    *last = ejki_max(from, to);
}

/* ---- Transforms -------------------------------------------------------------------------------------- */

/* A copy whose limits may be narrowed. */
static ejk_status begin(const ejk_mask_info *info, const char *call, ejk_mask_info **out) {
    EJKI_TRY(ejki_info_require(info, call));
    ejk_mask_info *copy = NULL;
    EJKI_TRY(ejki_info_copy(info, &copy));
    ejk_status status = ejki_band_open(copy);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    copy->mask_stored = true;
    *out = copy;
    return EJK_OK;
}

static ejk_status narrowed(const ejk_mask_info *info, const char *call, const ejk_tensor *offset,
                           ejk_window window, ejk_mask_info **out) {
    int64_t *offsets = NULL;
    ejk_mask_info *copy = NULL;
    EJKI_TRY(begin(info, call, &copy));
    ejk_status status = ejki_read_per_batch(offset, "offset", info->batch, &offsets);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    for (int64_t b = 0; b < info->batch; b++) ejki_band_narrow(&copy->band, b, offsets[b], window);
    free(offsets);
    *out = copy;
    return EJK_OK;
}

ejk_status ejk_mask_info_apply_causal(const ejk_mask_info *info, const ejk_tensor *offset,
                                      ejk_mask_info **out) {
    TRACE_CALL("apply_causal");
    NEED(info);
    NEED(out);
    ejk_window causal = {.right = {.value = 0, .set = true}};
    return narrowed(info, "apply_causal", offset, causal, out);
}

static ejk_status check_window(const ejk_mask_window_options *options) {
    const ejk_opt_int *sides[2] = {&options->window.left, &options->window.right};
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "left" : "right";
        if (sides[i]->set && sides[i]->value < 0)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s of window is %" PRId64 ", expected 0 or more, or unset", name,
                             sides[i]->value);
        if (!sides[i]->set && options->mode != EJK_MASK_WINDOW_ALL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s of window is unset, expected both sides to cut columns out", name);
    }
    if (options->mode > EJK_MASK_WINDOW_PREFILL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "mode is %d, expected 0 to %d",
                         (int)options->mode, (int)EJK_MASK_WINDOW_PREFILL);
    if (options->mode == EJK_MASK_WINDOW_DECODE && options->index == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "index is NULL, expected the row to decode, or one for each batch");
    return EJK_OK;
}

static ejk_status check_index(const int64_t *index, const ejk_mask_info *info) {
    for (int64_t b = 0; b < info->batch; b++)
        if (index[b] < 0 || index[b] >= info->q)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "index of batch %" PRId64 " is %" PRId64
                             ", expected 0 or more and below %" PRId64,
                             b, index[b], info->q);
    return EJK_OK;
}

/* From rows and offsets of every batch to those rows, and the columns around them. */
static ejk_status cut_window(const ejk_mask_info *info, const ejk_mask_window_options *options,
                             int64_t *row, int64_t *column, ejk_mask_info **out) {
    bool decode = options->mode == EJK_MASK_WINDOW_DECODE;
    int64_t left = options->window.left.value, right = options->window.right.value;
    int64_t width = ejki_min(far_sum(far_sum(left, right), 1), info->kv);
    if (decode) EJKI_TRY(check_index(row, info));
    for (int64_t b = 0; b < info->batch; b++) {
        int64_t start = decode ? far_sum(far_sum(row[b], column[b]), -left) : INT64_MAX;
        column[b] = ejki_max(0, ejki_min(start, info->kv - width));
        if (!decode) row[b] = 0;
    }
    ejki_cut cut = {row, column, decode ? 1 : info->q, width, NULL, true};
    return ejki_info_cut(info, &cut, out);
}

ejk_status ejk_mask_info_apply_sliding_window(const ejk_mask_info *info,
                                              const ejk_mask_window_options *options,
                                              ejk_mask_info **out) {
    TRACE_CALL("apply_sliding_window");
    NEED(info);
    NEED(options);
    NEED(out);
    EJKI_TRY(check_window(options));
    ejk_mask_info *windowed = NULL;
    EJKI_TRY(narrowed(info, "apply_sliding_window", options->offset, options->window, &windowed));
    if (options->mode == EJK_MASK_WINDOW_ALL) {
        *out = windowed;
        return EJK_OK;
    }
    int64_t *row = NULL, *column = NULL;
    ejk_status status = ejki_read_per_batch(options->index, "index", info->batch, &row);
    if (status == EJK_OK)
        status = ejki_read_per_batch(options->offset, "offset", info->batch, &column);
    if (status == EJK_OK) status = cut_window(windowed, options, row, column, out);
    free(row);
    free(column);
    ejk_mask_info_release(windowed);
    return status;
}

/* ---- Chunks ------------------------------------------------------------------------------------------ */

/* Ids as the number of the chunk, from 1, where they are no padding. */
static ejk_status chunk_ids(const ejk_mask_info *info, ejki_form form, int64_t chunk_size,
                            ejk_mask_info *copy) {
    ejki_info_array *old = NULL, *ids = NULL;
    EJKI_TRY(ejki_info_form(info, form, EJK_DTYPE_UNSET, &old));
    const ejk_tensor *t = &old->owned.tensor;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_I32, t->rank, t->shape, &ids));
    int64_t count = ejk_tensor_count(t), length = t->shape[t->rank - 1];
    for (int64_t i = 0; i < count; i++) {
        int64_t chunk = i % length / chunk_size + 1;
        ejki_ids(ids)[i] = ejki_ids(old)[i] < 0 ? -1 : (int32_t)ejki_min(chunk, INT32_MAX);
    }
    ejki_info_store(copy, form, ids);
    return EJK_OK;
}

/* One size of chunks is a number of the limits; a second one goes into the elements. */
static ejk_status chunk_mask(ejk_mask_info *copy, int64_t chunk_size) {
    if (copy->band.chunk != 0 && copy->band.chunk != chunk_size) {
        ejki_info_array *all = NULL;
        EJKI_TRY(ejki_info_form(copy, FORM_MASK, EJK_DTYPE_BOOL, &all));
        ejki_info_array_release(copy->elements);
        copy->elements = ejki_info_array_retain(all);
        ejki_info_array *read = atomic_exchange_explicit(&copy->slots[FORM_MASK][EJK_DTYPE_BOOL],
                                                         NULL, memory_order_relaxed);
        ejki_info_array_release(read);
    }
    copy->band.chunk = chunk_size;
    return EJK_OK;
}

ejk_status ejk_mask_info_apply_chunked(const ejk_mask_info *info, int64_t chunk_size,
                                       const ejk_tensor *offset, ejk_mask_info **out) {
    TRACE_CALL("apply_chunked");
    NEED(info);
    NEED(out);
    if (chunk_size < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "chunk_size is %" PRId64 ", expected 1 or more", chunk_size);
    ejk_mask_info *copy = NULL;
    ejk_window causal = {.right = {.value = 0, .set = true}};
    EJKI_TRY(narrowed(info, "apply_chunked", offset, causal, &copy));
    ejk_status status = chunk_mask(copy, chunk_size);
    if (status == EJK_OK) status = chunk_ids(info, FORM_Q_IDS, chunk_size, copy);
    if (status == EJK_OK) status = chunk_ids(info, FORM_KV_IDS, chunk_size, copy);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    *out = copy;
    return EJK_OK;
}

ejk_status ejk_create_chunked_attention_mask(int64_t chunk_size, int64_t offset,
                                             const ejk_tensor *mask_out) {
    TRACE_CALL("create_chunked_attention_mask");
    if (chunk_size < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "chunk_size is %" PRId64 ", expected 1 or more", chunk_size);
    EJKI_TRY(ejki_argument_of_rank(mask_out, "mask_out", 2));
    ejki_info_array *truth = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, 2, mask_out->shape, &truth));
    int64_t low = -FAR, high = ejki_max(ejki_min(offset, FAR), -FAR);
    ejki_band band = {&low, &high, chunk_size};
    int64_t columns = mask_out->shape[1];
    for (int64_t row = 0; row < mask_out->shape[0]; row++) {
        int64_t first, last;
        ejki_band_columns(&band, 0, row, columns, &first, &last);
        if (last > first)
            memset(ejki_bytes(truth) + row * columns + first, 1, (size_t)(last - first));
    }
    ejk_status status = ejk_tensor_copy(&truth->owned.tensor, mask_out);
    ejki_info_array_release(truth);
    return status;
}
