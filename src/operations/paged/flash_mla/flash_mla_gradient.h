/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's part of the gradients of flash_mla: those of queries, keys, values and sinks. */
#ifndef EJKI_FLASH_MLA_GRADIENT_H
#define EJKI_FLASH_MLA_GRADIENT_H

#include "kernels/simd/vec_math.h"
#include "operations/paged/flash_mla/flash_mla_project.h"

#include <float.h>
#include <math.h>

#define LOG2E 1.4426950408889634

enum {
    GROUP_ROWS = 4 * TILE_ROWS,
    PANEL = 512,
    PANEL_STEP = PANEL + 16, /* rows of a panel do not lie a power of two apart */
};

/* Sizes in floats; places in bytes. */
typedef struct gradient_plan {
    paged_size depth, width; /* of keys with their tails, of values, in whole vectors */
    paged_size keys,
        latent; /* of the longest sequence in whole panels; of latents in whole vectors */
    paged_size latent_at, turned_at, key_at, value_at, tail_at, rope_at, own_at;
    paged_size worker_at, worker_bytes, bytes;
} gradient_plan;

typedef struct gradient {
    mla_work forward;
    const mla_vjp_problem *v;
    const ejk_run *run;
    gradient_plan plan;
    float *latents, *turned, *d_keys, *d_values; /* [tokens][R]; weights [elements][R]; as keys */
    float *d_tail, *d_rope;                      /* [tokens][Hq][Dr]; [tokens][Hkv][Dr] */
    float *own;                                  /* [tokens][Hq][2]: log-sum-exp in base 2, and what
                                                  * cotangents of scores are less by */
} gradient;

static paged_size longest(const paged_problem *p) {
    return p->rows_each > 0 ? p->rows_each : p->tokens;
}

static void place_gradient(gradient *g, const mla_vjp_problem *v, int32_t workers) {
    const paged_problem *p = &v->m.core;
    gradient_plan *t = &g->plan;
    paged_size at = 0;
    *g = (gradient){.v = v};
    g->forward.plan = mla_place(&v->m, workers, &at);
    const mla_plan *f = &g->forward.plan;
    t->depth = ejki_round_up(p->dim + p->tail_dim, VL);
    t->width = ejki_round_up(p->value_dim, VL);
    t->keys = ejki_round_up(longest(p), PANEL);
    t->latent = ejki_round_up(v->m.latent, VL);
    t->latent_at = place(&at, p->tokens * t->latent);
    t->turned_at = place(&at, (f->key_step + f->value_step) * t->latent);
    t->key_at = place(&at, p->tokens * f->key_step);
    t->value_at = place(&at, p->tokens * f->value_step);
    t->tail_at = place(&at, p->tokens * p->heads * p->tail_dim);
    t->rope_at = place(&at, p->tokens * p->kv_heads * p->tail_dim);
    t->own_at = place(&at, p->tokens * p->heads * 2);
    const paged_size task = t->keys * (t->depth + t->width) * 3 +
                            GROUP_ROWS * (3 * t->depth + 2 * t->width + 4) +
                            2 * t->keys / PANEL * GROUP_ROWS * PANEL_STEP;
    const paged_size rows =
        TILE_ROWS * paged_most(paged_most(f->key_step, f->value_step), t->latent);
    t->worker_bytes = ejki_round_up(paged_most(task, rows) * 4, 64);
    t->worker_at = place(&at, workers * t->worker_bytes / 4);
    t->bytes = at;
}

static float *floats_at(const gradient *g, paged_size at) {
    return (float *)(void *)((char *)g->run->workspace + at);
}
static float *worker_floats(const gradient *g, paged_size worker) {
    return floats_at(g, g->plan.worker_at + worker * g->plan.worker_bytes);
}

