/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient. */
#include "conformance/cases.h"

struct pooling {
    int64_t batch, tokens, rows, width; /* elements of all trailing axes */
    int64_t chunk, sequences;           /* 0: whole sequences; -1: not packed */
    int64_t *row_of, *count;            /* of each token, -1: none; tokens of each row */
    int32_t trailing;
    ejk_tensor x, y, ends; /* y: means, or their cotangent */
};

/* Which row each token belongs to; rows that are no chunk have none. */
static void deal(struct call *c, struct pooling *p, const int64_t *ends) {
    const int64_t sequences = p->sequences < 0 ? 1 : p->sequences;
    p->rows = sequences;
    if (p->chunk) p->rows += p->tokens / p->chunk + (p->tokens % p->chunk != 0) - 1;
    p->row_of = call_memory(c, (size_t)p->tokens * sizeof *p->row_of);
    p->count = call_memory(c, (size_t)p->rows * sizeof *p->count);
    for (int64_t t = 0; t < p->tokens; t++) p->row_of[t] = -1;
    for (int64_t n = 0; n < sequences; n++)
        for (int64_t t = ends[n]; t < ends[n + 1]; t++) {
            p->row_of[t] = n + (p->chunk ? ends[n] / p->chunk + (t - ends[n]) / p->chunk : 0);
            p->count[p->row_of[t]]++;
        }
}

static struct pooling *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 15, 16, 17, 64, 200, 1000};
    static const int64_t chunks[] = {1, 3, 16, 64, INT64_MAX};
    struct random *r = &c->random;
    struct pooling *p = c->own = call_memory(c, sizeof *p);
    p->batch = random_chance(r, 0.02) ? 0 : random_int(r, 1, 3);
    p->tokens = RANDOM_OF(r, tokens);
    p->chunk = random_chance(r, 0.6) ? RANDOM_OF(r, chunks) : 0;
    p->sequences = -1;
    int64_t ends[8] = {0, p->tokens};
    if (random_chance(r, 0.5)) {
        p->batch = 1;
        p->ends = call_sequences(c, p->tokens, 7, ends);
        p->sequences = p->ends.shape[0] - 1;
    }
    deal(c, p, ends);
    int64_t x[6] = {p->batch, p->tokens}, y[6] = {p->batch, p->rows};
    if (!p->chunk && p->sequences < 0) y[1] = p->batch;
    p->trailing = call_trailing(c, p->batch * p->tokens, x + 2);
    p->width = 1;
    for (int32_t i = 2; i < 2 + p->trailing; i++) p->width *= y[i] = x[i];
    const int32_t flat = p->sequences >= 0 && p->trailing == 1 && random_chance(r, 0.5);
    const int32_t whole = p->chunk == 0;
    p->x = call_tensor(c, c->dtype, 2 + p->trailing - flat, x + flat);
    p->y = call_tensor(c, c->dtype, 2 + p->trailing - whole, y + whole);
    call_fill(c, &p->x);
    return p;
}

static bool generate(struct call *c) {
    const struct pooling *p = make(c);
    ejk_mean_pooling_args *args = c->args;
    *args = (ejk_mean_pooling_args){.x = p->x, .cu_seqlens = p->ends, .out = p->y};
    args->cfg = (ejk_mean_pooling_config){.platform = "auto"};
    args->chunk_size = (ejk_opt_int){p->chunk, p->chunk > 0};
    return true;
}

static bool generate_vjp(struct call *c) {
    const struct pooling *p = make(c);
    ejk_mean_pooling_vjp_args *args = c->args;
    *args = (ejk_mean_pooling_vjp_args){.x = p->x, .cu_seqlens = p->ends, .d_out = p->y};
    args->chunk_size = (ejk_opt_int){p->chunk, p->chunk > 0};
    args->d_x = call_tensor(c, c->dtype, p->x.rank, p->x.shape);
    call_fill(c, &p->y);
    return true;
}

/* Entry n of `of` of each batch entry holds NaN. */
static void hide(const struct pooling *p, const ejk_tensor *t, int64_t of, int64_t n) {
    for (int64_t i = 0; i < p->batch * p->width; i++)
        tensor_put(t, (i / p->width * of + n) * p->width + i % p->width, (double)NAN);
}

/* Tokens in no sequence and cotangents of means of nothing; differences would find NaN times 0. */
static void finish(struct call *c) {
    const struct pooling *p = c->own;
    for (int64_t t = 0; t < p->tokens; t++)
        if (p->row_of[t] < 0) hide(p, &p->x, p->tokens, t);
    for (int64_t row = 0; row < p->rows && c->dtype != EJK_DTYPE_F64; row++)
        if (p->count[row] == 0) hide(p, &p->y, p->rows, row);
}

/* An order begins at another token. */
static void means(struct call *c, int order) {
    const struct pooling *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    const int64_t shift = order == EXACT ? 0 : p->tokens * order / ORDERS;
    long double *sum = call_memory(c, (size_t)(p->batch * p->rows * p->width) * sizeof *sum);
    for (int64_t n = 0; n < p->batch * p->tokens * p->width; n++) {
        const int64_t b = n / p->width / p->tokens, d = n % p->width;
        const int64_t t = (n / p->width + shift) % p->tokens, row = p->row_of[t];
        const int64_t at = (b * p->rows + row) * p->width + d;
        if (row < 0) continue;
        const double value = tensor_get(&p->x, (b * p->tokens + t) * p->width + d);
        sum[at] = call_step(c, order, sum[at] + (long double)value);
        out[at] = (double)call_step(c, order, sum[at] / (long double)p->count[row]);
        if (spread) spread[at] += fabs(value) / (double)p->count[row];
    }
}

static void exact_vjp(struct call *c) {
    const struct pooling *p = c->own;
    double *d_x = call_result(c, "d_x", EXACT, ELEMENT);
    for (int64_t n = 0; n < p->batch * p->tokens * p->width; n++) {
        const int64_t row = p->row_of[n / p->width % p->tokens], b = n / p->width / p->tokens;
        if (row >= 0)
            d_x[n] = tensor_get(&p->y, (b * p->rows + row) * p->width + n % p->width) /
                     (double)p->count[row];
    }
}

/* Without chunks the batch of the means is the axis N. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct pooling *p = c->own;
    if (p->batch * p->rows * p->tokens * p->width == 0) return false;
    if (p->sequences < 0) {
        slice_add(s, r, "B", p->batch, false);
        s->range[0].also = "N";
    }
    slice_add(s, r, "D", p->x.shape[p->x.rank - 1], false);
    if (p->trailing > 1) slice_add(s, r, "H", p->x.shape[p->x.rank - 2], false);
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
    {EJK_STATUS_INVALID_SHAPE, "batch 2, expected 1", PACKED "x=[2,12,4] out=[2,3,4]"},
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
