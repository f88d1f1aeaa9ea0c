/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's tensors, their memory and what is in them: what the library fills inputs with (ejk_fill_inputs). What a
 * forward pass would have written is computed by it: gradients are not defined for anything else.
 */
#define _GNU_SOURCE 1
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE (INT64_C(2) << 20)
#define LINE      64
#define SEED      1

enum { MOST_RESULTS = 8 };

/* ---- Memory ---------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t bytes, int64_t step) {
    return (bytes + step - 1) / step * step;
}

int64_t bench_span(const ejk_tensor *tensor, char **low) {
    int64_t first, end;
    ejk_tensor_span(tensor, &first, &end);
    if (low) *low = (char *)tensor->data + first;
    return end - first;
}

/* More than any machine has counts as that, so that sums of all tensors fit. */
static int64_t bytes_of(const ejk_tensor *tensor) {
    const int64_t bytes = bench_span(tensor, NULL), most = INT64_C(1) << 56;
    return round_up(bytes < most ? bytes : most, LINE);
}

static int64_t memory_of(int pages) {
    return (int64_t)sysconf(pages) * (int64_t)sysconf(_SC_PAGESIZE);
}

/* Systems promise more than they have, and end who takes it. */
void *bench_allocate(int64_t bytes) {
    void *memory = NULL;
    if (bytes < memory_of(_SC_PHYS_PAGES))
        memory = aligned_alloc((size_t)HUGE_PAGE, (size_t)round_up(bytes + 1, HUGE_PAGE));
    if (memory)
        (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE); /* a wish; nothing depends on it */
    else
        report_error("no memory for %lld bytes", (long long)bytes);
    return memory;
}

/* Bytes of all inputs, what is updated among them, or of all other results. */
static int64_t total(const op_call *call, bool outputs) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < call_count(call->kernel); i++) {
        const ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (tensor && ejk_tensor_present(tensor) &&
            ejk_field_is_input(call_field(call->kernel, i)) != outputs)
            bytes += bytes_of(tensor);
    }
    return bytes;
}

static bool is_updated(const ejk_field *field) {
    return field->role == EJK_INOUT || field->role == EJK_REQUIRED_INOUT;
}

bool bench_case_writes(const bench_case *bench) {
    const op_call *call = &bench->call;
    for (int32_t i = 0; i < call_count(call->kernel); i++) {
        const ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (tensor && ejk_tensor_present(tensor) && is_updated(call_field(call->kernel, i)))
            return true;
    }
    return (double)total(call, true) > bench->cost.bytes / 8;
}

/* Gives inputs, or results, their places one after the other. */
static char *place(const ejk_kernel *kernel, void *args, bool outputs, char *at) {
    for (int32_t i = 0; i < call_count(kernel); i++) {
        ejk_tensor *tensor = call_tensor(kernel, args, i);
        if (!tensor || !ejk_tensor_present(tensor) ||
            ejk_field_is_input(call_field(kernel, i)) == outputs)
            continue;
        char *low;
        tensor->data = at;
        (void)bench_span(tensor, &low);
        tensor->data = at - (low - at);
        at += bytes_of(tensor);
    }
    return at;
}

/* ---- Contents -------------------------------------------------------------------------------------- */

/* True if gradients read what their operation writes, of what this call is given. */
static bool reads_results(const ejk_kernel *kernel, const void *args) {
    const ejk_kernel *forward = kernel->forward;
    size_t offset;
    for (int32_t i = 0; forward && i < forward->args->count; i++) {
        const ejk_field *field = &forward->args->fields[i];
        if (field->kind == EJK_FIELD_TENSOR && !ejk_field_is_input(field) &&
            ejk_record_find(kernel->args, field->name, &offset) &&
            ejk_tensor_present((const ejk_tensor *)((const char *)args + offset)))
            return true;
    }
    return false;
}

