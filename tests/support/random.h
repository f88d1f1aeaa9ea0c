/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that a seed repeats on every machine (S. Vigna's splitmix64). */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_bits(struct random *r) {
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* One of low … high, both included. */
static inline int64_t random_int(struct random *r, int64_t low, int64_t high) {
    return low + (int64_t)(random_bits(r) % (uint64_t)(high - low + 1));
}

/* In [0, 1). */
static inline double random_real(struct random *r) {
    return (double)(random_bits(r) >> 11) * 0x1p-53;
}

static inline bool random_chance(struct random *r, double probability) {
    return random_real(r) < probability;
}

/* Mean 0, deviation 1 (G. Box, M. Muller). In float, in which log and cos take a third of the time. */
static inline double random_normal(struct random *r) {
    const float u = (float)(1 - random_real(r)), v = (float)random_real(r);
    return (double)(sqrtf(-2 * logf(u)) * cosf(6.2831853f * v));
}

/* An element of an array. */
#define RANDOM_OF(r, array)                                                                        \
    ((array)[random_int((r), 0, (int64_t)(sizeof(array) / sizeof((array)[0])) - 1)])

#endif
