/* SPDX-License-Identifier: Apache-2.0 */
/* native_sparse_attention and its gradients as the formulas read, a row of a query head at a time, in double. */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/native_sparse/problem.cuh"
#include "tensor/access.h"

/* Rows of keys and values, and their gradients: tokens, or means of blocks. */
typedef struct rows {
    double *key, *value, *d_key, *d_value;
} rows;

typedef struct state {
    const nsa_problem *p;
    nsa_size b, kv_head;
    rows token, mean;     /* of this key head */
    nsa_size *seen;       /* rows that a branch sees */
    double *weight, *own; /* of each of them; own: cotangents of weights */
    double *importance;   /* of blocks, over the query heads */
    int *chosen;
    double *query, *cotangent, *d_query, *sum, *all; /* all: the sum of all branches */
} state;

static nsa_size most_seen(const nsa_problem *p) {
    return ejki_max(p->tokens, p->rows);
}

/* Numbers of a state, whole ones included. */
static nsa_size count_numbers(const nsa_problem *p) {
    const nsa_size each = p->dim + p->width;
    return 2 * (p->tokens + p->rows) * each + 3 * most_seen(p) + p->rows + 2 * each + p->width +
           p->slots + p->rows + 1;
}

static void place(state *s, const nsa_problem *p, double *memory) {
    const nsa_size most = most_seen(p), each = p->dim + p->width;
    double *at = memory;
    rows *both[2] = {&s->token, &s->mean};
    s->p = p;
    for (int i = 0; i < 2; i++) {
        const nsa_size count = i ? p->rows : p->tokens;
        both[i]->key = at;
        both[i]->value = both[i]->key + count * p->dim;
        both[i]->d_key = both[i]->value + count * p->width;
        both[i]->d_value = both[i]->d_key + count * p->dim;
        at += 2 * count * each;
    }
    s->weight = at;
    s->own = s->weight + most;
    s->importance = s->own + most;
    s->query = s->importance + p->rows;
    s->d_query = s->query + p->dim;
    s->cotangent = s->d_query + p->dim;
    s->sum = s->cotangent + p->width;
    s->all = s->sum + p->width;
    s->seen = (nsa_size *)(void *)(s->all + p->width);
    s->chosen = (int *)(void *)(s->seen + most);
}

static void load(const nsa_view *v, nsa_size at, nsa_size count, double *to) {
    for (nsa_size i = 0; i < count; i++)
        to[i] = ejki_load_f64((ejk_dtype)v->dtype, v->data, at + i);
}
static void store(const nsa_view *v, nsa_size at, nsa_size count, const double *from) {
    for (nsa_size i = 0; i < count && v->dtype; i++)
        ejki_store_f64((ejk_dtype)v->dtype, v->data, at + i, from[i]);
}

