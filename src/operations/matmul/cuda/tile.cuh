/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels of products share: which tile of which group a block has, elements of any type, and what becomes of a
 * sum. Blocks of a group follow each other in bands of eight tiles of rows, so that those that run at once share
 * columns of b and rows of a in the second-level cache. Constants: ROWS and COLUMNS of a tile, those of b being
 * counted.
 *
 * Nobody has looked at sizes, offsets and indices before: groups beyond the rows are empty, rows that indices name
 * outside count as zeros.
 */
#ifndef EJKI_MATMUL_CUDA_TILE_CUH
#define EJKI_MATMUL_CUDA_TILE_CUH

#include "kernels/cuda/element.cuh"
#include "operations/matmul/shared/product.cuh"

/* ---- Elements --------------------------------------------------------------------------------------- */

DEVICE float load(const mm_view &v, mm_size index) {
    return v.ones ? 1 : load_float(v.dtype, v.data, index);
}

/* ---- Tiles ------------------------------------------------------------------------------------------ */

/* A tile of a segment: rows from `row` on of the segment, columns from `column` on of out. */
struct place {
    mm_segment s;
    mm_size row, column;
};

DEVICE mm_size tiles_of(mm_size count, int size) {
    return (count + size - 1) / size;
}
/* Columns of out that a tile has. */
DEVICE int out_columns(const mm_product &p) {
    return p.gated ? COLUMNS / 2 : COLUMNS;
}

/* Rows of a group, at most all. */
DEVICE mm_size size_of(const mm_product &p, mm_size group, mm_size all) {
    const mm_size own = mm_number(&p.sizes, group);
    return own < 0 ? 0 : mm_least(own, all);
}

/* Sums of the lanes up to each. */
DEVICE mm_size sum_up_to(mm_size x) {
    for (int n = 1; n < 32; n *= 2) {
        const mm_size other = __shfl_up_sync(~0u, x, n);
        if (threadIdx.x % 32 >= n) x += other;
    }
    return x;
}

DEVICE void hold(const mm_product &p, mm_size group, mm_segment *s) {
    s->group = group;
    s->held = group - (p.offset.present ? mm_number(&p.offset, 0) : 0);
    s->idle = group == p.groups || s->held < 0 || s->held >= p.held;
    s->b = s->idle ? 0 : s->held * p.b.group;
}

/*
 * The tile of rows with this number among those of all groups, at->row being its number in the group; each warp looks
 * by itself, 32 groups at a time. `count` says how many tiles so many rows of a group are. If there is none such *all
 * is how many there are.
 */
template <class COUNT>
DEVICE bool find_row_tile(const mm_product &p, mm_size tile, COUNT count, place *at, mm_size *all) {
    mm_size rows = 0, tiles = 0; /* of the groups before */
    for (mm_size first = 0; first <= p.groups; first += 32) {
        const mm_size group = first + threadIdx.x % 32;
        const mm_size own = group < p.groups ? size_of(p, group, p.rows) : group == p.groups ? p.rows : 0;
        const mm_size end = mm_least(rows + sum_up_to(own), p.rows);
        mm_size begin = __shfl_up_sync(~0u, end, 1);
        if (threadIdx.x % 32 == 0) begin = rows;
        const mm_size up_to = tiles + sum_up_to(count(end - begin));
        const u32 found = __ballot_sync(~0u, tile < up_to);
        if (found) {
            const int lane = __ffs(found) - 1;
            at->s.first = __shfl_sync(~0u, begin, lane);
            at->s.rows = __shfl_sync(~0u, end, lane) - at->s.first;
            at->row = tile - (__shfl_sync(~0u, up_to, lane) - count(at->s.rows));
            hold(p, first + lane, &at->s);
            return true;
        }
        rows = __shfl_sync(~0u, end, 31);
        tiles = __shfl_sync(~0u, up_to, 31);
    }
    *all = tiles;
    return false;
}

DEVICE bool find_rows(const mm_product &p, mm_size tile, place *at) {
    mm_size all;
    if (!find_row_tile(p, tile, [](mm_size rows) { return tiles_of(rows, ROWS); }, at, &all)) return false;
    at->row *= ROWS;
    return true;
}

/* The depth of the group whose place in out is `held`. */
DEVICE void find_depth(const mm_product &p, mm_size held, mm_segment *s) {
    const mm_size group = held + (p.offset.present ? mm_number(&p.offset, 0) : 0);
    const bool is_there = group >= 0 && group < p.groups;
    mm_size sum = 0;
    for (mm_size first = 0; is_there && first < group; first += 32) {
        const mm_size own = first + threadIdx.x % 32;
        const mm_size size = own < group ? size_of(p, own, p.depth) : 0;
        sum = mm_least(sum + __shfl_sync(~0u, sum_up_to(size), 31), p.depth);
    }
    s->group = group;
    s->held = held;
    s->step = sum;
    s->depth = is_there ? mm_least(size_of(p, group, p.depth), p.depth - sum) : 0;
    s->out = held * p.out.group;
    s->add = held * p.add.group;
}

