/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step behind the recurrence of state_space_v2: gate and norm. A block takes a group of a row; it reads it for its
 * sum of squares and once more, from a cache, for the results, which may lie where y does. Element types are known only
 * at run time; a branch on them is the same for all threads.
 *
 * Constants: THREADS, NORM, FIRST (the norm comes first), GATE.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/state_space_v2/problem.cuh"

#define WARPS (THREADS / 32)

/* Number d of a row. */
DEVICE float load(const ssd_problem &p, const rec_view &v, rec_size n, rec_size d) {
    const rec_size size = p.recurrence.value_size;
    return load_float(v.dtype, v.data, ssd_at(&p, &v, n, d / size) + d % size);
}

DEVICE float silu(const ssd_problem &p, rec_size n, rec_size d) {
    const float z = load(p, p.gate, n, d);
    return z * logistic(z);
}

/* What is normed. */
DEVICE float normed_at(const ssd_problem &p, rec_size n, rec_size d) {
    const float y = load(p, p.y, n, d);
    return GATE && !FIRST ? y * silu(p, n, d) : y;
}

DEVICE float sum_of_block(float x) {
    __shared__ float part[WARPS];
    x = sum_of_lanes(x, 32);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < WARPS; i++) sum += part[i];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) gate(const __grid_constant__ ssd_problem p) {
    const rec_size size = p.recurrence.value_size, groups = p.recurrence.heads * size / p.group;
    const rec_size n = blockIdx.x / groups, first = blockIdx.x % groups * p.group;
    const rec_size last = first + p.group;
    const bool counts = ssd_counts(&p, n);
    float scale = 1, sum = 0;
    if (NORM) {
        for (rec_size d = first + threadIdx.x; counts && d < last; d += THREADS) {
            const float value = normed_at(p, n, d);
            sum = fmaf(value, value, sum);
        }
        scale = 1 / sqrtf(sum_of_block(sum) / p.group + (float)p.eps);
    }
    for (rec_size d = first + threadIdx.x; d < last; d += THREADS) {
        float out = 0;
        if (counts) {
            out = normed_at(p, n, d) * scale;
            if (NORM && p.weight.present) out *= load_float(p.weight.dtype, p.weight.data, d);
            if (GATE && FIRST) out *= silu(p, n, d);
        }
        store_float(p.result.dtype, p.result.data, ssd_at(&p, &p.result, n, d / size) + d % size, out);
    }
}