static void bind_gradient(gradient *g, const ejk_run *run) {
    const gradient_plan *t = &g->plan;
    const mla_problem *m = &g->v->m;
    g->run = run;
    g->latents = floats_at(g, t->latent_at);
    g->turned = floats_at(g, t->turned_at);
    g->d_keys = floats_at(g, t->key_at);
    g->d_values = floats_at(g, t->value_at);
    g->d_tail = floats_at(g, t->tail_at);
    g->d_rope = floats_at(g, t->rope_at);
    g->own = floats_at(g, t->own_at);
    memset(g->latents, 0, (size_t)(t->worker_at - t->latent_at));
    for (paged_size n = 0; n < m->core.tokens * m->latent; n++)
        g->latents[n / m->latent * t->latent + n % m->latent] =
            element_load((ejk_dtype)m->core.dtype, m->key_value.data,
                         paged_row_at(&m->core, &m->key_value, n / m->latent, 0) + n % m->latent);
}

static void turn_weights(const gradient *g) {
    const mla_plan *f = &g->forward.plan;
    const float *values = g->forward.weights + g->v->m.latent * f->key_step;
    const paged_size step = g->plan.latent;
    for (paged_size r = 0; r < g->v->m.latent; r++) {
        for (paged_size d = 0; d < f->key_step; d++)
            g->turned[d * step + r] = g->forward.weights[r * f->key_step + d];
        for (paged_size d = 0; d < f->value_step; d++)
            g->turned[(f->key_step + d) * step + r] = values[r * f->value_step + d];
    }
}

/* Elements `from` on of a token's row of a gradient, if it is wanted. */
static void put_row(const gradient *g, const paged_rows *to, paged_size token, paged_size head,
                    paged_size from, paged_size count, const float *row) {
    const paged_size at = paged_row_at(&g->v->m.core, to, token, head) + from;
    for (paged_size d = 0; to->data && d < count; d++)
        element_store((ejk_dtype)g->v->m.core.dtype, to->data, at + d, row[d]);
}

/* ---- Operands of a task ----------------------------------------------------------------------------- */

typedef struct task {
    const gradient *g;
    const paged_problem *p;
    paged_sequence s;
    paged_size head;                                  /* of the keys */
    float *key, *value, *turned_key, *turned_value;   /* [keys][D]; [D][keys] */
    float *d_key, *d_value;                           /* [keys][D] */
    float *query, *d_out, *packed_query, *packed_out; /* [GROUP_ROWS][D]; [D][TILE_ROWS] a tile */
    float *d_query, *most, *factor, *own, *d_lse;     /* of the group's rows */
    float *scores, *d_scores;                         /* [panel][GROUP_ROWS][PANEL_STEP] */
    bool finite;
    paged_size first, rows; /* of the group, among rows of all heads */
} task;

static void bind_task(task *t, const gradient *g, float *memory) {
    const gradient_plan *plan = &g->plan;
    const paged_size key = plan->keys * plan->depth, value = plan->keys * plan->width;
    t->key = memory;
    t->value = t->key + key;
    t->turned_key = t->value + value;
    t->turned_value = t->turned_key + key;
    t->d_key = t->turned_value + value;
    t->d_value = t->d_key + key;
    t->query = t->d_value + value;
    t->packed_query = t->query + GROUP_ROWS * plan->depth;
    t->d_query = t->packed_query + GROUP_ROWS * plan->depth;
    t->d_out = t->d_query + GROUP_ROWS * plan->depth;
    t->packed_out = t->d_out + GROUP_ROWS * plan->width;
    t->most = t->packed_out + GROUP_ROWS * plan->width;
    t->factor = t->most + GROUP_ROWS;
    t->own = t->factor + GROUP_ROWS;
    t->d_lse = t->own + GROUP_ROWS;
    t->scores = t->d_lse + GROUP_ROWS;
    t->d_scores = t->scores + plan->keys / PANEL * GROUP_ROWS * PANEL_STEP;
}

static float loaded(const task *t, const void *data, paged_size at) {
    return element_load((ejk_dtype)t->p->dtype, data, at);
}

