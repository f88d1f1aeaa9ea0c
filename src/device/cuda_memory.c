/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on GPUs: had, given back, and filled from the CPU or another GPU. */
#include "device/cuda_driver.h"
#include "tensor/owned.h"

#include <stdlib.h>

ejk_status ejk_device_allocate(int32_t index, size_t bytes, void **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    bool pushed;
    ejki_cu_address address = 0;
    size_t idle = 0, total = 0;
    EJKI_TRY(ejki_cuda_enter(index, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    const int error = bytes ? driver->allocate(&address, bytes) : EJKI_CU_SUCCESS;
    if (error == EJKI_CU_OUT_OF_MEMORY) driver->free_bytes(&idle, &total);
    ejki_cuda_leave(pushed);
    if (error == EJKI_CU_OUT_OF_MEMORY)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                         "no memory on cuda:%d for %zu bytes, %zu of %zu are free", (int)index,
                         bytes, idle, total);
    EJKI_TRY(ejki_cuda_check(error, "memory of a GPU cannot be had"));
    *out = (void *)(uintptr_t)address;
    return EJK_OK;
}

ejk_status ejk_device_free(int32_t index, void *memory) {
    bool pushed;
    if (!memory) return EJK_OK;
    EJKI_TRY(ejki_cuda_enter(index, &pushed));
    const int error = ejki_cuda_driver_get()->release((ejki_cu_address)(uintptr_t)memory);
    ejki_cuda_leave(pushed);
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "memory is %p, which cuda:%d did not hand out or cannot take back now (%d)",
                     memory, (int)index, error);
}

void ejki_cuda_release(int32_t device, void *memory) {
    const ejk_status status = ejk_device_free(device, memory);
    (void)status;
}

ejk_status ejk_device_synchronise(int32_t index, void *stream) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(index, &pushed));
    const int error = ejki_cuda_driver_get()->wait(stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "work on a GPU went wrong");
}

ejk_status ejki_cuda_copy_on(int32_t device, void *target, const void *source, size_t bytes,
                             void *stream) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const int error = ejki_cuda_driver_get()->copy(
        (ejki_cu_address)(uintptr_t)target, (ejki_cu_address)(uintptr_t)source, bytes, stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "bytes cannot be copied on a GPU");
}

ejk_status ejki_cuda_capture_begin(int *before) {
    EJKI_TRY(ejki_cuda_available());
    *before = EJKI_CU_CAPTURE_RELAXED;
    return ejki_cuda_check(ejki_cuda_driver_get()->capture_mode(before),
                           "a thread's way of capturing cannot be set");
}

void ejki_cuda_capture_end(int before) {
    ejki_cuda_driver_get()->capture_mode(&before);
}

/* ---- Tensors ---------------------------------------------------------------------------------------- */

ejk_tensor ejk_device_tensor(void *data, int32_t index, ejk_dtype dtype, int32_t rank,
                             const int64_t *shape) {
    ejk_tensor tensor = ejk_tensor_contiguous(data, dtype, rank, shape);
    tensor.device_type = EJK_DEVICE_CUDA;
    tensor.device_index = index;
    return tensor;
}

typedef struct device_owner {
    ejki_owner owner; /* first, as ejk_owned_tensor_close() sees it */
    void *memory;
    int32_t device;
} device_owner;

static void release(ejki_owner *self) {
    const device_owner *owner = (const device_owner *)(const void *)self;
    ejki_cuda_release(owner->device, owner->memory);
    free(self);
}

/* Bytes of a contiguous tensor, which has a view's checks. */
static ejk_status size_of(ejk_tensor tensor, const char *name, size_t *out) {
    int64_t low, high;
    if (!tensor.data) tensor.data = &tensor; /* any address will do */
    EJKI_TRY(ejk_tensor_check(&tensor, name));
    ejk_tensor_span(&tensor, &low, &high);
    *out = (size_t)(high - low);
    return EJK_OK;
}

