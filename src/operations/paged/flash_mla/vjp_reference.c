/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of flash_mla in double precision, a row after the other. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/paged/flash_mla/problem.h"
#include "tensor/access.h"

#include <math.h>
#include <stdlib.h>

/* Arrays of doubles: latents [tokens][R]; keys, values and their gradients [tokens][Hkv][D]; tails [tokens][Dr],
 * those of queries [tokens][Hq or 1][Dr]. */
typedef struct sums {
    const mla_vjp_problem *v;
    const paged_problem *p;
    double *latent, *key, *value, *d_key, *d_value, *d_query, *d_query_tail, *d_key_tail, *d_latent;
    double *d_sinks, *weight, *d_score, *cap; /* the last three: of a row's keys */
} sums;

static double get(const sums *s, const void *data, paged_size at) {
    return ejki_load_f64((ejk_dtype)s->p->dtype, data, at);
}
static void put(const sums *s, void *data, paged_size at, double value) {
    ejki_store_f64((ejk_dtype)s->p->dtype, data, at, value);
}

static void project(const sums *s, const mla_weight *w, paged_size dim, double *to) {
    const paged_size latent = s->v->m.latent, row = s->p->kv_heads * dim;
    for (paged_size n = 0; n < s->p->tokens * row; n++) {
        const paged_size h = n % row / dim, d = n % dim;
        for (paged_size r = 0; r < latent; r++)
            to[n] +=
                s->latent[n / row * latent + r] * get(s, w->data, r * w->latent + h * w->head + d);
    }
}

static paged_size tail_at(const sums *s, paged_size token, paged_size h) {
    return (s->v->shared_tail ? token : token * s->p->heads + h) * s->p->tail_dim;
}

/* Score of key j, and what its derivative by the product is. */
static double score(const sums *s, paged_size i, paged_size h, paged_size j, double *slope) {
    const paged_problem *p = s->p;
    const double *key = s->key + (j * p->kv_heads + h / p->group) * p->dim;
    double z = 0;
    for (paged_size d = 0; d < p->dim; d++)
        z += get(s, p->query.data, paged_row_at(p, &p->query, i, h) + d) * key[d];
    for (paged_size d = 0; d < p->tail_dim; d++)
        z += get(s, p->query_tail.data, paged_row_at(p, &p->query_tail, i, h) + d) *
             get(s, p->key_tail.data,
                 j / p->page * p->key_tail.page + j % p->page * p->key_tail.token + d);
    *slope = p->scale;
    z *= p->scale;
    if (p->cap > 0) {
        const double t = tanh(z / p->cap);
        *slope *= 1 - t * t;
        z = p->cap * t;
    }
    return z;
}

static double sink(const sums *s, paged_size h, paged_size i) {
    return ejki_load_f64((ejk_dtype)s->p->sink_dtype, s->p->sinks,
                         h / s->p->sink_group * s->p->sink_step + i);
}

/* Weights of row i, slopes of its scores; log-sum-exp, -inf if it sees nothing. */
static double find_weights(sums *s, paged_size i, paged_size h, paged_size low, paged_size high) {
    double most = -INFINITY, sum = 0;
    for (paged_size j = low; j < high; j++) {
        s->weight[j - low] = score(s, i, h, j, &s->cap[j - low]);
        most = fmax(most, s->weight[j - low]);
    }
    for (paged_size n = 0; n < s->p->sink_count; n++) most = fmax(most, sink(s, h, n));
    for (paged_size j = low; j < high; j++)
        sum += s->weight[j - low] = exp(s->weight[j - low] - most);
    for (paged_size n = 0; n < s->p->sink_count && most > -INFINITY; n++)
        sum += exp(sink(s, h, n) - most);
    for (paged_size j = low; j < high; j++) s->weight[j - low] /= sum;
    return sum == 0 ? -INFINITY : most + log(sum);
}

static void add_key(sums *s, paged_size i, paged_size h, paged_size j, double weight,
                    double d_score) {
    const paged_problem *p = s->p;
    const paged_size row = j * p->kv_heads + h / p->group;
    for (paged_size d = 0; d < p->dim; d++) {
        s->d_query[(i * p->heads + h) * p->dim + d] += d_score * s->key[row * p->dim + d];
        s->d_key[row * p->dim + d] +=
            d_score * get(s, p->query.data, paged_row_at(p, &p->query, i, h) + d);
    }
    for (paged_size d = 0; d < p->tail_dim; d++) {
        s->d_query_tail[tail_at(s, i, h) + d] +=
            d_score * get(s, p->key_tail.data,
                          j / p->page * p->key_tail.page + j % p->page * p->key_tail.token + d);
        s->d_key_tail[j * p->tail_dim + d] +=
            d_score * get(s, p->query_tail.data, paged_row_at(p, &p->query_tail, i, h) + d);
    }
    for (paged_size d = 0; d < p->value_dim; d++)
        s->d_value[row * p->value_dim + d] +=
            weight * get(s, s->v->d_out.data, paged_row_at(p, &s->v->d_out, i, h) + d);
}

