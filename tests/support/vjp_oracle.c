/* SPDX-License-Identifier: Apache-2.0 */
#include "support/vjp_oracle.h"
#include "support/flash_run.h"

#include "kernels/registry/builtin.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/shared/sequences.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static double *doubles(int64_t count) {
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory) abort();
    return memory;
}

/* ---- Exact: the reference on the problem in f64 ----------------------------------------------------- */

static double *widened_bthd(ejk_dtype dtype, ejki_bthd *view, int64_t batch, int64_t n,
                            int64_t heads, int64_t width) {
    double *data = doubles(batch * n * heads * width), *at = data;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < width; d++)
                    *at++ = flash_load(dtype, view->data,
                                       b * view->stride_b + i * view->stride_t +
                                           h * view->stride_h + d);
    *view = (ejki_bthd){data, n * heads * width, heads * width, width};
    return data;
}

/* As many elements as the strides reach; axes that are broadcast have stride 0. */
static double *widened_bias(ejk_dtype dtype, ejki_flash_problem *p) {
    double *data = doubles(p->batch * p->query_heads * p->queries * p->keys), *at = data;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->query_heads; h++)
            for (int64_t i = 0; i < p->queries; i++)
                for (int64_t j = 0; j < p->keys; j++)
                    *at++ = flash_load(dtype, p->bias.data,
                                       b * p->bias.stride_b + h * p->bias.stride_h +
                                           i * p->bias.stride_t + j);
    p->bias =
        (ejki_bhts){data, p->query_heads * p->queries * p->keys, p->queries * p->keys, p->keys};
    return data;
}

static void exact_gradients(struct vjp_oracle *o, const struct vjp_case *c) {
    ejki_flash_vjp_problem v = c->problem;
    ejki_flash_problem *p = &v.forward;
    const ejk_dtype dtype = p->dtype;
    p->dtype = EJK_DTYPE_F64;
    double *memory[6] = {NULL};
    const int64_t entries = c->entries;
    memory[0] = widened_bthd(dtype, &p->query, entries, p->queries, p->query_heads, p->head_dim);
    memory[1] = widened_bthd(dtype, &p->key, entries, p->keys, p->kv_heads, p->head_dim);
    memory[2] = widened_bthd(dtype, &p->value, entries, p->keys, p->kv_heads, p->value_dim);
    memory[3] =
        widened_bthd(dtype, &v.out_cotangent, entries, p->queries, p->query_heads, p->value_dim);
    if (p->has_bias) memory[4] = widened_bias(dtype, p);
    if (p->has_sinks) {
        const int64_t reach = (c->rows[VJP_SINKS] - 1) * p->sink_stride_h + p->sink_count;
        memory[5] = doubles(c->rows[VJP_SINKS] > 0 ? reach : 0);
        for (int64_t n = 0; c->rows[VJP_SINKS] > 0 && n < reach; n++)
            memory[5][n] = flash_load(dtype, p->sinks, n);
        p->sinks = memory[5];
    }
    v.d_query = (ejki_bthd){o->exact[VJP_QUERY], p->queries * p->query_heads * p->head_dim,
                            p->query_heads * p->head_dim, p->head_dim};
    v.d_key = (ejki_bthd){o->exact[VJP_KEY], p->keys * p->kv_heads * p->head_dim,
                          p->kv_heads * p->head_dim, p->head_dim};
    v.d_value = (ejki_bthd){o->exact[VJP_VALUE], p->keys * p->kv_heads * p->value_dim,
                            p->kv_heads * p->value_dim, p->value_dim};
    const struct flash_traits *t = &c->forward.traits;
    const int64_t queries = t->bias_queries ? p->queries : 1,
                  heads = t->bias_heads ? p->query_heads : 1;
    v.d_bias = (ejki_bias_gradient){
        o->exact[VJP_BIAS], v.d_bias.stride_b ? heads * queries * p->keys : 0,
        v.d_bias.stride_h ? queries * p->keys : 0, v.d_bias.stride_t ? p->keys : 0};
    v.d_sinks = o->exact[VJP_SINKS];
    v.d_sink_stride_h = p->sink_stride_h ? p->sink_count : 0;
    v.wants_query = v.wants_key = v.wants_value = true;
    v.wants_bias = p->has_bias;
    v.wants_sinks = p->has_sinks;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (strcasecmp(e->algorithm, "flash_attention_vjp") != 0 ||
            strcmp(e->name, "f64/reference") != 0)
            continue;
        ejk_launch launch = {.workers = 1};
        if (e->prepare(&v, NULL, 1, &launch) != EJK_OK) abort();
        ejk_run run = {.problem = &v, .workers = 1};
        run.workspace = aligned_alloc(64, (launch.workspace_bytes + 127) / 64 * 64);
        if (!run.workspace || e->run(&run) != EJK_OK) abort();
        free(run.workspace);
    }
    for (int i = 0; i < 6; i++) free(memory[i]);
}

