/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_kl_divergence and its gradient in vectors. A thread has tokens by themselves: both rows are read side by side,
 * once for KL of one from the other; for divergences from their mean, and for gradients, once more, from a cache. A
 * token's sums run over its classes in order, those of tokens over these in order: bits do not depend on threads.
 */
#include "operations/loss/fused_kl_divergence/fold.h"

#include "kernels/declare.h"

/* What a token adds, in the workspace. */
typedef struct token {
    double weight, loss, entropy;
} token;

/* A run, and in gradients the weight of all tokens. */
typedef struct state {
    const ejk_run *run;
    const kl_problem *p;
    fold_call call;
    double total;
} state;

static void *row_at(const kl_problem *p, const loss_view *v, mm_size row) {
    return v->dtype ? element_at((ejk_dtype)v->dtype, v->data, loss_token_at(v, p->tokens, row))
                    : NULL;
}

/* Worker `index` of several has tokens from first to behind last. */
static void share_rows(const state *s, int64_t index, mm_size *first, mm_size *last) {
    const mm_size count = kl_rows(s->p);
    *first = count * index / s->run->workers;
    *last = count * (index + 1) / s->run->workers;
}

/* Divergences from the mean of both, in powers of two. */
static void mix_row(const state *s, mm_size row, const fold_norm norm[2], double to[2]) {
    const kl_problem *p = s->p;
    mix_of((ejk_dtype)p->dtype, &s->call, norm, row_at(p, &p->first, row),
           row_at(p, &p->second, row), to);
}

static kl_terms terms_of(const state *s, mm_size row) {
    const kl_problem *p = s->p;
    const double unit = s->call.unit;
    fold_state sums = fold_nothing();
    kl_terms t = {-HUGE_VAL, -HUGE_VAL, 0, 0, 0};
    if (p->vocab == 0) return t;
    fold_of((ejk_dtype)p->dtype, p->entropy.dtype != 0, &s->call, row_at(p, &p->first, row),
            row_at(p, &p->second, row), &sums);
    const fold_sums *first = sums.of, *second = sums.of + 1;
    const fold_sums *teacher = p->teaches ? first : second;
    t.first_lse = lse_of(&s->call, first);
    t.second_lse = lse_of(&s->call, second);
    t.entropy = log(teacher->sum) - unit * teacher->linear / teacher->sum;
    if (p->mixes) {
        const fold_norm norm[2] = {norm_of(first), norm_of(second)};
        double mixed[2];
        mix_row(s, row, norm, mixed);
        t.first = unit * mixed[0];
        t.second = unit * mixed[1];
    } else {
        t.first = unit * sums.cross / first->sum - log(first->sum) + log(second->sum);
    }
    return t;
}

static void fold_rows(void *argument, int64_t index) {
    const state *s = argument;
    const kl_problem *p = s->p;
    token *tokens = s->run->workspace;
    mm_size row, last;
    for (share_rows(s, index, &row, &last); row < last; row++) {
        const double weight = kl_weight(p, row);
        kl_terms t = {0};
        if (weight != 0) t = terms_of(s, row);
        tokens[row] = (token){weight, kl_loss(p, &t), t.entropy};
        loss_store(&p->first_lse, p->tokens, row, t.first_lse);
        loss_store(&p->second_lse, p->tokens, row, t.second_lse);
    }
}

static ejk_status run_forward(state *s) {
    const token *tokens = s->run->workspace;
    kl_totals total = {0};
    ejk_parallel_for(s->run->threads, s->run->workers, fold_rows, s);
    for (mm_size row = 0; row < kl_rows(s->p); row++)
        kl_count(s->p, row, tokens[row].weight, tokens[row].loss, tokens[row].entropy, &total);
    kl_put(s->p, &total);
    return EJK_OK;
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* Sums are needed but where both lse are given, and the divergence itself is in no gradient. */
static bool needs_sums(const kl_problem *p) {
    const bool given = p->first_lse.dtype && p->second_lse.dtype;
    return !given || (!p->mixes && p->d_first.dtype);
}

static fold_slope slope_of(const state *s, mm_size row, double weight) {
    const kl_problem *p = s->p;
    fold_slope at = {.factor = (float)kl_factor(p, row, weight, s->total),
                     .unit = (float)s->call.unit};
    double mixed[2];
    if (needs_sums(p)) {
        fold_state sums = fold_nothing();
        fold_of((ejk_dtype)p->dtype, false, &s->call, row_at(p, &p->first, row),
                row_at(p, &p->second, row), &sums);
        at.norm[0] = norm_of(sums.of);
        at.norm[1] = norm_of(sums.of + 1);
        at.divergence[0] =
            (float)(sums.cross / sums.of[0].sum - log2(sums.of[0].sum) + log2(sums.of[1].sum));
    } else {
        at.norm[0] = norm_by(&s->call, loss_load(&p->first_lse, p->tokens, row, 0));
        at.norm[1] = norm_by(&s->call, loss_load(&p->second_lse, p->tokens, row, 0));
    }
    if (!p->mixes) return at;
    mix_row(s, row, at.norm, mixed);
    at.divergence[0] = (float)mixed[0];
    at.divergence[1] = (float)mixed[1];
    return at;
}

static void derive_rows(void *argument, int64_t index) {
    const state *s = argument;
    const kl_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    mm_size row, last;
    for (share_rows(s, index, &row, &last); row < last; row++) {
        const double weight = kl_weight(p, row);
        const void *const x[2] = {row_at(p, &p->first, row), row_at(p, &p->second, row)};
        void *const to[2] = {row_at(p, &p->d_first, row), row_at(p, &p->d_second, row)};
        if (weight != 0) {
            const fold_slope at = slope_of(s, row, weight);
            derive_of(dtype, &s->call, &at, x, to);
            continue;
        }
        for (int k = 0; k < 2; k++)
            if (to[k]) memset(to[k], 0, (size_t)(p->vocab * element_size(dtype)));
    }
    if (s->call.streams) v_streamed();
}

static ejk_status run_vjp(state *s) {
    if (s->p->vocab == 0 || (!s->p->d_first.dtype && !s->p->d_second.dtype)) return EJK_OK;
    s->total = kl_total(s->p);
    ejk_parallel_for(s->run->threads, s->run->workers, derive_rows, s);
    return EJK_OK;
}

/* ---- Launch ----------------------------------------------------------------------------------------- */

/* A thread is worth waking for this many pairs of logits. */
enum { WORTH = 10000 };

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const kl_problem *p = problem;
    const double pairs = (double)kl_rows(p) * (double)p->vocab;
    (void)parameters;
    launch->workers = pairs < (double)threads * WORTH ? (int32_t)(pairs / WORTH) + 1 : threads;
    if (!p->gradient) launch->workspace_bytes = (size_t)kl_rows(p) * sizeof(token);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const kl_problem *p = run->problem;
    state s = {.run = run, .p = p, .call = fold_call_of(p)};
    return p->gradient ? run_vjp(&s) : run_forward(&s);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
