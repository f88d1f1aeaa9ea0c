/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention of few rows over many keys, for bf16 and f16 from sm_80 up: no more than 16 rows of a key head, so that
 * memory is what counts. A warp goes by itself through every WARPS-th block of 16 keys, fetched ahead into a ring of its
 * own; a block of warps joins what they found, and `join` the parts that keys are split into. Block and warp of
 * a key follow from its position alone.
 *
 * A sum over coordinates may take them in any order: so a lane's share of 16 keys is whole pieces of 16 bytes, without
 * ldmatrix. What a lane holds of a product is in mma.cuh. Besides the constants of base.cuh:
 *
 *   WARPS, STAGES   of the ring
 *   HALVES          1 = there are no more than 8 rows, else 2
 *   RESIDENT        blocks that share a multiprocessor
 *   FOLDED          as in forward_mma.cu
 *   OVERLAP         1 = join may begin before decode has ended, and waits itself
 */
#include "mma.cuh"

enum {
    KEYS = 16,
    ROWS = 8 * HALVES,
    HEAD_PIECES = HEAD_DIM / 8, /* of 16 bytes */
    VALUE_PIECES = VALUE_DIM / 8,
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    STAGE_BYTES = KEY_BYTES + KEYS * pitch_of(VALUE_DIM) * 2,
    WIDTH = VALUE_DIM / 8, /* eights of the output */
};

/* Where pieces lie: those that eight lanes read at once in different banks. */
DEVICE u32 key_piece(u32 stage, int row, int piece) {
    return stage + row * pitch_of(HEAD_DIM) * 2 + ((piece ^ ((row & 1) << 2)) << 4);
}
DEVICE u32 value_piece(u32 stage, int row, int piece) {
    return stage + KEY_BYTES + row * pitch_of(VALUE_DIM) * 2 + ((piece ^ (row & 6)) << 4);
}

/* A lane's rows: lane / 4, and 8 more. Maxima are of scores as they are multiplied with the unit. */
struct lane_rows {
    float base[HALVES], max[HALVES], sum[HALVES]; /* what weights are relative to; the true maximum */
    int low[HALVES], high[HALVES];
    row_context context[HALVES];
};

DEVICE float unit_of(const ejki_cuda_problem &p) {
    return FOLDED ? p.scale * LOG2_E : 1;
}

/* Copies the rows of a block of keys that are there; the others are 0. A warp. */
template <int dim, class place>
DEVICE void copy_rows(const rows_of &from, int first, int keys, place where) {
    enum { PIECES = dim / 8, STEP = PIECES <= 32 ? 32 / PIECES : 1 };
    const int lane = threadIdx.x % 32;
    /* The usual case: one step from a lane's piece to its next. */
    if (32 % PIECES == 0 && from.whole && first + KEYS <= keys) {
        const int row = lane / PIECES, piece = lane % PIECES;
        const u16 *at = from.data + (i64)(first + row) * from.stride_t + piece * 8;
        const i64 step = STEP * from.stride_t;
#pragma unroll
        for (int n = 0; n < KEYS / STEP; n++, at += step)
            copy_whole_piece(where(row + n * STEP, piece), at);
        return;
    }
#pragma unroll 1
    for (int index = lane; index < KEYS * PIECES; index += 32) {
        const int row = index / PIECES, piece = index % PIECES;
        const bool there = first + row < keys;
        const u16 *at = from.data + (i64)(there ? first + row : 0) * from.stride_t + piece * 8;
        if (from.whole)
            copy_piece(where(row, piece), at, there);
        else
            copy_elements<dim>(where(row, piece), at, piece * 8, there);
    }
}

DEVICE void copy_block(u32 stage, int block, const rows_of &key, const rows_of &value, int keys) {
    copy_rows<HEAD_DIM>(key, block * KEYS, keys,
                        [&](int row, int piece) { return key_piece(stage, row, piece); });
    copy_rows<VALUE_DIM>(value, block * KEYS, keys,
                         [&](int row, int piece) { return value_piece(stage, row, piece); });
}

/* Two elements that need not be aligned together. */
DEVICE u32 pair_at(const u16 *at) {
    return at[0] | (u32)at[1] << 16;
}

/* The warp's rows of the query: pieces 4 c + lane % 4 of rows lane / 4 and 8 more. */
DEVICE void load_query(const rows_of &from, int count, int group,
                       uint4 (&query)[HALVES][HEAD_PIECES / 4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = lane / 4 + 8 * half;
        const u16 *at = row_address(from, row < count ? row : 0, group) + lane % 4 * 8;
#pragma unroll
        for (int c = 0; c < HEAD_PIECES / 4; c++) {
            const u16 *x = at + 32 * c;
            if (from.whole)
                query[half][c] = *(const uint4 *)x;
            else
                query[half][c] =
                    make_uint4(pair_at(x), pair_at(x + 2), pair_at(x + 4), pair_at(x + 6));
            if (row >= count) query[half][c] = make_uint4(0, 0, 0, 0);
        }
    }
}