ejk_status ejk_device_tensor_create(int32_t index, ejk_dtype dtype, int32_t rank,
                                    const int64_t *shape, ejk_owned_tensor *out) {
    if (!out || (rank > 0 && !shape))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", out ? "shape" : "out");
    ejk_tensor tensor = ejk_device_tensor(NULL, index, dtype, rank, shape);
    size_t bytes;
    EJKI_TRY(size_of(tensor, "tensor", &bytes));
    device_owner *owner = calloc(1, sizeof *owner);
    if (!owner) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a tensor's owner");
    *owner = (device_owner){.owner = {release}, .device = index};
    /* Tensors without elements have an address all the same: not every library takes NULL. */
    const ejk_status status = ejk_device_allocate(index, bytes ? bytes : 1, &owner->memory);
    if (status != EJK_OK) {
        free(owner);
        return status;
    }
    tensor.data = owner->memory;
    *out = (ejk_owned_tensor){tensor, owner};
    return EJK_OK;
}

/* ---- Copies ----------------------------------------------------------------------------------------- */

static ejk_status check_place(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejk_tensor_check(tensor, name));
    if (tensor->device_type == EJK_DEVICE_CPU) return EJK_OK;
    if (tensor->device_type != EJK_DEVICE_CUDA)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "%s lies on device type %d, expected %d or %d",
                         name, (int)tensor->device_type, EJK_DEVICE_CPU, EJK_DEVICE_CUDA);
    if (ejk_tensor_is_contiguous(tensor)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                     "%s lies on a GPU and is not contiguous, expected row-major order", name);
}

static ejk_status check_pair(const ejk_tensor *source, const ejk_tensor *target) {
    if (!source || !target)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", source ? "target" : "source");
    EJKI_TRY(check_place(source, "source"));
    EJKI_TRY(check_place(target, "target"));
    bool same = source->rank == target->rank;
    for (int32_t i = 0; same && i < source->rank; i++) same = source->shape[i] == target->shape[i];
    if (!same) return ejki_fail(EJK_STATUS_INVALID_SHAPE, "source and target differ in shape");
    if (source->device_type == EJK_DEVICE_CUDA && target->device_type == EJK_DEVICE_CUDA &&
        source->dtype != target->dtype)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "source has %s and target %s on GPUs, expected one type",
                         ejk_dtype_name(source->dtype), ejk_dtype_name(target->dtype));
    return EJK_OK;
}

/* On the device of whichever lies on one; unified addresses tell the driver where the other is. */
static ejk_status move(const ejk_tensor *source, const ejk_tensor *target, void *stream) {
    const int32_t device =
        target->device_type == EJK_DEVICE_CUDA ? target->device_index : source->device_index;
    size_t bytes;
    bool pushed;
    EJKI_TRY(size_of(*target, "target", &bytes));
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    int error = EJKI_CU_SUCCESS;
    if (bytes)
        error = driver->copy((ejki_cu_address)(uintptr_t)target->data,
                             (ejki_cu_address)(uintptr_t)source->data, bytes, stream);
    if (error == EJKI_CU_SUCCESS) error = driver->wait(stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "elements cannot be copied to or from a GPU");
}

ejk_status ejk_device_copy(const ejk_tensor *source, const ejk_tensor *target, void *stream) {
    EJKI_TRY(check_pair(source, target));
    const bool from_cpu = source->device_type == EJK_DEVICE_CPU,
               to_cpu = target->device_type == EJK_DEVICE_CPU;
    if (from_cpu && to_cpu) return ejk_tensor_copy(source, target);
    const ejk_tensor *here = from_cpu ? source : target, *there = from_cpu ? target : source;
    if ((!from_cpu && !to_cpu) || (here->dtype == there->dtype && ejk_tensor_is_contiguous(here)))
        return move(source, target, stream);
    ejk_owned_tensor straight; /* as the elements lie on the GPU, in memory of the CPU */
    EJKI_TRY(ejk_owned_tensor_create(there->dtype, there->rank, there->shape, &straight));
    ejk_status status = from_cpu ? ejk_tensor_copy(source, &straight.tensor)
                                 : move(source, &straight.tensor, stream);
    if (status == EJK_OK)
        status = from_cpu ? move(&straight.tensor, target, stream)
                          : ejk_tensor_copy(&straight.tensor, target);
    ejk_owned_tensor_close(&straight);
    return status;
}
