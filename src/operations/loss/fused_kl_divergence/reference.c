/* SPDX-License-Identifier: Apache-2.0 */
/* fused_kl_divergence and its gradient as the formulas read, an element at a time in double precision. */
#include "kernels/declare.h"
#include "operations/loss/fused_kl_divergence/rows.h"

static double logit(const kl_problem *p, const loss_view *x, mm_size row, mm_size v) {
    return loss_load(x, p->tokens, row, v) / p->temperature;
}

/* Gradients may be given it. */
static double lse_of(const kl_problem *p, const loss_view *x, const loss_view *lse, mm_size row) {
    if (p->gradient && lse->dtype) return loss_load(lse, p->tokens, row, 0);
    double max = -HUGE_VAL, sum = 0;
    for (mm_size v = 0; v < p->vocab; v++) max = fmax(max, logit(p, x, row, v));
    for (mm_size v = 0; v < p->vocab; v++)
        sum += exp(logit(p, x, row, v) - (max == -HUGE_VAL ? 0 : max));
    return max + log(sum);
}

/* p · (log p - log q) by logarithms; where p is 0 it is 0, where q alone is, infinite. */
static double term(double log_p, double log_q) {
    if (log_p == -HUGE_VAL) return 0;
    return log_q == -HUGE_VAL ? HUGE_VAL : exp(log_p) * (log_p - log_q);
}

/* The logarithm of what class v is compared to: the second distribution, or the mean of both. */
static double log_other(const kl_problem *p, double log_p, double log_q) {
    return p->mixes ? log(p->beta * exp(log_p) + (1 - p->beta) * exp(log_q)) : log_q;
}

static kl_terms terms_of(const kl_problem *p, mm_size row) {
    kl_terms t = {.first_lse = lse_of(p, &p->first, &p->first_lse, row),
                  .second_lse = lse_of(p, &p->second, &p->second_lse, row)};
    for (mm_size v = 0; v < p->vocab; v++) {
        const double log_p = logit(p, &p->first, row, v) - t.first_lse;
        const double log_q = logit(p, &p->second, row, v) - t.second_lse;
        const double other = log_other(p, log_p, log_q);
        t.first += term(log_p, other);
        if (p->mixes) t.second += term(log_q, other);
        t.entropy -= p->teaches ? term(log_p, 0) : term(log_q, 0);
    }
    return t;
}

static ejk_status run_forward(const ejk_run *run) {
    const kl_problem *p = run->problem;
    kl_totals total = {0};
    for (mm_size row = 0; row < kl_rows(p); row++) {
        const double weight = kl_weight(p, row);
        const kl_terms t = weight == 0 ? (kl_terms){0} : terms_of(p, row);
        kl_count(p, row, weight, kl_loss(p, &t), t.entropy, &total);
        loss_store(&p->first_lse, p->tokens, row, t.first_lse);
        loss_store(&p->second_lse, p->tokens, row, t.second_lse);
    }
    kl_put(p, &total);
    return EJK_OK;
}

/* The gradient of the logit whose distribution is p: share · p · (log p - log other - divergence). */
static double slope(double share, double log_p, double other, double divergence) {
    return log_p == -HUGE_VAL ? 0 : share * exp(log_p) * (log_p - other - divergence);
}

static void put(const kl_problem *p, const loss_view *to, mm_size row, mm_size v, double value) {
    if (to->dtype)
        ejki_store_f64((ejk_dtype)to->dtype, to->data, loss_token_at(to, p->tokens, row) + v,
                       value);
}

static void derive_row(const kl_problem *p, mm_size row, double factor) {
    const kl_terms t = terms_of(p, row);
    for (mm_size v = 0; v < p->vocab; v++) {
        const double log_p = logit(p, &p->first, row, v) - t.first_lse;
        const double log_q = logit(p, &p->second, row, v) - t.second_lse;
        const double other = log_other(p, log_p, log_q);
        const double first = slope(p->mixes ? p->beta : 1, log_p, other, t.first);
        const double second =
            p->mixes ? slope(1 - p->beta, log_q, other, t.second) : exp(log_q) - exp(log_p);
        put(p, &p->d_first, row, v, factor * first);
        put(p, &p->d_second, row, v, factor * second);
    }
}

static ejk_status run_vjp(const ejk_run *run) {
    const kl_problem *p = run->problem;
    const double total = kl_total(p);
    for (mm_size row = 0; row < kl_rows(p); row++) {
        const double weight = kl_weight(p, row);
        if (weight != 0) derive_row(p, row, kl_factor(p, row, weight, total));
        for (mm_size v = 0; weight == 0 && v < p->vocab; v++) {
            put(p, &p->d_first, row, v, 0);
            put(p, &p->d_second, row, v, 0);
        }
    }
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const kl_problem *p = run->problem;
    return p->gradient ? run_vjp(run) : run_forward(run);
}

EJKI_DECLARE(fused_kl_divergence_reference, .version = 1, .run = run)
