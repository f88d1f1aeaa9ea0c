/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of the sums of a wgmma tile whose rows are those of out: the epilogue of tile.cuh, for pairs of
 * neighbours, with what is known when a kernel is compiled. Four lanes that share a row exchange their pairs, so that
 * each writes 16 bytes of bf16 or f16; pairs of float32 are written as they are.
 *
 * Constants: ACTIVATION, GATED (0; 1 halves; 2 gates and values in turn), and element types, 0 = none: OUT, BIAS, ADD,
 * WEIGHT.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_FINISH_CUH
#define EJKI_MATMUL_CUDA_SM90_FINISH_CUH

#include "operations/matmul/cuda/tile.cuh"

template <int TYPE> DEVICE float load_as(const void *data, mm_size index) {
    return value_of<TYPE>(((const typename element_of<TYPE>::bits *)data)[index]);
}

/* Columns of out that 16 sums of a thread, or 32 of a gated product, are part of. */
enum { CHUNK = 32 };

/* Of a thread's pair n of a chunk: its gates, or plain sums, and its values. `half`: 0, or 1 for the row 8 below. */
template <int count>
DEVICE void take_pair(const float (&c)[count], int half, int chunk, int n, float (&gate)[2], float (&value)[2]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int plain = 4 * (4 * chunk + n) + 2 * half + e;
        /* Halves: 64 columns of gates, 64 of values. */
        const int halves = 4 * (16 * (chunk / 2) + 4 * (chunk % 2) + n) + 2 * half + e;
        const int turns = 4 * (8 * chunk + 2 * n + e) + 2 * half;
        gate[e] = c[GATED == 0 ? plain : GATED == 1 ? halves : turns];
        value[e] = GATED == 0 ? 0 : c[GATED == 1 ? halves + 32 : turns + 1];
    }
}
/* The column of out, from that of the chunk on, of element e of pair n. */
DEVICE int column_of_pair(int n, int e) {
    const int own = threadIdx.x % 4;
    return GATED == 2 ? 8 * n + 4 * e + own : 8 * n + 2 * own + e;
}

/* Word n of lane 4 q + m becomes word m of lane 4 q + n. */
DEVICE void transpose_words(u32 (&x)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
        const u32 got = __shfl_xor_sync(~0u, odd ? x[n] : x[n + 1], 1);
        x[n] = odd ? got : x[n];
        x[n + 1] = odd ? x[n + 1] : got;
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const u32 got = __shfl_xor_sync(~0u, high ? x[n] : x[n + 2], 2);
        x[n] = high ? got : x[n];
        x[n + 2] = high ? x[n + 2] : got;
    }
}

