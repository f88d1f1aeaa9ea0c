/* SPDX-License-Identifier: Apache-2.0 */
/* import_weights as its kernel sees it: where packed codes lie, and where rows of codes, scales and zeros go. */
#ifndef EJKI_IMPORT_WEIGHTS_PROBLEM_H
#define EJKI_IMPORT_WEIGHTS_PROBLEM_H

#include <ejkernel/tensor.h>

enum import_family { IMPORT_BLOCKS, IMPORT_GPTQ, IMPORT_AWQ, IMPORT_BNB };

/* What a layout's name stands for. */
typedef struct import_layout {
    const char *name;
    enum import_family family;
    int bits, block, bytes,
        size; /* of a block: values and bytes; values that share a scale; 0: the call says */
    bool zeros;
    ejk_dtype scales; /* of blocks: the narrowest that holds them */
} import_layout;

/* Rows of a result, matrix after matrix. */
typedef struct import_rows {
    char *data;
    ejk_dtype dtype;
    int64_t matrix, row; /* elements */
} import_rows;

typedef struct import_problem {
    const import_layout *layout;
    int64_t matrices, rows, columns, groups, size;
    int bits;
    const unsigned char *packed, *packed_zeros;
    int64_t packed_matrix, packed_row, packed_zero_row; /* bytes */
    const char *packed_scales;
    ejk_dtype packed_scale_type;
    int64_t packed_scale_row; /* elements */
    const char *g_idx;
    ejk_dtype g_idx_type; /* UNSET: in order */
    const char *nested_scales, *nested_table, *nested_offset;
    import_rows w, scales, zeros;
    bool has_permutation;
    int32_t *permutation;
} import_problem;

#endif
