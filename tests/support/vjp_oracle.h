/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradients of flash attention should be, by the reference in f64, and how far others may be from it: twice
 * the error of a naive evaluation plus 4 eps (SEMANTICS section 5). Naive: every operation rounded to f32, weights
 * from the lse that was given, weights and dS rounded to the type of the tensors before they are multiplied,
 * rounded to the type at the end. Sums in two orders, of which the larger error counts; where a result is beyond
 * that, in six others too: one large product in a few rows decides, and naive errors then differ tenfold from order
 * to order. Where few numbers make that a matter of luck, eps is relative to what is added rather than to what
 * remains of it.
 */
#ifndef TESTS_VJP_ORACLE_H
#define TESTS_VJP_ORACLE_H

#include "support/vjp_case.h"

enum { VJP_ORDERS = 8 };

struct vjp_oracle {
    const struct vjp_case *c;
    double *exact[VJP_GRADIENTS], *naive[VJP_ORDERS][VJP_GRADIENTS];
    int orders;                    /* that naive ones have been evaluated in */
    double *spread[VJP_GRADIENTS]; /* sums of the terms' sizes */
    int64_t count[VJP_GRADIENTS];
    double magnitude;    /* largest Σ |scale·q·k| + |bias| of a visible key */
    int64_t rows, pairs; /* of which a row sees a key */
    ejk_dtype dtype;     /* of results; at first that of the tensors */
};

/* Of a case that stays as it is. Exits the process without memory. */
void vjp_oracle_create(struct vjp_oracle *o, const struct vjp_case *c);
void vjp_oracle_destroy(struct vjp_oracle *o);

/* False, and why, if a gradient is too far off. *worst rises to the largest part of a tolerance in use. */
bool vjp_oracle_accepts(struct vjp_oracle *o, int gradient, const float *got, double *worst,
                        char *why, size_t size);

#endif
