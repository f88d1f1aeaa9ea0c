/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda.h
 * NVIDIA GPUs: what they are, memory on them, and the cache of kernels compiled for them.
 *
 * Nothing has to be installed beyond NVIDIA's driver and, where kernels have to be compiled, the library NVRTC
 * (part of the CUDA toolkit, or the Python package nvidia-cuda-nvrtc). Both are loaded when a GPU is first
 * asked for, never before: a program that keeps to the CPU does not notice them. Where the driver is missing,
 * too old or without a device, every function here that needs one answers UNAVAILABLE with the reason.
 *
 * A tensor lies on a GPU if its `device_type` is #EJK_DEVICE_CUDA; `device_index` counts as the driver does,
 * from 0. Calls run where their tensors lie (plan.h). Memory is that of the device's primary context, which
 * other users of the process (CUDA's runtime, PyTorch, JAX) have too, so pointers and streams may be exchanged
 * freely, by DLPack (tensor.h) or by hand. A stream is a `CUstream`, which is a `cudaStream_t`, passed as
 * `void *`; NULL is the device's default stream.
 *
 * Kernels are compiled at the first use of a configuration and kept on disk, in the folder that
 * `EJKERNEL_CUDA_CACHE` names, else in the folder `cuda` of the caches' folder (docs/howto/environment.md).
 * Processes may share it. A file that is damaged is compiled anew; where the folder cannot be written, kernels
 * are kept for the life of the process only. A kernel found there needs no NVRTC.
 *
 * Thread-safety: all functions may be called from any thread at once. The context that a thread has made
 * current with CUDA is the same after every call as before. CUDA does not work in a child after a fork, nor
 * does this.
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

/** What stands behind GPUs on this machine. */
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
 * Gives it back, once all work that was enqueued before is done. NULL is allowed. UNAVAILABLE, INVALID_ARGUMENT
 * (memory that is not the device's).
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
