/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products on sm_90: each product of a call by the fast kernel that suits it, others by the general ones. The
 * kernel of tiles alone is an implementation, too, to be held against.
 */
#include "kernels/declare.h"
#include "operations/matmul/cuda/fast.h"

const ejki_mm_fast *ejki_mm_fast_of(const mm_product *p) {
    if (!p->has_out) return NULL;
    if (p->quant.present) {
        const ejki_mm_fast *const list[] = {&ejki_mm_codes_many, &ejki_mm_codes,
                                            &ejki_mm_tiles_of_codes, &ejki_mm_experts};
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            if (list[i]->takes(p)) return list[i];
        return NULL;
    }
    return ejki_mm_rows.takes(p) ? &ejki_mm_rows : ejki_mm_tiles.takes(p) ? &ejki_mm_tiles : NULL;
}

static const ejki_mm_fast *tiles_of(const mm_product *p) {
    return p->has_out && ejki_mm_tiles.takes(p) ? &ejki_mm_tiles : NULL;
}

static bool applies(const mm_problem *problem, ejki_mm_choice *choose) {
    bool any = false;
    for (int n = 0; n < problem->count; n++) any = any || choose(&problem->product[n]);
    return any && ejki_mm_cuda_applicable(problem);
}

static ejk_status prepare_by(const mm_problem *problem, ejki_mm_choice *choose,
                             ejk_launch *launch) {
    ejki_cuda_kernels kernels = {.count = 0};
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        const ejki_mm_fast *fast = choose(p);
        if (!p->has_out) continue;
        ejki_mm_cuda_want(p, n, &kernels);
        ejki_mm_cuda_want_scatter(p, &kernels, launch);
        if (fast) fast->want(p, n, &kernels);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run_by(const ejk_run *run, ejki_mm_choice *choose) {
    const mm_problem *problem = run->problem;
    EJKI_TRY(ejki_mm_cuda_check(problem));
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        const ejki_mm_fast *fast = choose(p);
        if (!p->has_out) continue;
        EJKI_TRY((fast && fast->can_run(p) ? fast->run : ejki_mm_cuda_run)(run, n, p));
    }
    return EJK_OK;
}

static bool applicable(const void *problem) {
    return applies(problem, ejki_mm_fast_of);
}
static bool applicable_tiles(const void *problem) {
    return applies(problem, tiles_of);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_by(problem, ejki_mm_fast_of, launch);
}
static ejk_status prepare_tiles(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_by(problem, tiles_of, launch);
}

static ejk_status run(const ejk_run *run) {
    return run_by(run, ejki_mm_fast_of);
}
static ejk_status run_tiles(const ejk_run *run) {
    return run_by(run, tiles_of);
}

#define NEEDS                                                                                      \
    "a product of one type without scales, codes or gathered rows, rows of lhs and rhs at "        \
    "multiples of 8 elements"

EJKI_DECLARE(matmul_sm90_cuda, .version = 1, .priority = 20, .applicable = applicable,
             .prepare = prepare, .run = run, .needs = NEEDS)
EJKI_DECLARE(matmul_tiles_cuda, .version = 1, .priority = 10, .applicable = applicable_tiles,
             .prepare = prepare_tiles, .run = run_tiles, .needs = NEEDS)
