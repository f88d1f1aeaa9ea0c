/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the kernel on AMX. */
#include "operations/attention/shared/suggest.h"

/* Keys that stay packed beside a block mask: three eighths of the second-level cache, in which blocks come back. */
static int64_t kept_keys(const ejki_flash_problem *p) {
    const int64_t dims = ejki_max(1, ejki_min(p->head_dim + p->value_dim, 1 << 20));
    const int64_t keys = ejki_cache_bytes() / 8 * 3 / (dims * (int64_t)sizeof(uint16_t)) / 32 * 32;
    return ejki_max(512, ejki_min(keys, 4096));
}

/*
 * The tiled kernel on AMX. A block of all keys is begun and ended once: it is taken where a quarter of the
 * second-level cache holds it. Else a block has half of that, and as many rows go with it, up to 1024, as half of
 * the cache has sums and queries of.
 */
void ejki_amx_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const ejki_flash_problem *p = problem;
    const int64_t cache = ejki_cache_bytes();
    const int64_t dims =
        ejki_clamp(p->head_dim, 1, 1 << 20) + 2 * ejki_clamp(p->value_dim, 1, 1 << 20);
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads);
    const int64_t share = ejki_cdiv(p->queries * p->group, ejki_cdiv((int64_t)threads * 4, heads));
    const int64_t rows = ejki_clamp(cache / 2 / (2 * dims), 64, 1024);
    const int64_t keys = cache / 2 / ejki_row_bytes(p); /* R is of floats, these are half as long */
    const int64_t block =
        p->keys <= ejki_min(keys, 1024) ? p->keys : ejki_clamp(keys / 2, 64, 1024);
    values[EJKI_Q_BLOCKSIZE] = ejk_int(ejki_min(rows, ejki_max(share, 64)));
    values[EJKI_KV_BLOCKSIZE] = ejk_int(ejki_min(ejki_whole_keys(block), ejki_whole_keys(p->keys)));
    if (p->block_mask.mask_heads == 0) return;
    /* Many blocks of a mask are packed together: few rows beside many keys. */
    ejki_keep_within(p, values);
    values[EJKI_KV_BLOCKSIZE] = ejk_int(kept_keys(p));
}
