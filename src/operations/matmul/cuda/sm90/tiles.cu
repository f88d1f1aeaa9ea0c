/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bf16 or f16 on sm_90a by TMA and wgmma, sums in float32. One persistent block an SM: a producer
 * warpgroup, of which one thread issues copies through a ring of STAGES pieces of the depth and one warp looks for the
 * next tile, and two consumer warpgroups with 64 rows and 256 columns of b each, 128 sums a thread. A tile whose rows
 * are 64 or fewer is shared by columns, but for one of 192: each warpgroup has all rows and 128 columns, in half the
 * time.
 *
 * Tiles that take longest come first: groups whose rows are dealt out have their full tiles before all halves, groups
 * whose depth is dealt out are sorted by it. Every tile has the whole depth, in order, 16 at a time: a row's bits
 * depend on nothing else. Rows behind a group's, which belong to the next, are multiplied and not written; steps of
 * the depth behind a group's are made zeros in shared memory, those behind the tensor's are zeros by TMA.
 *
 * Clusters of two, which multicast the rows or columns that their tiles share, halved the rate of copies: 500 (columns
 * shared) and 455 TFLOP/s (rows) where single blocks have 783 (one H100, 8192 x 8192 x 8192, bf16).
 *
 * With codes in place of b, rows of which are columns of b, two more warpgroups in turn make values of them, rounded
 * to the type of a, where TMA would have put b: the bits are those of a product with these values. Codes come through
 * a ring of their own.
 *
 * With ADD_BOXES what is added comes through the ring, too, behind the tile's last step.
 *
 * Constants: those of finish.cuh; ELEMENT; SPLIT as mm_product; A_FLIPPED, B_FLIPPED; COLUMNS of a tile, 256,
 * 192 or 128; ADD_BOXES; QUANT: codes, then 128 columns, no boxes, and constants of converter.cuh.
 */
#define WARPS (QUANT ? 20 : 12)
#define ROWS  128
#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"
#include "operations/matmul/cuda/sm90/tiles.cuh"
#if QUANT
#include "operations/matmul/cuda/sm90/converter.cuh"
#endif

enum {
    DEPTH = 64,
    STAGES = COLUMNS == 256 ? 4 : COLUMNS == 192 ? 5 : 6,
    HAS_HALVES = COLUMNS % 128 == 0,
    B_BOXES = COLUMNS / 64,
    BOX = 64 * 64 * 2,   /* 64 lines, rows of a or columns of b, and 64 of the depth */
    A_BYTES = 2 * BOX,
    STAGE_BYTES = A_BYTES + B_BOXES * BOX,
    ADD_STAGES = ADD_BOXES ? ((GATED ? COLUMNS / 2 : COLUMNS) + 127) / 128 : 0, /* of 128 columns of out each */
    SLOTS = 2,           /* tiles found ahead */
    BAND = 16,
    MOST_SORTED = 1024,  /* groups; more are taken as they come */
    CONSUMER_WARPS = 8,
    PRODUCER_REGS = 40, CONSUMER_REGS = QUANT ? 112 : 232, /* converters keep theirs */
    CONVERTERS = QUANT ? 2 : 0, /* warpgroups */
    ALL_CONSUMERS = 1,   /* named barriers; each warpgroup's is the next */
    ONE_WARPGROUP = 2,
};

/* A tile of this block. */
struct work {
    place at;
    int boxes; /* of a: two, one with 64 rows or fewer */
    int steps; /* of the depth; below 0: there is no more work */
};

struct layout {
    u8 stage[STAGES * STAGE_BYTES];
#if QUANT
    code_ring codes;
#endif
    u64 full[STAGES], empty[STAGES], work_full[SLOTS], work_empty[SLOTS];
    work works[SLOTS];
    u16 order[MOST_SORTED];
#if BIAS
    float bias[SLOTS][2][(COLUMNS + 127) / 128 * 128]; /* of a warpgroup's tile */
#endif
};

typedef pipeline_state<STAGES> stage_place;
typedef pipeline_state<SLOTS> slot_place;

/* ---- Which tile ------------------------------------------------------------------------------------- */

/* Tiles of a group's rows that take the full time, and whether there is one of half. */
DEVICE mm_size full_tiles(mm_size rows) {
    return (rows + ROWS / 2 - 1) / ROWS;
}
DEVICE mm_size half_tiles(mm_size rows) {
    return (rows % ROWS + ROWS / 2 - 1) / (ROWS / 2) == 1;
}

