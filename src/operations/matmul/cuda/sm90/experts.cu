/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of a layer of experts with codes of 4 or 8 bits on sm_90a, as codes.cu has single ones: rows of a are
 * dealt out to experts. A tile is COLUMNS columns of an expert's b and LINES of its rows. Blocks stay, RESIDENT on each
 * processor, and have as many tiles as others, one after the other, those of an expert's columns in turn. What brings
 * codes and rows, and what brings scales, runs ahead of what multiplies, also into the next tile, so that reading does
 * not stop where tiles begin and end.
 *
 * One warp copies codes by TMA, and rows of a one by one, as a list may name them: only those that there are. Two make
 * scales, WINDOW steps at a time, and one tells where rows lie. The chunks of a step are dealt to PHASES sets of warps,
 * so that a stage is free again after a short time: a row's bits depend neither on other rows nor on how many there
 * are.
 *
 * Constants: those of codes_step.cuh; EXPERTS, at most; STAGES; STEPS, of a tile, 0 = rows are copied with the codes of
 * each step, else rows of a tile stay for all tiles of columns; RESIDENT; EARLY, the kernel before this one makes rows
 * of a, but sizes are older; OWN_LISTS, there are no lists of rows: each block finds them in the choice of the tokens,
 * and the first product tells where they are.
 */
#define ROW_PITCH (16 * (BITS == 4 ? 32 : 16) + 16) /* lanes read eight rows from different banks */
#define SPLIT_DEPTH 1
#define LOCAL_PARTS PHASES
#define SCALES_AT_ONCE (GROUP >= 4 && LINES == 8 ? 8 : 4)
#define WARPS (PART_WARPS + 4) /* the last four, of which one copies and two make scales, give away registers */
#include "operations/matmul/cuda/sm90/codes_step.cuh"
#include "operations/matmul/cuda/moe_lists.cuh"
#include "operations/matmul/cuda/sm90/experts.cuh"

enum {
    SCALE_WARPS = 2,
    WARP_TILES = (TILE_WARPS + SCALE_WARPS - 1) / SCALE_WARPS, /* whose scales one of them makes */
    CODES_BYTES = COLUMNS * CODE_BYTES,
    LINES_OF_LANE = (LINES + 31) / 32,
    SERVICE_REGS = RESIDENT == 2 ? 48 : 40,
    CONSUMER_REGS = RESIDENT == 2 ? 96 : 232,
    OWN_CHUNKS = CODE_CHUNKS / PHASES, /* of a step, that a warp has */
    BUFFERS = 2, /* of scales */
    NOBODY = 0xffff,
};

struct layout {
    u8 codes[STAGES][CODES_BYTES];
    u8 rows[STEPS ? STEPS : STAGES][LINES * ROW_PITCH];
    part_sums sums[PHASES];
#if TABLE
    code_table table;
#endif
    group_scales scales[BUFFERS][TILE_WARPS][WINDOW_GROUPS];
    u64 full[STAGES], empty[STAGES], scales_full[BUFFERS], scales_empty[BUFFERS], sums_free;
    int rows_before[EXPERTS + 2], tiles_before[EXPERTS + 2];
#if OWN_LISTS
    u16 chosen[CODE_OWN_ROWS]; /* expert of each row of the choice */
    int lines[LINES];          /* of the tile that is copied: rows of the choice */
#endif
};

/* ---- Tiles ------------------------------------------------------------------------------------------- */

DEVICE int tiles_of_rows(int rows) {
    return (rows + LINES - 1) / LINES;
}

