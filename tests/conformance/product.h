/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products, as cases of matrix products need them: in long double, or in the type of the call in some order. */
#ifndef TESTS_CONFORMANCE_PRODUCT_H
#define TESTS_CONFORMANCE_PRODUCT_H

#include "conformance/call.h"

/* Rounded to what the call computes with. */
static inline long double product_round(const struct call *c, int order, long double value) {
    if (order == EXACT) return value;
    return c->dtype == EJK_DTYPE_F64 ? (long double)(double)value : (long double)(float)value;
}

/* Σ a[k a_step] b[k b_step]; an order begins at another k. *size: the sum of the terms' sizes. */
static inline long double product_sum(const struct call *c, int order, int64_t depth,
                                      const double *a, int64_t a_step, const double *b,
                                      int64_t b_step, double *size) {
    const int64_t from = order == EXACT ? 0 : depth * order / ORDERS;
    long double sum = 0;
    for (int64_t i = 0; i < depth; i++) {
        const int64_t k = (from + i) % depth;
        const long double term = (long double)a[k * a_step] * (long double)b[k * b_step];
        sum = product_round(c, order, sum + product_round(c, order, term));
        if (size) *size += fabs((double)term);
    }
    return sum;
}

/* Activations by the names of matmul.h. */
long double product_activate(const char *name, double limit, long double gate, long double value);
/* A name; `gated`: one that takes a gate and a value. */
const char *product_activation(struct random *r, bool *gated);

/* A row rounded as activation_bits of 8 has it, in blocks of up to 128 of each group of `size`. */
void product_round_row(double *row, int64_t depth, int64_t size);

/* Values as numbers of the type of the call. */
double *product_rounded(struct call *c, const double *values, int64_t count);

/* Normal numbers, now and then one that is not finite. */
void product_fill(struct call *c, const ejk_tensor *t, bool loud);
/* A floating type that calls of the type may have beside it. */
ejk_dtype product_type(struct call *c);

#endif