DEVICE void multiply(float (&z)[2][4], const uint4 (&query)[HALVES][HEAD_PIECES / 4], u32 stage) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2; n++) z[n][0] = z[n][1] = z[n][2] = z[n][3] = 0;
#pragma unroll
    for (int c = 0; c < HEAD_PIECES / 4; c++) {
        const uint4 low = query[0][c];
        const uint4 high = HALVES == 2 ? query[HALVES - 1][c] : make_uint4(0, 0, 0, 0);
        const u32 first[4] = {low.x, high.x, low.y, high.y};
        const u32 second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint4 key = load_piece(key_piece(stage, 8 * n + lane / 4, 4 * c + lane % 4));
            mma(z[n], first, key.x, key.y);
            mma(z[n], second, key.z, key.w);
        }
    }
}

/* Scores of what is visible, in units of log 2 but for the folded scale; -inf of all else. */
DEVICE void mask_scores(const ejki_cuda_problem &p, const lane_rows &rows, int j0, bool edge,
                        float (&z)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) {
            const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + k % 2, half = k / 2;
            float slope;
            if (!FOLDED)
                z[n][k] =
                    score_of(p, rows.context[half], j, z[n][k] * p.scale, &slope) * LOG2_E;
            if (edge && (j < rows.low[half] || j >= rows.high[half])) z[n][k] = NOTHING;
        }
}

/*
 * Scores become weights. Sums are scaled to a new base only where a row's maximum has risen by 8 in log 2 or more:
 * weights then stay below 2^8. That each row decides by itself, whichever others there are.
 */
DEVICE void soften(lane_rows &rows, float unit, float (&z)[2][4], float (&out)[WIDTH][4]) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int k = 2 * half;
        float top = fmaxf(fmaxf(z[0][k], z[0][k + 1]), fmaxf(z[1][k], z[1][k + 1])) * unit;
        rows.max[half] = fmaxf(rows.max[half], top);
        const u32 rising = __ballot_sync(~0u, top > rows.base[half] + 8);
        if (rising) {
            top = larger_of_lanes(rows.max[half], 4);
            const bool own = rising >> (threadIdx.x % 32 & ~3) & 15;
            const float scale = own ? power_of_2(rows.base[half] - top) : 1;
            if (own) rows.base[half] = top;
            rows.sum[half] *= scale;
#pragma unroll
            for (int n = 0; n < WIDTH; n++) out[n][k] *= scale, out[n][k + 1] *= scale;
        }
        const float base = rows.base[half] == NOTHING ? 0 : rows.base[half];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = k; i < k + 2; i++) {
                z[n][i] = power_of_2(fmaf(z[n][i], unit, -base));
                rows.sum[half] += z[n][i];
            }
    }
}

DEVICE void add_values(const float (&z)[2][4], u32 stage, int pass, float (&out)[WIDTH][4]) {
    const int lane = threadIdx.x % 32;
    u32 left[4];
    pack_left(left, z[0], z[1]);
    if (HALVES == 1) left[1] = left[3] = 0;
#pragma unroll
    for (int h = 0; h < VALUE_PIECES / 8; h++) {
        u32 x[4][4]; /* of keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9: coordinates 64 h + 8 g … */
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int row = lane % 4 * 2 + n % 2 + n / 2 * 8;
            const uint4 piece = load_piece(value_piece(stage, row, 8 * h + lane / 4));
            x[n][0] = piece.x, x[n][1] = piece.y, x[n][2] = piece.z, x[n][3] = piece.w;
            if (pass != PLAIN)
#pragma unroll
                for (int i = 0; i < 4; i++) x[n][i] = replaced(x[n][i], pass);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const u32 which = e % 2 ? 0x7632 : 0x5410;
            mma(out[8 * h + e], left, __byte_perm(x[0][e / 2], x[1][e / 2], which),
                __byte_perm(x[2][e / 2], x[3][e / 2], which));
        }
    }
}

/* True if there is a NaN in the sums of the lane's rows. */
DEVICE bool needs_care(const float (&out)[WIDTH][4]) {
    bool found = false;
#pragma unroll
    for (int n = 0; n < WIDTH; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) found = found || out[n][k] != out[n][k];
    return found;
}

