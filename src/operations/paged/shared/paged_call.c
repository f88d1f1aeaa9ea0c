/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the paged family: what records cannot say is checked, and the problem written. */
#include "operations/paged/shared/paged_call.h"

#include "base/base.h"
#include "tensor/access.h"

#include <math.h>

/* ---- Tensors ---------------------------------------------------------------------------------------- */

static paged_rows rows_of(const ejk_tensor *t) {
    if (!t) return (paged_rows){.data = NULL};
    return (paged_rows){
        .token = t->strides[0], .head = t->strides[t->rank - 2], .dtype = (int)t->dtype};
}

/* From a head slot of a packed cache to the next, V of a head behind its K. */
static int64_t slot_stride(const ejk_tensor *t) {
    return ejki_step(t, t->shape[3] > 1 ? 3 : 2);
}

static paged_cache cache_of(const ejki_paged_call *c, const ejk_tensor *t) {
    if (!t) return (paged_cache){.factor = 1};
    const ejki_paged_axes a = c->axes;
    const int row = a.row + (c->latent_rows && t->shape[2] > 1); /* rows and pack are one axis */
    paged_cache cache = {.token = t->strides[row], .dtype = (int)t->dtype, .factor = 1};
    if (a.page >= 0) cache.page = t->strides[a.page];
    if (a.page < 0 && c->slots_a_page < t->shape[row]) cache.page = c->slots_a_page * cache.token;
    if (a.head >= 0) cache.head = t->strides[a.head];
    if (c->interleaved && !c->packed) cache.head = 2 * ejki_step(t, a.head);
    if (c->packed) cache.head = t->shape[3] == 2 ? t->strides[2] : 2 * slot_stride(t);
    return cache;
}

static ejk_status add_scale(const ejk_tensor *scale, ejk_opt_float factor, const char *name,
                            const paged_problem *p, paged_cache *cache) {
    if (factor.set && !isfinite(factor.value))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %g, expected a finite number", name,
                         factor.value);
    cache->factor = factor.set ? (float)factor.value : 1;
    if (!scale) return EJK_OK;
    cache->scaled = 1;
    if (scale->rank == 3) {
        cache->scaled_rows = 1;
        cache->scale_page = scale->strides[0];
        cache->scale_token = scale->strides[1];
        cache->scale_head = scale->strides[2];
        return EJK_OK;
    }
    if (scale->shape[0] != 1 && scale->shape[0] != p->kv_heads)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has %lld entries, expected 1 or %lld heads",
                         name, (long long)scale->shape[0], (long long)p->kv_heads);
    cache->scale_head = scale->shape[0] == 1 ? 0 : scale->strides[0];
    return EJK_OK;
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

static ejk_status check_numbers(const ejki_paged_call *c) {
    const struct {
        ejk_opt_float number;
        const char *name;
        bool positive;
    } all[] = {{c->scale, "softmax_scale", false},
               {c->cap, "logits_soft_cap", true},
               {c->q_scale, "q_scale", true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].number.set &&
            !(isfinite(all[i].number.value) && (!all[i].positive || all[i].number.value > 0)))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %g, expected a finite number%s",
                             all[i].name, all[i].number.value, all[i].positive ? " above 0" : "");
    if (c->prefix.set && c->prefix.value < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "common_prefix_len is %lld, expected 0 or more",
                         (long long)c->prefix.value);
    if (c->left.set && c->left.value < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "left of sliding_window is %lld, expected 0 or more, or unset",
                         (long long)c->left.value);
    return EJK_OK;
}

static ejk_status check_heads(const paged_problem *p) {
    if (p->kv_heads ? p->heads % p->kv_heads == 0 : p->heads == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "queries have %lld heads and the caches %lld, expected a multiple of theirs",
                     (long long)p->heads, (long long)p->kv_heads);
}

