/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is timed before it is known to be right. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that are NaN in every floating-point type. */
static bool poison(const bench_case *bench, const ejk_tensor *tensor) {
    char *low;
    const int64_t bytes = bench_span(tensor, &low);
    void *here = bench->device < 0 ? low : bench_allocate(bytes);
    if (!here) return false;
    memset(here, 0xff, (size_t)bytes);
    if (bench->device < 0) return true;
    const bool sent = gpu_send_bytes(bench->device, low, here, bytes);
    free(here);
    return sent;
}

bool bench_fetch(const bench_case *bench, const ejk_tensor *tensor, ejk_tensor *out,
                 void **memory) {
    char *low;
    const int64_t bytes = bench_span(tensor, &low);
    *out = *tensor;
    *memory = NULL;
    if (tensor->device_type == EJK_DEVICE_CPU) return true;
    *memory = bench_allocate(bytes);
    out->data = *memory ? (char *)*memory + ((char *)tensor->data - low) : NULL;
    out->device_type = EJK_DEVICE_CPU;
    out->device_index = 0;
    return *memory && gpu_fetch_bytes(bench->device, low, *memory, bytes);
}

static bool look_at(const bench_case *bench, const ejk_tensor *tensor, const char *name,
                    bool finite) {
    ejk_tensor here;
    void *memory;
    const bool right =
        bench_fetch(bench, tensor, &here, &memory) && check_values(&here, name, finite);
    free(memory);
    return right;
}

