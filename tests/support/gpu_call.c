/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_call.h"

#include "support/call_results.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY = 512, FILL = 0xff }; /* of 0xff bytes any float is NaN */

/* None where a checker of memory looks. */
static size_t canary(void) {
    return getenv("EJK_TEST_EXACT") ? 0 : CANARY;
}

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    printf("FAIL on the GPU: %s\n", ejk_last_error());
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

static void copy(void *to, void *from, size_t bytes, bool to_gpu) {
    const int64_t shape[] = {(int64_t)bytes};
    if (bytes == 0) return;
    const ejk_tensor gpu = ejk_device_tensor(to_gpu ? to : from, 0, EJK_DTYPE_U8, 1, shape);
    const ejk_tensor cpu = ejk_tensor_contiguous(to_gpu ? from : to, EJK_DTYPE_U8, 1, shape);
    need(to_gpu ? ejk_device_copy(&cpu, &gpu, NULL) : ejk_device_copy(&gpu, &cpu, NULL));
}

/* Axes in any order but for the last, which stays contiguous, with room between rows. */
static ejk_tensor spread(const ejk_tensor *tensor, struct random *r) {
    ejk_tensor t = *tensor;
    int32_t order[EJK_MAX_RANK];
    const int32_t outer = t.rank - 1;
    if (t.rank == 0) return t;
    for (int32_t i = 0; i < outer; i++) {
        const int32_t at = (int32_t)random_int(r, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    t.strides[outer] = 1;
    int64_t step = t.shape[outer];
    if (outer > 0 && random_chance(r, 0.4)) step += RANDOM_OF(r, ((int64_t[]){1, 8, 8, 64}));
    for (int32_t i = outer - 1; i >= 0; i--) {
        t.strides[order[i]] = step;
        step *= t.shape[order[i]] > 0 ? t.shape[order[i]] : 1;
    }
    return t;
}

static void add(struct gpu_call *c, const ejk_field *field, ejk_tensor *to, struct random *random) {
    if (c->count == GPU_CALL_TENSORS) abort();
    struct gpu_call_tensor *t = &c->tensors[c->count++];
    t->field = field;
    t->here = *to;
    t->is_result = ejk_field_is_output(field);
    ejk_tensor view = spread(to, random);
    int64_t low, high;
    ejk_tensor_span(&view, &low, &high);
    /* Sometimes not where runs of elements are aligned. */
    const size_t shift = random_chance(random, 0.2) ? ejk_dtype_size(to->dtype) : 0;
    t->start = canary() + shift;
    t->bytes = t->start + (size_t)high + canary();
    t->image = malloc(t->bytes + 1);
    if (!t->image) abort();
    memset(t->image, FILL, t->bytes);
    view.data = t->image + t->start;
    if (ejk_field_is_input(field)) need(ejk_tensor_copy(&t->here, &view));
    void *there;
    need(ejk_device_allocate(0, t->bytes ? t->bytes : 1, &there));
    t->there = there;
    copy(there, t->image, t->bytes, true);
    *to = view;
    to->data = t->there + t->start;
    to->device_type = EJK_DEVICE_CUDA;
    to->device_index = 0;
}

void gpu_call_open(struct gpu_call *c, const ejk_record *record, const void *args,
                   struct random *random) {
    *c = (struct gpu_call){.record = record, .args = malloc(record->size)};
    if (!c->args) abort();
    memcpy(c->args, args, record->size);
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind == EJK_FIELD_TENSOR && ejk_tensor_present(call_tensor(c->args, field)))
            add(c, field, call_tensor(c->args, field), random);
    }
}

ejk_status gpu_call_run(struct gpu_call *c, ejk_context *context, const ejk_kernel *kernel) {
    return ejk_call(context, kernel, c->args);
}

/* Compares all but elements of results, which are made equal first. */
static bool is_clean(struct gpu_call_tensor *t, const ejk_tensor *view, unsigned char *after) {
    if (t->is_result) {
        ejk_tensor from = *view, to = *view;
        from.data = after + t->start;
        to.data = t->image + t->start;
        from.device_type = to.device_type = EJK_DEVICE_CPU;
        need(ejk_tensor_copy(&from, &to));
    }
    return memcmp(t->image, after, t->bytes) == 0;
}

bool gpu_call_take(struct gpu_call *c, void *results, char *why, size_t size) {
    bool clean = true;
    need(ejk_device_synchronise(0, NULL));
    for (int i = 0; i < c->count; i++) {
        struct gpu_call_tensor *t = &c->tensors[i];
        const ejk_tensor *view = call_tensor(c->args, t->field);
        unsigned char *after = malloc(t->bytes + 1);
        if (!after) abort();
        copy(after, t->there, t->bytes, false);
        ejk_tensor from = *view;
        from.data = after + t->start;
        from.device_type = EJK_DEVICE_CPU;
        if (t->is_result) need(ejk_tensor_copy(&from, call_tensor(results, t->field)));
        if (!is_clean(t, view, after)) {
            snprintf(why, size, "%s: something beside its elements was written", t->field->name);
            clean = false;
        }
        free(after);
    }
    return clean;
}

size_t gpu_call_copy_results(const struct gpu_call *c, unsigned char *to) {
    size_t bytes = 0;
    for (int i = 0; i < c->count; i++) {
        const struct gpu_call_tensor *t = &c->tensors[i];
        if (!t->is_result) continue;
        if (to) copy(to + bytes, t->there, t->bytes, false);
        bytes += t->bytes;
    }
    return bytes;
}

void gpu_call_close(struct gpu_call *c) {
    for (int i = 0; i < c->count; i++) {
        free(c->tensors[i].image);
        need(ejk_device_free(0, c->tensors[i].there));
    }
    free(c->args);
}
