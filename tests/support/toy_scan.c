/* SPDX-License-Identifier: Apache-2.0 */
#include "support/toy_scan.h"

#include <math.h>

#define EJK_RECORD_SELF toy_scan_args
EJK_RECORD_DEFINE(toy_scan_args_record, toy_scan_args, TOY_SCAN_ARGS);
#undef EJK_RECORD_SELF

static void cost(const void *problem, const void *data, ejk_cost *out) {
    (void)data;
    const toy_scan_args *args = problem;
    const double count = (double)ejk_tensor_count(&args->x);
    *out = (ejk_cost){count, 8 * count};
}

const ejk_kernel toy_scan_kernel = {
    .op_id = "toy_scan",
    .doc = "running sums",
    .args = &toy_scan_args_record,
    .config = &toy_config_record,
    .config_field = "cfg",
    .parameters_field = "params",
    .cost = cost,
};

float toy_scan_most;

static ejk_status compute(const ejk_run *run) {
    const toy_scan_args *args = run->problem;
    const int64_t n = args->x.shape[0], m = args->x.shape[1];
    float *state = args->state.data, *last = args->last.dtype ? args->last.data : NULL;
    for (int64_t k = 0; k < m; k++) toy_scan_most = fmaxf(toy_scan_most, state[k]);
    for (int64_t k = 0; k < m && last; k++) state[k] += last[k];
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < m; k++) {
            const float value = ((const float *)args->x.data)[i * args->x.strides[0] + k];
            state[k] += value;
            ((float *)args->y.data)[i * args->y.strides[0] + k] = state[k];
            if (last) last[k] = value;
        }
    return EJK_OK;
}

static const ejk_parameter parameters[] = {{"rows", 8, 64, 8, 16, "rows at once"}};

const ejk_implementation toy_scan_implementations[2] = {
    {.algorithm = "toy_scan",
     .name = "f32/reference",
     .platform = EJK_PLATFORM_REFERENCE,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .run = compute},
    {.algorithm = "toy_scan",
     .name = "f32/rows",
     .platform = EJK_PLATFORM_SIMD,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .parameters = parameters,
     .parameter_count = 1,
     .run = compute},
};

ejk_status toy_scan_add(ejk_context *context) {
    ejk_status status = ejk_context_add_kernel(context, &toy_scan_kernel);
    for (int i = 0; i < 2 && status == EJK_OK; i++)
        status = ejk_registry_register(ejk_context_registry(context), &toy_scan_implementations[i]);
    return status;
}

toy_scan_args toy_scan_call(float *x, float *state, float *y, int64_t n, int64_t m) {
    return (toy_scan_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, n, m),
                           .state = ejk_tensor_1d(state, EJK_DTYPE_F32, m),
                           .y = ejk_tensor_2d(y, EJK_DTYPE_F32, n, m)};
}