/* Results that the operation cannot do without and its gradients do not read: one lies in `memory`, which is made. */
static bool add_result(const bench_case *bench, const ejk_kernel *forward, void *args,
                       const ejk_field *field, void **memory) {
    ejk_tensor view = {.data = NULL};
    ejk_axes axes = {.count = 0};
    if (!succeeded(ejk_record_bind_axes(forward->args, args, &axes)) ||
        !succeeded(ejk_field_shape(field, &axes, &view.rank, view.shape)) ||
        !succeeded(ejk_field_dtype(forward->args, field, args, EJK_DTYPE_F32, &view.dtype)))
        return false;
    if (forward->result) (void)forward->result(args, field->name, &view);
    view = ejk_tensor_contiguous(NULL, view.dtype, view.rank, view.shape);
    const int64_t bytes = bytes_of(&view) + LINE;
    if (bench->device < 0)
        *memory = bench_allocate(bytes);
    else if (!succeeded(ejk_device_allocate(bench->device, (size_t)bytes, memory)))
        *memory = NULL;
    view.data = *memory;
    view.device_type = bench->device < 0 ? EJK_DEVICE_CPU : EJK_DEVICE_CUDA;
    view.device_index = bench->device < 0 ? 0 : bench->device;
    memcpy((char *)args + field->offset, &view, sizeof view);
    return *memory != NULL;
}

static bool lacks_result(const ejk_field *field, const void *args) {
    return field->kind == EJK_FIELD_TENSOR && !ejk_field_is_input(field) &&
           ejk_field_is_required(field) &&
           !ejk_tensor_present((const ejk_tensor *)((const char *)args + field->offset));
}

/* Runs the operation whose results are inputs here, on those of its arguments that are here too. */
static bool fill_forward(const bench_case *bench, ejk_context *context, const void *args) {
    const ejk_kernel *kernel = bench->call.kernel, *forward = kernel->forward;
    void *memory[MOST_RESULTS] = {NULL};
    int32_t count = 0;
    if (!reads_results(kernel, args)) return true;
    char *others = calloc(1, forward->args->size);
    if (!others) return report_error("no memory for the arguments of %s", forward->op_id);
    for (int32_t i = 0; i < forward->args->count; i++) {
        const ejk_field *field = &forward->args->fields[i];
        size_t offset;
        const ejk_field *same = ejk_record_find(kernel->args, field->name, &offset);
        if (same && same->kind == field->kind && field->kind != EJK_FIELD_RECORD)
            memcpy(others + field->offset, (const char *)args + offset, ejk_field_size(field));
    }
    bool done = true;
    for (int32_t i = 0; done && i < forward->args->count && count < MOST_RESULTS; i++)
        if (lacks_result(&forward->args->fields[i], others))
            done = add_result(bench, forward, others, &forward->args->fields[i], &memory[count++]);
    done = done && succeeded(ejk_call(context, forward, others));
    while (count-- > 0)
        if (bench->device < 0)
            free(memory[count]);
        else
            done = succeeded(ejk_device_free(bench->device, memory[count])) && done;
    free(others);
    return done;
}

/* ---- The case -------------------------------------------------------------------------------------- */

/* Twice the last cache for each thread, where the call runs; not more than an eighth of a GPU's memory. */
static int64_t rotation_of(const bench_case *bench, ejk_context *context) {
    ejk_gpu_info gpu;
    if (bench->device < 0 || ejk_device_info(bench->device, &gpu) != EJK_OK)
        return ejk_rotation_bytes(ejk_threads_count(ejk_context_threads(context)));
    return 2 * gpu.l2_bytes < gpu.memory_bytes / 8 ? 2 * gpu.l2_bytes : gpu.memory_bytes / 8;
}

static int64_t copies_of(const bench_case *bench, ejk_context *context, int64_t bytes) {
    const int64_t most = rotation_of(bench, context);
    return bench->cold && most > bytes ? (most + bytes - 1) / bytes : 1;
}

static bool allocate_memory(bench_case *bench, int64_t bytes) {
    if (bench->device < 0) {
        bench->memory = bench_allocate(bytes);
        return bench->memory != NULL;
    }
    return succeeded(
        ejk_device_allocate(bench->device, (size_t)(bytes > 0 ? bytes : 1), &bench->memory));
}

