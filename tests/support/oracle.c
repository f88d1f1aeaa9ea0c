/* SPDX-License-Identifier: Apache-2.0 */
#include "support/oracle.h"
#include "operations/attention/shared/dropout.h"
#include "support/flash_case.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

static double *doubles(int64_t count) {
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory) {
        perror("calloc");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static struct flash_values values_create(int64_t rows, int64_t outs) {
    return (struct flash_values){.out = doubles(outs),
                                 .lse = doubles(rows),
                                 .row_max = doubles(rows),
                                 .row_sum = doubles(rows)};
}

void flash_values_release(struct flash_values *values) {
    free(values->out);
    free(values->lse);
    free(values->row_max);
    free(values->row_sum);
}

static double *values_of(const ejki_flash_problem *p, ejk_dtype dtype, const ejki_bthd *view,
                         int64_t width) {
    if (!view->data) return NULL;
    const int64_t rows = p->batch * p->query_heads * p->queries;
    double *values = doubles(rows * width);
    for (int64_t n = 0; n < rows * width; n++) {
        const int64_t row = n / width, d = n % width, i = row % p->queries;
        const int64_t h = row / p->queries % p->query_heads, b = row / p->queries / p->query_heads;
        values[n] = flash_load(dtype, view->data,
                               b * view->stride_b + i * view->stride_t + h * view->stride_h + d);
    }
    return values;
}

static double *rows_of(const ejki_flash_problem *p, const ejki_bht *view) {
    const ejki_bthd same = {view->data, view->stride_b, view->stride_t, view->stride_h};
    return values_of(p, EJK_DTYPE_F32, &same, 1);
}

struct flash_values flash_values_at(const ejki_flash_problem *p) {
    return (struct flash_values){
        .out = values_of(p, p->normalize ? p->dtype : EJK_DTYPE_F32, &p->out, p->value_dim),
        .lse = rows_of(p, &p->lse),
        .row_max = rows_of(p, &p->row_max),
        .row_sum = rows_of(p, &p->row_sum)};
}

/* One row: its place in the inputs and in results. */
struct row {
    int64_t b, h, i;
    int64_t index, out; /* of [B, Hq, T], and of the first of Dv elements */
};

static double query_at(const ejki_flash_problem *p, const struct row *row, int64_t d) {
    return flash_load(p->dtype, p->query.data,
                      row->b * p->query.stride_b + row->i * p->query.stride_t +
                          row->h * p->query.stride_h + d);
}

static double kv_at(const ejki_flash_problem *p, const ejki_bthd *view, const struct row *row,
                    int64_t j, int64_t d) {
    return flash_load(p->dtype, view->data,
                      row->b * view->stride_b + j * view->stride_t +
                          row->h / p->group * view->stride_h + d);
}

static double bias_at(const ejki_flash_problem *p, const struct row *row, int64_t j) {
    if (!p->has_bias) return 0;
    return flash_load(p->dtype, p->bias.data,
                      row->b * p->bias.stride_b + row->h * p->bias.stride_h +
                          row->i * p->bias.stride_t + j);
}

static double sink_at(const ejki_flash_problem *p, const struct row *row, int64_t n) {
    return flash_load(p->dtype, p->sinks, row->h / p->sink_group * p->sink_stride_h + n);
}

static bool keeps(const ejki_flash_problem *p, const struct row *row, int64_t j) {
    return p->dropout == 0 || ejki_dropout_keeps(p, row->b, row->h, row->i, j);
}

/* ---- Exact: the formula in long double ------------------------------------------------------------ */

typedef long double real;

#define HIDDEN (-1) /* in place of a weight */

static real exact_score(const ejki_flash_problem *p, const struct row *row, int64_t j,
                        double *magnitude) {
    real z = 0, size = 0;
    for (int64_t d = 0; d < p->head_dim; d++) {
        const real term =
            (real)p->scale * (real)query_at(p, row, d) * (real)kv_at(p, &p->key, row, j, d);
        z += term;
        size += fabsl(term);
    }
    if (p->soft_cap != 0) z = (real)p->soft_cap * tanhl(z / (real)p->soft_cap);
    const double bias = bias_at(p, row, j);
    *magnitude = fmax(*magnitude, (double)size + fabs(bias));
    return z + (real)bias;
}

/* The weight that arithmetic gives a score beside the largest, except that -inf beside -inf is 0. */
static real exact_weight(real z, real top) {
    return z == -(real)INFINITY ? 0 : expl(z - top);
}

static real top_of(real top, real z) {
    return isnan(top) || isnan(z) ? (real)NAN : z > top ? z : top;
}

static void exact_row(struct flash_oracle *o, const ejki_flash_problem *p, const struct row *row,
                      real *z) {
    struct flash_values *exact = &o->exact;
    real top = -(real)INFINITY, sum = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        z[j] = -(real)INFINITY;
        if (!flash_visible(p, row->b, row->h, row->i, j)) continue;
        z[j] = exact_score(p, row, j, &o->magnitude);
        top = top_of(top, z[j]);
    }
    for (int64_t j = 0; j < p->keys; j++) sum += exact_weight(z[j], top);
    real all_top = top;
    for (int64_t n = 0; p->has_sinks && n < p->sink_count; n++)
        all_top = top_of(all_top, (real)sink_at(p, row, n));
    real denominator = 0;
    for (int64_t j = 0; j < p->keys; j++) denominator += exact_weight(z[j], all_top);
    for (int64_t n = 0; p->has_sinks && n < p->sink_count; n++)
        denominator += exact_weight((real)sink_at(p, row, n), all_top);

    exact->lse[row->index] = (double)(all_top + logl(denominator));
    exact->row_max[row->index] = (double)top;
    exact->row_sum[row->index] = (double)sum;
    const real base = p->normalize ? all_top : top, divisor = p->normalize ? denominator : 1;
    const real factor = (real)ejki_dropout_factor(p->dropout);
    for (int64_t j = 0; j < p->keys; j++)
        z[j] = z[j] == -(real)INFINITY || !keeps(p, row, j) ? HIDDEN
                                                            : expl(z[j] - base) / divisor * factor;
    for (int64_t d = 0; d < p->value_dim; d++) {
        real total = isnan(sum) ? (real)NAN : 0, spread = 0; /* even if all of a row is dropped */
        for (int64_t j = 0; j < p->keys; j++) {
            if (z[j] == HIDDEN) continue;
            const real term = z[j] * (real)kv_at(p, &p->value, row, j, d);
            total += term;
            spread += fabsl(term);
        }
        exact->out[row->out + d] = (double)total;
        o->spread[row->out + d] = (double)spread;
    }
}

