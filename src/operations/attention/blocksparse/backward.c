/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of block-sparse attention: those of flash attention that know patterns, once all grids have been
 * looked at and found to say the same mask. One pass over one of them then has all gradients.
 */
#include "operations/attention/blocksparse/problem.h"

#include <ejkernel/registry.h>

#include "base/base.h"

static const ejk_parameter parameters[] = {
    {"q_blocksize", 1, 512, 1, 96, "query rows beside a block of keys, at most those of a block"},
    {"kv_blocksize", 1, 512, 1, 256, "keys of a task, at most those of a block"},
};

#if defined(__x86_64__)
static const ejk_parameter matrix_parameters[] = {
    {"q_blocksize", 1, 512, 1, 128, "query rows beside a block of keys; several blocks may be"},
    {"kv_blocksize", 1, 2048, 1, 512, "keys of a task; several blocks may be"},
};
#endif

static ejk_status run_with(const ejk_implementation *dense, const ejk_run *run) {
    const ejki_blocksparse_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->flash.forward;
    EJKI_TRY(ejki_pattern_check(p, &p->pattern));
    for (size_t i = 0; i < sizeof v->others / sizeof *v->others; i++)
        EJKI_TRY(ejki_pattern_check(p, &v->others[i]));
    for (size_t i = 0; i < sizeof v->others / sizeof *v->others; i++)
        EJKI_TRY(ejki_pattern_agree(p, &p->pattern, &v->others[i]));
    return dense->run(run);
}

#define SPARSE_OPERATION           "blocksparse_attention_vjp"
#define SPARSE_KIND                "vjp"
#define SPARSE_TILE(element, name) vjp_##element##_##name##_vjp
#define SPARSE_MATRIX              vjp_bf16_amx_matrix
#define SPARSE_REFERENCE(element)  vjp_##element##_reference
#include "operations/attention/blocksparse/implementations_body.h"
