/* SPDX-License-Identifier: Apache-2.0 */
/* rwkv4 and its gradient. */
#include "conformance/cases.h"
#include "conformance/lines.h"

enum { ABOVE, BELOW, SHIFT, NUMBERS }; /* of a state: sums of values and weights, and ε */

struct wkv {
    struct lines lines;
    int64_t channels;
    bool pooled, reverse;
    ejk_tensor w, u, k, v, before, y, after; /* y, after: results or cotangents */
    double *vw, *vu, *vk, *vv, *vbefore, *vy, *vafter;
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* Normal numbers, of which some are near those given. Differences know nothing of infinity, nor of equal keys. */
static void fill_with(struct call *c, const ejk_tensor *t, double middle, const double special[4]) {
    struct random *r = &c->random;
    tensor_fill(c, t, middle, 1.5);
    for (int64_t n = 0; n < ejk_tensor_count(t); n++) {
        double other = special[random_int(r, 0, 3)];
        if (!random_chance(r, 0.1) || (c->gradient && isinf(other))) continue;
        if (c->gradient) other += 0.1 * random_normal(r);
        tensor_put(t, n, other);
    }
}

static void fill_states(struct call *c, const ejk_tensor *t, int64_t channels) {
    tensor_fill(c, t, 0, 1);
    for (int64_t n = 0; n < ejk_tensor_count(t); n++)
        if (n / channels % NUMBERS == BELOW) tensor_put(t, n, exp(tensor_get(t, n)));
}

static struct wkv *make(struct call *c, bool gradient) {
    static const int64_t tokens[] = {0, 1, 1, 2, 7, 16, 33, 64, 65, 100};
    static const int64_t channels[] = {1, 2, 7, 15, 16, 17, 33, 70};
    static const double rates[4] = {-(double)INFINITY, -20, 3, 10};
    static const double keys[4] = {-(double)INFINITY, -50, 50, 1e4};
    struct random *r = &c->random;
    struct wkv *v = call_memory(c, sizeof *v);
    c->own = v;
    c->gradient = gradient;
    c->scarce = true; /* each channel is a problem of its own: which keys are large in it is luck */
    v->channels = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, channels);
    const int64_t t = RANDOM_OF(r, tokens);
    if (t < 10 && random_chance(r, 0.2)) v->channels = 530; /* several slabs */
    lines_make(c, &v->lines, random_chance(r, 0.02) ? 0 : random_int(r, 1, 2), t);
    v->reverse = random_chance(r, 0.3);
    v->pooled = !gradient && random_chance(r, 0.4);
    if (v->pooled) lines_pool(c, &v->lines);
    const int64_t n = v->lines.batch, e = v->channels;
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    v->w = CALL_TENSOR(c, lines_type(c), e);
    v->u = CALL_TENSOR(c, lines_type(c), e);
    v->k = CALL_TENSOR(c, c->dtype, n, t, e);
    v->v = CALL_TENSOR(c, c->dtype, n, t, e);
    v->y = CALL_TENSOR(c, c->dtype, n, t, e);
    fill_with(c, &v->w, -1, rates);
    tensor_fill(c, &v->u, 0.3, 1);
    fill_with(c, &v->k, 0, keys);
    tensor_fill(c, &v->v, 0.3, 1);
    const int64_t entries = v->pooled ? v->lines.slots : v->lines.count;
    const bool ends = !v->pooled && random_chance(r, 0.6);
    /* Beside the -1e30 that an empty sequence ends with, differences would see nothing else. */
    if (v->pooled || random_chance(r, 0.5) || (gradient && ends && c->dtype == EJK_DTYPE_F64)) {
        v->before = CALL_TENSOR(c, v->pooled ? wide : lines_type(c), entries, NUMBERS, e);
        fill_states(c, &v->before, e);
    }
    if (ends) v->after = CALL_TENSOR(c, wide, entries, NUMBERS, e);
    if (gradient) {
        tensor_fill(c, &v->y, 0.2, 1);
        if (ejk_tensor_present(&v->after)) tensor_fill(c, &v->after, 0.2, 1);
    }
    return v;
}

