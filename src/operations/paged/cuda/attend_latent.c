/* SPDX-License-Identifier: Apache-2.0 */
/* Attention to latents in pages on sm_90a: launches of look.cu and latent.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "device/cuda_driver.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/latent.cuh"

/* MAPPED takes the place of ATTEND where pages can be fetched by TMA and tensors begin where maps can. */
enum { LOOK, ATTEND, MAPPED };
/* As latent.cu has them. */
enum { ROWS = 64, KEYS = 64, THREADS = 384, CHUNK_BYTES = 8192, END_BYTES = 3136 };

static int64_t few_rows(const paged_problem *p) {
    return PAGED_FEW_LATENT / p->group;
}

/* Rows that have parts: all, or so many of each sequence. */
static int64_t part_rows(const paged_problem *p) {
    return ejki_min(p->tokens, p->sequences * few_rows(p));
}

/* Splits that a sequence can have, whose table has no room for more keys. */
static int64_t most_splits(const paged_problem *p) {
    return ejki_min(PAGED_LATENT_SPLITS, p->width * p->page / PAGED_LEAST_LATENT_KEYS + 1);
}

/* Tiles of all sequences, at most; each has two tickets, behind the flags. */
static int64_t tiles_of(const paged_problem *p) {
    return p->tokens * p->group / ROWS + p->sequences;
}

static int64_t flag_bytes(const paged_problem *p) {
    return ejki_round_up((p->sequences + 1 + 2 * tiles_of(p)) * (int64_t)sizeof(int), 256);
}

static double part_bytes(const paged_problem *p) {
    return (double)part_rows(p) * (double)p->heads * (double)most_splits(p) *
           (double)(p->value_dim + 2) * sizeof(float);
}

static int64_t shared_bytes(const paged_problem *p) {
    return 3 * ejki_cdiv(p->dim + p->tail_dim, 64) * CHUNK_BYTES + END_BYTES;
}

static bool is_folded(const paged_problem *p) {
    return (float)p->scale * p->key.factor > 0 && p->cap <= 0 && !p->has_alibi && !p->has_bias;
}

/* Values are the first part of keys: of a cache without value heads, which only latents have. */
static bool are_latents(const paged_problem *p) {
    const paged_cache *k = &p->key, *v = &p->value;
    return p->kv_heads == 1 && p->tail_dim > 0 && p->tables == PAGED_TABLE && p->writes &&
           !p->has_new_value && p->value_dim == p->dim && v->page == k->page &&
           v->token == k->token && v->factor == k->factor;
}

/* Two tiles of heads of the same keys, which a cluster has. */
static bool is_paired(const paged_problem *p) {
    return p->group % (2 * ROWS) == 0;
}

static bool has_map(const paged_cache *c) {
    return c->page > 0 && c->token > 0 && c->page % 8 == 0 && c->token % 8 == 0 &&
           c->page < INT64_C(1) << 38 && c->token < INT64_C(1) << 38;
}

/* Whole pages, of which a block has whole ones or a part. */
static bool can_be_mapped(const paged_problem *p) {
    return p->page % 8 == 0 && (KEYS % p->page == 0 || p->page % KEYS == 0) && p->pages > 0 &&
           p->slots == p->pages * p->page && has_map(&p->key) && has_map(&p->key_tail);
}

static bool is_mapped(const paged_problem *p) {
    return can_be_mapped(p) && ((uintptr_t)p->key.data | (uintptr_t)p->key_tail.data) % 16 == 0;
}

