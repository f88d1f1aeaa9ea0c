/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention with wgmma and TMA on sm_90a: bf16 and f16, head sizes up to 128, visibility by positions only. One
 * producer warpgroup drives TMA, CONSUMERS warpgroups each own 64 rows of a tile of one query head. The QK^T of a block
 * of KEYS runs while the PV of the block before does. CTAs are persistent; the tile scheduler is static, without
 * counters in memory. recompute.cu runs after it. Besides the constants of tiles.cuh:
 *
 *   STAGES   of the ring of K blocks, and of that of V blocks
 *   PAGES    rows of a page, if keys are in pages: a multiple of 8 that divides KEYS, or is a multiple of it; else 0
 *   BLOCKS   CTAs on one SM
 *   PRODUCER_REGS, CONSUMER_REGS   registers of a thread, by setmaxnreg
 */
#include "operations/attention/cuda/sm90/tiles.cuh"

enum {
    THREADS_IN_ALL = 128 * (CONSUMERS + 1),
    SLOTS = 4, /* work tiles scheduled ahead */
    MOST_UNORDERED = STAGES > 5 ? STAGES - 5 : 0,
};

struct layout {
    u8 query[2][CONSUMERS * QUERY_BYTES]; /* this tile and the next */
    u8 key[STAGES * KEY_BYTES];
    u8 value[STAGES * VALUE_BYTES];
    u64 query_full[2][CONSUMERS], query_empty[2][CONSUMERS], key_full[STAGES], key_empty[STAGES],
        value_full[STAGES], value_empty[STAGES], work_full[SLOTS], work_empty[SLOTS];
    work_tile work_tiles[SLOTS];
    warpgroup_range ranges[SLOTS][CONSUMERS];
    u32 nonfinite[EJKI_CUDA_NONFINITE_WORDS];
    int unordered[SLOTS];
    order tiles;
};

typedef pipeline_state<STAGES> stage_place;
typedef pipeline_state<SLOTS> slot_place;
typedef pipeline_state<2> query_place;

/* ---- Producer --------------------------------------------------------------------------------------- */

/* One lane: 64 columns and `rows` rows at a time. */
template <int dim, int rows>
DEVICE void load_columns(u32 to, u32 barrier, const tensor_map *map, int token, int head,
                         int entry) {
#pragma unroll
    for (int n = 0; n < pitch_of(dim) / 64; n++)
        tma_load(to + n * rows * 128, map, barrier, n * 64, token, head, entry);
}

/*
 * Blocks that a warpgroup may skip without waiting for its turn: at most as many as the warpgroup with the most visible
 * blocks skips, capped at MOST_UNORDERED stages, so that a warpgroup that runs ahead finds its blocks loaded. By one
 * lane for each warpgroup.
 */
DEVICE int unordered_skips(const work_tile &w, const warpgroup_range &visible) {
    const int most = __reduce_max_sync((1u << CONSUMERS) - 1, visible.end - visible.begin);
    return lesser(w.end - w.begin - most, MOST_UNORDERED);
}

/* One warp: the tile scheduler. */
DEVICE void schedule_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    slot_place slot = {0, 1};
    const int rounds = rounds_of(schedule_of(p.all, shared.tiles, p.heads_together));
    for (int round = 0; round <= rounds; round++) {
        work_tile w;
        if (round == rounds)
            w.begin = 1, w.end = 0;
        else if (!work_tile_of_round(p, shared.tiles, round, &w))
            continue;
        mbarrier_wait(shared_address(&shared.work_empty[slot.stage]), slot.parity);
        const int lane = threadIdx.x % 32;
        if (lane < CONSUMERS) {
            if (lane == 0) shared.work_tiles[slot.stage] = w;
            if (round < rounds) {
                const warpgroup_range visible = warpgroup_range_of(w, lane);
                shared.ranges[slot.stage][lane] = visible;
                if (MOST_UNORDERED > 0) shared.unordered[slot.stage] = unordered_skips(w, visible);
            }
            mbarrier_arrive(shared_address(&shared.work_full[slot.stage]));
        }
        slot.next();
    }
}

/* One thread: the queries of a tile; rows before its sequence hold other tokens, or 0. */
DEVICE void load_queries(const ejki_cuda_sm90_problem &p, layout &shared, const query_place &at,
                         int query, int head, int entry) {
#pragma unroll
    for (int n = 0; n < CONSUMERS; n++) {
        const u32 full = shared_address(&shared.query_full[at.stage][n]);
        mbarrier_wait(shared_address(&shared.query_empty[at.stage][n]), at.parity);
        mbarrier_expect(full, QUERY_BYTES);
        load_columns<HEAD_DIM, 64>(shared_address(shared.query[at.stage]) + n * QUERY_BYTES, full,
                                   &p.query_map, query + n * 64, head, entry);
    }
}

