/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of decode.cu: a warp's blocks of 16 keys, through a ring of its own in shared memory, from unit to unit without
 * a pause. A block is fetched once its pages are known, which are asked for earlier. Stages are those of few_rows.cuh.
 */
#ifndef EJKI_PAGED_CUDA_DECODE_RING_CUH
#define EJKI_PAGED_CUDA_DECODE_RING_CUH

#include "operations/attention/cuda/common/few_rows.cuh"
#include "operations/paged/cuda/few.cuh"

/* ---- Into the ring ---------------------------------------------------------------------------------- */

/* A warp's next block to fetch. Where a block is of one page, lanes have those of its next 32 blocks. */
struct fetcher {
    unit_cursor unit;
    int key, turn;    /* the block's first; blocks since pages were asked for */
    paged_size entry; /* of the page of the lane's key, or of its block */
};

DEVICE void ask_for_pages(const paged_problem &p, fetcher &f) {
    const int lane = threadIdx.x % 32, key = f.key + (WHOLE ? lane * KEYS * WARPS : lane % KEYS);
    f.entry = f.unit.left > 0 && key < f.unit.last ? entry_of(p, f.unit.q.pages, key) : -1;
    f.turn = 0;
}

/* Goes on to the unit's next block of this warp or, if it has none, to one of a later unit. */
DEVICE void find_block(const paged_problem &p, fetcher &f) {
    bool asks = !WHOLE || ++f.turn == 32;
    while (f.unit.left > 0 && f.key >= f.unit.last) {
        next_unit<ROWS>(p, f.unit);
        f.key = f.unit.first + KEYS * (threadIdx.x / 32);
        asks = true;
    }
    if (asks) ask_for_pages(p, f);
}

DEVICE bool is_aligned(const paged_cache &c) {
    return (((u64)c.data >> 1 | c.page | c.token | c.head) & 7) == 0 && ((u64)c.data & 1) == 0;
}

/* Rows of a block; `page` and `row` are those of the lane's key, page -1 of one that is not to be read. */
template <int dim, class place>
DEVICE void fetch_rows(const paged_cache &c, bool aligned, int head, paged_size page, int row, place where) {
    enum { PIECES = dim / 8 };
    const u16 *data = (const u16 *)c.data + head * c.head;
    const i64 own = page < 0 ? -1 : page * c.page + row * c.token;
#pragma unroll
    for (int n = 0; n < KEYS * PIECES / 32; n++) {
        const int index = n * 32 + threadIdx.x % 32, key = index / PIECES, piece = index % PIECES;
        const i64 at = __shfl_sync(~0u, own, key);
        const u16 *from = data + (at < 0 ? 0 : at + piece * 8);
        if (aligned)
            copy_piece(where(key, piece), from, at >= 0);
        else
            copy_elements<dim>(where(key, piece), from, piece * 8, at >= 0);
    }
}

/* Fetches the block into a stage, and finds the next. */
DEVICE void fetch_block(const paged_problem &p, fetcher &f, u32 stage, bool aligned) {
    if (f.unit.left > 0) {
        const int lane = threadIdx.x % 32, head = f.unit.head, key = f.key + lane % KEYS;
        const int row = (int)((u32)key % (u32)p.page);
        const paged_size entry = WHOLE ? __shfl_sync(~0u, f.entry, f.turn) : f.entry;
        const bool is_there = key >= f.unit.q.low && key < f.unit.last && is_in_cache(p, entry, row);
        const paged_size page = is_there ? entry : -1;
        fetch_rows<HEAD_DIM>(p.key, aligned, head, page, row,
                             [&](int key, int piece) { return key_piece(stage, key, piece); });
        fetch_rows<VALUE_DIM>(p.value, aligned, head, page, row,
                              [&](int key, int piece) { return value_piece(stage, key, piece); });
        f.key += KEYS * WARPS;
        find_block(p, f);
    }
    cp_async_commit();
}

#endif
