/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the recurrence as they read, token by token backwards, in double precision. States of every CHUNK-th
 * token are kept on the way there; those between are computed again.
 */
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/recurrent/shared/reference.h"

enum { CHUNK = 64 };

/* Memory of a run; sums of a sequence over heads, sums of the call over tokens, vectors of a token, states. */
typedef struct sums {
    double *query, *key, *value;                    /* [T][Hx][size] */
    double *gamma, *a_log, *dt_bias, *bonus, *skip; /* [H], [H], [H][Dk+1], [H][Dk], [H] */
    double *q, *k, *v, *a, *b, *key_g,
        *value_g; /* of a token and a head; b with q, k, a to key_g in a row */
    double *memory, *d_state, *kept, *states; /* of a step; [Dk][Dv], each CHUNK-th, CHUNK + 1 */
    double beta;
    rec_step step;
} sums;

static rec_size state_size(const rec_problem *p) {
    return p->key_size * p->value_size;
}
static rec_size vector_size(const rec_problem *p) {
    return 5 * p->key_size + 2 * p->value_size;
}

/* Deals out memory from `at`, or counts it: returns how many numbers there are. */
static rec_size lay_out(const rec_problem *p, double *at, sums *s) {
    const rec_size heads = p->heads, k = p->key_size, v = p->value_size;
    double **const place[] = {&s->query,   &s->key,   &s->value, &s->gamma, &s->a_log,
                              &s->dt_bias, &s->bonus, &s->skip,  &s->q,     &s->memory,
                              &s->d_state, &s->kept,  &s->states};
    const rec_size size[] = {p->tokens * p->query_heads * k,
                             p->tokens * p->key_heads * k,
                             p->tokens * p->value_heads * v,
                             heads,
                             heads,
                             heads * (k + 1),
                             heads * k,
                             heads,
                             vector_size(p),
                             rec_step_size(p),
                             state_size(p),
                             (p->tokens / CHUNK + 1) * state_size(p),
                             (CHUNK + 1) * state_size(p)};
    rec_size used = 0;
    for (int i = 0; i < 13; i++) {
        if (at) *place[i] = at + used;
        used += size[i];
    }
    if (!at) return used;
    s->k = s->q + k;
    s->a = s->k + k;
    s->b = s->a + k;
    s->key_g = s->b + k;
    s->v = s->key_g + k;
    s->value_g = s->v + v;
    s->step = rec_step_in(p, s->memory);
    return used;
}

static void copy_state(const rec_problem *p, const rec_view *v, rec_size row, rec_size h,
                       double *state, bool store) {
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < p->value_size; j++) {
            const rec_size at = rec_state_at(v, row, h) + i * v->stride[2] + j * v->stride[3];
            double *own = state + i * p->value_size + j;
            if (store)
                rec_add(v, at, *own);
            else
                *own = v->present ? rec_load(v, at) : 0;
        }
}

/* ---- A token ---------------------------------------------------------------------------------------- */

/* Column j: d_state becomes that of the state before. */
static void column(const rec_problem *p, sums *s, const double *old, rec_size j, double d_out) {
    const rec_step *step = &s->step;
    const rec_size width = p->value_size;
    double seen = 0, read = 0, du = 0, dh = 0;
    for (rec_size i = 0; i < p->key_size; i++) {
        const double before = old[i * width + j];
        seen += step->k[i] * before * step->key_decay[i] * step->value_decay[j];
        if (p->update == REC_RANK_ONE) read += step->b[i] * before;
    }
    const bool delta = p->update == REC_DELTA, rank = p->update == REC_RANK_ONE;
    /* u is beta times this, but for rank-one updates. */
    const double raw = delta ? step->v[j] - seen : step->v[j], beta = rank ? 1 : step->beta;
    const double u = beta * raw;
    for (rec_size i = 0; i < p->key_size; i++) {
        double *d = s->d_state + i * width + j;
        const double decayed = old[i * width + j] * step->key_decay[i] * step->value_decay[j];
        if (p->read == REC_AFTER) {
            *d += p->scale * step->q[i] * d_out;
            s->q[i] += (decayed + step->k[i] * u + (rank ? step->a[i] * read : 0)) * d_out;
        }
        du += step->k[i] * *d;
        if (rank) dh += step->a[i] * *d;
    }
    const double d_seen = delta ? -step->beta * du : 0;
    s->v[j] += beta * du;
    s->beta += rank ? 0 : du * raw;
    for (rec_size i = 0; i < p->key_size; i++) {
        double *d = s->d_state + i * width + j;
        const double before = old[i * width + j];
        const double factor = step->key_decay[i] * step->value_decay[j], decayed = before * factor;
        s->k[i] += *d * u + decayed * d_seen;
        if (rank) s->a[i] += *d * read, s->b[i] += before * dh;
        *d += step->k[i] * d_seen;
        s->key_g[i] += *d * decayed;
        s->value_g[j] += *d * decayed;
        *d = *d * factor + (rank ? step->b[i] * dh : 0);
        if (p->read == REC_BEFORE) {
            *d += p->scale * step->q[i] * d_out;
            s->q[i] += before * d_out;
        }
    }
}

