/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an object, and copies that store what is read. */
#include "mask_info/info.h"

#include <ejkernel/sequence.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ejk_status read_form(const ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                            ejk_tensor *out) {
    ejki_info_array *array = NULL;
    EJKI_TRY(ejki_info_form(info, form, dtype, &array));
    *out = array->owned.tensor;
    return EJK_OK;
}

static ejk_status check_dtype(ejk_dtype dtype, bool floating) {
    if (ejk_dtype_size(dtype) == 0 || dtype > (floating ? EJK_DTYPE_F16 : EJK_DTYPE_BOOL))
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "dtype is %s, expected %s",
                         ejk_dtype_name(dtype), floating ? "a floating type" : "an element type");
    return EJK_OK;
}

/* ---- Masks ------------------------------------------------------------------------------------------- */

ejk_status ejk_mask_info_attention_mask(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_READ("attention_mask");
    NEED(info);
    NEED(out);
    return read_form(info, FORM_MASK, info->dtype, out);
}

ejk_status ejk_mask_info_get_or_compute_attention_mask(const ejk_mask_info *info, ejk_dtype dtype,
                                                       ejk_tensor *out) {
    TRACE_CALL("get_or_compute_attention_mask");
    NEED(info);
    NEED(out);
    EJKI_TRY(check_dtype(dtype, false));
    return read_form(info, FORM_MASK, dtype, out);
}

ejk_status ejk_mask_info_get_qkv_masks(const ejk_mask_info *info, ejk_dtype dtype,
                                       ejk_tensor *q_mask_out, ejk_tensor *kv_mask_out,
                                       ejk_tensor *mask_out) {
    TRACE_CALL("get_qkv_masks");
    NEED(info);
    EJKI_TRY(check_dtype(dtype, false));
    static const ejki_form forms[3] = {FORM_SEGMENT_Q_MASK, FORM_SEGMENT_KV_MASK,
                                       FORM_SEGMENT_MASK};
    ejk_tensor *outs[3] = {q_mask_out, kv_mask_out, mask_out}, views[3];
    for (int i = 0; i < 3; i++)
        if (outs[i] != NULL) EJKI_TRY(read_form(info, forms[i], dtype, &views[i]));
    for (int i = 0; i < 3; i++)
        if (outs[i] != NULL) *outs[i] = views[i];
    return EJK_OK;
}

static ejk_status read_bias(const ejk_mask_info *info, ejk_dtype dtype, ejk_tensor *out) {
    NEED(info);
    NEED(out);
    EJKI_TRY(check_dtype(dtype, true));
    return read_form(info, FORM_BIAS, dtype, out);
}

ejk_status ejk_mask_info_create_bias(const ejk_mask_info *info, ejk_dtype dtype, ejk_tensor *out) {
    TRACE_CALL("create_bias");
    return read_bias(info, dtype, out);
}

ejk_status ejk_mask_info_bias(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_READ("bias");
    return read_bias(info, EJK_DTYPE_F32, out);
}

ejk_status ejk_segment_ids_to_qkv_masks(const ejk_tensor *q_ids, const ejk_tensor *kv_ids,
                                        const ejk_tensor *q_mask_out, const ejk_tensor *kv_mask_out,
                                        const ejk_tensor *mask_out) {
    TRACE_FUNCTION("segment_ids_to_qkv_masks");
    return ejk_segment_ids_to_mask(NULL, q_ids, kv_ids, 0, q_mask_out, kv_mask_out, mask_out);
}

/* ---- Ids and positions ------------------------------------------------------------------------------- */

static ejk_status read_ids(const ejk_mask_info *info, ejki_form form, ejk_tensor *out) {
    NEED(info);
    NEED(out);
    return read_form(info, form, EJK_DTYPE_UNSET, out);
}

ejk_status ejk_mask_info_q_segment_ids(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_READ("q_segment_ids");
    return read_ids(info, FORM_Q_IDS, out);
}

