/* SPDX-License-Identifier: Apache-2.0 */
/* Targets and weights of tokens, and what a token's sums mean, for kernels on the CPU. */
#ifndef EJKI_FUSED_CROSS_ENTROPY_ROWS_H
#define EJKI_FUSED_CROSS_ENTROPY_ROWS_H

#include <math.h>

#include "operations/loss/fused_cross_entropy/problem.cuh"
#include "operations/loss/shared/rows.h"

/* The class of a token; -1: there are no targets. */
static inline mm_size loss_target(const loss_problem *p, mm_size row) {
    if (!p->targets.dtype) return -1;
    return ejki_load_i64((ejk_dtype)p->targets.dtype, p->targets.data,
                         loss_at(p, &p->targets, row));
}

static inline double loss_weight(const loss_problem *p, mm_size row) {
    if (p->targets.dtype && loss_target(p, row) == p->ignore) return 0;
    return loss_weight_at(&p->mask, &p->weights, p->tokens, row);
}

/* What a token's logits are folded into. `linear` is Σ z, or of soft targets Σ q z; `mass` Σ q. */
typedef struct loss_sums {
    double max, base, sum; /* Σ exp(z - base); base -inf: there was none that is not -inf */
    double target, linear, mass;
    double most_soft;
    mm_size best, best_soft;
} loss_sums;

static inline loss_sums loss_sums_none(void) {
    return (loss_sums){
        .max = -HUGE_VAL, .base = -HUGE_VAL, .best = -1, .most_soft = -HUGE_VAL, .best_soft = -1};
}

/* A token's terms. */
typedef struct loss_terms {
    double lse, loss, z;
    bool right;
} loss_terms;

static inline loss_terms loss_terms_of(const loss_problem *p, const loss_sums *s, mm_size target) {
    loss_terms t = {.lse = s->base + log(s->sum)};
    double inner = s->target; /* Σ q z */
    double mass = 1;
    if (p->soft.dtype) {
        inner = s->linear;
        mass = s->mass;
    } else if (p->wrong > 0) {
        inner = s->linear == -HUGE_VAL ? s->linear
                                       : p->right * s->target + p->wrong * (s->linear - s->target);
    }
    t.z = p->z != 0 ? p->z * t.lse * t.lse : 0;
    t.loss = t.lse * mass - inner + p->constant + t.z;
    t.right =
        s->best >= 0 && t.lse == t.lse && s->best == (p->targets.dtype ? target : s->best_soft);
    return t;
}

/* Sums over tokens, in their order. */
typedef struct loss_totals {
    double weight, loss, z, right;
} loss_totals;

static inline void loss_count(loss_totals *total, double weight, const loss_terms *t) {
    total->loss += weight * t->loss;
    total->z += weight * t->z;
    total->right += t->right ? weight : 0;
}

static inline double loss_denominator(const loss_problem *p, double weight) {
    return p->sums ? 1 : loss_mean_of(weight);
}

static inline void loss_put(const loss_problem *p, const loss_totals *total) {
    const ejk_dtype dtype = (ejk_dtype)p->result;
    const double by = loss_denominator(p, total->weight);
    const double mean = loss_mean_of(total->weight);
    ejki_store_f64(dtype, p->loss, 0, total->loss / by);
    if (p->z_loss_out) ejki_store_f64(dtype, p->z_loss_out, 0, total->z / by);
    if (p->weight_sum) ejki_store_f64(dtype, p->weight_sum, 0, total->weight);
    if (p->accuracy) ejki_store_f64(dtype, p->accuracy, 0, total->right / mean);
}

static inline void loss_put_lse(const loss_problem *p, mm_size row, double lse) {
    loss_store(&p->lse, p->tokens, row, lse);
}

/* What the gradient of logit v of a token is made of: factor · ((mass + 2 z lse) · exp(z_v - lse) - q_v) · slope. */
static inline double loss_rate(const loss_problem *p, double lse, double mass) {
    return (p->soft.dtype ? mass : p->right + p->wrong * (double)(p->vocab - 1)) + 2 * p->z * lse;
}

#endif
