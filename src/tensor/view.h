/* SPDX-License-Identifier: Apache-2.0 */
/* What the other files of this room need of a view beyond the public header. */
#ifndef EJKI_TENSOR_VIEW_H
#define EJKI_TENSOR_VIEW_H

#include <ejkernel/tensor.h>

/*
 * ejk_tensor_check() without the memory: dtype, rank, lengths and strides. Gives the bytes that such a
 * view touches, [*low, *high) relative to its first element, so that memory can be found for it.
 */
ejk_status ejki_tensor_extent(const ejk_tensor *tensor, const char *name, int64_t *low,
                              int64_t *high);

/* INVALID_SHAPE, with the axis that is wrong, unless these are the tensor's lengths. */
ejk_status ejki_tensor_expect_shape(const ejk_tensor *tensor, const char *name, int32_t rank,
                                    const int64_t *shape);

/* OVERFLOW unless `each` bytes for every element can be counted: what a call makes of a tensor takes no more. */
ejk_status ejki_tensor_expect_countable(const ejk_tensor *tensor, const char *name, int64_t each);

/* True of a type of which several elements share a byte. */
static inline bool ejki_is_packed(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_I4 || dtype == EJK_DTYPE_U4;
}

/* Refuses a view whose memory this process cannot read. */
ejk_status ejki_tensor_require_cpu(const ejk_tensor *tensor, const char *name);

#endif
