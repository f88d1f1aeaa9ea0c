/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static persistent tile scheduler, longest tile first. A round gives each CTA a tile of one query head. Heads are
 * grouped so that their K and V stay in L2 and last for a few rounds; within a group the longest tiles come first, and
 * odd rounds go through the CTAs backwards, which balances them. Packed sequences are sorted by their number of keys.
 * Where all tiles are of one length `together` is 0: a head's tiles come one after the other.
 */
#ifndef EJKI_CUDA_ORDER_CUH
#define EJKI_CUDA_ORDER_CUH

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

DEVICE int columns_of(const ejki_cuda_problem &p) {
    const int heads = p.kv_heads * p.group;
    return LAYOUT == EJKI_CUDA_TOKENS ? heads : heads * p.batch;
}

/* Heads of a group, rounds of a group, rounds of all. Tiles of all heads are at most 2^30. */
DEVICE int width_of(const ejki_cuda_problem &p, int together) {
    return together ? together : columns_of(p);
}
DEVICE int rounds_of_group(const order &o, int width) {
    return cdiv(o.tiles * width, gridDim.x);
}
DEVICE int rounds_of(const ejki_cuda_problem &p, const order &o, int together) {
    const int width = width_of(p, together);
    return rounds_of_group(o, width) * cdiv(columns_of(p), width);
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
    const int columns = columns_of(p), heads = p.kv_heads * p.group, blocks = gridDim.x;
    const int most = width_of(p, together), rounds = rounds_of_group(o, most);
    const int group = round / rounds, width = lesser(most, columns - group * most);
    /* A group begins with the block after the one that the group before ended with. */
    const int start = group * most * o.tiles % blocks;
    const int own = ((int)blockIdx.x - start + blocks) % blocks, turn = round - group * rounds;
    const int index = turn * blocks + (turn % 2 ? blocks - 1 - own : own);
    if (index >= width * o.tiles) return false;
    const int column = group * most + (together ? index % width : index / o.tiles);
    const int tile = together ? index / width : index % o.tiles;
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
