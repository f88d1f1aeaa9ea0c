/* SPDX-License-Identifier: Apache-2.0 */
/* fused_kl_divergence and its gradient. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <stdio.h>
#include <string.h>

enum { FORWARD, REVERSE, JSD };
enum { MEAN, SUM_ALL, NONE };

struct divergence {
    int64_t batch, tokens, rows, vocab;
    int32_t rank; /* of tensors of tokens */
    int direction, reduction;
    double temperature, beta; /* 0: not given */
    ejk_tensor student, teacher, weights, mask, lse[2];
    double *x[2], *w; /* logits of the first and the second distribution; what tokens count */
};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static ejk_tensor of_tokens(struct call *c, const struct divergence *e, ejk_dtype dtype,
                            int64_t last) {
    const int64_t shape[3] = {e->batch, e->tokens, last};
    return call_tensor(c, dtype, e->rank + (last >= 0), shape + (e->rank == 1));
}

/* The second is the one that must be there wherever the first is. */
static const ejk_tensor *second_of(const struct divergence *e) {
    return e->direction == REVERSE ? &e->teacher : &e->student;
}
static const ejk_tensor *first_of(const struct divergence *e) {
    return e->direction == REVERSE ? &e->student : &e->teacher;
}

/*
 * Classes that cannot be: of both, of the first, and now and then of the second only. The first two are the same for
 * all tokens, as the harness may make the tokens of one tensor the same.
 */
static void forbid(struct call *c, const struct divergence *e) {
    struct random *r = &c->random;
    for (int64_t v = 0; v < e->vocab; v++) {
        const bool both = random_chance(r, 0.1), first = random_chance(r, 0.05);
        const bool mixed = e->direction == JSD && random_chance(r, 0.05);
        for (int64_t at = v; at < e->rows * e->vocab; at += e->vocab) {
            const bool second = !c->gradient && random_chance(r, 0.001);
            if (both || first) tensor_put(first_of(e), at, -(double)INFINITY);
            if (both || mixed || second) tensor_put(second_of(e), at, -(double)INFINITY);
            if (second && !both && !first && e->direction != JSD) c->hostile = true;
        }
    }
}

/* Logits far above those of the chunks before. */
static void raise(struct call *c, const ejk_tensor *t, int64_t rows, int64_t vocab) {
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * vocab + random_int(&c->random, 0, vocab - 1);
        tensor_put(t, at, tensor_get(t, at) + 90);
    }
}

static void make_rows(struct call *c, struct divergence *e) {
    struct random *r = &c->random;
    e->student = of_tokens(c, e, c->dtype, e->vocab);
    e->teacher = of_tokens(c, e, c->dtype, e->vocab);
    tensor_fill(c, &e->student, random_chance(r, 0.1) ? 40 : 0, 3);
    tensor_fill(c, &e->teacher, random_chance(r, 0.1) ? -30 : 0, 3);
    if (random_chance(r, 0.3) && e->vocab > 0) forbid(c, e);
    if (random_chance(r, 0.1) && e->vocab > 0 && !c->gradient)
        raise(c, random_chance(r, 0.5) ? &e->student : &e->teacher, e->rows, e->vocab);
    if (random_chance(r, 0.2) && e->vocab > 0 && !c->gradient)
        call_disturb(c, random_chance(r, 0.5) ? &e->student : &e->teacher);
    if (random_chance(r, 0.4)) {
        e->weights = of_tokens(c, e, product_type(c), -1);
        for (int64_t n = 0; n < e->rows; n++)
            tensor_put(&e->weights, n, random_chance(r, 0.2) ? 0 : 0.1 + 2 * random_real(r));
    }
    if (random_chance(r, 0.3)) {
        e->mask = of_tokens(c, e, EJK_DTYPE_BOOL, -1);
        for (int64_t n = 0; n < e->rows; n++) tensor_put(&e->mask, n, random_chance(r, 0.8));
    }
}

