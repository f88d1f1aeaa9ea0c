/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attention_merge and its gradients share: LANES neighbouring threads work on a row, each on runs of VECTOR
 * elements.
 *
 * Constants: TYPE (element type), VECTOR (elements of a run), LANES (a power of two, at most 32).
 */
#ifndef EJKI_CUDA_MERGE_CUH
#define EJKI_CUDA_MERGE_CUH

#include "element.cuh"
#include "merge_arguments.cuh"

#define THREADS 256
#define ROWS    (THREADS / LANES)

typedef typename element<TYPE>::bits part_element;
typedef run_of<TYPE, VECTOR> part_run;

struct row {
    merge_size b, t, h;
};

__device__ static inline row row_of(const merge_arguments &a, merge_size n) {
    const merge_size tokens = n / a.heads;
    return {tokens / a.queries, tokens % a.queries, n % a.heads};
}

/* exp(score - largest); 0 for what nothing was seen of, also if all is so. */
__device__ static inline float weight(float score, float largest) {
    return score == -INFINITY ? 0 : expf(score - largest);
}

/* Threads that work on the same row. */
__device__ static inline unsigned neighbours() {
    return LANES == 32 ? ~0u : ((1u << (LANES & 31)) - 1) << (threadIdx.x % 32 / LANES * LANES);
}

template <typename function> __device__ static inline float over_lanes(float value, function join) {
    for (int step = LANES / 2; step; step /= 2)
        value = join(value, __shfl_xor_sync(neighbours(), value, step));
    return value;
}

#endif
