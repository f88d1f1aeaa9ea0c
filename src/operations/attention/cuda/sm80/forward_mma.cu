/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention by mma.sync, for bf16 and f16 from sm_80 up: every option, head sizes up to 256. A warp has 16 *
 * ROW_TILES rows, a CTA WARPS warps; K and V come in blocks of KEYS through a ring of STAGES. Besides the constants
 * of options.cuh:
 *
 *   WARPS, ROW_TILES, KEYS, STAGES
 *   FOLDED   1 = the scale is positive and neither cap nor bias follow: it is multiplied into exponents
 */

#include "operations/attention/cuda/common/block_iterator.cuh"
#include "operations/attention/cuda/common/nonfinite.cuh"

enum {
    ROWS = 16 * ROW_TILES * WARPS,
    COLUMNS = KEYS / 8,              /* eights of keys */
    WIDTH = 2 * sixteens(VALUE_DIM), /* eights of the output */
    QUERY_BYTES = ROWS * pitch_of(HEAD_DIM) * 2,
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    VALUE_BYTES = KEYS * pitch_of(VALUE_DIM) * 2,
    STAGE_BYTES = KEY_BYTES + VALUE_BYTES,
    AHEAD = STAGES > 1 ? STAGES - 1 : 1, /* blocks of prefetch */
};

/* A lane has two rows of each of the warp's tiles. Maxima are of scores as they are multiplied with `unit`. */
struct lane_rows {
    float max[ROW_TILES][2], sum[ROW_TILES][2];
    int low[ROW_TILES][2], high[ROW_TILES][2];
    row_context context[ROW_TILES][2];
};

DEVICE float scale_of(const ejki_cuda_problem &p) {
    return FOLDED ? p.scale : 1;
}
DEVICE float unit_of(const ejki_cuda_problem &p) {
    return scale_of(p) * LOG2_E;
}

/* What exponents of a row are relative to. */
DEVICE float base_of(float max, float unit) {
    const float base = max * unit;
    return base == NEG_INF ? 0 : base;
}

/* Scores of what is visible, but for the folded scale; -inf of all else. */
DEVICE void mask_scores(const ejki_cuda_problem &p, const lane_rows &rows, int tile, int j0,
                        bool edge, float (&z)[COLUMNS][4]) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + k % 2, half = k / 2;
            const row_context &c = rows.context[tile][half];
            bool visible = !edge || (j >= rows.low[tile][half] && j < rows.high[tile][half] &&
                                  passes_block_mask(p, c, j));
            visible = visible && passes_mask(p, c, j);
            float cap_grad;
            if (!FOLDED && visible) z[n][k] = score_of(p, c, j, z[n][k] * p.scale, &cap_grad);
            if (!visible) z[n][k] = NEG_INF;
        }
}

/* Online softmax: scores become weights, the accumulators are rescaled to the new max. */
DEVICE void online_softmax(lane_rows &rows, int tile, float unit, float (&z)[COLUMNS][4],
                   float (&out)[WIDTH][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = rows.max[tile][half];
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            top = fmaxf(top, fmaxf(z[n][2 * half], z[n][2 * half + 1]));
        top = larger_of_lanes(top, 4);
        const float base = base_of(top, unit);
        const float scale = power_of_2(rows.max[tile][half] * unit - base);
        float sum = rows.sum[tile][half] * scale;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int k = 2 * half; k < 2 * half + 2; k++) {
                z[n][k] = power_of_2(fmaf(z[n][k], unit, -base));
                sum += z[n][k];
            }
        rows.sum[tile][half] = sum;
        rows.max[tile][half] = top;
        if (__any_sync(~0u, scale != 1)) {
#pragma unroll
            for (int n = 0; n < WIDTH; n++)
                out[n][2 * half] *= scale, out[n][2 * half + 1] *= scale;
        }
    }
}

#if DROPOUT
DEVICE void drop(const ejki_cuda_problem &p, const lane_rows &rows, int tile, int j0,
                 float (&z)[COLUMNS][4]) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const row_context &c = rows.context[tile][half];
            const u32 j = (u32)(j0 + n * 8 + threadIdx.x % 4 * 2);
            const uint4 words = dropout_words(p.dropout_seed, j / 4, c.query, c.head, c.batch);
            if ((j & 2 ? words.z : words.x) < p.drop_below) z[n][2 * half] = 0;
            if ((j & 2 ? words.w : words.y) < p.drop_below) z[n][2 * half + 1] = 0;
        }
}
#endif

/* Where a row's results go. */
struct row_target {
    bool is_f32;
    void *data;
};

DEVICE row_target target_of(const ejki_cuda_problem &p, const sequence &s, int h, int i) {
    row_target t;
    t.is_f32 = p.splits > 1 || !p.normalize;
    if (p.splits > 1) {
        const i64 heads = p.kv_heads * p.group, rows = p.entries * heads * p.queries;
        t.data = p.part_out +
                 (blockIdx.y * rows + (s.entry * heads + h) * p.queries + s.query + i) * VALUE_DIM;
        return t;
    }
    const i64 to = s.entry * p.out.stride_b + (s.query + i) * p.out.stride_t + h * p.out.stride_h;
    t.data = (u8 *)p.out.data + to * (t.is_f32 ? 4 : 2);
    return t;
}

