/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention by plain and mma kernels: tiles and workspace. forward_mma.cu takes bf16 and f16 with heads up to
 * 256, forward_plain.cu everything; combine.cu combines KV splits.
 */
#include "kernels/declare.h"
#include "operations/attention/cuda/common/launch.h"
#include "operations/attention/shared/suggest.h"

/* A kernel's tiles as its parameters say, made to fit. */
typedef struct tiling {
    int64_t rows, keys; /* of a tile */
    int64_t warps, row_tiles, stages;
    int64_t splits, split_keys;
    int64_t shared_bytes;
} tiling;

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return ejki_max(low, ejki_min(value, high));
}

/* Parts of whole blocks; no more of them than there are blocks. */
static void split(tiling *t, int64_t keys, int64_t parts) {
    t->split_keys = ejki_round_up(ejki_max(1, ejki_cdiv(keys, parts)), t->keys);
    t->splits = ejki_max(1, ejki_cdiv(keys, t->split_keys));
}

/* Block mask, then maxima, sums and outputs of all KV splits. False if they are more than can be counted. */
static bool workspace_of(const ejki_flash_problem *p, const tiling *t, int64_t *bytes) {
    int64_t parts = 0;
    *bytes = ejki_flash_cuda_block_mask_bytes(p);
    if (t->splits == 1) return true;
    return ejki_mul(ejki_flash_cuda_rows(p), t->splits, &parts) &&
           ejki_mul(parts, (p->value_dim + 2) * (int64_t)sizeof(float), &parts) &&
           ejki_add(*bytes, parts, bytes);
}

enum { MAIN, JOIN, BLOCK_MASK }; /* what is prepared */

/* Compiles the kernel with its own constants added, and the one that joins its parts. */
static ejk_status prepare_tiles(const ejki_flash_problem *p, const tiling *t, const char *text,
                                const char *entry, const ejki_cuda_constants *constants,
                                ejk_launch *launch) {
    const int64_t blocks =
        ejki_flash_cuda_blocks(p, ejki_flash_cuda_tiles(p, p->queries, p->group, t->rows));
    int64_t bytes;
    if (!workspace_of(p, t, &bytes) || blocks > INT32_MAX)
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%lld parts of %lld rows are more than a GPU's grid can count",
                         (long long)t->splits, (long long)ejki_flash_cuda_rows(p));
    launch->workers = 1;
    launch->workspace_bytes = (size_t)bytes;
    EJKI_TRY(ejki_flash_cuda_ready_block_mask(launch, BLOCK_MASK, p));
    EJKI_TRY(ejki_cuda_ready(launch, MAIN, text, entry, constants));
    if (t->splits == 1) return EJK_OK;
    const ejki_cuda_constants of_join = ejki_flash_cuda_row_constants_of(p);
    return ejki_cuda_ready(launch, JOIN, "operations/attention/cuda/sm80/combine.cu", "combine",
                           &of_join);
}

/* True if a run has nothing to do. */
static bool is_nothing(const ejki_flash_problem *p) {
    return ejki_flash_cuda_rows(p) == 0 ||
           (p->value_dim == 0 && !p->lse.data && !p->row_max.data && !p->row_sum.data);
}

static ejk_status run_tiles(const ejk_run *run, const tiling *t) {
    const ejki_flash_problem *p = run->problem;
    const int64_t rows = ejki_flash_cuda_rows(p);
    if (is_nothing(p)) return EJK_OK;
    EJKI_TRY(ejki_flash_cuda_check_aligned(p));
    ejki_cuda_problem problem = ejki_flash_cuda_problem_of(p);
    const int64_t tiles = ejki_flash_cuda_tiles(p, p->queries, p->group, t->rows);
    problem.tiles = (int)tiles;
    problem.splits = (int)t->splits;
    problem.split_keys = (int)t->split_keys;
    problem.visibility.block_mask = run->workspace;
    if (t->splits > 1) {
        problem.part_max =
            (float *)(void *)((char *)run->workspace + ejki_flash_cuda_block_mask_bytes(p));
        problem.part_sum = problem.part_max + t->splits * rows;
        problem.part_out = problem.part_sum + t->splits * rows;
    }
    const ejki_cuda_work work = {.slot = MAIN,
                                 .blocks = ejki_flash_cuda_blocks(p, tiles),
                                 .splits = t->splits,
                                 .threads = (int32_t)t->warps * 32,
                                 .shared_bytes = t->shared_bytes};
    EJKI_TRY(ejki_flash_cuda_begin_block_mask(run, BLOCK_MASK, p, run->workspace));
    EJKI_TRY(ejki_cuda_begin(run, &work, &problem));
    if (t->splits == 1) return EJK_OK;
    const ejki_cuda_work join = {
        .slot = JOIN, .blocks = ejki_cdiv(rows, 4), .splits = 1, .threads = 128};
    return ejki_cuda_begin(run, &join, &problem);
}

/* ---- Plain ------------------------------------------------------------------------------------------ */

enum { PLAIN_WARPS = 4, PLAIN_STEP = 32, PLAIN_CHUNK = 64 };

/* Sums of wide heads take more registers than four rows of a warp have. */
static tiling plain_tiling(const ejki_flash_problem *p, const int64_t *parameters) {
    tiling t = {.keys = PLAIN_STEP, .warps = PLAIN_WARPS};
    t.row_tiles = ejki_max(p->head_dim, p->value_dim) > 256 ? 2 : 4;
    t.rows = t.warps * t.row_tiles;
    split(&t, p->keys, parameters[0]);
    t.shared_bytes = (t.rows * ejki_round_up(ejki_max(p->head_dim, 1), PLAIN_CHUNK) +
                      PLAIN_STEP * (PLAIN_CHUNK + 4) + t.rows * PLAIN_STEP) *
                     (int64_t)sizeof(float);
    return t;
}

