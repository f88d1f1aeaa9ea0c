/* SPDX-License-Identifier: Apache-2.0 */
/* Constructors. */
#include "mask_info/info.h"

#include <ejkernel/numeric.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A new object with names and positions of options. */
static ejk_status begin(const ejk_mask_info_options *options, ejk_mask_info **out) {
    ejk_mask_info *info = NULL;
    EJKI_TRY(ejki_info_create(options != NULL ? &options->axes : NULL, &info));
    ejk_status status = EJK_OK;
    if (options != NULL)
        status = ejki_info_positions(info, &options->q_positions, &options->kv_positions);
    if (status != EJK_OK) {
        ejk_mask_info_release(info);
        return status;
    }
    *out = info;
    return EJK_OK;
}

/* Ids that are stored and are what the mask is made of. Takes both references. */
static void be_segments(ejk_mask_info *info, ejki_info_array *q, ejki_info_array *kv) {
    info->q_source = ejki_info_array_retain(q);
    info->kv_source = ejki_info_array_retain(kv);
    ejki_info_store(info, FORM_Q_IDS, q);
    ejki_info_store(info, FORM_KV_IDS, kv);
}

static ejk_status from_ids(ejki_info_array *q, ejki_info_array *kv, bool mask_stored,
                           const ejk_mask_info_options *options, ejk_mask_info **out) {
    ejk_mask_info *info = NULL;
    ejk_status status = begin(options, &info);
    if (status != EJK_OK) {
        ejki_info_array_release(q);
        ejki_info_array_release(kv);
        return status;
    }
    info->mask_stored = mask_stored;
    be_segments(info, q, kv);
    return ejki_info_finish(info, out);
}

static ejk_status from_elements(ejki_info_array *elements, const ejk_mask_info_options *options,
                                ejk_mask_info **out) {
    ejk_mask_info *info = NULL;
    ejk_status status = begin(options, &info);
    if (status != EJK_OK) {
        ejki_info_array_release(elements);
        return status;
    }
    info->elements = elements;
    info->mask_stored = true;
    return ejki_info_finish(info, out);
}

/* Which tokens are valid, as ids 0 and −1. */
static ejk_status read_valid(const ejk_tensor *tensor, const char *name, ejki_info_array **out) {
    ejki_info_array *truth = NULL, *ids = NULL;
    EJKI_TRY(ejki_read_truth(tensor, name, &truth));
    ejk_status status = ejki_info_array_create(EJK_DTYPE_I32, 2, tensor->shape, &ids);
    int64_t count = ejk_tensor_count(tensor);
    for (int64_t i = 0; status == EJK_OK && i < count; i++)
        ejki_ids(ids)[i] = ejki_bytes(truth)[i] - 1;
    ejki_info_array_release(truth);
    if (status == EJK_OK) *out = ids;
    return status;
}

static ejk_status read_side(const ejk_tensor *tensor, const char *name, bool valid,
                            ejki_info_array **out) {
    EJKI_TRY(ejki_argument_of_rank(tensor, name, 2));
    return valid ? read_valid(tensor, name, out) : ejki_read_ids(tensor, name, out);
}

ejk_status ejk_mask_info_from_segments(const ejk_tensor *q_ids, const ejk_tensor *kv_ids,
                                       bool is_attn_mask, const ejk_mask_info_options *options,
                                       ejk_mask_info **out) {
    TRACE_CALL("from_segments");
    NEED(out);
    ejki_info_array *q = NULL, *kv = NULL;
    EJKI_TRY(read_side(q_ids, "q_ids", is_attn_mask, &q));
    if (kv_ids == NULL) {
        kv = ejki_info_array_retain(q);
    } else {
        ejk_status status = read_side(kv_ids, "kv_ids", is_attn_mask, &kv);
        if (status != EJK_OK) {
            ejki_info_array_release(q);
            return status;
        }
    }
    return from_ids(q, kv, is_attn_mask, options, out);
}

/* ---- Attention masks ----------------------------------------------------------------------------------- */