#define SET_SHARED(args, v)                                                                        \
    do {                                                                                           \
        (args)->w = (v)->w;                                                                        \
        (args)->u = (v)->u;                                                                        \
        (args)->k = (v)->k;                                                                        \
        (args)->v = (v)->v;                                                                        \
        (args)->cu_seqlens = (v)->lines.ends;                                                      \
        (args)->reverse = (v)->reverse;                                                            \
    } while (0)

static bool generate(struct call *c) {
    ejk_rwkv4_args *args = c->args;
    const struct wkv *v = make(c, false);
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
    ejk_rwkv4_vjp_args *args = c->args;
    const struct wkv *v = make(c, true);
    SET_SHARED(args, v);
    args->initial_state = v->before;
    args->d_out = v->y;
    args->d_final_state = v->after;
    args->d_w = call_tensor_like(c, &v->w, 0.9);
    args->d_u = call_tensor_like(c, &v->u, 0.9);
    args->d_k = call_tensor_like(c, &v->k, 0.9);
    args->d_v = call_tensor_like(c, &v->v, 0.9);
    args->d_initial_state = call_tensor_like(c, &v->before, 0.9);
    return true;
}

/* What nobody reads: tokens of no sequence, hidden values, slots of none. Differences would find NaN times 0. */
static void finish(struct call *c) {
    const struct wkv *v = c->own;
    const int64_t rows = ejk_tensor_count(&v->k);
    for (int64_t n = 0; c->dtype != EJK_DTYPE_F64 && n < rows; n++)
        if (isinf(tensor_get(&v->k, n))) tensor_hide(&v->v, n, 1);
    const ejk_tensor *of_tokens[] = {&v->k, &v->v, &v->y};
    for (int i = 0; i < (c->gradient ? 3 : 2); i++)
        if (c->dtype != EJK_DTYPE_F64) lines_hide(&v->lines, of_tokens[i]);
    if (v->pooled) lines_hide_slots(&v->lines, &v->before);
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static void read(struct call *c, struct wkv *v) {
    if (v->vk) return;
    const ejk_tensor *from[] = {&v->w, &v->u, &v->k, &v->v, &v->before, &v->y, &v->after};
    double **to[] = {&v->vw, &v->vu, &v->vk, &v->vv, &v->vbefore, &v->vy, &v->vafter};
    for (int i = 0; i < 7; i++) *to[i] = tensor_values(c, from[i]);
}

/* One channel of one sequence. */
struct line {
    int64_t e, n, length;
    long double (*h)[NUMBERS]; /* [length + 1] */
};

static int64_t at_token(const struct wkv *v, const struct line *l, int64_t t) {
    const struct lines *s = &v->lines;
    const int64_t token = v->reverse ? s->end[l->n] - 1 - t : s->begin[l->n] + t;
    return (s->row[l->n] * s->tokens + token) * v->channels + l->e;
}
static int64_t at_state(const struct wkv *v, const struct line *l, int64_t entry, int number) {
    return (entry * NUMBERS + number) * v->channels + l->e;
}

/* A token of a line: weights of what was before it and of itself, as it reads and as the state keeps them. */
struct token {
    long double value, above, sum, size, before, own, kept_before, kept_own;
    long double before_size, own_size,
        kept_size[2]; /* what rounded logarithms make of an error of a weight */
    bool is_key;      /* the key is the new maximum */
};

/*
 * Relative error of a product with a weight, in units of rounding: those of its two logarithms, unless it is 1, to
 * which every step of the line adds.
 */
static long double size_of(const struct line *l, long double weight, long double a, long double b) {
    const long double steps = sqrtl((long double)l->length + 1);
    return weight == 0 || weight == 1 ? steps : steps * (1 + fabsl(a) + fabsl(b));
}

static struct token token_at(const struct call *c, int order, const struct line *l, int64_t t) {
    const struct wkv *v = c->own;
    const long double k = (long double)v->vk[at_token(v, l, t)], shift = l->h[t][SHIFT];
    const long double own = R((long double)v->vu[l->e] + k);
    const long double faded = R(shift - R(expl((long double)v->vw[l->e])));
    const long double most = fmaxl(shift, own), next = fmaxl(faded, k);
    struct token a = {.value = isinf(k) && k < 0 ? 0 : (long double)v->vv[at_token(v, l, t)]};
    a.before = R(expl(R(shift - most)));
    a.own = R(expl(R(own - most)));
    a.kept_before = R(expl(R(faded - next)));
    a.kept_own = R(expl(R(k - next)));
    a.is_key = faded <= k;
    a.before_size = size_of(l, a.before, shift, own);
    a.own_size = size_of(l, a.own, shift, own);
    a.kept_size[0] = size_of(l, a.kept_before, faded, k);
    a.kept_size[1] = size_of(l, a.kept_own, faded, k);
    a.above = R(R(a.before * l->h[t][ABOVE]) + R(a.own * a.value));
    a.sum = R(R(a.before * l->h[t][BELOW]) + a.own);
    a.size = fabsl(a.before * l->h[t][ABOVE]) * a.before_size + fabsl(a.own * a.value) * a.own_size;
    return a;
}

static void walk(const struct call *c, int order, const struct line *l) {
    const struct wkv *v = c->own;
    const int64_t slot = v->lines.slot[l->n];
    for (int i = 0; i < NUMBERS; i++)
        l->h[0][i] = v->vbefore && slot >= 0 ? (long double)v->vbefore[at_state(v, l, slot, i)]
                     : i == SHIFT            ? -1e30L
                                             : 0;
    for (int64_t t = 0; t < l->length; t++) {
        const struct token a = token_at(c, order, l, t);
        const long double faded = R(l->h[t][SHIFT] - R(expl((long double)v->vw[l->e])));
        l->h[t + 1][ABOVE] = R(R(a.kept_before * l->h[t][ABOVE]) + R(a.kept_own * a.value));
        l->h[t + 1][BELOW] = R(R(a.kept_before * l->h[t][BELOW]) + a.kept_own);
        l->h[t + 1][SHIFT] = fmaxl(faded, (long double)v->vk[at_token(v, l, t)]);
    }
}

static struct line line_of(const struct wkv *v, int64_t i, void *h) {
    const int64_t n = i / v->channels;
    return (struct line){
        .n = n, .e = i % v->channels, .length = v->lines.end[n] - v->lines.begin[n], .h = h};
}
static void *room(struct call *c) {
    const struct wkv *v = c->own;
    return call_memory(c, (size_t)(v->lines.tokens + 1) * NUMBERS * sizeof(long double));
}

static void results(struct call *c, int order) {
    struct wkv *v = c->own;
    read(c, v);
    void *h = room(c);
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *state = call_result(c, v->pooled ? "state" : "final_state", order, ELEMENT);
    for (int64_t n = 0; v->pooled && n < ejk_tensor_count(&v->before); n++)
        state[n] = v->vbefore[n];
    for (int64_t i = 0; i < v->lines.count * v->channels; i++) {
        const struct line l = line_of(v, i, h);
        walk(c, order, &l);
        for (int64_t t = 0; t < l.length; t++) {
            const struct token a = token_at(c, order, &l, t);
            out[at_token(v, &l, t)] = a.sum == 0 ? 0 : (double)R(a.above / a.sum);
            if (spread && a.sum != 0) spread[at_token(v, &l, t)] = (double)(a.size / fabsl(a.sum));
        }
        const int64_t slot = v->lines.slot[l.n];
        for (int k = 0; state && slot >= 0 && k < NUMBERS; k++)
            state[at_state(v, &l, slot, k)] = (double)l.h[l.length][k];
    }
}

static void exact(struct call *c) {
    results(c, EXACT);
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

static void add(const struct call *c, int order, struct call_sums s, int64_t at, long double term,
                long double size) {
    call_add(c, order, s, at, term, fabsl(term) * size);
}

struct all {
    struct call_sums w, u, k, v, before;
};

/* Every step of the chain rule for itself, the shift's cotangent with it. */
static void gradients_of(struct call *c, int order, const struct line *l, const struct all *s) {
    const struct wkv *v = c->own;
    long double d[NUMBERS] = {0}, size = 1;
    walk(c, order, l);
    for (int i = 0; v->vafter && i < NUMBERS; i++)
        d[i] = (long double)v->vafter[at_state(v, l, l->n, i)];
    for (int64_t t = l->length - 1; t >= 0; t--) {
        const int64_t at = at_token(v, l, t);
        const long double *h = l->h[t], *next = l->h[t + 1];
        const struct token a = token_at(c, order, l, t);
        const long double d_above = a.sum == 0 ? 0 : R((long double)v->vy[at] / a.sum);
        const long double d_sum = a.sum == 0 ? 0 : R(-d_above * R(a.above / a.sum));
        const long double rate = R(expl((long double)v->vw[l->e]));
        const long double over =
            R(d[SHIFT] - R(next[ABOVE] * d[ABOVE]) - R(next[BELOW] * d[BELOW]));
        const long double from_kept[2] = {a.kept_own * a.value * d[ABOVE], a.kept_own * d[BELOW]};
        const long double from_read[2] = {a.own * a.value * d_above, a.own * d_sum};
        const long double faded[2] = {a.kept_before * h[ABOVE] * d[ABOVE],
                                      a.kept_before * h[BELOW] * d[BELOW]};
        for (int i = 0; i < 2; i++) {
            add(c, order, s->k, at, from_read[i], a.own_size);
            add(c, order, s->k, at, from_kept[i], a.kept_size[1]);
            add(c, order, s->u, l->e, from_read[i], a.own_size);
            add(c, order, s->w, l->e, -rate * faded[i], a.kept_size[0]);
        }
        if (a.is_key)
            add(c, order, s->k, at, over, 1);
        else
            add(c, order, s->w, l->e, -rate * over, 1);
        add(c, order, s->v, at, a.own * d_above, a.own_size);
        add(c, order, s->v, at, a.kept_own * d[ABOVE], a.kept_size[1]);
        if (t == 0) size = a.before_size + a.kept_size[0];
        d[SHIFT] = R(a.before * R(h[ABOVE] * d_above + h[BELOW] * d_sum) + faded[0] + faded[1] +
                     (a.is_key ? 0 : over));
        d[ABOVE] = R(R(a.before * d_above) + R(a.kept_before * d[ABOVE]));
        d[BELOW] = R(R(a.before * d_sum) + R(a.kept_before * d[BELOW]));
    }
    for (int i = 0; i < NUMBERS; i++) add(c, order, s->before, at_state(v, l, l->n, i), d[i], size);
    if (s->before.size)
        s->before.size[at_state(v, l, l->n, SHIFT)] +=
            (double)(fabsl(l->h[0][ABOVE] * d[ABOVE]) + fabsl(l->h[0][BELOW] * d[BELOW]));
}

static void gradients(struct call *c, int order) {
    struct wkv *v = c->own;
    read(c, v);
    void *h = room(c);
    const struct all s = {.w = call_sums_of(c, "d_w", order),
                          .u = call_sums_of(c, "d_u", order),
                          .k = call_sums_of(c, "d_k", order),
                          .v = call_sums_of(c, "d_v", order),
                          .before = call_sums_of(c, "d_initial_state", order)};
    for (int64_t i = 0; i < v->lines.count * v->channels; i++) {
        const struct line l = line_of(v, i, h);
        gradients_of(c, order, &l, &s);
    }
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct wkv *v = c->own;
    if (v->channels * v->lines.batch * v->lines.tokens == 0) return false;
    slice_add(s, r, "C", v->channels, false);
    return true;
}

const struct operation rwkv4_case = {.op = "rwkv4",
                                     .cases = 40,
                                     .generate = generate,
                                     .finish = finish,
                                     .exact = exact,
                                     .naive = results,
                                     .slice = slice};

const struct operation rwkv4_vjp_case = {.op = "rwkv4_vjp",
                                         .cases = 40,
                                         .generate = generate_vjp,
                                         .finish = finish,
                                         .exact = exact_vjp,
                                         .naive = gradients,
                                         .slice = slice};
