/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention on tensor cores of sm_90a, for bf16 and f16, head sizes up to 128 and what positions hide. One
 * warpgroup keeps the copy engine busy, CONSUMERS others have 64 rows each of a tile, all of one query head. Scores of
 * a block of KEYS are on their way while the block before is multiplied with its values. Blocks of the grid stay, and
 * take tiles in an order that is settled beforehand: nothing is counted in memory. Besides the constants of base.cuh:
 *
 *   CONSUMERS, KEYS, STAGES
 *   BLOCKS   of the grid on one multiprocessor
 *   FEWER, MORE   registers of a thread that copies, and of one that computes
 *   FOLDED   1 = the scale is positive and no cap follows it: it is multiplied into exponents
 */
#define WARPS (4 * CONSUMERS)
#include "order.cuh"
#include "rows_sm90.cuh"

enum {
    THREADS_IN_ALL = 128 * (CONSUMERS + 1),
    QUERY_BYTES = 64 * pitch_of(HEAD_DIM) * 2, /* of a warpgroup */
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    VALUE_BYTES = KEYS * pitch_of(VALUE_DIM) * 2,
    COLUMN_BYTES = KEYS * 128, /* 64 columns of a block */
    SLOTS = 4,
    REDO_BITS = 2048,
};

struct layout {
    u8 query[CONSUMERS * QUERY_BYTES];
    u8 key[STAGES * KEY_BYTES];
    u8 value[STAGES * VALUE_BYTES];
    u64 query_full, query_empty, key_full[STAGES], key_empty[STAGES], value_full[STAGES],
        value_empty[STAGES], work_full[SLOTS], work_empty[SLOTS];
    work works[SLOTS + 1]; /* the last for what is done again */
    u32 redo[REDO_BITS / 32]; /* rounds whose sums had a NaN */
    int odd;                  /* some value in what is done again is not finite */
    order tiles;
};

typedef ring_place<STAGES> stage_place;

/* ---- Products --------------------------------------------------------------------------------------- */

DEVICE void begin_scores(u32 query, u32 key, float (&z)[KEYS / 2]) {
    hold(z);
    products_begin();
    const u64 q = operand_at(query, 16), k = operand_at(key, 16);
#pragma unroll
    for (int n = 0; n < sixteens(HEAD_DIM); n++)
        products<KEYS>::shared<0, 0>(z, operand_on(q, n / 4 * 64 * 128 + n % 4 * 32),
                                     operand_on(k, n / 4 * COLUMN_BYTES + n % 4 * 32), n != 0);
    products_commit();
}

DEVICE void begin_sums(const u32 (&weights)[KEYS / 4], u32 value, float (&out)[WIDTH / 2]) {
    hold(out);
    products_begin();
    const u64 v = operand_at(value, COLUMN_BYTES);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        products<WIDTH>::held<1>(out, weights + 4 * n, operand_on(v, n * 2048), 1);
    products_commit();
}

/* ---- Copies ----------------------------------------------------------------------------------------- */

/* One lane: 64 columns and `rows` rows at a time. */
template <int dim, int rows>
DEVICE void copy_columns(u32 to, u32 barrier, const tensor_map *map, int token, int head,
                         int entry) {
#pragma unroll
    for (int n = 0; n < pitch_of(dim) / 64; n++)
        copy_box(to + n * rows * 128, map, barrier, n * 64, token, head, entry);
}

/* The work of a round, by all lanes of a warp; false if there is none. */
DEVICE bool work_of_round(const ejki_cuda_sm90_problem &p, const layout &shared, int round,
                          work *w) {
    tile_place at;
    const int far = (1 << 30) - 1;
    if (!tile_of_round<ROWS>(p.all, shared.tiles, p.heads_together, round, &at)) return false;
    w->entry = at.s.entry;
    w->query = at.s.query;
    w->queries = at.s.queries;
    w->key = at.s.key;
    w->keys = at.s.keys;
    w->known = at.s.known;
    w->low = clamped(at.s.first + far, 2 * far) - far;
    w->high = clamped(at.s.last + far, 2 * far) - far;
    w->head = at.head;
    w->row = at.own * ROWS;
    w->round = round;
    blocks_of(*w, w->row, ROWS, &w->begin, &w->end);
    return true;
}

