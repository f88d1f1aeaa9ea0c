/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form of rank-one updates on GPUs: launches of chunk_prepare_rank.cu and chunk_scan.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/chunk_plan.h"

enum { PREPARE, SCAN };
enum { THREADS = 256 };

/* Operands are rounded, and their inverse is in them already. */
static const rec_walk walk = {.terms = 1, .lefts = 1, .scores = 1, .inverses = 0, .asks = true};

/* Memory of a call. */
static int64_t score_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * REC_TRIANGLE_BYTES;
}
static int64_t operand_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * rec_operands(p, walk.lefts) * REC_CHUNK * p->key_size * 2;
}
static int64_t factor_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * rec_factor_floats(p) * (int64_t)sizeof(float);
}

/* Shared memory of what prepares chunks: tiles, M, and gates, in place of which the inverse is made. */
static int64_t prepare_bytes(const rec_problem *p) {
    const int64_t logs = REC_CHUNK * (p->key_size + 4) + 10 * p->key_size + REC_CHUNK;
    return 4 * rec_tile_bytes(p->key_size) + REC_SQUARE_BYTES + 4 * logs;
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    /* Operands are rounded, which a state in floats must not see. */
    return p->update == REC_RANK_ONE && p->view[REC_A].dtype == EJK_DTYPE_BF16 &&
           p->view[REC_B].dtype == EJK_DTYPE_BF16 && rec_chunk_sizes_fit(p) && !p->gradient &&
           !p->normalise && !p->view[REC_FINAL].present &&
           (p->key_size == 64 || p->key_size == 128);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    rec_layout l;
    ejki_cuda_constants first = rec_chunk_constants(p, walk.terms), scan;
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    EJKI_TRY(rec_layout_of(p, &walk, launch->device, &l));
    ejki_cuda_add(&first, "BACK", 0);
    ejki_cuda_add(&first, "SQUARE", l.wide);
    scan = rec_walk_constants(p, &l, walk.terms);
    ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare_rank.cu",
                   "prepare_rank", &first);
    rec_want_walk(&kernels, SCAN, &walk, &l, scan);
    launch->workspace_bytes = (size_t)(score_bytes(p) + operand_bytes(p) + factor_bytes(p));
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    rec_layout l;
    EJKI_TRY(rec_cuda_check(p));
    EJKI_TRY(rec_layout_of(p, &walk, run->device, &l));
    char *scores = run->workspace, *operands = scores + score_bytes(p);
    rec_chunked a = {.p = *p,
                     .scores = scores,
                     .operands = operands,
                     .factors = (float *)(void *)(operands + operand_bytes(p)),
                     .chunks = rec_chunks(p)};
    const ejki_cuda_work first = {.slot = PREPARE,
                                  .threads = THREADS,
                                  .blocks = rec_chunks(p) * p->heads,
                                  .shared_bytes = prepare_bytes(p)};
    EJKI_TRY(ejki_cuda_begin(run, &first, &a));
    return rec_begin_walk(run, SCAN, &walk, &l, &a);
}

EJKI_DECLARE(recurrent_attention_rank_cuda, .version = 1, .priority = 1, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs = "rank-one updates without decays of values, segments or a final state, Dk 64 "
                      "or 128, Dv a multiple of 16")
