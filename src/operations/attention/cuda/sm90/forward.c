/* SPDX-License-Identifier: Apache-2.0 */
/* Flash attention by forward_sm90.cu and recompute_sm90.cu: what they take, their tiles, and the maps of copies. */
#include "kernels/declare.h"
#include "operations/attention/cuda/sm90/forward.h"

#include "device/cuda_driver.h"
#include "operations/attention/shared/suggest.h"

#include <float.h>
#include <math.h>

#define LOG2_E 1.4426950408889634

enum {
    MOST_DIM = 128,
    PIECE = 8,             /* elements of 16 bytes */
    SM_BYTES = 228 * 1024, /* of shared memory, of which each block costs 1 KB more */
    BLOCK_BYTES = 227 * 1024,
    SM_REGISTERS = 65536,
    LEAST_QUERIES = 64, /* of a sequence */
    FEW_TILES = 64,     /* and so many keys are better off in parts */
    MANY_KEYS = 2048,
    ROUNDS = 4,             /* of a group of heads */
    OWN_REGISTERS = 32,     /* besides sums, scores and weights */
    SERVICE_BYTES = 1536,   /* barriers, work and what was nonfinite, at the most */
    ORDER_BYTES = 4 * 1024, /* of packed sequences */
};

/* What is prepared. */
enum { FORWARD, RECOMPUTE };

/* The kernel's tiles as its parameters say, made to fit. */
typedef struct tiling {
    int64_t consumers, keys, stages, blocks; /* as the kernel's constants */
    int64_t each, producer_regs,
        consumer_regs; /* registers: as launched, of either kind of thread */
    int64_t shared_bytes;
} tiling;

static int64_t pitch_of(int64_t dim) {
    return ejki_round_up(dim, 64);
}

/* Shared memory: queries of two tiles, stages of keys and values, and the rest. */
static int64_t bytes_of(const ejki_flash_problem *p, const tiling *t, int64_t stages) {
    const int64_t row = 2 * (pitch_of(p->head_dim) + pitch_of(p->value_dim));
    return 2 * t->consumers * 64 * 2 * pitch_of(p->head_dim) + stages * t->keys * row +
           SERVICE_BYTES + (p->layout == EJKI_FLASH_TOKENS ? ORDER_BYTES : 0);
}

/* CTAs of an SM by their registers, as launched. */
static int64_t least_blocks(const tiling *t) {
    return t->consumers == 1 ? ejki_max(2, t->blocks) : t->blocks;
}

/* Registers of producer and consumer threads out of those of an SM, multiples of eight. */
static void share_registers(tiling *t) {
    const int64_t warpgroups = t->consumers + 1;
    t->each = SM_REGISTERS / least_blocks(t) / (128 * warpgroups) / 8 * 8;
    t->producer_regs = t->consumers > 2 ? 32 : 24;
    t->consumer_regs =
        ejki_min(240, (warpgroups * t->each - t->producer_regs) / t->consumers / 8 * 8);
}

static bool fits(const ejki_flash_problem *p, const tiling *t) {
    const int64_t sums = ejki_round_up(p->value_dim, 16) / 2, scores = t->keys / 2;
    return sums + scores * 3 / 2 + OWN_REGISTERS <= t->consumer_regs &&
           ejki_max(sums, scores) + OWN_REGISTERS <= t->each && t->shared_bytes <= BLOCK_BYTES &&
           t->blocks * (t->shared_bytes + 1024) <= SM_BYTES;
}

