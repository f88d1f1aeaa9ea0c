/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of gated_rms_norm in vectors. With u what is normed, s its scale and δ the cotangent of norm(u):
 *
 *     d_u = s (δ − norm(u) · mean(δ · norm(u)))
 *
 * Groups are taken in batches, as forward. The first pass over a batch sums u² and δ·u and keeps logistic functions of
 * the gate; the second writes. Gradients of the weight are summed over blocks of ROWS rows, then over blocks in order:
 * bits do not depend on threads.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/row.h"

enum { ROWS = 64 };

typedef struct group {
    const void *x, *gate, *cotangent;
    const void *next_x, *next_gate, *next_cotangent;
    void *d_x, *d_gate;
    const float *weights;
    float *logistics, *sums; /* sums: gradients of the weight */
} group;

typedef struct batch {
    const norm_problem *p;
    prefetching how;
    int64_t count;
    group groups[MOST_GROUPS];
    float scales[MOST_GROUPS], means[MOST_GROUPS];
} batch;

/* Everything of an element, at VL components. */
typedef struct parts {
    vf x, z, s, a, dy, w, u, delta;
} parts;

INLINE parts parts_of(const ejk_dtype dtype, const gate_kind gate, const bool first,
                      const bool again, const group *g, const lanes l) {
    const int64_t at = floats_at(l);
    parts e = {.x = lanes_of(dtype, g->x, l),
               .dy = lanes_of(dtype, g->cotangent, l),
               .w = l.half == 2 ? v_load_first(g->weights + at, l.left) : v_load(g->weights + at),
               .z = v_zero(),
               .s = v_set1(1.0f),
               .a = v_set1(1.0f)};
    if (gate != GATE_NONE) {
        e.z = lanes_of(dtype, g->gate, l);
        e.s = again ? v_load(g->logistics + at) : v_sigmoid_of(dtype, e.z);
        if (!again) v_store(g->logistics + at, e.s);
        e.a = gate == GATE_SILU ? v_mul(e.z, e.s) : e.s;
    }
    e.u = first ? e.x : v_mul(e.x, e.a);
    e.delta = v_mul(e.dy, e.w);
    if (first && gate != GATE_NONE) e.delta = v_mul(e.delta, e.a);
    return e;
}

/* ---- Sums -------------------------------------------------------------------------------------------- */

INLINE void add_parts(const ejk_dtype dtype, const gate_kind gate, const bool first, const group *g,
                      const lanes l, vf *squares, vf *products) {
    const parts e = parts_of(dtype, gate, first, false, g, l);
    *squares = v_fma(e.u, e.u, *squares);
    *products = v_fma(e.delta, e.u, *products);
}

