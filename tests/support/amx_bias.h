/* SPDX-License-Identifier: Apache-2.0 */
/* Biases of the random problems for AMX. */
#ifndef TESTS_AMX_BIAS_H
#define TESTS_AMX_BIAS_H

#include "support/expect.h"
#include "support/random.h"

#include <math.h>

/* Now and then what people hide keys with, and something that raises a reference. `far`: such biases may be finite,
 * which for values that are not finite makes a difference between 0 and almost 0. */
static inline double amx_bias(struct random *r, bool far) {
    static const double low[] = {-1e4, -1e5, -1e9, -1e38}, high[] = {30, 300, 3000, 1e38};
    if (random_chance(r, 0.02)) return far && random_chance(r, 0.5) ? RANDOM_OF(r, low) : -INFINITY;
    return far && random_chance(r, 1e-4) ? RANDOM_OF(r, high) : random_normal(r);
}

#endif
