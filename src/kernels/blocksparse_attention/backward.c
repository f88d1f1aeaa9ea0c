/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of block-sparse attention: those of flash attention that know patterns. If keys and values
 * have a grid of their own, a second pass reads that one.
 */
#include "kernels/blocksparse_attention/problem.h"

#include <ejkernel/registry.h>

#include "base/base.h"

static ejk_status run_part(const ejk_implementation *dense, const ejk_run *run,
                           const ejki_flash_vjp_problem *part) {
    ejk_run own = *run;
    own.problem = part;
    return dense->run(&own);
}

static ejk_status run_checked(const ejk_implementation *dense, const ejk_run *run) {
    const ejki_blocksparse_vjp_problem *v = run->problem;
    EJKI_TRY(ejki_pattern_check(&v->flash.forward, &v->flash.forward.pattern));
    if (v->keys.planes == 0) return run_part(dense, run, &v->flash);
    EJKI_TRY(ejki_pattern_check(&v->flash.forward, &v->keys));
    ejki_flash_vjp_problem part = v->flash;
    part.wants_key = part.wants_value = false;
    EJKI_TRY(run_part(dense, run, &part));
    part = v->flash;
    part.forward.pattern = v->keys;
    part.wants_query = part.wants_bias = part.wants_sinks = false;
    return part.wants_key || part.wants_value ? run_part(dense, run, &part) : EJK_OK;
}

#define REFERENCE(symbol, id, element)                                                             \
    extern const ejk_implementation ejki_flash_attention_vjp_##symbol;                             \
    static ejk_status prepare_##symbol(const void *problem, const int64_t *values,                 \
                                       int32_t threads, ejk_launch *launch) {                      \
        const ejki_blocksparse_vjp_problem *v = problem;                                           \
        return ejki_flash_attention_vjp_##symbol.prepare(&v->flash, values, threads, launch);      \
    }                                                                                              \
    static ejk_status run_##symbol(const ejk_run *run) {                                           \
        return run_checked(&ejki_flash_attention_vjp_##symbol, run);                               \
    }                                                                                              \
    extern const ejk_implementation ejki_blocksparse_attention_vjp_##symbol;                       \
    const ejk_implementation ejki_blocksparse_attention_vjp_##symbol = {                           \
        .algorithm = "blocksparse_attention_vjp",                                                  \
        .name = id,                                                                                \
        .platform = EJK_PLATFORM_REFERENCE,                                                        \
        .backend = EJK_BACKEND_ANY,                                                                \
        .isa = EJK_ISA_SCALAR,                                                                     \
        .dtype = EJK_DTYPE_##element,                                                              \
        .version = 1,                                                                              \
        .prepare = prepare_##symbol,                                                               \
        .run = run_##symbol,                                                                       \
    };

REFERENCE(f32_reference, "f32/reference", F32)
REFERENCE(f64_reference, "f64/reference", F64)
REFERENCE(bf16_reference, "bf16/reference", BF16)
REFERENCE(f16_reference, "f16/reference", F16)
