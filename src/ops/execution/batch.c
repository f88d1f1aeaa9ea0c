/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/batch.h>

#include "base/base.h"
#include "ops/execution/executor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A batch taken apart: the call of its first element, and how far the others lie from it. */
typedef struct batch {
    const ejk_record *record;
    char *first;    /* arguments of element 0 */
    int64_t *steps; /* per field: bytes from one element to the next */
    int64_t count;
} batch;

static ejk_tensor *tensor_at(const ejk_field *field, void *args) {
    return (ejk_tensor *)(void *)((char *)args + field->offset);
}

static const ejk_batch_axis *axis_of(const ejk_batch_axes *axes, const char *name) {
    for (int32_t i = 0; axes && i < axes->count; i++)
        if (strcmp(axes->fields[i].field, name) == 0) return &axes->fields[i];
    return NULL;
}

static ejk_status check_names(const ejk_record *record, const ejk_batch_axes *axes) {
    for (int32_t i = 0; axes && i < axes->count; i++) {
        const char *name = axes->fields[i].field;
        const ejk_field *field = name ? ejk_record_find(record, name, NULL) : NULL;
        if (!field || field->kind != EJK_FIELD_TENSOR)
            return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                             "in_axes: '%.64s' is no tensor of %s, expected one", name ? name : "",
                             record->name);
    }
    return EJK_OK;
}

/* Takes the batch axis out of one tensor. */
static ejk_status take_axis(batch *b, int32_t index, int32_t axis) {
    const ejk_field *field = &b->record->fields[index];
    ejk_tensor *tensor = tensor_at(field, b->first);
    const int32_t at = axis < 0 ? axis + tensor->rank : axis;
    if (at < 0 || at >= tensor->rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s: batch axis %d of a tensor of rank %d, expected one that it has",
                         field->name, (int)axis, (int)tensor->rank);
    if (b->count >= 0 && tensor->shape[at] != b->count)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s: batch axis of length %lld, expected %lld as of the tensors before it",
                         field->name, (long long)tensor->shape[at], (long long)b->count);
    b->count = tensor->shape[at];
    const int64_t size = (int64_t)ejk_dtype_size(tensor->dtype);
    if (size == 0 && tensor->strides[at] % 2 != 0)
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "%s: batch axis %d steps by less than a byte, expected whole ones",
                         field->name, (int)axis);
    const int64_t step = b->count > 1 ? tensor->strides[at] : 0; /* else it may be any number */
    b->steps[index] = size > 0 ? step * size : step / 2;
    for (int32_t i = at; i + 1 < tensor->rank; i++) {
        tensor->shape[i] = tensor->shape[i + 1];
        tensor->strides[i] = tensor->strides[i + 1];
    }
    tensor->rank--;
    return EJK_OK;
}

static ejk_status open_batch(batch *b, const ejk_kernel *kernel, const void *args,
                             const ejk_batch_axes *axes) {
    const ejk_record *record = kernel->args;
    *b = (batch){.record = record,
                 .first = malloc(record->size + 1),
                 .steps = calloc((size_t)record->count + 1, sizeof *b->steps),
                 .count = -1};
    if (!b->first || !b->steps) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a batch");
    memcpy(b->first, args, record->size);
    EJKI_TRY(check_names(record, axes));
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind == EJK_FIELD_TENSORS && ejk_record_is_set(field, args))
            return ejki_fail(
                EJK_STATUS_UNAVAILABLE,
                "%s is a list of tensors, expected a call without: only single tensors "
                "are mapped",
                field->name);
        if (field->kind != EJK_FIELD_TENSOR) continue;
        const ejk_tensor *tensor = tensor_at(field, b->first);
        if (tensor->dtype == EJK_DTYPE_UNSET) continue;
        EJKI_TRY(ejk_tensor_check(tensor, field->name));
        const ejk_batch_axis *axis = axis_of(axes, field->name);
        if (!axis || !axis->whole) {
            EJKI_TRY(take_axis(b, i, axis ? axis->axis : 0));
        } else if (ejk_field_is_output(field)) {
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is a result and not mapped, expected a batch axis", field->name);
        }
    }
    if (b->count < 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "no tensor is mapped, expected one at least");
    return EJK_OK;
}

static void close_batch(batch *b) {
    free(b->first);
    free(b->steps);
}

