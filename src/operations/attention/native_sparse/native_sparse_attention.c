/* SPDX-License-Identifier: Apache-2.0 */
/* native_sparse_attention and its gradients: records, problems and descriptions. */
#include <ejkernel/native_sparse_attention.h>

#include "operations/attention/native_sparse/problem.cuh"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "tensor/access.h"
#include "tensor/view.h"

#define SYMBOLS "B=1,T,N=B,Hq,Hkv=Hq,D,Dv=D,S=16,K=16"

#define EJK_RECORD_SELF ejk_native_sparse_attention_config
EJK_RECORD_DEFINE(ejk_native_sparse_attention_config_record, ejk_native_sparse_attention_config,
                  EJK_NATIVE_SPARSE_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_native_sparse_attention_args
EJK_RECORD_DEFINE_WITH(ejk_native_sparse_attention_args_record, ejk_native_sparse_attention_args,
                       EJK_NATIVE_SPARSE_ATTENTION_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_native_sparse_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_native_sparse_attention_vjp_args_record,
                       ejk_native_sparse_attention_vjp_args, EJK_NATIVE_SPARSE_ATTENTION_VJP_ARGS,
                       SYMBOLS, NULL);
#undef EJK_RECORD_SELF

enum { BLOCK_SIZE = 64, BLOCK_COUNTS = 16 };

/* What both operations are called with; out is the cotangent in gradients. */
typedef struct call {
    const ejk_tensor *query, *key, *value, *gate[NSA_BRANCHES], *indices, *ends, *counts;
    const ejk_tensor *out, *selected;
    const ejk_opt_int *most, *block, *window;
    const ejk_opt_float *scale;
} call;

#define CALL_OF(a, result)                                                                         \
    (call) {                                                                                       \
        &(a)->query, &(a)->key, &(a)->value, {&(a)->g_cmp, &(a)->g_slc, &(a)->g_swa},              \
            &(a)->block_indices, &(a)->cu_seqlens, &(a)->token_block_counts, &(a)->result,         \
            &(a)->selected, &(a)->block_counts, &(a)->block_size, &(a)->window_size,               \
            &(a)->softmax_scale                                                                    \
    }

/* ---- Checks ----------------------------------------------------------------------------------------- */

static ejk_status check_least(const ejk_opt_int *given, const char *name, int64_t least) {
    if (!given->set || (given->value >= least && given->value <= INT32_MAX)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %lld, expected %lld to %d", name,
                     (long long)given->value, (long long)least, INT32_MAX);
}

static ejk_status check(const call *c) {
    const int64_t heads = c->query->shape[2], shared = c->key->shape[2];
    if (shared > 0 ? heads % shared != 0 : heads != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "query has %lld heads and key %lld, expected a multiple of key's",
                         (long long)heads, (long long)shared);
    EJKI_TRY(ejki_expect_one_row(c->ends, c->query->shape[0]));
    EJKI_TRY(check_least(c->block, "block_size", 1));
    EJKI_TRY(check_least(c->window, "window_size", 1));
    EJKI_TRY(check_least(c->most, "block_counts", 0));
    if (c->scale->set && !isfinite(c->scale->value))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "softmax_scale is %g, expected a finite number", c->scale->value);
    if (!ejk_tensor_present(c->gate[NSA_COMPRESSED]) && !ejk_tensor_present(c->indices))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "block_indices are missing, and g_cmp, with which blocks are chosen");
    if (ejk_tensor_present(c->gate[NSA_WINDOW]) && !c->window->set)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "g_swa is given without window_size");
    if (c->query->shape[1] > INT32_MAX)
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld tokens cannot be counted in blocks",
                         (long long)c->query->shape[1]);
    EJKI_TRY(ejki_tensor_expect_countable(c->query, "query", 512));
    EJKI_TRY(ejki_tensor_expect_countable(c->key, "key", 512));
    return ejki_tensor_expect_countable(c->value, "value", 512);
}

