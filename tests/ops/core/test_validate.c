/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only data says is looked at before any run on the CPU: by an operation of the test's own that gathers, through
 * implementations and hooks, and not where a call has no integers.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <string.h>

#define GATHER_ARGS(F, R)                                                                          \
    F(TENSOR, x, EJK_REQUIRED, "", "[m] float32", "input")                                         \
    F(TENSOR, index, EJK_OPTIONAL, "0, 1, ...", "[n] int32", "what is taken")                      \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n] float32", "result")
EJK_RECORD_STRUCT(gather_args, GATHER_ARGS);
#define EJK_RECORD_SELF gather_args
EJK_RECORD_DEFINE(gather_args_record, gather_args, GATHER_ARGS);
#undef EJK_RECORD_SELF

/* The same arguments with a unit that says what indices are, so that no function has to. */
#define RANGED_ARGS(F, R)                                                                          \
    F(TENSOR, x, EJK_REQUIRED, "", "[m] float32", "input")                                         \
    F(TENSOR, index, EJK_OPTIONAL, "0, 1, ...", "[n] int32 in [0,m)", "what is taken")             \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n] float32", "result")
EJK_RECORD_STRUCT(ranged_args, RANGED_ARGS);
#define EJK_RECORD_SELF ranged_args
EJK_RECORD_DEFINE(ranged_args_record, ranged_args, RANGED_ARGS);
#undef EJK_RECORD_SELF

typedef struct gather_problem {
    int64_t length, count;
    const float *x;
    const int32_t *index;
    float *y;
} gather_problem;

static int validated, runs;

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)args;
    *(gather_problem *)problem =
        (gather_problem){.length = ejk_axes_get(axes, "m"), .count = ejk_axes_get(axes, "n")};
    return EJK_OK;
}

static void bind(const void *arguments, void *problem) {
    const gather_args *args = arguments;
    gather_problem *p = problem;
    p->x = args->x.data;
    p->index = args->index.data;
    p->y = args->y.data;
}

static ejk_status validate(const void *problem) {
    const gather_problem *p = problem;
    validated++;
    for (int64_t i = 0; p->index && i < p->count; i++)
        if (p->index[i] < 0 || p->index[i] >= p->length) return EJK_STATUS_INVALID_ARGUMENT;
    return EJK_OK;
}

/* Trusts indices: units have been looked at before it is asked. */
static ejk_status validate_nothing(const void *problem) {
    const gather_problem *p = problem;
    validated++;
    for (int64_t i = 0; i < p->count; i++) assert_in_range(p->index[i], 0, p->length - 1);
    return EJK_OK;
}

static ejk_status run(const ejk_run *call) {
    const gather_problem *p = call->problem;
    runs++;
    for (int64_t i = 0; i < p->count; i++) p->y[i] = p->x[p->index ? p->index[i] : i];
    return EJK_OK;
}

static ejk_status run_by_hook(const ejk_hook_call *call) {
    const gather_args *args = call->args;
    runs++;
    ((float *)args->y.data)[0] = ((const float *)args->x.data)[0];
    return EJK_OK;
}

static const ejk_hook hooks[] = {{.name = "run", .call = run_by_hook}};

static const ejk_kernel gather = {
    .op_id = "gather",
    .args = &gather_args_record,
    .problem_size = sizeof(gather_problem),
    .prepare = prepare,
    .bind = bind,
    .validate = validate,
};
static ejk_kernel gather_by_hook, gather_by_unit, gather_by_both;

static const ejk_implementation plain = {
    .algorithm = "gather", .name = "plain", .platform = EJK_PLATFORM_REFERENCE, .run = run};

static ejk_context *context;
static float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[4];
static int32_t good[4] = {7, 0, 3, 3}, bad[4] = {7, 0, 8, 3};

