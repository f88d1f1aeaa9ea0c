/* SPDX-License-Identifier: Apache-2.0 */
/* The paged family. */
#include "conformance/cases.h"
#include "conformance/paged.h"

/* ---- unified_attention ------------------------------------------------------------------------------- */

static bool generate_unified(struct call *c) {
    const struct paged_options options = {.lists = true,
                                          .alibi = true,
                                          .bias = true,
                                          .sinks = true,
                                          .sink_heads = true,
                                          .scales = true,
                                          .window = true,
                                          .cap = true,
                                          .prefix = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_unified_attention_args *)c->args = (ejk_unified_attention_args){
        .query = p->query,
        .key_cache = p->key_cache,
        .value_cache = p->value_cache,
        .kv_lens = p->lens,
        .block_tables = p->tables,
        .query_start_loc = p->starts,
        .kv_indptr = p->indptr,
        .kv_indices = p->indices,
        .alibi_slopes = p->alibi,
        .qq_bias = p->bias,
        .softmax_aux = p->sinks,
        .k_scale = p->k_scale,
        .v_scale = p->v_scale,
        .softmax_scale = p->scale,
        .sliding_window = p->window,
        .logits_soft_cap = p->cap,
        .common_prefix_len = p->prefix,
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}

/* What a sequence has in common with others is added in another order alone. */
static bool slice_unified(const struct call *c, struct random *r, struct slice *s) {
    ejk_unified_attention_args *a = s->args;
    if (a->common_prefix_len.set) return false;
    return paged_slice(c, r, s, "T", &a->kv_lens, &a->block_tables, &a->query_start_loc,
                       &a->kv_indptr, &a->kv_indices);
}

const struct operation unified_attention_case = {.op = "unified_attention",
                                                 .cases = 40,
                                                 .generate = generate_unified,
                                                 .finish = paged_finish,
                                                 .exact = paged_exact,
                                                 .naive = paged_naive,
                                                 .slice = slice_unified,
                                                 .never = "/latent"};

/* ---- Other names of it ------------------------------------------------------------------------------- */

#define PAGED_CASE(name, count, none)                                                              \
    const struct operation name##_case = {.op = #name,                                             \
                                          .cases = count,                                          \
                                          .generate = generate_##name,                             \
                                          .finish = paged_finish,                                  \
                                          .exact = paged_exact,                                    \
                                          .naive = paged_naive,                                    \
                                          .slice = slice_##name,                                   \
                                          .never = none};