/* Slots of a token's list. */
static int64_t slots_of(const call *c, int64_t block) {
    const int64_t most = c->most->set ? c->most->value : BLOCK_COUNTS;
    if (!ejk_tensor_present(c->gate[NSA_COMPRESSED])) return ejki_min(most, c->indices->shape[3]);
    return ejki_min(most, ejki_cdiv(c->query->shape[1], block));
}

static int64_t block_of(const call *c) {
    return c->block->set ? c->block->value : BLOCK_SIZE;
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static nsa_view view_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (nsa_view){0};
    return (nsa_view){t->data,         ejki_step(t, 0), ejki_step(t, 1),
                      ejki_step(t, 2), (int)t->dtype,   t->dtype == EJK_DTYPE_I64};
}

static void bind_inputs(const call *c, nsa_problem *p) {
    p->query = view_of(c->query);
    p->key = view_of(c->key);
    p->value = view_of(c->value);
    p->out = view_of(c->out);
    p->selected = view_of(c->selected);
    for (int i = 0; i < NSA_BRANCHES; i++) p->gate[i] = view_of(c->gate[i]);
    p->indices = view_of(c->indices);
    if (p->gate[NSA_COMPRESSED].dtype) p->indices = (nsa_view){0};
    p->counts = view_of(c->counts);
    p->blocks.ends = p->blocks.packed ? c->ends->data : NULL;
}

static ejk_status resolve(const call *c, bool gradient, nsa_problem *p) {
    EJKI_TRY(check(c));
    const ejk_tensor *q = c->query;
    const bool packed = ejk_tensor_present(c->ends);
    /* One that is longer than all tokens is never complete, as one of a token more. */
    const int64_t block = ejki_min(block_of(c), q->shape[1] + 1);
    const int64_t batch = q->shape[0], dim = q->shape[3];
    const int64_t sequences = packed ? c->ends->shape[0] - 1 : batch;
    *p = (nsa_problem){
        .batch = batch,
        .tokens = q->shape[1],
        .heads = q->shape[2],
        .kv_heads = c->key->shape[2],
        .group = c->key->shape[2] > 0 ? q->shape[2] / c->key->shape[2] : 0,
        .dim = dim,
        .width = c->value->shape[3],
        .slots = slots_of(c, block),
        .most = c->most->set ? c->most->value : BLOCK_COUNTS,
        .window = c->window->set ? c->window->value : 0,
        .rows = sequences > 0 ? ejki_cdiv(q->shape[1], block) + (packed ? sequences - 1 : 0) : 0,
        .blocks = {.tokens = q->shape[1],
                   .sequences = sequences,
                   .chunk = block,
                   .packed = packed,
                   .wide = packed && c->ends->dtype == EJK_DTYPE_I64},
        .scale = c->scale->set ? c->scale->value
                 : dim > 0     ? 1 / sqrt((double)dim)
                               : 1,
        .dtype = (int)q->dtype,
        .gradient = gradient,
    };
    if (ejk_tensor_present(c->selected) && c->selected->shape[3] != p->slots)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "selected has %lld slots, expected %lld",
                         (long long)c->selected->shape[3], p->slots);
    bind_inputs(c, p);
    return EJK_OK;
}

static void bind(const void *args, void *problem) {
    const ejk_native_sparse_attention_args *a = args;
    const call c = CALL_OF(a, out);
    bind_inputs(&c, problem);
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_native_sparse_attention_args *a = args;
    const call c = CALL_OF(a, out);
    (void)axes;
    return resolve(&c, false, problem);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_native_sparse_attention_vjp_args *a = args;
    const call c = CALL_OF(a, d_out);
    nsa_problem *p = problem;
    bind_inputs(&c, p);
    p->d_query = view_of(&a->d_query);
    p->d_key = view_of(&a->d_key);
    p->d_value = view_of(&a->d_value);
    p->d_gate[NSA_COMPRESSED] = view_of(&a->d_g_cmp);
    p->d_gate[NSA_SELECTED] = view_of(&a->d_g_slc);
    p->d_gate[NSA_WINDOW] = view_of(&a->d_g_swa);
}

