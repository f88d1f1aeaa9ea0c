/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/operands.h"

#include <ejkernel/cuda.h>

#include "base/base.h"
#include "device/cuda.h"
#include "device/cuda_timer.h"
#include "ops/core/fill.h"
#include "ops/core/mirror.h"
#include "record/tensors.h"

#include <stdlib.h>
#include <string.h>

static bool is_there(const ejki_walk *walk, const void *args) {
    return ejk_tensor_present(ejki_walk_tensor(walk, args));
}

static bool is_input(const ejki_walk *walk, const void *args) {
    return ejk_field_is_input(walk->field) && is_there(walk, args);
}

bool ejki_is_output(const ejk_field *field, const void *args) {
    int32_t count;
    const ejk_tensor *tensor = ejk_field_tensors(field, args, &count);
    return ejk_field_is_output(field) && ejk_tensor_present(tensor);
}

/* ---- Memory of either kind --------------------------------------------------------------------------- */

static bool on_gpu(ejki_device place) {
    return place.device_type == EJK_DEVICE_CUDA;
}

static ejki_device place_of_tensor(const ejk_tensor *tensor) {
    return (ejki_device){tensor->device_type, tensor->device_index};
}

/* Bytes from the lowest element to behind the highest. */
static int64_t span_of(const ejk_tensor *tensor, int64_t *low) {
    int64_t high;
    ejk_tensor_span(tensor, low, &high);
    return high - *low;
}

/* All zeros. */
static ejk_status allocate_at(ejki_device place, int64_t bytes, const char *name, void **out) {
    if (on_gpu(place)) {
        EJKI_TRY(ejk_device_allocate(place.device_index, (size_t)ejki_max(bytes, 1), out));
        EJKI_TRY(ejki_cuda_set(place.device_index, *out, 0, (size_t)bytes, NULL));
        return ejki_cuda_wait_all(place.device_index);
    }
    *out = ejki_allocate(bytes); /* as bench has it: pages change which configuration is best */
    if (!*out)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the %lld bytes of %s",
                         (long long)bytes, name);
    memset(*out, 0, (size_t)bytes);
    return EJK_OK;
}

static void free_at(ejki_device place, void *memory) {
    if (on_gpu(place))
        ejki_cuda_release(place.device_index, memory);
    else
        free(memory);
}

/* Memory of its own for a tensor, the same strides in it. */
static ejk_status give_memory(const ejk_field *field, ejk_tensor *tensor, void **memory) {
    int64_t low;
    const int64_t bytes = span_of(tensor, &low);
    EJKI_TRY(allocate_at(place_of_tensor(tensor), bytes, field->name, memory));
    tensor->data = (char *)*memory - low;
    return EJK_OK;
}

ejk_status ejki_tensor_create_at(ejki_device place, ejk_dtype dtype, int32_t rank,
                                 const int64_t *shape, ejk_owned_tensor *out) {
    return on_gpu(place) ? ejk_device_tensor_create(place.device_index, dtype, rank, shape, out)
                         : ejk_owned_tensor_create(dtype, rank, shape, out);
}

ejk_status ejki_tensor_fetch(const ejk_tensor *tensor, ejk_owned_tensor *out) {
    ejki_mirror m = {.view = *tensor};
    if (on_gpu(place_of_tensor(tensor))) EJKI_TRY(ejki_mirror_open(tensor, true, &m));
    ejk_owned_tensor copy;
    ejk_status status = ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, &copy);
    if (status == EJK_OK) {
        status = ejk_tensor_copy(&m.view, &copy.tensor);
        if (status == EJK_OK)
            *out = copy;
        else
            ejk_owned_tensor_close(&copy);
    }
    free(m.bytes);
    return status;
}

ejk_status ejki_tensor_fetch_flat(const ejk_tensor *tensor, ejk_owned_tensor *out) {
    int64_t low;
    const int64_t count = ejk_tensor_count(tensor), bytes = span_of(tensor, &low);
    const int32_t device = tensor->device_index;
    if (!on_gpu(place_of_tensor(tensor)) || bytes != ejk_dtype_bytes(tensor->dtype, count))
        return ejki_tensor_fetch(tensor, out);
    ejk_owned_tensor copy;
    EJKI_TRY(ejk_owned_tensor_create(tensor->dtype, 1, &count, &copy));
    ejk_status status = ejki_cuda_wait_all(device);
    if (status == EJK_OK)
        status = ejki_cuda_copy_bytes(device, copy.tensor.data, (char *)tensor->data + low,
                                      (size_t)bytes, NULL);
    if (status == EJK_OK)
        *out = copy;
    else
        ejk_owned_tensor_close(&copy);
    return status;
}

ejk_status ejki_tensor_move(const ejk_tensor *source, const ejk_tensor *target) {
    if (!on_gpu(place_of_tensor(target))) return ejk_tensor_copy(source, target);
    if (ejk_tensor_is_contiguous(source) && ejk_tensor_is_contiguous(target)) {
        EJKI_TRY(ejki_cuda_wait_all(target->device_index));
        return ejk_device_copy(source, target, NULL);
    }
    ejk_owned_tensor here;
    ejki_mirror m;
    EJKI_TRY(ejki_tensor_fetch(source, &here));
    ejk_status status = ejki_mirror_open(target, true, &m);
    if (status == EJK_OK) {
        status = ejk_tensor_copy(&here.tensor, &m.view);
        if (status == EJK_OK) status = ejki_mirror_send(&m, target);
        free(m.bytes);
    }
    ejk_owned_tensor_close(&here);
    return status;
}

