/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d and its gradient. */
#include "conformance/cases.h"
#include "conformance/lines.h"

#include <stdio.h>

struct conv {
    struct lines lines;
    int64_t channels, width;
    bool silu, pooled;
    ejk_tensor x, weight, bias, before, y, after; /* y, after: results, or their cotangents */
    double *vx, *vw, *vb, *vs, *vy, *va;          /* values; those of states before and after */
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static struct conv *make(struct call *c, bool gradient) {
    static const int64_t tokens[] = {0, 1, 1, 2, 3, 5, 16, 64, 65, 130, 200};
    static const int64_t channels[] = {1, 2, 7, 15, 16, 17, 33, 64, 100};
    static const int64_t widths[] = {1, 2, 3, 4, 4, 4, 5, 8};
    struct random *r = &c->random;
    struct conv *v = call_memory(c, sizeof *v);
    c->own = v;
    v->width = RANDOM_OF(r, widths);
    v->channels = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, channels);
    int64_t t = RANDOM_OF(r, tokens);
    if (t < 6 && random_chance(r, 0.1)) v->channels = 2100; /* several tiles */
    if (t > 64 && v->channels > 40) v->channels = 40;
    lines_make(c, &v->lines, random_chance(r, 0.02) ? 0 : random_int(r, 1, 3), t);
    v->silu = random_chance(r, 0.5);
    v->pooled = !gradient && random_chance(r, 0.4);
    if (v->pooled) lines_pool(c, &v->lines);
    const int64_t b = v->lines.batch, ch = v->channels, w = v->width;
    v->x = CALL_TENSOR(c, c->dtype, b, t, ch);
    v->weight = CALL_TENSOR(c, c->dtype, ch, w);
    v->y = CALL_TENSOR(c, c->dtype, b, t, ch);
    tensor_fill(c, &v->x, 0.3, 1);
    tensor_fill(c, &v->weight, 0, 0.7);
    if (random_chance(r, 0.5))
        v->bias = CALL_TENSOR(c, c->dtype, ch), tensor_fill(c, &v->bias, 0, 1);
    const int64_t entries = v->pooled ? v->lines.slots : v->lines.count;
    if (v->pooled || random_chance(r, 0.5)) {
        v->before = CALL_TENSOR(c, c->dtype, entries, ch, w - 1);
        tensor_fill(c, &v->before, 0, 1);
    }
    if (!v->pooled && random_chance(r, 0.6))
        v->after = CALL_TENSOR(c, c->dtype, entries, ch, w - 1);
    if (gradient) {
        c->gradient = true;
        tensor_fill(c, &v->y, 0.2, 1);
        if (ejk_tensor_present(&v->after)) tensor_fill(c, &v->after, 0.2, 1);
    }
    return v;
}

#define SET_SHARED(args, v)                                                                        \
    do {                                                                                           \
        (args)->x = (v)->x;                                                                        \
        (args)->weight = (v)->weight;                                                              \
        (args)->bias = (v)->bias;                                                                  \
        (args)->cu_seqlens = (v)->lines.ends;                                                      \
        snprintf((args)->activation, sizeof(args)->activation, "%s", (v)->silu ? "silu" : "");     \
    } while (0)

static bool generate(struct call *c) {
    ejk_causal_conv1d_args *args = c->args;
    const struct conv *v = make(c, false);
    SET_SHARED(args, v);
    args->out = v->y;
    args->final_state = v->after;
    args->state_indices = v->lines.indices;
    if (v->pooled)
        args->conv_state = v->before;
    else
        args->initial_state = v->before;
    call_disturb(c, &v->x);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_causal_conv1d_vjp_args *args = c->args;
    struct random *r = &c->random;
    const struct conv *v = make(c, true);
    SET_SHARED(args, v);
    args->initial_state = v->before;
    args->d_out = v->y;
    args->d_final_state = v->after;
    const int64_t entries = v->lines.count, ch = v->channels, w = v->width;
    if (random_chance(r, 0.9)) args->d_x = call_tensor(c, c->dtype, 3, v->x.shape);
    if (random_chance(r, 0.9)) args->d_weight = CALL_TENSOR(c, c->dtype, ch, w);
    if (random_chance(r, 0.7)) args->d_bias = CALL_TENSOR(c, c->dtype, ch);
    if (random_chance(r, 0.7)) args->d_initial_state = CALL_TENSOR(c, c->dtype, entries, ch, w - 1);
    return true;
}

