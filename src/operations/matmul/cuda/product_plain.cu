/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in float32 without tensor cores: whatever the element types, block scales and quantised matrices. A block
 * has a tile of ROWS x COLUMNS sums in the registers of 16 x 16 threads and takes the depth 16 at a time: while a piece
 * is multiplied out of shared memory, the next is on its way into registers. Each sum is one chain of fused
 * multiply-adds in the order of the depth, so that bits depend neither on tiles nor on what else is in the call.
 *
 * Constants: ROWS and COLUMNS, 64 or 128; QUANT: b is codes; FOLD, not 0: results count times other elements (1, by
 * p.fold), or derivatives of values by scales (2) or zeros (3), and a tile's column is summed up over each p.block of
 * its rows.
 */
#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/tile.cuh"

#define THREADS 256
#define DEPTH   16
#define PITCH   4 /* floats more than a row has: neighbours of the depth lie in other banks */
#define QUADS_Y (ROWS / 64)
#define QUADS_X (COLUMNS / 64)

struct arguments {
    mm_product p;
    mm_size tiles; /* as find_place() wants them */
};

/* Column c of a tile of b: of a gated product gates and values in turn. Below 0: none. */
DEVICE mm_size column_of_b(const mm_product &p, const place &at, int c) {
    const mm_size j = at.column + (p.gated ? c / 2 : c);
    if (j >= p.columns) return -1;
    return p.gated && c % 2 ? value_column(p, j) : gate_column(p, j);
}

/* What a thread reads of a piece: `COUNT` elements of one side, by rows (columns of b) or by steps of the depth. */
struct reader {
    int line, step;           /* of the first */
    int next_line, next_step; /* from one to the next */
};
/* `contiguous`: neighbours of the depth are neighbours in memory. */
DEVICE reader reader_of(bool contiguous, int lines) {
    const int t = threadIdx.x;
    if (contiguous) return {t / DEPTH, t % DEPTH, THREADS / DEPTH, 0};
    return {t % lines, t / lines, 0, THREADS / lines};
}

template <int COUNT> DEVICE void read_a(const mm_product &p, const place &at, const reader &r,
                                        const mm_size (&rows)[COUNT], mm_size k, float (&to)[COUNT]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        const mm_size step = k + r.step + n * r.next_step, row = rows[n];
        to[n] = 0;
        if (row >= 0 && step < at.s.depth)
            to[n] = load(p.a, at.s.a + row * p.a.row + mm_step(&p, &p.a, at.s.step + step, p.a.column));
    }
}

DEVICE float element_of_b(const mm_product &p, const place &at, mm_size step, mm_size column) {
#if QUANT
    return p.b.flipped ? value_at(p.quant, at.s.held, column, step) : value_at(p.quant, at.s.held, step, column);
#else
    const float b = load(p.b, at.s.b + mm_step(&p, &p.b, step, p.b.row) + column * p.b.column);
    if (!p.scale.present || p.split == MM_DEPTH) return b;
    return b * load(p.scale, mm_scale_at(&p, at.s.held, step, column));
#endif
}

template <int COUNT> DEVICE void read_b(const mm_product &p, const place &at, const reader &r,
                                        const mm_size (&columns)[COUNT], mm_size k, float (&to)[COUNT]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        const mm_size step = k + r.step + n * r.next_step, column = columns[n];
        to[n] = column >= 0 && step < at.s.depth ? element_of_b(p, at, at.s.step + step, column) : 0;
    }
}

template <int COUNT, int WIDTH>
DEVICE void put(float (&to)[DEPTH][WIDTH], const reader &r, const float (&from)[COUNT]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) to[r.step + n * r.next_step][r.line + n * r.next_line] = from[n];
}

/* Four floats of each quad of a thread. */
template <int QUADS>
DEVICE void take(float (&to)[4 * QUADS], const float *from, int own) {
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const float4 x = *(const float4 *)(from + 64 * q + 4 * own);
        to[4 * q] = x.x, to[4 * q + 1] = x.y, to[4 * q + 2] = x.z, to[4 * q + 3] = x.w;
    }
}

typedef float tile_sums[4 * QUADS_Y][4 * QUADS_X];

/* The sums of a tile. */
DEVICE void multiply(const mm_product &p, const place &at, tile_sums &sums) {
    enum { OF_A = ROWS * DEPTH / THREADS, OF_B = COLUMNS * DEPTH / THREADS };
    __shared__ __align__(16) float a[DEPTH][ROWS + PITCH], b[DEPTH][COLUMNS + PITCH];
    const reader ra = reader_of(!p.a.flipped, ROWS), rb = reader_of(p.b.flipped, COLUMNS);
    mm_size rows[OF_A], columns[OF_B];
    float next_a[OF_A], next_b[OF_B];
#pragma unroll
    for (int n = 0; n < OF_A; n++) rows[n] = row_of_a(p, at, at.row + ra.line + n * ra.next_line);
#pragma unroll
    for (int n = 0; n < OF_B; n++) columns[n] = column_of_b(p, at, rb.line + n * rb.next_line);
    const mm_size depth = at.s.idle ? 0 : at.s.depth;
    if (depth > 0) read_a(p, at, ra, rows, 0, next_a), read_b(p, at, rb, columns, 0, next_b);
    for (mm_size k = 0; k < depth; k += DEPTH) {
        __syncthreads();
        put(a, ra, next_a), put(b, rb, next_b);
        __syncthreads();
        if (k + DEPTH < depth)
            read_a(p, at, ra, rows, k + DEPTH, next_a), read_b(p, at, rb, columns, k + DEPTH, next_b);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            float x[4 * QUADS_Y], y[4 * QUADS_X];
            take<QUADS_Y>(x, a[d], threadIdx.x / 16);
            take<QUADS_X>(y, b[d], threadIdx.x % 16);
#pragma unroll
            for (int i = 0; i < 4 * QUADS_Y; i++)
#pragma unroll
                for (int j = 0; j < 4 * QUADS_X; j++) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
        }
    }
}

