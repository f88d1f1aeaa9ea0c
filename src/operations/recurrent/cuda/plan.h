/* SPDX-License-Identifier: Apache-2.0 */
/* How the scans on GPUs are laid out: threads of a column, tokens in shared memory, blocks. */
#ifndef EJKI_RECURRENT_CUDA_PLAN_H
#define EJKI_RECURRENT_CUDA_PLAN_H

#include "kernels/cuda/launch.h"
#include "operations/recurrent/cuda/gradient.cuh"

/* Rows of a column that a thread has in registers; tokens in shared memory at once, at most. */
enum { REC_CUDA_ROWS = 32, REC_CUDA_MOST_TOKENS = 16 };

/* Threads that share a column, each with some rows: a power of two. */
static inline int64_t rec_cuda_parts_of(const rec_problem *p, int64_t rows) {
    int64_t parts = 1;
    while (parts * rows < p->key_size) parts *= 2;
    return parts;
}
static inline int64_t rec_cuda_parts(const rec_problem *p) {
    return rec_cuda_parts_of(p, REC_CUDA_ROWS);
}

/* Of `token` in token.cuh, whose rows have so many elements. */
static inline int64_t rec_cuda_token_bytes(const rec_problem *p, int64_t pitch) {
    return (3 * pitch + 2 * (p->update == REC_RANK_ONE ? pitch : 4) + 12) * 4;
}

/* A GPU needs elements at multiples of their size. */
static inline ejk_status rec_cuda_check(const rec_problem *p) {
    for (int role = 0; role < REC_ROLES; role++) {
        const rec_view *v = &p->view[role];
        const bool is_list = role >= REC_INDICES && role <= REC_SEGMENTS;
        const int64_t size =
            is_list ? (v->wide ? 8 : 4) : (int64_t)ejk_dtype_size((ejk_dtype)v->dtype);
        if (v->present) EJKI_TRY(ejki_cuda_check_address(v->data, size, "a tensor"));
    }
    return EJK_OK;
}

/* Blocks of `spread` of gradient_sums.cu: the last have a thread for each token of a head. */
enum { REC_SUM_THREADS = 256 };
static inline bool rec_has_numbers(const rec_problem *p) {
    return p->view[REC_D(REC_G)].present || p->view[REC_D(REC_BETA)].present;
}
static inline int64_t rec_sum_blocks(const rec_problem *p, int direct) {
    const int64_t numbers = rec_has_numbers(p) ? p->batch * p->tokens * p->heads : 0;
    return rec_spread_blocks(p, direct, REC_SUM_THREADS) + ejki_cdiv(numbers, REC_SUM_THREADS);
}

/* Whether anything is added up over tokens. */
static inline bool rec_has_totals(const rec_problem *p) {
    static const int roles[] = {REC_GAMMA, REC_A_LOG, REC_DT_BIAS, REC_BONUS, REC_SKIP};
    bool any = false;
    for (int i = 0; i < 5; i++) any = any || p->view[REC_D(roles[i])].present;
    return any;
}

/* Launches of gradient_sums.cu, which make gradients of rows. */
static inline ejk_status rec_begin_sums(const ejk_run *run, int32_t spread, int32_t total,
                                        rec_gradient *argument) {
    const rec_problem *p = run->problem;
    const ejki_cuda_work first = {
        .slot = spread, .threads = REC_SUM_THREADS, .blocks = rec_sum_blocks(p, argument->direct)};
    const ejki_cuda_work last = {.slot = total, .threads = REC_SUM_THREADS, .blocks = p->heads};
    if (first.blocks > 0) EJKI_TRY(ejki_cuda_begin(run, &first, argument));
    return rec_has_totals(p) ? ejki_cuda_begin(run, &last, argument) : EJK_OK;
}

#endif
