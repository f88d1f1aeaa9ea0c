// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bindings/calls.h"
#include "bindings/jax/handler.h"

/* The oldest version that runtimes accept: each accepts those from 0.1 to its own. */
enum { API_MAJOR = 0, API_MINOR = 1 };

static ejk_dtype dtype_of(XLA_FFI_DataType type) {
    switch (type) {
    case XLA_FFI_DataType_F64: return EJK_DTYPE_F64;
    case XLA_FFI_DataType_F32: return EJK_DTYPE_F32;
    case XLA_FFI_DataType_BF16: return EJK_DTYPE_BF16;
    case XLA_FFI_DataType_F16: return EJK_DTYPE_F16;
    case XLA_FFI_DataType_S64: return EJK_DTYPE_I64;
    case XLA_FFI_DataType_S32: return EJK_DTYPE_I32;
    case XLA_FFI_DataType_S16: return EJK_DTYPE_I16;
    case XLA_FFI_DataType_S8: return EJK_DTYPE_I8;
    case XLA_FFI_DataType_U8: return EJK_DTYPE_U8;
    case XLA_FFI_DataType_U32: return EJK_DTYPE_U32;
    case XLA_FFI_DataType_PRED: return EJK_DTYPE_BOOL;
    case XLA_FFI_DataType_F8E4M3FN: return EJK_DTYPE_F8E4M3;
    case XLA_FFI_DataType_F8E5M2: return EJK_DTYPE_F8E5M2;
    case XLA_FFI_DataType_F8E8M0FNU: return EJK_DTYPE_F8E8M0;
    default: return EJK_DTYPE_UNSET;
    }
}

static ejk_status refuse(const XLA_FFI_Buffer *buffer) {
    if (buffer->rank > EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "a tensor has rank %lld, expected at most %d",
                         (long long)buffer->rank, EJK_MAX_RANK);
    return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                     "a tensor has XLA's type %d, which no operation takes", (int)buffer->dtype);
}

/* Tensors on the CPU. */
static inline ejk_status tensors_of(void *const *buffers, int64_t count, ejki_call_tensor *out) {
    for (int64_t i = 0; i < count; i++) {
        const XLA_FFI_Buffer *buffer = buffers[i];
        const ejk_dtype dtype = dtype_of(buffer->dtype);
        if (dtype == EJK_DTYPE_UNSET || buffer->rank > EJK_MAX_RANK) return refuse(buffer);
        out[i].data = buffer->data;
        out[i].shape = buffer->dims;
        out[i].strides = NULL;
        out[i].kind = ejki_call_kind(dtype, buffer->rank, EJK_DEVICE_CPU, 0);
    }
    return EJK_OK;
}

static const XLA_FFI_ByteSpan *text_of(const XLA_FFI_Attrs *attributes) {
    static const char name[] = "call";
    for (int64_t i = 0; i < attributes->size; i++)
        if (attributes->types[i] == XLA_FFI_AttrType_STRING &&
            attributes->names[i]->len == sizeof name - 1 &&
            !memcmp(attributes->names[i]->ptr, name, sizeof name - 1))
            return attributes->attrs[i];
    return NULL;
}

/* Whether the runtime's functions go as far as one of them. */
#define HAS(api, function) ((api)->struct_size >= offsetof(XLA_FFI_Api, function) + sizeof(void *))

/* Passes an error of XLA's on. */
static ejk_status check(const XLA_FFI_Api *api, XLA_FFI_Error *error, ejk_status status) {
    if (!error) return EJK_OK;
    XLA_FFI_Error_GetMessage_Args message = {
        .struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE, .error = error};
    api->XLA_FFI_Error_GetMessage(&message);
    const ejk_status failed = ejki_fail(status, "XLA: %s", message.message);
    XLA_FFI_Error_Destroy_Args gone = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
                                       .error = error};
    api->XLA_FFI_Error_Destroy(&gone);
    return failed;
}