/* Two floats as bf16 or f16, the first in the low half. */
DEVICE u32 pair_of_bits(float low, float high) {
    u32 pair;
    if (OUT == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* A row of out as it is written, from the tile's first column on. */
struct out_row {
    char *out;
    const void *add;
    float weight;
    int count, fast; /* columns that there are; those that can be written 16 bytes at a time */
    int fast_add;    /* of `add`, read */
};
DEVICE out_row row_of_out(const mm_product &p, const mm_segment &s, mm_size i, mm_size j) {
    enum { BYTES = OUT == F32 ? 4 : 2, ADD_BYTES = ADD == F32 ? 4 : 2 };
    const mm_size row = s.first + i;
    out_row r;
    r.count = i < s.rows ? (int)mm_least(p.columns - j, COLUMNS) : 0;
    r.out = (char *)p.out.data + (s.out + row * p.out.row + j) * BYTES;
    r.add = (const char *)p.add.data + (s.add + row * p.add.row + j) * ADD_BYTES;
    r.fast = ((u64)p.out.data | (u64)(s.out * BYTES) | (u64)(p.out.row * BYTES)) % 16 == 0 ? r.count : 0;
    r.fast_add = ((u64)p.add.data | (u64)(s.add * ADD_BYTES) | (u64)(p.add.row * ADD_BYTES)) % 16 == 0 ? r.count : 0;
    r.weight = 1;
#if WEIGHT
    if (r.count > 0 && !s.idle) r.weight = load_as<WEIGHT>(p.weight, row);
#endif
    return r;
}

/* Of a column of out. */
struct column_bias {
    float gate, value;
};
DEVICE column_bias bias_of_column(const mm_product &p, const mm_segment &s, mm_size j) {
    column_bias b = {};
#if BIAS
    const mm_size base = s.held * p.bias.group;
    if (s.idle || j >= p.columns) return b;
    b.gate = load_as<BIAS>(p.bias.data, base + gate_column(p, j) * p.bias.column);
    if (GATED) b.value = load_as<BIAS>(p.bias.data, base + value_column(p, j) * p.bias.column);
#endif
    return b;
}

/* From the sums of a column's gate and value, before what is added. Of an idle group all are 0. */
DEVICE float finished_alone(const mm_product &p, const out_row &r, const column_bias &b, float gate, float value) {
    const float alpha = (float)p.alpha;
    float x = activate(ACTIVATION, (float)p.limit, gate * alpha + b.gate, value * alpha + b.value);
    if (WEIGHT) x *= r.weight;
    return x;
}
/* Column c of a row's columns. */
DEVICE float finished_sum(const mm_product &p, const out_row &r, const column_bias &b, int c, float gate,
                          float value) {
    float x = finished_alone(p, r, b, gate, value);
#if ADD
    if (c < r.count) x += load_as<ADD>(r.add, c);
#endif
    return x;
}

#if OUT == F32
/* Pairs n of the four lanes that share a row, of the chunk from column c on. */
DEVICE void write_pairs(const out_row &r, int c, const float (&x)[4][2]) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int first = c + column_of_pair(n, 0), second = c + column_of_pair(n, 1);
        float *to = (float *)r.out;
        if (GATED != 2 && second < r.fast) {
            *(float2 *)(to + first) = make_float2(x[n][0], x[n][1]);
            continue;
        }
        if (first < r.count) to[first] = x[n][0];
        if (second < r.count) to[second] = x[n][1];
    }
}
#else
/*
 * A run of eight in part, or not at a multiple of 16 bytes. A function of its own: there are many fast ones. All lanes
 * of a warp call it, or none: ptxas (13.0) lets a function change uniform registers in which another branch, which the
 * other lanes may take after it, has an address.
 */
static __device__ __noinline__ void write_some(u16 *to, uint4 run, int count) {
    const u32 word[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < count) to[e] = (u16)(word[e / 2] >> 16 * (e % 2));
}
DEVICE void write_pairs(const out_row &r, int c, const float (&x)[4][2]) {
    u32 word[4];
#pragma unroll
    for (int n = 0; n < 4; n++) word[n] = pair_of_bits(x[n][0], x[n][1]);
    transpose_words(word);
    uint4 run = make_uint4(word[0], word[1], word[2], word[3]);
    if (GATED == 2) { /* a word has columns q and 4 + q */
        run.x = __byte_perm(word[0], word[1], 0x5410), run.y = __byte_perm(word[2], word[3], 0x5410);
        run.z = __byte_perm(word[0], word[1], 0x7632), run.w = __byte_perm(word[2], word[3], 0x7632);
    }
    const int own = c + 8 * (threadIdx.x % 4);
    u16 *to = (u16 *)r.out + own;
    const bool is_fast = own + 8 <= r.fast;
    if (is_fast) *(uint4 *)to = run;
    if (__any_sync(~0u, !is_fast && own < r.count)) write_some(to, run, is_fast ? 0 : r.count - own);
}
#endif

/* ---- Bias and what is added ------------------------------------------------------------------------- */

struct bias_in_memory {
    DEVICE_MEMBER column_bias at(const mm_product &p, const mm_segment &s, mm_size j, int chunk, int n, int e) const {
        return bias_of_column(p, s, j + CHUNK * chunk + column_of_pair(n, e));
    }
};
/* In shared memory, in the order of columns of b in the tile: with halves, 64 gates and their values. */
struct bias_in_tile {
    const float *first;

    DEVICE_MEMBER column_bias at(const mm_product &p, const mm_segment &s, mm_size j, int chunk, int n, int e) const {
        const int own = column_of_pair(n, e);
        if (GATED == 0) return column_bias{first[32 * chunk + own], 0};
        const float *gate = first + (GATED == 1 ? 128 * (chunk / 2) + 32 * (chunk % 2) + own : 2 * (32 * chunk + own));
        return column_bias{gate[0], gate[GATED == 1 ? 64 : 1]};
    }
};

DEVICE float added_half(u32 pair, int e) {
    return value_of<ADD == F16 ? F16 : BF16>((u16)(pair >> 16 * e));
}

