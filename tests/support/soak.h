/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests over random rounds: a few in the quick suite, or as many as EJK_TEST_SECONDS allow for each test,
 * from a seed of their own. A round that fails tells its seed, and EJK_TEST_SEED makes it the first one.
 */
#ifndef TESTS_SOAK_H
#define TESTS_SOAK_H

#include "support/expect.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct soak {
    bool running;
    uint64_t seed; /* of this round; the next one has the next */
    int64_t round;
    double end; /* in seconds; 0 = a number of rounds */
} soak;

static inline double soak_now(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void soak_begin(uint64_t seed) {
    const char *seconds = getenv("EJK_TEST_SECONDS"), *wanted = getenv("EJK_TEST_SEED");
    soak = (struct soak){.running = true, .seed = seed << 32};
    if (seconds) {
        soak.end = soak_now() + strtod(seconds, NULL);
        soak.seed = (uint64_t)soak_now() << 20;
    }
    if (wanted) soak.seed = strtoull(wanted, NULL, 10);
}

/* Begins a round with numbers of its own; false at the end. */
static inline bool soak_round(struct random *r, uint64_t seed, int64_t rounds) {
    if (!soak.running)
        soak_begin(seed);
    else
        soak.seed++;
    soak.running = soak.end > 0 ? soak_now() < soak.end : soak.round < rounds;
    soak.round++;
    r->state = soak.seed;
    return soak.running;
}

/* After a test; it is still running if it failed. */
static inline int soak_end(void **state) {
    (void)state;
    if (soak.running)
        fprintf(stderr, "EJK_TEST_SEED=%llu repeats the round\n", (unsigned long long)soak.seed);
    else if (soak.end > 0)
        fprintf(stderr, "%lld rounds\n", (long long)soak.round - 1);
    soak.running = false;
    return 0;
}

#define SOAK_TEST(name) cmocka_unit_test_teardown(name, soak_end)

#endif
