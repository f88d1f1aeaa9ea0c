/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient. */
#include "conformance/cases.h"

struct pooling {
    int64_t batch, tokens, rows, width; /* elements of all trailing axes */
    int64_t chunk, sequences;           /* 0: whole sequences; -1: not packed */
    int64_t end[8], *begin, *count;     /* of packed sequences; tokens of each row */
    int32_t trailing;
    ejk_tensor x, y, ends; /* y: means, or their cotangent */
    double *values;        /* of the input */
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static void fill(struct call *c, const ejk_tensor *t) {
    static const double loud[] = {INFINITY, -INFINITY, NAN};
    struct random *r = &c->random;
    const int64_t count = ejk_tensor_count(t);
    for (int64_t n = 0; n < count; n++) tensor_put(t, n, random_normal(r) + 0.5);
    if (count == 0 || !random_chance(r, 0.05)) return;
    tensor_put(t, random_int(r, 0, count - 1), RANDOM_OF(r, loud));
    c->hostile = true;
}

/* Some sequences are empty, and tokens behind the last are in none. */
static void pack(struct call *c, struct pooling *p) {
    struct random *r = &c->random;
    p->sequences = random_int(r, p->tokens > 0 ? 0 : 1, 7);
    p->ends =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, p->sequences + 1);
    for (int64_t n = 1; n <= p->sequences; n++) {
        p->end[n] = random_chance(r, 0.3) ? p->end[n - 1] : random_int(r, p->end[n - 1], p->tokens);
        tensor_put(&p->ends, n, (double)p->end[n]);
    }
}

/* Which tokens each row is the mean of; begin 0 and count 0 for rows that are no chunk. */
static void deal(struct call *c, struct pooling *p) {
    const int64_t chunks = p->chunk ? p->tokens / p->chunk + (p->tokens % p->chunk != 0) : 1;
    const int64_t sequences = p->sequences < 0 ? 1 : p->sequences;
    p->rows = p->chunk ? chunks + sequences - 1 : sequences;
    p->begin = call_memory(c, (size_t)p->rows * sizeof *p->begin);
    p->count = call_memory(c, (size_t)p->rows * sizeof *p->count);
    for (int64_t n = 0; n < sequences; n++) {
        int64_t at = p->end[n], row = n + (p->chunk ? at / p->chunk : 0);
        for (const int64_t end = p->sequences < 0 ? p->tokens : p->end[n + 1]; at < end; row++) {
            p->begin[row] = at;
            p->count[row] = p->chunk && p->chunk < end - at ? p->chunk : end - at;
            at += p->count[row];
        }
    }
}

static struct pooling *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 15, 16, 17, 64, 200, 1000};
    static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100, 128};
    static const int64_t chunks[] = {1, 3, 16, 64, INT64_MAX};
    struct random *r = &c->random;
    struct pooling *p = call_memory(c, sizeof *p);
    c->own = p;
    p->batch = random_chance(r, 0.02) ? 0 : random_int(r, 1, 3);
    p->tokens = RANDOM_OF(r, tokens);
    p->chunk = random_chance(r, 0.6) ? RANDOM_OF(r, chunks) : 0;
    p->sequences = -1;
    if (random_chance(r, 0.5)) p->batch = 1, pack(c, p);
    deal(c, p);
    p->trailing = (int32_t)random_int(r, 1, 4);
    int64_t x[6] = {p->batch, p->tokens}, y[6] = {p->batch, p->rows};
    if (!p->chunk && p->sequences < 0) y[1] = p->batch;
    for (int32_t i = 0; i < p->trailing; i++) x[2 + i] = random_int(r, 1, 3);
    x[1 + p->trailing] = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, widths);
    if (p->tokens == 1 && random_chance(r, 0.2)) x[1 + p->trailing] = 17000; /* several tasks */
    for (int32_t i = 2; i < 2 + p->trailing; i++) {
        while (i > 2 && p->batch * p->tokens * x[i - 1] * x[i] > 200000) x[i] /= 2;
        y[i] = x[i];
    }
    p->width = 1;
    for (int32_t i = 2; i < 2 + p->trailing; i++) p->width *= x[i];
    const int32_t flat = p->sequences >= 0 && p->trailing == 1 && random_chance(r, 0.5);
    const int32_t whole = p->chunk == 0;
    p->x = call_tensor(c, c->dtype, 2 + p->trailing - flat, x + flat);
    p->y = call_tensor(c, c->dtype, 2 + p->trailing - whole, y + whole);
    fill(c, &p->x);
    return p;
}

#define SET_SHARED(args, p)                                                                        \
    do {                                                                                           \
        (args)->x = (p)->x;                                                                        \
        (args)->cu_seqlens = (p)->ends;                                                            \
        (args)->chunk_size = (ejk_opt_int){(p)->chunk, (p)->chunk > 0};                            \
    } while (0)

