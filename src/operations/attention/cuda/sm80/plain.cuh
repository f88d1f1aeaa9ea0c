/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plain kernels share: no tensor cores, f32 throughout, any head size. A block of WARPS warps has ROWS rows
 * for each warp in shared memory (its own side) and goes through the other side in steps of 32, one for each lane;
 * of those, CHUNK coordinates are in shared memory at a time.
 */
#ifndef EJKI_CUDA_PLAIN_CUH
#define EJKI_CUDA_PLAIN_CUH

#include "operations/attention/cuda/common/epilogue.cuh"

enum {
    WARPS = 4,
    THREADS = 32 * WARPS,
    TILE = ROWS * WARPS,
    STEP = 32,
    CHUNK = 64,
    PITCH = CHUNK + 4, /* eight lanes' 16 bytes then lie in different banks */
};

/* Coordinates and chunks of a row of that many; sums are kept as two for each lane of a chunk. */
constexpr __host__ __device__ int padded(int dim) {
    return round_up(dim > 0 ? dim : 1, CHUNK);
}
constexpr __host__ __device__ int chunks(int dim) {
    return padded(dim) / CHUNK;
}

struct rows_of {
    const element *data; /* of the sequence's first token */
    i64 stride_t, stride_h;
};

DEVICE rows_of rows_at(const ejki_cuda_bthd &t, i64 entry, int token, int head) {
    rows_of r;
    r.data = (const element *)t.data + entry * t.stride_b + token * t.stride_t + head * t.stride_h;
    r.stride_t = t.stride_t;
    r.stride_h = t.stride_h;
    return r;
}

/* Row `row` of `group` for each token. */
DEVICE const element *row_address(const rows_of &r, int row, int group) {
    return r.data + row / group * r.stride_t + row % group * r.stride_h;
}

/* Rows first … first + TILE as floats, [TILE][padded(dim)]; what is beyond `rows` or `dim` is 0. */
template <int dim>
DEVICE void keep_rows(float *to, const rows_of &from, int first, int rows, int group) {
    for (int n = threadIdx.x; n < TILE * padded(dim); n += THREADS) {
        const int row = first + n / padded(dim), d = n % padded(dim);
        to[n] = row < rows && d < dim ? widen(row_address(from, row, group)[d]) : 0;
    }
}

/* Coordinates d … d + CHUNK of rows first … first + STEP, [STEP][PITCH]. Waits before and after. */
template <int dim>
DEVICE void stage(float *to, const rows_of &from, int first, int rows, int group, int d) {
    __syncthreads();
    for (int n = threadIdx.x; n < STEP * CHUNK; n += THREADS) {
        const int row = first + n / CHUNK, at = d + n % CHUNK;
        to[n / CHUNK * PITCH + n % CHUNK] =
            row < rows && at < dim ? widen(row_address(from, row, group)[at]) : 0;
    }
    __syncthreads();
}

/* Adds the products of a warp's rows with what is staged, one of it for each lane. */
template <int dim>
DEVICE void add_products(float (&sums)[ROWS], const float *own, const float *staged, int d) {
    const float *at = staged + threadIdx.x % 32 * PITCH;
#pragma unroll 4
    for (int n = 0; n < CHUNK; n += 4) {
        const float4 b = *(const float4 *)(at + n);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 a = *(const float4 *)(own + r * padded(dim) + d + n);
            sums[r] = fmaf(a.x, b.x, sums[r]);
            sums[r] = fmaf(a.y, b.y, sums[r]);
            sums[r] = fmaf(a.z, b.z, sums[r]);
            sums[r] = fmaf(a.w, b.w, sums[r]);
        }
    }
}

/* All products of a step. */
template <int dim>
DEVICE void products(float (&sums)[ROWS], const float *own, float *staged, const rows_of &other,
                     int first, int rows, int group) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = 0;
    for (int c = 0; c < chunks(dim) && dim > 0; c++) {
        stage<dim>(staged, other, first, rows, group, c * CHUNK);
        add_products<dim>(sums, own, staged, c * CHUNK);
    }
}

/*
 * Adds weights times what is staged to chunk `c` of the sums. A weight of 0 adds nothing, whatever it meets;
 * `weights` are the warp's [ROWS][STEP] in shared memory.
 */
template <int dim>
DEVICE void add_weighted(float (&sums)[ROWS][2 * chunks(dim)], const float *weights,
                         const float *staged, int c) {
    const float *at = staged + threadIdx.x % 32;
#pragma unroll 1
    for (int n = 0; n < STEP; n += 4) {
        float4 w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) w[r] = *(const float4 *)(weights + r * STEP + n);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float low = at[(n + k) * PITCH], high = at[(n + k) * PITCH + 32];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float x = k == 0 ? w[r].x : k == 1 ? w[r].y : k == 2 ? w[r].z : w[r].w;
                if (x != 0) {
                    sums[r][2 * c] = fmaf(x, low, sums[r][2 * c]);
                    sums[r][2 * c + 1] = fmaf(x, high, sums[r][2 * c + 1]);
                }
            }
        }
    }
}

/* Stages all chunks of a step and adds them. */
template <int dim>
DEVICE void weighted(float (&sums)[ROWS][2 * chunks(dim)], const float *weights, float *staged,
                     const rows_of &other, int first, int rows, int group) {
#pragma unroll
    for (int c = 0; c < chunks(dim); c++) {
        stage<dim>(staged, other, first, rows, group, c * CHUNK);
        add_weighted<dim>(sums, weights, staged, c);
    }
}

/* A row's sums times a factor; `put` stores an element. */
template <int dim, class put_element>
DEVICE void put_row(const float (&sums)[2 * chunks(dim)], float factor, put_element put) {
#pragma unroll
    for (int n = 0; n < 2 * chunks(dim); n++) {
        const int d = n * 32 + threadIdx.x % 32;
        if (d < dim) put(d, sums[n] * factor);
    }
}

#endif
