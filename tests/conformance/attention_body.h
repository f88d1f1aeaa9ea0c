/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by its formulas, row by row, in one precision: REAL, with REAL_EXP and so on; NAME(x) names what is
 * defined. With REAL_EXACT nothing is rounded to the type of the call, and sizes of terms are measured; else weights
 * and score gradients are rounded to it before they are multiplied, and `order` says how sums run.
 */
#include "conformance/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t NAME(ordered)(int order, int64_t n, int64_t count) {
    int64_t at = order & FROM_MIDDLE ? n + count / 2 : n;
    if (at >= count) at -= count;
    return order & BACKWARDS ? count - 1 - at : at;
}

static REAL NAME(rounded)(const struct call *c, REAL value) {
    if (REAL_EXACT || c->dtype == EJK_DTYPE_F64 || c->dtype == EJK_DTYPE_F32) return value;
    double place;
    element_store(c->dtype, &place, 0, (double)value);
    return (REAL)element_load(c->dtype, &place, 0);
}

static REAL NAME(sum_with)(int order, REAL sum, REAL a, REAL b) {
    return order & FUSED ? REAL_FMA(a, b, sum) : sum + a * b;
}

/* Of natural scores in those of an order. */
static REAL NAME(unit_of)(int order) {
    return order & FUSED ? (REAL)1.4426950408889634 : 1;
}

struct NAME(row) {
    struct call *c;
    const struct attention *a;
    int order;
    int64_t b, i, h;
    const double *q;     /* of the row */
    const uint8_t *seen; /* of its keys */
    REAL *z;             /* of its keys: scores, then weights */
};

static const double *NAME(key_row)(const struct NAME(row) * r, const double *of, int64_t j,
                                   int64_t width) {
    const struct attention *a = r->a;
    return of + ((r->b * a->keys + j) * a->kv_heads + r->h / a->group) * width;
}

/* Score of a key in units of the order; *slope is its derivative by what the cap is given. */
static REAL NAME(score)(const struct NAME(row) * r, int64_t j, REAL unit, REAL *slope) {
    const struct attention *a = r->a;
    const bool backwards = (r->order & BACKWARDS) != 0;
    const double cap = a->cap.set ? a->cap.value : 0;
    const REAL scale = cap > 0 ? (REAL)attention_scale(a) : (REAL)attention_scale(a) * unit;
    const double *k = NAME(key_row)(r, a->k, j, a->dim);
    REAL z = 0, size = 0;
    for (int64_t n = 0; n < a->dim; n++) {
        const int64_t d = NAME(ordered)(r->order, n, a->dim);
        REAL q = (REAL)r->q[d];
        if (backwards) q *= scale;
        z = NAME(sum_with)(r->order, z, q, (REAL)k[d]);
        if (REAL_EXACT) size += REAL_ABS(q * scale * (REAL)k[d]);
    }
    if (!backwards) z *= scale;
    *slope = 1;
    if (cap > 0) {
        const REAL t = REAL_TANH(z / (REAL)cap);
        z = (REAL)cap * unit * t;
        *slope = 1 - t * t;
    }
    if (a->b) {
        const REAL bias = (REAL)a->b[attention_bias(a, r->b, r->h, r->i) + j];
        z += bias * unit;
        if (REAL_EXACT && isfinite(bias)) size += REAL_ABS(bias);
    }
    if (REAL_EXACT && isfinite(size)) r->c->magnitude = fmax(r->c->magnitude, (double)size);
    return z;
}

/* The weight that arithmetic gives a score beside the largest, except that -inf beside -inf is 0. */
static REAL NAME(weight)(REAL z, REAL top, REAL unit) {
    return isinf(z) && z < 0 ? 0 : REAL_EXP((z - top) / unit);
}

static REAL NAME(larger)(REAL top, REAL z) {
    return isnan(top) || isnan(z) ? (REAL)NAN : z > top ? z : top;
}

/* ---- Forward ----------------------------------------------------------------------------------------- */

/* Online softmax need not take each new maximum: in some orders weights are rounded relative to a number below it. */
static REAL NAME(rounded_weight)(const struct NAME(row) * r, REAL weight) {
    const bool below = r->order & FUSED && ejk_dtype_size(r->c->dtype) == 2 && !REAL_EXACT;
    const REAL by = below ? (REAL)1.4142135623730951 : 1;
    return NAME(rounded)(r->c, weight * by) / by;
}

