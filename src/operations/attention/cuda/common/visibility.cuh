/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Visibility, for all kernels: packed sequences, the keys that positions allow, block mask, mask, segments, bias and
 * dropout. Positions i and j count inside their sequence.
 */
#ifndef EJKI_CUDA_VISIBILITY_CUH
#define EJKI_CUDA_VISIBILITY_CUH

#include "operations/attention/cuda/common/options.cuh"

/* A sequence. Rows of no sequence form one without visible keys and sinks. */
struct sequence {
    i64 entry;          /* of the batch axis */
    i64 first, last;    /* offsets of visible keys */
    int number;         /* for the dropout, less first_sequence */
    int query, queries; /* its first row in the tensor, its length */
    int key, keys;
    int known; /* rows from here on are of no sequence */
#if CHUNKED || FUNCTION
    const ejki_cuda_visibility *visibility;
#endif
};

DEVICE i64 sum_before(const ejki_cuda_problem &p, const void *sums, int n, i64 limit) {
    const i64 sum = p.sums_are_i64 ? ((const i64 *)sums)[n] : ((const int *)sums)[n];
    return sum < 0 ? 0 : sum > limit ? limit : sum;
}

/* Cumulative lengths are untrusted: they are clamped, so that nothing outside the tensors is touched. */
DEVICE int sequence_length(const ejki_cuda_problem &p, const void *sums, int n, int limit,
                           int *start) {
    const bool padded = LAYOUT == EJKI_CUDA_PADDED;
    const i64 bound = padded ? 1ll << 62 : limit;
    const i64 before = sum_before(p, sums, n, bound);
    const i64 length = sum_before(p, sums, n + 1, bound) - before;
    *start = padded ? 0 : (int)before;
    return (int)(length < 0 ? 0 : length > limit ? limit : length);
}

#if PAGES
#include "operations/attention/cuda/common/pages.cuh"
#endif

DEVICE sequence sequence_at(const ejki_cuda_problem &p, int n) {
    sequence s;
    s.entry = s.number = n;
    s.query = s.key = 0;
    s.queries = s.known = p.queries;
    s.keys = p.keys;
    s.first = p.first_offset;
    s.last = p.last_offset;
#if CHUNKED || FUNCTION
    s.visibility = &p.visibility;
#endif
    if (LAYOUT == EJKI_CUDA_DENSE) return s;
    int query = 0, key = 0, queries = 0, keys = 0;
    if (n == p.batch) query = (int)sum_before(p, p.query_sums, n, p.queries);
    if (n < p.batch) {
        queries = sequence_length(p, p.query_sums, n, p.queries, &query);
        keys = sequence_length(p, p.key_sums, n, p.keys, &key);
    }
#if PAGES
    keys = n < p.batch ? paged_keys(p.pages, n) : 0;
    key = 0;
    const bool is_own = queries * p.group > p.pages.few && queries >= p.pages.least && queries <= p.pages.many;
    if (n == p.batch || !is_own || !is_paged(p.pages, n)) queries = 0;
#endif
    s.known = queries;
    s.keys = keys;
    if (LAYOUT == EJKI_CUDA_TOKENS) {
        s.entry = 0;
        s.query = query;
        s.key = key;
        s.queries = n < p.batch || PAGES ? queries : p.queries - query;
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
    int head, own; /* KV head */
};

/*
 * The place of tile `index` of a head; a tile has `size` of `times` rows for each token. False if there are fewer
 * tiles: with packed sequences their number is known on the device only. All lanes of a warp call it.
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
 * The tile of CTA `index`: `tiles` tiles for each KV head and, unless tokens are packed, each batch entry. Heads
 * come in groups of eight, whose keys stay in L2; inside a group the last tiles, which are longest under a causal
 * mask, come first (`falling`).
 */
DEVICE bool place_of_block(const ejki_cuda_problem &p, int index, int tiles, bool falling, int size,
                           int times, const void *sums, int length, tile_place *place) {
    const bool tokens = LAYOUT == EJKI_CUDA_TOKENS;
    const int columns = tokens ? p.kv_heads : p.kv_heads * p.batch;
    const int group = index / (8 * tiles), rest = index - group * 8 * tiles;
    const int width = lesser(8, columns - group * 8), column = group * 8 + rest % width;
    place->own = falling ? tiles - 1 - rest / width : rest / width;
    place->head = column % p.kv_heads;
    if (tokens) return find_tile(p, place->own, size, times, sums, length, place);
    place->s = sequence_at(p, column / p.kv_heads);
    return true;
}

/* The start of a position's chunk. */
DEVICE i64 chunk_start(i64 position, i64 chunk) {
    const i64 rest = position % chunk;
    return position - (rest < 0 ? rest + chunk : rest);
}

/* The keys visible to query i by position: [*first, *end), empty if *first >= *end. */
DEVICE void visible_keys(const sequence &s, int i, int *first, int *end) {
    i64 low = i + s.first, high = i + s.last + 1;
#if CHUNKED
    const i64 start = chunk_start(i + s.visibility->chunk_offset, s.visibility->chunk);
    if (start > low) low = start;
#endif
#if FUNCTION
    const int *positions = s.visibility->positions;
    const i64 q = positions && i < s.known ? positions[i] : i, chunk = s.visibility->function_chunk;
    const i64 from = q + s.visibility->function_first, to = q + s.visibility->function_last + 1;
    if (from > low) low = from;
    if (to < high) high = to;
    if (chunk > 0 && chunk_start(q, chunk) > low) low = chunk_start(q, chunk);
#endif
    *first = clamped(low, s.keys);
    *end = i < s.known ? clamped(high, s.keys) : 0;
}

/* Keys visible to any of some rows, [begin, end), and those visible to all. */
struct key_range {
    int begin, end, all_begin, all_end;
};

/* Of rows i … last, `last` of the sequence's; the keys of each lie within. */
DEVICE key_range keys_of_rows(const sequence &s, int i, int last) {
    key_range r;
#if IRREGULAR
    r.begin = r.all_end = 0;
    r.end = r.all_begin = s.keys;
#else
    visible_keys(s, i, &r.begin, &r.all_end);
    visible_keys(s, last, &r.all_begin, &r.end);
    if (last >= s.known) r.all_end = 0, r.end = clamped(s.known + s.last, s.keys);
#endif
    return r;
}

/* The queries that see key j by position; all of them where visibility is irregular. */
DEVICE void visible_queries(const sequence &s, int j, int *first, int *end) {
#if IRREGULAR
    *first = 0;
    *end = s.known;
#else
    i64 high = j - s.first + 1;
#if CHUNKED
    const i64 next = chunk_start(j, s.visibility->chunk) + s.visibility->chunk - s.visibility->chunk_offset;
    if (next < high) high = next;
#endif
    *first = clamped(j - s.last, s.known);
    *end = clamped(high, s.known);
#endif
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
#if BLOCK_MASK
    const int *mask_row; /* of the row's blocks */
    i64 inside;       /* the row in a partial block */
#endif
#if POSITIONS
    i64 low, high; /* positions visible to it */
    i64 keys;      /* where those of keys begin */
#endif
};

#if BLOCK_MASK
DEVICE const int *block_mask_row(const ejki_cuda_problem &p, int h, int i) {
    const i64 line =
        (i64)(h / p.visibility.heads_per_mask) * (p.queries / MASK_QUERIES) + i / MASK_QUERIES;
    return p.visibility.block_mask + line * (p.keys / MASK_KEYS);
}
#endif

#if POSITIONS
DEVICE i64 position_at(const ejki_cuda_problem &p, const void *positions, i64 start, int index) {
    if (!positions) return index;
    if (!p.visibility.positions_are_i64) return ((const int *)positions)[start + index];
    const i64 far = 1ll << 61, own = ((const i64 *)positions)[start + index];
    return own < -far ? -far : own > far ? far : own;
}

DEVICE void find_positions(const ejki_cuda_problem &p, const sequence &s, int i, row_context *c) {
    const ejki_cuda_visibility &t = p.visibility;
    const i64 far = 1ll << 61;
    const i64 q = position_at(p, t.query_positions, s.entry * t.query_positions_b, i);
    c->low = t.position_first <= -far ? -(1ll << 62) - far : q + t.position_first;
    c->high = t.position_last >= far ? (1ll << 62) + far : q + t.position_last;
    c->keys = s.entry * t.key_positions_b;
    if (t.position_chunk == 0) return;
    const i64 start = chunk_start(q + t.position_offset, t.position_chunk);
    if (start > c->low) c->low = start;
}
#endif

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
#if BLOCK_MASK
    c.mask_row = block_mask_row(p, h, i);
    c.inside = i % MASK_QUERIES * p.visibility.query_stride;
#endif
#if POSITIONS
    find_positions(p, s, i, &c);
#endif
    return c;
}

