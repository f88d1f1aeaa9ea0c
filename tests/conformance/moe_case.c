/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of experts. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

struct moe {
    int64_t tokens, each, experts, width, inner, c; /* c: columns of the first matrices */
    double *hidden, *first, *second, *bias, *other, *weight;
};

static ejk_tensor matrices(struct call *c, const ejk_moe_args *args, int64_t experts, int64_t in,
                           int64_t out) {
    const ejk_tensor t = args->transpose ? CALL_TENSOR(c, c->dtype, experts, out, in)
                                         : CALL_TENSOR(c, c->dtype, experts, in, out);
    product_fill(c, &t, false);
    return t;
}

static bool generate(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 7, 13, 40}, sizes[] = {1, 7, 16, 33, 64};
    ejk_moe_args *args = c->args;
    struct random *r = &c->random;
    struct moe *p = call_memory(c, sizeof *p);
    bool gated = true;
    c->own = p;
    p->tokens = RANDOM_OF(r, tokens);
    p->each = random_int(r, 1, 4);
    p->experts = random_int(r, 1, 8);
    p->width = RANDOM_OF(r, sizes);
    p->inner = RANDOM_OF(r, sizes);
    if (random_chance(r, 0.7)) strcpy(args->activation, product_activation(r, &gated));
    if (!args->activation[0]) gated = true;
    p->c = gated ? 2 * p->inner : p->inner;
    args->interleaved = gated && random_chance(r, 0.4);
    args->transpose = random_chance(r, 0.5);
    args->hidden = CALL_TENSOR(c, c->dtype, p->tokens, p->width);
    product_fill(c, &args->hidden, false);
    args->expert_index =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, p->tokens, p->each);
    args->expert_weight = CALL_TENSOR(c, product_type(c), p->tokens, p->each);
    product_fill(c, &args->expert_weight, false);
    args->w_gate_up = matrices(c, args, p->experts, p->width, p->c);
    args->w_down = matrices(c, args, p->experts, p->inner, p->width);
    if (random_chance(r, 0.3))
        args->gate_up_bias = CALL_TENSOR(c, product_type(c), p->experts, p->c);
    if (random_chance(r, 0.3))
        args->down_bias = CALL_TENSOR(c, product_type(c), p->experts, p->width);
    if (ejk_tensor_present(&args->gate_up_bias)) product_fill(c, &args->gate_up_bias, false);
    if (ejk_tensor_present(&args->down_bias)) product_fill(c, &args->down_bias, false);
    for (int64_t i = 0; i < p->tokens * p->each; i++)
        tensor_put(&args->expert_index, i, (double)random_int(r, 0, p->experts - 1));
    args->out = CALL_TENSOR(c, c->dtype, p->tokens, p->width);
    c->scarce = p->tokens * p->width < 256;
    return true;
}

/* Experts that no token has chosen hold NaN. */
static void finish(struct call *c) {
    const ejk_moe_args *args = c->args;
    const struct moe *p = c->own;
    for (int64_t e = 0; e < p->experts; e++) {
        bool used = false;
        for (int64_t i = 0; i < p->tokens * p->each; i++)
            used = used || (int64_t)tensor_get(&args->expert_index, i) == e;
        for (int64_t i = 0; !used && i < p->width * p->c; i++)
            tensor_put(&args->w_gate_up, e * p->width * p->c + i, (double)NAN);
        for (int64_t i = 0; !used && i < p->width * p->inner; i++)
            tensor_put(&args->w_down, e * p->width * p->inner + i, (double)NAN);
    }
}

static double rounded(const struct call *c, int order, long double value) {
    double place = (double)value;
    if (order == EXACT) return place;
    element_store(c->dtype, &place, 0, (double)value);
    return element_load(c->dtype, &place, 0);
}

/* Column j of a matrix of an expert, times a row. */
static long double column(struct call *c, int order, const double *row, const double *w, int64_t e,
                          int64_t in, int64_t out, int64_t j, double *size) {
    const bool flips = ((const ejk_moe_args *)c->args)->transpose;
    const double *at = w + e * in * out + (flips ? j * in : j);
    return product_sum(c, order, in, row, 1, at, flips ? 1 : out, size);
}

static void expert(struct call *c, int order, int64_t t, int64_t e, double *middle) {
    const ejk_moe_args *args = c->args;
    const struct moe *p = c->own;
    const bool gated = p->c != p->inner;
    const char *name = args->activation[0] ? args->activation : "swiglu";
    for (int64_t j = 0; j < p->inner; j++) {
        const int64_t at[2] = {gated && args->interleaved ? 2 * j : j,
                               args->interleaved ? 2 * j + 1 : p->inner + j};
        long double sum[2] = {0, 0};
        for (int half = 0; half <= gated; half++) {
            sum[half] = column(c, order, p->hidden + t * p->width, p->first, e, p->width, p->c,
                               at[half], NULL);
            if (p->bias)
                sum[half] =
                    product_round(c, order, sum[half] + (long double)p->bias[e * p->c + at[half]]);
        }
        middle[j] = rounded(c, order, product_activate(name, 7, sum[0], sum[1]));
    }
}

static void layer(struct call *c, int order) {
    const ejk_moe_args *args = c->args;
    struct moe *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *middle = call_memory(c, (size_t)p->inner * sizeof *middle);
    if (!p->hidden) p->hidden = tensor_values(c, &args->hidden);
    if (!p->first) p->first = tensor_values(c, &args->w_gate_up);
    if (!p->second) p->second = tensor_values(c, &args->w_down);
    if (!p->weight) p->weight = tensor_values(c, &args->expert_weight);
    if (!p->bias) p->bias = tensor_values(c, &args->gate_up_bias);
    if (!p->other) p->other = tensor_values(c, &args->down_bias);
    for (int64_t i = 0; i < p->tokens * p->each; i++) {
        const int64_t t = i / p->each, e = (int64_t)tensor_get(&args->expert_index, i);
        expert(c, order, t, e, middle);
        for (int64_t j = 0; j < p->width; j++) {
            double size = 0;
            long double sum = column(c, order, middle, p->second, e, p->inner, p->width, j, &size);
            if (p->other)
                sum = product_round(c, order, sum + (long double)p->other[e * p->width + j]);
            if (p->other) size += fabs(p->other[e * p->width + j]);
            sum = product_round(c, order, sum * (long double)p->weight[i]);
            double *to = &out[t * p->width + j];
            *to = (double)product_round(c, order, (long double)*to + sum);
            if (spread) spread[t * p->width + j] += size * fabs(p->weight[i]);
        }
    }
}

static void exact(struct call *c) {
    layer(c, EXACT);
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct moe *p = c->own;
    if (p->tokens == 0) return false;
    slice_add(s, r, "T", p->tokens, false);
    return true;
}

/* Experts here are no codes: those of tests/operations/matmul/test_prepack.c are. */
const struct operation moe_case = {.op = "moe",
                                   .never = "/bytes",
                                   .cases = 60,
                                   .generate = generate,
                                   .finish = finish,
                                   .exact = exact,
                                   .naive = layer,
                                   .slice = slice};
