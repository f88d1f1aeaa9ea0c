/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack in and out. The two forms of a managed tensor differ in what surrounds the same DLTensor, so each
 * direction has one translation and two thin wrappers.
 */
#include "base/base.h"
#include "tensor/view.h"

#include <dlpack/dlpack.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    ejk_dtype dtype;
    uint8_t code, bits;
} types[] = {
    {EJK_DTYPE_F64, kDLFloat, 64},
    {EJK_DTYPE_F32, kDLFloat, 32},
    {EJK_DTYPE_F16, kDLFloat, 16},
    {EJK_DTYPE_BF16, kDLBfloat, 16},
    {EJK_DTYPE_I64, kDLInt, 64},
    {EJK_DTYPE_I32, kDLInt, 32},
    {EJK_DTYPE_I16, kDLInt, 16},
    {EJK_DTYPE_I8, kDLInt, 8},
    {EJK_DTYPE_U8, kDLUInt, 8},
    {EJK_DTYPE_BOOL, kDLBool, 8},
    {EJK_DTYPE_F8E4M3, kDLFloat8_e4m3fn, 8},
    {EJK_DTYPE_F8E5M2, kDLFloat8_e5m2, 8},
    {EJK_DTYPE_F8E8M0, kDLFloat8_e8m0fnu, 8},
    {EJK_DTYPE_U32, kDLUInt, 32},
    {EJK_DTYPE_I4, kDLInt, 4},
    {EJK_DTYPE_U4, kDLUInt, 4},
};
enum { TYPES = sizeof types / sizeof types[0] };

static ejk_status import_type(DLDataType type, ejk_dtype *out) {
    for (int i = 0; i < TYPES && type.lanes == 1; i++) {
        if (types[i].code == type.code && types[i].bits == type.bits) {
            *out = types[i].dtype;
            return EJK_OK;
        }
    }
    return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                     "DLPack tensor has type code %d, %d bits, %d lanes; expected one lane of "
                     "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, "
                     "float8_e8m0fnu, int64 to int8, int4, uint32, uint8, uint4 or bool",
                     type.code, type.bits, type.lanes);
}

/* Pinned memory is read like any other memory of the CPU; its device id names a GPU and is dropped. */
static ejk_status import_device(DLDevice device, ejk_tensor *into) {
    int type = (int)device.device_type;
    if (type == kDLCUDA) {
        into->device_type = EJK_DEVICE_CUDA;
        into->device_index = device.device_id;
        return EJK_OK;
    }
    if (type == kDLCPU || type == kDLCUDAHost) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE,
                     "DLPack tensor lies on device type %d, expected %d (CPU) or %d (CUDA)", type,
                     kDLCPU, kDLCUDA);
}

static ejk_status import(const DLTensor *from, ejk_tensor *out) {
    ejk_dtype dtype = EJK_DTYPE_UNSET;
    EJKI_TRY(import_type(from->dtype, &dtype));
    if (from->ndim < 0 || from->ndim > EJK_MAX_RANK) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "DLPack tensor has rank %" PRId32 ", expected 0 to %d", from->ndim,
                         EJK_MAX_RANK);
    }
    if (from->ndim > 0 && from->shape == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "DLPack tensor of rank %" PRId32 " has NULL for its shape", from->ndim);
    }
    uintptr_t address = (uintptr_t)from->data;
    if (from->byte_offset > UINTPTR_MAX - address) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "DLPack tensor at %p has byte_offset %" PRIu64
                         ", beyond the end of memory",
                         from->data, from->byte_offset);
    }
    if (address != 0) address += (uintptr_t)from->byte_offset;
    ejk_tensor tensor = ejk_tensor_contiguous((void *)address, dtype, from->ndim, from->shape);
    EJKI_TRY(import_device(from->device, &tensor));
    if (from->strides != NULL) {
        memcpy(tensor.strides, from->strides, (size_t)from->ndim * sizeof tensor.strides[0]);
    }
    EJKI_TRY(ejk_tensor_check(&tensor, "DLPack tensor"));
    *out = tensor;
    return EJK_OK;
}

static ejk_status require_import_arguments(const void *managed, const ejk_tensor *out) {
    if (managed != NULL && out != NULL) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                     managed == NULL ? "managed" : "out");
}

ejk_status ejk_tensor_from_dlpack(const DLManagedTensor *managed, ejk_tensor *out) {
    EJKI_TRY(require_import_arguments(managed, out));
    return import(&managed->dl_tensor, out);
}

