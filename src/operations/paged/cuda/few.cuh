/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences with at most FEW pairs of a row and a head of a KV head: their keys are split, by the sequence's own
 * length alone. A unit is a split, a KV head and a tile of ROWS pairs. Neighbouring workers have the KV heads of the
 * same keys, so that a page of all heads is read by all of them at the same time, or two tiles of one head, so that
 * keys are read once from memory. The units of a worker lie one after the other, sequence by sequence; workers have as
 * many keys each, but for a unit, found from the lengths when they start.
 *
 *   FEW     PAGED_FEW
 *   SPLITS  of a sequence at most, each of LEAST keys at least: PAGED_FEW_SPLITS, PAGED_LEAST_KEYS
 *   OTHERS  1 = sequences with more pairs are there too, in one split; 0
 *   ALONE   1 = there is a worker for each split that there can be, of a sequence and a KV head; 0
 *   TILES_TOGETHER  1 = neighbouring workers have two tiles, not the KV heads; 0
 */
#ifndef EJKI_PAGED_CUDA_FEW_CUH
#define EJKI_PAGED_CUDA_FEW_CUH

#include "operations/paged/cuda/pages.cuh"

#ifndef FEW
#define FEW    PAGED_FEW
#define SPLITS PAGED_FEW_SPLITS
#define LEAST  PAGED_LEAST_KEYS
#define OTHERS 0
#endif
#ifndef TILES_TOGETHER
#define TILES_TOGETHER 0
#endif
#ifndef ALONE
#define ALONE 0
#endif

struct few_sequence {
    paged_sequence s;
    page_list pages;
    int pairs, tiles, each, splits;
    int low, begin, end; /* keys that its rows see; the multiple of 64 that splits begin at */
};

/* Without splits where its rows see nothing. Inlined, as a function would read the arguments from memory. */
template <int tile> DEVICE few_sequence few_now(const paged_problem &p, paged_size n) {
    few_sequence q;
    q.s = paged_sequence_of(&p, n);
    const paged_size pairs = q.s.rows * group_of(p);
    q.pairs = pairs <= FEW || OTHERS ? (int)pairs : 0;
    q.tiles = (q.pairs + tile - 1) / tile;
    q.splits = q.each = q.low = q.begin = q.end = 0;
    q.pages = pages_of(p, n);
    if (q.pairs == 0) return q;
    const int most = lesser(room_of(p, q.pages), narrowed(q.s.keys));
    q.low = narrowed(paged_low(&p, &q.s, 0));
    q.begin = q.low & ~63;
    q.end = lesser(narrowed(paged_high(&p, &q.s, q.s.rows - 1)), most);
    if (q.end <= q.low) return q;
    q.each = q.pairs <= FEW ? (int)paged_split_keys(q.end - q.begin, SPLITS, LEAST) : q.end - q.begin;
    q.splits = (q.end - q.begin + q.each - 1) / q.each;
    return q;
}

/* The same where it is not waited for at the start. */
template <int tile> static __device__ __noinline__ few_sequence few_of(const paged_problem &p, paged_size n) {
    return few_now<tile>(p, n);
}

/* Where the part of a row, a head and a split is, counted in parts. */
DEVICE paged_size part_of(const paged_arguments &a, const few_sequence &q, int row, int h, int split) {
    const paged_size own = a.rows_most > 0 ? q.s.n * a.rows_most + row : q.s.begin + row;
    return (own * a.p.heads + h) * a.splits + split;
}

/* ---- Units ------------------------------------------------------------------------------------------ */

/* A unit, and how much of the worker's share follows: workers are CTAs, or warps. */
struct unit_cursor {
    few_sequence q;
    i64 left;                           /* of the share, this unit included; 0 or less: the end */
    int own;                            /* number among the sequence's */
    int first_head, heads;              /* of the worker */
    int first_tile, tiles;              /* of the worker is every so manyth tile from the first on */
    int tile, head, split, first, last; /* keys of the split */
};

/* Units of a split, of workers that have the same keys at the same time; of a sequence. */
DEVICE int units_of_split(const few_sequence &q, const unit_cursor &c) {
    return (TILES_TOGETHER ? (u32)q.tiles / (u32)c.tiles : q.tiles) * c.heads;
}
DEVICE int units_of(const few_sequence &q, const unit_cursor &c) {
    return q.splits * units_of_split(q, c);
}
/* What a unit of so many keys counts for: what begins and ends it takes about as long as 32 keys. */
DEVICE int weight_of(int keys) {
    return (keys + 63) / 32;
}
/* Of units of splits before the last; of all of a sequence's. */
DEVICE i64 weights_of_whole(const few_sequence &q, const unit_cursor &c) {
    return (i64)(q.splits - 1) * units_of_split(q, c) * weight_of(q.each);
}
DEVICE i64 weights_of(const few_sequence &q, const unit_cursor &c) {
    if (q.splits == 0) return 0;
    const int last = q.end - q.begin - (q.splits - 1) * q.each;
    return weights_of_whole(q, c) + (i64)units_of_split(q, c) * weight_of(last);
}

template <int tile> DEVICE void settle(const paged_problem &p, unit_cursor &c) {
    while (c.left > 0 && c.own >= units_of(c.q, c)) {
        c.own -= units_of(c.q, c);
        c.q = few_of<tile>(p, c.q.s.n + 1);
    }
    if (c.left <= 0) return;
    const int tiles = TILES_TOGETHER ? c.q.tiles / c.tiles : c.q.tiles;
    c.tile = c.first_tile, c.head = c.first_head, c.split = c.own;
    if (tiles > 1 || c.heads > 1) {
        c.tile += c.own % tiles * c.tiles;
        c.head += c.own / tiles % c.heads;
        c.split = c.own / tiles / c.heads;
    }
    c.first = c.q.begin + c.split * c.q.each;
    c.last = lesser(c.first + c.q.each, c.q.end);
}

