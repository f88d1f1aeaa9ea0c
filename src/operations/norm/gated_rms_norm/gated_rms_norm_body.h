/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_rms_norm in vectors. A worker takes groups in the order of memory, as many at once as have BATCH components,
 * up to MOST_GROUPS: squares of all are summed, in two or four sums each, the scales are made together, and all are
 * read again from the cache, while lines ahead are prefetched. Where the gate comes first, products are
 * kept as floats. Results of calls larger than a cache go past the caches, which would read their lines first.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/row.h"

typedef struct group {
    const void *x, *gate, *next_x, *next_gate;
    void *out;
    const float *weights;
    float *products;
} group;

typedef struct batch {
    const norm_problem *p;
    prefetching how;
    int64_t count;
    group groups[MOST_GROUPS];
    float scales[MOST_GROUPS];
} batch;

/* In the pass that computes most: prefetches faster than lines come are dropped. Where the gate comes first, that pass
 * has lines of x and the one that writes those of the gate. */
INLINE void prefetch_next(const ejk_dtype dtype, const gate_kind gate, prefetching how,
                          const group *g, int64_t d) {
    prefetch(dtype, how, g->next_x, d);
    if (gate != GATE_NONE) prefetch(dtype, how, g->next_gate, d);
}

/* ---- Squares ----------------------------------------------------------------------------------------- */

/* What is normed, gated if there is a gate; products are kept then. */
INLINE vf normed_of(const ejk_dtype dtype, const gate_kind gate, const group *g, const lanes l) {
    const vf x = lanes_of(dtype, g->x, l);
    if (gate == GATE_NONE) return x;
    const vf product = v_mul(x, gate_value(dtype, gate, lanes_of(dtype, g->gate, l)));
    v_store(g->products + floats_at(l), product);
    return product;
}

INLINE vf squares_of(const ejk_dtype dtype, const gate_kind gate, prefetching how, const group *g,
                     int64_t size) {
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t d = 0;
    for (int64_t k = 0; d + 2 * VL <= size; d += 2 * VL, k ^= 2) {
        if (gate != GATE_NONE) prefetch(dtype, how, g->next_x, d);
        const vf a = normed_of(dtype, gate, g, (lanes){.d = d, .half = 0});
        const vf b = normed_of(dtype, gate, g, (lanes){.d = d, .half = 1});
        sum[0] = v_fma(a, a, sum[0]);
        sum[1] = v_fma(b, b, sum[1]);
        const vf first = sum[0], second = sum[1];
        sum[0] = sum[2];
        sum[1] = sum[3];
        sum[2] = first;
        sum[3] = second;
    }
    for (; d < size; d += VL) {
        const vf u =
            normed_of(dtype, gate, g, (lanes){.d = d, .half = 2, .left = ejki_min(size - d, VL)});
        sum[0] = v_fma(u, u, sum[0]);
    }
    return v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
}

INLINE void take_squares(const ejk_dtype dtype, const gate_kind gate, batch *b) {
    vf sums[MOST_GROUPS];
    for (int64_t k = 0; k < b->count; k++)
        sums[k] = squares_of(dtype, gate, b->how, &b->groups[k], b->p->group);
    scales_of(b->p, sums, b->count, b->scales);
}

/* ---- Results ----------------------------------------------------------------------------------------- */

/* Of what is normed, gated if there is a gate, or of products. */
INLINE vf result_of(const ejk_dtype dtype, const gate_kind gate, const bool products,
                    const group *g, vf scale, const lanes l) {
    const int64_t at = floats_at(l);
    const vf u = products ? v_load(g->products + at) : lanes_of(dtype, g->x, l);
    const vf result = v_mul(v_mul(u, scale), v_load(g->weights + at));
    if (gate == GATE_NONE) return result;
    return v_mul(result, gate_value(dtype, gate, lanes_of(dtype, g->gate, l)));
}

INLINE void write_group(const ejk_dtype dtype, const gate_kind gate, const bool products,
                        const bool stream, prefetching how, const group *g, vf scale,
                        int64_t size) {
    int64_t d = 0;
    for (; d + 2 * VL <= size; d += 2 * VL) {
        if (products)
            prefetch(dtype, how, g->next_gate, d);
        else
            prefetch_next(dtype, gate, how, g, d);
        const vf a = result_of(dtype, gate, products, g, scale, (lanes){.d = d, .half = 0});
        const vf b = result_of(dtype, gate, products, g, scale, (lanes){.d = d, .half = 1});
        v_narrow_halves(dtype, stream, element_at(dtype, g->out, d), a, b);
    }
    for (; d < size; d += VL) {
        const lanes l = {.d = d, .half = 2, .left = ejki_min(size - d, VL)};
        v_narrow_some(dtype, element_at(dtype, g->out, d),
                      result_of(dtype, gate, products, g, scale, l), l.left);
    }
}

INLINE void write_groups(const ejk_dtype dtype, const gate_kind gate, const bool products,
                         const bool stream, const batch *b) {
    for (int64_t k = 0; k < b->count; k++)
        write_group(dtype, gate, products, stream, b->how, &b->groups[k], v_set1(b->scales[k]),
                    b->p->group);
}

INLINE void batch_squares(const gate_kind gate, batch *b, const ejk_dtype dtype) {
    if (gate == GATE_NONE || b->p->norm_first)
        take_squares(dtype, GATE_NONE, b);
    else
        take_squares(dtype, gate, b);
}

INLINE void batch_results(const gate_kind gate, batch *b, const ejk_dtype dtype,
                          const bool stream) {
    if (gate == GATE_NONE || b->p->norm_first)
        write_groups(dtype, gate, false, stream, b);
    else
        write_groups(dtype, GATE_NONE, true, stream, b);
}

NORM_BATCHES(batch_squares, batch_results)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t own_floats(const norm_problem *p) {
    return ejki_round_up(p->width + VL, LINE / 4) + batch_of(p) * room_of(p);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const norm_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, p->rows));
    launch->workspace_bytes = (size_t)(launch->workers * own_floats(p)) * sizeof(float);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const bool stream = norm_streams(p, &p->y);
    const int64_t most = batch_of(p), end = p->rows * (index + 1) / run->workers;
    float *weights = (float *)run->workspace + index * own_floats(p);
    float *products = weights + own_floats(p) - most * room_of(p);
    batch b = {.p = p, .how = prefetching_of(run->parameters)};
    place at = place_of(p, p->rows * index / run->workers), next = at;
    if (p->width == 0 || at.row >= end) return;
    for (int64_t i = groups_ahead(p, b.how); i > 0 && next.row < p->rows; i--) next_group(p, &next);
    take_weights(p, weights);
    while (at.row < end) {
        for (b.count = 0; b.count < most && at.row < end; b.count++, next_group(p, &at)) {
            const place *ahead = next.row < p->rows ? &next : &at;
            b.groups[b.count] = (group){.x = group_at(dtype, &p->x, &at),
                                        .gate = group_at(dtype, &p->gate, &at),
                                        .out = group_at(dtype, &p->y, &at),
                                        .next_x = group_at(dtype, &p->x, ahead),
                                        .next_gate = group_at(dtype, &p->gate, ahead),
                                        .weights = weights + at.group,
                                        .products = products + b.count * room_of(p)};
            if (next.row < p->rows) next_group(p, &next);
        }
        run_batch(dtype, stream, &b);
    }
    if (stream) v_streamed();
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = norm_parameters, .parameter_count = 2,
             .prepare = prepare, .run = run)
