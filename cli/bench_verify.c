/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is timed before it is known to be right. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Results are dense, whatever the order of their axes. */
static int64_t bytes_of(const ejk_tensor *tensor) {
    return ejk_tensor_count(tensor) * (int64_t)ejk_dtype_size(tensor->dtype);
}

/* Bytes that are NaN in every floating-point type. */
static bool poison(const bench_case *bench, const ejk_tensor *tensor) {
    const int64_t bytes = bytes_of(tensor);
    void *here = bench->device < 0 ? tensor->data : bench_allocate(bytes);
    if (!here) return false;
    memset(here, 0xff, (size_t)bytes);
    if (bench->device < 0) return true;
    const bool sent = gpu_send_bytes(bench->device, tensor->data, here, bytes);
    free(here);
    return sent;
}

/* The tensor where the CPU can read it: itself, or a copy whose memory the caller frees. */
static bool fetch(const bench_case *bench, const ejk_tensor *tensor, ejk_tensor *out,
                  void **memory) {
    const int64_t bytes = bytes_of(tensor);
    *out = *tensor;
    *memory = NULL;
    if (bench->device < 0) return true;
    *memory = out->data = bench_allocate(bytes);
    out->device_type = EJK_DEVICE_CPU;
    out->device_index = 0;
    return *memory && gpu_fetch_bytes(bench->device, tensor->data, *memory, bytes);
}

static bool look_at(const bench_case *bench, const ejk_tensor *tensor, const char *name,
                    bool finite) {
    ejk_tensor here;
    void *memory;
    const bool right = fetch(bench, tensor, &here, &memory) && check_values(&here, name, finite);
    free(memory);
    return right;
}

/* What lies beside the first result, as logarithms of sums, may be infinite. */
bool bench_verify(bench_case *bench) {
    const ejk_kernel *kernel = bench->call.kernel;
    bool right = true;
    for (int pass = 0; pass < 2 && right; pass++) {
        for (int32_t i = 0; i < kernel->args->count && right; i++) {
            const ejk_tensor *tensor = call_tensor(kernel, bench->call.args, i);
            const ejk_field *field = &kernel->args->fields[i];
            if (!tensor || !ejk_tensor_present(tensor) || ejk_field_is_input(field)) continue;
            if (pass == 0)
                right = poison(bench, tensor);
            else
                right = look_at(bench, tensor, field->name, i == call_first_output(kernel));
        }
        if (pass == 0) right = bench_case_run(bench);
    }
    return right;
}

/* ---- Another platform -------------------------------------------------------------------------------- */

/* The same call there: its arguments, and its tensors where it cannot use those of the case. */
typedef struct other_call {
    void *args;
    void **memory; /* by index of the field, or NULL */
    ejk_owned_tensor result;
} other_call;

/* What runs on the CPU has to find its inputs there. */
static bool fetch_inputs(const bench_case *bench, other_call *other) {
    const ejk_kernel *kernel = bench->call.kernel;
    other->memory = calloc((size_t)kernel->args->count + 1, sizeof *other->memory);
    if (!other->memory) return complain("no memory for the arguments of %s", kernel->op_id);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        ejk_tensor *tensor = call_tensor(kernel, other->args, i);
        const ejk_tensor there = tensor ? *tensor : (ejk_tensor){0};
        if (tensor && ejk_tensor_present(tensor) &&
            !fetch(bench, &there, tensor, &other->memory[i]))
            return false;
    }
    return true;
}

/* Copies the arguments with another platform, no configuration, and a first result of their own. */
static bool open_other(const bench_case *bench, const void *args, const char *platform,
                       other_call *out) {
    const ejk_kernel *kernel = bench->call.kernel;
    out->args = malloc(kernel->args->size);
    if (!out->args) return complain("no memory for the arguments of %s", kernel->op_id);
    memcpy(out->args, args, kernel->args->size);
    size_t offset;
    const ejk_field *config =
        kernel->config_field ? ejk_record_find(kernel->args, kernel->config_field, &offset) : NULL;
    if (config) memset((char *)out->args + offset, 0, config->record->size);
    const bool on_gpu = bench->device >= 0 && strcmp(platform, "cuda") == 0;
    if (!call_set_platform(kernel, out->args, platform)) return false;
    if (bench->device >= 0 && !on_gpu && !fetch_inputs(bench, out)) return false;
    ejk_tensor *tensor = call_tensor(kernel, out->args, call_first_output(kernel));
    const ejk_status status =
        on_gpu ? ejk_device_tensor_create(bench->device, tensor->dtype, tensor->rank, tensor->shape,
                                          &out->result)
               : ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, &out->result);
    if (status == EJK_OK) *tensor = out->result.tensor;
    return succeeded(status);
}

static void close_other(const ejk_kernel *kernel, other_call *other) {
    for (int32_t i = 0; other->memory && i < kernel->args->count; i++) free(other->memory[i]);
    free(other->memory);
    free(other->args);
    ejk_owned_tensor_close(&other->result);
}

static bool run_other(const bench_case *bench, ejk_context *context, const void *args,
                      double *seconds) {
    ejk_plan *plan;
    if (!succeeded(ejk_plan_create(context, bench->call.kernel, args, &plan))) return false;
    double start = ejk_now();
    const bool run = succeeded(ejk_plan_execute(plan, args, NULL, 0)) &&
                     (bench->device < 0 || succeeded(ejk_device_synchronise(bench->device, NULL)));
    *seconds = ejk_now() - start;
    ejk_plan_destroy(plan);
    return run;
}

static bool compare_results(const bench_case *bench, const ejk_tensor *other, difference *out) {
    const ejk_tensor *own =
        call_tensor(bench->call.kernel, bench->call.args, call_first_output(bench->call.kernel));
    ejk_tensor actual, expected = *other;
    void *memory, *second = NULL;
    const bool compared =
        fetch(bench, own, &actual, &memory) &&
        (other->device_type == EJK_DEVICE_CPU || fetch(bench, other, &expected, &second)) &&
        compare(&actual, &expected, out);
    free(memory);
    free(second);
    return compared;
}

bool bench_compare(bench_case *bench, ejk_context *context, const char *platform,
                   bench_result *out) {
    const void *args = bench->args[bench->next];
    other_call other = {.args = NULL};
    const bool compared = open_other(bench, args, platform, &other) && bench_case_restore(bench) &&
                          bench_case_run(bench) && bench_case_restore(bench) &&
                          run_other(bench, context, other.args, &out->against_time) &&
                          compare_results(bench, &other.result.tensor, &out->difference);
    out->against = platform;
    close_other(bench->call.kernel, &other);
    return compared;
}
