/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a result may be from what is exact: SEMANTICS section 5. The error may be twice that of a naive evaluation
 * in the type of the call plus 4 eps, in the Frobenius norm and in the largest element. Naive sums run in two orders,
 * of which the larger error counts; where a result is beyond that, in six others too: rounding of one large score
 * decides, and naive errors then differ tenfold from order to order. tolerance() says where that is too little to go
 * by.
 */
#ifndef TESTS_CONFORMANCE_COMPARE_H
#define TESTS_CONFORMANCE_COMPARE_H

#include "conformance/placement.h"

/* False, and why, if a result is too far off. *worst is raised to the largest part of a tolerance that was used. */
bool compare_results(struct call *c, const struct taken *got, double *worst, char *why,
                     size_t size);

/* Equal bits; of NaN, whose bits tell only which operand came first, any are equal. */
bool same_element(ejk_dtype dtype, const unsigned char *a, const unsigned char *b);
/* The first of elements from `from` to `to` that differs so; `to` if none does. */
int64_t first_difference(ejk_dtype dtype, const unsigned char *a, const unsigned char *b,
                         int64_t from, int64_t to);

#endif
