/* SPDX-License-Identifier: Apache-2.0 */
/* A call of state_space_v2 as its case holds it, and its formulas in three precisions. */
#ifndef TESTS_CONFORMANCE_SSD_H
#define TESTS_CONFORMANCE_SSD_H

#include "conformance/lines.h"

/* Tensors of a call; Y: the result or its cotangent, AFTER: the final state or its cotangent. */
enum ssd_tensor {
    SSD_X,
    SSD_A,
    SSD_B,
    SSD_C,
    SSD_D,
    SSD_DT,
    SSD_GATE,
    SSD_BIAS,
    SSD_BEFORE,
    SSD_WEIGHT,
    SSD_GIVEN,
    SSD_Y = SSD_GIVEN,
    SSD_AFTER,
    SSD_TENSORS
};

struct ssd {
    struct lines lines;
    int64_t heads, size, states, groups; /* H, P, K, G */
    bool softplus, limited, pooled, reverse, norm, norm_first;
    int64_t norm_group;
    double eps;
    ejk_tensor tensor[SSD_TENSORS];
    double *x[SSD_TENSORS]; /* their values; NULL = the call has no such */
};

/* Limits of step sizes, where a call has them. */
#define SSD_LEAST 0.125
#define SSD_MOST  0.75

/* All results of a call, in an order of summation; EXACT is the first. */
void ssd_long(struct call *c, const struct ssd *p, int order);
void ssd_double(struct call *c, const struct ssd *p, int order);
void ssd_float(struct call *c, const struct ssd *p, int order);

#endif
