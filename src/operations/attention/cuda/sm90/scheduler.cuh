/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiles of query heads as columns of a schedule: the last tile of a head, which is longest under a causal mask,
 * comes first. Packed sequences are sorted by their number of keys.
 */
#ifndef EJKI_ATTENTION_CUDA_SM90_SCHEDULER_CUH
#define EJKI_ATTENTION_CUDA_SM90_SCHEDULER_CUH

#include "kernels/cuda/scheduler.cuh"
#include "operations/attention/cuda/common/visibility.cuh"

/* Packed sequences that are sorted; more are taken as they come. */
enum { MOST_ORDERED = LAYOUT == EJKI_CUDA_TOKENS ? 511 : 0 };

struct order {
    int tiles;                   /* of a head: of all sequences, or of one */
    int count;                   /* sequences, with the rows of none as the last; 0 = not ordered */
    int begin[MOST_ORDERED + 2]; /* tiles before a sequence */
    u16 sequence[MOST_ORDERED + 1];
};

/* All threads of a CTA, which has to synchronize afterwards. `scratch` has room for 8 KB. */
template <int size, int threads>
DEVICE void make_order(const ejki_cuda_problem &p, order &o, int *scratch) {
    const int count = p.batch + 1;
    const bool ordered = LAYOUT == EJKI_CUDA_TOKENS && count <= MOST_ORDERED + 1;
    if (threadIdx.x == 0) o.tiles = p.tiles, o.count = ordered ? count : 0;
    if (!ordered) return;
    int *keys = scratch, *tiles = scratch + MOST_ORDERED + 1;
    for (int n = threadIdx.x; n < count; n += threads) {
        const sequence s = sequence_at(p, n);
        keys[n] = s.keys;
        tiles[n] = cdiv(s.queries, size);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += threads) {
        int rank = 0;
        i64 before = 0, all = 0;
        for (int m = 0; m < count; m++) {
            const bool first = keys[m] > keys[n] || (keys[m] == keys[n] && m < n);
            rank += first;
            before += first ? tiles[m] : 0;
            all += tiles[m];
        }
        o.begin[rank] =
            clamped(before, p.tiles); /* sums may be anything, the launcher's bound holds */
        o.sequence[rank] = (u16)n;
        if (n == 0) o.tiles = o.begin[count] = clamped(all, p.tiles);
    }
}

#if PAGES
/* Whether a sequence has tiles here; in a batch that decodes only none has. Then the first CTA alone waits for the
 * kernel ahead, so that what follows does, and others leave their processors at once. All threads of a CTA, which
 * meet. */
DEVICE bool has_tiles(const ejki_cuda_problem &p) {
    bool some = false;
    for (int n = threadIdx.x; n < p.batch; n += blockDim.x) some = some || sequence_at(p, n).queries > 0;
    const bool any = __syncthreads_or(some);
    if (!any && blockIdx.x == 0) wait_for_previous();
    return any;
}
#endif

DEVICE schedule schedule_of(const ejki_cuda_problem &p, const order &o, int together) {
    const int heads = p.kv_heads * p.group;
    return {LAYOUT == EJKI_CUDA_TOKENS ? heads : heads * p.batch, o.tiles, together};
}

DEVICE void find_ordered(const ejki_cuda_problem &p, const order &o, int index, tile_place *at) {
    int low = 0, high = o.count; /* begin[low] <= index < begin[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (o.begin[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    at->s = sequence_at(p, o.sequence[low]);
    at->own = o.begin[low + 1] - 1 - index;
}

/* The tile of this CTA in a round, by all lanes of a warp; false if none. A tile has `size` rows. */
template <int size>
DEVICE bool tile_of_round(const ejki_cuda_problem &p, const order &o, int together, int round,
                          tile_place *at) {
    const int heads = p.kv_heads * p.group;
    int column, tile;
    if (!work_of_round(schedule_of(p, o, together), round, &column, &tile)) return false;
    at->head = column % heads;
    if (o.count)
        find_ordered(p, o, tile, at);
    else if (LAYOUT == EJKI_CUDA_TOKENS)
        return find_tile(p, o.tiles - 1 - tile, size, 1, p.query_sums, p.queries, at);
    else
        at->s = sequence_at(p, column / heads), at->own = o.tiles - 1 - tile;
    return true;
}

#endif
