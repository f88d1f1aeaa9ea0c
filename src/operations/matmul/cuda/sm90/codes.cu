/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows of bf16 or f16 with codes of 4 bits on sm_90a: rows of codes are columns of b, a scale and
 * perhaps a zero for each `size` codes, a multiple of 128. As rows.cu, a tile is 256 columns of b and LINES rows of a,
 * and SPLIT_DEPTH blocks are a cluster that adds its parts of the depth in their order. Codes go from shared memory to
 * registers of a warpgroup and become the left operand: four bits below the exponent of 16 are 16 + code, of which 16
 * and the zero, a whole number of 8 bits, are taken off. All of that is exact. Products of a block of 128 are summed up
 * by themselves and then times the scale, in float32: nothing is rounded to 16 bits but results.
 *
 * A row's bits depend neither on other rows nor on how many there are. Rows of a are put in order by codes_prepare.cu,
 * which ends while the first codes are on their way.
 *
 * Constants: those of finish.cuh; ELEMENT; LINES, 16, 32 or 64; SPLIT_DEPTH; STAGES; SCALE and ZERO, types, ZERO 0 =
 * the zeros are 8.
 */
#define WARPS   12
#define ROWS    LINES
#define COLUMNS CODE_COLUMNS
#define SPLIT   MM_EVEN
#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/sm90/codes.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"
#include "operations/matmul/cuda/sm90/parts.cuh"

enum {
    CODE_BYTES = CODE_COLUMNS * CODE_STEP / 2,
    BOX = LINES * 64 * 2, /* rows of a, 64 of the depth */
    STAGE_BYTES = CODE_BYTES + CODE_STEP / 64 * BOX,
    PRODUCER_REGS = 40, CONSUMER_REGS = 232,
};

struct layout {
    union {
        u8 stage[STAGES * STAGE_BYTES];
        part_sums sums;
    };
    u64 full[STAGES], empty[STAGES];
};

typedef pipeline_state<STAGES> stage_place;

/* One thread. */
DEVICE void load_steps(const codes_arguments &a, layout &shared, const place &at, int first, int end) {
    const u32 stages = shared_address(shared.stage);
    stage_place to = {0, 1};
    bool waited = false;
#pragma unroll 1
    for (int step = first; step < end; step++) {
        const u32 full = shared_address(&shared.full[to.stage]), stage = stages + to.stage * STAGE_BYTES;
        mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
        mbarrier_expect(full, STAGE_BYTES);
        tma_load(stage, &a.codes, full, step * (CODE_STEP / 2), (int)at.column, 0, 0);
        if (!waited) wait_for_previous(); /* codes were there before */
        waited = true;
#pragma unroll
        for (int n = 0; n < CODE_STEP / 64; n++)
            tma_load(stage + CODE_BYTES + n * BOX, &a.a, full, step * CODE_STEP + n * 64, (int)at.row, 0, 0);
        to.next();
    }
}

/* Of two rows of codes: their scales, and a pair of what is added to 16 + code. */
struct row_scales {
    float scale[2];
    u32 zero[2];
};
/* Which of a warp's 16 columns row `half` of a lane is: two rows that are read at once lie in other banks. */
DEVICE int column_of_row(int half) {
    const int r = threadIdx.x % 32 / 4;
    return 8 * half + r / 2 + r % 2 * 4;
}
DEVICE u32 pair_of(float x) {
    return (u32)narrow(x) * 0x10001u;
}
DEVICE row_scales scales_of(const mm_product &p, mm_size column, mm_size group) {
    row_scales s = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const mm_size row = column + column_of_row(half);
        if (row >= p.columns || group * p.quant.size >= p.depth) continue;
        s.scale[half] = load_as<SCALE>(p.quant.scales, row * p.quant.scale_row + group);
#if ZERO
        s.zero[half] = pair_of(-load_stored(ZERO, p.quant.zeros, row * p.quant.zero_row + group));
#endif
    }
    return s;
}

/* Codes n and n + 4 of a word as a pair of 16 + code: their bits lie below the exponent of 16. */
template <int n> DEVICE u32 pair_of_codes(u32 word) {
    enum { PLACE = ELEMENT == BF16 ? 3 : 6, SHIFT = PLACE - 4 * n };
    const u32 placed = SHIFT > 0 ? word << (SHIFT > 0 ? SHIFT : 0) : word >> (SHIFT < 0 ? -SHIFT : 0);
    return (placed & (0x000f000fu << PLACE)) | (ELEMENT == BF16 ? 0x41804180u : 0x4c004c00u);
}

