/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages on tensor cores: launches of look.cu, prefill.cu, decode.cu and join.cu. Which sequences are of
 * few rows, the device knows; where no others can be, join.cu does what look.cu does, unless its word is wanted. From
 * sm_90 on each kernel begins before the one ahead has ended, the first one with a wait. In place of prefill.cu,
 * attend.cu takes caches of 8 bits and scales, and flash attention's kernels for sm_90a what they can.
 */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/attend.h"
#include "operations/paged/cuda/prefill_sm90.h"

enum { LOOK, PREFILL, DECODE, JOIN, LOOKING_JOIN, SM90 };
/* As the kernels have them. */
enum { KEYS = 16, MOST_DIM = 256, PREFILL_WARPS = 4, DECODE_WARPS = 4 };
/* Rings of a CTA: where it may have an SM for itself, and where all SMs ask for as much as memory
 * gives; more on the way would only be shared more unevenly. */
enum { ALONE_RING_BYTES = 98304, RING_BYTES = 65536 };

typedef struct tiling {
    int64_t warps, stages, halves, resident, decode_bytes, decode_blocks;
    int64_t row_tiles, keys, prefill_bytes, tiles;
    bool overlap, alone; /* alone: a CTA for each split that there can be */
    bool apart, many;    /* as decode.cu and join.cu have them */
    int64_t join_blocks;
    int64_t sm90_bytes; /* of flash attention's kernels; 0: another takes their place */
} tiling;

/* Scales of a cache, as decode.cu takes them. */
enum { NOT_SCALED, SCALED_HEADS, SCALED_ROWS };
static int scales_of(const paged_problem *p) {
    const paged_cache *k = &p->key, *v = &p->value;
    if (k->scaled_rows || v->scaled_rows) return SCALED_ROWS;
    return k->scaled || v->scaled || k->factor != 1 || v->factor != 1 ? SCALED_HEADS : NOT_SCALED;
}

/* Codes of 8 bits; else elements of the queries' type. */
static bool is_coded(const paged_problem *p) {
    return p->key.dtype != p->query.dtype;
}