/* ---- Naive: each operation rounded to f32, weights, dS and results to the type ------------------- */

struct naive {
    const struct vjp_case *c;
    const ejki_flash_vjp_problem *v; /* of the row's sequence */
    struct vjp_oracle *o;
    double **to;
    bool backwards, from_middle, fused; /* sums; products are added without being rounded */
    bool measures;                      /* adds to spread and magnitude too */
    int64_t sequence, h, i;
    int64_t query, key; /* the sequence's first, among those of all */
};

static int64_t ordered(const struct naive *n, int64_t k, int64_t count) {
    int64_t at = n->from_middle ? k + count / 2 : k;
    if (at >= count) at -= count;
    return n->backwards ? count - 1 - at : at;
}

static float sum_with(const struct naive *n, float sum, float a, float b) {
    return n->fused ? fmaf(a, b, sum) : sum + a * b;
}

static ejk_dtype type_of(const struct naive *n) {
    return n->c->problem.forward.dtype;
}

static float load(const struct naive *n, const void *data, int64_t index) {
    return (float)flash_load(type_of(n), data, index);
}

static float element(const struct naive *n, const ejki_bthd *view, int64_t t, int64_t h,
                     int64_t d) {
    return load(n, view->data, t * view->stride_t + h * view->stride_h + d);
}

static float row_at(const struct naive *n, const ejki_bthd *view, int64_t d) {
    return element(n, view, n->i, n->h, d);
}

static float key_at(const struct naive *n, const ejki_bthd *view, int64_t j, int64_t d) {
    return element(n, view, j, n->h / n->v->forward.group, d);
}

static float rounded(ejk_dtype dtype, float value) {
    uint16_t bits[2];
    if (dtype == EJK_DTYPE_F32) return value;
    flash_store(dtype, bits, 0, (double)value);
    return (float)flash_load(dtype, bits, 0);
}

static void add(const struct naive *n, int gradient, int64_t index, float term) {
    double *sum = n->to[gradient] + index;
    *sum = (double)((float)*sum + term);
}

static float naive_score(const struct naive *n, int64_t j, float *slope) {
    const ejki_flash_problem *p = &n->v->forward;
    const float scale = (float)p->scale, cap = (float)p->soft_cap;
    float z = 0, size = 0;
    for (int64_t k = 0; k < p->head_dim; k++) {
        const int64_t d = ordered(n, k, p->head_dim);
        float q = row_at(n, &p->query, d);
        if (n->backwards) q *= scale;
        const float k_d = key_at(n, &p->key, j, d);
        z = sum_with(n, z, q, k_d);
        size += fabsf(q * k_d);
    }
    if (!n->backwards) z *= scale, size *= fabsf(scale);
    *slope = 1;
    if (p->soft_cap != 0) {
        const float t = tanhf(z / cap);
        z = cap * t;
        *slope = 1 - t * t;
    }
    if (p->has_bias) {
        const float bias =
            load(n, p->bias.data, n->h * p->bias.stride_h + n->i * p->bias.stride_t + j);
        z += bias;
        if (isfinite(bias)) size += fabsf(bias);
    }
    if (n->measures && isfinite(size)) n->o->magnitude = fmax(n->o->magnitude, (double)size);
    return z;
}