static void bonus(const rec_problem *p, sums *s, rec_size h, rec_size j, double d_out) {
    const rec_view *u = &p->view[REC_BONUS];
    if (!u->present) return;
    s->v[j] += rec_bonus(p, h, &s->step) * d_out;
    for (rec_size i = 0; i < p->key_size; i++) {
        const double own = rec_load(u, h * u->stride[2] + i), by = s->step.v[j] * d_out;
        s->q[i] += own * s->step.k[i] * by;
        s->k[i] += p->scale * own * s->step.q[i] * by;
        s->bonus[h * p->key_size + i] += p->scale * s->step.q[i] * s->step.k[i] * by;
    }
}

static void skip(const rec_problem *p, sums *s, rec_size h, rec_size j, double d_out) {
    s->v[j] += rec_skip(p, h) * d_out;
    s->skip[h] += s->step.v[j] * d_out;
}

/* From the gradient of what is normalised to that of the tensor, added to the sums. */
static void add_vector(const rec_problem *p, const double *d, const double *x, double factor,
                       double *sum) {
    double inner = 0;
    for (rec_size i = 0; i < p->key_size && p->normalise; i++) inner += d[i] * x[i];
    for (rec_size i = 0; i < p->key_size; i++) sum[i] += factor * (d[i] - x[i] * inner);
}

static void store(const rec_problem *p, int role, const rec_sequence *q, rec_size t, rec_size h,
                  rec_size i, double value) {
    const rec_view *v = &p->view[REC_D(role)];
    if (v->present) rec_add(v, rec_at(v, q->batch, t, h) + i, value);
}

/* Gradient of a log decay, element i of the tensor of gates. */
static void store_gate(const rec_problem *p, sums *s, const rec_sequence *q, rec_size t, rec_size h,
                       rec_size i, double d) {
    const rec_view *rate = &p->view[REC_A_LOG];
    double raw = 0;
    if (rate->present && d != 0) {
        const double gate = rec_gate(p, q->batch, t, h, i, &raw);
        s->a_log[h] += d * gate;
        d *= -exp(rec_load(rate, h * rate->stride[2])) * rec_sigmoid(raw);
        s->dt_bias[h * (p->key_size + 1) + i] += d;
    }
    store(p, REC_G, q, t, h, i, d);
}

/* Gradient of a step size's tensor, from that of the log decay. */
static void store_step(const rec_problem *p, sums *s, const rec_sequence *q, rec_size t, rec_size h,
                       double d) {
    const rec_step *step = &s->step;
    s->a_log[h] += d * step->beta;
    const double raw = (d * rec_rate(p, h) + s->beta) * step->d_beta;
    s->dt_bias[h * (p->key_size + 1)] += raw;
    store(p, REC_G, q, t, h, 0, raw);
}

/* Of a token that does not count: what it has is not looked at. */
static void spread_nothing(const rec_problem *p, const rec_sequence *q, rec_size t, rec_size h) {
    for (rec_size i = 0; i < p->key_size; i++) {
        store(p, REC_A, q, t, h, i, 0);
        store(p, REC_B, q, t, h, i, 0);
        store(p, REC_GK, q, t, h, i, 0);
        if (p->g_is_wide) store(p, REC_G, q, t, h, i, 0);
    }
    if (!p->g_is_wide) store(p, REC_G, q, t, h, 0, 0);
    store(p, REC_BETA, q, t, h, 0, 0);
    for (rec_size j = 0; j < p->value_size; j++) store(p, REC_GV, q, t, h, j, 0);
}

