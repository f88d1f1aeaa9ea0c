// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "bindings/calls.h"
#include "bindings/torch/operators.h"

/* Values of an operator's stack: handles, or addresses of values that may be missing. */
typedef uint64_t value;
typedef void *handle;
typedef int32_t error;

/* The version of PyTorch whose conventions operators follow: 2.10. */
#define BUILD_VERSION ((uint64_t)2 << 56 | (uint64_t)10 << 48)

/* What calls need. */
#define CALL_FUNCTIONS(X)                                                                          \
    X(get_rank, "aoti_torch_get_dim", error, (handle, int64_t *))                                  \
    X(get_sizes, "aoti_torch_get_sizes", error, (handle, int64_t **))                              \
    X(get_strides, "aoti_torch_get_strides", error, (handle, int64_t **))                          \
    X(get_data, "aoti_torch_get_data_ptr", error, (handle, void **))                               \
    X(get_type, "aoti_torch_get_dtype", error, (handle, int32_t *))                                \
    X(get_device_type, "aoti_torch_get_device_type", error, (handle, int32_t *))                   \
    X(get_device_index, "aoti_torch_get_device_index", error, (handle, int32_t *))                 \
    X(copy, "aoti_torch_copy_", error, (handle, handle, int32_t))                                  \
    X(empty, "aoti_torch_empty_strided", error,                                                    \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, handle *))            \
    X(delete_tensor, "aoti_torch_delete_tensor_object", error, (handle))

/* What operators need besides, from PyTorch 2.10 on. */
#define OPERATOR_FUNCTIONS(X)                                                                      \
    X(parallel_for, "torch_parallel_for", error,                                                   \
      (int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *))                     \
    X(count_threads, "torch_get_num_threads", error, (uint32_t *))                                 \
    X(define_library, "aoti_torch_library_init_fragment", error,                                   \
      (const char *, const char *, uint32_t, handle *))                                            \
    X(implement_library, "aoti_torch_library_init_impl", error,                                    \
      (const char *, const char *, const char *, uint32_t, handle *))                              \
    X(define, "aoti_torch_library_def", error, (handle, const char *))                             \
    X(implement, "torch_library_impl", error,                                                      \
      (handle, const char *, void (*)(value *, uint64_t, uint64_t), uint64_t))                     \
    X(new_list, "torch_new_list_reserve_size", error, (size_t, handle *))                          \
    X(push_back, "torch_list_push_back", error, (handle, value))                                   \
    X(list_size, "torch_list_size", error, (handle, size_t *))                                     \
    X(list_item, "torch_list_get_item", error, (handle, size_t, value *))                          \
    X(delete_list, "torch_delete_list", error, (handle))                                           \
    X(delete_string, "torch_delete_string", error, (handle))                                       \
    X(string_length, "torch_string_length", error, (handle, size_t *))                             \
    X(string_text, "torch_string_c_str", error, (handle, const char **))                           \
    X(check, "aoti_torch_check", void, (bool, const char *, const char *, uint32_t, const char *)) \
    X(delete_value, "_ZdlPv", void, (void *)) /* C++'s operator delete: optional values are boxed */

/* PyTorch's threads where there is no torch_parallel_for: what that is made of. */
#define THREAD_FUNCTIONS(X)                                                                        \
    X(start_region, "GOMP_parallel", void, (void (*)(void *), void *, unsigned, unsigned))         \
    X(region_threads, "_ZN2at15get_num_threadsEv", int, (void))

static struct {
#define MEMBER(name, symbol, result, parameters) result(*name) parameters;
    CALL_FUNCTIONS(MEMBER)
    OPERATOR_FUNCTIONS(MEMBER)
    THREAD_FUNCTIONS(MEMBER)
#undef MEMBER
    error (*get_stream)(int32_t, void **); /* that of CUDA; NULL where PyTorch has no CUDA */
    bool has_calls, has_operators, has_regions;
    handle definitions, implementations[2];
} torch;

/* PyTorch's numbers of kinds of memory, and the keys under which kernels for them are found. */
enum { TORCH_CPU = 0, TORCH_CUDA = 1 };
static const char *const keys[] = {"CPU", "CUDA"};
enum { WORKSPACE_ALIGNMENT = 256 };

