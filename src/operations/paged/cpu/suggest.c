/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What suits a processor. Which lines few rows prefetch: paged_prefetch.h has the figures. Rows of a task: each packs
 * all its keys, so more rows are better while their sums stay in the second-level cache and all threads have tasks
 * (512 rows on 7680, ms of 192, 384 and 768 rows a task; Zen 5: 342, 325, 310 in float32, 182, 175, 170 in bf16; AMX on
 * a Sapphire Rapids: 402, -, 316, and with blocks of 512 keys in place of 128: 398, -, 289). Latents have blocks of 128
 * keys there (3.8 ms for 8192 keys and 16 heads; 4.8 with 512).
 */
#include "operations/paged/cpu/suggest.h"

#include <ejkernel/device.h>

#include "operations/paged/shared/problem.cuh"

#include <string.h>

enum { ROWS, KEYS, SPLIT, HINT };
enum { MOST_ROWS = 768, TASKS = 4 /* for each thread */, LONG_BLOCK = 512, SHORT_DIMS = 512 };

static void suggest_rows(const paged_problem *p, int32_t threads, ejk_opt_int *values) {
    if (p->tokens * p->heads >= MOST_ROWS * TASKS * (paged_size)threads)
        values[ROWS] = ejk_int(MOST_ROWS);
}

void ejki_paged_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const bool zen5 = strcmp(cpu->vendor, "amd") == 0 && cpu->family >= 26;
    values[HINT] = ejk_int(!zen5);
    if (zen5) suggest_rows(problem, threads, values);
}

void ejki_paged_suggest_amx(const void *problem, int32_t threads, ejk_opt_int *values) {
    const paged_problem *p = problem;
    ejki_paged_suggest(problem, threads, values);
    suggest_rows(p, threads, values);
    if (p->dim + p->tail_dim + p->value_dim <= SHORT_DIMS) values[KEYS] = ejk_int(LONG_BLOCK);
}
