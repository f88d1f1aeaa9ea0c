/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_matmul under its names, its gradients, and tgmm. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

enum { GROUPS = 9 };

struct grouped {
    int64_t m, k, n, c, groups, held, offset; /* held: matrices, of the groups from `offset` on */
    int64_t end[GROUPS + 1];                  /* behind the rows of a group */
    int64_t blocks;                           /* of scales */
    bool transposed;
    double *lhs, *rhs, *scale, *bias, *existing, *d_out, *weights;
    ejk_tensor sizes, first, gather, scatter;
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static ejk_tensor integers(struct call *c, int64_t count, const int64_t *values) {
    const ejk_dtype type = random_chance(&c->random, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64;
    const ejk_tensor t = CALL_TENSOR(c, type, count);
    for (int64_t i = 0; i < count; i++) tensor_put(&t, i, (double)values[i]);
    return t;
}

/* Groups may be empty, have all rows, or leave some to none. */
static void deal(struct call *c, struct grouped *p) {
    struct random *r = &c->random;
    int64_t sizes[GROUPS], left = p->m;
    for (int64_t g = 0; g < p->groups; g++) {
        sizes[g] = random_chance(r, 0.3)   ? 0
                   : random_chance(r, 0.1) ? left
                                           : random_int(r, 0, left);
        if (g + 1 == p->groups && random_chance(r, 0.6)) sizes[g] = left;
        left -= sizes[g];
        p->end[g + 1] = p->m - left;
    }
    p->sizes = integers(c, p->groups, sizes);
    if (p->held == p->groups && random_chance(r, 0.7)) return;
    p->first = integers(c, 1, &p->offset);
    if (random_chance(r, 0.3)) p->first.rank = 0;
}

static struct grouped *make(struct call *c) {
    static const int64_t rows[] = {0, 1, 2, 5, 12, 24, 31, 65, 90, 140};
    static const int64_t sizes[] = {0, 1, 2, 15, 16, 17, 33, 64, 65, 129};
    struct random *r = &c->random;
    struct grouped *p = call_memory(c, sizeof *p);
    c->own = p;
    p->m = RANDOM_OF(r, rows);
    p->k = RANDOM_OF(r, sizes);
    p->n = p->c = RANDOM_OF(r, sizes);
    p->groups = random_int(r, 1, GROUPS - 1);
    p->held = random_chance(r, 0.7) ? p->groups : random_int(r, 1, p->groups);
    p->offset = random_int(r, 0, p->groups - p->held);
    p->transposed = random_chance(r, 0.4);
    p->blocks = random_chance(r, 0.3) ? random_int(r, 1, 4) : 0;
    if (p->blocks > p->k) p->blocks = 0;
    while (p->m * p->k * p->n > c->budget && p->k > 1) p->k /= 2, p->blocks = 0;
    deal(c, p);
    return p;
}

static ejk_tensor make_rhs(struct call *c, const struct grouped *p) {
    return CALL_TENSOR(c, c->dtype, p->held, p->transposed ? p->c : p->k,
                       p->transposed ? p->k : p->c);
}

/* Lists of rows, and the rows that there are in lhs and out then. */
static void scatter(struct call *c, ejk_grouped_matmul_args *args, struct grouped *p) {
    struct random *r = &c->random;
    int64_t index[160];
    args->lhs = CALL_TENSOR(c, c->dtype, p->m, p->k);
    if (p->m > 0 && random_chance(r, 0.3)) {
        args->lhs = CALL_TENSOR(c, c->dtype, random_int(r, 1, 20), p->k);
        for (int64_t i = 0; i < p->m; i++) index[i] = random_int(r, 0, args->lhs.shape[0] - 1);
        args->lhs_indices = p->gather = integers(c, p->m, index);
    }
    int64_t out_rows = p->m;
    if (p->m > 0 && random_chance(r, 0.3)) {
        out_rows = random_int(r, 1, 20);
        for (int64_t i = 0; i < p->m; i++) index[i] = random_int(r, 0, out_rows - 1);
        args->out_indices = p->scatter = integers(c, p->m, index);
        if (random_chance(r, 0.7)) {
            args->out_weights = CALL_TENSOR(c, product_type(c), p->m);
            product_fill(c, &args->out_weights, false);
        }
    }
    args->out = CALL_TENSOR(c, c->dtype, out_rows, p->n);
}

static bool generate(struct call *c) {
    ejk_grouped_matmul_args *args = c->args;
    struct random *r = &c->random;
    struct grouped *p = make(c);
    bool gated;
    strcpy(args->activation, product_activation(r, &gated));
    if (gated) p->c = 2 * p->n, args->interleaved = random_chance(r, 0.5);
    if (gated && random_chance(r, 0.3)) args->limit = ejk_float(0.5);
    scatter(c, args, p);
    args->rhs = make_rhs(c, p);
    args->group_sizes = p->sizes;
    args->group_offset = p->first;
    args->transpose_rhs = p->transposed;
    if (random_chance(r, 0.3)) args->rhs_bias = CALL_TENSOR(c, product_type(c), p->held, 1, p->c);
    if (p->blocks) args->rhs_scale = CALL_TENSOR(c, product_type(c), p->held, p->blocks, 1, p->c);
    if (random_chance(r, 0.3))
        args->existing_out = CALL_TENSOR(c, product_type(c), args->out.shape[0], p->n);
    const ejk_dtype type = random_chance(r, 0.7) ? c->dtype : product_type(c);
    if (type != c->dtype) args->preferred_element_type = args->out.dtype = type;
    if (type != c->dtype) args->out = CALL_TENSOR(c, type, args->out.shape[0], p->n);
    product_fill(c, &args->lhs, !gated);
    product_fill(c, &args->rhs, false);
    if (ejk_tensor_present(&args->rhs_bias)) product_fill(c, &args->rhs_bias, false);
    if (ejk_tensor_present(&args->rhs_scale)) product_fill(c, &args->rhs_scale, false);
    if (ejk_tensor_present(&args->existing_out)) product_fill(c, &args->existing_out, false);
    c->scarce = args->out.shape[0] * p->n < 256;
    return true;
}

/* What nobody may read: matrices, biases and scales of groups without rows, and rows of no group. */
static void hide(const struct grouped *p, const ejk_tensor *t) {
    if (!ejk_tensor_present(t) || t->shape[0] == 0) return;
    const int64_t each = ejk_tensor_count(t) / t->shape[0];
    for (int64_t g = 0; g < p->held; g++)
        for (int64_t i = 0; p->end[g + p->offset] == p->end[g + p->offset + 1] && i < each; i++)
            tensor_put(t, g * each + i, (double)NAN);
}

static void hide_rows(const struct grouped *p, const ejk_tensor *t) {
    const int64_t width = t->shape[1], low = p->end[p->offset], high = p->end[p->offset + p->held];
    for (int64_t i = 0; i < p->m * width; i++)
        if (i / width < low || i / width >= high) tensor_put(t, i, (double)NAN);
}

static void finish(struct call *c) {
    const ejk_grouped_matmul_args *args = c->args;
    const struct grouped *p = c->own;
    if (c->dtype == EJK_DTYPE_F64) return;
    hide(p, &args->rhs);
    hide(p, &args->rhs_bias);
    hide(p, &args->rhs_scale);
    if (!ejk_tensor_present(&p->gather)) hide_rows(p, &args->lhs);
}

static bool generate_vjp(struct call *c) {
    ejk_grouped_matmul_vjp_args *args = c->args;
    struct random *r = &c->random;
    struct grouped *p = make(c);
    c->gradient = true;
    args->lhs = CALL_TENSOR(c, c->dtype, p->m, p->k);
    args->rhs = make_rhs(c, p);
    args->group_sizes = p->sizes;
    args->group_offset = p->first;
    args->transpose_rhs = p->transposed;
    args->d_out = CALL_TENSOR(c, c->dtype, p->m, p->n);
    product_fill(c, &args->lhs, false);
    product_fill(c, &args->rhs, false);
    product_fill(c, &args->d_out, false);
    args->d_lhs = CALL_TENSOR(c, c->dtype, p->m, p->k);
    args->d_rhs = make_rhs(c, p);
    if (p->blocks) {
        args->rhs_scale = CALL_TENSOR(c, product_type(c), p->held, p->blocks, 1, p->n);
        product_fill(c, &args->rhs_scale, false);
        args->d_rhs_scale = CALL_TENSOR(c, args->rhs_scale.dtype, p->held, p->blocks, 1, p->n);
    }
    if (random_chance(r, 0.4)) {
        args->rhs_bias = CALL_TENSOR(c, product_type(c), p->held, 1, p->n);
        args->d_rhs_bias = CALL_TENSOR(c, args->rhs_bias.dtype, p->held, 1, p->n);
    }
    if (random_chance(r, 0.4)) {
        args->existing_out = CALL_TENSOR(c, product_type(c), p->m, p->n);
        args->d_existing_out = CALL_TENSOR(c, args->existing_out.dtype, p->m, p->n);
    }
    return true;
}

static void finish_vjp(struct call *c) {
    const ejk_grouped_matmul_vjp_args *args = c->args;
    if (c->dtype == EJK_DTYPE_F64) return;
    hide(c->own, &args->rhs);
    hide(c->own, &args->rhs_scale);
}

static bool generate_tgmm(struct call *c) {
    ejk_tgmm_args *args = c->args;
    struct grouped *p = make(c);
    args->lhs = CALL_TENSOR(c, c->dtype, p->m, p->k);
    args->rhs = CALL_TENSOR(c, c->dtype, p->m, p->n);
    args->group_sizes = p->sizes;
    args->group_offset = p->first;
    product_fill(c, &args->lhs, false);
    product_fill(c, &args->rhs, false);
    const ejk_dtype type = random_chance(&c->random, 0.7) ? c->dtype : product_type(c);
    if (type != c->dtype) args->preferred_element_type = type;
    args->out = CALL_TENSOR(c, type, p->held, p->k, p->n);
    if (random_chance(&c->random, 0.4)) {
        args->existing_out = CALL_TENSOR(c, product_type(c), p->held, p->k, p->n);
        product_fill(c, &args->existing_out, false);
    }
    c->scarce = p->held * p->k * p->n < 256;
    return true;
}

static void finish_tgmm(struct call *c) {
    const ejk_tgmm_args *args = c->args;
    if (c->dtype == EJK_DTYPE_F64) return;
    hide_rows(c->own, &args->lhs);
    hide_rows(c->own, &args->rhs);
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

/* The matrix of row i, or -1. */
static int64_t matrix_of(const struct grouped *p, int64_t i) {
    for (int64_t g = 0; g < p->held; g++)
        if (i >= p->end[g + p->offset] && i < p->end[g + p->offset + 1]) return g;
    return -1;
}

static int64_t block_of(const struct grouped *p) {
    return p->blocks ? p->k / p->blocks + (p->k % p->blocks != 0) : 1;
}

static double factor(const struct grouped *p, int64_t g, int64_t k, int64_t j) {
    return p->scale ? p->scale[(g * p->blocks + k / block_of(p)) * p->c + j] : 1;
}

static int64_t place(const struct grouped *p, int64_t g, int64_t k, int64_t j) {
    return g * p->k * p->c + (p->transposed ? j * p->k + k : k * p->c + j);
}

static long double column(struct call *c, int order, int64_t i, int64_t g, int64_t j,
                          double *size) {
    const struct grouped *p = c->own;
    const int64_t row = ejk_tensor_present(&p->gather) ? (int64_t)tensor_get(&p->gather, i) : i;
    const int64_t from = order == EXACT ? 0 : p->k * order / ORDERS;
    long double sum = 0;
    for (int64_t n = 0; n < p->k; n++) {
        const int64_t k = (from + n) % p->k;
        const long double b = product_round(
            c, order, (long double)p->rhs[place(p, g, k, j)] * (long double)factor(p, g, k, j));
        const long double term = (long double)p->lhs[row * p->k + k] * b;
        sum = product_round(c, order, sum + product_round(c, order, term));
        *size += fabs((double)term);
    }
    if (p->bias) sum = product_round(c, order, sum + (long double)p->bias[g * p->c + j]);
    if (p->bias) *size += fabs(p->bias[g * p->c + j]);
    return sum;
}

static void products(struct call *c, int order) {
    const ejk_grouped_matmul_args *args = c->args;
    struct grouped *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    const int64_t rows = args->out.shape[0];
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->rhs) p->rhs = tensor_values(c, &args->rhs);
    if (!p->scale) p->scale = tensor_values(c, &args->rhs_scale);
    if (!p->bias) p->bias = tensor_values(c, &args->rhs_bias);
    if (!p->existing) p->existing = tensor_values(c, &args->existing_out);
    if (!p->weights) p->weights = tensor_values(c, &args->out_weights);
    const bool gated = p->c != p->n;
    const double limit = args->limit.set ? args->limit.value : 7;
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t i = 0; i < p->m; i++) {
            const int64_t g = matrix_of(p, i), gate = gated && args->interleaved ? 2 * j : j;
            const int64_t to =
                ejk_tensor_present(&p->scatter) ? (int64_t)tensor_get(&p->scatter, i) : i;
            double size = 0;
            if (g < 0) continue;
            long double value = column(c, order, i, g, gate, &size), other = 0;
            if (gated)
                other = column(c, order, i, g, args->interleaved ? gate + 1 : j + p->n, &size);
            value = product_activate(args->activation, limit, value, other);
            value = product_round(c, order, value);
            if (p->weights) value = product_round(c, order, value * (long double)p->weights[i]);
            out[to * p->n + j] =
                (double)product_round(c, order, (long double)out[to * p->n + j] + value);
            if (spread) spread[to * p->n + j] += fmax(size, fabs((double)value));
        }
        for (int64_t i = 0; p->existing && i < rows; i++) {
            const long double sum =
                (long double)out[i * p->n + j] + (long double)p->existing[i * p->n + j];
            out[i * p->n + j] = (double)product_round(c, order, sum);
            if (spread) spread[i * p->n + j] += fabs(p->existing[i * p->n + j]);
        }
    }
}