#if OWN_LISTS
/* Rows of each expert, into rows_before. All threads. */
DEVICE void count_rows(const experts_arguments &a, layout &shared) {
    enum { ROUNDS = (CODE_OWN_ROWS + THREADS - 1) / THREADS };
    const mm_product &p = a.p;
    const int groups = (int)p.groups, each = (int)a.choice.each;
    mm_size expert[ROUNDS];
#pragma unroll
    for (int n = 0; n < ROUNDS; n++) { /* asked for before anybody waits */
        const int row = threadIdx.x + n * THREADS;
        expert[n] = row < p.rows ? mm_number(&a.choice.index, row / each * a.choice.index_row + row % each) : -1;
    }
    for (int group = threadIdx.x; group < groups; group += THREADS) shared.rows_before[group] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < ROUNDS; n++) {
        const int row = threadIdx.x + n * THREADS;
        const bool is_there = expert[n] >= 0 && expert[n] < groups;
        if (row >= p.rows) continue;
        shared.chosen[row] = is_there ? (u16)expert[n] : NOBODY;
        if (is_there) atomicAdd(&shared.rows_before[expert[n]], 1);
        if (!is_there && !EARLY && blockIdx.x == 0) a.choice.place[row] = -1;
    }
}

/* Rows and tiles of rows before each expert, and before and after the rows of none. One warp. */
DEVICE void count_tiles(const mm_product &p, layout &shared) {
    const int lane = threadIdx.x % 32, groups = (int)p.groups, rows = (int)p.rows;
    const int each = (groups + 31) / 32, first = lane * each, end = first + each < groups ? first + each : groups;
    int own = 0; /* rows, and tiles in the high half */
    for (int group = first; group < end; group++)
        own += shared.rows_before[group] | tiles_of_rows(shared.rows_before[group]) << 16;
    int at = own;
#pragma unroll
    for (int n = 1; n < 32; n *= 2) {
        const int other = __shfl_up_sync(~0u, at, n);
        if (lane >= n) at += other;
    }
    if (lane == 31) {
        shared.rows_before[groups] = at & 0xffff, shared.tiles_before[groups] = at >> 16;
        shared.rows_before[groups + 1] = rows;
        shared.tiles_before[groups + 1] = (at >> 16) + tiles_of_rows(rows - (at & 0xffff));
    }
    at -= own;
    for (int group = first; group < end; group++) {
        const int size = shared.rows_before[group];
        shared.rows_before[group] = at & 0xffff, shared.tiles_before[group] = at >> 16;
        at += size | tiles_of_rows(size) << 16;
    }
    __syncwarp();
}
#else
/* Rows of each expert, into rows_before. All threads. */
DEVICE void count_rows(const experts_arguments &a, layout &shared) {
    const mm_product &p = a.p;
    const int groups = (int)p.groups;
    for (int group = threadIdx.x; group < groups; group += THREADS) {
        const mm_size size = __ldcg((const mm_size *)p.sizes.data + group); /* a copy may be older than EARLY */
        shared.rows_before[group] = size < 0 ? 0 : (int)mm_least(size, p.rows);
    }
}

/* Rows and tiles of rows before each expert, and before and after the rows of none. One warp. */
DEVICE void count_tiles(const mm_product &p, layout &shared) {
    const int lane = threadIdx.x % 32, groups = (int)p.groups, rows = (int)p.rows;
    const int each = (groups + 1 + 31) / 32, first = lane * each, end = first + each;
    mm_size own = 0;
    for (int group = first; group < end && group < groups; group++) own += shared.rows_before[group];
    mm_size at = sum_up_to(own) - own;
    int tiles = 0;
    for (int group = first; group < end && group <= groups; group++) {
        const mm_size size = group < groups ? shared.rows_before[group] : rows;
        const int begin = (int)mm_least(at, rows);
        at += size;
        shared.rows_before[group] = begin;
        shared.tiles_before[group] = tiles;
        tiles += tiles_of_rows((int)mm_least(at, rows) - begin);
    }
    const int before = (int)sum_up_to(tiles) - tiles;
    for (int group = first; group < end && group <= groups; group++) shared.tiles_before[group] += before;
    if (lane == 31) shared.tiles_before[groups + 1] = before + tiles, shared.rows_before[groups + 1] = rows;
    __syncwarp();
}
#endif

/* The tiles of a block, in turn: a row of tiles of an expert, and a tile of columns. */
struct tile_run {
    int left, line, column, columns;
    bool is_begun; /* `at` has the row of tiles of `line` */
    place at;
};