static bool generate(struct call *c) {
    ejk_mean_pooling_args *args = c->args;
    const struct pooling *p = make(c);
    SET_SHARED(args, p);
    args->out = p->y;
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_mean_pooling_vjp_args *args = c->args;
    const struct pooling *p = make(c);
    SET_SHARED(args, p);
    fill(c, &p->y);
    args->d_out = p->y;
    args->d_x = call_tensor(c, c->dtype, p->x.rank, p->x.shape);
    return true;
}

/* Entries first to end - 1 of each batch entry hold NaN. */
static void hide(const struct pooling *p, const ejk_tensor *t, int64_t of, int64_t n) {
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t d = 0; d < p->width; d++)
            tensor_put(t, (b * of + n) * p->width + d, (double)NAN);
}

/* Tokens in no sequence, which nobody reads. */
static void finish(struct call *c) {
    const struct pooling *p = c->own;
    for (int64_t t = p->sequences < 0 ? p->tokens : p->end[p->sequences]; t < p->tokens; t++)
        hide(p, &p->x, p->tokens, t);
}

/* Cotangents of means of nothing; differences would find NaN times 0. */
static void finish_vjp(struct call *c) {
    const struct pooling *p = c->own;
    for (int64_t row = 0; row < p->rows && c->dtype != EJK_DTYPE_F64; row++)
        if (p->count[row] == 0) hide(p, &p->y, p->rows, row);
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

static long double step(const struct call *c, int order, long double value) {
    if (order == EXACT) return value;
    return c->dtype == EJK_DTYPE_F64 ? (long double)(double)value : (long double)(float)value;
}

/* An order begins at another token. */
static void means(struct call *c, int order) {
    struct pooling *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    if (!p->values) p->values = tensor_values(c, &p->x);
    for (int64_t n = 0; n < p->batch * p->rows * p->width; n++) {
        const int64_t d = n % p->width, row = n / p->width % p->rows, b = n / p->width / p->rows;
        const int64_t count = p->count[row], from = order == EXACT ? 0 : count * order / ORDERS;
        long double sum = 0, size = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t t = p->begin[row] + (from + i) % count;
            const double value = p->values[(b * p->tokens + t) * p->width + d];
            sum = step(c, order, sum + (long double)value);
            size += (long double)fabs(value);
        }
        if (count > 0) out[n] = (double)step(c, order, sum / (long double)count);
        if (count > 0 && spread) spread[n] = (double)(size / (long double)count);
    }
}

static void exact(struct call *c) {
    means(c, EXACT);
}

static void exact_vjp(struct call *c) {
    const struct pooling *p = c->own;
    double *d_x = call_result(c, "d_x", EXACT, ELEMENT);
    for (int64_t n = 0; n < p->batch * p->rows * p->width; n++) {
        const int64_t d = n % p->width, row = n / p->width % p->rows, b = n / p->width / p->rows;
        for (int64_t i = 0; i < p->count[row]; i++)
            d_x[(b * p->tokens + p->begin[row] + i) * p->width + d] =
                tensor_get(&p->y, n) / (double)p->count[row];
    }
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

/* A range of an axis; also of `cut`, an input whose own symbol differs, unless it is NULL. */
static void range(struct random *r, struct slice *s, const char *symbol, ejk_tensor *cut,
                  int32_t axis, int64_t count) {
    const int64_t first = random_int(r, 0, count - 1), end = random_int(r, first + 1, count);
    s->range[s->count].symbol = symbol;
    s->range[s->count].first = first;
    s->range[s->count].end = end;
    s->count++;
    if (cut) *cut = ejk_tensor_slice(*cut, axis, first, end - first);
}

/* Without chunks the batch of the means is the axis N, so that the input is cut here. */
static bool part(const struct call *c, struct random *r, struct slice *s, const char *batch,
                 ejk_tensor *input) {
    const struct pooling *p = c->own;
    ejk_tensor *cut = p->chunk ? NULL : input;
    const int32_t last = input->rank - 1;
    if (p->batch * p->rows * p->tokens * p->width == 0) return false;
    if (p->sequences < 0) range(r, s, p->chunk ? "B" : batch, cut, 0, p->batch);
    range(r, s, "D", cut, last, input->shape[last]);
    if (p->trailing > 1) range(r, s, "H", cut, last - 1, input->shape[last - 1]);
    return true;
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    return part(c, r, s, "N", &((ejk_mean_pooling_args *)s->args)->x);
}

static bool slice_vjp(const struct call *c, struct random *r, struct slice *s) {
    return part(c, r, s, "B", &((ejk_mean_pooling_vjp_args *)s->args)->d_out);
}

const struct operation mean_pooling_case = {.op = "mean_pooling",
                                            .cases = 120,
                                            .generate = generate,
                                            .finish = finish,
                                            .exact = exact,
                                            .naive = means,
                                            .slice = slice};

const struct operation mean_pooling_vjp_case = {.op = "mean_pooling_vjp",
                                                .cases = 120,
                                                .generate = generate_vjp,
                                                .finish = finish_vjp,
                                                .exact = exact_vjp,
                                                .slice = slice_vjp};
