/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of block-sparse attention: those of flash attention that know patterns. The operation has looked at all
 * grids before and found that they say the same mask (`validate`), so that one pass over one of them has all gradients.
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

#define SPARSE_OPERATION           "blocksparse_attention_vjp"
#define SPARSE_KIND                "vjp"
#define SPARSE_TILE(element, name) vjp_##element##_##name##_vjp
#define SPARSE_MATRIX              vjp_bf16_amx_matrix
#define SPARSE_REFERENCE(element)  vjp_##element##_reference
#include "operations/attention/blocksparse/implementations_body.h"
