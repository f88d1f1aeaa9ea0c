/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows of bf16 or f16 with codes of 4 or 8 bits on sm_90a: rows of codes are columns of b, with a
 * scale and perhaps a zero for each `size` codes. What takes time is reading codes, once. A tile is 64 columns of b and
 * LINES rows of a; one thread copies both by TMA through a ring of STAGES steps, 128 bytes of each row of codes.
 *
 * The depth has PARTS = SPLIT_DEPTH * PHASES parts, to which its steps are dealt in turn: blocks of a cluster have
 * PHASES each, for as many sets of warps. Sums of parts are added in pairs, then pairs of pairs: bits depend on how
 * many parts there are, not on which blocks have them.
 *
 * A row's bits depend neither on other rows nor on how many there are.
 *
 * Constants: those of codes_step.cuh; SPLIT_DEPTH; STAGES; RESIDENT, blocks on an SM; TILES, of 16 rows of codes, that
 * a warp has: 1 makes twice as many warps, which hide more of what each waits for.
 */
#define COLUMNS   CODE_COLUMNS
#define PHASES    CODE_PHASES
#define ROW_PITCH 0
#define SCALES_AT_ONCE 4
#define WARPS     (PART_WARPS + (LINES > 16 ? 4 : 1)) /* registers can be moved from a warpgroup to others */
#define OWN_PARTS PHASES
#include "operations/matmul/cuda/sm90/codes_ring.cuh"

enum {
    PRODUCER_REGS = 40, CONSUMER_REGS = 232,
};

struct layout {
    union {
        u8 stage[STAGES * STAGE_BYTES];
        part_sums sums[PHASES];
    };
#if TABLE
    code_table table;
#endif
    group_scales scales[PART_WARPS][WINDOW_GROUPS];
    u64 full[STAGES], empty[STAGES];
};

/* Of this block. */
DEVICE int steps_of_block(int rank, int steps) {
    const int rest = steps % PARTS - rank * PHASES;
    return steps / PARTS * PHASES + (rest < 0 ? 0 : rest < PHASES ? rest : PHASES);
}

DEVICE void compute_steps(const codes_arguments &a, layout &shared, const place &at, int rank, int steps,
                          tile_sums (&sums)[TILES]) {
    const int warp = threadIdx.x / 32, tile = warp % TILE_WARPS, phase = warp / TILE_WARPS;
    const u32 codes = shared_address(shared.stage) + tile * (OWN_ROWS * CODE_BYTES) + lane_codes(0);
    const u32 rows = shared_address(shared.stage) + BOXES * CODE_BOX + lane_rows(0);
#if TABLE
    const u32 table = shared_address(shared.table) + threadIdx.x % 32 * 4;
#else
    const u32 table = 0;
#endif
    const scale_row row[] = {scale_row_of(a.p, at, tile)};
    group_scales *const scales[] = {shared.scales[warp]};
    stage_place from = {(u32)phase, 0};
    int window = 0;
#pragma unroll 1
    for (int step = step_of(rank, phase); step < steps; step += PARTS) {
        if (window == 0) {
            __syncwarp();
            load_scales(a.p, scales, row, step + threadIdx.x % 32 / OWN_ROWS * PARTS, SHARERS * PARTS);
        }
        mbarrier_wait(shared_address(&shared.full[from.stage]), from.parity);
        const u32 stage = from.stage * STAGE_BYTES;
        compute_step<CODE_CHUNKS>(codes + stage, rows + stage, shared.scales[warp] + window * GROUPS, table, sums);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[from.stage]));
        from.stage += PHASES;
        if (from.stage >= STAGES) from.stage -= STAGES, from.parity ^= 1;
        if (++window == WINDOW) window = 0;
    }
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), TILE_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __cluster_dims__(SPLIT_DEPTH, 1, 1) __launch_bounds__(THREADS, RESIDENT)
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
    const int steps = (int)a.steps;
    if (warp >= PART_WARPS) {
        if (LINES > 16) setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x == 32 * PART_WARPS)
            load_steps(a, shared_address(shared.stage), shared.full, shared.empty, at, rank,
                       steps_of_block(rank, steps));
        __syncwarp();
        if (SPLIT_DEPTH > 1) cluster_sync();
    } else { /* with what comes after products: it would have the registers of copies */
        if (LINES > 16) setmaxnreg_inc<CONSUMER_REGS>();
        {
            tile_sums sums[TILES] = {};
            compute_steps(a, shared, at, rank, steps, sums);
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS); /* nobody multiplies any more: sums lie where stages were */
            put_sums(shared.sums[warp / TILE_WARPS], warp % TILE_WARPS, sums);
        }
        named_barrier_sync(ALL_CONSUMERS, CONSUMERS);
        if (PHASES > 1) add_phases(shared.sums, (int)mm_least(LINES, at.s.rows - at.row));
        if (SPLIT_DEPTH > 1)
            cluster_sync();
        else
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS);
        write_tile(a.p, shared.sums[0], at, rank, [&](float sum, mm_size line, mm_size column) {
            return ZERO && !(fabsf(sum) < INFINITY) ? sum_again(a.p, at.s.held, line, column) : sum;
        });
    }
    __syncwarp();
    if (SPLIT_DEPTH > 1) cluster_sync(); /* others read sums here */
}