/* Keys with their tails, and values, as they are and turned; gradients begin at 0. */
static void load_keys(task *t) {
    const gradient *g = t->g;
    const paged_problem *p = t->p;
    const mla_plan *f = &g->forward.plan;
    const paged_cache *tail = &p->key_tail;
    const paged_size depth = g->plan.depth, width = g->plan.width, step = g->plan.keys;
    float probe = 0;
    memset(t->key, 0, (size_t)(t->query - t->key) * sizeof(float));
    for (paged_size j = 0; j < t->s.rows; j++) {
        const paged_size token = t->s.begin + j;
        float *key = t->key + j * depth, *value = t->value + j * width;
        memcpy(key, g->forward.keys + token * f->key_step + t->head * p->dim,
               (size_t)p->dim * sizeof *key);
        for (paged_size d = 0; d < p->tail_dim; d++)
            key[p->dim + d] = loaded(
                t, tail->data, token / p->page * tail->page + token % p->page * tail->token + d);
        memcpy(value, g->forward.values + token * f->value_step + t->head * p->value_dim,
               (size_t)p->value_dim * sizeof *value);
        for (paged_size d = 0; d < depth; d++) probe += 0 * (t->turned_key[d * step + j] = key[d]);
        for (paged_size d = 0; d < width; d++)
            probe += 0 * (t->turned_value[d * step + j] = value[d]);
    }
    t->finite = probe == 0;
}

/* Rows of the group: queries with their tails, and cotangents. */
static void load_rows(task *t) {
    const paged_problem *p = t->p;
    const mla_vjp_problem *v = t->g->v;
    const paged_size depth = t->g->plan.depth, width = t->g->plan.width;
    memset(t->query, 0, (size_t)(t->scores - t->query) * sizeof(float));
    for (paged_size i = 0; i < t->rows; i++) {
        const paged_size token = t->s.begin + (t->first + i) / p->group;
        const paged_size h = t->head * p->group + (t->first + i) % p->group;
        float *query = t->query + i * depth, *d_out = t->d_out + i * width;
        for (paged_size d = 0; d < p->dim; d++)
            query[d] = loaded(t, p->query.data, paged_row_at(p, &p->query, token, h) + d);
        for (paged_size d = 0; d < p->tail_dim; d++)
            query[p->dim + d] =
                loaded(t, p->query_tail.data, paged_row_at(p, &p->query_tail, token, h) + d);
        for (paged_size d = 0; d < p->value_dim; d++)
            d_out[d] = loaded(t, v->d_out.data, paged_row_at(p, &v->d_out, token, h) + d);
        if (v->d_lse.data)
            t->d_lse[i] =
                element_load(EJK_DTYPE_F32, v->d_lse.data, paged_row_at(p, &v->d_lse, token, h));
        const paged_size tile = i / TILE_ROWS * TILE_ROWS;
        for (paged_size d = 0; d < depth; d++)
            t->packed_query[tile * depth + d * TILE_ROWS + i - tile] = query[d];
        for (paged_size d = 0; d < width; d++)
            t->packed_out[tile * width + d * TILE_ROWS + i - tile] = d_out[d];
    }
}

/* ---- Weights ---------------------------------------------------------------------------------------- */

static float *panel_row(float *panels, paged_size i, paged_size j) {
    return panels + (j / PANEL * GROUP_ROWS + i) * PANEL_STEP + j % PANEL;
}

static float sink_of(const task *t, paged_size h, paged_size n) {
    return element_load((ejk_dtype)t->p->sink_dtype, t->p->sinks,
                        h / t->p->sink_group * t->p->sink_step + n);
}

/* Keys that row i of the group sees. */
static paged_size low_of(const task *t, paged_size i) {
    return paged_low(t->p, &t->s, (t->first + i) / t->p->group);
}
static paged_size high_of(const task *t, paged_size i) {
    return paged_high(t->p, &t->s, (t->first + i) / t->p->group);
}

/* Products of row i with keys low to high - 1, whole vectors, become scores in base 2; what it does not see, -inf. */
static float scale_scores(task *t, paged_size i, paged_size low, paged_size high) {
    const paged_problem *p = t->p;
    const vf factor = v_set1((float)(p->scale * LOG2E));
    const v_cap cap = v_cap_of(p->cap > 0 ? p->scale / p->cap : 1, p->cap * LOG2E);
    const paged_size first = low_of(t, i), end = high_of(t, i);
    vf most = v_set1(-INFINITY);
    for (paged_size j = low; j < high; j += VL) {
        float *z = panel_row(t->scores, i, j);
        vf v = v_load(z);
        v = p->cap > 0 ? v_cap_any(&cap, v) : v_mul(v, factor);
        v = v_keep(v, first - j, end - j);
        v_store(z, v);
        most = v_max(v, most);
    }
    return v_largest(most);
}

