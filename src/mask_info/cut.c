/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms that make new elements: rows and columns cut out, types of tokens. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Cuts -------------------------------------------------------------------------------------------- */

static ejk_status cut_elements(const ejk_mask_info *info, const ejki_cut *cut,
                               ejki_info_array **out) {
    int64_t shape[4] = {info->batch, info->heads, cut->rows, cut->columns};
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, 4, shape, out));
    uint8_t *row = ejki_bytes(*out);
    for (int64_t b = 0; b < info->batch; b++) {
        int64_t kept = cut->columns;
        if (cut->lengths != NULL)
            kept = ejki_max(0, ejki_min(kept, cut->lengths[b] - cut->column[b]));
        for (int64_t h = 0; h < info->heads; h++)
            for (int64_t i = 0; i < cut->rows; i++, row += cut->columns)
                ejki_info_row(info, b, h, cut->row[b] + i, cut->column[b], kept, row);
    }
    return EJK_OK;
}

/* The last axis of a stored form, from a first element for each batch. */
static ejk_status cut_form(const ejk_mask_info *info, ejki_form form, const int64_t *first,
                           int64_t length, ejk_mask_info *copy) {
    if (!info->stored[form]) return EJK_OK;
    const ejki_info_array *whole =
        atomic_load_explicit(&info->slots[form][0], memory_order_acquire);
    const ejk_tensor *t = &whole->owned.tensor;
    int64_t shape[3] = {t->shape[0], t->shape[1], t->shape[2]}, full = t->shape[t->rank - 1];
    shape[t->rank - 1] = length;
    ejki_info_array *part = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_I32, t->rank, shape, &part));
    int64_t heads = t->rank == 3 ? t->shape[1] : 1;
    for (int64_t r = 0; length > 0 && r < t->shape[0] * heads; r++)
        memcpy(ejki_ids(part) + r * length, ejki_ids(whole) + r * full + first[r / heads],
               (size_t)length * sizeof(int32_t));
    ejki_info_store(copy, form, part);
    return EJK_OK;
}

/* Gives an object elements in place of what its mask was made of. Takes the reference. */
static void be_elements(ejk_mask_info *info, ejki_info_array *elements) {
    ejki_info_array_release(info->elements);
    ejki_info_array_release(info->q_source);
    ejki_info_array_release(info->kv_source);
    ejki_band_close(&info->band);
    info->q_source = info->kv_source = NULL;
    info->elements = elements;
    info->mask_stored = true;
}

static ejk_status cut_forms(const ejk_mask_info *info, const ejki_cut *cut, ejk_mask_info *copy) {
    EJKI_TRY(cut_form(info, FORM_Q_IDS, cut->row, cut->rows, copy));
    EJKI_TRY(cut_form(info, FORM_Q_POSITIONS, cut->row, cut->rows, copy));
    if (!cut->cut_kv) return EJK_OK;
    EJKI_TRY(cut_form(info, FORM_KV_IDS, cut->column, cut->columns, copy));
    return cut_form(info, FORM_KV_POSITIONS, cut->column, cut->columns, copy);
}

ejk_status ejki_info_cut(const ejk_mask_info *info, const ejki_cut *cut, ejk_mask_info **out) {
    ejki_info_array *elements = NULL;
    ejk_mask_info *copy = NULL;
    EJKI_TRY(cut_elements(info, cut, &elements));
    ejk_status status = ejki_info_copy(info, &copy);
    if (status != EJK_OK) {
        ejki_info_array_release(elements);
        return status;
    }
    be_elements(copy, elements);
    status = cut_forms(info, cut, copy);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    return ejki_info_finish(copy, out);
}

/* ---- Lengths of keys --------------------------------------------------------------------------------- */

static ejk_status cut_lengths(const ejk_mask_info *info, const int64_t *lengths, int64_t q_len,
                              ejk_opt_int window, int64_t *first, ejk_mask_info **out) {
    int64_t columns = window.set ? ejki_min(window.value, info->kv) : info->kv;
    int64_t *row = first, *column = first + info->batch;
    for (int64_t b = 0; b < info->batch; b++) {
        if (lengths[b] < 0 || lengths[b] > info->kv)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "element %" PRId64 " of lengths is %" PRId64 ", expected 0 to %" PRId64
                             ", the length of keys",
                             b, lengths[b], info->kv);
        row[b] = ejki_max(0, ejki_min(lengths[b] - q_len, info->q - q_len));
        column[b] = ejki_max(0, ejki_min(lengths[b] - columns, info->kv - columns));
    }
    ejki_cut cut = {row, column, q_len, columns, lengths, window.set};
    return ejki_info_cut(info, &cut, out);
}

