/* SPDX-License-Identifier: Apache-2.0 */
/* K and V of decode.cu: the blocks of a warp, and how they get into fragments. */
#ifndef EJKI_CUDA_KEYS_DECODE_CUH
#define EJKI_CUDA_KEYS_DECODE_CUH

#include "operations/attention/cuda/common/few_rows.cuh"
#include "operations/attention/cuda/common/nonfinite.cuh"

/* 1 = values are taken from the ring once scores are done: registers do not hold both. */
enum { LATE = DIRECT || HALVES == 2 || HEAD_DIM + VALUE_DIM > 256 };

/* What a warp goes through: blocks start, start + WARPS … below last. */
struct walk {
    rows_of key, value;
    key_range range;
    int start, last, keys;
};

DEVICE walk walk_of(const ejki_cuda_problem &p, const sequence &s, int head) {
    walk w;
    w.key = rows_at<HEAD_DIM>(p.key, s.entry, 0, head);
    w.value = rows_at<VALUE_DIM>(p.value, s.entry, 0, head);
    w.range = keys_of_rows(s, 0, p.queries - 1);
    w.keys = s.keys;
    const int begin = larger(w.range.begin, (int)blockIdx.y * p.split_keys);
    const int first = begin / KEYS / WARPS * WARPS + threadIdx.x / 32;
    w.start = first * KEYS + KEYS > begin ? first : first + WARPS;
    w.last = cdiv(lesser(w.range.end, ((int)blockIdx.y + 1) * p.split_keys), KEYS);
    return w;
}

/* ---- A block of keys ------------------------------------------------------------------------------------- */

/* Copies the rows of a block of keys that are there; the others are 0. A warp. */
template <int dim, class place>
DEVICE void copy_rows(const rows_of &from, int first, int keys, place where) {
    enum { PIECES = dim / 8, STEP = PIECES <= 32 ? 32 / PIECES : 1 };
    const int lane = threadIdx.x % 32;
    /* The fast path: a constant step from a lane's piece to its next. */
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

DEVICE void copy_block(u32 stage, int block, const walk &w) {
    copy_rows<HEAD_DIM>(w.key, block * KEYS, w.keys,
                        [&](int row, int piece) { return key_piece(stage, row, piece); });
    copy_rows<VALUE_DIM>(w.value, block * KEYS, w.keys,
                         [&](int row, int piece) { return value_piece(stage, row, piece); });
}

#if DIRECT
DEVICE uint4 fetch(const u16 *at) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at));
    return x;
}

/* Straight from the tensors; rows beyond the last are the last. */
DEVICE void fetch_block(pieces &x, int block, const walk &w) {
    const int lane = threadIdx.x % 32;
    if (block >= w.last) return;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int row = lesser(block * KEYS + key_row(n), w.keys - 1);
        const u16 *at = w.key.data + row * w.key.stride_t + lane % 4 * 8;
#pragma unroll
        for (int c = 0; c < HEAD_STEPS; c++) x.key[n][c] = fetch(at + 32 * c);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int row = lesser(block * KEYS + value_row(n), w.keys - 1);
        const u16 *at = w.value.data + row * w.value.stride_t + lane / 4 * 8;
#pragma unroll
        for (int h = 0; h < VALUE_STEPS; h++) x.value[n][h] = fetch(at + 64 * h);
    }
}

#endif

#endif
