/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of more than 64 rows of bf16 or f16 with codes of 4 or 8 bits on sm_90a, with values of codes rounded to the
 * type of a: rows of codes are the left operand of wgmma, made in registers, rows of a the right one. A tile is 128
 * columns of b, 64 for each of two warpgroups, and LINES rows of a, all of which a code meets at once. Codes and rows
 * have rings of their own.
 *
 * Blocks of a cluster have steps of the depth in turn.
 *
 * Constants: those of codes_step.cuh, with LINES to 256, without zeros and factors; SPLIT_DEPTH; STAGES, of codes;
 * ROW_STAGES, of rows.
 */
#define COLUMNS   128
#define ROW_PITCH 0
#define SCALES_AT_ONCE 8
#define PHASES 1
#define TILES  1
#define WARPS  (PART_WARPS + 4) /* the last four, of which two copy, give away registers */
#include "operations/matmul/cuda/sm90/codes_step.cuh"
#include "operations/matmul/cuda/sm90/codes_wgmma.cuh"

enum {
    CODES_BYTES = COLUMNS * CODE_BYTES,
    PIECE_PRODUCTS = 4,                        /* of 16 of the depth, a box of rows has */
    PIECES = DEPTH / 64,                       /* boxes of a step */
    PIECE_CHUNKS = PIECE_PRODUCTS / SIXTEENS,  /* of codes */
    SERVICE_REGS = 40, CONSUMER_REGS = 232,
    BY_PAIRS = MODE == MM_AFFINE && BITS == 4 && SCALE == ELEMENT, /* as converter.cuh has it */
};

struct layout {
    union {
        struct {
            u8 codes[STAGES][CODES_BYTES];
            u8 rows[ROW_STAGES][BOX];
        };
        part_sums sums;
    };
#if TABLE
    code_table table;
#endif
    group_scales scales[PART_WARPS][WINDOW_GROUPS];
    u64 full[STAGES], empty[STAGES], rows_full[ROW_STAGES], rows_empty[ROW_STAGES];
};

/* ---- Copies ------------------------------------------------------------------------------------------- */

/* Step n of this block's, of all. There may be no such step: all is 0 then. */
DEVICE int step_of(int rank, int n) {
    return n * SPLIT_DEPTH + rank;
}

/* One thread. */
DEVICE void load_codes(const codes_arguments &a, layout &shared, const place &at, int rank, int count) {
    pipeline_state<STAGES> to = {0, 1};
#pragma unroll 1
    for (int n = 0; n < count; n++, to.next()) {
        const u32 full = shared_address(&shared.full[to.stage]);
        mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
        mbarrier_expect(full, CODES_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; box++)
            tma_load(shared_address(shared.codes[to.stage]) + box * CODE_BOX, &a.codes, full,
                     step_of(rank, n) * CODE_BYTES, (int)box_column(a.p, at.column, box), (int)at.s.held, 0);
    }
}

/* One thread. */
DEVICE void load_rows(const codes_arguments &a, layout &shared, const place &at, int rank, int count) {
    pipeline_state<ROW_STAGES> to = {0, 1};
#pragma unroll 1
    for (int n = 0; n < count * PIECES; n++, to.next()) {
        const u32 full = shared_address(&shared.rows_full[to.stage]);
        mbarrier_wait(shared_address(&shared.rows_empty[to.stage]), to.parity);
        mbarrier_expect(full, BOX);
        tma_load(shared_address(shared.rows[to.stage]), &a.a, full, step_of(rank, n / PIECES) * DEPTH + n % PIECES * 64,
                 (int)at.row, 0, 0);
    }
}

/* ---- Products ----------------------------------------------------------------------------------------- */

typedef u32 piece_words[PIECE_PRODUCTS][4];

/* Two numbers times a scale, rounded. */
DEVICE u32 times_scale(u32 pair, float scale) {
    if constexpr (BY_PAIRS) {
        u32 x;
        if (ELEMENT == BF16)
            asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(pair), "r"(pair_of(scale)));
        else
            asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(pair), "r"(pair_of(scale)));
        return x;
    }
    return pack(value_of<ELEMENT>((u16)pair) * scale, value_of<ELEMENT>((u16)(pair >> 16)) * scale);
}

/* Values of the codes that meet a box of rows, from chunk `first` on. */
DEVICE void take_values(piece_words &left, u32 codes, int first, u32 own, const group_scales &scales, u32 table) {
    const int r = threadIdx.x % 32 / 4;
    const float scale[2] = {scales.scale[2 * r], scales.scale[2 * r + 1]};
#pragma unroll
    for (int c = 0; c < PIECE_CHUNKS; c++) {
        chunk_pieces piece;
        load_chunk(piece, codes + ((first + c) ^ r) * 16);
        take_neighbours(*(left_words *)&left[c * SIXTEENS], piece, own, table);
    }
#pragma unroll
    for (int k = 0; k < PIECE_PRODUCTS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) left[k][i] = times_scale(left[k][i], scale[i % 2]);
}