#if PAGES
/* Rows of a page that a block has, and the pages of a block. */
enum { PAGE_ROWS = PAGES < KEYS ? PAGES : KEYS, PAGES_EACH = KEYS / PAGE_ROWS };

/* The page of the lane's rows of a block. */
DEVICE int page_of_lane(const ejki_cuda_pages &p, const work_tile &w, int block) {
    const int key = block * KEYS + threadIdx.x % 32 * PAGE_ROWS;
    int count;
    const i64 begin = paged_begin(p, w.number, &count);
    return threadIdx.x % 32 < PAGES_EACH && key < w.keys ? paged_place(p, begin, count, key / PAGES) : p.pages;
}

/* The lane's rows, 64 columns at a time; nothing but zeros come from behind the last page. */
template <int dim>
DEVICE void load_page(u32 to, u32 barrier, const tensor_map *map, int row, int head, int page) {
    if (threadIdx.x % 32 >= PAGES_EACH) return;
#pragma unroll
    for (int n = 0; n < pitch_of(dim) / 64; n++)
        tma_load(to + n * COLUMN_BYTES + threadIdx.x % 32 * PAGE_ROWS * 128, map, barrier, n * 64, row, head, page);
}

/* One warp: all TMA loads. Pages of a block are looked up while the one before is loaded. */
DEVICE void load_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    stage_place at = {0, 1};
    slot_place slot = {0, 0};
    query_place query_at = {0, 1};
    const bool leads = threadIdx.x % 32 == 0;
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work_tile w = shared.work_tiles[slot.stage];
        __syncwarp();
        if (leads) mbarrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (w.begin > w.end) break;
        int page = page_of_lane(p.all.pages, w, w.end - 1);
        if (leads) load_queries(p, shared, query_at, w.query + w.row, w.head, (int)w.entry);
        query_at.next();
        for (int block = w.end - 1; block >= w.begin; block--) {
            const int row = PAGES > KEYS ? block * KEYS % PAGES : 0, head = w.head / p.all.group, now = page;
            const u32 key_full = shared_address(&shared.key_full[at.stage]);
            const u32 value_full = shared_address(&shared.value_full[at.stage]);
            if (block > w.begin) page = page_of_lane(p.all.pages, w, block - 1);
            mbarrier_wait(shared_address(&shared.key_empty[at.stage]), at.parity);
            if (leads) mbarrier_expect(key_full, KEY_BYTES);
            __syncwarp();
            load_page<HEAD_DIM>(shared_address(shared.key) + at.stage * KEY_BYTES, key_full, &p.key_map, row, head,
                                now);
            mbarrier_wait(shared_address(&shared.value_empty[at.stage]), at.parity);
            if (leads) mbarrier_expect(value_full, VALUE_BYTES);
            __syncwarp();
            load_page<VALUE_DIM>(shared_address(shared.value) + at.stage * VALUE_BYTES, value_full, &p.value_map, row,
                                 head, now);
            at.next();
        }
    }
}
#else
/* One thread: all TMA loads. */
DEVICE void load_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    stage_place at = {0, 1};
    slot_place slot = {0, 0};
    query_place query_at = {0, 1};
    for (;;) {
        mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work_tile &w = shared.work_tiles[slot.stage];
        const int begin = w.begin, end = w.end, head = w.head, entry = (int)w.entry;
        const int kv_head = head / p.all.group, key = w.key, query = w.query + w.row;
        mbarrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (begin > end) break;
        load_queries(p, shared, query_at, query, head, entry);
        query_at.next();
        for (int block = end - 1; block >= begin; block--) {
            const int token = key + block * KEYS;
            const u32 key_full = shared_address(&shared.key_full[at.stage]);
            const u32 value_full = shared_address(&shared.value_full[at.stage]);
            mbarrier_wait(shared_address(&shared.key_empty[at.stage]), at.parity);
            mbarrier_expect(key_full, KEY_BYTES);
            load_columns<HEAD_DIM, KEYS>(shared_address(shared.key) + at.stage * KEY_BYTES,
                                         key_full, &p.key_map, token, kv_head, entry);
            mbarrier_wait(shared_address(&shared.value_empty[at.stage]), at.parity);
            mbarrier_expect(value_full, VALUE_BYTES);
            load_columns<VALUE_DIM, KEYS>(shared_address(shared.value) + at.stage * VALUE_BYTES,
                                          value_full, &p.value_map, token, kv_head, entry);
            at.next();
        }
    }
}
#endif

/* ---- Tiles ------------------------------------------------------------------------------------------ */

