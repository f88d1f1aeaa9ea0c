/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recompute pass after forward.cu: tiles whose sums were flagged as NaN are done again in the passes of nonfinite.cuh,
 * with the same products, so that finite results keep their bits. A CTA handles the tiles of its namesake and mostly
 * ends at once. Where TMA cannot be used it computes everything. A kernel of its own, because forward.cu has no
 * registers to spare and both compile in parallel. Constants: tiles.cuh.
 */
#include "operations/attention/cuda/sm90/tiles.cuh"

enum { ALL_THREADS = 128 * CONSUMERS };

struct layout {
    u8 query[CONSUMERS * QUERY_BYTES];
    u8 key[KEY_BYTES];
    u8 value[VALUE_BYTES];
    u32 nonfinite[EJKI_CUDA_NONFINITE_WORDS];
    order tiles;
};

/* Where rows lie: of a cache by pages, whose stride is not 0, else one after the other. */
struct rows_in_pages {
    const ejki_cuda_pages *pages;
    i64 stride, begin;
    int count;
};

DEVICE i64 row_in_pages(const ejki_cuda_bthd &from, const rows_in_pages &in, int token, int row, int end) {
#if PAGES
    if (in.stride) {
        const int page = row >= 0 && row < end ? paged_place(*in.pages, in.begin, in.count, row / PAGES) : 0;
        return lesser(page, in.pages->pages - 1) * in.stride + row % PAGES * from.stride_t;
    }
#endif
    return (i64)(token + row) * from.stride_t;
}

/*
 * Loads by all threads, between two barriers. What is not finite is replaced as the pass says; true if there was any.
 */
template <int count, int dim>
DEVICE bool copy_rows(u32 to, const ejki_cuda_bthd &from, const rows_in_pages &pages, const work_tile &w, int token,
                      int head, int first, int end, int pass) {
    const u16 *data = (const u16 *)from.data + w.entry * from.stride_b + head * from.stride_h;
    enum { EIGHTS = pitch_of(dim) / 8 };
    bool nonfinite = false;
    __syncthreads();
#pragma unroll 1
    for (int index = threadIdx.x; index < count * EIGHTS; index += ALL_THREADS) {
        const int row = index / EIGHTS, piece = index % EIGHTS;
        const u16 *at = data + row_in_pages(from, pages, token, first + row, end) + piece * 8;
        u32 x[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const bool there = first + row >= 0 && first + row < end;
            const u32 low = there && piece * 8 + 2 * n < dim ? at[2 * n] : 0;
            const u32 high = there && piece * 8 + 2 * n + 1 < dim ? at[2 * n + 1] : 0;
            const u32 both = low | high << 16;
            x[n] = pass == PLAIN ? both : replaced(both, pass);
            nonfinite = nonfinite || x[n] != both;
        }
        store_piece(to + piece / 8 * count * 128 + row * 128 + ((piece ^ row) & 7) * 16,
                    make_uint4(x[0], x[1], x[2], x[3]));
    }
    fence_proxy_async();
    return __syncthreads_or(nonfinite);
}

/* One pass over a tile; true if another is called for: sums were NaN, or values were replaced. */
DEVICE bool pass_tile(const ejki_cuda_sm90_problem &p, layout &shared, const work_tile &w, int pass) {
    const int warp = threadIdx.x / 32, kv_head = w.head / p.all.group;
    const u32 query = shared_address(shared.query), key = shared_address(shared.key),
              value = shared_address(shared.value);
    const warpgroup_range t = warpgroup_range_of(w, warp / 4);
    const int row = row_of_lane(w, warp);
    float out[WIDTH / 2], z[KEYS / 2];
    u32 weights[KEYS / 4];
    lane_rows rows;
    bool nonfinite = false;
    rows_in_pages none = {}, keys = {}, values = {};
#if PAGES
    keys.pages = &p.all.pages;
    keys.begin = paged_begin(p.all.pages, w.number, &keys.count);
    values = keys;
    keys.stride = p.all.pages.key_page, values.stride = p.all.pages.value_page;
#endif
    start_rows(rows, out);
#pragma unroll 1
    for (int n = 0; n < CONSUMERS; n++)
        copy_rows<64, HEAD_DIM>(query + n * QUERY_BYTES, p.all.query, none, w, w.query, w.head,
                                w.row + n * 64, w.queries, PLAIN);
#pragma unroll 1
    for (int block = w.end - 1; block >= w.begin; block--) {
        copy_rows<KEYS, HEAD_DIM>(key, p.all.key, keys, w, w.key, kv_head, block * KEYS, w.keys, PLAIN);
        begin_scores(query + warp / 4 * QUERY_BYTES, key, z);
        wgmma_wait<0>();
        hold(z);
        make_weights(p, find_scores(p, w, is_edge(t, block), row, block * KEYS, rows, z), rows, z, weights);
        if (pass > FINITE) {
#pragma unroll
            for (int n = 0; n < KEYS / 4; n++)
                weights[n] = pack(z[2 * n] != 0 ? 1 : 0, z[2 * n + 1] != 0 ? 1 : 0);
        }
        nonfinite = copy_rows<KEYS, VALUE_DIM>(value, p.all.value, values, w, w.key, kv_head, block * KEYS,
                                         w.keys, pass) ||
              nonfinite;
        rescale(rows, out);
        begin_sums(weights, value, out);
        wgmma_wait<0>();
        hold(out);
    }
    const row_ends ends = end_rows(p, w, row, rows, pass);
    const bool nan = write_rows(p.all, round_rows(ends, out), pass);
    return pass == PLAIN ? __syncthreads_or(nan) : nonfinite;
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    recompute_sm90(const __grid_constant__ ejki_cuda_sm90_problem p) {
    extern __shared__ __align__(1024) u8 memory[];
#if PAGES
    launch_dependents(); /* of those that wait for this */
    if (!has_tiles(p.all)) return;
#endif
    layout &shared = *(layout *)memory;
    u32 nonfinite = p.copied ? ~0u : 0;
    if (!p.copied) {
        wait_for_previous();
        if (threadIdx.x < EJKI_CUDA_NONFINITE_WORDS)
            nonfinite = p.nonfinite[blockIdx.x * EJKI_CUDA_NONFINITE_WORDS + threadIdx.x];
        if (!__syncthreads_or(nonfinite != 0)) return;
    }
    if (threadIdx.x < EJKI_CUDA_NONFINITE_WORDS) shared.nonfinite[threadIdx.x] = nonfinite;
    make_order<ROWS, ALL_THREADS>(p.all, shared.tiles, (int *)shared.query);
    __syncthreads();
    const int rounds = rounds_of(schedule_of(p.all, shared.tiles, p.heads_together));
    for (int round = 0; round < rounds; round++) {
        work_tile w;
        if (!(shared.nonfinite[round / 32 % EJKI_CUDA_NONFINITE_WORDS] >> round % 32 & 1) ||
            !work_tile_of_round(p, shared.tiles, round, &w))
            continue;
        for (int pass = p.copied ? PLAIN : FINITE;; pass++) {
            const bool more = pass_tile(p, shared, w, pass);
            if (pass == DOWNWARDS || (pass != UPWARDS && !more)) break;
        }
    }
}
