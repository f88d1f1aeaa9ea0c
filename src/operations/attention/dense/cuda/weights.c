/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of attention on GPUs: the step after flash attention where they are asked for. */
#include "kernels/declare.h"
#include "operations/attention/dense/problem.h"
#include "operations/attention/cuda/common/launch.h"

enum { WARPS = 4, STEP = 32, CHUNK = 64 };

static int64_t rows_of_warp(const ejki_flash_problem *p) {
    return p->head_dim > 256 ? 2 : 4;
}

static int64_t tiles_of(const ejki_flash_problem *p) {
    return ejki_flash_cuda_tiles(p, p->queries, p->group, WARPS * rows_of_warp(p));
}

static bool applicable(const void *problem) {
    return ejki_flash_cuda_fits(problem);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_flash_problem *p = problem;
    const int64_t blocks = ejki_flash_cuda_blocks(p, tiles_of(p));
    if (blocks > INT32_MAX)
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld tiles are more than a GPU's grid can count",
                         (long long)blocks);
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&constants, "ROWS", rows_of_warp(p));
    return ejki_cuda_ready(launch, 0, "operations/attention/dense/cuda/weights.cu", "weights",
                           &constants);
}

static ejk_status run(const ejk_run *run) {
    const ejki_attention_problem *a = run->problem;
    const ejki_flash_problem *p = &a->flash;
    if (ejki_flash_cuda_rows(p) == 0 || p->keys == 0) return EJK_OK;
    EJKI_TRY(ejki_flash_cuda_check_aligned(p));
    EJKI_TRY(
        ejki_cuda_check_address(a->weights.data, (int64_t)ejk_dtype_size(p->dtype), "weights"));
    ejki_cuda_weights_problem problem = {
        .forward = ejki_flash_cuda_problem_of(p),
        .weights = {a->weights.data, a->weights.stride_b, a->weights.stride_h, a->weights.stride_t},
    };
    const int64_t tiles = tiles_of(p), rows = WARPS * rows_of_warp(p);
    problem.forward.tiles = (int)tiles;
    const int64_t floats =
        rows * ejki_round_up(ejki_max(p->head_dim, 1), CHUNK) + STEP * (CHUNK + 4);
    const ejki_cuda_work work = {.slot = 0,
                                 .blocks = ejki_flash_cuda_blocks(p, tiles),
                                 .splits = 1,
                                 .threads = 32 * WARPS,
                                 .shared_bytes = floats * (int64_t)sizeof(float)};
    return ejki_cuda_begin(run, &work, &problem);
}

EJKI_DECLARE(attention_weights_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