/* ---- Naive: each operation rounded to f64 or f32, weights and outputs to the type ----------------- */

/* Sums and products of two floats are exact enough in double that rounding them once more changes nothing. */
static double rounded(const ejki_flash_problem *p, double value) {
    return p->dtype == EJK_DTYPE_F64 ? value : (double)(float)value;
}

static double rounded_to(ejk_dtype dtype, double value) {
    double place;
    flash_store(dtype, &place, 0, value);
    return flash_load(dtype, &place, 0);
}

/*
 * Orders of the same arithmetic, by bits: sums backwards, with the scale multiplied into the query first; sums from
 * their middle on; products added without being rounded and scores in base 2, as kernels have them.
 */
enum { BACKWARDS = 1, FROM_MIDDLE = 2, FUSED = 4 };

/* Of natural scores in those of an order. */
static double unit_of(int order) {
    return order & FUSED ? 1.4426950408889634 : 1;
}

static int64_t ordered(int order, int64_t n, int64_t count) {
    int64_t at = order & FROM_MIDDLE ? n + count / 2 : n;
    if (at >= count) at -= count;
    return order & BACKWARDS ? count - 1 - at : at;
}

static double naive_score(const ejki_flash_problem *p, const struct row *row, int64_t j,
                          int order) {
    const bool backwards = order & BACKWARDS, fused = order & FUSED;
    const double unit = unit_of(order), cap = rounded(p, p->soft_cap);
    const double scale = rounded(p, p->soft_cap != 0 ? p->scale : p->scale * unit);
    double z = 0;
    for (int64_t n = 0; n < p->head_dim; n++) {
        const int64_t d = ordered(order, n, p->head_dim);
        double q = query_at(p, row, d);
        if (backwards) q = rounded(p, q * scale);
        const double term = q * kv_at(p, &p->key, row, j, d);
        z = rounded(p, z + (fused ? term : rounded(p, term)));
    }
    if (!backwards) z = rounded(p, z * scale);
    if (p->soft_cap != 0)
        z = rounded(p, rounded(p, p->soft_cap * unit) * rounded(p, tanh(rounded(p, z / cap))));
    return rounded(p, z + rounded(p, bias_at(p, row, j) * unit));
}