/* What lies beside the first result, as logarithms of sums, may be infinite. */
bool bench_verify(bench_case *bench) {
    const ejk_kernel *kernel = bench->call.kernel;
    bool right = true;
    for (int pass = 0; pass < 2 && right; pass++) {
        for (int32_t i = 0; i < call_count(kernel) && right; i++) {
            const ejk_tensor *tensor = call_tensor(kernel, bench->call.args, i);
            const ejk_field *field = call_field(kernel, i);
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

/* The same call there: its arguments, its inputs where it cannot use those of the case, results of its own. */
typedef struct other_call {
    void *args;
    void **memory;            /* by index of the tensor, or NULL */
    ejk_owned_tensor *result; /* by index of the tensor */
} other_call;

/* True for a result that is there. */
static bool is_result(const bench_case *bench, int32_t index) {
    const ejk_kernel *kernel = bench->call.kernel;
    const ejk_tensor *tensor = call_tensor(kernel, bench->call.args, index);
    return tensor && ejk_tensor_present(tensor) && ejk_field_is_output(call_field(kernel, index));
}

/* What runs on the CPU has to find its inputs there. */
static bool fetch_inputs(const bench_case *bench, other_call *other) {
    const ejk_kernel *kernel = bench->call.kernel;
    for (int32_t i = 0; i < call_count(kernel); i++) {
        ejk_tensor *tensor = call_tensor(kernel, other->args, i);
        if (!tensor || !ejk_tensor_present(tensor) || is_result(bench, i)) continue;
        const ejk_tensor there = *tensor;
        if (!bench_fetch(bench, &there, tensor, &other->memory[i])) return false;
    }
    return true;
}

static bool own_results(const bench_case *bench, bool on_gpu, other_call *other) {
    const ejk_kernel *kernel = bench->call.kernel;
    for (int32_t i = 0; i < call_count(kernel); i++) {
        ejk_tensor *tensor = call_tensor(kernel, other->args, i);
        if (!is_result(bench, i)) continue;
        const ejk_status status =
            on_gpu ? ejk_device_tensor_create(bench->device, tensor->dtype, tensor->rank,
                                              tensor->shape, &other->result[i])
                   : ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape,
                                             &other->result[i]);
        if (!succeeded(status) ||
            (call_is_updated(call_field(kernel, i)) &&
             !succeeded(ejk_device_copy(tensor, &other->result[i].tensor, NULL))))
            return false;
        *tensor = other->result[i].tensor;
    }
    return true;
}

/* Copies the arguments with another platform, no configuration, and results of their own. */
static bool open_other(const bench_case *bench, const void *args, const char *platform,
                       other_call *out) {
    const ejk_kernel *kernel = bench->call.kernel;
    const size_t count = (size_t)call_count(kernel) + 1;
    out->args = malloc(kernel->args->size);
    out->memory = calloc(count, sizeof *out->memory);
    out->result = calloc(count, sizeof *out->result);
    if (!out->args || !out->memory || !out->result)
        return report_error("no memory for the arguments of %s", kernel->op_id);
    memcpy(out->args, args, kernel->args->size);
    size_t offset;
    const ejk_field *config =
        kernel->config_field ? ejk_record_find(kernel->args, kernel->config_field, &offset) : NULL;
    if (config) memset((char *)out->args + offset, 0, config->record->size);
    const bool on_gpu = bench->device >= 0 && strcmp(platform, "cuda") == 0;
    return call_set_platform(kernel, out->args, platform) &&
           (bench->device < 0 || on_gpu || fetch_inputs(bench, out)) &&
           own_results(bench, on_gpu, out);
}

static void close_other(const ejk_kernel *kernel, other_call *other) {
    for (int32_t i = 0; other->memory && i < call_count(kernel); i++) free(other->memory[i]);
    for (int32_t i = 0; other->result && i < call_count(kernel); i++)
        ejk_owned_tensor_close(&other->result[i]);
    free(other->memory);
    free(other->result);
    free(other->args);
}

static bool run_other(const bench_case *bench, ejk_context *context, const void *args,
                      double *seconds) {
    ejk_plan *plan;
    if (!succeeded(ejk_plan_create(context, bench->call.kernel, args, &plan))) return false;
    double start = ejk_now();
    const bool run =
        succeeded(ejk_plan_execute(plan, args, NULL, 0)) &&
        (bench->device < 0 || succeeded(ejk_device_synchronise(bench->device, bench->stream)));
    *seconds = ejk_now() - start;
    ejk_plan_destroy(plan);
    return run;
}

static bool compare_one(const bench_case *bench, const ejk_tensor *own, const ejk_tensor *other,
                        difference *out) {
    ejk_tensor actual, expected;
    void *memory, *second = NULL;
    const bool compared = bench_fetch(bench, own, &actual, &memory) &&
                          bench_fetch(bench, other, &expected, &second) &&
                          compare(&actual, &expected, out);
    free(memory);
    free(second);
    return compared;
}

/* Every result; the row has the largest difference of all. */
static bool compare_results(const bench_case *bench, void *args, const other_call *other,
                            bench_result *out) {
    const ejk_kernel *kernel = bench->call.kernel;
    out->differences = json_object();
    for (int32_t i = 0; i < call_count(kernel); i++) {
        difference d;
        if (!is_result(bench, i)) continue;
        if (!compare_one(bench, call_tensor(kernel, args, i), &other->result[i].tensor, &d))
            return false;
        json_t *relative = json_real(d.relative); /* NULL for infinity, which JSON has not */
        json_object_set_new(out->differences, call_field(kernel, i)->name,
                            relative ? relative : json_null());
        if (d.relative > out->difference.relative) out->difference.relative = d.relative;
        if (d.maximum > out->difference.maximum) out->difference.maximum = d.maximum;
    }
    return true;
}

bool bench_compare(bench_case *bench, ejk_context *context, const char *platform,
                   bench_result *out) {
    void *args = bench->args[bench->next];
    other_call other = {.args = NULL};
    const bool compared = bench_case_restore(bench) && open_other(bench, args, platform, &other) &&
                          bench_case_run(bench) &&
                          run_other(bench, context, other.args, &out->against_time) &&
                          compare_results(bench, args, &other, out) && bench_case_restore(bench);
    out->against = platform;
    close_other(bench->call.kernel, &other);
    return compared;
}