/* ---- Loops ------------------------------------------------------------------------------------------------ */

/*
 * A loop on XLA's threads. The call takes part in it and waits for tasks, not for threads: those that come late find
 * nothing to do, and the last one frees it.
 */
typedef struct shared_loop {
    ejk_task_fn task;
    void *argument;
    int64_t count;
    _Atomic int64_t next, done;
    _Atomic int32_t users;
} shared_loop;

static void run_tasks(shared_loop *loop) {
    for (int64_t i; (i = atomic_fetch_add(&loop->next, 1)) < loop->count;) {
        loop->task(loop->argument, i);
        atomic_fetch_add(&loop->done, 1);
    }
}

static void leave(shared_loop *loop) {
    if (atomic_fetch_sub(&loop->users, 1) == 1) free(loop);
}

static void help(void *loop) {
    run_tasks(loop);
    leave(loop);
}

/* Asks XLA's threads to help; false where they cannot. */
static bool ask_for_help(const XLA_FFI_CallFrame *frame, shared_loop *loop) {
    XLA_FFI_ThreadPool_Schedule_Args wish = {.struct_size =
                                                 XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE,
                                             .ctx = frame->ctx,
                                             .task = help,
                                             .data = loop};
    atomic_fetch_add(&loop->users, 1);
    XLA_FFI_Error *error = frame->api->XLA_FFI_ThreadPool_Schedule(&wish);
    if (!error) return true;
    atomic_fetch_sub(&loop->users, 1);
    return check(frame->api, error, EJK_STATUS_UNAVAILABLE) == EJK_OK;
}

static int64_t count_threads(const XLA_FFI_CallFrame *frame) {
    XLA_FFI_ThreadPool_NumThreads_Args asked = {
        .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, .ctx = frame->ctx};
    int64_t threads = 1;
    asked.num_threads = &threads;
    const XLA_FFI_Api *api = frame->api;
    if (check(api, api->XLA_FFI_ThreadPool_NumThreads(&asked), EJK_STATUS_UNAVAILABLE) != EJK_OK)
        return 1;
    return threads;
}

static void run_loop(void *frame_, ejk_task_fn task, void *argument, int64_t count) {
    const XLA_FFI_CallFrame *frame = frame_;
    const int64_t threads = ejki_min(count_threads(frame), count);
    shared_loop *loop = threads > 1 ? malloc(sizeof *loop) : NULL;
    if (!loop) {
        for (int64_t i = 0; i < count; i++) task(argument, i);
        return;
    }
    *loop = (shared_loop){.task = task, .argument = argument, .count = count, .users = 1};
    for (int64_t i = 1; i < threads && ask_for_help(frame, loop); i++) continue;
    run_tasks(loop);
    while (atomic_load(&loop->done) < count) sched_yield();
    leave(loop);
}

/* ---- On a GPU --------------------------------------------------------------------------------------------- */

/* XLA aligns memory to more than it lets a handler ask for. */
enum { WORKSPACE_ALIGNMENT = 256, ASKED_ALIGNMENT = 16 };

/* What a call on a GPU has of XLA. */
typedef struct gpu_call {
    const XLA_FFI_CallFrame *frame;
    void *workspace;
    size_t bytes;
    int32_t device;
} gpu_call;

static void *aligned(void *memory) {
    return (char *)memory + (-(uintptr_t)memory & (WORKSPACE_ALIGNMENT - 1));
}

/* Of XLA's allocator, whose memory may serve work that is enqueued later once it is given back. */
static ejk_status take_workspace(void *user, size_t bytes, void **out) {
    gpu_call *call = user;
    XLA_FFI_DeviceMemory_Allocate_Args wish = {.struct_size =
                                                   XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE,
                                               .ctx = call->frame->ctx,
                                               .size = bytes + WORKSPACE_ALIGNMENT,
                                               .alignment = ASKED_ALIGNMENT};
    const XLA_FFI_Api *api = call->frame->api;
    EJKI_TRY(check(api, api->XLA_FFI_DeviceMemory_Allocate(&wish), EJK_STATUS_OUT_OF_MEMORY));
    call->workspace = wish.data;
    call->bytes = wish.size;
    *out = aligned(wish.data);
    return EJK_OK;
}

