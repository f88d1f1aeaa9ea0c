/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention as their formulas read, in double precision: what fast implementations are
 * measured against. Weights and the row's output are computed anew instead of taken from the forward pass, so
 * that no rounding of its results gets in.
 *
 * A task is a KV head of a sequence, which without packed ones is a batch entry: its keys' gradients are summed
 * in the order of heads and rows, whatever the number of threads. Gradients that several tasks share, those of
 * bias and sinks, are summed by one worker.
 */
#include "kernels/declare.h"
#include "base/base.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/reference_row.h"
#include "operations/attention/shared/sequences.h"

/* Doubles of a worker: a row's weights, derivatives and dZ, and sums of its KV head's gradients. */
typedef struct layout {
    int64_t weights, derivatives, scores; /* [S] each */
    int64_t out;                          /* [Dv] */
    int64_t key, value;                   /* [S, D], [S, Dv] */
    int64_t worker;                       /* in all */
    int64_t bias, sinks; /* after all workers: [B or 1, Hq or 1, T or 1, S]; [heads, n] */
    int64_t bias_count, sinks_count;
} layout;

static bool add_part(int64_t *at, int64_t rows, int64_t columns, int64_t *start) {
    int64_t count;
    *start = *at;
    return ejki_mul(rows, columns, &count) && ejki_add(*at, count, at);
}

/* Sinks of how many heads there are. */
static int64_t sink_heads(const ejki_flash_vjp_problem *v) {
    return v->d_sink_stride_h == 0 ? 1 : v->forward.query_heads / v->forward.sink_group;
}

/* False if the sizes are more than can be counted. */
static bool layout_of(const ejki_flash_vjp_problem *v, layout *out) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bias_gradient *bias = &v->d_bias;
    int64_t at = 0, end = 0, rows = 1;
    *out = (layout){0};
    bool fits =
        add_part(&at, p->keys, 1, &out->weights) && add_part(&at, p->keys, 1, &out->derivatives) &&
        add_part(&at, p->keys, 1, &out->scores) && add_part(&at, p->value_dim, 1, &out->out) &&
        add_part(&at, p->keys, p->head_dim, &out->key) &&
        add_part(&at, p->keys, p->value_dim, &out->value);
    out->worker = at;
    if (v->wants_bias)
        fits = fits && ejki_mul(rows, bias->stride_b ? p->batch : 1, &rows) &&
               ejki_mul(rows, bias->stride_h ? p->query_heads : 1, &rows) &&
               ejki_mul(rows, bias->stride_t ? p->queries : 1, &rows);
    fits = fits && add_part(&end, v->wants_bias ? rows : 0, p->keys, &out->bias);
    out->bias_count = end;
    fits = fits && add_part(&end, v->wants_sinks ? sink_heads(v) : 0, p->sink_count, &out->sinks);
    out->sinks_count = end - out->sinks;
    return fits;
}

typedef struct task {
    const ejki_flash_vjp_problem *v, *whole; /* the sequence's, and that of all */
    int64_t sequence;
    const layout *at; /* of the whole */
    double *scratch, *shared;
} task;

/* The row's place in the sums of the bias' gradient. */
static double *bias_row(const task *t, const reference_row *row) {
    const ejki_flash_problem *p = &t->whole->forward;
    const ejki_bias_gradient *bias = &t->v->d_bias;
    int64_t index = bias->stride_b ? t->sequence : 0;
    index = index * (bias->stride_h ? p->query_heads : 1) + (bias->stride_h ? row->h : 0);
    index = index * (bias->stride_t ? p->queries : 1) + (bias->stride_t ? row->i : 0);
    return t->shared + t->at->bias + index * p->keys;
}

static double multiplier(const reference_row *row, int64_t j) {
    const ejki_flash_problem *p = row->problem;
    if (p->dropout == 0) return 1;
    return ejki_dropout_keeps(p, row->b, row->h, row->i, j) ? ejki_dropout_factor(p->dropout) : 0;
}

static double cotangent(const task *t, const reference_row *row, int64_t d) {
    return row_load(row->problem->dtype, t->v->out_cotangent.data,
                    row_start(row, &t->v->out_cotangent) + d);
}

