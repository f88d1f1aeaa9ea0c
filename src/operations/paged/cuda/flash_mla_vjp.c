/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash_mla on GPUs: queries, keys and values in float32, each in one part, to which the plain kernels of
 * flash attention attend and make gradients; these go back through the products with weights, and to their types.
 */
#include "kernels/declare.h"
#include "operations/attention/cuda/sm80/backward.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/flash_mla.h"
#include "operations/paged/cuda/mla_vjp.cuh"

/* What is prepared: the gradients' own from 0 on, then those of the call. */
enum { FORWARD = 7, PROJECT = 8, ROWS, PRODUCTS };
enum { TILE = 64, THREADS = 256 }; /* as project.cu, mla_rows.cu and mla_products.cu have them */
#define FAR (INT64_C(1) << 61)

/* ---- Memory ----------------------------------------------------------------------------------------- */

/* Arrays of floats: [tokens, heads, components], all of a row's components in one part; lse [entries, heads, T]. */
typedef struct arrays {
    float *query, *key, *value, *d_out, *out, *d_query, *d_key, *d_value, *lse, *sinks, *d_sinks;
    char *rest; /* workspace of the plain gradients */
    int64_t bytes;
} arrays;

static float *take(arrays *a, char *memory, int64_t count) {
    const int64_t at = a->bytes;
    a->bytes += ejki_round_up(count * (int64_t)sizeof(float), 256);
    return (float *)(void *)(memory ? memory + at : NULL);
}

static int64_t depth_of(const paged_problem *p) {
    return p->dim + p->tail_dim;
}

static arrays arrays_of(const mla_vjp_problem *v, char *memory) {
    const paged_problem *p = &v->m.core;
    const int64_t queries = p->tokens * p->heads, keys = p->tokens * p->kv_heads;
    const int64_t sinks = v->sink_rows * p->sink_count;
    arrays a = {.bytes = 0};
    a.query = take(&a, memory, queries * depth_of(p));
    a.key = take(&a, memory, keys * depth_of(p));
    a.value = take(&a, memory, keys * p->value_dim);
    a.d_out = take(&a, memory, queries * p->value_dim);
    a.out = take(&a, memory, queries * p->value_dim);
    a.d_query = take(&a, memory, queries * depth_of(p));
    a.d_key = take(&a, memory, keys * depth_of(p));
    a.d_value = take(&a, memory, keys * p->value_dim);
    a.lse = take(&a, memory, queries);
    a.sinks = take(&a, memory, sinks);
    a.d_sinks = take(&a, memory, sinks);
    a.rest = memory ? memory + a.bytes : NULL;
    return a;
}

/* ---- Flash attention -------------------------------------------------------------------------------- */

static ejki_bthd bthd(const paged_problem *p, float *data, int64_t heads, int64_t dim) {
    return (ejki_bthd){data, p->batch_rows * heads * dim, heads * dim, dim};
}

static ejki_flash_problem flash_of(const mla_vjp_problem *v, const arrays *a) {
    const paged_problem *p = &v->m.core;
    const bool packed = p->tables == PAGED_TOKENS;
    const int64_t entries = packed ? 1 : p->sequences;
    return (ejki_flash_problem){
        .batch = p->sequences,
        .queries = entries > 0 ? p->tokens / entries : 0,
        .keys = entries > 0 ? p->tokens / entries : 0,
        .query_heads = p->heads,
        .kv_heads = p->kv_heads,
        .group = p->group,
        .head_dim = depth_of(p),
        .value_dim = p->value_dim,
        .dtype = EJK_DTYPE_F32,
        .query = bthd(p, a->query, p->heads, depth_of(p)),
        .key = bthd(p, a->key, p->kv_heads, depth_of(p)),
        .value = bthd(p, a->value, p->kv_heads, p->value_dim),
        .out = bthd(p, a->out, p->heads, p->value_dim),
        .lse = {(ejki_float *)a->lse, p->heads * p->batch_rows, p->batch_rows, 1},
        .wants_lse = true,
        .mask_group = 1,
        .has_sinks = p->sink_count > 0,
        .sinks = a->sinks,
        .sink_count = p->sink_count,
        .sink_stride_h = v->sink_rows > 1 ? p->sink_count : 0,
        .sink_group = ejki_max(p->sink_group, 1),
        .scale = p->scale,
        .soft_cap = p->cap,
        .first_offset = p->left < 0 ? -FAR : -p->left,
        .last_offset = p->causal ? 0 : FAR,
        .normalize = true,
        .layout = packed ? EJKI_FLASH_TOKENS : EJKI_FLASH_DENSE,
        .sums_are_i64 = p->starts.wide,
        .query_sums = p->starts.data,
        .key_sums = p->starts.data,
    };
}

