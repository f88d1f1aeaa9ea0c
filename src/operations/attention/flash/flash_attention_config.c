/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of flash attention: the one it takes without measuring, and those worth measuring. */
#include "operations/attention/flash/flash_attention_steps.h"

#include <ejkernel/chooser.h>
#include <ejkernel/device.h>
#include <ejkernel/flash_attention.h>

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"

#include <string.h>

/* All keys, in whole panels of the widest kernel: a larger block changes nothing. */
static int64_t whole(int64_t keys) {
    return ejki_round_up(ejki_max(keys, 1), 32);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return ejki_max(low, ejki_min(value, high));
}

static bool on_gpu(const ejk_invocation *invocation) {
    return invocation->implementation && invocation->implementation->backend == EJK_BACKEND_GPU;
}

static int64_t cache_bytes(void) {
    return ejk_cpu()->l2_bytes > 0 ? ejk_cpu()->l2_bytes : 1 << 20;
}

/* Bytes of a key with its value. Bounds far above any real size keep sums from overflowing. */
static int64_t row_bytes(const ejki_flash_problem *p) {
    return (clamp(p->head_dim, 1, 1 << 20) + clamp(p->value_dim, 1, 1 << 20)) *
           (int64_t)sizeof(float);
}

/* Keys from the first to the last that positions let a query see. */
static int64_t window_of(const ejki_flash_problem *p) {
    return p->last_offset - p->first_offset + 1;
}

/*
 * The tiled kernel on AMX. A block of all keys is begun and ended once: it is taken where a quarter of the
 * second-level cache holds it. Else a block has half of that, and as many rows go with it, up to 1024, as half of
 * the cache has sums and queries of.
 */
static void set_amx_blocks(const ejk_invocation *invocation, int64_t cache,
                           ejk_fwd_params *params) {
    const ejki_flash_problem *p = invocation->problem;
    const int64_t dims = clamp(p->head_dim, 1, 1 << 20) + 2 * clamp(p->value_dim, 1, 1 << 20);
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads);
    const int64_t share =
        ejki_cdiv(p->queries * p->group, ejki_cdiv((int64_t)invocation->threads * 4, heads));
    const int64_t rows = clamp(cache / 2 / (2 * dims), 64, 1024);
    const int64_t keys = cache / 2 / row_bytes(p); /* R is of floats, these are half as long */
    const int64_t block = p->keys <= ejki_min(keys, 1024) ? p->keys : clamp(keys / 2, 64, 1024);
    params->q_blocksize = ejk_int(ejki_min(rows, ejki_max(share, 64)));
    params->kv_blocksize = ejk_int(ejki_min(whole(block), whole(p->keys)));
}

/* Keys of which the first-level cache holds the scores of a tile's 12 rows in half of it. */
static int64_t score_keys(void) {
    const int64_t cache = ejk_cpu()->l1d_bytes > 0 ? ejk_cpu()->l1d_bytes : 32 << 10;
    return clamp(cache / 2 / (12 * (int64_t)sizeof(float)) / 32 * 32, 256, 512);
}

/*
 * Whether decoding reads memory fastest in its order, a key of all heads after the other: an AMD Zen 5 gives 39 GB/s
 * of one or two places at a time and 27 of four, where the Intel processors at hand give most of four. Lines of 16
 * bits are twice the work where they become floats, for which four query rows of a head leave no time.
 */
static bool reads_in_order(const ejki_flash_problem *p, bool pairs) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const int64_t rows = p->queries * p->group;
    const bool quick = p->dtype == EJK_DTYPE_F32 || pairs;
    return strcmp(cpu->vendor, "amd") == 0 && cpu->family >= 26 && rows <= (quick ? 4 : 2);
}

/*
 * The row-wise kernel: a block of all heads' keys and values well inside the second-level cache, and enough splits
 * for many threads, none below 512 keys but for the first four: with fewer tasks a few threads would
 * share out the heads, and then none reads memory in order. Where a block is read in order, changing between keys and
 * values is what costs, and a block is longer.
 */
static void set_row_blocks(const ejki_flash_problem *p, bool pairs, ejk_fwd_params *params) {
    const int64_t kv_heads = clamp(p->kv_heads, 1, 1 << 20), batch = ejki_max(1, p->batch);
    const int64_t own = row_bytes(p) / (int64_t)sizeof(float) * (int64_t)ejk_dtype_size(p->dtype);
    const int64_t few = clamp(p->keys / 64, 1, ejki_cdiv(4, batch));
    const int64_t splits = clamp(p->keys / 512, few, ejki_cdiv(64, batch));
    const bool in_order = reads_in_order(p, pairs);
    const int64_t keys = in_order ? p->keys / splits : (1 << 17) / (own * kv_heads);
    params->num_key_splits = ejk_int(splits);
    params->blocksize_keys = ejk_int(clamp(keys / 32 * 32, 32, in_order ? 512 : 128));
    params->blocksize_heads = ejk_int(in_order ? clamp(kv_heads, 2, 64) : 1);
}