DEVICE void compute_steps(const codes_arguments &a, layout &shared, const place &at, int rank, int count,
                          line_sums &sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 own_codes = warp * (OWN_ROWS * CODE_BYTES) + lane / 4 * CODE_BYTES, bytes = own_bytes();
#if TABLE
    const u32 table = shared_address(shared.table) + lane * 4;
#else
    const u32 table = 0;
#endif
    const scale_row row[] = {scale_row_of(a.p, at, warp)};
    group_scales *const scales[] = {shared.scales[warp]};
    pipeline_state<STAGES> from = {0, 0};
    pipeline_state<ROW_STAGES> rows = {0, 0};
    int window = 0;
#pragma unroll 1
    for (int n = 0; n < count; n++, from.next()) {
        piece_words left[2];
        u32 before = 0; /* the barrier of the box before */
        if (window == 0) {
            __syncwarp();
            load_scales(a.p, scales, row, step_of(rank, n + lane / OWN_ROWS), SHARERS * SPLIT_DEPTH);
        }
        mbarrier_wait(shared_address(&shared.full[from.stage]), from.parity);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++, rows.next()) {
            piece_words &own = left[piece % 2];
            const int first = piece * PIECE_CHUNKS;
            take_values(own, shared_address(shared.codes[from.stage]) + own_codes, first, bytes,
                        shared.scales[warp][window * GROUPS + first / GROUP], table);
            mbarrier_wait(shared_address(&shared.rows_full[rows.stage]), rows.parity);
#pragma unroll
            for (int k = 0; k < PIECE_PRODUCTS; k++) hold(own[k]);
            hold(sums);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PIECE_PRODUCTS; k++)
                wgmma<LINES>::template rs<0>(sums, own[k],
                                             rows_operand(shared_address(shared.rows[rows.stage]), k), 1);
            wgmma_commit();
            if (piece > 0) {
                wgmma_wait<1>();
                if (lane == 0) mbarrier_arrive(before);
            }
            before = shared_address(&shared.rows_empty[rows.stage]);
        }
        wgmma_wait<0>();
        hold(sums);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(before);
        if (lane == 0) mbarrier_arrive(shared_address(&shared.empty[from.stage]));
        if (++window == WINDOW) window = 0;
    }
}

/* Into shared memory, rows of a being rows. */
DEVICE void put_line_sums(part_sums &to, const line_sums &sums) {
    const int column = threadIdx.x / 32 * OWN_ROWS + threadIdx.x % 32 / 4, line = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) to[8 * n + line + i % 2][column + i / 2 * 8] = sums[4 * n + i] * NUMBERS_OVER;
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), PART_WARPS);
    }
    for (int n = 0; n < ROW_STAGES; n++) {
        mbarrier_init(shared_address(&shared.rows_full[n]), 1);
        mbarrier_init(shared_address(&shared.rows_empty[n]), PART_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __cluster_dims__(SPLIT_DEPTH, 1, 1) __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ codes_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const int rank = SPLIT_DEPTH > 1 ? (int)cluster_rank() : 0, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const place at = place_of(a, blockIdx.x / SPLIT_DEPTH);
    launch_dependents();
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a.a);
        prefetch_tensor_map(&a.codes);
        set_barriers(shared);
    }
#if TABLE
    make_table(shared.table);
#endif
    wait_for_previous();
    __syncthreads();
    const int count = ((int)a.steps + SPLIT_DEPTH - 1) / SPLIT_DEPTH;
    if (warp >= PART_WARPS) {
        setmaxnreg_dec<SERVICE_REGS>();
        if (threadIdx.x == 32 * PART_WARPS) load_codes(a, shared, at, rank, count);
        if (threadIdx.x == 32 * PART_WARPS + 32) load_rows(a, shared, at, rank, count);
        __syncwarp();
        if (SPLIT_DEPTH > 1) cluster_sync();
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        {
            line_sums sums = {};
            compute_steps(a, shared, at, rank, count, sums);
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS); /* nobody multiplies any more: sums lie where stages were */
            put_line_sums(shared.sums, sums);
        }
        if (SPLIT_DEPTH > 1)
            cluster_sync();
        else
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS);
        write_tile(a.p, shared.sums, at, rank, [](float sum, mm_size, mm_size) { return sum; });
    }
    __syncwarp();
    if (SPLIT_DEPTH > 1) cluster_sync(); /* others read sums here */
}