static struct divergence *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 2, 7, 13, 40, 100};
    static const int64_t classes[] = {1, 2, 15, 16, 17, 100, 333, 1024, 1025, 2500};
    struct random *r = &c->random;
    struct divergence *e = c->own = call_memory(c, sizeof *e);
    e->rank = random_chance(r, 0.5) ? 2 : 1;
    e->batch = e->rank == 2 ? random_int(r, 1, 3) : 1;
    e->tokens = RANDOM_OF(r, tokens);
    e->vocab = random_chance(r, 0.03) ? 0 : RANDOM_OF(r, classes);
    e->direction = (int)random_int(r, FORWARD, JSD);
    e->reduction = (int)random_int(r, MEAN, NONE);
    while (e->batch * e->tokens * e->vocab * 30 > c->budget) e->tokens /= 2;
    e->rows = e->batch * e->tokens;
    if (random_chance(r, 0.5)) e->temperature = random_chance(r, 0.5) ? 2 : 0.7;
    if (random_chance(r, 0.5)) e->beta = random_chance(r, 0.5) ? 0.1 : 0.75;
    make_rows(c, e);
    return e;
}

#define SET_SHARED(args, e)                                                                        \
    do {                                                                                           \
        (args)->student = (e)->student;                                                            \
        (args)->teacher = (e)->teacher;                                                            \
        (args)->weights = (e)->weights;                                                            \
        (args)->attention_mask = (e)->mask;                                                        \
        (args)->temperature = (ejk_opt_float){(e)->temperature, (e)->temperature > 0};             \
        (args)->beta = (ejk_opt_float){(e)->beta, (e)->beta > 0};                                  \
        strcpy((args)->reduction, names_of_reductions[(e)->reduction]);                            \
        strcpy((args)->direction, names_of_directions[(e)->direction]);                            \
    } while (0)
static const char *const names_of_reductions[] = {"", "sum", "none"};
static const char *const names_of_directions[] = {"", "reverse", "jsd"};

static ejk_tensor reduced(struct call *c, const struct divergence *e) {
    const ejk_dtype type = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    if (e->reduction == NONE) return of_tokens(c, e, type, -1);
    return call_tensor(c, type, random_chance(&c->random, 0.5), (const int64_t[]){1});
}

static bool generate(struct call *c) {
    ejk_fused_kl_divergence_args *args = c->args;
    const struct divergence *e = make(c);
    struct random *r = &c->random;
    SET_SHARED(args, e);
    args->loss = reduced(c, e);
    const ejk_dtype type = args->loss.dtype;
    if (random_chance(r, 0.5)) args->teacher_entropy = reduced(c, e);
    if (random_chance(r, 0.5)) args->weight_sum = call_tensor(c, type, 0, NULL);
    if (random_chance(r, 0.5)) args->student_lse = of_tokens(c, e, type, -1);
    if (random_chance(r, 0.5)) args->teacher_lse = of_tokens(c, e, type, -1);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_fused_kl_divergence_vjp_args *args = c->args;
    struct random *r = &c->random;
    c->gradient = true;
    struct divergence *e = make(c);
    SET_SHARED(args, e);
    args->d_loss = reduced(c, e);
    for (int64_t n = 0; n < ejk_tensor_count(&args->d_loss); n++)
        tensor_put(&args->d_loss, n, 0.5 + random_real(r));
    const bool keeps = random_chance(r, 0.4);
    if (keeps) args->student_lse = e->lse[0] = of_tokens(c, e, args->d_loss.dtype, -1);
    if (keeps && random_chance(r, 0.8))
        args->teacher_lse = e->lse[1] = of_tokens(c, e, args->d_loss.dtype, -1);
    args->d_student = call_tensor_like(c, &e->student, 0.8);
    args->d_teacher = call_tensor_like(c, &e->teacher, 0.6);
    return true;
}

/* ---- The formulas ------------------------------------------------------------------------------------ */

#define R(value) call_step(c, order, value)

static void read(struct call *c, struct divergence *e) {
    if (e->w) return;
    e->x[0] = tensor_values(c, first_of(e));
    e->x[1] = tensor_values(c, second_of(e));
    e->w = call_memory(c, (size_t)(e->rows + 1) * sizeof *e->w);
    for (int64_t row = 0; row < e->rows; row++) {
        const bool counts = !ejk_tensor_present(&e->mask) || tensor_get(&e->mask, row) != 0;
        const bool weighs = ejk_tensor_present(&e->weights);
        e->w[row] = !counts ? 0 : weighs ? tensor_get(&e->weights, row) : 1;
    }
}

