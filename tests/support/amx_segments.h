/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of 40 tokens each for a random problem, the first of them padding. */
#ifndef TESTS_AMX_SEGMENTS_H
#define TESTS_AMX_SEGMENTS_H

#include "operations/attention/flash/problem.h"
#include "support/guarded.h"

static ejki_ids amx_ids(struct guarded *memory, int64_t batch, int64_t tokens) {
    guarded_create(memory, (size_t)(batch * tokens) * 4, GUARDED_END, 0);
    for (int64_t i = 0; i < batch * tokens; i++)
        ((ejki_int32 *)(void *)memory->data)[i] = (int32_t)(i % tokens / 40) - 1;
    return (ejki_ids){memory->data, tokens};
}

static void amx_segments(ejki_flash_problem *p, struct guarded *ids, struct guarded *key_ids) {
    p->has_segments = true;
    p->query_segments = amx_ids(ids, p->batch, p->queries);
    p->key_segments = amx_ids(key_ids, p->batch, p->keys);
}

#endif
