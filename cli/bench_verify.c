/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is timed before it is known to be right. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are NaN in every floating-point type. Results are dense, whatever the order of their axes. */
static void poison(const ejk_tensor *tensor) {
    memset(tensor->data, 0xff, (size_t)ejk_tensor_count(tensor) * ejk_dtype_size(tensor->dtype));
}

/* What lies beside the first result, as logarithms of sums, may be infinite. */
bool bench_verify(bench_case *bench) {
    const ejk_kernel *kernel = bench->call.kernel;
    bool right = true;
    for (int pass = 0; pass < 2 && right; pass++) {
        for (int32_t i = 0; i < kernel->args->count && right; i++) {
            const ejk_tensor *tensor = call_tensor(kernel, bench->call.args, i);
            const ejk_field *field = &kernel->args->fields[i];
            if (!tensor || !ejk_tensor_present(tensor) || !call_is_output(field)) continue;
            if (pass == 0)
                poison(tensor);
            else
                right = check_values(tensor, field->name, i == call_first_output(kernel));
        }
        if (pass == 0) right = bench_case_run(bench);
    }
    return right;
}

/* Copies the arguments with another platform, no configuration, and a first result of their own. */
static void *other_call(const bench_case *bench, const void *args, const char *platform,
                        ejk_owned_tensor *result) {
    const ejk_kernel *kernel = bench->call.kernel;
    void *other = malloc(kernel->args->size);
    if (!other) {
        complain("no memory for the arguments of %s", kernel->op_id);
        return NULL;
    }
    memcpy(other, args, kernel->args->size);
    size_t offset;
    const ejk_field *config =
        kernel->config_field ? ejk_record_find(kernel->args, kernel->config_field, &offset) : NULL;
    if (config) memset((char *)other + offset, 0, config->record->size);
    ejk_tensor *tensor = call_tensor(kernel, other, call_first_output(kernel));
    if (call_set_platform(kernel, other, platform) &&
        succeeded(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, result))) {
        *tensor = result->tensor;
        return other;
    }
    free(other);
    return NULL;
}

static bool run_other(const ejk_kernel *kernel, ejk_context *context, const void *args,
                      double *seconds) {
    ejk_plan *plan;
    if (!succeeded(ejk_plan_create(context, kernel, args, &plan))) return false;
    double start = ejk_now();
    bool run = succeeded(ejk_plan_execute(plan, args, NULL, 0));
    *seconds = ejk_now() - start;
    ejk_plan_destroy(plan);
    return run;
}

bool bench_compare(bench_case *bench, ejk_context *context, const char *platform,
                   bench_result *out) {
    const ejk_kernel *kernel = bench->call.kernel;
    const void *args = bench->args[bench->next];
    ejk_owned_tensor result = {0};
    void *other = other_call(bench, args, platform, &result);
    bool compared = other && bench_case_run(bench) &&
                    run_other(kernel, context, other, &out->against_time) &&
                    compare(call_tensor(kernel, bench->call.args, call_first_output(kernel)),
                            &result.tensor, &out->difference);
    out->against = platform;
    ejk_owned_tensor_close(&result);
    free(other);
    return compared;
}