/* Fewer blocks, then fewer stages down to two, then fewer keys. */
static tiling tiling_of(const ejki_flash_problem *p, const int64_t *parameters) {
    tiling t = {.consumers = ejki_max(1, parameters[0] / 64),
                .keys = parameters[1],
                .stages = parameters[3]};
    t.blocks = ejki_max(1, ejki_min(4, parameters[2] / (4 * t.consumers)));
    for (;;) {
        share_registers(&t);
        t.shared_bytes = bytes_of(p, &t, t.stages);
        if (fits(p, &t)) return t;
        if (t.stages > 2)
            t.stages--;
        else if (t.keys > 64)
            t.keys -= 16;
        else if (t.blocks > 1)
            t.blocks--, t.keys = parameters[1], t.stages = parameters[3];
        else if (t.keys > 16)
            t.keys -= 16;
        else
            return t;
    }
}

/* ---- What it takes ---------------------------------------------------------------------------------- */

/* Strides that a map can have: of axes of more than one, multiples of 16 bytes, above 0. */
static bool has_map(const ejki_bthd *t, int64_t entries, int64_t tokens, int64_t heads) {
    const int64_t most = INT64_C(1) << 38;
    const int64_t strides[] = {entries > 1 ? t->stride_b : PIECE, tokens > 1 ? t->stride_t : PIECE,
                               heads > 1 ? t->stride_h : PIECE};
    for (int i = 0; i < 3; i++)
        if (strides[i] % PIECE || strides[i] <= 0 || strides[i] > most) return false;
    return true;
}

/* Queries of a sequence: of packed ones, on the average. */
static int64_t queries_of(const ejki_flash_problem *p) {
    return p->layout == EJKI_FLASH_TOKENS ? p->queries / ejki_max(p->batch, 1) : p->queries;
}

/* Short T: pack the query group into one tile of rows; long S: split the keys. */
static bool is_long(const ejki_flash_problem *p) {
    const int64_t tiles = ejki_cdiv(p->queries, 64) * p->query_heads * ejki_flash_cuda_entries(p);
    return queries_of(p) >= LEAST_QUERIES && (tiles >= FEW_TILES || p->keys < MANY_KEYS);
}

/*
 * Are scores relative to their row's maximum, and to nothing else? It may be a result, and weights of f16 have few
 * exponents.
 */
static bool is_relative(const ejki_flash_problem *p) {
    return p->dtype != EJK_DTYPE_BF16 || !p->normalize || p->wants_row_maxima;
}

/* Under a cap scores may be taken as they are, if weights of 2^-90 to 2^90 are as good as others. */
static bool is_bounded(const ejki_flash_problem *p) {
    return p->soft_cap > 0 && p->soft_cap * LOG2_E <= 90 && !is_relative(p);
}

/* Of the series of a small score under a cap: two do for weights of bf16, but not for sums that are results. */
static int64_t terms_of(const ejki_flash_problem *p) {
    return is_bounded(p) && !p->wants_lse ? 2 : 3;
}

/* Under a cap the scale is above 0, and what set_cap() makes are normal numbers: rows_sm90.cuh relies on both. */
static bool takes_cap(const ejki_flash_problem *p) {
    const double factor = p->scale / p->soft_cap, third = p->scale * pow(factor, 4);
    return p->soft_cap <= 0 || (factor > 1e-8 && factor < 1e8 && third > 1e-35 && third < 1e35);
}

/*
 * Heads of 1 to 128 elements, rows at multiples of 16 bytes from one another, and nothing but positions, packed
 * sequences, a soft cap and sinks.
 */
static bool applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    const int64_t entries = ejki_flash_cuda_entries(p);
    return ejki_flash_cuda_fits(p) && p->head_dim > 0 && p->value_dim > 0 &&
           p->head_dim <= MOST_DIM && p->value_dim <= MOST_DIM && !p->has_bias && !p->has_mask &&
           !p->has_segments && p->dropout <= 0 && takes_cap(p) &&
           ejki_block_mask_is_empty(&p->block_mask) && !p->positions.given && p->keys > 0 &&
           p->query_heads > 0 && entries > 0 && is_long(p) &&
           has_map(&p->query, entries, p->queries, p->query_heads) &&
           has_map(&p->key, entries, p->keys, p->kv_heads) &&
           has_map(&p->value, entries, p->keys, p->kv_heads);
}

