/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bf16 or f16 by mma.sync with sums in float32. A block has a tile of ROWS x COLUMNS sums in the registers
 * of WARPS_Y x WARPS_X warps and takes the depth 64 at a time through STAGES pieces of shared memory, by cp.async where
 * rows begin at multiples of 16 bytes, else element by element. Either side may be contiguous along the depth or across
 * it. The order of a sum depends on nothing but the depth.
 *
 * Columns of a gated product: where gates and values alternate, they are neighbours in a thread; else eight gates and
 * their values alternate in a tile, so that a thread has both.
 *
 * Constants: ELEMENT, A_FLIPPED, B_FLIPPED, GATHER, ROWS, COLUMNS, WARPS_Y, WARPS_X, STAGES.
 */
#define WARPS (WARPS_Y * WARPS_X)
#include "kernels/cuda/mma.cuh"
#include "operations/matmul/cuda/tile.cuh"

#define DEPTH 64

struct arguments {
    mm_product p;
    mm_size tiles; /* as find_place() wants them */
};

/* A side in shared memory: lines are rows of a or columns of b. */
#define SIDE_BYTES(flipped, lines) (2 * ((flipped) ? DEPTH * pitch_of(lines) : (lines) * DEPTH))
#define A_BYTES                    SIDE_BYTES(A_FLIPPED, ROWS)
#define STAGE_BYTES                (A_BYTES + SIDE_BYTES(!B_FLIPPED, COLUMNS))

/* Columns of b from a tile's column c on that follow each other, at least eight; the first of them. */
DEVICE mm_size columns_from(const mm_product &p, const place &at, int c, mm_size *first) {
    if (!p.gated || p.interleaved) {
        *first = gate_column(p, at.column) + c;
        return mm_columns_of_b(&p) - *first;
    }
    const mm_size j = at.column + c / 16 * 8 + c % 8;
    *first = c / 8 % 2 ? value_column(p, j) : j;
    return p.columns - j;
}

/* True if lines begin at multiples of 16 bytes. */
DEVICE bool is_whole(const mm_view &v) {
    return !v.ones && (((u64)v.data >> 1 | v.group | (v.flipped ? v.column : v.row)) & 7) == 0;
}

/* A piece element by element, zeros behind `size` bytes; `ones`: instead of what lies there. A function of its own: it
 * would take registers from the fast path. */
static __device__ __noinline__ void copy_bytes(u32 to, const u16 *from, int size, bool ones) {
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const u32 low = 4 * n >= size ? 0 : ones ? bits_of<ELEMENT>(1) : from[2 * n];
        const u32 high = 4 * n + 2 >= size ? 0 : ones ? bits_of<ELEMENT>(1) : from[2 * n + 1];
        x[n] = low | high << 16;
    }
    store_piece(to, make_uint4(x[0], x[1], x[2], x[3]));
}

/*
 * What a thread copies of a side: PIECES pieces of eight elements of each stage, LINES apart: lines of the tile, or
 * steps of the depth where the side is contiguous across it. A piece is copied in part at the end of what there is.
 */
template <bool ACROSS, int WIDTH> struct tile_loader {
    static constexpr int OF_LINE = (ACROSS ? WIDTH : DEPTH) / 8, LINES = THREADS / OF_LINE;
    static constexpr int ALL = ACROSS ? DEPTH : WIDTH, PIECES = cdiv(ALL, LINES);
    static_assert(THREADS % OF_LINE == 0 && LINES % 8 == 0, "a thread has the same piece of every line");
    const u16 *from[GATHER && !ACROSS ? PIECES : 1];
    mm_size next_line, next_stage; /* elements */
    u32 to;                        /* in a stage */
    u32 is_line;                   /* of the tile's lines, those that exist */
    int bytes;                     /* of a piece across the depth */
    bool whole;

    DEVICE_MEMBER static int own_line() {
        return threadIdx.x / OF_LINE;
    }
    DEVICE_MEMBER static int own_piece() {
        return threadIdx.x % OF_LINE;
    }
    DEVICE_MEMBER const u16 *line_at(int n) const {
        return GATHER && !ACROSS ? from[n] : from[0] + n * next_line;
    }
    /* `left` steps of the depth are left; those of `first` on are this stage's. */
    DEVICE_MEMBER void copy(const mm_product &p, const mm_view &v, u32 stage, mm_size first, mm_size left) {
        const int rest = left < DEPTH ? (int)left : DEPTH, own = rest - 8 * own_piece();
        const int size = ACROSS ? bytes : own >= 8 ? 16 : own > 0 ? 2 * own : 0;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const int line = own_line() + n * LINES;
            if (ALL % LINES != 0 && line >= ALL) break;
            const bool is_there = ACROSS ? line < rest : is_line >> n & 1;
            const u32 at = stage + to + n * LINES * 2 * pitch_of(ACROSS ? WIDTH : DEPTH);
            const u16 *source = line_at(n);
            if (ACROSS && p.run) source = from[0] + mm_step(&p, &v, first + line, next_line / LINES);
            copy_part(at, source, is_there ? size : 0, v);
        }
        for (int n = 0; n < (int)(sizeof from / sizeof *from) && !(ACROSS && p.run); n++) from[n] += next_stage;
    }
    DEVICE_MEMBER void copy_part(u32 at, const u16 *source, int size, const mm_view &v) const {
        if (whole) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                "l"(size ? source : (const u16 *)v.data),
                         "r"(size)
                         : "memory");
            return;
        }
        copy_bytes(at, source, size, v.ones);
    }
};

