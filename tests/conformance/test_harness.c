/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness itself: an operation with a right implementation passes, and each way of being wrong is found, by the
 * check that is for it.
 */
#include "conformance/suite.h"
#include "support/expect.h"

#include <stdlib.h>
#include <string.h>

/* ---- A small operation: means of the first rows of each entry ---------------------------------------- */

#define MEAN_ARGS(F, R)                                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,D] float", "rows")                                        \
    F(TENSOR, lengths, EJK_REQUIRED, "", "[B] int32", "how many of an entry count")                \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[B,D] x", "their mean; 0 of none")                      \
    F(TENSOR, total, EJK_INOUT, "none", "[B,D] x", "what y is added to")
EJK_RECORD_STRUCT(mean_args, MEAN_ARGS);
#define EJK_RECORD_SELF mean_args
EJK_RECORD_DEFINE(mean_args_record, mean_args, MEAN_ARGS);
#undef EJK_RECORD_SELF

/* The same with any y of seven axes. */
#define LAX_ARGS(F, R)                                                                             \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,D] float", "rows")                                        \
    F(TENSOR, lengths, EJK_REQUIRED, "", "[B] int32", "how many of an entry count")                \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[B,D] or [a,b,c,d,e,f,g] x", "their mean; 0 of none")   \
    F(TENSOR, total, EJK_INOUT, "none", "[B,D] x", "what y is added to")
EJK_RECORD_STRUCT(lax_args, LAX_ARGS);
#define EJK_RECORD_SELF lax_args
EJK_RECORD_DEFINE(lax_args_record, lax_args, LAX_ARGS);
#undef EJK_RECORD_SELF

#define MEAN_VJP_ARGS(F, R)                                                                        \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,D] float", "rows")                                        \
    F(TENSOR, lengths, EJK_REQUIRED, "", "[B] int32", "how many of an entry count")                \
    F(TENSOR, d_y, EJK_REQUIRED, "", "[B,D] x", "cotangent of y")                                  \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    F(TENSOR, d_x, EJK_REQUIRED_OUTPUT, "", "[B,T,D] x", "gradient")
EJK_RECORD_STRUCT(mean_vjp_args, MEAN_VJP_ARGS);
#define EJK_RECORD_SELF mean_vjp_args
EJK_RECORD_DEFINE(mean_vjp_args_record, mean_vjp_args, MEAN_VJP_ARGS);
#undef EJK_RECORD_SELF

/* What is wrong with the implementation. */
enum fault {
    NONE,
    WRONG_VALUE,   /* divides by one more */
    SMALL_ERROR,   /* off by a few ulp more than is allowed */
    NOT_WRITTEN,   /* leaves out entries without rows */
    WRITES_BESIDE, /* one element more */
    WRITES_INPUT,
    STATE_TWICE,     /* adds to the state once more */
    STATE_BESIDE,    /* writes behind a row of the state */
    READS_BEYOND,    /* the row after the last */
    READS_HIDDEN,    /* rows that do not count, times 0 */
    READS_NEIGHBOUR, /* adds 0 times the next entry */
    BY_THREADS,      /* sums in another order with more than one */
    BY_PLACE,        /* sums in another order in odd entries */
    OVERRUNS,        /* its workspace */
    BY_PARAMETER,    /* is wrong at a bound of its parameter */
    FAILS,
    WRONG_GRADIENT, /* which its case has wrong, too */
    LAX,            /* its description allows what it cannot compute */
};
static enum fault fault;

static int64_t length_of(const ejk_tensor *lengths, int64_t b) {
    int32_t length;
    memcpy(&length, (char *)lengths->data + b * lengths->strides[0] * 4, sizeof length);
    return length;
}

static double at(const ejk_tensor *x, int64_t b, int64_t t, int64_t d) {
    return element_load(x->dtype, x->data, b * x->strides[0] + t * x->strides[1] + d);
}

static double term(const mean_args *a, int64_t b, int64_t t, int64_t d, bool counts) {
    if (fault == READS_HIDDEN && !counts) return 0 * at(&a->x, b, t, d);
    return counts ? at(&a->x, b, t, d) : 0;
}

