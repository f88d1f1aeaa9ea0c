/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory of latent.cu and what comes into it: queries of a tile, and blocks of keys in two stages, by TMA
 * (PAGES) or by threads. Constants are those of latent.cu.
 */
#ifndef EJKI_PAGED_CUDA_LATENT_FETCH_CUH
#define EJKI_PAGED_CUDA_LATENT_FETCH_CUH

#include "kernels/cuda/hopper.cuh"
#include "operations/paged/cuda/few.cuh"
#include "operations/paged/cuda/latent.cuh"

enum {
    ROWS = 64,
    KEYS = 64,
    DEPTH = HEAD_DIM + TAIL_DIM,
    HEAD_CHUNKS = HEAD_DIM / 64,
    HALF_CHUNKS = HEAD_CHUNKS / 2,
    CHUNKS = cdiv(DEPTH, 64),
    CHUNK_BYTES = 64 * 128, /* 64 rows of 64 columns */
    TILE_BYTES = CHUNKS * CHUNK_BYTES,
    HALF = HEAD_DIM / 2, /* columns of a warpgroup */
    FACTORS_AT = 3 * TILE_BYTES,              /* of parts, when a tile ends, [SPLITS][ROWS] */
    BASES_AT = FACTORS_AT + SPLITS * ROWS * 4, /* of rows, [2][ROWS] */
    SUMS_AT = BASES_AT + 2 * ROWS * 4,        /* [2][ROWS] */
    FULL_AT = SUMS_AT + 2 * ROWS * 4,         /* mbarriers [stage][half] */
    EMPTY_AT = FULL_AT + 4 * 8,
    FETCHERS = 128,
    FETCHER_REGS = 56,
    OTHER_REGS = 224,
    OWN_ROWS = KEYS / (FETCHERS / 8), /* of a block, that a thread fetches pieces of */
    WEIGHTS_READY = 1, /* named barriers: of each warpgroup; of both; of the threads of each */
    BOTH = 3,
    OWN_THREADS = 4,
    WRITTEN = 6, /* a part by both, by turns */
    PAGES_EACH = PAGES > 0 ? KEYS / PAGES : 0,
};

/* A CTA's view of a unit. */
struct tile {
    const few_sequence *q;
    int first_pair, split, first, last, low; /* keys; the first that a row sees */
    int all_begin, all_end;      /* keys that all rows see */
    int blocks; /* at least 1 */
};

/*
 * Units go from the warpgroup that fetches to the others, in turn through two places. Of each there is an mbarrier for
 * the unit, one for `is_last`, which says that the tile's other splits have come near their ends, and one for the place
 * when it is free again.
 */
struct handed_unit {
    few_sequence q;
    tile t;
    bool is_there, is_last;
};
enum { HANDED, TICKET, FREE };
struct handing {
    handed_unit units[2];
    u64 barriers[3][2];
};
DEVICE u32 barrier_of(const handing &hands, int which, int turn) {
    return shared_address(&hands.barriers[which][turn & 1]);
}
DEVICE const handed_unit &take_unit(const handing &hands, int turn) {
    mbarrier_wait(barrier_of(hands, HANDED, turn), turn >> 1 & 1);
    return hands.units[turn & 1];
}
DEVICE bool is_last_of_tile(const handing &hands, int turn) {
    mbarrier_wait(barrier_of(hands, TICKET, turn), turn >> 1 & 1);
    return hands.units[turn & 1].is_last;
}
DEVICE void free_unit(const handing &hands, int turn) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier_of(hands, FREE, turn));
}

DEVICE u32 full_barrier(u32 memory, int stage, int half) {
    return memory + FULL_AT + (2 * stage + half) * 8;
}
DEVICE u32 empty_barrier(u32 memory, int stage, int half) {
    return memory + EMPTY_AT + (2 * stage + half) * 8;
}

/* ---- Rows to shared memory ------------------------------------------------------------------------------ */

/* Pieces of this thread in `count` chunks of a row. */
template <int count> DEVICE void copy_chunks(u32 to, const u16 *from, bool there, bool aligned) {
    if (aligned) {
#pragma unroll
        for (int c = 0; c < count; c++) copy_piece(to + c * CHUNK_BYTES, from + c * 64, there);
        return;
    }
#pragma unroll 1
    for (int n = 0; n < count * 8; n++)
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + n / 8 * CHUNK_BYTES + n % 8 * 2),
                     "h"(there ? from[n / 8 * 64 + n % 8] : (u16)0)
                     : "memory");
}

