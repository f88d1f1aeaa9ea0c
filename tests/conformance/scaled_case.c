/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices of eight bits with scales of blocks. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

enum { BLOCK = 128 };

struct scaled {
    int64_t m, k, n, blocks;
    double *lhs, *rhs, *lhs_scale, *rhs_scale, *bias, *residual;
};

static int64_t blocks_of(int64_t count) {
    return (count + BLOCK - 1) / BLOCK;
}

static ejk_tensor scales_of(struct call *c, int64_t rows, int64_t columns) {
    const ejk_tensor t = CALL_TENSOR(c, EJK_DTYPE_F32, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) tensor_put(&t, i, random_real(&c->random) - 0.3);
    return t;
}

static ejk_tensor eights(struct call *c, int64_t rows, int64_t columns) {
    const ejk_tensor t = CALL_TENSOR(c, EJK_DTYPE_F8E4M3, rows, columns);
    product_fill(c, &t, true);
    return t;
}

static bool generate(struct call *c) {
    static const char *activations[] = {"", "", "silu", "relu", "gelu", "gelu_tanh"};
    static const ejk_dtype types[] = {EJK_DTYPE_UNSET, EJK_DTYPE_BF16, EJK_DTYPE_F16,
                                      EJK_DTYPE_F32};
    static const int64_t rows[] = {0, 1, 2, 5, 31, 64, 65, 129, 200},
                         depths[] = {0, 1, 16, 31, 64, 128, 130, 300, 1000},
                         columns[] = {0, 1, 7, 64, 127, 128, 129, 300};
    ejk_scaled_matmul_args *args = c->args;
    struct random *r = &c->random;
    struct scaled *p = call_memory(c, sizeof *p);
    c->own = p;
    p->m = RANDOM_OF(r, rows);
    p->k = RANDOM_OF(r, depths);
    p->n = RANDOM_OF(r, columns);
    while (p->m * p->k * p->n > c->budget && p->m > 1) p->m /= 2;
    while (p->m * p->k * p->n > c->budget && p->k > 1) p->k /= 2;
    if (random_chance(r, 0.5)) p->k = (p->k + 15) / 16 * 16; /* copies of sm_90 take these */
    p->blocks = blocks_of(p->k);
    args->lhs = eights(c, p->m, p->k);
    args->rhs = eights(c, p->n, p->k);
    args->lhs_scale = scales_of(c, p->m, p->blocks);
    args->rhs_scale = scales_of(c, blocks_of(p->n), p->blocks);
    strcpy(args->activation, RANDOM_OF(r, activations));
    if (random_chance(r, 0.4)) {
        args->bias = CALL_TENSOR(c, product_type(c), p->n);
        product_fill(c, &args->bias, false);
    }
    if (random_chance(r, 0.4)) {
        args->residual = CALL_TENSOR(c, product_type(c), p->m, p->n);
        product_fill(c, &args->residual, false);
    }
    args->preferred_element_type = RANDOM_OF(r, types);
    const bool unset = args->preferred_element_type == EJK_DTYPE_UNSET;
    args->out = CALL_TENSOR(c, unset ? EJK_DTYPE_BF16 : args->preferred_element_type, p->m, p->n);
    c->scarce = p->m * p->n < 64;
    return true;
}

/* A block's products, then its scales; `size`: of all terms. */
static long double sum_of(struct call *c, int order, int64_t i, int64_t j, double *size) {
    const struct scaled *p = c->own;
    long double all = 0;
    for (int64_t b = 0; b < p->blocks; b++) {
        const int64_t first = b * BLOCK, left = p->k - first;
        const long double scale =
            product_round(c, order,
                          (long double)p->lhs_scale[i * p->blocks + b] *
                              (long double)p->rhs_scale[j / BLOCK * p->blocks + b]);
        double own = 0;
        const long double sum =
            product_sum(c, order, left < BLOCK ? left : BLOCK, p->lhs + i * p->k + first, 1,
                        p->rhs + j * p->k + first, 1, &own);
        all = product_round(c, order, all + product_round(c, order, sum * scale));
        *size += own * fabs((double)scale);
    }
    return all;
}

static void products(struct call *c, int order) {
    const ejk_scaled_matmul_args *args = c->args;
    struct scaled *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    if (!p->lhs) p->lhs = tensor_values(c, &args->lhs);
    if (!p->rhs) p->rhs = tensor_values(c, &args->rhs);
    if (!p->lhs_scale) p->lhs_scale = tensor_values(c, &args->lhs_scale);
    if (!p->rhs_scale) p->rhs_scale = tensor_values(c, &args->rhs_scale);
    if (!p->bias) p->bias = tensor_values(c, &args->bias);
    if (!p->residual) p->residual = tensor_values(c, &args->residual);
    for (int64_t at = 0; at < p->m * p->n; at++) {
        double size = 0;
        long double value = sum_of(c, order, at / p->n, at % p->n, &size);
        if (p->bias) value = product_round(c, order, value + (long double)p->bias[at % p->n]);
        if (p->bias) size += fabs(p->bias[at % p->n]);
        value = product_round(c, order, product_activate(args->activation, 7, value, 0));
        if (p->residual) value = product_round(c, order, value + (long double)p->residual[at]);
        if (p->residual) size += fabs(p->residual[at]);
        out[at] = (double)value;
        if (spread) spread[at] = fmax(size, fabs(out[at]));
    }
}

static void exact(struct call *c) {
    products(c, EXACT);
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct scaled *p = c->own;
    if (p->m * p->k * p->n == 0) return false;
    slice_add(s, r, "M", p->m, false);
    return true;
}

static const struct refused refused[] = {
    {EJK_STATUS_INVALID_SHAPE, "rhs_scale", "rhs_scale=float32[2,2]"},
    {EJK_STATUS_INVALID_SHAPE, "lhs_scale", "lhs_scale=float32[4,3]"},
    {EJK_STATUS_INVALID_DTYPE, "lhs", "lhs=float16[4,200]"},
    {EJK_STATUS_INVALID_DTYPE, "out: float32 given, expected bfloat16", "out=float32[4,8]"},
    {EJK_STATUS_OK, "", "out=float32[4,8] preferred_element_type=float32"},
    {EJK_STATUS_INVALID_ARGUMENT, "without a gate", "activation=swiglu"},
    {EJK_STATUS_UNKNOWN_NAME, "none, relu", "activation=step"},
    {.changes = NULL}};
REFUSED_CALL(ejk_scaled_matmul)

const struct operation scaled_matmul_case = {
    .op = "scaled_matmul",
    .only = EJK_DTYPE_F32,
    .cases = 80,
    .generate = generate,
    .exact = exact,
    .naive = products,
    .slice = slice,
    .call = ejk_scaled_matmul_call,
    .good = "lhs=float8_e4m3fn[4,200] rhs=float8_e4m3fn[8,200] lhs_scale=float32[4,2] "
            "rhs_scale=float32[1,2] out=bfloat16[4,8]",
    .refused = refused};
