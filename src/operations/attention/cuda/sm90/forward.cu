/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention on tensor cores of sm_90a, for bf16 and f16, head sizes up to 128 and what positions hide. One
 * warpgroup keeps the copy engine busy, CONSUMERS others have 64 rows each of a tile, all of one query head. Scores of
 * a block of KEYS are on their way while the block before is multiplied with its values. Blocks of the grid stay, and
 * take tiles in an order that is settled beforehand: nothing is counted in memory. again_sm90.cu comes behind it.
 * Besides the constants of tiles_sm90.cuh:
 *
 *   STAGES   blocks of keys, and of values, in shared memory
 *   BLOCKS   of the grid on one multiprocessor
 *   FEWER, MORE   registers of a thread that copies, and of one that computes
 */
#include "operations/attention/cuda/sm90/tiles.cuh"

enum {
    THREADS_IN_ALL = 128 * (CONSUMERS + 1),
    SLOTS = 4, /* tiles that are settled ahead */
    MOST_LOOSE = STAGES > 5 ? STAGES - 5 : 0,
};

struct layout {
    u8 query[2][CONSUMERS * QUERY_BYTES]; /* of this tile and the next */
    u8 key[STAGES * KEY_BYTES];
    u8 value[STAGES * VALUE_BYTES];
    u64 query_full[2][CONSUMERS], query_empty[2][CONSUMERS], key_full[STAGES], key_empty[STAGES],
        value_full[STAGES], value_empty[STAGES], work_full[SLOTS], work_empty[SLOTS];
    work works[SLOTS];
    strip strips[SLOTS][CONSUMERS];
    u32 spoilt[EJKI_CUDA_SPOILT_WORDS];
    int loose[SLOTS];
    order tiles;
};

typedef ring_place<STAGES> stage_place;
typedef ring_place<SLOTS> slot_place;
typedef ring_place<2> query_place;

/* ---- Copies ----------------------------------------------------------------------------------------- */

/* One lane: 64 columns and `rows` rows at a time. */
template <int dim, int rows>
DEVICE void copy_columns(u32 to, u32 barrier, const tensor_map *map, int token, int head,
                         int entry) {
#pragma unroll
    for (int n = 0; n < pitch_of(dim) / 64; n++)
        copy_box(to + n * rows * 128, map, barrier, n * 64, token, head, entry);
}

/*
 * Of a tile's blocks, those that each warpgroup passes by out of turn: as many as even the one that sees most passes by,
 * and so few that one which is that far ahead of others finds its blocks in memory. By one lane for each warpgroup.
 */
DEVICE int loose_blocks(const work &w, const strip &sees) {
    const int most = __reduce_max_sync((1u << CONSUMERS) - 1, sees.end - sees.begin);
    return lesser(w.end - w.begin - most, MOST_LOOSE);
}

/* By one warp: what the others do next. */
DEVICE void settle_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    slot_place slot = {0, 1};
    const int rounds = rounds_of(p.all, shared.tiles, p.heads_together);
    for (int round = 0; round <= rounds; round++) {
        work w;
        if (round == rounds)
            w.begin = 1, w.end = 0;
        else if (!work_of_round(p, shared.tiles, round, &w))
            continue;
        barrier_wait(shared_address(&shared.work_empty[slot.stage]), slot.parity);
        const int lane = threadIdx.x % 32;
        if (lane < CONSUMERS) {
            if (lane == 0) shared.works[slot.stage] = w;
            if (round < rounds) {
                const strip sees = strip_of(w, lane);
                shared.strips[slot.stage][lane] = sees;
                if (MOST_LOOSE > 0) shared.loose[slot.stage] = loose_blocks(w, sees);
            }
            barrier_arrive(shared_address(&shared.work_full[slot.stage]));
        }
        slot.next();
    }
}

/* By one thread: the queries of a tile; rows ahead of its sequence are whatever is there, or 0. */
DEVICE void copy_queries(const ejki_cuda_sm90_problem &p, layout &shared, const query_place &at,
                         int query, int head, int entry) {
#pragma unroll
    for (int n = 0; n < CONSUMERS; n++) {
        const u32 full = shared_address(&shared.query_full[at.stage][n]);
        barrier_wait(shared_address(&shared.query_empty[at.stage][n]), at.parity);
        barrier_expect(full, QUERY_BYTES);
        copy_columns<HEAD_DIM, 64>(shared_address(shared.query[at.stage]) + n * QUERY_BYTES, full,
                                   &p.query_map, query + n * 64, head, entry);
    }
}

