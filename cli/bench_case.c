/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a shape, their memory and what is in them: numbers uniform in [-1, 1), masks true with
 * probability 0.9, integers rising in four steps along the last axis, as the segments of a packed batch. What a
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

/* ---- Memory ---------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t bytes, int64_t step) {
    return (bytes + step - 1) / step * step;
}

/* More than any machine has counts as that, so that sums of all tensors fit. */
static int64_t bytes_of(const ejk_tensor *tensor) {
    int64_t bytes = ejk_tensor_count(tensor) * (int64_t)ejk_dtype_size(tensor->dtype);
    return round_up(bytes < INT64_C(1) << 56 ? bytes : INT64_C(1) << 56, LINE);
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
        complain("no memory for %lld bytes", (long long)bytes);
    return memory;
}

/* Bytes of all inputs, what is updated among them, or of all other results. */
static int64_t total(const op_call *call, bool outputs) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < call->kernel->args->count; i++) {
        const ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (tensor && ejk_tensor_present(tensor) &&
            ejk_field_is_input(&call->kernel->args->fields[i]) != outputs)
            bytes += bytes_of(tensor);
    }
    return bytes;
}

/* Gives inputs, or results, their places one after the other. */
static char *place(const ejk_kernel *kernel, void *args, bool outputs, char *at) {
    for (int32_t i = 0; i < kernel->args->count; i++) {
        ejk_tensor *tensor = call_tensor(kernel, args, i);
        if (!tensor || !ejk_tensor_present(tensor) ||
            ejk_field_is_input(&kernel->args->fields[i]) == outputs)
            continue;
        tensor->data = at;
        at += bytes_of(tensor);
    }
    return at;
}