DEVICE u32 add_pairs(u32 a, u32 b) {
    u32 sum;
    if (ELEMENT == BF16)
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    else
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
/* Codes n and n + 4 of a word less their zero. */
template <int n> DEVICE u32 pair_at(u32 word, u32 zero) {
    const u32 pair = pair_of_codes<n>(word);
    return ZERO ? add_pairs(add_pairs(pair, pair_of(-16)), zero) : add_pairs(pair, pair_of(-24));
}

/* Left operands of a block: 8 of wgmma, four words each, from 16 bytes of two rows. */
DEVICE void take_codes(u32 (&left)[32], u32 codes, const row_scales &s, int column, int block) {
    const int q = threadIdx.x % 4;
    uint4 row[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int own = column + column_of_row(half);
        row[half] = load_piece(codes + own * 128 + ((4 * block + q) ^ (own & 7)) * 16);
    }
    const u32 word[4][2] = {{row[0].x, row[1].x}, {row[0].y, row[1].y}, {row[0].z, row[1].z}, {row[0].w, row[1].w}};
#pragma unroll
    for (int w = 0; w < 4; w++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            left[8 * w + half] = pair_at<0>(word[w][half], s.zero[half]);
            left[8 * w + 2 + half] = pair_at<1>(word[w][half], s.zero[half]);
            left[8 * w + 4 + half] = pair_at<2>(word[w][half], s.zero[half]);
            left[8 * w + 6 + half] = pair_at<3>(word[w][half], s.zero[half]);
        }
}

typedef float column_sums[2][LINES / 2];

/* Products of a block of the depth, begun. */
DEVICE void begin_block(float (&products)[LINES / 2], u32 (&left)[32], u32 rows, int block) {
    hold(products);
    hold(left);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < CODE_BLOCK / 16; t++) {
        const u64 right = smem_descriptor(rows + (2 * block + t / 4) * BOX, 0);
        wgmma<LINES>::template rs<0>(products, left + 4 * t, advance_descriptor(right, t % 4 * 32), t > 0);
    }
    wgmma_commit();
}

/* Once they are there: scaled and added. */
DEVICE void end_block(float (&sums)[LINES / 2], const float (&products)[LINES / 2], const row_scales &s) {
#pragma unroll
    for (int i = 0; i < LINES / 2; i++) sums[i] = fmaf(products[i], s.scale[i % 4 / 2], sums[i]);
}

DEVICE void compute_steps(const codes_arguments &a, layout &shared, const place &at, int warpgroup, int first, int end,
                          column_sums &sums) {
    enum { BLOCKS = CODE_STEP / CODE_BLOCK };
    const mm_product &p = a.p;
    const u32 stages = shared_address(shared.stage);
    const int own = warpgroup * 128 + threadIdx.x / 32 % 4 * 16;
    const mm_size each = p.quant.size / CODE_BLOCK;
    stage_place from = {0, 0};
    row_scales scales[2][BLOCKS], next[2][BLOCKS];
    const auto take_scales = [&](int step, row_scales(&to)[2][BLOCKS]) {
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                to[n][block] = scales_of(p, at.column + own + 64 * n, (step * BLOCKS + block) / each);
    };
    take_scales(first, next);
#pragma unroll 1
    for (int step = first; step < end; step++) {
        const u32 stage = stages + from.stage * STAGE_BYTES, rows = stage + CODE_BYTES;
        memcpy(scales, next, sizeof scales);
        if (step + 1 < end) take_scales(step + 1, next);
        mbarrier_wait(shared_address(&shared.full[from.stage]), from.parity);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            float products[2][LINES / 2];
            u32 left[2][32];
            take_codes(left[0], stage, scales[0][block], own, block);
            begin_block(products[0], left[0], rows, block);
            take_codes(left[1], stage, scales[1][block], own + 64, block);
            begin_block(products[1], left[1], rows, block);
            wgmma_wait<1>();
            hold(products[0]);
            hold(left[0]);
            end_block(sums[0], products[0], scales[0][block]);
            wgmma_wait<0>();
            hold(products[1]);
            hold(left[1]);
            end_block(sums[1], products[1], scales[1][block]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[from.stage]));
        from.next();
    }
}

/* Into shared memory, rows of a being rows. */
DEVICE void put_sums(layout &shared, int warpgroup, const column_sums &sums) {
    const int own = warpgroup * 128 + threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < LINES / 2; i++)
            shared.sums[i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2][own + 64 * n + column_of_row(i % 4 / 2)] = sums[n][i];
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), CONSUMER_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __cluster_dims__(SPLIT_DEPTH, 1, 1) __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ codes_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const int rank = SPLIT_DEPTH > 1 ? (int)cluster_rank() : 0, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const mm_size row_tiles = a.lines / LINES, tile = blockIdx.x / SPLIT_DEPTH;
    place at = {};
    at.s.rows = a.p.rows;
    at.column = tile / row_tiles * COLUMNS;
    at.row = tile % row_tiles * LINES;
    if (threadIdx.x == 0) set_barriers(shared);
    __syncthreads();
    const int first = (int)(a.steps * rank / SPLIT_DEPTH), end = (int)(a.steps * (rank + 1) / SPLIT_DEPTH);
    if (warp >= CONSUMER_WARPS) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x == CONSUMERS) load_steps(a, shared, at, first, end);
        __syncwarp();
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        column_sums sums = {};
        compute_steps(a, shared, at, warp / 4, first, end, sums);
        named_barrier_sync(ALL_CONSUMERS, CONSUMERS); /* nobody multiplies any more: sums lie where stages were */
        put_sums(shared, warp / 4, sums);
    }
    if (SPLIT_DEPTH > 1)
        cluster_sync();
    else
        __syncthreads();
    write_tile(a.p, shared.sums, at, rank);
    if (SPLIT_DEPTH > 1) cluster_sync(); /* others read sums here */
}
