/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How gradients of attention are cut into tasks: a block of keys of a KV head of a sequence. Batch entries of a
 * dense problem are sequences of one length. All of it follows from lengths and configuration; only the order
 * of tasks depends on the number of workers.
 */
#ifndef EJKI_FLASH_ATTENTION_VJP_TASKS_H
#define EJKI_FLASH_ATTENTION_VJP_TASKS_H

#include "operations/attention/flash/problem.h"

typedef struct ejki_vjp_sequence {
    int64_t rows, row_blocks; /* of a KV head: its queries · G */
    int64_t keys, block;      /* and of a block of them */
    int64_t step; /* keys that add to d_query at once: those of a length, whatever the heads */
    int64_t key_blocks;
    int64_t first_row,
        first_row_block; /* what its rows, and its blocks of rows, are among those of all */
    int64_t same_blocks,
        first_task; /* of the first of several with as many blocks: their number, and first task */
} ejki_vjp_sequence;

/* The list of a problem's tasks: places for `batch` sequences, and for as many numbers. */
typedef struct ejki_vjp_tasks {
    int64_t batch, kv_heads;
    ejki_vjp_sequence *sequence;
    int64_t *order; /* of sequences: the largest first, by powers of two */
    int64_t count;
} ejki_vjp_tasks;

/* Where a worker is in the list, and the task there. */
typedef struct ejki_vjp_task {
    int64_t at; /* in the order; 0 to begin with */
    int64_t sequence, kv_head, key_block;
} ejki_vjp_task;

/* Sizes of blocks, of keys of packed sequences mostly a multiple of `columns`; and how many a dense problem has. */
typedef struct ejki_vjp_blocks {
    int64_t rows, keys, columns, row_blocks, key_blocks;
} ejki_vjp_blocks;

/*
 * Fills the list; lengths of packed sequences have been checked. Unless `alike`, a packed sequence has
 * smaller blocks where it would otherwise be fewer than eight tasks: it may be all that there is to share
 * out.
 */
void ejki_vjp_cut(ejki_vjp_tasks *tasks, const ejki_flash_problem *p, const ejki_vjp_blocks *blocks,
                  bool alike);

/*
 * Goes to task `index` < count, not before the one that the worker is at. As many heads as there are workers are
 * interleaved, so that workers are seldom at neighbouring blocks of one head; a block still comes after those before
 * it.
 */
void ejki_vjp_go(const ejki_vjp_tasks *tasks, int64_t index, int64_t workers, ejki_vjp_task *task);

#endif