/* Elements [begin, end), by a plan of the first one. `room` is memory for one call's arguments. */
static ejk_status run_elements(const batch *b, const ejk_plan *plan, int64_t begin, int64_t end,
                               void *room) {
    for (int64_t n = begin; n < end; n++) {
        memcpy(room, b->first, b->record->size);
        for (int32_t i = 0; i < b->record->count; i++)
            if (b->steps[i]) {
                ejk_tensor *tensor = tensor_at(&b->record->fields[i], room);
                tensor->data = (char *)tensor->data + n * b->steps[i];
            }
        const ejk_status status = ejk_plan_execute(plan, room, NULL, 0);
        if (status == EJK_OK) continue;
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", ejk_last_error());
        return ejki_fail(status, "element %lld of the batch: %s", (long long)n, sentence);
    }
    return EJK_OK;
}

static ejk_status check_call(const ejk_executor *executor, const ejk_kernel *kernel,
                             const void *args) {
    if (executor && kernel && kernel->args && args) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                     !executor ? "executor"
                     : !kernel ? "kernel"
                               : "args");
}

static ejk_status run_in_turn(const batch *b, ejk_executor *executor, const ejk_kernel *kernel,
                              const ejk_call_options *options) {
    ejk_plan *plan;
    if (b->count == 0) return EJK_OK;
    EJKI_TRY(ejk_executor_compile(executor, kernel, b->first, options, &plan));
    void *room = malloc(b->record->size + 1);
    const ejk_status status =
        room ? run_elements(b, plan, 0, b->count, room)
             : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a call of the batch");
    free(room);
    ejk_plan_destroy(plan);
    return status;
}

ejk_status ejk_vmap_with_config(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                                const ejk_batch_axes *in_axes, const ejk_call_options *options) {
    EJKI_TRY(check_call(executor, kernel, args));
    batch b;
    ejk_status status = open_batch(&b, kernel, args, in_axes);
    if (status == EJK_OK) status = run_in_turn(&b, executor, kernel, options);
    close_batch(&b);
    return status;
}

/* ---- Side by side ----------------------------------------------------------------------------------- */

/* What the devices share. The first failure by number of device is the answer. */
typedef struct shares {
    const batch *batch;
    const ejk_plan *plan;
    int64_t devices;
    ejk_status *status;
    char (*sentence)[512];
} shares;

static void run_share(void *shares_, int64_t device) {
    const shares *s = shares_;
    const int64_t count = s->batch->count;
    void *room = malloc(s->batch->record->size + 1);
    s->status[device] =
        room ? run_elements(s->batch, s->plan, count * device / s->devices,
                            count * (device + 1) / s->devices, room)
             : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a call of the batch");
    free(room);
    if (s->status[device] != EJK_OK)
        snprintf(s->sentence[device], sizeof s->sentence[device], "%s", ejk_last_error());
}

static ejk_status run_shares(shares *s, ejk_threads *threads) {
    s->status = calloc((size_t)s->devices, sizeof *s->status);
    s->sentence = calloc((size_t)s->devices, sizeof *s->sentence);
    if (!s->status || !s->sentence)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the devices of a batch");
    ejk_parallel_for(threads, s->devices, run_share, s);
    for (int64_t i = 0; i < s->devices; i++)
        if (s->status[i] != EJK_OK) return ejki_fail(s->status[i], "%s", s->sentence[i]);
    return EJK_OK;
}

ejk_status ejk_pmap_with_config(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                                const ejk_batch_axes *in_axes, const ejk_call_options *options) {
    EJKI_TRY(check_call(executor, kernel, args));
    ejk_threads *threads = ejk_context_threads(executor->context);
    shares s = {.devices = ejk_threads_count(threads)};
    ejk_executor *single = NULL;
    ejk_plan *plan = NULL;
    batch b;
    ejk_status status = open_batch(&b, kernel, args, in_axes);
    if (status == EJK_OK && b.count > 0) {
        status = ejki_executor_single(executor, &single);
        if (status == EJK_OK)
            status = ejk_executor_compile(single, kernel, b.first, options, &plan);
        s.batch = &b;
        s.plan = plan;
        s.devices = ejki_min(s.devices, b.count);
        if (status == EJK_OK) status = run_shares(&s, threads);
    }
    free(s.status);
    free(s.sentence);
    ejk_plan_destroy(plan);
    ejk_executor_destroy(single);
    close_batch(&b);
    return status;
}