static double naive_weight(const ejki_flash_problem *p, double z, double top, double unit) {
    return z == -INFINITY ? 0 : rounded(p, exp(rounded(p, z - top) / unit));
}

static double naive_sink(const ejki_flash_problem *p, const struct row *row, int64_t n,
                         double unit) {
    return rounded(p, sink_at(p, row, n) * unit);
}

static void naive_row(struct flash_values *out, const ejki_flash_problem *p, const struct row *row,
                      int order, double *z) {
    const double unit = unit_of(order);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        z[j] = -INFINITY;
        if (flash_visible(p, row->b, row->h, row->i, j)) z[j] = naive_score(p, row, j, order);
        top = fmax(top, z[j]);
    }
    double all_top = top;
    for (int64_t n = 0; p->has_sinks && n < p->sink_count; n++)
        all_top = fmax(all_top, naive_sink(p, row, n, unit));
    const double base = p->normalize ? all_top : top;
    for (int64_t n = 0; n < p->keys; n++) {
        const int64_t j = ordered(order, n, p->keys);
        z[j] = naive_weight(p, z[j], base, unit);
        sum = rounded(p, sum + z[j]);
    }
    double denominator = p->normalize ? sum : rounded(p, sum * naive_weight(p, top, all_top, unit));
    for (int64_t n = 0; p->has_sinks && n < p->sink_count; n++)
        denominator =
            rounded(p, denominator + naive_weight(p, naive_sink(p, row, n, unit), all_top, unit));
    for (int64_t d = 0; d < p->value_dim; d++) {
        double total = 0;
        for (int64_t n = 0; n < p->keys; n++) {
            const int64_t j = ordered(order, n, p->keys);
            if (z[j] != 0 && keeps(p, row, j))
                total = rounded(p, total + rounded(p, rounded_to(p->dtype, z[j]) *
                                                          kv_at(p, &p->value, row, j, d)));
        }
        if (p->normalize) total = sum == 0 ? 0 : rounded(p, total / denominator);
        if (p->dropout > 0) total = rounded(p, total * ejki_dropout_factor(p->dropout));
        out->out[row->out + d] = rounded_to(p->normalize ? p->dtype : EJK_DTYPE_F32, total);
    }
    out->lse[row->index] = (double)(float)(all_top / unit + log(denominator));
    out->row_max[row->index] = (double)(float)(top / unit);
    out->row_sum[row->index] = (double)(float)sum;
}

static struct row row_of(const struct flash_oracle *o, int64_t index) {
    const ejki_flash_problem *p = &o->problem;
    return (struct row){.b = index / (p->query_heads * p->queries),
                        .h = index / p->queries % p->query_heads,
                        .i = index % p->queries,
                        .index = index,
                        .out = index * p->value_dim};
}

/* Evaluates in the next order. */
static void naive_rows(struct flash_oracle *o) {
    const int order = o->orders++;
    double *z = doubles(o->problem.keys);
    o->naive[order] = values_create(o->rows, o->outs);
    for (int64_t index = 0; index < o->rows; index++) {
        const struct row row = row_of(o, index);
        naive_row(&o->naive[order], &o->problem, &row, order, z);
    }
    free(z);
}

void flash_oracle_create(struct flash_oracle *o, const ejki_flash_problem *p) {
    const int64_t rows = p->batch * p->query_heads * p->queries, outs = rows * p->value_dim;
    *o = (struct flash_oracle){.problem = *p, .rows = rows, .outs = outs};
    o->exact = values_create(rows, outs);
    o->spread = doubles(outs);
    real *z = calloc((size_t)p->keys + 1, sizeof *z);
    if (!z) abort();
    for (int64_t index = 0; index < rows; index++) {
        const struct row row = row_of(o, index);
        exact_row(o, p, &row, z);
    }
    free(z);
    naive_rows(o);
    naive_rows(o);
}

void flash_oracle_destroy(struct flash_oracle *o) {
    flash_values_release(&o->exact);
    for (int i = 0; i < o->orders; i++) flash_values_release(&o->naive[i]);
    free(o->spread);
}

/* ---- Comparing ------------------------------------------------------------------------------------ */

struct norms {
    double squares; /* of which the Frobenius norm is the root */
    double frobenius, largest;
};

static void add(struct norms *norms, double value) {
    norms->squares += value * value;
    norms->frobenius = sqrt(norms->squares);
    norms->largest = fmax(norms->largest, fabs(value));
}

