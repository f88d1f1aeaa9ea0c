/* SPDX-License-Identifier: Apache-2.0 */
/* fused_cross_entropy and its gradient, from logits and from what they are products of. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <stdio.h>
#include <string.h>

struct entropy {
    int64_t batch, tokens, rows, vocab, width; /* width 0: logits are given */
    int64_t ignore;
    int32_t rank; /* of tensors of tokens */
    double cap, smoothing, z;
    bool sums, keeps_lse;
    ejk_tensor logits, targets, weights, hidden, matrix, bias, mask, soft, lse;
    double *x, *h, *m, *b, *q, *w; /* values; w: what tokens count */
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static ejk_tensor of_tokens(struct call *c, const struct entropy *e, ejk_dtype dtype,
                            int64_t last) {
    const int64_t shape[3] = {e->batch, e->tokens, last};
    return call_tensor(c, dtype, e->rank + (last > 0), shape + (e->rank == 1));
}

static void fill_soft(struct call *c, const struct entropy *e) {
    for (int64_t row = 0; row < e->rows; row++) {
        double sum = 0;
        double *own = call_memory(c, (size_t)e->vocab * sizeof *own);
        for (int64_t v = 0; v < e->vocab; v++)
            sum += own[v] = random_chance(&c->random, 0.2) ? 0 : exp(2 * random_normal(&c->random));
        for (int64_t v = 0; v < e->vocab; v++)
            tensor_put(&e->soft, row * e->vocab + v, own[v] / (sum > 0 ? sum : 1));
    }
}

/* Classes that cannot be; now and then the target's. */
static void forbid(struct call *c, const struct entropy *e) {
    struct random *r = &c->random;
    for (int64_t row = 0; row < e->rows; row++)
        for (int64_t v = 0; v < e->vocab; v++) {
            const bool own = e->targets.data && (int64_t)tensor_get(&e->targets, row) == v;
            if (!random_chance(r, own || e->soft.data ? 0.002 : 0.1)) continue;
            tensor_put(&e->logits, row * e->vocab + v, -(double)INFINITY);
            if (own || e->soft.data || e->smoothing > 0)
                c->hostile = true; /* the loss is infinite */
        }
}

static void make_rows(struct call *c, struct entropy *e) {
    struct random *r = &c->random;
    const bool is_soft = random_chance(r, 0.2);
    const ejk_dtype number = product_type(c);
    if (is_soft) {
        if (e->rows > 60) e->rows = e->batch * (e->tokens = 60 / e->batch);
        e->soft = of_tokens(c, e, number, e->vocab);
        fill_soft(c, e);
    }
    if (!is_soft || random_chance(r, 0.5)) {
        e->targets = of_tokens(c, e, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, 0);
        for (int64_t n = 0; n < e->rows; n++)
            tensor_put(&e->targets, n,
                       random_chance(r, 0.15) ? (double)e->ignore
                                              : (double)random_int(r, 0, e->vocab - 1));
    }
    if (random_chance(r, 0.4)) {
        e->weights = of_tokens(c, e, product_type(c), 0);
        for (int64_t n = 0; n < e->rows; n++)
            tensor_put(&e->weights, n, random_chance(r, 0.2) ? 0 : 0.1 + 2 * random_real(r));
    }
    if (random_chance(r, 0.3)) {
        e->mask = of_tokens(c, e, EJK_DTYPE_BOOL, 0);
        for (int64_t n = 0; n < e->rows; n++) tensor_put(&e->mask, n, random_chance(r, 0.8));
    }
    if (!is_soft && random_chance(r, 0.3)) e->smoothing = random_chance(r, 0.5) ? 0.1 : 0.6;
    if (random_chance(r, 0.3)) e->z = random_chance(r, 0.5) ? 1e-2 : 0.3;
    if (random_chance(r, 0.3)) e->cap = random_chance(r, 0.5) ? 5 : 30;
}