/*
 * From memory. Pairs of the four lanes that share a row, of a chunk: 16 bytes a lane, asked for a chunk ahead, if
 * columns of a pair are neighbours and the row is whole and lies at a multiple of 16 bytes; else an element each.
 */
struct added_in_memory {
    u32 next[2][4], word[2][4];
    bool is_next[2], has_words[2];

    DEVICE_MEMBER void ask(const out_row (&rows)[2], int chunk) {
        const int own = CHUNK * chunk + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            is_next[half] = (ADD == BF16 || ADD == F16) && GATED != 2 && CHUNK * (chunk + 1) <= rows[half].fast_add;
            if (!is_next[half]) continue;
            const uint4 run = *(const uint4 *)((const u16 *)rows[half].add + own);
            next[half][0] = run.x, next[half][1] = run.y, next[half][2] = run.z, next[half][3] = run.w;
        }
    }
    DEVICE_MEMBER void begin(const out_row (&rows)[2], int chunk, bool is_last) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            has_words[half] = is_next[half];
#pragma unroll
            for (int n = 0; n < 4; n++) word[half][n] = next[half][n];
        }
        if (!is_last) ask(rows, chunk + 1);
#pragma unroll
        for (int half = 0; half < 2; half++) transpose_words(word[half]);
    }
    DEVICE_MEMBER float at(const out_row (&rows)[2], int half, int chunk, int n, int e) const {
        const int c = CHUNK * chunk + column_of_pair(n, e);
        if (has_words[half]) return added_half(word[half][n], e);
#if ADD
        if (c < rows[half].count) return load_as<ADD>(rows[half].add, c);
#endif
        return 0;
    }
};

/*
 * From shared memory: boxes of 64 rows and 64 columns under the 128-byte swizzle, 16 bits an element, the box of
 * columns n at first[n / 2] + n % 2 * pitch.
 */
struct added_in_boxes {
    u32 first[2], pitch;

    DEVICE_MEMBER void ask(const out_row (&rows)[2], int chunk) {
    }
    DEVICE_MEMBER void begin(const out_row (&rows)[2], int chunk, bool is_last) {
    }
    DEVICE_MEMBER float at(const out_row (&rows)[2], int half, int chunk, int n, int e) const {
        const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, own = threadIdx.x % 4;
        const u32 box = first[chunk / 4] + chunk / 2 % 2 * pitch + half * 8 * 128;
        const u32 run = box + row * 128 + (u32)((row % 8) ^ (chunk % 2 * 4 + n)) * 16;
        u32 word;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(run + (GATED == 2 ? e * 8 + own / 2 * 4 : own * 4)));
        return added_half(word, GATED == 2 ? own % 2 : e);
    }
};

/* ---- A warpgroup's tile ----------------------------------------------------------------------------- */

/* Sums of 64 rows, from row `row` of a segment on, and the columns of out from j on. */
template <int count, class BIASES, class ADDED>
DEVICE void write_sums(const mm_product &p, const mm_segment &s, mm_size row, mm_size j, const float (&c)[count],
                       BIASES biases, ADDED added) {
    const mm_size own = row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    enum { CHUNKS = count / (GATED ? 32 : 16) };
    const out_row rows[2] = {row_of_out(p, s, own, j), row_of_out(p, s, own + 8, j)};
    added.ask(rows, 0);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int first = CHUNK * chunk;
        float x[2][4][2];
        added.begin(rows, chunk, chunk + 1 == CHUNKS);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            column_bias b[2] = {};
#pragma unroll
            for (int e = 0; BIAS && e < 2; e++) b[e] = biases.at(p, s, j, chunk, n, e);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float gate[2], value[2];
                take_pair(c, half, chunk, n, gate, value);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    x[half][n][e] = finished_alone(p, rows[half], b[e], gate[e], value[e]);
                    if (ADD) x[half][n][e] += added.at(rows, half, chunk, n, e);
                }
            }
        }
        write_pairs(rows[0], first, x[0]);
        write_pairs(rows[1], first, x[1]);
    }
}

template <int count>
DEVICE void write_sums(const mm_product &p, const mm_segment &s, mm_size row, mm_size j, const float (&c)[count]) {
    write_sums(p, s, row, j, c, bias_in_memory{}, added_in_memory{});
}

#endif