static void exact(struct call *c) {
    products(c, EXACT);
}

/* Sums over the rows of a matrix; results are 0 where there are none, whatever their factors. */
static void over_rows(struct call *c, int order, double *d_rhs, double *d_scale, double *d_bias) {
    const struct grouped *p = c->own;
    const double one = 1;
    for (int64_t g = 0; g < p->held; g++) {
        const int64_t first = p->end[g + p->offset], rows = p->end[g + p->offset + 1] - first;
        for (int64_t j = 0; rows > 0 && j < p->n; j++) {
            const double *d = p->d_out + first * p->n + j;
            for (int64_t k = 0; (d_rhs || d_scale) && k < p->k; k++) {
                const long double sum =
                    product_sum(c, order, rows, p->lhs + first * p->k + k, p->k, d, p->n, NULL);
                if (d_rhs)
                    d_rhs[place(p, g, k, j)] = (double)(sum * (long double)factor(p, g, k, j));
                if (!d_scale) continue;
                double *to = &d_scale[(g * p->blocks + k / block_of(p)) * p->n + j];
                const long double term = sum * (long double)p->rhs[place(p, g, k, j)];
                *to = (double)product_round(c, order, (long double)*to + term);
            }
            if (d_bias)
                d_bias[g * p->n + j] = (double)product_sum(c, order, rows, &one, 0, d, p->n, NULL);
        }
    }
}