ejk_status ejk_mask_info_kv_segment_ids(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_READ("kv_segment_ids");
    return read_ids(info, FORM_KV_IDS, out);
}

/* Both of a pair, or neither. */
static ejk_status read_pair(const ejk_mask_info *info, ejki_form q, ejki_form kv, ejk_tensor *q_out,
                            ejk_tensor *kv_out) {
    ejk_tensor q_view, kv_view;
    EJKI_TRY(read_form(info, q, EJK_DTYPE_UNSET, &q_view));
    EJKI_TRY(read_form(info, kv, EJK_DTYPE_UNSET, &kv_view));
    *q_out = q_view;
    *kv_out = kv_view;
    return EJK_OK;
}

/* Ids [B,N] as [B,H,N], the same for every head. */
static ejk_tensor for_heads(ejk_tensor ids, int64_t heads) {
    if (ids.rank == 3) return ids;
    ids.rank = 3;
    ids.shape[2] = ids.shape[1];
    ids.strides[2] = ids.strides[1];
    ids.shape[1] = heads;
    ids.strides[1] = 0;
    return ids;
}

ejk_status ejk_mask_info_get_or_compute_segment_ids(const ejk_mask_info *info, bool per_head,
                                                    ejk_tensor *q_out, ejk_tensor *kv_out) {
    TRACE_CALL("get_or_compute_segment_ids");
    NEED(info);
    NEED(q_out);
    NEED(kv_out);
    bool own = info->stored[FORM_Q_IDS] || !per_head;
    EJKI_TRY(read_pair(info, own ? FORM_Q_IDS : FORM_Q_HEAD_IDS,
                       own ? FORM_KV_IDS : FORM_KV_HEAD_IDS, q_out, kv_out));
    if (!per_head) return EJK_OK;
    *q_out = for_heads(*q_out, info->heads);
    *kv_out = for_heads(*kv_out, info->heads);
    return EJK_OK;
}

ejk_status ejk_mask_info_get_or_compute_positions(const ejk_mask_info *info, ejk_tensor *q_out,
                                                  ejk_tensor *kv_out) {
    TRACE_CALL("get_or_compute_positions");
    NEED(info);
    NEED(q_out);
    NEED(kv_out);
    return read_pair(info, FORM_Q_POSITIONS, FORM_KV_POSITIONS, q_out, kv_out);
}

static ejk_status read_given(const ejk_mask_info *info, ejki_form form, ejk_tensor *out) {
    NEED(info);
    NEED(out);
    if (info->stored[form]) return read_form(info, form, EJK_DTYPE_UNSET, out);
    *out = (ejk_tensor){0};
    return EJK_OK;
}

ejk_status ejk_mask_info_q_positions(const ejk_mask_info *info, ejk_tensor *out) {
    return read_given(info, FORM_Q_POSITIONS, out);
}

ejk_status ejk_mask_info_kv_positions(const ejk_mask_info *info, ejk_tensor *out) {
    return read_given(info, FORM_KV_POSITIONS, out);
}

ejk_status ejk_mask_info_q_attention_mask(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_CALL("q_attention_mask");
    return read_ids(info, FORM_Q_VALID, out);
}

ejk_status ejk_mask_info_q_position_ids(const ejk_mask_info *info, ejk_tensor *out) {
    TRACE_CALL("q_position_ids");
    return read_ids(info, FORM_Q_RUN, out);
}

/* ---- Facts ------------------------------------------------------------------------------------------- */

void ejk_mask_info_shape(const ejk_mask_info *info, int64_t shape[3]) {
    TRACE_READ("shape");
    if (shape == NULL) return;
    bool known = info != NULL && info->known;
    shape[0] = known ? info->batch : -1;
    shape[1] = known ? info->q : -1;
    shape[2] = known ? info->kv : -1;
}