static ejki_flash_vjp_problem gradients_of(const mla_vjp_problem *v, const arrays *a) {
    const paged_problem *p = &v->m.core;
    const bool keys = v->d_key_value.data || v->d_w_kc.data || v->d_key_tail.data;
    const paged_rows *l = &v->d_lse;
    return (ejki_flash_vjp_problem){
        .forward = flash_of(v, a),
        .wants_query = v->d_query.data || v->d_query_tail.data,
        .wants_key = keys,
        .wants_value = v->d_key_value.data || v->d_w_vc.data,
        .wants_sinks = v->d_sinks && p->sink_count > 0,
        .has_lse_cotangent = l->data != NULL,
        .out_cotangent = bthd(p, a->d_out, p->heads, p->value_dim),
        .lse_cotangent = {(ejki_float *)l->data, l->batch, l->head, l->token},
        .d_query = bthd(p, a->d_query, p->heads, depth_of(p)),
        .d_key = bthd(p, a->d_key, p->kv_heads, depth_of(p)),
        .d_value = bthd(p, a->d_value, p->kv_heads, p->value_dim),
        .d_sinks = a->d_sinks,
        .d_sink_stride_h = v->sink_rows > 1 ? p->sink_count : 0,
    };
}

static const int64_t one_split[] = {1};

/* ---- What it can do --------------------------------------------------------------------------------- */

static int64_t blocks_of(int64_t rows, int64_t columns) {
    return ejki_cdiv(rows, TILE) * ejki_cdiv(columns, TILE);
}