static ejk_status map_of(const paged_problem *p, const paged_cache *c, int64_t dim,
                         ejki_cuda_map *map) {
    const int64_t sizes[] = {dim, p->page, 1, p->pages};
    const int64_t strides[] = {2 * c->token, 2 * c->page, 2 * c->page};
    const int32_t box[] = {64, (int32_t)ejki_min(p->page, KEYS), 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(c->data, (ejk_dtype)c->dtype, 4, sizes, strides, box, 128,
                                         &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

/* The device's context is current: the driver wants one. */
static ejk_status set_maps(const paged_problem *p, int32_t device, paged_latent_arguments *out) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    ejk_status status = map_of(p, &p->key, p->dim, &out->key_map);
    if (status == EJK_OK) status = map_of(p, &p->key_tail, p->tail_dim, &out->tail_map);
    ejki_cuda_leave(pushed);
    return status;
}

static bool fits(const paged_problem *p) {
    const double pairs = (double)p->tokens * (double)p->heads;
    return pairs < (1 << 30) && part_bytes(p) < 1e12 && p->page <= (1 << 30) &&
           (double)p->width * (double)p->page <= (1 << 30) && p->pages <= INT32_MAX &&
           (double)p->sequences * (double)p->heads * PAGED_LATENT_SPLITS < (1 << 30);
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    const int type = p->query.dtype;
    return (type == EJK_DTYPE_BF16 || type == EJK_DTYPE_F16) && p->query_tail.dtype == type &&
           p->key.dtype == type && p->key_tail.dtype == type && p->sequences > 0 && p->group > 0 &&
           p->group <= PAGED_FEW_LATENT && are_latents(p) && p->query_scale == 0 &&
           !p->key.scaled && p->dim % 128 == 0 && p->dim > 0 && p->dim <= 512 &&
           p->tail_dim % 16 == 0 && p->tail_dim <= 64 && ejki_paged_cuda_types(p) && fits(p);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const paged_problem *p = problem;
    (void)parameters;
    (void)threads;
    ejki_cuda_constants none = {.count = 0}, attend = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_add(&attend, "ELEMENT", p->query.dtype);
    ejki_cuda_add(&attend, "HEAD_DIM", p->dim);
    ejki_cuda_add(&attend, "TAIL_DIM", p->tail_dim);
    ejki_cuda_add(&attend, "FOLDED", is_folded(p));
    ejki_cuda_add(&attend, "OVERLAP", 1);
    /* Known when a kernel is compiled where it is worth another one. */
    ejki_cuda_add(&attend, "PAGE_ROWS", p->group % ROWS == 0 ? p->page : 0);
    ejki_cuda_add(&attend, "HEAD_GROUP", p->group % ROWS == 0 ? p->group : 0);
    ejki_cuda_constants mapped = attend;
    ejki_cuda_add(&attend, "PAGES", 0);
    ejki_cuda_add(&attend, "PAIR", 0);
    ejki_cuda_add(&mapped, "PAGES", ejki_min(p->page, KEYS));
    ejki_cuda_add(&mapped, "PAIR", is_paired(p));
    ejki_cuda_want(&kernels, LOOK, "operations/paged/cuda/look.cu", "look", &none);
    ejki_cuda_want(&kernels, ATTEND, "operations/paged/cuda/latent.cu", "latent", &attend);
    if (can_be_mapped(p))
        ejki_cuda_want(&kernels, MAPPED, "operations/paged/cuda/latent.cu", "latent", &mapped);
    launch->workspace_bytes = (size_t)flag_bytes(p) + (size_t)part_bytes(p);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const paged_problem *p = run->problem;
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_paged_cuda_check(p));
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    float *const parts = (float *)(void *)((char *)run->workspace + flag_bytes(p));
    const int64_t rows = part_rows(p);
    const int64_t ctas = ejki_min(tiles_of(p) * most_splits(p), gpu->multiprocessors);
    const bool mapped = is_mapped(p);
    paged_latent_arguments l = {
        .all = {.p = *p,
                .flags = run->workspace,
                .tickets = (int *)run->workspace + p->sequences + 1,
                .ticket_count = 2 * tiles_of(p),
                .parts = parts,
                .splits = most_splits(p),
                .ends = parts + rows * p->heads * most_splits(p) * p->value_dim,
                .rows_most = rows < p->tokens ? few_rows(p) : 0}};
    if (mapped) EJKI_TRY(set_maps(p, run->device, &l));
    /* It waits for what writes new keys, which waits for all before; without rows nothing does. */
    const ejki_cuda_work look = {.slot = LOOK,
                                 .threads = PAGED_THREADS,
                                 .blocks = p->sequences + 1,
                                 .overlaps = p->tokens > 0};
    const ejki_cuda_work attend = {.slot = mapped ? MAPPED : ATTEND,
                                   .threads = THREADS,
                                   .blocks = is_paired(p) ? ctas / 2 * 2 : ctas,
                                   .shared_bytes = shared_bytes(p),
                                   .overlaps = true};
    EJKI_TRY(ejki_cuda_begin(run, &look, &l.all));
    return ejki_cuda_begin(run, &attend, &l);
}

EJKI_DECLARE(unified_attention_latent_cuda, .version = 1, .priority = 30, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs = "latents of bf16 or f16 as the queries, a multiple of 128 up to 512 and rope "
                      "elements a multiple of 16 up to 64, without scales of queries")
