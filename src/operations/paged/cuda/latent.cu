/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention to latents in pages on sm_90a: keys of HEAD_DIM + TAIL_DIM components, of which the first HEAD_DIM are the
 * values, shared by all query heads. A CTA has a tile of 64 pairs of a row and a head, and of a sequence with few pairs
 * a split of its keys, in blocks of 64. A warpgroup fetches blocks into two stages, by TMA or by cp.async; the other
 * two multiply.
 *
 * Each of these has every other block: its scores, its softmax and its stage; and half the columns of the sums, so that
 * it multiplies the weights of all blocks. Its own weights it has in registers, those of the other it gets through
 * shared memory, where the rope parts of that block have been. Neither waits for the other's maxima: each has its own,
 * whole exponents of 2, and takes the other's weights times a power of two. So one multiplies while the other makes
 * weights. Half a stage is fetched again as soon as the warpgroup whose columns it has is done with it. Two CTAs with
 * two tiles of the same keys are a cluster: each fetches every other chunk of 64 columns for both.
 *
 * Parts of a tile's splits are joined by the CTA that comes last near the end of one: a ticket says which, taken when
 * all keys have been asked for. Units go from the warpgroup that fetches, which is ahead, to the others, so that these
 * wait neither for lengths and tickets nor, another warp does that, for parts to be seen by all. What a unit ends with
 * is kept short, without checks for each number: unrolled code that runs once a unit took a fifth of its time.
 *
 *   ELEMENT, FOLDED, OVERLAP, PAGE_ROWS, HEAD_GROUP   as in decode.cu
 *   HEAD_DIM                   a multiple of 128, up to 512; TAIL_DIM one of 16, up to 64
 *   PAGES                      where TMA fetches, rows of a page that a block of 64 has: 8, 16, 32, 64; else 0
 *   PAIR                       1 = clusters of two CTAs, with PAGES
 */
#define WARPS     8 /* that multiply */
#define VALUE_DIM HEAD_DIM
#define FEW       PAGED_FEW_LATENT
#define SPLITS    PAGED_LATENT_SPLITS
#define LEAST     PAGED_LEAST_LATENT_KEYS
#define OTHERS    1
#define TILES_TOGETHER 1

#include "operations/paged/cuda/latent_results.cuh"

/* ---- Products ------------------------------------------------------------------------------------------- */

/* The descriptor so many bytes on: addresses are in the lower half, and nothing is carried out of it. */
DEVICE u64 moved(u64 operand, u32 bytes) {
    return (operand & ~0ull << 32) | ((u32)operand + (bytes >> 4));
}

/* Products of half of the components of the queries and the warpgroup's block, once they are there, or of 16 of them
 * each from `from` to `to` - 1. Those of its own half come first; with the other half come the rope parts. Not waited
 * for. */
template <bool is_first, int from = 0, int to = HALF / 16>
DEVICE void add_scores(u32 memory, int group, int half, u32 parity, float (&z)[32]) {
    const u32 first = half * HALF_CHUNKS * CHUNK_BYTES;
    const u64 q = smem_descriptor(memory, 16), k = smem_descriptor(memory + TILE_BYTES + group * TILE_BYTES, 16);
    mbarrier_wait(full_barrier(memory, group, half), parity);
    if (!PAGES) fence_proxy_async();
    wgmma_fence();
#pragma unroll
    for (int n = from; n < to; n++) {
        const u32 at = n / 4 * CHUNK_BYTES + n % 4 * 32;
        wgmma<64>::ss<0, 0>(z, moved(q, first + at), moved(k, first + at), !is_first || n != 0);
    }
}
DEVICE void add_tail_scores(u32 memory, int group, float (&z)[32]) {
    const u64 q = smem_descriptor(memory, 16), k = smem_descriptor(memory + TILE_BYTES + group * TILE_BYTES, 16);
#pragma unroll
    for (int n = 0; n < TAIL_DIM / 16; n++) {
        const u32 at = HEAD_CHUNKS * CHUNK_BYTES + n * 32;
        wgmma<64>::ss<0, 0>(z, moved(q, at), moved(k, at), 1);
    }
}