static void gradients(struct call *c, int order) {
    const ejk_grouped_matmul_vjp_args *args = c->args;
    struct grouped *p = c->own;
    double *d_lhs = call_result(c, "d_lhs", order, ELEMENT);
    double *d_existing = call_result(c, "d_existing_out", order, ELEMENT);
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->rhs) p->rhs = tensor_values(c, &args->rhs);
    if (!p->scale) p->scale = tensor_values(c, &args->rhs_scale);
    if (!p->d_out) p->d_out = tensor_values(c, &args->d_out);
    for (int64_t i = 0; d_existing && i < p->m * p->n; i++) d_existing[i] = p->d_out[i];
    for (int64_t i = 0; i < p->m; i++) {
        const int64_t g = matrix_of(p, i);
        for (int64_t k = 0; g >= 0 && k < p->k; k++) {
            long double sum = 0;
            const int64_t from = order == EXACT ? 0 : p->n * order / ORDERS;
            for (int64_t n = 0; n < p->n; n++) {
                const int64_t j = (from + n) % p->n;
                const long double b = product_round(c, order,
                                                    (long double)p->rhs[place(p, g, k, j)] *
                                                        (long double)factor(p, g, k, j));
                sum = product_round(c, order, sum + (long double)p->d_out[i * p->n + j] * b);
            }
            d_lhs[i * p->k + k] = (double)sum;
        }
    }
    over_rows(c, order, call_result(c, "d_rhs", order, ELEMENT),
              call_result(c, "d_rhs_scale", order, ELEMENT),
              call_result(c, "d_rhs_bias", order, ELEMENT));
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