/* Of the program's own memory: the last result, which is there whenever a recorded call runs again. */
static ejk_status take_result(void *user, size_t bytes, void **out) {
    const XLA_FFI_Rets *results = &((gpu_call *)user)->frame->rets;
    const XLA_FFI_Buffer *last = results->rets[results->size - 1];
    const size_t given = last->rank == 1 ? (size_t)last->dims[0] : 0;
    if (given < bytes + WORKSPACE_ALIGNMENT)
        return ejki_fail(EJK_STATUS_WORKSPACE_TOO_SMALL,
                         "a call has %zu bytes of workspace, expected %zu: its program was "
                         "compiled with another version of the library, compile it again",
                         given, bytes + WORKSPACE_ALIGNMENT);
    *out = aligned(last->data);
    return EJK_OK;
}

static ejk_status give_workspace(const gpu_call *call) {
    if (!call->workspace) return EJK_OK;
    XLA_FFI_DeviceMemory_Free_Args gone = {.struct_size =
                                               XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE,
                                           .ctx = call->frame->ctx,
                                           .size = call->bytes,
                                           .data = call->workspace};
    const XLA_FFI_Api *api = call->frame->api;
    return check(api, api->XLA_FFI_DeviceMemory_Free(&gone), EJK_STATUS_INTERNAL);
}

/* The device and the stream of a call. */
static ejk_status find_gpu(const XLA_FFI_CallFrame *frame, int32_t *device, void **stream) {
    const XLA_FFI_Api *api = frame->api;
    if (!HAS(api, XLA_FFI_DeviceOrdinal_Get))
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "this XLA does not say on which GPU a call is");
    XLA_FFI_DeviceOrdinal_Get_Args where = {
        .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, .ctx = frame->ctx};
    XLA_FFI_Stream_Get_Args queue = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
                                     .ctx = frame->ctx};
    EJKI_TRY(check(api, api->XLA_FFI_DeviceOrdinal_Get(&where), EJK_STATUS_INTERNAL));
    EJKI_TRY(check(api, api->XLA_FFI_Stream_Get(&queue), EJK_STATUS_INTERNAL));
    *device = where.device_ordinal;
    *stream = queue.stream;
    return EJK_OK;
}

static ejk_status run_on_gpu(const XLA_FFI_CallFrame *frame, ejki_call *call,
                             ejki_call_tensor *tensors, ejki_take_workspace_fn take) {
    gpu_call own = {.frame = frame};
    EJKI_TRY(find_gpu(frame, &own.device, &call->stream));
    for (int32_t i = 0; i < call->count; i++) {
        tensors[i].kind =
            ejki_call_kind(ejki_call_dtype(tensors[i].kind), ejki_call_rank(tensors[i].kind),
                           EJK_DEVICE_CUDA, own.device);
    }
    call->take = take;
    call->user = &own;
    const ejk_status status = ejki_run_call(call);
    const ejk_status given = give_workspace(&own);
    return status == EJK_OK ? given : status;
}

/* ---- Calls ------------------------------------------------------------------------------------------------ */

/* Where a call runs; GPU_RECORDED: as a part of XLA's command buffers, too. */
typedef enum place { CPU, GPU, GPU_RECORDED } place;

