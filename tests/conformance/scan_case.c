/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v1 and its gradient. */
#include "conformance/cases.h"
#include "conformance/lines.h"

#include <stdio.h>

struct scan {
    struct lines lines;
    int64_t channels, states, groups;
    bool softplus, limited, pooled;
    ejk_tensor x, a, b, c, d, dt, bias, gate, before, y,
        after; /* y, after: results or cotangents */
    double *vx, *va, *vb, *vc, *vd, *vdt, *vbias, *vgate, *vbefore, *vy, *vafter;
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* Decays from none at all to everything at once. */
static void fill_decays(struct call *c, const ejk_tensor *t) {
    static const double special[] = {0, -50, -1e4, -1e-4};
    struct random *r = &c->random;
    for (int64_t n = 0; n < ejk_tensor_count(t); n++)
        tensor_put(t, n,
                   random_chance(r, 0.1) ? RANDOM_OF(r, special) : -exp(random_normal(r) - 0.5));
}

/* Step sizes are positive, with softplus or without: states would grow without bounds. */
static void fill_steps(struct call *c, const struct scan *v, const ejk_tensor *t, double middle) {
    tensor_fill(c, t, middle, 1.5);
    for (int64_t n = 0; !v->softplus && n < ejk_tensor_count(t); n++)
        tensor_put(t, n, exp(0.5 * tensor_get(t, n) - 1));
}

static struct scan *make(struct call *c, bool gradient) {
    static const int64_t tokens[] = {0, 1, 1, 2, 7, 16, 33, 64, 65, 100};
    static const int64_t channels[] = {1, 2, 7, 15, 16, 17, 33};
    static const int64_t states[] = {1, 3, 8, 16, 16, 17};
    struct random *r = &c->random;
    struct scan *v = call_memory(c, sizeof *v);
    c->own = v;
    v->groups = random_chance(r, 0.3) ? 2 : 1;
    v->states = RANDOM_OF(r, states);
    v->channels = random_chance(r, 0.02) ? 0 : v->groups * RANDOM_OF(r, channels);
    int64_t t = RANDOM_OF(r, tokens);
    if (t < 10 && random_chance(r, 0.2)) v->channels = 140; /* several slabs */
    lines_make(c, &v->lines, random_chance(r, 0.02) ? 0 : random_int(r, 1, 2), t);
    v->softplus = random_chance(r, 0.5);
    v->limited = random_chance(r, 0.3);
    v->pooled = !gradient && random_chance(r, 0.4);
    if (v->pooled) lines_pool(c, &v->lines);
    const int64_t n = v->lines.batch, e = v->channels, k = v->states;
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    const bool grouped = v->groups > 1 || random_chance(r, 0.5);
    const int64_t four[4] = {n, t, v->groups, k}, three[3] = {n, t, k};
    v->x = CALL_TENSOR(c, c->dtype, n, t, e);
    v->dt = CALL_TENSOR(c, c->dtype, n, t, e);
    v->y = CALL_TENSOR(c, c->dtype, n, t, e);
    v->a = CALL_TENSOR(c, lines_type(c), e, k);
    v->b = call_tensor(c, c->dtype, grouped ? 4 : 3, grouped ? four : three);
    v->c = call_tensor(c, c->dtype, grouped ? 4 : 3, grouped ? four : three);
    tensor_fill(c, &v->x, 0.3, 1);
    tensor_fill(c, &v->b, 0, 1);
    tensor_fill(c, &v->c, 0, 1);
    fill_decays(c, &v->a);
    fill_steps(c, v, &v->dt, -1);
    if (random_chance(r, 0.5))
        v->d = CALL_TENSOR(c, lines_type(c), e), tensor_fill(c, &v->d, 1, 0.3);
    if (random_chance(r, 0.5))
        v->bias = CALL_TENSOR(c, lines_type(c), e), fill_steps(c, v, &v->bias, 0);
    if (random_chance(r, 0.5))
        v->gate = CALL_TENSOR(c, c->dtype, n, t, e), tensor_fill(c, &v->gate, 0, 2);
    const int64_t entries = v->pooled ? v->lines.slots : v->lines.count;
    if (v->pooled || random_chance(r, 0.5)) {
        v->before = CALL_TENSOR(c, v->pooled ? wide : lines_type(c), entries, e, k);
        tensor_fill(c, &v->before, 0, 1);
    }
    if (!v->pooled && random_chance(r, 0.6)) v->after = CALL_TENSOR(c, wide, entries, e, k);
    if (gradient) {
        c->gradient = true;
        tensor_fill(c, &v->y, 0.2, 1);
        if (ejk_tensor_present(&v->after)) tensor_fill(c, &v->after, 0.2, 1);
    }
    return v;
}

/* Limits lie between step sizes, so that differences do not cross them often. */
#define SET_SHARED(args, v)                                                                        \
    do {                                                                                           \
        (args)->hidden_states = (v)->x;                                                            \
        (args)->a = (v)->a;                                                                        \
        (args)->b = (v)->b;                                                                        \
        (args)->c = (v)->c;                                                                        \
        (args)->d = (v)->d;                                                                        \
        (args)->dt = (v)->dt;                                                                      \
        (args)->gate = (v)->gate;                                                                  \
        (args)->dt_bias = (v)->bias;                                                               \
        (args)->cu_seqlens = (v)->lines.ends;                                                      \
        (args)->dt_softplus = (v)->softplus;                                                       \
        (args)->dt_min = (ejk_opt_float){0.125, (v)->limited};                                     \
        (args)->dt_max = (ejk_opt_float){0.75, (v)->limited};                                      \
    } while (0)

static bool generate(struct call *c) {
    ejk_state_space_v1_args *args = c->args;
    const struct scan *v = make(c, false);
    SET_SHARED(args, v);
    args->out = v->y;
    args->final_state = v->after;
    args->state_indices = v->lines.indices;
    if (v->pooled)
        args->state = v->before;
    else
        args->initial_state = v->before;
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_state_space_v1_vjp_args *args = c->args;
    const struct scan *v = make(c, true);
    SET_SHARED(args, v);
    args->initial_state = v->before;
    args->d_out = v->y;
    args->d_final_state = v->after;
    args->d_hidden_states = call_tensor_like(c, &v->x, 0.9);
    args->d_a = call_tensor_like(c, &v->a, 0.9);
    args->d_b = call_tensor_like(c, &v->b, 0.9);
    args->d_c = call_tensor_like(c, &v->c, 0.9);
    args->d_d = call_tensor_like(c, &v->d, 0.9);
    args->d_dt = call_tensor_like(c, &v->dt, 0.9);
    args->d_gate = call_tensor_like(c, &v->gate, 0.9);
    args->d_dt_bias = call_tensor_like(c, &v->bias, 0.9);
    args->d_initial_state = call_tensor_like(c, &v->before, 0.9);
    return true;
}

/* What nobody reads: tokens of no sequence, slots of none. Differences would find NaN times 0. */
static void finish(struct call *c) {
    const struct scan *v = c->own;
    const ejk_tensor *rows[] = {&v->x, &v->dt, &v->b, &v->c, &v->gate, &v->y};
    for (int i = 0; i < (c->gradient ? 6 : 5); i++)
        if (c->dtype != EJK_DTYPE_F64) lines_hide(&v->lines, rows[i]);
    if (v->pooled) lines_hide_slots(&v->lines, &v->before);
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static void read(struct call *c, struct scan *v) {
    if (v->vx) return;
    const ejk_tensor *from[] = {&v->x,    &v->a,    &v->b,      &v->c, &v->d,    &v->dt,
                                &v->bias, &v->gate, &v->before, &v->y, &v->after};
    double **to[] = {&v->vx,    &v->va,    &v->vb,      &v->vc, &v->vd,    &v->vdt,
                     &v->vbias, &v->vgate, &v->vbefore, &v->vy, &v->vafter};
    for (int i = 0; i < 11; i++) *to[i] = tensor_values(c, from[i]);
}

/* One channel of one sequence. */
struct line {
    int64_t e, n, length, token; /* token: the first, of all tokens of the call */
    long double *h;              /* [length + 1][states] */
};

static int64_t at_channel(const struct scan *v, const struct line *l, int64_t t) {
    return (l->token + t) * v->channels + l->e;
}
static int64_t at_group(const struct scan *v, const struct line *l, int64_t t) {
    return ((l->token + t) * v->groups + l->e / (v->channels / v->groups)) * v->states;
}

static long double step_at(const struct call *c, int order, const struct line *l, int64_t t,
                           long double *slope) {
    const struct scan *v = c->own;
    long double u = (long double)v->vdt[at_channel(v, l, t)];
    if (v->vbias) u = R(u + (long double)v->vbias[l->e]);
    *slope = v->softplus ? R(1 / R(1 + R(expl(-u)))) : 1;
    if (v->softplus) u = R(fmaxl(u, 0) + R(log1pl(R(expl(-fabsl(u))))));
    if (!v->limited) return u;
    if (u < 0.125L || u > 0.75L) *slope = 0;
    return fmaxl(0.125L, fminl(0.75L, u));
}

static void walk(const struct call *c, int order, const struct line *l) {
    const struct scan *v = c->own;
    const int64_t states = v->states, slot = v->lines.slot[l->n];
    for (int64_t k = 0; k < states; k++)
        l->h[k] = v->vbefore && slot >= 0
                      ? (long double)v->vbefore[(slot * v->channels + l->e) * states + k]
                      : 0;
    for (int64_t t = 0; t < l->length; t++) {
        long double slope;
        const long double step = step_at(c, order, l, t, &slope);
        const long double input = R(step * (long double)v->vx[at_channel(v, l, t)]);
        for (int64_t k = 0; k < states; k++) {
            const long double decay = R(expl(R((long double)v->va[l->e * states + k] * step)));
            l->h[(t + 1) * states + k] = R(R(decay * l->h[t * states + k]) +
                                           R(input * (long double)v->vb[at_group(v, l, t) + k]));
        }
    }
}

static long double read_at(const struct call *c, int order, const struct line *l, int64_t t,
                           long double *size) {
    const struct scan *v = c->own;
    long double y = 0;
    if (v->vd) y = R((long double)v->vd[l->e] * (long double)v->vx[at_channel(v, l, t)]);
    *size = fabsl(y);
    for (int64_t k = 0; k < v->states; k++) {
        const long double term =
            R(l->h[(t + 1) * v->states + k] * (long double)v->vc[at_group(v, l, t) + k]);
        y = R(y + term);
        *size += fabsl(term);
    }
    return y;
}

/* silu and its slope. */
static long double gate_at(const struct call *c, int order, const struct line *l, int64_t t,
                           long double *slope) {
    const struct scan *v = c->own;
    *slope = 0;
    if (!v->vgate) return 1;
    const long double z = (long double)v->vgate[at_channel(v, l, t)], below = R(1 + R(expl(-z)));
    const long double s = R(1 / below);
    *slope = R(s * R(1 + R(z * R(1 - s))));
    return R(z / below);
}

static void results_of(struct call *c, int order, const struct line *l, double *out, double *spread,
                       double *state) {
    const struct scan *v = c->own;
    walk(c, order, l);
    for (int64_t t = 0; t < l->length; t++) {
        long double size, slope;
        const long double g = gate_at(c, order, l, t, &slope), y = read_at(c, order, l, t, &size);
        out[at_channel(v, l, t)] = (double)R(y * g);
        if (spread) spread[at_channel(v, l, t)] = (double)(size * fabsl(g));
    }
    const int64_t slot = v->lines.slot[l->n];
    for (int64_t k = 0; state && slot >= 0 && k < v->states; k++)
        state[(slot * v->channels + l->e) * v->states + k] =
            (double)l->h[l->length * v->states + k];
}

static struct line line_of(const struct scan *v, int64_t i, long double *h) {
    const int64_t n = i / v->channels;
    return (struct line){.n = n,
                         .e = i % v->channels,
                         .length = v->lines.end[n] - v->lines.begin[n],
                         .token = v->lines.row[n] * v->lines.tokens + v->lines.begin[n],
                         .h = h};
}

static void results(struct call *c, int order) {
    struct scan *v = c->own;
    read(c, v);
    long double *h = call_memory(c, (size_t)((v->lines.tokens + 1) * v->states) * sizeof *h);
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *state = call_result(c, v->pooled ? "state" : "final_state", order, ELEMENT);
    for (int64_t k = 0; v->pooled && k < ejk_tensor_count(&v->before); k++)
        state[k] = v->vbefore[k];
    for (int64_t i = 0; i < v->lines.count * v->channels; i++) {
        const struct line l = line_of(v, i, h);
        results_of(c, order, &l, out, spread, state);
    }
}

static void exact(struct call *c) {
    results(c, EXACT);
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

static void add(const struct call *c, int order, struct call_sums s, int64_t at, long double term) {
    call_add(c, order, s, at, term, fabsl(term));
}

struct all {
    struct call_sums x, a, b, c, d, dt, gate, bias, before;
};

static void gradients_of(struct call *c, int order, const struct line *l, const struct all *s,
                         long double *d_h) {
    const struct scan *v = c->own;
    const int64_t states = v->states;
    walk(c, order, l);
    for (int64_t k = 0; k < states; k++)
        d_h[k] = v->vafter ? (long double)v->vafter[(l->n * v->channels + l->e) * states + k] : 0;
    for (int64_t t = l->length - 1; t >= 0; t--) {
        const int64_t at = at_channel(v, l, t), row = at_group(v, l, t);
        long double step_slope, gate_slope, size;
        const long double step = step_at(c, order, l, t, &step_slope);
        const long double g = gate_at(c, order, l, t, &gate_slope), x = (long double)v->vx[at];
        const long double d_out = (long double)v->vy[at], dy = R(d_out * g);
        const long double input = R(step * x), skip = v->vd ? (long double)v->vd[l->e] : 0;
        long double d_input = 0, d_step = 0, sizes = 0, input_size = 0;
        add(c, order, s->gate, at, R(d_out * read_at(c, order, l, t, &size)) * gate_slope);
        add(c, order, s->d, l->e, dy * x);
        for (int64_t k = 0; k < states; k++) {
            const long double a = (long double)v->va[l->e * states + k],
                              decay = R(expl(R(a * step)));
            const long double b = (long double)v->vb[row + k];
            d_h[k] = R(d_h[k] + R(dy * (long double)v->vc[row + k]));
            add(c, order, s->c, row + k, dy * l->h[(t + 1) * states + k]);
            add(c, order, s->b, row + k, d_h[k] * input);
            d_input = R(d_input + R(d_h[k] * b));
            input_size += fabsl(d_h[k] * b);
            d_h[k] = R(d_h[k] * decay);
            const long double faded = R(d_h[k] * l->h[t * states + k]);
            d_step = R(d_step + R(a * faded));
            sizes += fabsl(a * faded);
            add(c, order, s->a, l->e * states + k, step * faded);
        }
        d_step = R(R(d_step + R(d_input * x)) * step_slope);
        sizes = (sizes + input_size * fabsl(x)) * fabsl(step_slope);
        add(c, order, s->x, at, R(R(d_input * step) + R(dy * skip)));
        add(c, order, s->dt, at, d_step);
        add(c, order, s->bias, l->e, d_step);
        if (s->x.size) s->x.size[at] = (double)(input_size * fabsl(step) + fabsl(dy * skip));
        if (s->dt.size) s->dt.size[at] = (double)sizes;
        if (s->bias.size) s->bias.size[l->e] += (double)(sizes - fabsl(d_step));
        if (s->gate.size) s->gate.size[at] = (double)fabsl(d_out * size * gate_slope);
    }
    for (int64_t k = 0; k < states; k++)
        add(c, order, s->before, (l->n * v->channels + l->e) * states + k, d_h[k]);
}

static void gradients(struct call *c, int order) {
    struct scan *v = c->own;
    read(c, v);
    long double *h = call_memory(c, (size_t)((v->lines.tokens + 2) * v->states) * sizeof *h);
    const struct all s = {.x = call_sums_of(c, "d_hidden_states", order),
                          .a = call_sums_of(c, "d_a", order),
                          .b = call_sums_of(c, "d_b", order),
                          .c = call_sums_of(c, "d_c", order),
                          .d = call_sums_of(c, "d_d", order),
                          .dt = call_sums_of(c, "d_dt", order),
                          .gate = call_sums_of(c, "d_gate", order),
                          .bias = call_sums_of(c, "d_dt_bias", order),
                          .before = call_sums_of(c, "d_initial_state", order)};
    for (int64_t i = 0; i < v->lines.count * v->channels; i++) {
        const struct line l = line_of(v, i, h);
        gradients_of(c, order, &l, &s, h + (v->lines.tokens + 1) * v->states);
    }
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

/* Channels, where they are of one group; gradients of b and c need them all. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct scan *v = c->own;
    if (v->channels * v->lines.batch * v->lines.tokens == 0 || v->groups > 1) return false;
    slice_add(s, r, "E", v->channels, false);
    return true;
}

const struct operation state_space_v1_case = {.op = "state_space_v1",
                                              .cases = 40,
                                              .generate = generate,
                                              .finish = finish,
                                              .exact = exact,
                                              .naive = results,
                                              .slice = slice};

const struct operation state_space_v1_vjp_case = {.op = "state_space_v1_vjp",
                                                  .cases = 40,
                                                  .generate = generate_vjp,
                                                  .finish = finish,
                                                  .exact = exact_vjp,
                                                  .naive = gradients,
                                                  .slice = slice};
