/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention by backward_sm90.cu: which problems, tiles, and the workspace. Sums of d_query are one
 * f32 copy of it, in tiles.
 */
#include "kernels/declare.h"
#include "operations/attention/cuda/sm80/backward.h"

#include "device/cuda_driver.h"
#include "operations/attention/shared/suggest.h"

enum { KEYS = 128, THREADS = 384, ROUND_THREADS = 128, MOST_DIM = 128, ALIGNMENT = 256 };

/* Rows of no sum, by kernels that look whether there is anything to do: a few blocks are enough. */
enum { REDO_BLOCKS = 264 };
static const int64_t mma_fallbacks[] = {64, 64, 4, 2};

typedef struct layout {
    int64_t rows, slots, heads; /* of a tile of queries; tiles of one head; heads of all entries */
    int64_t zeros;              /* numbers that are zeroed: two, and turns */
    int64_t sums, sum_bytes;    /* their place in the workspace */
    int64_t bytes;
    int64_t shared_bytes;
} layout;

static int64_t rows_of(const ejki_flash_problem *p, const int64_t *parameters) {
    return p->head_dim <= 64 && p->value_dim <= 64 && p->soft_cap <= 0 && parameters[0] > 64 ? 128
                                                                                             : 64;
}

static layout layout_of(const ejki_flash_vjp_problem *v, const int64_t *parameters) {
    const ejki_flash_problem *p = &v->forward;
    const int64_t head = ejki_round_up(p->head_dim, 64), value = ejki_round_up(p->value_dim, 64);
    layout l = {.rows = rows_of(p, parameters),
                .heads = ejki_flash_cuda_entries(p) * p->query_heads};
    l.slots = ejki_flash_cuda_tiles(p, p->queries, 1, l.rows);
    l.zeros = ejki_round_up(2 + l.heads * l.slots, ALIGNMENT / 4);
    l.sums = ejki_round_up(2 * ejki_flash_cuda_rows(p) * (int64_t)sizeof(float), ALIGNMENT) +
             4 * l.zeros;
    l.sum_bytes = v->wants_query ? l.heads * l.slots * l.rows * ejki_round_up(p->head_dim, 8) *
                                       (int64_t)sizeof(float)
                                 : 0;
    l.bytes = l.sums + l.sum_bytes;
    const int64_t tiles = (KEYS + 2 * l.rows) * (head + value) * 2;
    const int64_t ds = 2 * KEYS * l.rows * 2,
                  shares = 4 * 64 * (l.rows == 128 ? head : head / 2) * 4;
    l.shared_bytes = tiles + ds + shares + 2 * l.rows * 8 + 512;
    return l;
}

/* ---- Which problems ------------------------------------------------------------------------------------ */

/* Strides that a tensor map can have; those of axes of one do not matter. */
static bool has_strides(const ejki_bthd *t, int64_t entries, int64_t tokens, int64_t heads) {
    const struct {
        int64_t stride, length;
    } axes[] = {{t->stride_b, entries}, {t->stride_t, tokens}, {t->stride_h, heads}};
    for (int i = 0; i < 3; i++)
        if (axes[i].length > 1 &&
            (axes[i].stride <= 0 || axes[i].stride % 8 || axes[i].stride >= INT64_C(1) << 38))
            return false;
    return true;
}

static bool applicable(const void *problem) {
    const ejki_flash_vjp_problem *v = problem;
    const ejki_flash_problem *p = &v->forward;
    const int64_t entries = ejki_flash_cuda_entries(p);
    const int64_t fallback[] = {128};
    if (!ejki_flash_cuda_fits(p) || p->has_bias || p->has_mask || p->has_segments ||
        p->dropout > 0 || v->wants_bias || !ejki_block_mask_is_empty(&p->block_mask) ||
        p->positions.given)
        return false;
    if (p->head_dim < 1 || p->head_dim > MOST_DIM || p->value_dim < 1 || p->value_dim > MOST_DIM)
        return false;
    if (entries < 1 || p->queries < 1 || p->keys < 1 || p->kv_heads < 1 || p->group < 1)
        return false;
    const layout l = layout_of(v, fallback);
    return l.heads * l.slots < INT64_C(1) << 29 &&
           ejki_flash_cuda_blocks(p, ejki_flash_cuda_tiles(p, p->keys, 1, KEYS)) < INT64_C(1)
                                                                                       << 30 &&
           has_strides(&p->query, entries, p->queries, p->query_heads) &&
           has_strides(&p->key, entries, p->keys, p->kv_heads) &&
           has_strides(&p->value, entries, p->keys, p->kv_heads) &&
           has_strides(&v->out_cotangent, entries, p->queries, p->query_heads);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const ejki_flash_vjp_problem *v = problem;
    const ejki_flash_problem *p = &v->forward;
    const layout l = layout_of(v, parameters);
    (void)threads;
    ejki_cuda_kernels kernels = {.count = 0};
    EJKI_TRY(ejki_cuda_vjp_mma_want(v, mma_fallbacks, true, launch, &kernels));
    launch->workspace_bytes = (size_t)l.bytes;
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&constants, "ROWS", l.rows);
    ejki_cuda_add(&constants, "ORDERED", !v->unordered);
    ejki_cuda_add(&constants, "D_QUERY", v->wants_query);
    ejki_cuda_want(&kernels, EJKI_CUDA_SM90, "operations/attention/cuda/sm90/backward.cu",
                   "backward_sm90", &constants);
    ejki_cuda_want(&kernels, EJKI_CUDA_ROUND, "operations/attention/cuda/sm90/backward.cu",
                   "round_sm90", &constants);
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Runs ---------------------------------------------------------------------------------------------- */

