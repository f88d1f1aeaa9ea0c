/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm and its gradient. */
#include "conformance/cases.h"
#include "conformance/lines.h"

#include <stdio.h>

struct norm {
    int64_t rows, width, group;
    bool first, silu;
    double eps;
    ejk_tensor x, gate, weight, y; /* y: out, or its cotangent */
    double *vx, *vg, *vw, *vy;
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static struct norm *make(struct call *c) {
    static const int64_t rows[] = {0, 1, 2, 5, 17, 64, 65, 150};
    static const int64_t widths[] = {1, 2, 7, 16, 17, 33, 64, 96, 128};
    struct random *r = &c->random;
    struct norm *v = call_memory(c, sizeof *v);
    c->own = v;
    v->width = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, widths);
    const bool wide = random_chance(r, 0.15); /* groups for which threads of several warps meet */
    if (wide) v->width = 256 * random_int(r, 1, 10);
    const int64_t outer = wide ? random_int(r, 1, 9) : RANDOM_OF(r, rows),
                  rank = random_int(r, 2, 4);
    const int64_t shape[4] = {random_int(r, 1, 2), outer, random_int(r, 1, 3), v->width};
    const int64_t three[3] = {shape[0], outer, v->width}, two[2] = {outer, v->width};
    const int64_t *own = rank == 4 ? shape : rank == 3 ? three : two;
    v->rows = outer * (rank > 2 ? shape[0] : 1) * (rank == 4 ? shape[2] : 1);
    v->first = random_chance(r, 0.5);
    v->silu = random_chance(r, 0.5);
    v->eps = random_chance(r, 0.5) ? 1e-5 : 1e-3;
    v->group = v->width;
    if (v->width > 1 && random_chance(r, 0.5)) do
            v->group = random_int(r, 1, v->width);
        while (v->width % v->group != 0);
    v->x = call_tensor(c, c->dtype, (int32_t)rank, own);
    v->y = call_tensor(c, c->dtype, (int32_t)rank, own);
    tensor_fill(c, &v->x, 0.3, 1);
    if (random_chance(r, 0.8)) {
        v->gate = call_tensor(c, c->dtype, (int32_t)rank, own);
        tensor_fill(c, &v->gate, 0, random_chance(r, 0.1) ? 40 : 2);
    }
    if (random_chance(r, 0.8)) {
        v->weight = CALL_TENSOR(c, c->dtype, v->width);
        tensor_fill(c, &v->weight, 1, 0.3);
    }
    return v;
}

#define SET_SHARED(args, v)                                                                        \
    do {                                                                                           \
        (args)->x = (v)->x;                                                                        \
        (args)->gate = (v)->gate;                                                                  \
        (args)->weight = (v)->weight;                                                              \
        (args)->group_size = (ejk_opt_int){(v)->group, (v)->group != (v)->width};                  \
        (args)->norm_before_gate = (v)->first ? EJK_UNSET : EJK_FALSE;                             \
        (args)->eps = (ejk_opt_float){(v)->eps, (v)->eps > 1e-4};                                  \
        snprintf((args)->activation, sizeof(args)->activation, "%s", (v)->silu ? "" : "sigmoid");  \
    } while (0)