/* Weighted values of a row whose z are weights relative to the base. */
static void NAME(values)(const struct NAME(row) * r, bool is_nan, REAL divisor, double *out,
                         double *spread) {
    const struct attention *a = r->a;
    const REAL factor = a->dropout > 0 ? (REAL)(1 / (1 - a->dropout)) : 1;
    REAL *total = calloc((size_t)a->value_dim * 2 + 1, sizeof *total), *size = total + a->value_dim;
    if (!total) abort();
    for (int64_t n = 0; n < a->keys; n++) {
        const int64_t j = NAME(ordered)(r->order, n, a->keys);
        if (r->z[j] == 0 || !(r->seen[j] & KEPT)) continue;
        const REAL w = NAME(rounded_weight)(r, r->z[j]);
        const double *v = NAME(key_row)(r, a->v, j, a->value_dim);
        for (int64_t d = 0; d < a->value_dim; d++) {
            const REAL term = w * (REAL)v[d];
            total[d] += term;
            if (REAL_EXACT) size[d] += REAL_ABS(term);
        }
    }
    const REAL by = a->normalize && divisor != 0 ? divisor : 1;
    for (int64_t d = 0; d < a->value_dim; d++) {
        /* Even if all of a row is dropped. */
        const REAL value = (is_nan ? (REAL)NAN : total[d]) / by;
        out[d] = (double)(a->dropout > 0 ? value * factor : value);
        if (REAL_EXACT && spread) spread[d] = (double)(size[d] / by * factor);
    }
    free(total);
}

static void NAME(forward_row)(const struct NAME(row) * r, const struct attention_results *to) {
    const struct attention *a = r->a;
    const REAL unit = NAME(unit_of)(r->order);
    const int64_t sinks = attention_sinks(a, r->b, r->i),
                  sink = sinks ? attention_sink(a, r->h) : 0;
    const int64_t at = attention_row(a, a->queries, a->heads, r->b, r->i, r->h);
    const int64_t row = (r->b * a->heads + r->h) * a->queries + r->i;
    REAL top = -(REAL)INFINITY, sum = 0, slope;
    bool lost =
        false; /* beside a score of +inf others have a weight of 0 or, divided by NaN, none */
    for (int64_t j = 0; j < a->keys; j++) {
        r->z[j] = -(REAL)INFINITY;
        if (!(r->seen[j] & SHOWN)) continue;
        r->z[j] = NAME(score)(r, j, unit, &slope);
        top = NAME(larger)(top, r->z[j]);
        lost = lost || (isinf(r->z[j]) && r->z[j] > 0);
    }
    REAL all_top = top;
    for (int64_t n = 0; n < sinks; n++)
        all_top = NAME(larger)(all_top, (REAL)a->s[sink + n] * unit);
    const REAL base = a->normalize ? all_top : top;
    for (int64_t n = 0; n < a->keys; n++) {
        const int64_t j = NAME(ordered)(r->order, n, a->keys);
        r->z[j] = NAME(weight)(r->z[j], base, unit);
        sum += r->z[j];
    }
    REAL denominator = a->normalize ? sum : sum * NAME(weight)(top, all_top, unit);
    for (int64_t n = 0; n < sinks; n++)
        denominator += NAME(weight)((REAL)a->s[sink + n] * unit, all_top, unit);
    if (to->lse) to->lse[row] = (double)(all_top / unit + REAL_LOG(denominator));
    if (to->row_max) to->row_max[row] = (double)(top / unit);
    if (to->row_sum) to->row_sum[row] = (double)sum;
    const REAL factor = a->dropout > 0 ? (REAL)(1 / (1 - a->dropout)) : 1;
    for (int64_t j = 0; to->weights && j < a->keys; j++)
        to->weights[row * a->keys + j] = !(r->seen[j] & KEPT) ? 0
                                         : lost               ? (double)INFINITY
                                         : r->z[j] == 0       ? 0
                                                        : (double)(r->z[j] / denominator * factor);
    if (!to->out) return;
    double *spread = to->out_spread ? to->out_spread + at * a->value_dim : NULL;
    NAME(values)(r, isnan(sum), denominator, to->out + at * a->value_dim, spread);
}

static struct NAME(row)
    NAME(row_of)(struct call *c, const struct attention *a, int order, int64_t n, REAL *z) {
    struct NAME(row) r = {.c = c, .a = a, .order = order, .z = z};
    r.b = n / (a->heads * a->queries);
    r.h = n / a->queries % a->heads;
    r.i = n % a->queries;
    r.q = a->q + ((r.b * a->queries + r.i) * a->heads + r.h) * a->dim;
    r.seen = a->seen + n * a->keys;
    return r;
}

void NAME(forward)(struct call *c, const struct attention *a, int order,
                   const struct attention_results *to) {
    REAL *z = calloc((size_t)a->keys + 1, sizeof *z);
    if (!z) abort();
    for (int64_t n = 0; n < a->batch * a->heads * a->queries; n++) {
        const struct NAME(row) r = NAME(row_of)(c, a, order, n, z);
        NAME(forward_row)(&r, to);
    }
    free(z);
}