enum { ALL_CONSUMERS = 1, TURN = 2, CONSUMER_THREADS = 128 * CONSUMERS };

/*
 * Warpgroups issue their wgmma in turn (named barriers), once for each block of the tile that is not skipped out of
 * order, and once more: each has the tensor cores to itself, and its softmax overlaps with the products of the others.
 */
DEVICE void take_turn() {
    if (CONSUMERS > 1) named_barrier_sync(TURN + threadIdx.x / 128 - 1, 256);
}
DEVICE void give_turn() {
    if (CONSUMERS > 1) named_barrier_arrive(TURN + threadIdx.x / 128 % CONSUMERS, 256);
}

DEVICE void arrive(const u64 &barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&barrier));
}

DEVICE void wait_for_key(const layout &shared, const stage_place &at) {
    mbarrier_wait(shared_address(&shared.key_full[at.stage]), at.parity);
}
DEVICE void wait_for_value(const layout &shared, const stage_place &at) {
    mbarrier_wait(shared_address(&shared.value_full[at.stage]), at.parity);
}
DEVICE void release_key(const layout &shared, stage_place &at) {
    arrive(shared.key_empty[at.stage]);
    at.next();
}
DEVICE void release_value(const layout &shared, stage_place &at) {
    arrive(shared.value_empty[at.stage]);
    at.next();
}
DEVICE void skip_block(const layout &shared, int &unordered, stage_place &key, stage_place &value) {
    wait_for_key(shared, key);
    release_key(shared, key);
    wait_for_value(shared, value);
    release_value(shared, value);
    if (MOST_UNORDERED > 0 && unordered-- > 0) return;
    take_turn();
    give_turn();
}

/* Operands of a warpgroup in shared memory, and its places in the rings. */
struct stream {
    u32 queries, query, key, value;
    query_place query_at;
    stage_place key_at, value_at;
};

/* QK^T of a block, and PV of the block before while it runs. */
DEVICE void step(const ejki_cuda_sm90_problem &p, const layout &shared, const work_tile &w,
                 const warpgroup_range &t, int row, int block, stream &s, lane_rows &rows,
                 float (&out)[WIDTH / 2], float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
    wait_for_key(shared, s.key_at);
    take_turn();
    begin_scores(s.query, s.key + s.key_at.stage * KEY_BYTES, z);
    rescale(rows, out);
    wait_for_value(shared, s.value_at);
    begin_sums(weights, s.value + s.value_at.stage * VALUE_BYTES, out);
    give_turn();
    wgmma_wait<1>();
    hold(z);
    release_key(shared, s.key_at);
    const score_state l = find_scores(p, w, is_edge(t, block), row, block * KEYS, rows, z);
    finished(l.held, p.lowest, s.query);
    wgmma_wait<0>();
    hold(out);
    hold(weights);
    release_value(shared, s.value_at);
    make_weights(p, l, rows, z, weights);
}

/* The next work tile, as a lane has it. */
struct tile {
    const work_tile *w;
    warpgroup_range visible;
    int row, begin, end;
};

DEVICE tile tile_of(const layout &shared, const slot_place &slot, int warp) {
    mbarrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
    tile t;
    t.w = &shared.work_tiles[slot.stage];
    t.visible = shared.ranges[slot.stage][warp / 4];
    t.row = row_of_lane(*t.w, warp);
    t.begin = t.w->begin, t.end = t.w->end;
    return t;
}

DEVICE stream stream_of(const layout &shared, int warp) {
    stream s;
    s.queries = shared_address(shared.query) + warp / 4 * QUERY_BYTES;
    s.key = shared_address(shared.key);
    s.value = shared_address(shared.value);
    s.query_at = {0, 0};
    s.key_at = s.value_at = {0, 0};
    return s;
}

/* PV of the last block of a tile. */
DEVICE void last_sums(const layout &shared, const stream &s, lane_rows &rows,
                      float (&out)[WIDTH / 2], u32 (&weights)[KEYS / 4]) {
    rescale(rows, out);
    wait_for_value(shared, s.value_at);
    take_turn();
    begin_sums(weights, s.value + s.value_at.stage * VALUE_BYTES, out);
    give_turn();
}

/* Flags of tiles with NaN in their sums, for recompute.cu. */
DEVICE void write_flags(const ejki_cuda_sm90_problem &p, const layout &shared) {
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS);
    const int own = threadIdx.x - 128;
    if (own < EJKI_CUDA_NONFINITE_WORDS)
        p.nonfinite[blockIdx.x * EJKI_CUDA_NONFINITE_WORDS + own] = shared.nonfinite[own];
}

/*
 * All tiles of this CTA. `warp` counts consumers. The epilogue of a tile overlaps with the first QK^T of the next;
 * after the last tile that product is of whatever lies in memory.
 */