/* How many there are of both, of all groups. */
struct row_counts {
    mm_size full, half;
};
DEVICE row_counts count_rows(const mm_product &p) {
    row_counts counts = {};
    place at;
    if (SPLIT != MM_ROWS) return counts;
    find_row_tile(p, 1ll << 62, full_tiles, &at, &counts.full);
    find_row_tile(p, 1ll << 62, half_tiles, &at, &counts.half);
    return counts;
}

/*
 * Tile n of `rows` x `columns`, in bands of BAND rows, so that those of one time share rows of a and columns of b: as
 * many elements of either.
 */
DEVICE void place_in_bands(mm_size n, mm_size rows, mm_size columns, mm_size *row, mm_size *column) {
    const mm_size band = n / (BAND * columns), own = n - BAND * band * columns;
    const mm_size height = mm_least(BAND, rows - BAND * band);
    *row = BAND * band + own % height;
    *column = own / height;
}

/* By a whole warp. False if there is no such unit. */
DEVICE bool find_unit(const mm_product &p, const row_counts &counts, const u16 *order, mm_size unit, place *at) {
    const mm_size columns = tiles_of(p.columns, out_columns(p));
    mm_size row, column, all;
    *at = place{};
    at->s.rows = p.rows;
    at->s.depth = p.depth;
    if (SPLIT == MM_ROWS) {
        const bool is_half = unit >= counts.full * columns;
        if (is_half) unit -= counts.full * columns;
        if (unit >= (is_half ? counts.half : counts.full) * columns) return false;
        place_in_bands(unit, is_half ? counts.half : counts.full, columns, &row, &column);
        if (is_half) {
            find_row_tile(p, row, half_tiles, at, &all);
            at->row = full_tiles(at->s.rows);
        } else {
            find_row_tile(p, row, full_tiles, at, &all);
        }
        at->row *= ROWS;
    } else {
        const mm_size rows = tiles_of(p.rows, ROWS), groups = SPLIT == MM_DEPTH ? p.held : p.groups;
        const mm_size group = unit / (rows * columns);
        if (group >= groups) return false;
        place_in_bands(unit % (rows * columns), rows, columns, &row, &column);
        if (SPLIT == MM_DEPTH)
            find_depth(p, groups <= MOST_SORTED ? order[group] : group, &at->s);
        else
            find_even(p, group, &at->s);
        at->row = row * ROWS;
    }
    at->column = column * out_columns(p);
    return true;
}

/* Groups by their depth, the longest first. All threads, which have to synchronise afterwards. */
DEVICE void sort_groups(const mm_product &p, layout &shared) {
    mm_size *sizes = (mm_size *)shared.stage;
    if (SPLIT != MM_DEPTH || p.held > MOST_SORTED) return;
    const mm_size base = p.offset.present ? mm_number(&p.offset, 0) : 0;
    for (int n = threadIdx.x; n < p.held; n += THREADS) {
        const bool is_there = base + n >= 0 && base + n < p.groups;
        sizes[n] = is_there ? size_of(p, base + n, p.depth) : 0;
    }
    __syncthreads();
    for (int n = threadIdx.x; n < p.held; n += THREADS) {
        int rank = 0;
        for (int m = 0; m < p.held; m++) rank += sizes[m] > sizes[n] || (sizes[m] == sizes[n] && m < n);
        shared.order[rank] = (u16)n;
    }
}

/* One warp: finds tiles, and says so to all others. */
DEVICE void find_work(const mm_product &p, layout &shared) {
    const row_counts counts = count_rows(p);
    slot_place slot = {0, 1};
    mm_size unit = blockIdx.x;
    for (bool found = true; found; unit += gridDim.x) {
        work w = {};
        w.steps = -1;
        found = find_unit(p, counts, shared.order, unit, &w.at);
        if (found) {
            w.boxes = !HAS_HALVES || w.at.s.rows - w.at.row > ROWS / 2 ? 2 : 1;
            w.steps = w.at.s.idle ? 0 : (int)tiles_of(w.at.s.depth, DEPTH);
        }
        mbarrier_wait(shared_address(&shared.work_empty[slot.stage]), slot.parity);
        if (threadIdx.x % 32 == 0) {
            shared.works[slot.stage] = w;
            mbarrier_arrive(shared_address(&shared.work_full[slot.stage]));
        }
        __syncwarp();
        slot.next();
    }
}

/* ---- Producer --------------------------------------------------------------------------------------- */