DEVICE void copy_tail(u32 to, const u16 *from, bool there, bool aligned) {
    if (threadIdx.x % 8 * 8 < TAIL_DIM) copy_chunks<1>(to + HEAD_CHUNKS * CHUNK_BYTES, from, there, aligned);
}

/* Where the thread's first piece of a row lies. */
DEVICE u32 row_at(u32 tile, int row) {
    return tile + row * 128 + ((threadIdx.x % 8 ^ (row & 7)) << 4);
}

DEVICE bool are_aligned(const void *data, const void *tail, paged_size strides) {
    return (((u64)data >> 1 | (u64)tail >> 1 | (u64)strides) & 7) == 0 && (((u64)data | (u64)tail) & 1) == 0;
}

DEVICE void keep_queries(const paged_problem &p, const tile &t, u32 to) {
    const paged_rows &a = p.query, &b = p.query_tail;
    const bool aligned = are_aligned(a.data, b.data, a.token | a.head | b.token | b.head);
#pragma unroll 1
    for (int row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
        const bool there = t.first_pair + row < t.q->pairs;
        const int pair = there ? t.first_pair + row : t.first_pair, h = pair % group_of(p);
        const paged_size token = t.q->s.begin + pair / group_of(p);
        const u16 *head = (const u16 *)a.data + paged_row_at(&p, &a, token, h) + threadIdx.x % 8 * 8;
        const u16 *tail = (const u16 *)b.data + paged_row_at(&p, &b, token, h) + threadIdx.x % 8 * 8;
        copy_chunks<HEAD_CHUNKS>(row_at(to, row), head, there, aligned);
        copy_tail(row_at(to, row), tail, there, aligned);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
}

/* ---- Blocks of keys ------------------------------------------------------------------------------------- */

#if PAGES
/* The page of the lane's rows of a block; that behind the last, of which there are zeros, where none is to be read. */
DEVICE int page_of_lane(const paged_problem &p, const tile &t, int first) {
    const int key = first + threadIdx.x % 32 * PAGES;
    const bool is_seen = threadIdx.x % 32 < PAGES_EACH && key < t.last && key + PAGES > t.low;
    const paged_size page = is_seen ? entry_of(p, t.q->pages, key) : -1;
    return page >= 0 && page < p.pages ? (int)page : (int)p.pages;
}

DEVICE void load(u32 to, const tensor_map *map, u32 barrier, u64 policy, int column, int row, int page) {
#if PAIR
    tma_load_once_to_all(to, map, barrier, 3, policy, column, row, 0, page);
#else
    tma_load_once(to, map, barrier, policy, column, row, 0, page);
#endif
}

/* One warp: every other chunk of each half of a stage, or all. `next`: the lane's page of the first block. */
DEVICE void fetch(const paged_latent_arguments &l, const tile &t, u32 memory, int next, u32 (&parity)[2]) {
    const int lane = threadIdx.x % 32, rank = PAIR ? (int)cluster_rank() : 0;
    const u64 policy = once_policy();
#pragma unroll 1
    for (int n = 0; n < t.blocks; n++) {
        const int stage = n & 1, key = t.first + n * KEYS, row = (u32)key % (u32)l.all.p.page;
        const int page = PAGES_EACH == 1 ? __shfl_sync(~0u, next, 0) : next;
        const u32 to = memory + TILE_BYTES + stage * TILE_BYTES + (PAGES_EACH == 1 ? 0 : lane * PAGES * 128);
        next = page_of_lane(l.all.p, t, key + KEYS);
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const int half = stage ^ i, chunk = half * HALF_CHUNKS;
            const u32 full = full_barrier(memory, stage, half);
            mbarrier_wait(empty_barrier(memory, stage, half), parity[stage] ^ 1);
            if (lane == 0) mbarrier_expect(full, (HALF_CHUNKS + i) * CHUNK_BYTES);
            __syncwarp();
            if (PAGES_EACH == 1 ? !is_elected() : lane >= PAGES_EACH) continue;
#pragma unroll
            for (int c = 0; c < HALF_CHUNKS; c += 1 + PAIR)
                if (c + rank < HALF_CHUNKS)
                    load(to + (chunk + c + rank) * CHUNK_BYTES, &l.key_map, full, policy, (chunk + c + rank) * 64, row,
                         page);
            if (i == 1 && (!PAIR || rank == stage))
                load(to + HEAD_CHUNKS * CHUNK_BYTES, &l.tail_map, full, policy, 0, row, page);
        }
        parity[stage] ^= 1;
    }
}

