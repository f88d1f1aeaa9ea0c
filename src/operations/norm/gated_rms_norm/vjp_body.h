/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of gated_rms_norm in vectors. With u what is normed, s its scale and δ the cotangent of norm(u):
 *
 *     d_u = s (δ − norm(u) · mean(δ · norm(u)))
 *
 * The first pass over a group sums u² and δ·u and keeps logistic functions of the gate; the second writes. Gradients of
 * the weight are summed over blocks of ROWS rows, then over blocks in order: bits do not depend on threads.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/row.h"

enum { ROWS = 64 };

typedef struct row {
    const void *x, *gate, *cotangent;
    const void *next_x, *next_gate, *next_cotangent;
    void *d_x, *d_gate;
    const float *weights;
    float *logistics, *sums; /* sums: gradients of the weight */
} row;

/* Everything of an element, at VL components. */
typedef struct parts {
    vf x, z, s, a, dy, w, u, delta;
} parts;

INLINE parts parts_of(const ejk_dtype dtype, const norm_problem *p, const bool first,
                      const bool again, const row *r, int64_t d, int64_t left) {
    parts e = {.x = v_widen_some(dtype, element_at(dtype, r->x, d), left),
               .dy = v_widen_some(dtype, element_at(dtype, r->cotangent, d), left),
               .w = v_load_first(r->weights + d, left),
               .z = v_zero(),
               .s = v_set1(1.0f),
               .a = v_set1(1.0f)};
    if (p->has_gate) {
        e.z = v_widen_some(dtype, element_at(dtype, r->gate, d), left);
        e.s = again ? v_load(r->logistics + d) : v_sigmoid(e.z);
        if (!again) v_store(r->logistics + d, e.s);
        e.a = p->silu ? v_mul(e.z, e.s) : e.s;
    }
    e.u = first ? e.x : v_mul(e.x, e.a);
    e.delta = v_mul(e.dy, e.w);
    if (first) e.delta = v_mul(e.delta, e.a);
    return e;
}

INLINE void write_at(const ejk_dtype dtype, const norm_problem *p, const bool first, const row *r,
                     vf scale, vf mean, int64_t d, int64_t left) {
    const parts e = parts_of(dtype, p, first, true, r, d, left);
    const vf one = v_set1(1.0f), normed = v_mul(e.u, scale);
    const vf d_u = v_mul(scale, v_sub(e.delta, v_mul(normed, mean)));
    vf term = v_mul(e.dy, normed);
    if (first) term = v_mul(term, e.a);
    v_store_first(r->sums + d, v_add(v_load_first(r->sums + d, left), term), left);
    if (r->d_x)
        v_narrow_some(dtype, element_at(dtype, r->d_x, d), first ? d_u : v_mul(d_u, e.a), left);
    if (!r->d_gate) return;
    const vf slope = p->silu ? v_silu_slope(e.z, e.s) : v_mul(e.s, v_sub(one, e.s));
    const vf to = first ? v_mul(v_mul(e.dy, e.w), normed) : v_mul(d_u, e.x);
    v_narrow_some(dtype, element_at(dtype, r->d_gate, d), v_mul(slope, to), left);
}

INLINE void gradient_row(const ejk_dtype dtype, const norm_problem *p, const bool first,
                         const row *r) {
    for (int64_t g = 0; g < p->width; g += p->group) {
        const int64_t end = g + p->group;
        vf squares[2] = {v_zero(), v_zero()}, products[2] = {v_zero(), v_zero()};
        for (int64_t d = g, i = 0; d < end; d += VL, i ^= 1) {
            const parts e = parts_of(dtype, p, first, false, r, d, ejki_min(end - d, VL));
            ask(dtype, r->next_x, d);
            ask(dtype, r->next_cotangent, d);
            if (p->has_gate) ask(dtype, r->next_gate, d);
            squares[i] = v_fma(e.u, e.u, squares[i]);
            products[i] = v_fma(e.delta, e.u, products[i]);
        }
        const float scale = scale_of(p, v_sum(v_add(squares[0], squares[1])));
        const float mean = scale * v_sum(v_add(products[0], products[1])) / (float)p->group;
        for (int64_t d = g; d < end; d += VL)
            write_at(dtype, p, first, r, v_set1(scale), v_set1(mean), d, ejki_min(end - d, VL));
    }
}

#define ROW(name, dtype)                                                                           \
    static __attribute__((noinline)) void name(const norm_problem *p, const row *r) {              \
        if (p->norm_first)                                                                         \
            gradient_row(dtype, p, true, r);                                                       \
        else                                                                                       \
            gradient_row(dtype, p, false, r);                                                      \
    }
ROW(row_f32, EJK_DTYPE_F32)
ROW(row_bf16, EJK_DTYPE_BF16)
ROW(row_f16, EJK_DTYPE_F16)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t room(const norm_problem *p) {
    return ejki_round_up(p->width + VL, LINE / 4);
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
        (size_t)((2 * launch->workers + blocks_of(p)) * room(p)) * sizeof(float);
    return EJK_OK;
}

static float *sums_of(const ejk_run *run) {
    return (float *)run->workspace + 2 * run->workers * room(run->problem);
}

static void one_row(const norm_problem *p, row *r, int64_t n) {
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t next = row_ahead(p, n);
    r->x = row_at(dtype, p, &p->x, n);
    r->gate = row_at(dtype, p, &p->gate, n);
    r->cotangent = row_at(dtype, p, &p->y, n);
    r->next_x = row_at(dtype, p, &p->x, next);
    r->next_gate = row_at(dtype, p, &p->gate, next);
    r->next_cotangent = row_at(dtype, p, &p->y, next);
    r->d_x = p->d_x.data ? row_at(dtype, p, &p->d_x, n) : NULL;
    r->d_gate = p->d_gate.data ? row_at(dtype, p, &p->d_gate, n) : NULL;
    (dtype == EJK_DTYPE_F32 ? row_f32 : dtype == EJK_DTYPE_BF16 ? row_bf16 : row_f16)(p, r);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    float *weights = (float *)run->workspace + 2 * index * room(p);
    row r = {.weights = weights, .logistics = weights + room(p)};
    take_weights(p, weights);
    const int64_t blocks = blocks_of(p), end = blocks * (index + 1) / run->workers;
    for (int64_t b = blocks * index / run->workers; b < end; b++) {
        r.sums = sums_of(run) + b * room(p);
        memset(r.sums, 0, (size_t)p->width * sizeof(float));
        for (int64_t n = b * ROWS; n < ejki_min((b + 1) * ROWS, p->rows); n++) one_row(p, &r, n);
    }
}

/* Sums of blocks. */
static void work_sums(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const int64_t vectors = ejki_cdiv(p->width, VL), end = vectors * (index + 1) / run->workers;
    for (int64_t v = vectors * index / run->workers; v < end; v++) {
        const int64_t left = ejki_min(p->width - v * VL, VL);
        vf sum = v_zero();
        for (int64_t b = 0; b < blocks_of(p); b++)
            sum = v_add(sum, v_load_first(sums_of(run) + b * room(p) + v * VL, left));
        v_narrow_some(dtype, element_at(dtype, p->d_weight, v * VL), sum, left);
    }
}

static ejk_status run(const ejk_run *run) {
    const norm_problem *p = run->problem;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    if (p->d_weight)
        ejk_parallel_for(run->threads, run->workers, work_sums, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
