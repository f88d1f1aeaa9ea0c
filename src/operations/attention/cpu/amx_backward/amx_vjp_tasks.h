/* SPDX-License-Identifier: Apache-2.0 */
/* How packed sequences are cut for the gradients of flash attention on AMX: by lengths and configuration alone. */
#ifndef EJKI_AMX_VJP_TASKS_H
#define EJKI_AMX_VJP_TASKS_H

#include "base/base.h"
#include "operations/attention/shared/sequences.h"
#include "operations/attention/cpu/backward/vjp_tasks.h"

#define AMX_VJP_PANEL 64 /* keys whose gradients are summed together: four tiles */

/* Queries of a row block of a packed sequence: an eighth of its own, at least 64, so that workers follow closely. */
static inline int64_t amx_vjp_row_block_size(int64_t queries, int64_t rows) {
    return ejki_min(rows, ejki_round_up(ejki_max(64, ejki_cdiv(queries, 8)), 32));
}

/*
 * Fills the list of tasks of packed sequences, with row blocks of up to `rows` queries of one head. Unless `alike`,
 * blocks of keys follow from the length of their sequence: neighbours change no bit of it.
 */
static inline void amx_vjp_cut(ejki_vjp_tasks *tasks, const ejki_flash_problem *p, int64_t rows,
                               int64_t keys, bool alike) {
    const ejki_vjp_blocks blocks = {.rows = rows, .keys = keys, .columns = AMX_VJP_PANEL};
    int64_t row_block = 0;
    ejki_vjp_cut(tasks, p, &blocks, alike);
    for (int64_t n = 0; n < p->batch; n++) {
        ejki_vjp_sequence *s = &tasks->sequence[n];
        const int64_t queries = s->rows / ejki_max(1, p->group);
        s->row_blocks = p->group * ejki_cdiv(queries, amx_vjp_row_block_size(queries, rows));
        s->first_row_block = row_block;
        row_block += p->kv_heads * s->row_blocks;
    }
}

#endif
