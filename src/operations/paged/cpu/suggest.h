/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that suit a processor: ejk_implementation.suggest of attention over pages. */
#ifndef EJKI_PAGED_SUGGEST_H
#define EJKI_PAGED_SUGGEST_H

#include <ejkernel/record.h>

#include <stdint.h>

enum {
    PREFETCH_ROWS,
    PREFETCH_IN_ORDER,
    PREFETCH_ROWS_SECOND,
    PREFETCH_IN_STEP
}; /* prefetch_hint */

/* `problem` is the family's, of problem.cuh. */
void ejki_paged_suggest(const void *problem, int32_t threads, ejk_opt_int *values);
void ejki_paged_suggest_amx(const void *problem, int32_t threads, ejk_opt_int *values);

#endif
