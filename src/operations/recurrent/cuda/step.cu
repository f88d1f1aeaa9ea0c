/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few tokens of every sequence on GPUs, as in decoding: states pass by once, at the speed of memory. PARTS warps have
 * SLAB columns of a state in registers, 8 rows and 4 columns a lane: ROW_LANES lanes of a warp have rows of a column,
 * so that sums over rows are shuffles. All loads of a lane, 16 bytes each, are under way before the first is used, and
 * while a slab is worked on so is the next of the SLABS; a single token is read once for them all. Four rows of a lane
 * follow each other and lanes take turns, so that a warp alone covers whole lines of states that lie [Dv,Dk]. Of those
 * that lie [Dk,Dv] (WIDE) it would have 32 bytes of each row, half of what memory hands out: there warps share the
 * rows of 32 columns, of 16 with 256 rows, and add up through shared memory.
 *
 * With packed sequences the last REST blocks clear the tokens that are in none.
 *
 * Most of the instructions are for what a call might have. With PLAIN it has one token a sequence, rows of ROW_TYPE and
 * states of floats that lie at multiples of their runs, and whole slabs, and nothing of that is asked.
 *
 * Constants: KEY_SIZE (8 to 256, a power of two), THREADS, UPDATE, BEFORE, KEY_DECAY, WIDE (KEY_SIZE 64 or more),
 * SLABS, REST; PLAIN, ROW_TYPE.
 */
#include "operations/recurrent/cuda/call.cuh"

#define ROWS      8
#define ROW_LANES (WIDE ? (KEY_SIZE == 256 ? 8 : 4) : KEY_SIZE / ROWS)
#define PARTS     (KEY_SIZE / (ROWS * ROW_LANES))
#define SLAB      (4 * (32 / ROW_LANES))
#define GROUPS    (THREADS / 32 / PARTS) /* of warps that share columns */

struct arguments {
    rec_problem p;
};

/* Neighbouring lanes have what lies next to each other: rows, or with WIDE columns. */
DEVICE int row_lane() {
    return WIDE ? threadIdx.x % 32 / (32 / ROW_LANES) : threadIdx.x % ROW_LANES;
}
DEVICE int column_lane() {
    return WIDE ? threadIdx.x % (32 / ROW_LANES) : threadIdx.x % 32 / ROW_LANES;
}

/* Row r of a lane. */
DEVICE int row_of(int r) {
    const int first = PARTS > 1 ? threadIdx.x / 32 % PARTS * (ROWS * ROW_LANES) : 0;
    return first + r / 4 * (4 * ROW_LANES) + row_lane() * 4 + r % 4;
}

/* ---- Sums over rows --------------------------------------------------------------------------------- */

enum { MOST_SUMS = 8 };
struct sums {
    float of[2][GROUPS][PARTS][32 / ROW_LANES][MOST_SUMS]; /* in turn, so that one barrier a sum is enough */
};

/* Of a lane's numbers over all rows of its columns; lanes of other rows have the same then. */
template <int count> DEVICE void add_over_rows(sums &s, int &turn, float (&x)[count]) {
#pragma unroll
    for (int n = 1; n < ROW_LANES; n *= 2)
#pragma unroll
        for (int i = 0; i < count; i++)
            x[i] += __shfl_xor_sync(~0u, x[i], WIDE ? 32 / ROW_LANES * n : n);
    if (PARTS == 1) return;
    const int warp = threadIdx.x / 32, group = warp / PARTS;
    if (row_lane() == 0)
#pragma unroll
        for (int i = 0; i < count; i++) s.of[turn][group][warp % PARTS][column_lane()][i] = x[i];
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * PARTS) : "memory");
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < count; i++) {
            const float other = s.of[turn][group][part][column_lane()][i];
            x[i] = part == 0 ? other : x[i] + other;
        }
    turn ^= 1;
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

/* Of a type that is known where PLAIN is. */
DEVICE int type_of(const rec_view &v) {
    return PLAIN ? ROW_TYPE : v.dtype;
}

DEVICE bool are_floats_whole(const rec_view &v, rec_size at, rec_size stride) {
    return v.dtype == F32 && stride % 4 == 0 && ((u64)v.data / 4 + at) % 4 == 0;
}