/* Σ_j P_ij M_ij <dO_i, value_j> - dL_i, with the products kept as scores; gradients of values on the way. */
static double row_delta(const task *t, const reference_row *row) {
    const ejki_flash_problem *p = row->problem;
    double *weights = t->scratch + t->at->weights, *products = t->scratch + t->at->scores;
    double delta = 0;
    for (int64_t j = row->first; j < row->end; j++) {
        if (weights[j] == 0) continue;
        const double m = multiplier(row, j);
        products[j] =
            m == 0 ? 0 : m * row_dot(row, &t->v->out_cotangent, &p->value, j, p->value_dim);
        delta += weights[j] * products[j];
        double *sums = t->scratch + t->at->value + j * p->value_dim;
        for (int64_t d = 0; m != 0 && d < p->value_dim; d++)
            sums[d] += weights[j] * m * cotangent(t, row, d);
    }
    if (t->v->has_lse_cotangent) {
        const ejki_bht *dl = &t->v->lse_cotangent;
        delta -= row_load(EJK_DTYPE_F32, dl->data,
                          row->b * dl->stride_b + row->h * dl->stride_h + row->i * dl->stride_t);
    }
    return delta;
}

static void add_sinks_gradient(const task *t, const reference_row *row, double max, double sum,
                               double delta) {
    const ejki_flash_problem *p = row->problem;
    const int64_t head = t->v->d_sink_stride_h == 0 ? 0 : row->h / p->sink_group;
    double *sums = t->shared + t->at->sinks + head * p->sink_count;
    for (int64_t n = 0; n < p->sink_count; n++)
        sums[n] -=
            row_weight(row_load(p->dtype, p->sinks, row_sinks_start(row) + n), max) / sum * delta;
}

static void write_query(const task *t, const reference_row *row) {
    const ejki_flash_problem *p = row->problem;
    const double *dx = t->scratch + t->at->scores, *weights = t->scratch + t->at->weights;
    for (int64_t d = 0; d < p->head_dim; d++) {
        double sum = 0;
        for (int64_t j = row->first; j < row->end; j++)
            if (weights[j] != 0)
                sum += dx[j] * row_load(p->dtype, p->key.data, row_key_start(row, &p->key, j) + d);
        row_store(p->dtype, t->v->d_query.data, row_start(row, &t->v->d_query) + d, sum);
    }
}

static void add_key(const task *t, const reference_row *row) {
    const ejki_flash_problem *p = row->problem;
    const double *dx = t->scratch + t->at->scores, *weights = t->scratch + t->at->weights;
    for (int64_t j = row->first; j < row->end; j++) {
        double *sums = t->scratch + t->at->key + j * p->head_dim;
        for (int64_t d = 0; weights[j] != 0 && d < p->head_dim; d++)
            sums[d] += dx[j] * row_load(p->dtype, p->query.data, row_start(row, &p->query) + d);
    }
}

static void differentiate_row(const task *t, reference_row *row) {
    const ejki_flash_problem *p = row->problem;
    double *weights = t->scratch + t->at->weights, *derivatives = t->scratch + t->at->derivatives;
    double *dx = t->scratch + t->at->scores;
    ejki_flash_visible(p, row->i, &row->first, &row->end);
    double max, sum = row_soften(row, weights, derivatives, &max);
    double all_max = max, all_sum = row_add_sinks(row, sum, &all_max);
    const double factor = all_sum == 0 ? 0 : row_weight(max, all_max) / all_sum;
    for (int64_t j = row->first; j < row->end; j++) weights[j] *= weights[j] == 0 ? 0 : factor;
    const double delta = row_delta(t, row);
    double *bias = t->v->wants_bias ? bias_row(t, row) : NULL;
    for (int64_t j = row->first; j < row->end; j++) {
        if (weights[j] == 0) continue;
        const double dz = weights[j] * (dx[j] - delta);
        if (bias) bias[j] += dz;
        dx[j] = p->scale * dz * derivatives[j];
    }
    if (t->v->wants_query) write_query(t, row);
    if (t->v->wants_key) add_key(t, row);
    if (t->v->wants_sinks && all_sum > 0) add_sinks_gradient(t, row, all_max, all_sum, delta);
}

