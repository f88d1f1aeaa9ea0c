/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages in float32, for every element type, head size and option: prefilling and decoding sequences in
 * one call. A block has a tile of PAGED_TILE pairs of a row and a head, four for each of its warps (pair r * 4 +
 * warp, so that few pairs are spread over all warps), and takes 32 keys at a time through shared memory in chunks
 * of 128 components. A lane has a key while scores are made, and components while values are added.
 *
 * Of a sequence with one row the keys are split between blocks, by its own length alone; combine.cu joins them. The
 * last blocks clear rows of no sequence, and one of them tells what look.cu has found.
 *
 * Constants: VALUE_CHUNKS, of 128 components.
 */
#include "operations/paged/cuda/rows.cuh"
#include "operations/paged/cuda/scores.cuh"

#define WARPS   (PAGED_THREADS / 32)
#define OWN     (PAGED_TILE / WARPS)
#define CHUNK   128
#define PITCH   (CHUNK + 1) /* keys of neighbouring lanes lie in different banks */
#define STEP    PAGED_STEP
#define LANES   32

/* A tile of a sequence. */
struct tile {
    paged_sequence s;
    paged_size head, first, pairs; /* of the keys; the first pair; pairs of the sequence */
    paged_size begin, end;         /* keys that any of its rows sees */
};

/* Where keys of a step lie; page -1: not to be read. */
struct step_rows {
    paged_size page[STEP];
    int row[STEP];
};

DEVICE bool find_tile(const paged_arguments &a, paged_size number, tile *t) {
    const paged_problem &p = a.p;
    paged_size low = 0, high = paged_count(&p);
    if (high == 0) return false;
    while (high - low > 1) {
        const paged_size middle = (low + high) / 2;
        const paged_sequence s = paged_sequence_of(&p, middle);
        if (s.begin * p.group / PAGED_TILE + middle <= number)
            low = middle;
        else
            high = middle;
    }
    t->s = paged_sequence_of(&p, low);
    t->first = (number - (t->s.begin * p.group / PAGED_TILE + low)) * PAGED_TILE;
    t->pairs = t->s.rows * p.group;
    if (t->first < 0 || t->first >= t->pairs || t->pairs <= a.few) return false;
    const paged_size last = paged_least(t->first + PAGED_TILE, t->pairs) - 1;
    t->begin = paged_low(&p, &t->s, t->first / p.group);
    t->end = paged_least(paged_high(&p, &t->s, last / p.group), t->s.keys);
    return true;
}

/* ---- Shared memory ----------------------------------------------------------------------------------- */

DEVICE void keep_queries(const paged_problem &p, const tile &t, float *to, int depth) {
    for (int n = threadIdx.x; n < PAGED_TILE * depth; n += PAGED_THREADS) {
        const paged_size pair = t.first + n / depth, token = t.s.begin + pair / p.group;
        const paged_size h = t.head * p.group + pair % p.group;
        const int d = n % depth;
        float x = 0;
        if (pair < t.pairs && d < p.dim) x = query_of(p, p.query, paged_row_at(&p, &p.query, token, h) + d);
        if (pair < t.pairs && d >= p.dim)
            x = query_of(p, p.query_tail, paged_row_at(&p, &p.query_tail, token, h) + d - p.dim);
        to[n] = x;
    }
}

/* By a warp: the rows of keys j0 … j0 + 31. */
DEVICE void find_rows(const paged_problem &p, const tile &t, paged_size entries, paged_size j0, step_rows *to) {
    const int lane = threadIdx.x % LANES;
    const paged_size key = j0 + lane;
    const bool is_there = key >= t.begin && key < t.end;
    to->page[lane] = is_there ? paged_page(&p, t.s.n, entries, key / p.page) : -1;
    to->row[lane] = is_there ? (int)(key % p.page) : 0;
}

/* Components of a row of 16 bytes, and where they go. */
template <int SIZE> DEVICE void spread(float *to, uint4 x, int dtype, float scale) {
    const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int n = 0; n < 16 / SIZE; n++) {
        const u32 bits = words[n * SIZE / 4] >> n * SIZE % 4 * 8;
        float value;
        if (SIZE == 4)
            value = __int_as_float(bits);
        else if (SIZE == 2)
            value = dtype == BF16 ? value_of<BF16>((u16)bits) : value_of<F16>((u16)bits);
        else
            value = dtype == F8E4M3   ? value_of_e4m3(bits & 0xff)
                    : dtype == F8E5M2 ? value_of_e5m2(bits & 0xff)
                                      : (float)(signed char)bits;
        to[n] = value * scale;
    }
}

