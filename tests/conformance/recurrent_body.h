/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence and its gradients as formulas, all states of a head in memory: compiled for long double, double and
 * float, by REAL, NAME and FN. An order of summation begins at another component.
 */
#include "conformance/recurrent.h"

#include <stdlib.h>
#include <string.h>

typedef REAL real;

/* Vectors of a token and a head, their gradients, and states before each token. */
struct work {
    const struct recurrent *p;
    struct call *c;
    int order;
    real *q, *k, *v, *a, *b, *dk, *dv;               /* the last two are factors */
    real *gq, *gk, *gv, *ga, *gb, *gdk, *gdv, gbeta; /* gradients; of log decays */
    real *sdk, *sdv, sbeta;      /* sums of sizes of the terms of the last three */
    real *state, *d_state, *new; /* [T+1][Dk][Dv], [Dk][Dv] each */
    real *sum[ROLES];            /* what is summed over heads or tokens */
    real beta, q_norm, k_norm;
    double *spread[ROLES], *out[ROLES], *y, *y_spread, *final, *pool;
    double *states, *errors, *errors_spread;
};

static int64_t at_token(const struct recurrent *p, int64_t b, int64_t t, int64_t h, int64_t heads,
                        int64_t size) {
    return ((b * p->tokens + t) * heads + h) * size;
}

static int64_t head_of(const struct recurrent *p, int64_t h, enum role role) {
    return h / (p->heads / p->own[role]);
}

static int64_t begin_at(const struct work *w, int64_t size) {
    return w->order == EXACT ? 0 : size * w->order / ORDERS;
}

static real softplus(real x) {
    return x > 0 ? x + FN(log1p)(FN(exp)(-x)) : FN(log1p)(FN(exp)(x));
}
static real sigmoid(real x) {
    return 1 / (1 + FN(exp)(-x));
}

static void copy(real *to, const double *from, int64_t size) {
    for (int64_t i = 0; i < size; i++) to[i] = (real)from[i];
}

static real inner(const struct work *w, const real *x, int64_t step_x, const real *y,
                  int64_t step_y, int64_t size) {
    const int64_t from = begin_at(w, size);
    real sum = 0;
    for (int64_t n = 0; n < size; n++) {
        const int64_t i = (from + n) % size;
        sum += x[i * step_x] * y[i * step_y];
    }
    return sum;
}

/*
 * Every second order divides: of one channel there is no other order, and its gradient is what rounding leaves of a
 * number near 1.
 */
static real normalise(const struct work *w, real *x) {
    const int64_t size = w->p->dk;
    if (!w->p->normalise) return 1;
    const real root = FN(sqrt)(inner(w, x, 1, x, 1, size) + (real)1e-6), factor = 1 / root;
    for (int64_t i = 0; i < size; i++) x[i] = w->order % 2 ? x[i] / root : x[i] * factor;
    return factor;
}

/* Log decay by the tensor of gates, of key channel i; *raw is what softplus is of. */
static real gate(const struct recurrent *p, int64_t b, int64_t t, int64_t h, int64_t i, real *raw) {
    const int64_t size = p->wide_gate ? p->dk : 1;
    if (!p->x[G]) return 0;
    real x = (real)p->x[G][at_token(p, b, t, h, p->heads, size) + (p->wide_gate ? i : 0)];
    if (!p->x[A_LOG]) return x;
    if (p->x[DT_BIAS]) x += (real)p->x[DT_BIAS][p->bias_row ? h * p->dk + i : h];
    *raw = x;
    return -FN(exp)((real)p->x[A_LOG][h]) * softplus(x);
}

static void read_decays(struct work *w, int64_t n, int64_t b, int64_t t, int64_t h) {
    const struct recurrent *p = w->p;
    real constant = p->slope == 0 ? 0 : (real)p->slope * (real)h, raw;
    if (p->x[GAMMA]) constant += (real)p->x[GAMMA][p->gamma_each ? n * p->heads + h : h];
    for (int64_t i = 0; i < p->dk; i++) {
        real g = constant + gate(p, b, t, h, i, &raw);
        if (p->x[GK]) g += (real)p->x[GK][at_token(p, b, t, h, p->heads, p->dk) + i];
        w->dk[i] = FN(exp)(g);
    }
    for (int64_t j = 0; j < p->dv; j++)
        w->dv[j] =
            p->x[GV] ? FN(exp)((real)p->x[GV][at_token(p, b, t, h, p->heads, p->dv) + j]) : 1;
}