/* Lets the stage's half be fetched again. */
DEVICE void release(u32 memory, int stage, int group) {
    const int lane = threadIdx.x % 32;
    const u32 empty = empty_barrier(memory, stage, group);
    if (PAIR && lane < 2)
        mbarrier_arrive_at(address_at(empty, lane));
    else if (!PAIR && lane == 0)
        mbarrier_arrive(empty);
}

/* ---- Softmax -------------------------------------------------------------------------------------------- */

DEVICE void begin_rows(const paged_problem &p, const tile &t, lane_rows &rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int pair = lesser(t.first_pair + own_row() + 8 * half, t.q->pairs - 1);
        rows.r[half] = pair / group_of(p), rows.h[half] = pair % group_of(p);
        rows.low[half] = narrowed(paged_low(&p, &t.q->s, rows.r[half]));
        rows.high[half] = lesser(narrowed(paged_high(&p, &t.q->s, rows.r[half])), t.last);
        rows.base[half] = NEG_INF, rows.sum[half] = 0;
    }
}

/* Scores become weights; `scale` gets what the rows' sums have to be multiplied by. */
DEVICE void make_weights(const paged_problem &p, const tile &t, int j0, float unit, lane_rows &rows, float (&z)[32],
                         float (&scale)[2]) {
    const bool edge = j0 < t.all_begin || j0 + KEYS > t.all_end;
    if (edge || !FOLDED) {
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const int j = j0 + n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2, half = n / 2 % 2;
            const bool hidden = edge && (j < rows.low[half] || j >= rows.high[half]);
            if (!FOLDED && !hidden) z[n] = score_of(p, t.q->s, rows.r[half], rows.h[half], j, z[n] * p.key.factor);
            if (hidden) z[n] = NEG_INF;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = NEG_INF;
#pragma unroll
        for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(z[4 * n + 2 * half], z[4 * n + 2 * half + 1]));
        top = larger_of_lanes(top, 4);
        const float before = rows.base[half];
        if (top * unit > before + 8) rows.base[half] = ceilf(top * unit);
        const float base = rows.base[half] == NEG_INF ? 0 : rows.base[half];
        scale[half] = rows.base[half] > before ? power_of_2(before - base) : 1;
        rows.sum[half] *= scale[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++) {
                z[i] = power_of_2(fmaf(z[i], unit, -base));
                rows.sum[half] += z[i];
            }
    }
}

/* What a thread has of its warpgroup's weights, for the one in its place in the other: where the rope parts of the
 * block have been. */
DEVICE u8 *weights_at(u8 *memory, int group) {
    return memory + TILE_BYTES + group * TILE_BYTES + HEAD_CHUNKS * CHUNK_BYTES + threadIdx.x % 128 * 16;
}
DEVICE void put_weights(u8 *memory, int group, const lane_rows &rows, const u32 (&weights)[16]) {
#pragma unroll
    for (int n = 0; n < 4; n++)
        *(uint4 *)(weights_at(memory, group) + n * 2048) =
            make_uint4(weights[4 * n], weights[4 * n + 1], weights[4 * n + 2], weights[4 * n + 3]);
    if (threadIdx.x % 4 == 0) bases_at(memory, group)[0] = rows.base[0], bases_at(memory, group)[8] = rows.base[1];
}

/* A pair of weights times a power of two, in two steps where half of it is all that there is a number for. */
DEVICE u32 times_power_of_2(u32 pair, float exponent) {
#if ELEMENT == BF16
    const float factor = power_of_2(exponent);
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(pack(factor, factor)));
#else
    const float half = floorf(exponent / 2), first = power_of_2(half), second = power_of_2(exponent - half);
    asm("mul.rn.f16x2 %0, %0, %1;\nmul.rn.f16x2 %0, %0, %2;"
        : "+r"(pair)
        : "r"(pack(first, first)), "r"(pack(second, second)));
#endif
    return pair;
}

/* ---- A unit --------------------------------------------------------------------------------------------- */

/* Adds products of weights with a stage's columns of the warpgroup; not waited for. */
DEVICE void add_values(u32 memory, int stage, int group, u32 (&weights)[16], float (&out)[HALF / 2]) {
    const u64 values = smem_descriptor(memory + TILE_BYTES + stage * TILE_BYTES + group * HALF_CHUNKS * CHUNK_BYTES,
                                       CHUNK_BYTES);
    hold(weights);
    hold(out);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wgmma<HALF>::template rs<1>(out, weights + 4 * i, moved(values, i * 2048), 1);
    wgmma_commit();
}
DEVICE void wait_for_values(u32 (&weights)[16], float (&out)[HALF / 2]) {
    wgmma_wait<0>();
    hold(weights);
    hold(out);
}