DEVICE tile_run tiles_of_block(const mm_product &p, const layout &shared) {
    const u32 wide = out_columns(p), columns = ((u32)p.columns + wide - 1) / wide;
    const u32 all = shared.tiles_before[p.groups + 1] * columns, each = all / gridDim.x, more = all % gridDim.x;
    const u32 begin = blockIdx.x * each + (blockIdx.x < more ? blockIdx.x : more);
    tile_run run = {};
    run.columns = (int)columns;
    run.left = (int)(each + (blockIdx.x < more));
    run.line = (int)(begin / columns);
    run.column = (int)(begin % columns);
    return run;
}

/* False if there is none left. */
DEVICE bool next_tile(const mm_product &p, const layout &shared, tile_run *run) {
    if (run->left-- == 0) return false;
    place *at = &run->at;
    if (!run->is_begun) {
        int low = 0, high = (int)p.groups + 1; /* the last group that begins at this tile or before it */
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (shared.tiles_before[middle] <= run->line)
                low = middle;
            else
                high = middle;
        }
        *at = place{};
        at->s.first = shared.rows_before[low];
        at->s.rows = shared.rows_before[low + 1] - shared.rows_before[low];
        at->s.depth = p.depth;
        at->row = (run->line - shared.tiles_before[low]) * LINES;
        hold(p, low, &at->s);
    }
    at->column = run->column * out_columns(p);
    run->is_begun = ++run->column < run->columns;
    if (!run->is_begun) run->column = 0, run->line++;
    return true;
}

DEVICE int steps_of(const experts_arguments &a, const place &at) {
    return at.s.idle ? 0 : (int)a.steps;
}
/* Rows of a tile. */
DEVICE int lines_of(const place &at) {
    return (int)mm_least(LINES, at.s.rows - at.row);
}

/* ---- Copies ------------------------------------------------------------------------------------------- */

DEVICE void fill_zeros(u8 *to, u32 bytes) {
    for (u32 n = 0; n < bytes; n += 16) *(uint4 *)(to + n) = uint4{};
}

#if OWN_LISTS && !EARLY
/* One warp: each row of the choice that a tile has, and its line. */
template <class FOUND>
DEVICE void find_lines(const experts_arguments &a, const layout &shared, const place &at, FOUND found) {
    const int lane = threadIdx.x % 32, lines = lines_of(at), first = (int)at.row;
    int before = 0;
    for (int row = lane; row < (int)a.p.rows + lane; row += 32) {
        const bool is_own = row < a.p.rows && shared.chosen[row] == at.s.group;
        const u32 here = __ballot_sync(~0u, is_own);
        const int line = before + __popc(here & ((1u << lane) - 1)) - first;
        before += __popc(here);
        if (is_own && line >= 0 && line < lines) found(row, line);
    }
}

/* One warp: tells others where rows of the tiles that begin an expert's columns lie, and their weights. */
DEVICE void tell_places(const experts_arguments &a, const layout &shared) {
    tile_run run = tiles_of_block(a.p, shared);
    if (run.column != 0 && run.column + run.left <= run.columns) return;
    while (next_tile(a.p, shared, &run)) {
        const place &at = run.at;
        if (at.column != 0 || at.s.idle) continue;
        find_lines(a, shared, at, [&](int row, int line) {
            const mm_size place = at.s.first + at.row + line;
            a.choice.place[row] = place;
            copy_weight(a.choice, row, place);
        });
    }
}
#endif

/* Row i of an expert, in a; below 0: none. */
DEVICE mm_size row_of_expert(const experts_arguments &a, const layout &shared, const place &at, mm_size i) {
#if OWN_LISTS && !EARLY
    if (at.s.idle) return -1;
    for (int row = 0; row < (int)a.p.rows; row++)
        if (shared.chosen[row] == at.s.group && i-- == 0) return row / (int)a.choice.each;
    return -1;
#else
    return row_of_a(a.p, at, i);
#endif
}

