/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages on tensor cores: launches of look.cu, prefill.cu, decode.cu and join.cu. Which sequences are of
 * few rows, the device knows. From sm_90 on each kernel begins before the one ahead has ended.
 */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/paged.cuh"

enum { LOOK, PREFILL, DECODE, JOIN };
/* As the kernels have them. */
enum { KEYS = 16, MOST_DIM = 256, RING_BYTES = 98304, PREFILL_WARPS = 4, DECODE_WARPS = 4 };

typedef struct tiling {
    int64_t warps, stages, halves, resident, decode_bytes, decode_blocks;
    int64_t row_tiles, keys, prefill_bytes, tiles;
    bool overlap;
} tiling;

static bool is_scaled(const paged_cache *c) {
    return c->scaled || c->factor != 1;
}

static bool is_folded(const paged_problem *p) {
    return (float)p->scale > 0 && p->cap <= 0 && !p->has_alibi && !p->has_bias;
}

/* ---- Sizes ------------------------------------------------------------------------------------------ */

/* Rows of a sequence of few rows. */
static int64_t few_rows(const paged_problem *p) {
    return PAGED_FEW / p->group;
}

/* Rows that have parts: all, or so many of each sequence. */
static int64_t part_rows(const paged_problem *p) {
    return ejki_min(p->tokens, p->sequences * few_rows(p));
}

static int64_t flag_bytes(const paged_problem *p) {
    return ejki_round_up((p->sequences + 1) * (int64_t)sizeof(int), 256);
}

/* Splits that a sequence can have, whose table has no room for more keys. */
static int64_t most_splits(const paged_problem *p) {
    return ejki_min(PAGED_SPLITS, p->width * p->page / PAGED_LEAST_KEYS + 1);
}

static double part_bytes(const paged_problem *p) {
    return (double)part_rows(p) * (double)p->heads * (double)most_splits(p) *
           (double)(p->value_dim + 2) * sizeof(float);
}

/* Sequences of few rows; and of more, which have some. */
static bool may_decode(const paged_problem *p) {
    return part_rows(p) > 0 && (p->rows_each == 0 || p->rows_each <= few_rows(p));
}
static bool may_prefill(const paged_problem *p) {
    return p->tokens > few_rows(p) && (p->rows_each == 0 || p->rows_each > few_rows(p));
}

static int64_t pitch(int64_t dim) {
    return ejki_round_up(dim, 64) * 2;
}

static void tile_decode(const paged_problem *p, int64_t room, tiling *t) {
    const int64_t stage = KEYS * (pitch(p->dim) + pitch(p->value_dim));
    int64_t left;
    t->halves = p->group > 8 || p->tokens > p->sequences ? 2 : 1;
    t->warps = DECODE_WARPS;
    for (;; t->warps /= 2) {
        left = t->warps * 8 * t->halves * (p->value_dim + 2) * (int64_t)sizeof(float);
        t->stages = ejki_min(RING_BYTES, room - left) / (t->warps * stage);
        if (t->stages >= 2 || t->warps == 1) break;
    }
    t->stages = ejki_max(1, ejki_min(t->stages, 8));
    t->decode_bytes = t->warps * t->stages * stage + left;
    /* Two together, with the KiB that the system takes of each, where one leaves room. */
    t->resident = 2 * (t->decode_bytes + 1024) <= room + 1024 ? 2 : 1;
}

static void tile_prefill(const paged_problem *p, int64_t room, tiling *t) {
    const int64_t row = pitch(p->dim), both = row + pitch(p->value_dim);
    t->row_tiles = p->value_dim <= 128 ? 2 : 1;
    t->keys = 64;
    for (;; t->keys /= 2) {
        t->prefill_bytes = 16 * t->row_tiles * PREFILL_WARPS * row + 2 * t->keys * both;
        if (t->prefill_bytes <= room || t->keys == 16) break;
    }
    const int64_t rows = 16 * t->row_tiles * PREFILL_WARPS;
    t->tiles = p->tokens * p->group / rows + p->sequences;
}

static ejk_status tiling_of(const paged_problem *p, int32_t device, tiling *t) {
    enum { STATIC_BYTES = 4096 }; /* what kernels have besides */
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    const int64_t most = gpu->shared_bytes > 0 ? gpu->shared_bytes : EJKI_CUDA_SHARED_BYTES;
    tile_decode(p, most, t);
    tile_prefill(p, most - STATIC_BYTES, t);
    const int64_t units = p->sequences * p->kv_heads * PAGED_SPLITS;
    const int64_t sms = gpu->multiprocessors > 0 ? gpu->multiprocessors : 128;
    t->decode_blocks = may_decode(p) ? ejki_min(sms * t->resident, ejki_max(units, 1)) : 0;
    t->overlap = gpu->capability >= 90;
    return EJK_OK;
}

/* ---- What it can do --------------------------------------------------------------------------------- */