/* PyTorch's numbers of element types, which are part of its ABI. */
static const struct {
    int32_t number;
    ejk_dtype dtype;
} types[] = {
    {0, EJK_DTYPE_U8},    {1, EJK_DTYPE_I8},      {2, EJK_DTYPE_I16},     {3, EJK_DTYPE_I32},
    {4, EJK_DTYPE_I64},   {5, EJK_DTYPE_F16},     {6, EJK_DTYPE_F32},     {7, EJK_DTYPE_F64},
    {11, EJK_DTYPE_BOOL}, {15, EJK_DTYPE_BF16},   {23, EJK_DTYPE_F8E5M2}, {24, EJK_DTYPE_F8E4M3},
    {28, EJK_DTYPE_U32},  {44, EJK_DTYPE_F8E8M0},
};
enum { TYPES = sizeof types / sizeof *types };

/* ---- Views ------------------------------------------------------------------------------------------------ */

static ejk_status check_torch(error failed, const char *what) {
    return failed ? ejki_fail(EJK_STATUS_INTERNAL, "PyTorch failed: %s", what) : EJK_OK;
}

static ejk_status tensor_of(handle tensor, ejki_call_tensor *out) {
    int64_t rank, *sizes, *strides;
    int32_t type, device, index = 0;
    ejk_dtype dtype = EJK_DTYPE_UNSET;
    EJKI_TRY(
        check_torch(torch.get_rank(tensor, &rank) || torch.get_type(tensor, &type) ||
                        torch.get_device_type(tensor, &device) || torch.get_sizes(tensor, &sizes) ||
                        torch.get_strides(tensor, &strides) || torch.get_data(tensor, &out->data),
                    "a tensor cannot be read"));
    if (rank > EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "a tensor has rank %lld, expected at most %d",
                         (long long)rank, EJK_MAX_RANK);
    for (int i = 0; i < TYPES; i++)
        if (types[i].number == type) dtype = types[i].dtype;
    if (dtype == EJK_DTYPE_UNSET)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "a tensor has PyTorch's type %d, which no operation takes", type);
    if (device == TORCH_CUDA)
        EJKI_TRY(check_torch(torch.get_device_index(tensor, &index), "a tensor cannot be read"));
    out->kind =
        ejki_call_kind(dtype, rank, device == TORCH_CUDA ? EJK_DEVICE_CUDA : EJK_DEVICE_CPU, index);
    out->shape = sizes;
    out->strides = strides;
    return EJK_OK;
}

static ejk_status new_tensor(const ejk_tensor *view, handle *out) {
    int32_t type = 6;
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == view->dtype) type = types[i].number;
    const int32_t device = view->device_type == EJK_DEVICE_CUDA ? TORCH_CUDA : TORCH_CPU;
    return check_torch(
        torch.empty(view->rank, view->shape, view->strides, type, device, view->device_index, out),
        "a tensor cannot be made");
}

/* ---- The kernel ------------------------------------------------------------------------------------------- */

/* The tensors of a call: operands, then results, with what was made for them. */
typedef struct operator_call {
    handle handles[2 * EJKI_CALL_TENSORS];
    int32_t operands, results;
    int32_t device; /* where CUDA's tensors are */
    handle workspace;
} operator_call;

static ejk_status make_results(void *user, const ejk_tensor *results, int32_t count, void **data) {
    operator_call *call = user;
    for (int32_t i = 0; i < count; i++) {
        handle *made = &call->handles[call->operands + call->results];
        EJKI_TRY(new_tensor(&results[i], made));
        call->results++;
        EJKI_TRY(check_torch(torch.get_data(*made, &data[i]), "a tensor cannot be read"));
    }
    return EJK_OK;
}