/* Where the boxes of a tile begin. */
struct source {
    int a_line, a_group, b_line[B_BOXES], b_group;
    int add_group, column; /* of out */
};
DEVICE source source_of(const mm_product &p, const work &w) {
    source s;
    const mm_segment &own = w.at.s;
    s.a_line = (int)(own.first + w.at.row);
    s.a_group = SPLIT == MM_EVEN && p.a.group ? (int)own.group : 0;
    s.b_group = SPLIT != MM_DEPTH && p.b.group ? (int)own.held : 0;
    s.add_group = SPLIT == MM_ROWS || !p.add.group ? 0 : (int)own.held;
    s.column = (int)w.at.column;
#pragma unroll
    for (int n = 0; n < B_BOXES; n++)
        s.b_line[n] = (int)(GATED == 0   ? w.at.column + 64 * n
                            : GATED == 1 ? w.at.column + 64 * (n / 2) + (n % 2 ? p.columns : 0)
                                         : 2 * w.at.column + 64 * n);
    return s;
}

template <int flipped>
DEVICE void load_box(u32 to, const tensor_map *map, u32 full, int line, int depth, int group) {
    tma_load(to, map, full, flipped ? line : depth, flipped ? depth : line, group, 0);
}

/* One thread. */
DEVICE void load_tiles(const tiles_arguments &a, layout &shared) {
    const u32 stages = shared_address(shared.stage);
    stage_place at = {0, 1};
    slot_place slot = {0, 0};
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        const source s = source_of(a.p, w);
        const int steps = w.steps, boxes = w.boxes, first = (int)w.at.s.step;
        mbarrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (steps < 0) return;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const u32 full = shared_address(&shared.full[at.stage]), to = stages + at.stage * STAGE_BYTES;
            const int depth = first + step * DEPTH;
            mbarrier_wait(shared_address(&shared.empty[at.stage]), at.parity);
            mbarrier_expect(full, (boxes + (QUANT ? 0 : B_BOXES)) * BOX);
#pragma unroll
            for (int n = 0; n < 2; n++)
                if (n < boxes)
                    load_box<A_FLIPPED>(to + n * BOX, &a.a, full, s.a_line + 64 * n, depth, s.a_group);
#pragma unroll
            for (int n = 0; !QUANT && n < B_BOXES; n++)
                load_box<!B_FLIPPED>(to + A_BYTES + n * BOX, &a.b, full, s.b_line[n], depth, s.b_group);
            at.next();
        }
#pragma unroll 1
        for (int n = 0; n < ADD_STAGES; n++, at.next()) {
            const u32 full = shared_address(&shared.full[at.stage]), to = stages + at.stage * STAGE_BYTES;
            mbarrier_wait(shared_address(&shared.empty[at.stage]), at.parity);
            mbarrier_expect(full, 2 * boxes * BOX);
            for (int box = 0; box < 2 * boxes; box++) {
                const int wide = box % 2, down = box / 2;
                tma_load(to + (2 * wide + down) * BOX, &a.add, full, s.column + 128 * n + 64 * wide,
                         s.a_line + 64 * down, s.add_group, 0);
            }
        }
    }
}

#if QUANT
/* One thread: codes of all tiles. */
DEVICE void load_codes(const tiles_arguments &a, layout &shared) {
    pipeline_state<CODE_BUFFERS> to = {0, 1};
    slot_place slot = {0, 0};
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        const source s = source_of(a.p, w);
        const int steps = w.steps;
        mbarrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (steps < 0) return;
#pragma unroll 1
        for (int step = 0; step < steps; step += CODE_STEPS, to.next()) {
            const u32 full = shared_address(&shared.codes.full[to.stage]);
            mbarrier_wait(shared_address(&shared.codes.empty[to.stage]), to.parity);
            mbarrier_expect(full, sizeof shared.codes.buffer[0]);
#pragma unroll
            for (int n = 0; n < B_BOXES; n++)
                tma_load(shared_address(shared.codes.buffer[to.stage]) + n * (64 * CODE_ROW), &a.b, full,
                         step / CODE_STEPS * CODE_ROW, s.b_line[n], s.b_group, 0);
        }
    }
}

