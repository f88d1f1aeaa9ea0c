/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ejki_quantile(double *values, int64_t count, double part) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    const double place = part * (double)(count - 1);
    const int64_t below = (int64_t)place, above = ejki_min(below + 1, count - 1);
    return values[below] + (place - (double)below) * (values[above] - values[below]);
}
