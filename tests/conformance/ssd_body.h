/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scan of state_space_v2 token by token, its gate and norm, and their gradients as formulas, all states of a head
 * in memory: compiled for long double, double and float, by REAL, NAME and FN. An order of summation begins at another
 * component.
 */
#include "conformance/ssd.h"

#include <stdlib.h>

typedef REAL real;

/* A result, and the sums of sizes of the terms that it is made of. */
struct sums {
    double *value, *size;
};

struct work {
    const struct ssd *p;
    struct call *c;
    int order;
    real *y, *size, *dy,
        *d_size; /* [rows][H·P]: what is read and its cotangent, with the sizes of their terms */
    real *state; /* [T+1][P][K]: of a head of a sequence */
    real *before, *before_size; /* [P][K]: cotangent of a state, and the sizes of its terms */
    real mean;                  /* root of the mean square of y */
    struct sums d[SSD_GIVEN];
};

static real *reals(int64_t count) {
    real *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory) abort();
    return memory;
}

static int64_t begin_at(const struct work *w, int64_t size) {
    return w->order == EXACT ? 0 : size * w->order / ORDERS;
}

static void add(struct sums s, int64_t at, real term, real size) {
    if (s.value) s.value[at] = (double)((real)s.value[at] + term);
    if (s.size) s.size[at] += (double)FN(fabs)(size);
}

/* ---- Rows --------------------------------------------------------------------------------------------- */

static int64_t width_of(const struct ssd *p) {
    return p->heads * p->size;
}
static real value(const double *x, int64_t at, real otherwise) {
    return x ? (real)x[at] : otherwise;
}

/* silu, and its slope. */
static real gate(const struct ssd *p, int64_t at, real *slope) {
    *slope = 0;
    if (!p->x[SSD_GATE]) return 1;
    const real z = (real)p->x[SSD_GATE][at], below = 1 + FN(exp)(-z), s = 1 / below;
    *slope = s * (1 + z * (1 - s));
    return z / below;
}

/* What is normed of element `at` of all rows. */
static real normed(const struct work *w, int64_t at) {
    real slope;
    return w->p->norm_first ? w->y[at] : w->y[at] * gate(w->p, at, &slope);
}

/* Cotangent of what the norm makes. */
static real delta(const struct work *w, int64_t at) {
    real slope;
    const struct ssd *p = w->p;
    const real d = (real)p->x[SSD_Y][at] * value(p->x[SSD_WEIGHT], at % width_of(p), 1);
    return p->norm_first ? d * gate(p, at, &slope) : d;
}

static real scale_of(const struct work *w, int64_t begin) {
    const int64_t size = w->p->norm_group, from = begin_at(w, size);
    real sum = 0;
    for (int64_t i = 0; i < size; i++) {
        const real u = normed(w, begin + (from + i) % size);
        sum += u * u;
    }
    return 1 / FN(sqrt)(sum / (real)size + (real)w->p->eps);
}

/* What y is multiplied by before the norm, in size, and what comes of the norm, but for the norm's scale. */
static real before_norm(const struct work *w, int64_t at) {
    real slope;
    return w->p->norm_first ? 1 : FN(fabs)(gate(w->p, at, &slope));
}
static real behind_norm(const struct work *w, int64_t at) {
    real slope;
    const real weight = value(w->p->x[SSD_WEIGHT], at % width_of(w->p), 1);
    return w->p->norm_first ? gate(w->p, at, &slope) * weight : weight;
}

/*
 * Elements that are normed together, or one. The size of what is normed is what it would be off by if y were off by its
 * `mean`: a norm of few numbers leaves little of large ones, and is steep near 0.
 */
