/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of forward.cu and recompute.cu: the visible keys of a tile, online softmax, and the epilogue. A lane has two
 * rows, eight apart, of the 64 of its warpgroup, and of each the columns of a wgmma accumulator (hopper.cuh).
 */
#ifndef EJKI_CUDA_ROWS_SM90_CUH
#define EJKI_CUDA_ROWS_SM90_CUH

#include "kernels/cuda/hopper.cuh"
#include "operations/attention/cuda/common/nonfinite.cuh"

/* Software pipelining of the softmax: elements by which scores, and exponentials, run ahead of sums and packing. */
#define SCORES_AHEAD 16
#define POWERS_AHEAD 8
enum {
    ROWS = 64 * CONSUMERS,
    WIDTH = round_up(VALUE_DIM, 16),
};

/* A work tile, for all warps. Keys and queries count inside the sequence. */
struct work_tile {
    i64 entry, out; /* out: elements ahead of its first query in the result */
    int query, queries, key, keys, known; /* of the sequence */
    int low, high;                        /* offsets of visible keys, within 30 bits */
    int head, row;                        /* query head; first row, below 0 if there are none */
#if PAGES
    int number; /* of the sequence */
#endif
    int begin, end;                       /* blocks of keys; begin > end: there are no more tiles */
    int round;
};

/* ---- What is visible -------------------------------------------------------------------------------- */

/* The keys that positions let row i see, as visible_keys(). */
DEVICE int first_key(const work_tile &w, int i) {
    return larger(0, lesser(i + w.low, w.keys));
}
DEVICE int last_key(const work_tile &w, int i) {
    return i < w.known ? larger(0, lesser(i + w.high + 1, w.keys)) : 0;
}

/* Blocks with keys visible to rows from … from + count: one at least, so that all warps take the same path. */
DEVICE void blocks_of(const work_tile &w, int from, int count, int *begin, int *end) {
    const int first = larger(from, 0), last = lesser(from + count, w.known) - 1;
    const int low = first <= last ? first_key(w, first) : 0;
    const int high = first <= last ? last_key(w, last) : 0;
    *begin = lesser(low, larger(w.keys - 1, 0)) / KEYS;
    *end = larger(cdiv(high, KEYS), *begin + 1);
}

/*
 * Softmax statistics of a lane's two rows. `max`, what scores are relative to, is in units of log 2: 0 if BOUNDED, else
 * finite from the start and below all scores, so that differences are numbers. A sum of 0: no key was visible.
 */
#define LEAST (-3.4028235e38f)
struct lane_rows {
    float max[2], sum[2], scale[2];
};

/* A lane has two of each eight columns. Of 32 such elements, those before column `bound` of the block. */
DEVICE u32 elements_before(int bound) {
    const u32 columns = larger(bound, 0);
    return __funnelshift_lc(0, 1, columns / 8 * 2 + min(columns % 8, 2u)) - 1;
}

/*
 * Keys of a block visible to the lane's rows, a bit for each element. The empty asm keeps the compiler from deriving
 * more of them: it then makes eight predicates at once.
 */
struct visible_bits {
    u32 bits[2][cdiv(KEYS, 128)];
};

DEVICE visible_bits visible_bits_of(const work_tile &w, int i, int j0) {
    visible_bits s;
    const int column = j0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = i + 8 * half, low = row + w.low - column;
        const int high = (row < w.known ? lesser(row + w.high + 1, w.keys) : 0) - column;
#pragma unroll
        for (int word = 0; word < cdiv(KEYS, 128); word++) {
            s.bits[half][word] =
                elements_before(high - word * 128) & ~elements_before(low - word * 128);
            asm("" : "+r"(s.bits[half][word]));
        }
    }
    return s;
}

/* What is not seen becomes `hidden`. */
DEVICE void hide(const visible_bits &s, float hidden, float (&z)[KEYS / 2]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < KEYS / 4; n++)
            if (!(s.bits[half][n / 32] & 1u << n % 32)) z[n / 2 * 4 + 2 * half + n % 2] = hidden;
}

