/* SPDX-License-Identifier: Apache-2.0 */
/* Pages copied to others: a block has a row of a page, and copies that of all heads and parts, 16 bytes at a time where
 * it can. Nobody has looked at the list: what is outside is left out. */
#include "kernels/cuda/element.cuh"
#include "operations/paged/copy/problem.cuh"

#define THREADS 128

struct arguments {
    paged_copy_problem p;
};

template <typename word> DEVICE void copy_words(char *to, const char *from, paged_size bytes, paged_size first) {
    for (paged_size n = first; n < bytes / (paged_size)sizeof(word); n += 32) ((word *)to)[n] = ((const word *)from)[n];
}

extern "C" __global__ void __launch_bounds__(THREADS) copy(const __grid_constant__ arguments a) {
    const paged_copy_problem &p = a.p;
    const paged_size i = blockIdx.x / p.rows, row = blockIdx.x % p.rows;
    const paged_size from = paged_int(&p.mapping, i * p.mapping_step), to = paged_int(&p.mapping,
        i * p.mapping_step + 1);
    if (from < 0 || from >= p.pages || to < 0 || to >= p.pages) return;
    for (int k = 0; k < 4; k++) {
        const paged_copied &part = p.part[k];
        if (!part.data) continue;
        for (paged_size h = threadIdx.x / 32; h < p.heads; h += THREADS / 32) {
            char *first = part.data + row * part.row + h * part.head;
            const char *source = first + from * part.page;
            char *target = first + to * part.page;
            const u64 all = (u64)source | (u64)target | (u64)part.bytes;
            if (all % 16 == 0)
                copy_words<uint4>(target, source, part.bytes, threadIdx.x % 32);
            else if (all % 4 == 0)
                copy_words<u32>(target, source, part.bytes, threadIdx.x % 32);
            else
                copy_words<u8>(target, source, part.bytes, threadIdx.x % 32);
        }
    }
}
