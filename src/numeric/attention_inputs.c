/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"

static int64_t chosen(ejk_opt_int value, int64_t fallback) {
    return value.set ? value.value : fallback;
}

static ejk_status make(const ejk_attention_inputs_options *options, ejk_dtype dtype,
                       ejk_random_key key, ejk_owned_tensor *out) {
    const int64_t shape[] = {chosen(options->batch_size, 2), chosen(options->seq_len, 128),
                             chosen(options->num_heads, 8), chosen(options->head_dim, 64)};
    EJKI_TRY(ejk_owned_tensor_create(dtype, 4, shape, out));
    return ejk_random_normal(key, 0.02, options->threads, &out->tensor);
}

void ejk_attention_inputs_close(ejk_attention_inputs *inputs) {
    if (!inputs) return;
    ejk_owned_tensor_close(&inputs->query);
    ejk_owned_tensor_close(&inputs->key);
    ejk_owned_tensor_close(&inputs->value);
}

ejk_status ejk_generate_attention_inputs(const ejk_attention_inputs_options *options,
                                         ejk_attention_inputs *out) {
    static const ejk_attention_inputs_options defaults = {0};
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    if (!options) options = &defaults;
    ejk_dtype dtype = options->dtype == EJK_DTYPE_UNSET ? EJK_DTYPE_F32 : options->dtype;
    if (!ejki_dtype_is_floating(dtype)) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "dtype is %s, expected float64, float32, bfloat16 or float16",
                         ejk_dtype_name(dtype));
    }
    ejk_random_key keys[3];
    EJKI_TRY(ejk_prng_split(options->has_key ? options->key : ejk_prng_key(0), 3, keys));
    ejk_attention_inputs made = {0};
    ejk_status status = make(options, dtype, keys[0], &made.query);
    if (status == EJK_OK) status = make(options, dtype, keys[1], &made.key);
    if (status == EJK_OK) status = make(options, dtype, keys[2], &made.value);
    if (status != EJK_OK) {
        ejk_attention_inputs_close(&made);
        return status;
    }
    *out = made;
    return EJK_OK;
}