/* Four elements, of which the first `count` are there; the others are 0. */
DEVICE void load_four(const rec_view &v, rec_size at, rec_size count, float (&x)[4]) {
    const int type = type_of(v);
    const u64 size = type == F32 ? 4 : 2;
    if (PLAIN || (count >= 4 && ((u64)v.data / size + at) % 4 == 0)) {
        if (type == F32) {
            const float4 y = *(const float4 *)((const float *)v.data + at);
            x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
        } else {
            const uint2 y = *(const uint2 *)((const u16 *)v.data + at);
            const u16 bits[] = {(u16)y.x, (u16)(y.x >> 16), (u16)y.y, (u16)(y.y >> 16)};
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[c] = type == BF16 ? value_of<BF16>(bits[c]) : value_of<F16>(bits[c]);
        }
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] = c < count ? load(v, at + c) : 0;
    }
}

DEVICE void load_rows(const rec_view &v, rec_size at, float (&x)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        float four[4];
        load_four(v, at + row_of(r), 4, four);
        x[r] = four[0], x[r + 1] = four[1], x[r + 2] = four[2], x[r + 3] = four[3];
    }
}

/* Rows and columns of a lane, the first of which is j, `count` are there; 0 elsewhere. */
DEVICE void load_slab(const rec_view &v, rec_size row, rec_size h, rec_size j, rec_size count,
                      float (&s)[ROWS][4]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[r][c] = 0;
    if (!v.present || row < 0 || (!PLAIN && count <= 0)) return;
    const rec_size at = rec_state_at(&v, row, h) + j * v.stride[3];
    const float *from = (const float *)v.data + at;
    if (PLAIN ? WIDE : count >= 4 && v.stride[3] == 1 && are_floats_whole(v, at, v.stride[2])) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 x = __ldcs((const float4 *)(from + row_of(r) * v.stride[2]));
            s[r][0] = x.x, s[r][1] = x.y, s[r][2] = x.z, s[r][3] = x.w;
        }
    } else if (PLAIN || (count >= 4 && v.stride[2] == 1 && are_floats_whole(v, at, v.stride[3]))) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float4 x = __ldcs((const float4 *)(from + row_of(r) + c * v.stride[3]));
                s[r][c] = x.x, s[r + 1][c] = x.y, s[r + 2][c] = x.z, s[r + 3][c] = x.w;
            }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < count) s[r][c] = load(v, at + row_of(r) * v.stride[2] + c * v.stride[3]);
    }
}

DEVICE void store_slab(const rec_view &v, rec_size row, rec_size h, rec_size j, rec_size count,
                       const float (&s)[ROWS][4]) {
    if (!v.present || row < 0 || (!PLAIN && count <= 0)) return;
    const rec_size at = rec_state_at(&v, row, h) + j * v.stride[3];
    float *to = (float *)v.data + at;
    if (PLAIN ? WIDE : count >= 4 && v.stride[3] == 1 && are_floats_whole(v, at, v.stride[2])) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            __stcs((float4 *)(to + row_of(r) * v.stride[2]),
                   make_float4(s[r][0], s[r][1], s[r][2], s[r][3]));
    } else if (PLAIN || (count >= 4 && v.stride[2] == 1 && are_floats_whole(v, at, v.stride[3]))) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4)
#pragma unroll
            for (int c = 0; c < 4; c++)
                __stcs((float4 *)(to + row_of(r) + c * v.stride[3]),
                       make_float4(s[r][c], s[r + 1][c], s[r + 2][c], s[r + 3][c]));
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < count)
                    store(v, at + row_of(r) * v.stride[2] + c * v.stride[3], s[r][c]);
    }
}

DEVICE void store_four(const rec_view &v, rec_size at, rec_size count, const float (&x)[4]) {
    const int type = type_of(v);
    if (PLAIN && type == F32) {
        *(float4 *)((float *)v.data + at) = make_float4(x[0], x[1], x[2], x[3]);
    } else if (PLAIN || (count >= 4 && type != F32 && ((u64)v.data / 2 + at) % 4 == 0)) {
        u32 bits[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            bits[c] = type == BF16 ? bits_of<BF16>(x[c]) : bits_of<F16>(x[c]);
        *(uint2 *)((u16 *)v.data + at) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < count) store(v, at + c, x[c]);
    }
}

/* ---- A token ---------------------------------------------------------------------------------------- */