/* One of the results. */
struct result {
    const char *name;
    const double *exact, *naive[FLASH_ORDERS], *got, *spread;
    int64_t count;
    double eps;
    ejk_dtype dtype;
    enum { ELEMENT, LOG_SUM, MAXIMUM, SUM } kind;
    double relative_to; /* what eps is multiplied by: 1, or 1 + the largest |row_max| */
};

/*
 * What is not finite has to be so in the same way. In a row with a NaN or +inf among its scores, every
 * element is NaN, sums of exponentials are NaN or +inf, depending on how they are arrived at, and a maximum
 * may or may not have noticed the NaN.
 */
static bool same_kind(const struct result *r, double exact, double got) {
    if (exact == -INFINITY) return got == -INFINITY;
    if (r->kind == MAXIMUM && isnan(exact)) return true;
    if (r->kind != ELEMENT) return isnan(got) || got == INFINITY;
    return isnan(exact) ? isnan(got) : got == exact;
}

/*
 * Twice the naive error plus 4 eps, with three exceptions where the naive error says too little:
 * with few numbers it is a matter of luck, and eps counts relative to what is rounded, not to what remains
 * of it; with scores in the thousands the few rows with nearly equal scores decide, which is luck too;
 * without normalisation results are relative to row_max, and cannot be better known than it is in f32.
 */
static struct norms tolerance(const struct flash_oracle *o, const struct result *r,
                              const struct norms *size, const struct norms *spread,
                              const struct norms *naive) {
    double eps_f = 4 * r->eps * r->relative_to, eps_l = eps_f;
    if (o->rows < 16 || r->count < 64) {
        eps_f *= (1 + o->magnitude) * fmax(1, spread->frobenius / size->frobenius);
        eps_l *= (1 + o->magnitude) * fmax(1, spread->largest / size->largest);
    }
    const double times = o->magnitude > 1000 ? 4 : 2;
    /* Below the normal numbers of f16 all are the same distance apart. */
    const double least = r->dtype == EJK_DTYPE_F16 ? 0x1p-24 : 0;
    return (struct norms){
        .frobenius =
            times * naive->frobenius + eps_f * size->frobenius + least * sqrt((double)r->count),
        .largest = times * naive->largest + eps_l * size->largest + least,
    };
}

/* What is expected: beyond what an f16 holds, infinity. Where rounding decides, what there is. */
static double overflowed(ejk_dtype dtype, double exact, double got) {
    const double limit = 65520, size = fabs(exact);
    if (dtype != EJK_DTYPE_F16 || !(size > 0.999 * limit)) return exact;
    if (size < 1.001 * limit && (got > 0) == (exact > 0) && fabs(got) >= 0.99 * limit) return got;
    return size > limit ? copysign(INFINITY, exact) : exact;
}

static bool accepts(const struct flash_oracle *o, const struct result *r, double *worst, char *why,
                    size_t room) {
    if (!r->got) return true;
    /* An error of a logarithm is relative to 1: it stands for a factor. */
    const bool logarithm = r->kind == LOG_SUM || r->kind == MAXIMUM;
    struct norms size = {0}, spread = {0}, error = {0}, naive[FLASH_ORDERS] = {{0}};
    int64_t farthest = 0;
    for (int64_t n = 0; n < r->count; n++) {
        const double exact = overflowed(r->dtype, r->exact[n], r->got[n]);
        if (!isfinite(exact) || !isfinite(r->got[n])) {
            if (isfinite(exact) || !same_kind(r, exact, r->got[n])) {
                snprintf(why, room, "%s element %lld is %g, expected %g", r->name, (long long)n,
                         r->got[n], exact);
                return false;
            }
            continue;
        }
        if (fabs(r->got[n] - exact) > error.largest) farthest = n;
        add(&size, fmax(fabs(exact), logarithm ? 1 : 0));
        add(&spread, r->spread ? r->spread[n] : 0);
        add(&error, r->got[n] - exact);
        for (int i = 0; i < o->orders; i++) {
            const double other = rounded_to(r->dtype, r->naive[i][n]);
            if (isfinite(other)) add(&naive[i], other - exact);
        }
    }
    if (error.largest == 0) return true;
    for (int i = 1; i < o->orders; i++) {
        naive[0].frobenius = fmax(naive[0].frobenius, naive[i].frobenius);
        naive[0].largest = fmax(naive[0].largest, naive[i].largest);
    }
    const struct norms most = tolerance(o, r, &size, &spread, naive);
    const double used = fmax(error.frobenius / most.frobenius, error.largest / most.largest);
    if (used <= 1) {
        *worst = fmax(*worst, used);
        return true;
    }
    snprintf(
        why, room,
        "%s is off by %.3g of %.3g (allowed %.3g), largest %.3g (allowed %.3g); element %lld is "
        "%.9g, expected %.9g",
        r->name, error.frobenius, size.frobenius, most.frobenius, error.largest, most.largest,
        (long long)farthest, r->got[farthest], r->exact[farthest]);
    return false;
}