/* What a token and a head got goes where it belongs. */
static void spread(const rec_problem *p, sums *s, const rec_sequence *q, rec_size t, rec_size h) {
    const rec_step *step = &s->step;
    const rec_size size = p->key_size, width = p->value_size;
    const rec_view *a = &p->view[REC_A];
    for (rec_size i = 0; i < size; i++) s->q[i] *= p->scale;
    add_vector(p, s->q, step->q, step->q_factor,
               s->query + (t * p->query_heads + rec_head(p, h, p->query_heads)) * size);
    add_vector(p, s->k, step->k, step->k_factor,
               s->key + (t * p->key_heads + rec_head(p, h, p->key_heads)) * size);
    for (rec_size j = 0; j < width; j++)
        s->value[(t * p->value_heads + rec_head(p, h, p->value_heads)) * width + j] += s->v[j];
    double head = 0;
    for (rec_size i = 0; i < size; i++) {
        double da = s->a[i], db = s->b[i];
        if (p->multiply) {
            const double kk = -step->b[i], own = rec_load(a, rec_at(a, q->batch, t, h) + i);
            db = own * s->a[i] - s->b[i];
            da = kk * s->a[i];
        }
        store(p, REC_A, q, t, h, i, da);
        store(p, REC_B, q, t, h, i, db);
        if (p->g_is_wide) store_gate(p, s, q, t, h, i, s->key_g[i]);
        store(p, REC_GK, q, t, h, i, s->key_g[i]);
        head += s->key_g[i];
    }
    if (p->by_step)
        store_step(p, s, q, t, h, head);
    else if (!p->g_is_wide)
        store_gate(p, s, q, t, h, 0, head);
    s->gamma[h] += head;
    store(p, REC_BETA, q, t, h, 0, s->beta * step->d_beta);
    for (rec_size j = 0; j < width; j++) store(p, REC_GV, q, t, h, j, s->value_g[j]);
}

static void token(const rec_problem *p, sums *s, const rec_sequence *q, rec_size n, rec_size h,
                  const double *old) {
    const rec_view *d_out = &p->view[REC_D_OUT];
    const rec_size t = rec_token(p, q, n);
    const rec_turn turn = rec_turn_of(p, q, n);
    if (!turn.counts) {
        spread_nothing(p, q, t, h);
        return;
    }
    memset(s->q, 0, (size_t)vector_size(p) * sizeof *s->q);
    s->beta = 0;
    rec_read_step(p, q, t, h, &s->step);
    for (rec_size j = 0; j < p->value_size; j++) {
        const double d = d_out->present ? rec_load(d_out, rec_at(d_out, q->batch, t, h) + j) : 0;
        column(p, s, old, j, d);
        if (p->read == REC_BEFORE) bonus(p, s, h, j, d);
        if (p->view[REC_SKIP].present) skip(p, s, h, j, d);
    }
    spread(p, s, q, t, h);
    if (turn.resets) memset(s->d_state, 0, (size_t)state_size(p) * sizeof *s->d_state);
}

/* ---- A sequence ------------------------------------------------------------------------------------- */

/* `state` becomes the one after step n; *before, unless it is NULL, is the one that the token met. */
static void advance(const rec_problem *p, sums *s, const rec_sequence *q, rec_size n, rec_size h,
                    double *state) {
    if (!rec_turn_of(p, q, n).counts) return;
    rec_read_step(p, q, rec_token(p, q, n), h, &s->step);
    rec_advance(p, &s->step, state);
}
static void reset(const rec_problem *p, const rec_sequence *q, rec_size n, double *state) {
    if (rec_turn_of(p, q, n).resets) memset(state, 0, (size_t)state_size(p) * sizeof *state);
}