/* Warpgroups that take turns: values of a tile's columns, of which each thread has one, where a stage is free. */
DEVICE void convert_tiles(const tiles_arguments &a, layout &shared) {
    const u32 stages = shared_address(shared.stage);
    const int own = threadIdx.x % 128;
    const int group = threadIdx.x / 128 % CONVERTERS;
    int turn = 0; /* whose piece it is */
    stage_place to = {0, 1};
    pipeline_state<CODE_BUFFERS> from = {0, 0};
    slot_place slot = {0, 0};
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        const mm_size column = w.at.column, held = w.at.s.held;
        const int steps = w.steps;
        release_to(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (steps < 0) return;
        code_scales scales[CODE_STEPS][CODE_LINES], next[CODE_STEPS][CODE_LINES];
        scales_of_piece(a.p, held, column + own, turn == group ? 0 : CODE_STEPS, next);
#pragma unroll 1
        for (int first = 0; first < steps; first += CODE_STEPS, from.next(), turn ^= 1) {
            const int count = steps - first < CODE_STEPS ? steps - first : CODE_STEPS;
            if (turn != group) {
                for (int part = 0; part < count; part++) to.next();
                continue;
            }
#pragma unroll
            for (int part = 0; part < CODE_STEPS; part++)
#pragma unroll
                for (int n = 0; n < CODE_LINES; n++) scales[part][n] = next[part][n];
            scales_of_piece(a.p, held, column + own, first + CONVERTERS * CODE_STEPS, next);
            mbarrier_wait(shared_address(&shared.codes.full[from.stage]), from.parity);
#pragma unroll
            for (int part = 0; part < CODE_STEPS; part++) {
                if (part >= count) continue;
                mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
#pragma unroll
                for (int n = 0; n < CODE_LINES; n++)
                    convert_line(shared_address(shared.codes.buffer[from.stage]), part, own + 128 * n, scales[part][n],
                                 a.p.quant, shared.codes.table, stages + to.stage * STAGE_BYTES + A_BYTES);
                fence_proxy_async();
                release_to(shared_address(&shared.full[to.stage]));
                to.next();
            }
            release_to(shared_address(&shared.codes.empty[from.stage]));
        }
    }
}
#endif

/* ---- Consumers -------------------------------------------------------------------------------------- */

/* A warp is done with a stage. */
DEVICE void release(layout &shared, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[stage]));
}

/* Steps of the depth from `rest` on are another group's. */
DEVICE void clear_depth(u8 *stage, int rest) {
    const int own = threadIdx.x - 128, pieces = (DEPTH - rest) * 8; /* of 16 bytes, in a box */
    for (int n = own; n < 6 * pieces; n += 128 * 2)
        *(uint4 *)(stage + n / pieces * BOX + rest * 128 + n % pieces * 16) = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    named_barrier_sync(ALL_CONSUMERS, 128 * 2);
}

#if BIAS
/* Of column n of b of a tile whose first column of out is `column`. */
DEVICE float bias_at(const mm_product &p, const mm_segment &s, mm_size column, int n) {
    if (GATED == 0) return bias_of_column(p, s, column + n).gate;
    const column_bias b = bias_of_column(p, s, column + (GATED == 1 ? n / 128 * 64 + n % 64 : n / 2));
    return (GATED == 1 ? n / 64 : n) % 2 ? b.value : b.gate;
}
#endif

#if ADD_BOXES
/* What is added: each of the ring's last stages of a tile has two boxes of columns, and of each two of rows. */
template <bool ALL>
DEVICE added_in_boxes wait_for_added(layout &shared, int warpgroup, stage_place at) {
    added_in_boxes added = {{0, 0}, 2 * BOX};
#pragma unroll
    for (int n = 0; n < ADD_STAGES; n++, at.next()) {
        mbarrier_wait(shared_address(&shared.full[at.stage]), at.parity);
        added.first[n] = shared_address(shared.stage) + at.stage * STAGE_BYTES + (ALL ? warpgroup * BOX : 0);
    }
    if (!ALL && ADD_STAGES == 1) added.first[0] += warpgroup * 2 * BOX;
    if (!ALL && ADD_STAGES == 2 && warpgroup) added.first[0] = added.first[1];
    return added;
}
#endif