/* Rows that begin at multiples of 16 bytes, whole pieces: all loads of a thread are under way before one is used. */
template <int SIZE>
DEVICE void stage_pieces(const paged_cache &c, paged_size head, const step_rows &rows, int first, int count,
    bool is_scaled, float *to) {
    enum { OF_ROW = CHUNK * SIZE / 16, ROWS = PAGED_THREADS / OF_ROW, PASSES = STEP / ROWS };
    const int piece = threadIdx.x % OF_ROW, d = piece * 16 / SIZE;
    uint4 x[PASSES];
#pragma unroll
    for (int n = 0; n < PASSES; n++) {
        const int key = threadIdx.x / OF_ROW + n * ROWS;
        const paged_size page = rows.page[key];
        x[n] = make_uint4(0, 0, 0, 0);
        if (page >= 0 && d < count)
            x[n] = *(const uint4 *)((const char *)c.data +
                                    (page * c.page + rows.row[key] * c.token + head * c.head + first + d) * SIZE);
    }
#pragma unroll
    for (int n = 0; n < PASSES; n++) {
        const int key = threadIdx.x / OF_ROW + n * ROWS;
        const paged_size page = rows.page[key];
        const float scale = page < 0 ? 0 : is_scaled ? scale_of(c, page, rows.row[key], head) : 1;
        if (d < count) spread<SIZE>(to + key * PITCH + d, x[n], c.dtype, scale);
    }
}

/* Components first … first + count of the keys of a step, with or without their scales; 0 of those that are not to be
 * read. */
DEVICE void stage(const paged_cache &c, paged_size head, const step_rows &rows, paged_size first, int count,
    bool is_scaled, float *to) {
    const int size = bytes_of(c.dtype);
    const u64 places = (u64)c.data | (u64)(c.page * size) | (u64)(c.token * size) | (u64)(c.head * size);
    if (places % 16 == 0 && count * size % 16 == 0) {
        if (size == 4) stage_pieces<4>(c, head, rows, (int)first, count, is_scaled, to);
        if (size == 2) stage_pieces<2>(c, head, rows, (int)first, count, is_scaled, to);
        if (size == 1) stage_pieces<1>(c, head, rows, (int)first, count, is_scaled, to);
        return;
    }
    for (int key = threadIdx.x / LANES; key < STEP; key += WARPS) {
        const paged_size page = rows.page[key];
        const paged_size at = page * c.page + rows.row[key] * c.token + head * c.head + first;
        const float scale = page < 0 ? 0 : is_scaled ? scale_of(c, page, rows.row[key], head) : 1;
        for (int d = threadIdx.x % LANES; d < count; d += LANES)
            to[key * PITCH + d] = page < 0 ? 0 : load_stored(c.dtype, c.data, at + d) * scale;
    }
}

/* ---- Scores ------------------------------------------------------------------------------------------ */

/* Pairs that a warp has in a tile. */
DEVICE int pairs_of_warp(const tile &t) {
    const int left = (int)paged_least(t.pairs - t.first, PAGED_TILE) - threadIdx.x / LANES;
    return (left + WARPS - 1) / WARPS;
}

/* Adds a chunk's products of a lane's key with the queries of its warp. */
DEVICE void add_products(float (&z)[OWN], int pairs, const float *queries, int depth, const float *keys, int count) {
    const float *key = keys + threadIdx.x % LANES * PITCH, *own = queries + threadIdx.x / LANES * depth;
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        if (r >= pairs) break;
        const float *query = own + r * WARPS * depth;
        float sum = z[r];
#pragma unroll 8
        for (int d = 0; d < count; d++) sum = fmaf(query[d], key[d], sum);
        z[r] = sum;
    }
}

struct row_sums {
    float max, sum, out[4 * VALUE_CHUNKS]; /* a lane's components: lane + 32 n */
};