/* Rows that see nothing yet. */
DEVICE void start_rows(lane_rows &rows, float (&out)[WIDTH / 2]) {
#pragma unroll
    for (int n = 0; n < WIDTH / 2; n++) out[n] = 0;
    rows.max[0] = rows.max[1] = BOUNDED ? 0 : LEAST;
    rows.sum[0] = rows.sum[1] = 0;
    rows.scale[0] = rows.scale[1] = 1;
}

/* Of both rows of a lane, from all four lanes that have them. */
template <class number, class function> DEVICE void join_lanes(number (&x)[2], function larger_of) {
#pragma unroll
    for (int step = 1; step <= 2; step++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            x[half] = larger_of(x[half], __shfl_xor_sync(~0u, x[half], step));
}

/*
 * The running row max is approximate: not below 0 unless all visible scores are far below, and raised only by more than
 * p.slack, so that accumulators are seldom rescaled. With p.lowest = 0 and p.slack = 0 it is exact.
 */
DEVICE float row_base(const ejki_cuda_sm90_problem &p, float top) {
    return top < 0 && top >= p.lowest ? 0 : top;
}
DEVICE void raise_max(const ejki_cuda_sm90_problem &p, lane_rows &rows, int half, float top) {
    const float max = top > rows.max[half] + p.slack ? top : rows.max[half];
    rows.scale[half] = power_of_2(rows.max[half] - max);
    rows.max[half] = max;
}

#if SOFT_CAP
#include "operations/attention/cuda/sm90/soft_cap.cuh"
#else
/*
 * The largest product of each row in this lane, by vimax3 on the bits: the largest signed integer is the largest
 * product, or the lowest if all are negative.
 */
DEVICE void find_high(const float (&z)[KEYS / 2], int (&high)[2]) {
    high[0] = __float_as_int(z[0]), high[1] = __float_as_int(z[2]);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            high[half] = __vimax3_s32(high[half], __float_as_int(z[4 * n + 2 * half]),
                                      __float_as_int(z[4 * n + 2 * half + 1]));
}

/*
 * The largest product of each row. Rows of negative products are searched again, unless even the lowest is above the
 * limit of row_base(), for which any such number will do.
 */
DEVICE void find_largest(const ejki_cuda_sm90_problem &p, const float (&z)[KEYS / 2],
                         int (&high)[2], float (&top)[2]) {
    u32 least[2] = {__float_as_uint(z[0]), __float_as_uint(z[2])};
    join_lanes(high, [](int x, int y) { return larger(x, y); });
    top[0] = __int_as_float(high[0]), top[1] = __int_as_float(high[1]);
    if (__all_sync(~0u, top[0] >= p.lowest && top[1] >= p.lowest)) return;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            least[half] = __vimin3_u32(least[half], __float_as_uint(z[4 * n + 2 * half]),
                                       __float_as_uint(z[4 * n + 2 * half + 1]));
    join_lanes(least, [](u32 x, u32 y) { return min(x, y); });
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (high[half] < 0) top[half] = __uint_as_float(least[half]);
}

/* Whether the running max of a row stays, by what find_high() finds; negative products never raise it above 0. */
DEVICE bool stays(const ejki_cuda_sm90_problem &p, const lane_rows &rows, int half, int high) {
    const float most = rows.max[half] + p.slack;
    return (most >= 0) & (__int_as_float(high) * p.unit <= most);
}

/* For finished(): a number that depends on all that comes before the wait for PV, and is not below p.lowest. */
struct score_state {
    float held;
};

/* Products become scores minus the row max, in place; the first of them weights. */
DEVICE score_state find_scores(const ejki_cuda_sm90_problem &p, const work_tile &w, bool edge, int row, int j0,
                      lane_rows &rows, float (&z)[KEYS / 2]) {
    int high[2];
    float top[2];
#if !FOLDED
#pragma unroll
    for (int n = 0; n < KEYS / 2; n++) z[n] *= p.all.scale;
#endif
    if (edge) hide(visible_bits_of(w, row, j0), NEG_INF, z);
    find_high(z, high);
    if (__all_sync(~0u, stays(p, rows, 0, high[0]) & stays(p, rows, 1, high[1]))) {
        rows.scale[0] = rows.scale[1] = 1;
    } else {
        find_largest(p, z, high, top);
        /* Both rows go side by side: ptxas keeps that order, and finds more to do while it waits. */
#pragma unroll
        for (int half = 0; half < 2; half++)
            raise_max(p, rows, half, row_base(p, top[half]) * p.unit);
    }
#pragma unroll
    for (int n = 0; n < KEYS / 2; n++) z[n] = fmaf(z[n], p.unit, -rows.max[n / 2 % 2]);
#pragma unroll
    for (int n = 0; n < POWERS_AHEAD; n++) z[n] = power_of_2(z[n]);
    return {z[POWERS_AHEAD - 1]};
}

/* Scores become weights, ahead of those that are summed and packed. */
DEVICE void make_weights(const ejki_cuda_sm90_problem &, const score_state &, lane_rows &rows,
                  float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < KEYS / 2; n += 2) {
        if (n + POWERS_AHEAD < KEYS / 2) {
            z[n + POWERS_AHEAD] = power_of_2(z[n + POWERS_AHEAD]);
            z[n + POWERS_AHEAD + 1] = power_of_2(z[n + POWERS_AHEAD + 1]);
        }
        sum[n / 2 % 2] += z[n] + z[n + 1];
        weights[n / 2] = pack(z[n], z[n + 1]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        rows.sum[half] = fmaf(rows.sum[half], rows.scale[half], sum[half]);
}
#endif

/* Mostly there is nothing to do for any row of a warp. */
DEVICE void rescale(const lane_rows &rows, float (&out)[WIDTH / 2]) {
#if !BOUNDED
    if (__all_sync(~0u, rows.scale[0] == 1 && rows.scale[1] == 1)) return;
#pragma unroll
    for (int n = 0; n < WIDTH / 2; n++) out[n] *= rows.scale[n / 2 % 2];
#endif
}

/* ---- Results ---------------------------------------------------------------------------------------- */

/* A row's place in memory. */
DEVICE u8 *row_at(const ejki_cuda_problem &p, const work_tile &w, int i) {
    const int bytes = PIECES || p.normalize ? 2 : 4;
    return (u8 *)p.out.data + (w.out + i * p.out.stride_t) * bytes;
}

/* Epilogue of a lane's rows: the factor of their sums, where they go, and how many queries are left from the first. */
struct row_ends {
    float factor[2];
    u8 *to[2];
    int left;
};

/*
 * All but the sums, whose PV may still run. Two lanes of each four take a row each, and write its statistics.
 */
DEVICE row_ends end_rows(const ejki_cuda_sm90_problem &p, const work_tile &w, int i,
                         const lane_rows &rows, int pass) {
    row_ends e;
    e.left = i < 0 ? 0 : w.queries - i;
    const int own = threadIdx.x % 2, row = i + 8 * own;
    const float sum[2] = {sum_of_lanes(rows.sum[0], 4), sum_of_lanes(rows.sum[1], 4)};
    const float own_sum = own ? sum[1] : sum[0];
    const float own_max = (own ? rows.max[1] : rows.max[0]) * LOG_2;
    float factor = 1;
    if (8 * own < e.left && pass <= FINITE) {
        sequence s;
        s.entry = w.entry;
        s.query = w.query;
        s.known = w.known;
        const float base = own ? rows.max[1] : rows.max[0];
        factor = sum_factor(p.all, base, own_max, own_sum, p.unit, FOLDED ? p.all.scale : 1);
        factor *= row_epilogue(p.all, s, w.head, row, own_sum == 0 ? NEG_INF : own_max, own_sum * factor,
                             threadIdx.x % 4 < 2);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        e.factor[half] = __shfl_sync(~0u, factor, threadIdx.x & 28 | half);
        e.to[half] = row_at(p.all, w, clamped(i + 8 * half, larger(w.queries - 1, 0)));
    }
    return e;
}

#if PIECES
/* Transposes 4 x 4 pairs of columns between four lanes: lane l gets all of the l-th eight. */
DEVICE void turn_pieces(u32 (&x)[4]) {
    const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
    const u32 a = __shfl_xor_sync(~0u, upper ? x[0] : x[2], 2);
    const u32 b = __shfl_xor_sync(~0u, upper ? x[1] : x[3], 2);
    if (upper)
        x[0] = a, x[1] = b;
    else
        x[2] = a, x[3] = b;
    const u32 c = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
    const u32 d = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
    if (odd)
        x[0] = c, x[2] = d;
    else
        x[1] = c, x[3] = d;
}

/* The larger of two pairs of elements; NaN if one of them is. */
DEVICE u32 larger_or_nan(u32 x, u32 y) {
    u32 z;
#if ELEMENT == BF16
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
#else
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
#endif
    return z;
}
DEVICE bool has_nan(u32 pair) {
    const u32 most = ELEMENT == BF16 ? 0x7f80 : 0x7c00;
    return (pair & 0x7fff) > most || (pair >> 16 & 0x7fff) > most;
}

/* The lane's rows, rounded: of each, its columns in the order of the accumulator. */
struct row_results {
    row_ends ends;
    u32 pieces[2][VALUE_DIM / 8];
};

DEVICE row_results round_rows(const row_ends &e, const float (&out)[WIDTH / 2]) {
    row_results r;
    r.ends = e;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++)
            r.pieces[half][n] = pack(out[4 * n + 2 * half] * e.factor[half],
                                     out[4 * n + 2 * half + 1] * e.factor[half]);
    return r;
}

/* Writes the lane's rows; true if a sum was NaN although its factor is a number. */
DEVICE bool write_rows(const ejki_cuda_problem &p, const row_results &r, int pass) {
    const row_ends &e = r.ends;
    bool nonfinite = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool there = 8 * half < e.left;
        u32 most = 0;
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 32; n++) {
            u32 x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                x[k] = r.pieces[half][n * 4 + k];
                most = larger_or_nan(most, x[k]);
            }
            turn_pieces(x);
            if (there)
                *(uint4 *)(e.to[half] + n * 64 + threadIdx.x % 4 * 16) =
                    make_uint4(x[0], x[1], x[2], x[3]);
        }
        nonfinite = nonfinite || (there && has_nan(most) && e.factor[half] == e.factor[half]);
    }
    return nonfinite;
}
#else
DEVICE void put(const ejki_cuda_problem &p, u8 *row, int d, float x, int pass) {
    if (d >= VALUE_DIM) return;
    float *wide = (float *)row + d;
    element *own = (element *)row + d;
    if (pass > FINITE) {
        if (!(x > 0)) return;
        x = (p.normalize ? widen(*own) : *wide) + (pass == UPWARDS ? INFINITY : NEG_INF);
    }
    if (p.normalize)
        *own = narrow(x);
    else
        *wide = x;
}

/* The same element by element, wherever they lie: in local memory, for a short loop. */
struct row_results {
    row_ends ends;
    float own[WIDTH / 2];
};

DEVICE row_results round_rows(const row_ends &e, const float (&out)[WIDTH / 2]) {
    row_results r;
    r.ends = e;
#pragma unroll
    for (int n = 0; n < WIDTH / 2; n++) r.own[n] = out[n] * e.factor[n / 2 % 2];
    return r;
}

DEVICE bool write_rows(const ejki_cuda_problem &p, const row_results &r, int pass) {
    bool nonfinite = false;
#pragma unroll 1
    for (int n = 0; n < WIDTH / 2; n++) {
        const int half = n / 2 % 2;
        const float factor = half ? r.ends.factor[1] : r.ends.factor[0], x = r.own[n];
        if (8 * half >= r.ends.left) continue;
        nonfinite = nonfinite || (x != x && factor == factor);
        put(p, half ? r.ends.to[1] : r.ends.to[0], n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2, x, pass);
    }
    return nonfinite;
}
#endif

#endif
