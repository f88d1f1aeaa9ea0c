/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient. */
#include "conformance/cases.h"
#include "conformance/lines.h"

/* Tokens of a row: none of one that is no chunk. */
struct part {
    int64_t begin, count;
};

struct pooling {
    struct lines lines;
    int64_t chunk, rows, width; /* chunk 0: whole sequences; width: of all trailing axes */
    struct part *part;          /* of each row */
    ejk_tensor x, y;            /* y: means, or their cotangent */
};

static void deal(struct call *c, struct pooling *p) {
    const struct lines *l = &p->lines;
    const int64_t sequences = l->packed ? l->count : 1;
    const int64_t chunk = p->chunk ? p->chunk : INT64_MAX;
    p->rows = sequences + (p->chunk ? l->tokens / chunk + (l->tokens % chunk != 0) - 1 : 0);
    p->part = call_memory(c, (size_t)p->rows * sizeof *p->part);
    for (int64_t n = 0; n < sequences && l->batch > 0; n++) {
        struct part *part = p->part + n + l->begin[n] / chunk;
        for (int64_t t = l->begin[n]; t < l->end[n]; t += part++->count)
            *part = (struct part){t, chunk < l->end[n] - t ? chunk : l->end[n] - t};
    }
}

static struct pooling *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 15, 16, 17, 64, 200, 1000};
    static const int64_t chunks[] = {1, 3, 16, 64, INT64_MAX};
    struct random *r = &c->random;
    struct pooling *p = c->own = call_memory(c, sizeof *p);
    struct lines *l = &p->lines;
    lines_make(c, l, random_chance(r, 0.02) ? 0 : random_int(r, 1, 3), RANDOM_OF(r, tokens));
    p->chunk = random_chance(r, 0.6) ? RANDOM_OF(r, chunks) : 0;
    deal(c, p);
    int64_t x[6] = {l->batch, l->tokens}, y[6] = {l->batch, p->rows};
    if (!p->chunk && !l->packed) y[1] = l->batch;
    int32_t trailing = call_trailing(c, l->batch * l->tokens, x + 2), whole = p->chunk == 0;
    if (random_chance(r, 0.15)) x[2] = 2048 / (int64_t)ejk_dtype_size(c->dtype), trailing = 1;
    p->width = 1;
    for (int32_t i = 2; i < 2 + trailing; i++) p->width *= y[i] = x[i];
    const int32_t flat = l->packed && trailing == 1 && random_chance(r, 0.5);
    p->x = call_tensor(c, c->dtype, 2 + trailing - flat, x + flat);
    p->y = call_tensor(c, c->dtype, 2 + trailing - whole, y + whole);
    call_fill(c, &p->x);
    return p;
}

static bool generate(struct call *c) {
    const struct pooling *p = make(c);
    ejk_mean_pooling_args *args = c->args;
    *args = (ejk_mean_pooling_args){.x = p->x, .cu_seqlens = p->lines.ends, .out = p->y};
    args->cfg = (ejk_mean_pooling_config){.platform = "auto"};
    args->chunk_size = (ejk_opt_int){p->chunk, p->chunk > 0};
    return true;
}

static bool generate_vjp(struct call *c) {
    const struct pooling *p = make(c);
    ejk_mean_pooling_vjp_args *args = c->args;
    *args = (ejk_mean_pooling_vjp_args){.x = p->x, .cu_seqlens = p->lines.ends, .d_out = p->y};
    args->chunk_size = (ejk_opt_int){p->chunk, p->chunk > 0};
    args->d_x = call_tensor(c, c->dtype, p->x.rank, p->x.shape);
    call_fill(c, &p->y);
    return true;
}

/* Tokens in no sequence and cotangents of means of nothing; differences would find NaN times 0. */
static void finish(struct call *c) {
    const struct pooling *p = c->own;
    lines_hide(&p->lines, &p->x);
    for (int64_t n = 0; n < p->lines.batch * p->rows && c->dtype != EJK_DTYPE_F64; n++)
        if (p->part[n % p->rows].count == 0) tensor_hide(&p->y, n * p->width, p->width);
}

/* The element of x, i tokens behind the first, that is part of element n of y. */
static int64_t source(const struct pooling *p, int64_t n, int64_t i) {
    const int64_t row = n / p->width, b = row / p->rows, t = p->part[row % p->rows].begin + i;
    return (b * p->lines.tokens + t) * p->width + n % p->width;
}