/* A mask of tokens: whole numbers, of which 0 is padding and n the segment n − 1. */
static ejk_status token_ids(const ejk_tensor *mask, ejki_info_array *numbers,
                            ejki_info_array *ids) {
    const double *value = numbers->owned.tensor.data;
    int64_t count = ejk_tensor_count(mask);
    for (int64_t i = 0; i < count; i++) {
        double v = mask->dtype == EJK_DTYPE_BOOL ? value[i] != 0 : value[i];
        if (!(v > INT32_MIN && v <= INT32_MAX) || v != floor(v))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "element %" PRId64 " of attention_mask [B,S] is %g, expected a whole "
                             "number of int32",
                             i, v);
        ejki_ids(ids)[i] = v < 1 ? -1 : (int32_t)v - 1;
    }
    return EJK_OK;
}

/* Elements in another type, for a moment. */
static ejk_status convert(const ejk_tensor *tensor, ejk_dtype dtype, ejki_info_array **out) {
    ejki_info_array *array = NULL;
    EJKI_TRY(ejki_info_array_create(dtype, tensor->rank, tensor->shape, &array));
    ejk_status status = ejk_tensor_copy(tensor, &array->owned.tensor);
    if (status != EJK_OK) {
        ejki_info_array_release(array);
        return status;
    }
    *out = array;
    return EJK_OK;
}

static ejk_status from_tokens(const ejk_tensor *mask, const ejk_mask_info_options *options,
                              ejk_mask_info **out) {
    ejki_info_array *numbers = NULL, *ids = NULL;
    EJKI_TRY(convert(mask, EJK_DTYPE_F64, &numbers));
    ejk_status status = ejki_info_array_create(EJK_DTYPE_I32, 2, mask->shape, &ids);
    if (status == EJK_OK) status = token_ids(mask, numbers, ids);
    ejki_info_array_release(numbers);
    if (status != EJK_OK) {
        ejki_info_array_release(ids);
        return status;
    }
    return from_ids(ids, ejki_info_array_retain(ids), true, options, out);
}

ejk_status ejk_mask_info_from_attention_mask(const ejk_tensor *mask,
                                             const ejk_mask_info_options *options,
                                             ejk_mask_info **out) {
    TRACE_CALL("from_attention_mask");
    NEED(out);
    EJKI_TRY(ejki_argument_input(mask, "attention_mask"));
    if (mask->rank == 2) return from_tokens(mask, options, out);
    if (mask->rank != 3 && mask->rank != 4)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "attention_mask has rank %" PRId32 ", expected 2, 3 or 4", mask->rank);
    ejki_info_array *elements = NULL;
    EJKI_TRY(ejki_read_truth(mask, "attention_mask", &elements));
    return from_elements(elements, options, out);
}

ejk_status ejk_mask_info_from_random(int64_t batch_size, int64_t q_len, ejk_opt_int kv_len,
                                     ejk_opt_float sparsity, uint64_t seed,
                                     const ejk_mask_info_options *options, ejk_mask_info **out) {
    TRACE_CALL("from_random");
    NEED(out);
    double part = sparsity.set ? sparsity.value : 0.5;
    if (!(part >= 0 && part <= 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "sparsity is %g, expected 0 to 1", part);
    int64_t shape[4] = {batch_size, 1, q_len, kv_len.set ? kv_len.value : q_len};
    ejki_info_array *numbers = NULL, *elements = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_F32, 4, shape, &numbers));
    ejk_status status = ejk_random_uniform(ejk_prng_key(seed), 0, 1, NULL, &numbers->owned.tensor);
    if (status == EJK_OK) status = ejki_info_array_create(EJK_DTYPE_BOOL, 4, shape, &elements);
    if (status == EJK_OK) {
        const float *number = numbers->owned.tensor.data, below = (float)(1 - part);
        int64_t count = ejk_tensor_count(&numbers->owned.tensor);
        for (int64_t i = 0; i < count; i++) ejki_bytes(elements)[i] = number[i] < below;
    }
    ejki_info_array_release(numbers);
    if (status != EJK_OK) return status;
    return from_elements(elements, options, out);
}