ejk_status ejk_mask_info_apply_kv_lengths(const ejk_mask_info *info, const ejk_tensor *lengths,
                                          int64_t q_len, ejk_opt_int sliding_window,
                                          ejk_mask_info **out) {
    TRACE_CALL("apply_kv_lengths");
    NEED(info);
    NEED(out);
    EJKI_TRY(ejki_info_require(info, "apply_kv_lengths"));
    EJKI_TRY(ejki_argument_of_rank(lengths, "lengths", 1));
    if (lengths->shape[0] != info->batch)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "lengths has %" PRId64 " elements, expected %" PRId64
                         ", the batch of info",
                         lengths->shape[0], info->batch);
    if (q_len < 0 || q_len > info->q)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "q_len is %" PRId64 ", expected 0 to %" PRId64 ", the queries of info",
                         q_len, info->q);
    if (sliding_window.set && sliding_window.value < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "sliding_window is %" PRId64 ", expected 1 or more, or unset",
                         sliding_window.value);
    int64_t *numbers = NULL, *first = calloc((size_t)ejki_max(info->batch, 1) * 2, sizeof *first);
    ejk_status status = first != NULL
                            ? ejki_read_numbers(lengths, "lengths", &numbers)
                            : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask info");
    if (status == EJK_OK) status = cut_lengths(info, numbers, q_len, sliding_window, first, out);
    free(numbers);
    free(first);
    return status;
}

/* ---- Types of tokens --------------------------------------------------------------------------------- */

typedef struct joining {
    const ejk_mask_info *info;
    const ejk_mask_token_types *options;
    const int32_t *q, *kv;  /* types */
    int64_t batches, types; /* of the result, and of the types: 1 or as many */
} joining;

static void join_row(const joining *j, int64_t b, int64_t h, int64_t i, uint8_t *row) {
    const ejk_mask_info *info = j->info;
    ejk_mask_zero_policy zero = j->options->zero_policy;
    bool zero_q = zero == EJK_MASK_ZERO_Q || zero == EJK_MASK_ZERO_BOTH;
    bool zero_kv = zero == EJK_MASK_ZERO_KV || zero == EJK_MASK_ZERO_BOTH;
    int64_t of = j->types == 1 ? 0 : b;
    int32_t own = j->q[of * info->q + i];
    const int32_t *keys = j->kv + of * info->kv;
    ejki_info_row(info, info->batch == 1 ? 0 : b, h, i, 0, info->kv, row);
    for (int64_t k = 0; k < info->kv; k++) {
        bool same = own == keys[k] && !(zero_q && own == 0) && !(zero_kv && keys[k] == 0);
        switch (j->options->combine) {
        case EJK_MASK_UNION: row[k] |= same; break;
        case EJK_MASK_INTERSECT: row[k] &= same; break;
        case EJK_MASK_REPLACE: row[k] = same; break;
        }
    }
}

static ejk_status join_elements(const joining *j, ejki_info_array **out) {
    const ejk_mask_info *info = j->info;
    int64_t shape[4] = {j->batches, info->heads, info->q, info->kv};
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, 4, shape, out));
    uint8_t *row = ejki_bytes(*out);
    for (int64_t b = 0; b < j->batches; b++)
        for (int64_t h = 0; h < info->heads; h++)
            for (int64_t i = 0; i < info->q; i++, row += info->kv) join_row(j, b, h, i, row);
    return EJK_OK;
}

