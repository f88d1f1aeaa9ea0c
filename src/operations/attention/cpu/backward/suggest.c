/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the gradients. */
#include "operations/attention/shared/suggest.h"

/*
 * A key takes two and a half rows of the worker's memory, packed twice and with two sums, and a column of dS beside
 * the block of queries; three quarters of the second-level cache hold them. Fewer keys, but not below 64, where there
 * would be fewer than eight tasks; up to 384 in place of 256 in a window, where a row is packed for each block that
 * its few keys lie in. Both follow from shapes and processor alone.
 */
void ejki_vjp_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)problem)->forward;
    const int64_t cache = ejki_cache_bytes(), row = ejki_row_bytes(p);
    const int64_t rows = ejki_clamp(cache / 8 / row / 12 * 12, 24, 96);
    const int64_t heads = ejki_clamp(p->batch * p->kv_heads, 1, 8);
    const int64_t share = ejki_max(64, p->keys / (8 / heads));
    const int64_t most = ejki_window_of(p) < p->keys ? 384 : 256;
    const int64_t keys = cache / 4 * 3 / (row * 5 / 2 + rows * (int64_t)sizeof(float));
    values[EJKI_Q_BLOCKSIZE] = ejk_int(rows);
    values[EJKI_KV_BLOCKSIZE] = ejk_int(
        ejki_clamp(ejki_min(keys, share) / 32 * 32, 32, ejki_min(most, ejki_whole_keys(p->keys))));
    ejki_keep_within(p, values);
}

/*
 * Gradients by VDPBF16PS. More keys mean fewer passes over rows and over sums of their gradients, more rows fewer over
 * those of keys. Of 96 to 512 keys the last were the best or within 1 % for D of 32 to 256, with a window or without,
 * although of D=256 they are more than the second-level cache holds; 192 rows took 0 to 3 % less time than 96. Blocks
 * of a single head follow each other, so few heads have shorter ones.
 */
void ejki_vjp_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)problem)->forward;
    const int64_t cache = ejki_cache_bytes();
    const int64_t row = ejki_row_bytes(p), heads = ejki_clamp(p->batch * p->kv_heads, 1, 8);
    const int64_t share = ejki_max(64, p->keys / (8 / heads));
    const int64_t keys = ejki_min(cache / row, share) / 32 * 32;
    values[EJKI_Q_BLOCKSIZE] =
        ejk_int(ejki_clamp(cache / 4 / row / 12 * 12, 24, heads < 4 ? 96 : 192));
    values[EJKI_KV_BLOCKSIZE] =
        ejk_int(ejki_clamp(keys, 32, ejki_min(512, ejki_whole_keys(p->keys))));
    ejki_keep_within(p, values);
}