static bool is_folded(const ejki_flash_problem *p) {
    return (float)p->scale > 0 && p->soft_cap <= 0;
}

static bool is_piecewise(int64_t stride, int64_t length) {
    return length <= 1 || stride % PIECE == 0;
}

/* Can results be written 16 bytes at a time, if the tensor begins at such an address? */
static bool has_pieces(const ejki_flash_problem *p) {
    return p->normalize && p->value_dim % 32 == 0 &&
           is_piecewise(p->out.stride_b, ejki_flash_cuda_entries(p)) &&
           is_piecewise(p->out.stride_t, p->queries) &&
           is_piecewise(p->out.stride_h, p->query_heads);
}

static int64_t tiles_of(const ejki_flash_problem *p, const tiling *t) {
    return ejki_flash_cuda_tiles(p, p->queries, 1, 64 * t->consumers);
}

/* CTAs: as many as are resident together, at most one for each tile. */
static ejk_status blocks_of(const ejki_flash_problem *p, const tiling *t, int32_t device,
                            int64_t *out) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    *out = ejki_min(tiles_of(p, t) * p->query_heads * ejki_flash_cuda_entries(p),
                    gpu->multiprocessors * t->blocks);
    return EJK_OK;
}

/* Both kernels; `page` rows of a page, or 0. */
static void want(const ejki_flash_problem *p, const tiling *t, int64_t page, int32_t slot,
                 ejki_cuda_kernels *kernels) {
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&constants, "CONSUMERS", t->consumers);
    ejki_cuda_add(&constants, "KEYS", t->keys);
    ejki_cuda_add(&constants, "FOLDED", is_folded(p));
    if (page > 0) ejki_cuda_add(&constants, "PAGES", page);
    if (is_bounded(p)) ejki_cuda_add(&constants, "BOUNDED", 1);
    if (p->soft_cap > 0) ejki_cuda_add(&constants, "TERMS", terms_of(p));
    ejki_cuda_want(kernels, slot + RECOMPUTE, "operations/attention/cuda/sm90/recompute.cu",
                   "recompute_sm90", &constants);
    ejki_cuda_add(&constants, "PIECES", has_pieces(p));
    ejki_cuda_add(&constants, "STAGES", t->stages);
    ejki_cuda_add(&constants, "BLOCKS", least_blocks(t));
    ejki_cuda_add(&constants, "PRODUCER_REGS", t->producer_regs);
    ejki_cuda_add(&constants, "CONSUMER_REGS", t->consumer_regs);
    ejki_cuda_want(kernels, slot + FORWARD, "operations/attention/cuda/sm90/forward.cu",
                   "forward_sm90", &constants);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)threads;
    const ejki_flash_problem *p = problem;
    const tiling t = tiling_of(p, parameters);
    int64_t blocks;
    if (tiles_of(p, &t) * p->query_heads * ejki_flash_cuda_entries(p) > 1 << 30)
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld queries are more tiles than a GPU can count",
                         (long long)ejki_flash_cuda_rows(p));
    EJKI_TRY(blocks_of(p, &t, launch->device, &blocks));
    launch->workers = 1;
    launch->workspace_bytes = (size_t)blocks * EJKI_CUDA_NONFINITE_WORDS * sizeof(unsigned);
    ejki_cuda_kernels kernels = {.count = 0};
    want(p, &t, 0, 0, &kernels);
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Running ---------------------------------------------------------------------------------------- */

/* Can maps begin where the tensors do, and pieces of the result? */
static bool is_mapped(const ejki_flash_problem *p) {
    const uintptr_t out = has_pieces(p) ? (uintptr_t)p->out.data : 0;
    return (((uintptr_t)p->query.data | (uintptr_t)p->key.data | (uintptr_t)p->value.data | out) %
            (2 * PIECE)) == 0;
}