/* A stored form of one batch, once for each of several; `types` instead of it, with 0 as −1, if given. */
static ejk_status spread_form(const joining *j, ejki_form form, const ejki_info_array *types,
                              ejk_mask_info *copy) {
    if (types == NULL && (!j->info->stored[form] || j->info->batch == j->batches)) return EJK_OK;
    const ejki_info_array *from = types;
    if (from == NULL) from = atomic_load_explicit(&j->info->slots[form][0], memory_order_acquire);
    const ejk_tensor *t = &from->owned.tensor;
    int64_t shape[3] = {j->batches, t->shape[1], t->shape[2]};
    ejki_info_array *all = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_I32, t->rank, shape, &all));
    int64_t count = ejk_tensor_count(&all->owned.tensor), own = ejk_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        int32_t id = ejki_ids(from)[i % own];
        ejki_ids(all)[i] = types != NULL && id == 0 ? -1 : id;
    }
    ejki_info_store(copy, form, all);
    return EJK_OK;
}

static ejk_status join(joining *j, const ejki_info_array *q, const ejki_info_array *kv,
                       ejk_mask_info **out) {
    const ejk_opt_bool wish = j->options->update_segment_ids;
    bool update = wish == EJK_UNSET ? j->options->combine != EJK_MASK_UNION : wish == EJK_TRUE;
    ejki_info_array *elements = NULL;
    ejk_mask_info *copy = NULL;
    j->q = ejki_ids(q);
    j->kv = ejki_ids(kv);
    EJKI_TRY(join_elements(j, &elements));
    ejk_status status = ejki_info_copy(j->info, &copy);
    if (status != EJK_OK) {
        ejki_info_array_release(elements);
        return status;
    }
    be_elements(copy, elements);
    status = spread_form(j, FORM_Q_IDS, update ? q : NULL, copy);
    if (status == EJK_OK) status = spread_form(j, FORM_KV_IDS, update ? kv : NULL, copy);
    if (status == EJK_OK) status = spread_form(j, FORM_Q_POSITIONS, NULL, copy);
    if (status == EJK_OK) status = spread_form(j, FORM_KV_POSITIONS, NULL, copy);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    return ejki_info_finish(copy, out);
}

static ejk_status check_types(const joining *j, const ejk_tensor *types, const char *name,
                              int64_t length) {
    EJKI_TRY(ejki_argument_of_rank(types, name, 2));
    if (types->shape[1] != length)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has %" PRId64 " tokens, expected %" PRId64,
                         name, types->shape[1], length);
    if (types->shape[0] == 1 || types->shape[0] == j->info->batch || j->info->batch == 1)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s has a batch of %" PRId64 ", expected 1 or %" PRId64, name, types->shape[0],
                     j->info->batch);
}

static ejk_status check_choices(const ejk_mask_token_types *types) {
    if (types->combine > EJK_MASK_REPLACE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "combine is %d, expected 0 to %d",
                         (int)types->combine, (int)EJK_MASK_REPLACE);
    if (types->zero_policy > EJK_MASK_ZERO_NONE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "zero_policy is %d, expected 0 to %d",
                         (int)types->zero_policy, (int)EJK_MASK_ZERO_NONE);
    return EJK_OK;
}

ejk_status ejk_mask_info_apply_token_type_ids(const ejk_mask_info *info,
                                              const ejk_mask_token_types *types,
                                              ejk_mask_info **out) {
    TRACE_CALL("apply_token_type_ids");
    NEED(info);
    NEED(types);
    NEED(out);
    EJKI_TRY(ejki_info_require(info, "apply_token_type_ids"));
    EJKI_TRY(check_choices(types));
    bool own = ejk_tensor_present(&types->kv_types);
    const ejk_tensor *kv = own ? &types->kv_types : &types->q_types;
    joining j = {.info = info, .options = types};
    EJKI_TRY(check_types(&j, &types->q_types, "q_types", info->q));
    EJKI_TRY(check_types(&j, kv, own ? "kv_types" : "q_types", info->kv));
    j.types = types->q_types.shape[0];
    if (kv->shape[0] != j.types)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "kv_types has a batch of %" PRId64 ", expected %" PRId64 " as q_types",
                         kv->shape[0], j.types);
    j.batches = info->batch == 1 ? j.types : info->batch;
    ejki_info_array *q_array = NULL, *kv_array = NULL;
    ejk_status status = ejki_read_ids(&types->q_types, "q_types", &q_array);
    if (status == EJK_OK) status = ejki_read_ids(kv, "kv_types", &kv_array);
    if (status == EJK_OK) status = join(&j, q_array, kv_array, out);
    ejki_info_array_release(q_array);
    ejki_info_array_release(kv_array);
    return status;
}
