/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda.h
 * NVIDIA GPUs: their properties, memory on them, and the cache of kernels compiled for them.
 *
 * Only NVIDIA's driver has to be installed and, to compile kernels, the library NVRTC (part of the CUDA toolkit,
 * or the Python package nvidia-cuda-nvrtc). Both are loaded on first use, so a program that only uses the CPU
 * does not load them. If the driver is missing, too old or finds no device, every function here that needs one
 * returns UNAVAILABLE with the reason.
 *
 * A tensor is on a GPU if its `device_type` is #EJK_DEVICE_CUDA; `device_index` is the driver's device number.
 * Calls run on the device of their tensors (plan.h). Memory belongs to the device's primary context, which
 * CUDA's runtime, PyTorch and JAX use too, so pointers and streams may be exchanged freely, by DLPack (tensor.h)
 * or directly. A stream is a `CUstream`, which is the same as a `cudaStream_t`, passed as `void *`; NULL is the
 * device's default stream.
 *
 * Kernels are compiled when a configuration is first used, and cached on disk in the folder that
 * `EJKERNEL_CUDA_CACHE` names, else in the folder `cuda` of the cache folder (docs/howto/environment.md).
 * Processes may share it. A damaged file is compiled again; if the folder cannot be written, kernels are only
 * kept until the process ends. A cached kernel needs no NVRTC.
 *
 * Thread-safety: all functions may be called from several threads at once. No call changes the CUDA context
 * that is current in the calling thread. In the child of a fork() of a process that used a GPU, all functions
 * that need one return UNAVAILABLE, since CUDA does not support fork().
 *
 * @since 0.1
 */
#ifndef EJKERNEL_CUDA_H
#define EJKERNEL_CUDA_H

#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Facts of a GPU. They never change while the process lives. */
typedef struct ejk_gpu_info {
    char name[96];           /**< "NVIDIA H100 80GB HBM3" */
    char architecture[16];   /**< what kernels are compiled for: "sm_90a" */
    int32_t capability;      /**< compute capability, 10 times: 90 is 9.0 */
    int32_t multiprocessors; /**< SMs */
    int32_t clock_mhz;       /**< highest clock of the SMs; 0 = unknown */
    int64_t memory_bytes;
    int64_t l2_bytes;
    int64_t shared_bytes; /**< shared memory that one block may have at most */
    /** `gpu|<name; compute capability; driver>`, what measurements are kept under */
    char fingerprint[160];
} ejk_gpu_info;

/**
 * How many GPUs there are. UNAVAILABLE, with the reason, instead of 0. The first call loads the driver,
 * which takes some tenths of a second where no other part of the process did.
 */
EJK_API EJK_NODISCARD ejk_status ejk_device_count(int32_t *out);

/** Facts of one. UNAVAILABLE (no driver), INVALID_ARGUMENT (an index that no GPU has). */
EJK_API EJK_NODISCARD ejk_status ejk_device_info(int32_t index, ejk_gpu_info *out);

/** The versions of driver and compiler on this machine, and the state of the kernel cache. */
typedef struct ejk_cuda_info {
    int32_t
        driver; /**< CUDA version that the driver serves, 1000 times major, 13000 is 13.0; 0 = none */
    char driver_build[64];  /**< version of the driver itself, "580.159.03"; "" = unknown */
    int32_t nvrtc;          /**< version of NVRTC, as `driver`; 0 = none */
    char nvrtc_path[512];   /**< its file; "" = none */
    char cache_folder[512]; /**< where compiled kernels are kept */
    int64_t cached_kernels; /**< files there */
    int64_t cached_bytes;   /**< their sizes together */
    int64_t cache_limit;    /**< bytes from which on the oldest files are removed */
} ejk_cuda_info;

/** Looks them up; loads driver and NVRTC if they are there. Never UNAVAILABLE. INVALID_ARGUMENT (NULL). */
EJK_API EJK_NODISCARD ejk_status ejk_cuda_look(ejk_cuda_info *out);

/* ---- Memory ----------------------------------------------------------------------------------------- */

/**
 * Memory on a GPU, aligned to 256 bytes, not cleared. 0 bytes give NULL. May wait for work that the device does.
 * Statuses: UNAVAILABLE, INVALID_ARGUMENT (index, NULL), OUT_OF_MEMORY (with what is free).
 */
EJK_API EJK_NODISCARD ejk_status ejk_device_allocate(int32_t index, size_t bytes, void **out);

/**
 * Frees it, once all work that was enqueued before is done. NULL is allowed. UNAVAILABLE, INVALID_ARGUMENT (memory
 * that is not the device's).
 */
EJK_API EJK_NODISCARD ejk_status ejk_device_free(int32_t index, void *memory);

/** A contiguous view, as ejk_tensor_contiguous(), of memory on a GPU. */
EJK_API ejk_tensor ejk_device_tensor(void *data, int32_t index, ejk_dtype dtype, int32_t rank,
                                     const int64_t *shape);

/**
 * A contiguous tensor in memory of its own on a GPU, not cleared, released by ejk_owned_tensor_close().
 * Statuses: those of ejk_device_allocate() and ejk_tensor_check().
 */
EJK_API EJK_NODISCARD ejk_status ejk_device_tensor_create(int32_t index, ejk_dtype dtype,
                                                          int32_t rank, const int64_t *shape,
                                                          ejk_owned_tensor *out);

/**
 * Copies elements between the CPU and a GPU, either way, or between GPUs; between two tensors of the CPU it
 * is ejk_tensor_copy(). Shapes must be equal. A tensor of the CPU may have any strides and another element
 * type, which is converted; tensors on a GPU must be contiguous, and of one type if both are. It is ordered
 * behind the work on `stream` (of the GPU; of the target's if both are), and done when the call returns.
 * Statuses: those of ejk_tensor_copy(), UNAVAILABLE (no driver; a device that is neither), INVALID_ARGUMENT
 * (index), INVALID_LAYOUT, INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_device_copy(const ejk_tensor *source, const ejk_tensor *target,
                                                 void *stream);

/** Waits until the work on a stream is done. UNAVAILABLE, INVALID_ARGUMENT, INTERNAL (a kernel failed). */
EJK_API EJK_NODISCARD ejk_status ejk_device_synchronise(int32_t index, void *stream);

#ifdef __cplusplus
}
#endif
#endif
