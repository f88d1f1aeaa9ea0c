/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps: the driver writes them, from numbers alone. */
#include "device/cuda_driver.h"

enum { MOST_AXES = 5, PIECE = 16, FILL_ZEROS = 0, NOT_INTERLEAVED = 0, PROMOTE_256 = 3 };

/* CUtensorMapDataType; -1 = none. */
static int type_of(ejk_dtype dtype) {
    switch (dtype) {
    case EJK_DTYPE_U8: return 0;
    case EJK_DTYPE_F16: return 6;
    case EJK_DTYPE_F32: return 7;
    case EJK_DTYPE_BF16: return 9;
    default: return -1;
    }
}

/* CUtensorMapSwizzle; -1 = none. */
static int swizzle_of(int32_t bytes) {
    switch (bytes) {
    case 0: return 0;
    case 32: return 1;
    case 64: return 2;
    case 128: return 3;
    default: return -1;
    }
}

ejk_status ejki_cuda_tensor_map_encode(const void *data, ejk_dtype dtype, int32_t rank,
                                       const int64_t *sizes, const int64_t *strides,
                                       const int32_t *box, int32_t swizzle,
                                       ejki_cuda_tensor_map *out) {
    uint64_t all_sizes[MOST_AXES], all_strides[MOST_AXES];
    uint32_t all_box[MOST_AXES], steps[MOST_AXES];
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    const int type = type_of(dtype), mode = swizzle_of(swizzle);
    EJKI_TRY(ejki_cuda_available());
    if (!driver->encode_tiled)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "the driver has no function cuTensorMapEncodeTiled, expected one of "
                         "CUDA 12 or later");
    if (type < 0 || mode < 0 || rank < 1 || rank > MOST_AXES)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "a tensor map of %d axes of %s under a swizzle of %d bytes, expected 1 to "
                         "%d axes of bf16, f16, f32 or u8 and 0, 32, 64 or 128 bytes",
                         (int)rank, ejk_dtype_name(dtype), (int)swizzle, MOST_AXES);
    if ((uintptr_t)data % PIECE)
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "a tensor lies at %p, expected a multiple of 16 bytes", data);
    for (int32_t i = 0; i < rank; i++) {
        if (i > 0 && (strides[i - 1] % PIECE || strides[i - 1] < 0))
            return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                             "axis %d has a stride of %lld bytes, expected a multiple of 16",
                             (int)i, (long long)strides[i - 1]);
        all_sizes[i] = (uint64_t)sizes[i];
        all_box[i] = (uint32_t)box[i];
        steps[i] = 1;
        if (i > 0) all_strides[i - 1] = (uint64_t)strides[i - 1];
    }
    const int error = driver->encode_tiled(out->opaque, type, (unsigned)rank,
                                           (void *)(uintptr_t)data, all_sizes, all_strides, all_box,
                                           steps, NOT_INTERLEAVED, mode, PROMOTE_256, FILL_ZEROS);
    if (error == EJKI_CU_SUCCESS) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                     "the driver refuses a tensor map of %d axes, the first of %lld elements (%d)",
                     (int)rank, (long long)sizes[0], error);
}