static float naive_delta(const struct naive *n) {
    const ejki_flash_vjp_problem *v = n->v;
    const ejki_flash_problem *p = &v->forward;
    float delta = 0;
    for (int64_t k = 0; k < p->value_dim; k++) {
        const int64_t d = ordered(n, k, p->value_dim);
        delta = sum_with(n, delta, row_at(n, &v->out_cotangent, d), row_at(n, &p->out, d));
    }
    if (v->has_lse_cotangent) {
        const ejki_bht *l = &v->lse_cotangent;
        delta -= l->data[n->h * l->stride_h + n->i * l->stride_t];
    }
    return delta;
}

static int64_t bias_place(const struct naive *n, int64_t j) {
    const ejki_flash_problem *p = &n->c->problem.forward;
    const struct flash_traits *t = &n->c->forward.traits;
    int64_t row = t->bias_batch ? n->sequence : 0;
    row = row * (t->bias_heads ? p->query_heads : 1) + (t->bias_heads ? n->h : 0);
    row = row * (t->bias_queries ? p->queries : 1) + (t->bias_queries ? n->i : 0);
    return row * p->keys + j;
}

static void spread(const struct naive *n, int gradient, int64_t index, float term) {
    if (n->measures && isfinite(term)) n->o->spread[gradient][index] += (double)fabsf(term);
}

/* What one visible pair adds everywhere. `size` stands for dz before anything cancels. */
static void naive_pair(const struct naive *n, int64_t j, float kept, float dz, float size,
                       float slope) {
    const ejki_flash_vjp_problem *v = n->v;
    const ejki_flash_problem *p = &v->forward;
    const float scale = (float)p->scale, rest = rounded(type_of(n), kept);
    const int64_t query = (n->query + n->i) * p->query_heads + n->h;
    const int64_t key = (n->key + j) * p->kv_heads + n->h / p->group;
    for (int64_t d = 0; d < p->value_dim; d++) {
        const float term = rest * row_at(n, &v->out_cotangent, d);
        if (kept != 0) add(n, VJP_VALUE, key * p->value_dim + d, term);
        spread(n, VJP_VALUE, key * p->value_dim + d, term);
    }
    if (p->has_bias) {
        add(n, VJP_BIAS, bias_place(n, j), dz);
        spread(n, VJP_BIAS, bias_place(n, j), size);
    }
    const float dx = rounded(type_of(n), scale * (dz * slope)), most = scale * size;
    for (int64_t d = 0; d < p->head_dim; d++) {
        const float k = key_at(n, &p->key, j, d), q = row_at(n, &p->query, d);
        add(n, VJP_QUERY, query * p->head_dim + d, dx * k);
        spread(n, VJP_QUERY, query * p->head_dim + d, most * k);
        add(n, VJP_KEY, key * p->head_dim + d, dx * q);
        spread(n, VJP_KEY, key * p->head_dim + d, most * q);
    }
}

static void naive_row(const struct naive *n) {
    const ejki_flash_vjp_problem *v = n->v;
    const ejki_flash_problem *p = &v->forward;
    const float lse = p->lse.data[n->h * p->lse.stride_h + n->i * p->lse.stride_t];
    if (lse == -INFINITY) return;
    const float delta = naive_delta(n), factor = (float)ejki_dropout_factor(p->dropout);
    for (int64_t k = 0; k < p->keys; k++) {
        const int64_t j = ordered(n, k, p->keys);
        if (!flash_visible(p, 0, n->h, n->i, j)) continue;
        float slope, product = 0, size = 0;
        const float score = naive_score(n, j, &slope);
        const float weight = score == -INFINITY ? 0 : expf(score - lse);
        n->o->pairs += n->measures;
        if (weight == 0) continue;
        const float m = p->dropout == 0 ? 1 : ejki_dropout_keeps(p, 0, n->h, n->i, j) ? factor : 0;
        for (int64_t e = 0; e < p->value_dim && m != 0; e++) {
            const int64_t d = ordered(n, e, p->value_dim);
            const float a = row_at(n, &v->out_cotangent, d), b = key_at(n, &p->value, j, d);
            product = sum_with(n, product, a, b);
            size += fabsf(a * b);
        }
        naive_pair(n, j, weight * m, weight * (m * product - delta),
                   weight * (m * size + fabsf(delta)), slope);
    }
    const int64_t head = p->sink_stride_h == 0 ? 0 : n->h / p->sink_group;
    for (int64_t s = 0; p->has_sinks && s < p->sink_count; s++) {
        const float sink = load(n, p->sinks, head * p->sink_stride_h + s);
        const float term = -expf(sink - lse) * delta;
        add(n, VJP_SINKS, head * p->sink_count + s, term);
        spread(n, VJP_SINKS, head * p->sink_count + s, term);
    }
}

