/* SPDX-License-Identifier: Apache-2.0 */
/* Gates of key channels, of several rows at once, and elements of a channel as they lie in tiles. KEY_SIZE. */
#ifndef EJKI_RECURRENT_CHUNK_KEY_CUH
#define EJKI_RECURRENT_CHUNK_KEY_CUH

#include "operations/recurrent/cuda/rows.cuh"

/* Adds gates of a channel of `count` rows, of `most`, from token t on; all loads are under way together. */
template <int most>
DEVICE void add_rows(const rec_problem &p, const rec_view &v, const rec_sequence &q, rec_size t, rec_size h,
                     int channel, int count, bool may_be_raw, float (&sum)[most]) {
    const rec_size at = rec_at(&v, q.batch, t, h) + channel, step = p.reverse ? -v.stride[1] : v.stride[1];
    float x[most];
    if (v.dtype == F32) {
#pragma unroll
        for (int n = 0; n < most; n++) x[n] = n < count ? ((const float *)v.data)[at + n * step] : 0;
    } else {
        u16 bits[most]; /* a branch on the type between two loads would make them wait for each other */
#pragma unroll
        for (int n = 0; n < most; n++) bits[n] = n < count ? ((const u16 *)v.data)[at + n * step] : 0;
#pragma unroll
        for (int n = 0; n < most; n++) x[n] = v.dtype == BF16 ? value_of<BF16>(bits[n]) : value_of<F16>(bits[n]);
    }
    if (may_be_raw && p.view[REC_A_LOG].present) {
        const rec_view &rate = p.view[REC_A_LOG], &bias = p.view[REC_DT_BIAS];
        const float by = -expf(load(rate, h * rate.stride[2]));
        const float shift = bias.present ? load(bias, h * bias.stride[2] + channel * bias.stride[3]) : 0;
#pragma unroll
        for (int n = 0; n < most; n++) x[n] = by * softplus(x[n] + shift);
    }
#pragma unroll
    for (int n = 0; n < most; n++) sum[n] += x[n];
}

/* Adds all that are of a channel. */
template <int most>
DEVICE void add_channel(const rec_problem &p, const rec_sequence &q, rec_size t, rec_size h, int channel, int count,
                        float (&g)[most]) {
    if (p.g_is_wide) add_rows(p, p.view[REC_G], q, t, h, channel, count, true, g);
    if (p.view[REC_GK].present) add_rows(p, p.view[REC_GK], q, t, h, channel, count, false, g);
}

/* Two channels of a row as they lie. */
DEVICE u32 load_pair(u32 tile, int row, int channel) {
    u32 x;
    const u32 at = piece_at<KEY_SIZE>(tile, row, channel / 8) + channel % 8 * 2;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

#endif