/* Caches that prefill.cu takes. */
static bool is_plain(const paged_problem *p) {
    return !is_coded(p) && scales_of(p) == NOT_SCALED;
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
    return ejki_min(PAGED_FEW_SPLITS, p->width * p->page / PAGED_LEAST_KEYS + 1);
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

/* Of a warp, with scales of rows. */
static int64_t stage_bytes(const paged_problem *p) {
    const int64_t scales = scales_of(p) == SCALED_ROWS ? 2 * KEYS * (int64_t)sizeof(float) : 0;
    if (!is_coded(p)) return KEYS * (pitch(p->dim) + pitch(p->value_dim)) + scales;
    return KEYS * (ejki_round_up(p->dim, 128) + ejki_round_up(p->value_dim, 128)) + scales;
}

static void tile_decode(const paged_problem *p, int64_t room, int32_t capability, int64_t ring,
                        tiling *t) {
    enum { MOST_STAGES = 8, BARRIER_BYTES = 16 }; /* of each stage of a warp */
    const int64_t stage = stage_bytes(p);
    int64_t left;
    t->halves = p->group > 8 || p->tokens > p->sequences ? 2 : 1;
    t->warps = DECODE_WARPS;
    for (;; t->warps /= 2) { /* the same for either: bits depend on it */
        left = t->warps * 8 * 2 * (p->value_dim + 2) * (int64_t)sizeof(float);
        t->stages = ejki_min(ALONE_RING_BYTES, room - left) / (t->warps * stage);
        if (t->stages >= 2 || t->warps == 1) break;
    }
    t->apart = capability == 90 && is_coded(p) && t->halves == 1 && t->warps == DECODE_WARPS;
    left = left / 2 * t->halves + (t->apart ? t->warps * MOST_STAGES * BARRIER_BYTES : 0);
    ring = ejki_max(ring, 2 * t->warps * stage);
    t->stages = ejki_min(ring, room - left) / (t->warps * stage);
    t->stages = ejki_max(1, ejki_min(t->stages, MOST_STAGES));
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
    tile_prefill(p, most - STATIC_BYTES, t);
    const int64_t units = p->sequences * p->kv_heads * most_splits(p);
    const int64_t sms = gpu->multiprocessors > 0 ? gpu->multiprocessors : 128;
    tile_decode(p, most, gpu->capability, ALONE_RING_BYTES, t);
    t->alone = units <= sms * t->resident;
    if (!t->alone) tile_decode(p, most, gpu->capability, RING_BYTES, t);
    t->decode_blocks = may_decode(p) ? ejki_min(sms * t->resident, ejki_max(units, 1)) : 0;
    if (!t->alone && t->decode_blocks > p->kv_heads)
        t->decode_blocks -= t->decode_blocks % p->kv_heads;
    const int64_t joining = ejki_max(sms * PAGED_JOIN_RESIDENT - PAGED_CLEARING, 1);
    t->many = p->sequences * p->kv_heads > joining;
    t->join_blocks = ejki_min(p->sequences * p->kv_heads, joining) + PAGED_CLEARING;
    t->overlap = gpu->capability >= 90;
    t->sm90_bytes = 0;
    if (may_prefill(p) && is_plain(p) && ejki_paged_cuda_takes_sm90(p, device))
        return ejki_paged_cuda_sm90_bytes(p, device, &t->sm90_bytes);
    return EJK_OK;
}

/* ---- What it can do --------------------------------------------------------------------------------- */

static bool fits(const paged_problem *p) {
    const double units = (double)p->sequences * (double)p->kv_heads * PAGED_FEW_SPLITS * 4;
    const double rows =
        (double)p->tokens * (double)p->heads + (double)p->sequences * (double)p->heads;
    return units < (1 << 30) && rows < (1 << 30) && part_bytes(p) < 1e12 &&
           (double)p->width * (double)p->page <= (1 << 30) && p->page <= (1 << 30);
}

/* Of weights that are multiplied by scales of rows, float16 cannot hold all. */
static bool are_caches_good(const paged_problem *p) {
    const int type = p->key.dtype;
    const bool rows = scales_of(p) == SCALED_ROWS;
    return type == p->value.dtype &&
           (type == p->query.dtype || ejk_dtype_size((ejk_dtype)type) == 1) &&
           (!rows || (p->key.scaled && p->value.scaled && p->query.dtype == EJK_DTYPE_BF16)) &&
           (is_plain(p) || (may_decode(p) && ejki_paged_cuda_can_attend(p)));
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    const bool is_query = p->query.dtype == EJK_DTYPE_BF16 || p->query.dtype == EJK_DTYPE_F16;
    return is_query && are_caches_good(p) && p->query_scale == 0 && p->sequences > 0 &&
           p->group > 0 && p->kv_heads > 0 && p->tail_dim == 0 && p->dim > 0 && p->dim % 32 == 0 &&
           p->dim <= MOST_DIM && p->value_dim > 0 && p->value_dim % 64 == 0 &&
           p->value_dim <= MOST_DIM && ejki_paged_cuda_types(p) && fits(p);
}

static ejki_cuda_constants constants_of(const paged_problem *p, const tiling *t) {
    ejki_cuda_constants c = {.count = 0};
    ejki_cuda_add(&c, "ELEMENT", is_coded(p) ? EJK_DTYPE_F16 : p->query.dtype);
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
    ejki_cuda_add(&decode, "QUERY", p->query.dtype);
    ejki_cuda_add(&decode, "CODE", is_coded(p) ? p->key.dtype : 0);
    ejki_cuda_add(&decode, "SCALED", scales_of(p));
    ejki_cuda_add(&decode, "WHOLE", p->page % KEYS == 0);
    ejki_cuda_add(&decode, "WARPS", t.warps);
    ejki_cuda_add(&decode, "STAGES", t.stages);
    ejki_cuda_add(&decode, "HALVES", t.halves);
    ejki_cuda_add(&decode, "RESIDENT", t.resident);
    ejki_cuda_add(&decode, "ALONE", t.alone);
    ejki_cuda_add(&decode, "APART", t.apart);
    ejki_cuda_add(&decode, "PAGE_ROWS", p->page);
    ejki_cuda_add(&decode, "HEAD_GROUP", p->group);
    ejki_cuda_add(&prefill, "WARPS", PREFILL_WARPS);
    ejki_cuda_add(&prefill, "ROW_TILES", t.row_tiles);
    ejki_cuda_add(&prefill, "KEYS", t.keys);
    ejki_cuda_add(&prefill, "STAGES", 2);
    ejki_cuda_add(&join, "ALONE", t.alone);
    ejki_cuda_add(&join, "MANY", t.many);
    ejki_cuda_add(&join, "PAGE_ROWS", p->page);
    ejki_cuda_add(&join, "HEAD_GROUP", p->group);
    ejki_cuda_add(&join, "RUN", PAGED_RUN);
    ejki_cuda_add(&join, "VALUE_DIM", p->value_dim);
    ejki_cuda_add(&join, "OVERLAP", t.overlap);
    ejki_cuda_constants looking = join;
    ejki_cuda_add(&join, "LOOKS", 0);
    ejki_cuda_add(&looking, "LOOKS", 1);
    ejki_cuda_want(&kernels, LOOK, "operations/paged/cuda/look.cu", "look", &none);
    if (t.sm90_bytes > 0)
        ejki_paged_cuda_want_sm90(p, SM90, &kernels);
    else if (may_prefill(p) && is_plain(p))
        ejki_cuda_want(&kernels, PREFILL, "operations/paged/cuda/prefill.cu", "prefill", &prefill);
    if (may_prefill(p) && !is_plain(p)) ejki_paged_cuda_want_others(p, &kernels, PREFILL);
    if (may_decode(p))
        ejki_cuda_want(&kernels, DECODE, "operations/paged/cuda/decode.cu", "decode", &decode);
    ejki_cuda_want(&kernels, JOIN, "operations/paged/cuda/join.cu", "join", &join);
    if (!may_prefill(p))
        ejki_cuda_want(&kernels, LOOKING_JOIN, "operations/paged/cuda/join.cu", "join", &looking);
    launch->workspace_bytes = (size_t)flag_bytes(p) + (size_t)t.sm90_bytes + (size_t)part_bytes(p);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const paged_problem *p = run->problem;
    tiling t;
    EJKI_TRY(ejki_paged_cuda_check(p));
    EJKI_TRY(tiling_of(p, run->device, &t));
    char *const rest = (char *)run->workspace + flag_bytes(p);
    float *const parts = (float *)(void *)(rest + t.sm90_bytes);
    const int64_t rows = part_rows(p);
    const bool looks = may_prefill(p) || p->status; /* else join.cu does */
    paged_arguments a = {.p = *p,
                         .flags = run->workspace,
                         .parts = parts,
                         .tiles = t.tiles,
                         .splits = most_splits(p),
                         .ends = parts + rows * p->heads * most_splits(p) * p->value_dim,
                         .rows_most = rows < p->tokens ? few_rows(p) : 0,
                         .waits = !looks,
                         .few = PAGED_FEW};
    paged_arguments first = a;
    first.waits = 1;
    const ejki_cuda_work look = {.slot = LOOK,
                                 .threads = PAGED_THREADS,
                                 .blocks = looks ? p->sequences + 1 : 0,
                                 .overlaps = t.overlap};
    const ejki_cuda_work prefill = {
        .slot = PREFILL,
        .threads = PREFILL_WARPS * 32,
        .blocks = may_prefill(p) && is_plain(p) && t.sm90_bytes == 0 ? t.tiles * p->kv_heads : 0,
        .shared_bytes = t.prefill_bytes,
        .overlaps = t.overlap};
    const ejki_cuda_work decode = {.slot = DECODE,
                                   .threads = (int32_t)(t.warps * 32 * (1 + t.apart)),
                                   .blocks = t.decode_blocks,
                                   .shared_bytes = t.decode_bytes,
                                   .overlaps = t.overlap};
    const ejki_cuda_work join = {.slot = looks ? JOIN : LOOKING_JOIN,
                                 .threads = PAGED_JOIN_THREADS,
                                 .blocks = t.join_blocks,
                                 .overlaps = t.overlap && (looks || t.decode_blocks > 0)};
    EJKI_TRY(ejki_cuda_begin(run, &look, &first));
    EJKI_TRY(ejki_cuda_begin(run, &prefill, &a));
    if (may_prefill(p) && !is_plain(p))
        EJKI_TRY(ejki_paged_cuda_attend_others(run, PREFILL, &a, t.overlap));
    EJKI_TRY(ejki_cuda_begin(run, &decode, &a));
    if (t.sm90_bytes > 0) EJKI_TRY(ejki_paged_cuda_begin_sm90(run, p, SM90, rest));
    return ejki_cuda_begin(run, &join, &a);
}

EJKI_DECLARE(unified_attention_mma_cuda, .version = 1, .priority = 20, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs =
                 "bf16 or f16 queries with caches of their type or of 8 bits, head_dim a multiple "
                 "of 32 and that of values of 64, up to 256; scales of rows with bf16 only")
