/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed sequences: a problem of them as parts, each of which is an ordinary problem with one batch entry.
 * Parts [0, N) are the sequences; those after them are the rows of no sequence, which see nothing: behind
 * the last sequence, or, where sequences are padded, behind each.
 */
#ifndef EJKI_FLASH_ATTENTION_SEQUENCES_H
#define EJKI_FLASH_ATTENTION_SEQUENCES_H

#include "kernels/flash_attention/problem.h"

/*
 * Checks what only the data says: cumulative lengths start at 0, do not decrease and end within the tensors.
 * Whoever takes packed problems calls it before anything is written.
 */
ejk_status ejki_flash_sequences_check(const ejki_flash_problem *p);

/* The number of parts. */
int64_t ejki_flash_parts(const ejki_flash_problem *p);

/* Query rows of one head of a part. */
int64_t ejki_flash_part_queries(const ejki_flash_problem *p, int64_t part);

/* A part as a problem of its own. Lengths have been checked. */
ejki_flash_problem ejki_flash_part(const ejki_flash_problem *p, int64_t part);

#endif
