/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backwards through gate and norm of state_space_v2, in vectors: rows of y become their cotangents where they lie. With
 * u what is normed, s its scale and δ the cotangent of norm(u),
 *
 *     d_u = s (δ − norm(u) · mean(δ · norm(u)))
 *
 * A row is read into floats u and δ, sums are taken there, and it is read again to be written. Gradients of the weight
 * are summed over blocks of ROWS rows, then over blocks in order: bits do not depend on threads.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/state_space/state_space_v2/gate.h"

enum { ROWS = 64 };

typedef struct row {
    float *weights, *values, *deltas; /* u, then norm(u); δ, then d_u */
    float *sums;                      /* gradients of the weight */
} row;

/* An element of a row and its gate. */
typedef struct parts {
    vf y, z, s, gate, dy; /* s: logistic function of z */
} parts;

INLINE parts parts_at(const ssd_problem *p, int64_t n, int64_t h, int64_t i) {
    const int64_t left = p->recurrence.value_size - i;
    parts e = {.y = v_zero(), .z = v_zero(), .s = v_zero(), .gate = v_set1(1.0f)};
    e.dy = take(&p->result, ssd_at(p, &p->result, n, h) + i, left);
    if (p->has_norm || p->d_gate.present) e.y = take(&p->y, ssd_at(p, &p->y, n, h) + i, left);
    if (!p->has_gate) return e;
    e.z = take(&p->gate, ssd_at(p, &p->gate, n, h) + i, left);
    e.s = v_sigmoid(e.z);
    e.gate = v_silu(e.z);
    return e;
}

/* `through` is the cotangent of the gate's value. */
INLINE void give_gate(const ssd_problem *p, int64_t n, int64_t h, int64_t i, const parts *e,
                      vf through) {
    if (p->d_gate.present)
        give(&p->d_gate, ssd_at(p, &p->d_gate, n, h) + i, v_mul(v_silu_slope(e->z, e->s), through),
             p->recurrence.value_size - i);
}

static void gate_row(const ssd_problem *p, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++)
        for (int64_t i = 0; i < size; i += VL) {
            const parts e = parts_at(p, n, h, i);
            give_gate(p, n, h, i, &e, v_mul(e.dy, e.y));
            give(&p->y, ssd_at(p, &p->y, n, h) + i, v_mul(e.dy, e.gate), size - i);
        }
}

/* Vectors behind the end of a head are written over by the next one. */
INLINE void read_row(const ssd_problem *p, const bool first, const row *r, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++)
        for (int64_t i = 0; i < size; i += VL) {
            const parts e = parts_at(p, n, h, i);
            v_store(r->values + h * size + i, first ? e.y : v_mul(e.y, e.gate));
            v_store(r->deltas + h * size + i, first ? v_mul(e.dy, e.gate) : e.dy);
        }
}

static void norm_groups(const ssd_problem *p, const row *r) {
    for (int64_t g = 0; g < ssd_width(p); g += p->group) {
        const int64_t end = g + p->group;
        vf squares = v_zero(), products = v_zero();
        for (int64_t d = g; d < end; d += VL) {
            const int64_t left = ejki_min(end - d, VL);
            const vf u = v_load_first(r->values + d, left), w = v_load_first(r->weights + d, left);
            const vf delta = v_mul(v_load_first(r->deltas + d, left), w);
            squares = v_fma(u, u, squares);
            products = v_fma(delta, u, products);
        }
        const float scale = scale_of(p, v_sum(squares));
        const vf mean = v_set1(scale * v_sum(products) / (float)p->group);
        for (int64_t d = g; d < end; d += VL) {
            const int64_t left = ejki_min(end - d, VL);
            const vf normed = v_mul(v_load_first(r->values + d, left), v_set1(scale));
            const vf dy = v_load_first(r->deltas + d, left), w = v_load_first(r->weights + d, left);
            const vf sum = v_fma(dy, normed, v_load_first(r->sums + d, left));
            const vf d_u = v_mul(v_set1(scale), v_sub(v_mul(dy, w), v_mul(normed, mean)));
            v_store_first(r->sums + d, sum, left);
            v_store_first(r->values + d, normed, left);
            v_store_first(r->deltas + d, d_u, left);
        }
    }
}

INLINE void write_row(const ssd_problem *p, const bool first, const row *r, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++)
        for (int64_t i = 0; i < size; i += VL) {
            const int64_t at = h * size + i;
            const parts e = parts_at(p, n, h, i);
            const vf d_u = v_load(r->deltas + at), normed = v_load(r->values + at);
            const vf through =
                first ? v_mul(v_mul(e.dy, v_load(r->weights + at)), normed) : v_mul(d_u, e.y);
            give_gate(p, n, h, i, &e, through);
            give(&p->y, ssd_at(p, &p->y, n, h) + i, first ? d_u : v_mul(d_u, e.gate), size - i);
        }
}

SSD_ONE_ROW(d_gate)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t block_count(const ssd_problem *p) {
    return ejki_cdiv(row_count(p), ROWS);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ssd_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, block_count(p)));
    launch->workspace_bytes =
        (size_t)((3 * launch->workers + block_count(p)) * row_room(p)) * sizeof(float);
    return EJK_OK;
}

static float *sums_of(const ejk_run *run) {
    return (float *)run->workspace + 3 * run->workers * row_room(run->problem);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ssd_problem *p = run->problem;
    const int64_t room = row_room(p), rows = row_count(p), blocks = block_count(p);
    float *memory = (float *)run->workspace + index * 3 * room;
    row r = {.weights = memory, .values = memory + room, .deltas = memory + 2 * room};
    take_weights(p, r.weights);
    for (int64_t b = blocks * index / run->workers; b < blocks * (index + 1) / run->workers; b++) {
        r.sums = sums_of(run) + b * room;
        memset(r.sums, 0, (size_t)room * sizeof *r.sums);
        for (int64_t n = b * ROWS; n < ejki_min((b + 1) * ROWS, rows); n++) one_row(p, &r, n);
    }
}

static void add_blocks(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    const int64_t width = ssd_width(p);
    for (int64_t d = 0; d < width; d += VL) {
        vf sum = v_zero();
        for (int64_t b = 0; b < block_count(p); b++)
            sum = v_add(sum, v_load(sums_of(run) + b * row_room(p) + d));
        give(&p->d_weight, d, sum, width - d);
    }
}

static ejk_status run(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (p->d_weight.present) add_blocks(run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