static void transposed_products(struct call *c, int order) {
    const ejk_tgmm_args *args = c->args;
    struct grouped *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->d_out) p->d_out = tensor_values(c, &args->rhs);
    if (!p->existing) p->existing = tensor_values(c, &args->existing_out);
    for (int64_t at = 0; at < p->held * p->k * p->n; at++) {
        const int64_t j = at % p->n, k = at / p->n % p->k, g = at / p->n / p->k;
        const int64_t first = p->end[g + p->offset], rows = p->end[g + p->offset + 1] - first;
        double size = 0;
        long double sum = product_sum(c, order, rows, p->lhs + first * p->k + k, p->k,
                                      p->d_out + first * p->n + j, p->n, &size);
        if (p->existing) sum = product_round(c, order, sum + (long double)p->existing[at]);
        out[at] = (double)sum;
        if (spread) spread[at] = size + (p->existing ? fabs(p->existing[at]) : 0);
    }
}

static void exact_tgmm(struct call *c) {
    transposed_products(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

/* Some columns by themselves. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct grouped *p = c->own;
    if (p->m * p->k * p->n == 0 || p->c != p->n || p->c == p->k) return false;
    if (p->scale && p->blocks == p->n) return false;
    slice_add(s, r, "N", p->n, false);
    s->range[1] = s->range[0];
    s->range[1].symbol = "C";
    s->count = 2;
    return true;
}

#define GROUPED_CASE(name, count)                                                                  \
    const struct operation name##_case = {.op = #name,                                             \
                                          .cases = count,                                          \
                                          .generate = generate,                                    \
                                          .finish = finish,                                        \
                                          .exact = exact,                                          \
                                          .naive = products,                                       \
                                          .slice = slice}
GROUPED_CASE(grouped_matmul, 100);
GROUPED_CASE(grouped_matmulv2, 10);
GROUPED_CASE(grouped_matmulv3, 10);

const struct operation grouped_matmul_vjp_case = {.op = "grouped_matmul_vjp",
                                                  .cases = 80,
                                                  .generate = generate_vjp,
                                                  .finish = finish_vjp,
                                                  .exact = exact_vjp,
                                                  .naive = gradients};

const struct operation tgmm_case = {.op = "tgmm",
                                    .cases = 60,
                                    .generate = generate_tgmm,
                                    .finish = finish_tgmm,
                                    .exact = exact_tgmm,
                                    .naive = transposed_products};
