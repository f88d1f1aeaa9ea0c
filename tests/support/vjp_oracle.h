/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradients of flash attention should be, by the reference in f64, and how far others may be from it: twice
 * the error of a naive evaluation plus 4 eps (SEMANTICS section 5). Naive: every operation rounded to f32, weights
 * from the lse that was given, weights and slopes rounded to the type of the tensors before they are multiplied,
 * sums in two orders of which the larger error counts, rounded to the type at the end. Where few numbers make
 * that a matter of luck, eps is relative to what is added rather than to what remains of it.
 */
#ifndef TESTS_VJP_ORACLE_H
#define TESTS_VJP_ORACLE_H

#include "support/vjp_case.h"

struct vjp_oracle {
    double *exact[VJP_GRADIENTS], *naive[2][VJP_GRADIENTS];
    double *spread[VJP_GRADIENTS]; /* sums of the terms' sizes */
    int64_t count[VJP_GRADIENTS];
    double magnitude;    /* largest Σ |scale·q·k| + |bias| of a visible key */
    int64_t rows, pairs; /* of which a row sees a key */
    ejk_dtype dtype;
};

/* Exits the process without memory. */
void vjp_oracle_create(struct vjp_oracle *o, const struct vjp_case *c);
void vjp_oracle_destroy(struct vjp_oracle *o);

/* False, and why, if a gradient is too far off. *worst rises to the largest part of a tolerance in use. */
bool vjp_oracle_accepts(const struct vjp_oracle *o, int gradient, const float *got, double *worst,
                        char *why, size_t size);

#endif
