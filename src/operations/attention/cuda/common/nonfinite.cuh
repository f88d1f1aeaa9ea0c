/* SPDX-License-Identifier: Apache-2.0 */
/* How tensor-core kernels keep NaN and infinities of hidden keys out of their sums. */
#ifndef EJKI_ATTENTION_CUDA_NONFINITE_CUH
#define EJKI_ATTENTION_CUDA_NONFINITE_CUH

#include "kernels/cuda/mma.cuh"
#include "operations/attention/cuda/common/epilogue.cuh"

/*
 * A weight of 0 times an infinity or a NaN is NaN, where a hidden key must add nothing. So a tile whose sums have a
 * NaN is recomputed: once with 0 in place of what is not finite (FINITE), then with 1 in place of it, 0 for all
 * else, and weights of 1 where they are not 0 (UPWARDS, DOWNWARDS by sign): a sum above 0 then says that an infinity
 * has to be added. Sums of finite numbers keep their bits. Gradients do not need the sign (EITHER): theirs become
 * NaN.
 */
enum pass { PLAIN, FINITE, UPWARDS, DOWNWARDS, EITHER };

DEVICE u32 replaced(u32 pair, int pass) {
    const u32 exponent = ELEMENT == BF16 ? 0x7f80 : 0x7c00, one = ELEMENT == BF16 ? 0x3f80 : 0x3c00;
    u32 result = 0;
#pragma unroll
    for (int n = 0; n < 32; n += 16) {
        const u32 x = pair >> n & 0xffff;
        const bool odd = (x & exponent) == exponent, nan = odd && (x & 0x7fff) != exponent;
        const bool same = pass == EITHER || (pass == DOWNWARDS) == (x >> 15 != 0);
        result |= (pass == FINITE ? (odd ? 0 : x) : odd && (nan || same) ? one : 0) << n;
    }
    return result;
}

template <int count, int dim> DEVICE void replace_tile(u32 tile, int pass) {
    enum { PIECES = 2 * sixteens(dim) };
    for (int index = threadIdx.x; index < count * PIECES; index += THREADS) {
        const u32 at = piece_at<dim>(tile, index / PIECES, index % PIECES);
        uint4 x = load_piece(at);
        x.x = replaced(x.x, pass);
        x.y = replaced(x.y, pass);
        x.z = replaced(x.z, pass);
        x.w = replaced(x.w, pass);
        store_piece(at, x);
    }
}

template <int n> DEVICE void replace_weights(float (&x)[n][4]) {
#pragma unroll
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) x[i][k] = x[i][k] != 0 ? 1 : 0;
}

#endif
