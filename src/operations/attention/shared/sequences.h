/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed sequences: a problem of them as parts, each of which is an ordinary problem with one batch entry.
 * Parts [0, N) are the sequences; those after them are the rows of no sequence, which see nothing: behind
 * the last sequence, or, where sequences are padded, behind each.
 */
#ifndef EJKI_FLASH_ATTENTION_SEQUENCES_H
#define EJKI_FLASH_ATTENTION_SEQUENCES_H

#include "operations/attention/flash/vjp_problem.h"

/*
 * Checks what only the data says: cumulative lengths start at 0, do not decrease and end within the tensors. True of
 * every problem that an implementation is given on the CPU: the operations call it in `validate`. Dense ones pass.
 */
ejk_status ejki_flash_sequences_check(const ejki_flash_problem *p);

/* The number of parts. */
int64_t ejki_flash_parts(const ejki_flash_problem *p);

/* Query rows of one head of a part. */
int64_t ejki_flash_part_queries(const ejki_flash_problem *p, int64_t part);

/* Queries and keys of a part. */
void ejki_flash_part_lengths(const ejki_flash_problem *p, int64_t part, int64_t *queries,
                             int64_t *keys);

/* A part as a problem of its own. Lengths have been checked. Of a dense problem, a batch entry. */
ejki_flash_problem ejki_flash_part(const ejki_flash_problem *p, int64_t part);

/* The same of gradients, those of a sequence: its place in the gradient of the bias may be that of others too. */
ejki_flash_vjp_problem ejki_flash_vjp_part(const ejki_flash_vjp_problem *v, int64_t sequence);

/* Writes what gradients of tokens of no sequence are, 0. Of `workers`, worker `index` writes its share. */
void ejki_flash_vjp_clear(const ejki_flash_vjp_problem *v, int64_t index, int64_t workers);

#endif