/* The row's softmax, and what every score's cotangent is less by. */
static void find_weights(task *t, paged_size i, paged_size low, paged_size high) {
    const paged_problem *p = t->p;
    const paged_size h = t->head * p->group + (t->first + i) % p->group;
    const paged_size token = t->s.begin + (t->first + i) / p->group;
    float most = scale_scores(t, i, low, high), total = 0, *own;
    for (paged_size n = 0; n < p->sink_count; n++)
        most = fmaxf(most, sink_of(t, h, n) * (float)LOG2E);
    const vf shift = v_set1(most == -INFINITY ? 0 : most);
    vf sum = v_zero(), product = v_zero();
    for (paged_size j = low; j < high; j += VL) {
        const vf score = v_load(panel_row(t->scores, i, j)), w = v_exp2(v_sub(score, shift));
        sum = v_add(sum, w);
        product = v_select_gt(v_set1(-FLT_MAX), score, product,
                              v_fma(w, v_load(panel_row(t->d_scores, i, j)), product));
    }
    total = v_sum(sum);
    for (paged_size n = 0; n < p->sink_count && most > -INFINITY; n++)
        total += exp2f(sink_of(t, h, n) * (float)LOG2E - most);
    t->most[i] = most == -INFINITY ? 0 : most;
    t->factor[i] = total == 0 ? 0 : 1 / total;
    t->own[i] = v_sum(product) * t->factor[i] - t->d_lse[i];
    own = t->g->own + (token * p->heads + h) * 2;
    own[0] = total == 0 ? -INFINITY : most + log2f(total);
    own[1] = t->own[i];
}

/* Scores become weights, and cotangents of weights those of products. */
static void finish_row(task *t, paged_size i, paged_size low, paged_size high) {
    const paged_problem *p = t->p;
    const vf shift = v_set1(t->most[i]), factor = v_set1(t->factor[i]), own = v_set1(t->own[i]);
    const vf cap = v_set1(p->cap > 0 ? (float)(1 / (p->cap * LOG2E)) : 0), one = v_set1(1);
    const vf scale = v_set1((float)p->scale);
    for (paged_size j = low; j < high; j += VL) {
        float *z = panel_row(t->scores, i, j), *d = panel_row(t->d_scores, i, j);
        const vf score = v_load(z), w = v_mul(v_exp2(v_sub(score, shift)), factor);
        const vf tanh = p->cap > 0 ? v_max(v_mul(score, cap), v_set1(-1)) : v_zero();
        const vf slope = v_mul(scale, v_sub(one, v_mul(tanh, tanh)));
        const vf cotangent = v_mul(v_mul(w, v_sub(v_load(d), own)), slope);
        v_store(z, w);
        v_store(d, v_select_gt(v_set1(-FLT_MAX), score, v_zero(), cotangent));
    }
}

/* ---- Products --------------------------------------------------------------------------------------- */

#define SCORES_PAIR(n) GEMM_PAIR(gemm_scores, n, 1, TILE_ROWS, PANEL_STEP)
#define SCORES_SIZE(n) GEMM_CASE(gemm_scores, n)
#define QUERY_PAIR(n)  GEMM_PAIR(gemm_query, n, PANEL_STEP, 1, c_stride)
#define QUERY_SIZE(n)  GEMM_CASE(gemm_query, n)
#define KEY_PAIR(n)    GEMM_PAIR(gemm_key, n, 1, PANEL_STEP, c_stride)
#define KEY_SIZE(n)    GEMM_CASE(gemm_key, n)
TILE_ROW_COUNTS(SCORES_PAIR)
TILE_ROW_COUNTS(QUERY_PAIR)
TILE_ROW_COUNTS(KEY_PAIR)
GEMM_DISPATCH(gemm_scores, TILE_ROW_COUNTS(SCORES_SIZE))
GEMM_DISPATCH(gemm_query, TILE_ROW_COUNTS(QUERY_SIZE))
GEMM_DISPATCH(gemm_key, TILE_ROW_COUNTS(KEY_SIZE))

static const gemm_prefetch no_lines = {.count = 0};

