/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_rms_norm and its gradients: a warp takes a group of a row, or of BLOCK_ROWS rows where gradients of the weight
 * are summed, which meet in `sums` and are added up in order of blocks: bits are the same each time.
 */
#include "kernels/cuda/element.cuh"
#include "operations/norm/gated_rms_norm/problem.cuh"

#define THREADS 128

struct arguments {
    norm_problem p;
    float *sums; /* [blocks][width] */
};

DEVICE float load(const norm_problem &p, const norm_rows &rows, i64 row, i64 d) {
    return widen(((const element *)rows.data)[norm_at(&p, &rows, row) + d]);
}
DEVICE void store(const norm_problem &p, const norm_rows &rows, i64 row, i64 d, float value) {
    ((element *)rows.data)[norm_at(&p, &rows, row) + d] = narrow(value);
}
DEVICE float weight(const norm_problem &p, i64 d) {
    return WEIGHT ? widen(((const element *)p.weight)[d]) : 1;
}

/* Gate, what is normed, and the slope of act. */
struct parts {
    float x, a, u, slope;
};

DEVICE parts parts_of(const norm_problem &p, i64 row, i64 d) {
    parts e = {load(p, p.x, row, d), 1, 0, 0};
    if (GATE) {
        const float z = load(p, p.gate, row, d), power = power_of_2(-z * LOG2_E);
        const float s = 1 / (1 + power);
        e.a = SILU ? z / (1 + power) : s;
        e.slope = SILU ? s * (1 + z * (1 - s)) : s * (1 - s);
    }
    e.u = NORM_FIRST ? e.x : e.x * e.a;
    return e;
}

DEVICE float scale_of(const norm_problem &p, float sum) {
    return 1 / sqrtf(sum / p.group + p.eps);
}

/* The group of this warp and what stands before it: rows, or blocks of rows. */
struct place {
    i64 item, first;
    int lane;
};
DEVICE place place_of(const norm_problem &p) {
    const i64 groups = p.width / p.group, n = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    return {n / groups, n % groups * p.group, (int)threadIdx.x % 32};
}

extern "C" __global__ void __launch_bounds__(THREADS) forward(const arguments a) {
    const norm_problem &p = a.p;
    const place at = place_of(p);
    if (at.item >= p.rows) return;
    float sum = 0;
    for (i64 d = at.first + at.lane; d < at.first + p.group; d += 32) {
        const parts e = parts_of(p, at.item, d);
        sum = fmaf(e.u, e.u, sum);
    }
    const float scale = scale_of(p, sum_of_lanes(sum, 32));
    for (i64 d = at.first + at.lane; d < at.first + p.group; d += 32) {
        const parts e = parts_of(p, at.item, d);
        store(p, p.y, at.item, d, e.u * scale * weight(p, d) * (NORM_FIRST ? e.a : 1));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const arguments a) {
    const norm_problem &p = a.p;
    const place at = place_of(p);
    const i64 begin = at.item * BLOCK_ROWS, last = at.first + p.group;
    if (begin >= p.rows) return;
    float *sums = a.sums + at.item * p.width;
    for (i64 d = at.first + at.lane; d < last; d += 32) sums[d] = 0;
    for (i64 row = begin; row < begin + BLOCK_ROWS && row < p.rows; row++) {
        float squares = 0, products = 0;
        for (i64 d = at.first + at.lane; d < last; d += 32) {
            const parts e = parts_of(p, row, d);
            const float delta = load(p, p.y, row, d) * weight(p, d) * (NORM_FIRST ? e.a : 1);
            squares = fmaf(e.u, e.u, squares);
            products = fmaf(delta, e.u, products);
        }
        const float scale = scale_of(p, sum_of_lanes(squares, 32));
        const float mean = scale * sum_of_lanes(products, 32) / p.group;
        for (i64 d = at.first + at.lane; d < last; d += 32) {
            const parts e = parts_of(p, row, d);
            const float dy = load(p, p.y, row, d), normed = e.u * scale, w = weight(p, d);
            const float d_u = scale * (dy * w * (NORM_FIRST ? e.a : 1) - normed * mean);
            sums[d] += dy * normed * (NORM_FIRST ? e.a : 1);
            if (p.d_x.data) store(p, p.d_x, row, d, NORM_FIRST ? d_u : d_u * e.a);
            if (p.d_gate.data)
                store(p, p.d_gate, row, d, e.slope * (NORM_FIRST ? dy * w * normed : d_u * e.x));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) add_sums(const arguments a) {
    const norm_problem &p = a.p;
    const i64 d = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (d >= p.width) return;
    const i64 blocks = (p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    ((element *)p.d_weight)[d] = narrow(sum_in_order(a.sums + d, blocks, p.width));
}
