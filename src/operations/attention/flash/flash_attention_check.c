/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the record of the arguments cannot say. The record has been checked before: ranks, axes and element
 * types by themselves are right here.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include <math.h>
#include <string.h>

#include "base/base.h"

static ejk_status check_heads(const ejk_axes *axes) {
    int64_t query = ejk_axes_get(axes, "Hq"), kv = ejk_axes_get(axes, "Hkv");
    if (kv ? query % kv == 0 : query == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "query has %lld heads and key %lld, expected a multiple of key's",
                     (long long)query, (long long)kv);
}

static ejk_status check_types(const ejk_flash_attention_args *args) {
    ejk_dtype dtype = args->query.dtype;
    bool accumulator = args->normalize_output == EJK_FALSE;
    ejk_dtype expected = accumulator ? EJK_DTYPE_F32 : dtype;
    if (args->out.dtype != expected)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out has type %s, expected %s, %s",
                         ejk_dtype_name(args->out.dtype), ejk_dtype_name(expected),
                         accumulator ? "as normalize_output is false" : "that of query");
    if (args->logits_dtype == EJK_DTYPE_UNSET || args->logits_dtype == EJK_DTYPE_F32) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "logits_dtype is %s, only float32 is in this version",
                     ejk_dtype_name(args->logits_dtype));
}

/* The counters of the random numbers have 32 bits for each axis. */
static ejk_status check_dropout(double probability, const ejk_axes *axes) {
    static const char *const names[] = {"B", "N", "Hq", "T", "S"};
    if (!(probability >= 0 && probability < 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "dropout_prob is %g, expected at least 0 and below 1", probability);
    for (size_t i = 0; probability > 0 && i < sizeof names / sizeof *names; i++)
        if (ejk_axes_get(axes, names[i]) > INT64_C(1) << 32)
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "%s is %lld, expected at most 2^32 where there is dropout", names[i],
                             (long long)ejk_axes_get(axes, names[i]));
    return EJK_OK;
}

static ejk_status check_side(ejk_opt_int side, const char *name) {
    if (!side.set || side.value >= 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s of sliding_window is %lld, expected 0 or more, or unset", name,
                     (long long)side.value);
}

static ejk_status check_numbers(const ejk_flash_attention_args *args, const ejk_axes *axes) {
    ejk_opt_float scale = args->softmax_scale, cap = args->logits_soft_cap;
    if (scale.set && !isfinite(scale.value))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "softmax_scale is %g, expected a finite number", scale.value);
    if (scale.set && args->query.dtype != EJK_DTYPE_F64 && fabs(scale.value) > EJKI_FLASH_FAR)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "softmax_scale is %g, expected at most %g in size: scores are float32",
                         scale.value, EJKI_FLASH_FAR);
    if (cap.set && !(isfinite(cap.value) && cap.value > 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "logits_soft_cap is %g, expected a finite number above 0", cap.value);
    EJKI_TRY(check_dropout(args->dropout_prob, axes));
    EJKI_TRY(check_side(args->sliding_window.left, "left"));
    return check_side(args->sliding_window.right, "right");
}

static ejk_status check_precision(const char *name) {
    static const char *const names[] = {"", "default", "high", "highest"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                     "precision is '%s', expected default, high or highest", name);
}

static ejk_status check_segments(const ejk_tensor *query, const ejk_tensor *kv) {
    if (ejk_tensor_present(query) != ejk_tensor_present(kv))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is given alone, expected %s too",
                         ejk_tensor_present(query) ? "q_segment_ids" : "kv_segment_ids",
                         ejk_tensor_present(query) ? "kv_segment_ids" : "q_segment_ids");
    if (query->dtype != kv->dtype)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "kv_segment_ids has type %s, expected %s as q_segment_ids",
                         ejk_dtype_name(kv->dtype), ejk_dtype_name(query->dtype));
    return EJK_OK;
}

static ejk_status check_results(const ejk_flash_attention_args *args) {
    if (args->normalize_output == EJK_FALSE) return EJK_OK;
    if (!ejk_tensor_present(&args->row_max) && !ejk_tensor_present(&args->row_sum)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s is given, which goes with normalize_output = false only",
                     ejk_tensor_present(&args->row_max) ? "row_max" : "row_sum");
}