/* By one thread: all copies. */
DEVICE void copy_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    stage_place at = {0, 1};
    slot_place slot = {0, 0};
    query_place query_at = {0, 1};
    for (;;) {
        barrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        const int begin = w.begin, end = w.end, head = w.head, entry = (int)w.entry;
        const int kv_head = head / p.all.group, key = w.key, query = w.query + w.row;
        barrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (begin > end) break;
        copy_queries(p, shared, query_at, query, head, entry);
        query_at.next();
        for (int block = end - 1; block >= begin; block--) {
            const int token = key + block * KEYS;
            const u32 key_full = shared_address(&shared.key_full[at.stage]);
            const u32 value_full = shared_address(&shared.value_full[at.stage]);
            barrier_wait(shared_address(&shared.key_empty[at.stage]), at.parity);
            barrier_expect(key_full, KEY_BYTES);
            copy_columns<HEAD_DIM, KEYS>(shared_address(shared.key) + at.stage * KEY_BYTES,
                                         key_full, &p.key_map, token, kv_head, entry);
            barrier_wait(shared_address(&shared.value_empty[at.stage]), at.parity);
            barrier_expect(value_full, VALUE_BYTES);
            copy_columns<VALUE_DIM, KEYS>(shared_address(shared.value) + at.stage * VALUE_BYTES,
                                          value_full, &p.value_map, token, kv_head, entry);
            at.next();
        }
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------ */

enum { ALL_CONSUMERS = 1, TURN = 2, CONSUMER_THREADS = 128 * CONSUMERS };

/*
 * Warpgroups begin their products in turn, once for each of a tile's blocks that are not loose and once more, whether they
 * have any or pass the block by: so each finds tensor cores to itself, and softens its scores while the others multiply.
 */
DEVICE void take_turn() {
    if (CONSUMERS > 1) meet(TURN + threadIdx.x / 128 - 1, 256);
}
DEVICE void give_turn() {
    if (CONSUMERS > 1) pass_by(TURN + threadIdx.x / 128 % CONSUMERS, 256);
}

DEVICE void arrive(const u64 &barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
}

DEVICE void wait_for_key(const layout &shared, const stage_place &at) {
    barrier_wait(shared_address(&shared.key_full[at.stage]), at.parity);
}
DEVICE void wait_for_value(const layout &shared, const stage_place &at) {
    barrier_wait(shared_address(&shared.value_full[at.stage]), at.parity);
}
DEVICE void leave_key(const layout &shared, stage_place &at) {
    arrive(shared.key_empty[at.stage]);
    at.next();
}
DEVICE void leave_value(const layout &shared, stage_place &at) {
    arrive(shared.value_empty[at.stage]);
    at.next();
}
DEVICE void pass_block(const layout &shared, int &loose, stage_place &key, stage_place &value) {
    wait_for_key(shared, key);
    leave_key(shared, key);
    wait_for_value(shared, value);
    leave_value(shared, value);
    if (MOST_LOOSE > 0 && loose-- > 0) return;
    take_turn();
    give_turn();
}

/* Where a warpgroup's operands lie, and which of them are next. */
struct stream {
    u32 queries, query, key, value;
    query_place query_at;
    stage_place key_at, value_at;
};

/* Scores of a block and, before they are looked at, sums with those of the block before. */
DEVICE void step(const ejki_cuda_sm90_problem &p, const layout &shared, const work &w,
                 const strip &t, int row, int block, stream &s, lane_rows &rows,
                 float (&out)[WIDTH / 2], float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
    wait_for_key(shared, s.key_at);
    take_turn();
    begin_scores(s.query, s.key + s.key_at.stage * KEY_BYTES, z);
    rescale(rows, out);
    wait_for_value(shared, s.value_at);
    begin_sums(weights, s.value + s.value_at.stage * VALUE_BYTES, out);
    give_turn();
    products_wait<1>();
    hold(z);
    leave_key(shared, s.key_at);
    const outlook l = survey(p, w, is_edge(t, block), row, block * KEYS, rows, z);
    finished(l.held, p.lowest, s.query);
    products_wait<0>();
    hold(out);
    hold(weights);
    leave_value(shared, s.value_at);
    weigh(p, l, rows, z, weights);
}

/* The tile that is next in a slot, as one of its lanes has it. */
struct tile {
    const work *w;
    strip sees;
    int row, begin, end;
};

DEVICE tile tile_of(const layout &shared, const slot_place &slot, int warp) {
    barrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
    tile t;
    t.w = &shared.works[slot.stage];
    t.sees = shared.strips[slot.stage][warp / 4];
    t.row = row_of_lane(*t.w, warp);
    t.begin = t.w->begin, t.end = t.w->end;
    return t;
}

/*
 * All tiles of this block of the grid, as they come. `warp` counts those that compute. Rows of a tile are written while
 * the first scores of the next are on their way; behind the last tile those are of whatever lies in memory.
 */
DEVICE void compute_tiles(const ejki_cuda_sm90_problem &p, layout &shared, int warp) {
    stream s;
    s.queries = shared_address(shared.query) + warp / 4 * QUERY_BYTES;
    s.key = shared_address(shared.key);
    s.value = shared_address(shared.value);
    s.query_at = {0, 0};
    s.key_at = s.value_at = {0, 0};
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
        int block = t.end - 1, loose = MOST_LOOSE > 0 ? shared.loose[slot.stage] : 0;
        if (!over) {
#pragma unroll 1
            for (; block >= t.sees.end; block--) pass_block(shared, loose, s.key_at, s.value_at);
            barrier_wait(shared_address(&shared.query_full[s.query_at.stage][warp / 4]),
                         s.query_at.parity);
            wait_for_key(shared, s.key_at);
        }
        s.query = s.queries + s.query_at.stage * (CONSUMERS * QUERY_BYTES);
        take_turn();
        begin_scores(s.query, s.key + s.key_at.stage * KEY_BYTES, z);
        give_turn();
        if (round >= 0 && write_rows(p.all, results, PLAIN))
            atomicOr(&shared.spoilt[round / 32 % EJKI_CUDA_SPOILT_WORDS], 1u << round % 32);
        products_wait<0>();
        hold(z);
        if (over) break;
        leave_key(shared, s.key_at);
        start_rows(rows, out);
        const outlook l = survey(p, *t.w, is_edge(t.sees, block), t.row, block * KEYS, rows, z);
        weigh(p, l, rows, z, weights);
        rows.scale[0] = rows.scale[1] = 1; /* there are no sums yet */
        block--;
#pragma unroll 1
        for (; block >= t.sees.begin; block--)
            step(p, shared, *t.w, t.sees, t.row, block, s, rows, out, z, weights);
        arrive(shared.query_empty[s.query_at.stage][warp / 4]);
        s.query_at.next();
        rescale(rows, out);
        wait_for_value(shared, s.value_at);
        take_turn();
        begin_sums(weights, s.value + s.value_at.stage * VALUE_BYTES, out);
        give_turn();
        const row_ends ends = end_rows(p, *t.w, t.row, rows, PLAIN);
        round = t.w->round;
        arrive(shared.work_empty[slot.stage]);
        slot.next();
        t = tile_of(shared, slot, warp);
        products_wait<0>();
        hold(out);
        hold(weights);
        leave_value(shared, s.value_at);
        results = round_rows(ends, out);
#pragma unroll 1
        for (; block >= begin; block--) pass_block(shared, loose, s.key_at, s.value_at);
    }
    meet(ALL_CONSUMERS, CONSUMER_THREADS);
    const int own = threadIdx.x - 128;
    if (own < EJKI_CUDA_SPOILT_WORDS)
        p.spoilt[blockIdx.x * EJKI_CUDA_SPOILT_WORDS + own] = shared.spoilt[own];
}

