/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence on GPUs: launches of scan.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/plan.h"
#include "operations/recurrent/shared/kept.h"

static const char text[] = "operations/recurrent/cuda/scan.cu";

/* As scan.cu has it. */
typedef struct arguments {
    rec_problem p;
} arguments;

enum { REST = 32, STAGES = 4, MOST_TOKENS = 8, ROWS = 8, MOST_PARTS = 32 };
/* Threads that have columns; shared memory that every GPU has room for. */
enum { MOST_THREADS = 256, LEAST_THREADS = 64, SHARED_BYTES = 98304 };

/* Threads of a column, rows and columns of a thread; threads that have columns, and these; tokens of a stage. */
typedef struct layout {
    int64_t parts, rows, across, threads, columns, tokens, stage_bytes;
} layout;

static int64_t blocks_of(const rec_problem *p, const layout *l) {
    return p->sequences * p->heads * ejki_cdiv(p->value_size, l->columns);
}
static int64_t stage_bytes(const rec_problem *p, const layout *l, int64_t tokens) {
    const int64_t numbers = tokens * l->columns * 4;
    return ejki_round_up(tokens * rec_cuda_token_bytes(p, l->parts * l->rows) + numbers +
                             (p->value_decay ? numbers : 16) + 8,
                         16);
}

/* Fewer columns a block where there would be too few blocks for all multiprocessors. */
static layout layout_of(const rec_problem *p, int64_t multiprocessors) {
    layout l = {.rows = ROWS, .across = 1, .threads = MOST_THREADS};
    while (MOST_PARTS * l.rows < p->key_size) l.rows *= 2;
    if (l.rows == ROWS) l.across = 2;
    l.parts = rec_cuda_parts_of(p, l.rows);
    l.columns = l.threads / l.parts * l.across;
    while (l.threads > LEAST_THREADS &&
           (l.columns >= 2 * p->value_size || 2 * blocks_of(p, &l) <= multiprocessors))
        l.threads /= 2, l.columns /= 2;
    l.tokens = MOST_TOKENS;
    while (l.tokens > 1 && STAGES * stage_bytes(p, &l, l.tokens) > SHARED_BYTES) l.tokens /= 2;
    l.stage_bytes = stage_bytes(p, &l, l.tokens);
    return l;
}

/* The element type of all rows but gates, 0 if they have several. */
static int64_t type_of(const rec_problem *p) {
    for (int role = REC_KEY; role <= REC_B; role++)
        if (p->view[role].present && p->view[role].dtype != p->view[REC_QUERY].dtype) return 0;
    return p->view[REC_QUERY].dtype;
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    const layout l = layout_of(p, INT32_MAX);
    return p->key_size <= 1024 && blocks_of(p, &l) < INT32_MAX / 2 && p->tokens <= INT32_MAX / 2 &&
           !rec_keeps(p);
}

static ejk_status layout_on(const rec_problem *p, int32_t device, layout *out) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    *out = layout_of(p, gpu->multiprocessors);
    return EJK_OK;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    ejki_cuda_constants constants = {.count = 0};
    layout l;
    (void)parameters;
    (void)threads;
    EJKI_TRY(layout_on(p, launch->device, &l));
    ejki_cuda_add(&constants, "PARTS", l.parts);
    ejki_cuda_add(&constants, "ROWS", l.rows);
    ejki_cuda_add(&constants, "ACROSS", l.across);
    ejki_cuda_add(&constants, "THREADS", l.threads);
    ejki_cuda_add(&constants, "TOKENS", l.tokens);
    ejki_cuda_add(&constants, "UPDATE", p->update);
    ejki_cuda_add(&constants, "BEFORE", p->read == REC_BEFORE);
    ejki_cuda_add(&constants, "KEY_DECAY", p->key_decay != 0);
    ejki_cuda_add(&constants, "VALUE_DECAY", p->value_decay != 0);
    ejki_cuda_add(&constants, "ROW_TYPE", type_of(p));
    ejki_cuda_add(&constants, "REST", REST);
    return ejki_cuda_ready(launch, 0, text, "scan", &constants);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    layout l;
    EJKI_TRY(rec_cuda_check(p));
    EJKI_TRY(layout_on(p, run->device, &l));
    arguments a = {*p};
    const ejki_cuda_work work = {.threads = (int32_t)(l.threads + 32 * l.tokens),
                                 .blocks = blocks_of(p, &l) + (p->packed ? REST : 0),
                                 .shared_bytes = STAGES * l.stage_bytes};
    return ejki_cuda_begin(run, &work, &a);
}

EJKI_DECLARE(recurrent_attention_scan_cuda, .version = 3, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs = "Dk up to 1024; chunk_states and errors are of CPUs")