typedef ring_place<SLOTS> slot_place;

/* By one warp: what the others do next. */
DEVICE void settle_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    slot_place slot = {0, 1};
    const int rounds = rounds_of(p.all, shared.tiles, p.heads_together);
    for (int round = 0; round <= rounds; round++) {
        work w;
        if (round == rounds)
            w.begin = 1, w.end = 0;
        else if (!work_of_round(p, shared, round, &w))
            continue;
        barrier_wait(shared_address(&shared.work_empty[slot.stage]), slot.parity);
        if (threadIdx.x % 32 == 0) {
            shared.works[slot.stage] = w;
            barrier_arrive(shared_address(&shared.work_full[slot.stage]));
        }
        slot.next();
    }
}

/* By one thread: all copies. */
DEVICE void copy_tiles(const ejki_cuda_sm90_problem &p, layout &shared) {
    stage_place at = {0, 1};
    slot_place slot = {0, 0};
    const u32 query_full = shared_address(&shared.query_full);
    u32 query_parity = 1;
    for (;;) {
        barrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
        const work &w = shared.works[slot.stage];
        const int begin = w.begin, end = w.end, head = w.head, entry = (int)w.entry;
        const int kv_head = head / p.all.group, key = w.key, query = w.query + w.row;
        barrier_arrive(shared_address(&shared.work_empty[slot.stage]));
        slot.next();
        if (begin > end) break;
        for (int block = end - 1; block >= begin; block--) {
            const int token = key + block * KEYS;
            const u32 key_full = shared_address(&shared.key_full[at.stage]);
            const u32 value_full = shared_address(&shared.value_full[at.stage]);
            barrier_wait(shared_address(&shared.key_empty[at.stage]), at.parity);
            barrier_expect(key_full, KEY_BYTES);
            copy_columns<HEAD_DIM, KEYS>(shared_address(shared.key) + at.stage * KEY_BYTES,
                                         key_full, &p.key_map, token, kv_head, entry);
            if (block == end - 1) {
                barrier_wait(shared_address(&shared.query_empty), query_parity);
                barrier_expect(query_full, CONSUMERS * QUERY_BYTES);
#pragma unroll
                for (int n = 0; n < CONSUMERS; n++)
                    copy_columns<HEAD_DIM, 64>(shared_address(shared.query) + n * QUERY_BYTES,
                                               query_full, &p.query_map,
                                               query + n * 64, head, entry);
                query_parity ^= 1;
            }
            barrier_wait(shared_address(&shared.value_empty[at.stage]), at.parity);
            barrier_expect(value_full, VALUE_BYTES);
            copy_columns<VALUE_DIM, KEYS>(shared_address(shared.value) + at.stage * VALUE_BYTES,
                                          value_full, &p.value_map, token, kv_head,
                                          entry);
            at.next();
        }
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------ */

enum { ALL_CONSUMERS = 1, CONSUMER_THREADS = 128 * CONSUMERS };

/* What the rows of a warpgroup are. */
struct strip {
    int own;                /* row of this lane */
    int begin, end;         /* blocks */
    int all_begin, all_end; /* keys that all rows see */
};

DEVICE strip strip_of(const work &w, int warp) {
    strip t;
    const int first = w.row + warp / 4 * 64;
    const int last = larger(lesser(first + 64, w.queries), 1) - 1;
    t.own = w.row + warp * 16 + threadIdx.x % 32 / 4;
    t.all_begin = first_key(w, last);
    t.all_end = last < w.known ? last_key(w, lesser(first, last)) : 0;
    blocks_of(w, first, 64, &t.begin, &t.end);
    t.begin = larger(w.begin, lesser(t.begin, w.end - 1));
    t.end = larger(t.begin + 1, lesser(t.end, w.end));
    return t;
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
DEVICE void pass_block(const layout &shared, stage_place &key, stage_place &value) {
    wait_for_key(shared, key);
    leave_key(shared, key);
    wait_for_value(shared, value);
    leave_value(shared, value);
}

/* Do positions hide any of the block's keys from a row of the strip? */
DEVICE bool is_edge(const strip &t, int block) {
    return block * KEYS < t.all_begin || block * KEYS + KEYS > t.all_end;
}

/* Products become weights; `edge` = of a block where positions may hide some. */
template <bool edge>
DEVICE void weigh(const ejki_cuda_sm90_problem &p, const work &w, const strip &t, int block,
                  lane_rows &rows, float (&z)[KEYS / 2]) {
    const bool hides = edge && is_edge(t, block);
#if !FOLDED
    if (SOFT_CAP && hides) mask_block(w, t.own, block * KEYS, 0, z);
    finish_scores(p, z);
#endif
    if (hides) mask_block(w, t.own, block * KEYS, NOTHING, z);
    soften(rows, unit_of(p.all), z);
}

DEVICE void pack_all(const float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
#pragma unroll
    for (int n = 0; n < KEYS / 4; n++) weights[n] = pack(z[2 * n], z[2 * n + 1]);
}

/*
 * Copies by the threads that compute, to the rings' first stages, for passes after the first, which mma.cuh tells of:
 * all of them come here, and none uses what is copied to.
 */
template <int count, int dim>
DEVICE void copy_rows(layout &shared, u32 to, const ejki_cuda_bthd &from, const work &w, int token,
                      int head, int first, int end, int pass) {
    const u16 *data = (const u16 *)from.data + w.entry * from.stride_b + head * from.stride_h;
    enum { PIECES = pitch_of(dim) / 8 };
    bool odd = false;
    meet(ALL_CONSUMERS, CONSUMER_THREADS);
#pragma unroll 1
    for (int index = threadIdx.x - 128; index < count * PIECES; index += CONSUMER_THREADS) {
        const int row = index / PIECES, piece = index % PIECES;
        const u16 *at = data + (i64)(token + first + row) * from.stride_t + piece * 8;
        u32 x[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const bool there = first + row < end;
            const u32 low = there && piece * 8 + 2 * n < dim ? at[2 * n] : 0;
            const u32 high = there && piece * 8 + 2 * n + 1 < dim ? at[2 * n + 1] : 0;
            const u32 both = low | high << 16;
            x[n] = pass == PLAIN ? both : replaced(both, pass);
            odd = odd || x[n] != both;
        }
        store_piece(to + piece / 8 * count * 128 + row * 128 + ((piece ^ row) & 7) * 16,
                    make_uint4(x[0], x[1], x[2], x[3]));
    }
    if (__any_sync(~0u, odd)) shared.odd = 1;
    stores_visible();
    meet(ALL_CONSUMERS, CONSUMER_THREADS);
}

DEVICE void copy_query(const ejki_cuda_sm90_problem &p, layout &shared, const work &w) {
#pragma unroll 1
    for (int n = 0; n < CONSUMERS; n++)
        copy_rows<64, HEAD_DIM>(shared, shared_address(shared.query) + n * QUERY_BYTES, p.all.query,
                                w, w.query, w.head, w.row + n * 64, w.queries, PLAIN);
}
DEVICE void copy_key(const ejki_cuda_sm90_problem &p, layout &shared, const work &w, int block) {
    copy_rows<KEYS, HEAD_DIM>(shared, shared_address(shared.key), p.all.key, w, w.key,
                              w.head / p.all.group, block * KEYS, w.keys, PLAIN);
}
DEVICE void copy_value(const ejki_cuda_sm90_problem &p, layout &shared, const work &w, int block,
                       int pass) {
    copy_rows<KEYS, VALUE_DIM>(shared, shared_address(shared.value), p.all.value, w, w.key,
                               w.head / p.all.group, block * KEYS, w.keys, pass);
}

/* Weights as a left operand; passes after the first then copy the block's values. */
DEVICE void pack_weights(const ejki_cuda_sm90_problem &p, layout &shared, const work &w, int block,
                         int pass, float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
    if (pass != PLAIN) {
        copy_value(p, shared, w, block, pass);
        if (pass > FINITE) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++) z[n] = z[n] != 0 ? 1 : 0;
        }
    }
    pack_all(z, weights);
}

/* The next round to be done again, beginning with `round`, and its work; -1 = none. */
DEVICE int round_again(const ejki_cuda_sm90_problem &p, const layout &shared, int round, work *w) {
    u32 any = 0;
    for (int n = 0; n < REDO_BITS / 32; n++) any |= shared.redo[n];
    if (!any) return -1;
    for (; round < rounds_of(p.all, shared.tiles, p.heads_together); round++)
        if ((shared.redo[round % REDO_BITS / 32] >> round % 32 & 1) &&
            work_of_round(p, shared, round, w))
            return round;
    return -1;
}

/*
 * All tiles of this block of the grid, as they come, and then, in three more passes, those in whose sums there was a
 * NaN. `warp` counts those that compute.
 */
DEVICE void compute_tiles(const ejki_cuda_sm90_problem &p, layout &shared, int warp) {
    const u32 query = shared_address(shared.query), key_ring = shared_address(shared.key),
              value_ring = shared_address(shared.value);
    stage_place key = {0, 0}, value = {0, 0};
    slot_place slot = {0, 0};
    u32 query_parity = 0;
    int pass = p.copied ? DOWNWARDS : PLAIN, again = -1;
    float out[WIDTH / 2], z[KEYS / 2];
    u32 weights[KEYS / 4];
    lane_rows rows;
    for (;;) {
        if (pass == PLAIN) {
            barrier_wait(shared_address(&shared.work_full[slot.stage]), slot.parity);
            if (shared.works[slot.stage].begin > shared.works[slot.stage].end) pass = DOWNWARDS;
        }
        if (pass != PLAIN) {
            meet(ALL_CONSUMERS, CONSUMER_THREADS);
            const bool over = pass == DOWNWARDS || (pass == FINITE && !shared.odd);
            meet(ALL_CONSUMERS, CONSUMER_THREADS);
            if (over) {
                work w;
                pass = PLAIN;
                again = round_again(p, shared, again + 1, &w);
                if (again < 0) break;
                if (warp == 0 && threadIdx.x % 32 == 0) shared.works[SLOTS] = w, shared.odd = 0;
                meet(ALL_CONSUMERS, CONSUMER_THREADS);
            }
            pass++;
            slot.stage = SLOTS, key.stage = value.stage = 0;
            copy_query(p, shared, shared.works[SLOTS]);
        }
        const work &w = shared.works[slot.stage];
        const strip t = strip_of(w, warp);
        int block = w.end - 1;
#pragma unroll
        for (int n = 0; n < WIDTH / 2; n++) out[n] = 0;
        rows.max[0] = rows.max[1] = NOTHING;
        rows.sum[0] = rows.sum[1] = 0;
        rows.scale[0] = rows.scale[1] = 1;
        if (pass == PLAIN) {
#pragma unroll 1
            for (; block >= t.end; block--) pass_block(shared, key, value);
            barrier_wait(shared_address(&shared.query_full), query_parity);
        }
        const int last = pass == PLAIN ? t.begin : w.begin;
        const u32 own_query = query + warp / 4 * QUERY_BYTES;
        if (pass == PLAIN)
            wait_for_key(shared, key);
        else
            copy_key(p, shared, w, block);
        begin_scores(own_query, key_ring + key.stage * KEY_BYTES, z);
        products_wait<0>();
        hold(z);
        if (pass == PLAIN) leave_key(shared, key);
        weigh<true>(p, w, t, block, rows, z);
        pack_weights(p, shared, w, block, pass, z, weights);
        block--;
        while (block >= last) {
#pragma unroll 1
            for (; block >= last && (pass != PLAIN || is_edge(t, block)); block--) {
                if (pass == PLAIN)
                    wait_for_key(shared, key);
                else
                    copy_key(p, shared, w, block);
                begin_scores(own_query, key_ring + key.stage * KEY_BYTES, z);
                rescale(rows, out);
                if (pass == PLAIN) wait_for_value(shared, value);
                begin_sums(weights, value_ring + value.stage * VALUE_BYTES, out);
                products_wait<1>();
                hold(z);
                if (pass == PLAIN) leave_key(shared, key);
                weigh<true>(p, w, t, block, rows, z);
                products_wait<0>();
                hold(out);
                hold(weights);
                if (pass == PLAIN) leave_value(shared, value);
                pack_weights(p, shared, w, block, pass, z, weights);
            }
#pragma unroll 1
            for (; block >= last && !is_edge(t, block); block--) {
                wait_for_key(shared, key);
                begin_scores(own_query, key_ring + key.stage * KEY_BYTES, z);
                rescale(rows, out);
                wait_for_value(shared, value);
                begin_sums(weights, value_ring + value.stage * VALUE_BYTES, out);
                products_wait<1>();
                hold(z);
                leave_key(shared, key);
                weigh<false>(p, w, t, block, rows, z);
                products_wait<0>();
                hold(out);
                hold(weights);
                leave_value(shared, value);
                pack_all(z, weights);
            }
        }
        if (pass == PLAIN) arrive(shared.query_empty), query_parity ^= 1;
        rescale(rows, out);
        if (pass == PLAIN) wait_for_value(shared, value);
        begin_sums(weights, value_ring + value.stage * VALUE_BYTES, out);
        products_wait<0>();
        hold(out);
        if (pass == PLAIN) {
            leave_value(shared, value);
#pragma unroll 1
            for (; block >= w.begin; block--) pass_block(shared, key, value);
        }
        const bool odd = write_rows(p.all, w, t.own, rows, out, pass);
        if (pass == PLAIN) {
            if (odd) atomicOr(&shared.redo[w.round % REDO_BITS / 32], 1u << w.round % 32);
            arrive(shared.work_empty[slot.stage]);
            slot.next();
        }
    }
}

DEVICE void set_barriers(layout &shared) {
    const int warps = 4 * CONSUMERS;
    barrier_init(shared_address(&shared.query_full), 1);
    barrier_init(shared_address(&shared.query_empty), warps);
    for (int n = 0; n < STAGES; n++) {
        barrier_init(shared_address(&shared.key_full[n]), 1);
        barrier_init(shared_address(&shared.key_empty[n]), warps);
        barrier_init(shared_address(&shared.value_full[n]), 1);
        barrier_init(shared_address(&shared.value_empty[n]), warps);
    }
    for (int n = 0; n < SLOTS; n++) {
        barrier_init(shared_address(&shared.work_full[n]), 1);
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
    for (int n = threadIdx.x; n < REDO_BITS / 32; n += THREADS_IN_ALL)
        shared.redo[n] = p.copied ? ~0u : 0;
    make_order<ROWS, THREADS_IN_ALL>(p.all, shared.tiles, (int *)shared.key);
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        fewer_registers<FEWER>();
        if (p.copied) return;
        if (threadIdx.x == 0) copy_tiles(p, shared);
        if (warp == 1) settle_tiles(p, shared);
    } else {
        more_registers<MORE>();
        compute_tiles(p, shared, warp - 4);
    }
}