/* Rows of a stage that no row of the unit sees become 0, by one warpgroup: they may hold anything. */
DEVICE void clear_hidden(const tile &t, int key, u32 memory, int group, u32 parity) {
    mbarrier_wait(full_barrier(memory, group, 0), parity);
    mbarrier_wait(full_barrier(memory, group, 1), parity);
#pragma unroll 1
    for (int row = threadIdx.x % 128 / 8; row < KEYS; row += 16) {
        if (key + row >= t.low && key + row < t.last) continue;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            store_piece(row_at(memory + TILE_BYTES + group * TILE_BYTES, row) + c * CHUNK_BYTES,
                        make_uint4(0, 0, 0, 0));
    }
    fence_proxy_async();
    named_barrier_sync(OWN_THREADS + group, 128);
}
#else
DEVICE int page_of_lane(const paged_problem &, const tile &, int) {
    return 0;
}

/* Pages of the thread's rows of a block: 32 bits of good entries. */
DEVICE void ask_for_pages(const paged_problem &p, const tile &t, int first, int (&page)[OWN_ROWS]) {
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) {
        const int key = first + threadIdx.x % FETCHERS / 8 + n * (FETCHERS / 8);
        page[n] = key >= t.low && key < t.last ? (int)entry_of(p, t.q->pages, key) : -1;
    }
}

/* Columns of a half and, in the half that is not the stage's own, the tail. */
DEVICE void fetch_half(const paged_problem &p, int key, u32 stage, int half, bool has_tail, bool aligned,
                       const int (&page)[OWN_ROWS]) {
    const int piece = threadIdx.x % 8 * 8;
#pragma unroll
    for (int n = 0; n < OWN_ROWS; n++) {
        const int own = threadIdx.x % FETCHERS / 8 + n * (FETCHERS / 8), row = (int)((u32)(key + own) % (u32)p.page);
        const bool there = is_in_cache(p, page[n], row);
        const paged_size at = there ? row : 0, number = there ? page[n] : 0;
        copy_chunks<HALF_CHUNKS>(row_at(stage, own) + half * HALF_CHUNKS * CHUNK_BYTES,
                                 (const u16 *)p.key.data + number * p.key.page + at * p.key.token + piece + half * HALF,
                                 there, aligned);
        if (has_tail)
            copy_tail(row_at(stage, own),
                      (const u16 *)p.key_tail.data + number * p.key_tail.page + at * p.key_tail.token + piece, there,
                      aligned);
    }
}

/* Arrives once what this thread has copied is there. */
DEVICE void arrive_with_copies(u32 barrier, bool aligned) {
    if (aligned)
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    else
        mbarrier_arrive(barrier);
}

DEVICE void fetch(const paged_latent_arguments &l, const tile &t, u32 memory, int, u32 (&parity)[2]) {
    const paged_problem &p = l.all.p;
    const bool aligned = are_aligned(p.key.data, p.key_tail.data,
                                     p.key.page | p.key.token | p.key_tail.page | p.key_tail.token);
    int page[OWN_ROWS];
    ask_for_pages(p, t, t.first, page);
#pragma unroll 1
    for (int n = 0; n < t.blocks; n++) {
        const int stage = n & 1, key = t.first + n * KEYS;
        const u32 to = memory + TILE_BYTES + stage * TILE_BYTES;
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const int half = stage ^ i;
            mbarrier_wait(empty_barrier(memory, stage, half), parity[stage] ^ 1);
            fetch_half(p, key, to, half, i == 1, aligned, page);
            arrive_with_copies(full_barrier(memory, stage, half), aligned);
        }
        parity[stage] ^= 1;
        ask_for_pages(p, t, key + KEYS, page);
    }
}
#endif

#endif