/* A warpgroup's sums of a tile, `columns` of b: all of them and half of the rows, or half of them and all 64 rows. */
template <int columns>
DEVICE void compute_tile(const tiles_arguments &a, layout &shared, int slot, int warpgroup, stage_place &at) {
    enum { ALL = columns == COLUMNS, A_STEP = A_FLIPPED ? 16 * 128 : 32, B_STEP = B_FLIPPED ? 32 : 16 * 128 };
    const u32 stages = shared_address(shared.stage);
    const work &w = shared.works[slot];
    const mm_size row = w.at.row + (ALL ? warpgroup * 64 : 0);
    const mm_size column = w.at.column + (ALL ? 0 : warpgroup * out_columns(a.p) / 2);
    const int steps = w.steps, rest = SPLIT == MM_DEPTH ? (int)(w.at.s.depth % DEPTH) : 0;
    const u32 own_a = ALL ? warpgroup * BOX : 0, own_b = A_BYTES + (ALL ? 0 : warpgroup * (B_BOXES / 2) * BOX);
#if BIAS
    enum { BIASES = (columns + 127) / 128 };
    float bias[BIASES]; /* on its way meanwhile */
#pragma unroll
    for (int n = 0; n < BIASES; n++) bias[n] = bias_at(a.p, w.at.s, column, 128 * n + threadIdx.x % 128);
#endif
    float sums[columns / 2];
#pragma unroll
    for (int n = 0; n < columns / 2; n++) sums[n] = 0;
    int before = -1;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const u32 stage = stages + at.stage * STAGE_BYTES;
        mbarrier_wait(shared_address(&shared.full[at.stage]), at.parity);
        if (SPLIT == MM_DEPTH && rest && step == steps - 1) clear_depth(shared.stage + at.stage * STAGE_BYTES, rest);
        const u64 left = smem_descriptor(stage + own_a, BOX), right = smem_descriptor(stage + own_b, BOX);
        hold(sums);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
            wgmma<columns>::template ss<A_FLIPPED, !B_FLIPPED>(sums, advance_descriptor(left, k * A_STEP),
                                                               advance_descriptor(right, k * B_STEP), 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0) release(shared, before);
        before = at.stage;
        at.next();
    }
    wgmma_wait<0>();
    hold(sums);
    if (before >= 0) release(shared, before);
#if BIAS
    float *own = shared.bias[slot][warpgroup];
#pragma unroll
    for (int n = 0; n < BIASES; n++) own[128 * n + threadIdx.x % 128] = bias[n];
    named_barrier_sync(ONE_WARPGROUP + warpgroup, 128);
    const bias_in_tile biases = {own};
#else
    const bias_in_memory biases = {};
#endif
#if ADD_BOXES
    write_sums(a.p, w.at.s, row, column, sums, biases, wait_for_added<ALL>(shared, warpgroup, at));
    for (int n = 0; n < ADD_STAGES; n++, at.next()) release(shared, at.stage);
#else
    write_sums(a.p, w.at.s, row, column, sums, biases, added_in_memory{});
#endif
}

DEVICE void compute_tiles(const tiles_arguments &a, layout &shared, int warpgroup) {
    stage_place at = {0, 0};
    slot_place slot = {0, 0};
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        if (w.steps < 0) return;
        if (!HAS_HALVES || w.boxes == 2)
            compute_tile<COLUMNS>(a, shared, slot.stage, warpgroup, at);
        else
            compute_tile<COLUMNS / 2>(a, shared, slot.stage, warpgroup, at);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
    }
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1 + (QUANT ? 4 : 0));
        mbarrier_init(shared_address(&shared.empty[n]), CONSUMER_WARPS);
    }
    for (int n = 0; n < SLOTS; n++) {
        mbarrier_init(shared_address(&shared.work_full[n]), 1);
        mbarrier_init(shared_address(&shared.work_empty[n]), CONSUMER_WARPS + 1 + (QUANT ? 4 * CONVERTERS + 1 : 0));
    }
#if QUANT
    for (int n = 0; n < CODE_BUFFERS; n++) {
        mbarrier_init(shared_address(&shared.codes.full[n]), 1);
        mbarrier_init(shared_address(&shared.codes.empty[n]), 4);
    }
#endif
    mbarrier_fence_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ tiles_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    sort_groups(a.p, shared);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a.a);
        prefetch_tensor_map(&a.b);
        if (ADD_BOXES) prefetch_tensor_map(&a.add);
        set_barriers(shared);
    }
#if QUANT
    fill_table(shared.codes.table);
#endif
    if (SPLIT == MM_DEPTH) fence_proxy_async(); /* the stages held what groups are sorted by */
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x == 0) load_tiles(a, shared);
        if (warp == 1) find_work(a.p, shared);
#if QUANT
        if (threadIdx.x == 64) load_codes(a, shared);
    } else if (warp >= 4 + CONSUMER_WARPS) {
        convert_tiles(a, shared);
#endif
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        compute_tiles(a, shared, warp / 4 - 1);
    }
}
