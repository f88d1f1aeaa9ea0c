/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages as the formula reads, one row after the other, in double precision. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/paged/shared/problem.cuh"
#include "tensor/access.h"

#include <math.h>
#include <stdlib.h>

/* A row of a cache. */
typedef struct place {
    paged_size page, row, head;
} place;

static double cached(const paged_cache *c, const place *at, paged_size d) {
    const paged_size start = at->page * c->page + at->row * c->token + at->head * c->head;
    double value = ejki_load_f64((ejk_dtype)c->dtype, c->data, start + d) * (double)c->factor;
    if (c->scaled)
        value *= ejki_load_f64(EJK_DTYPE_F32, c->scale,
                               at->page * c->scale_page + at->row * c->scale_token +
                                   at->head * c->scale_head);
    return value;
}

static double asked(const paged_problem *p, const paged_rows *rows, paged_size token, paged_size h,
                    paged_size d) {
    const double value = ejki_load_f64((ejk_dtype)rows->dtype, rows->data,
                                       token * rows->token + h * rows->head + d);
    if (p->query_scale == 0) return value;
    double rounded = 0;
    ejki_store_f64((ejk_dtype)p->key.dtype, &rounded, 0, value / p->query_scale);
    if (p->key.dtype == EJK_DTYPE_I8) {
        const double near = rint(value / p->query_scale);
        return (near < -128 ? -128 : near > 127 ? 127 : near) * p->query_scale;
    }
    return ejki_load_f64((ejk_dtype)p->key.dtype, &rounded, 0) * p->query_scale;
}

/* Score of key t, with which row r of the sequence looks at it. */
static double score(const paged_problem *p, const paged_sequence *s, paged_size r, paged_size h,
                    paged_size t, const place *at) {
    const paged_size context = s->keys - s->rows;
    double z = 0;
    for (paged_size d = 0; d < p->dim; d++)
        z += asked(p, &p->query, s->begin + r, h, d) * cached(&p->key, at, d);
    for (paged_size d = 0; d < p->tail_dim; d++)
        z += asked(p, &p->query_tail, s->begin + r, h, d) * cached(&p->key_tail, at, d);
    z *= p->scale;
    if (p->cap > 0) z = p->cap * tanh(z / p->cap);
    if (p->has_alibi)
        z += ejki_load_f64(EJK_DTYPE_F32, p->alibi, h) * (double)(t - context);
    if (p->has_bias && t >= context)
        z += ejki_load_f64(EJK_DTYPE_F32, p->bias, r * p->bias_step + t - context);
    return z;
}

static double sink(const paged_problem *p, paged_size h, paged_size i) {
    return ejki_load_f64((ejk_dtype)p->sink_dtype, p->sinks, h / p->sink_group * p->sink_step + i);
}

static double larger(double a, double b) {
    return a > b || isnan(a) ? a : b;
}

/* Row r of head h; scores and places have room for all keys. */
static void attend(const paged_problem *p, const paged_sequence *s, paged_size r, paged_size h,
                   double *scores, place *places) {
    const paged_size low = paged_low(p, s, r), high = paged_high(p, s, r), token = s->begin + r;
    paged_size count;
    const paged_size entries = paged_entries(p, s->n, &count);
    double most = -INFINITY, sum = 0;
    for (paged_size t = low; t < high; t++) {
        places[t] =
            (place){paged_page(p, s->n, entries, t / p->page), t % p->page, h / p->group};
        scores[t] = score(p, s, r, h, t, &places[t]);
        most = larger(most, scores[t]);
    }
    for (paged_size i = 0; i < p->sink_count; i++) most = larger(most, sink(p, h, i));
    for (paged_size t = low; t < high; t++) {
        scores[t] = scores[t] == -INFINITY ? 0 : exp(scores[t] - most);
        sum += scores[t];
    }
    for (paged_size i = 0; i < p->sink_count; i++)
        if (sink(p, h, i) > -INFINITY) sum += exp(sink(p, h, i) - most);
    for (paged_size d = 0; d < p->value_dim; d++) {
        double out = 0;
        for (paged_size t = low; t < high; t++)
            if (scores[t] != 0) out += scores[t] * cached(&p->value, &places[t], d);
        ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data,
                       token * p->out.token + h * p->out.head + d, sum == 0 ? 0 : out / sum);
    }
    if (p->lse.data)
        ejki_store_f64(EJK_DTYPE_F32, p->lse.data, token * p->lse.token + h * p->lse.head,
                       sum == 0 ? -INFINITY : most + log(sum));
}

/* A row of no sequence. */
static void clear(const paged_problem *p, paged_size token, paged_size h) {
    for (paged_size d = 0; d < p->value_dim; d++)
        ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data,
                       token * p->out.token + h * p->out.head + d, 0);
    if (p->lse.data)
        ejki_store_f64(EJK_DTYPE_F32, p->lse.data, token * p->lse.token + h * p->lse.head,
                       -INFINITY);
}

static ejk_status run(const ejk_run *run) {
    const paged_problem *p = run->problem;
    paged_size most = 1, end = 0;
    for (paged_size n = 0; n < paged_count(p); n++)
        most = paged_most(most, paged_sequence_of(p, n).keys);
    double *scores = malloc((size_t)most * sizeof *scores);
    place *places = malloc((size_t)most * sizeof *places);
    const bool room = scores && places;
    for (paged_size n = 0; room && n < paged_count(p); n++) {
        const paged_sequence s = paged_sequence_of(p, n);
        for (paged_size i = 0; i < s.rows * p->heads; i++)
            attend(p, &s, i / p->heads, i % p->heads, scores, places);
        end = s.begin + s.rows;
    }
    for (paged_size i = end * p->heads; room && i < p->tokens * p->heads; i++)
        clear(p, i / p->heads, i % p->heads);
    if (room && p->status) memset(p->status, 0, sizeof *p->status);
    free(scores);
    free(places);
    return room ? EJK_OK : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld scores", most);
}

EJKI_DECLARE(unified_attention_reference, .version = 1, .run = run)