static bool applicable(const void *problem) {
    const mla_vjp_problem *v = problem;
    const paged_problem *p = &v->m.core;
    const double rows = (double)p->tokens * (double)p->heads;
    const double wide = (double)(p->kv_heads * ejki_max(depth_of(p), p->value_dim));
    if (p->kv_heads <= 0 || p->tokens <= 0 || p->sequences <= 0 || p->dim <= 0 ||
        p->value_dim <= 0 || v->m.latent <= 0 || p->dtype == EJK_DTYPE_F64 ||
        rows * (double)(depth_of(p) + p->value_dim) > 1e12 || wide > 1e9 || v->m.latent > (1 << 30))
        return false;
    const arrays none = arrays_of(v, NULL);
    const ejki_flash_vjp_problem g = gradients_of(v, &none);
    return ejki_flash_attention_f32_cuda_plain.applicable(&g.forward) &&
           ejki_flash_attention_vjp_f32_cuda_plain.applicable(&g) &&
           (double)blocks_of(p->tokens, (int64_t)wide) < INT32_MAX &&
           (double)blocks_of(v->m.latent, (int64_t)wide) < INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const mla_vjp_problem *v = problem;
    const arrays none = arrays_of(v, NULL);
    const ejki_flash_vjp_problem g = gradients_of(v, &none);
    const ejki_cuda_constants constants = {.count = 0};
    ejk_launch forward = {.device = launch->device};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    EJKI_TRY(ejki_flash_attention_f32_cuda_plain.prepare(&g.forward, one_split, threads, &forward));
    EJKI_TRY(ejki_flash_attention_vjp_f32_cuda_plain.prepare(&g, NULL, threads, launch));
    launch->prepared[FORWARD] = forward.prepared[0];
    launch->workspace_bytes += (size_t)none.bytes;
    ejki_cuda_want(&kernels, PROJECT, "operations/paged/cuda/project.cu", "project", &constants);
    ejki_cuda_want(&kernels, ROWS, "operations/paged/cuda/mla_rows.cu", "mla_rows", &constants);
    ejki_cuda_want(&kernels, PRODUCTS, "operations/paged/cuda/mla_products.cu", "mla_products",
                   &constants);
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* Rows of an array of floats. */
static paged_rows floats(const paged_problem *p, float *data, int64_t heads, int64_t dim) {
    return (paged_rows){.data = data,
                        .batch = p->batch_rows * heads * dim,
                        .token = heads * dim,
                        .head = dim,
                        .dtype = EJK_DTYPE_F32};
}

static paged_rows later(paged_rows rows, int64_t components) {
    rows.data = (float *)rows.data + components;
    return rows;
}

static ejk_status copy_rows(const ejk_run *run, const paged_rows *from, const paged_rows *to,
                            int64_t heads, int64_t dim, int64_t sum) {
    const paged_problem *p = &((const mla_vjp_problem *)run->problem)->m.core;
    mla_rows_arguments a = {.from = *from,
                            .to = *to,
                            .tokens = p->tokens,
                            .batch_rows = p->batch_rows,
                            .heads = heads,
                            .dim = dim,
                            .sum = sum};
    const int64_t blocks = ejki_cdiv(p->tokens * heads * dim, THREADS);
    const ejki_cuda_work work = {
        .slot = ROWS, .threads = THREADS, .blocks = ejki_min(blocks, 1 << 20)};
    return to->data ? ejki_cuda_begin(run, &work, &a) : EJK_OK;
}

/* Sinks and their gradients: rows of the array for tokens. */
static ejk_status copy_sinks(const ejk_run *run, paged_rows from, paged_rows to) {
    const mla_vjp_problem *v = run->problem;
    mla_rows_arguments a = {.from = from,
                            .to = to,
                            .tokens = v->sink_rows,
                            .batch_rows = v->sink_rows,
                            .heads = 1,
                            .dim = v->m.core.sink_count,
                            .sum = 1};
    const ejki_cuda_work work = {.slot = ROWS,
                                 .threads = THREADS,
                                 .blocks = ejki_cdiv(v->sink_rows * v->m.core.sink_count, THREADS)};
    return to.data ? ejki_cuda_begin(run, &work, &a) : EJK_OK;
}

/* Inputs of flash attention. */
static ejk_status spread(const ejk_run *run, const arrays *a) {
    const mla_vjp_problem *v = run->problem;
    const paged_problem *p = &v->m.core;
    const paged_rows query = floats(p, a->query, p->heads, depth_of(p));
    const paged_rows key = floats(p, a->key, p->kv_heads, depth_of(p));
    const paged_rows d_out = floats(p, a->d_out, p->heads, p->value_dim);
    const bool packed = p->tables == PAGED_TOKENS;
    EJKI_TRY(copy_rows(run, &p->query, &query, p->heads, p->dim, 1));
    EJKI_TRY(copy_rows(run, &v->d_out, &d_out, p->heads, p->value_dim, 1));
    EJKI_TRY(ejki_mla_cuda_project(run, PROJECT, &v->m, &v->m.w_kc, p->dim, a->key, depth_of(p)));
    EJKI_TRY(ejki_mla_cuda_project(run, PROJECT, &v->m, &v->m.w_vc, p->value_dim, a->value,
                                   p->value_dim));
    if (p->tail_dim > 0) {
        const paged_rows to_query = later(query, p->dim), to_key = later(key, p->dim);
        const paged_rows tail = {.data = p->key_tail.data,
                                 .batch = packed ? 0 : p->key_tail.page,
                                 .token = p->key_tail.token,
                                 .dtype = p->key_tail.dtype};
        EJKI_TRY(copy_rows(run, &p->query_tail, &to_query, p->heads, p->tail_dim, 1));
        EJKI_TRY(copy_rows(run, &tail, &to_key, p->kv_heads, p->tail_dim, 1));
    }
    if (p->sink_count == 0) return EJK_OK;
    return copy_sinks(
        run,
        (paged_rows){
            .data = (void *)(uintptr_t)p->sinks, .token = p->sink_step, .dtype = p->sink_dtype},
        (paged_rows){.data = a->sinks, .token = p->sink_count, .dtype = EJK_DTYPE_F32});
}

/* Gradients of queries, rope parts and sinks. */
static ejk_status gather(const ejk_run *run, const arrays *a) {
    const mla_vjp_problem *v = run->problem;
    const paged_problem *p = &v->m.core;
    const paged_rows query = floats(p, a->d_query, p->heads, depth_of(p));
    const paged_rows key = floats(p, a->d_key, p->kv_heads, depth_of(p));
    EJKI_TRY(copy_rows(run, &query, &v->d_query, p->heads, p->dim, 1));
    if (p->tail_dim > 0) {
        const paged_rows query_tail = later(query, p->dim), key_tail = later(key, p->dim);
        EJKI_TRY(copy_rows(run, &query_tail, &v->d_query_tail, v->shared_tail ? 1 : p->heads,
                           p->tail_dim, v->shared_tail ? p->heads : 1));
        EJKI_TRY(copy_rows(run, &key_tail, &v->d_key_tail, 1, p->tail_dim, p->kv_heads));
    }
    if (p->sink_count == 0) return EJK_OK;
    return copy_sinks(
        run, (paged_rows){.data = a->d_sinks, .token = p->sink_count, .dtype = EJK_DTYPE_F32},
        (paged_rows){.data = v->d_sinks, .token = v->d_sink_step, .dtype = p->dtype});
}

/* ---- Products --------------------------------------------------------------------------------------- */

/* Tokens by latents, in either order. */
static mla_matrix latents(const paged_problem *p, const paged_rows *rows, int64_t latent,
                          bool turned) {
    mla_matrix m = {.data = rows->data,
                    .dtype = p->dtype,
                    .i_inner = (unsigned)p->batch_rows,
                    .k_inner = (unsigned)latent,
                    .i_outer_step = rows->batch,
                    .i_step = rows->token,
                    .k_step = 1};
    if (!turned) return m;
    return (mla_matrix){.data = rows->data,
                        .dtype = p->dtype,
                        .i_inner = (unsigned)latent,
                        .k_inner = (unsigned)p->batch_rows,
                        .i_step = 1,
                        .k_outer_step = rows->batch,
                        .k_step = rows->token};
}

/* Latents by components of all heads. */
static mla_matrix weights(const paged_problem *p, const mla_weight *w, int64_t latent,
                          int64_t dim) {
    return (mla_matrix){.data = w->data,
                        .dtype = p->dtype,
                        .i_inner = (unsigned)latent,
                        .k_inner = (unsigned)dim,
                        .i_step = w->latent,
                        .k_outer_step = w->head,
                        .k_step = 1};
}

/* Tokens by components of all heads, in either order. */
static mla_matrix keys_of(const paged_problem *p, float *data, int64_t dim, int64_t pitch,
                          bool turned) {
    mla_matrix m = {.data = data,
                    .dtype = EJK_DTYPE_F32,
                    .i_inner = (unsigned)p->tokens,
                    .k_inner = (unsigned)dim,
                    .i_step = p->kv_heads * pitch,
                    .k_outer_step = pitch,
                    .k_step = 1};
    if (!turned) return m;
    return (mla_matrix){.data = data,
                        .dtype = EJK_DTYPE_F32,
                        .i_inner = (unsigned)dim,
                        .k_inner = (unsigned)p->tokens,
                        .i_outer_step = pitch,
                        .i_step = 1,
                        .k_step = p->kv_heads * pitch};
}

static ejk_status multiply(const ejk_run *run, mla_products_arguments *a) {
    for (int n = 0; n < 2; n++) /* none is divided by 0 */
        if (a->depth[n] == 0) a->a[n] = a->b[n] = (mla_matrix){.i_inner = 1, .k_inner = 1};
    const ejki_cuda_work work = {
        .slot = PRODUCTS, .threads = THREADS, .blocks = blocks_of(a->rows, a->columns)};
    return a->c.data ? ejki_cuda_begin(run, &work, a) : EJK_OK;
}

static ejk_status multiply_latents(const ejk_run *run, const arrays *a) {
    const mla_vjp_problem *v = run->problem;
    const paged_problem *p = &v->m.core;
    const int64_t latent = v->m.latent;
    mla_products_arguments m = {
        .a = {keys_of(p, a->d_key, p->dim, depth_of(p), false),
              keys_of(p, a->d_value, p->value_dim, p->value_dim, false)},
        .b = {weights(p, &v->m.w_kc, latent, p->dim), weights(p, &v->m.w_vc, latent, p->value_dim)},
        .c = latents(p, &v->d_key_value, latent, false),
        .rows = p->tokens,
        .columns = latent,
        .depth = {p->kv_heads * p->dim, p->kv_heads * p->value_dim}};
    return multiply(run, &m);
}

/* Tokens of no sequence may hold anything. */
static ejk_status multiply_weight(const ejk_run *run, const mla_weight *to, float *d_rows,
                                  int64_t dim, int64_t pitch) {
    const mla_vjp_problem *v = run->problem;
    const paged_problem *p = &v->m.core;
    const int64_t latent = v->m.latent;
    mla_products_arguments m = {.a = {latents(p, &v->m.key_value, latent, true)},
                                .b = {keys_of(p, d_rows, dim, pitch, true)},
                                .c = weights(p, to, latent, dim),
                                .rows = latent,
                                .columns = p->kv_heads * dim,
                                .depth = {p->tokens, 0},
                                .end = p->starts,
                                .end_at = p->sequences};
    return multiply(run, &m);
}

/* ---- A run ------------------------------------------------------------------------------------------ */

static ejk_status check(const mla_vjp_problem *v) {
    const mla_problem *m = &v->m;
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)m->core.dtype);
    const ejki_cuda_address all[] = {
        {m->key_value.data, size, "key_value"},
        {m->w_kc.data, size, "w_kc"},
        {m->w_vc.data, size, "w_vc"},
        {v->d_out.data, size, "d_out"},
        {v->d_lse.data, 4, "d_lse"},
        {v->d_query.data, size, "d_query"},
        {v->d_query_tail.data, size, "d_b_q"},
        {v->d_key_value.data, size, "d_key_value"},
        {v->d_key_tail.data, size, "d_b_k"},
        {v->d_w_kc.data, size, "d_w_kc"},
        {v->d_w_vc.data, size, "d_w_vc"},
        {v->d_sinks, size, "d_softmax_aux"},
    };
    EJKI_TRY(ejki_paged_cuda_check(&m->core));
    return ejki_cuda_check_addresses(all, sizeof all / sizeof *all);
}

static ejk_status run(const ejk_run *run) {
    const mla_vjp_problem *v = run->problem;
    EJKI_TRY(check(v));
    const arrays a = arrays_of(v, run->workspace);
    const ejki_flash_vjp_problem g = gradients_of(v, &a);
    ejk_run forward = *run, backward = *run;
    forward.problem = &g.forward;
    forward.parameters = one_split;
    forward.prepared = run->prepared + FORWARD;
    forward.workspace = backward.workspace = a.rest;
    backward.problem = &g;
    EJKI_TRY(spread(run, &a));
    EJKI_TRY(ejki_flash_attention_f32_cuda_plain.run(&forward));
    EJKI_TRY(ejki_flash_attention_vjp_f32_cuda_plain.run(&backward));
    EJKI_TRY(gather(run, &a));
    EJKI_TRY(multiply_latents(run, &a));
    EJKI_TRY(multiply_weight(run, &v->d_w_kc, a.d_key, v->m.core.dim, depth_of(&v->m.core)));
    return multiply_weight(run, &v->d_w_vc, a.d_value, v->m.core.value_dim, v->m.core.value_dim);
}

EJKI_DECLARE(flash_mla_vjp_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run,
             .needs = "tokens, and heads of up to 576 components, the rope part among them")