DEVICE void begin_rows(const ejki_cuda_problem &p, const sequence &s, int head, int count,
                       lane_rows &rows) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = lesser(threadIdx.x % 32 / 4 + 8 * half, count - 1);
        visible_keys(s, row / p.group, &rows.low[half], &rows.high[half]);
        rows.context[half] = row_context_of(p, s, head * p.group + row % p.group, row / p.group);
    }
}

/* What warps found, in shared memory: sums [WARPS][ROWS][VALUE_DIM], then maxima and sums [WARPS][ROWS] of both. */
DEVICE void leave(float *memory, lane_rows &rows, float (&out)[WIDTH][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *ends = memory + WARPS * ROWS * VALUE_DIM;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = warp * ROWS + lane / 4 + 8 * half;
        const float max = larger_of_lanes(rows.max[half], 4), sum = sum_of_lanes(rows.sum[half], 4);
        const float scale = power_of_2(rows.base[half] - (max == NOTHING ? 0 : max));
        if (lane % 4 == 0) ends[2 * row] = max, ends[2 * row + 1] = sum * scale;
#pragma unroll
        for (int h = 0; h < WIDTH / 8; h++)
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int e = 0; e < 8; e += 4) {
                    const int n = 8 * h + e, i = 2 * half + k;
                    *(float4 *)(memory + row * VALUE_DIM + 64 * h + 8 * (lane % 4 * 2 + k) + e) =
                        make_float4(out[n][i] * scale, out[n + 1][i] * scale,
                                    out[n + 2][i] * scale, out[n + 3][i] * scale);
                }
    }
}

DEVICE void put(const ejki_cuda_problem &p, i64 to, float x) {
    if (p.normalize)
        ((element *)p.out.data)[to] = narrow(x);
    else
        ((float *)p.out.data)[to] = x;
}

DEVICE float got(const ejki_cuda_problem &p, i64 at) {
    return p.normalize ? widen(((const element *)p.out.data)[at]) : ((const float *)p.out.data)[at];
}

