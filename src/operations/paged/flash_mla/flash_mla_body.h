/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flash_mla in vectors. Weights become floats; tiles of TILE_ROWS tokens are multiplied with them into keys and values
 * of float32 in the workspace; the core of the paged family attends to these. An element of a key is one sum over the
 * latent in order, so that bits do not depend on threads.
 */
#include "operations/paged/cpu/paged_core.h"
#include "operations/paged/flash_mla/problem.h"

#define PROJECT_PAIR(n) GEMM_PAIR(gemm_project, n, 1, TILE_ROWS, c_stride)
#define PROJECT_SIZE(n) GEMM_CASE(gemm_project, n)
TILE_ROW_COUNTS(PROJECT_PAIR)
GEMM_DISPATCH(gemm_project, TILE_ROW_COUNTS(PROJECT_SIZE))

/* Where things lie in the workspace, in bytes; steps in floats. */
typedef struct mla_plan {
    paged_size key_step, value_step; /* of a token, and of a row of the weights */
    paged_size weight_at, key_at, value_at, worker_at, core_at, bytes, worker_bytes;
    ejk_launch core;
} mla_plan;

static paged_size place(paged_size *at, paged_size floats) {
    const paged_size start = *at;
    *at += ejki_round_up(floats * 4, 64);
    return start;
}

static ejk_status mla_plan_of(const mla_problem *m, const int64_t *parameters, int32_t threads,
                              mla_plan *t) {
    const paged_problem *p = &m->core;
    *t = (mla_plan){.key_step = ejki_round_up(p->kv_heads * p->dim, VL),
                    .value_step = ejki_round_up(p->kv_heads * p->value_dim, VL)};
    EJKI_TRY(plan_pages(p, parameters, threads, &t->core));
    paged_size at = 0;
    t->weight_at = place(&at, m->latent * (t->key_step + t->value_step));
    t->key_at = place(&at, p->tokens * t->key_step);
    t->value_at = place(&at, p->tokens * t->value_step);
    t->worker_bytes = ejki_round_up(m->latent * TILE_ROWS * 4 + 64, 64);
    t->worker_at = place(&at, threads * t->worker_bytes / 4);
    t->core_at = at;
    t->bytes = at + (paged_size)t->core.workspace_bytes;
    return EJK_OK;
}

typedef struct mla_work {
    const mla_problem *m;
    const ejk_run *run;
    mla_plan plan;
    float *weights; /* [R][key_step], then [R][value_step] */
    float *keys, *values;
} mla_work;

static void widen_weight(const mla_problem *m, const mla_weight *w, paged_size dim, paged_size r,
                         float *to) {
    const ejk_dtype dtype = (ejk_dtype)m->core.dtype;
    for (paged_size h = 0; h < m->core.kv_heads; h++)
        for (paged_size d = 0; d < dim; d++)
            to[h * dim + d] = element_load(dtype, w->data, r * w->latent + h * w->head + d);
}

static void widen_weights(void *argument, int64_t index) {
    const mla_work *w = argument;
    const mla_problem *m = w->m;
    float *values = w->weights + m->latent * w->plan.key_step;
    for (paged_size r = m->latent * index / w->run->workers;
         r < m->latent * (index + 1) / w->run->workers; r++) {
        widen_weight(m, &m->w_kc, m->core.dim, r, w->weights + r * w->plan.key_step);
        widen_weight(m, &m->w_vc, m->core.value_dim, r, values + r * w->plan.value_step);
    }
}

/* Tokens first to first + count - 1, at most TILE_ROWS. */
static void project(const mla_work *w, paged_size first, paged_size count, float *tile) {
    const mla_problem *m = w->m;
    const ejk_dtype dtype = (ejk_dtype)m->core.dtype;
    const gemm_prefetch none = {.count = 0};
    for (paged_size i = 0; i < count; i++) {
        const paged_size start = paged_row_at(&m->core, &m->key_value, first + i, 0);
        for (paged_size r = 0; r < m->latent; r++)
            tile[r * TILE_ROWS + i] = element_load(dtype, m->key_value.data, start + r);
    }
    for (paged_size i = 0; i < count;) {
        const int rows = gemm_rows(count - i);
        gemm_project(rows, w->plan.key_step, m->latent, tile + i, w->weights, w->plan.key_step,
                     w->keys + (first + i) * w->plan.key_step, w->plan.key_step, false, &none);
        gemm_project(rows, w->plan.value_step, m->latent, tile + i,
                     w->weights + m->latent * w->plan.key_step, w->plan.value_step,
                     w->values + (first + i) * w->plan.value_step, w->plan.value_step, false,
                     &none);
        i += rows;
    }
}

static void project_all(void *argument, int64_t index) {
    const mla_work *w = argument;
    const paged_size tokens = w->m->core.tokens, tiles = ejki_cdiv(tokens, TILE_ROWS);
    float *tile = (float *)(void *)((char *)w->run->workspace + w->plan.worker_at +
                                    index * w->plan.worker_bytes);
    for (paged_size t = tiles * index / w->run->workers; t < tiles * (index + 1) / w->run->workers;
         t++)
        project(w, t * TILE_ROWS, paged_least(TILE_ROWS, tokens - t * TILE_ROWS), tile);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    mla_plan t;
    EJKI_TRY(mla_plan_of(problem, parameters, threads, &t));
    launch->workers = t.core.workers;
    launch->workspace_bytes = (size_t)t.bytes;
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    mla_problem m = *(const mla_problem *)run->problem;
    mla_work w = {.m = &m, .run = run};
    EJKI_TRY(mla_plan_of(&m, run->parameters, run->workers, &w.plan));
    char *memory = run->workspace;
    w.weights = (float *)(void *)(memory + w.plan.weight_at);
    w.keys = (float *)(void *)(memory + w.plan.key_at);
    w.values = (float *)(void *)(memory + w.plan.value_at);
    memset(w.weights, 0, (size_t)(w.plan.key_at - w.plan.weight_at));
    ejk_parallel_for(run->threads, run->workers, widen_weights, &w);
    ejk_parallel_for(run->threads, run->workers, project_all, &w);
    mla_put_caches(&m, EJK_DTYPE_F32, w.keys, w.plan.key_step, w.values, w.plan.value_step);
    ejk_run core = *run;
    core.problem = &m.core;
    core.workspace = memory + w.plan.core_at;
    return attend_pages(&core);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = page_parameters,
             .parameter_count = sizeof page_parameters / sizeof *page_parameters,
             .prepare = prepare, .run = run)