/* ---- Backward ---------------------------------------------------------------------------------------- */

enum { NAME(QUERY), NAME(KEY), NAME(VALUE), NAME(BIAS), NAME(SINKS), NAME(GRADIENTS) };

struct NAME(sums) {
    REAL *d[5], *spread[5]; /* spread only where REAL_EXACT */
    int64_t count[5];
};

static void NAME(term)(struct NAME(sums) * s, int which, int64_t at, REAL term, REAL size) {
    s->d[which][at] += term;
    if (REAL_EXACT && isfinite(size)) s->spread[which][at] += REAL_ABS(size);
}

/* <cotangent, out> less that of the logarithm. */
static REAL NAME(delta)(const struct NAME(row) * r, const double *d_out) {
    const struct attention *a = r->a;
    const int64_t at = (r->b * a->queries + r->i) * a->heads + r->h;
    const double *out = (REAL_EXACT ? a->exact_out : a->given_out) + at * a->value_dim;
    REAL delta = 0;
    for (int64_t n = 0; n < a->value_dim; n++) {
        const int64_t d = NAME(ordered)(r->order, n, a->value_dim);
        delta = NAME(sum_with)(r->order, delta, (REAL)d_out[d], (REAL)out[d]);
    }
    if (a->c_lse) delta -= (REAL)a->c_lse[(r->b * a->heads + r->h) * a->queries + r->i];
    return delta;
}

/* What one visible pair adds everywhere. `size` stands for dz before anything cancels. */
static void NAME(pair)(const struct NAME(row) * r, struct NAME(sums) * s, int64_t j, REAL kept,
                       REAL dz, REAL size, REAL slope, const double *d_out) {
    const struct attention *a = r->a;
    const REAL scale = (REAL)attention_scale(a), w = NAME(rounded)(r->c, kept);
    const int64_t query = attention_row(a, a->queries, a->heads, r->b, r->i, r->h);
    const int64_t key = attention_row(a, a->keys, a->kv_heads, r->b, j, r->h / a->group);
    const double *k = NAME(key_row)(r, a->k, j, a->dim);
    for (int64_t d = 0; d < a->value_dim && kept != 0; d++) {
        const REAL term = w * (REAL)d_out[d];
        NAME(term)(s, NAME(VALUE), key * a->value_dim + d, term, term);
    }
    if (a->b) NAME(term)(s, NAME(BIAS), attention_bias(a, r->b, r->h, r->i) + j, dz, size);
    /* A kernel may make dS of weights as they were rounded, and multiply by the scale when it has the sums. */
    const bool other = !REAL_EXACT && r->order & FUSED;
    const REAL own = other && kept != 0 ? dz * (w / kept) : dz;
    const REAL before = other ? 1 : scale, after = other ? scale : 1;
    const REAL dx = NAME(rounded)(r->c, before * (own * slope)) * after, most = scale * size;
    for (int64_t d = 0; d < a->dim; d++) {
        const REAL kd = (REAL)k[d], qd = (REAL)r->q[d];
        /* Behind a cap that an infinity has driven to its end there is 0 times infinity. */
        const bool capped = REAL_EXACT && dx == 0 && isinf(kd);
        NAME(term)
        (s, NAME(QUERY), query * a->dim + d, capped ? (REAL)INFINITY : dx * kd, most * kd);
        NAME(term)(s, NAME(KEY), key * a->dim + d, dx * qd, most * qd);
    }
}

/*
 * A row with NaN or +inf among its scores. What makes it so has gradients that are not finite, and so has its query;
 * those of its other keys depend on how the row's sum is arrived at, which infinity stands for.
 */
static void NAME(lost_row)(const struct NAME(row) * r, struct NAME(sums) * s) {
    const struct attention *a = r->a;
    const int64_t query = attention_row(a, a->queries, a->heads, r->b, r->i, r->h);
    const int64_t sinks = attention_sinks(a, r->b, r->i),
                  sink = sinks ? attention_sink(a, r->h) : 0;
    for (int64_t d = 0; d < a->dim; d++) s->d[NAME(QUERY)][query * a->dim + d] = (REAL)NAN;
    for (int64_t n = 0; n < sinks; n++) s->d[NAME(SINKS)][sink + n] += (REAL)INFINITY;
    for (int64_t j = 0; j < a->keys; j++) {
        const int64_t key = attention_row(a, a->keys, a->kv_heads, r->b, j, r->h / a->group);
        REAL slope;
        if (!(r->seen[j] & SHOWN)) continue;
        const REAL z = NAME(score)(r, j, 1, &slope);
        const REAL what = isfinite(z) || z < 0 ? (REAL)INFINITY : (REAL)NAN;
        for (int64_t d = 0; d < a->dim; d++) s->d[NAME(KEY)][key * a->dim + d] += what;
        for (int64_t d = 0; d < a->value_dim && r->seen[j] & KEPT; d++)
            s->d[NAME(VALUE)][key * a->value_dim + d] += what;
        if (a->b) s->d[NAME(BIAS)][attention_bias(a, r->b, r->h, r->i) + j] += what;
    }
}

