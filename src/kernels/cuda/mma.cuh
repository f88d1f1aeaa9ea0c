/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mma.sync m16n8k16 for bf16 and f16 with sums in f32, from sm_80 up, and tiles in shared memory by cp.async. A tile
 * is rows of pitch_of(dim) elements in pieces of 16 bytes; piece c of row r lies at c ^ (r mod 8), so that the same
 * piece of eight rows lies in different banks. Constants: ELEMENT, and WARPS of a block.
 *
 * Fragments (PTX ISA, "Matrix fragments for mma.m16n8k16"): of an accumulator of 16 rows and 8 columns a lane has rows
 * lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next.
 */
#ifndef EJKI_CUDA_MMA_CUH
#define EJKI_CUDA_MMA_CUH

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/views.cuh"

#define THREADS (32 * WARPS)

/* Elements of a row in shared memory; k steps of 16 that hold data. */
constexpr __host__ __device__ int pitch_of(int dim) {
    return round_up(dim, 64);
}
constexpr __host__ __device__ int sixteens(int dim) {
    return cdiv(dim, 16);
}

DEVICE u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

/* The address of a piece of 8 elements. */
template <int dim> DEVICE u32 piece_at(u32 tile, int row, int piece) {
    return tile + (u32)(row * pitch_of(dim) * 2 + ((piece ^ (row & 7)) << 4));
}

