/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random calls of all operations on top of flash attention, of their gradients, and of flash attention with a few rows, as
 * decoding has them: each made from one number, with tensors on the CPU.
 */
#ifndef TESTS_OPERATION_CASE_H
#define TESTS_OPERATION_CASE_H

#include "support/random.h"

#include <ejkernel/ejkernel.h>

struct operation_case {
    ejk_context *context;
    uint64_t seed;
    struct random random;
    /* Given each call when its tensors hold the results of the reference. */
    void (*call)(struct operation_case *c, const ejk_kernel *kernel, const void *args);
    void *user;
    bool few_rows; /* this one has few */
};

/* What kind of case a seed makes, 0 to 15: all kinds come in turn, also for who takes every sixteenth seed. */
static inline int operation_case_kind(uint64_t seed) {
    return (int)((seed + seed / 16) % 16);
}

/* Makes the calls of a seed: mostly one operation and its gradients. Exits the process if the reference refuses. */
void operation_case_run(struct operation_case *c);

#endif