static double epsilon(ejk_dtype dtype) {
    switch (dtype) {
    case EJK_DTYPE_F64: return DBL_EPSILON;
    case EJK_DTYPE_BF16: return 0x1p-7;
    case EJK_DTYPE_F16: return 0x1p-10;
    default: return FLT_EPSILON;
    }
}

/* 1 + the largest finite |row_max|. */
static double largest_maximum(const struct flash_oracle *o) {
    double largest = 0;
    for (int64_t row = 0; row < o->rows; row++)
        if (isfinite(o->exact.row_max[row])) largest = fmax(largest, fabs(o->exact.row_max[row]));
    return 1 + largest;
}

/* Compares each result that is there. */
static bool accepts_all(const struct flash_oracle *o, const ejki_flash_problem *p,
                        const struct flash_values *got, double *worst, char *why, size_t size) {
    const struct flash_values *e = &o->exact;
    const ejk_dtype dtype = p->normalize ? p->dtype : EJK_DTYPE_F32;
    const double relative_to = p->normalize ? 1 : largest_maximum(o);
    struct result results[] = {
        {"out",
         e->out,
         {NULL},
         got->out,
         o->spread,
         o->outs,
         epsilon(dtype),
         dtype,
         ELEMENT,
         relative_to},
#define STATISTIC(x, kind, relative)                                                               \
    {#x, e->x, {NULL}, got->x, NULL, o->rows, FLT_EPSILON, EJK_DTYPE_F32, kind, relative}
        STATISTIC(lse, LOG_SUM, 1),
        STATISTIC(row_max, MAXIMUM, 1),
        STATISTIC(row_sum, SUM, relative_to),
    };
    for (int i = 0; i < o->orders; i++) {
        const struct flash_values *naive = &o->naive[i];
        const double *const values[] = {naive->out, naive->lse, naive->row_max, naive->row_sum};
        for (size_t k = 0; k < sizeof results / sizeof results[0]; k++)
            results[k].naive[i] = values[k];
    }
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (!accepts(o, &results[i], worst, why, size)) return false;
    return true;
}

bool flash_oracle_accepts(struct flash_oracle *o, const ejki_flash_problem *p,
                          const struct flash_values *got, double *worst, char *why, size_t size) {
    if (accepts_all(o, p, got, worst, why, size)) return true;
    if (o->orders == FLASH_ORDERS) return false;
    while (o->orders < FLASH_ORDERS) naive_rows(o);
    return accepts_all(o, p, got, worst, why, size);
}

/* Bytes of a result as doubles; NULL stays NULL. */
static double *widened(const struct flash_written *w, int result, ejk_dtype dtype) {
    if (!w->bytes[result]) return NULL;
    const int64_t count = w->rows * (int64_t)(w->row[result] / ejk_dtype_size(dtype));
    double *values = malloc((size_t)count * sizeof *values + 1);
    if (!values) abort();
    for (int64_t i = 0; i < count; i++) values[i] = flash_load(dtype, w->bytes[result], i);
    return values;
}

bool flash_oracle_accepts_written(struct flash_oracle *oracle, const ejki_flash_problem *p,
                                  const struct flash_written *written, double *worst, char *why,
                                  size_t size) {
    struct flash_values got = {
        .out = widened(written, 0, p->normalize ? p->dtype : EJK_DTYPE_F32),
        .lse = widened(written, 1, EJK_DTYPE_F32),
        .row_max = widened(written, 2, EJK_DTYPE_F32),
        .row_sum = widened(written, 3, EJK_DTYPE_F32),
    };
    const bool accepted = flash_oracle_accepts(oracle, p, &got, worst, why, size);
    free(got.out);
    free(got.lse);
    free(got.row_max);
    free(got.row_sum);
    return accepted;
}