static long double temperature_of(const struct divergence *e) {
    return e->temperature > 0 ? (long double)e->temperature : 1;
}
static long double beta_of(const struct divergence *e) {
    return e->beta > 0 ? (long double)e->beta : 0.5L;
}

/* A token: logarithms of probabilities of the first, the second, and what they are compared to. */
struct token {
    long double *log[2], *other, lse[2], divergence[2], size, entropy, entropy_size;
};

static struct token token_room(struct call *c, const struct divergence *e) {
    const size_t bytes = (size_t)(e->vocab + 1) * sizeof(long double);
    struct token t = {.other = call_memory(c, bytes)};
    for (int k = 0; k < 2; k++) t.log[k] = call_memory(c, bytes);
    return t;
}

static int64_t place(const struct divergence *e, int order, int64_t i) {
    return order == EXACT ? i : (e->vocab * order / ORDERS + i) % e->vocab;
}

static long double lse_of(struct call *c, int order, const double *x) {
    const struct divergence *e = c->own;
    long double max = -(long double)INFINITY, sum = 0;
    for (int64_t v = 0; v < e->vocab; v++) {
        const long double z = R((long double)x[v] / temperature_of(e));
        if (z > max) max = z;
    }
    for (int64_t i = 0; i < e->vocab; i++) {
        const long double z = R((long double)x[place(e, order, i)] / temperature_of(e));
        const bool none = isinf(max) && max < 0;
        sum = R(sum + R(expl(R(z - (none ? 0 : max)))));
    }
    return R(max + R(logl(sum)));
}

static bool cannot_be(long double log_p) {
    return isinf(log_p) && log_p < 0;
}

/* p · (log p - log q), and its size where that is finite. */
static long double term(struct call *c, int order, long double log_p, long double log_q,
                        long double *size) {
    if (cannot_be(log_p)) return 0;
    if (cannot_be(log_q)) return (long double)INFINITY;
    const long double p = R(expl(log_p));
    if (isfinite(log_q)) *size += p * (fabsl(log_p) + fabsl(log_q) + 1);
    return R(p * R(log_p - log_q));
}

static long double log_other(struct call *c, int order, long double log_p, long double log_q) {
    const struct divergence *e = c->own;
    if (e->direction != JSD) return log_q;
    const long double a = R(beta_of(e) * R(expl(log_p)));
    const long double mean = R(a + R(R(1 - beta_of(e)) * R(expl(log_q))));
    return R(logl(mean > 0 || isnan(mean) ? mean : 1e-300L));
}

static struct token *token_of(struct call *c, int order, int64_t row, struct token *t) {
    const struct divergence *e = c->own;
    t->divergence[0] = t->divergence[1] = t->size = t->entropy = t->entropy_size = 0;
    for (int k = 0; k < 2; k++) {
        const double *x = e->x[k] + row * e->vocab;
        t->lse[k] = lse_of(c, order, x);
        for (int64_t v = 0; v < e->vocab; v++)
            t->log[k][v] = R(R((long double)x[v] / temperature_of(e)) - t->lse[k]);
    }
    for (int64_t i = 0; i < e->vocab; i++) {
        const int64_t v = place(e, order, i);
        const long double a = t->log[0][v], b = t->log[1][v];
        const long double other = t->other[v] = log_other(c, order, a, b);
        t->divergence[0] = R(t->divergence[0] + term(c, order, a, other, &t->size));
        if (e->direction == JSD)
            t->divergence[1] = R(t->divergence[1] + term(c, order, b, other, &t->size));
        t->entropy =
            R(t->entropy - term(c, order, e->direction == REVERSE ? b : a, 0, &t->entropy_size));
    }
    return t;
}

static long double loss_of(struct call *c, int order, const struct token *t) {
    const struct divergence *e = c->own;
    const long double square = temperature_of(e) * temperature_of(e);
    if (e->direction != JSD) return R(square * t->divergence[0]);
    const long double first = R(beta_of(e) * t->divergence[0]);
    return R(square * R(first + R(R(1 - beta_of(e)) * t->divergence[1])));
}

