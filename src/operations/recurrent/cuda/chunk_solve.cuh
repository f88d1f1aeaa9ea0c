/* SPDX-License-Identifier: Apache-2.0 */
/*
 * (1 + A)^-1 of a chunk, in place of A, by 128 threads: blocks on the diagonal, of which a warp has one of 16 columns,
 * two of 8 by substitution in floats. Of two blocks that are solved, T11 and T22, and A21 below the diagonal T21 is
 * -T22 (A21 T11), by mma in INVERSE_PIECES pieces of tf32 each, which have 11 bits: (A21 T11)' is made, whose sums are
 * a right operand as they lie.
 *
 * Constants: INVERSE_PIECES (TERMS unless given).
 */
#ifndef EJKI_RECURRENT_CHUNK_SOLVE_CUH
#define EJKI_RECURRENT_CHUNK_SOLVE_CUH

#include "kernels/cuda/barrier.cuh"
#include "operations/recurrent/cuda/chunk.cuh"

#ifndef INVERSE_PIECES
#define INVERSE_PIECES TERMS
#endif
#define PITCH (REC_CHUNK + 4)
#define OWN   (REC_CHUNK / 4)
#define PART  8
#define INVERTERS 1 /* a named barrier */

/* The warp's two blocks by lanes that have a column each; the others clear what is beside the first. */
DEVICE void solve(float *a) {
    const int lane = threadIdx.x % 32, column = lane % PART, first = OWN * (threadIdx.x / 32 % 4);
    const int block = (first + lane / PART % 2 * PART) * (PITCH + 1);
    float x[PART];
#pragma unroll
    for (int t = 0; t < PART; t++) {
        float sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < t; r += 4) {
            const float4 four = *(const float4 *)(a + block + t * PITCH + r);
            const float row[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (r + i < t) sum[i % 2] += row[i] * x[r + i];
        }
        x[t] = (t == column ? 1 : 0) - (sum[0] + sum[1]);
    }
    __syncwarp();
    if (lane >= 2 * PART) {
        *(float4 *)(a + (first + lane / 2 % PART) * PITCH + first + PART + lane % 2 * 4) = make_float4(0, 0, 0, 0);
        return;
    }
#pragma unroll
    for (int t = 0; t < PART; t++) a[block + t * PITCH + column] = x[t];
}

/* Operands of products of 8 columns by rows of as many; lane t of a row has columns 2 t and 2 t + 1. */
struct tf32_left {
    u32 x[INVERSE_PIECES][4];
};
struct tf32_right {
    u32 x[INVERSE_PIECES][2];
};
/* Rounded to nearest, which is three instructions, or cut off after 11 bits, which a product does by itself. */
template <bool rounds, int count> DEVICE void split(u32 (&to)[INVERSE_PIECES][count], int n, float x) {
#pragma unroll
    for (int piece = 0; piece < INVERSE_PIECES; piece++) {
        if (rounds)
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(to[piece][n]) : "f"(x));
        else
            to[piece][n] = piece + 1 == INVERSE_PIECES ? __float_as_uint(x) : __float_as_uint(x) & 0xffffe000;
        x -= __uint_as_float(to[piece][n]);
    }
}
template <bool rounds = true> DEVICE tf32_right right_of(float2 x) {
    tf32_right y;
    split<rounds>(y.x, 0, x.x), split<rounds>(y.x, 1, x.y);
    return y;
}
template <bool rounds = true> DEVICE tf32_left left_of(float2 x, float2 behind) {
    tf32_left y;
    split<rounds>(y.x, 0, x.x), split<rounds>(y.x, 2, x.y);
    split<rounds>(y.x, 1, behind.x), split<rounds>(y.x, 3, behind.y);
    return y;
}
DEVICE float2 pair_in(const float *block) {
    return *(const float2 *)(block + threadIdx.x % 32 / 4 * PITCH + threadIdx.x % 4 * 2);
}
DEVICE float2 pair_turned(const float *block) {
    const float *at = block + threadIdx.x % 4 * 2 * PITCH + threadIdx.x % 32 / 4;
    return make_float2(at[0], at[PITCH]);
}
DEVICE void add_tf32(float (&sum)[4], const tf32_left &a, const tf32_right &b) {
#pragma unroll
    for (int other = INVERSE_PIECES - 1; other >= 0; other--)
#pragma unroll
        for (int own = INVERSE_PIECES - 1 - other; own >= 0; own--)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(a.x[own][0]), "r"(a.x[own][1]), "r"(a.x[own][2]), "r"(a.x[own][3]),
                           "r"(b.x[other][0]), "r"(b.x[other][1]));
}