static void read_token(struct work *w, int64_t n, int64_t b, int64_t t, int64_t h) {
    const struct recurrent *p = w->p;
    copy(w->q, p->x[QUERY] + at_token(p, b, t, head_of(p, h, QUERY), p->own[QUERY], p->dk), p->dk);
    copy(w->k, p->x[KEY] + at_token(p, b, t, head_of(p, h, KEY), p->own[KEY], p->dk), p->dk);
    copy(w->v, p->x[VALUE] + at_token(p, b, t, head_of(p, h, VALUE), p->own[VALUE], p->dv), p->dv);
    w->q_norm = normalise(w, w->q);
    w->k_norm = normalise(w, w->k);
    w->beta = p->x[BETA] ? (real)p->x[BETA][at_token(p, b, t, h, p->heads, 1)] : 1;
    if (p->logits && p->x[BETA]) w->beta = sigmoid(w->beta);
    if (p->member->update == RANK_ONE) {
        copy(w->a, p->x[A] + at_token(p, b, t, h, p->heads, p->dk), p->dk);
        copy(w->b, p->x[B] + at_token(p, b, t, h, p->heads, p->dk), p->dk);
        for (int64_t i = 0; i < p->dk && p->member->multiplies; i++) {
            w->a[i] *= w->b[i];
            w->b[i] = -w->b[i];
        }
    }
    read_decays(w, n, b, t, h);
}

static real bonus_of(const struct work *w, int64_t h) {
    real sum = 0;
    for (int64_t i = 0; i < w->p->dk && w->p->x[BONUS]; i++)
        sum += (real)w->p->scale * w->q[i] * (real)w->p->x[BONUS][h * w->p->dk + i] * w->k[i];
    return sum;
}

/* Column j of the state after a token, from the one before. `at`: as of forward(). */
static void advance(const struct work *w, const real *old, real *new, int64_t j, int64_t at) {
    const struct recurrent *p = w->p;
    const int64_t dv = p->dv;
    const real read =
        p->member->update == RANK_ONE ? inner(w, w->b, 1, old + j, dv, p->dk) : (real)0;
    for (int64_t i = 0; i < p->dk; i++) new[i * dv + j] = old[i * dv + j] * w->dk[i] * w->dv[j];
    real u = w->v[j], size = FN(fabs)(u);
    if (p->member->update == DELTA) {
        u -= inner(w, w->k, 1, new + j, dv, p->dk);
        for (int64_t i = 0; i < p->dk; i++) size += FN(fabs)(w->k[i] * new[i * dv + j]);
        if (at >= 0 && w->errors) w->errors[at + j] = (double)u;
        if (at >= 0 && w->errors_spread) w->errors_spread[at + j] = (double)size;
        u *= w->beta;
    }
    for (int64_t i = 0; i < p->dk; i++) {
        new[i * dv + j] += w->k[i] * u;
        if (p->member->update == RANK_ONE) new[i * dv + j] += w->a[i] * read;
    }
}

