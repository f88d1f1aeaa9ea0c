/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages: paged_core_body.h by itself. */
#include "operations/paged/cpu/paged_core_body.h"

static bool is_stored(int dtype) {
    return dtype != EJK_DTYPE_F64 && dtype != EJK_DTYPE_UNSET;
}

static bool has_stored_types(const void *problem) {
    const paged_problem *p = problem;
    return is_stored(p->key.dtype) && is_stored(p->value.dtype) &&
           (!p->sink_count || is_stored(p->sink_dtype));
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = page_parameters,
             .parameter_count = sizeof page_parameters / sizeof *page_parameters,
             .applicable = has_stored_types, .needs = "caches of 8, 16 or 32 bits",
             .prepare = plan_pages, .run = attend_pages)