/* What is cut off a number is 2^-11 / (2 ln 2) of it on average; T21 has four factors, and makes up for it. */
#define SIGN (INVERSE_PIECES > 1 ? -1.0f : -(1 + 4 * 0.7213f / 2048))

/*
 * T21 of a block of 2 `size` columns at `a`, where T11, A21 and T22 are: by the warp, by two that have 8 columns each,
 * or by four that have 16 rows of 16. meet() is behind all that is read.
 */
template <int size, typename function> DEVICE void join(float *a, function meet) {
    constexpr bool all = size > PART;
    const int warp = threadIdx.x / 32 % 4;
    const int column = size > OWN ? warp % 2 * OWN : 0, row = size > OWN ? warp / 2 * OWN : 0;
    const float2 none = make_float2(0, 0);
    const float *second = a + size * (PITCH + 1) + row * PITCH;
    tf32_left first[size / PART];
    float sum[2][4] = {};
#pragma unroll
    for (int n = 0; n < size / PART; n++) {
        const float *block = a + PART * n * PITCH + column;
        if (PART * n < column) continue; /* above the diagonal */
        first[n] = left_of<false>(pair_turned(block), all ? pair_turned(block + PART) : none);
    }
#pragma unroll
    for (int k = 0; k < size / PART; k++) {
        float x[4] = {0, 0, 0, 0};
        if (PART * k >= row + OWN) break;
#pragma unroll
        for (int n = 0; n < size / PART; n++)
            if (PART * n >= column)
                add_tf32(x, first[n], right_of<false>(pair_in(a + (size + PART * k) * PITCH + PART * n)));
        const tf32_left left =
            left_of<false>(pair_in(second + PART * k), all ? pair_in(second + PART * PITCH + PART * k) : none);
        const float2 low = make_float2(x[0], x[1]), high = make_float2(x[2], x[3]);
        add_tf32(sum[0], left, right_of<false>(size == OWN && warp % 2 ? high : low));
        if (size > OWN) add_tf32(sum[1], left, right_of<false>(high));
    }
    meet();
    const int at = threadIdx.x % 32 / 4 * PITCH + threadIdx.x % 4 * 2;
    float *own = a + (size + row) * PITCH + (size == OWN ? warp % 2 * PART : column) + at;
#pragma unroll
    for (int n = 0; n < (size > OWN ? 2 : 1); n++, own += PART) {
        *(float2 *)own = make_float2(sum[n][0] * SIGN, sum[n][1] * SIGN);
        if (all) *(float2 *)(own + PART * PITCH) = make_float2(sum[n][2] * SIGN, sum[n][3] * SIGN);
    }
}

/*
 * By the first 128 threads of the block, who meet by themselves; all of the block meet when it is done. A barrier of
 * all within a branch, and another one for those who do not work, would be what CUDA does not allow. What is above the
 * diagonal stays.
 */
DEVICE void invert_all(float *a) {
    const int warp = threadIdx.x / 32;
    if (warp < 4) {
        const auto meet = [] { named_barrier_sync(INVERTERS, 128); };
        solve(a);
        __syncwarp();
        join<PART>(a + warp * OWN * (PITCH + 1), [] { __syncwarp(); });
        meet();
        join<OWN>(a + warp / 2 * 2 * OWN * (PITCH + 1), meet);
        meet();
        join<2 * OWN>(a, meet);
    }
    __syncthreads();
}

#endif