/* Where a lane's rows of a tile lie; nullptr: rows of zeros. */
struct row_sources {
    const u8 *row[LINES_OF_LANE];
    int count; /* of all lanes: rows that there are */
};
DEVICE row_sources sources_of(const experts_arguments &a, layout &shared, const place &at) {
    const mm_product &p = a.p;
    row_sources from = {};
#if OWN_LISTS && !EARLY
    __syncwarp();
    if (!at.s.idle) find_lines(a, shared, at, [&](int row, int line) { shared.lines[line] = row; });
    __syncwarp();
#endif
#pragma unroll
    for (int n = 0; n < LINES_OF_LANE; n++) {
        const int line = threadIdx.x % 32 + 32 * n;
        mm_size row = -1;
#if OWN_LISTS && !EARLY
        if (line < lines_of(at) && !at.s.idle) row = shared.lines[line] / (int)a.choice.each;
#else
        if (line < lines_of(at)) row = row_of_a(p, at, at.row + line);
#endif
        if (row >= 0) from.row[n] = (const u8 *)p.a.data + row * p.a.row * 2;
        from.count += __popc(__ballot_sync(~0u, row >= 0));
    }
    return from;
}

/* One lane: codes of a step. */
DEVICE void load_codes(const experts_arguments &a, layout &shared, const place &at, int step, u32 stage) {
    const u32 full = shared_address(&shared.full[stage]);
    mbarrier_add_bytes(full, CODES_BYTES);
#pragma unroll
    for (int box = 0; box < BOXES; box++)
        tma_load(shared_address(shared.codes[stage]) + box * CODE_BOX, &a.codes, full, step * CODE_BYTES,
                 (int)box_column(a.p, at.column, box), (int)at.s.held, 0);
}

/* One warp: rows of a step, by a lane each; what is not there counts as zeros. */
DEVICE void load_rows_of_step(const experts_arguments &a, layout &shared, const row_sources &from, int lines, int step,
                              u32 stage) {
    const u32 full = shared_address(&shared.full[stage]);
    const u32 bytes = (u32)mm_least(DEPTH, a.p.depth - (mm_size)step * DEPTH) * 2;
    const int lane = threadIdx.x % 32, place = STEPS ? step : (int)stage;
#pragma unroll
    for (int n = 0; n < LINES_OF_LANE; n++) {
        const u32 there = from.row[n] ? bytes : 0;
        if (lane + 32 * n >= lines || there == DEPTH * 2) continue;
        fill_zeros(shared.rows[place] + (lane + 32 * n) * ROW_PITCH + there, DEPTH * 2 - there);
        fence_proxy_async();
    }
    __syncwarp();
    if (lane == 0) mbarrier_expect(full, from.count * bytes);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < LINES_OF_LANE; n++)
        if (from.row[n])
            bulk_load(shared_address(shared.rows[place] + (lane + 32 * n) * ROW_PITCH),
                      from.row[n] + (mm_size)step * (DEPTH * 2), bytes, full);
}

/* One warp. With EARLY codes that fit the ring are asked for before there are rows. */
DEVICE void load_tiles(const experts_arguments &a, layout &shared) {
    tile_run run = tiles_of_block(a.p, shared);
    const bool leads = threadIdx.x % 32 == 0;
    pipeline_state<STAGES> to = {0, 1};
    bool is_first = EARLY;
    row_sources from;
    int listed = -1; /* of `from` */
    u32 copied = 0;  /* steps of all tiles */
    for (int line = run.line; next_tile(a.p, shared, &run); line = run.line) {
        const place &at = run.at;
        const int steps = steps_of(a, at), lines = lines_of(at);
        const int ahead = is_first ? (steps < STAGES ? steps : STAGES) : 0;
        const bool is_kept = STEPS && line == listed;
        if (line != listed) from = sources_of(a, shared, at), listed = line;
        for (int step = 0; leads && step < ahead; step++) load_codes(a, shared, at, step, step);
        if (is_first) wait_for_previous(), is_first = false;
#pragma unroll 1
        for (int step = 0; step < steps; step++, to.next(), copied++) {
            mbarrier_wait(shared_address(&shared.empty[to.stage]), to.parity);
            if (leads && step >= ahead) load_codes(a, shared, at, step, to.stage);
            if (is_kept) {
                if (leads) mbarrier_arrive(shared_address(&shared.full[to.stage]));
                continue;
            }
            if (STEPS && STAGES > STEPS && copied >= STEPS) { /* the same step of the tile before has been multiplied */
                const u32 before = copied - STEPS;
                mbarrier_wait(shared_address(&shared.empty[before % STAGES]), before / STAGES & 1);
            }
            load_rows_of_step(a, shared, from, lines, step, to.stage);
        }
    }
}

