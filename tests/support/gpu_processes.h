/* SPDX-License-Identifier: Apache-2.0 */
/* Cases on a GPU, shared out to processes: what takes time is compiling their kernels. */
#ifndef TESTS_SUPPORT_GPU_PROCESSES_H
#define TESTS_SUPPORT_GPU_PROCESSES_H

#include "support/gpu_driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* A process does cases first, first + step, … below `cases`, until the end has come. */
typedef struct gpu_share {
    uint64_t first, step, cases;
    time_t end;
} gpu_share;

/* Whether there is a GPU, looked for in a child: one that has begun with CUDA has no use for children. Says why not. */
bool gpu_present(void);

/* The environment's number, or the other. */
uint64_t gpu_number(const char *name, uint64_t otherwise);

/* What processes write, and how: `size` bytes of zeros for each, that begin with what it is doing, as text. */
typedef struct gpu_work {
    void (*run)(void *counts, const gpu_share *share);
    size_t size;
    uint64_t cases, seconds; /* unless EJK_TEST_CASES and EJK_TEST_SECONDS tell others */
} gpu_work;

/*
 * Runs EJK_TEST_PROCESSES processes, or as many as there are processors, and returns how many of them failed; all did
 * if there is no memory. The counts live as long as the process.
 */
int gpu_run_processes(const gpu_work *work, void **counts, int *processes);

#endif