int64_t ejk_mask_info_batch_size(const ejk_mask_info *info) {
    TRACE_READ("batch_size");
    return info != NULL && info->known ? info->batch : -1;
}

int64_t ejk_mask_info_q_len(const ejk_mask_info *info) {
    TRACE_READ("q_len");
    return info != NULL && info->known ? info->q : -1;
}

int64_t ejk_mask_info_kv_len(const ejk_mask_info *info) {
    TRACE_READ("kv_len");
    return info != NULL && info->known ? info->kv : -1;
}

int64_t ejk_mask_info_heads(const ejk_mask_info *info) {
    return info != NULL && info->known ? info->heads : -1;
}

ejk_dtype ejk_mask_info_dtype(const ejk_mask_info *info) {
    return info != NULL ? info->dtype : EJK_DTYPE_UNSET;
}

void ejk_mask_info_axes(const ejk_mask_info *info, ejk_mask_axes *out) {
    if (info != NULL && out != NULL) *out = info->axes;
}

/* A stored form; NULL if it is not. */
static const ejki_info_array *stored(const ejk_mask_info *info, ejki_form form) {
    if (!info->stored[form]) return NULL;
    return atomic_load_explicit(&info->slots[form][0], memory_order_acquire);
}

bool ejk_mask_info_is_self_attention(const ejk_mask_info *info) {
    TRACE_CALL("is_self_attention");
    if (info == NULL || !info->known || info->q != info->kv) return false;
    const ejki_info_array *q = stored(info, FORM_Q_IDS), *kv = stored(info, FORM_KV_IDS);
    if (q == NULL || q == kv) return true;
    int64_t count = ejk_tensor_count(&q->owned.tensor);
    return memcmp(ejki_ids(q), ejki_ids(kv), (size_t)count * sizeof(int32_t)) == 0;
}

static const char *const field_names[] = {"attention_mask", "q_segment_ids", "kv_segment_ids",
                                          "q_positions", "kv_positions"};
static const ejki_form field_forms[] = {FORMS, FORM_Q_IDS, FORM_KV_IDS, FORM_Q_POSITIONS,
                                        FORM_KV_POSITIONS};

ejk_status ejk_mask_info_text(const ejk_mask_info *info, char **out) {
    NEED(info);
    NEED(out);
    enum { ROOM = 1024 };
    char *text = malloc(ROOM);
    if (text == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a text");
    int at = snprintf(text, ROOM, "MaskInfo(");
    if (info->mask_stored)
        at += snprintf(text + at, ROOM - (size_t)at,
                       "%s=(%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "), ", field_names[0],
                       info->batch, info->heads, info->q, info->kv);
    for (int i = 1; i < 5; i++) {
        const ejki_info_array *array = stored(info, field_forms[i]);
        if (array == NULL) continue;
        const ejk_tensor *t = &array->owned.tensor;
        at += snprintf(text + at, ROOM - (size_t)at, "%s=(%" PRId64, field_names[i], t->shape[0]);
        for (int32_t axis = 1; axis < t->rank; axis++)
            at += snprintf(text + at, ROOM - (size_t)at, ", %" PRId64, t->shape[axis]);
        at += snprintf(text + at, ROOM - (size_t)at, "), ");
    }
    snprintf(text + at, ROOM - (size_t)at, "self_attn=%s)",
             ejk_mask_info_is_self_attention(info) ? "true" : "false");
    *out = text;
    return EJK_OK;
}

ejk_status ejk_mask_info_tree_flatten(const ejk_mask_info *info, ejk_mask_info_fields *out) {
    TRACE_CALL("tree_flatten");
    NEED(info);
    NEED(out);
    ejk_mask_info_fields fields = {.axes = info->axes};
    ejk_tensor *views[] = {&fields.attention_mask, &fields.q_segment_ids, &fields.kv_segment_ids,
                           &fields.q_positions, &fields.kv_positions};
    if (info->mask_stored) EJKI_TRY(read_form(info, FORM_MASK, info->dtype, views[0]));
    for (int i = 1; i < 5; i++) {
        const ejki_info_array *array = stored(info, field_forms[i]);
        if (array != NULL) *views[i] = array->owned.tensor;
    }
    *out = fields;
    return EJK_OK;
}

