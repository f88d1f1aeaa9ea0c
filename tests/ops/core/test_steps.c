/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation of three steps: squares go to shared memory, where a call asks for it they are negated there, and then
 * sums of rows are written. Each step looks at what it is given.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <jansson.h>
#include <string.h>

#define ROWS_PARAMS(F, R)                                                                          \
    F(OPT_INT, square_block, EJK_OPTIONAL, "unset", "", "of the first step")                       \
    F(OPT_INT, sum_block, EJK_OPTIONAL, "unset", "", "of the last step")
EJK_RECORD_STRUCT(rows_config, ROWS_PARAMS);
#define EJK_RECORD_SELF rows_config
EJK_RECORD_DEFINE(rows_config_record, rows_config, ROWS_PARAMS);
#undef EJK_RECORD_SELF

#define ROWS_ARGS(F, R)                                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", "[n,m] float32", "input")                                       \
    F(BOOL, negate, EJK_OPTIONAL, "false", "", "asks for the middle step")                         \
    F(BOOL, nothing, EJK_OPTIONAL, "false", "", "wants no step at all")                            \
    R(rows_config, cfg, rows_config_record, "configuration")                                       \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n] float32", "sums of squares")
EJK_RECORD_STRUCT(rows_args, ROWS_ARGS);
#define EJK_RECORD_SELF rows_args
EJK_RECORD_DEFINE(rows_args_record, rows_args, ROWS_ARGS);
#undef EJK_RECORD_SELF

typedef struct rows_problem {
    int64_t n, m;
    bool negate, nothing;
    const float *x;
    float *y, *squares; /* squares: the shared memory */
} rows_problem;

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const rows_args *args = arguments;
    *(rows_problem *)problem = (rows_problem){.n = ejk_axes_get(axes, "n"),
                                              .m = ejk_axes_get(axes, "m"),
                                              .negate = args->negate,
                                              .nothing = args->nothing};
    return EJK_OK;
}

static void bind(const void *arguments, void *problem) {
    const rows_args *args = arguments;
    ((rows_problem *)problem)->x = args->x.data;
    ((rows_problem *)problem)->y = args->y.data;
}

static bool wants_any(const void *problem) {
    return !((const rows_problem *)problem)->nothing;
}

static bool wants_negated(const void *problem) {
    return ((const rows_problem *)problem)->negate;
}

static size_t shared_bytes(const void *problem) {
    const rows_problem *p = problem;
    return (size_t)(p->n * p->m) * sizeof(float);
}

static void bind_shared(void *problem, void *shared) {
    ((rows_problem *)problem)->squares = shared;
}

/* ---- The steps --------------------------------------------------------------------------------------- */

static char order[8];
static const void *shared_of_first;
static int64_t square_block, sum_block;
static ejk_status answer_of_first;

/* Workspaces hold nothing from step to step, and do not meet the shared memory. */
static void use_workspace(const ejk_run *run, size_t bytes) {
    const rows_problem *p = run->problem;
    const uintptr_t shared = (uintptr_t)run->shared, own = (uintptr_t)run->workspace;
    assert_true(own >= shared + shared_bytes(p) || own + bytes <= shared);
    assert_int_equal(shared % 64, 0);
    assert_int_equal(own % 64, 0);
    memset(run->workspace, 0xff, bytes);
    if (run->workers > 1) assert_non_null(run->threads);
}

static ejk_status square(const ejk_run *run) {
    const rows_problem *p = run->problem;
    strcat(order, "s");
    if (answer_of_first != EJK_OK) return answer_of_first;
    square_block = run->parameters[0];
    shared_of_first = run->shared;
    use_workspace(run, 64);
    for (int64_t i = 0; i < p->n * p->m; i++) ((float *)run->shared)[i] = p->x[i] * p->x[i];
    return EJK_OK;
}

static ejk_status negate(const ejk_run *run) {
    const rows_problem *p = run->problem;
    strcat(order, "n");
    assert_ptr_equal(p->squares, shared_of_first);
    for (int64_t i = 0; i < p->n * p->m; i++) p->squares[i] *= -1;
    return EJK_OK;
}

static ejk_status sum(const ejk_run *run) {
    const rows_problem *p = run->problem;
    strcat(order, "t");
    sum_block = run->parameters[0];
    assert_ptr_equal(run->shared, shared_of_first);
    use_workspace(run, 1024);
    for (int64_t i = 0; i < p->n; i++) {
        p->y[i] = 0;
        for (int64_t j = 0; j < p->m; j++) p->y[i] += ((const float *)run->shared)[i * p->m + j];
    }
    return EJK_OK;
}

static ejk_status launch_square(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *out) {
    (void)problem, (void)parameters, (void)threads;
    out->workspace_bytes = 64;
    return EJK_OK;
}

static ejk_status launch_sum(const void *problem, const int64_t *parameters, int32_t threads,
                             ejk_launch *out) {
    (void)problem, (void)parameters;
    out->workspace_bytes = 1024;
    out->workers = threads;
    return EJK_OK;
}

