/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and objects: made, copied, checked and given back. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Arrays ------------------------------------------------------------------------------------------ */

ejk_status ejki_info_array_create(ejk_dtype dtype, int32_t rank, const int64_t *shape,
                                  ejki_info_array **out) {
    ejki_info_array *array = calloc(1, sizeof *array);
    if (array == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask info");
    atomic_init(&array->references, 1);
    ejk_status status = ejk_owned_tensor_create(dtype, rank, shape, &array->owned);
    if (status != EJK_OK) {
        free(array);
        return status;
    }
    *out = array;
    return EJK_OK;
}

ejki_info_array *ejki_info_array_retain(ejki_info_array *array) {
    if (array != NULL) atomic_fetch_add_explicit(&array->references, 1, memory_order_relaxed);
    return array;
}

void ejki_info_array_release(ejki_info_array *array) {
    if (array == NULL) return;
    if (atomic_fetch_sub_explicit(&array->references, 1, memory_order_acq_rel) != 1) return;
    ejk_owned_tensor_close(&array->owned);
    free(array);
}

/* ---- Objects ----------------------------------------------------------------------------------------- */

static void name_by_default(ejk_axis_names *axis, const char *first, const char *second) {
    if (axis->count != 0) return;
    *axis = (ejk_axis_names){.count = second != NULL ? 2 : 1};
    snprintf(axis->names[0], EJK_NAME_SIZE, "%s", first);
    if (second != NULL) snprintf(axis->names[1], EJK_NAME_SIZE, "%s", second);
}

static ejk_status check_names(const ejk_axis_names *axis, const char *name) {
    if (axis->count < -1 || axis->count > EJK_AXIS_NAMES_MAX)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s has a count of %" PRId32 ", expected -1 (none) to %d", name,
                         axis->count, EJK_AXIS_NAMES_MAX);
    for (int32_t i = 0; i < axis->count; i++)
        if (axis->names[i][0] == '\0' || memchr(axis->names[i], 0, EJK_NAME_SIZE) == NULL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s: name %" PRId32 " is empty or has no end, expected a text of 1 to "
                             "%d bytes",
                             name, i, EJK_NAME_SIZE - 1);
    return EJK_OK;
}

static ejk_status check_axes(const ejk_mask_axes *axes) {
    EJKI_TRY(check_names(&axes->batch_axis_name, "batch_axis_name"));
    EJKI_TRY(check_names(&axes->qheads_axis_name, "qheads_axis_name"));
    EJKI_TRY(check_names(&axes->kvheads_axis_name, "kvheads_axis_name"));
    return check_names(&axes->sequence_axis_name, "sequence_axis_name");
}

static void destroy(ejk_mask_info *info) {
    for (int form = 0; form < FORMS; form++)
        for (int dtype = 0; dtype < DTYPES; dtype++)
            ejki_info_array_release(
                atomic_load_explicit(&info->slots[form][dtype], memory_order_relaxed));
    ejki_info_array_release(info->elements);
    ejki_info_array_release(info->q_source);
    ejki_info_array_release(info->kv_source);
    ejki_band_close(&info->band);
    ejki_copies_close(info->copies);
    pthread_mutex_destroy(&info->lock);
    free(info);
}

ejk_status ejki_info_create(const ejk_mask_axes *axes, ejk_mask_info **out) {
    if (axes != NULL) EJKI_TRY(check_axes(axes));
    ejk_mask_info *info = calloc(1, sizeof *info);
    if (info == NULL || pthread_mutex_init(&info->lock, NULL) != 0) {
        free(info);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask info");
    }
    atomic_init(&info->references, 1);
    info->dtype = EJK_DTYPE_BOOL;
    if (axes != NULL) info->axes = *axes;
    name_by_default(&info->axes.batch_axis_name, "dp", "fsdp");
    name_by_default(&info->axes.qheads_axis_name, "tp", NULL);
    name_by_default(&info->axes.kvheads_axis_name, "tp", NULL);
    name_by_default(&info->axes.sequence_axis_name, "sp", NULL);
    *out = info;
    return EJK_OK;
}

void ejki_info_store(ejk_mask_info *info, ejki_form form, ejki_info_array *array) {
    ejki_info_array *old =
        atomic_exchange_explicit(&info->slots[form][0], array, memory_order_relaxed);
    ejki_info_array_release(old);
    info->stored[form] = array != NULL;
}