static struct entropy *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 7, 13, 40, 100}, widths[] = {1, 7, 16, 33, 64};
    static const int64_t classes[] = {1, 2, 15, 16, 17, 100, 333, 1024, 1025, 2500};
    struct random *r = &c->random;
    struct entropy *e = c->own = call_memory(c, sizeof *e);
    const bool is_product = random_chance(r, 0.5);
    e->rank = random_chance(r, 0.5) ? 2 : 1;
    e->ignore = random_chance(r, 0.7) ? -100 : random_int(r, -2, 1);
    e->batch = e->rank == 2 ? random_int(r, 1, 3) : 1;
    e->tokens = RANDOM_OF(r, tokens);
    e->vocab = RANDOM_OF(r, classes);
    e->width = is_product ? RANDOM_OF(r, widths) : 0;
    if (is_product && c->tiled) e->width = 128;
    while (e->batch * e->tokens * e->vocab * (e->width + 8) > c->budget) e->tokens /= 2;
    e->rows = e->batch * e->tokens;
    make_rows(c, e);
    if (is_product) {
        e->hidden = of_tokens(c, e, c->dtype, e->width);
        e->matrix = CALL_TENSOR(c, c->dtype, e->width, e->vocab);
        tensor_fill(c, &e->hidden, 0, 1);
        tensor_fill(c, &e->matrix, 0, 2 / sqrt((double)e->width));
        if (random_chance(r, 0.4)) {
            e->bias = CALL_TENSOR(c, product_type(c), e->vocab);
            tensor_fill(c, &e->bias, 0, 1);
        }
    } else {
        e->logits = of_tokens(c, e, c->dtype, e->vocab);
        tensor_fill(c, &e->logits, random_chance(r, 0.1) ? 40 : 0, 3);
        if (random_chance(r, 0.3)) forbid(c, e);
        if (random_chance(r, 0.2)) call_disturb(c, &e->logits);
    }
    e->sums = random_chance(r, 0.5);
    return e;
}

#define SET_SHARED(args, e)                                                                        \
    do {                                                                                           \
        (args)->logits = (e)->logits;                                                              \
        (args)->targets = (e)->targets;                                                            \
        (args)->weights = (e)->weights;                                                            \
        (args)->hidden = (e)->hidden;                                                              \
        (args)->lm_head_weight = (e)->matrix;                                                      \
        (args)->lm_head_bias = (e)->bias;                                                          \
        (args)->attention_mask = (e)->mask;                                                        \
        (args)->soft_targets = (e)->soft;                                                          \
        (args)->logit_softcap = (ejk_opt_float){(e)->cap, (e)->cap > 0};                           \
        (args)->label_smoothing = (ejk_opt_float){(e)->smoothing, (e)->smoothing > 0};             \
        (args)->z_loss = (ejk_opt_float){(e)->z, (e)->z > 0};                                      \
        (args)->ignore_index = (ejk_opt_int){(e)->ignore, (e)->ignore != -100};                    \
        strcpy((args)->reduction, (e)->sums ? "sum" : "");                                         \
        set_chunks(c, &(args)->chunk_size, (args)->chunk_strategy);                                \
    } while (0)

static void set_chunks(struct call *c, ejk_opt_int *size, char *strategy) {
    static const char *names[] = {"vocab", "token", "block", ""};
    static const int64_t sizes[] = {0, 1, 5, 16, 64, 1000};
    struct random *r = &c->random;
    if (random_chance(r, 0.5)) strcpy(strategy, RANDOM_OF(r, names));
    if (random_chance(r, 0.5)) *size = ejk_int(RANDOM_OF(r, sizes));
    /* A product for each class takes time. */
    if (size->set && size->value > 0 && size->value < 16)
        size->value *= strategy[0] == 't' ? 1 : 16;
}