static void add(nsa_size count, double factor, const double *from, double *to) {
    for (nsa_size i = 0; i < count; i++) to[i] += factor * from[i];
}
static double dot(nsa_size count, const double *a, const double *b) {
    double sum = 0;
    for (nsa_size i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* Keys and values of the key head, and their means over blocks; no gradients yet. */
static void open_head(state *s) {
    const nsa_problem *p = s->p;
    const nsa_size count = p->tokens + p->rows;
    memset(s->token.key, 0, (size_t)(2 * count * (p->dim + p->width)) * sizeof(double));
    for (nsa_size t = 0; t < p->tokens; t++) {
        load(&p->key, nsa_at(&p->key, s->b, t, s->kv_head), p->dim, s->token.key + t * p->dim);
        load(&p->value, nsa_at(&p->value, s->b, t, s->kv_head), p->width,
             s->token.value + t * p->width);
    }
    for (nsa_size t = 0; t < p->tokens; t++) {
        const ejki_range block = ejki_chunk_of_token(&p->blocks, t);
        if (block.row < 0) continue;
        const double part = 1 / (double)(block.end - block.begin);
        add(p->dim, part, s->token.key + t * p->dim, s->mean.key + block.row * p->dim);
        add(p->width, part, s->token.value + t * p->width, s->mean.value + block.row * p->width);
    }
}

/* Softmax weights of the `count` rows that are seen; all 0 where no score is above -inf. */
static void weigh(state *s, const rows *r, nsa_size count) {
    const nsa_problem *p = s->p;
    double most = -INFINITY, sum = 0;
    for (nsa_size i = 0; i < count; i++) {
        s->weight[i] = p->scale * dot(p->dim, s->query, r->key + s->seen[i] * p->dim);
        most = fmax(most, s->weight[i]);
    }
    for (nsa_size i = 0; i < count; i++)
        sum += s->weight[i] = s->weight[i] == -INFINITY ? 0 : exp(s->weight[i] - most);
    for (nsa_size i = 0; i < count && sum != 0; i++) s->weight[i] /= sum;
}

static double gate_of(const state *s, int branch, nsa_size t, nsa_size head) {
    const nsa_view *v = &s->p->gate[branch];
    if (!v->dtype) return 1;
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, nsa_at(v, s->b, t, head));
}

/* Adds a branch of the rows that are seen to the result, or what it is to the gradients. */
static void attend(state *s, int branch, nsa_size t, nsa_size head, rows *r, nsa_size count) {
    const nsa_problem *p = s->p;
    const double gate = gate_of(s, branch, t, head);
    double inner = 0;
    weigh(s, r, count);
    memset(s->sum, 0, (size_t)p->width * sizeof(double));
    for (nsa_size i = 0; i < count; i++)
        if (s->weight[i] != 0)
            add(p->width, s->weight[i], r->value + s->seen[i] * p->width, s->sum);
    add(p->width, gate, s->sum, s->all);
    if (!p->gradient) return;
    for (nsa_size i = 0; i < count; i++) {
        s->own[i] = 0;
        if (s->weight[i] != 0)
            s->own[i] = dot(p->width, s->cotangent, r->value + s->seen[i] * p->width);
        inner += s->weight[i] * s->own[i];
    }
    store(&p->d_gate[branch], nsa_at(&p->d_gate[branch], s->b, t, head), 1, &inner);
    for (nsa_size i = 0; i < count; i++) {
        const double slope = gate * s->weight[i] * (s->own[i] - inner) * p->scale;
        if (s->weight[i] == 0) continue;
        add(p->dim, slope, r->key + s->seen[i] * p->dim, s->d_query);
        add(p->dim, slope, s->query, r->d_key + s->seen[i] * p->dim);
        add(p->width, gate * s->weight[i], s->cotangent, r->d_value + s->seen[i] * p->width);
    }
}

static void open_row(state *s, nsa_size t, nsa_size head) {
    const nsa_problem *p = s->p;
    load(&p->query, nsa_at(&p->query, s->b, t, head), p->dim, s->query);
    if (p->gradient) load(&p->out, nsa_at(&p->out, s->b, t, head), p->width, s->cotangent);
    memset(s->d_query, 0, (size_t)p->dim * sizeof(double));
    memset(s->all, 0, (size_t)p->width * sizeof(double));
}

/* Complete blocks of a token. */
static nsa_size see_blocks(const state *s, const nsa_line *line, nsa_size t) {
    const nsa_size count = (t - line->begin + 1) / s->p->blocks.chunk;
    for (nsa_size c = 0; c < count; c++) s->seen[c] = line->row + c;
    return count;
}

/* The token's own block, and `count` - 1 of the `own` before it: the largest one, again and again. */
static nsa_size choose(state *s, nsa_size own, nsa_size count) {
    nsa_size found = 0;
    if (count <= 0) return 0;
    for (nsa_size n = 1; n < ejki_min(count, own + 1); n++) {
        nsa_size best = -1;
        for (nsa_size c = 0; c < own; c++)
            if (s->importance[c] > -2 && (best < 0 || s->importance[c] > s->importance[best]))
                best = c;
        s->importance[best] = -3;
    }
    for (nsa_size c = 0; c < own; c++)
        if (s->importance[c] == -3) s->chosen[found++] = (int)c;
    s->chosen[found++] = (int)own;
    return found;
}

static nsa_size choose_by_weights(state *s, const nsa_line *line, nsa_size t) {
    const nsa_problem *p = s->p;
    const nsa_size own = (t - line->begin) / p->blocks.chunk;
    for (nsa_size c = 0; c < own; c++) s->importance[c] = 0;
    for (nsa_size g = 0; g < p->group; g++) {
        open_row(s, t, s->kv_head * p->group + g);
        weigh(s, &s->mean, see_blocks(s, line, t));
        for (nsa_size c = 0; c < own; c++) s->importance[c] += s->weight[c];
    }
    for (nsa_size c = 0; c < own; c++)
        if (isnan(s->importance[c])) s->importance[c] = -1;
    return choose(s, own, nsa_limit(p, s->b, t, s->kv_head));
}

static nsa_size chosen_of(state *s, const nsa_line *line, nsa_size t) {
    const nsa_problem *p = s->p;
    const nsa_size own = (t - line->begin) / p->blocks.chunk;
    const nsa_view *v = &p->indices;
    nsa_size count = nsa_limit(p, s->b, t, s->kv_head);
    if (p->gradient && p->selected.dtype) {
        v = &p->selected;
        count = p->slots;
    } else if (!v->dtype) {
        return choose_by_weights(s, line, t);
    }
    return nsa_collect(v, nsa_at(v, s->b, t, s->kv_head), count, own, s->chosen);
}

static void put_chosen(const state *s, nsa_size t, nsa_size count) {
    const nsa_view *v = &s->p->selected;
    for (nsa_size i = 0; i < s->p->slots && v->dtype && !s->p->gradient; i++)
        ejki_store_i64((ejk_dtype)v->dtype, v->data, nsa_at(v, s->b, t, s->kv_head) + i,
                       i < count ? s->chosen[i] : -1);
}

static void token(state *s, const nsa_line *line, nsa_size t) {
    const nsa_problem *p = s->p;
    const nsa_size count = chosen_of(s, line, t);
    put_chosen(s, t, count);
    for (nsa_size head = s->kv_head * p->group; head < (s->kv_head + 1) * p->group; head++) {
        nsa_size seen = 0;
        open_row(s, t, head);
        if (nsa_has(p, NSA_COMPRESSED))
            attend(s, NSA_COMPRESSED, t, head, &s->mean, see_blocks(s, line, t));
        for (nsa_size i = 0; i < count; i++) {
            const nsa_size first = line->begin + s->chosen[i] * p->blocks.chunk;
            for (nsa_size u = first; u <= ejki_min(t, first + p->blocks.chunk - 1); u++)
                s->seen[seen++] = u;
        }
        attend(s, NSA_SELECTED, t, head, &s->token, seen);
        seen = 0;
        for (nsa_size u = ejki_max(line->begin, t - p->window + 1); u <= t; u++)
            s->seen[seen++] = u;
        if (nsa_has(p, NSA_WINDOW)) attend(s, NSA_WINDOW, t, head, &s->token, seen);
        if (p->gradient)
            store(&p->d_query, nsa_at(&p->d_query, s->b, t, head), p->dim, s->d_query);
        else
            store(&p->out, nsa_at(&p->out, s->b, t, head), p->width, s->all);
    }
}

/* A token of no sequence: everything is 0. */
static void clear(state *s, nsa_size t) {
    const nsa_problem *p = s->p;
    const double none = 0;
    put_chosen(s, t, 0);
    memset(s->d_query, 0, (size_t)p->dim * sizeof(double));
    memset(s->all, 0, (size_t)p->width * sizeof(double));
    for (nsa_size head = s->kv_head * p->group; head < (s->kv_head + 1) * p->group; head++) {
        if (!p->gradient) store(&p->out, nsa_at(&p->out, s->b, t, head), p->width, s->all);
        store(&p->d_query, nsa_at(&p->d_query, s->b, t, head), p->dim, s->d_query);
        for (int i = 0; i < NSA_BRANCHES; i++)
            store(&p->d_gate[i], nsa_at(&p->d_gate[i], s->b, t, head), 1, &none);
    }
}

/* Gradients of means are shared out among their tokens. */
static void close_head(state *s) {
    const nsa_problem *p = s->p;
    for (nsa_size t = 0; t < p->tokens; t++) {
        double *d_key = s->token.d_key + t * p->dim, *d_value = s->token.d_value + t * p->width;
        const ejki_range block = ejki_chunk_of_token(&p->blocks, t);
        const double part = 1 / (double)ejki_max(block.end - block.begin, 1);
        if (block.row >= 0) {
            add(p->dim, part, s->mean.d_key + block.row * p->dim, d_key);
            add(p->width, part, s->mean.d_value + block.row * p->width, d_value);
        }
        store(&p->d_key, nsa_at(&p->d_key, s->b, t, s->kv_head), p->dim, d_key);
        store(&p->d_value, nsa_at(&p->d_value, s->b, t, s->kv_head), p->width, d_value);
    }
}

static ejk_status run(const ejk_run *run) {
    const nsa_problem *p = run->problem;
    state s;
    place(&s, p, run->workspace);
    for (s.b = 0; s.b < p->batch; s.b++)
        for (s.kv_head = 0; s.kv_head < p->kv_heads; s.kv_head++) {
            open_head(&s);
            for (nsa_size t = 0; t < p->tokens; t++) {
                const nsa_size n = nsa_line_at(p, t);
                const nsa_line line = n < 0 ? (nsa_line){0} : nsa_line_of(p, n);
                if (n < 0)
                    clear(&s, t);
                else
                    token(&s, &line, t);
            }
            if (p->gradient) close_head(&s);
        }
    return EJK_OK;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters, (void)threads;
    launch->workers = 1;
    launch->workspace_bytes = (size_t)count_numbers(problem) * sizeof(double);
    return EJK_OK;
}

EJKI_DECLARE(native_sparse_attention_reference, .version = 1, .prepare = prepare, .run = run)
