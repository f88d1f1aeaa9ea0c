/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: checks of arguments, cumulative lengths, masks as bits. */
#ifndef EJKI_SEQUENCE_H
#define EJKI_SEQUENCE_H

#include "base/base.h"
#include "tensor/argument.h"

#include <ejkernel/sequence.h>

/* ---- Checks: each fails with a sentence that names the argument ------------------------------------- */

/* Sets of element types. */
#define EJKI_DTYPE_BIT(dtype) (1u << (dtype))
#define EJKI_FLOATING                                                                              \
    (EJKI_DTYPE_BIT(EJK_DTYPE_F64) | EJKI_DTYPE_BIT(EJK_DTYPE_F32) |                               \
     EJKI_DTYPE_BIT(EJK_DTYPE_BF16) | EJKI_DTYPE_BIT(EJK_DTYPE_F16))
#define EJKI_INDICES (EJKI_DTYPE_BIT(EJK_DTYPE_I64) | EJKI_DTYPE_BIT(EJK_DTYPE_I32))
#define EJKI_INTEGERS                                                                              \
    (EJKI_INDICES | EJKI_DTYPE_BIT(EJK_DTYPE_I16) | EJKI_DTYPE_BIT(EJK_DTYPE_I8) |                 \
     EJKI_DTYPE_BIT(EJK_DTYPE_U8))
#define EJKI_ANY_DTYPE (EJKI_FLOATING | EJKI_INTEGERS | EJKI_DTYPE_BIT(EJK_DTYPE_BOOL))

static inline bool ejki_dtype_in(ejk_dtype dtype, unsigned set) {
    return (EJKI_DTYPE_BIT(dtype) & set) != 0;
}

/* A tensor on the CPU, of one of these types; its rank is the caller's to look at. */
ejk_status ejki_sequence_input(const ejk_tensor *tensor, const char *name, unsigned dtypes);

/* The same for a result of exactly this shape, each element at a place of its own. */
ejk_status ejki_sequence_output(const ejk_tensor *tensor, const char *name, unsigned dtypes,
                                int32_t rank, const int64_t *shape);

/* `largest` can be written to `out`, a tensor of integers. */
ejk_status ejki_sequence_fits(const ejk_tensor *out, const char *name, int64_t largest);

ejk_status ejki_sequence_first_id(int64_t first_id);

/* `count` times `size` bytes; count may be 0. NULL if there is no memory. */
void *ejki_sequence_alloc(int64_t count, size_t size);

/* ---- Cumulative lengths ----------------------------------------------------------------------------- */

typedef struct ejki_lengths {
    int64_t sequences; /* N */
    int64_t *ends; /* [N+1], ends[0] = 0: the token behind each sequence is ends[n + 1]; malloc'd */
} ejki_lengths;

/* Reads and checks cu_seqlens; the caller frees `ends`. */
ejk_status ejki_lengths_read(const ejk_tensor *cu_seqlens, ejki_lengths *out);

static inline int64_t ejki_lengths_total(const ejki_lengths *lengths) {
    return lengths->ends[lengths->sequences];
}

/* ---- Masks as bits ---------------------------------------------------------------------------------- */

static inline int64_t ejki_bit_words(int64_t bits) {
    return ejki_cdiv(bits, 64);
}

/* A row of a checked mask: element i of `row`, of rank 1, is bit i % 64 of words[i / 64]; the rest are 0. */
void ejki_pack_row(const ejk_tensor *row, uint64_t *words);

/* The view without its first axis, at `index` of it. */
ejk_tensor ejki_tensor_at(ejk_tensor tensor, int64_t index);

#endif