INLINE void take_sums(const ejk_dtype dtype, const gate_kind gate, const bool first, batch *b) {
    vf all_squares[MOST_GROUPS], all_products[MOST_GROUPS];
    for (int64_t k = 0; k < b->count; k++) {
        const group *g = &b->groups[k];
        const int64_t size = b->p->group;
        vf squares[2] = {v_zero(), v_zero()}, products[2] = {v_zero(), v_zero()};
        int64_t d = 0;
        for (; d + 2 * VL <= size; d += 2 * VL) {
            prefetch(dtype, b->how, g->next_x, d);
            prefetch(dtype, b->how, g->next_cotangent, d);
            if (gate != GATE_NONE) prefetch(dtype, b->how, g->next_gate, d);
            EJKI_UNROLL for (int half = 0; half < 2; half++)
                add_parts(dtype, gate, first, g, (lanes){.d = d, .half = half}, &squares[half],
                          &products[half]);
        }
        for (; d < size; d += VL)
            add_parts(dtype, gate, first, g,
                      (lanes){.d = d, .half = 2, .left = ejki_min(size - d, VL)}, &squares[0],
                      &products[0]);
        all_squares[k] = v_add(squares[0], squares[1]);
        all_products[k] = v_add(products[0], products[1]);
    }
    scales_of(b->p, all_squares, b->count, b->scales);
    sums_of_batch(all_products, b->count, b->means);
    for (int64_t k = 0; k < MOST_GROUPS; k++)
        b->means[k] = b->scales[k] * b->means[k] / (float)b->p->group;
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

typedef struct gradients {
    vf x, gate;
} gradients;

INLINE gradients gradients_of(const ejk_dtype dtype, const gate_kind gate, const bool first,
                              const group *g, vf scale, vf mean, const lanes l) {
    const parts e = parts_of(dtype, gate, first, true, g, l);
    const vf one = v_set1(1.0f), normed = v_mul(e.u, scale);
    const vf d_u = v_mul(scale, v_sub(e.delta, v_mul(normed, mean)));
    float *sums = g->sums + floats_at(l);
    vf term = v_mul(e.dy, normed);
    gradients d = {.x = first || gate == GATE_NONE ? d_u : v_mul(d_u, e.a)};
    if (gate != GATE_NONE) {
        const vf slope = gate == GATE_SILU ? v_silu_slope(e.z, e.s) : v_mul(e.s, v_sub(one, e.s));
        d.gate = v_mul(slope, first ? v_mul(term, e.w) : v_mul(d_u, e.x));
        if (first) term = v_mul(term, e.a);
    }
    if (l.half == 2)
        v_store_first(sums, v_add(v_load_first(sums, l.left), term), l.left);
    else
        v_store(sums, v_add(v_load(sums), term));
    return d;
}

INLINE void write_group(const ejk_dtype dtype, const gate_kind gate, const bool first,
                        const bool stream, const group *g, vf scale, vf mean, int64_t size) {
    int64_t d = 0;
    for (; d + 2 * VL <= size; d += 2 * VL) {
        const gradients a =
            gradients_of(dtype, gate, first, g, scale, mean, (lanes){.d = d, .half = 0});
        const gradients b =
            gradients_of(dtype, gate, first, g, scale, mean, (lanes){.d = d, .half = 1});
        if (g->d_x) v_narrow_halves(dtype, stream, element_at(dtype, g->d_x, d), a.x, b.x);
        if (gate != GATE_NONE && g->d_gate)
            v_narrow_halves(dtype, stream, element_at(dtype, g->d_gate, d), a.gate, b.gate);
    }
    for (; d < size; d += VL) {
        const lanes l = {.d = d, .half = 2, .left = ejki_min(size - d, VL)};
        const gradients a = gradients_of(dtype, gate, first, g, scale, mean, l);
        if (g->d_x) v_narrow_some(dtype, element_at(dtype, g->d_x, d), a.x, l.left);
        if (gate != GATE_NONE && g->d_gate)
            v_narrow_some(dtype, element_at(dtype, g->d_gate, d), a.gate, l.left);
    }
}

INLINE void gradient_groups(const ejk_dtype dtype, const gate_kind gate, const bool first,
                            const bool stream, const batch *b) {
    for (int64_t k = 0; k < b->count; k++)
        write_group(dtype, gate, first, stream, &b->groups[k], v_set1(b->scales[k]),
                    v_set1(b->means[k]), b->p->group);
}

INLINE void batch_sums(const gate_kind gate, batch *b, const ejk_dtype dtype) {
    if (gate == GATE_NONE || b->p->norm_first)
        take_sums(dtype, gate, true, b);
    else
        take_sums(dtype, gate, false, b);
}

INLINE void batch_gradients(const gate_kind gate, batch *b, const ejk_dtype dtype,
                            const bool stream) {
    if (gate == GATE_NONE || b->p->norm_first)
        gradient_groups(dtype, gate, true, stream, b);
    else
        gradient_groups(dtype, gate, false, stream, b);
}

NORM_BATCHES(batch_sums, batch_gradients)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

/* Floats of a row, and of a worker's weights and logistic functions. */
static int64_t row_room(const norm_problem *p) {
    return ejki_round_up(p->width + VL, LINE / 4);
}
static int64_t own_floats(const norm_problem *p) {
    return row_room(p) + batch_of(p) * room_of(p);
}
static int64_t blocks_of(const norm_problem *p) {
    return ejki_cdiv(p->rows, ROWS);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const norm_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, blocks_of(p)));
    launch->workspace_bytes =
        (size_t)(launch->workers * own_floats(p) + blocks_of(p) * row_room(p)) * sizeof(float);
    return EJK_OK;
}