/* Of PyTorch's allocator: what is given back may serve work that is enqueued later on the same stream. */
static ejk_status take_workspace(void *user, size_t bytes, void **out) {
    operator_call *call = user;
    const int64_t size = (int64_t)bytes + WORKSPACE_ALIGNMENT;
    ejk_tensor view = ejk_tensor_1d(NULL, EJK_DTYPE_U8, size);
    view.device_type = EJK_DEVICE_CUDA;
    view.device_index = call->device;
    char *data;
    EJKI_TRY(new_tensor(&view, &call->workspace));
    EJKI_TRY(
        check_torch(torch.get_data(call->workspace, (void **)&data), "a tensor cannot be read"));
    *out = data + (-(uintptr_t)data & (WORKSPACE_ALIGNMENT - 1));
    return EJK_OK;
}

/* The stream on which PyTorch enqueues work now. */
static ejk_status current_stream(int32_t device, void **out) {
    if (!torch.get_stream)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "a tensor is on a GPU, of which this PyTorch gives no stream");
    return check_torch(torch.get_stream(device, out), "there is no stream");
}

/* ---- Loops ------------------------------------------------------------------------------------------------ */

/* A loop of which whichever thread is free takes the next task. */
typedef struct shared_loop {
    ejk_task_fn task;
    void *argument;
    int64_t count;
    _Atomic int64_t next;
} shared_loop;

static void run_tasks(int64_t begin, int64_t end, void *loop_) {
    (void)begin;
    (void)end;
    shared_loop *loop = loop_;
    for (int64_t i; (i = atomic_fetch_add(&loop->next, 1)) < loop->count;)
        loop->task(loop->argument, i);
}

static void run_in_region(void *loop) {
    run_tasks(0, 0, loop);
}

/* On PyTorch's threads, which keep spinning for a while after each of its own loops and would be in the way. */
static void run_loop(void *unused, ejk_task_fn task, void *argument, int64_t count) {
    (void)unused;
    uint32_t threads = 1;
    shared_loop loop = {.task = task, .argument = argument, .count = count};
    if (torch.count_threads(&threads) == 0 && threads > 1 &&
        torch.parallel_for(0, ejki_min(threads, count), 1, run_tasks, &loop) == 0)
        return;
    run_tasks(0, 0, &loop); // what nobody has taken
}

/* The same without torch_parallel_for. */
static void run_loop_in_region(void *unused, ejk_task_fn task, void *argument, int64_t count) {
    (void)unused;
    const int64_t threads = ejki_min(torch.region_threads(), count);
    shared_loop loop = {.task = task, .argument = argument, .count = count};
    if (threads > 1)
        torch.start_region(run_in_region, &loop, (unsigned)threads, 0);
    else
        run_in_region(&loop);
}

/* What runs loops; NULL: the library's own threads, as in a child, where PyTorch's are not. */
static ejk_parallel_for_fn loops_of_torch(void) {
    if (ejki_is_child()) return NULL;
    return torch.has_operators ? run_loop : torch.has_regions ? run_loop_in_region : NULL;
}

/* ---- Calls ------------------------------------------------------------------------------------------------ */

/* Has a copy take the place of an operand whose elements along the last axis are apart. */
static ejk_status copy_operand(handle *tensor, ejki_call_tensor *view) {
    ejk_tensor copy = ejk_tensor_contiguous(NULL, ejki_call_dtype(view->kind),
                                            ejki_call_rank(view->kind), view->shape);
    copy.device_type = ejki_call_device_type(view->kind);
    copy.device_index = ejki_call_device_index(view->kind);
    handle made;
    EJKI_TRY(new_tensor(&copy, &made));
    ejk_status status = check_torch(torch.copy(made, *tensor, 1), "a tensor cannot be copied");
    torch.delete_tensor(*tensor);
    *tensor = made;
    return status == EJK_OK ? tensor_of(made, view) : status;
}