/*
 * Blocks by the second-level cache, of which the tiled kernel gives half to a task's queries and
 * sums and a quarter to the keys and values at hand, as floats or, half as long, as pairs of bf16; queries
 * packed beyond 512 rows gained nothing (docs/kernels/flash_attention.md has the figures), but in a window,
 * whose keys each task packs besides its own. A window's edges cut blocks, which costs less where they are
 * shorter than it. Below that, tasks are made small enough for four per thread. The size of a task changes no
 * result; the block of keys and the splits follow from the shapes and the processor, never from the number of
 * threads.
 */
void ejki_flash_heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const ejki_flash_problem *p = invocation->problem;
    ejk_fwd_params *params = &((ejk_flash_attention_config *)config)->fwd_params;
    if (on_gpu(invocation)) {
        ejki_flash_gpu_heuristic_cfg(invocation, params);
        return;
    }
    const ejk_implementation *chosen = invocation->implementation;
    const bool pairs = chosen && chosen->isa == EJK_ISA_AVX512_BF16;
    const int64_t cache = cache_bytes(), row = pairs ? row_bytes(p) / 2 : row_bytes(p);
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads);
    const int64_t tasks_per_head = ejki_cdiv((int64_t)invocation->threads * 4, heads);
    const int64_t share = ejki_cdiv(p->queries * p->group, tasks_per_head);
    const int64_t rows = clamp(cache / 2 / row, 48, window_of(p) < p->keys ? 1024 : 512);
    params->q_blocksize = ejk_int(ejki_min(rows, ejki_max(share, 48)));
    params->kv_blocksize = ejk_int(clamp(ejki_min(cache / 4 / row, window_of(p) / 2) / 32 * 32, 32,
                                         ejki_min(score_keys(), whole(p->keys))));
    set_row_blocks(p, pairs, params);
    /* A hook that runs in place of an implementation is told the same blocks. */
    if (chosen && chosen->isa == EJK_ISA_AMX) set_amx_blocks(invocation, cache, params);
}

/* Gradients on AMX: half of the second-level cache holds a block of keys, packed three times, its two sums and dS
 * beside a strip of queries. In a window, which leaves few keys to a strip, rows are packed for each block: so all keys
 * are one, beside shorter strips, if that is up to two thirds of it. */
static void set_amx_vjp_blocks(const ejki_flash_problem *p, int64_t cache, ejk_bwd_params *params) {
    const int64_t dims = clamp(p->head_dim, 1, 1 << 20) + clamp(p->value_dim, 1, 1 << 20);
    const int64_t all = clamp(p->keys, 1, 1024), heads = clamp(p->batch * p->kv_heads, 1, 8);
    const bool one =
        window_of(p) < p->keys && all == p->keys && all * (7 * dims + 2 * 128) <= cache / 3 * 2;
    const int64_t rows = dims <= 128 && !one ? 256 : 128;
    const int64_t keys = one ? all : ejki_min(512, cache / 2 / (7 * dims + 2 * rows) / 64 * 64);
    const int64_t share = ejki_max(256, p->keys / (8 / heads));
    params->q_blocksize = ejk_int(rows);
    params->kv_blocksize = ejk_int(ejki_max(64, ejki_min(keys, share)));
}

/*
 * Gradients by VDPBF16PS. More keys mean fewer passes over rows and over sums of their gradients, more rows fewer over
 * those of keys. Of 96 to 512 keys the last were the best or within 1 % for D of 32 to 256, with a window or without,
 * although of D=256 they are more than the second-level cache holds; 192 rows took 0 to 3 % less time than 96. Blocks
 * of a single head follow each other, so few heads have shorter ones.
 */
static void set_pair_vjp_blocks(const ejki_flash_problem *p, int64_t cache,
                                ejk_bwd_params *params) {
    const int64_t row = row_bytes(p), heads = clamp(p->batch * p->kv_heads, 1, 8);
    const int64_t share = ejki_max(64, p->keys / (8 / heads));
    const int64_t keys = ejki_min(cache / row, share) / 32 * 32;
    params->q_blocksize = ejk_int(clamp(cache / 4 / row / 12 * 12, 24, heads < 4 ? 96 : 192));
    params->kv_blocksize = ejk_int(clamp(keys, 32, ejki_min(512, whole(p->keys))));
}

/*
 * Gradients. A key takes two and a half rows of the worker's memory, packed twice and with two sums, and a
 * column of dS beside the block of queries; three quarters of the second-level cache hold them. Fewer keys, but
 * not below 64, where there would be fewer than eight tasks; up to 384 in place of 256 in a window, where a row is
 * packed for each block that its few keys lie in. Both follow from shapes and processor alone.
 */