static float *sums_of(const ejk_run *run) {
    return (float *)run->workspace + run->workers * own_floats(run->problem);
}

static group group_of(const norm_problem *p, const place *at, const place *next,
                      const float *weights, float *sums) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    return (group){.x = group_at(dtype, &p->x, at),
                   .gate = group_at(dtype, &p->gate, at),
                   .cotangent = group_at(dtype, &p->y, at),
                   .next_x = group_at(dtype, &p->x, next),
                   .next_gate = group_at(dtype, &p->gate, next),
                   .next_cotangent = group_at(dtype, &p->y, next),
                   .d_x = p->d_x.data ? group_at(dtype, &p->d_x, at) : NULL,
                   .d_gate = p->d_gate.data ? group_at(dtype, &p->d_gate, at) : NULL,
                   .weights = weights + at->group,
                   .sums = sums + at->group};
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    const int64_t most = batch_of(p);
    const bool stream = norm_streams(p, &p->d_x) && norm_streams(p, &p->d_gate);
    float *weights = (float *)run->workspace + index * own_floats(p);
    float *logistics = weights + row_room(p);
    const int64_t blocks = blocks_of(p), end = blocks * (index + 1) / run->workers;
    batch b = {.p = p, .how = prefetching_of(run->parameters)};
    place at = place_of(p, blocks * index / run->workers * ROWS), next = at;
    if (p->width == 0 || at.row >= p->rows) return;
    for (int64_t i = groups_ahead(p, b.how); i > 0 && next.row < p->rows; i--) next_group(p, &next);
    take_weights(p, weights);
    for (int64_t n = at.row / ROWS; n < end; n++) {
        float *sums = sums_of(run) + n * row_room(p);
        const int64_t last = ejki_min((n + 1) * ROWS, p->rows);
        memset(sums, 0, (size_t)p->width * sizeof(float));
        while (at.row < last) {
            for (b.count = 0; b.count < most && at.row < last; b.count++, next_group(p, &at)) {
                group *g = &b.groups[b.count];
                *g = group_of(p, &at, next.row < p->rows ? &next : &at, weights, sums);
                g->logistics = logistics + b.count * room_of(p);
                if (next.row < p->rows) next_group(p, &next);
            }
            run_batch((ejk_dtype)p->dtype, stream, &b);
        }
    }
    if (stream) v_streamed();
}

/* Sums of blocks: a worker takes some groups. */
static void work_sums(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t groups = p->width / ejki_max(p->group, 1);
    const int64_t first = groups * index / run->workers * p->group;
    const int64_t end = groups * (index + 1) / run->workers * p->group;
    float *all = sums_of(run);
    for (int64_t d = first; d < end; d += VL) {
        const int64_t left = ejki_min(end - d, VL);
        vf sum = v_load_first(all + d, left);
        for (int64_t b = 1; b < blocks_of(p); b++)
            sum = v_add(sum, v_load_first(all + b * row_room(p) + d, left));
        v_store_first(all + d, sum, left);
    }
    for (int64_t d = first; d < end; d += p->group) v_put_in_order(dtype, true, all + d, p->group);
    for (int64_t d = first; d < end; d++) element_store(dtype, p->d_weight, d, all[d]);
}

static ejk_status run(const ejk_run *run) {
    const norm_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (p->d_weight && p->rows == 0)
        memset(p->d_weight, 0, (size_t)(p->width * element_size((ejk_dtype)p->dtype)));
    else if (p->d_weight)
        ejk_parallel_for(run->threads, run->workers, work_sums, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = norm_parameters, .parameter_count = 2,
             .prepare = prepare, .run = run)