/* Scores become weights; sums of what was before are rescaled. */
DEVICE float online_softmax(float z, row_sums &row) {
    const float top = fmaxf(row.max, larger_of_lanes(z, LANES)), base = top == NEG_INF ? 0 : top;
    const float scale = expf(row.max - base), weight = expf(z - base);
    row.sum = row.sum * scale + sum_of_lanes(weight, LANES);
    row.max = top;
    if (scale != 1)
#pragma unroll
        for (int n = 0; n < 4 * VALUE_CHUNKS; n++) row.out[n] *= scale;
    return weight;
}

/* A value whose weight is 0 may be anything. */
DEVICE void add_values(row_sums (&rows)[OWN], int pairs, const float *weights, const float *values, int chunk,
    int count) {
    const int lane = threadIdx.x % LANES;
    for (int key = 0; key < STEP; key++) {
        float x[4];
#pragma unroll
        for (int n = 0; n < 4; n++) x[n] = lane + LANES * n < count ? values[key * PITCH + lane + LANES * n] : 0;
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            if (r >= pairs) break;
            const float weight = weights[r * STEP + key];
            if (weight != 0)
#pragma unroll
                for (int c = 0; c < VALUE_CHUNKS; c++)
                    if (c == chunk)
#pragma unroll
                        for (int n = 0; n < 4; n++) rows[r].out[4 * c + n] = fmaf(weight, x[n], rows[r].out[4 * c + n]);
        }
    }
}

/* ---- A tile ------------------------------------------------------------------------------------------ */

struct memory {
    float *queries, *keys, *values, *weights; /* weights: of the warp */
    step_rows *rows;                          /* of two steps */
    int depth;
};

/* Keys begin to end - 1 of a tile. */
DEVICE void attend_keys(const paged_problem &p, const tile &t, paged_size begin, paged_size end, const memory &m,
                        row_sums (&rows)[OWN]) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, pairs = pairs_of_warp(t);
    paged_size count;
    const paged_size entries = paged_entries(&p, t.s.n, &count);
    if (warp == 0 && begin < end) find_rows(p, t, entries, begin, m.rows);
    const bool is_scaled = p.tail_dim > 0; /* else sums are, which rounds once */
    int now = 0;
    for (paged_size j0 = begin; j0 < end; j0 += STEP, now ^= 1) {
        float z[OWN] = {};
        for (paged_size first = 0, next; first < m.depth; first = next) {
            const bool is_tail = first >= p.dim;
            next = paged_least(first + CHUNK, is_tail ? m.depth : p.dim);
            __syncthreads();
            if (first == 0 && warp == 0 && j0 + STEP < end) find_rows(p, t, entries, j0 + STEP, m.rows + (now ^ 1));
            stage(is_tail ? p.key_tail : p.key, t.head, m.rows[now], is_tail ? first - p.dim : first,
                  (int)(next - first), is_scaled, m.keys);
            if (first == 0)
                stage(p.value, t.head, m.rows[now], 0, (int)paged_least(p.value_dim, CHUNK), true, m.values);
            __syncthreads();
            add_products(z, pairs, m.queries + first, m.depth, m.keys, (int)(next - first));
        }
        const paged_size page = m.rows[now].page[lane];
        const float scale = is_scaled || page < 0 ? 1 : scale_of(p.key, page, m.rows[now].row[lane], t.head);
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            if (r >= pairs) break;
            const paged_size pair = t.first + r * WARPS + warp, row = pair / p.group, key = j0 + lane;
            const bool is_seen = key < end && key >= paged_low(&p, &t.s, row) && key < paged_high(&p, &t.s, row);
            const paged_size h = t.head * p.group + pair % p.group;
            const float own = score_of(p, t.s, row, h, key < end ? key : begin, z[r] * scale);
            m.weights[r * STEP + lane] = online_softmax(is_seen ? own : NEG_INF, rows[r]);
        }
        __syncwarp();
        for (int chunk = 0; chunk < VALUE_CHUNKS; chunk++) {
            const int width = (int)paged_least(p.value_dim - chunk * CHUNK, CHUNK);
            if (chunk > 0) {
                __syncthreads();
                stage(p.value, t.head, m.rows[now], chunk * CHUNK, width, true, m.values);
                __syncthreads();
            }
            add_values(rows, pairs, m.weights, m.values, chunk, width);
        }
    }
}