DEVICE void find_even(const mm_product &p, mm_size group, mm_segment *s) {
    s->group = s->held = group;
    s->a = p.run ? 0 : group * p.a.group;
    s->b = p.run ? 0 : group * p.b.group;
    s->out = group * p.out.group;
    s->add = group * p.add.group;
}

/* False if the block has nothing to do. `tiles` of rows are those of a group, or of MM_ROWS of all together at most. */
DEVICE bool find_place(const mm_product &p, mm_size tiles, place *at) {
    const mm_size columns = tiles_of(p.columns, out_columns(p)), each = tiles * columns;
    const mm_size group = blockIdx.x / each, n = blockIdx.x % each, band = n / (8 * columns);
    const mm_size height = mm_least(8, tiles - 8 * band), own = n - 8 * band * columns;
    const mm_size tile = 8 * band + own % height;
    *at = place{};
    at->column = own / height * out_columns(p);
    at->row = tile * ROWS;
    at->s.rows = p.rows;
    at->s.depth = p.depth;
    if (p.split == MM_ROWS) return find_rows(p, tile, at);
    if (p.split == MM_DEPTH)
        find_depth(p, group, &at->s);
    else
        find_even(p, group, &at->s);
    return true;
}

/* The row of a that row i of a segment is; below 0: none. */
DEVICE mm_size row_of_a(const mm_product &p, const place &at, mm_size i) {
    if (i >= at.s.rows) return -1;
    if (!p.gather.present) return at.s.first + i;
    const mm_size row = mm_number(&p.gather, at.s.first + i);
    return row < p.a_rows ? row : -1;
}

/* ---- Results ---------------------------------------------------------------------------------------- */

/*
 * x / (1 + e^-y), to which approximations add no more than the rounding of y does. A division that rounds has a branch,
 * and code of results is long as it is.
 */
DEVICE float times_sigmoid(float x, float y) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
    return x * inverse;
}
DEVICE float silu(float x, float slope) {
    return times_sigmoid(x, slope * x);
}
DEVICE float gelu(float x) {
    return 0.5f * x * erfcf(-0.70710678f * x);
}
/* (1 + tanh u) / 2 is 1 / (1 + e^(-2u)), where nothing cancels. */
DEVICE float gelu_tanh(float x) {
    return times_sigmoid(x, 2 * 0.7978845608028654f * (x + 0.044715f * x * x * x));
}

DEVICE float activate(int activation, float limit, float gate, float value) {
    switch (activation) {
    case MM_relu: return gate < 0 ? 0 : gate; /* NaN stays */
    case MM_silu: return silu(gate, 1);
    case MM_gelu: return gelu(gate);
    case MM_gelu_tanh: return gelu_tanh(gate);
    case MM_swiglu: return silu(gate, 1) * value;
    case MM_geglu: return gelu(gate) * value;
    case MM_geglu_tanh: return gelu_tanh(gate) * value;
    case MM_swiglu_clamped:
        gate = gate > limit ? limit : gate;
        value = value > limit ? limit : value < -limit ? -limit : value;
        return silu(gate, 1.702f) * (value + 1);
    default: return gate;
    }
}

/* Columns of b of column j of out: of its gate, and of its value. */
DEVICE mm_size gate_column(const mm_product &p, mm_size j) {
    return p.gated && p.interleaved ? 2 * j : j;
}
DEVICE mm_size value_column(const mm_product &p, mm_size j) {
    return p.interleaved ? 2 * j + 1 : p.columns + j;
}

DEVICE float with_bias(const mm_product &p, const mm_segment &s, float sum, mm_size column) {
    if (p.alpha != 1) sum *= (float)p.alpha;
    return p.bias.present ? sum + load(p.bias, s.held * p.bias.group + column * p.bias.column) : sum;
}

/* Element (i, j) of a segment before `add`, from the sums of its gate and its value. */
DEVICE float element_of_sums(const mm_product &p, const mm_segment &s, mm_size i, mm_size j, float gate,
                             float value) {
    if (s.idle || mm_is_empty(&p, &s)) return 0;
    gate = with_bias(p, s, gate, gate_column(p, j));
    if (p.gated) value = with_bias(p, s, value, value_column(p, j));
    gate = activate(p.activation, (float)p.limit, gate, value);
    if (p.split == MM_DEPTH && p.scale.present) gate *= load(p.scale, mm_scale_at(&p, s.held, i, j));
    return gate;
}

/* Puts it where it belongs. A function of its own: inlined for each sum it took most of the compile time. */
static __device__ __noinline__ void finish(const mm_product &p, const mm_segment &s, mm_size i, mm_size j,
    float gate, float value) {
    float result = element_of_sums(p, s, i, j, gate, value);
    const mm_size row = s.first + i;
    if (p.weight_type && !s.idle) result *= load_float(p.weight_type, p.weight, row);
    if (p.add.present) result += load(p.add, s.add + row * p.add.row + j * p.add.column);
    store_float(p.out.dtype, p.out.data, s.out + row * p.out.row + j * p.out.column, result);
}

#endif
