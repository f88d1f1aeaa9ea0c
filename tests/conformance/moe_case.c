/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of experts. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

struct moe {
    int64_t tokens, each, experts, width, inner, c; /* c: columns of the first matrices */
    int64_t bits, size;                             /* of codes; bits 0: none */
    bool rounds;
    double *hidden, *first, *second, *bias, *other, *weight;
};

/* Matrices of affine codes, their scales, and in half of the calls zeros. */
static ejk_tensor codes_of(struct call *c, const struct moe *p, int64_t rows, int64_t columns,
                           ejk_tensor *scales, ejk_tensor *zeros) {
    struct random *r = &c->random;
    const int64_t groups = (columns + p->size - 1) / p->size;
    const ejk_tensor w =
        CALL_TENSOR(c, EJK_DTYPE_U32, p->experts, rows, (columns * p->bits + 31) / 32);
    for (int64_t i = 0; i < ejk_tensor_count(&w); i++)
        tensor_put(&w, i, (double)(uint32_t)random_bits(r));
    *scales = CALL_TENSOR(c, EJK_DTYPE_BF16, p->experts, rows, groups);
    for (int64_t i = 0; i < ejk_tensor_count(scales); i++)
        tensor_put(scales, i, (random_real(r) - 0.5) / (double)(1 << (p->bits - 1)));
    if (random_chance(r, 0.5)) return w;
    *zeros = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_F16 : EJK_DTYPE_U8, p->experts, rows,
                         groups);
    for (int64_t i = 0; i < ejk_tensor_count(zeros); i++)
        tensor_put(zeros, i,
                   zeros->dtype == EJK_DTYPE_U8 ? (double)random_int(r, 0, 15)
                                                : random_real(r) * (double)(1 << p->bits));
    return w;
}

static double *values_of(struct call *c, const struct moe *p, const ejk_tensor *w,
                         const ejk_tensor *scales, const ejk_tensor *zeros, int64_t columns) {
    const int64_t rows = w->shape[0] * w->shape[1], words = w->shape[2], groups = scales->shape[2];
    double *values = call_memory(c, (size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t row = i / columns, bit = i % columns * p->bits;
        const int64_t group = row * groups + i % columns / p->size;
        const uint32_t word = (uint32_t)tensor_get(w, row * words + bit / 32);
        const uint32_t code = word >> bit % 32 & ((1U << p->bits) - 1);
        const double zero =
            ejk_tensor_present(zeros) ? tensor_get(zeros, group) : (double)(1 << (p->bits - 1));
        values[i] = (float)((float)(code - zero) * (float)tensor_get(scales, group));
    }
    return values;
}

static ejk_tensor matrices(struct call *c, const ejk_moe_args *args, int64_t experts, int64_t in,
                           int64_t out) {
    const ejk_tensor t = args->transpose ? CALL_TENSOR(c, c->dtype, experts, out, in)
                                         : CALL_TENSOR(c, c->dtype, experts, in, out);
    product_fill(c, &t, false);
    return t;
}

static bool generate(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 7, 13, 40}, sizes[] = {1, 7, 16, 33, 64},
                         depths[] = {16, 64, 130, 300};
    ejk_moe_args *args = c->args;
    struct random *r = &c->random;
    struct moe *p = call_memory(c, sizeof *p);
    bool gated = true;
    c->own = p;
    p->tokens = RANDOM_OF(r, tokens);
    p->each = random_int(r, 1, 4);
    p->experts = random_int(r, 1, 8);
    const bool coded = random_chance(r, 0.4);
    c->tiled = c->tiled || (coded && random_chance(r, 0.5));
    p->width = c->tiled ? RANDOM_OF(r, depths) : RANDOM_OF(r, sizes);
    p->inner = c->tiled ? RANDOM_OF(r, depths) : RANDOM_OF(r, sizes);
    while (p->tokens * p->each * p->width * p->inner > c->budget) p->tokens /= 2;
    if (random_chance(r, 0.7)) strcpy(args->activation, product_activation(r, &gated));
    if (!args->activation[0]) gated = true;
    p->c = gated ? 2 * p->inner : p->inner;
    args->interleaved = gated && random_chance(r, 0.4);
    if (gated && random_chance(r, 0.3)) args->limit = ejk_float(0.5);
    args->transpose = random_chance(r, 0.5);
    args->hidden = CALL_TENSOR(c, c->dtype, p->tokens, p->width);
    product_fill(c, &args->hidden, false);
    args->expert_index =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, p->tokens, p->each);
    args->expert_weight = CALL_TENSOR(c, product_type(c), p->tokens, p->each);
    product_fill(c, &args->expert_weight, false);
    if (coded) {
        const bool flips = args->transpose;
        p->bits = random_chance(r, 0.6) ? 4 : 8;
        p->size = random_chance(r, 0.5) ? 32 : 64;
        args->bits = ejk_int(p->bits);
        args->group_size = ejk_int(p->size);
        p->rounds = flips && random_chance(r, 0.4);
        if (p->rounds) args->activation_bits = ejk_int(8);
        args->w_gate_up = codes_of(c, p, flips ? p->c : p->width, flips ? p->width : p->c,
                                   &args->gate_up_scales, &args->gate_up_zeros);
        args->w_down = codes_of(c, p, flips ? p->width : p->inner, flips ? p->inner : p->width,
                                &args->down_scales, &args->down_zeros);
    } else {
        args->w_gate_up = matrices(c, args, p->experts, p->width, p->c);
        args->w_down = matrices(c, args, p->experts, p->inner, p->width);
    }
    if (random_chance(r, 0.3))
        args->gate_up_bias = CALL_TENSOR(c, product_type(c), p->experts, p->c);
    if (random_chance(r, 0.3))
        args->down_bias = CALL_TENSOR(c, product_type(c), p->experts, p->width);
    if (ejk_tensor_present(&args->gate_up_bias)) product_fill(c, &args->gate_up_bias, false);
    if (ejk_tensor_present(&args->down_bias)) product_fill(c, &args->down_bias, false);
    for (int64_t i = 0; i < p->tokens * p->each; i++)
        tensor_put(&args->expert_index, i, (double)random_int(r, 0, p->experts - 1));
    args->out = CALL_TENSOR(c, c->dtype, p->tokens, p->width);
    c->scarce = p->tokens * p->width < 256 || p->rounds;
    /* An element between the products that lies between two steps may take the other one: a hundredth. */
    if (p->rounds) c->magnitude = 2.5e-3 / (c->dtype == EJK_DTYPE_F32 ? 0x1p-23 : 0x1p-7);
    return true;
}

