/* SPDX-License-Identifier: Apache-2.0 */
/* fused_cross_entropy and its gradient as the formulas read, an element at a time in double precision. */
#include "kernels/declare.h"
#include "operations/loss/fused_cross_entropy/rows.h"

static double load(const mm_view *v, mm_size index) {
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, index);
}

static double load_row(const loss_problem *p, const loss_view *v, mm_size row, mm_size index) {
    return loss_load(v, p->tokens, row, index);
}

/* A logit; *slope is that of its cap. */
static double logit(const loss_problem *p, mm_size row, mm_size v, double *slope) {
    double x = 0;
    *slope = 1;
    if (p->width < 0) {
        x = load_row(p, &p->logits, row, v);
    } else {
        for (mm_size h = 0; h < p->width; h++)
            x += load_row(p, &p->hidden, row, h) * load(&p->weight, h * p->weight.row + v);
        if (p->bias.present) x += load(&p->bias, v);
    }
    if (p->cap == 0) return x;
    const double tanh_of = tanh(x / p->cap);
    *slope = 1 - tanh_of * tanh_of;
    return p->cap * tanh_of;
}

static loss_sums sums_of(const loss_problem *p, mm_size row) {
    loss_sums s = loss_sums_none();
    const mm_size target = loss_target(p, row);
    double slope;
    for (mm_size v = 0; v < p->vocab; v++) {
        const double z = logit(p, row, v, &slope);
        const double q = p->soft.dtype ? load_row(p, &p->soft, row, v) : 1;
        if (z > s.max) s.max = z, s.best = v;
        if (p->soft.dtype && q > s.most_soft) s.most_soft = q, s.best_soft = v;
        if (v == target) s.target = z;
        if (q != 0) s.linear += q * z;
        s.mass += q;
    }
    s.base = s.max;
    for (mm_size v = 0; v < p->vocab; v++)
        s.sum += exp(logit(p, row, v, &slope) - (s.max == -HUGE_VAL ? 0 : s.max));
    return s;
}

static ejk_status run_forward(const ejk_run *run) {
    const loss_problem *p = run->problem;
    loss_totals total = {0};
    for (mm_size row = 0; row < loss_rows(p); row++) {
        const double weight = loss_weight(p, row);
        loss_put_lse(p, row, 0);
        if (weight == 0) continue;
        const loss_sums s = sums_of(p, row);
        const loss_terms t = loss_terms_of(p, &s, loss_target(p, row));
        total.weight += weight;
        loss_count(&total, weight, &t);
        loss_put_lse(p, row, t.lse);
    }
    loss_put(p, &total);
    return EJK_OK;
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* In the workspace: for each token its factor, lse and rate, gradients of a class, and rows of d_hidden. */
typedef struct memory {
    double *factor, *lse, *rate, *class, *hidden;
} memory;

static memory memory_of(const loss_problem *p, double *at) {
    const mm_size rows = loss_rows(p);
    return (memory){at, at + rows, at + 2 * rows, at + 3 * rows, at + 4 * rows};
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const loss_problem *p = problem;
    (void)parameters;
    (void)threads;
    if (!p->gradient) return EJK_OK;
    const mm_size width = p->width > 0 && p->d_hidden.dtype ? p->width : 0;
    launch->workspace_bytes = (size_t)(loss_rows(p) * (4 + width)) * sizeof(double);
    return EJK_OK;
}

/* Gradients of class v of all tokens. */
static void derive_class(const loss_problem *p, const memory *m, mm_size v) {
    for (mm_size row = 0; row < loss_rows(p); row++) {
        double slope;
        m->class[row] = 0;
        if (m->factor[row] == 0) continue;
        const double z = logit(p, row, v, &slope), e = exp(z - m->lse[row]);
        const double q = p->soft.dtype              ? load_row(p, &p->soft, row, v)
                         : v == loss_target(p, row) ? p->right
                                                    : p->wrong;
        m->class[row] = m->factor[row] * (m->rate[row] * e - q) * slope;
    }
}

static void take_rows(const loss_problem *p, const memory *m) {
    const double d_loss = ejki_load_f64((ejk_dtype)p->result, p->loss, 0);
    double total = 0;
    for (mm_size row = 0; row < loss_rows(p); row++) total += loss_weight(p, row);
    for (mm_size row = 0; row < loss_rows(p); row++) {
        const double weight = loss_weight(p, row);
        m->factor[row] = 0;
        if (weight == 0) continue;
        const loss_sums s = sums_of(p, row);
        m->lse[row] = p->lse.dtype ? load_row(p, &p->lse, row, 0) : s.base + log(s.sum);
        m->factor[row] = d_loss * weight / loss_denominator(p, total);
        m->rate[row] = loss_rate(p, m->lse[row], s.mass);
    }
}

/* What class v adds to gradients of tokens, and its own. */
static void add_class(const loss_problem *p, const memory *m, mm_size v) {
    double bias = 0;
    for (mm_size row = 0; row < loss_rows(p); row++) {
        bias += m->class[row];
        if (p->d_logits.dtype)
            ejki_store_f64((ejk_dtype)p->d_logits.dtype, p->d_logits.data,
                           loss_at(p, &p->d_logits, row) + v, m->class[row]);
        if (!p->d_hidden.dtype || m->factor[row] == 0) continue;
        for (mm_size h = 0; h < p->width; h++)
            m->hidden[row * p->width + h] +=
                m->class[row] * load(&p->weight, h * p->weight.row + v);
    }
    for (mm_size h = 0; p->d_weight.present && h < p->width; h++) {
        double sum = 0;
        for (mm_size row = 0; row < loss_rows(p); row++)
            if (m->factor[row] != 0) sum += m->class[row] * load_row(p, &p->hidden, row, h);
        ejki_store_f64((ejk_dtype)p->d_weight.dtype, p->d_weight.data, h * p->d_weight.row + v,
                       sum);
    }
    if (p->d_bias.present) ejki_store_f64((ejk_dtype)p->d_bias.dtype, p->d_bias.data, v, bias);
}

static ejk_status run_vjp(const ejk_run *run) {
    const loss_problem *p = run->problem;
    const memory m = memory_of(p, run->workspace);
    take_rows(p, &m);
    for (mm_size i = 0; p->d_hidden.dtype && i < loss_rows(p) * p->width; i++) m.hidden[i] = 0;
    for (mm_size v = 0; v < p->vocab; v++) {
        derive_class(p, &m, v);
        add_class(p, &m, v);
    }
    for (mm_size i = 0; p->d_hidden.dtype && i < loss_rows(p) * p->width; i++)
        ejki_store_f64((ejk_dtype)p->d_hidden.dtype, p->d_hidden.data,
                       loss_at(p, &p->d_hidden, i / p->width) + i % p->width, m.hidden[i]);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const loss_problem *p = run->problem;
    return p->gradient ? run_vjp(run) : run_forward(run);
}

EJKI_DECLARE(fused_cross_entropy_reference, .version = 1, .prepare = prepare, .run = run)