/* The other's weights of the block before, times what makes them relative to this warpgroup's bases. */
DEVICE void take_weights(u8 *memory, int group, lane_rows &rows, u32 (&weights)[16], float (&out)[HALF / 2]) {
    float scale[2];
    named_barrier_sync(WEIGHTS_READY + 1 - group, THREADS);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint4 x = *(const uint4 *)(weights_at(memory, 1 - group) + n * 2048);
        weights[4 * n] = x.x, weights[4 * n + 1] = x.y, weights[4 * n + 2] = x.z, weights[4 * n + 3] = x.w;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float other = bases_at(memory, 1 - group)[8 * half], before = rows.base[half];
        if (other > before + 7) rows.base[half] = other;
        scale[half] = rows.base[half] > before ? power_of_2(before - rows.base[half]) : 1;
        rows.sum[half] *= scale[half];
        const float exponent = other == NEG_INF ? 0 : other - rows.base[half];
#pragma unroll
        for (int n = 0; n < 8; n++) weights[2 * n + half] = times_power_of_2(weights[2 * n + half], exponent);
    }
    rescale(out, scale, true);
}

/* Scores, weights and sums of a block of this warpgroup, and sums of the other's before it. The first of all has none
 * before it: then weights of 0 are multiplied, as a branch must not decide whether products are made. */
DEVICE void attend_block(const paged_problem &p, const tile &t, int n, float unit, u8 *memory, int group, u32 &parity,
                         lane_rows &rows, float (&out)[HALF / 2]) {
    const u32 base = shared_address(memory);
    float z[32], scale[2];
    u32 weights[16], others[16];
#pragma unroll
    for (int i = 0; i < 32; i++) z[i] = 0;
#if PAGES
    const int key = t.first + n * KEYS;
    if (key < t.low || key + KEYS > t.last) clear_hidden(t, key, base, group, parity);
#endif
    hold(z);
    add_scores<true>(base, group, group, parity, z);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 16; i++) others[i] = 0;
    if (n > 0) take_weights(memory, group, rows, others, out);
    add_values(base, n > 0 ? 1 - group : group, group, others, out);
    add_scores<false, 0, 4>(base, group, 1 - group, parity, z); /* so that tensor cores have work meanwhile */
    wgmma_commit();
    fence_proxy_async(); /* copies go where weights have been */
    wgmma_wait<1>();
    hold(others);
    hold(out);
    if (n > 0) release(base, 1 - group, group);
    add_scores<false, 4>(base, group, 1 - group, parity, z);
    add_tail_scores(base, group, z);
    wgmma_commit();
    parity ^= 1;
    wgmma_wait<0>();
    hold(z);
    make_weights(p, t, t.first + n * KEYS, unit, rows, z, scale);
#pragma unroll
    for (int i = 0; i < 16; i++) weights[i] = pack(z[2 * i], z[2 * i + 1]);
    put_weights(memory, group, rows, weights);
    named_barrier_arrive(WEIGHTS_READY + group, THREADS);
    rescale(out, scale);
    add_values(base, group, group, weights, out);
    wait_for_values(weights, out);
    release(base, group, group);
}

/* Sums of the last block, of the other. */
DEVICE void follow_last(u8 *memory, int group, lane_rows &rows, float (&out)[HALF / 2]) {
    const u32 base = shared_address(memory);
    u32 weights[16];
    take_weights(memory, group, rows, weights, out);
    add_values(base, 1 - group, group, weights, out);
    wait_for_values(weights, out);
    fence_proxy_async();
    release(base, 1 - group, group);
}

/* A number that no other tile with rows has. */
DEVICE int place_of(const paged_problem &p, const tile &t) {
    return narrowed(t.q->s.begin) * group_of(p) + t.first_pair;
}