static void put_group(const struct work *w, struct sums out, int64_t begin, int64_t count) {
    const real scale = w->p->norm ? scale_of(w, begin) : 1;
    real all = 0;
    for (int64_t at = begin; at < begin + count; at++)
        all += FN(fabs)(normed(w, at)) * scale * before_norm(w, at) * w->mean;
    for (int64_t at = begin; at < begin + count; at++) {
        const real behind = behind_norm(w, at) * scale, own = before_norm(w, at) * w->mean;
        const real unit = FN(fabs)(normed(w, at)) * scale, share = unit / (real)count;
        const real others = FN(fmax)(all - unit * own, 0);
        const real size = w->p->norm ? (1 - unit * share) * own + share * others
                                     : before_norm(w, at) * w->size[at];
        add(out, at, normed(w, at) * behind, behind * size);
    }
}

/* Of all that is read. */
static real mean_of(const struct work *w, int64_t count) {
    real sum = 0;
    for (int64_t i = 0; i < count; i++) sum += w->y[i] * w->y[i];
    return FN(sqrt)(sum / (real)(count > 0 ? count : 1));
}

static void back_out(struct work *w, int64_t begin) {
    const struct ssd *p = w->p;
    const int64_t from = begin_at(w, p->norm_group);
    const real scale = scale_of(w, begin);
    real mean = 0;
    for (int64_t i = 0; i < p->norm_group; i++) {
        const int64_t at = begin + (from + i) % p->norm_group;
        mean += delta(w, at) * normed(w, at);
    }
    mean = mean * scale / (real)p->norm_group;
    for (int64_t at = begin; at < begin + p->norm_group; at++) {
        real slope;
        const real a = gate(p, at, &slope), unit = normed(w, at) * scale, d = delta(w, at);
        const real weight = value(p->x[SSD_WEIGHT], at % width_of(p), 1);
        const real d_u = scale * (d - unit * mean), dy = (real)p->x[SSD_Y][at];
        const real size = FN(fabs)(scale) * (FN(fabs)(d) + FN(fabs)(unit * mean));
        const real own = dy * unit * (p->norm_first ? a : 1);
        add(w->d[SSD_WEIGHT], at % width_of(p), own, own);
        add(w->d[SSD_GATE], at, slope * (p->norm_first ? dy * weight * unit : d_u * w->y[at]),
            slope * (p->norm_first ? dy * weight * scale * w->size[at] : size * w->size[at]));
        w->dy[at] = p->norm_first ? d_u : d_u * a;
        w->d_size[at] = p->norm_first ? size : size * FN(fabs)(a);
    }
}

/* From what is read to the result, or back to its cotangent, of one row. */
static void row(struct work *w, int64_t n, struct sums out) {
    const struct ssd *p = w->p;
    const int64_t width = width_of(p), end = (n + 1) * width;
    const int64_t step = p->norm ? p->norm_group : 1;
    for (int64_t at = n * width; at < end; at += step) {
        if (w->c->gradient && p->norm) {
            back_out(w, at);
        } else if (w->c->gradient) {
            real slope;
            const real dy = (real)p->x[SSD_Y][at], a = gate(p, at, &slope);
            add(w->d[SSD_GATE], at, dy * w->y[at] * slope, dy * w->size[at] * slope);
            w->dy[at] = dy * a;
            w->d_size[at] = FN(fabs)(dy * a);
        } else {
            put_group(w, out, at, step);
        }
    }
}

/* ---- The scan ----------------------------------------------------------------------------------------- */

/* A head of a sequence, and places in tensors of its step s. */
struct head {
    int64_t n, h, slot, steps;
};
static int64_t token(const struct ssd *p, const struct head *o, int64_t s) {
    const int64_t t = p->reverse ? p->lines.end[o->n] - 1 - s : p->lines.begin[o->n] + s;
    return p->lines.row[o->n] * p->lines.tokens + t;
}
static int64_t at_head(const struct ssd *p, const struct head *o, int64_t s) {
    return token(p, o, s) * p->heads + o->h;
}
static int64_t at_group(const struct ssd *p, const struct head *o, int64_t s) {
    return (token(p, o, s) * p->groups + o->h / (p->heads / p->groups)) * p->states;
}

