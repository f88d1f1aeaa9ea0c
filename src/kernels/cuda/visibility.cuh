/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sees whom: sequences as they lie in the tensors, keys by position, mask, segments, bias and dropout, for all
 * kernels. Positions i and j count inside their sequence.
 */
#ifndef EJKI_CUDA_VISIBILITY_CUH
#define EJKI_CUDA_VISIBILITY_CUH

#include "base.cuh"

/* A sequence; rows of no sequence are one that sees no key and has no sinks. */
struct sequence {
    i64 entry;          /* of the batch axis */
    i64 first, last;    /* offsets of visible keys */
    int number;         /* for the dropout, less first_sequence */
    int query, queries; /* its first row in the tensor, its length */
    int key, keys;
    int known;          /* rows from here on are of no sequence */
};

DEVICE i64 sum_before(const ejki_cuda_problem &p, const void *sums, int n, i64 limit) {
    const i64 sum = p.sums_are_i64 ? ((const i64 *)sums)[n] : ((const int *)sums)[n];
    return sum < 0 ? 0 : sum > limit ? limit : sum;
}

/* Sums may be anything: what does not fit the tensors is cut off, so that nothing else is touched. */
DEVICE int sequence_length(const ejki_cuda_problem &p, const void *sums, int n, int limit,
                           int *start) {
    const bool padded = p.layout == EJKI_CUDA_PADDED;
    const i64 bound = padded ? 1ll << 62 : limit;
    const i64 before = sum_before(p, sums, n, bound);
    const i64 length = sum_before(p, sums, n + 1, bound) - before;
    *start = padded ? 0 : (int)before;
    return (int)(length < 0 ? 0 : length > limit ? limit : length);
}

DEVICE sequence sequence_at(const ejki_cuda_problem &p, int n) {
    sequence s;
    s.entry = s.number = n;
    s.query = s.key = 0;
    s.queries = s.known = p.queries;
    s.keys = p.keys;
    s.first = p.first_offset;
    s.last = p.last_offset;
    if (p.layout == EJKI_CUDA_DENSE) return s;
    int query = 0, key = 0, queries = 0, keys = 0;
    if (n == p.batch) query = (int)sum_before(p, p.query_sums, n, p.queries);
    if (n < p.batch) {
        queries = sequence_length(p, p.query_sums, n, p.queries, &query);
        keys = sequence_length(p, p.key_sums, n, p.keys, &key);
    }
    s.known = queries;
    s.keys = keys;
    if (p.layout == EJKI_CUDA_TOKENS) {
        s.entry = 0;
        s.query = query;
        s.key = key;
        s.queries = n < p.batch ? queries : p.queries - query;
    }
    const i64 far = 1ll << 60;
    if (p.ends_together) {
        if (s.first > -far && s.first < far) s.first += keys - queries;
        if (s.last > -far && s.last < far) s.last += keys - queries;
    }
    return s;
}

/* A tile of rows, or of keys: `own` is its number among those of its sequence and head. */
struct tile_place {
    sequence s;
    int head, own; /* key head */
};

/*
 * The place of tile `index` of a head; a tile has `size` of `times` rows for each token. False if there are fewer tiles:
 * with packed sequences their number is known on the device only. All lanes of a warp call it.
 */
DEVICE bool find_tile(const ejki_cuda_problem &p, int index, int size, int times, const void *sums,
                      int length, tile_place *place) {
    const int lane = threadIdx.x % 32;
    for (int base = 0, before = 0; base <= p.batch; base += 32) {
        const int n = base + lane;
        int start = 0, rows = 0;
        if (n < p.batch) rows = sequence_length(p, sums, n, length, &start);
        if (n == p.batch) rows = length - (int)sum_before(p, sums, n, length);
        const int tiles = cdiv(rows * times, size);
        int end = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end += other;
        }
        const u32 beyond = __ballot_sync(~0u, before + end > index);
        if (beyond) {
            const int found = __ffs(beyond) - 1;
            place->own = index - before - __shfl_sync(~0u, end - tiles, found);
            place->s = sequence_at(p, base + found);
            return true;
        }
        before += __shfl_sync(~0u, end, 31);
    }
    return false;
}

/*
 * Tiles of sequences before number `end`, at most 2^30: so each tile of a packed sequence has a number of its own, even
 * if sums are not those of sequences. All lanes of a warp call it.
 */
DEVICE int tiles_before(const ejki_cuda_problem &p, int end, int size, const void *sums,
                        int length) {
    i64 count = 0;
    for (int n = threadIdx.x % 32; n < end; n += 32) {
        int start;
        count += cdiv(sequence_length(p, sums, n, length, &start), size);
    }
    for (int n = 16; n > 0; n /= 2) count += __shfl_xor_sync(~0u, count, n);
    return (int)(count > 1 << 30 ? 1 << 30 : count);
}

/*
 * What block `index` of the grid does: `tiles` tiles for each key head and, unless tokens lie one after the other, each
 * entry. Heads come in groups of eight, whose keys stay in the second-level cache; inside a group the last tiles,
 * which see most under a causal mask, come first (`falling`).
 */
