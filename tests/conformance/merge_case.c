/* SPDX-License-Identifier: Apache-2.0 */
/* attention_merge in both forms, and the gradients of the first. */
#include "conformance/cases.h"

#include <math.h>
#include <string.h>

/* Arguments by the names of the first form. */
struct merge {
    int64_t parts, batch, queries, heads, width;
    ejk_tensor part, logs, sums, sinks, out, lse, d_out, d_lse; /* absent ones have no type */
    double *part_, *logs_, *sums_, *sinks_, *out_, *lse_, *d_out_, *d_lse_;
};

static ejk_tensor normal(struct call *c, ejk_tensor t, double size) {
    for (int64_t n = 0; n < ejk_tensor_count(&t); n++)
        tensor_put(&t, n, size * random_normal(&c->random));
    return t;
}

static struct merge *make(struct call *c, ejk_dtype dtype) {
    static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 90, 128, 200};
    struct random *r = &c->random;
    struct merge *m = call_memory(c, sizeof *m);
    c->own = m;
    m->parts = random_chance(r, 0.04) ? 0 : random_int(r, 1, 6);
    m->batch = random_int(r, 1, 3);
    m->heads = random_int(r, 1, 10);
    m->queries = random_chance(r, 0.02) ? 0 : random_int(r, 1, 40);
    m->width = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, widths);
    while (m->batch * m->heads * m->queries * m->width > 20000) m->queries /= 2;
    m->part =
        normal(c, CALL_TENSOR(c, dtype, m->parts, m->batch, m->queries, m->heads, m->width), 1);
    m->logs = normal(c, CALL_TENSOR(c, EJK_DTYPE_F32, m->parts, m->batch, m->heads, m->queries), 4);
    m->out = CALL_TENSOR(c, c->dtype, m->batch, m->queries, m->heads, m->width);
    if (random_chance(r, 0.8))
        m->lse = CALL_TENSOR(c, EJK_DTYPE_F32, m->batch, m->heads, m->queries);
    if (random_chance(r, 0.6)) {
        const int64_t heads = m->heads % 2 == 0 && random_chance(r, 0.5) ? m->heads / 2 : m->heads;
        const int64_t count = random_int(r, 1, 3);
        m->sinks = normal(c,
                          random_chance(r, 0.3) ? CALL_TENSOR(c, dtype, count)
                                                : CALL_TENSOR(c, dtype, heads, count),
                          1);
        for (int64_t n = 0; n < ejk_tensor_count(&m->sinks); n++)
            if (random_chance(r, 0.2)) tensor_put(&m->sinks, n, -INFINITY);
    }
    return m;
}

/* Row (b, h, t) of a tensor of parts, and of one of logarithms. */
static int64_t part_at(const struct merge *m, int64_t n, int64_t b, int64_t h, int64_t t) {
    return (((n * m->batch + b) * m->queries + t) * m->heads + h) * m->width;
}

static int64_t log_at(const struct merge *m, int64_t n, int64_t b, int64_t h, int64_t t) {
    return ((n * m->batch + b) * m->heads + h) * m->queries + t;
}

