/* SPDX-License-Identifier: Apache-2.0 */
/* What a token adds to the results, for kernels on the CPU. */
#ifndef EJKI_FUSED_KL_DIVERGENCE_ROWS_H
#define EJKI_FUSED_KL_DIVERGENCE_ROWS_H

#include <math.h>

#include "operations/loss/fused_kl_divergence/problem.cuh"
#include "operations/loss/shared/rows.h"

/* Of a token, without its weight: KL(first, second), or divergences of both from their mean. */
typedef struct kl_terms {
    double first_lse, second_lse, first, second, entropy;
} kl_terms;

static inline double kl_weight(const kl_problem *p, mm_size row) {
    return loss_weight_at(&p->mask, &p->weights, p->tokens, row);
}

static inline double kl_loss(const kl_problem *p, const kl_terms *t) {
    const double own = p->mixes ? p->beta * t->first + (1 - p->beta) * t->second : t->first;
    return p->temperature * p->temperature * own;
}

/* A token's place in the results, and sums over all tokens, in their order. */
typedef struct kl_totals {
    double weight, loss, entropy;
} kl_totals;

static inline void kl_count(const kl_problem *p, mm_size row, double weight, double loss,
                            double entropy, kl_totals *total) {
    if (p->reduction == KL_NONE) {
        loss_store(&p->loss, p->tokens, row, weight == 0 ? 0 : weight * loss);
        loss_store(&p->entropy, p->tokens, row, weight == 0 ? 0 : weight * entropy);
    }
    if (weight == 0) return;
    total->weight += weight;
    total->loss += weight * loss;
    total->entropy += weight * entropy;
}

/* What sums over tokens are divided by. */
static inline double kl_denominator(const kl_problem *p, double weight) {
    return p->reduction == KL_MEAN ? loss_mean_of(weight) : 1;
}

static inline void kl_put(const kl_problem *p, const kl_totals *total) {
    if (p->weight_sum) ejki_store_f64((ejk_dtype)p->result, p->weight_sum, 0, total->weight);
    if (p->reduction == KL_NONE) return;
    const double by = kl_denominator(p, total->weight);
    loss_store(&p->loss, 1, 0, total->loss / by);
    loss_store(&p->entropy, 1, 0, total->entropy / by);
}

/* What gradients of a token's logits are multiplied by: all but the factor 1 / temperature of z is in it. */
static inline double kl_factor(const kl_problem *p, mm_size row, double weight, double total) {
    return p->temperature * weight / kl_denominator(p, total) *
           loss_load(&p->loss, p->tokens, row, 0);
}

/* The weight of all tokens. */
static inline double kl_total(const kl_problem *p) {
    double total = 0;
    for (mm_size row = 0; row < kl_rows(p); row++) total += kl_weight(p, row);
    return total;
}

#endif