static long double total_of(const struct divergence *e) {
    long double sum = 0;
    for (int64_t row = 0; row < e->rows; row++) sum += (long double)e->w[row];
    return sum;
}
static long double denominator(const struct divergence *e) {
    const long double sum = total_of(e);
    return e->reduction != MEAN ? 1 : sum < 1e-8L ? 1e-8L : sum;
}

static void results(struct call *c, int order) {
    struct divergence *e = c->own;
    const long double square = temperature_of(e) * temperature_of(e);
    read(c, e);
    const struct call_sums loss = call_sums_of(c, "loss", order);
    const struct call_sums entropy = call_sums_of(c, "teacher_entropy", order);
    const struct call_sums weights = call_sums_of(c, "weight_sum", order);
    double *lse[2] = {call_result(c, "student_lse", order, LOG_SUM),
                      call_result(c, "teacher_lse", order, LOG_SUM)};
    struct token room = token_room(c, e);
    for (int64_t row = 0; row < e->rows; row++) {
        const long double w = (long double)e->w[row], by = w / denominator(e);
        const int64_t at = e->reduction == NONE ? row : 0;
        if (w == 0) continue;
        const struct token *t = token_of(c, order, row, &room);
        call_add(c, order, loss, at, by * loss_of(c, order, t), by * square * t->size);
        call_add(c, order, entropy, at, by * t->entropy, by * t->entropy_size);
        call_add(c, order, weights, 0, w, w);
        for (int k = 0; k < 2; k++)
            if (lse[k]) lse[k][row] = (double)t->lse[e->direction == REVERSE ? k : 1 - k];
    }
}