/* Keys low to high - 1 of one panel, whole vectors: products of queries with keys, and of cotangents with values. */
static void multiply_panel(task *t, paged_size low, paged_size high) {
    const gradient_plan *plan = &t->g->plan;
    for (paged_size i = 0; i < t->rows;) {
        const paged_size in = i % TILE_ROWS, tile = i - in;
        const int rows = gemm_rows(paged_least(t->rows - i, TILE_ROWS - in));
        gemm_scores(rows, high - low, plan->depth, t->packed_query + tile * plan->depth + in,
                    t->turned_key + low, plan->keys, panel_row(t->scores, i, low), PANEL_STEP,
                    false, &no_lines);
        gemm_scores(rows, high - low, plan->width, t->packed_out + tile * plan->width + in,
                    t->turned_value + low, plan->keys, panel_row(t->d_scores, i, low), PANEL_STEP,
                    false, &no_lines);
        i += rows;
    }
}

/* The panel's part of gradients of queries, keys and values; keys are those of the sequence. */
static void add_panel(task *t, paged_size low, paged_size high) {
    const paged_size depth = t->g->plan.depth, width = t->g->plan.width;
    for (paged_size i = 0; i < t->rows;) {
        const int rows = gemm_rows(t->rows - i);
        gemm_query(rows, depth, high - low, panel_row(t->d_scores, i, low), t->key + low * depth,
                   depth, t->d_query + i * depth, depth, true, &no_lines);
        i += rows;
    }
    for (paged_size j = low; j < high;) {
        const int rows = gemm_rows(high - j);
        gemm_key(rows, depth, t->rows, panel_row(t->d_scores, 0, j), t->query, depth,
                 t->d_key + j * depth, depth, true, &no_lines);
        gemm_key(rows, width, t->rows, panel_row(t->scores, 0, j), t->d_out, width,
                 t->d_value + j * width, width, true, &no_lines);
        j += rows;
    }
}

/* The same key by key, with what a row sees. */
static void add_seen(task *t, paged_size i) {
    const paged_size depth = t->g->plan.depth, width = t->g->plan.width;
    for (paged_size j = low_of(t, i); j < high_of(t, i); j++) {
        const float w = *panel_row(t->scores, i, j), d_score = *panel_row(t->d_scores, i, j);
        for (paged_size d = 0; d < depth; d++) {
            t->d_query[i * depth + d] += d_score * t->key[j * depth + d];
            t->d_key[j * depth + d] += d_score * t->query[i * depth + d];
        }
        for (paged_size d = 0; d < width; d++)
            t->d_value[j * width + d] += w * t->d_out[i * width + d];
    }
}

static bool rows_are_finite(const task *t) {
    float probe = 0;
    for (paged_size n = 0; n < t->rows * t->g->plan.depth; n++) probe += 0 * t->query[n];
    for (paged_size n = 0; n < t->rows * t->g->plan.width; n++) probe += 0 * t->d_out[n];
    return probe == 0;
}

static void put_queries(const task *t) {
    const gradient *g = t->g;
    const paged_problem *p = t->p;
    for (paged_size i = 0; i < t->rows; i++) {
        const paged_size token = t->s.begin + (t->first + i) / p->group;
        const paged_size h = t->head * p->group + (t->first + i) % p->group;
        const float *row = t->d_query + i * g->plan.depth;
        put_row(g, &g->v->d_query, token, h, 0, p->dim, row);
        if (g->v->shared_tail)
            memcpy(g->d_tail + (token * p->heads + h) * p->tail_dim, row + p->dim,
                   (size_t)p->tail_dim * sizeof *row);
        else
            put_row(g, &g->v->d_query_tail, token, h, 0, p->tail_dim, row + p->dim);
    }
}

static void group(task *t) {
    const paged_size low = low_of(t, 0) / PANEL * PANEL, high = high_of(t, t->rows - 1);
    load_rows(t);
    const bool finite = t->finite && rows_are_finite(t);
    for (paged_size j = low; j < high; j += PANEL)
        multiply_panel(t, j, j + ejki_round_up(paged_least(high - j, PANEL), VL));
    for (paged_size i = 0; i < t->rows; i++) {
        find_weights(t, i, low, ejki_round_up(high, VL));
        finish_row(t, i, low, ejki_round_up(high, VL));
        if (!finite) add_seen(t, i);
    }
    for (paged_size j = low; finite && j < high; j += PANEL)
        add_panel(t, j, paged_least(high, j + PANEL));
    put_queries(t);
}

