/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding on tensor cores: up to 16 rows and 16 keys at a time, which a warp goes through by itself. A sum over
 * coordinates may take them in any order: so a lane's share of 16 keys is whole pieces of 16 bytes, without ldmatrix.
 * Fragments are those of mma.cuh. Constants besides its own:
 *
 *   HEAD_DIM, VALUE_DIM   multiples of 32 and of 64
 *   HALVES                1 = there are no more than 8 rows, else 2
 */
#ifndef EJKI_ATTENTION_CUDA_FEW_ROWS_CUH
#define EJKI_ATTENTION_CUDA_FEW_ROWS_CUH

#include "kernels/cuda/mma.cuh"

enum {
    KEYS = 16,
    ROWS = 8 * HALVES,
    HEAD_STEPS = HEAD_DIM / 32, /* pairs of a product's 16 coordinates */
    VALUE_STEPS = VALUE_DIM / 64,
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    STAGE_BYTES = KEY_BYTES + KEYS * pitch_of(VALUE_DIM) * 2,
    WIDTH = VALUE_DIM / 16, /* sixteens of the output */
};

/* Sums are turned: a lane has, of rows 2 t, 2 t + 1 and those 8 on, elements 2 n and 2 n + 1 of pieces 8 h + g. */
typedef float row_sums[HALVES][WIDTH][4];

/* ---- A block of keys ------------------------------------------------------------------------------------- */

/* A lane's pieces: 4 c + t of keys g and 8 + g; 8 h + g of values 2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
struct pieces {
    uint4 key[2][HEAD_STEPS], value[4][VALUE_STEPS];
};

DEVICE int key_row(int n) {
    return 8 * n + threadIdx.x % 32 / 4;
}
DEVICE int value_row(int n) {
    return threadIdx.x % 4 * 2 + n % 2 + n / 2 * 8;
}

/* Where pieces lie in a ring: those that eight lanes read at once in different banks. */
DEVICE u32 key_piece(u32 stage, int row, int piece) {
    return stage + row * pitch_of(HEAD_DIM) * 2 + ((piece ^ ((row & 1) << 2)) << 4);
}
DEVICE u32 value_piece(u32 stage, int row, int piece) {
    return stage + KEY_BYTES + row * pitch_of(VALUE_DIM) * 2 + ((piece ^ (row & 6)) << 4);
}

DEVICE void take_keys(pieces &x, u32 stage) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < HEAD_STEPS; c++)
            x.key[n][c] = load_piece(key_piece(stage, key_row(n), 4 * c + threadIdx.x % 4));
}

DEVICE void take_values(pieces &x, u32 stage) {
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < VALUE_STEPS; h++)
            x.value[n][h] =
                load_piece(value_piece(stage, value_row(n), 8 * h + threadIdx.x % 32 / 4));
}

/* ---- Rows ------------------------------------------------------------------------------------------------ */

/* A lane's rows: lane / 4, and 8 more. Scores times a unit are exponents of 2: so are maxima. */
struct softmax_rows {
    float base[HALVES], max[HALVES], sum[HALVES]; /* what weights are relative to; the true maximum */
};

DEVICE void clear_softmax(softmax_rows &rows) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        rows.base[half] = rows.max[half] = NEG_INF;
        rows.sum[half] = 0;
    }
}

/*
 * Two chains of products, of even and of odd steps. Of no more than 8 rows both have the same left operand, whose
 * second eight rows are the first ones' other coordinates; the other half of each product is of no use.
 */
DEVICE void multiply(float (&z)[2][4], const uint4 (&query)[HALVES][HEAD_STEPS], const pieces &x) {
    float odd[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) z[n][k] = odd[n][k] = 0;
#pragma unroll
    for (int c = 0; c < HEAD_STEPS; c++) {
        const uint4 low = query[0][c];
        const uint4 high = query[HALVES - 1][c];
        const u32 both[4] = {low.x, low.z, low.y, low.w};
        const u32 first[4] = {low.x, high.x, low.y, high.y};
        const u32 second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma(z[n], HALVES == 1 ? both : first, x.key[n][c].x, x.key[n][c].y);
            mma(odd[n], HALVES == 1 ? both : second, x.key[n][c].z, x.key[n][c].w);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2 * HALVES; k++) z[n][k] += odd[n][HALVES == 1 ? k + 2 : k];
}

/*
 * Online softmax; rescale(half, factor) does that to sums, of the lane's row. A row is rescaled only where its max
 * has risen by 8 in log 2 or more: weights then stay below 2^8. The row decides that by itself, whichever others there
 * are.
 */