void ejki_flash_vjp_heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)invocation->problem)->forward;
    ejk_bwd_params *params = &((ejk_flash_attention_config *)config)->bwd_params;
    if (on_gpu(invocation)) {
        ejki_flash_gpu_vjp_heuristic_cfg(invocation, params);
        return;
    }
    const int64_t cache = cache_bytes(), row = row_bytes(p);
    const int64_t rows = clamp(cache / 8 / row / 12 * 12, 24, 96);
    const int64_t heads = clamp(p->batch * p->kv_heads, 1, 8);
    const int64_t share = ejki_max(64, p->keys / (8 / heads));
    const int64_t most = window_of(p) < p->keys ? 384 : 256;
    const int64_t keys = cache / 4 * 3 / (row * 5 / 2 + rows * (int64_t)sizeof(float));
    params->q_blocksize = ejk_int(rows);
    params->kv_blocksize =
        ejk_int(clamp(ejki_min(keys, share) / 32 * 32, 32, ejki_min(most, whole(p->keys))));
    const ejk_isa isa = invocation->implementation->isa;
    if (isa == EJK_ISA_AVX512_BF16) set_pair_vjp_blocks(p, cache, params);
    if (isa == EJK_ISA_AMX) set_amx_vjp_blocks(p, cache, params);
}

/* ---- Candidates ------------------------------------------------------------------------------------- */

/* A parameter and the value beyond which nothing changes any more. */
typedef struct range {
    const char *name;
    size_t offset; /* in the configuration */
    int64_t most;
} range;

static ejk_opt_int *value_of(void *config, const range *r) {
    return (ejk_opt_int *)(void *)((char *)config + r->offset);
}

static bool takes(const ejk_implementation *chosen, const char *name) {
    for (int32_t i = 0; chosen && i < chosen->parameter_count; i++)
        if (strcmp(chosen->parameters[i].name, name) == 0) return true;
    return false;
}

/* All pairs of factors, the small changes first: what is tried under a short budget. */
static const double factors[][2] = {
    {0.5, 1},  {2, 1}, {1, 0.5},  {1, 2}, {0.5, 0.5}, {2, 2},   {0.5, 2},    {2, 0.5},
    {0.25, 1}, {4, 1}, {1, 0.25}, {1, 4}, {0.25, 2},  {4, 0.5}, {0.25, 0.5}, {4, 2},
};

static ejk_status vary(const ejk_invocation *invocation, const range *ranges, int32_t how_many,
                       void *configs, int32_t capacity, int32_t *count) {
    ejk_flash_attention_config base, *list = configs;
    const range *pair[2];
    int32_t found = 0;
    for (int32_t i = 0; i < how_many && found < 2; i++)
        if (takes(invocation->implementation, ranges[i].name)) pair[found++] = &ranges[i];
    *count = 0;
    if (found < 2) return EJK_OK; /* the reference and the small kernel take none */
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    for (size_t f = 0; f < sizeof factors / sizeof *factors && *count < capacity; f++) {
        ejk_flash_attention_config *own = &list[*count];
        *own = base;
        for (int i = 0; i < 2; i++) {
            ejk_opt_int *value = value_of(own, pair[i]);
            const int64_t wish = (int64_t)((double)value->value * factors[f][i]);
            *value = ejk_int(clamp(wish, 1, ejki_max(1, pair[i]->most)));
        }
        (*count)++;
    }
    return EJK_OK;
}

ejk_status ejki_flash_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                     int32_t capacity, int32_t *count) {
#define PLACE(field) offsetof(ejk_flash_attention_config, fwd_params.field)
    const ejki_flash_problem *p = invocation->problem;
    if (on_gpu(invocation))
        return ejki_flash_gpu_candidate_cfgs(invocation, configs, capacity, count);
    const range ranges[] = {
        {"q_blocksize", PLACE(q_blocksize), p->queries * p->group},
        {"kv_blocksize", PLACE(kv_blocksize), whole(p->keys)},
        {"num_key_splits", PLACE(num_key_splits), ejki_cdiv(p->keys, 32)},
        {"blocksize_keys", PLACE(blocksize_keys), whole(p->keys)},
    };
#undef PLACE
    return vary(invocation, ranges, 4, configs, capacity, count);
}

ejk_status ejki_flash_vjp_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                         int32_t capacity, int32_t *count) {
#define PLACE(field) offsetof(ejk_flash_attention_config, bwd_params.field)
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)invocation->problem)->forward;
    if (on_gpu(invocation))
        return ejki_flash_gpu_vjp_candidate_cfgs(invocation, configs, capacity, count);
    const range ranges[] = {
        {"q_blocksize", PLACE(q_blocksize), ejki_min(512, p->queries * p->group)},
        {"kv_blocksize", PLACE(kv_blocksize), ejki_min(512, whole(p->keys))},
    };
#undef PLACE
    return vary(invocation, ranges, 2, configs, capacity, count);
}