/* Row i of head h, which sees tokens low to high - 1. */
static void add_row(sums *s, paged_size i, paged_size h, paged_size low, paged_size high) {
    const paged_problem *p = s->p;
    const mla_vjp_problem *v = s->v;
    const double lse = find_weights(s, i, h, low, high);
    double own = 0; /* what every score's cotangent is less by */
    if (v->d_lse.data)
        own = -ejki_load_f64(EJK_DTYPE_F32, v->d_lse.data, paged_row_at(p, &v->d_lse, i, h));
    for (paged_size j = low; j < high; j++) {
        const double *value = s->value + (j * p->kv_heads + h / p->group) * p->value_dim;
        double sum = 0;
        for (paged_size d = 0; d < p->value_dim; d++)
            sum += get(s, v->d_out.data, paged_row_at(p, &v->d_out, i, h) + d) * value[d];
        s->d_score[j - low] = sum;
        own += s->weight[j - low] * sum;
    }
    for (paged_size j = low; j < high; j++)
        add_key(s, i, h, j, s->weight[j - low],
                s->weight[j - low] * (s->d_score[j - low] - own) * s->cap[j - low]);
    for (paged_size n = 0; n < p->sink_count && lse != -INFINITY; n++)
        s->d_sinks[h / p->sink_group % v->sink_rows * p->sink_count + n] -=
            exp(sink(s, h, n) - lse) * own;
}

static void add_all(sums *s) {
    const paged_problem *p = s->p;
    for (paged_size n = 0; n < p->sequences; n++) {
        const paged_sequence q = paged_sequence_of(p, n);
        for (paged_size i = 0; i < q.rows * p->heads; i++) {
            const paged_size r = i / p->heads;
            add_row(s, q.begin + r, i % p->heads, q.begin + paged_low(p, &q, r),
                    q.begin + paged_high(p, &q, r));
        }
    }
}

/* ---- What the weights and latents have -------------------------------------------------------------- */

static void put_weight(const sums *s, const mla_weight *w, paged_size dim, const double *d_rows) {
    const paged_size latent = s->v->m.latent, row = s->p->kv_heads * dim, end = mla_end(s->p);
    for (paged_size n = 0; w->data && n < latent * row; n++) {
        double sum = 0;
        for (paged_size t = 0; t < end; t++)
            sum += s->latent[t * latent + n / row] * d_rows[t * row + n % row];
        put(s, w->data, n / row * w->latent + n % row / dim * w->head + n % dim, sum);
    }
}

static void add_latent(const sums *s, const mla_weight *w, paged_size dim, const double *d_rows) {
    const paged_size latent = s->v->m.latent, row = s->p->kv_heads * dim;
    for (paged_size n = 0; n < mla_end(s->p) * latent; n++)
        for (paged_size d = 0; d < row; d++)
            s->d_latent[n] += d_rows[n / latent * row + d] *
                              get(s, w->data, n % latent * w->latent + d / dim * w->head + d % dim);
}

static void put_rows(const sums *s, const paged_rows *rows, paged_size heads, paged_size dim,
                     const double *from) {
    for (paged_size n = 0; rows->data && n < s->p->tokens * heads * dim; n++)
        put(s, rows->data, paged_row_at(s->p, rows, n / dim / heads, n / dim % heads) + n % dim,
            from[n]);
}

static void put_all(sums *s) {
    const mla_vjp_problem *v = s->v;
    const paged_problem *p = s->p;
    put_weight(s, &v->d_w_kc, p->dim, s->d_key);
    put_weight(s, &v->d_w_vc, p->value_dim, s->d_value);
    add_latent(s, &v->m.w_kc, p->dim, s->d_key);
    add_latent(s, &v->m.w_vc, p->value_dim, s->d_value);
    put_rows(s, &v->d_query, p->heads, p->dim, s->d_query);
    put_rows(s, &v->d_query_tail, v->shared_tail ? 1 : p->heads, p->tail_dim, s->d_query_tail);
    put_rows(s, &v->d_key_value, 1, v->m.latent, s->d_latent);
    put_rows(s, &v->d_key_tail, 1, p->tail_dim, s->d_key_tail);
    for (paged_size n = 0; v->d_sinks && n < v->sink_rows * p->sink_count; n++)
        put(s, v->d_sinks, n / p->sink_count * v->d_sink_step + n % p->sink_count, s->d_sinks[n]);
}

static ejk_status run(const ejk_run *run) {
    const mla_vjp_problem *v = run->problem;
    const paged_problem *p = &v->m.core;
    const paged_size keys = p->tokens * p->kv_heads * p->dim, rows = p->tokens * p->heads;
    const paged_size values = p->tokens * p->kv_heads * p->value_dim;
    const paged_size latents = p->tokens * v->m.latent;
    sums s = {.v = v, .p = p};
    struct {
        double **array;
        paged_size count;
    } parts[] = {{&s.latent, latents},
                 {&s.key, keys},
                 {&s.value, values},
                 {&s.d_key, keys},
                 {&s.d_value, values},
                 {&s.d_query, rows * p->dim},
                 {&s.d_query_tail, rows * p->tail_dim},
                 {&s.d_key_tail, p->tokens * p->tail_dim},
                 {&s.d_latent, latents},
                 {&s.d_sinks, v->sink_rows * p->sink_count},
                 {&s.weight, p->tokens},
                 {&s.d_score, p->tokens},
                 {&s.cap, p->tokens}};
    const size_t count = sizeof parts / sizeof *parts;
    bool room = true;
    for (size_t i = 0; i < count; i++) {
        *parts[i].array = calloc((size_t)parts[i].count + 1, sizeof(double));
        room = room && *parts[i].array;
    }
    if (room) {
        for (paged_size n = 0; n < latents; n++)
            s.latent[n] =
                get(&s, v->m.key_value.data,
                    paged_row_at(p, &v->m.key_value, n / v->m.latent, 0) + n % v->m.latent);
        project(&s, &v->m.w_kc, p->dim, s.key);
        project(&s, &v->m.w_vc, p->value_dim, s.value);
        add_all(&s);
        put_all(&s);
    }
    for (size_t i = 0; i < count; i++) free(*parts[i].array);
    return room ? EJK_OK
                : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld keys", p->tokens);
}

EJKI_DECLARE(flash_mla_vjp_reference, .version = 1, .run = run)