/* A tensor [D, T, H, B] as a tensor map with boxes of 64 columns and `rows` tokens. */
static ejk_status map_of(const ejki_flash_problem *p, const ejki_bthd *t, int64_t dim,
                         int64_t tokens, int64_t heads, int64_t rows, ejki_cuda_tensor_map *out) {
    const int64_t entries = ejki_flash_cuda_entries(p);
    const int64_t sizes[] = {dim, tokens, heads, entries};
    const int64_t strides[] = {tokens > 1 ? 2 * t->stride_t : 16, heads > 1 ? 2 * t->stride_h : 16,
                               entries > 1 ? 2 * t->stride_b : 16};
    const int32_t box[] = {64, (int32_t)rows, 1, 1};
    return ejki_cuda_tensor_map_encode(t->data, p->dtype, 4, sizes, strides, box, 128, out);
}

struct maps {
    ejki_cuda_tensor_map query, key, value, d_out;
};

/* The device's context is current: the driver wants one. */
static ejk_status encode(const ejki_flash_vjp_problem *v, int64_t rows, struct maps *out) {
    const ejki_flash_problem *p = &v->forward;
    EJKI_TRY(map_of(p, &p->query, p->head_dim, p->queries, p->query_heads, rows, &out->query));
    EJKI_TRY(map_of(p, &p->key, p->head_dim, p->keys, p->kv_heads, KEYS, &out->key));
    EJKI_TRY(map_of(p, &p->value, p->value_dim, p->keys, p->kv_heads, KEYS, &out->value));
    return map_of(p, &v->out_cotangent, p->value_dim, p->queries, p->query_heads, rows,
                  &out->d_out);
}

static bool at_16_bytes(const ejki_flash_vjp_problem *v) {
    return (((uintptr_t)v->forward.query.data | (uintptr_t)v->forward.key.data |
             (uintptr_t)v->forward.value.data | (uintptr_t)v->out_cotangent.data) &
            15) == 0;
}

static ejk_status run_main(const ejk_run *run, const layout *l, ejki_cuda_vjp_problem *problem) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejk_gpu_info *gpu;
    struct maps maps;
    bool pushed;
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    EJKI_TRY(ejki_cuda_enter(run->device, &pushed));
    const ejk_status status = encode(v, l->rows, &maps);
    ejki_cuda_leave(pushed);
    EJKI_TRY(status);
    const ejki_cuda_launch how = {
        .grid = {(uint32_t)ejki_min(problem->jobs, gpu->multiprocessors), 1, 1},
        .block = {THREADS, 1, 1},
        .shared_bytes = (uint32_t)l->shared_bytes,
        .stream = run->stream,
    };
    void *arguments[] = {&maps.query, &maps.key, &maps.value, &maps.d_out, problem};
    return ejki_cuda_run(run->prepared[EJKI_CUDA_SM90], &how, arguments);
}

static ejk_status run_sm90(const ejk_run *run) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    if (!at_16_bytes(v)) {
        ejk_run other = *run;
        other.parameters = mma_fallbacks;
        return ejki_cuda_vjp_mma_run(&other);
    }
    EJKI_TRY(ejki_cuda_vjp_check_aligned(v));
    const layout l = layout_of(v, run->parameters);
    const ejki_cuda_vjp_tiling own = {.rows = l.rows, .keys = KEYS};
    ejki_cuda_vjp_problem problem = ejki_cuda_vjp_problem_of(v, &own);
    problem.forward.tiles = (int)l.slots;
    problem.delta = run->workspace;
    problem.shift = problem.delta + ejki_flash_cuda_rows(p);
    problem.sums = v->wants_query ? (float *)((char *)run->workspace + l.sums) : NULL;
    problem.ticket = (unsigned *)((char *)run->workspace + l.sums) - l.zeros;
    problem.nonfinite = (int *)problem.ticket + 1;
    problem.turns = problem.ticket + 2;
    problem.zeros = l.zeros;
    problem.sum_zeros = v->unordered ? l.sum_bytes / 16 : 0;
    problem.jobs = (int)ejki_flash_cuda_blocks(p, problem.key_tiles);
    problem.slots = (int)l.slots;
    EJKI_TRY(ejki_cuda_vjp_delta(run, &problem));
    EJKI_TRY(run_main(run, &l, &problem));
    if (v->wants_query)
        EJKI_TRY(ejki_cuda_vjp_begin(run, EJKI_CUDA_ROUND, 2 * l.heads * l.slots, 1, ROUND_THREADS,
                                     0, &problem));
    const ejki_cuda_vjp_tiling mma = ejki_cuda_vjp_mma_tiling(v, mma_fallbacks);
    ejki_cuda_vjp_problem recompute = ejki_cuda_vjp_problem_of(v, &mma);
    recompute.delta = problem.delta;
    recompute.shift = problem.shift;
    recompute.nonfinite = problem.nonfinite;
    EJKI_TRY(ejki_cuda_vjp_products(run, &mma, REDO_BLOCKS, &recompute));
    return ejki_cuda_vjp_sinks(run, &problem);
}

static const ejk_parameter parameters[] = {
    {"q_blocksize", 64, 128, 64, 128, "rows of a tile; 64 where a head is wider than that"},
};

static const char needs[] = "heads of 1 to 128, no bias, mask, segment ids, positions or dropout, "
                            "and strides of query, key, value and d_out "
                            "that are multiples of 8";

EJKI_DECLARE(flash_attention_vjp_sm90_cuda, .version = 1, .priority = 20, .parameters = parameters,
             .suggest = ejki_sm90_suggest_vjp, .parameter_count = 1, .applicable = applicable,
             .needs = needs, .prepare = prepare, .run = run_sm90)