ejk_status ejki_info_copy(const ejk_mask_info *info, ejk_mask_info **out) {
    ejk_mask_info *copy = NULL;
    EJKI_TRY(ejki_info_create(&info->axes, &copy));
    ejk_status status = ejki_band_copy(&info->band, info->batch, &copy->band);
    if (status != EJK_OK) {
        destroy(copy);
        return status;
    }
    copy->known = info->known;
    copy->batch = info->batch;
    copy->heads = info->heads;
    copy->q = info->q;
    copy->kv = info->kv;
    copy->elements = ejki_info_array_retain(info->elements);
    copy->q_source = ejki_info_array_retain(info->q_source);
    copy->kv_source = ejki_info_array_retain(info->kv_source);
    copy->mask_stored = info->mask_stored;
    copy->dtype = info->dtype;
    for (int form = 0; form < FORM_MASK; form++) {
        if (!info->stored[form]) continue;
        /* Stored forms are there from the start and never change. */
        ejki_info_array *array = atomic_load_explicit(&info->slots[form][0], memory_order_acquire);
        ejki_info_store(copy, (ejki_form)form, ejki_info_array_retain(array));
    }
    *out = copy;
    return EJK_OK;
}

ejk_mask_info *ejk_mask_info_retain(const ejk_mask_info *info) {
    ejk_mask_info *counted = (ejk_mask_info *)info; /* the count is not the object's value */
    if (counted != NULL) atomic_fetch_add_explicit(&counted->references, 1, memory_order_relaxed);
    return counted;
}

void ejk_mask_info_release(ejk_mask_info *info) {
    if (info == NULL) return;
    if (atomic_fetch_sub_explicit(&info->references, 1, memory_order_acq_rel) != 1) return;
    destroy(info);
}

/* ---- Lengths ----------------------------------------------------------------------------------------- */

static ejk_status resolve(ejk_mask_info *info) {
    if (info->elements != NULL) {
        const int64_t *shape = info->elements->owned.tensor.shape;
        info->batch = shape[0];
        info->heads = shape[1];
        info->q = shape[2];
        info->kv = shape[3];
        info->known = true;
    } else if (info->q_source != NULL) {
        const ejk_tensor *q = &info->q_source->owned.tensor, *kv = &info->kv_source->owned.tensor;
        if (q->shape[0] != kv->shape[0])
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "kv_segment_ids has a batch of %" PRId64 ", expected %" PRId64
                             " as q_segment_ids",
                             kv->shape[0], q->shape[0]);
        info->batch = q->shape[0];
        info->heads = 1;
        info->q = q->shape[1];
        info->kv = kv->shape[1];
        info->known = true;
    }
    return EJK_OK;
}

static ejk_status check_form(const ejk_mask_info *info, ejki_form form, const char *name) {
    if (!info->stored[form] || !info->known) return EJK_OK;
    const ejki_info_array *array =
        atomic_load_explicit(&info->slots[form][0], memory_order_relaxed);
    const ejk_tensor *t = &array->owned.tensor;
    bool keys = form == FORM_KV_IDS || form == FORM_KV_POSITIONS;
    int64_t length = keys ? info->kv : info->q;
    if (t->shape[0] == info->batch && t->shape[t->rank - 1] == length) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s is [%" PRId64 ",%" PRId64 "], expected [%" PRId64 ",%" PRId64 "]", name,
                     t->shape[0], t->shape[t->rank - 1], info->batch, length);
}

static ejk_status check_forms(const ejk_mask_info *info) {
    EJKI_TRY(check_form(info, FORM_Q_IDS, "q_segment_ids"));
    EJKI_TRY(check_form(info, FORM_KV_IDS, "kv_segment_ids"));
    EJKI_TRY(check_form(info, FORM_Q_POSITIONS, "q_positions"));
    return check_form(info, FORM_KV_POSITIONS, "kv_positions");
}

ejk_status ejki_info_finish(ejk_mask_info *info, ejk_mask_info **out) {
    ejk_status status = resolve(info);
    if (status == EJK_OK) status = check_forms(info);
    if (status != EJK_OK) {
        destroy(info);
        return status;
    }
    *out = info;
    return EJK_OK;
}

ejk_status ejki_info_positions(ejk_mask_info *info, const ejk_tensor *q, const ejk_tensor *kv) {
    const ejk_tensor *given[2] = {q, kv};
    static const char *const names[2] = {"q_positions", "kv_positions"};
    for (int i = 0; i < 2; i++) {
        if (!ejk_tensor_present(given[i])) continue;
        ejki_info_array *array = NULL;
        EJKI_TRY(ejki_argument_of_rank(given[i], names[i], 2));
        EJKI_TRY(ejki_read_ids(given[i], names[i], &array));
        ejki_info_store(info, i == 0 ? FORM_Q_POSITIONS : FORM_KV_POSITIONS, array);
    }
    return EJK_OK;
}

ejk_status ejki_info_require(const ejk_mask_info *info, const char *call) {
    if (info->known) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s: info has neither attention mask nor segment ids, expected one of them",
                     call);
}
