/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the gradients on AMX. */
#include "operations/attention/shared/suggest.h"

/*
 * Half of the second-level cache holds a block of keys, packed three times, its two sums and dS of a row block. A
 * window leaves few keys to a row block, and rows are packed for each block of keys: then all keys are one block,
 * with shorter row blocks, if that takes at most two thirds of the cache.
 */
void ejki_amx_vjp_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)problem)->forward;
    const int64_t cache = ejki_cache_bytes();
    const int64_t dims = ejki_clamp(p->head_dim, 1, 1 << 20) + ejki_clamp(p->value_dim, 1, 1 << 20);
    const int64_t all = ejki_clamp(p->keys, 1, 1024),
                  heads = ejki_clamp(p->batch * p->kv_heads, 1, 8);
    const bool one = ejki_window_of(p) < p->keys && all == p->keys &&
                     all * (7 * dims + 2 * 128) <= cache / 3 * 2;
    const int64_t rows = dims <= 128 && !one ? 256 : 128;
    const int64_t keys = one ? all : ejki_min(512, cache / 2 / (7 * dims + 2 * rows) / 64 * 64);
    const int64_t share = ejki_max(256, p->keys / (8 / heads));
    values[EJKI_Q_BLOCKSIZE] = ejk_int(rows);
    values[EJKI_KV_BLOCKSIZE] = ejk_int(ejki_max(64, ejki_min(keys, share)));
}