static bool generate(struct call *c) {
    ejk_fused_cross_entropy_args *args = c->args;
    const struct entropy *e = make(c);
    const ejk_dtype type = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    struct random *r = &c->random;
    SET_SHARED(args, e);
    args->loss = call_tensor(c, type, random_chance(r, 0.5), (const int64_t[]){1});
    args->z_loss_out = call_tensor_like(c, &args->loss, 0.5);
    args->weight_sum = call_tensor_like(c, &args->loss, 0.5);
    args->accuracy = call_tensor_like(c, &args->loss, 0.5);
    if (random_chance(r, 0.5)) args->lse = of_tokens(c, e, type, 0);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_fused_cross_entropy_vjp_args *args = c->args;
    struct entropy *e = make(c);
    const ejk_dtype type = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    struct random *r = &c->random;
    c->gradient = true;
    SET_SHARED(args, e);
    args->d_loss = call_tensor(c, type, random_chance(r, 0.5), (const int64_t[]){1});
    tensor_put(&args->d_loss, 0, 0.5 + random_real(r));
    if (random_chance(r, 0.3)) args->lse = e->lse = of_tokens(c, e, type, 0);
    args->d_logits = call_tensor_like(c, &e->logits, 1);
    args->d_hidden = call_tensor_like(c, &e->hidden, 0.8);
    args->d_lm_head_weight = call_tensor_like(c, &e->matrix, 0.8);
    args->d_lm_head_bias = call_tensor_like(c, &e->bias, 0.8);
    return true;
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static double weight_of(const struct entropy *e, int64_t row) {
    if (ejk_tensor_present(&e->mask) && tensor_get(&e->mask, row) == 0) return 0;
    if (ejk_tensor_present(&e->targets) && (int64_t)tensor_get(&e->targets, row) == e->ignore)
        return 0;
    return ejk_tensor_present(&e->weights) ? tensor_get(&e->weights, row) : 1;
}

static void read(struct call *c, struct entropy *e) {
    if (e->w) return;
    e->x = tensor_values(c, &e->logits);
    e->h = tensor_values(c, &e->hidden);
    e->m = tensor_values(c, &e->matrix);
    e->b = tensor_values(c, &e->bias);
    e->q = tensor_values(c, &e->soft);
    e->w = call_memory(c, (size_t)e->rows * sizeof *e->w);
    for (int64_t row = 0; row < e->rows; row++) e->w[row] = weight_of(e, row);
}

/* A token: its logits, slopes of the cap, exponentials relative to the largest. */
struct token {
    long double *z, *slope, *power, max, sum, lse, inner, mass, size;
    int64_t target, best, likely;
};

static struct token token_room(struct call *c, const struct entropy *e) {
    const size_t bytes = (size_t)(e->vocab + 1) * sizeof(long double);
    return (struct token){
        .z = call_memory(c, bytes), .slope = call_memory(c, bytes), .power = call_memory(c, bytes)};
}

static long double share(const struct entropy *e, const struct token *t, int64_t row, int64_t v) {
    if (e->q) return (long double)e->q[row * e->vocab + v];
    const double a = e->vocab > 1 ? e->smoothing : 0;
    return v == t->target ? 1 - (long double)a
                          : (long double)(a / (e->vocab > 1 ? (double)(e->vocab - 1) : 1));
}

static void read_token(struct call *c, int order, int64_t row, struct token *t) {
    const struct entropy *e = c->own;
    t->max = -(long double)INFINITY;
    t->best = t->likely = -1;
    t->target = ejk_tensor_present(&e->targets) ? (int64_t)tensor_get(&e->targets, row) : -1;
    for (int64_t v = 0; v < e->vocab; v++) {
        long double x = 0;
        if (e->x) {
            x = (long double)e->x[row * e->vocab + v];
        } else {
            x = product_sum(c, order, e->width, e->h + row * e->width, 1, e->m + v, e->vocab, NULL);
            if (e->b) x = R(x + (long double)e->b[v]);
        }
        t->slope[v] = 1;
        if (e->cap > 0) {
            const long double y = R(tanhl(R(x / (long double)e->cap)));
            t->slope[v] = R(1 - R(y * y));
            x = R((long double)e->cap * y);
        }
        t->z[v] = x;
        if (x > t->max) t->max = x, t->best = v;
        if (e->q && (t->likely < 0 || share(e, t, row, v) > share(e, t, row, t->likely)))
            t->likely = v;
    }
}

static struct token *token_of(struct call *c, int order, int64_t row, struct token *t) {
    const struct entropy *e = c->own;
    const int64_t from = order == EXACT ? 0 : e->vocab * order / ORDERS;
    read_token(c, order, row, t);
    const long double base = isinf(t->max) && t->max < 0 ? 0 : t->max;
    t->sum = t->inner = t->mass = t->size = 0;
    for (int64_t i = 0; i < e->vocab; i++) {
        const int64_t v = (from + i) % e->vocab;
        const long double q = share(e, t, row, v);
        t->power[v] = R(expl(R(t->z[v] - base)));
        t->sum = R(t->sum + t->power[v]);
        t->mass = R(t->mass + q);
        if (q != 0) t->inner = R(t->inner + R(q * t->z[v]));
        if (q != 0) t->size += fabsl(q * t->z[v]);
    }
    t->lse = R(t->max + R(logl(t->sum)));
    return t;
}

static long double denominator(const struct entropy *e) {
    long double sum = 0;
    for (int64_t row = 0; row < e->rows; row++) sum += (long double)e->w[row];
    return e->sums ? 1 : sum < 1e-8L ? 1e-8L : sum;
}

static long double entropy_of(const struct entropy *e) {
    const long double a = (long double)e->smoothing;
    if (e->q || a == 0 || e->vocab < 2) return 0;
    return (1 - a) * logl(1 - a) + a * logl(a / (long double)(e->vocab - 1));
}

static void put(struct call *c, const char *field, int order, long double value, long double size) {
    double *to = call_result(c, field, order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, field, SPREAD, ELEMENT) : NULL;
    if (to) *to = (double)R(value);
    if (spread) *spread = (double)size;
}

static void results(struct call *c, int order) {
    struct entropy *e = c->own;
    read(c, e);
    double *lse = call_result(c, "lse", order, LOG_SUM);
    struct token room = token_room(c, e);
    long double loss = 0, z = 0, weights = 0, right = 0, size = 0;
    for (int64_t row = 0; row < e->rows; row++) {
        const long double w = (long double)e->w[row];
        if (w == 0) continue;
        const struct token *t = token_of(c, order, row, &room);
        const long double square = e->z > 0 ? R((long double)e->z * R(t->lse * t->lse)) : 0;
        const long double own = R(R(R(R(t->lse * t->mass) - t->inner) + entropy_of(e)) + square);
        if (lse) lse[row] = (double)t->lse;
        loss = R(loss + R(w * own));
        z = R(z + R(w * square));
        weights = R(weights + w);
        if (t->best >= 0 && !isnan(t->lse) &&
            t->best == (ejk_tensor_present(&e->targets) ? t->target : t->likely))
            right = R(right + w);
        if (isfinite(t->lse) && isfinite(t->size))
            size += w * (fabsl(t->lse) * t->mass + t->size + square);
    }
    const long double all = denominator(e), mean = weights < 1e-8L ? 1e-8L : weights;
    put(c, "loss", order, R(loss / all), size / all);
    put(c, "z_loss_out", order, R(z / all), fabsl(z / all));
    put(c, "weight_sum", order, weights, weights);
    put(c, "accuracy", order, R(right / mean), 1);
}

/* An intermediate gradient in the type of the call, as second products have it. */
static long double narrowed(const struct call *c, int order, long double value) {
    double place = 0;
    if (order == EXACT) return value;
    element_store(c->dtype, &place, 0, (double)value);
    return (long double)element_load(c->dtype, &place, 0);
}

static void add_products(struct call *c, int order, int64_t row, int64_t v, long double g,
                         long double size, const struct call_sums to[3]) {
    const struct entropy *e = c->own;
    call_add(c, order, to[2], v, g, size);
    for (int64_t h = 0; h < e->width; h++) {
        const long double a = g * (long double)e->m[h * e->vocab + v];
        const long double b = g * (long double)e->h[row * e->width + h];
        call_add(c, order, to[0], row * e->width + h, a,
                 size * fabsl((long double)e->m[h * e->vocab + v]));
        call_add(c, order, to[1], h * e->vocab + v, b,
                 size * fabsl((long double)e->h[row * e->width + h]));
    }
}

static void gradients(struct call *c, int order) {
    struct entropy *e = c->own;
    const ejk_fused_cross_entropy_vjp_args *args = c->args;
    read(c, e);
    struct token room = token_room(c, e);
    const struct call_sums logits = call_sums_of(c, "d_logits", order);
    const struct call_sums to[3] = {call_sums_of(c, "d_hidden", order),
                                    call_sums_of(c, "d_lm_head_weight", order),
                                    call_sums_of(c, "d_lm_head_bias", order)};
    const long double each = (long double)tensor_get(&args->d_loss, 0) / denominator(e);
    for (int64_t row = 0; row < e->rows; row++) {
        const long double w = (long double)e->w[row];
        if (w == 0) continue;
        const struct token *t = token_of(c, order, row, &room);
        const bool given = ejk_tensor_present(&e->lse);
        const long double lse = given ? (long double)tensor_get(&e->lse, row) : t->lse;
        const long double rate = R(t->mass + R(2 * (long double)e->z * lse));
        for (int64_t v = 0; v < e->vocab; v++) {
            const long double q = share(e, t, row, v);
            const long double p = given ? R(expl(R(t->z[v] - lse))) : R(t->power[v] / t->sum);
            const long double g = R(R(w * R(R(rate * p) - q)) * t->slope[v]);
            const long double size = w * (fabsl(rate * p) + q) * each;
            if (logits.value) call_add(c, order, logits, row * e->vocab + v, g * each, size);
            if (e->width > 0)
                add_products(c, order, row, v, narrowed(c, order, g) * each, size, to);
        }
    }
}

static void exact(struct call *c) {
    results(c, EXACT);
}
static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* Tokens that count nowhere hold NaN; lse is what the call wrote. */
static void finish(struct call *c) {
    struct entropy *e = c->own;
    struct token room = token_room(c, e);
    for (int64_t row = 0; row < e->rows; row++) {
        if (weight_of(e, row) != 0) continue;
        if (e->width > 0)
            tensor_hide(&e->hidden, row * e->width, e->width);
        else
            tensor_hide(&e->logits, row * e->vocab, e->vocab);
        if (ejk_tensor_present(&e->soft)) tensor_hide(&e->soft, row * e->vocab, e->vocab);
        if (ejk_tensor_present(&e->weights) && random_chance(&c->random, 0.5) &&
            ejk_tensor_present(&e->mask) && tensor_get(&e->mask, row) == 0)
            tensor_hide(&e->weights, row, 1);
    }
    read(c, e);
    for (int64_t row = 0; row < e->rows && ejk_tensor_present(&e->lse); row++)
        tensor_put(&e->lse, row, e->w[row] == 0 ? 0 : (double)token_of(c, EXACT, row, &room)->lse);
}

/* Tokens by themselves, whose gradients a mean makes depend on all. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct entropy *e = c->own;
    if (e->rows == 0 || (c->gradient && !e->sums)) return false;
    slice_add(s, r, "T", e->tokens, false);
    return true;
}

#define LOGITS "logits=[2,3,4] targets=int32[2,3] "
static const struct refused refused[] = {
    {EJK_STATUS_INVALID_ARGUMENT, "logits are missing", "logits="},
    {EJK_STATUS_INVALID_ARGUMENT, "lm_head_weight is missing", "logits= hidden=[2,3,5]"},
    {EJK_STATUS_INVALID_ARGUMENT, "lm_head_weight is given without", "lm_head_weight=[5,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "logits and hidden", "hidden=[2,3,5] lm_head_weight=[5,4]"},
    {EJK_STATUS_OK, "", "logits= hidden=[2,3,5] lm_head_weight=[5,4] lm_head_bias=[4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "lm_head_bias is given", "lm_head_bias=[4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "targets are missing", "targets="},
    {EJK_STATUS_INVALID_SHAPE, "targets", "targets=int32[3]"},
    {EJK_STATUS_INVALID_SHAPE, "weights", "weights=[2,2]"},
    {EJK_STATUS_INVALID_SHAPE, "soft_targets", "soft_targets=[2,3,5]"},
    {EJK_STATUS_INVALID_ARGUMENT, "targets has 4 for token 2", "logits=[3,4] targets={0,-100,4}"},
    {EJK_STATUS_OK, "", "logits=[3,4] targets={0,-1,3} ignore_index=-1"},
    {EJK_STATUS_INVALID_ARGUMENT, "label_smoothing is 1", "label_smoothing=1"},
    {EJK_STATUS_INVALID_ARGUMENT, "smooth themselves", "label_smoothing=0.1 soft_targets=[2,3,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "logit_softcap is 0", "logit_softcap=0"},
    {EJK_STATUS_INVALID_ARGUMENT, "chunk_size is -1", "chunk_size=-1"},
    {EJK_STATUS_UNKNOWN_NAME, "chunk_strategy is 'rows'", "chunk_strategy=rows"},
    {EJK_STATUS_UNKNOWN_NAME, "reduction is 'none'", "reduction=none"},
    {EJK_STATUS_INVALID_DTYPE, "loss", "loss=bfloat16[1]"},
    {EJK_STATUS_INVALID_DTYPE, "lse", "lse=float64[2,3]"},
    {.changes = NULL}};
static const struct refused refused_vjp[] = {
    {EJK_STATUS_INVALID_ARGUMENT, "d_hidden is given without", "d_hidden=[2,3,5]"},
    {EJK_STATUS_INVALID_ARGUMENT, "d_lm_head_weight is given", "d_lm_head_weight=[5,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "d_lm_head_bias is given", "d_lm_head_bias=[4]"},
    {EJK_STATUS_INVALID_SHAPE, "d_logits", "d_logits=[2,3,5]"},
    {EJK_STATUS_INVALID_SHAPE, "lse", "lse=[6]"},
    {EJK_STATUS_INVALID_DTYPE, "d_loss", "d_loss=float64[1]"},
    {.changes = NULL}};

REFUSED_CALL(ejk_fused_cross_entropy)
REFUSED_CALL(ejk_fused_cross_entropy_vjp)

#define CASE .cases = 80, .finish = finish, .slice = slice
const struct operation fused_cross_entropy_case = {CASE,
                                                   .op = "fused_cross_entropy",
                                                   .generate = generate,
                                                   .exact = exact,
                                                   .naive = results,
                                                   .call = ejk_fused_cross_entropy_call,
                                                   .good = LOGITS "loss=[1]",
                                                   .refused = refused};
const struct operation fused_cross_entropy_vjp_case = {CASE,
                                                       .op = "fused_cross_entropy_vjp",
                                                       .generate = generate_vjp,
                                                       .exact = exact_vjp,
                                                       .naive = gradients,
                                                       .call = ejk_fused_cross_entropy_vjp_call,
                                                       .good = LOGITS "d_loss=[1] d_logits=[2,3,4]",
                                                       .refused = refused_vjp};