/* Its rows of a lane; the decays are one number, d[0], unless KEY_DECAY. */
struct token {
    float q[ROWS], k[ROWS], d[ROWS], a[ROWS], b[ROWS];
    float qk, qa, own, beta; /* as in token.cuh */
};

DEVICE u32 head_of(const rec_problem &p, rec_size h, rec_size own) {
    return (u32)h / ((u32)p.heads / (u32)own);
}

DEVICE float inner(const float (&x)[ROWS], const float (&y)[ROWS]) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum += x[r] * y[r];
    return sum;
}

DEVICE void scale_rows(float (&x)[ROWS], float factor) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] *= factor;
}

/* The lane's part of the sum that a bonus is of. */
DEVICE float bonus_of(const rec_problem &p, rec_size h, const token &t) {
    const rec_view &u = p.view[REC_BONUS];
    float sum = 0;
    if (!u.present) return 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sum += t.q[r] * load(u, h * u.stride[2] + row_of(r)) * t.k[r];
    return sum;
}

DEVICE void load_token(const rec_problem &p, const rec_sequence &s, rec_size at, rec_size h, sums &all, int &turn,
                       token &t) {
    const rec_view &q = p.view[REC_QUERY], &k = p.view[REC_KEY], &a = p.view[REC_A], &b = p.view[REC_B];
    const rec_view &skip = p.view[REC_SKIP];
    load_rows(q, rec_at(&q, s.batch, at, head_of(p, h, p.query_heads)), t.q);
    load_rows(k, rec_at(&k, s.batch, at, head_of(p, h, p.key_heads)), t.k);
    if (p.normalise) {
        float squares[] = {inner(t.q, t.q), inner(t.k, t.k)};
        add_over_rows(all, turn, squares);
        scale_rows(t.q, 1 / sqrtf(squares[0] + (float)REC_EPSILON));
        scale_rows(t.k, 1 / sqrtf(squares[1] + (float)REC_EPSILON));
    }
    scale_rows(t.q, (float)p.scale);
    t.beta = UPDATE == REC_RANK_ONE ? 1 : load_beta(p, s, at, h);
    const float head = head_gate(p, s, at, h);
    if (KEY_DECAY) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) t.d[r] = key_decay(p, s, at, h, row_of(r), head);
    } else {
        t.d[0] = exp_of(head);
    }
    if (UPDATE == REC_RANK_ONE) {
        load_rows(a, rec_at(&a, s.batch, at, h), t.a);
        load_rows(b, rec_at(&b, s.batch, at, h), t.b);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (p.multiply) t.a[r] *= t.b[r], t.b[r] = -t.b[r];
    }
    float products[] = {BEFORE ? bonus_of(p, h, t) : inner(t.q, t.k), UPDATE == REC_RANK_ONE ? inner(t.q, t.a) : 0};
    add_over_rows(all, turn, products);
    t.qk = BEFORE ? 0 : products[0];
    t.own = BEFORE ? products[0] : 0;
    t.qa = products[1];
    if (UPDATE == REC_ADD && skip.present) t.own += load(skip, h * skip.stride[2]);
}

/* The sums over rows of x s and y s, for four columns. */
DEVICE void read_slab(const token &t, const float (&s)[ROWS][4], sums &all, int &turn, float (&x)[4], float (&y)[4]) {
    enum { SEES = UPDATE != REC_ADD };
    float sum[SEES ? 8 : 4];
#pragma unroll
    for (int c = 0; c < 4; c++) x[c] = y[c] = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float by_x = t.k[r], by_y = t.q[r];
        if (KEY_DECAY) by_x *= t.d[r], by_y *= BEFORE ? 1 : t.d[r];
        if (UPDATE == REC_RANK_ONE) by_x = t.b[r];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (UPDATE != REC_ADD) x[c] += by_x * s[r][c];
            y[c] += by_y * s[r][c];
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        sum[c] = y[c];
        if constexpr (SEES) sum[4 + c] = x[c];
    }
    add_over_rows(all, turn, sum);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        y[c] = sum[c];
        if constexpr (SEES) x[c] = sum[4 + c];
        if (!KEY_DECAY && UPDATE == REC_DELTA) x[c] *= t.d[0];
        if (!KEY_DECAY && !BEFORE) y[c] *= t.d[0];
    }
}