/* ---- Contents -------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static double uniform(uint64_t *state) {
    return (double)(next_random(state) >> 11) * 0x1p-52 - 1;
}

static void fill(const ejk_tensor *tensor, uint64_t *state) {
    int64_t count = ejk_tensor_count(tensor);
    int64_t last = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t step = 4 * (i % last) / last;
        switch (tensor->dtype) {
        case EJK_DTYPE_F64: ((double *)tensor->data)[i] = uniform(state); break;
        case EJK_DTYPE_F32: ((float *)tensor->data)[i] = (float)uniform(state); break;
        case EJK_DTYPE_BF16:
            ((uint16_t *)tensor->data)[i] = ejk_f32_to_bf16((float)uniform(state));
            break;
        case EJK_DTYPE_F16:
            ((uint16_t *)tensor->data)[i] = ejk_f32_to_f16((float)uniform(state));
            break;
        case EJK_DTYPE_I64: ((int64_t *)tensor->data)[i] = step; break;
        case EJK_DTYPE_I32: ((int32_t *)tensor->data)[i] = (int32_t)step; break;
        case EJK_DTYPE_I16: ((int16_t *)tensor->data)[i] = (int16_t)step; break;
        case EJK_DTYPE_I8:
        case EJK_DTYPE_U8: ((uint8_t *)tensor->data)[i] = (uint8_t)step; break;
        case EJK_DTYPE_BOOL: ((uint8_t *)tensor->data)[i] = uniform(state) < 0.8; break;
        default: break;
        }
    }
}

static void fill_inputs(const ejk_kernel *kernel, void *args, uint64_t *state) {
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_tensor *tensor = call_tensor(kernel, args, i);
        if (tensor && ejk_tensor_present(tensor) && ejk_field_is_input(&kernel->args->fields[i]))
            fill(tensor, state);
    }
}

/* Runs the operation whose results are inputs here, on those of its arguments that are here too. */
static bool fill_forward(const ejk_kernel *kernel, ejk_context *context, const void *args) {
    const ejk_kernel *forward = kernel->forward;
    if (!forward) return true;
    char *others = calloc(1, forward->args->size);
    if (!others) return complain("no memory for the arguments of %s", forward->op_id);
    for (int32_t i = 0; i < forward->args->count; i++) {
        const ejk_field *field = &forward->args->fields[i];
        size_t offset;
        const ejk_field *same = ejk_record_find(kernel->args, field->name, &offset);
        if (same && same->kind == field->kind && field->kind != EJK_FIELD_RECORD)
            memcpy(others + field->offset, (const char *)args + offset, ejk_field_size(field));
    }
    const bool done = succeeded(ejk_call(context, forward, others));
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

/* Fills a copy of the inputs in memory of the CPU, which is then sent to where they lie. */
static bool fill_there(const bench_case *bench, const call_layout *layout, void *args, char *there,
                       int64_t bytes, uint64_t *state) {
    const ejk_kernel *kernel = bench->call.kernel;
    void *here = bench_allocate(bytes);
    if (!here) return false;
    place(kernel, args, false, here);
    fill_inputs(kernel, args, state);
    if (layout) layout_fill(layout, kernel, args);
    const bool sent = gpu_send_bytes(bench->device, there, here, bytes);
    free(here);
    place(kernel, args, false, there);
    return sent;
}

static bool fill_copy(const bench_case *bench, ejk_context *context, const call_layout *layout,
                      void *args, char *at, int64_t bytes, uint64_t *state) {
    const ejk_kernel *kernel = bench->call.kernel;
    if (bench->device >= 0)
        return fill_there(bench, layout, args, at, bytes, state) &&
               fill_forward(kernel, context, args);
    place(kernel, args, false, at);
    fill_inputs(kernel, args, state);
    if (layout) layout_fill(layout, kernel, args);
    return fill_forward(kernel, context, args);
}

static bool allocate(bench_case *bench, ejk_context *context, const bench_request *request) {
    const ejk_kernel *kernel = bench->call.kernel;
    int64_t inputs = total(&bench->call, false), outputs = total(&bench->call, true);
    bench->cold = inputs > 0 && (request->cold || ejk_plan_is_memory_bound(bench->plan));
    int64_t copies = copies_of(bench, context, inputs);
    if (!allocate_memory(bench, copies * inputs + outputs)) return false;
    bench->args = calloc((size_t)copies, sizeof *bench->args);
    bench->states = calloc((size_t)copies, sizeof *bench->states);
    if (!bench->args || !bench->states)
        return complain("no memory for the arguments of %s", kernel->op_id);
    bench->input_bytes = copies * inputs;
    char *at = place(kernel, bench->call.args, true, bench->memory);
    uint64_t state = 0x9e3779b97f4a7c15;
    for (int64_t i = 0; i < copies; i++, at += inputs) {
        void *args = bench->args[i] = malloc(kernel->args->size);
        if (!args) return complain("no memory for the arguments of %s", kernel->op_id);
        bench->copies = i + 1;
        memcpy(args, bench->call.args, kernel->args->size);
        if (!fill_copy(bench, context, request->shape.layout, args, at, inputs, &state) ||
            !succeeded(ejk_states_save(kernel->args, args, &bench->states[i])))
            return false;
    }
    return true;
}

static bool plan(const bench_request *request, ejk_context *context, bench_case *bench) {
    const ejk_kernel *kernel = request->arguments->kernel;
    if (!call_open(kernel, &bench->call)) return false;
    memcpy(bench->call.args, request->arguments->args, kernel->args->size);
    if (!shape_declare(&request->shape, &bench->call)) return false;
    gpu_place_tensors(request->device, kernel, bench->call.args);
    if (!call_plan(&bench->call, context, &bench->plan)) return false;
    bench->cost = ejk_plan_cost(bench->plan);
    return true;
}

bench_request bench_plain(const bench_request *request) {
    bench_request plain = *request;
    ejk_axes *axes = &plain.shape.axes;
    const call_layout *layout = request->shape.layout;
    plain.arguments = request->plain;
    plain.shape.with = NULL;
    plain.shape.layout = NULL;
    if (layout && layout->alive > 0) axes->count -= 3; /* those of the grid, which come last */
    if (!layout || !layout->lengths) return plain;
    for (int32_t i = 0; i < axes->count; i++) {
        const char *name = axes->axis[i].name;
        if (strcmp(name, "N") == 0)
            strcpy(axes->axis[i].name, "B");
        else if (strcmp(name, "B") == 0)
            axes->axis[i].length = layout->count;
        else if (strcmp(name, "T") == 0 || strcmp(name, "S") == 0)
            axes->axis[i].length = layout_even_length(layout);
    }
    return plain;
}

/* All scores of a head; 0 of an operation that has none. */
static double all_scores(const ejk_axes *axes) {
    static const char *const symbols[] = {"B", "T", "S"};
    double scores = 1;
    for (int i = 0; i < 3; i++) {
        const int64_t length = ejk_axes_get(axes, symbols[i]);
        scores *= length > 0 ? (double)length : 0;
    }
    return scores;
}

/*
 * What a plan cannot tell, since it lies in the data: visible scores are counted here, and each costs what
 * it costs the plain call, which sees all of its own.
 */
static bool count_scores(const bench_request *request, ejk_context *context, bench_case *bench) {
    if (!request->plain) return true;
    const bench_request plain = bench_plain(request);
    const call_layout *layout = request->shape.layout;
    bench_case other = {.call = {.kernel = plain.arguments->kernel}, .device = -1};
    const bool planned = plan(&plain, context, &other);
    const double all = all_scores(&plain.shape.axes);
    const double flops = all > 0 ? other.cost.flops / all : 0; /* of a score, in all heads */
    bench_case_close(&other);
    if (!planned) return false;
    if (layout && layout_given(layout)) {
        bench->scores = layout_scores(layout, &bench->call, &request->shape.axes);
        bench->cost.flops = flops * bench->scores;
    } else if (flops > 0) {
        bench->scores = bench->cost.flops / flops;
    }
    return true;
}

static bool build(const bench_request *request, ejk_context *context, bench_case *bench) {
    return plan(request, context, bench) && count_scores(request, context, bench) &&
           allocate(bench, context, request);
}

bool bench_case_open(const bench_request *request, ejk_context *context, bench_case *out) {
    *out = (bench_case){.call = {.kernel = request->arguments->kernel}, .device = request->device};
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
        complain("%s", ejk_last_error());
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
