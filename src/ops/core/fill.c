/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/fill.h"

#include "base/base.h"
#include "ops/core/mirror.h"
#include "ops/core/problem_text.h"
#include "tensor/access.h"
#include "record/domain.h"

#include <stdlib.h>
#include <string.h>

static float uniform(uint64_t bits) {
    return (float)((double)(bits >> 11) * 0x1p-52 - 1);
}

/* Elements at any address. */
typedef double any_f64 __attribute__((aligned(1), may_alias));
typedef float any_f32 __attribute__((aligned(1), may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));

/* What a tensor is filled with: numbers that belong to a key, or a mask of them. */
typedef struct filling {
    uint64_t key;
    bool mask;
} filling;

#define EACH(type, value)                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                          \
        const uint64_t bits = ejki_random_at(f->key, (uint64_t)(first + i));                       \
        ((type *)at)[i * stride] = (value);                                                        \
    }                                                                                              \
    break

/* One run along the last axis, whose elements have the numbers from `first` on; integers become 0. */
static void fill_run(const ejk_tensor *tensor, void *at, int64_t count, int64_t stride,
                     int64_t first, const filling *f) {
    const int64_t width = (int64_t)ejk_dtype_size(tensor->dtype);
    if (f->mask) {
        for (int64_t i = 0; i < count; i++)
            ((uint8_t *)at)[i * stride] = ejki_random_at(f->key, (uint64_t)(first + i)) % 10 != 0;
        return;
    }
    switch (tensor->dtype) {
    case EJK_DTYPE_F64: EACH(any_f64, (double)(bits >> 11) * 0x1p-52 - 1);
    case EJK_DTYPE_F32: EACH(any_f32, uniform(bits));
    case EJK_DTYPE_BF16: EACH(any_u16, ejk_f32_to_bf16(uniform(bits)));
    case EJK_DTYPE_F16: EACH(any_u16, ejk_f32_to_f16(uniform(bits)));
    case EJK_DTYPE_F8E4M3: EACH(uint8_t, ejk_f32_to_e4m3(uniform(bits)));
    case EJK_DTYPE_F8E5M2: EACH(uint8_t, ejk_f32_to_e5m2(uniform(bits)));
    case EJK_DTYPE_F8E8M0: EACH(uint8_t, (uint8_t)(120 + bits % 8)); /* scales below 2 */
    default:
        for (int64_t i = 0; i < count; i++)
            memset((char *)at + i * stride * width, 0, (size_t)width);
        break;
    }
}

int64_t ejki_filled(const ejk_tensor *tensor, int32_t axis) {
    return tensor->strides[axis] == 0 ? ejki_min(tensor->shape[axis], 1) : tensor->shape[axis];
}

/* Runs along the last axis; `place` counts through the others, `number` is that of the run's first element. */
static void fill(const ejk_tensor *tensor, const filling *f) {
    const int32_t last = tensor->rank - 1;
    const int64_t run = last < 0 ? 1 : ejki_filled(tensor, last),
                  width = (int64_t)ejk_dtype_size(tensor->dtype);
    int64_t place[EJK_MAX_RANK] = {0}, step[EJK_MAX_RANK] = {0};
    if (ejk_tensor_count(tensor) == 0) return;
    for (int32_t i = last; i >= 0; i--)
        step[i] = i == last ? 1 : step[i + 1] * tensor->shape[i + 1];
    for (bool more = true; more;) {
        int64_t offset = 0, number = 0;
        for (int32_t i = 0; i < last; i++) {
            offset += place[i] * tensor->strides[i];
            number += place[i] * step[i];
        }
        fill_run(tensor, (char *)tensor->data + offset * width, run,
                 last < 0 ? 0 : tensor->strides[last], number, f);
        more = false;
        for (int32_t i = last - 1; i >= 0 && !more; i--) {
            more = ++place[i] < ejki_filled(tensor, i);
            if (!more) place[i] = 0;
        }
    }
}

void ejki_element_set(const ejk_tensor *tensor, int64_t offset, int64_t value) {
    ejki_store_i64(tensor->dtype, tensor->data, offset, value);
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

const char *ejki_wish(const ejk_inputs *how, const char *name) {
    for (int32_t i = 0; i < how->wish_count; i++)
        if (strcmp(how->wishes[i].name, name) == 0) return how->wishes[i].value;
    return NULL;
}

static ejk_status check_wishes(const ejk_kernel *kernel, const ejk_inputs *how) {
    for (int32_t i = 0; i < how->wish_count; i++) {
        const char *name = how->wishes[i].name;
        int32_t known = 0;
        if (!name || !how->wishes[i].value)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "wish %d has no name or no value",
                             (int)i);
        while (known < kernel->input_option_count &&
               strcmp(kernel->input_options[known].name, name) != 0)
            known++;
        if (known == kernel->input_option_count)
            return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                             "%.64s has no option '%.64s' of its inputs, expected %.64s",
                             kernel->op_id, name,
                             known > 0 ? kernel->input_options[0].name : "none");
    }
    return EJK_OK;
}

