/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What suits a processor. Which lines few rows prefetch: paged_prefetch.h has the figures. Rows of a task: each packs
 * all its keys, so more rows are better while their sums stay in the second-level cache, which has to have 1 MiB, and
 * all threads have tasks (512 rows on 7680, ms of 192, 384 and 768 rows a task; Zen 5: 342, 325, 310 in float32, 182,
 * 175, 170 in bf16; Cascade Lake 793, -, 650; AMX on a Sapphire Rapids: 402, -, 316, and with blocks of 512 keys in
 * place of 128: 398, -, 289). Latents have blocks of 128 keys there (3.8 ms for 8192 keys and 16 heads; 4.8 with 512).
 */
#include "operations/paged/cpu/suggest.h"

#include <ejkernel/device.h>

#include "operations/paged/cpu/amx/paged_prefill.h"
#include "operations/paged/shared/problem.cuh"

#include <string.h>

enum { ROWS, KEYS, SPLIT, HINT, DISTANCE };
enum {
    MOST_ROWS = 768,
    DENSE_ROWS = 1020,
    TASKS = 4 /* for each thread */,
    LONG_BLOCK = 512,
    SHORT_DIMS = 512,
    LARGE_CACHE = 1 << 20
};

static void suggest_rows(const paged_problem *p, int32_t threads, paged_size rows,
                         ejk_opt_int *values) {
    if (p->tokens * p->heads >= rows * TASKS * (paged_size)threads) values[ROWS] = ejk_int(rows);
}

/* How few rows prefetch. */
typedef struct paged_streaming {
    int64_t hint, bytes;
} paged_streaming;

static paged_streaming streaming_of(const paged_problem *p, const ejk_cpu_info *cpu) {
    const bool together = p->kv_heads == 1 || p->key.head < p->key.token;
    const bool amd = strcmp(cpu->vendor, "amd") == 0, intel = strcmp(cpu->vendor, "intel") == 0;
    const bool zen5 = amd && cpu->family >= 26;
    const bool zen4 = amd && !zen5 && cpu->tiers[EJK_ISA_AVX512];
    if (zen5) return (paged_streaming){PREFETCH_ROWS, 16 << 10};
    if (zen4 && p->tail_dim == 0) {
        if (p->key.dtype != (int)EJK_DTYPE_F32)
            return (paged_streaming){PREFETCH_IN_ORDER, 32 << 10};
        if (!together) return (paged_streaming){PREFETCH_IN_STEP, 16 << 10};
    }
    if (!intel || p->tail_dim > 0) return (paged_streaming){PREFETCH_IN_ORDER, 1 << 20};
    if (together) return (paged_streaming){PREFETCH_ROWS_SECOND, 16 << 10};
    if (cpu->tiers[EJK_ISA_AMX] && p->key.dtype == (int)EJK_DTYPE_F32)
        return (paged_streaming){PREFETCH_IN_STEP, 16 << 10};
    return (paged_streaming){PREFETCH_IN_ORDER, 32 << 10};
}

void ejki_paged_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const paged_streaming s = streaming_of(problem, cpu);
    values[HINT] = ejk_int(s.hint);
    values[DISTANCE] = ejk_int(s.bytes);
    if (cpu->l2_bytes >= LARGE_CACHE) suggest_rows(problem, threads, MOST_ROWS, values);
}

void ejki_paged_suggest_amx(const void *problem, int32_t threads, ejk_opt_int *values) {
    const paged_problem *p = problem;
    ejki_paged_suggest(problem, threads, values);
    suggest_rows(p, threads, MOST_ROWS, values);
    if (ejki_paged_prefills(p)) suggest_rows(p, threads, DENSE_ROWS, values);
    if (p->dim + p->tail_dim + p->value_dim <= SHORT_DIMS) values[KEYS] = ejk_int(LONG_BLOCK);
}