static void hide(const struct moe *p, int64_t e, const ejk_tensor *t) {
    const int64_t own = ejk_tensor_count(t) / p->experts;
    for (int64_t i = 0; i < own; i++) tensor_put(t, e * own + i, (double)NAN);
}

/* Experts that no token has chosen hold NaN, codes in their scales. */
static void finish(struct call *c) {
    const ejk_moe_args *args = c->args;
    const struct moe *p = c->own;
    for (int64_t e = 0; e < p->experts; e++) {
        bool used = false;
        for (int64_t i = 0; i < p->tokens * p->each; i++)
            used = used || (int64_t)tensor_get(&args->expert_index, i) == e;
        if (used) continue;
        hide(p, e, p->bits ? &args->gate_up_scales : &args->w_gate_up);
        hide(p, e, p->bits ? &args->down_scales : &args->w_down);
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
    const double limit = args->limit.set ? args->limit.value : 7;
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
        middle[j] = rounded(c, order, product_activate(name, limit, sum[0], sum[1]));
    }
    if (p->rounds) product_round_row(middle, p->inner, p->size);
}

static void layer(struct call *c, int order) {
    const ejk_moe_args *args = c->args;
    struct moe *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *middle = call_memory(c, (size_t)p->inner * sizeof *middle);
    if (!p->hidden) {
        p->hidden = tensor_values(c, &args->hidden);
        for (int64_t t = 0; p->rounds && t < p->tokens; t++)
            product_round_row(p->hidden + t * p->width, p->width, p->size);
    }
    const bool flips = args->transpose;
    if (!p->first)
        p->first = p->bits ? values_of(c, p, &args->w_gate_up, &args->gate_up_scales,
                                       &args->gate_up_zeros, flips ? p->width : p->c)
                           : tensor_values(c, &args->w_gate_up);
    if (!p->second)
        p->second = p->bits ? values_of(c, p, &args->w_down, &args->down_scales, &args->down_zeros,
                                        flips ? p->inner : p->width)
                            : tensor_values(c, &args->w_down);
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

/* Packed codes, and those of other formats, are those of tests/operations/matmul/test_prepack.c. */
const struct operation moe_case = {.op = "moe",
                                   .cases = 60,
                                   .generate = generate,
                                   .finish = finish,
                                   .exact = exact,
                                   .naive = layer,
                                   .slice = slice};