/* Warp `own` of those that make scales. */
DEVICE void make_scales(const experts_arguments &a, layout &shared, int own) {
    tile_run run = tiles_of_block(a.p, shared);
    pipeline_state<BUFFERS> to = {0, 1};
    while (next_tile(a.p, shared, &run)) {
        const int steps = steps_of(a, run.at);
        scale_row row[WARP_TILES];
#pragma unroll
        for (int n = 0; n < WARP_TILES; n++) row[n] = scale_row_of(a.p, run.at, (own + n * SCALE_WARPS) % TILE_WARPS);
#pragma unroll 1
        for (int step = 0; step < steps; step += WINDOW, to.next()) {
            group_scales *scales[WARP_TILES];
#pragma unroll
            for (int n = 0; n < WARP_TILES; n++)
                scales[n] = shared.scales[to.stage][(own + n * SCALE_WARPS) % TILE_WARPS];
            mbarrier_wait(shared_address(&shared.scales_empty[to.stage]), to.parity);
            load_scales(a.p, scales, row, step, 1);
            if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared.scales_full[to.stage]));
        }
    }
}

/* ---- Products ----------------------------------------------------------------------------------------- */

/* Where a warp is in the rings. */
struct ring_places {
    pipeline_state<STAGES> step;
    pipeline_state<BUFFERS> scales;
};

