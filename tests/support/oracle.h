/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What flash attention should answer, and how far an answer may be from it: SEMANTICS section 5. The
 * error of an implementation may be twice that of a naive evaluation in its own precision plus 4 eps, in
 * the Frobenius norm and in the largest element. tolerance() says where that is too little to go by. Sums in two
 * orders, of which the larger error counts; where a result is beyond that, in six others too: rounding of one large
 * score decides, and naive errors then differ tenfold from order to order.
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "operations/attention/flash/problem.h"
#include "support/flash_run.h"

/* Results without gaps: out [B, Hq, T, Dv], the others [B, Hq, T]. */
struct flash_values {
    double *out, *lse, *row_max, *row_sum;
};

/* What lies where a problem's results go; NULL for those that are not wanted. */
struct flash_values flash_values_at(const ejki_flash_problem *problem);
void flash_values_release(struct flash_values *values);

enum { FLASH_ORDERS = 8 };

struct flash_oracle {
    ejki_flash_problem problem;
    struct flash_values exact;
    struct flash_values naive[FLASH_ORDERS];
    int orders;         /* of the same arithmetic that there are so far */
    double *spread;     /* as out: Σ p·|v| */
    double magnitude;   /* largest Σ |scale·q·k| + |bias| of a visible key */
    int64_t rows, outs; /* elements */
};

/* Of inputs that stay as they are. Exits the process without memory. */
void flash_oracle_create(struct flash_oracle *oracle, const ejki_flash_problem *problem);
void flash_oracle_destroy(struct flash_oracle *oracle);

/*
 * Compares results, as flash_values of which absent ones are NULL, in the type of `problem`. False, and why, if one
 * is too far off. *worst is raised to the largest part of a tolerance that was used.
 */
bool flash_oracle_accepts(struct flash_oracle *oracle, const ejki_flash_problem *problem,
                          const struct flash_values *got, double *worst, char *why, size_t size);

/* The same of what a run wrote. */
bool flash_oracle_accepts_written(struct flash_oracle *oracle, const ejki_flash_problem *problem,
                                  const struct flash_written *written, double *worst, char *why,
                                  size_t size);

#endif