static ejk_status check_gradient(const ejk_tensor *gradient, const ejk_tensor *of,
                                 const char *name) {
    if (!ejk_tensor_present(gradient) || ejk_tensor_present(of)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_%s is given without %s", name, name);
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_native_sparse_attention_vjp_args *a = args;
    const call c = CALL_OF(a, d_out);
    (void)axes;
    EJKI_TRY(resolve(&c, true, problem));
    EJKI_TRY(check_gradient(&a->d_g_cmp, &a->g_cmp, "g_cmp"));
    EJKI_TRY(check_gradient(&a->d_g_slc, &a->g_slc, "g_slc"));
    EJKI_TRY(check_gradient(&a->d_g_swa, &a->g_swa, "g_swa"));
    bind_vjp(args, problem);
    return EJK_OK;
}

/* ---- Contents --------------------------------------------------------------------------------------- */

static ejk_status check_blocks(const nsa_problem *p, const nsa_view *v, const char *name,
                               const nsa_size at[3], nsa_size count) {
    const nsa_size blocks = ejki_cdiv(p->tokens, p->blocks.chunk);
    for (nsa_size i = 0; i < count; i++) {
        const nsa_size c = ejki_number(v->data, v->wide, nsa_at(v, at[0], at[1], at[2]) + i);
        if (c >= -1 && c < blocks) continue;
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s is %lld for token %lld of entry %lld, expected -1 to %lld", name, c,
                         at[1], at[0], blocks - 1);
    }
    return EJK_OK;
}

static ejk_status check_count(const nsa_problem *p, const nsa_size at[3]) {
    const nsa_view *v = &p->counts;
    const nsa_size own = ejki_number(v->data, v->wide, nsa_at(v, at[0], at[1], at[2]));
    if (own >= 0 && own <= p->most) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "token_block_counts is %lld for token %lld of entry %lld, expected 0 to %lld",
                     own, at[1], at[0], p->most);
}

/* Numbers of blocks may be as large as block_counts says, though there be fewer blocks. */
static ejk_status validate(const void *problem) {
    const nsa_problem *p = problem;
    const bool given = p->gradient && p->selected.dtype;
    nsa_size at[3];
    if (!p->counts.dtype && !p->indices.dtype && !given) return EJK_OK;
    for (at[0] = 0; at[0] < p->batch; at[0]++)
        for (at[1] = 0; at[1] < p->tokens; at[1]++)
            for (at[2] = 0; at[2] < p->kv_heads; at[2]++) {
                if (p->counts.dtype) EJKI_TRY(check_count(p, at));
                if (given)
                    EJKI_TRY(check_blocks(p, &p->selected, "selected", at, p->slots));
                else if (p->indices.dtype)
                    EJKI_TRY(check_blocks(p, &p->indices, "block_indices", at, p->slots));
            }
    return EJK_OK;
}

/* Blocks up to a token's own, that one first. */
static void fill_blocks(const ejk_tensor *t, int64_t block, uint64_t state) {
    if (!ejk_tensor_present(t) || !t->data) return;
    const nsa_view v = view_of(t);
    const int64_t rows = t->shape[0] * t->shape[1] * t->shape[2];
    for (int64_t n = 0; n < rows * t->shape[3]; n++) {
        const int64_t row = n / t->shape[3], i = n % t->shape[3], head = row % t->shape[2];
        const int64_t token = row / t->shape[2] % t->shape[1], own = token / block;
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t other = (int64_t)((state >> 33) % (uint64_t)(own + 1));
        ejki_store_i64(t->dtype, t->data,
                       nsa_at(&v, row / t->shape[2] / t->shape[1], token, head) + i,
                       i == 0 ? own : other);
    }
}

static void fill_integers(const call *c, const ejk_inputs *how) {
    const int64_t tokens = c->query->shape[1];
    fill_blocks(c->indices, block_of(c), how->seed);
    if (ejk_tensor_present(c->ends) && c->ends->data)
        for (int64_t n = 0; n < c->ends->shape[0]; n++)
            ejki_store_i64(c->ends->dtype, c->ends->data, n * c->ends->strides[0],
                           tokens * n / ejki_max(c->ends->shape[0] - 1, 1));
    if (!ejk_tensor_present(c->counts) || !c->counts->data) return;
    const ejk_tensor *t = c->counts;
    const nsa_view v = view_of(t);
    for (int64_t n = 0; n < t->shape[0] * t->shape[1] * t->shape[2]; n++)
        ejki_store_i64(t->dtype, t->data,
                       nsa_at(&v, n / t->shape[2] / t->shape[1], n / t->shape[2] % t->shape[1],
                              n % t->shape[2]),
                       c->most->set ? c->most->value : BLOCK_COUNTS);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_native_sparse_attention_args *a = args;
    const call c = CALL_OF(a, out);
    (void)axes;
    fill_integers(&c, how);
    return EJK_OK;
}

