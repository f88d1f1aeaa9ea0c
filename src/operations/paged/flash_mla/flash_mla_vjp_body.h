/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash_mla in vectors. Keys and values are made as in the call. A task is a sequence and one of its key
 * heads, so that sums over rows are one task's, in order, and bits do not depend on threads. Rows of all heads of the
 * group go in tiles of GROUP_ROWS: scores and their cotangents of a tile with all keys lie in memory, in panels of
 * PANEL keys, and take five products with operands that are packed once a task. Then gradients of keys and values
 * are multiplied with latents and weights.
 *
 * Where an operand of a task is not finite, its rows are added key by key, what they see only.
 */
#include "operations/paged/flash_mla/flash_mla_gradient.h"

/* ---- Latents and weights ---------------------------------------------------------------------------- */

/* Sums over tokens of latents times gradients of rows; a step of a lies c_stride apart, rows of c as those of b. */
#define WEIGHT_PAIR(n) GEMM_PAIR(gemm_weight, n, 1, c_stride, b_stride)
#define WEIGHT_SIZE(n) GEMM_CASE(gemm_weight, n)
/* Sums over elements of rows: rows of a lie c_stride apart. */
#define LATENT_PAIR(n) GEMM_PAIR(gemm_latent, n, c_stride, 1, b_stride)
#define LATENT_SIZE(n) GEMM_CASE(gemm_latent, n)
TILE_ROW_COUNTS(WEIGHT_PAIR)
TILE_ROW_COUNTS(LATENT_PAIR)
GEMM_DISPATCH(gemm_weight, TILE_ROW_COUNTS(WEIGHT_SIZE))
GEMM_DISPATCH(gemm_latent, TILE_ROW_COUNTS(LATENT_SIZE))

static void put_weight(const gradient *g, const mla_weight *to, paged_size dim, paged_size step,
                       const float *rows, paged_size first, paged_size count, float *sums) {
    const paged_problem *p = &g->v->m.core;
    const gemm_prefetch none = {.count = 0};
    if (!to->data) return;
    gemm_weight((int)count, step, mla_end(p), g->latents + first, rows, step, sums, g->plan.latent,
                false, &none);
    for (paged_size r = 0; r < count; r++)
        for (paged_size d = 0; d < p->kv_heads * dim; d++)
            element_store((ejk_dtype)p->dtype, to->data,
                          (first + r) * to->latent + d / dim * to->head + d % dim,
                          sums[r * step + d]);
}

/* Rows of the weights' gradients, as many as a tile has at a time. */
static void put_weights(void *argument, int64_t index) {
    const gradient *g = argument;
    const mla_plan *t = &g->forward.plan;
    const paged_size latent = g->v->m.latent, workers = g->run->workers;
    const paged_size end = latent * (index + 1) / workers;
    float *sums = worker_floats(g, index);
    for (paged_size r = latent * index / workers; r < end;) {
        const int count = gemm_rows(end - r);
        put_weight(g, &g->v->d_w_kc, g->v->m.core.dim, t->key_step, g->d_keys, r, count, sums);
        put_weight(g, &g->v->d_w_vc, g->v->m.core.value_dim, t->value_step, g->d_values, r, count,
                   sums);
        r += count;
    }
}

static void put_latents(void *argument, int64_t index) {
    const gradient *g = argument;
    const mla_plan *t = &g->forward.plan;
    const paged_problem *p = &g->v->m.core;
    const paged_size step = g->plan.latent, workers = g->run->workers, last = mla_end(p);
    const paged_size end = last * (index + 1) / workers;
    const gemm_prefetch none = {.count = 0};
    float *sums = worker_floats(g, index);
    for (paged_size i = last * index / workers; g->v->d_key_value.data && i < end;) {
        const int count = gemm_rows(end - i);
        gemm_latent(count, step, t->key_step, g->d_keys + i * t->key_step, g->turned, step, sums,
                    t->key_step, false, &none);
        gemm_latent(count, step, t->value_step, g->d_values + i * t->value_step,
                    g->turned + t->key_step * step, step, sums, t->value_step, true, &none);
        for (int n = 0; n < count; n++)
            put_row(g, &g->v->d_key_value, i + n, 0, 0, g->v->m.latent, sums + n * step);
        i += count;
    }
}

/* ---- A run ------------------------------------------------------------------------------------------ */

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const mla_vjp_problem *v = problem;
    const paged_size tasks = v->m.core.sequences * v->m.core.kv_heads;
    gradient g;
    (void)parameters;
    launch->workers = (int32_t)paged_most(paged_least(threads, tasks), 1);
    place_gradient(&g, v, launch->workers);
    launch->workspace_bytes = (size_t)g.plan.bytes;
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const mla_vjp_problem *v = run->problem;
    gradient g;
    place_gradient(&g, v, run->workers);
    bind_gradient(&g, run);
    mla_project(&g.forward, &v->m, run);
    turn_weights(&g);
    ejk_parallel_for(run->threads, run->workers, attend_tasks, &g);
    ejk_parallel_for(run->threads, run->workers, put_weights, &g);
    ejk_parallel_for(run->threads, run->workers, put_latents, &g);
    put_shared(&g);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
