/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of tokens, and where their sums go, for kernels on the CPU. */
#ifndef EJKI_LOSS_ROWS_H
#define EJKI_LOSS_ROWS_H

#include "base/base.h"
#include "operations/loss/shared/tokens.cuh"
#include "tensor/access.h"

/* An element of a token. */
static inline double loss_load(const loss_view *v, mm_size tokens, mm_size row, mm_size index) {
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, loss_token_at(v, tokens, row) + index);
}

/* The first element of a token becomes `value`, if the tensor is there. */
static inline void loss_store(const loss_view *v, mm_size tokens, mm_size row, double value) {
    if (v->dtype)
        ejki_store_f64((ejk_dtype)v->dtype, v->data, loss_token_at(v, tokens, row), value);
}

/* What a token counts: 0 where the mask is false, whatever its weight is. */
static inline double loss_weight_at(const loss_view *mask, const loss_view *weights, mm_size tokens,
                                    mm_size row) {
    if (mask->dtype &&
        !ejki_load_i64((ejk_dtype)mask->dtype, mask->data, loss_token_at(mask, tokens, row)))
        return 0;
    return weights->dtype ? loss_load(weights, tokens, row, 0) : 1;
}

/* What a mean divides by. */
static inline double loss_mean_of(double weight) {
    return weight < 1e-8 ? 1e-8 : weight;
}

#endif