/* What nobody reads: tokens of no sequence, slots of none. Differences would find NaN times 0. */
static void finish(struct call *c) {
    const struct conv *v = c->own;
    lines_hide(&v->lines, &v->x);
    if (c->gradient && c->dtype != EJK_DTYPE_F64) lines_hide(&v->lines, &v->y);
    if (v->pooled) lines_hide_slots(&v->lines, &v->before);
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static void read(struct call *c, struct conv *v) {
    if (v->vx) return;
    v->vx = tensor_values(c, &v->x);
    v->vw = tensor_values(c, &v->weight);
    v->vb = tensor_values(c, &v->bias);
    v->vs = tensor_values(c, &v->before);
    v->vy = tensor_values(c, &v->y);
    v->va = tensor_values(c, &v->after);
}

/* Entry j of sequence n with its state before it. */
static double entry(const struct conv *v, int64_t n, int64_t channel, int64_t j) {
    const int64_t w = v->width - 1, token = v->lines.begin[n] + j - w;
    if (j >= w) return v->vx[(v->lines.row[n] * v->lines.tokens + token) * v->channels + channel];
    if (!v->vs || v->lines.slot[n] < 0) return 0;
    return v->vs[(v->lines.slot[n] * v->channels + channel) * w + j];
}

static long double sum_at(const struct call *c, int order, int64_t n, int64_t channel, int64_t t,
                          long double *size) {
    const struct conv *v = c->own;
    long double sum = v->vb ? (long double)v->vb[channel] : 0;
    *size = fabsl(sum);
    for (int64_t i = 0; i < v->width; i++) {
        const long double term = R((long double)v->vw[channel * v->width + i] *
                                   (long double)entry(v, n, channel, t + i));
        sum = R(sum + term);
        *size += fabsl(term);
    }
    return sum;
}

static long double logistic(const struct call *c, int order, long double z) {
    return R(1 / R(1 + R(expl(-z))));
}

static void results(struct call *c, int order) {
    struct conv *v = c->own;
    read(c, v);
    const int64_t w = v->width - 1, channels = v->channels;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *state = call_result(c, v->pooled ? "conv_state" : "final_state", order, ELEMENT);
    for (int64_t k = 0; v->pooled && k < ejk_tensor_count(&v->before); k++) state[k] = v->vs[k];
    for (int64_t n = 0; n < v->lines.count; n++) {
        const int64_t length = v->lines.end[n] - v->lines.begin[n];
        for (int64_t k = 0; k < length * channels; k++) {
            const int64_t t = k / channels, channel = k % channels;
            const int64_t at =
                (v->lines.row[n] * v->lines.tokens + v->lines.begin[n] + t) * channels;
            long double size;
            const long double z = sum_at(c, order, n, channel, t, &size);
            out[at + channel] = (double)(v->silu ? R(z / R(1 + R(expl(-z)))) : z);
            if (spread) spread[at + channel] = (double)size;
        }
        for (int64_t k = 0; state && v->lines.slot[n] >= 0 && k < channels * w; k++)
            state[v->lines.slot[n] * channels * w + k] = entry(v, n, k / w, length + k % w);
    }
}

static void exact(struct call *c) {
    results(c, EXACT);
}

static void add(const struct call *c, int order, struct call_sums s, int64_t at, long double term) {
    call_add(c, order, s, at, term, fabsl(term));
}

/* An order begins at another sequence and token. */
static void gradients(struct call *c, int order) {
    struct conv *v = c->own;
    read(c, v);
    const int64_t w = v->width - 1, channels = v->channels;
    const struct call_sums d_x = call_sums_of(c, "d_x", order),
                           d_weight = call_sums_of(c, "d_weight", order);
    const struct call_sums d_bias = call_sums_of(c, "d_bias", order);
    const struct call_sums d_before = call_sums_of(c, "d_initial_state", order);
    for (int64_t n = 0; n < v->lines.count; n++) {
        const int64_t length = v->lines.end[n] - v->lines.begin[n];
        const int64_t base = v->lines.row[n] * v->lines.tokens + v->lines.begin[n];
        const int64_t from = order == EXACT ? 0 : length * order / ORDERS;
        for (int64_t k = 0; k < length * channels; k++) {
            const int64_t t = (from + k / channels) % length, channel = k % channels;
            long double size, d = (long double)v->vy[(base + t) * channels + channel];
            const long double z = sum_at(c, order, n, channel, t, &size);
            const long double s = logistic(c, order, z);
            if (v->silu) d = R(d * R(s * R(1 + R(z * R(1 - s)))));
            add(c, order, d_bias, channel, d);
            for (int64_t i = 0; i <= w; i++) {
                const long double tap = (long double)v->vw[channel * v->width + i];
                add(c, order, d_weight, channel * v->width + i,
                    d * (long double)entry(v, n, channel, t + i));
                if (t + i >= w)
                    add(c, order, d_x, (base + t + i - w) * channels + channel, d * tap);
                else
                    add(c, order, d_before, (n * channels + channel) * w + t + i, d * tap);
            }
        }
        for (int64_t k = 0; v->va && k < channels * w; k++) {
            const int64_t channel = k / w, j = length + k % w;
            const long double d = (long double)v->va[(n * channels + channel) * w + k % w];
            if (j >= w)
                add(c, order, d_x, (base + j - w) * channels + channel, d);
            else
                add(c, order, d_before, (n * channels + channel) * w + j, d);
        }
    }
}

static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct conv *v = c->own;
    if (v->channels == 0 || v->lines.batch * v->lines.tokens == 0) return false;
    slice_add(s, r, "C", v->channels, false);
    if (!c->gradient && !v->lines.packed && !ejk_tensor_present(&v->before) &&
        !ejk_tensor_present(&v->after))
        slice_add(s, r, "B", v->lines.batch, false);
    return true;
}

const struct operation causal_conv1d_case = {.op = "causal_conv1d",
                                             .cases = 60,
                                             .generate = generate,
                                             .finish = finish,
                                             .exact = exact,
                                             .naive = results,
                                             .slice = slice};

const struct operation causal_conv1d_vjp_case = {.op = "causal_conv1d_vjp",
                                                 .cases = 60,
                                                 .generate = generate_vjp,
                                                 .finish = finish,
                                                 .exact = exact_vjp,
                                                 .naive = gradients,
                                                 .slice = slice};
