/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of the forward pass on sm_90a, for forward.cu and recompute.cu: their rows and blocks, and the products of a
 * block. Besides the constants of options.cuh:
 *
 *   CONSUMERS  consumer warpgroups, of 64 rows each
 *   KEYS       of a block
 *   FOLDED     1 = the scale is positive and no cap follows: it is multiplied into exponents
 *   BOUNDED    1 = under the cap scores need no running max
 *   TERMS      of the polynomial of a small score under the cap, 2 or 3
 *   PIECES     1 = rows of the result can be written 16 bytes at a time
 */
#ifndef EJKI_CUDA_TILES_SM90_CUH
#define EJKI_CUDA_TILES_SM90_CUH

#define WARPS (4 * CONSUMERS)
#ifndef PIECES
#define PIECES 0
#endif
#ifndef BOUNDED
#define BOUNDED 0
#endif
#ifndef TERMS
#define TERMS 3
#endif
#include "operations/attention/cuda/sm90/scheduler.cuh"
#include "operations/attention/cuda/sm90/rows.cuh"

enum {
    QUERY_BYTES = 64 * pitch_of(HEAD_DIM) * 2, /* of a warpgroup */
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    VALUE_BYTES = KEYS * pitch_of(VALUE_DIM) * 2,
    COLUMN_BYTES = KEYS * 128, /* 64 columns of a block */
};

/* ---- Work tiles --------------------------------------------------------------------------------------- */

/*
 * Rows by which the first tile of a sequence begins before it, whole warpgroups: so the partial tile is the first,
 * which has the fewest visible keys under a causal mask, and not the last. Tiles aligned with blocks of keys stay.
 */
DEVICE int rows_ahead(int queries) {
    const bool stay = ROWS % KEYS == 0 && 64 % KEYS != 0;
    return stay ? 0 : cdiv(queries, ROWS) * ROWS - round_up(queries, 64);
}

/* The work tile of a round, by all lanes of a warp; false if there is none. */
DEVICE bool work_tile_of_round(const ejki_cuda_sm90_problem &p, const order &tiles, int round, work_tile *w) {
    tile_place at;
    const int far = (1 << 30) - 1;
    if (!tile_of_round<ROWS>(p.all, tiles, p.heads_together, round, &at)) return false;
    w->entry = at.s.entry;
    w->query = at.s.query;
    w->queries = at.s.queries;
    w->key = at.s.key;
    w->keys = at.s.keys;
    w->known = at.s.known;
    w->low = clamped(at.s.first + far, 2 * far) - far;
    w->high = clamped(at.s.last + far, 2 * far) - far;
    w->head = at.head;
#if PAGES
    w->number = at.s.number;
#endif
    w->row = at.own * ROWS - rows_ahead(at.s.queries);
    w->out = at.s.entry * p.all.out.stride_b + at.s.query * p.all.out.stride_t +
             at.head * p.all.out.stride_h;
    w->round = round;
    blocks_of(*w, w->row, ROWS, &w->begin, &w->end);
    return true;
}

/* Blocks and keys visible to the rows of a warpgroup. */
struct warpgroup_range {
    int begin, end;         /* blocks */
    int all_begin, all_end; /* keys visible to all rows */
};

DEVICE warpgroup_range warpgroup_range_of(const work_tile &w, int warpgroup) {
    warpgroup_range t;
    const int first = w.row + warpgroup * 64;
    const int last = larger(lesser(first + 64, w.queries), 1) - 1;
    t.all_begin = first_key(w, last);
    t.all_end = last < w.known ? last_key(w, lesser(first, last)) : 0;
    blocks_of(w, first, 64, &t.begin, &t.end);
    t.begin = larger(w.begin, lesser(t.begin, w.end - 1));
    t.end = larger(t.begin + 1, lesser(t.end, w.end));
    return t;
}

/* The first of a lane's two rows, the other being eight on; `warp` counts those that compute. */
DEVICE int row_of_lane(const work_tile &w, int warp) {
    return w.row + warp * 16 + threadIdx.x % 32 / 4;
}

/* Whether a key of the block is hidden from one of the rows. */
DEVICE bool is_edge(const warpgroup_range &t, int block) {
    return block * KEYS < t.all_begin || block * KEYS + KEYS > t.all_end;
}

/* ---- Products ----------------------------------------------------------------------------------------- */

DEVICE void begin_scores(u32 query, u32 key, float (&z)[KEYS / 2]) {
    hold(z);
    wgmma_fence();
    const u64 q = smem_descriptor(query, 16), k = smem_descriptor(key, 16);
#pragma unroll
    for (int n = 0; n < sixteens(HEAD_DIM); n++)
        wgmma<KEYS>::ss<0, 0>(z, advance_descriptor(q, n / 4 * 64 * 128 + n % 4 * 32),
                                     advance_descriptor(k, n / 4 * COLUMN_BYTES + n % 4 * 32), n != 0);
    wgmma_commit();
}

DEVICE void begin_sums(const u32 (&weights)[KEYS / 4], u32 value, float (&out)[WIDTH / 2]) {
    hold(out);
    wgmma_fence();
    const u64 v = smem_descriptor(value, COLUMN_BYTES);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        wgmma<WIDTH>::rs<1>(out, weights + 4 * n, advance_descriptor(v, n * 2048), 1);
    wgmma_commit();
}

#endif
