/* SPDX-License-Identifier: Apache-2.0 */
/* Prefilling over pages of bf16 by flash attention's kernel on AMX: paged_prefill_amx.c. */
#ifndef EJKI_PAGED_PREFILL_H
#define EJKI_PAGED_PREFILL_H

#include <ejkernel/tensor.h>

#include "operations/paged/shared/problem.cuh"

#include <stdbool.h>
#include <stdint.h>

/* Rows first_row to first_row + rows - 1 of T x G of a sequence and a KV head, and the keys that any of them sees. */
typedef struct ejki_paged_prefill {
    const paged_problem *p;
    paged_sequence s;
    paged_size entries, head, first_row, rows, low, high;
    paged_size most_rows, keys; /* of a task, and of a block: as for ejki_paged_prefill_bytes() */
    const char *zeros;          /* a row of a cache */
    char *memory;
} ejki_paged_prefill;

static inline bool ejki_paged_is_plain(const paged_cache *c) {
    return c->dtype == (int)EJK_DTYPE_BF16 && !c->scaled && c->factor == 1;
}

/* Whether a problem's sequences can go this way. */
static inline bool ejki_paged_prefills(const paged_problem *p) {
    const bool one = p->group > 0 && p->batch_rows == 0 && p->tail_dim == 0 && !p->firsts.data;
    const bool plain = ejki_paged_is_plain(&p->key) && ejki_paged_is_plain(&p->value);
    const bool sinks = p->sink_count == 0 || p->sink_dtype == (int)EJK_DTYPE_BF16;
    return p->dtype == (int)EJK_DTYPE_BF16 && one && plain && sinks && !p->has_alibi &&
           !p->has_bias && p->query_scale == 0 && !p->lse.data;
}

/* Memory of a worker. */
paged_size ejki_paged_prefill_bytes(const paged_problem *p, paged_size most_rows, paged_size keys);

void ejki_paged_attend(const ejki_paged_prefill *item);

#endif