/* Writes the sums of a KV head. */
static void write_keys(const task *t, int64_t head, const ejki_bthd *target, int64_t sums,
                       int64_t width) {
    const ejki_flash_problem *p = &t->v->forward;
    for (int64_t j = 0; j < p->keys; j++)
        for (int64_t d = 0; d < width; d++)
            row_store(p->dtype, target->data, j * target->stride_t + head * target->stride_h + d,
                      t->scratch[sums + j * width + d]);
}

static void differentiate_head(const task *t, int64_t kv_head) {
    const ejki_flash_problem *p = &t->v->forward;
    for (int64_t n = 0; n < p->keys * p->head_dim; n++) t->scratch[t->at->key + n] = 0;
    for (int64_t n = 0; n < p->keys * p->value_dim; n++) t->scratch[t->at->value + n] = 0;
    for (int64_t g = 0; g < p->group; g++)
        for (int64_t i = 0; i < p->queries; i++) {
            reference_row row = {.problem = p, .h = kv_head * p->group + g, .i = i};
            differentiate_row(t, &row);
        }
    if (t->v->wants_key) write_keys(t, kv_head, &t->v->d_key, t->at->key, p->head_dim);
    if (t->v->wants_value) write_keys(t, kv_head, &t->v->d_value, t->at->value, p->value_dim);
}

static void write_shared(const task *t) {
    const ejki_flash_problem *p = &t->v->forward;
    const ejki_bias_gradient *bias = &t->v->d_bias;
    const int64_t batch = bias->stride_b ? p->batch : 1, queries = bias->stride_t ? p->queries : 1;
    const int64_t heads = bias->stride_h ? p->query_heads : 1;
    const double *sums = t->shared + t->at->bias;
    for (int64_t row = 0; t->v->wants_bias && row < batch * heads * queries; row++) {
        const int64_t start = row / queries / heads * bias->stride_b +
                              row / queries % heads * bias->stride_h +
                              row % queries * bias->stride_t;
        for (int64_t j = 0; j < p->keys; j++)
            row_store(p->dtype, bias->data, start + j, sums[row * p->keys + j]);
    }
    for (int64_t n = 0; n < t->at->sinks_count; n++)
        row_store(p->dtype, t->v->d_sinks,
                  n / p->sink_count * t->v->d_sink_stride_h + n % p->sink_count,
                  t->shared[t->at->sinks + n]);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_flash_vjp_problem *v = problem;
    const ejki_flash_problem *p = &v->forward;
    layout at;
    int64_t tasks, doubles;
    bool fits = layout_of(v, &at) && ejki_mul(p->batch, p->kv_heads, &tasks);
    const int64_t workers =
        !fits || v->wants_bias || v->wants_sinks ? 1 : ejki_max(1, ejki_min(threads, tasks));
    if (!fits || !ejki_mul(at.worker, workers, &doubles) ||
        !ejki_add(doubles, at.bias_count + at.sinks_count, &doubles) ||
        !ejki_mul(doubles, (int64_t)sizeof(double), &doubles))
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "gradients of %lld keys and %lld queries are more than can be counted",
                         (long long)p->keys, (long long)p->queries);
    launch->workers = (int32_t)workers;
    launch->workspace_bytes = (size_t)doubles;
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    layout at = {0};
    if (!layout_of(v, &at)) return; /* prepare() refused these */
    double *all = run->workspace;
    task t = {.whole = v,
              .at = &at,
              .scratch = all + index * at.worker,
              .shared = all + run->workers * at.worker};
    for (int64_t n = 0; n < at.bias_count + at.sinks_count; n++) t.shared[n] = 0;
    for (int64_t n = index; n < p->batch * p->kv_heads; n += run->workers) {
        t.sequence = n / p->kv_heads;
        const ejki_flash_vjp_problem own = ejki_flash_vjp_part(v, t.sequence);
        t.v = &own;
        differentiate_head(&t, n % p->kv_heads);
    }
    t.v = v;
    write_shared(&t);
    ejki_flash_vjp_clear(v, index, run->workers);
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(flash_attention_vjp_reference, .version = 1, .prepare = prepare, .run = run)
