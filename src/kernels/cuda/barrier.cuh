/* SPDX-License-Identifier: Apache-2.0 */
/* Named barriers of a block, 1 to 15, for a multiple of 32 threads: some wait, others only say that they are there. */
#ifndef EJKI_CUDA_BARRIER_CUH
#define EJKI_CUDA_BARRIER_CUH

#include "kernels/cuda/element.cuh"

DEVICE void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