static bool generate(struct call *c) {
    ejk_gated_rms_norm_args *args = c->args;
    const struct norm *v = make(c);
    SET_SHARED(args, v);
    args->out = v->y;
    call_disturb(c, &v->x);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_gated_rms_norm_vjp_args *args = c->args;
    const struct norm *v = make(c);
    SET_SHARED(args, v);
    c->gradient = true;
    tensor_fill(c, &v->y, 0.2, 1);
    args->d_out = v->y;
    if (random_chance(&c->random, 0.9)) args->d_x = call_tensor(c, c->dtype, v->x.rank, v->x.shape);
    if (ejk_tensor_present(&v->gate) && random_chance(&c->random, 0.9))
        args->d_gate = call_tensor(c, c->dtype, v->x.rank, v->x.shape);
    if (random_chance(&c->random, 0.8)) args->d_weight = CALL_TENSOR(c, c->dtype, v->width);
    return true;
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static void read(struct call *c, struct norm *v) {
    if (v->vx) return;
    v->vx = tensor_values(c, &v->x);
    v->vg = tensor_values(c, &v->gate);
    v->vw = tensor_values(c, &v->weight);
    v->vy = tensor_values(c, &v->y);
}

struct element {
    long double x, a, slope, steep, u, w; /* steep: sizes of the terms of the slope */
};

static struct element element_of(const struct call *c, int order, int64_t at) {
    const struct norm *v = c->own;
    struct element e = {.x = (long double)v->vx[at], .a = 1, .w = 1};
    if (v->vw) e.w = (long double)v->vw[at % v->width];
    if (v->vg) {
        const long double z = (long double)v->vg[at], below = R(1 + R(expl(-z))), s = R(1 / below);
        e.a = v->silu ? R(z / below) : s;
        e.slope = v->silu ? R(s * R(1 + R(z * R(1 - s)))) : R(s * R(1 - s));
        e.steep = v->silu ? s * (1 + fabsl(z) * (1 - s)) : s * (1 + s);
    }
    e.u = v->first ? e.x : R(e.x * e.a);
    return e;
}

/* An order begins at another component. */
static long double mean(const struct call *c, int order, int64_t begin,
                        long double (*term)(const struct call *, int, int64_t)) {
    const struct norm *v = c->own;
    const int64_t from = order == EXACT ? 0 : v->group * order / ORDERS;
    long double sum = 0;
    for (int64_t i = 0; i < v->group; i++)
        sum = R(sum + term(c, order, begin + (from + i) % v->group));
    return R(sum / (long double)v->group);
}

static long double square(const struct call *c, int order, int64_t at) {
    const long double u = element_of(c, order, at).u;
    return R(u * u);
}

/* Cotangent of what comes out of the norm. */
static long double delta(const struct call *c, int order, int64_t at) {
    const struct norm *v = c->own;
    const struct element e = element_of(c, order, at);
    const long double d = R((long double)v->vy[at] * e.w);
    return v->first ? R(d * e.a) : d;
}
static long double product(const struct call *c, int order, int64_t at) {
    return R(delta(c, order, at) * element_of(c, order, at).u);
}

static long double scale_of(const struct call *c, int order, int64_t begin) {
    const struct norm *v = c->own;
    return R(1 / R(sqrtl(R(mean(c, order, begin, square) + (long double)v->eps))));
}

static void results(struct call *c, int order) {
    struct norm *v = c->own;
    read(c, v);
    double *out = call_result(c, "out", order, ELEMENT);
    for (int64_t begin = 0; v->group > 0 && begin < v->rows * v->width; begin += v->group) {
        const long double scale = scale_of(c, order, begin);
        for (int64_t at = begin; at < begin + v->group; at++) {
            const struct element e = element_of(c, order, at);
            const long double normed = R(R(e.u * scale) * e.w);
            out[at] = (double)(v->first ? R(normed * e.a) : normed);
        }
    }
}

static void exact(struct call *c) {
    results(c, EXACT);
}

static void put(double *to, int64_t at, long double value) {
    if (to) to[at] = (double)value;
}

static void gradients(struct call *c, int order) {
    struct norm *v = c->own;
    read(c, v);
    const bool sized = order == EXACT;
    double *d_x = call_result(c, "d_x", order, ELEMENT);
    double *d_gate = call_result(c, "d_gate", order, ELEMENT);
    double *d_weight = call_result(c, "d_weight", order, ELEMENT);
    double *x_size = sized ? call_result(c, "d_x", SPREAD, ELEMENT) : NULL;
    double *gate_size = sized ? call_result(c, "d_gate", SPREAD, ELEMENT) : NULL;
    double *weight_size = sized ? call_result(c, "d_weight", SPREAD, ELEMENT) : NULL;
    for (int64_t begin = 0; v->group > 0 && begin < v->rows * v->width; begin += v->group) {
        const long double scale = scale_of(c, order, begin);
        const long double both = R(mean(c, order, begin, product) * scale);
        for (int64_t at = begin; at < begin + v->group; at++) {
            const struct element e = element_of(c, order, at);
            const long double dy = (long double)v->vy[at], normed = R(e.u * scale);
            const long double d = delta(c, order, at), off = R(normed * both);
            const long double d_u = R(scale * R(d - off));
            const long double size = fabsl(scale) * (fabsl(d) + fabsl(off));
            const long double term = v->first ? R(R(dy * normed) * e.a) : R(dy * normed);
            put(d_x, at, v->first ? d_u : R(d_u * e.a));
            put(x_size, at, v->first ? size : size * fabsl(e.a));
            put(d_gate, at, R(e.slope * (v->first ? R(R(dy * e.w) * normed) : R(d_u * e.x))));
            put(gate_size, at, e.steep * (v->first ? fabsl(dy * e.w * normed) : fabsl(size * e.x)));
            const int64_t k = at % v->width;
            if (d_weight) d_weight[k] = (double)R((long double)d_weight[k] + term);
            if (weight_size) weight_size[k] += (double)fabsl(term);
        }
    }
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

/* Rows; gradients of the weight need them all. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct norm *v = c->own;
    if (v->rows * v->width == 0) return false;
    const int64_t count = v->x.shape[v->x.rank == 2 ? 0 : 1];
    slice_add(s, r, "T", count, false);
    return true;
}

const struct operation gated_rms_norm_case = {.op = "gated_rms_norm",
                                              .cases = 60,
                                              .generate = generate,
                                              .exact = exact,
                                              .naive = results,
                                              .slice = slice};

const struct operation gated_rms_norm_vjp_case = {.op = "gated_rms_norm_vjp",
                                                  .cases = 60,
                                                  .generate = generate_vjp,
                                                  .exact = exact_vjp,
                                                  .naive = gradients,
                                                  .slice = slice};