static const ejk_parameter of_square[] = {{"square_block", 1, 64, 1, 16, "elements"}};
static const ejk_parameter of_sum[] = {{"sum_block", 8, 64, 8, 32, "rows"}};
static void suggest_square(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)problem;
    assert_int_equal(threads, 2);
    assert_false(values[0].set);
    values[0] = ejk_int(20);
}

/* Counts as little as what the operation has set. */
static void suggest_sum(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)problem, (void)threads;
    values[0] = ejk_int(48);
}

#define STEP(...)                                                                                  \
    { .name = "plain", .platform = EJK_PLATFORM_REFERENCE, .backend = EJK_BACKEND_CPU, __VA_ARGS__ }
static const ejk_implementation square_plain =
    STEP(.algorithm = "rows_square", .prepare = launch_square, .run = square,
         .parameters = of_square, .parameter_count = 1, .suggest = suggest_square);
static const ejk_implementation sum_plain =
    STEP(.algorithm = "rows_sum", .prepare = launch_sum, .run = sum, .suggest = suggest_sum,
         .parameters = of_sum, .parameter_count = 1);
static const ejk_implementation negate_plain = STEP(.algorithm = "rows_negate", .run = negate);

static void advise(const ejk_invocation *invocation, void *config) {
    assert_true(invocation->step_count == 2 || invocation->step_count == 3);
    assert_ptr_equal(invocation->steps[0], invocation->implementation);
    ((rows_config *)config)->sum_block = ejk_int(24);
    if (((const rows_args *)invocation->args)->negate)
        ((rows_config *)config)->square_block = ejk_int(100); /* not allowed: counts as none */
}

static const ejk_step steps[] = {{"rows_square", "squares", wants_any},
                                 {"rows_negate", "negated, if asked for", wants_negated},
                                 {"rows_sum", "sums of rows", wants_any}};

static const ejk_kernel rows = {
    .op_id = "rows",
    .args = &rows_args_record,
    .config = &rows_config_record,
    .config_field = "cfg",
    .parameters_field = "",
    .problem_size = sizeof(rows_problem),
    .prepare = prepare,
    .bind = bind,
    .heuristic_cfg = advise,
    .steps = steps,
    .step_count = 3,
    .shared_bytes = shared_bytes,
    .bind_shared = bind_shared,
};

/* ---- Tests ------------------------------------------------------------------------------------------- */

static ejk_context *context;
static float x[4][5], y[4];

static int setup(void **state) {
    (void)state;
    if (ejk_context_create(&(ejk_context_options){.threads = 2}, &context) != EJK_OK) return 1;
    ejk_registry *registry = ejk_context_registry(context);
    for (int i = 0; i < 20; i++) x[i / 5][i % 5] = (float)(i % 7);
    return ejk_registry_register(registry, &square_plain) != EJK_OK ||
           ejk_registry_register(registry, &sum_plain) != EJK_OK ||
           ejk_context_add_kernel(context, &rows) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static rows_args call_of(bool negated) {
    order[0] = 0;
    memset(y, 0, sizeof y);
    answer_of_first = EJK_OK;
    return (rows_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, 4, 5),
                       .y = ejk_tensor_contiguous(y, EJK_DTYPE_F32, 1, (int64_t[]){4}),
                       .negate = negated};
}

static float sum_of(int row) {
    float all = 0;
    for (int j = 0; j < 5; j++) all += x[row][j] * x[row][j];
    return all;
}

static void steps_run_in_order(void **state) {
    (void)state;
    rows_args args = call_of(false);
    for (int warm = 0; warm < 3; warm++) {
        EXPECT_OK(ejk_call(context, &rows, &args));
        for (int i = 0; i < 4; i++) assert_true(y[i] == sum_of(i));
    }
    assert_string_equal(order, "ststst");
    assert_int_equal(square_block, 20);
    assert_int_equal(sum_block, 24);
    args = call_of(false);
    answer_of_first = EJK_STATUS_IO;
    assert_int_equal(ejk_call(context, &rows, &args), EJK_STATUS_IO);
    assert_string_equal(order, "s");
}

/* Nothing of the middle step is registered before this: it is looked up only where it is wanted. */
static void unwanted_steps_are_not_looked_up(void **state) {
    (void)state;
    rows_args args = call_of(true);
    EXPECT_FAIL(UNKNOWN_NAME, "rows_negate", ejk_call(context, &rows, &args));
    EXPECT_OK(ejk_registry_register(ejk_context_registry(context), &negate_plain));
    EXPECT_OK(ejk_call(context, &rows, &args));
    assert_string_equal(order, "snt");
    assert_int_equal(square_block, 16);
    for (int i = 0; i < 4; i++) assert_true(y[i] == -sum_of(i));
    args.nothing = true;
    args.negate = false;
    EXPECT_FAIL(INTERNAL, "none of its 3 steps", ejk_call(context, &rows, &args));
}