static double mean(const ejk_run *run, int64_t b, int64_t d) {
    const mean_args *a = run->problem;
    const int64_t rows = a->x.shape[1], length = length_of(&a->lengths, b);
    const bool backwards =
        (fault == BY_THREADS && run->workers > 1) || (fault == BY_PLACE && b % 2 == 1);
    double sum = 0;
    for (int64_t n = 0; n < rows; n++) {
        const int64_t t = backwards ? rows - 1 - n : n;
        sum += term(a, b, t, d, t < length);
        if (a->x.dtype != EJK_DTYPE_F64) sum = (double)(float)sum;
    }
    if (fault == READS_BEYOND && at(&a->x, a->x.shape[0] - 1, rows, d) > 1e300) sum = 0;
    if (fault == READS_NEIGHBOUR && b + 1 < a->x.shape[0]) sum += 0 * at(&a->x, b + 1, 0, d);
    double value = length ? sum / (double)length : 0;
    if (fault == WRONG_VALUE || (fault == BY_PARAMETER && run->parameters[0] == 64)) value *= 1.1;
    if (fault == SMALL_ERROR) value *= 1 + 40 * (a->x.dtype == EJK_DTYPE_F32 ? 0x1p-23 : 0x1p-7);
    return value;
}

static void update(const mean_args *a, int64_t b, int64_t d, double y) {
    const int64_t at = b * a->total.strides[0] + d;
    double value = element_load(a->total.dtype, a->total.data, at) + y;
    if (fault == STATE_TWICE) value += y;
    element_store(a->total.dtype, a->total.data, at, value);
    if (fault == STATE_BESIDE)
        element_store(a->total.dtype, a->total.data, b * a->total.strides[0] + a->x.shape[2], 0);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const mean_args *a = run->problem;
    for (int64_t b = index; b < a->x.shape[0]; b += run->workers) {
        if (fault == NOT_WRITTEN && length_of(&a->lengths, b) == 0) continue;
        for (int64_t d = 0; d < a->x.shape[2] + (fault == WRITES_BESIDE); d++) {
            const double y = d < a->x.shape[2] ? mean(run, b, d) : 0;
            element_store(a->y.dtype, a->y.data, b * a->y.strides[0] + d, y);
            if (ejk_tensor_present(&a->total) && d < a->x.shape[2]) update(a, b, d, y);
        }
    }
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)problem, (void)parameters;
    launch->workers = threads;
    launch->workspace_bytes = 100;
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const mean_args *a = run->problem;
    if (fault == FAILS) return EJK_STATUS_OUT_OF_MEMORY;
    memset(run->workspace, 0, fault == OVERRUNS ? 101 : 100);
    if (fault == WRITES_INPUT && ejk_tensor_count(&a->x)) memset(a->x.data, 0, 1);
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

static ejk_status run_vjp(const ejk_run *run) {
    const mean_vjp_args *a = run->problem;
    for (int64_t b = 0; b < a->x.shape[0]; b++)
        for (int64_t t = 0; t < a->x.shape[1]; t++)
            for (int64_t d = 0; d < a->x.shape[2]; d++) {
                const int64_t n = length_of(&a->lengths, b);
                const double c = element_load(a->d_y.dtype, a->d_y.data, b * a->d_y.strides[0] + d);
                const double by = fault == WRONG_GRADIENT ? (double)n + 1 : (double)n;
                element_store(a->d_x.dtype, a->d_x.data,
                              b * a->d_x.strides[0] + t * a->d_x.strides[1] + d,
                              t < n ? c / by : 0);
            }
    return EJK_OK;
}

static const ejk_parameter parameters[] = {{"rows", 8, 64, 8, 16, "rows at once"}};
static const ejk_implementation implementation = {.algorithm = "mean",
                                                  .name = "reference",
                                                  .platform = EJK_PLATFORM_REFERENCE,
                                                  .backend = EJK_BACKEND_CPU,
                                                  .version = 1,
                                                  .parameters = parameters,
                                                  .parameter_count = 1,
                                                  .prepare = prepare,
                                                  .run = run};
static const ejk_implementation implementation_vjp = {.algorithm = "mean_vjp",
                                                      .name = "reference",
                                                      .platform = EJK_PLATFORM_REFERENCE,
                                                      .backend = EJK_BACKEND_CPU,
                                                      .version = 1,
                                                      .run = run_vjp};
static const ejk_kernel kernel = {.op_id = "mean", .doc = "means", .args = &mean_args_record};
static const ejk_kernel kernel_lax = {
    .op_id = "lax", .doc = "means", .args = &lax_args_record, .algorithm = "mean"};
static const ejk_kernel kernel_vjp = {
    .op_id = "mean_vjp", .doc = "gradients", .args = &mean_vjp_args_record, .forward = &kernel};