/* Keeps what is made of threadIdx in a register. */
DEVICE u32 kept(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* A lane's places: of its codes and rows in the first step, of its warp's scales, and whether it tells others. */
struct lane_places {
    u32 codes, rows;
    const group_scales *scales;
    bool leads;
};
DEVICE lane_places places_of_lane(const layout &shared) {
    const int warp = threadIdx.x / 32, tile = warp % TILE_WARPS, first = warp / TILE_WARPS * OWN_CHUNKS;
    return {kept(shared_address(shared.codes) + tile * (OWN_ROWS * CODE_BYTES) + lane_codes(first)),
            kept(shared_address(shared.rows) + lane_rows(first)), shared.scales[0][tile] + first / GROUP,
            threadIdx.x % 32 == 0};
}

/* Of a tile with so many eights of rows. */
template <int eights>
DEVICE void compute_tile(layout &shared, const lane_places &own, int steps, ring_places *from,
                         tile_sums (&sums)[TILES]) {
#if TABLE
    const u32 table = shared_address(shared.table) + threadIdx.x % 32 * 4;
#else
    const u32 table = 0;
#endif
    u32 rows = own.rows;
#pragma unroll 1
    for (int first = 0; first < steps; first += WINDOW) {
        const group_scales *scales = own.scales + from->scales.stage * (TILE_WARPS * WINDOW_GROUPS);
        mbarrier_wait(shared_address(&shared.scales_full[from->scales.stage]), from->scales.parity);
#pragma unroll 1
        for (int left = (int)kept(mm_least(WINDOW, steps - first)); left > 0; left--) {
            const u32 stage = from->step.stage;
            mbarrier_wait(shared_address(&shared.full[stage]), from->step.parity);
            compute_step<OWN_CHUNKS, eights>(own.codes + stage * CODES_BYTES,
                                             STEPS ? rows : rows + stage * (LINES * ROW_PITCH), scales, table, sums);
            __syncwarp();
            if (own.leads) mbarrier_arrive(shared_address(&shared.empty[stage]));
            if (STEPS) rows += LINES * ROW_PITCH;
            scales += GROUPS;
            from->step.next();
        }
        if (own.leads) mbarrier_arrive(shared_address(&shared.scales_empty[from->scales.stage]));
        from->scales.next();
    }
}

/* Half of the warps writes the results of a tile, while the other half begins the next one, whose results it writes. */
DEVICE void multiply_tiles(const experts_arguments &a, layout &shared) {
    enum { WRITERS = CONSUMERS / 2 };
    const int warp = threadIdx.x / 32, half = warp / (PART_WARPS / 2);
    tile_run run = tiles_of_block(a.p, shared);
    const lane_places own = places_of_lane(shared);
    ring_places from = {};
    pipeline_state<1> free = {0, 1};
    for (int turn = 0; next_tile(a.p, shared, &run); turn ^= 1, free.next()) {
        const place &at = run.at;
        {
            tile_sums sums[TILES] = {};
            if (EIGHTS == 2 && lines_of(at) <= 8)
                compute_tile<1>(shared, own, steps_of(a, at), &from, sums);
            else
                compute_tile<EIGHTS>(shared, own, steps_of(a, at), &from, sums);
            mbarrier_wait(shared_address(&shared.sums_free), free.parity);
            put_sums(shared.sums[warp / TILE_WARPS], warp % TILE_WARPS, sums);
        }
        if (half != turn) {
            named_barrier_arrive(ALL_CONSUMERS, CONSUMERS);
            continue;
        }
        named_barrier_sync(ALL_CONSUMERS, CONSUMERS);
        if (EARLY) wait_for_previous(); /* other results of the kernel before */
        const auto seen = [&](float sum, mm_size line, mm_size column) -> float {
            if (!ZERO || fabsf(sum) < INFINITY || at.s.idle) return sum;
            const mm_size row = row_of_expert(a, shared, at, line - at.s.first);
            return row < 0 ? 0 : sum_again(a.p, at.s.held, row, column);
        };
        write_tile_by<WRITERS>(threadIdx.x % WRITERS, a.p, shared.sums, at, 0, seen);
        __syncwarp();
        if (own.leads) mbarrier_arrive(shared_address(&shared.sums_free));
    }
}

DEVICE void set_barriers(layout &shared) {
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.full[n]), 1);
        mbarrier_init(shared_address(&shared.empty[n]), PART_WARPS);
    }
    for (int n = 0; n < BUFFERS; n++) {
        mbarrier_init(shared_address(&shared.scales_full[n]), SCALE_WARPS);
        mbarrier_init(shared_address(&shared.scales_empty[n]), PART_WARPS);
    }
    mbarrier_init(shared_address(&shared.sums_free), PART_WARPS / 2);
    mbarrier_fence_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) product(const __grid_constant__ experts_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a.codes);
        set_barriers(shared);
    }
#if TABLE
    make_table(shared.table);
#endif
    if (!EARLY) wait_for_previous();
    launch_dependents(); /* what comes next may read sizes */
    count_rows(a, shared);
    __syncthreads();
    if (warp == 0) count_tiles(a.p, shared);
    __syncthreads();
    if (warp >= PART_WARPS) {
        setmaxnreg_dec<SERVICE_REGS>();
        if (warp == PART_WARPS) load_tiles(a, shared);
        if (warp > PART_WARPS && warp <= PART_WARPS + SCALE_WARPS) make_scales(a, shared, warp - PART_WARPS - 1);
#if OWN_LISTS && !EARLY
        if (warp > PART_WARPS + SCALE_WARPS) tell_places(a, shared);
#endif
    } else { /* with what comes after products: it would have the registers of copies */
        setmaxnreg_inc<CONSUMER_REGS>();
        multiply_tiles(a, shared);
    }
    if (EARLY) wait_for_previous(); /* who waits for this kernel waits for the one before it, too */
}
