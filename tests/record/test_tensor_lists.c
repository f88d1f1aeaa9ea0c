/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors as arguments: what is checked, compared, written and read, kept in plans, filled and measured. */
#include "support/expect.h"
#include "support/toy_sums.h"

#include <stdlib.h>
#include <string.h>

enum { M = 4 };

static ejk_context *context;
static float first[2 * M], second[3 * M], y[M];
static int32_t picks[3];

static int setup(void **unused) {
    (void)unused;
    EXPECT_OK(ejk_context_create(NULL, &context));
    EXPECT_OK(toy_sums_add(context));
    return 0;
}

static int teardown(void **unused) {
    (void)unused;
    ejk_context_destroy(context);
    return 0;
}

/* Two parts of two and three rows, and three picks. */
static toy_sums_args call(void) {
    for (int i = 0; i < 2 * M; i++) first[i] = 1;
    for (int i = 0; i < 3 * M; i++) second[i] = 10;
    memcpy(picks, (int32_t[]){0, 3, 3}, sizeof picks);
    memset(y, 0, sizeof y);
    return (toy_sums_args){.parts = {{ejk_tensor_2d(first, EJK_DTYPE_F32, 2, M),
                                      ejk_tensor_2d(second, EJK_DTYPE_F32, 3, M)},
                                     2},
                           .picks = {{ejk_tensor_1d(picks, EJK_DTYPE_I32, 3)}, 1},
                           .y = ejk_tensor_1d(y, EJK_DTYPE_F32, M)};
}

static ejk_status run(const toy_sums_args *args) {
    return ejk_call(context, &toy_sums_kernel, args);
}

static void a_call_takes_a_list(void **unused) {
    (void)unused;
    toy_sums_args args = call();
    for (int warm = 0; warm < 2; warm++) {
        memset(y, 0, sizeof y);
        EXPECT_OK(run(&args));
        assert_true(y[0] == 33 && y[1] == 32 && y[2] == 32 && y[3] == 34);
    }
    args.parts.count = 1; /* the second is still there, but counts for nothing */
    EXPECT_OK(run(&args));
    assert_true(y[0] == 3 && y[1] == 2);
    args.parts.value[1].rank = 77;
    EXPECT_OK(run(&args));
    assert_true(y[0] == 3 && y[1] == 2);
}

static void bad_lists_are_refused(void **unused) {
    (void)unused;
    toy_sums_args args = call();
    args.parts.value[1].shape[1] = M - 1;
    EXPECT_FAIL(INVALID_SHAPE, "parts[1]: axis 1 (m) has length 3, expected 4 as in parts",
                run(&args));
    args = call();
    args.parts.value[1] = ejk_tensor_1d(second, EJK_DTYPE_F32, M);
    EXPECT_FAIL(INVALID_SHAPE, "parts[1]: rank 1", run(&args));
    args = call();
    args.parts.value[1].dtype = EJK_DTYPE_I32;
    EXPECT_FAIL(INVALID_DTYPE, "parts[1]: int32 given", run(&args));
    args = call();
    args.parts.value[1].strides[1] = 2;
    EXPECT_FAIL(INVALID_LAYOUT, "parts[1]: axis 1, the last, has stride 2", run(&args));
    args = call();
    args.parts.value[1].data = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "parts[1] has elements but its data pointer is NULL", run(&args));
    args = call();
    args.parts.value[0] = (ejk_tensor){.data = NULL};
    EXPECT_FAIL(INVALID_ARGUMENT, "parts[0]: missing", run(&args));
    args = call();
    args.parts.count = 3;
    EXPECT_FAIL(INVALID_ARGUMENT, "parts[2]: missing", run(&args));
    args.parts.count = EJK_MAX_TENSORS + 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "a list of 0 to 8 tensors", run(&args));
    args.parts.count = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "a list of 0 to 8 tensors", run(&args));
    args.parts.count = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "parts[0]: missing", run(&args));
}

static void results_may_not_lie_on_members(void **unused) {
    (void)unused;
    toy_sums_args args = call();
    args.y.data = second + M;
    EXPECT_FAIL(INVALID_LAYOUT, "y overlaps parts[1]", run(&args));
    args.y.data = first + M;
    EXPECT_FAIL(INVALID_LAYOUT, "y overlaps parts[0]", run(&args));
}

static void values_of_members_are_checked(void **unused) {
    (void)unused;
    toy_sums_args args = call();
    int32_t more[2] = {1, M};
    args.picks.value[args.picks.count++] = ejk_tensor_1d(more, EJK_DTYPE_I32, 2);
    toy_sums_runs = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "picks[1] is 4 at element 1, expected 0 to 3", run(&args));
    assert_int_equal(toy_sums_runs, 0);
    more[1] = 1;
    EXPECT_OK(run(&args));
    assert_true(y[1] == 34);
}