static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_native_sparse_attention_vjp_args *a = args;
    const call c = CALL_OF(a, d_out);
    (void)axes;
    fill_integers(&c, how);
    fill_blocks(c.selected, block_of(&c), how->seed);
    return EJK_OK;
}

/* ---- Costs ------------------------------------------------------------------------------------------ */

/* Keys that tokens of a sequence of that length see, added up: `each` of those up to the token. */
static double keys_seen(double length, double most) {
    const double full = most < length ? length - most : 0, rising = length - full;
    return rising * (rising + 1) / 2 + full * most;
}

/* Two products a key forward, seven with gradients, of which two are those of the forward pass once more. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    const nsa_problem *p = problem;
    const double size = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const double dim = (double)p->dim, width = (double)p->width, block = (double)p->blocks.chunk;
    const nsa_size lines = nsa_lines(p);
    double keys = 0, tokens = 0;
    for (nsa_size n = 0; n < lines; n++) {
        const double even = (double)p->tokens / (double)ejki_max(lines, 1);
        const nsa_line line = args ? nsa_line_of(p, n) : (nsa_line){0};
        const double length = args ? (double)(line.end - line.begin) : even;
        tokens += length;
        keys += keys_seen(length, (double)p->slots * block);
        if (nsa_has(p, NSA_COMPRESSED)) keys += length * length / 2 / block;
        if (nsa_has(p, NSA_WINDOW)) keys += keys_seen(length, (double)p->window);
    }
    const double batch = (double)p->batch, heads = (double)p->heads, shared = (double)p->kv_heads;
    out->flops = 2 * batch * heads * keys * (p->gradient ? 3 * dim + 2 * width : dim + width);
    out->bytes = size * batch * tokens * (dim + width) * (heads + shared) * (p->gradient ? 2 : 1);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

/* The list of blocks has int32 and as many slots as the problem. */
static bool result(const void *args, const char *name, ejk_tensor *view) {
    const ejk_native_sparse_attention_args *a = args;
    const call c = CALL_OF(a, out);
    if (strcmp(name, "selected") != 0 || a->query.rank != 4 || a->key.rank != 4) return false;
    if (block_of(&c) < 1 || (!ejk_tensor_present(&a->g_cmp) && a->block_indices.rank != 4))
        return false;
    view->dtype = EJK_DTYPE_I32;
    view->rank = 4;
    memcpy(view->shape, a->query.shape, 2 * sizeof *view->shape);
    view->shape[2] = a->key.shape[2];
    view->shape[3] = ejki_max(0, slots_of(&c, block_of(&c)));
    return true;
}

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_native_sparse_attention_config_record, .config_field = "cfg",   \
    .problem_size = sizeof(nsa_problem), .cost = cost, .validate = validate
const ejk_kernel ejk_native_sparse_attention_kernel = {
    SHARED,
    .op_id = "native_sparse_attention",
    .doc = "attention to means of blocks, to the best blocks and to a window",
    .args = &ejk_native_sparse_attention_args_record,
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .result = result,
};
const ejk_kernel ejk_native_sparse_attention_vjp_kernel = {
    SHARED,
    .op_id = "native_sparse_attention_vjp",
    .doc = "gradients of native_sparse_attention",
    .args = &ejk_native_sparse_attention_vjp_args_record,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .forward = &ejk_native_sparse_attention_kernel,
    .algorithm = "native_sparse_attention",
};

EJKI_DEFINE_CALL(native_sparse_attention)
EJKI_DEFINE_CALL(native_sparse_attention_vjp)
