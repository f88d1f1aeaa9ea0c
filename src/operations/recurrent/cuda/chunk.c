/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form on GPUs: launches of chunk_prepare.cu or chunk_prepare_key.cu, and chunk_scan.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/chunk_plan.h"
#include "operations/recurrent/shared/kept.h"

enum { PREPARE, SCAN };

/*
 * A state after the last token has the precision of floats: pieces of what it is made of, which of sums are no states.
 */
static rec_walk walk_of(const rec_problem *p) {
    const int64_t lefts = p->view[REC_FINAL].present ? 3 : 1;
    const bool is_delta = p->update == REC_DELTA;
    return (rec_walk){is_delta ? lefts : 1, lefts, 1, is_delta ? lefts : 0, true};
}

/* Memory of a call. */
static int64_t inverse_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * walk_of(p).inverses * REC_TRIANGLE_BYTES;
}
static int64_t score_bytes(const rec_problem *p, const rec_layout *l) {
    return l->makes ? 0 : rec_chunks(p) * p->heads * REC_TRIANGLE_BYTES;
}
static int64_t operand_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * rec_operands(p, walk_of(p).lefts) * REC_CHUNK * p->key_size *
           2;
}
static int64_t factor_bytes(const rec_problem *p, const rec_layout *l) {
    return rec_chunks(p) * p->heads * rec_walk_factor_floats(p, l) * (int64_t)sizeof(float);
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    /*
     * Operands with decays of elements that read the state are rounded, which a state in floats must not see; outputs
     * are, which gradients that are made of them must not see.
     */
    const bool is_exact = (!p->key_decay || walk_of(p).terms == 1) && !p->gradient;
    const bool has_size =
        p->key_size == 64 || p->key_size == 128 || (p->key_size == 256 && !p->key_decay);
    const bool reads = p->read == REC_AFTER || p->key_decay;
    return rec_chunk_fits(p) && reads && is_exact && has_size && !rec_keeps(p);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    const rec_walk walk = walk_of(p);
    rec_layout l;
    ejki_cuda_constants first = rec_chunk_constants(p, walk.terms), factors = {.count = 0}, scan;
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    EJKI_TRY(rec_layout_of(p, &walk, launch->device, &l));
    ejki_cuda_add(&first, "BACK", 0);
    ejki_cuda_add(&first, "SQUARE", l.wide);
    if (p->key_decay) ejki_cuda_add(&first, "BEFORE", p->read == REC_BEFORE);
    if (p->key_decay) ejki_cuda_add(&first, "LEFTS", walk.lefts);
    scan = rec_walk_constants(p, &l, walk.terms);
    ejki_cuda_add(&factors, "ELEMENT", EJK_DTYPE_BF16);
    ejki_cuda_add(&factors, "KEY_SIZE", p->key_size);
    if (l.makes)
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_factors.cu", "factors",
                       &factors);
    else if (p->key_decay)
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare_key.cu",
                       "prepare_key", &first);
    else
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare.cu", "prepare",
                       &first);
    rec_want_walk(&kernels, SCAN, &walk, &l, scan);
    launch->workspace_bytes =
        (size_t)(inverse_bytes(p) + score_bytes(p, &l) + operand_bytes(p) + factor_bytes(p, &l));
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    const rec_walk walk = walk_of(p);
    rec_layout l;
    EJKI_TRY(rec_cuda_check(p));
    EJKI_TRY(rec_layout_of(p, &walk, run->device, &l));
    char *scores = (char *)run->workspace + inverse_bytes(p);
    char *operands = scores + score_bytes(p, &l);
    rec_chunked a = {.p = *p,
                     .inverses = run->workspace,
                     .scores = scores,
                     .operands = operands,
                     .factors = (float *)(void *)(operands + operand_bytes(p)),
                     .chunks = rec_chunks(p)};
    const ejki_cuda_work first = {.slot = PREPARE,
                                  .threads = rec_prepare_threads(p),
                                  .blocks = rec_chunks(p) * p->heads,
                                  .shared_bytes = l.makes ? 0 : rec_prepare_bytes(p)};
    EJKI_TRY(ejki_cuda_begin(run, &first, &a));
    return rec_begin_walk(run, SCAN, &walk, &l, &a);
}

EJKI_DECLARE(recurrent_attention_chunk_cuda, .version = 1, .priority = 1, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs =
                 "sums or delta rules without decays of values or segments, Dk 64, 128 or 256, "
                 "Dv a multiple of 16; with decays of keys Dk up to 128, as where the old state is "
                 "read, and of delta rules no final state; chunk_states and errors are of CPUs")