static void symbols_are_shared_or_of_a_member(void **unused) {
    (void)unused;
    const toy_sums_args args = call();
    ejk_axes axes = {.count = 0};
    EXPECT_OK(ejk_record_check_tensors(&toy_sums_args_record, &args, &axes));
    assert_int_equal(ejk_axes_get(&axes, "n0"), 2);
    assert_int_equal(ejk_axes_get(&axes, "n1"), 3);
    assert_int_equal(ejk_axes_get(&axes, "k0"), 3);
    assert_int_equal(ejk_axes_get(&axes, "m"), M);
    assert_int_equal(axes.count, 4);
    ejk_field fields[2] = {toy_sums_args_record.fields[0]};
    const ejk_record record = {"other", sizeof(toy_sums_args), fields, 1, NULL, NULL};
    EXPECT_OK(ejk_record_check(&record));
    fields[0].kind = EJK_FIELD_TENSOR;
    EXPECT_FAIL(INVALID_ARGUMENT, "\"#\", which only the unit of a list may",
                ejk_record_check(&record));
    fields[0].kind = EJK_FIELD_TENSORS;
    fields[0].role = EJK_OUTPUT;
    EXPECT_FAIL(INVALID_ARGUMENT, "a tensors cannot be an output", ejk_record_check(&record));
}

static void members_are_compared(void **unused) {
    (void)unused;
    const ejk_record *record = &toy_sums_args_record;
    const toy_sums_args one = call();
    toy_sums_args other = one;
    other.parts.value[1].data = first;
    assert_true(ejk_record_same_signature(record, &one, &other));
    assert_true(ejk_record_signature(record, &one) == ejk_record_signature(record, &other));
    assert_false(ejk_record_equal(record, &one, &other));
    assert_true(ejk_record_hash(record, &one) != ejk_record_hash(record, &other));
    other = one;
    other.parts.value[2] = other.parts.value[1]; /* behind the end */
    assert_true(ejk_record_equal(record, &one, &other));
    assert_true(ejk_record_hash(record, &one) == ejk_record_hash(record, &other));
    other.parts.count = 3;
    assert_false(ejk_record_same_signature(record, &one, &other));
    assert_true(ejk_record_signature(record, &one) != ejk_record_signature(record, &other));
    other = one;
    other.parts.value[1].shape[0] = 2;
    assert_false(ejk_record_same_signature(record, &one, &other));
    other = one; /* the same tensors, in another order */
    other.parts.value[0] = one.parts.value[1];
    other.parts.value[1] = one.parts.value[0];
    assert_true(ejk_record_signature(record, &one) != ejk_record_signature(record, &other));
}

static void keys_know_members(void **unused) {
    (void)unused;
    const toy_sums_args one = call();
    toy_sums_args other = one;
    char key[EJK_SHORT_HASH_SIZE], another[EJK_SHORT_HASH_SIZE];
    other.parts.value[1].shape[0] = 2;
    EXPECT_OK(ejk_call_key(&toy_sums_kernel, &one, NULL, NULL, key));
    EXPECT_OK(ejk_call_key(&toy_sums_kernel, &other, NULL, NULL, another));
    assert_string_not_equal(key, another);
    other = one;
    other.parts.value[1].strides[0] = 2 * M;
    EXPECT_OK(ejk_call_key(&toy_sums_kernel, &other, NULL, NULL, another));
    assert_string_equal(key, another);
    EXPECT_OK(ejk_layout_key(&toy_sums_args_record, &one, key));
    EXPECT_OK(ejk_layout_key(&toy_sums_args_record, &other, another));
    assert_string_not_equal(key, another);
}

static void lists_are_json(void **unused) {
    (void)unused;
    const toy_sums_args args = call();
    const ejk_record *record = &toy_sums_args_record;
    toy_sums_args back;
    char *text;
    EXPECT_OK(ejk_record_to_json(record, &args, EJK_JSON_SET_ONLY, &text));
    assert_non_null(strstr(text, "\"parts\":[{\"dtype\":\"float32\",\"shape\":[2,4]},"
                                 "{\"dtype\":\"float32\",\"shape\":[3,4]}]"));
    EXPECT_OK(ejk_record_from_json(record, text, &back));
    assert_true(ejk_record_same_signature(record, &args, &back));
    ejk_free(text);
    EXPECT_FAIL(MALFORMED, "parts: [] given, expected a list of 1 to 8 tensors",
                ejk_record_from_json(record, "{\"parts\":[]}", &back));
    EXPECT_FAIL(MALFORMED, "parts: 3 given", ejk_record_from_json(record, "{\"parts\":3}", &back));
    EXPECT_FAIL(MALFORMED, "cannot be set from text",
                ejk_record_set_text(record, &back, "parts", "1"));
    EXPECT_OK(ejk_record_help(record, &text));
    assert_non_null(strstr(text, "--parts"));
    assert_non_null(strstr(text, "tensors"));
    ejk_free(text);
}

