/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of the walks forwards, which have them as rows of columns of the value. Constants as of chunk_walk.cuh. */
#ifndef EJKI_RECURRENT_CHUNK_OUTPUTS_CUH
#define EJKI_RECURRENT_CHUNK_OUTPUTS_CUH

#include "operations/recurrent/cuda/chunk_walk.cuh"

/* What a warp works on. */
DEVICE work outputs_of(const rec_problem &p, rec_size tiles, rec_size block) {
    const rec_view &v = p.view[REC_OUT];
    work w = work_of(p, tiles, block);
    w.value = rows_in(p, p.view[REC_VALUE], w.q, rec_head(&p, w.h, p.value_heads), w.j);
    const u64 places = (u64)v.data >> 1 | v.stride[0] | v.stride[1] | v.stride[2];
    w.is_even = (places & 1) == 0, w.is_whole = (places & 7) == 0;
    return w;
}

/* Outputs that others round: element i of tile n is of the token and column that its sum is of. */
DEVICE void store_floats(const rec_problem &p, const work &w, int first, const float (&out)[8][4]) {
    const rec_view &v = p.view[REC_OUT];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (!has_outputs(w, n / 2)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first + 8 * n + lane % 4 * 2 + i % 2, column = w.column + lane / 4 + i / 2 * 8;
            if (row < w.steps)
                ((float *)v.data)[rec_at(&v, w.q.batch, rec_token(&p, &w.q, row), w.h) + w.j + column] = out[n][i];
        }
    }
}

DEVICE void store_outputs(const rec_problem &p, const work &w, int first, const float (&out)[8][4]) {
    const rec_view &v = p.view[REC_OUT];
    const int lane = threadIdx.x % 32;
    if (v.dtype == F32) {
        store_floats(p, w, first, out);
        return;
    }
    const rec_size step = p.reverse ? -8 * v.stride[1] : 8 * v.stride[1];
    u16 *to = (u16 *)v.data + rec_at(&v, w.q.batch, rec_token(&p, &w.q, first + lane / 4), w.h) + w.j + w.column +
              lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++, to += step) {
        if (!has_outputs(w, n / 2)) continue;
        const u32 low = transposed(pack(out[n][0], out[n][1])), high = transposed(pack(out[n][2], out[n][3]));
        if (first + 8 * n + lane / 4 >= w.steps) continue;
        if (w.is_even) {
            *(u32 *)to = low;
            *(u32 *)(to + 8) = high;
        } else {
            to[0] = (u16)low, to[1] = (u16)(low >> 16);
            to[8] = (u16)high, to[9] = (u16)(high >> 16);
        }
    }
}

#endif