DEVICE void put(const row_target &t, int d, float x) {
    if (t.is_f32)
        ((float *)t.data)[d] = x;
    else
        ((element *)t.data)[d] = narrow(x);
}

/* Adds the infinities of one sign that a pass after FINITE found. */
DEVICE void add_infinity(const row_target &t, int d, float found, int pass) {
    if (!(found > 0)) return;
    const float infinity = pass == UPWARDS ? INFINITY : NEG_INF;
    put(t, d, (t.is_f32 ? ((float *)t.data)[d] : widen(((element *)t.data)[d])) + infinity);
}

DEVICE void write_row(const ejki_cuda_problem &p, const tile_place &at, int row, float max,
                      float sum, float factor, const float (&out)[WIDTH][4], int half, int pass) {
    const int i = row / p.group, h = at.head * p.group + row % p.group, lane = threadIdx.x % 4;
    const row_target to = target_of(p, at.s, h, i);
    sum *= factor;
    if (pass <= FINITE && p.splits > 1) {
        const i64 heads = p.kv_heads * p.group, rows = p.entries * heads * p.queries;
        const i64 part = blockIdx.y * rows + (at.s.entry * heads + h) * p.queries + at.s.query + i;
        if (lane == 0) p.part_max[part] = max, p.part_sum[part] = sum;
    } else if (pass <= FINITE) {
        factor *= row_epilogue(p, at.s, h, i, max, sum, lane == 0);
    }
    if (pass == PLAIN && !to.is_f32 && ((u64)to.data & 3) == 0 && VALUE_DIM % 2 == 0) {
#pragma unroll
        for (int n = 0; n < WIDTH; n++) {
            const int d = n * 8 + lane * 2;
            if (d < VALUE_DIM)
                *(u32 *)((u16 *)to.data + d) =
                    pack(out[n][2 * half] * factor, out[n][2 * half + 1] * factor);
        }
        return;
    }
    float own[2 * WIDTH]; /* in local memory, so that the loop stays short */
#pragma unroll
    for (int n = 0; n < WIDTH; n++)
        own[2 * n] = out[n][2 * half], own[2 * n + 1] = out[n][2 * half + 1];
#pragma unroll 1
    for (int n = 0; n < 2 * WIDTH; n++) {
        const int d = n / 2 * 8 + lane * 2 + n % 2;
        if (d >= VALUE_DIM) break;
        if (pass <= FINITE)
            put(to, d, own[n] * factor);
        else
            add_infinity(to, d, own[n], pass);
    }
}

/* Prefetches the nth block, or nothing if it is beyond the last. */
DEVICE void copy_block(u32 ring, int n, int block, int end, const rows_of &key,
                       const rows_of &value, int keys) {
    const u32 to = ring + (u32)n % STAGES * STAGE_BYTES;
    if (block < end) {
        copy_tile<KEYS, HEAD_DIM>(to, key, block * KEYS, keys, 1);
        copy_tile<KEYS, VALUE_DIM>(to + KEY_BYTES, value, block * KEYS, keys, 1);
    }
    cp_async_commit();
}

/* One block of keys: QK^T, softmax, PV. */
DEVICE void process_block(const ejki_cuda_problem &p, lane_rows &rows, u32 query, u32 key, int j0,
                  bool edge, int pass, float (&out)[ROW_TILES][WIDTH][4]) {
    const int first = threadIdx.x / 32 * 16 * ROW_TILES;
    float z[ROW_TILES][COLUMNS][4];
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) clear(z[t]);
#pragma unroll
    for (int k = 0; k < sixteens(HEAD_DIM); k++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) load_left<HEAD_DIM>(left[t], query, first + 16 * t, k);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            u32 right[4];
            load_right<HEAD_DIM>(right, key, n * 8, k);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                mma(z[t][n], left[t], right[0], right[1]);
                mma(z[t][n + 1], left[t], right[2], right[3]);
            }
        }
    }
    const float unit = unit_of(p);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        if (edge || MASK || SEGMENTS || !FOLDED) mask_scores(p, rows, t, j0, edge, z[t]);
        online_softmax(rows, t, unit, z[t], out[t]);
#if DROPOUT
        drop(p, rows, t, j0, z[t]);
#endif
        if (pass > FINITE) replace_weights(z[t]);
    }
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) pack_left(left[t], z[t][2 * k], z[t][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < WIDTH; n += 2) {
            u32 right[4];
            load_right_trans<VALUE_DIM>(right, key + KEY_BYTES, k * 16, n / 2);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                mma(out[t][n], left[t], right[0], right[1]);
                mma(out[t][n + 1], left[t], right[2], right[3]);
            }
        }
    }
}