/* Masks are bool, or bytes where the unit says bool. */
static bool is_mask(const ejki_slot *slot, ejk_dtype dtype) {
    ejk_dtype asked;
    if (dtype != EJK_DTYPE_BOOL && dtype != EJK_DTYPE_U8) return false;
    return dtype == EJK_DTYPE_BOOL ||
           (ejki_slot_dtype(slot, NULL, EJK_DTYPE_F32, &asked) == EJK_OK &&
            asked == EJK_DTYPE_BOOL);
}

/* A call whose inputs are being filled. */
typedef struct job {
    const ejk_kernel *kernel;
    const ejk_inputs *how;
    ejki_slots slots;
    void *args;           /* what is to be filled has data, on the CPU; nothing else has */
    void *bare;           /* for binding symbols */
    ejki_mirror *mirrors; /* one a slot; without bytes where there is none */
} job;

static ejk_status open_job(job *j, const void *args) {
    const size_t size = j->kernel->args->size;
    EJKI_TRY(ejki_slots_create(j->kernel->args, args, &j->slots));
    j->args = malloc(size + 1);
    j->bare = malloc(size + 1);
    j->mirrors = calloc((size_t)j->slots.count + 1, sizeof *j->mirrors);
    if (!j->args || !j->bare || !j->mirrors)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(j->args, args, size);
    memcpy(j->bare, args, size);
    return EJK_OK;
}

static void close_job(job *j) {
    for (int32_t i = 0; j->mirrors && i < j->slots.count; i++) free(j->mirrors[i].bytes);
    free(j->mirrors);
    free(j->args);
    free(j->bare);
    free(j->slots.list);
}

/* Random numbers, and zeros for integers. */
static ejk_status fill_slot(job *j, int32_t index) {
    const ejki_slot *slot = &j->slots.list[index];
    ejk_tensor *tensor = ejki_slot_tensor(slot, j->args);
    if (!ejk_tensor_present(tensor) || !ejk_field_is_input(slot->field)) tensor->data = NULL;
    if (!tensor->data) return EJK_OK;
    if (tensor->device_type != EJK_DEVICE_CPU) {
        EJKI_TRY(ejki_mirror_open(tensor, false, &j->mirrors[index]));
        *tensor = j->mirrors[index].view;
    }
    fill(tensor, &(filling){.key = ejki_random_at(j->how->seed, (uint64_t)index),
                            .mask = is_mask(slot, tensor->dtype)});
    return EJK_OK;
}

/* The kernel's own contents, or what the units say. */
static ejk_status fill_by_meaning(job *j) {
    ejk_axes axes = {.count = 0};
    EJKI_TRY(ejki_slots_bind(j->kernel->args, &j->slots, j->bare, true, &axes));
    if (j->kernel->inputs) return j->kernel->inputs(j->args, &axes, j->how);
    for (int32_t i = 0; i < j->slots.count; i++) {
        const ejki_slot *slot = &j->slots.list[i];
        const ejk_tensor *tensor = ejki_slot_tensor(slot, j->args);
        bool filled;
        if (tensor->data)
            EJKI_TRY(ejki_domain_fill(slot->owner, slot->field, slot->member, tensor, &axes,
                                      j->how->seed, i, &filled));
    }
    return EJK_OK;
}

static ejk_status send_back(const job *j, const void *args) {
    for (int32_t i = 0; i < j->slots.count; i++) {
        const ejk_tensor *there = (const void *)((const char *)args + j->slots.list[i].offset);
        if (j->mirrors[i].bytes) EJKI_TRY(ejki_mirror_send(&j->mirrors[i], there));
    }
    return EJK_OK;
}

ejk_status ejki_fill_inputs(const ejk_kernel *kernel, const void *args, const ejk_inputs *how) {
    job j = {.kernel = kernel, .how = how};
    EJKI_TRY(check_wishes(kernel, how));
    ejk_status status = open_job(&j, args);
    for (int32_t i = 0; i < j.slots.count && status == EJK_OK; i++) status = fill_slot(&j, i);
    if (status == EJK_OK) status = fill_by_meaning(&j);
    if (status == EJK_OK) status = send_back(&j, args);
    close_job(&j);
    return status;
}

ejk_status ejk_fill_inputs(const ejk_kernel *kernel, const void *args, const ejk_inputs *how) {
    if (!kernel || !args || !how)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !kernel ? "kernel"
                         : !args ? "args"
                                 : "how");
    if (how->wish_count > 0 && !how->wishes)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "wishes is NULL, expected %d",
                         (int)how->wish_count);
    return ejki_fill_inputs(kernel, args, how);
}