/* ---- Its case ---------------------------------------------------------------------------------------- */

static ejk_tensor fill(struct call *c, int64_t b, int64_t t, int64_t d) {
    const ejk_tensor x = t ? CALL_TENSOR(c, c->dtype, b, t, d) : CALL_TENSOR(c, c->dtype, b, d);
    for (int64_t n = 0; n < ejk_tensor_count(&x); n++) tensor_put(&x, n, random_normal(&c->random));
    return x;
}

static ejk_tensor lengths(struct call *c, int64_t b, int64_t t) {
    const ejk_tensor x = CALL_TENSOR(c, EJK_DTYPE_I32, b);
    for (int64_t n = 0; n < b; n++)
        tensor_put(&x, n,
                   random_chance(&c->random, 0.2) ? 0 : (double)random_int(&c->random, 0, t));
    return x;
}

static bool generate(struct call *c) {
    struct random *r = &c->random;
    const int64_t b = random_int(r, 1, 5), t = random_int(r, 1, 20), d = random_int(r, 1, 40);
    mean_args *args = c->args;
    *args = (mean_args){.x = fill(c, b, t, d), .lengths = lengths(c, b, t), .y = fill(c, b, 0, d)};
    if (random_chance(r, 0.5)) args->total = fill(c, b, 0, d);
    return true;
}

/* Rows that do not count are NaN. */
static void finish(struct call *c) {
    const mean_args *args = c->args;
    const int64_t *n = args->x.shape;
    for (int64_t row = 0; row < n[0] * n[1]; row++)
        for (int64_t d = 0; d < n[2]; d++)
            if (row % n[1] >= length_of(&args->lengths, row / n[1]))
                tensor_put(&args->x, row * n[2] + d, (double)NAN);
}

static void exact(struct call *c) {
    const mean_args *args = c->args;
    const int64_t *n = args->x.shape;
    double *y = call_result(c, "y", EXACT, ELEMENT), *spread = call_result(c, "y", SPREAD, ELEMENT);
    double *total = call_result(c, "total", EXACT, ELEMENT);
    double *sizes = call_result(c, "total", SPREAD, ELEMENT);
    for (int64_t i = 0; i < n[0] * n[2]; i++) {
        const int64_t b = i / n[2], length = length_of(&args->lengths, b);
        for (int64_t t = 0; t < length; t++) {
            const double value = tensor_get(&args->x, (b * n[1] + t) * n[2] + i % n[2]);
            y[i] += value / (double)length;
            spread[i] += fabs(value) / (double)length;
        }
        if (total) total[i] = tensor_get(&args->total, i) + y[i];
        if (sizes) sizes[i] = fabs(tensor_get(&args->total, i)) + spread[i];
    }
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const mean_args *args = c->args;
    const int64_t b = random_int(r, 0, args->x.shape[0] - 1);
    s->range[0].symbol = "B";
    s->range[0].first = b;
    s->range[0].end = random_int(r, b + 1, args->x.shape[0]);
    s->count = 1;
    return true;
}

static bool generate_vjp(struct call *c) {
    struct random *r = &c->random;
    const int64_t b = random_int(r, 1, 5), t = random_int(r, 1, 20), d = random_int(r, 1, 40);
    mean_vjp_args *args = c->args;
    *args = (mean_vjp_args){.x = fill(c, b, t, d),
                            .lengths = lengths(c, b, t),
                            .d_y = fill(c, b, 0, d),
                            .d_x = fill(c, b, t, d)};
    return true;
}

static void exact_vjp(struct call *c) {
    const mean_vjp_args *args = c->args;
    const int64_t *n = args->x.shape;
    double *d_x = call_result(c, "d_x", EXACT, ELEMENT);
    for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++) {
        const int64_t b = i / n[2] / n[1], length = length_of(&args->lengths, b);
        const double by = (double)length + (fault == WRONG_GRADIENT);
        if (i / n[2] % n[1] < length) d_x[i] = tensor_get(&args->d_y, b * n[2] + i % n[2]) / by;
    }
}

static const struct operation mean_case = {.op = "mean",
                                           .cases = 40,
                                           .generate = generate,
                                           .finish = finish,
                                           .exact = exact,
                                           .slice = slice};
static const struct operation lax_case = {
    .op = "lax", .cases = 400, .generate = generate, .finish = finish, .exact = exact};
