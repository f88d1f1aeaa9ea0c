/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the heuristics of attention's kernels share. Each stands beside its kernel, in suggest.c, as
 * ejk_implementation.suggest: values in the order of the kernel's parameters.
 */
#ifndef EJKI_ATTENTION_SUGGEST_H
#define EJKI_ATTENTION_SUGGEST_H

#include <ejkernel/device.h>
#include <ejkernel/record.h>

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"

/* Blocks of queries and of keys: the first two parameters of most kernels. */
enum { EJKI_Q_BLOCKSIZE, EJKI_KV_BLOCKSIZE };

void ejki_tile_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_tile_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_row_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_row_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_amx_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_vjp_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_vjp_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_amx_vjp_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm80_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm80_suggest_plain(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm80_suggest_decode(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm80_suggest_vjp(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm90_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_sm90_suggest_vjp(const void *problem, int32_t threads, ejk_opt_int *values);

static inline int64_t ejki_clamp(int64_t value, int64_t low, int64_t high) {
    return ejki_max(low, ejki_min(value, high));
}

/* All keys, in whole panels of the widest kernel: a larger block changes nothing. */
static inline int64_t ejki_whole_keys(int64_t keys) {
    return ejki_round_up(ejki_max(keys, 1), 32);
}

/* Of the second-level cache. */
static inline int64_t ejki_cache_bytes(void) {
    return ejk_cpu()->l2_bytes > 0 ? ejk_cpu()->l2_bytes : 1 << 20;
}

/* Bytes of a key with its value, as floats. Bounds far above any real size keep sums from overflowing. */
static inline int64_t ejki_row_bytes(const ejki_flash_problem *p) {
    return (ejki_clamp(p->head_dim, 1, 1 << 20) + ejki_clamp(p->value_dim, 1, 1 << 20)) *
           (int64_t)sizeof(float);
}

/* Keys from the first to the last that positions let a query see. */
static inline int64_t ejki_window_of(const ejki_flash_problem *p) {
    return p->last_offset - p->first_offset + 1;
}

/* A block mask of block-sparse attention cuts tasks: larger blocks than its own change nothing. */
static inline void ejki_keep_within(const ejki_flash_problem *p, ejk_opt_int *values) {
    const ejki_block_mask *mask = &p->block_mask;
    if (mask->mask_heads == 0) return;
    const int64_t rows = ejki_max(1, mask->block_q * p->group);
    values[EJKI_Q_BLOCKSIZE].value = ejki_min(values[EJKI_Q_BLOCKSIZE].value, rows);
    values[EJKI_KV_BLOCKSIZE].value = ejki_min(values[EJKI_KV_BLOCKSIZE].value, mask->block_kv);
}

#endif