/* ---- Copies with a form stored ----------------------------------------------------------------------- */

ejk_status ejk_mask_info_materialize_attention_mask(const ejk_mask_info *info, ejk_dtype dtype,
                                                    ejk_mask_info **out) {
    TRACE_CALL("materialize_attention_mask");
    NEED(info);
    NEED(out);
    EJKI_TRY(check_dtype(dtype, false));
    if (info->mask_stored && info->dtype == dtype) {
        *out = ejk_mask_info_retain(info);
        return EJK_OK;
    }
    ejki_info_array *mask = NULL;
    ejk_mask_info *copy = NULL;
    EJKI_TRY(ejki_info_form(info, FORM_MASK, dtype, &mask));
    EJKI_TRY(ejki_info_copy(info, &copy));
    copy->dtype = dtype;
    copy->mask_stored = true;
    atomic_store_explicit(&copy->slots[FORM_MASK][dtype], ejki_info_array_retain(mask),
                          memory_order_relaxed);
    *out = copy;
    return EJK_OK;
}

ejk_status ejk_mask_info_to_dtype(const ejk_mask_info *info, ejk_dtype dtype, ejk_mask_info **out) {
    TRACE_CALL("to_dtype");
    NEED(info);
    NEED(out);
    EJKI_TRY(check_dtype(dtype, false));
    ejk_mask_info *copy = NULL;
    EJKI_TRY(ejki_info_copy(info, &copy));
    copy->dtype = dtype;
    *out = copy;
    return EJK_OK;
}

/* Groups of rows and of columns, stored in the copy. */
static ejk_status store_groups(const ejk_mask_info *info, bool per_head, ejk_mask_info *copy) {
    ejki_info_array *mask = NULL, *q = NULL, *kv = NULL;
    EJKI_TRY(ejki_info_form(info, FORM_MASK, EJK_DTYPE_BOOL, &mask));
    int64_t q_shape[3] = {info->batch, per_head ? info->heads : info->q, info->q};
    int64_t kv_shape[3] = {info->batch, per_head ? info->heads : info->kv, info->kv};
    ejk_status status = ejki_info_array_create(EJK_DTYPE_I32, 2 + per_head, q_shape, &q);
    if (status == EJK_OK)
        status = ejki_info_array_create(EJK_DTYPE_I32, 2 + per_head, kv_shape, &kv);
    if (status == EJK_OK)
        status = ejk_mask_to_segment_ids(NULL, &mask->owned.tensor, per_head, 0, &q->owned.tensor,
                                         &kv->owned.tensor);
    if (status != EJK_OK) {
        ejki_info_array_release(q);
        ejki_info_array_release(kv);
        return status;
    }
    ejki_info_store(copy, FORM_Q_IDS, q);
    ejki_info_store(copy, FORM_KV_IDS, kv);
    return EJK_OK;
}

ejk_status ejk_mask_info_materialize_segment_ids(const ejk_mask_info *info, bool per_head,
                                                 ejk_mask_info **out) {
    TRACE_CALL("materialize_segment_ids");
    NEED(info);
    NEED(out);
    EJKI_TRY(ejki_info_require(info, "materialize_segment_ids"));
    ejk_mask_info *copy = NULL;
    EJKI_TRY(ejki_info_copy(info, &copy));
    ejk_status status = EJK_OK;
    if (!info->stored[FORM_Q_IDS]) status = store_groups(info, per_head, copy);
    if (status != EJK_OK) {
        ejk_mask_info_release(copy);
        return status;
    }
    *out = copy;
    return EJK_OK;
}
