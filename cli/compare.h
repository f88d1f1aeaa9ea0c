/* SPDX-License-Identifier: Apache-2.0 */
/* How far a tensor is from what it should be. */
#ifndef EJK_CLI_COMPARE_H
#define EJK_CLI_COMPARE_H

#include "cli.h"

/*
 * Both relative to what is expected: the norm of the difference to the norm, the largest difference to the
 * largest magnitude. Infinite if a value is NaN or infinite in one of the two only.
 */
typedef struct difference {
    double relative, maximum;
} difference;

/* Compares in float64, whatever the types. Shapes must agree. */
bool compare(const ejk_tensor *actual, const ejk_tensor *expected, difference *out);

/* True if no element is NaN and, if `finite`, none is infinite. */
bool check_values(const ejk_tensor *tensor, const char *name, bool finite);

#endif