/* First sink of a head, and how many it reads. */
static int64_t sink_at(const struct merge *m, int64_t h, int64_t *count) {
    *count = m->sinks_ ? m->sinks.shape[m->sinks.rank - 1] : 0;
    if (!m->sinks_ || m->sinks.rank == 1) return 0;
    return h / (m->heads / m->sinks.shape[0]) * *count;
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

/* Rounded to what a step is computed in: nothing for what is exact, else f32. */
static double step(const struct call *c, bool exact, double value) {
    return exact || c->dtype == EJK_DTYPE_F64 ? value : (double)(float)value;
}

static double weight_of(const struct call *c, bool exact, double log_, double base) {
    return isinf(log_) ? 0 : step(c, exact, exp(step(c, exact, log_ - base)));
}

/* Where a row's results go; NULL for what is not wanted. */
struct merge_results {
    double *out, *spread, *lse;
};

static void merge_row(struct call *c, const struct merge *m, bool exact, int64_t b, int64_t h,
                      int64_t t, const struct merge_results *to) {
    int64_t count, sink = sink_at(m, h, &count);
    double top = -INFINITY, total = 0, w[8];
    for (int64_t n = 0; n < m->parts; n++) top = fmax(top, m->logs_[log_at(m, n, b, h, t)]);
    for (int64_t k = 0; k < count; k++) top = fmax(top, m->sinks_[sink + k]);
    for (int64_t n = 0; n < m->parts; n++) {
        w[n] = weight_of(c, exact, m->logs_[log_at(m, n, b, h, t)], top);
        const double sum = m->sums_ ? m->sums_[log_at(m, n, b, h, t)] : 1;
        if (w[n] != 0) total = step(c, exact, total + w[n] * sum);
    }
    for (int64_t k = 0; k < count; k++)
        total = step(c, exact, total + weight_of(c, exact, m->sinks_[sink + k], top));
    if (isfinite(top)) c->magnitude = fmax(c->magnitude, fabs(top));
    if (to->lse) to->lse[log_at(m, 0, b, h, t)] = top + log(total);
    for (int64_t d = 0; to->out && d < m->width; d++) {
        double sum = 0, size = 0;
        for (int64_t n = 0; n < m->parts; n++) {
            if (w[n] == 0) continue;
            const double term = w[n] / total * m->part_[part_at(m, n, b, h, t) + d];
            sum = step(c, exact, sum + step(c, exact, term));
            size += fabs(term);
        }
        to->out[part_at(m, 0, b, h, t) + d] = sum;
        if (to->spread) to->spread[part_at(m, 0, b, h, t) + d] = size;
    }
}

static void merge_rows(struct call *c, bool exact, const struct merge_results *to) {
    const struct merge *m = c->own;
    for (int64_t n = 0; n < m->batch * m->heads * m->queries; n++)
        merge_row(c, m, exact, n / m->queries / m->heads, n / m->queries % m->heads, n % m->queries,
                  to);
}

static void load(struct call *c) {
    struct merge *m = c->own;
    m->part_ = tensor_values(c, &m->part);
    m->logs_ = tensor_values(c, &m->logs);
    m->sums_ = tensor_values(c, &m->sums);
    m->sinks_ = tensor_values(c, &m->sinks);
    c->scarce = m->batch * m->heads * m->queries < 16;
}

static void exact(struct call *c) {
    load(c);
    merge_rows(c, true,
               &(struct merge_results){call_result(c, "out", EXACT, ELEMENT),
                                       call_result(c, "out", SPREAD, ELEMENT),
                                       call_result(c, "lse", EXACT, LOG_SUM)});
}

static void naive(struct call *c, int order) {
    merge_rows(c, false,
               &(struct merge_results){call_result(c, "out", order, ELEMENT), NULL,
                                       call_result(c, "lse", order, LOG_SUM)});
}

/* Parts that saw nothing hold anything; some rows have no other. */
static void finish(struct call *c) {
    struct merge *m = c->own;
    for (int64_t n = 0; n < m->parts * m->batch * m->heads * m->queries; n++) {
        const int64_t t = n % m->queries, h = n / m->queries % m->heads;
        const int64_t b = n / m->queries / m->heads % m->batch;
        const int64_t part = n / m->queries / m->heads / m->batch;
        if (!random_chance(&c->random, 0.2) && (t + h) % 7 != 3) continue;
        tensor_put(&m->logs, n, -INFINITY);
        if (ejk_tensor_present(&m->sums))
            tensor_put(&m->sums, n, random_chance(&c->random, 0.5) ? 0 : NAN);
        for (int64_t d = 0; d < m->width; d++)
            tensor_put(&m->part, part_at(m, part, b, h, t) + d, (double)NAN);
    }
}

static bool generate(struct call *c) {
    const struct merge *m = make(c, c->dtype);
    *(ejk_attention_merge_args *)c->args = (ejk_attention_merge_args){.partial_out = m->part,
                                                                      .partial_lse = m->logs,
                                                                      .softmax_aux = m->sinks,
                                                                      .out = m->out,
                                                                      .lse = m->lse};
    return true;
}

/* Heads go together where they share sinks. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct merge *m = c->own;
    if (m->queries == 0) return false;
    slice_add(s, r, "B", m->batch, false);
    slice_add(s, r, "T", m->queries, false);
    if (!ejk_tensor_present(&m->sinks)) slice_add(s, r, "Hq", m->heads, false);
    return true;
}

const struct operation attention_merge_case = {.op = "attention_merge",
                                               .cases = 120,
                                               .generate = generate,
                                               .finish = finish,
                                               .exact = exact,
                                               .naive = naive,
                                               .slice = slice};

/* ---- Accumulators ------------------------------------------------------------------------------------ */

static bool generate_accumulators(struct call *c) {
    if (c->dtype == EJK_DTYPE_F64) return false;
    const ejk_dtype out = c->dtype;
    c->dtype = EJK_DTYPE_F32; /* of the first tensor; the result may have any type */
    struct merge *m = make(c, EJK_DTYPE_F32);
    m->out = CALL_TENSOR(c, out, m->batch, m->queries, m->heads, m->width);
    m->sums = call_tensor(c, EJK_DTYPE_F32, 4, m->logs.shape);
    for (int64_t n = 0; n < ejk_tensor_count(&m->sums); n++)
        tensor_put(&m->sums, n, exp(random_normal(&c->random)));
    *(ejk_attention_merge_accumulators_args *)c->args =
        (ejk_attention_merge_accumulators_args){.accumulator = m->part,
                                                .row_max = m->logs,
                                                .row_sum = m->sums,
                                                .softmax_aux = m->sinks,
                                                .out = m->out,
                                                .lse = m->lse};
    return true;
}

const struct operation attention_merge_accumulators_case = {.op = "attention_merge_accumulators",
                                                            .cases = 60,
                                                            .only = EJK_DTYPE_F32,
                                                            .generate = generate_accumulators,
                                                            .finish = finish,
                                                            .exact = exact,
                                                            .naive = naive,
                                                            .slice = slice};

/* ---- Gradients --------------------------------------------------------------------------------------- */

static bool generate_vjp(struct call *c) {
    struct random *r = &c->random;
    struct merge *m = make(c, c->dtype);
    ejk_attention_merge_vjp_args *args = c->args;
    c->gradient = true;
    m->lse = CALL_TENSOR(c, EJK_DTYPE_F32, m->batch, m->heads, m->queries);
    m->d_out = normal(c, call_tensor(c, c->dtype, 4, m->out.shape), 1);
    if (random_chance(r, 0.7))
        m->d_lse = normal(c, call_tensor(c, EJK_DTYPE_F32, 3, m->lse.shape), 1);
    *args = (ejk_attention_merge_vjp_args){.partial_out = m->part,
                                           .partial_lse = m->logs,
                                           .softmax_aux = m->sinks,
                                           .out = m->out,
                                           .lse = m->lse,
                                           .d_out = m->d_out,
                                           .d_lse = m->d_lse};
    if (random_chance(r, 0.8)) args->d_partial_out = call_tensor(c, c->dtype, 5, m->part.shape);
    if (random_chance(r, 0.8))
        args->d_partial_lse = call_tensor(c, EJK_DTYPE_F32, 4, m->logs.shape);
    if (ejk_tensor_present(&m->sinks) && random_chance(r, 0.8))
        args->d_softmax_aux = call_tensor(c, c->dtype, m->sinks.rank, m->sinks.shape);
    return true;
}

/* What the merge would have written. */
static void finish_vjp(struct call *c) {
    struct merge *m = c->own;
    finish(c);
    load(c);
    struct merge_results to = {.out = call_memory(c, (size_t)ejk_tensor_count(&m->out) * 8),
                               .lse = call_memory(c, (size_t)ejk_tensor_count(&m->lse) * 8)};
    merge_rows(c, true, &to);
    for (int64_t n = 0; n < ejk_tensor_count(&m->out); n++) tensor_put(&m->out, n, to.out[n]);
    for (int64_t n = 0; n < ejk_tensor_count(&m->lse); n++) tensor_put(&m->lse, n, to.lse[n]);
    m->out_ = tensor_values(c, &m->out);
    m->lse_ = tensor_values(c, &m->lse);
    m->d_out_ = tensor_values(c, &m->d_out);
    m->d_lse_ = tensor_values(c, &m->d_lse);
}

struct merge_gradients {
    double *part, *logs, *sinks, *part_spread, *logs_spread, *sinks_spread;
};

static void differentiate_row(const struct call *c, bool exact, int64_t b, int64_t h, int64_t t,
                              const struct merge_gradients *to) {
    const struct merge *m = c->own;
    const int64_t row = part_at(m, 0, b, h, t), at = log_at(m, 0, b, h, t);
    const double lse = m->lse_[at];
    double delta = 0, size = m->d_lse_ ? fabs(m->d_lse_[at]) : 0;
    for (int64_t d = 0; d < m->width; d++) {
        const double term = m->d_out_[row + d] * m->out_[row + d];
        delta = step(c, exact, delta + step(c, exact, term));
        size += fabs(term);
    }
    if (m->d_lse_) delta = step(c, exact, delta - m->d_lse_[at]);
    for (int64_t n = 0; n < m->parts; n++) {
        const int64_t own = part_at(m, n, b, h, t);
        const double w = weight_of(c, exact, m->logs_[log_at(m, n, b, h, t)], lse);
        double dot = 0, terms = size;
        if (w == 0) continue;
        for (int64_t d = 0; d < m->width; d++) {
            const double term = m->d_out_[row + d] * m->part_[own + d];
            dot = step(c, exact, dot + step(c, exact, term));
            terms += fabs(term);
            if (to->part) to->part[own + d] = step(c, exact, w * m->d_out_[row + d]);
            if (to->part_spread) to->part_spread[own + d] = fabs(w * m->d_out_[row + d]);
        }
        if (to->logs) to->logs[log_at(m, n, b, h, t)] = step(c, exact, w * (dot - delta));
        if (to->logs_spread) to->logs_spread[log_at(m, n, b, h, t)] = w * terms;
    }
    int64_t count, sink = sink_at(m, h, &count);
    for (int64_t k = 0; k < count; k++) {
        const double w = weight_of(c, exact, m->sinks_[sink + k], lse);
        if (to->sinks && w != 0)
            to->sinks[sink + k] = step(c, exact, to->sinks[sink + k] - step(c, exact, w * delta));
        if (to->sinks_spread) to->sinks_spread[sink + k] += w * size;
    }
}

static void differentiate(struct call *c, bool exact, const struct merge_gradients *to) {
    const struct merge *m = c->own;
    for (int64_t n = 0; n < m->batch * m->heads * m->queries; n++)
        differentiate_row(c, exact, n / m->queries / m->heads, n / m->queries % m->heads,
                          n % m->queries, to);
}

static void exact_vjp(struct call *c) {
    differentiate(c, true,
                  &(struct merge_gradients){call_result(c, "d_partial_out", EXACT, ELEMENT),
                                            call_result(c, "d_partial_lse", EXACT, ELEMENT),
                                            call_result(c, "d_softmax_aux", EXACT, ELEMENT),
                                            call_result(c, "d_partial_out", SPREAD, ELEMENT),
                                            call_result(c, "d_partial_lse", SPREAD, ELEMENT),
                                            call_result(c, "d_softmax_aux", SPREAD, ELEMENT)});
}

static void naive_vjp(struct call *c, int order) {
    differentiate(c, false,
                  &(struct merge_gradients){
                      .part = call_result(c, "d_partial_out", order, ELEMENT),
                      .logs = call_result(c, "d_partial_lse", order, ELEMENT),
                      .sinks = call_result(c, "d_softmax_aux", order, ELEMENT),
                  });
}

/* Gradients of sinks are sums over all rows, and are not compared. */
const struct operation attention_merge_vjp_case = {.op = "attention_merge_vjp",
                                                   .cases = 120,
                                                   .generate = generate_vjp,
                                                   .finish = finish_vjp,
                                                   .exact = exact_vjp,
                                                   .naive = naive_vjp,
                                                   .slice = slice};
