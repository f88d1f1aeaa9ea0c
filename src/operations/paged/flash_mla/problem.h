/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla as its kernels see it: the core's problem, whose keys and values are yet to be made of latents. */
#ifndef EJKI_FLASH_MLA_PROBLEM_H
#define EJKI_FLASH_MLA_PROBLEM_H

#include "operations/paged/shared/problem.cuh"

/* [R, Hkv, D]. */
typedef struct mla_weight {
    const void *data;
    paged_size latent, head;
} mla_weight;

typedef struct mla_problem {
    paged_problem core; /* key and value have no data */
    paged_size latent;
    paged_rows key_value; /* [B,T,R]: no heads */
    mla_weight w_kc, w_vc;
} mla_problem;

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