/* ---- The first that is there --------------------------------------------------------------------------- */

static ejk_status all_valid(int64_t batch, int64_t length, const ejk_mask_info_options *options,
                            ejk_mask_info **out) {
    ejki_info_array *ids = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_I32, 2, (int64_t[2]){batch, length}, &ids));
    return from_ids(ids, ejki_info_array_retain(ids), true, options, out);
}

/* True where a number is 1. */
static ejk_status from_ones(const ejk_tensor *mask, const ejk_mask_info_options *options,
                            ejk_mask_info **out) {
    ejki_info_array *numbers = NULL, *ones = NULL;
    EJKI_TRY(convert(mask, EJK_DTYPE_F64, &numbers));
    ejk_status status = ejki_info_array_create(EJK_DTYPE_BOOL, mask->rank, mask->shape, &ones);
    if (status == EJK_OK) {
        const double *value = numbers->owned.tensor.data;
        int64_t count = ejk_tensor_count(mask);
        for (int64_t i = 0; i < count; i++) ejki_bytes(ones)[i] = value[i] == 1;
        const ejk_tensor *truth = &ones->owned.tensor;
        status = mask->rank == 2 ? ejk_mask_info_from_segments(truth, NULL, true, options, out)
                                 : ejk_mask_info_from_attention_mask(truth, options, out);
    }
    ejki_info_array_release(numbers);
    ejki_info_array_release(ones);
    return status;
}

ejk_status ejk_mask_info_dynamic_init(const ejk_mask_info_source *source,
                                      const ejk_mask_info_options *options, ejk_mask_info **out) {
    TRACE_CALL("dynamic_init");
    NEED(source);
    NEED(out);
    if (source->mask_info != NULL) {
        *out = ejk_mask_info_retain(source->mask_info);
        return EJK_OK;
    }
    if (ejk_tensor_present(&source->attention_mask)) {
        const ejk_tensor *mask = &source->attention_mask;
        EJKI_TRY(ejki_argument_input(mask, "attention_mask"));
        if (mask->dtype != EJK_DTYPE_BOOL) return from_ones(mask, options, out);
        if (mask->rank == 2) return ejk_mask_info_from_segments(mask, NULL, true, options, out);
        return ejk_mask_info_from_attention_mask(mask, options, out);
    }
    bool ids = ejk_tensor_present(&source->input_ids);
    const ejk_tensor *tokens = ids ? &source->input_ids : &source->inputs_embeds;
    const char *name = ids ? "input_ids" : "inputs_embeds";
    if (!ejk_tensor_present(tokens))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "source has nothing set, expected mask_info, attention_mask, input_ids or "
                         "inputs_embeds");
    EJKI_TRY(ejk_tensor_check(tokens, name));
    if (tokens->rank != (ids ? 2 : 3))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected %d", name,
                         tokens->rank, ids ? 2 : 3);
    return all_valid(tokens->shape[0], tokens->shape[1], options, out);
}

/* ---- Trees --------------------------------------------------------------------------------------------- */

