/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of random strides in guarded memory: axes in any order, with gaps, forwards or backwards. Numbers go in and
 * out as contiguous arrays.
 */
#ifndef TESTS_STRIDED_H
#define TESTS_STRIDED_H

#include <ejkernel/tensor.h>

#include "support/guarded.h"
#include "support/random.h"

struct strided {
    struct guarded memory; /* exactly the bytes that the view spans */
    ejk_tensor view;
};

void strided_create(struct strided *s, struct random *r, ejk_dtype dtype, int32_t rank,
                    const int64_t *shape);
void strided_destroy(struct strided *s);

/* Row-major numbers into the view, which from then on cannot be written. */
void strided_put(struct strided *s, ejk_dtype dtype, const void *numbers);

/* The view's elements as row-major numbers. */
void strided_get(const struct strided *s, ejk_dtype dtype, void *numbers);

/* Nothing at all was written; nothing between or around the elements was, which clears the elements. */
bool strided_untouched(const struct strided *s);
bool strided_gaps_untouched(struct strided *s);

#endif
