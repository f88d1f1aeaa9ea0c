/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of experts beside its two products: tokens sorted by expert, their rows of hidden side by side, and the sum
 * of a token's rows, by the order of the experts, in float32.
 */
#include "kernels/cuda/element.cuh"
#include "operations/matmul/cuda/moe_lists.cuh"

enum { THREADS = MOE_THREADS, WARPS = THREADS / 32 };

/* Sums over all threads. */
DEVICE mm_size sum_of_block(mm_size x, mm_size *scratch) {
    for (int n = 16; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    mm_size sum = 0;
    for (int n = 0; n < WARPS; n++) sum += scratch[n];
    return sum;
}

/* From sm_90 on kernels of a call begin while those before them end. */
DEVICE void begin_overlapping() {
#if __CUDA_ARCH__ >= 900
    launch_dependents();
    wait_for_previous();
#endif
}

/*
 * A block has an expert: it counts the rows of those before, then finds its own in their order. Each looks through all
 * rows, which costs less than knowing of each other. The first block marks rows of no expert.
 */
extern "C" __global__ void __launch_bounds__(THREADS) sort(const __grid_constant__ moe_arguments a) {
    __shared__ mm_size scratch[WARPS];
    __shared__ u32 found[WARPS];
    const mm_size own = blockIdx.x, rows = a.tokens * a.each;
    mm_size before = 0, mine = 0, valid = 0;
    begin_overlapping();
    for (mm_size row = threadIdx.x; row < rows; row += THREADS) {
        const mm_size expert = expert_of(a, row);
        const bool is_there = expert >= 0 && expert < a.experts;
        before += is_there && expert < own;
        mine += expert == own;
        valid += is_there;
        if (own == 0 && !is_there) a.place[row] = -1;
    }
    before = sum_of_block(before, scratch);
    mine = sum_of_block(mine, scratch);
    valid = sum_of_block(valid, scratch);
    if (threadIdx.x == 0) a.sizes[own] = mine;
    if (own == 0)
        for (mm_size row = valid + threadIdx.x; row < rows; row += THREADS) a.token[row] = -1;
    if (mine == 0) return;
    for (mm_size first = 0; first < rows; first += THREADS) {
        const mm_size row = first + threadIdx.x;
        const bool is_mine = row < rows && expert_of(a, row) == own;
        const u32 here = __ballot_sync(~0u, is_mine);
        __syncthreads();
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = here;
        __syncthreads();
        mm_size place = before + __popc(here & ((1u << threadIdx.x % 32) - 1));
        for (int n = 0; n < WARPS; n++) {
            const int count = __popc(found[n]);
            if (n < (int)threadIdx.x / 32) place += count;
            before += count;
        }
        if (!is_mine) continue;
        a.token[place] = row / a.each;
        a.place[row] = place;
        copy_weight(a, row, place);
    }
}

template <class PIECE> DEVICE void copy_row(void *to, const void *from, mm_size count) {
    for (mm_size n = threadIdx.x; n < count; n += THREADS)
        ((PIECE *)to)[n] = from ? ((const PIECE *)from)[n] : PIECE{};
}

/* A block has a sorted row of hidden; that of no token is 0. */
extern "C" __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ moe_arguments a) {
    const int bytes = a.hidden.dtype == F32 ? 4 : 2;
    begin_overlapping();
    const mm_size token = a.token[blockIdx.x], width = a.width * bytes;
    char *to = (char *)a.gathered + blockIdx.x * width;
    const char *from = token < 0 ? nullptr : (const char *)a.hidden.data + token * a.hidden.row * bytes;
    if (((u64)to | (u64)from | (u64)width) % 16 == 0)
        copy_row<uint4>(to, from, width / 16);
    else if (bytes == 4)
        copy_row<u32>(to, from, a.width);
    else
        copy_row<u16>(to, from, a.width);
}

/* A column's sum over a token's rows in their order, for up to 32 of them: each lane knows one. */
DEVICE float sum_of_few(const moe_arguments &a, mm_size token, mm_size j) {
    const int lane = threadIdx.x % 32, each = (int)a.each;
    const mm_size own = lane < each ? a.place[token * each + lane] : -1;
    const int count = __popc(__ballot_sync(~0u, own >= 0));
    int rank = own < 0 ? -1 : 0;
    for (int n = 0; n < each; n++) {
        const mm_size other = __shfl_sync(~0u, own, n);
        rank += own >= 0 && other >= 0 && other < own;
    }
    float sum = 0;
#pragma unroll 8
    for (int n = 0; n < count; n++) {
        const mm_size place = __shfl_sync(~0u, own, __ffs(__ballot_sync(~0u, rank == n)) - 1);
        sum += j < a.width ? a.rows[place * a.width + j] : 0;
    }
    return sum;
}

DEVICE float sum_of_many(const moe_arguments &a, mm_size token, mm_size j) {
    float sum = 0;
    for (mm_size last = -1;;) {
        mm_size next = a.tokens * a.each; /* the first row after `last` */
        for (mm_size n = 0; n < a.each; n++) {
            const mm_size place = a.place[token * a.each + n];
            if (place > last) next = mm_least(next, place);
        }
        if (next == a.tokens * a.each) return sum;
        if (j < a.width) sum += a.rows[next * a.width + j];
        last = next;
    }
}

/* A block has a token and THREADS of its columns. */
extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ moe_arguments a) {
    const mm_size columns = (a.width + THREADS - 1) / THREADS, token = blockIdx.x / columns;
    const mm_size j = blockIdx.x % columns * THREADS + threadIdx.x;
    begin_overlapping();
    const float sum = a.each <= 32 ? sum_of_few(a, token, j) : sum_of_many(a, token, j);
    if (j < a.width) store_float(a.out.dtype, a.out.data, token * a.out.row + j, sum);
}