static int64_t NAME(backward_row)(const struct NAME(row) * r, struct NAME(sums) * s) {
    const struct attention *a = r->a;
    const int64_t at = (r->b * a->queries + r->i) * a->heads + r->h;
    const double *logs = REAL_EXACT ? a->exact_lse : a->given_lse;
    const REAL lse = (REAL)logs[(r->b * a->heads + r->h) * a->queries + r->i];
    if (isinf(lse) && lse < 0) return 0;
    if (REAL_EXACT && !isfinite(lse)) {
        NAME(lost_row)(r, s);
        return 0;
    }
    const double *d_out = a->c_out + at * a->value_dim;
    const REAL delta = NAME(delta)(r, d_out);
    const REAL factor = a->dropout > 0 ? (REAL)(1 / (1 - a->dropout)) : 1;
    int64_t pairs = 0;
    for (int64_t n = 0; n < a->keys; n++) {
        const int64_t j = NAME(ordered)(r->order, n, a->keys);
        if (!(r->seen[j] & SHOWN)) continue;
        REAL slope, product = 0, size = 0;
        /* Scores of gradients are natural ones in every order. */
        const REAL weight = REAL_EXP(NAME(score)(r, j, 1, &slope) - lse);
        const REAL m = r->seen[j] & KEPT ? factor : 0;
        const double *v = NAME(key_row)(r, a->v, j, a->value_dim);
        pairs++;
        if (weight == 0) continue;
        for (int64_t e = 0; e < a->value_dim && m != 0; e++) {
            const int64_t d = NAME(ordered)(r->order, e, a->value_dim);
            product = NAME(sum_with)(r->order, product, (REAL)d_out[d], (REAL)v[d]);
            if (REAL_EXACT) size += REAL_ABS((REAL)d_out[d] * (REAL)v[d]);
        }
        NAME(pair)
        (r, s, j, weight * m, weight * (m * product - delta), weight * (m * size + REAL_ABS(delta)),
         slope, d_out);
    }
    const int64_t sinks = attention_sinks(a, r->b, r->i),
                  sink = sinks ? attention_sink(a, r->h) : 0;
    for (int64_t n = 0; n < sinks; n++) {
        const REAL term = -REAL_EXP((REAL)a->s[sink + n] - lse) * delta;
        NAME(term)(s, NAME(SINKS), sink + n, term, term);
    }
    return pairs;
}

static void NAME(put)(const REAL *from, double *to, int64_t count) {
    for (int64_t n = 0; to && n < count; n++) to[n] = (double)from[n];
}

void NAME(backward)(struct call *c, const struct attention *a, int order,
                    const struct attention_results *to) {
    const int64_t rows = a->batch * a->heads * a->queries;
    struct NAME(sums) s = {.count = {a->batch * a->queries * a->heads * a->dim,
                                     a->batch * a->keys * a->kv_heads * a->dim,
                                     a->batch * a->keys * a->kv_heads * a->value_dim,
                                     a->b ? ejk_tensor_count(&a->bias) : 0,
                                     a->s ? ejk_tensor_count(&a->sinks) : 0}};
    REAL *z = calloc((size_t)a->keys + 1, sizeof *z);
    int64_t pairs = 0;
    for (int i = 0; i < 5; i++) {
        s.d[i] = calloc((size_t)s.count[i] + 1, sizeof *z);
        s.spread[i] = calloc(REAL_EXACT ? (size_t)s.count[i] + 1 : 1, sizeof *z);
        if (!z || !s.d[i] || !s.spread[i]) abort();
    }
    for (int64_t n = 0; n < rows; n++) {
        const struct NAME(row) r = NAME(row_of)(c, a, order, NAME(ordered)(order, n, rows), z);
        pairs += NAME(backward_row)(&r, &s);
    }
    if (REAL_EXACT && pairs < 4 * rows) c->scarce = true;
    for (int i = 0; i < 5; i++) {
        NAME(put)(s.d[i], to->d[i], s.count[i]);
        NAME(put)(s.spread[i], REAL_EXACT ? to->d_spread[i] : NULL, s.count[i]);
        free(s.d[i]);
        free(s.spread[i]);
    }
    free(z);
}