ejk_status ejk_tensor_from_dlpack_versioned(const DLManagedTensorVersioned *managed,
                                            ejk_tensor *out) {
    EJKI_TRY(require_import_arguments(managed, out));
    /* Nothing but the version and the deleter has a known place in another major version. */
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "DLPack tensor has version %" PRIu32 ".%" PRIu32 ", expected %d.x",
                         managed->version.major, managed->version.minor, DLPACK_MAJOR_VERSION);
    }
    return import(&managed->dl_tensor, out);
}

/* What either form's wrapper holds besides: the axes that its DLTensor points to, and whom to tell. */
typedef struct lent {
    int64_t shape[EJK_MAX_RANK], strides[EJK_MAX_RANK];
    void (*release)(void *user);
    void *user;
} lent;

typedef struct lent_plain {
    DLManagedTensor managed;
    lent lent;
} lent_plain;

typedef struct lent_versioned {
    DLManagedTensorVersioned managed;
    lent lent;
} lent_versioned;

static void take_back(void *wrapper, lent ended) {
    free(wrapper);
    if (ended.release != NULL) ended.release(ended.user);
}

static void delete_plain(DLManagedTensor *self) {
    if (self != NULL) take_back(self->manager_ctx, ((lent_plain *)self->manager_ctx)->lent);
}

static void delete_versioned(DLManagedTensorVersioned *self) {
    if (self != NULL) take_back(self->manager_ctx, ((lent_versioned *)self->manager_ctx)->lent);
}

static ejk_status export_device(const ejk_tensor *tensor, DLDevice *out) {
    if (tensor->device_type != EJK_DEVICE_CPU && tensor->device_type != EJK_DEVICE_CUDA) {
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "tensor lies on device type %" PRId32 ", expected %d (CPU) or %d (CUDA)",
                         tensor->device_type, EJK_DEVICE_CPU, EJK_DEVICE_CUDA);
    }
    bool cpu = tensor->device_type == EJK_DEVICE_CPU;
    *out = (DLDevice){cpu ? kDLCPU : kDLCUDA, cpu ? 0 : tensor->device_index};
    return EJK_OK;
}

static ejk_status export_type(ejk_dtype dtype, DLDataType *out) {
    for (int i = 0; i < TYPES; i++) {
        if (types[i].dtype == dtype) {
            *out = (DLDataType){types[i].code, types[i].bits, 1};
            return EJK_OK;
        }
    }
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "tensor holds %s, which DLPack has not",
                     ejk_dtype_name(dtype));
}

/* Checks the view and allocates the wrapper, whose first member is the managed tensor. */
static ejk_status make_wrapper(const ejk_tensor *tensor, const void *out, size_t size,
                               DLTensor *described, void **wrapper) {
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    EJKI_TRY(ejk_tensor_check(tensor, "tensor"));
    *described = (DLTensor){.data = tensor->data, .ndim = tensor->rank};
    EJKI_TRY(export_device(tensor, &described->device));
    EJKI_TRY(export_type(tensor->dtype, &described->dtype));
    *wrapper = calloc(1, size);
    if (*wrapper == NULL) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a DLPack tensor");
    }
    return EJK_OK;
}

/* Fills the part that does not depend on the form, and lets the DLTensor point into it. */
static void lend(const ejk_tensor *tensor, void (*release)(void *user), void *user, lent *part,
                 DLTensor *described) {
    *part = (lent){.release = release, .user = user};
    memcpy(part->shape, tensor->shape, sizeof part->shape);
    memcpy(part->strides, tensor->strides, sizeof part->strides);
    described->shape = part->shape;
    described->strides = part->strides;
}

ejk_status ejk_tensor_to_dlpack(const ejk_tensor *tensor, void (*release)(void *user), void *user,
                                DLManagedTensor **out) {
    DLTensor described = {0};
    void *wrapper = NULL;
    EJKI_TRY(make_wrapper(tensor, out, sizeof(lent_plain), &described, &wrapper));
    lent_plain *made = wrapper;
    lend(tensor, release, user, &made->lent, &described);
    made->managed = (DLManagedTensor){described, made, delete_plain};
    *out = &made->managed;
    return EJK_OK;
}

ejk_status ejk_tensor_to_dlpack_versioned(const ejk_tensor *tensor, bool read_only,
                                          void (*release)(void *user), void *user,
                                          DLManagedTensorVersioned **out) {
    DLTensor described = {0};
    void *wrapper = NULL;
    EJKI_TRY(make_wrapper(tensor, out, sizeof(lent_versioned), &described, &wrapper));
    lent_versioned *made = wrapper;
    lend(tensor, release, user, &made->lent, &described);
    made->managed = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
        .manager_ctx = made,
        .deleter = delete_versioned,
        .flags = read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0,
        .dl_tensor = described,
    };
    *out = &made->managed;
    return EJK_OK;
}