/* The first copy is filled, the others are made from it. */
static bool fill_copy(const bench_case *bench, ejk_context *context, const ejk_inputs *inputs,
                      char *first, char *at, int64_t bytes, void *args) {
    const ejk_kernel *kernel = bench->call.kernel;
    place(kernel, args, false, at);
    if (at == first) {
        const ejk_inputs how = {SEED, inputs->wishes, inputs->wish_count};
        return succeeded(ejk_fill_inputs(kernel, args, &how)) && fill_forward(bench, context, args);
    }
    if (bench->device >= 0) return gpu_copy_bytes(bench->device, at, first, bytes);
    memcpy(at, first, (size_t)bytes);
    return true;
}

static bool allocate(bench_case *bench, ejk_context *context, const bench_request *request) {
    const ejk_kernel *kernel = bench->call.kernel;
    int64_t inputs = total(&bench->call, false), outputs = total(&bench->call, true);
    bench->cold = inputs > 0 && request->rotation != BENCH_KEEP &&
                  (request->rotation == BENCH_ROTATE || ejk_plan_is_memory_bound(bench->plan));
    int64_t copies = copies_of(bench, context, inputs);
    if (!allocate_memory(bench, copies * inputs + outputs)) return false;
    bench->args = calloc((size_t)copies, sizeof *bench->args);
    bench->states = calloc((size_t)copies, sizeof *bench->states);
    if (!bench->args || !bench->states)
        return report_error("no memory for the arguments of %s", kernel->op_id);
    bench->input_bytes = copies * inputs;
    char *first = place(kernel, bench->call.args, true, bench->memory), *at = first;
    for (int64_t i = 0; i < copies; i++, at += inputs) {
        void *args = bench->args[i] = malloc(kernel->args->size);
        if (!args) return report_error("no memory for the arguments of %s", kernel->op_id);
        bench->copies = i + 1;
        memcpy(args, bench->call.args, kernel->args->size);
        if (!fill_copy(bench, context, request->inputs, first, at, inputs, args) ||
            !succeeded(ejk_states_save(kernel->args, args, &bench->states[i])))
            return false;
    }
    return true;
}

static bool build(const bench_request *request, ejk_context *context, bench_case *bench) {
    const ejk_kernel *kernel = request->call->kernel;
    if (!call_open(kernel, &bench->call)) return false;
    memcpy(bench->call.args, request->call->args, kernel->args->size);
    gpu_place_tensors(request->device, kernel, bench->call.args);
    return call_plan(&bench->call, context, &bench->plan) && allocate(bench, context, request) &&
           succeeded(ejk_plan_cost_of(bench->plan, bench->args[0], &bench->cost));
}

bool bench_case_open(const bench_request *request, ejk_context *context, bench_case *out) {
    *out = (bench_case){.call = {.kernel = request->call->kernel},
                        .device = request->device,
                        .stream = request->stream};
    if (build(request, context, out)) return true;
    bench_case_close(out);
    return false;
}

void bench_case_close(bench_case *bench) {
    ejk_plan_destroy(bench->plan);
    for (int64_t i = 0; i < bench->copies; i++) {
        free(bench->args[i]);
        ejk_states_destroy(bench->states[i]);
    }
    free(bench->args);
    free(bench->states);
    if (bench->device < 0)
        free(bench->memory);
    else if (bench->memory && ejk_device_free(bench->device, bench->memory) != EJK_OK)
        report_error("%s", ejk_last_error());
    call_close(&bench->call);
    *bench = (bench_case){.call = bench->call, .device = -1};
}

const void *bench_case_next(bench_case *bench) {
    const void *args = bench->args[bench->next];
    bench->next = bench->next + 1 < bench->copies ? bench->next + 1 : 0;
    return args;
}

bool bench_case_restore(const bench_case *bench) {
    for (int64_t i = 0; i < bench->copies; i++)
        if (!succeeded(ejk_states_restore(bench->states[i]))) return false;
    return true;
}

bool bench_case_run(bench_case *bench) {
    return succeeded(ejk_plan_execute(bench->plan, bench_case_next(bench), NULL, 0));
}