static bool generate_page_attention(struct call *c) {
    const struct paged_options options = {.form = FORM_HND,
                                          .one_row = 1,
                                          .scales = true,
                                          .window = true,
                                          .cap = true,
                                          .own_lse = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_page_attention_args *)c->args = (ejk_page_attention_args){
        .query = p->query,
        .key_cache = p->key_cache,
        .value_cache = p->value_cache,
        .context_lens = p->lens,
        .block_tables = p->tables,
        .k_scale = p->k_scale,
        .v_scale = p->v_scale,
        .attn_scale = p->scale,
        .sliding_window = p->window,
        .attn_logits_soft_cap = p->cap,
        .num_splits = ejk_int(4),
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}
static bool slice_page_attention(const struct call *c, struct random *r, struct slice *s) {
    ejk_page_attention_args *a = s->args;
    return paged_slice(c, r, s, "N", &a->context_lens, &a->block_tables, NULL, NULL, NULL);
}
PAGED_CASE(page_attention, 10, "/latent")

static bool generate_decode_attention(struct call *c) {
    const struct paged_options options = {
        .form = FORM_SLOTS, .one_row = 1, .scales = true, .cap = true, .own_lse = true};
    struct paged *p = paged_create(c, options);
    *(ejk_decode_attention_args *)c->args = (ejk_decode_attention_args){
        .query = p->query,
        .key_buffer = p->key_cache,
        .value_buffer = p->value_cache,
        .seq_lens = p->lens,
        .req_to_tokens = p->tables,
        .k_scale = p->k_scale,
        .v_scale = p->v_scale,
        .softmax_scale = p->scale,
        .logits_soft_cap = p->cap,
        .out = p->out,
        .lse = p->lse,
    };
    if (p->page > 1) ((ejk_decode_attention_args *)c->args)->page_size = ejk_int(p->page);
    return true;
}
static bool slice_decode_attention(const struct call *c, struct random *r, struct slice *s) {
    ejk_decode_attention_args *a = s->args;
    return paged_slice(c, r, s, "B", &a->seq_lens, &a->req_to_tokens, NULL, NULL, NULL);
}
PAGED_CASE(decode_attention, 10, "/latent")

static bool generate_prefill_page_attention(struct call *c) {
    const struct paged_options options = {
        .form = FORM_HEADS, .one_sequence = true, .window = true, .cap = true};
    struct paged *p = paged_create(c, options);
    const ejk_tensor table = ejk_tensor_contiguous(p->tables.data, p->tables.dtype, 1, &p->width);
    *(ejk_prefill_page_attention_args *)c->args = (ejk_prefill_page_attention_args){
        .query = p->query,
        .key_cache = p->key_cache,
        .value_cache = p->value_cache,
        .context_len = p->lens,
        .page_indices = table,
        .softmax_scale = p->scale,
        .sliding_window = p->window,
        .logits_soft_cap = p->cap,
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}
static bool slice_prefill_page_attention(const struct call *c, struct random *r, struct slice *s) {
    const struct paged *p = c->own;
    const int64_t head = random_int(r, 0, p->kv_heads - 1);
    s->range[s->count].symbol = "Hkv";
    s->range[s->count].first = head;
    s->range[s->count++].end = head + 1;
    s->range[s->count].symbol = "Hq";
    s->range[s->count].first = head * p->group;
    s->range[s->count++].end = (head + 1) * p->group;
    return p->tokens > 0;
}
PAGED_CASE(prefill_page_attention, 10, "/latent")

static bool generate_ragged_page_attention(struct call *c) {
    const struct paged_options options = {.form = FORM_INTERLEAVED,
                                          .narrow = true,
                                          .few = true,
                                          .sinks = true,
                                          .sink_heads = true,
                                          .window = true,
                                          .cap = true};
    struct paged *p = paged_create(c, options);
    p->count = CALL_TENSOR(c, EJK_DTYPE_I32, 1);
    *(int32_t *)p->count.data = (int32_t)p->counted;
    *(ejk_ragged_page_attention_args *)c->args = (ejk_ragged_page_attention_args){
        .queries = p->query,
        .kv_pages = p->key_cache,
        .context_lens = p->lens,
        .block_tables = p->tables,
        .query_start_loc = p->starts,
        .num_seqs = p->count,
        .softmax_aux = p->sinks,
        .softmax_scale = p->scale,
        .sliding_window = p->window,
        .logits_soft_cap = p->cap,
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}
static bool slice_ragged_page_attention(const struct call *c, struct random *r, struct slice *s) {
    ejk_ragged_page_attention_args *a = s->args;
    ejk_tensor number = CALL_TENSOR((struct call *)(uintptr_t)c, EJK_DTYPE_I32, 1);
    if (!paged_slice(c, r, s, "T", &a->context_lens, &a->block_tables, &a->query_start_loc, NULL,
                     NULL))
        return false;
    *(int32_t *)number.data = (int32_t)a->context_lens.shape[0];
    a->num_seqs = number;
    return true;
}
PAGED_CASE(ragged_page_attention, 10, "/latent")

/* ---- What writes first ------------------------------------------------------------------------------- */

static ejk_tensor flat(const struct paged *p) {
    const int64_t count = p->sequences * p->width;
    return ejk_tensor_contiguous(p->tables.data, p->tables.dtype, 1, &count);
}

static ejk_tensor distribution(struct call *c, const struct paged *p) {
    ejk_tensor t = CALL_TENSOR(c, EJK_DTYPE_I32, 3);
    ((int32_t *)t.data)[2] = (int32_t)p->counted;
    return t;
}

static bool generate_ragged_page_attention_v3(struct call *c) {
    const struct paged_options options = {.form = FORM_PACKED,
                                          .narrow = true,
                                          .few = true,
                                          .writes = true,
                                          .factors = true,
                                          .key_name = "kv_cache",
                                          .window = true,
                                          .cap = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_ragged_page_attention_v3_args *)c->args = (ejk_ragged_page_attention_v3_args){
        .queries = p->query,
        .keys = p->new_key,
        .values = p->new_value,
        .kv_cache = p->key_cache,
        .kv_lens = p->lens,
        .block_tables = flat(p),
        .query_start_loc = p->starts,
        .distribution = distribution(c, p),
        .softmax_scale = p->scale,
        .sliding_window = p->window,
        .logits_soft_cap = p->cap,
        .q_scale = p->q_scale,
        .k_scale = p->k_factor,
        .v_scale = p->v_factor,
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}
#define slice_ragged_page_attention_v3 NULL
PAGED_CASE(ragged_page_attention_v3, 5, "/latent")

static bool generate_multi_latent_ragged_page_attention(struct call *c) {
    const struct paged_options options = {.form = FORM_LATENT,
                                          .few = true,
                                          .writes = true,
                                          .factors = true,
                                          .key_name = "kv_cache",
                                          .window = true,
                                          .cap = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_multi_latent_ragged_page_attention_args *)c->args =
        (ejk_multi_latent_ragged_page_attention_args){
            .queries_nope = p->query,
            .queries_pe = p->query_tail,
            .keys_values = p->new_key,
            .keys_pe = p->new_tail,
            .kv_cache = p->key_cache,
            .kv_lens = p->lens,
            .block_tables = flat(p),
            .query_start_loc = p->starts,
            .distribution = distribution(c, p),
            .softmax_scale = p->scale,
            .sliding_window = p->window,
            .logits_soft_cap = p->cap,
            .q_scale = p->q_scale,
            .k_scale = p->k_factor,
            .out = p->out,
            .lse = p->lse,
        };
    return true;
}
#define slice_multi_latent_ragged_page_attention NULL
PAGED_CASE(multi_latent_ragged_page_attention, 10, "/mma")

static bool generate_chunked_prefill_paged_decode(struct call *c) {
    const struct paged_options options = {.alibi = true,
                                          .sinks = true,
                                          .sink_heads = true,
                                          .scales = true,
                                          .writes = true,
                                          .key_name = "key_cache",
                                          .value_name = "value_cache",
                                          .window = true,
                                          .cap = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_chunked_prefill_paged_decode_args *)c->args = (ejk_chunked_prefill_paged_decode_args){
        .queries = p->query,
        .keys = p->new_key,
        .values = p->new_value,
        .key_cache = p->key_cache,
        .value_cache = p->value_cache,
        .kv_lens = p->lens,
        .block_tables = p->tables,
        .query_start_loc = p->starts,
        .alibi_slopes = p->alibi,
        .softmax_aux = p->sinks,
        .k_scale = p->k_scale,
        .v_scale = p->v_scale,
        .softmax_scale = p->scale,
        .sliding_window = p->window,
        .logits_soft_cap = p->cap,
        .out = p->out,
        .lse = p->lse,
    };
    return true;
}
#define slice_chunked_prefill_paged_decode NULL
PAGED_CASE(chunked_prefill_paged_decode, 10, "/latent")