DEVICE void begin_rows(const ejki_cuda_problem &p, const tile_place &at, int first, int count,
                       lane_rows &rows) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = lesser(first + t * 16 + half * 8 + threadIdx.x % 32 / 4, count - 1);
            visible_keys(at.s, row / p.group, &rows.low[t][half], &rows.high[t][half]);
            rows.context[t][half] =
                row_context_of(p, at.s, at.head * p.group + row % p.group, row / p.group);
        }
}

DEVICE void clear_rows(lane_rows &rows, float (&out)[ROW_TILES][WIDTH][4]) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        clear(out[t]);
        rows.max[t][0] = rows.max[t][1] = NEG_INF;
        rows.sum[t][0] = rows.sum[t][1] = 0;
    }
}

/* The epilogue of all rows of the warp, those below `count`. */
DEVICE void write_rows(const ejki_cuda_problem &p, const tile_place &at, int own, int count,
                       const lane_rows &rows, const float (&out)[ROW_TILES][WIDTH][4], int pass) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = own + t * 16 + half * 8 + threadIdx.x % 32 / 4;
            const float sum = sum_of_lanes(rows.sum[t][half], 4);
            const float max = rows.max[t][half] * scale_of(p);
            const float base = base_of(rows.max[t][half], unit_of(p));
            const float factor = sum_factor(p, base, max, sum, unit_of(p), scale_of(p));
            if (row < count) write_row(p, at, row, max, sum, factor, out[t], half, pass);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    forward_mma(const __grid_constant__ ejki_cuda_problem p) {
    extern __shared__ __align__(1024) u8 memory[];
    tile_place at;
    if (!place_of_block(p, blockIdx.x, p.tiles, true, ROWS, p.group, p.query_sums, p.queries, &at))
        return;
    const u32 query = shared_address(memory), ring = query + QUERY_BYTES;
    const int count = at.s.queries * p.group, first_row = at.own * ROWS;
    const int own = first_row + threadIdx.x / 32 * 16 * ROW_TILES;
    const rows_of queries = rows_at<HEAD_DIM>(p.query, at.s.entry, at.s.query, at.head * p.group);
    const rows_of key = rows_at<HEAD_DIM>(p.key, at.s.entry, at.s.key, at.head);
    const rows_of value = rows_at<VALUE_DIM>(p.value, at.s.entry, at.s.key, at.head);
    copy_tile<ROWS, HEAD_DIM>(query, queries, first_row, count, p.group);

    const int first_query = first_row / p.group;
    const int last_query = (lesser(first_row + ROWS, count) - 1) / p.group;
    const key_range range = keys_of_rows(at.s, first_query, last_query);
    const int begin = larger(range.begin, (int)blockIdx.y * p.split_keys);
    const int end = lesser(range.end, ((int)blockIdx.y + 1) * p.split_keys);
    const int first = begin / KEYS, last = cdiv(end, KEYS);
    const auto look = [&](int block) {
        return block_state(p, at.head * p.group, at.head * p.group + p.group - 1, first_query,
                        last_query, block * KEYS, lesser(block * KEYS + KEYS, at.s.keys) - 1);
    };

    lane_rows rows;
    begin_rows(p, at, own, count, rows);
    float out[ROW_TILES][WIDTH][4];
#pragma unroll 1
    for (int pass = PLAIN; pass <= DOWNWARDS; pass++) {
        clear_rows(rows, out);
        block_iterator<AHEAD> line = iterate_blocks<AHEAD>(first, last);
#pragma unroll
        for (int n = 0; n < STAGES - 1; n++)
            copy_block(ring, n, next_block(line, n, look), last, key, value, at.s.keys);
#pragma unroll 1
        for (int n = 0;; n++) {
            bool whole;
            if (STAGES == 1) next_block(line, n, look);
            const int block = current_block(line, n, &whole), j0 = block * KEYS;
            if (block >= last) break;
            if (STAGES == 1) {
                __syncthreads();
                copy_block(ring, n, block, last, key, value, at.s.keys);
            }
            cp_async_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
            __syncthreads();
            if (STAGES > 1)
                copy_block(ring, n + STAGES - 1, next_block(line, n + STAGES - 1, look), last, key,
                           value, at.s.keys);
            const u32 stage = ring + (u32)n % STAGES * STAGE_BYTES;
            if (pass != PLAIN) {
                replace_tile<KEYS, VALUE_DIM>(stage + KEY_BYTES, pass);
                __syncthreads();
            }
            process_block(p, rows, query, stage, j0,
                  !whole || j0 < range.all_begin || j0 + KEYS > range.all_end, pass, out);
        }
        cp_async_wait<0>();
        __syncthreads();
        bool nan = false;
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) nan = nan || has_nan(out[t]);
        if (pass == PLAIN && __syncthreads_or(nan)) continue;
        write_rows(p, at, own, count, rows, out, pass);
        if (pass == PLAIN) return;
    }
}