/* What a warp has of a row, at `put(component, value)`. */
template <typename function> DEVICE void each_component(const paged_problem &p, const row_sums &row, function put) {
#pragma unroll
    for (int n = 0; n < 4 * VALUE_CHUNKS; n++) {
        const int d = n / 4 * CHUNK + n % 4 * LANES + threadIdx.x % LANES;
        if (d < p.value_dim) put(d, row.out[n]);
    }
}

DEVICE void write_tile(const paged_arguments &a, const tile &t, bool is_bad, bool is_split,
    const row_sums (&rows)[OWN]) {
    const paged_problem &p = a.p;
    const int pairs = pairs_of_warp(t);
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        if (r >= pairs) break;
        const paged_size pair = t.first + r * WARPS + threadIdx.x / LANES, h = t.head * p.group + pair % p.group;
        const paged_size token = t.s.begin + pair / p.group;
        const bool writer = threadIdx.x % LANES == 0;
        if (is_split) {
            float *part = a.parts + paged_part(&a, t.s.n, t.head, blockIdx.y) + pair * (p.value_dim + 2);
            each_component(p, rows[r], [&](int d, float x) { part[d] = x; });
            if (writer) part[p.value_dim] = rows[r].max, part[p.value_dim + 1] = rows[r].sum;
            continue;
        }
        const float factor = finish_row(p, token, h, is_bad, rows[r].max, rows[r].sum, writer);
        const paged_size row = paged_row_at(&p, &p.out, token, h);
        each_component(p, rows[r], [&](int d, float x) { put_out(p, row, d, factor == 0 ? 0 : x * factor); });
    }
}

/* Whether a sequence has more pairs than others take, of which there are none in a batch that decodes only. All
 * threads of a CTA, which meet. */
DEVICE bool has_tiles(const paged_arguments &a) {
    bool some = a.few == 0;
    for (paged_size n = threadIdx.x; !some && n < paged_count(&a.p); n += PAGED_THREADS)
        some = paged_sequence_of(&a.p, n).rows * a.p.group > a.few;
    return __syncthreads_or(some);
}

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) attend(const __grid_constant__ paged_arguments a) {
    extern __shared__ __align__(16) float floats[];
    __shared__ step_rows steps[2];
    const paged_problem &p = a.p;
#if __CUDA_ARCH__ >= 900
    launch_dependents(); /* of decode.cu, which waits for this at its end */
#endif
    const bool some = has_tiles(a);
#if __CUDA_ARCH__ >= 900
    if (!some && blockIdx.x > 0) return;
    wait_for_previous();
#endif
    if (!some) return;
    if (blockIdx.x >= a.tiles * p.kv_heads) {
        const clearing by = whole_block(blockIdx.x - a.tiles * p.kv_heads, PAGED_CLEARING);
        if (blockIdx.y == 0) clear_rest(a, by, true, a.flags[p.sequences]);
        return;
    }
    tile t;
    t.head = blockIdx.x % p.kv_heads;
    if (a.flags[p.sequences] || !find_tile(a, blockIdx.x / p.kv_heads, &t)) return;
    const bool is_bad = a.flags[t.s.n], is_split = t.s.rows == 1 && a.splits > 1 && !is_bad;
    if (is_bad) t.begin = t.end = 0;
    if (blockIdx.y > 0 && !is_split) return;
    paged_size begin = t.begin, end = t.end;
    if (is_split) {
        const paged_size each = paged_split_keys(end - begin, PAGED_SPLITS, PAGED_LEAST_KEYS);
        begin = paged_least(begin + blockIdx.y * each, end);
        end = paged_least(begin + each, end);
    }
    memory m;
    m.depth = (int)(p.dim + p.tail_dim);
    m.queries = floats;
    m.keys = floats + PAGED_TILE * m.depth;
    m.values = m.keys + STEP * PITCH;
    m.weights = m.values + STEP * PITCH + threadIdx.x / LANES * OWN * STEP;
    m.rows = steps;
    row_sums rows[OWN];
#pragma unroll
    for (int r = 0; r < OWN; r++) rows[r] = {NEG_INF, 0, {}};
    if (begin < end) keep_queries(p, t, m.queries, m.depth);
    attend_keys(p, t, begin, end, m, rows);
    write_tile(a, t, is_bad, is_split, rows);
}
