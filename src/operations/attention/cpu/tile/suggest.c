/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the tiled kernel. */
#include "operations/attention/shared/suggest.h"

/* Keys of which the first-level cache holds the scores of a tile's 12 rows in half of it. */
static int64_t score_keys(void) {
    const int64_t cache = ejk_cpu()->l1d_bytes > 0 ? ejk_cpu()->l1d_bytes : 32 << 10;
    return ejki_clamp(cache / 2 / (12 * (int64_t)sizeof(float)) / 32 * 32, 256, 512);
}

/*
 * Blocks by the second-level cache, of which half goes to a task's queries and sums and a quarter to the keys and
 * values at hand, as floats or, half as long, as pairs of bf16; queries packed beyond 512 rows gained nothing
 * (docs/kernels/flash_attention.md has the figures), but in a window, whose keys each task packs besides its own. A
 * window's edges cut blocks, which costs less where they are shorter than it. Below that, tasks are made small
 * enough for four per thread. The size of a task changes no result; the block of keys follows from the shapes and the
 * processor, never from the number of threads.
 */
static void suggest(const ejki_flash_problem *p, int32_t threads, int64_t row,
                    ejk_opt_int *values) {
    const int64_t cache = ejki_cache_bytes(), window = ejki_window_of(p);
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads);
    const int64_t tasks_per_head = ejki_cdiv((int64_t)threads * 4, heads);
    const int64_t share = ejki_cdiv(p->queries * p->group, tasks_per_head);
    const int64_t rows = ejki_clamp(cache / 2 / row, 48, window < p->keys ? 1024 : 512);
    values[EJKI_Q_BLOCKSIZE] = ejk_int(ejki_min(rows, ejki_max(share, 48)));
    values[EJKI_KV_BLOCKSIZE] =
        ejk_int(ejki_clamp(ejki_min(cache / 4 / row, window / 2) / 32 * 32, 32,
                           ejki_min(score_keys(), ejki_whole_keys(p->keys))));
    ejki_keep_within(p, values);
}

void ejki_tile_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    suggest(problem, threads, ejki_row_bytes(problem), values);
}

void ejki_tile_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values) {
    suggest(problem, threads, ejki_row_bytes(problem) / 2, values);
}