static real step_of(const struct ssd *p, const struct head *o, int64_t s, real *slope) {
    real u = (real)p->x[SSD_DT][at_head(p, o, s)] + value(p->x[SSD_BIAS], o->h, 0);
    *slope = p->softplus ? 1 / (1 + FN(exp)(-u)) : 1;
    if (p->softplus) u = FN(fmax)(u, 0) + FN(log1p)(FN(exp)(-FN(fabs)(u)));
    if (!p->limited) return u;
    if (u < (real)SSD_LEAST || u > (real)SSD_MOST) *slope = 0;
    return FN(fmax)((real)SSD_LEAST, FN(fmin)((real)SSD_MOST, u));
}

static void walk(struct work *w, const struct head *o) {
    const struct ssd *p = w->p;
    const int64_t count = p->size * p->states, from = begin_at(w, p->states);
    for (int64_t i = 0; i < count; i++)
        w->state[i] =
            o->slot < 0 ? 0 : value(p->x[SSD_BEFORE], (o->slot * p->heads + o->h) * count + i, 0);
    for (int64_t s = 0; s < o->steps; s++) {
        real slope;
        const real step = step_of(p, o, s, &slope), decay = FN(exp)((real)p->x[SSD_A][o->h] * step);
        const double *b = p->x[SSD_B] + at_group(p, o, s), *c = p->x[SSD_C] + at_group(p, o, s);
        for (int64_t i = 0; i < p->size; i++) {
            const real *old = w->state + s * count + i * p->states;
            real *new = w->state + (s + 1) * count + i * p->states;
            const int64_t at = at_head(p, o, s) * p->size + i;
            const real x = (real)p->x[SSD_X][at], skipped = value(p->x[SSD_D], o->h, 0) * x;
            real y = 0, size = FN(fabs)(skipped);
            for (int64_t n = 0; n < p->states; n++) {
                const int64_t k = (from + n) % p->states;
                new[k] = decay *old[k] + step *x *(real)b[k];
                y += new[k] * (real)c[k];
                size += FN(fabs)(new[k] * (real)c[k]);
            }
            w->y[at] = y + skipped;
            w->size[at] = size;
        }
    }
}

static void back_step(struct work *w, const struct head *o, int64_t s) {
    const struct ssd *p = w->p;
    const int64_t count = p->size * p->states, group = at_group(p, o, s);
    const double *b = p->x[SSD_B] + group, *c = p->x[SSD_C] + group;
    real slope, d_step = 0, d_decay = 0, step_size = 0, decay_size = 0;
    const real step = step_of(p, o, s, &slope), rate = (real)p->x[SSD_A][o->h];
    const real decay = FN(exp)(rate * step), skip = value(p->x[SSD_D], o->h, 0);
    for (int64_t i = 0; i < p->size; i++) {
        const int64_t at = at_head(p, o, s) * p->size + i;
        const real *old = w->state + s * count + i * p->states, *new = old + count;
        const real x = (real)p->x[SSD_X][at], dy = w->dy[at], dy_size = w->d_size[at];
        real *d = w->before + i * p->states, *d_size = w->before_size + i * p->states;
        real d_input = 0, size = 0;
        for (int64_t k = 0; k < p->states; k++) {
            d[k] += dy * (real)c[k];
            d_size[k] += dy_size * FN(fabs)((real)c[k]);
            add(w->d[SSD_C], group + k, dy * new[k], dy_size * new[k]);
            add(w->d[SSD_B], group + k, d[k] * step * x, d_size[k] * step * x);
            d_input += d[k] * (real)b[k];
            size += FN(fabs)(d_size[k] * (real)b[k]);
            d_decay += d[k] * old[k] * decay;
            decay_size += FN(fabs)(d_size[k] * old[k] * decay);
            d[k] *= decay;
            d_size[k] *= decay;
        }
        d_step += d_input * x;
        step_size += size * FN(fabs)(x);
        add(w->d[SSD_X], at, d_input * step + skip * dy,
            size * FN(fabs)(step) + FN(fabs)(skip) * dy_size);
        add(w->d[SSD_D], o->h, dy * x, dy_size * x);
    }
    d_step = (d_step + rate * d_decay) * slope;
    step_size = (step_size + FN(fabs)(rate) * decay_size) * FN(fabs)(slope);
    add(w->d[SSD_A], o->h, step * d_decay, step * decay_size);
    add(w->d[SSD_DT], at_head(p, o, s), d_step, step_size);
    add(w->d[SSD_BIAS], o->h, d_step, step_size);
}