/* Row or column number n of a thread's in the tile. */
DEVICE int own_line(int n, int own) {
    return 64 * (n / 4) + 4 * own + n % 4;
}

#if FOLD
/* A tile's results, with FOLD 1 times elements of `fold`, in shared memory; what is beyond the tile is 0. */
DEVICE void fold_tile(const mm_product &p, const place &at, const tile_sums &sums, float (&to)[ROWS][COLUMNS]) {
    const mm_view &f = p.fold;
#pragma unroll
    for (int y = 0; y < 4 * QUADS_Y; y++)
#pragma unroll
        for (int x = 0; x < 4 * QUADS_X; x++) {
            const int line = own_line(y, threadIdx.x / 16), c = own_line(x, threadIdx.x % 16);
            const mm_size i = at.row + line, j = at.column + c;
            to[line][c] = i < at.s.rows && j < p.columns
                              ? element_of_sums(p, at.s, i, j, sums[y][x], 0) *
                                    (FOLD == 1 ? load(f, at.s.held * f.group + i * f.row + j * f.column) : 1)
                              : 0;
        }
}

/* Adds the lines of a tile, with FOLD 2 times what codes are without their scales. */
DEVICE float add_lines(const mm_product &p, const place &at, mm_size j, float zero, const float *results, float total) {
    const int lines = (int)mm_least(ROWS, at.s.rows - at.row);
    for (int line = 0; line < lines; line++) {
        float by = 1;
        if (FOLD == 2)
            by = number_of(p.quant.mode, code_at(row_of_codes(p.quant, 0, j), p.quant.bits, at.row + line), zero);
        total = FOLD == 2 ? fmaf(results[line * COLUMNS], by, total) : total + results[line * COLUMNS];
    }
    return total;
}

/* A block of columns of a row of out: tiles of its rows one after the other. */
extern "C" __global__ void __launch_bounds__(THREADS) product(const __grid_constant__ arguments a) {
    __shared__ float results[ROWS][COLUMNS];
    const mm_product &p = a.p;
    const mm_size columns = tiles_of(p.columns, COLUMNS);
    const mm_size q = blockIdx.x / columns % p.out_rows;
    place at = {};
    at.column = blockIdx.x % columns * COLUMNS;
    at.s.rows = mm_least(p.rows, (q + 1) * p.block);
    at.s.depth = p.depth;
    if (p.split == MM_DEPTH) find_depth(p, blockIdx.x / columns / p.out_rows, &at.s);
    const bool is_empty = mm_is_empty(&p, &at.s);
    if (is_empty) at.s.rows = 0;
    const mm_size j = at.column + threadIdx.x;
    const bool adds = threadIdx.x < COLUMNS && j < p.columns;
    quant_group g = {};
    if (FOLD > 1 && adds) g = group_of(p.quant, 0, j, q);
    float total = 0;
    for (at.row = q * p.block; at.row < at.s.rows; at.row += ROWS) {
        tile_sums sums = {};
        multiply(p, at, sums);
        __syncthreads();
        fold_tile(p, at, sums, results);
        __syncthreads();
        if (adds) total = add_lines(p, at, j, g.zero, &results[0][threadIdx.x], total);
    }
    if (FOLD == 3 && !is_empty) total *= -g.scale;
    if (adds) store_float(p.out.dtype, p.out.data, at.s.out + q * p.out.row + j * p.out.column, total);
}
#else
DEVICE void write_tile(const mm_product &p, const place &at, const tile_sums &sums) {
#pragma unroll
    for (int y = 0; y < 4 * QUADS_Y; y++) {
        const mm_size i = at.row + own_line(y, threadIdx.x / 16);
        if (i >= at.s.rows) continue;
#pragma unroll
        for (int x = 0; x < 4 * QUADS_X; x += 2) {
            const int c = own_line(x, threadIdx.x % 16);
            const mm_size j = at.column + (p.gated ? c / 2 : c);
            if (j < p.columns) finish(p, at.s, i, j, sums[y][x], sums[y][x + 1]);
            if (!p.gated && j + 1 < p.columns) finish(p, at.s, i, j + 1, sums[y][x + 1], 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) product(const __grid_constant__ arguments a) {
    place at;
    tile_sums sums = {};
    if (!find_place(a.p, a.tiles, &at)) return;
    multiply(a.p, at, sums);
    write_tile(a.p, at, sums);
}
#endif
