/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla on GPUs: keys and values in float32 by project.cu, to which the general kernel of the family attends. */
#include "kernels/declare.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/attend.h"
#include "operations/paged/cuda/flash_mla.h"
#include "operations/paged/cuda/project.cuh"

enum { PROJECT = EJKI_PAGED_CUDA_SLOTS };
enum { ROWS = 64, COLUMNS = 64, THREADS = 256 }; /* as project.cu has them */

/* The core's problem with keys and values where they will be. */
static mla_problem placed(const mla_problem *m, float *keys, float *values) {
    mla_problem own = *m;
    const paged_problem *p = &m->core;
    mla_put_caches(&own, EJK_DTYPE_F32, keys, p->kv_heads * p->dim, values,
                   p->kv_heads * p->value_dim);
    return own;
}

static int64_t row_bytes(const paged_problem *p, int64_t dim) {
    return ejki_round_up(p->tokens * p->kv_heads * dim * (int64_t)sizeof(float), 256);
}

static int64_t blocks_of(const paged_problem *p, int64_t dim) {
    return ejki_cdiv(p->tokens, ROWS) * ejki_cdiv(p->kv_heads * dim, COLUMNS);
}

static bool applicable(const void *problem) {
    const mla_problem own = placed(problem, NULL, NULL);
    const paged_problem *p = &own.core;
    return p->kv_heads > 0 && ejki_paged_cuda_can_attend(p) &&
           (double)p->tokens * (double)p->kv_heads * (double)(p->dim + p->value_dim) < 1e12 &&
           blocks_of(p, ejki_max(p->dim, p->value_dim)) <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const mla_problem own = placed(problem, NULL, NULL);
    const paged_problem *p = &own.core;
    const ejki_cuda_constants none = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_paged_cuda_want_attend(p, &kernels);
    ejki_cuda_want(&kernels, PROJECT, "operations/paged/cuda/project.cu", "project", &none);
    launch->workspace_bytes = (size_t)(row_bytes(p, p->dim) + row_bytes(p, p->value_dim) +
                                       ejki_paged_cuda_attend_bytes(p));
    return ejki_cuda_ready_all(launch, &kernels);
}

ejk_status ejki_mla_cuda_project(const ejk_run *run, int32_t slot, const mla_problem *m,
                                 const mla_weight *weight, int64_t dim, float *to, int64_t pitch) {
    const paged_problem *p = &m->core;
    project_arguments a = {.latents = m->key_value.data,
                           .weight = weight->data,
                           .to = to,
                           .to_token = p->kv_heads * pitch,
                           .to_head = pitch,
                           .batch = m->key_value.batch,
                           .token = m->key_value.token,
                           .batch_rows = p->batch_rows,
                           .weight_latent = weight->latent,
                           .weight_head = weight->head,
                           .tokens = p->tokens,
                           .latent = m->latent,
                           .heads = p->kv_heads,
                           .dim = dim,
                           .dtype = p->dtype};
    const ejki_cuda_work work = {.slot = slot, .threads = THREADS, .blocks = blocks_of(p, dim)};
    return ejki_cuda_begin(run, &work, &a);
}

static ejk_status run(const ejk_run *run) {
    const mla_problem *m = run->problem;
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)m->core.dtype);
    EJKI_TRY(ejki_cuda_check_address(m->key_value.data, size, "key_value"));
    EJKI_TRY(ejki_cuda_check_address(m->w_kc.data, size, "w_kc"));
    EJKI_TRY(ejki_cuda_check_address(m->w_vc.data, size, "w_vc"));
    char *const memory = run->workspace;
    const int64_t value_at = row_bytes(&m->core, m->core.dim);
    const int64_t rest_at = value_at + row_bytes(&m->core, m->core.value_dim);
    float *const keys = (float *)(void *)memory, *const values =
                                                     (float *)(void *)(memory + value_at);
    const mla_problem own = placed(m, keys, values);
    EJKI_TRY(ejki_mla_cuda_project(run, PROJECT, m, &m->w_kc, m->core.dim, keys, m->core.dim));
    EJKI_TRY(ejki_mla_cuda_project(run, PROJECT, m, &m->w_vc, m->core.value_dim, values,
                                   m->core.value_dim));
    return ejki_paged_cuda_attend(run, &own.core, memory + rest_at);
}

EJKI_DECLARE(flash_mla_cuda, .version = 1, .applicable = applicable, .prepare = prepare, .run = run,
             .needs = "heads of up to 1024 and values of up to 512 components")