/* Of a key in the range of visible_keys(): block mask and positions that the caller gave. */
DEVICE bool passes_block_mask(const ejki_cuda_problem &p, const row_context &c, int j) {
    bool shows = true;
#if BLOCK_MASK
    const int block = c.mask_row[j / MASK_KEYS];
    if (block != EJKI_CUDA_FULL)
        shows =
            block != EJKI_CUDA_EMPTY && p.visibility.blocks[block * p.visibility.block_stride + c.inside +
                                                        j % MASK_KEYS * p.visibility.key_stride] != 0;
#endif
#if POSITIONS
    const i64 own = position_at(p, p.visibility.key_positions, c.keys, j);
    shows = shows && own >= c.low && own <= c.high;
#endif
    return shows;
}

/* Of a key that is visible by position: mask and segments. */
DEVICE bool passes_mask(const ejki_cuda_problem &p, const row_context &c, int j) {
    bool visible = true;
#if MASK
    visible = c.mask[j] != 0;
#endif
#if SEGMENTS
    visible = visible && c.id >= 0 && c.id == id_at(p, c.ids, j);
#endif
    return visible;
}

/*
 * The score of a product with the scale in it; *cap_grad is its derivative by that. A bias of -inf hides the key as a
 * mask does: the score is -inf whatever the product is.
 */
DEVICE float score_of(const ejki_cuda_problem &p, const row_context &c, int j, float z,
                      float *cap_grad) {
    *cap_grad = 1;
#if SOFT_CAP
    const float t = tanhf(z / p.soft_cap);
    z = p.soft_cap * t;
    *cap_grad = 1 - t * t;
#endif
#if BIAS
    const float bias = widen(c.bias[j]);
    z = bias == NEG_INF ? NEG_INF : z + bias;
#endif
    return z;
}

/* Philox4x32-10 of operations/attention/shared/dropout.h: the words of keys 4 * quad … 4 * quad + 3. */
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