typedef tile_loader<A_FLIPPED, ROWS> tile_loader_a;
typedef tile_loader<!B_FLIPPED, COLUMNS> tile_loader_b;

constexpr __device__ int bytes_of_piece(mm_size count) {
    return count >= 8 ? 16 : count > 0 ? 2 * (int)count : 0;
}

DEVICE tile_loader_a begin_a(const mm_product &p, const place &at) {
    const mm_view &v = p.a;
    const int line = tile_loader_a::own_line(), piece = tile_loader_a::own_piece();
    const u16 *data = (const u16 *)v.data + at.s.a;
    tile_loader_a c = {};
    c.whole = is_whole(v);
#if A_FLIPPED
    const mm_size i = at.row + 8 * piece;
    c.from[0] = data + at.s.first + i + (p.run ? 0 : (at.s.step + line) * v.column);
    c.next_line = tile_loader_a::LINES * v.column;
    c.next_stage = DEPTH * v.column;
    c.to = piece_at<ROWS>(0, line, piece);
    c.bytes = bytes_of_piece(at.s.rows - i);
#else
    const u16 *step = data + at.s.step + 8 * piece;
    c.from[0] = step + (at.s.first + at.row + line) * v.row;
    c.next_line = tile_loader_a::LINES * v.row;
    c.next_stage = DEPTH;
    c.to = piece_at<DEPTH>(0, line, piece);
    for (int n = 0; n < tile_loader_a::PIECES; n++) {
        const mm_size row = row_of_a(p, at, at.row + line + n * tile_loader_a::LINES);
        if (row >= 0) c.is_line |= 1u << n;
#if GATHER
        c.from[n] = step + row * v.row;
#endif
    }
#endif
    return c;
}

DEVICE tile_loader_b begin_b(const mm_product &p, const place &at) {
    const mm_view &v = p.b;
    const int line = tile_loader_b::own_line(), piece = tile_loader_b::own_piece();
    const u16 *data = (const u16 *)v.data + at.s.b;
    mm_size column;
    tile_loader_b c = {};
    c.whole = is_whole(v);
#if B_FLIPPED
    columns_from(p, at, line, &column);
    const u16 *step = data + at.s.step + 8 * piece;
    c.from[0] = step + column * v.column;
    c.next_line = (p.gated && !p.interleaved ? tile_loader_b::LINES / 2 : tile_loader_b::LINES) * v.column;
    c.next_stage = DEPTH;
    c.to = piece_at<DEPTH>(0, line, piece);
    for (int n = 0; n < tile_loader_b::PIECES; n++) {
        if (columns_from(p, at, line + n * tile_loader_b::LINES, &column) > 0) c.is_line |= 1u << n;
#if GATHER
        c.from[n] = step + column * v.column;
#endif
    }
#else
    c.bytes = bytes_of_piece(columns_from(p, at, 8 * piece, &column));
    c.whole = c.whole && !(p.gated && !p.interleaved && p.columns % 8);
    c.from[0] = data + column + (p.run ? 0 : (at.s.step + line) * v.row);
    c.next_line = tile_loader_b::LINES * v.row;
    c.next_stage = DEPTH * v.row;
    c.to = piece_at<COLUMNS>(0, line, piece);
#endif
    return c;
}

/* ---- Fragments --------------------------------------------------------------------------------------- */

enum { OWN_ROWS = ROWS / WARPS_Y, OWN_COLUMNS = COLUMNS / WARPS_X };
typedef float warp_sums[OWN_ROWS / 16][OWN_COLUMNS / 8][4];