static int setup(void **state) {
    (void)state;
    gather_by_hook = gather;
    gather_by_hook.op_id = "gather_by_hook";
    gather_by_hook.hooks = hooks;
    gather_by_hook.hook_count = 1;
    gather_by_unit = gather;
    gather_by_unit.op_id = "gather_by_unit";
    gather_by_unit.algorithm = "gather";
    gather_by_unit.args = &ranged_args_record;
    gather_by_unit.validate = NULL;
    gather_by_both = gather_by_unit;
    gather_by_both.op_id = "gather_by_both";
    gather_by_both.validate = validate_nothing;
    return ejk_context_create(NULL, &context) != EJK_OK ||
           ejk_registry_register(ejk_context_registry(context), &plain) != EJK_OK ||
           ejk_context_add_kernel(context, &gather) != EJK_OK ||
           ejk_context_add_kernel(context, &gather_by_unit) != EJK_OK ||
           ejk_context_add_kernel(context, &gather_by_both) != EJK_OK ||
           ejk_context_add_kernel(context, &gather_by_hook) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static gather_args call_of(int32_t *index) {
    gather_args args = {.x = ejk_tensor_contiguous(x, EJK_DTYPE_F32, 1, (int64_t[]){8}),
                        .y = ejk_tensor_contiguous(y, EJK_DTYPE_F32, 1, (int64_t[]){4})};
    if (index) args.index = ejk_tensor_contiguous(index, EJK_DTYPE_I32, 1, (int64_t[]){4});
    memset(y, 0, sizeof y);
    validated = runs = 0;
    return args;
}

static void data_is_looked_at_before_a_run(void **state) {
    (void)state;
    gather_args args = call_of(good);
    EXPECT_OK(ejk_call(context, &gather, &args));
    assert_true(y[0] == 8 && y[2] == 4);
    assert_int_equal(validated, 1);
    for (int warm = 0; warm < 2; warm++) {
        args = call_of(bad);
        assert_int_equal(ejk_call(context, &gather, &args), EJK_STATUS_INVALID_ARGUMENT);
        assert_int_equal(validated, 1);
        assert_int_equal(runs, 0);
        assert_true(y[0] == 0);
    }
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &gather, &args, &plan));
    assert_int_equal(ejk_plan_execute(plan, &args, NULL, 0), EJK_STATUS_INVALID_ARGUMENT);
    args.index.data = good;
    EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0));
    assert_int_equal(runs, 1);
    ejk_plan_destroy(plan);
}

static void hooks_cannot_forget_it(void **state) {
    (void)state;
    gather_args args = call_of(bad);
    assert_int_equal(ejk_call(context, &gather_by_hook, &args), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(runs, 0);
    args.index.data = good;
    EXPECT_OK(ejk_call(context, &gather_by_hook, &args));
    assert_int_equal(runs, 1);
}

static void calls_without_integers_have_nothing_to_look_at(void **state) {
    (void)state;
    gather_args args = call_of(NULL);
    EXPECT_OK(ejk_call(context, &gather, &args));
    EXPECT_OK(ejk_call(context, &gather_by_hook, &args));
    assert_int_equal(validated, 0);
    assert_int_equal(runs, 2);
}

static void units_say_what_is_allowed(void **state) {
    (void)state;
    gather_args args = call_of(bad); /* the structs are the same */
    EXPECT_FAIL(INVALID_ARGUMENT, "index", ejk_call(context, &gather_by_unit, &args));
    assert_int_equal(runs, 0);
    args.index.data = good;
    EXPECT_OK(ejk_call(context, &gather_by_unit, &args));
    assert_int_equal(runs, 1);
    /* And what is filled in is allowed. */
    ejk_problem *problem;
    EXPECT_OK(ejk_problem_parse(context, "gather_by_unit:m=300,n=40,index", &problem));
    for (uint64_t seed = 0; seed < 3; seed++) {
        EXPECT_OK(ejk_problem_allocate(problem, seed));
        EXPECT_OK(ejk_call(context, &gather_by_unit, ejk_problem_args(problem)));
    }
    const ranged_args *filled = ejk_problem_args(problem);
    int32_t largest = 0;
    for (int i = 0; i < 40; i++)
        if (((const int32_t *)filled->index.data)[i] > largest)
            largest = ((const int32_t *)filled->index.data)[i];
    assert_true(largest > 0);
    ejk_problem_destroy(problem);
}

static void units_count_beside_a_function(void **state) {
    (void)state;
    gather_args args = call_of(bad);
    for (int warm = 0; warm < 2; warm++) {
        EXPECT_FAIL(INVALID_ARGUMENT, "index is 8 at element 2, expected 0 to 7",
                    ejk_call(context, &gather_by_both, &args));
        assert_int_equal(validated, 0);
        assert_int_equal(runs, 0);
    }
    args.index.data = good;
    EXPECT_OK(ejk_call(context, &gather_by_both, &args));
    assert_int_equal(validated, 1);
    assert_int_equal(runs, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_looked_at_before_a_run),
        cmocka_unit_test(hooks_cannot_forget_it),
        cmocka_unit_test(units_say_what_is_allowed),
        cmocka_unit_test(units_count_beside_a_function),
        cmocka_unit_test(calls_without_integers_have_nothing_to_look_at),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