static ejk_status run(const XLA_FFI_CallFrame *frame, place where) {
    ejki_call_tensor tensors[EJKI_CALL_TENSORS];
    const bool recorded = where == GPU_RECORDED;
    if (recorded && frame->rets.size < 1)
        return ejki_fail(EJK_STATUS_MALFORMED, "a call has no result for its workspace");
    int64_t operands = frame->args.size, count = operands + frame->rets.size - recorded;
    if (count > EJKI_CALL_TENSORS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%lld tensors given, at most %d",
                         (long long)count, EJKI_CALL_TENSORS);
    EJKI_TRY(tensors_of(frame->args.args, operands, tensors));
    EJKI_TRY(tensors_of(frame->rets.rets, count - operands, tensors + operands));
    const XLA_FFI_ByteSpan *text = text_of(&frame->attrs);
    if (!text) return ejki_fail(EJK_STATUS_MALFORMED, "a call has no attribute \"call\"");
    ejki_call call = {
        .text = text->ptr, .length = text->len, .tensors = tensors, .count = (int32_t)count};
    if (where != CPU)
        return run_on_gpu(frame, &call, tensors, recorded ? take_result : take_workspace);
    if (HAS(frame->api, XLA_FFI_ThreadPool_NumThreads)) {
        call.parallel_for = run_loop;
        call.parallel_user = (void *)frame;
    }
    return ejki_run_call(&call);
}

static XLA_FFI_Error_Code code_of(ejk_status status) {
    switch (status) {
    case EJK_STATUS_UNKNOWN_NAME: return XLA_FFI_Error_Code_NOT_FOUND;
    case EJK_STATUS_UNAVAILABLE: return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case EJK_STATUS_OUT_OF_MEMORY: return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case EJK_STATUS_OVERFLOW: return XLA_FFI_Error_Code_OUT_OF_RANGE;
    case EJK_STATUS_IO:
    case EJK_STATUS_INTERNAL: return XLA_FFI_Error_Code_INTERNAL;
    default: return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    }
}

static bool answer_metadata(const XLA_FFI_CallFrame *frame, place where) {
    for (XLA_FFI_Extension_Base *e = frame->extension_start; e; e = e->next) {
        if (e->type != XLA_FFI_Extension_Metadata) continue;
        XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)e)->metadata;
        metadata->api_version.major_version = API_MAJOR;
        metadata->api_version.minor_version = API_MINOR;
        metadata->traits =
            where == GPU_RECORDED ? XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE : 0;
        return true;
    }
    return false;
}

static XLA_FFI_Error *answer(XLA_FFI_CallFrame *frame, place where) {
    if (answer_metadata(frame, where) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return NULL;
    ejk_status status = run(frame, where);
    if (status == EJK_OK) return NULL;
    XLA_FFI_Error_Create_Args error = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                       .message = ejk_last_error(),
                                       .errc = code_of(status)};
    return frame->api->XLA_FFI_Error_Create(&error);
}

XLA_FFI_Error *ejk_jax_call(XLA_FFI_CallFrame *frame) {
    return answer(frame, CPU);
}

XLA_FFI_Error *ejk_jax_call_on_gpu(XLA_FFI_CallFrame *frame) {
    return answer(frame, GPU);
}

XLA_FFI_Error *ejk_jax_recorded_call_on_gpu(XLA_FFI_CallFrame *frame) {
    return answer(frame, GPU_RECORDED);
}

ejk_status ejk_jax_workspace(const char *text, const ejk_tensor *tensors, int32_t count,
                             int64_t *out, char **description) {
    size_t bytes;
    ejki_call_tensor given[EJKI_CALL_TENSORS];
    if (count > EJKI_CALL_TENSORS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%d tensors given, at most %d", count,
                         EJKI_CALL_TENSORS);
    for (int32_t i = 0; i < count; i++)
        given[i] = (ejki_call_tensor){.shape = tensors[i].shape,
                                      .strides = tensors[i].strides,
                                      .kind = ejki_call_kind(tensors[i].dtype, tensors[i].rank,
                                                             tensors[i].device_type,
                                                             tensors[i].device_index)};
    const ejki_call call = {.text = text, .length = strlen(text), .tensors = given, .count = count};
    EJKI_TRY(ejki_call_workspace(&call, &bytes, description));
    *out = bytes ? (int64_t)(bytes + WORKSPACE_ALIGNMENT) : 0;
    return EJK_OK;
}