static void gradients(struct call *c, int order) {
    struct divergence *e = c->own;
    const ejk_fused_kl_divergence_vjp_args *args = c->args;
    read(c, e);
    struct token room = token_room(c, e);
    const bool turns = e->direction == REVERSE, mixes = e->direction == JSD;
    const struct call_sums to[2] = {call_sums_of(c, turns ? "d_student" : "d_teacher", order),
                                    call_sums_of(c, turns ? "d_teacher" : "d_student", order)};
    for (int64_t row = 0; row < e->rows; row++) {
        const int64_t own = e->reduction == NONE ? row : 0;
        const long double by = (long double)e->w[row] / denominator(e) * temperature_of(e) *
                               (long double)tensor_get(&args->d_loss, own);
        if (e->w[row] == 0) continue;
        const struct token *t = token_of(c, order, row, &room);
        for (int64_t v = 0; v < e->vocab; v++) {
            const long double p = R(expl(t->log[0][v])), q = R(expl(t->log[1][v]));
            const int64_t at = row * e->vocab + v;
            for (int k = 0; k < 2; k++) {
                const long double share = !mixes ? 1 : k ? R(1 - beta_of(e)) : beta_of(e);
                const long double log_p = t->log[k][v], own_p = R(share * (k ? q : p));
                const long double off = R(R(log_p - t->other[v]) - t->divergence[k]);
                const long double size =
                    own_p * (fabsl(log_p) + fabsl(t->other[v]) + fabsl(t->divergence[k]) + 1);
                if (!to[k].value) continue;
                if (k == 1 && !mixes)
                    call_add(c, order, to[k], at, by * R(q - p), by * (q + p));
                else if (!cannot_be(log_p))
                    call_add(c, order, to[k], at, by * R(own_p * off), by * size);
            }
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
    struct divergence *e = c->own;
    struct token room = token_room(c, e);
    read(c, e);
    for (int64_t row = 0; row < e->rows; row++) {
        if (e->w[row] != 0) continue;
        tensor_hide(&e->student, row * e->vocab, e->vocab);
        tensor_hide(&e->teacher, row * e->vocab, e->vocab);
        if (ejk_tensor_present(&e->weights) && random_chance(&c->random, 0.5) &&
            ejk_tensor_present(&e->mask) && tensor_get(&e->mask, row) == 0)
            tensor_hide(&e->weights, row, 1);
    }
    for (int64_t row = 0; row < e->rows && ejk_tensor_present(&e->lse[0]); row++) {
        struct token *t = e->w[row] == 0 ? NULL : token_of(c, EXACT, row, &room);
        for (int k = 0; k < 2; k++)
            if (ejk_tensor_present(&e->lse[k]))
                tensor_put(&e->lse[k], row,
                           t ? (double)t->lse[e->direction == REVERSE ? k : 1 - k] : 0);
    }
}

/* Tokens by themselves, whose gradients a mean makes depend on all. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct divergence *e = c->own;
    if (e->rows == 0 || (c->gradient && e->reduction == MEAN)) return false;
    slice_add(s, r, "T", e->tokens, false);
    return true;
}

#define LOGITS "student=[2,3,4] teacher=[2,3,4] "
static const struct refused refused[] = {
    {EJK_STATUS_INVALID_SHAPE, "teacher", "teacher=[2,3,5]"},
    {EJK_STATUS_INVALID_SHAPE, "teacher", "teacher=[3,4]"},
    {EJK_STATUS_INVALID_DTYPE, "teacher", "teacher=bfloat16[2,3,4]"},
    {EJK_STATUS_INVALID_SHAPE, "weights", "weights=[2,2]"},
    {EJK_STATUS_INVALID_SHAPE, "attention_mask", "attention_mask=bool[3]"},
    {EJK_STATUS_INVALID_SHAPE, "loss", "loss=[2,3]"},
    {EJK_STATUS_INVALID_SHAPE, "loss", "reduction=none"},
    {EJK_STATUS_INVALID_SHAPE, "loss has rank 1", "loss=[3]"},
    {EJK_STATUS_OK, "", "reduction=none loss=[2,3] teacher_entropy=[2,3]"},
    {EJK_STATUS_INVALID_SHAPE, "teacher_entropy", "teacher_entropy=[2,3]"},
    {EJK_STATUS_INVALID_ARGUMENT, "temperature is 0", "temperature=0"},
    {EJK_STATUS_INVALID_ARGUMENT, "beta is 1", "beta=1"},
    {EJK_STATUS_UNKNOWN_NAME, "direction is 'back'", "direction=back"},
    {EJK_STATUS_UNKNOWN_NAME, "reduction is 'max'", "reduction=max"},
    {EJK_STATUS_INVALID_DTYPE, "loss", "loss=bfloat16[1]"},
    {EJK_STATUS_INVALID_DTYPE, "student_lse", "student_lse=float64[2,3]"},
    {.changes = NULL}};
static const struct refused refused_vjp[] = {
    {EJK_STATUS_INVALID_SHAPE, "d_student", "d_student=[2,3,5]"},
    {EJK_STATUS_INVALID_SHAPE, "d_teacher", "d_teacher=[3,4]"},
    {EJK_STATUS_INVALID_SHAPE, "teacher_lse", "teacher_lse=[6]"},
    {EJK_STATUS_INVALID_SHAPE, "d_loss", "reduction=none"},
    {EJK_STATUS_INVALID_DTYPE, "d_loss", "d_loss=float64[1]"},
    {.changes = NULL}};

REFUSED_CALL(ejk_fused_kl_divergence)
REFUSED_CALL(ejk_fused_kl_divergence_vjp)

#define CASE .cases = 80, .finish = finish, .slice = slice
const struct operation fused_kl_divergence_case = {CASE,
                                                   .op = "fused_kl_divergence",
                                                   .generate = generate,
                                                   .exact = exact,
                                                   .naive = results,
                                                   .call = ejk_fused_kl_divergence_call,
                                                   .good = LOGITS "loss=[1]",
                                                   .refused = refused};
const struct operation fused_kl_divergence_vjp_case = {CASE,
                                                       .op = "fused_kl_divergence_vjp",
                                                       .generate = generate_vjp,
                                                       .exact = exact_vjp,
                                                       .naive = gradients,
                                                       .call = ejk_fused_kl_divergence_vjp_call,
                                                       .good =
                                                           LOGITS "d_loss=[1] d_student=[2,3,4]",
                                                       .refused = refused_vjp};