/* Evaluates in the next order. */
static void naive_gradients(struct vjp_oracle *o) {
    const struct vjp_case *c = o->c;
    const ejki_flash_problem *p = &c->problem.forward;
    const int order = o->orders++;
    struct naive n = {.c = c,
                      .o = o,
                      .to = o->naive[order],
                      .backwards = order & 1,
                      .from_middle = order & 2,
                      .fused = order & 4,
                      .measures = order == 0};
    for (int i = 0; i < VJP_GRADIENTS; i++) n.to[i] = doubles(o->count[i]);
    const bool tokens = p->layout == EJKI_FLASH_TOKENS;
    for (int64_t m = 0; m < p->batch; m++) {
        n.sequence = ordered(&n, m, p->batch);
        const ejki_flash_vjp_problem own = ejki_flash_vjp_part(&c->problem, n.sequence);
        n.v = &own;
        n.query = tokens ? c->ends[0][n.sequence] : n.sequence * p->queries;
        n.key = tokens ? c->ends[1][n.sequence] : n.sequence * p->keys;
        const int64_t rows = own.forward.query_heads * own.forward.queries;
        for (int64_t k = 0; k < rows; k++) {
            const int64_t row = ordered(&n, k, rows);
            n.h = row / own.forward.queries;
            n.i = row % own.forward.queries;
            naive_row(&n);
        }
    }
}

void vjp_oracle_create(struct vjp_oracle *o, const struct vjp_case *c) {
    *o = (struct vjp_oracle){.c = c, .rows = c->rows[VJP_QUERY], .dtype = c->problem.forward.dtype};
    for (int i = 0; i < VJP_GRADIENTS; i++) {
        o->count[i] = c->rows[i] * c->width[i];
        o->exact[i] = doubles(o->count[i]);
        o->spread[i] = doubles(o->count[i]);
    }
    exact_gradients(o, c);
    naive_gradients(o);
    naive_gradients(o);
}

void vjp_oracle_destroy(struct vjp_oracle *o) {
    for (int i = 0; i < VJP_GRADIENTS; i++) {
        free(o->exact[i]);
        free(o->spread[i]);
        for (int k = 0; k < o->orders; k++) free(o->naive[k][i]);
    }
}

/* ---- Comparing -------------------------------------------------------------------------------------- */

struct norms {
    double squares, frobenius, largest;
};

static void measure(struct norms *norms, double value) {
    norms->squares += value * value;
    norms->frobenius = sqrt(norms->squares);
    norms->largest = fmax(norms->largest, fabs(value));
}

/* What a number of the type stands for: f16 ends at 65520, and infinity is whatever lies beyond. */
static double clipped(ejk_dtype dtype, double value) {
    const double end = 65520;
    return dtype == EJK_DTYPE_F16 && fabs(value) > end ? copysign(end, value) : value;
}

static double epsilon(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F32    ? (double)FLT_EPSILON
           : dtype == EJK_DTYPE_BF16 ? 0x1p-7
                                     : 0x1p-10;
}

/* One gradient: how large it is, what is added to it, how far off it is, and how far off naive ones may be. */
struct comparison {
    struct norms size, sum, error, naive;
    int64_t farthest;
};

