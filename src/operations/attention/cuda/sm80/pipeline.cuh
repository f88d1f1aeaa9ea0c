/* SPDX-License-Identifier: Apache-2.0 */
/* The main loop of the mma kernels. */
#ifndef EJKI_ATTENTION_CUDA_PIPELINE_CUH
#define EJKI_ATTENTION_CUDA_PIPELINE_CUH

#include "operations/attention/cuda/common/block_iterator.cuh"
#include "operations/attention/cuda/common/nonfinite.cuh"

/*
 * A software pipeline over the blocks first … end - 1 with a ring of `stages` in shared memory: copy(n, block)
 * prefetches the nth block and commits, also where block >= end; use(n, block, whole) computes once its copy is
 * there. One stage has no prefetch.
 */
template <int stages, class looker, class loader, class user>
DEVICE void pipeline_blocks(int first, int end, looker look, loader copy, user use) {
    block_iterator<(stages > 1 ? stages - 1 : 1)> it =
        iterate_blocks<(stages > 1 ? stages - 1 : 1)>(first, end);
#pragma unroll 1
    for (int n = 0; n < stages - 1; n++) copy(n, next_block(it, n, look));
#pragma unroll 1
    for (int n = 0;; n++) {
        bool whole;
        if (stages == 1) next_block(it, n, look);
        const int block = current_block(it, n, &whole);
        if (block >= end) break;
        if (stages == 1) {
            __syncthreads();
            copy(n, block);
        }
        cp_async_wait<(stages > 1 ? stages - 2 : 0)>();
        __syncthreads();
        if (stages > 1) copy(n + stages - 1, next_block(it, n + stages - 1, look));
        use(n, block, whole);
    }
    cp_async_wait<0>();
}

#endif
