/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows of bf16 or f16 on sm_90a: what takes time is reading b, once. A tile is COLUMNS columns of b,
 * the rows of wgmma, and LINES rows of a, its columns; one warp issues copies through a ring of STAGES pieces of 64 of
 * the depth, two warpgroups have half of the columns each. SPLIT_DEPTH blocks are a cluster: each has its part of the
 * depth, and sums are added in the order of the parts out of their shared memories. How the depth is split follows
 * from the sizes of b alone: a row's bits depend neither on other rows nor on how many there are.
 *
 * Figures are in docs/kernels/matmul.md.
 *
 * Constants: those of finish.cuh; ELEMENT; SPLIT as mm_product; B_FLIPPED; LINES, 16, 32, 64 or 128; COLUMNS, 128 or
 * 256; SPLIT_DEPTH; STAGES; RESIDENT, blocks on an SM.
 */
#define PART_WARPS 8
#define WARPS      (PART_WARPS + 1)
#define ROWS       LINES
#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"
#include "operations/matmul/cuda/sm90/parts.cuh"

enum {
    DEPTH = 64,
    BOX = 64 * 64 * 2, /* 64 columns of b */
    BOXES = COLUMNS / 64,
    OWN = BOXES / 2, /* of a warpgroup */
    B_BYTES = BOXES * BOX,
    STAGE_BYTES = B_BYTES + LINES * DEPTH * 2,
};

struct arguments {
    mm_product p;
    tensor_map a, b;
    mm_size tiles; /* of rows, as find_place() has them */
};

struct layout {
    union {
        u8 stage[STAGES * STAGE_BYTES];
        part_sums sums;
    };
    u64 full[STAGES], empty[STAGES];
};

typedef pipeline_state<STAGES> stage_place;

/* Column c of b in a tile. */
DEVICE mm_size box_column(const mm_product &p, mm_size column, int n) {
    if (GATED == 1) return column + 64 * (n / 2) + (n % 2 ? p.columns : 0);
    return (GATED ? 2 * column : column) + 64 * n;
}

/* The tile of this cluster; false if there is none. */
DEVICE bool find_tile(const arguments &a, place *at) {
    const mm_product &p = a.p;
    const mm_size columns = tiles_of(p.columns, out_columns(p)), tile = blockIdx.x / SPLIT_DEPTH;
    const mm_size n = tile % (columns * a.tiles);
    *at = place{};
    at->s.rows = p.rows;
    at->s.depth = p.depth;
    at->column = n / a.tiles * out_columns(p);
    at->row = n % a.tiles * ROWS;
    if (SPLIT == MM_ROWS) return find_rows(p, n % a.tiles, at);
    find_even(p, tile / (columns * a.tiles), &at->s);
    return true;
}

/* One thread. */
DEVICE void load_steps(const arguments &a, layout &shared, const place &at, int first, int end) {
    const mm_product &p = a.p;
    const u32 stages = shared_address(shared.stage);
    const int line = (int)(at.s.first + at.row), a_group = SPLIT == MM_EVEN && p.a.group ? (int)at.s.group : 0;
    const int b_group = p.b.group ? (int)at.s.held : 0;
    stage_place to = {0, 1};
#pragma unroll 1
    for (int step = first; step < end; step++) {
        const u32 full = shared_address(&shared.full[to.stage]), stage = stages + to.stage * STAGE_BYTES;
        mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
        mbarrier_expect(full, STAGE_BYTES);
#pragma unroll
        for (int n = 0; n < BOXES; n++) {
            const int column = (int)box_column(p, at.column, n);
            tma_load(stage + n * BOX, &a.b, full, B_FLIPPED ? step * DEPTH : column, B_FLIPPED ? column : step * DEPTH,
                     b_group, 0);
        }
        tma_load(stage + B_BYTES, &a.a, full, step * DEPTH, line, a_group, 0);
        to.next();
    }
}

typedef float column_sums[OWN][LINES / 2];

DEVICE void compute_steps(layout &shared, int warpgroup, int count, column_sums &sums) {
    const u32 stages = shared_address(shared.stage);
    enum { B_STEP = B_FLIPPED ? 32 : 16 * 128 };
    stage_place at = {0, 0};
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        const u32 stage = stages + at.stage * STAGE_BYTES;
        const u64 right = smem_descriptor(stage + B_BYTES, 0);
        mbarrier_wait(shared_address(&shared.full[at.stage]), at.parity);
#pragma unroll
        for (int n = 0; n < OWN; n++) hold(sums[n]);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const u64 left = smem_descriptor(stage + (OWN * warpgroup + n) * BOX, BOX);
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                wgmma<LINES>::template ss<!B_FLIPPED, 0>(sums[n], advance_descriptor(left, k * B_STEP),
                                                         advance_descriptor(right, k * 32), 1);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < OWN; n++) hold(sums[n]);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[at.stage]));
        at.next();
    }
}

/* Into shared memory, rows of a being rows. */
DEVICE void put_sums(layout &shared, int warpgroup, const column_sums &sums) {
    const int lane = threadIdx.x % 32, column = warpgroup * (64 * OWN) + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < OWN; n++)
#pragma unroll
        for (int i = 0; i < LINES / 2; i++)
            shared.sums[i / 4 * 8 + lane % 4 * 2 + i % 2][column + 64 * n + i % 4 / 2 * 8] = sums[n][i];
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), PART_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __cluster_dims__(SPLIT_DEPTH, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    product(const __grid_constant__ arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const int rank = SPLIT_DEPTH > 1 ? (int)cluster_rank() : 0, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    place at;
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a.a);
        prefetch_tensor_map(&a.b);
        set_barriers(shared);
    }
    wait_for_previous();
    launch_dependents(); /* what comes next may read what is older than the kernel before this one */
    if (!find_tile(a, &at)) return; /* all blocks of the cluster */
    __syncthreads();
    const int steps = at.s.idle ? 0 : (int)tiles_of(at.s.depth, DEPTH);
    const int first = steps * rank / SPLIT_DEPTH, end = steps * (rank + 1) / SPLIT_DEPTH;
    if (warp == PART_WARPS) {
        if (threadIdx.x == CONSUMERS) load_steps(a, shared, at, first, end);
        __syncwarp();
    } else {
        column_sums sums = {};
        compute_steps(shared, warp / 4, end - first, sums);
        named_barrier_sync(ALL_CONSUMERS, CONSUMERS); /* nobody multiplies any more: sums lie where stages were */
        put_sums(shared, warp / 4, sums);
    }
    if (SPLIT_DEPTH > 1)
        cluster_sync();
    else
        __syncthreads();
    write_tile(a.p, shared.sums, at, rank, [](float sum, mm_size, mm_size) { return sum; });
    if (SPLIT_DEPTH > 1) cluster_sync(); /* others read sums here */
}
