/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages: paged_core.h by itself. */
#include "operations/paged/cpu/paged_core.h"

static bool is_operand(const paged_cache *c) {
#define IS_OPERAND(T) || c->dtype == (int)EJK_DTYPE_##T
    return false OPERAND_TYPES(IS_OPERAND);
#undef IS_OPERAND
}

static bool has_operands(const void *problem) {
    const paged_problem *p = problem;
    const bool sinks =
        p->sink_count == 0 || (p->sink_dtype != EJK_DTYPE_F64 && p->sink_dtype != EJK_DTYPE_UNSET);
    /* has_lost() does not know of scales */
    if (PAGED_PACK > 1 && p->value.scaled_rows && p->value.dtype == EJK_DTYPE_BF16) return false;
    return is_operand(&p->key) && is_operand(&p->value) && sinks &&
           (p->tail_dim == 0 || is_operand(&p->key_tail));
}

#ifdef PAGED_AMX
#define PAGED_SUGGEST ejki_paged_suggest_amx
#else
#define PAGED_SUGGEST ejki_paged_suggest
#endif

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = page_parameters,
             .parameter_count = sizeof page_parameters / sizeof *page_parameters,
             .suggest = PAGED_SUGGEST, .applicable = has_operands,
             .needs = PAGED_PACK > 1 ? "caches of bf16 or 8 bits" : "caches of 8, 16 or 32 bits",
             .prepare = plan_pages, .run = attend_pages)
