/* SPDX-License-Identifier: Apache-2.0 */
#include "support/toy_sums.h"

#define EJK_RECORD_SELF toy_sums_args
EJK_RECORD_DEFINE(toy_sums_args_record, toy_sums_args, TOY_SUMS_ARGS);
#undef EJK_RECORD_SELF

int toy_sums_strays, toy_sums_runs;

static void cost(const void *problem, const void *data, ejk_cost *out) {
    (void)data;
    const toy_sums_args *args = problem;
    double count = 0;
    for (int32_t i = 0; i < args->parts.count; i++)
        count += (double)ejk_tensor_count(&args->parts.value[i]);
    *out = (ejk_cost){count, 4 * count};
}

const ejk_kernel toy_sums_kernel = {
    .op_id = "toy_sums",
    .doc = "sums of the columns of all parts",
    .args = &toy_sums_args_record,
    .config = &toy_config_record,
    .config_field = "cfg",
    .parameters_field = "params",
    .cost = cost,
};

static ejk_status compute(const ejk_run *run) {
    const toy_sums_args *args = run->problem;
    const int64_t m = args->y.shape[0];
    float *y = args->y.data;
    toy_sums_runs++;
    for (int64_t k = 0; k < m; k++) y[k] = 0;
    for (int32_t p = 0; p < args->parts.count; p++) {
        const ejk_tensor *part = &args->parts.value[p];
        for (int64_t i = 0; i < part->shape[0]; i++)
            for (int64_t k = 0; k < m; k++)
                y[k] += ((const float *)part->data)[i * part->strides[0] + k];
    }
    for (int32_t p = 0; p < args->picks.count; p++)
        for (int64_t i = 0; i < args->picks.value[p].shape[0]; i++) {
            const int32_t column = ((const int32_t *)args->picks.value[p].data)[i];
            if (column < 0 || column >= m)
                toy_sums_strays++;
            else
                y[column]++;
        }
    return EJK_OK;
}

static const ejk_parameter parameters[] = {{"rows", 8, 64, 8, 16, "rows at once"}};

static const ejk_implementation implementations[2] = {
    {.algorithm = "toy_sums",
     .name = "f32/reference",
     .platform = EJK_PLATFORM_REFERENCE,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .run = compute},
    {.algorithm = "toy_sums",
     .name = "f32/rows",
     .platform = EJK_PLATFORM_SIMD,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .parameters = parameters,
     .parameter_count = 1,
     .run = compute},
};

ejk_status toy_sums_add(ejk_context *context) {
    ejk_status status = ejk_context_add_kernel(context, &toy_sums_kernel);
    for (int i = 0; i < 2 && status == EJK_OK; i++)
        status = ejk_registry_register(ejk_context_registry(context), &implementations[i]);
    return status;
}
