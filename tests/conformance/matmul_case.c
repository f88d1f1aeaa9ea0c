/* SPDX-License-Identifier: Apache-2.0 */
/* matmul and its gradients. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

struct matmul {
    int64_t batch, m, k, n, c; /* c: columns of rhs; batch 0: no axis */
    bool shared, transposed;   /* rhs: one for the batch; [C,K] */
    double *lhs, *rhs, *bias, *residual, *d_out;
};

static int64_t entries(const struct matmul *p) {
    return p->batch < 0 ? 1 : p->batch;
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

static ejk_tensor matrix(struct call *c, const struct matmul *p, ejk_dtype dtype, int64_t rows,
                         int64_t columns) {
    if (p->batch < 0) return CALL_TENSOR(c, dtype, rows, columns);
    return CALL_TENSOR(c, dtype, p->batch, rows, columns);
}

static struct matmul *make(struct call *c) {
    static const int64_t rows[] = {0, 1, 1, 2, 3, 5, 12, 13, 24, 31, 64, 65, 97, 130};
    static const int64_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100, 129, 257};
    struct random *r = &c->random;
    struct matmul *p = call_memory(c, sizeof *p);
    c->own = p;
    c->tiled = c->tiled || random_chance(r, 0.25); /* what TMA can read */
    p->batch = random_chance(r, 0.3) ? random_int(r, random_chance(r, 0.1) ? 0 : 1, 3) : -1;
    p->shared = p->batch < 0 || random_chance(r, 0.5);
    p->m = RANDOM_OF(r, rows);
    p->k = RANDOM_OF(r, sizes);
    p->n = RANDOM_OF(r, sizes);
    if (random_chance(r, 0.04)) p->m = 1, p->k = 3, p->n = 1100; /* several blocks of columns */
    if (random_chance(r, 0.04)) p->m = 1000, p->k = 5, p->n = 3; /* and of rows */
    while (entries(p) * p->m * p->k * p->n > c->budget && p->k > 1) p->k /= 2;
    p->c = p->n;
    p->transposed = random_chance(r, 0.4);
    return p;
}

static ejk_tensor make_rhs(struct call *c, const struct matmul *p) {
    const int64_t shape[] = {entries(p), p->transposed ? p->c : p->k, p->transposed ? p->k : p->c};
    return call_tensor(c, c->dtype, p->shared ? 2 : 3, shape + p->shared);
}

static bool generate(struct call *c) {
    ejk_matmul_args *args = c->args;
    struct random *r = &c->random;
    struct matmul *p = make(c);
    bool gated;
    strcpy(args->activation, product_activation(r, &gated));
    if (gated) p->c = 2 * p->n, args->interleaved = random_chance(r, 0.5);
    if (gated && random_chance(r, 0.3)) args->limit = ejk_float(1.5);
    args->lhs = matrix(c, p, c->dtype, p->m, p->k);
    args->rhs = make_rhs(c, p);
    args->transpose_rhs = p->transposed;
    /* A gate that underflows to 0 makes NaN of an infinite value. */
    product_fill(c, &args->lhs, !gated);
    product_fill(c, &args->rhs, !gated);
    if (random_chance(r, 0.4)) {
        args->bias = CALL_TENSOR(c, product_type(c), p->c);
        product_fill(c, &args->bias, false);
    }
    if (random_chance(r, c->tiled ? 0.7 : 0.4)) {
        args->residual = matrix(c, p, product_type(c), p->m, p->n);
        product_fill(c, &args->residual, false);
    }
    if (random_chance(r, 0.3)) args->scale = ejk_float(-0.75);
    const ejk_dtype type = random_chance(r, 0.7) ? c->dtype : product_type(c);
    if (type != c->dtype || random_chance(r, 0.3)) args->preferred_element_type = type;
    args->out = matrix(c, p, type, p->m, p->n);
    c->scarce = p->m * p->n * entries(p) < 64;
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_matmul_vjp_args *args = c->args;
    struct random *r = &c->random;
    struct matmul *p = make(c);
    c->gradient = true;
    args->lhs = matrix(c, p, c->dtype, p->m, p->k);
    args->rhs = make_rhs(c, p);
    args->transpose_rhs = p->transposed;
    args->d_out = matrix(c, p, c->dtype, p->m, p->n);
    product_fill(c, &args->lhs, false);
    product_fill(c, &args->rhs, false);
    product_fill(c, &args->d_out, false);
    if (random_chance(r, 0.3)) args->scale = ejk_float(-0.75);
    args->d_lhs = matrix(c, p, c->dtype, p->m, p->k);
    if (random_chance(r, 0.8)) args->d_rhs = make_rhs(c, p);
    if (random_chance(r, 0.5)) {
        args->bias = CALL_TENSOR(c, product_type(c), p->n);
        args->d_bias = CALL_TENSOR(c, args->bias.dtype, p->n);
    }
    return true;
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

/* Strides of rhs along depth and columns, and of a batch entry. */
struct strides {
    int64_t k, j, entry;
};
static struct strides strides_of(const struct matmul *p) {
    return (struct strides){p->transposed ? 1 : p->c, p->transposed ? p->k : 1,
                            p->shared ? 0 : p->k * p->c};
}

static long double column(struct call *c, int order, int64_t b, int64_t i, int64_t j,
                          double *size) {
    const ejk_matmul_args *args = c->args;
    const struct matmul *p = c->own;
    const struct strides s = strides_of(p);
    double own = 0;
    long double sum = product_sum(c, order, p->k, p->lhs + (b * p->m + i) * p->k, 1,
                                  p->rhs + b * s.entry + j * s.j, s.k, &own);
    if (args->scale.set) sum = product_round(c, order, sum * (long double)args->scale.value);
    if (p->bias) sum = product_round(c, order, sum + (long double)p->bias[j]);
    *size +=
        own * (args->scale.set ? fabs(args->scale.value) : 1) + (p->bias ? fabs(p->bias[j]) : 0);
    return sum;
}

static void products(struct call *c, int order) {
    const ejk_matmul_args *args = c->args;
    struct matmul *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->rhs) p->rhs = tensor_values(c, &args->rhs);
    if (!p->bias) p->bias = tensor_values(c, &args->bias);
    if (!p->residual) p->residual = tensor_values(c, &args->residual);
    const bool gated = p->c != p->n;
    for (int64_t at = 0; at < entries(p) * p->m * p->n; at++) {
        const int64_t j = at % p->n, i = at / p->n % p->m, b = at / p->n / p->m;
        const int64_t gate = gated && args->interleaved ? 2 * j : j;
        double size = 0;
        long double value = column(c, order, b, i, gate, &size), other = 0;
        if (gated) other = column(c, order, b, i, args->interleaved ? gate + 1 : j + p->n, &size);
        value = product_activate(args->activation, args->limit.set ? args->limit.value : 7, value,
                                 other);
        value = product_round(c, order, value);
        if (p->residual) value = product_round(c, order, value + (long double)p->residual[at]);
        out[at] = (double)value;
        if (spread)
            spread[at] = fmax(size + (p->residual ? fabs(p->residual[at]) : 0), fabs(out[at]));
    }
}