/* Products of sizes that loops and workspaces form. */
static ejk_status check_sizes(const paged_problem *p) {
    int64_t rows, cells;
    if (p->page < 1)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "pages have %lld rows, expected at least 1",
                         (long long)p->page);
    if (!ejki_mul(p->tokens, ejki_max(p->heads, 1), &rows) ||
        !ejki_mul(rows, ejki_max(p->dim + p->tail_dim + p->value_dim, 1) + 64, &rows) ||
        rows > INT64_C(1) << 56 || !ejki_mul(p->pages, p->page, &cells) ||
        !ejki_mul(ejki_max(p->width, 1), p->page, &cells) || cells > INT64_C(1) << 56)
        return ejki_fail(
            EJK_STATUS_OVERFLOW, "%lld tokens, or %lld pages of %lld rows, cannot be counted",
            (long long)p->tokens, (long long)ejki_max(p->pages, p->width), (long long)p->page);
    return EJK_OK;
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static int64_t length(const ejk_tensor *t, int axis) {
    return t->shape[axis < 0 ? axis + t->rank : axis];
}

static void resolve_sizes(const ejki_paged_call *c, paged_problem *p) {
    const ejk_tensor *cache = c->key_cache, *rows = c->query ? c->query : c->new_key;
    const ejki_paged_axes a = c->axes;
    p->tokens = rows->shape[0];
    p->dtype = (int)rows->dtype;
    p->kv_heads = a.head < 0 ? 1 : length(cache, a.head);
    if (c->packed) p->kv_heads = length(c->new_key, -2);
    if (c->interleaved && !c->packed) p->kv_heads /= 2;
    p->heads = c->query ? length(c->query, -2) : p->kv_heads;
    p->group = p->kv_heads ? p->heads / p->kv_heads : 1;
    p->dim = c->dim ? c->dim : length(cache, -1);
    p->tail_dim = c->query_tail ? length(c->query_tail, -1) : 0;
    p->value_dim = c->value_dim                        ? c->value_dim
                   : c->value_cache && !c->interleaved ? length(c->value_cache, -1)
                                                       : p->dim;
    p->page = a.page < 0 ? c->slots_a_page : c->latent_rows ? c->latent_rows : length(cache, a.row);
    p->slots = a.page < 0 ? length(cache, a.row) : length(cache, a.page) * p->page;
    p->pages =
        a.page < 0 ? (p->page > 0 ? ejki_cdiv(p->slots, p->page) : 0) : length(cache, a.page);
    p->sequences = c->sequences;
    p->tables = c->tables;
    if (c->tables == PAGED_OWN)
        p->page = paged_most(p->page, 1); /* slots says that it has no row */
    p->rows_each = c->rows_each;
    if (!c->table) {
        p->width = 1;
    } else if (c->table->rank == 2) {
        p->width = c->table->shape[1];
        p->table_step = c->table->strides[0];
    } else {
        p->width = c->table_width ? c->table_width : c->table->shape[0];
        p->table_step = p->width;
    }
}

static void resolve_sinks(const ejki_paged_call *c, paged_problem *p) {
    p->sink_group = 1;
    if (!c->sinks) return;
    p->sink_count = length(c->sinks, -1);
    p->sink_dtype = (int)c->sinks->dtype;
    if (c->sinks->rank == 1) return;
    p->sink_step = c->sinks->strides[0];
    p->sink_group = c->sinks->shape[0] > 0 ? p->heads / c->sinks->shape[0] : 1;
}

static void resolve_scores(const ejki_paged_call *c, paged_problem *p) {
    const double depth = (double)(p->dim + p->tail_dim);
    p->scale = c->scale_unset != 0 ? c->scale_unset : depth > 0 ? 1 / sqrt(depth) : 1;
    if (c->scale.set) p->scale = c->scale.value;
    if (c->cap.set) p->cap = c->cap.value;
    if (c->q_scale.set) p->query_scale = c->q_scale.value;
    p->causal = !c->full;
    p->left = -1;
    if (c->left.set) p->left = c->left.value;
    if (c->window.set && c->window.value > 0) p->left = c->window.value - 1;
    p->has_alibi = c->alibi != NULL;
    if (c->bias) {
        p->has_bias = 1;
        p->bias_step = c->bias->strides[0];
        p->bias_rows = c->bias->shape[0];
        p->bias_columns = c->bias->shape[1];
    }
    const bool plain = p->left < 0 && p->causal && !p->has_alibi && !p->has_bias;
    p->prefix = plain && c->prefix.set ? c->prefix.value : 0;
}