/* Puts what is set in place of what the object has. */
static ejk_status put_fields(ejk_mask_info *info, const ejk_mask_info_fields *fields) {
    ejki_info_array *array = NULL;
    const ejk_tensor *mask = &fields->attention_mask;
    const ejk_tensor *ids[2] = {&fields->q_segment_ids, &fields->kv_segment_ids};
    bool had_mask = info->mask_stored;
    if (ejk_tensor_present(mask)) {
        EJKI_TRY(ejki_argument_of_rank(mask, "attention_mask", 4));
        EJKI_TRY(ejki_read_truth(mask, "attention_mask", &array));
        ejki_info_array_release(info->elements);
        info->elements = array;
        info->mask_stored = had_mask = true;
        ejki_band_close(&info->band);
    }
    static const char *const names[2] = {"q_segment_ids", "kv_segment_ids"};
    for (int i = 0; i < 2; i++) {
        if (!ejk_tensor_present(ids[i])) continue;
        EJKI_TRY(ejki_argument_of_rank(ids[i], names[i], 2));
        EJKI_TRY(ejki_read_ids(ids[i], names[i], &array));
        ejki_info_store(info, i == 0 ? FORM_Q_IDS : FORM_KV_IDS, array);
    }
    if (info->stored[FORM_Q_IDS] != info->stored[FORM_KV_IDS]) {
        if (!info->stored[FORM_Q_IDS])
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "kv_segment_ids is given alone, expected q_segment_ids too");
        array = atomic_load_explicit(&info->slots[FORM_Q_IDS][0], memory_order_relaxed);
        ejki_info_store(info, FORM_KV_IDS, ejki_info_array_retain(array));
    }
    if (!had_mask && info->stored[FORM_Q_IDS]) {
        ejki_info_array_release(info->q_source);
        ejki_info_array_release(info->kv_source);
        info->q_source = ejki_info_array_retain(
            atomic_load_explicit(&info->slots[FORM_Q_IDS][0], memory_order_relaxed));
        info->kv_source = ejki_info_array_retain(
            atomic_load_explicit(&info->slots[FORM_KV_IDS][0], memory_order_relaxed));
        info->mask_stored = false;
    }
    return ejki_info_positions(info, &fields->q_positions, &fields->kv_positions);
}

static ejk_status finish_fields(ejk_mask_info *info, const ejk_mask_info_fields *fields,
                                ejk_mask_info **out) {
    ejk_status status = put_fields(info, fields);
    if (status != EJK_OK) {
        ejk_mask_info_release(info);
        return status;
    }
    return ejki_info_finish(info, out);
}

ejk_status ejk_mask_info_tree_unflatten(const ejk_mask_info_fields *fields, ejk_mask_info **out) {
    TRACE_CALL("tree_unflatten");
    NEED(fields);
    NEED(out);
    ejk_mask_info *info = NULL;
    EJKI_TRY(ejki_info_create(&fields->axes, &info));
    return finish_fields(info, fields, out);
}

ejk_status ejk_mask_info_replace(const ejk_mask_info *info, const ejk_mask_info_fields *fields,
                                 ejk_mask_info **out) {
    TRACE_CALL("replace");
    NEED(info);
    NEED(fields);
    NEED(out);
    ejk_mask_info *blank = NULL, *copy = NULL;
    ejk_mask_axes axes = fields->axes;
    ejk_axis_names *wished[4] = {&axes.batch_axis_name, &axes.qheads_axis_name,
                                 &axes.kvheads_axis_name, &axes.sequence_axis_name};
    const ejk_axis_names *own[4] = {&info->axes.batch_axis_name, &info->axes.qheads_axis_name,
                                    &info->axes.kvheads_axis_name, &info->axes.sequence_axis_name};
    for (int i = 0; i < 4; i++)
        if (wished[i]->count == 0) *wished[i] = *own[i];
    EJKI_TRY(ejki_info_create(&axes, &blank)); /* checks the names */
    ejk_status status = ejki_info_copy(info, &copy);
    if (status == EJK_OK) {
        copy->axes = blank->axes;
        status = finish_fields(copy, fields, out);
    }
    ejk_mask_info_release(blank);
    return status;
}

ejk_status ejk_axis_names_of(const char *names, ejk_axis_names *out) {
    NEED(names);
    NEED(out);
    ejk_axis_names axis = {.count = -1};
    for (const char *at = names; *names != '\0';) {
        size_t length = strcspn(at, ",");
        int32_t count = axis.count < 0 ? 0 : axis.count;
        if (length == 0 || length >= EJK_NAME_SIZE || count == EJK_AXIS_NAMES_MAX)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "names is \"%.200s\", expected at most %d names of 1 to %d bytes, "
                             "parted by commas",
                             names, EJK_AXIS_NAMES_MAX, EJK_NAME_SIZE - 1);
        memcpy(axis.names[count], at, length);
        axis.count = count + 1;
        at += length;
        if (*at++ == '\0') break;
    }
    *out = axis;
    return EJK_OK;
}