static void exact(struct call *c) {
    products(c, EXACT);
}

static void gradients(struct call *c, int order) {
    const ejk_matmul_vjp_args *args = c->args;
    struct matmul *p = c->own;
    const struct strides s = strides_of(p);
    const long double scale = args->scale.set ? (long double)args->scale.value : 1;
    double *d_lhs = call_result(c, "d_lhs", order, ELEMENT);
    double *d_rhs = call_result(c, "d_rhs", order, ELEMENT);
    double *d_bias = call_result(c, "d_bias", order, ELEMENT);
    const int64_t rows = entries(p) * p->m;
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->rhs) p->rhs = tensor_values(c, &args->rhs);
    if (!p->d_out) p->d_out = tensor_values(c, &args->d_out);
    for (int64_t at = 0; at < rows * p->k; at++) {
        const int64_t k = at % p->k, row = at / p->k, b = row / p->m;
        d_lhs[at] = (double)(scale * product_sum(c, order, p->n, p->d_out + row * p->n, 1,
                                                 p->rhs + b * s.entry + k * s.k, s.j, NULL));
    }
    for (int64_t at = 0; d_rhs && at < (p->shared ? 1 : entries(p)) * p->k * p->n; at++) {
        const int64_t j = at % p->n, k = at / p->n % p->k, b = at / p->n / p->k;
        d_rhs[b * s.entry + k * s.k + j * s.j] =
            (double)(scale * product_sum(c, order, p->shared ? rows : p->m,
                                         p->lhs + b * p->m * p->k + k, p->k,
                                         p->d_out + b * p->m * p->n + j, p->n, NULL));
    }
    const double one = 1;
    for (int64_t j = 0; d_bias && j < p->n; j++)
        d_bias[j] = (double)product_sum(c, order, rows, &one, 0, p->d_out + j, p->n, NULL);
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct matmul *p = c->own;
    if (entries(p) * p->m * p->k * p->n == 0) return false;
    slice_add(s, r, "M", p->m, false);
    if (p->batch > 0) slice_add(s, r, "B", p->batch, false);
    if (p->c != p->n || p->c == p->k) return true;
    slice_add(s, r, "N", p->n, false);
    s->range[s->count] = s->range[s->count - 1];
    s->range[s->count++].symbol = "C";
    return true;
}

const struct operation matmul_case = {.op = "matmul",
                                      .cases = 120,
                                      .generate = generate,
                                      .exact = exact,
                                      .naive = products,
                                      .slice = slice};

const struct operation matmul_vjp_case = {.op = "matmul_vjp",
                                          .cases = 80,
                                          .generate = generate_vjp,
                                          .exact = exact_vjp,
                                          .naive = gradients};