/* Joins what warps left; a thread has the same places in every pass. */
DEVICE void gather(const ejki_cuda_problem &p, const sequence &s, int head, int count, int pass,
                   const float *memory) {
    const float *ends = memory + WARPS * ROWS * VALUE_DIM;
    const i64 heads = (i64)p.kv_heads * p.group, all = p.entries * heads * p.queries;
    for (int index = threadIdx.x; index < count * VALUE_DIM; index += THREADS) {
        const int row = index / VALUE_DIM, d = index % VALUE_DIM;
        const int i = row / p.group, h = head * p.group + row % p.group;
        const i64 part = blockIdx.y * all + (s.entry * heads + h) * p.queries + i;
        const i64 to = s.entry * p.out.stride_b + i * p.out.stride_t + h * p.out.stride_h + d;
        float max = NOTHING, sum = 0, out = 0;
        bool found = false;
#pragma unroll
        for (int w = 0; w < WARPS; w++) max = fmaxf(max, ends[2 * (w * ROWS + row)]);
        const float base = max == NOTHING ? 0 : max;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float x = memory[(w * ROWS + row) * VALUE_DIM + d];
            const float scale = power_of_2(ends[2 * (w * ROWS + row)] - base);
            sum += scale * ends[2 * (w * ROWS + row) + 1];
            out += scale * x;
            found = found || x > 0;
        }
        const float infinity = pass == UPWARDS ? -NOTHING : NOTHING;
        if (pass > FINITE) {
            if (found && p.splits > 1) p.part_out[part * VALUE_DIM + d] += infinity;
            if (found && p.splits == 1) put(p, to, got(p, to) + infinity);
        } else if (p.splits > 1) {
            p.part_out[part * VALUE_DIM + d] = out;
            if (d == 0) p.part_max[part] = max * LOG_2, p.part_sum[part] = sum;
        } else {
            put(p, to, out * finish_row(p, s, h, i, max * LOG_2, sum, d == 0));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    decode(const __grid_constant__ ejki_cuda_problem p) {
    extern __shared__ __align__(1024) u8 memory[];
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const int head = blockIdx.x % p.kv_heads, count = p.queries * p.group, warp = threadIdx.x / 32;
    const sequence s = sequence_at(p, blockIdx.x / p.kv_heads);
    const u32 ring = shared_address(memory) + warp * STAGES * STAGE_BYTES;
    const rows_of key = rows_at<HEAD_DIM>(p.key, s.entry, 0, head);
    const rows_of value = rows_at<VALUE_DIM>(p.value, s.entry, 0, head);
    const key_range range = keys_of_rows(s, 0, p.queries - 1);
    const int begin = larger(range.begin, (int)blockIdx.y * p.split_keys);
    const int last = cdiv(lesser(range.end, ((int)blockIdx.y + 1) * p.split_keys), KEYS);
    const int first = begin / KEYS / WARPS * WARPS + warp;
    const int start = first * KEYS + KEYS > begin ? first : first + WARPS;
    lane_rows rows;
    float out[WIDTH][4];
    uint4 query[HALVES][HEAD_PIECES / 4];
#pragma unroll 1
    for (int pass = PLAIN; pass <= DOWNWARDS; pass++) {
#pragma unroll 1
        for (int n = 0; n < STAGES; n++) {
            if (start + n * WARPS < last)
                copy_block(ring + n * STAGE_BYTES, start + n * WARPS, key, value, s.keys);
            copies_commit();
        }
        if (pass == PLAIN) {
            load_query(rows_at<HEAD_DIM>(p.query, s.entry, 0, head * p.group), count, p.group,
                       query);
            begin_rows(p, s, head, count, rows);
        }
        clear(out);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            rows.base[half] = rows.max[half] = NOTHING;
            rows.sum[half] = 0;
        }
        u32 stage = ring;
#pragma unroll 1
        for (int block = start; block < last; block += WARPS) {
            const int j0 = block * KEYS;
            const bool edge = j0 < range.all_begin || j0 + KEYS > range.all_end;
            float z[2][4];
            copies_wait<STAGES - 1>();
            __syncwarp();
            multiply(z, query, stage);
            if (edge || !FOLDED) mask_scores(p, rows, j0, edge, z);
            soften(rows, unit_of(p), z, out);
            if (pass > FINITE) replace_weights(z);
            add_values(z, stage, pass, out);
            __syncwarp();
            if (block + STAGES * WARPS < last)
                copy_block(stage, block + STAGES * WARPS, key, value, s.keys);
            copies_commit();
            stage = stage == ring + (STAGES - 1) * STAGE_BYTES ? ring : stage + STAGE_BYTES;
        }
        copies_wait<0>();
        if (__syncthreads_or(pass == PLAIN && needs_care(out))) continue;
        leave((float *)memory, rows, out);
        __syncthreads();
        gather(p, s, head, count, pass, (const float *)memory);
        if (pass == PLAIN) return;
        __syncthreads();
    }
}

/* ---- Parts ---------------------------------------------------------------------------------------------- */

enum { PAIRS = VALUE_DIM / 64, AHEAD = 16 };

/* A warp for each row: the loads of AHEAD parts are under way at once. */
extern "C" __global__ void __launch_bounds__(128)
    join(const __grid_constant__ ejki_cuda_problem p) {
    const i64 heads = (i64)p.kv_heads * p.group, rows = p.entries * heads * p.queries;
    const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#if OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (row >= rows) return;
    const sequence s = sequence_at(p, (int)(row / p.queries / heads));
    const int i = (int)(row % p.queries), h = (int)(row / p.queries % heads);
    float max = NOTHING, sum = 0;
    float2 out[PAIRS] = {};
#pragma unroll 1
    for (int first = 0; first < p.splits; first += AHEAD) {
        float maxima[AHEAD], sums[AHEAD];
        float2 x[AHEAD][PAIRS];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const bool there = first + n < p.splits;
            const i64 part = there ? (first + n) * rows + row : row;
            maxima[n] = there ? __ldcg(p.part_max + part) : NOTHING;
            sums[n] = __ldcg(p.part_sum + part);
#pragma unroll
            for (int k = 0; k < PAIRS; k++)
                x[n][k] =
                    __ldcg((const float2 *)(p.part_out + part * VALUE_DIM) + 32 * k + lane);
        }
        float top = max;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) top = fmaxf(top, maxima[n]);
        const float base = top == NOTHING ? 0 : top, scale = expf(max - base);
        sum *= scale;
#pragma unroll
        for (int k = 0; k < PAIRS; k++)
            out[k] = scale != 0 ? make_float2(out[k].x * scale, out[k].y * scale)
                                : make_float2(0, 0);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const float weight = expf(maxima[n] - base);
            if (weight == 0) continue;
            sum += weight * sums[n];
#pragma unroll
            for (int k = 0; k < PAIRS; k++)
                out[k].x += weight * x[n][k].x, out[k].y += weight * x[n][k].y;
        }
        max = top;
    }
    const float factor = finish_row(p, s, h, i, max, sum, lane == 0);
    const i64 to =
        s.entry * p.out.stride_b + i * p.out.stride_t + h * p.out.stride_h + 2 * lane;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        put(p, to + 64 * k, out[k].x * factor);
        put(p, to + 64 * k + 1, out[k].y * factor);
    }
}