static ejk_status run(operator_call *call, const char *text, size_t length) {
    ejki_call_tensor operands[EJKI_CALL_TENSORS];
    for (int32_t i = 0; i < call->operands; i++) {
        ejki_call_tensor *view = &operands[i];
        bool updated;
        EJKI_TRY(tensor_of(call->handles[i], view));
        int32_t last = ejki_call_rank(view->kind) - 1;
        if (last < 0 || view->strides[last] == 1 || view->shape[last] <= 1) continue;
        EJKI_TRY(ejki_operand_is_updated(text, length, i, &updated));
        if (updated)
            return ejki_fail(
                EJK_STATUS_INVALID_LAYOUT,
                "a tensor to update has a stride of %lld along its last axis, expected 1",
                (long long)view->strides[last]);
        EJKI_TRY(copy_operand(&call->handles[i], view));
    }
    ejki_call wanted = {.text = text,
                        .length = length,
                        .tensors = operands,
                        .count = call->operands,
                        .make = make_results,
                        .take = take_workspace,
                        .user = call,
                        .parallel_for = loops_of_torch()};
    if (call->operands > 0 && ejki_call_device_type(operands[0].kind) == EJK_DEVICE_CUDA) {
        call->device = ejki_call_device_index(operands[0].kind);
        EJKI_TRY(current_stream(call->device, &wanted.stream));
    }
    return ejki_run_call(&wanted);
}

/* What a call has of PyTorch and did not give away goes. */
static void release(operator_call *call) {
    for (int32_t i = 0; i < call->operands + call->results; i++)
        torch.delete_tensor(call->handles[i]);
    if (call->workspace) torch.delete_tensor(call->workspace);
}

static ejk_status run_with_string(operator_call *call, handle text) {
    const char *characters;
    size_t length;
    EJKI_TRY(check_torch(torch.string_length(text, &length) || torch.string_text(text, &characters),
                         "a text cannot be read"));
    return run(call, characters, length);
}

/* A tensor becomes an operand; one too many goes, of which the call's text says nothing. */
static void take_operand(value tensor_, operator_call *call) {
    const handle tensor = (handle)(uintptr_t)tensor_;
    if (call->operands == EJKI_CALL_TENSORS)
        torch.delete_tensor(tensor);
    else
        call->handles[call->operands++] = tensor;
}

/* Takes the tensors that are there off the stack; `inputs` are all values but the text. */
static void take_operands(const value *stack, uint64_t inputs, operator_call *call) {
    for (uint64_t i = 0; i < inputs; i++) {
        value *box = (value *)(uintptr_t)stack[i];
        if (!box) continue;
        take_operand(*box, call);
        torch.delete_value(box);
    }
}

/* Takes the tensors of a list, and the list. */
static void take_list(value list_, operator_call *call) {
    const handle list = (handle)(uintptr_t)list_;
    size_t size = 0;
    value item;
    torch.list_size(list, &size);
    for (size_t i = 0; i < size; i++)
        if (torch.list_item(list, i, &item) == 0) take_operand(item, call);
    torch.delete_list(list);
}

/* Results become the caller's. */
static ejk_status hand_over(operator_call *call, bool as_list, value *out) {
    int32_t count = call->results;
    if (!as_list) {
        for (int32_t i = 0; i < count; i++)
            out[i] = (value)(uintptr_t)call->handles[call->operands + i];
        call->results = 0;
        return EJK_OK;
    }
    handle list;
    EJKI_TRY(check_torch(torch.new_list((size_t)call->results, &list), "a list cannot be made"));
    for (int32_t i = 0; i < count; i++)
        torch.push_back(list, (value)(uintptr_t)call->handles[call->operands + i]);
    call->results = 0;
    *out = (value)(uintptr_t)list;
    return EJK_OK;
}

static void run_operator(value *stack, uint64_t inputs, ejk_torch_form form) {
    operator_call call = {.operands = 0, .results = 0};
    handle text = (handle)(uintptr_t)stack[inputs - 1];
    if (form == EJK_TORCH_LISTS)
        take_list(stack[0], &call);
    else
        take_operands(stack, inputs - 1, &call);
    ejk_status status = run_with_string(&call, text);
    if (status == EJK_OK) status = hand_over(&call, form != EJK_TORCH_VALUES, stack);
    release(&call);
    torch.delete_string(text);
    if (status == EJK_OK) return;
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s: %s", ejk_status_name(status), ejk_last_error());
    torch.check(false, "libejkernel", "operators.c", 0, sentence); // throws, through this frame
}

static void kernel_of_values(value *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run_operator(stack, inputs, EJK_TORCH_VALUES);
}