DEVICE bool place_of_block(const ejki_cuda_problem &p, int index, int tiles, bool falling, int size,
                           int times, const void *sums, int length, tile_place *place) {
    const bool tokens = p.layout == EJKI_CUDA_TOKENS;
    const int columns = tokens ? p.kv_heads : p.kv_heads * p.batch;
    const int group = index / (8 * tiles), rest = index - group * 8 * tiles;
    const int width = lesser(8, columns - group * 8), column = group * 8 + rest % width;
    place->own = falling ? tiles - 1 - rest / width : rest / width;
    place->head = column % p.kv_heads;
    if (tokens) return find_tile(p, place->own, size, times, sums, length, place);
    place->s = sequence_at(p, column / p.kv_heads);
    return true;
}

DEVICE int clamped(i64 value, int high) {
    return (int)(value < 0 ? 0 : value > high ? high : value);
}

/* The keys that positions let query i see: [*first, *end), empty if *first >= *end. */
DEVICE void visible_keys(const sequence &s, int i, int *first, int *end) {
    *first = clamped(i + s.first, s.keys);
    *end = i < s.known ? clamped(i + s.last + 1, s.keys) : 0;
}

/* The queries that positions let see key j. */
DEVICE void visible_queries(const sequence &s, int j, int *first, int *end) {
    *first = clamped(j - s.last, s.known);
    *end = clamped(j - s.first + 1, s.known);
}

DEVICE i64 id_at(const ejki_cuda_problem &p, const void *ids, i64 index) {
    return p.segments_are_i64 ? ((const i64 *)ids)[index] : ((const int *)ids)[index];
}

/* What a row needs to know besides positions. */
struct row_context {
#if MASK
    const u8 *mask; /* of key 0 */
#endif
#if BIAS
    const element *bias;
#endif
#if SEGMENTS
    i64 id;
    const void *ids; /* of keys */
#endif
#if DROPOUT
    u32 query, head, batch;
#endif
};

DEVICE row_context row_context_of(const ejki_cuda_problem &p, const sequence &s, int h, int i) {
    row_context c;
#if MASK
    c.mask = (const u8 *)p.mask.data + s.entry * p.mask.stride_b +
             h / p.mask_group * p.mask.stride_h + i * p.mask.stride_t;
#endif
#if BIAS
    c.bias = (const element *)p.bias.data + s.entry * p.bias.stride_b + h * p.bias.stride_h +
             i * p.bias.stride_t;
#endif
#if SEGMENTS
    c.id = id_at(p, p.query_segments.data, s.entry * p.query_segments.stride_b + i);
    c.ids = (const u8 *)p.key_segments.data +
            s.entry * p.key_segments.stride_b * (p.segments_are_i64 ? 8 : 4);
#endif
#if DROPOUT
    c.query = (u32)i;
    c.head = (u32)h;
    c.batch = (u32)(s.number + p.first_sequence);
#endif
    return c;
}

/* Of a key that positions allow. */
DEVICE bool row_sees(const ejki_cuda_problem &p, const row_context &c, int j) {
    bool sees = true;
#if MASK
    sees = c.mask[j] != 0;
#endif
#if SEGMENTS
    sees = sees && c.id >= 0 && c.id == id_at(p, c.ids, j);
#endif
    return sees;
}

/* The score of a product with the scale in it; *slope is its derivative by that. */
DEVICE float score_of(const ejki_cuda_problem &p, const row_context &c, int j, float z,
                      float *slope) {
    *slope = 1;
#if SOFT_CAP
    const float t = tanhf(z / p.soft_cap);
    z = p.soft_cap * t;
    *slope = 1 - t * t;
#endif
#if BIAS
    z += widen(c.bias[j]);
#endif
    return z;
}

/* Philox4x32-10 of kernels/flash_attention/dropout.h: the words of keys 4 * quad … 4 * quad + 3. */
DEVICE uint4 dropout_words(u64 seed, u32 quad, u32 query, u32 head, u32 batch) {
    u32 a = (u32)seed, b = (u32)(seed >> 32);
    uint4 c = make_uint4(quad, query, head, batch);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 low = 0xD2511F53u * c.x, high = __umulhi(0xD2511F53u, c.x);
        const u32 low2 = 0xCD9E8D57u * c.z, high2 = __umulhi(0xCD9E8D57u, c.z);
        c = make_uint4(high2 ^ c.y ^ a, low2, high ^ c.w ^ b, low);
        a += 0x9E3779B9u;
        b += 0xBB67AE85u;
    }
    return c;
}

#if DROPOUT
DEVICE bool dropout_keeps(const ejki_cuda_problem &p, const row_context &c, int j) {
    const uint4 words = dropout_words(p.dropout_seed, (u32)j / 4, c.query, c.head, c.batch);
    const u32 low = j & 1 ? words.y : words.x, high = j & 1 ? words.w : words.z;
    return (j & 2 ? high : low) >= p.drop_below;
}
#endif

#endif