template <class rescaler>
DEVICE void online_softmax(softmax_rows &rows, const float (&unit)[HALVES], float (&z)[2][4], rescaler rescale) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int k = 2 * half;
        float top = fmaxf(fmaxf(z[0][k], z[0][k + 1]), fmaxf(z[1][k], z[1][k + 1])) * unit[half];
        rows.max[half] = fmaxf(rows.max[half], top);
        const u32 rising = __ballot_sync(~0u, top > rows.base[half] + 8);
        if (rising) {
            top = larger_of_lanes(rows.max[half], 4);
            const bool own = rising >> (threadIdx.x % 32 & ~3) & 15;
            const float scale = own ? power_of_2(rows.base[half] - top) : 1;
            if (own) rows.base[half] = top;
            rows.sum[half] *= scale;
            rescale(half, scale);
        }
        const float base = rows.base[half] == NEG_INF ? 0 : rows.base[half];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = k; i < k + 2; i++) {
                z[n][i] = power_of_2(fmaf(z[n][i], unit[half], -base));
                rows.sum[half] += z[n][i];
            }
    }
}

DEVICE void clear_sums(row_sums &out) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) clear(out[half]);
}

/* A number that lanes have of their rows, for the rows of the lane's sums. */
DEVICE float2 of_sums(float x) {
    const int lane = threadIdx.x % 4 * 8;
    return make_float2(__shfl_sync(~0u, x, lane), __shfl_sync(~0u, x, lane + 4));
}

DEVICE void rescale_sums(row_sums &out, int half, float2 scale) {
#pragma unroll
    for (int n = 0; n < WIDTH; n++)
        out[half][n][0] *= scale.x, out[half][n][1] *= scale.y, out[half][n][2] *= scale.x, out[half][n][3] *= scale.y;
}

/*
 * Values turned are the left operand: rows are few, and none of a product's 16 are without use. left_of(h, n, left)
 * gives elements 2 n and 2 n + 1 of piece 8 h + g of the lane's keys.
 */
template <class source> DEVICE void add_turned_values(const float (&z)[2][4], row_sums &out, source left_of) {
    u32 weights[4];
    pack_left(weights, z[0], z[1]);
#pragma unroll
    for (int h = 0; h < VALUE_STEPS; h++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 left[4];
            left_of(h, n, left);
#pragma unroll
            for (int half = 0; half < HALVES; half++) mma(out[half][4 * h + n], left, weights[half], weights[2 + half]);
        }
}
DEVICE void add_values(const float (&z)[2][4], const pieces &x, row_sums &out) {
    add_turned_values(z, out, [&](int h, int n, u32(&left)[4]) {
        u32 word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 &v = x.value[i][h];
            word[i] = n == 0 ? v.x : n == 1 ? v.y : n == 2 ? v.z : v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[i] = __byte_perm(word[i & 2], word[(i & 2) + 1], i % 2 ? 0x7632 : 0x5410);
    });
}

/* ---- Combining warps ------------------------------------------------------------------------------------- */

/*
 * Partial results of the warps, in shared memory: sums [WARPS][ROWS][VALUE_DIM], then maxima and sums [WARPS][ROWS]
 * of both. `base` is what the sums of values are relative to.
 */
DEVICE void leave(float *memory, const softmax_rows &rows, const float (&base)[HALVES], const row_sums &out) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *ends = memory + WARPS * ROWS * VALUE_DIM;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = warp * ROWS + lane / 4 + 8 * half, own = warp * ROWS + lane % 4 * 2 + 8 * half;
        const float max = larger_of_lanes(rows.max[half], 4), sum = sum_of_lanes(rows.sum[half], 4);
        const float least = max == NEG_INF ? 0 : max;
        const float2 scale = of_sums(power_of_2(base[half] - least));
        if (lane % 4 == 0) ends[2 * row] = max, ends[2 * row + 1] = sum * power_of_2(rows.base[half] - least);
#pragma unroll
        for (int n = 0; n < WIDTH; n += 2)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float factor = k ? scale.y : scale.x;
                const float(&x)[4] = out[half][n], (&y)[4] = out[half][n + 1];
                *(float4 *)(memory + (own + k) * VALUE_DIM + n / 4 * 64 + lane / 4 * 8 + n % 4 * 2) =
                    make_float4(x[k] * factor, x[k + 2] * factor, y[k] * factor, y[k + 2] * factor);
            }
    }
}

#endif