static void head(const rec_problem *p, sums *s, const rec_sequence *q, rec_size h) {
    const rec_size size = state_size(p), steps = q->end - q->begin;
    const size_t bytes = (size_t)size * sizeof(double);
    double *state = s->states;
    copy_state(p, &p->view[REC_INITIAL], q->index, h, state, false);
    for (rec_size n = 0; n < steps; n++) {
        if (n % CHUNK == 0) memcpy(s->kept + n / CHUNK * size, state, bytes);
        reset(p, q, n, state);
        advance(p, s, q, n, h, state);
    }
    copy_state(p, &p->view[REC_D_FINAL], q->index, h, s->d_state, false);
    for (rec_size end = steps; end > 0;) {
        const rec_size begin = (end - 1) / CHUNK * CHUNK;
        memcpy(s->states, s->kept + begin / CHUNK * size, bytes);
        for (rec_size n = begin; n < end; n++) {
            double *own = s->states + (n - begin) * size;
            reset(p, q, n, own);
            memcpy(own + size, own, bytes);
            advance(p, s, q, n, h, own + size);
        }
        for (; end > begin; end--) token(p, s, q, end - 1, h, s->states + (end - 1 - begin) * size);
    }
    if (p->view[REC_D(REC_INITIAL)].present)
        copy_state(p, &p->view[REC_D(REC_INITIAL)], q->index, h, s->d_state, true);
}

/* Sums over the heads that read, of tokens begin to end - 1. */
static void store_shared(const rec_problem *p, const sums *s, const rec_sequence *q) {
    const double *const sum[] = {s->query, s->key, s->value};
    const rec_size heads[] = {p->query_heads, p->key_heads, p->value_heads};
    for (int role = REC_QUERY; role <= REC_VALUE; role++) {
        const rec_size size = role == REC_VALUE ? p->value_size : p->key_size;
        for (rec_size t = q->begin; t < q->end; t++)
            for (rec_size n = 0; n < heads[role] * size; n++)
                store(p, role, q, t, n / size, n % size, sum[role][t * heads[role] * size + n]);
    }
}

static void store_gamma(const rec_problem *p, const sums *s, rec_size n) {
    const rec_view *v = &p->view[REC_D(REC_GAMMA)];
    for (rec_size h = 0; h < p->heads && v->present; h++)
        rec_add(v, n * v->stride[0] + h * v->stride[2], s->gamma[h]);
}

static void clear(double *sum, rec_size count) {
    memset(sum, 0, (size_t)count * sizeof *sum);
}

/* Tokens in no sequence. */
static void clear_rest(const rec_problem *p, sums *s) {
    const rec_sequence rest = {0, 0, rec_covered(p), p->tokens, 0};
    clear(s->query, s->gamma - s->query);
    store_shared(p, s, &rest);
    for (rec_size t = rest.begin; t < rest.end; t++)
        for (rec_size h = 0; h < p->heads; h++) spread_nothing(p, &rest, t, h);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    sums none = {.beta = 0};
    (void)parameters;
    (void)threads;
    launch->workspace_bytes = (size_t)lay_out(p, NULL, &none) * sizeof(double);
    return EJK_OK;
}

static void store_heads(const rec_problem *p, const sums *s) {
    const double *const sum[] = {s->a_log, s->dt_bias, s->bonus, s->skip};
    const int roles[] = {REC_A_LOG, REC_DT_BIAS, REC_BONUS, REC_SKIP};
    const rec_size rows[] = {1, p->key_size + 1, p->key_size, 1};
    for (int k = 0; k < 4; k++) {
        const rec_view *v = &p->view[REC_D(roles[k])];
        const rec_size row = rows[k];
        for (rec_size h = 0; h < p->heads && v->present; h++)
            for (rec_size i = 0; i < (v->stride[3] ? p->key_size : 1); i++)
                rec_add(v, h * v->stride[2] + i * v->stride[3], sum[k][h * row + i]);
    }
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    sums s = {.beta = 0};
    lay_out(p, run->workspace, &s);
    clear(s.gamma, s.q - s.gamma);
    for (rec_size n = 0; n < p->sequences; n++) {
        const rec_sequence q = rec_sequence_of(p, n);
        clear(s.query, s.gamma - s.query);
        if (p->gamma_is_each) clear(s.gamma, p->heads);
        for (rec_size h = 0; h < p->heads; h++) head(p, &s, &q, h);
        store_shared(p, &s, &q);
        if (p->gamma_is_each) store_gamma(p, &s, n);
    }
    if (!p->gamma_is_each) store_gamma(p, &s, 0);
    store_heads(p, &s);
    clear_rest(p, &s);
    return EJK_OK;
}

EJKI_DECLARE(recurrent_attention_vjp_reference, .version = 1, .run = run, .prepare = prepare)