/* A tensor's map; `rows` of 64 elements are copied at once. */
static ejk_status map_of(const ejki_flash_problem *p, const ejki_bthd *t, int64_t dim,
                         int64_t entries, int64_t tokens, int64_t heads, int64_t rows,
                         ejki_cuda_map *map) {
    const int64_t sizes[] = {dim, tokens, heads, entries};
    const int64_t strides[] = {2 * (tokens > 1 ? t->stride_t : ejki_round_up(dim, PIECE)),
                               2 * (heads > 1 ? t->stride_h : ejki_round_up(dim, PIECE)),
                               2 * (entries > 1 ? t->stride_b : ejki_round_up(dim, PIECE))};
    const int32_t box[] = {64, (int32_t)rows, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(t->data, p->dtype, 4, sizes, strides, box, 128, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

/* A cache: pages are the outermost axis. */
static ejk_status cache_map(const ejki_flash_problem *p, const ejki_bthd *t, int64_t stride,
                            int64_t dim, const ejki_cuda_pages *pages, int64_t keys,
                            ejki_cuda_map *map) {
    const ejki_bthd cache = {t->data, stride, t->stride_t, t->stride_h};
    return map_of(p, &cache, dim, pages->pages, pages->page, p->kv_heads,
                  ejki_min(keys, pages->page), map);
}

/* The device's context is current: the driver wants one. */
static ejk_status set_maps(const ejki_flash_problem *p, const tiling *t,
                           const ejki_cuda_pages *pages, ejki_cuda_sm90_problem *out) {
    const int64_t entries = ejki_flash_cuda_entries(p);
    EJKI_TRY(map_of(p, &p->query, p->head_dim, entries, p->queries, p->query_heads, 64,
                    &out->query_map));
    if (pages) {
        EJKI_TRY(
            cache_map(p, &p->key, pages->key_page, p->head_dim, pages, t->keys, &out->key_map));
        return cache_map(p, &p->value, pages->value_page, p->value_dim, pages, t->keys,
                         &out->value_map);
    }
    EJKI_TRY(
        map_of(p, &p->key, p->head_dim, entries, p->keys, p->kv_heads, t->keys, &out->key_map));
    return map_of(p, &p->value, p->value_dim, entries, p->keys, p->kv_heads, t->keys,
                  &out->value_map);
}

/*
 * tanh(x) = x * (1 - x * x / 3 + …): where |x| <= 1/5 by three terms to 1.1e-07, or by two to 2.6e-05, which is
 * little to a weight of bf16. Of three the shift makes a square of the last two.
 */
static ejki_cuda_cap_terms series_of(const ejki_flash_problem *p) {
    static const double two[] = {0.9999739684950459, -0.32808497188699937};
    static const double three[] = {0.9999998947912523, -0.3332859089878118, 0.1301540755196617};
    const double factor = p->scale / p->soft_cap, square = factor * factor;
    if (terms_of(p) == 2)
        return (ejki_cuda_cap_terms){.shift = (float)(two[0] / two[1] / square),
                                     .factor = (float)(two[1] * square * p->scale * LOG2_E)};
    const double shift = three[1] / three[2] / 2;
    return (ejki_cuda_cap_terms){
        .shift = (float)(shift / square),
        .rest = (float)((three[0] / three[2] - shift * shift) / (square * square)),
        .factor = (float)(three[2] * square * square * p->scale * LOG2_E)};
}

static void set_cap(const ejki_flash_problem *p, ejki_cuda_sm90_problem *out) {
    const double factor = p->scale / p->soft_cap;
    out->cap_small = series_of(p);
    out->cap_limit = (float)(0.2 / factor);
    out->cap_exponent = (float)(2 * LOG2_E * factor);
    out->cap_high = (float)(p->soft_cap * LOG2_E);
}

/* Of plain scores: 2^-60 is far from the least number of bf16. */
static void set_reference(const ejki_flash_problem *p, ejki_cuda_sm90_problem *out) {
    if (is_relative(p)) return;
    out->slack = 8;
    out->lowest = fmaxf(-60 / out->unit, -FLT_MAX); /* but above what is hidden */
}

/*
 * Heads whose tiles are done side by side: so many that a round has all lengths, and twice as many in a window, which
 * needs few keys at a time, so that the short tiles of its start even out what the last round leaves; 0 = they are all
 * of one length.
 */
static int heads_together(const ejki_flash_problem *p, int64_t tiles, int64_t blocks) {
    const bool even = p->last_offset >= p->keys && p->layout == EJKI_FLASH_DENSE;
    const int64_t rounds = p->last_offset - p->first_offset < p->keys / 2 ? 2 * ROUNDS : ROUNDS;
    const int64_t heads = ejki_round_up(ejki_cdiv(rounds * blocks, tiles), 8);
    return even ? 0 : (int)ejki_min(heads, p->query_heads * ejki_flash_cuda_entries(p));
}

/* Both kernels, prepared from `slot` on. */
static ejk_status begin(const ejk_run *r, const ejki_flash_problem *p, const tiling t,
                        const ejki_cuda_pages *pages, int32_t slot, void *workspace) {
    const int64_t tiles = tiles_of(p, &t);
    int64_t blocks;
    EJKI_TRY(blocks_of(p, &t, r->device, &blocks));
    ejki_cuda_sm90_problem problem = {.all = ejki_flash_cuda_problem_of(p),
                                      .heads_together = heads_together(p, tiles, blocks),
                                      .copied = !is_mapped(p),
                                      .nonfinite = workspace};
    if (pages) problem.all.pages = *pages;
    problem.all.tiles = (int)tiles;
    problem.unit = (float)(is_folded(p) ? p->scale * LOG2_E : LOG2_E);
    if (p->soft_cap > 0)
        set_cap(p, &problem);
    else
        set_reference(p, &problem);
    const ejki_cuda_work forward = {.slot = slot + FORWARD,
                                    .blocks = blocks,
                                    .splits = 1,
                                    .threads = (int32_t)(128 * (t.consumers + 1)),
                                    .shared_bytes = t.shared_bytes,
                                    .overlaps = pages != NULL};
    const ejki_cuda_work recompute = {.slot = slot + RECOMPUTE,
                                      .blocks = blocks,
                                      .splits = 1,
                                      .threads = (int32_t)(128 * t.consumers),
                                      .shared_bytes = bytes_of(p, &t, 1),
                                      .overlaps = !problem.copied};
    if (!problem.copied) {
        bool pushed;
        EJKI_TRY(ejki_cuda_enter(r->device, &pushed));
        const ejk_status status = set_maps(p, &t, pages, &problem);
        ejki_cuda_leave(pushed);
        EJKI_TRY(status);
        EJKI_TRY(ejki_cuda_begin(r, &forward, &problem));
    }
    return ejki_cuda_begin(r, &recompute, &problem);
}

static ejk_status run(const ejk_run *r) {
    const ejki_flash_problem *p = r->problem;
    EJKI_TRY(ejki_flash_cuda_check_aligned(p));
    return begin(r, p, tiling_of(p, r->parameters), NULL, 0, r->workspace);
}

/* ---- Pages ------------------------------------------------------------------------------------------ */

enum { MOST_SEQUENCES = 511 }; /* that scheduler.cuh sorts */

/* Long sequences have higher tiles, of which short ones would fill too little. A warp looks pages up, which takes
 * registers. */
static tiling pages_tiling(const ejki_flash_problem *p, const ejki_cuda_pages *pages) {
    static const int64_t low[] = {128, 128, 8, 2}, high[] = {192, 64, 12, 3};
    tiling t = tiling_of(p, pages->least > 0 ? high : low);
    t.producer_regs += 16;
    t.consumer_regs -= 8;
    return t;
}

static bool is_divided(int64_t page, int64_t keys) {
    return page > 0 && page % 8 == 0 && (keys % page == 0 || page % keys == 0);
}

bool ejki_sm90_takes_pages(const ejki_flash_problem *p, const ejki_cuda_pages *pages) {
    const ejki_bthd key = {NULL, pages->key_page, p->key.stride_t, p->key.stride_h};
    const ejki_bthd value = {NULL, pages->value_page, p->value.stride_t, p->value.stride_h};
    if (!ejki_flash_cuda_fits(p) || p->head_dim <= 0 || p->value_dim <= 0 ||
        p->head_dim > MOST_DIM || p->value_dim > MOST_DIM || !takes_cap(p) || p->keys <= 0 ||
        p->query_heads <= 0 || p->batch <= 0 || p->batch > MOST_SEQUENCES || pages->pages <= 0)
        return false;
    const tiling t = pages_tiling(p, pages);
    return is_divided(pages->page, t.keys) && t.keys / 8 <= 32 && t.consumer_regs >= 24 &&
           has_map(&p->query, 1, p->queries, p->query_heads) &&
           has_map(&key, pages->pages, pages->page, p->kv_heads) &&
           has_map(&value, pages->pages, pages->page, p->kv_heads) &&
           tiles_of(p, &t) * p->query_heads <= 1 << 30;
}

void ejki_sm90_want_pages(const ejki_flash_problem *p, const ejki_cuda_pages *pages, int32_t slot,
                          ejki_cuda_kernels *kernels) {
    const tiling t = pages_tiling(p, pages);
    want(p, &t, pages->page, slot, kernels);
}

ejk_status ejki_sm90_pages_bytes(const ejki_flash_problem *p, const ejki_cuda_pages *pages,
                                 int32_t device, int64_t *out) {
    const tiling t = pages_tiling(p, pages);
    int64_t blocks;
    EJKI_TRY(blocks_of(p, &t, device, &blocks));
    *out = blocks * EJKI_CUDA_NONFINITE_WORDS * (int64_t)sizeof(unsigned);
    return EJK_OK;
}

ejk_status ejki_sm90_begin_pages(const ejk_run *run, const ejki_flash_problem *p,
                                 const ejki_cuda_pages *pages, int32_t slot, void *workspace) {
    return begin(run, p, pages_tiling(p, pages), pages, slot, workspace);
}

static const ejk_parameter parameters[] = {
    {"q_blocksize", 64, 256, 64, 128, "queries of a tile: 64 for each warpgroup that computes"},
    {"kv_blocksize", 16, 160, 16, 128, "keys of a block"},
    {"num_warps", 4, 16, 4, 8, "consumer warps on one SM"},
    {"num_stages", 2, 8, 1, 2, "blocks of keys in shared memory"},
};

/* Queries, keys, warps, stages. */
static const ejk_candidate candidates[] = {
    {{128, 128, 8, 2}}, {{128, 128, 8, 3}}, {{192, 128, 12, 2}}, {{192, 80, 12, 2}},
    {{192, 64, 12, 3}}, {{256, 64, 16, 8}}, {{64, 64, 12, 3}},   {{64, 128, 8, 2}},
};

static const char needs[] =
    "heads of 1 to 128, no bias, mask, segment ids, positions or dropout, "
    "strides of query, key and value that are "
    "multiples of 8, under a soft cap a positive scale within 10^8 of it, and "
    "queries and tiles enough";

EJKI_DECLARE(flash_attention_sm90_cuda, .version = 1, .priority = 20, .parameters = parameters,
             .candidates = candidates, .candidate_count = sizeof candidates / sizeof *candidates,
             .suggest = ejki_sm90_suggest, .parameter_count = 4, .applicable = applicable,
             .needs = needs, .prepare = prepare, .run = run)