/* `at`: the row of results; -1 = the state only. */
static void forward(struct work *w, int64_t h, const real *old, real *new, int64_t at) {
    const struct recurrent *p = w->p;
    const real own = p->member->before ? bonus_of(w, h) : 0;
    for (int64_t j = 0; j < p->dv; j++) {
        advance(w, old, new, j, at);
        const real *read = (p->member->before ? old : new) + j, scale = (real)p->scale;
        if (at < 0) continue;
        if (w->y)
            w->y[at + j] = (double)(scale * inner(w, w->q, 1, read, p->dv, p->dk) + own * w->v[j]);
        if (!w->y_spread) continue;
        real size = FN(fabs)(own * w->v[j]);
        for (int64_t i = 0; i < p->dk; i++) size += FN(fabs)(scale * w->q[i] * read[i * p->dv]);
        w->y_spread[at + j] = (double)size;
    }
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

static void backward_column(struct work *w, int64_t h, const real *old, const real *new, int64_t j,
                            real d_out) {
    const struct recurrent *p = w->p;
    const int64_t dv = p->dv, dk = p->dk;
    const bool delta = p->member->update == DELTA, rank = p->member->update == RANK_ONE;
    const real scale = (real)p->scale, *read_of = p->member->before ? old : new;
    real *d = w->d_state + j, seen = 0;
    for (int64_t i = 0; i < dk; i++) {
        if (!p->member->before) d[i * dv] += scale * w->q[i] * d_out;
        w->gq[i] += scale * read_of[i * dv + j] * d_out;
        if (delta) seen += w->k[i] * old[i * dv + j] * w->dk[i] * w->dv[j];
    }
    const real du = inner(w, w->k, 1, d, dv, dk),
               read = rank ? inner(w, w->b, 1, old + j, dv, dk) : 0;
    const real dh = rank ? inner(w, w->a, 1, d, dv, dk) : 0;
    const real u = delta ? w->beta * (w->v[j] - seen) : w->v[j], back = delta ? -w->beta * du : 0;
    w->gv[j] += delta ? w->beta * du : du;
    w->gbeta += delta ? du * (w->v[j] - seen) : 0;
    w->sbeta += FN(fabs)(du * (w->v[j] - seen));
    for (int64_t i = 0; i < dk; i++) {
        const real before = old[i * dv + j], factor = w->dk[i] * w->dv[j];
        w->gk[i] += d[i * dv] * u + before * factor * back;
        w->ga[i] += d[i * dv] * read;
        w->gb[i] += before * dh;
        const real own = d[i * dv] + w->k[i] * back;
        w->gdk[i] += own * before * factor;
        w->gdv[j] += own * before * factor;
        w->sdk[i] += FN(fabs)(own * before * factor);
        w->sdv[j] += FN(fabs)(own * before * factor);
        d[i * dv] = own * factor + (rank ? w->b[i] * dh : 0);
        if (p->member->before) d[i * dv] += scale * w->q[i] * d_out;
    }
    if (!p->member->before || !p->x[BONUS]) return;
    w->gv[j] += bonus_of(w, h) * d_out;
    for (int64_t i = 0; i < dk; i++) {
        const real bonus = (real)p->x[BONUS][h * dk + i], by = scale * w->v[j] * d_out;
        w->gq[i] += bonus * w->k[i] * by;
        w->gk[i] += bonus * w->q[i] * by;
        w->sum[BONUS][h * dk + i] += w->q[i] * w->k[i] * by;
    }
}

static void put(const struct work *w, enum role role, int64_t at, real value) {
    if (w->out[role]) w->out[role][at] = (double)value;
}

static void put_size(const struct work *w, enum role role, int64_t at, real value) {
    if (w->spread[role]) w->spread[role][at] += (double)value;
}

/* A normalised vector's cotangent has no part along it: that much cancels. */
static void add_vector(const struct work *w, enum role role, int64_t at, const real *d,
                       const real *x, real norm) {
    const real along = w->p->normalise ? inner(w, d, 1, x, 1, w->p->dk) : 0;
    for (int64_t i = 0; i < w->p->dk; i++) {
        w->sum[role][at + i] += norm * (d[i] - x[i] * along);
        put_size(w, role, at + i, norm * (FN(fabs)(d[i]) + FN(fabs)(x[i] * along)));
    }
}

/* `size` is the sum of sizes that d is of. */
static void spread_gate(struct work *w, int64_t b, int64_t t, int64_t h, int64_t i, real d,
                        real size) {
    const struct recurrent *p = w->p;
    real raw = 0;
    if (p->x[A_LOG] && d != 0) {
        w->sum[A_LOG][h] += d * gate(p, b, t, h, i, &raw);
        put_size(w, A_LOG, h, size * FN(fabs)(gate(p, b, t, h, i, &raw)));
        d *= -FN(exp)((real)p->x[A_LOG][h]) * sigmoid(raw);
        size *= FN(exp)((real)p->x[A_LOG][h]) * sigmoid(raw);
        put_size(w, DT_BIAS, p->bias_row ? h * p->dk + i : h, size);
        w->sum[DT_BIAS][p->bias_row ? h * p->dk + i : h] += d;
    }
    put(w, G, at_token(p, b, t, h, p->heads, p->wide_gate ? p->dk : 1) + i, d);
    put_size(w, G, at_token(p, b, t, h, p->heads, p->wide_gate ? p->dk : 1) + i, size);
}

static void spread(struct work *w, int64_t n, int64_t b, int64_t t, int64_t h) {
    const struct recurrent *p = w->p;
    const int64_t row = at_token(p, b, t, h, p->heads, p->dk);
    real head = 0, size = 0;
    add_vector(w, QUERY, at_token(p, b, t, head_of(p, h, QUERY), p->own[QUERY], p->dk), w->gq, w->q,
               w->q_norm);
    add_vector(w, KEY, at_token(p, b, t, head_of(p, h, KEY), p->own[KEY], p->dk), w->gk, w->k,
               w->k_norm);
    for (int64_t j = 0; j < p->dv; j++) {
        w->sum[VALUE][at_token(p, b, t, head_of(p, h, VALUE), p->own[VALUE], p->dv) + j] +=
            w->gv[j];
        put(w, GV, at_token(p, b, t, h, p->heads, p->dv) + j, w->gdv[j]);
        put_size(w, GV, at_token(p, b, t, h, p->heads, p->dv) + j, w->sdv[j]);
    }
    for (int64_t i = 0; i < p->dk; i++) {
        const bool many = p->member->multiplies;
        put(w, A, row + i, many ? -w->b[i] * w->ga[i] : w->ga[i]);
        put(w, B, row + i, many ? (real)p->x[A][row + i] * w->ga[i] - w->gb[i] : w->gb[i]);
        if (p->wide_gate) spread_gate(w, b, t, h, i, w->gdk[i], w->sdk[i]);
        put(w, GK, row + i, w->gdk[i]);
        put_size(w, GK, row + i, w->sdk[i]);
        head += w->gdk[i];
        size += w->sdk[i];
    }
    if (!p->wide_gate) spread_gate(w, b, t, h, 0, head, size);
    w->sum[GAMMA][p->gamma_each ? n * p->heads + h : h] += head;
    put_size(w, GAMMA, p->gamma_each ? n * p->heads + h : h, size);
    if (p->logits) w->gbeta *= w->beta * (1 - w->beta);
    if (p->logits) w->sbeta *= w->beta * (1 - w->beta);
    put_size(w, BETA, at_token(p, b, t, h, p->heads, 1), w->sbeta);
    put(w, BETA, at_token(p, b, t, h, p->heads, 1), w->gbeta);
}

static void backward(struct work *w, int64_t n, int64_t b, int64_t t, int64_t h, const real *old,
                     const real *new) {
    const struct recurrent *p = w->p;
    memset(w->gq, 0, (size_t)(5 * p->dk + 2 * p->dv) * sizeof *w->gq);
    memset(w->sdk, 0, (size_t)(p->dk + p->dv) * sizeof *w->sdk);
    w->gbeta = w->sbeta = 0;
    for (int64_t j = 0; j < p->dv; j++) {
        const double *d = p->d_out;
        backward_column(w, h, old, new, j,
                        d ? (real)d[at_token(p, b, t, h, p->heads, p->dv) + j] : 0);
    }
    spread(w, n, b, t, h);
}

/* ---- A call ------------------------------------------------------------------------------------------ */

static int64_t state_place(const struct recurrent *p, int64_t row, int64_t h, int64_t i,
                           int64_t j) {
    const int64_t inside = p->turned ? j * p->dk + i : i * p->dv + j;
    return (row * p->heads + h) * p->dk * p->dv + inside;
}

static void load_state(const struct recurrent *p, const double *from, int64_t row, int64_t h,
                       real *to) {
    for (int64_t i = 0; i < p->dk; i++)
        for (int64_t j = 0; j < p->dv; j++)
            to[i * p->dv + j] = from && row >= 0 ? (real)from[state_place(p, row, h, i, j)] : 0;
}
static void store_state(const struct recurrent *p, double *to, int64_t row, int64_t h,
                        const real *from) {
    for (int64_t i = 0; to && row >= 0 && i < p->dk; i++)
        for (int64_t j = 0; j < p->dv; j++)
            to[state_place(p, row, h, i, j)] = (double)from[i * p->dv + j];
}

static void walk(struct work *w, int64_t n, int64_t h) {
    const struct recurrent *p = w->p;
    const int64_t size = p->dk * p->dv, b = p->packed ? 0 : n;
    const int64_t begin = p->packed ? p->end[n] : 0, end = p->packed ? p->end[n + 1] : p->tokens;
    const int64_t row = p->pool ? p->row[n] : n, steps = end - begin;
    const size_t bytes = (size_t)size * sizeof(real);
    bool *counts = calloc((size_t)steps + 1, 2), *anew = counts + steps;
    int64_t last = -1;
    load_state(p, p->pool ? p->state : p->x[INITIAL], row, h, w->state);
    for (int64_t s = 0; s < steps; s++) {
        const int64_t t = p->reverse ? end - 1 - s : begin + s;
        real *old = w->state + s * size;
        if (w->states && s % KEPT_STEPS == 0)
            for (int64_t i = 0; i < size; i++)
                w->states[((kept_before(p, n) + s / KEPT_STEPS) * p->heads + h) * size + i] =
                    (double)old[i];
        const int64_t own = p->segment ? p->segment[b * p->tokens + t] : 0;
        counts[s] = own >= 0;
        anew[s] = counts[s] && last >= 0 && last != own;
        if (counts[s]) last = own;
        if (anew[s]) memset(old, 0, bytes);
        if (counts[s]) {
            read_token(w, n, b, t, h);
            forward(w, h, old, old + size, at_token(p, b, t, h, p->heads, p->dv));
        } else {
            memcpy(old + size, old, bytes);
        }
    }
    store_state(p, w->final, n, h, w->state + steps * size);
    store_state(p, w->pool, row, h, w->state + steps * size);
    if (!w->c->gradient) {
        free(counts);
        return;
    }
    load_state(p, p->d_final, n, h, w->d_state);
    for (int64_t s = steps; s-- > 0;) {
        const int64_t t = p->reverse ? end - 1 - s : begin + s;
        if (!counts[s]) continue;
        read_token(w, n, b, t, h);
        /* The state after it may have been reset since. */
        forward(w, h, w->state + s * size, w->new, -1);
        backward(w, n, b, t, h, w->state + s * size, w->new);
        if (anew[s]) memset(w->d_state, 0, bytes);
    }
    store_state(p, w->out[INITIAL], n, h, w->d_state);
    free(counts);
}

static real *reals(int64_t count) {
    real *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory) abort();
    return memory;
}

