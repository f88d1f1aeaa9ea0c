/* SPDX-License-Identifier: Apache-2.0 */
/* fused_kl_divergence and its gradient on GPUs: launches of kl_divergence.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/loss/fused_kl_divergence/cuda/arguments.cuh"

static const char text[] = "operations/loss/fused_kl_divergence/cuda/kl_divergence.cu";

/* Kernels, and those for rows that do not lie at multiples of 16 bytes. */
enum { FOLD, SLOPES, NARROW_FOLD, NARROW_SLOPES, TOTALS };

static bool applicable(const void *problem) {
    const kl_problem *p = problem;
    return p->weights.dtype != EJK_DTYPE_F64 && kl_rows(p) < INT32_MAX / 2 && p->vocab > 0 &&
           p->vocab < INT32_MAX / 2;
}

/* Whether rows of logits and of gradients lie at multiples of 16 bytes, as far as strides tell. */
static bool is_even(const kl_problem *p) {
    const loss_view *views[] = {&p->first, &p->second, &p->d_first, &p->d_second};
    const int64_t each = 16 / (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    bool even = true;
    for (int i = 0; i < 4; i++)
        even = even && views[i]->batch % each == 0 && views[i]->token % each == 0;
    return even;
}

static bool is_wide(const kl_problem *p) {
    const void *const data[] = {p->first.data, p->second.data, p->d_first.data, p->d_second.data};
    bool wide = is_even(p);
    for (int i = 0; i < 4; i++) wide = wide && (uintptr_t)data[i] % 16 == 0;
    return wide;
}

static ejki_cuda_constants constants_of(const kl_problem *p, bool wide) {
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_add(&constants, "ELEMENT", p->dtype);
    ejki_cuda_add(&constants, "OUT", p->dtype);
    ejki_cuda_add(&constants, "WIDE", wide);
    ejki_cuda_add(&constants, "MIXES", p->mixes);
    ejki_cuda_add(&constants, "ENTROPY", p->entropy.dtype != 0);
    return constants;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const kl_problem *p = problem;
    const ejki_cuda_constants wide = constants_of(p, true), narrow = constants_of(p, false);
    const char *name = p->gradient ? "slopes" : "fold";
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    launch->workspace_bytes = p->gradient ? sizeof(float) : (size_t)kl_rows(p) * sizeof(kl_share);
    if (is_even(p)) ejki_cuda_want(&kernels, p->gradient ? SLOPES : FOLD, text, name, &wide);
    ejki_cuda_want(&kernels, p->gradient ? NARROW_SLOPES : NARROW_FOLD, text, name, &narrow);
    ejki_cuda_want(&kernels, TOTALS, text, "totals", &narrow);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status check(const kl_problem *p) {
    const struct {
        const void *data;
        int dtype;
        const char *name;
    } all[] = {
        {p->first.data, p->first.dtype, p->teaches ? "teacher" : "student"},
        {p->second.data, p->second.dtype, p->teaches ? "student" : "teacher"},
        {p->weights.data, p->weights.dtype, "weights"},
        {p->first_lse.data, p->first_lse.dtype, p->teaches ? "teacher_lse" : "student_lse"},
        {p->second_lse.data, p->second_lse.dtype, p->teaches ? "student_lse" : "teacher_lse"},
        {p->d_first.data, p->d_first.dtype, p->teaches ? "d_teacher" : "d_student"},
        {p->d_second.data, p->d_second.dtype, p->teaches ? "d_student" : "d_teacher"},
        {p->loss.data, p->result, p->gradient ? "d_loss" : "loss"},
        {p->entropy.data, p->result, "teacher_entropy"},
        {p->weight_sum, p->result, "weight_sum"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        EJKI_TRY(ejki_cuda_check_tensor(all[i].data, all[i].dtype, all[i].name));
    return EJK_OK;
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t count, kl_arguments *a) {
    const ejki_cuda_work work = {.slot = slot, .threads = LOSS_THREADS, .blocks = count};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run(const ejk_run *run) {
    const kl_problem *p = run->problem;
    const bool wide = is_wide(p), given = p->first_lse.dtype && p->second_lse.dtype;
    kl_arguments a = {.p = *p,
                      .scale = (float)(1.4426950408889634 / p->temperature),
                      .sums = !given || (!p->mixes && p->d_first.dtype),
                      .shares = run->workspace,
                      .each = run->workspace};
    a.unit = (float)(1 / ((double)a.scale * p->temperature));
    EJKI_TRY(check(p));
    if (!p->gradient) {
        EJKI_TRY(begin(run, wide ? FOLD : NARROW_FOLD, kl_rows(p), &a));
        return begin(run, TOTALS, 1, &a);
    }
    if (!p->d_first.dtype && !p->d_second.dtype) return EJK_OK;
    EJKI_TRY(begin(run, TOTALS, 1, &a));
    return begin(run, wide ? SLOPES : NARROW_SLOPES, kl_rows(p), &a);
}

EJKI_DECLARE(fused_kl_divergence_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run, .needs = "weights of 32 bits or fewer, a class at least")
