/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What suits a processor. Which lines few rows ask for: paged_ask.h has the figures. Rows of a task: each packs all its
 * keys, so more rows are better while their sums stay in the second-level cache and there are tasks for all threads
 * (Zen 5, 512 rows on 7680: 342 ms of 192 rows a task, 325 of 384, 310 of 768 in float32; 182, 175 and 170 in bf16).
 */
#include "operations/paged/cpu/suggest.h"

#include <ejkernel/device.h>

#include "operations/paged/shared/problem.cuh"

#include <string.h>

enum { ROWS, KEYS, SPLIT, HINT };
enum { MOST_ROWS = 768, TASKS = 4 /* for each thread */ };

void ejki_paged_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const paged_problem *p = problem;
    const ejk_cpu_info *cpu = ejk_cpu();
    const bool zen5 = strcmp(cpu->vendor, "amd") == 0 && cpu->family >= 26;
    values[HINT] = ejk_int(!zen5);
    if (zen5 && p->tokens * p->heads >= MOST_ROWS * TASKS * (paged_size)threads)
        values[ROWS] = ejk_int(MOST_ROWS);
}