ejk_status ejki_paged_prepare(const ejki_paged_call *c, paged_problem *p) {
    *p = (paged_problem){.attends = c->query != NULL, .writes = c->new_key != NULL};
    EJKI_TRY(check_numbers(c));
    resolve_sizes(c, p);
    EJKI_TRY(check_heads(p));
    EJKI_TRY(check_sizes(p));
    resolve_sinks(c, p);
    resolve_scores(c, p);
    p->query = rows_of(c->query);
    p->query_tail = rows_of(c->query_tail);
    p->out = rows_of(c->out);
    p->new_key = rows_of(c->new_key);
    p->new_tail = rows_of(c->new_tail);
    p->new_value = rows_of(c->new_value);
    p->has_new_value = c->new_value != NULL;
    if (c->lse)
        p->lse = (paged_rows){.token = c->lse->strides[c->lse_by_token ? 0 : 1],
                              .head = c->lse->strides[c->lse_by_token ? 1 : 0]};
    p->key = cache_of(c, c->key_cache);
    p->value = cache_of(c, c->value_cache ? c->value_cache : c->key_cache);
    p->key_tail = cache_of(c, c->tail_cache ? c->tail_cache : c->key_cache);
    EJKI_TRY(add_scale(c->k_scale, c->k_factor, "k_scale", p, &p->key));
    EJKI_TRY(add_scale(c->k_scale, c->k_factor, "k_scale", p, &p->key_tail));
    EJKI_TRY(add_scale(c->v_scale, c->v_factor, "v_scale", p, &p->value));
    p->count_at = c->count_at;
    return EJK_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------ */

static bool wants_writing(const void *problem) {
    return ((const paged_problem *)problem)->writes;
}

const ejk_step ejki_paged_steps[2] = {
    {"update_kv_cache", "new keys and values to the cache", wants_writing},
    {"unified_attention", "out and lse", NULL},
};

/* ---- Pointers --------------------------------------------------------------------------------------- */

static paged_ints ints_of(const ejk_tensor *t) {
    return t ? (paged_ints){t->data, t->dtype == EJK_DTYPE_I64} : (paged_ints){NULL, 0};
}

static void *data_of(const ejk_tensor *t) {
    return t ? t->data : NULL;
}

/* Element `columns` further on; by numbers, as a tensor without elements may have no memory. */
static void *beyond(const ejk_tensor *t, int64_t columns) {
    const int64_t bytes = columns * (int64_t)ejk_dtype_size(t->dtype);
    return t->data ? (void *)((uintptr_t)t->data + (uintptr_t)bytes) : NULL;
}

void ejki_paged_bind(const ejki_paged_call *c, paged_problem *p) {
    p->query.data = data_of(c->query);
    p->query_tail.data = data_of(c->query_tail);
    p->out.data = data_of(c->out);
    p->lse.data = data_of(c->lse);
    p->status = data_of(c->status);
    p->new_key.data = data_of(c->new_key);
    p->new_value.data = data_of(c->new_value);
    p->new_tail.data = data_of(c->new_tail);
    p->key.data = data_of(c->key_cache);
    p->value.data = data_of(c->value_cache ? c->value_cache : c->key_cache);
    if (c->interleaved)
        p->value.data =
            beyond(c->key_cache, c->packed ? slot_stride(c->key_cache) : p->key.head / 2);
    p->key_tail.data = c->tail_cache ? c->tail_cache->data : beyond(c->key_cache, c->tail_at);
    p->key.scale = data_of(c->k_scale);
    p->key_tail.scale = data_of(c->k_scale);
    p->value.scale = data_of(c->v_scale);
    p->table = ints_of(c->table);
    p->lists = ints_of(c->lists);
    p->starts = ints_of(c->starts);
    p->lens = ints_of(c->lens);
    p->firsts = ints_of(c->firsts);
    p->count = ints_of(c->count);
    p->slot_mapping = ints_of(c->slot_mapping);
    p->alibi = data_of(c->alibi);
    p->bias = data_of(c->bias);
    p->sinks = data_of(c->sinks);
}