/* Sums of positions and offsets must fit, and products that no tensor has where D or Dv is 0. */
static ejk_status check_sizes(const ejk_axes *axes) {
    static const char *const products[][3] = {{"T", "B", "Hq"}, {"S", "B", "Hkv"}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        int64_t length = ejk_axes_get(axes, products[i][0]), product = 1;
        bool fits = length <= INT64_C(1) << 60;
        for (int k = 0; k < 3; k++)
            fits = fits &&
                   ejki_mul(product, ejki_max(ejk_axes_get(axes, products[i][k]), 1), &product);
        if (!fits)
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "%s is %lld, expected at most 2^60, and a product with %s and %s that "
                             "63 bits count",
                             i == 0 ? "the length of query" : "the length of key",
                             (long long)length, products[i][1], products[i][2]);
    }
    return EJK_OK;
}

/* All tensors with a batch axis, or none of them. */
static ejk_status check_ranks(const ejk_flash_attention_args *args) {
    const struct {
        const ejk_tensor *tensor;
        const char *name;
        int32_t axes; /* besides that of the batch */
    } all[] = {
        {&args->key, "key", 3}, {&args->value, "value", 3},     {&args->out, "out", 3},
        {&args->lse, "lse", 2}, {&args->row_max, "row_max", 2}, {&args->row_sum, "row_sum", 2},
    };
    const int32_t batch = args->query.rank - 3;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (ejk_tensor_present(all[i].tensor) && all[i].tensor->rank != all[i].axes + batch)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "%s has rank %d, expected %d beside query's %d", all[i].name,
                             (int)all[i].tensor->rank, (int)(all[i].axes + batch),
                             (int)args->query.rank);
    return EJK_OK;
}

/* Bias, masks and ids have a place for each padded token, but none for sequences side by side. */
static ejk_status check_tokens(const ejk_flash_attention_args *args) {
    const struct {
        const ejk_tensor *tensor;
        const char *name;
    } padded[] = {{&args->bias, "bias"},
                  {&args->attention_mask, "attention_mask"},
                  {&args->q_segment_ids, "q_segment_ids"},
                  {&args->kv_segment_ids, "kv_segment_ids"}};
    for (size_t i = 0; i < sizeof padded / sizeof *padded; i++)
        if (ejk_tensor_present(padded[i].tensor))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is given, expected none where query is [T,Hq,D]", padded[i].name);
    return EJK_OK;
}

/* The lengths themselves are data, looked at when the plan is executed. */
static ejk_status check_layout(const ejk_flash_attention_args *args, const ejk_axes *axes) {
    const ejk_tensor *query = &args->cum_seqlens_q, *key = &args->cum_seqlens_k;
    if (ejk_tensor_present(query) != ejk_tensor_present(key))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is given alone, expected %s too",
                         ejk_tensor_present(query) ? "cum_seqlens_q" : "cum_seqlens_k",
                         ejk_tensor_present(query) ? "cum_seqlens_k" : "cum_seqlens_q");
    if (!ejk_tensor_present(query) && args->query.rank == 3)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "query has rank 3, expected 4 without cum_seqlens_q");
    EJKI_TRY(check_ranks(args));
    if (!ejk_tensor_present(query)) return EJK_OK;
    if (query->dtype != key->dtype)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "cum_seqlens_k has type %s, expected %s as cum_seqlens_q",
                         ejk_dtype_name(key->dtype), ejk_dtype_name(query->dtype));
    if (args->query.rank == 3) return check_tokens(args);
    if (ejk_axes_get(axes, "N") == ejk_axes_get(axes, "B")) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "cum_seqlens_q has %lld elements, expected %lld, one more than query's batch",
                     (long long)ejk_axes_get(axes, "N") + 1,
                     (long long)ejk_axes_get(axes, "B") + 1);
}

ejk_status ejki_flash_check(const ejk_flash_attention_args *args, const ejk_axes *axes) {
    EJKI_TRY(check_layout(args, axes));
    EJKI_TRY(check_sizes(axes));
    EJKI_TRY(check_heads(axes));
    EJKI_TRY(check_types(args));
    EJKI_TRY(check_numbers(args, axes));
    EJKI_TRY(check_precision(args->precision));
    EJKI_TRY(check_segments(&args->q_segment_ids, &args->kv_segment_ids));
    return check_results(args);
}
