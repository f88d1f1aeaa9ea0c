/* SPDX-License-Identifier: Apache-2.0 */
/* Values without what keys must not see, and what devices are called. */
#include "ops/identity/write.h"
#include "record/tensors.h"

#include <string.h>

/* Refuses shapes whose row-major strides cannot be written down. */
static ejk_status check_tensor(const ejk_tensor *tensor, const char *name) {
    if (tensor->rank < 0 || tensor->rank > EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: rank %d given, expected 0 to %d", name,
                         (int)tensor->rank, EJK_MAX_RANK);
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: axis %d has the negative length %lld",
                             name, (int)i, (long long)tensor->shape[i]);
        if (!ejki_mul(elements, ejki_max(tensor->shape[i], 1), &elements))
            return ejki_fail(EJK_STATUS_OVERFLOW, "%s: its elements do not fit in 63 bits", name);
    }
    return EJK_OK;
}

static ejk_status check_tensors(const ejk_record *record, const void *object) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, object);
        char name[EJKI_PREFIX_SIZE];
        ejki_member_name(w.field->name, w.member, name);
        if (ejk_tensor_present(tensor)) EJKI_TRY(check_tensor(tensor, name));
    }
    return EJK_OK;
}

static void strip_tensors(const ejk_record *record, void *object) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        ejk_tensor *tensor = ejki_walk_tensor(&w, object);
        if (!tensor) continue;
        const ejk_tensor old = *tensor;
        *tensor = (ejk_tensor){.data = NULL};
        if (ejk_tensor_present(&old))
            *tensor = ejk_tensor_contiguous(NULL, old.dtype, old.rank, old.shape);
    }
}

ejk_status ejk_abstractify(const ejk_record *record, const void *object, void *out) {
    if (record == NULL || object == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_abstractify: record, object or out is NULL");
    EJKI_TRY(check_tensors(record, object));
    memmove(out, object, record->size);
    strip_tensors(record, out);
    return EJK_OK;
}

/* Numbers of DLPack besides those of ejk_device_type. */
enum { DLPACK_CPU = 1, DLPACK_ROCM = 10, DLPACK_CUDA_MANAGED = 13 };

const char *ejk_get_device_platform(int32_t device_type) {
    switch (device_type) {
    case EJK_DEVICE_CPU:
    case DLPACK_CPU: return "cpu";
    case EJK_DEVICE_CUDA:
    case DLPACK_CUDA_MANAGED:
    case DLPACK_ROCM: return "gpu";
    default: return "unknown";
    }
}

const char *ejk_device_kind(int32_t device_type) {
    return ejk_get_device_platform(device_type);
}

const char *ejk_get_device_platform_ex(int32_t device_type) {
    return strcmp(ejk_get_device_platform(device_type), "gpu") == 0 ? "triton" : "xla";
}

const char *ejk_sharding_fingerprint(const ejk_tensor *tensor, const char *sharding) {
    if (tensor == NULL || !ejk_tensor_present(tensor)) return NULL;
    return sharding != NULL && sharding[0] != '\0' ? sharding : NULL;
}