/* Copies 16 bytes, or writes zeros. */
DEVICE void copy_piece(u32 to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
DEVICE void copy_whole_piece(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same of what nobody reads again: the second-level cache keeps other lines in its place. */
DEVICE u64 once_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE void copy_whole_piece_once(u32 to, const void *from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}
/* Copies a float, or writes 0. */
DEVICE void copy_float(u32 to, const float *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}
DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int left> DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

DEVICE void store_piece(u32 to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
DEVICE uint4 load_piece(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* To global memory. */
DEVICE void store_whole_piece(void *to, uint4 x) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* Rows of a tensor: `group` heads for each token. */
struct rows_of {
    const u16 *data; /* of the sequence's first token */
    i64 stride_t, stride_h;
    bool whole; /* pieces begin at multiples of 16 bytes */
};

template <int dim>
DEVICE rows_of rows_at(const ejki_cuda_bthd &t, i64 entry, int token, int head) {
    rows_of r;
    r.data = (const u16 *)t.data + entry * t.stride_b + token * t.stride_t + head * t.stride_h;
    r.stride_t = t.stride_t;
    r.stride_h = t.stride_h;
    r.whole = dim % 8 == 0 && (((u64)t.data >> 1 | t.stride_b | t.stride_t | t.stride_h) & 7) == 0;
    return r;
}

DEVICE const u16 *row_address(const rows_of &r, int row, int group) {
    return group == 1 ? r.data + row * r.stride_t
                      : r.data + row / group * r.stride_t + row % group * r.stride_h;
}

/* A piece element by element; nothing beyond the row is read. */
template <int dim> DEVICE void copy_elements(u32 to, const u16 *from, int d, bool there) {
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const u32 low = there && d + 2 * n < dim ? from[2 * n] : 0;
        const u32 high = there && d + 2 * n + 1 < dim ? from[2 * n + 1] : 0;
        x[n] = low | high << 16;
    }
    store_piece(to, make_uint4(x[0], x[1], x[2], x[3]));
}

/*
 * COPIES_APART makes the slow path of copies a function of its own, which saves a tenth to a fifth of compile time.
 * On one H200 gradients gain 2 % by it, and the forward pass loses 1 %.
 */
#if defined(COPIES_APART)
#define SLOW_PATH static __device__ __noinline__
#else
#define SLOW_PATH DEVICE
#endif

/* The slow path of copy_tile(): partial tiles, several heads of a token, or rows that are not aligned. */
template <int count, int dim>
SLOW_PATH void copy_any_tile(u32 tile, const rows_of from, int first, int rows, int group) {
    enum { PIECES = 2 * sixteens(dim), ALL = count * PIECES };
    if (from.whole) {
#pragma unroll 1
        for (int n = 0; n < cdiv(ALL, THREADS); n++) {
            const int index = n * THREADS + threadIdx.x, row = index / PIECES;
            if (ALL % THREADS != 0 && index >= ALL) break;
            const bool there = first + row < rows && index % PIECES * 8 < dim;
            const u16 *at = row_address(from, first + row, group) + index % PIECES * 8;
            copy_piece(piece_at<dim>(tile, row, index % PIECES), there ? at : from.data, there);
        }
        return;
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < ALL; index += THREADS) {
        const int row = index / PIECES, piece = index % PIECES;
        const bool there = first + row < rows && piece * 8 < dim;
        const u16 *at = row_address(from, there ? first + row : first, group) + piece * 8;
        copy_elements<dim>(piece_at<dim>(tile, row, piece), at, piece * 8, there);
    }
}

/* Prefetches rows first … first + count into a tile; what is beyond `rows` or `dim` is 0. */
template <int count, int dim>
DEVICE void copy_tile(u32 tile, const rows_of &from, int first, int rows, int group) {
    enum { PIECES = 2 * sixteens(dim), ALL = count * PIECES };
    /* The fast path: a constant step from a thread's piece to its next. */
    if (THREADS % PIECES == 0 && dim % 16 == 0 && ALL % THREADS == 0 && from.whole && group == 1 &&
        first + count <= rows) {
        enum { STEP = THREADS % PIECES ? 1 : THREADS / PIECES };
        const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        const u16 *at = from.data + (i64)(first + row) * from.stride_t + piece * 8;
        const i64 step = STEP * from.stride_t;
#pragma unroll
        for (int n = 0; n < ALL / THREADS; n++, at += step)
            copy_whole_piece(piece_at<dim>(tile, row + n * STEP, piece), at);
        return;
    }
    copy_any_tile<count, dim>(tile, from, first, rows, group);
}

/* ---- Fragments ------------------------------------------------------------------------------------- */

DEVICE void ldmatrix_x4(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
}
DEVICE void ldmatrix_x4_trans(u32 (&x)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
}

/* Rows row … row + 16, coordinates 16 k …, as the left operand. */
template <int dim> DEVICE void load_left(u32 (&x)[4], u32 tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(x, piece_at<dim>(tile, row + lane % 16, 2 * k + lane / 16));
}
/* Rows row … row + 16 as 16 columns, coordinates 16 k … as the sum's axis: two right operands. */
template <int dim> DEVICE void load_right(u32 (&x)[4], u32 tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(x, piece_at<dim>(tile, row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
/* Rows row … row + 16 as the sum's axis, coordinates 16 n … as 16 columns: two right operands. */
template <int dim> DEVICE void load_right_trans(u32 (&x)[4], u32 tile, int row, int n) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(x, piece_at<dim>(tile, row + lane % 16, 2 * n + lane / 16));
}

DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ELEMENT == BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two elements, the first in the lower half. */
DEVICE u32 pack(float low, float high) {
    u32 x;
#if ELEMENT == BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#endif
    return x;
}

/* The products' columns 16 n … as a left operand. */
DEVICE void pack_left(u32 (&x)[4], const float (&low)[4], const float (&high)[4]) {
    x[0] = pack(low[0], low[1]);
    x[1] = pack(low[2], low[3]);
    x[2] = pack(high[0], high[1]);
    x[3] = pack(high[2], high[3]);
}

template <int n> DEVICE void clear(float (&x)[n][4]) {
#pragma unroll
    for (int i = 0; i < n; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
}

template <int n> DEVICE bool has_nan(const float (&x)[n][4]) {
    bool found = false;
#pragma unroll
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) found = found || x[i][k] != x[i][k];
    return found;
}

#endif