static void results(struct work *w, struct call *c, int order) {
    char name[64];
    w->y = call_result(c, "out", order, ELEMENT);
    w->y_spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    w->final = call_result(c, "final_state", order, ELEMENT);
    w->pool = call_result(c, "state", order, ELEMENT);
    w->states = c->gradient ? NULL : call_result(c, "chunk_states", order, ELEMENT);
    w->errors = c->gradient ? NULL : call_result(c, "errors", order, ELEMENT);
    w->errors_spread = order == EXACT ? call_result(c, "errors", SPREAD, ELEMENT) : NULL;
    if (w->p->states) w->states = w->p->states;
    if (w->p->errors) w->errors = w->p->errors;
    for (int role = 0; role < ROLES; role++) {
        if (!w->p->member->name[role]) continue;
        snprintf(name, sizeof name, "d_%s", w->p->member->name[role]);
        w->out[role] = call_result(c, name, order, ELEMENT);
        const bool cancels = (role == QUERY || role == KEY) && w->p->normalise;
        if (order == EXACT && (cancels || (role >= G && role <= DT_BIAS) || role == BETA))
            w->spread[role] = call_result(c, name, SPREAD, ELEMENT);
    }
}

void NAME(struct call *c, const struct recurrent *p, int order) {
    struct work w = {.p = p, .c = c, .order = order};
    const int64_t shared[] = {p->dk, p->dk, p->dv}, vectors = 5 * p->dk + 2 * p->dv;
    const int64_t rows = p->batch * p->tokens;
    results(&w, c, order);
    if (w.pool && p->state)
        memcpy(w.pool, p->state, (size_t)(p->slots * p->heads * p->dk * p->dv) * sizeof *w.pool);
    real *memory = reals(2 * vectors);
    real **place[] = {&w.q, &w.k, &w.a, &w.b, &w.dk, &w.v, &w.dv};
    real **gradient[] = {&w.gq, &w.gk, &w.ga, &w.gb, &w.gdk, &w.gv, &w.gdv};
    for (int i = 0; i < 7; i++) {
        const int64_t at = i < 5 ? i * p->dk : 5 * p->dk + (i - 5) * p->dv;
        *place[i] = memory + at;
        *gradient[i] = memory + vectors + at;
    }
    w.sdk = reals(p->dk + p->dv);
    w.sdv = w.sdk + p->dk;
    w.state = reals((p->tokens + 1) * p->dk * p->dv);
    w.d_state = reals(p->dk * p->dv);
    w.new = reals(p->dk * p->dv);
    for (int role = 0; role < ROLES; role++)
        w.sum[role] = reals(role <= VALUE ? rows * p->own[role] * shared[role]
                                          : (p->sequences + 1) * p->heads * (p->dk + 1));
    for (int64_t n = 0; n < p->sequences; n++)
        for (int64_t h = 0; h < p->heads; h++) walk(&w, n, h);
    static const enum role summed[] = {QUERY, KEY, VALUE, BONUS, GAMMA, A_LOG, DT_BIAS};
    for (int i = 0; i < 7; i++)
        if (w.out[summed[i]])
            for (int64_t k = 0; k < ejk_tensor_count(&p->tensor[summed[i]]); k++)
                w.out[summed[i]][k] = (double)w.sum[summed[i]][k];
    for (int role = 0; role < ROLES; role++) free(w.sum[role]);
    free(w.sdk);
    free(w.new);
    free(w.d_state);
    free(w.state);
    free(memory);
}
