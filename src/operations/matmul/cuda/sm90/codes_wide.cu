/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of 17 to 128 rows of bf16 or f16 with codes of 4 or 8 bits on sm_90a, as codes.cu has those of fewer: rows
 * of codes are the left operand of wgmma, made in registers, rows of a the right one, in shared memory. A tile is
 * COLUMNS columns of b, 64 or 128, and LINES rows of a. Two warpgroups have 64 columns each, or the same ones and steps
 * in turn. The sums of a row do not depend on other rows; those of 16 of the depth are others than in codes.cu.
 *
 * A warpgroup has SETS parts of the depth, whose sums a thread has side by side: there are as many as codes.cu has,
 * dealt and added in the same way.
 *
 * Constants: those of codes_step.cuh, without zeros; SPLIT_DEPTH; STAGES.
 */
#define ROW_PITCH 0
#define SCALES_AT_ONCE 8
#define PHASES (128 / COLUMNS)
#define TILES  1
#define WARPS  (PART_WARPS + 4) /* the last four, of which one copies, give away registers */
#define SETS   2                /* parts of the depth that a warpgroup has */
#define OWN_PARTS (PHASES * SETS)
#include "operations/matmul/cuda/sm90/codes_ring.cuh"
#include "operations/matmul/cuda/sm90/codes_wgmma.cuh"

enum {
    SERVICE_REGS = 40, CONSUMER_REGS = 232,
    UNITS = CODE_CHUNKS / UNIT,
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

/* ---- Products ----------------------------------------------------------------------------------------- */

/* What a warp has under way: units of codes, whose registers are free when the next but one begins, and groups. */
struct work_in_flight {
    unit_words left[2];
    line_sums products[2];
};

/*
 * Step `set` of SETS: a warp's rows of codes, which begin at `codes`, and all rows of a. The last unit is still under
 * way when it returns; `released` is the barrier of the step before.
 */
template <int set>
DEVICE void compute_wide_step(u32 codes, u32 rows, const group_scales *scales, u32 table, u32 released,
                              work_in_flight &work, line_sums (&sums)[SETS]) {
    const u32 mine = own_bytes();
    unit_pieces piece[2]; /* of the next unit, too */
    codes += threadIdx.x % 32 / 4 * CODE_BYTES;
    load_unit(piece[0], codes, 0);
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        const int first = unit * UNIT, group = set * GROUPS + first / GROUP, begins = first % GROUP == 0;
        unit_words &own = work.left[unit % 2];
        line_sums &before = work.products[(group + 1) % 2];
        take_unit(own, piece[unit % 2], mine, table);
        if (unit + 1 < UNITS) load_unit(piece[(unit + 1) % 2], codes, first + UNIT);
        multiply_unit(work.products[group % 2], own, rows, first, !begins);
        wgmma_wait<1>();
        if (unit == 0 && set > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(released);
        if (begins && group > 0) {
            hold(before);
            add_group(before, scales[group - 1 - set * GROUPS], sums[(group - 1) / GROUPS]);
        }
    }
}

DEVICE void compute_steps(const codes_arguments &a, layout &shared, const place &at, int rank, int count,
                          line_sums (&sums)[SETS]) {
    const int warp = threadIdx.x / 32, tile = warp % TILE_WARPS, lane = threadIdx.x % 32;
    /* Where a step lies depends on it: known to be the same for a warp, that needs no vector registers. */
    const int phase = PHASES > 1 ? warp / TILE_WARPS : 0;
    const u32 codes = shared_address(shared.stage) + tile * (OWN_ROWS * CODE_BYTES);
    const u32 rows = shared_address(shared.stage) + BOXES * CODE_BOX;
#if TABLE
    const u32 table = shared_address(shared.table) + lane * 4;
#else
    const u32 table = 0;
#endif
    const scale_row row[] = {scale_row_of(a.p, at, tile)};
    group_scales *const scales[] = {shared.scales[warp]};
    stage_place from = {(u32)phase * SETS % STAGES, (u32)phase * SETS / STAGES};
    int window = 0;
#pragma unroll 1
    for (int n = phase * SETS; n < count; n += OWN_PARTS) {
        if (window == 0) {
            __syncwarp();
            load_scales(a.p, scales, row, step_of(rank, n) + lane / OWN_ROWS, PARTS);
        }
        work_in_flight work;
        const u32 first = from.stage;
        const group_scales *const own = shared.scales[warp] + window * GROUPS;
        mbarrier_wait(shared_address(&shared.full[from.stage]), from.parity);
        compute_wide_step<0>(codes + first * STAGE_BYTES, rows + first * STAGE_BYTES, own, table, 0, work, sums);
        from.next();
        mbarrier_wait(shared_address(&shared.full[from.stage]), from.parity);
        compute_wide_step<1>(codes + from.stage * STAGE_BYTES, rows + from.stage * STAGE_BYTES, own + GROUPS, table,
                             shared_address(&shared.empty[first]), work, sums);
        wgmma_wait<0>();
        hold(work.products[(SETS * GROUPS - 1) % 2]);
        add_group(work.products[(SETS * GROUPS - 1) % 2], own[SETS * GROUPS - 1], sums[SETS - 1]);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&shared.empty[from.stage]));
        from.next();
        if (PHASES > 1) from.skip(OWN_PARTS - SETS);
        window += SETS;
        if (window == WINDOW) window = 0;
    }
}

/* Sums of both parts into shared memory, rows of a being rows. */
DEVICE void put_wide_sums(part_sums &to, const line_sums (&sums)[SETS]) {
    const int column = threadIdx.x / 32 % TILE_WARPS * OWN_ROWS + threadIdx.x % 32 / 4, line = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[8 * n + line + i % 2][column + i / 2 * 8] = (sums[0][4 * n + i] + sums[1][4 * n + i]) * NUMBERS_OVER;
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), TILE_WARPS);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __cluster_dims__(SPLIT_DEPTH, 1, 1) __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ codes_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const int rank = (int)cluster_rank(), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
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
    const int count = ((int)a.steps + PARTS - 1) / PARTS * OWN_PARTS;
    if (warp >= PART_WARPS) {
        setmaxnreg_dec<SERVICE_REGS>();
        if (threadIdx.x == 32 * PART_WARPS)
            load_steps(a, shared_address(shared.stage), shared.full, shared.empty, at, rank, count);
        __syncwarp();
        cluster_sync();
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        {
            line_sums sums[SETS] = {};
            compute_steps(a, shared, at, rank, count, sums);
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS); /* nobody multiplies any more: sums lie where stages were */
            put_wide_sums(shared.sums[warp / TILE_WARPS], sums);
        }
        if (PHASES > 1) {
            named_barrier_sync(ALL_CONSUMERS, CONSUMERS);
            add_phases(shared.sums, (int)mm_least(LINES, at.s.rows - at.row));
        }
        cluster_sync();
        write_tile(a.p, shared.sums[0], at, rank, [](float sum, mm_size, mm_size) { return sum; });
    }
    __syncwarp();
    cluster_sync(); /* others read sums here */
}
