/* SPDX-License-Identifier: Apache-2.0 */
/* A few tokens of every sequence on GPUs: launches of step.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/plan.h"
#include "operations/recurrent/shared/kept.h"

static const char text[] = "operations/recurrent/cuda/step.cu";

enum { ANY, PLAIN };
/* As step.cu has them. */
enum { THREADS = 128, ROWS = 8, REST = 32, MOST_TOKENS = 8 };
enum { MOST_SLABS = 4, LEAST_WARPS = 4096 };
typedef struct arguments {
    rec_problem p;
} arguments;

/* Whether columns lie next to each other, so that warps share the rows of some; bits depend on it. */
static bool is_wide(const rec_problem *p) {
    const rec_view *v = &p->view[p->view[REC_INITIAL].present ? REC_INITIAL : REC_FINAL];
    return v->present && v->stride[3] == 1 && p->key_size >= 64;
}

/* Warps that share columns, and these. */
static int64_t parts_of(const rec_problem *p) {
    return is_wide(p) ? p->key_size / (p->key_size == 256 ? 64 : 32) : 1;
}
static int64_t slab_of(const rec_problem *p) {
    return 4 * 32 * ROWS * parts_of(p) / p->key_size;
}

/* Slabs one after the other, as long as there are warps enough for all multiprocessors. */
static int64_t slabs_of(const rec_problem *p) {
    const int64_t slabs = ejki_cdiv(p->value_size, slab_of(p));
    int64_t each = 1;
    while (each < MOST_SLABS && 2 * each <= slabs &&
           p->sequences * p->heads * slabs * parts_of(p) / (2 * each) >= LEAST_WARPS)
        each *= 2;
    return each;
}

static int64_t blocks_of(const rec_problem *p) {
    const int64_t columns = slab_of(p) * slabs_of(p);
    const int64_t groups = p->sequences * p->heads * ejki_cdiv(p->value_size, columns);
    return ejki_cdiv(groups, THREADS / 32 / parts_of(p));
}

/* Of sequences of the same length; that of one alone does not tell whether it pays. */
static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    const int64_t size = p->key_size;
    const bool is_power = size >= ROWS && size <= 32 * ROWS && (size & (size - 1)) == 0;
    const int64_t most = MOST_TOKENS * (p->packed ? p->sequences : 1);
    return is_power && p->tokens <= most && blocks_of(p) < INT32_MAX / (THREADS / 32) &&
           !rec_keeps(p);
}

/* Rows of tokens that are read and written, of one type where the call is plain. */
static const int row_roles[] = {REC_QUERY, REC_KEY, REC_VALUE, REC_A, REC_B, REC_OUT};
enum { ROW_ROLES = sizeof row_roles / sizeof *row_roles };

static bool are_runs(const rec_view *v, int axes) {
    bool all = true;
    for (int i = 0; i < axes; i++) all = all && v->stride[i] % 4 == 0;
    return all;
}
static bool are_plain_states(const rec_problem *p, const rec_view *v) {
    const int along = is_wide(p) ? 3 : 2;
    return !v->present || (v->dtype == EJK_DTYPE_F32 && are_runs(v, 2) && v->stride[along] == 1 &&
                           v->stride[5 - along] % 4 == 0);
}
/* One token a sequence, of whole slabs, as step.cu wants it but for addresses. */
static bool is_plain(const rec_problem *p) {
    bool plain = !p->packed && p->tokens == 1 && !p->view[REC_SEGMENTS].present &&
                 !p->value_decay && p->value_size % slab_of(p) == 0;
    for (int i = 0; i < ROW_ROLES; i++) {
        const rec_view *v = &p->view[row_roles[i]];
        plain = plain && (!v->present || (v->dtype == p->view[REC_QUERY].dtype && are_runs(v, 3)));
    }
    return plain && are_plain_states(p, &p->view[REC_INITIAL]) &&
           are_plain_states(p, &p->view[REC_FINAL]);
}
/* Whether runs of four elements lie at multiples of their size, too. */
static bool are_addresses_plain(const rec_problem *p) {
    const uint64_t run = 4 * ejk_dtype_size((ejk_dtype)p->view[REC_QUERY].dtype);
    bool plain = true;
    for (int i = 0; i < ROW_ROLES; i++) {
        const rec_view *v = &p->view[row_roles[i]];
        plain = plain && (!v->present || (uintptr_t)v->data % run == 0);
    }
    for (int role = REC_INITIAL; role <= REC_FINAL; role++)
        plain = plain && (!p->view[role].present || (uintptr_t)p->view[role].data % 16 == 0);
    return plain;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    ejki_cuda_constants constants = {.count = 0}, plain;
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&constants, "KEY_SIZE", p->key_size);
    ejki_cuda_add(&constants, "THREADS", THREADS);
    ejki_cuda_add(&constants, "UPDATE", p->update);
    ejki_cuda_add(&constants, "BEFORE", p->read == REC_BEFORE);
    ejki_cuda_add(&constants, "KEY_DECAY", p->key_decay);
    ejki_cuda_add(&constants, "WIDE", is_wide(p));
    ejki_cuda_add(&constants, "SLABS", slabs_of(p));
    ejki_cuda_add(&constants, "REST", REST);
    plain = constants;
    ejki_cuda_add(&plain, "PLAIN", 1);
    ejki_cuda_add(&plain, "ROW_TYPE", p->view[REC_QUERY].dtype);
    ejki_cuda_add(&constants, "PLAIN", 0);
    ejki_cuda_add(&constants, "ROW_TYPE", 0);
    ejki_cuda_want(&kernels, ANY, text, "step", &constants);
    if (is_plain(p)) ejki_cuda_want(&kernels, PLAIN, text, "step", &plain);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    EJKI_TRY(rec_cuda_check(p));
    arguments a = {*p};
    const ejki_cuda_work work = {.slot = is_plain(p) && are_addresses_plain(p) ? PLAIN : ANY,
                                 .threads = THREADS,
                                 .blocks = blocks_of(p) + (p->packed ? REST : 0)};
    return ejki_cuda_begin(run, &work, &a);
}

EJKI_DECLARE(recurrent_attention_step_cuda, .version = 1, .priority = 2, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs = "up to 8 tokens a sequence, Dk a power of two from 8 to 256; "
                      "chunk_states and errors are of CPUs")