DEVICE void attend(const paged_arguments &a, const tile &t, u8 *memory, int group, u32 &parity, int &kept,
                   const handing &hands, int turn) {
    const paged_problem &p = a.p;
    const float unit = FOLDED ? (float)p.scale * p.key.factor * LOG2_E : LOG2_E;
    lane_rows rows;
    float out[HALF / 2];
#pragma unroll
    for (int n = 0; n < HALF / 2; n++) out[n] = 0;
    begin_rows(p, t, rows);
    named_barrier_sync(BOTH, THREADS); /* the unit before is over */
    const int first = place_of(p, t);
    if (first != kept) {
        keep_queries(p, t, shared_address(memory));
        named_barrier_sync(BOTH, THREADS);
        kept = first;
    }
#pragma unroll 1
    for (int n = group; n < t.blocks; n += 2) attend_block(p, t, n, unit, memory, group, parity, rows, out);
    if (t.blocks % 2 == group) follow_last(memory, group, rows, out);
    finish_unit(a, t, memory, group, rows, out, hands, turn);
}

/* What no unit is there for, by the warpgroup that fetches: sequences that are wrong or whose rows see nothing, the
 * status, and rows of no sequence. */
DEVICE void finish_others(const paged_arguments &a) {
    const paged_problem &p = a.p;
    const clearing by = {blockIdx.x, gridDim.x, threadIdx.x % FETCHERS, FETCHERS};
#pragma unroll 1
    for (paged_size n = blockIdx.x; n < paged_count(&p); n += gridDim.x) {
        const few_sequence q = few_of<ROWS>(p, n);
        const bool is_bad = a.flags[n];
        if (is_bad) clear_rows(p, q.s.begin, q.s.begin + q.s.rows, {0, 1, by.own, by.each});
        if (is_bad || q.splits > 0) continue;
#pragma unroll 1
        for (int pair = by.own / 32; pair < q.pairs; pair += FETCHERS / 32) {
            const int h = pair % group_of(p);
            const paged_size token = q.s.begin + pair / group_of(p), to = paged_row_at(&p, &p.out, token, h);
            finish_row(p, token, h, false, NEG_INF, 0, by.own % 32 == 0);
#pragma unroll 1
            for (int d = by.own % 32; d < VALUE_DIM; d += 32) put_out(p, to, d, 0);
        }
    }
    clear_rest(a, by, true, a.flags[p.sequences]);
}

/* The unit at a cursor. */
DEVICE tile tile_of(const paged_arguments &a, const unit_cursor &c) {
    const paged_problem &p = a.p;
    tile t;
    t.q = &c.q;
    t.first_pair = c.tile * ROWS;
    t.split = c.split, t.first = c.first, t.last = c.last, t.low = c.q.low;
    t.blocks = cdiv(t.last - t.first, KEYS);
    const int last = (lesser(t.first_pair + ROWS, c.q.pairs) - 1) / group_of(p);
    t.all_begin = narrowed(paged_low(&p, &c.q.s, last));
    t.all_end = lesser(narrowed(paged_high(&p, &c.q.s, t.first_pair / group_of(p))), t.last);
    return t;
}

/* ---- From warpgroup to warpgroup ------------------------------------------------------------------------- */

/* Writes the unit at a cursor. One thread. */
DEVICE void prepare_unit(const paged_arguments &a, const unit_cursor &c, handing &hands, int turn) {
    handed_unit &unit = hands.units[turn & 1];
    mbarrier_wait(barrier_of(hands, FREE, turn), (turn >> 1 & 1) ^ 1);
    unit.is_there = c.left > 0;
    unit.q = c.q;
    unit.t = tile_of(a, c);
    unit.t.q = &unit.q;
}

/* What the warpgroup that fetches does with its units. `is_written`: the first one is, and its sequence is not wrong;
 * `next`: the lane's page of its first block. */
DEVICE void fetch_units(const paged_latent_arguments &l, unit_cursor &c, bool is_written, int next, u32 memory,
                        handing &hands) {
    const paged_arguments &a = l.all;
    const bool is_one = threadIdx.x % FETCHERS == 0;
    u32 parity[2] = {0, 0};
#pragma unroll 1
    for (int turn = 0;; turn++) {
        handed_unit &unit = hands.units[turn & 1];
        if (!is_written) {
            while (c.left > 0 && a.flags[c.q.s.n]) next_unit<ROWS>(a.p, c);
            if (c.left > 0) next = page_of_lane(a.p, tile_of(a, c), c.first);
            if (is_one) prepare_unit(a, c, hands, turn);
        }
        is_written = false;
        if (is_one) mbarrier_arrive(barrier_of(hands, HANDED, turn));
        if (c.left <= 0) break;
        const tile t = tile_of(a, c);
        fetch(l, t, memory, next, parity);
        if (is_one) {
            unit.is_last = c.q.splits == 1 || atomicAdd(tickets_of(a, t), 1) == c.q.splits - 1;
            mbarrier_arrive(barrier_of(hands, TICKET, turn));
        }
        next_unit<ROWS>(a.p, c);
    }
}