static void back(struct work *w, const struct head *o) {
    const struct ssd *p = w->p;
    const int64_t count = p->size * p->states, at = (o->n * p->heads + o->h) * count;
    walk(w, o);
    for (int64_t i = 0; i < count; i++) {
        w->before[i] = value(p->x[SSD_AFTER], at + i, 0);
        w->before_size[i] = FN(fabs)(w->before[i]);
    }
    for (int64_t s = o->steps; s-- > 0;) back_step(w, o, s);
    for (int64_t i = 0; i < count; i++)
        add(w->d[SSD_BEFORE], at + i, w->before[i], w->before_size[i]);
}

/* ---- A call ------------------------------------------------------------------------------------------- */

static struct head head_of(const struct ssd *p, int64_t i) {
    const int64_t n = i / p->heads;
    return (struct head){.n = n,
                         .h = i % p->heads,
                         .slot = p->lines.slot[n],
                         .steps = p->lines.end[n] - p->lines.begin[n]};
}

static struct sums sums_of(const struct work *w, const char *name) {
    return (struct sums){call_result(w->c, name, w->order, ELEMENT),
                         w->order == EXACT ? call_result(w->c, name, SPREAD, ELEMENT) : NULL};
}

static void open_gradients(struct work *w) {
    static const char *const names[SSD_GIVEN] = {"d_x",
                                                 "d_a",
                                                 "d_b",
                                                 "d_c",
                                                 "d_d",
                                                 "d_dt",
                                                 "d_gate",
                                                 "d_dt_bias",
                                                 "d_initial_state",
                                                 "d_rmsnorm_weight"};
    for (int i = 0; i < SSD_GIVEN; i++) w->d[i] = sums_of(w, names[i]);
}

void NAME(struct call *c, const struct ssd *p, int order) {
    struct work w = {.p = p, .c = c, .order = order};
    const int64_t rows = p->lines.batch * p->lines.tokens, width = width_of(p);
    const int64_t count = p->size * p->states;
    double *state = call_result(c, p->pooled ? "state" : "final_state", order, ELEMENT);
    const struct sums out = c->gradient ? (struct sums){NULL, NULL} : sums_of(&w, "out");
    w.y = reals(4 * rows * width);
    w.size = w.y + rows * width;
    w.dy = w.size + rows * width;
    w.d_size = w.dy + rows * width;
    w.state = reals((p->lines.tokens + 3) * count);
    w.before = w.state + (p->lines.tokens + 1) * count;
    w.before_size = w.before + count;
    if (c->gradient) open_gradients(&w);
    for (int64_t k = 0; p->pooled && k < ejk_tensor_count(&p->tensor[SSD_BEFORE]); k++)
        state[k] = p->x[SSD_BEFORE][k];
    for (int64_t i = 0; i < p->lines.count * p->heads; i++) {
        const struct head o = head_of(p, i);
        walk(&w, &o);
        for (int64_t k = 0; state && o.slot >= 0 && k < count; k++)
            state[(o.slot * p->heads + o.h) * count + k] = (double)w.state[o.steps * count + k];
    }
    w.mean = mean_of(&w, rows * width);
    for (int64_t n = 0; n < rows; n++)
        if (lines_have(&p->lines, n % p->lines.tokens)) row(&w, n, out);
    for (int64_t i = 0; c->gradient && i < p->lines.count * p->heads; i++) {
        const struct head o = head_of(p, i);
        back(&w, &o);
    }
    free(w.state);
    free(w.y);
}