DEVICE void set_barriers(layout &shared) {
    const int warps = 4 * CONSUMERS;
    for (int n = 0; n < 2 * CONSUMERS; n++) {
        barrier_init(shared_address(&shared.query_full[0][n]), 1);
        barrier_init(shared_address(&shared.query_empty[0][n]), 4);
    }
    for (int n = 0; n < STAGES; n++) {
        barrier_init(shared_address(&shared.key_full[n]), 1);
        barrier_init(shared_address(&shared.key_empty[n]), warps);
        barrier_init(shared_address(&shared.value_full[n]), 1);
        barrier_init(shared_address(&shared.value_empty[n]), warps);
    }
    for (int n = 0; n < SLOTS; n++) {
        barrier_init(shared_address(&shared.work_full[n]), CONSUMERS);
        barrier_init(shared_address(&shared.work_empty[n]), warps + 1);
    }
    barriers_ready();
}

extern "C" __global__ void __launch_bounds__(THREADS_IN_ALL, BLOCKS)
    forward_sm90(const __grid_constant__ ejki_cuda_sm90_problem p) {
    extern __shared__ __align__(1024) u8 memory[];
    layout &shared = *(layout *)memory;
    if (threadIdx.x == 0) {
        prefetch_map(&p.query_map);
        prefetch_map(&p.key_map);
        prefetch_map(&p.value_map);
        set_barriers(shared);
    }
    if (threadIdx.x < EJKI_CUDA_SPOILT_WORDS) shared.spoilt[threadIdx.x] = 0;
    make_order<ROWS, THREADS_IN_ALL>(p.all, shared.tiles, (int *)shared.query);
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        fewer_registers<FEWER>();
        if (threadIdx.x == 0) copy_tiles(p, shared);
        if (warp == 1) settle_tiles(p, shared);
    } else {
        more_registers<MORE>();
        compute_tiles(p, shared, warp - 4);
    }
}