static const struct operation mean_vjp_case = {
    .op = "mean_vjp", .cases = 40, .generate = generate_vjp, .exact = exact_vjp};

/* ---- Tests ------------------------------------------------------------------------------------------- */

static const struct line lines[] = {{&implementation, &kernel, &mean_case, {NULL}},
                                    {&implementation_vjp, &kernel_vjp, &mean_vjp_case, {NULL}},
                                    {&implementation, &kernel_lax, &lax_case, {NULL}}};

/* What is found where the implementation is wrong in this way. */
static struct tally found(enum fault wrong, int32_t line) {
    struct suite suite = {.lines = &lines[line], .count = 1, .quiet = true};
    fault = wrong;
    suite_open(&suite);
    suite.seed = 1;
    suite.cases = 0;
    suite.full = true;
    suite.end = 0;
    suite.processes = 1;
    suite.filter = "";
    EXPECT_OK(ejk_context_create(NULL, &suite.context));
    EXPECT_OK(ejk_context_add_kernel(suite.context, &kernel));
    EXPECT_OK(ejk_context_add_kernel(suite.context, &kernel_vjp));
    EXPECT_OK(ejk_context_add_kernel(suite.context, &kernel_lax));
    EXPECT_OK(ejk_registry_register(ejk_context_registry(suite.context), &implementation));
    EXPECT_OK(ejk_registry_register(ejk_context_registry(suite.context), &implementation_vjp));
    suite_run(&suite);
    ejk_context_destroy(suite.context);
    const struct tally tally = suite_tally(&suite, 0);
    suite_close(&suite);
    fault = NONE;
    return tally;
}

static void test_right_ones_pass(void **state) {
    (void)state;
    for (int32_t line = 0; line < 2; line++) {
        const struct tally tally = found(NONE, line);
        assert_int_equal(tally.cases, 40);
        assert_int_equal(tally.crashes, 0);
        for (int i = 0; i < CHECKS; i++) {
            assert_int_equal(tally.failures[i], 0);
            const bool other =
                i == AGAIN || i == (line ? SLICE : DERIVATIVE) || (line && i == NEIGHBOURS);
            assert_true(other || tally.runs[i] > 0);
        }
    }
}

/* Failures are of the check, or the child does not come back. */
static void expect_found(enum fault wrong, int32_t line, int check) {
    const struct tally tally = found(wrong, line);
    const int64_t times = check < 0 ? tally.crashes : tally.failures[check];
    if (times == 0)
        fail_msg("fault %d was not found by %s", (int)wrong,
                 check < 0 ? "a crash" : check_names[check]);
}

static void test_faults_are_found(void **state) {
    enum { CRASH = -1 };
    (void)state;
    expect_found(WRONG_VALUE, 0, ACCURACY);
    expect_found(SMALL_ERROR, 0, ACCURACY);
    expect_found(NOT_WRITTEN, 0, ACCURACY);
    expect_found(WRITES_BESIDE, 0, ACCURACY);
    expect_found(WRITES_BESIDE, 0, CRASH);
    expect_found(WRITES_INPUT, 0, CRASH);
    expect_found(STATE_TWICE, 0, ACCURACY);
    expect_found(STATE_BESIDE, 0, ACCURACY);
    expect_found(READS_BEYOND, 0, CRASH);
    expect_found(READS_HIDDEN, 0, ACCURACY);
    expect_found(READS_NEIGHBOUR, 0, NEIGHBOURS);
    expect_found(BY_THREADS, 0, THREADS);
    expect_found(BY_PLACE, 0, SLICE);
    expect_found(OVERRUNS, 0, ACCURACY);
    expect_found(BY_PARAMETER, 0, ACCURACY);
    expect_found(FAILS, 0, ACCURACY);
    expect_found(WRONG_GRADIENT, 1, DERIVATIVE);
    expect_found(LAX, 2, REFUSAL);
}

static void test_a_line_without_a_case_fails(void **state) {
    const struct line line = {&implementation, &kernel, NULL, {NULL}};
    struct suite suite = {.lines = &line, .count = 1};
    (void)state;
    suite_open(&suite);
    assert_int_equal(suite_run(&suite), 1);
    suite_close(&suite);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right_ones_pass),
                                       cmocka_unit_test(test_faults_are_found),
                                       cmocka_unit_test(test_a_line_without_a_case_fails)};
    return cmocka_run_group_tests_name("harness", tests, NULL, NULL);
}