/* Rows row … row + 16 of a, steps 16 k … */
DEVICE void take_a(u32 (&x)[4], u32 tile, int row, int k) {
#if A_FLIPPED
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(x, piece_at<ROWS>(tile, 16 * k + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
#else
    load_left<DEPTH>(x, tile, row, k);
#endif
}
/* Columns column … column + 16 of b. */
DEVICE void take_b(u32 (&x)[4], u32 tile, int column, int k) {
#if B_FLIPPED
    load_right<DEPTH>(x, tile, column, k);
#else
    load_right_trans<COLUMNS>(x, tile, 16 * k, column / 16);
#endif
}

DEVICE void multiply_stage(u32 stage, int row, int column, warp_sums &sums) {
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        u32 a[OWN_ROWS / 16][4], b[OWN_COLUMNS / 16][4];
#pragma unroll
        for (int y = 0; y < OWN_ROWS / 16; y++) take_a(a[y], stage, row + 16 * y, k);
#pragma unroll
        for (int x = 0; x < OWN_COLUMNS / 16; x++) take_b(b[x], stage + A_BYTES, column + 16 * x, k);
#pragma unroll
        for (int y = 0; y < OWN_ROWS / 16; y++)
#pragma unroll
            for (int x = 0; x < OWN_COLUMNS / 8; x++) mma(sums[y][x], a[y], b[x / 2][x % 2 * 2],
                b[x / 2][x % 2 * 2 + 1]);
    }
}

/* ---- Results ----------------------------------------------------------------------------------------- */

/* Two neighbours of a row of a plain product. */
DEVICE void finish_pair(const mm_product &p, const place &at, mm_size i, mm_size j, float x, float y) {
    if (j < p.columns) finish(p, at.s, i, j, x, 0);
    if (j + 1 < p.columns) finish(p, at.s, i, j + 1, y, 0);
}

DEVICE void write_row(const mm_product &p, const place &at, mm_size i, int column, const warp_sums &sums, int y,
    int half) {
    const int own = threadIdx.x % 4 * 2;
#pragma unroll
    for (int x = 0; x < OWN_COLUMNS / 8; x++) {
        const float first = sums[y][x][2 * half], second = sums[y][x][2 * half + 1];
        const int c = column + 8 * x + own;
        if (!p.gated) {
            finish_pair(p, at, i, at.column + c, first, second);
        } else if (p.interleaved) {
            if (at.column + c / 2 < p.columns) finish(p, at.s, i, at.column + c / 2, first, second);
        } else if (x % 2 == 0) {
            const mm_size j = at.column + c / 16 * 8 + own;
            if (j < p.columns) finish(p, at.s, i, j, first, sums[y][x + 1][2 * half]);
            if (j + 1 < p.columns) finish(p, at.s, i, j + 1, second, sums[y][x + 1][2 * half + 1]);
        }
    }
}

/* Two large blocks share a processor, if their registers let them. */
extern "C" __global__ void __launch_bounds__(THREADS, 2) product(const __grid_constant__ arguments a) {
    extern __shared__ __align__(128) char memory[];
    const mm_product &p = a.p;
    const u32 stages = shared_address(memory);
    const int warp = threadIdx.x / 32, row = warp / WARPS_X * OWN_ROWS, column = warp % WARPS_X * OWN_COLUMNS;
    place at;
    if (!find_place(p, a.tiles, &at)) return;
    tile_loader_a of_a = begin_a(p, at);
    tile_loader_b of_b = begin_b(p, at);
    const mm_size depth = at.s.idle ? 0 : at.s.depth;
    const int steps = (int)tiles_of(depth, DEPTH);
    warp_sums sums = {};
    const auto copy = [&](int n, int to) {
        of_a.copy(p, p.a, stages + to * STAGE_BYTES, at.s.step + (mm_size)n * DEPTH, depth - (mm_size)n * DEPTH);
        of_b.copy(p, p.b, stages + to * STAGE_BYTES + A_BYTES, at.s.step + (mm_size)n * DEPTH,
            depth - (mm_size)n * DEPTH);
    };
#pragma unroll
    for (int n = 0; n < STAGES - 1; n++) {
        if (n < steps) copy(n, n);
        cp_async_commit();
    }
    int stage = 0, free = STAGES - 1;
    for (int n = 0; n < steps; n++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (n + STAGES - 1 < steps) copy(n + STAGES - 1, free);
        cp_async_commit();
        multiply_stage(stages + stage * STAGE_BYTES, row, column, sums);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }
#pragma unroll
    for (int y = 0; y < OWN_ROWS / 16; y++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const mm_size i = at.row + row + 16 * y + 8 * half + threadIdx.x % 32 / 4;
            if (i < at.s.rows) write_row(p, at, i, column, sums, y, half);
        }
}