/* ---- Copies of calls --------------------------------------------------------------------------------- */

static ejk_status copy_args(const ejk_record *record, const void *args, ejki_operands_copy *out) {
    *out =
        (ejki_operands_copy){.record = record,
                             .place = ejki_device_of(record, args),
                             .args = malloc(record->size + 1),
                             .memory = calloc((size_t)ejki_walk_count(record) + 1, sizeof(void *))};
    if (!out->args || !out->memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(out->args, args, record->size);
    return EJK_OK;
}

/* Fills the inputs of the copy that `args` has no data for. */
static ejk_status fill_own(const ejk_kernel *kernel, const void *args,
                           const ejki_operands_copy *copy) {
    char *own = malloc(kernel->args->size + 1);
    if (!own) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(own, copy->args, kernel->args->size);
    for (ejki_walk w = ejki_walk_of(kernel->args); ejki_walk_next(&w);) {
        ejk_tensor *tensor = ejki_walk_tensor(&w, own);
        if (tensor && (!copy->memory[w.index] || ejki_walk_tensor(&w, args)->data))
            tensor->data = NULL;
    }
    const ejk_status status = ejki_fill_inputs(kernel, own, &(ejk_inputs){.seed = 1});
    free(own);
    return status;
}

ejk_status ejki_operands_copy_create(const ejk_kernel *kernel, const void *args,
                                     ejki_operands_copy *out) {
    const ejk_record *record = kernel->args;
    bool lacks = false;
    EJKI_TRY(copy_args(record, args, out));
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        if (!is_there(&w, args)) continue;
        ejk_tensor *tensor = ejki_walk_tensor(&w, out->args);
        const ejk_tensor *given = ejki_walk_tensor(&w, args);
        const bool input = is_input(&w, args), output = ejk_field_is_output(w.field);
        if (!output && given->data) continue;
        EJKI_TRY(give_memory(w.field, tensor, &out->memory[w.index]));
        if (input && given->data)
            EJKI_TRY(ejki_tensor_move(given, tensor));
        else
            lacks |= input;
    }
    if (lacks) EJKI_TRY(fill_own(kernel, args, out));
    return ejk_states_save(record, out->args, &out->states);
}

ejk_status ejki_operands_restore(const ejki_operands_copy *copy) {
    return copy->states ? ejk_states_restore(copy->states) : EJK_OK;
}

int64_t ejki_operands_input_bytes(const ejki_operands_copy *copy) {
    int64_t bytes = 0;
    for (ejki_walk w = ejki_walk_of(copy->record); ejki_walk_next(&w);) {
        int64_t low;
        if (is_input(&w, copy->args)) bytes += span_of(ejki_walk_tensor(&w, copy->args), &low);
    }
    return bytes;
}

ejk_status ejki_operands_copy_inputs(const ejki_operands_copy *first, ejki_operands_copy *out) {
    EJKI_TRY(copy_args(first->record, first->args, out));
    for (ejki_walk w = ejki_walk_of(first->record); ejki_walk_next(&w);) {
        if (!is_input(&w, first->args)) continue;
        ejk_tensor *tensor = ejki_walk_tensor(&w, out->args);
        EJKI_TRY(give_memory(w.field, tensor, &out->memory[w.index]));
        EJKI_TRY(ejki_tensor_move(ejki_walk_tensor(&w, first->args), tensor));
    }
    return ejk_states_save(first->record, out->args, &out->states);
}

void ejki_operands_copy_release(ejki_operands_copy *copy) {
    const int32_t count = copy->memory ? ejki_walk_count(copy->record) : 0;
    for (int32_t i = 0; i < count; i++)
        if (copy->memory[i]) free_at(copy->place, copy->memory[i]);
    ejk_states_destroy(copy->states);
    free(copy->memory);
    free(copy->args);
    *copy = (ejki_operands_copy){0};
}

/* All ones is NaN in every floating type. */
ejk_status ejki_operands_poison(const ejki_operands_copy *copy) {
    const int32_t device = copy->place.device_index;
    if (on_gpu(copy->place)) EJKI_TRY(ejki_cuda_wait_all(device));
    for (ejki_walk w = ejki_walk_of(copy->record); ejki_walk_next(&w);) {
        int64_t low;
        if (!is_there(&w, copy->args) || ejk_field_is_input(w.field)) continue;
        const int64_t bytes = span_of(ejki_walk_tensor(&w, copy->args), &low);
        if (on_gpu(copy->place))
            EJKI_TRY(ejki_cuda_set(device, copy->memory[w.index], 0xff, (size_t)bytes, NULL));
        else
            memset(copy->memory[w.index], 0xff, (size_t)bytes);
    }
    return on_gpu(copy->place) ? ejki_cuda_wait_all(device) : EJK_OK;
}