/* The slab after a token, and its outputs. */
DEVICE void pass(const rec_problem &p, const rec_sequence &q, rec_size at, rec_size h, rec_size j, rec_size count,
                 const token &t, sums &all, int &turn, float (&s)[ROWS][4], float (&y)[4]) {
    const rec_view &value = p.view[REC_VALUE];
    float x[4], v[4], dv[4];
    load_four(value, rec_at(&value, q.batch, at, head_of(p, h, p.value_heads)) + j, count, v);
    read_slab(t, s, all, turn, x, y);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        dv[c] = PLAIN ? 1 : c < count ? value_decay(p, q, at, h, j + c) : 1;
        if (UPDATE == REC_DELTA) x[c] *= dv[c];
        if (!BEFORE) y[c] *= dv[c];
        y[c] += t.own * v[c];
        if (UPDATE == REC_DELTA) v[c] = t.beta * (v[c] - x[c]);
        if (UPDATE == REC_ADD) v[c] *= t.beta;
        y[c] += t.qk * v[c];
        if (UPDATE == REC_RANK_ONE) y[c] += t.qa * x[c];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[r][c] = s[r][c] * (t.d[KEY_DECAY ? r : 0] * dv[c]) + t.k[r] * v[c];
            if (UPDATE == REC_RANK_ONE) s[r][c] += t.a[r] * x[c];
        }
}

/* Of a token each. */
DEVICE rec_sequence sequence_of(const rec_problem &p, rec_size n) {
    rec_sequence s = {n, n, 0, 1, n};
    if (!p.view[REC_INDICES].present) return s;
    s.row = rec_integer(&p.view[REC_INDICES], n);
    if (s.row < 0 || s.row >= p.slots) s.row = -1;
    return s;
}

/* Blocks of a multiprocessor that registers are shared out for. */
#define RESIDENT (UPDATE == REC_RANK_ONE ? 2 : PLAIN ? 4 : 3)

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    step(const __grid_constant__ arguments a) {
    const rec_problem &p = a.p;
    const rec_view &out = p.view[REC_OUT], &initial = p.view[REC_INITIAL];
    /* Divisions of 32 bits are a fraction of those of 64. */
    const u32 slabs = ((u32)p.value_size + SLAB - 1) / SLAB, runs = (slabs + SLABS - 1) / SLABS, heads = (u32)p.heads;
    const u32 groups = (u32)p.sequences * heads * runs, blocks = (groups + GROUPS - 1) / GROUPS;
    if (!PLAIN && blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    const u32 group = blockIdx.x * GROUPS + threadIdx.x / 32 / PARTS, state = group / runs;
    if (group >= groups) return;
    const rec_size h = state % heads, first = (group - state * runs) * (SLABS * SLAB);
    const rec_size lane = column_lane() * 4, end = first + SLABS * SLAB;
    const rec_sequence q = PLAIN ? sequence_of(p, state / heads) : rec_sequence_of(&p, state / heads);
    const rec_size steps = PLAIN ? 1 : q.end - q.begin;
    __shared__ sums all;
    int sum_turn = 0;
    float s[ROWS][4], ahead[ROWS][4];
    token t;
    load_slab(initial, q.row, h, first + lane, p.value_size - first - lane, ahead);
#pragma unroll 1
    for (rec_size j = first + lane; j - lane < end && j - lane < p.value_size; j += SLAB) {
        const rec_size count = p.value_size - j;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[r][c] = ahead[r][c];
        if (j - lane + SLAB < end) load_slab(initial, q.row, h, j + SLAB, count - SLAB, ahead);
        for (rec_size n = 0; n < steps; n++) {
            const rec_turn turn = PLAIN ? rec_turn{1, 0} : rec_turn_of(&p, &q, n);
            const rec_size at = PLAIN ? 0 : rec_token(&p, &q, n);
            float y[4] = {0, 0, 0, 0};
            if (turn.resets)
#pragma unroll
                for (int r = 0; r < ROWS; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = 0;
            if (turn.counts && (steps > 1 || j - lane == first)) 
                load_token(p, q, at, h, all, sum_turn, t);
            if (turn.counts) pass(p, q, at, h, j, count, t, all, sum_turn, s, y);
            if (row_lane() == 0 && threadIdx.x / 32 % PARTS == 0)
                store_four(out, rec_at(&out, q.batch, at, h) + j, count, y);
        }
        store_slab(p.view[REC_FINAL], q.row, h, j, count, s);
    }
}