static bool fits(const paged_problem *p) {
    const double units = (double)p->sequences * (double)p->kv_heads * PAGED_SPLITS * 4;
    const double rows =
        (double)p->tokens * (double)p->heads + (double)p->sequences * (double)p->heads;
    return units < (1 << 30) && rows < (1 << 30) && part_bytes(p) < 1e12 &&
           (double)p->width * (double)p->page <= (1 << 30) && p->page <= (1 << 30);
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    const bool is_query = p->query.dtype == EJK_DTYPE_BF16 || p->query.dtype == EJK_DTYPE_F16;
    const bool same = p->key.dtype == p->query.dtype && p->value.dtype == p->query.dtype;
    return is_query && same && !is_scaled(&p->key) && !is_scaled(&p->value) &&
           p->query_scale == 0 && p->sequences > 0 && p->group > 0 && p->kv_heads > 0 &&
           p->tail_dim == 0 && p->dim > 0 && p->dim % 32 == 0 && p->dim <= MOST_DIM &&
           p->value_dim > 0 && p->value_dim % 64 == 0 && p->value_dim <= MOST_DIM &&
           ejki_paged_cuda_types(p) && fits(p);
}

static ejki_cuda_constants constants_of(const paged_problem *p, const tiling *t) {
    ejki_cuda_constants c = {.count = 0};
    ejki_cuda_add(&c, "ELEMENT", p->query.dtype);
    ejki_cuda_add(&c, "HEAD_DIM", p->dim);
    ejki_cuda_add(&c, "VALUE_DIM", p->value_dim);
    ejki_cuda_add(&c, "FOLDED", is_folded(p));
    ejki_cuda_add(&c, "OVERLAP", t->overlap);
    return c;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const paged_problem *p = problem;
    tiling t;
    (void)parameters;
    (void)threads;
    EJKI_TRY(tiling_of(p, launch->device, &t));
    ejki_cuda_constants none = {.count = 0}, join = {.count = 0};
    ejki_cuda_constants decode = constants_of(p, &t), prefill = constants_of(p, &t);
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_add(&decode, "WHOLE", p->page % KEYS == 0);
    ejki_cuda_add(&decode, "WARPS", t.warps);
    ejki_cuda_add(&decode, "STAGES", t.stages);
    ejki_cuda_add(&decode, "HALVES", t.halves);
    ejki_cuda_add(&decode, "RESIDENT", t.resident);
    ejki_cuda_add(&prefill, "WARPS", PREFILL_WARPS);
    ejki_cuda_add(&prefill, "ROW_TILES", t.row_tiles);
    ejki_cuda_add(&prefill, "KEYS", t.keys);
    ejki_cuda_add(&prefill, "STAGES", 2);
    ejki_cuda_add(&join, "DIRECT", 0);
    ejki_cuda_add(&join, "VALUE_DIM", p->value_dim);
    ejki_cuda_add(&join, "OVERLAP", t.overlap);
    ejki_cuda_want(&kernels, LOOK, "operations/paged/cuda/look.cu", "look", &none);
    if (may_prefill(p))
        ejki_cuda_want(&kernels, PREFILL, "operations/paged/cuda/prefill.cu", "prefill", &prefill);
    if (may_decode(p))
        ejki_cuda_want(&kernels, DECODE, "operations/paged/cuda/decode.cu", "decode", &decode);
    ejki_cuda_want(&kernels, JOIN, "operations/paged/cuda/join.cu", "join", &join);
    launch->workspace_bytes = (size_t)flag_bytes(p) + (size_t)part_bytes(p);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const paged_problem *p = run->problem;
    tiling t;
    EJKI_TRY(ejki_paged_cuda_check(p));
    EJKI_TRY(tiling_of(p, run->device, &t));
    float *const parts = (float *)(void *)((char *)run->workspace + flag_bytes(p));
    const int64_t rows = part_rows(p);
    paged_arguments a = {.p = *p,
                         .flags = run->workspace,
                         .parts = parts,
                         .tiles = t.tiles,
                         .splits = most_splits(p),
                         .ends = parts + rows * p->heads * most_splits(p) * p->value_dim,
                         .rows_most = rows < p->tokens ? few_rows(p) : 0,
                         .joiners = 1};
    const ejki_cuda_work look = {
        .slot = LOOK, .threads = PAGED_THREADS, .blocks = p->sequences + 1};
    const ejki_cuda_work prefill = {.slot = PREFILL,
                                    .threads = PREFILL_WARPS * 32,
                                    .blocks = may_prefill(p) ? t.tiles * p->kv_heads : 0,
                                    .shared_bytes = t.prefill_bytes,
                                    .overlaps = t.overlap};
    const ejki_cuda_work decode = {.slot = DECODE,
                                   .threads = (int32_t)t.warps * 32,
                                   .blocks = t.decode_blocks,
                                   .shared_bytes = t.decode_bytes,
                                   .overlaps = t.overlap};
    const ejki_cuda_work join = {.slot = JOIN,
                                 .threads = PAGED_JOIN_THREADS,
                                 .blocks = p->sequences * p->kv_heads + PAGED_CLEARING,
                                 .overlaps = t.overlap};
    EJKI_TRY(ejki_cuda_begin(run, &look, &a));
    EJKI_TRY(ejki_cuda_begin(run, &prefill, &a));
    EJKI_TRY(ejki_cuda_begin(run, &decode, &a));
    return ejki_cuda_begin(run, &join, &a);
}

EJKI_DECLARE(unified_attention_mma_cuda, .version = 1, .priority = 20, .experimental = true,
             .applicable = applicable, .prepare = prepare, .run = run,
             .needs = "bf16 or f16 queries with caches of their type without scales, head_dim a "
                      "multiple of 32 and that of values of 64, up to 256")