/* A warp waits in place of both until parts can be seen by all, and says so. */
DEVICE void tell_of_parts(const paged_arguments &a, const handing &hands) {
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const handed_unit &unit = take_unit(hands, turn);
        if (!unit.is_there) break;
        if (!is_last_of_tile(hands, turn)) {
            named_barrier_sync(WRITTEN + (turn & 1), THREADS + 32);
            if (threadIdx.x % 32 == 0) {
                __threadfence();
                atomicAdd(tickets_of(a, unit.t) + 1, 1);
            }
        }
        free_unit(hands, turn);
    }
}

DEVICE void attend_units(const paged_arguments &a, u8 *memory, int group, int kept, const handing &hands) {
    u32 parity = 0;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const handed_unit &unit = take_unit(hands, turn);
        if (!unit.is_there) break;
        const tile t = unit.t;
        attend(a, t, memory, group, parity, kept, hands, turn);
        free_unit(hands, turn);
    }
}

extern "C" __global__ void __cluster_dims__(1 + PAIR, 1, 1) __launch_bounds__(THREADS + FETCHERS, 1)
    latent(const __grid_constant__ paged_latent_arguments l) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ handing hands;
#if OVERLAP
    launch_dependents();
#endif
    const paged_arguments &a = l.all;
    const paged_problem &p = a.p;
    const u32 base = shared_address(memory);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); /* so that descriptors are in uniform registers */
    if (threadIdx.x == 0) {
        for (int n = 0; n < 4; n++) {
            mbarrier_init(base + FULL_AT + n * 8, PAGES ? 1 : FETCHERS);
            mbarrier_init(base + EMPTY_AT + n * 8, 4 * (1 + PAIR));
        }
        for (int n = 0; n < 6; n++)
            mbarrier_init(barrier_of(hands, n / 2, n % 2), n / 2 == FREE ? WARPS + (PAGES > 0) : 1);
        mbarrier_fence_init();
    }
    unit_cursor c = first_unit<ROWS>(p, (i64 *)memory, blockIdx.x, gridDim.x);
    __syncthreads();
    /* What nothing in this call writes is there already. */
    int kept = -1, next = 0; /* the tile whose queries are there; the lane's first page */
    if (c.left > 0) {
        const tile t = tile_of(a, c);
        if (group == 2) {
            if (PAGES && threadIdx.x % 32 == 0) prefetch_tensor_map(&l.key_map), prefetch_tensor_map(&l.tail_map);
            next = page_of_lane(p, t, t.first);
        } else {
            keep_queries(p, t, base);
            kept = place_of(p, t);
        }
    }
    if (threadIdx.x == THREADS) prepare_unit(a, c, hands, 0);
    if (PAIR) cluster_sync();
#if OVERLAP
    wait_for_previous();
#endif
    const int all_bad = a.flags[p.sequences];
    const bool is_bad = a.flags[c.left > 0 ? c.q.s.n : 0];
    if (all_bad) {
        if (group == 2) clear_rest(a, {blockIdx.x, gridDim.x, threadIdx.x % FETCHERS, FETCHERS}, true, true);
        return;
    }
    if (group == 2) {
        setmaxnreg_dec<FETCHER_REGS>();
        if (!PAGES || threadIdx.x / 32 == WARPS)
            fetch_units(l, c, !is_bad, next, base, hands);
        else if (threadIdx.x / 32 == WARPS + 1)
            tell_of_parts(a, hands);
        __syncwarp();
        finish_others(a);
    } else {
        setmaxnreg_inc<OTHER_REGS>();
        attend_units(a, memory, group, kept, hands);
    }
    __syncwarp();
    if (PAIR) cluster_sync(); /* the other may still fetch for this one */
}
