/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/params.h>

#include "ops/core/core.h"
#include "ops/core/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#define EJK_RECORD_SELF ejk_fwd_params
EJK_RECORD_DEFINE(ejk_fwd_params_record, ejk_fwd_params, EJK_FWD_PARAMS);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_bwd_params
EJK_RECORD_DEFINE(ejk_bwd_params_record, ejk_bwd_params, EJK_BWD_PARAMS);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_kernel_config
EJK_RECORD_DEFINE(ejk_kernel_config_record, ejk_kernel_config, EJK_KERNEL_CONFIG);
#undef EJK_RECORD_SELF

/* ---- Forward and backward -------------------------------------------------------------------------- */

static ejk_status missing_out(void) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put the result");
}

ejk_status ejk_fwd_params_to_dict(const ejk_fwd_params *params, char **out) {
    if (!out) return missing_out();
    json_t *dict = json_object();
    bool complete = dict != NULL;
    for (int32_t i = 0; i < ejk_fwd_params_record.count && complete; i++) {
        const ejk_field *field = &ejk_fwd_params_record.fields[i];
        if (!ejk_record_is_set(field, params)) continue;
        const ejk_opt_int *number = (const void *)((const char *)params + field->offset);
        complete = json_object_set_new(dict, field->name, json_integer(number->value)) == 0;
    }
    ejk_status status =
        complete ? ejki_json_text(dict, JSON_COMPACT, out)
                 : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the JSON of parameters");
    json_decref(dict);
    return status;
}

ejk_fwd_params ejk_fwd_params_merge(const ejk_fwd_params *base, const ejk_fwd_params *override) {
    ejk_fwd_params merged;
    ejk_record_merge(&ejk_fwd_params_record, base, override, &merged);
    return merged;
}

/* What an unset block size stands for where one is needed. */
#define USUAL_BLOCK 128

static ejk_status scaled(const char *name, ejk_opt_int block, double scale, ejk_opt_int *out) {
    const int64_t size = block.set && block.value != 0 ? block.value : USUAL_BLOCK;
    const double product = trunc((double)size * scale);
    if (!(fabs(product) < 0x1p63))
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%s is %lld times scale %g, expected a product of at most 63 bits", name,
                         (long long)size, scale);
    *out = ejk_int((int64_t)product);
    return EJK_OK;
}

ejk_status ejk_bwd_params_from_fwd_params(const ejk_fwd_params *fwd, ejk_opt_float scale,
                                          ejk_bwd_params *out) {
    if (!out) return missing_out();
    const ejk_fwd_params from = fwd ? *fwd : (ejk_fwd_params){.q_blocksize = {.set = false}};
    const double factor = scale.set ? scale.value : 0.5;
    if (!isfinite(factor) || factor < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "scale is %g, expected a finite number of at least 0", factor);
    ejk_bwd_params result = {.num_warps = from.num_warps, .num_stages = from.num_stages};
    EJKI_TRY(scaled("q_blocksize", from.q_blocksize, factor, &result.q_blocksize));
    EJKI_TRY(scaled("kv_blocksize", from.kv_blocksize, factor, &result.kv_blocksize));
    *out = result;
    return EJK_OK;
}

/* ---- The shared configuration ---------------------------------------------------------------------- */

ejk_kernel_config ejk_kernel_config_default(void) {
    return (ejk_kernel_config){.block_q = ejk_int(128),
                               .block_k = ejk_int(128),
                               .block_d = ejk_int(64),
                               .num_warps = ejk_int(4),
                               .num_stages = ejk_int(2),
                               .platform = "auto",
                               .backend = "any"};
}

static ejk_status check_sizes(const ejk_kernel_config *config) {
    for (int32_t i = 0; i < ejk_kernel_config_record.count; i++) {
        const ejk_field *field = &ejk_kernel_config_record.fields[i];
        if (field->kind != EJK_FIELD_OPT_INT) continue;
        const ejk_opt_int *number = (const void *)((const char *)config + field->offset);
        if (number->value < 1)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %lld, expected at least 1",
                             field->name, (long long)number->value);
    }
    return EJK_OK;
}

ejk_status ejk_kernel_config_normalise(const ejk_kernel_config *config, ejk_kernel_config *out) {
    if (!out) return missing_out();
    if (config) EJKI_TRY(ejki_values_check(&ejk_kernel_config_record, config));
    ejk_kernel_config result = ejk_kernel_config_default();
    ejk_record_merge(&ejk_kernel_config_record, &result, config, &result);
    EJKI_TRY(check_sizes(&result));
    ejk_platform platform;
    ejk_backend backend;
    EJKI_TRY(ejk_platform_from_name(result.platform, &platform));
    EJKI_TRY(ejk_backend_from_name(result.backend, &backend));
    if (platform == EJK_PLATFORM_XLA) backend = EJK_BACKEND_ANY;
    snprintf(result.platform, sizeof result.platform, "%s", ejk_platform_name(platform));
    snprintf(result.backend, sizeof result.backend, "%s", ejk_backend_name(backend));
    *out = result;
    return EJK_OK;
}
