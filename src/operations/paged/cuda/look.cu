/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at lengths, starts and tables: a block for each sequence, one for starts. It may begin while what writes to the
 * cache still runs, but ends after that, for those that wait for this alone. */
#include "operations/paged/cuda/look.cuh"

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) look(const __grid_constant__ paged_arguments a) {
#if __CUDA_ARCH__ >= 900
    if (a.waits) wait_for_previous();
    launch_dependents(); /* of those that wait for this */
#endif
    const paged_size n = blockIdx.x;
    const bool is_last = n == a.p.sequences;
    const bool bad = is_last ? are_starts_bad(a.p) : n < paged_count(&a.p) && is_sequence_bad(a.p, n);
    const int any = __syncthreads_or(bad);
    if (threadIdx.x == 0) a.flags[n] = any;
    for (paged_size i = n * PAGED_THREADS + threadIdx.x; i < a.ticket_count; i += gridDim.x * PAGED_THREADS)
        a.tickets[i] = 0;
#if __CUDA_ARCH__ >= 900
    wait_for_previous();
#endif
}
