/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of E4M3 with scales of blocks on sm_90a. Persistent blocks have tiles of 128 x 128; one thread copies by
 * TMA, 128 of the depth at a time, through a ring of STAGES; two warpgroups have 64 rows each. Tensor cores add up a
 * block of 128 by themselves (wgmma m64n128k32, four of them), then its sums count times both scales, in float32. DEEP
 * steps are taken at a time, each begun before the one before it is added; a depth is a multiple of so many steps, of
 * zeros if need be. Tiles go down bands of BAND rows of tiles, so
 * that those that run at once share rows and columns in the second-level cache.
 *
 * Constants: those of finish.cuh; STAGES; DEEP, 2 or 4.
 */
#define WARPS   12
#define ROWS    128
#define COLUMNS 128
#define ELEMENT 3
#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"
#include "operations/matmul/scaled_matmul/cuda/scaled.cuh"

enum {
    STEP = SCALED_BLOCK,
    BOX = 128 * STEP,
    STAGE_BYTES = 2 * BOX,
    CONSUMER_WARPS = 8,
    PRODUCER_REGS = 40,
    CONSUMER_REGS = 232,
    BAND = 8,
};

struct layout {
    u8 stage[STAGES * STAGE_BYTES];
    u64 full[STAGES], empty[STAGES];
};

typedef pipeline_state<STAGES> stage_place;

DEVICE void place_of(const mm_product &p, mm_size tile, mm_size *row, mm_size *column) {
    const mm_size rows = tiles_of(p.rows, ROWS), columns = tiles_of(p.columns, COLUMNS);
    const mm_size band = tile / (BAND * columns), own = tile - band * BAND * columns;
    const mm_size height = mm_least(BAND, rows - band * BAND);
    *row = (band * BAND + own % height) * ROWS;
    *column = own / height * COLUMNS;
}

/* One thread. */
DEVICE void load_tiles(const scaled_arguments &a, layout &shared, mm_size tiles, int steps) {
    const mm_product &p = a.p.product;
    const u32 stages = shared_address(shared.stage);
    stage_place to = {0, 1};
    for (mm_size tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        mm_size row, column;
        place_of(p, tile, &row, &column);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const u32 full = shared_address(&shared.full[to.stage]), stage = stages + to.stage * STAGE_BYTES;
            mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
            mbarrier_expect(full, STAGE_BYTES);
            tma_load(stage, &a.a, full, step * STEP, (int)row, 0, 0);
            tma_load(stage + BOX, &a.b, full, step * STEP, (int)column, 0, 0);
            to.next();
        }
    }
}

/* c = a b, or c += a b, of 32 of the depth. */
DEVICE void multiply(float (&c)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" NAMES_7 "}, %64, %65, add, 1, 1;\n}\n"
                 : SUMS_7
                 : "l"(a), "l"(b), "r"(add));
}

/* Scales of a step: of a lane's two rows, those of b counted in. Behind the last one 0. */
struct step_scales {
    float row[2];
};
DEVICE step_scales scales_of(const scaled_problem &s, const mm_size (&row)[2], mm_size column, int step) {
    step_scales scales = {};
    if (step * (mm_size)STEP >= s.product.depth) return scales;
    const float b = s.b_scale[column / SCALED_BLOCK * s.b_scale_row + step];
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row[half] < s.product.rows) scales.row[half] = s.a_scale[row[half] * s.a_scale_row + step] * b;
    return scales;
}

/* The products of a stage, begun. */
DEVICE void begin_step(float (&products)[64], layout &shared, const stage_place &at, int warpgroup) {
    const u32 stage = shared_address(shared.stage) + at.stage * STAGE_BYTES;
    const u64 left = smem_descriptor(stage + warpgroup * (64 * STEP), 0), right = smem_descriptor(stage + BOX, 0);
    mbarrier_wait(shared_address(&shared.full[at.stage]), at.parity);
    hold(products);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEP / 32; k++)
        multiply(products, advance_descriptor(left, 32 * k), advance_descriptor(right, 32 * k), k > 0);
    wgmma_commit();
}

/* Once they are there. */
DEVICE void end_step(float (&sums)[64], float (&products)[64], const step_scales &scales) {
    hold(products);
#pragma unroll
    for (int i = 0; i < 64; i++) sums[i] = fmaf(products[i], scales.row[i % 4 / 2], sums[i]);
}

/* A warp is done with a stage. */
DEVICE void release(layout &shared, u32 stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[stage]));
}

DEVICE void compute_tile(const scaled_arguments &a, layout &shared, stage_place &at, int warpgroup, mm_size row,
                         mm_size column, int steps) {
    const mm_size first = row + 64 * warpgroup + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const mm_size own[2] = {first, first + 8};
    float sums[64] = {}, products[2][64];
    step_scales next[DEEP];
#pragma unroll
    for (int n = 0; n < DEEP; n++) next[n] = scales_of(a.p, own, column, n);
#pragma unroll 1
    for (int step = 0; step < steps; step += DEEP) {
        step_scales scales[DEEP];
        stage_place under_way[2];
        under_way[0] = at;
        begin_step(products[0], shared, at, warpgroup);
#pragma unroll
        for (int n = 0; n < DEEP; n++) {
            at.next();
            scales[n] = next[n];
            next[n] = scales_of(a.p, own, column, step + DEEP + n);
            if (n + 1 < DEEP) {
                under_way[(n + 1) % 2] = at;
                begin_step(products[(n + 1) % 2], shared, at, warpgroup);
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            release(shared, under_way[n % 2].stage);
            end_step(sums, products[n % 2], scales[n]);
        }
    }
    mm_segment s = {};
    s.rows = a.p.product.rows;
    write_sums(a.p.product, s, row + 64 * warpgroup, column, sums);
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), CONSUMER_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(const __grid_constant__ scaled_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const mm_product &p = a.p.product;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), steps = DEEP * (int)tiles_of(p.depth, DEEP * STEP);
    const mm_size tiles = tiles_of(p.rows, ROWS) * tiles_of(p.columns, COLUMNS);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a.a);
        prefetch_tensor_map(&a.b);
        set_barriers(shared);
    }
    __syncthreads();
    if (warp >= CONSUMER_WARPS) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x == 32 * CONSUMER_WARPS) load_tiles(a, shared, tiles, steps);
        __syncwarp();
        return;
    }
    setmaxnreg_inc<CONSUMER_REGS>();
    stage_place at = {0, 0};
    for (mm_size tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        mm_size row, column;
        place_of(p, tile, &row, &column);
        compute_tile(a, shared, at, warp / 4, row, column, steps);
    }
}
