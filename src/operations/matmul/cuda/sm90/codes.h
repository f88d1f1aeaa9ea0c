/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers of products with codes of 4 or 8 bits share: codes.cu and experts.cu. */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_H
#define EJKI_MATMUL_CUDA_SM90_CODES_H

#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/cuda/sm90/codes.cuh"
#include "operations/matmul/shared/quant_format.h"

enum { CODE_ALIGNMENT = 16 /* bytes, of rows and of matrices */ };

/* Codes of a step. */
static inline int64_t ejki_mm_codes_depth(const mm_quant *q) {
    return 8 * CODE_BYTES / q->bits;
}
/* Are numbers of codes looked up? */
bool ejki_mm_codes_have_table(const mm_quant *q);
/* Chunks of a step with one scale. */
int64_t ejki_mm_codes_chunks(const mm_product *p);
/* Rows of a tile, for so many rows. */
int64_t ejki_mm_codes_lines(const mm_product *p, int64_t rows);

/* Format, types and strides, at addresses that suit; how rows are dealt out, and gathered, is not looked at. */
bool ejki_mm_codes_suit(const mm_product *p);
bool ejki_mm_codes_can_run(const mm_product *p);

/* Those of codes_step.cuh but for LINES, COLUMNS, WINDOW and ROW_PITCH. */
ejki_cuda_constants ejki_mm_codes_constants(const mm_product *p);
/* Rows of codes in a box, for tiles of so many columns of b: gates and values have one each. */
static inline int64_t ejki_mm_codes_box(const mm_product *p, int64_t columns) {
    return p->gated && !p->interleaved ? columns / 2 : columns;
}
/* Maps in boxes of so many bytes of so many rows, under a swizzle of as many bytes; of rows of a, of 128. */
ejk_status ejki_mm_codes_map(int32_t device, const mm_product *p, int64_t bytes, int64_t lines,
                             ejki_cuda_map *map);
ejk_status ejki_mm_codes_map_rows(int32_t device, const mm_product *p, int64_t lines,
                                  ejki_cuda_map *map);

#endif
