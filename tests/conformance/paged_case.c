/* SPDX-License-Identifier: Apache-2.0 */
/* The paged family. */
#include "conformance/cases.h"
#include "conformance/paged.h"

/* ---- unified_attention ------------------------------------------------------------------------------- */

static bool generate_unified(struct call *c) {
    const struct paged_options options = {.lists = true, .alibi = true, .bias = true,
                                          .sinks = true, .sink_heads = true, .scales = true,
                                          .window = true, .cap = true};
    const struct paged *p = paged_create(c, options);
    *(ejk_unified_attention_args *)c->args = (ejk_unified_attention_args){
        .query = p->query, .key_cache = p->key_cache, .value_cache = p->value_cache,
        .kv_lens = p->lens, .block_tables = p->tables, .query_start_loc = p->starts,
        .kv_indptr = p->indptr, .kv_indices = p->indices, .alibi_slopes = p->alibi,
        .qq_bias = p->bias, .softmax_aux = p->sinks, .k_scale = p->k_scale,
        .v_scale = p->v_scale, .softmax_scale = p->scale, .sliding_window = p->window,
        .logits_soft_cap = p->cap, .out = p->out, .lse = p->lse,
    };
    return true;
}

static bool slice_unified(const struct call *c, struct random *r, struct slice *s) {
    ejk_unified_attention_args *a = s->args;
    return paged_slice(c, r, s, "T", &a->kv_lens, &a->block_tables, &a->query_start_loc,
                       &a->kv_indptr, &a->kv_indices);
}

const struct operation unified_attention_case = {.op = "unified_attention",
                                                 .cases = 60,
                                                 .generate = generate_unified,
                                                 .finish = paged_finish,
                                                 .exact = paged_exact,
                                                 .naive = paged_naive,
                                                 .slice = slice_unified};
