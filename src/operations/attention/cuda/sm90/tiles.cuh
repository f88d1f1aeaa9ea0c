/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of forward attention on sm_90a, for forward_sm90.cu and again_sm90.cu: which rows and blocks they are, and the
 * products of a block. Besides the constants of base.cuh:
 *
 *   CONSUMERS  warpgroups that compute, of 64 rows each
 *   KEYS       of a block
 *   FOLDED     1 = the scale is positive and no cap follows it: it is multiplied into exponents
 *   BOUNDED    1 = under the cap scores are taken relative to 0
 *   TERMS      of the series of a small score under the cap, 2 or 3
 *   PIECES     1 = rows of the result are of whole pieces of 32 elements, at multiples of 16 bytes
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

/* ---- Which -------------------------------------------------------------------------------------------- */

/*
 * Rows by which the first tile of a sequence begins ahead of it, whole warpgroups: the tile that is not full is the first,
 * which sees fewest keys under a triangle, rather than the last. But tiles that begin where blocks of keys do stay there.
 */
DEVICE int rows_ahead(int queries) {
    const bool stay = ROWS % KEYS == 0 && 64 % KEYS != 0;
    return stay ? 0 : cdiv(queries, ROWS) * ROWS - round_up(queries, 64);
}

/* The work of a round, by all lanes of a warp; false if there is none. */
DEVICE bool work_of_round(const ejki_cuda_sm90_problem &p, const order &tiles, int round, work *w) {
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
    w->row = at.own * ROWS - rows_ahead(at.s.queries);
    w->out = at.s.entry * p.all.out.stride_b + at.s.query * p.all.out.stride_t +
             at.head * p.all.out.stride_h;
    w->round = round;
    blocks_of(*w, w->row, ROWS, &w->begin, &w->end);
    return true;
}

/* What a warpgroup's rows see. */
struct strip {
    int begin, end;         /* blocks */
    int all_begin, all_end; /* keys that all rows see */
};

DEVICE strip strip_of(const work &w, int warpgroup) {
    strip t;
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
DEVICE int row_of_lane(const work &w, int warp) {
    return w.row + warp * 16 + threadIdx.x % 32 / 4;
}

/* Do positions hide any of the block's keys from a row of the strip? */
DEVICE bool is_edge(const strip &t, int block) {
    return block * KEYS < t.all_begin || block * KEYS + KEYS > t.all_end;
}

/* ---- Products ----------------------------------------------------------------------------------------- */

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

#endif
