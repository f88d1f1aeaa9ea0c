/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a sequence's tokens as tiles of shared memory, in the order of time, and rounded numbers in pieces. */
#ifndef EJKI_RECURRENT_ROWS_CUH
#define EJKI_RECURRENT_ROWS_CUH

#include "kernels/cuda/mma.cuh"
#include "operations/recurrent/cuda/call.cuh"

/* Those of head `head` from element j on. */
DEVICE rows_of rows_in(const rec_problem &p, const rec_view &v, const rec_sequence &s, rec_size head, rec_size j) {
    rows_of r;
    r.data = (const u16 *)v.data + rec_at(&v, s.batch, rec_token(&p, &s, 0), head) + j;
    r.stride_t = p.reverse ? -v.stride[1] : v.stride[1];
    r.stride_h = 0;
    r.whole = (((u64)v.data >> 1 | v.stride[0] | v.stride[1] | v.stride[2] | j) & 7) == 0;
    return r;
}

/* Two elements as they lie. */
DEVICE float2 widen_pair(u32 x) {
    return make_float2(widen((u16)x), widen((u16)(x >> 16)));
}

/* Two columns of 8 of a product as a left operand whose pieces add up to them: bf16 has 8 bits, so that three have all
 * of a float. */
template <int pieces>
DEVICE void pack_pieces(u32 (&x)[pieces][4], const float (&low)[4], const float (&high)[4]) {
    float rest[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) rest[0][i] = low[i], rest[1][i] = high[i];
#pragma unroll
    for (int piece = 0; piece < pieces; piece++) {
        pack_left(x[piece], rest[0], rest[1]);
        if (piece + 1 == pieces) break;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) rest[n][i] -= widen(narrow(rest[n][i]));
    }
}

#endif
