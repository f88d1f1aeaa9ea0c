/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backwards through gate and norm of state_space_v2: rows of y become their cotangents where they lie, by the formulas
 * of gate_vjp_body.h. A block takes a group of ROWS rows, one after the other, each thread the same elements of all: it
 * reads a row for its sums and once more for what is written. Gradients of the weight are summed over a block's rows in
 * memory, and over blocks in order by add_weights(). Element types are known only at run time.
 *
 * Constants: THREADS, ROWS, NORM, FIRST (the norm comes first), GATE.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/state_space_v2/problem.cuh"

#define WARPS (THREADS / 32)

struct arguments {
    ssd_problem p;
    float *sums; /* [blocks of rows][width] */
};

/* An element of a row: y, its gate, that one's slope, and d_out. */
struct parts {
    float y, gate, slope, dy;
};

DEVICE rec_size place_of(const ssd_problem &p, const rec_view &v, rec_size n, rec_size d) {
    const rec_size size = p.recurrence.value_size;
    return ssd_at(&p, &v, n, d / size) + d % size;
}
DEVICE float load(const ssd_problem &p, const rec_view &v, rec_size n, rec_size d) {
    return load_float(v.dtype, v.data, place_of(p, v, n, d));
}
DEVICE void store(const ssd_problem &p, const rec_view &v, rec_size n, rec_size d, float value) {
    if (v.present) store_float(v.dtype, v.data, place_of(p, v, n, d), value);
}
DEVICE float weight_of(const ssd_problem &p, rec_size d) {
    return p.weight.present ? load_float(p.weight.dtype, p.weight.data, d) : 1;
}

DEVICE parts parts_at(const ssd_problem &p, rec_size n, rec_size d) {
    parts e = {0, 1, 0, load(p, p.result, n, d)};
    if (NORM || p.d_gate.present) e.y = load(p, p.y, n, d);
    if (!GATE) return e;
    const float z = load(p, p.gate, n, d), s = 1 / (1 + expf(-z));
    e.gate = z * s;
    e.slope = s * (1 + z * (1 - s));
    return e;
}

/* The sums of two numbers over the block. */
DEVICE float2 sum_of_block(float x, float y) {
    __shared__ float2 part[WARPS];
    x = sum_of_lanes(x, 32), y = sum_of_lanes(y, 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(x, y);
    __syncthreads();
    float2 sum = make_float2(0, 0);
    for (int i = 0; i < WARPS; i++) sum.x += part[i].x, sum.y += part[i].y;
    return sum;
}

/* Elements first … last - 1 of a row with a norm. */
DEVICE void return_norm(const ssd_problem &p, rec_size n, rec_size first, rec_size last, float *sums) {
    float squares = 0, products = 0;
    for (rec_size d = first + threadIdx.x; d < last; d += THREADS) {
        const parts e = parts_at(p, n, d);
        const float u = FIRST ? e.y : e.y * e.gate, delta = (FIRST ? e.dy * e.gate : e.dy) * weight_of(p, d);
        squares = fmaf(u, u, squares);
        products = fmaf(delta, u, products);
    }
    const float2 all = sum_of_block(squares, products);
    const float scale = 1 / sqrtf(all.x / p.group + (float)p.eps), mean = scale * all.y / p.group;
    for (rec_size d = first + threadIdx.x; d < last; d += THREADS) {
        const parts e = parts_at(p, n, d);
        const float normed = (FIRST ? e.y : e.y * e.gate) * scale, dy = FIRST ? e.dy * e.gate : e.dy;
        const float weight = weight_of(p, d), d_u = scale * (dy * weight - normed * mean);
        if (p.d_weight.present) sums[d] = fmaf(dy, normed, sums[d]);
        store(p, p.d_gate, n, d, e.slope * (FIRST ? e.dy * weight * normed : d_u * e.y));
        store(p, p.y, n, d, FIRST ? d_u : d_u * e.gate);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gate_back(const __grid_constant__ arguments a) {
    const ssd_problem &p = a.p;
    const rec_size width = ssd_width(&p), groups = width / p.group, all = p.recurrence.batch * p.recurrence.tokens;
    const rec_size block = blockIdx.x / groups, first = blockIdx.x % groups * p.group, last = first + p.group;
    float *sums = a.sums + block * width;
    for (rec_size d = first + threadIdx.x; p.d_weight.present && d < last; d += THREADS) sums[d] = 0;
    for (rec_size n = block * ROWS; n < (block + 1) * ROWS && n < all; n++) {
        const bool counts = ssd_counts(&p, n);
        if (NORM && counts) {
            return_norm(p, n, first, last, sums);
            continue;
        }
        for (rec_size d = first + threadIdx.x; d < last; d += THREADS) {
            const parts e = counts ? parts_at(p, n, d) : parts{0, 0, 0, 0};
            store(p, p.d_gate, n, d, counts ? e.slope * (e.dy * e.y) : 0);
            if (counts) store(p, p.y, n, d, e.dy * e.gate);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) add_weights(const __grid_constant__ arguments a) {
    const ssd_problem &p = a.p;
    const rec_size width = ssd_width(&p), all = p.recurrence.batch * p.recurrence.tokens;
    const rec_size d = blockIdx.x * (rec_size)THREADS + threadIdx.x;
    float sum = 0;
    if (d >= width) return;
    for (rec_size block = 0; block * ROWS < all; block++) sum += a.sums[block * width + d];
    store_float(p.d_weight.dtype, p.d_weight.data, d, sum);
}