static void workspace_holds_what_is_shared_and_the_largest(void **state) {
    (void)state;
    rows_args args = call_of(false);
    ejk_plan *plan;
    _Alignas(64) char memory[4096];
    EXPECT_OK(ejk_plan_create(context, &rows, &args, &plan));
    assert_int_equal(ejk_plan_workspace(plan), 256 + 1024);
    assert_ptr_equal(ejk_plan_implementation(plan)->run, square);
    memset(memory, 1, sizeof memory);
    EXPECT_OK(ejk_plan_execute(plan, &args, memory, 256 + 1024));
    assert_ptr_equal(shared_of_first, memory);
    for (size_t i = 256 + 1024; i < sizeof memory; i++) assert_int_equal(memory[i], 1);
    EXPECT_FAIL(WORKSPACE_TOO_SMALL, "1279", ejk_plan_execute(plan, &args, memory, 256 + 1024 - 1));
    ejk_plan_destroy(plan);
}

static void parameters_of_all_steps_are_chosen(void **state) {
    (void)state;
    rows_args args = call_of(false);
    args.cfg = (rows_config){.square_block = ejk_int(5), .sum_block = ejk_int(40)};
    EXPECT_OK(ejk_call(context, &rows, &args));
    assert_int_equal(square_block, 5);
    assert_int_equal(sum_block, 40);
    args.cfg.sum_block = ejk_int(41);
    EXPECT_FAIL(INVALID_ARGUMENT, "sum_block is 41", ejk_call(context, &rows, &args));
    const ejk_implementation *const both[] = {&square_plain, &sum_plain};
    const ejk_invocation invocation = {.kernel = &rows,
                                       .args = &args,
                                       .implementation = both[0],
                                       .steps = both,
                                       .step_count = 2,
                                       .threads = 2,
                                       .context = context};
    rows_config list[40];
    int32_t count;
    EXPECT_OK(ejk_invocation_candidates(&invocation, list, 40, &count));
    bool square_varies = false, sum_varies = false, both_vary = false;
    for (int32_t i = 0; i < count; i++) {
        const bool first = list[i].square_block.value != 20, last = list[i].sum_block.value != 24;
        square_varies |= first && !last;
        sum_varies |= !first && last;
        both_vary |= first && last;
    }
    assert_true(square_varies && sum_varies && both_vary);
}

static void steps_tell_of_themselves(void **state) {
    (void)state;
    rows_args args = call_of(false);
    ejk_plan *plan;
    char *text;
    EXPECT_OK(ejk_plan_create(context, &rows, &args, &plan));
    EXPECT_OK(ejk_plan_describe(plan, &text));
    json_t *object = json_loads(text, 0, NULL), *list = json_object_get(object, "steps");
    ejk_free(text);
    assert_int_equal(json_array_size(list), 2);
    json_t *last = json_array_get(list, 1);
    assert_string_equal(json_string_value(json_object_get(last, "algorithm")), "rows_sum");
    assert_int_equal(json_integer_value(json_object_get(last, "workers")), 2);
    json_t *values = json_object_get(last, "parameters"), *by = json_object_get(last, "chosen_by");
    assert_int_equal(json_integer_value(json_object_get(values, "sum_block")), 24);
    assert_string_equal(json_string_value(json_object_get(by, "sum_block")), "heuristics");
    values = json_object_get(json_array_get(list, 0), "parameters");
    assert_int_equal(json_integer_value(json_object_get(values, "square_block")), 20);
    json_decref(object);
    EXPECT_OK(ejk_plan_explain(plan, &text));
    assert_non_null(strstr(text, "rows_square"));
    assert_non_null(strstr(text, "rows_sum"));
    assert_null(strstr(text, "rows_negate"));
    ejk_free(text);
    ejk_plan_destroy(plan);
}

static void bad_steps_are_refused(void **state) {
    (void)state;
    static const ejk_step nameless[] = {{"", "", NULL}};
    ejk_kernel kernel = rows;
    kernel.op_id = "other_rows";
    kernel.algorithm = "rows";
    EXPECT_FAIL(INVALID_ARGUMENT, "both steps and algorithm",
                ejk_context_add_kernel(context, &kernel));
    kernel.algorithm = NULL;
    kernel.shared_bytes = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "bind_shared needs", ejk_context_add_kernel(context, &kernel));
    kernel.shared_bytes = shared_bytes;
    kernel.step_count = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "step_count is 0", ejk_context_add_kernel(context, &kernel));
    kernel.step_count = EJK_MAX_STEPS + 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "expected 1 to 8", ejk_context_add_kernel(context, &kernel));
    kernel.steps = nameless;
    kernel.step_count = 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "no algorithm", ejk_context_add_kernel(context, &kernel));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_run_in_order),
        cmocka_unit_test(unwanted_steps_are_not_looked_up),
        cmocka_unit_test(workspace_holds_what_is_shared_and_the_largest),
        cmocka_unit_test(parameters_of_all_steps_are_chosen),
        cmocka_unit_test(steps_tell_of_themselves),
        cmocka_unit_test(bad_steps_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
