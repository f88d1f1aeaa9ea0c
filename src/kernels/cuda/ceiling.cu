/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ceilings of a GPU. `multiply` does nothing but multiply-adds on random operands, as zeros run faster on a
 * chip whose power is limited: by KIND on the ordinary units, by mma.sync, or by wgmma from shared memory, which is
 * what reaches the peak of sm_90. `read` reads memory in sequence.
 *
 *   KIND      one of CEILING_FMA, CEILING_MMA, CEILING_WGMMA
 *   ELEMENT   BF16 or F16 (of the last two)
 */
#include "kernels/cuda/ceiling_arguments.cuh"

#define WARPS (CEILING_THREADS / 32)
#include "kernels/cuda/hopper.cuh"

DEVICE u32 next_random(u32 &state) {
    state = state * 1664525u + 1013904223u;
    return state;
}

#if KIND != CEILING_FMA
/* Two numbers of 16 bits with magnitudes in [0.5, 1). */
DEVICE u32 random_pair(u32 &state) {
    const u32 bits = next_random(state);
    return ELEMENT == BF16 ? (bits & 0x807f807fu) | 0x3f003f00u : (bits & 0x83ff83ffu) | 0x38003800u;
}
#endif

/* Keeps the compiler from leaving out what makes a sum. */
DEVICE void drain(const ceiling_arguments &a, float sum) {
    if (sum == 0x1p100f) a.sink[threadIdx.x] = sum;
}

#if KIND == CEILING_FMA

DEVICE float run(int steps) {
    u32 state = threadIdx.x + 1;
    float sums[16], total = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i] = __int_as_float(0x3f000000u | next_random(state) >> 10);
    const float factor = __int_as_float(0x3f000000u | next_random(state) >> 10);
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int i = 0; i < 64; i++) sums[i % 16] = fmaf(sums[i % 16], factor, 0.125f);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) total += sums[i];
    return total;
}

#elif KIND == CEILING_MMA

DEVICE float run(int steps) {
    u32 state = blockIdx.x * CEILING_THREADS + threadIdx.x + 1, a[4], b[2];
    float sums[16][4], total = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = random_pair(state);
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = random_pair(state);
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int i = 0; i < 16; i++) mma(sums[i], a, b[0], b[1]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    return total;
}

#else

/* 64 rows by 64 of the left operand for each group of four warps, 256 by 64 of the right one for both. */
static __shared__ __align__(1024) u32 operands[(2 * 64 + 256) * 32];

DEVICE float run(int steps) {
    u32 state = blockIdx.x * CEILING_THREADS + threadIdx.x + 1;
    float sums[128], total = 0;
    for (int i = threadIdx.x; i < (2 * 64 + 256) * 32; i += CEILING_THREADS)
        operands[i] = random_pair(state);
#pragma unroll
    for (int i = 0; i < 128; i++) sums[i] = 0;
    fence_proxy_async();
    __syncthreads();
    const u64 a = smem_descriptor(shared_address(operands + threadIdx.x / 128 * 64 * 32), 16);
    const u64 b = smem_descriptor(shared_address(operands + 128 * 32), 16);
    for (int step = 0; step < steps; step++) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++)
            wgmma<256>::ss<0, 0>(sums, advance_descriptor(a, i % 4 * 32), advance_descriptor(b, i % 4 * 32), 1);
        wgmma_commit();
        wgmma_wait<0>();
    }
#pragma unroll
    for (int i = 0; i < 128; i++) total += sums[i];
    return total;
}

#endif

extern "C" __global__ void __launch_bounds__(CEILING_THREADS) multiply(const ceiling_arguments a) {
    drain(a, run(a.steps));
}

extern "C" __global__ void __launch_bounds__(CEILING_THREADS) read(const ceiling_arguments a) {
    const uint4 *data = (const uint4 *)a.data;
    const long long step = (long long)gridDim.x * CEILING_THREADS;
    u32 all = 0;
    for (long long i = (long long)blockIdx.x * CEILING_THREADS + threadIdx.x; i < a.pieces; i += 8 * step) {
        uint4 x[8];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const long long at = i + n * step;
            x[n] = at < a.pieces ? __ldcs(data + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) all ^= x[n].x ^ x[n].y ^ x[n].z ^ x[n].w;
    }
    drain(a, all == 0x9e3779b9u ? 0x1p100f : 0.0f);
}
