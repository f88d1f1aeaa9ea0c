/* SPDX-License-Identifier: Apache-2.0 */
/* Running one implementation on a case, and what it wrote. */
#ifndef TESTS_FLASH_RUN_H
#define TESTS_FLASH_RUN_H

#include "support/flash_case.h"

#include <ejkernel/registry.h>

/* The results of a run, without gaps, in the order [B, Hq, T, row]: out, lse, row_max, row_sum. */
enum { FLASH_RESULTS = FLASH_TENSORS - FLASH_FIRST_OUTPUT };
struct flash_written {
    unsigned char *bytes[FLASH_RESULTS]; /* NULL = not wanted */
    size_t row[FLASH_RESULTS];           /* bytes of one row's result */
    int64_t rows;
};

/* Rows of a problem: batches, queries and kv heads from `first` to `end`. */
struct flash_part {
    int64_t b, b_end, t, t_end, kv, kv_end;
};

/* The same rows as a problem of their own. */
ejki_flash_problem flash_part_problem(const ejki_flash_problem *whole,
                                      const struct flash_part *part);

/* True if row (b, h, t) is one of the part's. */
bool flash_part_has(const ejki_flash_problem *whole, const struct flash_part *part, int64_t b,
                    int64_t h, int64_t t);

/*
 * Prepares and runs; `problem` is the case's or a part of it. The workspace is full of NaN and exactly as
 * large as was asked for. False, and why, if a call fails, or if the launch or the workspace's
 * surroundings are not as they have to be.
 */
bool flash_run(const ejk_implementation *implementation, const ejki_flash_problem *problem,
               const int64_t *parameters, ejk_threads *threads, char *why, size_t size);

/*
 * Takes the results out of the case's outputs and leaves these as before the run. False, and why, if
 * anything besides the results was written.
 */
bool flash_take(struct flash_case *c, struct flash_written *written, char *why, size_t size);
void flash_written_destroy(struct flash_written *written);

/* True if a row's result is what outputs are filled with before a run. */
bool flash_row_blank(const struct flash_written *written, int result, int64_t row);

/*
 * Equal bits in the rows of a part, where any NaN equals any other, and, if `only`, nothing in the others. NULL part =
 * all rows. False, and why, if not.
 */
bool flash_written_agree(const ejki_flash_problem *problem, const struct flash_written *a,
                         const struct flash_written *b, const struct flash_part *part, bool only,
                         char *why, size_t size);

#endif
