/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of all tokens as float32: weights become floats, and tiles of TILE_ROWS tokens are multiplied with
 * them. An element is one sum over the latent in order, so that bits do not depend on threads.
 */
#ifndef EJKI_FLASH_MLA_PROJECT_H
#define EJKI_FLASH_MLA_PROJECT_H

#include <ejkernel/device.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/cpu/tile/tile_shape.h"
#include "operations/paged/flash_mla/problem.h"

#include "kernels/simd/gemm_body.h"
#include "kernels/simd/vec_element.h"

#define PROJECT_PAIR(n) GEMM_PAIR(gemm_project, n, 1, TILE_ROWS, c_stride)
#define PROJECT_SIZE(n) GEMM_CASE(gemm_project, n)
TILE_ROW_COUNTS(PROJECT_PAIR)
GEMM_DISPATCH(gemm_project, TILE_ROW_COUNTS(PROJECT_SIZE))

/* Where things lie in the workspace, in bytes; steps in floats. */
typedef struct mla_plan {
    paged_size key_step, value_step; /* of a token, and of a row of the weights */
    paged_size weight_at, key_at, value_at, worker_at, worker_bytes;
} mla_plan;

static paged_size place(paged_size *at, paged_size floats) {
    const paged_size start = *at;
    *at += ejki_round_up(floats * 4, 64);
    return start;
}

/* From *at on; *at goes behind it. */
static mla_plan mla_place(const mla_problem *m, int32_t workers, paged_size *at) {
    const paged_problem *p = &m->core;
    mla_plan t = {.key_step = ejki_round_up(p->kv_heads * p->dim, VL),
                  .value_step = ejki_round_up(p->kv_heads * p->value_dim, VL)};
    t.weight_at = place(at, m->latent * (t.key_step + t.value_step));
    t.key_at = place(at, p->tokens * t.key_step);
    t.value_at = place(at, p->tokens * t.value_step);
    t.worker_bytes = ejki_round_up(m->latent * TILE_ROWS * 4 + 64, 64);
    t.worker_at = place(at, workers * t.worker_bytes / 4);
    return t;
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

static void mla_project(mla_work *w, const mla_problem *m, const ejk_run *run) {
    char *memory = run->workspace;
    w->m = m;
    w->run = run;
    w->weights = (float *)(void *)(memory + w->plan.weight_at);
    w->keys = (float *)(void *)(memory + w->plan.key_at);
    w->values = (float *)(void *)(memory + w->plan.value_at);
    memset(w->weights, 0, (size_t)(w->plan.key_at - w->plan.weight_at));
    ejk_parallel_for(run->threads, run->workers, widen_weights, w);
    ejk_parallel_for(run->threads, run->workers, project_all, w);
}

#endif
