/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention forward: the implementations of flash attention that know patterns. The operation has looked
 * at the grids before (`validate`).
 */
#include "operations/attention/blocksparse/problem.h"

#include <ejkernel/registry.h>

#include "base/base.h"

static const ejk_parameter parameters[] = {
    {"q_blocksize", 1, 65536, 1, 256, "query rows of a task, at most those of a block"},
    {"kv_blocksize", 1, 512, 1, 256, "keys packed at a time, at most those of a block"},
};

/* On AMX blocks are packed together, so many that lie apart as well as a part of one. */
#if defined(__x86_64__)
static const ejk_parameter matrix_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 1024, "query rows of a task, at most those of a block"},
    {"kv_blocksize", 1, 8192, 1, 1024, "keys that stay packed, of one or more blocks"},
};
#endif

#define SPARSE_OPERATION           "blocksparse_attention"
#define SPARSE_KIND                "tile"
#define SPARSE_TILE(element, name) element##_##name##_tile
#define SPARSE_MATRIX              bf16_amx_matrix
#define SPARSE_REFERENCE(element)  element##_reference
#include "operations/attention/blocksparse/implementations_body.h"
