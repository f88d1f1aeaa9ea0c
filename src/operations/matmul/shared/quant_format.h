/* SPDX-License-Identifier: Apache-2.0 */
/* A format by its names and tensors, checked. */
#ifndef EJKI_MATMUL_QUANT_FORMAT_H
#define EJKI_MATMUL_QUANT_FORMAT_H

#include "operations/matmul/shared/product.cuh"

#include <ejkernel/record.h>

/* What a call says of its format. */
typedef struct ejki_quant_words {
    const char *mode, *scale_format;
    const ejk_opt_int *bits, *group_size;
    const ejk_tensor *w, *scales, *zeros, *tensor_scale;
} ejki_quant_words;
#define EJKI_QUANT_WORDS(args)                                                                     \
    (&(ejki_quant_words){(args)->mode, (args)->scale_format, &(args)->bits, &(args)->group_size,   \
                         &(args)->w, &(args)->scales, &(args)->zeros, &(args)->tensor_scale})

/* Of `rows` rows of `columns` codes; everything but pointers. */
ejk_status ejki_quant_format(const ejki_quant_words *words, mm_size rows, mm_size columns,
                             mm_quant *q);
/* Codes that rows of w and scales have room for; -1 if that is not known. */
int64_t ejki_quant_columns(const ejki_quant_words *words);
/* What w, scales or zeros of values of a shape look like; false: `name` is another, or the format is not known. */
bool ejki_quant_result(const ejki_quant_words *words, const ejk_tensor *values, const char *name,
                       ejk_tensor *view);
/* Whether rows of a are rounded. */
ejk_status ejki_quant_rounds(const ejk_opt_int *bits, bool along_depth, mm_quant *q);
/* Looks into packed matrices of `rows` rows of `columns` codes each. */
ejk_status ejki_quant_validate(const mm_quant *q, mm_size matrices, mm_size rows, mm_size columns);
/* Fills memory of packed matrices with something to measure. */
ejk_status ejki_quant_invent(const mm_quant *q, mm_size matrices, mm_size rows, mm_size columns,
                             uint64_t seed, void *codes);
void ejki_quant_bind(const ejki_quant_words *words, mm_quant *q);

/* Whether results have more bits than the type of a, so that values of b rounded to that would be seen in them. */
static inline bool ejki_quant_shows_rounding(const mm_product *p) {
    return p->out.dtype != p->a.dtype && p->out.dtype != EJK_DTYPE_BF16;
}

#endif
