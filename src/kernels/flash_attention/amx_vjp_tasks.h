/* SPDX-License-Identifier: Apache-2.0 */
/* How packed sequences are cut for the gradients of flash attention on AMX: by lengths and configuration alone. */
#ifndef EJKI_AMX_VJP_TASKS_H
#define EJKI_AMX_VJP_TASKS_H

#include "base/base.h"
#include "kernels/flash_attention/sequences.h"
#include "kernels/flash_attention/vjp_tasks.h"

#define AMX_VJP_PANEL 64 /* keys whose gradients are summed together: four tiles */

/*
 * Keys of a block of any sequence, a multiple of a panel: `most` of them, or as few as make twelve tasks of a sequence
 * that is nearly all of the work. Lengths have been checked.
 */
static inline int64_t amx_vjp_block(const ejki_flash_problem *p, int64_t most) {
    double pairs = 0;
    int64_t longest = 1;
    for (int64_t n = 0; n < p->batch; n++) {
        int64_t queries, keys;
        ejki_flash_part_lengths(p, n, &queries, &keys);
        pairs += (double)queries * (double)keys * (double)p->kv_heads;
        longest = ejki_max(longest, queries);
    }
    const double share = pairs / 12 / (double)longest;
    const int64_t keys = share < (double)most ? (int64_t)share : most;
    return ejki_min(most, ejki_round_up(ejki_max(1, keys), AMX_VJP_PANEL));
}

/* Fills the list of tasks of packed sequences, with strips of `rows` queries of one head in place of blocks of rows. */
static inline void amx_vjp_cut(ejki_vjp_tasks *tasks, const ejki_flash_problem *p, int64_t rows,
                               int64_t keys) {
    const ejki_vjp_blocks blocks = {.rows = rows, .keys = keys, .columns = AMX_VJP_PANEL};
    int64_t turn = 0;
    ejki_vjp_cut(tasks, p, &blocks, true);
    for (int64_t n = 0; n < p->batch; n++) {
        ejki_vjp_sequence *s = &tasks->sequence[n];
        s->row_blocks = p->group * ejki_cdiv(s->rows / ejki_max(1, p->group), rows);
        s->first_turn = turn;
        turn += p->kv_heads * s->row_blocks;
    }
}

#endif