/* The line of a call, and the call of the line. */
static void expect_line(const char *line, const char *written) {
    ejk_problem *problem, *again;
    char *text;
    EXPECT_OK(ejk_problem_parse(context, line, &problem));
    EXPECT_OK(ejk_problem_to_text(&toy_sums_kernel, ejk_problem_args(problem), &text));
    assert_string_equal(text, written);
    EXPECT_OK(ejk_problem_parse(context, text, &again));
    assert_true(ejk_record_same_signature(&toy_sums_args_record, ejk_problem_args(problem),
                                          ejk_problem_args(again)));
    ejk_free(text);
    ejk_problem_destroy(problem);
    ejk_problem_destroy(again);
}

static void lists_are_lines(void **unused) {
    (void)unused;
    ejk_problem *problem;
    expect_line("toy_sums:n0=5,m=4", "toy_sums:n0=5,m=4,dtype=float32");
    expect_line("toy_sums:n0=5,n1=6,m=4,parts=2",
                "toy_sums:n0=5,m=4,n1=6,dtype=float32,with=parts.1");
    expect_line("toy_sums:n0=5,n1=6,k0=2,m=4,with=parts.1+picks.0",
                "toy_sums:n0=5,m=4,n1=6,k0=2,dtype=float32,with=parts.1+picks.0");
    expect_line("toy_sums:m=4,parts.0=[2,4],parts.1=[3,4]@[8,1]",
                "toy_sums:n0=2,m=4,n1=3,dtype=float32,parts.1=@[8,1]");
    EXPECT_FAIL(MALFORMED, "parts.1 is missing, expected each of the 3 members",
                ejk_problem_parse(context, "toy_sums:n0=1,n2=1,m=4,with=parts.2", &problem));
    EXPECT_FAIL(MALFORMED, "parts is '9', expected a number of tensors, 1 to 8",
                ejk_problem_parse(context, "toy_sums:n0=1,m=4,parts=9", &problem));
    EXPECT_FAIL(INVALID_ARGUMENT, "needs n1",
                ejk_problem_parse(context, "toy_sums:n0=1,m=4,parts=2", &problem));
}

static void members_are_filled(void **unused) {
    (void)unused;
    ejk_problem *problem;
    EXPECT_OK(
        ejk_problem_parse(context, "toy_sums:n0=5,n1=6,k0=20,m=4,with=parts.1+picks.0", &problem));
    EXPECT_OK(ejk_problem_allocate(problem, 1));
    const toy_sums_args *args = ejk_problem_args(problem);
    toy_sums_strays = toy_sums_runs = 0;
    EXPECT_OK(run(args));
    assert_int_equal(toy_sums_runs, 1);
    assert_int_equal(toy_sums_strays, 0);
    float sum = 0, apart = 0;
    for (int i = 0; i < 5 * M; i++) {
        const float own = ((const float *)args->parts.value[0].data)[i];
        const float other = ((const float *)args->parts.value[1].data)[i];
        sum += own * own;
        apart += (own - other) * (own - other);
    }
    assert_true(sum > 0 && apart > 0);
    ejk_problem_destroy(problem);
}

/* Without data, as a recorded call has none: members and what is picked are made. */
static void recorded_lists_are_tuned(void **unused) {
    (void)unused;
    ejk_recording *recording;
    ejk_tune_report *report;
    toy_config best;
    toy_sums_args args = call();
    EXPECT_OK(ejk_recording_create(&recording));
    EXPECT_OK(ejk_record_invocation(recording, &toy_sums_kernel, &args));
    assert_int_equal(ejk_recording_count(recording), 1);
    ejk_recording_destroy(recording);
    args.parts.value[0].data = args.parts.value[1].data = args.picks.value[0].data = NULL;
    args.y.data = NULL;
    toy_sums_strays = toy_sums_runs = 0;
    const ejk_autotune_options options = {.tuner = {.time_s = 0.05}};
    EXPECT_OK(ejk_autotune(context, &toy_sums_kernel, &args, &options, &best, &report, NULL));
    ejk_tune_report_destroy(report);
    assert_true(toy_sums_runs > 1);
    assert_int_equal(toy_sums_strays, 0);
}

static void batches_refuse_lists(void **unused) {
    (void)unused;
    const toy_sums_args args = call();
    ejk_executor *executor;
    EXPECT_OK(ejk_executor_create(context, NULL, &executor));
    EXPECT_FAIL(UNAVAILABLE, "parts is a list of tensors",
                ejk_vmap_with_config(executor, &toy_sums_kernel, &args, NULL, NULL));
    ejk_executor_destroy(executor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_takes_a_list),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(results_may_not_lie_on_members),
        cmocka_unit_test(values_of_members_are_checked),
        cmocka_unit_test(symbols_are_shared_or_of_a_member),
        cmocka_unit_test(members_are_compared),
        cmocka_unit_test(keys_know_members),
        cmocka_unit_test(lists_are_json),
        cmocka_unit_test(lists_are_lines),
        cmocka_unit_test(members_are_filled),
        cmocka_unit_test(recorded_lists_are_tuned),
        cmocka_unit_test(batches_refuse_lists),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