static void worse(struct norms *norms, const struct norms *other) {
    norms->frobenius = fmax(norms->frobenius, other->frobenius);
    norms->largest = fmax(norms->largest, other->largest);
}

/* False where a result is not finite, or is and should not be: `farthest` is its place. */
static bool compare(const struct vjp_oracle *o, int gradient, const float *got,
                    struct comparison *c) {
    struct norms naive[VJP_ORDERS] = {{0}};
    *c = (struct comparison){.farthest = 0};
    for (int64_t n = 0; n < o->count[gradient]; n++) {
        const double value = clipped(o->dtype, (double)got[n]);
        const double exact = clipped(o->dtype, o->exact[gradient][n]);
        if (!isfinite(exact) && !isfinite(value)) continue;
        if (isinf((double)got[n]) && value == exact) continue;
        if (!isfinite(exact) || !isfinite(value)) {
            c->farthest = n;
            return false;
        }
        if (fabs(value - exact) > c->error.largest) c->farthest = n;
        measure(&c->size, exact);
        measure(&c->sum, o->spread[gradient][n]);
        measure(&c->error, value - exact);
        for (int i = 0; i < o->orders; i++) {
            const float other = rounded(o->dtype, (float)o->naive[i][gradient][n]);
            const double off = clipped(o->dtype, (double)other) - exact;
            if (isfinite(off)) measure(&naive[i], off);
        }
    }
    for (int i = 0; i < o->orders; i++) worse(&c->naive, &naive[i]);
    return true;
}

/* Twice the naive error plus 4 eps. */
static struct norms tolerance(const struct vjp_oracle *o, int gradient,
                              const struct comparison *c) {
    const double eps = epsilon(o->dtype);
    double eps_f = 4 * eps * c->size.frobenius, eps_l = 4 * eps * c->size.largest;
    /* Few numbers; rows with so few keys that weights are 1; all keys alike, so that everything cancels. */
    if (o->rows < 32 || o->count[gradient] < 64 || o->pairs < 4 * o->rows ||
        c->size.frobenius < 0x1p-10 * c->sum.frobenius) {
        eps_f = 4 * eps * (1 + o->magnitude) * fmax(c->size.frobenius, c->sum.frobenius);
        eps_l = 4 * eps * (1 + o->magnitude) * fmax(c->size.largest, c->sum.largest);
    }
    const double times = o->magnitude > 1000 ? 4 : 2;
    /* Below the normal numbers of f16 all are the same distance apart. */
    const double least = o->dtype == EJK_DTYPE_F16 ? 0x1p-24 : 0;
    return (struct norms){
        .frobenius = times * c->naive.frobenius + eps_f + least * sqrt((double)o->count[gradient]),
        .largest = times * c->naive.largest + eps_l + least,
    };
}

bool vjp_oracle_accepts(struct vjp_oracle *o, int gradient, const float *got, double *worst,
                        char *why, size_t room) {
    struct comparison c;
    struct norms most;
    for (;;) {
        if (!compare(o, gradient, got, &c)) {
            snprintf(why, room, "%s element %lld is %g, expected %g", vjp_names[gradient],
                     (long long)c.farthest, (double)got[c.farthest],
                     o->exact[gradient][c.farthest]);
            return false;
        }
        if (c.error.largest == 0) return true;
        most = tolerance(o, gradient, &c);
        const double used =
            fmax(c.error.frobenius / most.frobenius, c.error.largest / most.largest);
        if (used <= 1) {
            *worst = fmax(*worst, used);
            return true;
        }
        if (o->orders == VJP_ORDERS) break;
        while (o->orders < VJP_ORDERS) naive_gradients(o);
    }
    snprintf(
        why, room,
        "%s is off by %.3g of %.3g (allowed %.3g), largest %.3g (allowed %.3g); element %lld is "
        "%.9g, expected %.9g",
        vjp_names[gradient], c.error.frobenius, c.size.frobenius, most.frobenius, c.error.largest,
        most.largest, (long long)c.farthest, (double)got[c.farthest],
        o->exact[gradient][c.farthest]);
    return false;
}