template <int tile> DEVICE void next_unit(const paged_problem &p, unit_cursor &c) {
    c.left -= weight_of(c.last - c.first);
    c.own++;
    if (ALONE) {
        c.tile = c.own;
        return;
    }
    if (c.left > 0 && c.heads == 1 && c.q.tiles == 1 && c.own < c.q.splits) {
        c.split = c.own;
        c.first = c.last;
        c.last = lesser(c.first + c.q.each, c.q.end);
    } else {
        settle<tile>(p, c);
    }
}

/* Where share n of `count` begins, and the next. */
struct share {
    i64 begin, end;
};
DEVICE share share_of(i64 all, int n, int count) {
    i64 each = (u32)all / (u32)count, rest = (u32)all % (u32)count; /* faster by far than in 64 bits */
    if (all >> 32 != 0) each = all / count, rest = all % count;
    const i64 begin = each * n + lesser(n, (int)rest);
    return {begin, begin + each + (n < rest)};
}

/* Weights of all sequences before thread n's, into sums[n]; a thread has `each` neighbouring ones. Returns the last of
 * its own. */
template <int tile> DEVICE few_sequence add_up(const paged_problem &p, const unit_cursor &c, int count, int each,
                                               i64 *sums) {
    const int lane = threadIdx.x % 32;
    few_sequence q = {};
    i64 sum = 0;
    for (int n = threadIdx.x * each; n < lesser(threadIdx.x * each + each, count); n++) {
        q = few_now<tile>(p, n);
        sum += weights_of(q, c);
    }
    i64 before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const i64 other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
    }
    i64 *warp_sums = sums + blockDim.x + 1;
    if (lane == 31) warp_sums[threadIdx.x / 32] = before;
    __syncthreads();
    for (int w = 0; w < (int)threadIdx.x / 32; w++) before += warp_sums[w];
    sums[threadIdx.x + 1] = before;
    if (threadIdx.x == 0) sums[0] = 0;
    __syncthreads();
    return q;
}

/* The last thread whose sum is not above a number, which is below that of all: each looks at its own, and that one
 * leaves its sequence. */
struct found_thread {
    int thread;
    few_sequence q;
};
DEVICE const found_thread &find_sum(i64 *sums, i64 number, const few_sequence &q) {
    found_thread &found = *(found_thread *)(sums + blockDim.x + 1);
    if (sums[threadIdx.x] <= number && number < sums[threadIdx.x + 1]) found = {(int)threadIdx.x, q};
    __syncthreads();
    return found;
}

#if ALONE
/* The units of a worker: tiles of a split. */
template <int tile> DEVICE unit_cursor own_unit(const paged_problem &p, u32 worker, u32 splits) {
    const u32 heads = (u32)p.kv_heads, count = worker / heads;
    unit_cursor c = {};
    c.heads = c.tiles = 1;
    c.head = c.first_head = worker % heads;
    c.split = count % splits;
    const u32 n = count / splits;
    if (n >= paged_count(&p)) return c;
    c.q = few_now<tile>(p, n);
    if (c.split >= c.q.splits) return c;
    c.first = c.q.begin + c.split * c.q.each;
    c.last = lesser(c.first + c.q.each, c.q.end);
    c.left = c.q.tiles * weight_of(c.last - c.first);
    return c;
}
#endif

/* A worker's first unit: those that begin in its share are its own. `sums` in shared memory has room for 33 more than
 * threads, and is free after a barrier. */
template <int tile> DEVICE unit_cursor first_unit(const paged_problem &p, i64 *sums, int worker, int workers) {
    const int count = (int)paged_count(&p), each = count <= (int)blockDim.x ? 1 : cdiv(count, blockDim.x);
    const int kv_heads = (int)p.kv_heads;
    unit_cursor c = {};
    int own = worker, others = workers; /* those that have the same keys are one */
    c.heads = kv_heads, c.tiles = 1;
    if (TILES_TOGETHER && p.group % (2 * tile) == 0 && workers % 2 == 0) {
        own /= 2, others /= 2, c.tiles = 2;
        c.first_tile = worker % 2;
    } else if (!TILES_TOGETHER && workers % kv_heads == 0) {
        own /= kv_heads, others /= kv_heads, c.heads = 1;
        c.first_head = worker % kv_heads;
    }
    const few_sequence last = add_up<tile>(p, c, count, each, sums);
    const share mine = share_of(sums[blockDim.x], own, others);
    i64 rest = mine.begin;
    c.left = mine.end - rest;
    const found_thread &found = find_sum(sums, rest, last);
    if (c.left <= 0) return c;
    const int low = found.thread;
    rest -= sums[low];
    c.q = found.q;
    if (each > 1 || TILES_TOGETHER) c.q = few_now<tile>(p, low * each); /* spills in latent.cu else */
    while (rest >= weights_of(c.q, c)) {
        rest -= weights_of(c.q, c);
        c.q = few_of<tile>(p, c.q.s.n + 1);
    }
    /* The first that begins there or later. */
    const i64 whole = weights_of_whole(c.q, c);
    int weight = weight_of(c.q.each);
    if (rest > whole) {
        c.own = (c.q.splits - 1) * units_of_split(c.q, c);
        rest -= whole;
        weight = weight_of(c.q.end - c.q.begin - (c.q.splits - 1) * c.q.each);
    }
    const i64 up = rest + weight - 1;
    const int skipped = up >> 32 == 0 ? (int)((u32)up / (u32)weight) : (int)(up / weight);
    c.own += skipped;
    c.left -= (i64)skipped * weight - rest;
    settle<tile>(p, c);
    return c;
}

#endif