static void attend_task(task *t) {
    const gradient *g = t->g;
    const paged_problem *p = t->p;
    const mla_plan *f = &g->forward.plan;
    const paged_size all = t->s.rows * p->group;
    load_keys(t);
    for (t->first = 0; t->first < all; t->first += GROUP_ROWS) {
        t->rows = paged_least(GROUP_ROWS, all - t->first);
        group(t);
    }
    for (paged_size j = 0; j < t->s.rows; j++) {
        const paged_size token = t->s.begin + j;
        const float *key = t->d_key + j * g->plan.depth;
        memcpy(g->d_keys + token * f->key_step + t->head * p->dim, key,
               (size_t)p->dim * sizeof *key);
        memcpy(g->d_values + token * f->value_step + t->head * p->value_dim,
               t->d_value + j * g->plan.width, (size_t)p->value_dim * sizeof *key);
        memcpy(g->d_rope + (token * p->kv_heads + t->head) * p->tail_dim, key + p->dim,
               (size_t)p->tail_dim * sizeof *key);
    }
}

static void attend_tasks(void *argument, int64_t index) {
    const gradient *g = argument;
    const paged_problem *p = &g->v->m.core;
    task t = {.g = g, .p = p};
    bind_task(&t, g, worker_floats(g, index));
    for (paged_size n = index; n < p->sequences * p->kv_heads; n += g->run->workers) {
        t.s = paged_sequence_of(p, n / p->kv_heads);
        t.head = n % p->kv_heads;
        attend_task(&t);
    }
}

/* ---- Sums over heads -------------------------------------------------------------------------------- */

static void put_sums(const gradient *g, const paged_rows *to, const float *from, paged_size heads) {
    const paged_problem *p = &g->v->m.core;
    for (paged_size n = 0; to->data && n < p->tokens * p->tail_dim; n++) {
        const paged_size token = n / p->tail_dim, d = n % p->tail_dim;
        float sum = 0;
        for (paged_size h = 0; h < heads; h++) sum += from[(token * heads + h) * p->tail_dim + d];
        put_row(g, to, token, 0, d, 1, &sum);
    }
}

static void put_sinks(const gradient *g) {
    const mla_vjp_problem *v = g->v;
    const paged_problem *p = &v->m.core;
    for (paged_size n = 0; v->d_sinks && n < v->sink_rows * p->sink_count; n++) {
        const paged_size row = n / p->sink_count, i = n % p->sink_count;
        const float sink =
            (float)LOG2E * element_load((ejk_dtype)p->sink_dtype, p->sinks, row * p->sink_step + i);
        float sum = 0;
        for (paged_size at = 0; at < mla_end(p) * p->heads; at++) {
            const float *own = g->own + at * 2;
            if (at % p->heads / p->sink_group % v->sink_rows != row || own[0] == -INFINITY)
                continue;
            sum -= exp2f(sink - own[0]) * own[1];
        }
        element_store((ejk_dtype)p->dtype, v->d_sinks, row * v->d_sink_step + i, sum);
    }
}

/* What all heads share, and gradients of tokens of no sequence. */
static void put_shared(const gradient *g) {
    const mla_vjp_problem *v = g->v;
    const paged_problem *p = &v->m.core;
    const float zero = 0;
    if (v->shared_tail) put_sums(g, &v->d_query_tail, g->d_tail, p->heads);
    put_sums(g, &v->d_key_tail, g->d_rope, p->kv_heads);
    put_sinks(g);
    for (paged_size token = mla_end(p); token < p->tokens; token++) {
        for (paged_size d = 0; d < v->m.latent; d++)
            put_row(g, &v->d_key_value, token, 0, d, 1, &zero);
        for (paged_size n = 0; n < p->heads * p->dim; n++)
            put_row(g, &v->d_query, token, n / p->dim, n % p->dim, 1, &zero);
        for (paged_size n = 0; !v->shared_tail && n < p->heads * p->tail_dim; n++)
            put_row(g, &v->d_query_tail, token, n / p->tail_dim, n % p->tail_dim, 1, &zero);
    }
}

#endif
