/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla as its kernels see it: the core's problem, whose keys and values are yet to be made of latents. */
#ifndef EJKI_FLASH_MLA_PROBLEM_H
#define EJKI_FLASH_MLA_PROBLEM_H

#include "operations/paged/shared/problem.cuh"

/* [R, Hkv, D]. */
typedef struct mla_weight {
    void *data;
    paged_size latent, head;
} mla_weight;

typedef struct mla_problem {
    paged_problem core; /* key and value have no data */
    paged_size latent;
    paged_rows key_value; /* [B,T,R]: no heads */
    mla_weight w_kc, w_vc;
} mla_problem;

/* Where gradients go; those without data are not wanted. */
typedef struct mla_vjp_problem {
    mla_problem m;
    paged_rows d_out, d_lse;
    paged_rows d_query, d_query_tail, d_key_value, d_key_tail;
    mla_weight d_w_kc, d_w_vc;
    void *d_sinks;
    paged_size d_sink_step, sink_rows; /* rows that sinks have: 1 or heads of either kind */
    int shared_tail;                   /* rope parts of the queries are of all heads */
} mla_vjp_problem;

/* Tokens of sequences: those from here on are of none. */
static inline paged_size mla_end(const paged_problem *p) {
    if (p->sequences == 0) return 0;
    const paged_sequence s = paged_sequence_of(p, p->sequences - 1);
    return s.begin + s.rows;
}

/* The core's caches, once keys and values are there: rows of all tokens, a head's row behind the other's. */
static inline void mla_put_caches(mla_problem *m, int dtype, void *keys, paged_size key_step,
                                  void *values, paged_size value_step) {
    paged_problem *p = &m->core;
    p->key = (paged_cache){.data = keys,
                           .page = p->page * key_step,
                           .token = key_step,
                           .head = p->dim,
                           .dtype = dtype,
                           .factor = 1};
    p->value = (paged_cache){.data = values,
                             .page = p->page * value_step,
                             .token = value_step,
                             .head = p->value_dim,
                             .dtype = dtype,
                             .factor = 1};
}

#endif