static void kernel_of_results(value *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run_operator(stack, inputs, EJK_TORCH_RESULTS);
}

static void kernel_of_lists(value *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run_operator(stack, inputs, EJK_TORCH_LISTS);
}

static void (*const kernels[])(value *, uint64_t, uint64_t) = {
    [EJK_TORCH_VALUES] = kernel_of_values,
    [EJK_TORCH_RESULTS] = kernel_of_results,
    [EJK_TORCH_LISTS] = kernel_of_lists,
};

ejk_status ejk_torch_call(const char *text, void *const *operands, int32_t count, void **results,
                          int32_t *made) {
    operator_call call = {.operands = 0, .results = 0};
    if (!torch.has_calls)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "PyTorch is not in use: ejk_torch_start() first");
    for (int32_t i = 0; i < count; i++) {
        if (call.operands == EJKI_CALL_TENSORS)
            torch.delete_tensor(operands[i]);
        else
            call.handles[call.operands++] = operands[i];
    }
    const ejk_status status = run(&call, text, strlen(text));
    if (status == EJK_OK) {
        *made = call.results;
        memcpy(results, call.handles + call.operands, (size_t)call.results * sizeof *results);
        call.results = 0;
    }
    release(&call);
    return status;
}

/* ---- Registering ------------------------------------------------------------------------------------------ */

static ejk_status look_up(void *library, const char *symbol, void *out) {
    void *found = dlsym(library, symbol);
    if (!found)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "this PyTorch has no %s, expected 2.9 or later",
                         symbol);
    memcpy(out, &found, sizeof found);
    return EJK_OK;
}

#define LOOK_UP(name, symbol, result, parameters) EJKI_TRY(look_up(library, symbol, &torch.name));

static ejk_status look_up_calls(void *library) {
    CALL_FUNCTIONS(LOOK_UP)
    return EJK_OK;
}

static ejk_status look_up_operators(void *library) {
    OPERATOR_FUNCTIONS(LOOK_UP)
    return EJK_OK;
}

static ejk_status look_up_threads(void *library) {
    THREAD_FUNCTIONS(LOOK_UP)
    return EJK_OK;
}

#undef LOOK_UP

static ejk_status make_libraries(void) {
    for (int32_t i = 0; i < 2; i++)
        EJKI_TRY(check_torch(torch.implement_library("libejkernel", keys[i], "operators.c", 0,
                                                     &torch.implementations[i]),
                             "a library of operators cannot be made"));
    return check_torch(torch.define_library("libejkernel", "operators.c", 0, &torch.definitions),
                       "a library of operators cannot be made");
}

ejk_status ejk_torch_start(const char *path, const char *cuda_path, bool *defines) {
    if (!path || !defines) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "path or defines is NULL");
    if (!torch.has_calls) {
        void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (!library)
            return ejki_fail(EJK_STATUS_UNAVAILABLE, "%s is not loaded: import torch first", path);
        EJKI_TRY(look_up_calls(library));
        void *cuda = cuda_path ? dlopen(cuda_path, RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (cuda) EJKI_TRY(look_up(cuda, "aoti_torch_get_current_cuda_stream", &torch.get_stream));
        torch.has_operators = look_up_operators(library) == EJK_OK;
        torch.has_regions = look_up_threads(library) == EJK_OK;
        if (torch.has_operators) EJKI_TRY(make_libraries());
        torch.has_calls = true;
    }
    *defines = torch.has_operators;
    return EJK_OK;
}

ejk_status ejk_torch_define(const char *name, const char *schema, ejk_torch_form form) {
    if (!name || !schema) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "name or schema is NULL");
    if ((uint32_t)form > EJK_TORCH_LISTS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "form is %d, expected 0 to %d", (int)form,
                         EJK_TORCH_LISTS);
    if (!torch.definitions)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "no PyTorch is in use in which operators can be defined in C");
    EJKI_TRY(check_torch(torch.define(torch.definitions, schema), schema));
    for (int32_t i = 0; i < 2; i++)
        EJKI_TRY(check_torch(
            torch.implement(torch.implementations[i], name, kernels[form], BUILD_VERSION), name));
    return EJK_OK;
}
