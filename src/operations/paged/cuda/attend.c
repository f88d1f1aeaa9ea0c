/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages on GPUs: launches of look.cu, attend.cu and combine.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/attend.h"
#include "operations/paged/cuda/paged.cuh"

enum { LOOK, ATTEND, COMBINE }; /* EJKI_PAGED_CUDA_SLOTS */
/* As attend.cu has them. */
enum { CHUNK = 128, PITCH = CHUNK + 1, MOST_DEPTH = 1024, MOST_VALUE_DIM = 512 };

static int64_t tiles_of(const paged_problem *p) {
    return p->tokens * p->group / PAGED_TILE + p->sequences;
}

/* From shapes alone: whether a sequence is split, its own length says. */
static int64_t splits_of(const paged_problem *p) {
    const bool may_be_long = p->tables == PAGED_OWN || p->tables == PAGED_TOKENS ||
                             p->width * p->page > PAGED_LEAST_KEYS;
    return may_be_long && p->tokens > 0 ? PAGED_SPLITS : 1;
}

static int64_t flag_bytes(const paged_problem *p) {
    return ejki_round_up((p->sequences + 1) * (int64_t)sizeof(int), 256);
}

static int64_t shared_bytes(const paged_problem *p) {
    const int64_t depth = p->dim + p->tail_dim;
    return (PAGED_TILE * depth + 2 * PAGED_STEP * PITCH + PAGED_TILE * PAGED_STEP) *
           (int64_t)sizeof(float);
}

static double part_bytes(const paged_problem *p) {
    if (splits_of(p) == 1) return 0;
    return (double)p->sequences * (double)p->heads * (double)splits_of(p) *
           (double)(p->value_dim + 2) * sizeof(float);
}

bool ejki_paged_cuda_can_attend(const paged_problem *p) {
    const double blocks = (double)tiles_of(p) * (double)p->kv_heads + PAGED_CLEARING;
    const double rows = (double)p->sequences * (double)ejki_max(p->heads, 1);
    return ejki_paged_cuda_types(p) && p->dim >= 1 && p->dim + p->tail_dim <= MOST_DEPTH &&
           p->value_dim >= 1 && p->value_dim <= MOST_VALUE_DIM && p->page <= INT32_MAX &&
           blocks <= INT32_MAX && rows <= INT32_MAX && part_bytes(p) < 1e15;
}

int64_t ejki_paged_cuda_attend_bytes(const paged_problem *p) {
    return flag_bytes(p) + (int64_t)part_bytes(p);
}

void ejki_paged_cuda_want_others(const paged_problem *p, ejki_cuda_kernels *kernels, int32_t slot) {
    ejki_cuda_constants chunks = {.count = 0};
    ejki_cuda_add(&chunks, "VALUE_CHUNKS", ejki_cdiv(p->value_dim, CHUNK));
    ejki_cuda_want(kernels, slot, "operations/paged/cuda/attend.cu", "attend", &chunks);
}

ejk_status ejki_paged_cuda_attend_others(const ejk_run *run, int32_t slot, const paged_arguments *a,
                                         bool overlaps) {
    paged_arguments own = *a;
    own.tiles = tiles_of(&a->p);
    own.splits = 1;
    const ejki_cuda_work attend = {.slot = slot,
                                   .threads = PAGED_THREADS,
                                   .blocks = own.tiles * a->p.kv_heads,
                                   .shared_bytes = shared_bytes(&a->p),
                                   .overlaps = overlaps};
    return ejki_cuda_begin(run, &attend, &own);
}

void ejki_paged_cuda_want_attend(const paged_problem *p, ejki_cuda_kernels *kernels) {
    ejki_cuda_constants none = {.count = 0};
    ejki_cuda_want(kernels, LOOK, "operations/paged/cuda/look.cu", "look", &none);
    ejki_paged_cuda_want_others(p, kernels, ATTEND);
    if (splits_of(p) > 1)
        ejki_cuda_want(kernels, COMBINE, "operations/paged/cuda/combine.cu", "combine", &none);
}

ejk_status ejki_paged_cuda_attend(const ejk_run *run, const paged_problem *p, void *workspace) {
    EJKI_TRY(ejki_paged_cuda_check(p));
    paged_arguments a = {.p = *p,
                         .flags = workspace,
                         .parts = (float *)(void *)((char *)workspace + flag_bytes(p)),
                         .tiles = tiles_of(p),
                         .splits = splits_of(p)};
    const ejki_cuda_work look = {
        .slot = LOOK, .threads = PAGED_THREADS, .blocks = p->sequences + 1};
    const ejki_cuda_work attend = {.slot = ATTEND,
                                   .threads = PAGED_THREADS,
                                   .blocks = a.tiles * p->kv_heads + PAGED_CLEARING,
                                   .splits = a.splits,
                                   .shared_bytes = shared_bytes(p)};
    const ejki_cuda_work combine = {
        .slot = COMBINE, .threads = PAGED_THREADS, .blocks = p->sequences * p->heads};
    EJKI_TRY(ejki_cuda_begin(run, &look, &a));
    EJKI_TRY(ejki_cuda_begin(run, &attend, &a));
    return a.splits > 1 ? ejki_cuda_begin(run, &combine, &a) : EJK_OK;
}

static bool applicable(const void *problem) {
    return ejki_paged_cuda_can_attend(problem);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_paged_cuda_want_attend(problem, &kernels);
    launch->workspace_bytes = (size_t)ejki_paged_cuda_attend_bytes(problem);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    return ejki_paged_cuda_attend(run, run->problem, run->workspace);
}

EJKI_DECLARE(unified_attention_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run,
             .needs = "heads of up to 1024 and values of up to 512 components, no float64")