static bool plain_applicable(const void *problem) {
    return ejki_flash_cuda_fits(problem);
}

static ejk_status plain_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    (void)threads;
    const tiling t = plain_tiling(problem, parameters);
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(problem);
    ejki_cuda_add(&constants, "ROWS", t.row_tiles);
    return prepare_tiles(problem, &t, "operations/attention/cuda/sm80/forward_plain.cu",
                         "forward_plain", &constants, launch);
}

static ejk_status plain_run(const ejk_run *run) {
    const tiling t = plain_tiling(run->problem, run->parameters);
    return run_tiles(run, &t);
}

/* ---- Tensor cores ----------------------------------------------------------------------------------- */

static int64_t tile_bytes(int64_t rows, int64_t dim) {
    return rows * ejki_round_up(dim, 64) * 2;
}

/* Stages, then keys, are fewer where shared memory would not hold them. */
static tiling mma_tiling(const ejki_flash_problem *p, const int64_t *parameters) {
    tiling t = {.warps = parameters[2] >= 8 ? 8 : parameters[2] >= 4 ? 4 : parameters[2]};
    if (t.warps == 3) t.warps = 2;
    t.row_tiles = clamp(parameters[0] / (16 * t.warps), 1, p->value_dim > 128 ? 1 : 2);
    t.rows = 16 * t.warps * t.row_tiles;
    t.keys = parameters[1];
    t.stages = parameters[3];
    for (;;) {
        t.shared_bytes =
            tile_bytes(t.rows, p->head_dim) +
            t.stages * (tile_bytes(t.keys, p->head_dim) + tile_bytes(t.keys, p->value_dim));
        if (t.shared_bytes <= EJKI_CUDA_SHARED_BYTES || (t.stages == 1 && t.keys == 16)) break;
        if (t.stages > 1)
            t.stages--;
        else
            t.keys -= 16;
    }
    split(&t, p->keys, parameters[4]);
    return t;
}

/* Sums that are not divided have to be true to f32, which those of rounded weights are not. */
static bool mma_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return ejki_flash_cuda_fits(p) && p->normalize && p->head_dim > 0 && p->value_dim > 0 &&
           p->head_dim <= 256 && p->value_dim <= 256;
}

static ejk_status mma_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    (void)threads;
    const ejki_flash_problem *p = problem;
    const tiling t = mma_tiling(p, parameters);
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&constants, "WARPS", t.warps);
    ejki_cuda_add(&constants, "ROW_TILES", t.row_tiles);
    ejki_cuda_add(&constants, "KEYS", t.keys);
    ejki_cuda_add(&constants, "STAGES", t.stages);
    ejki_cuda_add(&constants, "FOLDED", (float)p->scale > 0 && p->soft_cap <= 0 && !p->has_bias);
    return prepare_tiles(p, &t, "operations/attention/cuda/sm80/forward_mma.cu", "forward_mma",
                         &constants, launch);
}

static ejk_status mma_run(const ejk_run *run) {
    const tiling t = mma_tiling(run->problem, run->parameters);
    return run_tiles(run, &t);
}

/* ---- Implementations -------------------------------------------------------------------------------- */

static const ejk_parameter plain_parameters[] = {
    {"num_key_splits", 1, 65535, 1, 1, "KV splits, combined at the end"},
};

static const ejk_parameter mma_parameters[] = {
    {"q_blocksize", 16, 256, 16, 128,
     "rows of a tile, of all heads of a group: 16 or 32 for a warp"},
    {"kv_blocksize", 16, 128, 16, 64, "keys of a block"},
    {"num_warps", 1, 8, 1, 4, "warps of a GPU block: 1, 2, 4 or 8"},
    {"num_stages", 1, 4, 1, 2, "blocks of keys in shared memory"},
    {"num_key_splits", 1, 65535, 1, 1, "KV splits, combined at the end"},
};

/* Rows, keys, warps, stages; the KV splits as suggested. */
static const ejk_candidate mma_candidates[] = {
    {{128, 64, 4, 2}}, {{64, 64, 4, 2}}, {{128, 128, 4, 2}}, {{128, 32, 4, 2}}, {{128, 64, 8, 2}},
    {{64, 128, 4, 2}}, {{64, 32, 4, 3}}, {{32, 64, 2, 2}},   {{16, 64, 1, 2}},  {{16, 32, 1, 3}},
};

EJKI_DECLARE(flash_attention_plain_cuda, .version = 1, .parameters = plain_parameters,
             .suggest = ejki_sm80_suggest_plain, .parameter_count = 1,
             .applicable = plain_applicable, .needs = "heads up to 576", .prepare = plain_prepare,
             .run = plain_run)

EJKI_DECLARE(flash_attention_mma_cuda, .version = 1, .priority = 10, .parameters = mma_parameters,
             .candidates = mma_candidates,
             .candidate_count = sizeof mma_candidates / sizeof *mma_candidates,
             .suggest = ejki_sm80_suggest, .parameter_count = 5, .applicable = mma_applicable,
             .needs = "heads of 1 to 256, normalize_output", .prepare = mma_prepare, .run = mma_run)