DEVICE void compute_tiles(const ejki_cuda_sm90_problem &p, layout &shared, int warp) {
    stream s = stream_of(shared, warp);
    slot_place slot = {0, 0};
    float out[WIDTH / 2], z[KEYS / 2];
    u32 weights[KEYS / 4];
    lane_rows rows;
    row_results results;
    int round = -1;
    if (warp / 4 == CONSUMERS - 1) give_turn();
    tile t = tile_of(shared, slot, warp);
    for (;;) {
        const bool over = t.begin > t.end;
        const int begin = t.begin;
        int block = t.end - 1, unordered = MOST_UNORDERED > 0 ? shared.unordered[slot.stage] : 0;
        if (!over) {
#pragma unroll 1
            for (; block >= t.visible.end; block--)
                skip_block(shared, unordered, s.key_at, s.value_at);
            mbarrier_wait(shared_address(&shared.query_full[s.query_at.stage][warp / 4]),
                         s.query_at.parity);
            wait_for_key(shared, s.key_at);
        }
        s.query = s.queries + s.query_at.stage * (CONSUMERS * QUERY_BYTES);
        take_turn();
        begin_scores(s.query, s.key + s.key_at.stage * KEY_BYTES, z);
        give_turn();
        if (round >= 0 && write_rows(p.all, results, PLAIN))
            atomicOr(&shared.nonfinite[round / 32 % EJKI_CUDA_NONFINITE_WORDS], 1u << round % 32);
        wgmma_wait<0>();
        hold(z);
        if (over) break;
        release_key(shared, s.key_at);
        start_rows(rows, out);
        const score_state l =
            find_scores(p, *t.w, is_edge(t.visible, block), t.row, block * KEYS, rows, z);
        make_weights(p, l, rows, z, weights);
        rows.scale[0] = rows.scale[1] = 1; /* there are no sums yet */
        block--;
#pragma unroll 1
        for (; block >= t.visible.begin; block--)
            step(p, shared, *t.w, t.visible, t.row, block, s, rows, out, z, weights);
        arrive(shared.query_empty[s.query_at.stage][warp / 4]);
        s.query_at.next();
        last_sums(shared, s, rows, out, weights);
        const row_ends ends = end_rows(p, *t.w, t.row, rows, PLAIN);
        round = t.w->round;
        arrive(shared.work_empty[slot.stage]);
        slot.next();
        t = tile_of(shared, slot, warp);
        wgmma_wait<0>();
        hold(out);
        hold(weights);
        release_value(shared, s.value_at);
        results = round_rows(ends, out);
#pragma unroll 1
        for (; block >= begin; block--) skip_block(shared, unordered, s.key_at, s.value_at);
    }
    write_flags(p, shared);
}

DEVICE void set_barriers(layout &shared) {
    const int warps = 4 * CONSUMERS;
    for (int n = 0; n < 2 * CONSUMERS; n++) {
        mbarrier_init(shared_address(&shared.query_full[0][n]), 1);
        mbarrier_init(shared_address(&shared.query_empty[0][n]), 4);
    }
    for (int n = 0; n < STAGES; n++) {
        mbarrier_init(shared_address(&shared.key_full[n]), 1);
        mbarrier_init(shared_address(&shared.key_empty[n]), warps);
        mbarrier_init(shared_address(&shared.value_full[n]), 1);
        mbarrier_init(shared_address(&shared.value_empty[n]), warps);
    }
    for (int n = 0; n < SLOTS; n++) {
        mbarrier_init(shared_address(&shared.work_full[n]), CONSUMERS);
        mbarrier_init(shared_address(&shared.work_empty[n]), warps + 1);
    }
    mbarrier_fence_init();
}

extern "C" __global__ void __launch_bounds__(THREADS_IN_ALL, BLOCKS)
    forward_sm90(const __grid_constant__ ejki_cuda_sm90_problem p) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
#if PAGES
    launch_dependents(); /* of those that wait for this */
    if (!has_tiles(p.all)) return;
#endif
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&p.query_map);
        prefetch_tensor_map(&p.key_map);
        prefetch_tensor_map(&p.value_map);
        set_barriers(shared);
    }
    if (threadIdx.x < EJKI_CUDA_NONFINITE_WORDS) shared.nonfinite[threadIdx.x] = 0;
    make_order<ROWS, THREADS_IN_ALL>(p.all, shared.tiles, (int *)shared.query);
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (PAGES ? warp == 0 : threadIdx.x == 0) load_tiles(p, shared);
        if (warp == 1) schedule_tiles(p, shared);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        compute_tiles(p, shared, warp - 4);
    }
#if PAGES
    wait_for_previous(); /* what follows waits for that, too */
#endif
}