/* An order begins at another token. */
static void means(struct call *c, int order) {
    const struct pooling *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    for (int64_t n = 0; n < ejk_tensor_count(&p->y); n++) {
        const int64_t count = p->part[n / p->width % p->rows].count;
        const int64_t first = order == EXACT ? 0 : count * order / ORDERS;
        long double sum = 0;
        for (int64_t i = 0; i < count; i++) {
            const double value = tensor_get(&p->x, source(p, n, (first + i) % count));
            sum = call_step(c, order, sum + (long double)value);
            if (spread) spread[n] += fabs(value) / (double)count;
        }
        if (count > 0) out[n] = (double)call_step(c, order, sum / (long double)count);
    }
}

static void exact_vjp(struct call *c) {
    const struct pooling *p = c->own;
    double *d_x = call_result(c, "d_x", EXACT, ELEMENT);
    for (int64_t n = 0; n < ejk_tensor_count(&p->y); n++) {
        const int64_t count = p->part[n / p->width % p->rows].count;
        for (int64_t i = 0; i < count; i++)
            d_x[source(p, n, i)] = tensor_get(&p->y, n) / (double)count;
    }
}

/* Without chunks the batch of the means is the axis N. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct pooling *p = c->own;
    if (ejk_tensor_count(&p->x) == 0 || p->rows == 0) return false;
    if (!p->lines.packed) {
        slice_add(s, r, "B", p->lines.batch, false);
        s->range[0].also = "N";
    }
    slice_add(s, r, "D", p->x.shape[p->x.rank - 1], false);
    if (p->x.rank > 3) slice_add(s, r, "H", p->x.shape[p->x.rank - 2], false);
    return true;
}

#define PACKED "x=[1,12,4] cu_seqlens={0,7,12} out=[1,4,4] "
static const struct refused refused[] = {
    {EJK_STATUS_INVALID_SHAPE, "length 5 on axis 1, expected 3", "out=[2,5,4]"},
    {EJK_STATUS_INVALID_SHAPE, "out: shape [2,3,5]", "out=[2,3,5]"},
    {EJK_STATUS_INVALID_SHAPE, "out has rank 3, expected 2", "chunk_size="},
    {EJK_STATUS_INVALID_ARGUMENT, "chunk_size is -1", "chunk_size=-1"},
    {EJK_STATUS_INVALID_ARGUMENT, "chunk_size is 0", "chunk_size=0"},
    {EJK_STATUS_UNKNOWN_NAME, "nowhere", "platform=nowhere"},
    {EJK_STATUS_INVALID_LAYOUT, "out", "chunk_size=1 out=@x"},
    {EJK_STATUS_INVALID_ARGUMENT, "rank 2 without cu_seqlens", "x=[12,4] out=[1,3,4]"},
    {EJK_STATUS_OK, "", PACKED},
    {EJK_STATUS_INVALID_SHAPE, "out: shape [1,5,4]", PACKED "out=[1,5,4]"},
    {EJK_STATUS_INVALID_SHAPE, "2 on axis 0, expected 1", PACKED "out=[2,5,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "cu_seqlens is 13", PACKED "cu_seqlens={0,13,12}"},
    {EJK_STATUS_INVALID_SHAPE, "batch is 2, expected 1", PACKED "x=[2,12,4] out=[2,3,4]"},
    {.changes = NULL}};

REFUSED_CALL(ejk_mean_pooling)
REFUSED_CALL(ejk_mean_pooling_vjp)

#define CASE .cases = 60, .finish = finish, .slice = slice
const struct operation mean_pooling_case = {CASE,
                                            .op = "mean_pooling",
                                            .generate = generate,
                                            .naive = means,
                                            .call = ejk_mean_pooling_call,
                                            .good = "x=[2,12,4] chunk_size=5 out=[2,3,4]",
                                            .refused = refused};
const struct operation mean_pooling_vjp_case = {
    CASE,
    .op = "mean_pooling_vjp",
    .generate = generate_vjp,
    .exact = exact_vjp,
    .call = ejk_mean_pooling_vjp_call,
    .good = "x=[2,12,4] chunk_size=5 d_out=[2,3,4] d_x=[2,12,4]"};
