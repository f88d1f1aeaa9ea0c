/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of four bits, two in a byte: views, copies, and what other parts make of them. */
#include "record/domain.h"
#include "support/domains.h"
#include "support/expect.h"
#include "support/toy.h"
#include "tensor/access.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint8_t bytes[64];

static void views_have_rows_of_whole_bytes(void **state) {
    (void)state;
    int64_t low, high;
    ejk_tensor t = ejk_tensor_3d(bytes, EJK_DTYPE_I4, 2, 3, 5);
    assert_true(t.strides[2] == 1 && t.strides[1] == 6 && t.strides[0] == 18);
    EXPECT_OK(ejk_tensor_check(&t, "t"));
    assert_true(ejk_tensor_is_contiguous(&t));
    ejk_tensor_span(&t, &low, &high);
    assert_true(low == 0 && high == 18);
    t.strides[1] = -6;
    ejk_tensor_span(&t, &low, &high);
    assert_true(low == -6 && high == 12 && !ejk_tensor_is_contiguous(&t));
    t = ejk_tensor_2d(bytes, EJK_DTYPE_U4, 3, 1);
    assert_true(t.strides[0] == 2 && ejk_tensor_is_contiguous(&t));
    t = ejk_tensor_1d(bytes, EJK_DTYPE_U4, 7);
    ejk_tensor_span(&t, &low, &high);
    assert_int_equal(high, 4);
    assert_int_equal(ejk_dtype_bits(EJK_DTYPE_U4), 4);
    assert_int_equal(ejk_dtype_bytes(EJK_DTYPE_I4, 7), 4);
    assert_int_equal(ejk_dtype_bytes(EJK_DTYPE_I4, INT64_MAX), INT64_MAX / 2 + 1);
    assert_int_equal(ejk_dtype_bytes(EJK_DTYPE_F64, 3), 24);
    assert_int_equal(ejk_dtype_bytes(EJK_DTYPE_F64, INT64_MAX), -1);
    assert_int_equal(ejk_dtype_bytes(EJK_DTYPE_F64, -1), -1);
    assert_int_equal(ejk_dtype_bytes((ejk_dtype)77, 1), -1);
}

static void rows_within_bytes_are_refused(void **state) {
    (void)state;
    ejk_tensor t = ejk_tensor_2d(bytes, EJK_DTYPE_I4, 2, 3);
    t.strides[0] = 3;
    EXPECT_FAIL(INVALID_LAYOUT, "axis 0 of t, of int4, has stride 3, expected an even one",
                ejk_tensor_check(&t, "t"));
    t.shape[0] = 1;
    EXPECT_OK(ejk_tensor_check(&t, "t"));
    t.strides[1] = 2;
    EXPECT_FAIL(INVALID_LAYOUT, "axis 1 of t, of int4, has stride 2, expected 1",
                ejk_tensor_check(&t, "t"));
    t = ejk_tensor_2d(bytes, EJK_DTYPE_I4, 2, 8);
    assert_false(ejk_tensor_present(&(ejk_tensor){0}));
    assert_ptr_equal(ejk_tensor_slice(t, 1, 4, 2).data, bytes + 2);
    assert_ptr_equal(ejk_tensor_slice(t, 0, 1, 1).data, bytes + 4);
    const ejk_tensor within = ejk_tensor_slice(t, 1, 3, 2);
    assert_true(ejk_tensor_check(&within, "t") != EJK_OK);
}

static void halves_are_loaded_and_stored(void **state) {
    (void)state;
    uint8_t two[2] = {0xa5, 0x3c};
    static const int64_t signs[] = {5, -6, -4, 3}, natural[] = {5, 10, 12, 3};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ejki_load_i64(EJK_DTYPE_I4, two, i), signs[i]);
        assert_int_equal(ejki_load_i64(EJK_DTYPE_U4, two, i), natural[i]);
        assert_true(ejki_load_f64(EJK_DTYPE_I4, two, i) == (double)signs[i]);
    }
    ejki_store_i64(EJK_DTYPE_I4, two, 1, -1);
    ejki_store_i64(EJK_DTYPE_U4, two, 2, 9);
    assert_true(two[0] == 0xf5 && two[1] == 0x39);
    assert_int_equal(ejki_load_i64(EJK_DTYPE_U4, two + 1, -1), 15);
}

static double clamped(double value, ejk_dtype dtype) {
    const double least = dtype == EJK_DTYPE_I4 ? -8 : 0;
    return isnan(value) ? 0 : fmin(fmax(trunc(value), least), least + 15);
}

/* Of any type and back, over odd rows and reversed ones; what lies beside stays as it was. */
static void copies_convert_and_keep_to_their_elements(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_I4, EJK_DTYPE_U4};
    double numbers[3][5], back[3][5];
    for (int i = 0; i < 15; i++) numbers[i / 5][i % 5] = (i - 7) * 1.75;
    numbers[2][4] = NAN;
    const ejk_tensor source = ejk_tensor_2d(numbers, EJK_DTYPE_F64, 3, 5);
    const ejk_tensor result = ejk_tensor_2d(back, EJK_DTYPE_F64, 3, 5);
    for (int k = 0; k < 2; k++)
        for (int reversed = 0; reversed < 2; reversed++) {
            ejk_tensor packed = ejk_tensor_2d(bytes + 8, types[k], 3, 5);
            packed.strides[0] = 8;
            if (reversed) {
                packed.data = bytes + 16;
                packed.strides[0] = -8;
            }
            memset(bytes, 0x99, sizeof bytes);
            EXPECT_OK(ejk_tensor_copy(&source, &packed));
            EXPECT_OK(ejk_tensor_copy(&packed, &result));
            for (int i = 0; i < 15; i++)
                assert_true(back[i / 5][i % 5] == clamped(numbers[i / 5][i % 5], types[k]));
            for (int i = 0; i < 3; i++) {
                assert_int_equal(bytes[8 + 4 * i + 2] >> 4, 9); /* beside a row of five */
                assert_int_equal(bytes[8 + 4 * i + 3], 0x99);
            }
            assert_true(bytes[7] == 0x99 && bytes[20] == 0x99);
            uint8_t other[3][3];
            const ejk_tensor turned = ejk_tensor_2d(other, types[1 - k], 3, 5);
            EXPECT_OK(ejk_tensor_copy(&packed, &turned));
            EXPECT_OK(ejk_tensor_copy(&turned, &result));
            for (int i = 0; i < 15; i++)
                assert_true(back[i / 5][i % 5] ==
                            clamped(clamped(numbers[i / 5][i % 5], types[k]), types[1 - k]));
        }
    ejk_tensor twice = ejk_tensor_2d(bytes, EJK_DTYPE_I4, 3, 5);
    twice.strides[0] = 4;
    EXPECT_FAIL(INVALID_LAYOUT, "overlap", ejk_tensor_copy(&source, &twice));
}

static void long_runs_are_copied(void **state) {
    (void)state;
    enum { COUNT = 1001 };
    static uint8_t packed[COUNT / 2 + 1];
    static int8_t whole[COUNT], back[COUNT];
    for (int i = 0; i < COUNT; i++) whole[i] = (int8_t)(i * 7 % 16 - 8);
    const ejk_tensor from = ejk_tensor_1d(whole, EJK_DTYPE_I8, COUNT);
    const ejk_tensor middle = ejk_tensor_1d(packed, EJK_DTYPE_I4, COUNT);
    const ejk_tensor to = ejk_tensor_1d(back, EJK_DTYPE_I8, COUNT);
    EXPECT_OK(ejk_tensor_copy(&from, &middle));
    EXPECT_OK(ejk_tensor_copy(&middle, &to));
    assert_memory_equal(whole, back, sizeof whole);
    assert_int_equal(packed[0], (uint8_t)((whole[0] & 15) | (whole[1] & 15) << 4));
}

static void files_and_others_say_what_they_can(void **state) {
    (void)state;
    ejk_tensor t = ejk_tensor_1d(bytes, EJK_DTYPE_U4, 6);
    EXPECT_FAIL(INVALID_DTYPE, "uint4 lies two in a byte", ejk_npy_write("never.npy", &t));
    assert_int_equal(access("never.npy", F_OK), -1);
    ejk_owned_tensor own;
    const int64_t shape[] = {3, 5};
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_I4, 2, shape, &own));
    EXPECT_OK(ejk_tensor_check(&own.tensor, "own"));
    ejk_owned_tensor_close(&own);
    ejk_dtype dtype;
    EXPECT_OK(ejk_dtype_from_name("i4", &dtype));
    assert_int_equal(dtype, EJK_DTYPE_I4);
    EXPECT_OK(ejk_dtype_from_name("uint4", &dtype));
    assert_int_equal(dtype, EJK_DTYPE_U4);
}

/* ---- In records -------------------------------------------------------------------------------------- */

#define CALL(F, R)                                                                                 \
    F(TENSOR, weight, EJK_REQUIRED, "", "[N,K] uint4 in [0,9]", "codes")                           \
    F(TENSOR, codes, EJK_OUTPUT, "", "[N,K] int4", "")
EJK_RECORD_STRUCT(call, CALL);
#define EJK_RECORD_SELF call
EJK_RECORD_DEFINE(call_record, call, CALL);
#undef EJK_RECORD_SELF

static ejk_status run(const ejk_run *unused) {
    (void)unused;
    return EJK_OK;
}

static void records_take_them(void **state) {
    (void)state;
    static const ejk_kernel kernel = {.op_id = "packed", .args = &call_record};
    static const ejk_implementation implementation = {.algorithm = "packed",
                                                      .name = "u4/reference",
                                                      .platform = EJK_PLATFORM_REFERENCE,
                                                      .dtype = EJK_DTYPE_U4,
                                                      .version = 1,
                                                      .run = run};
    ejk_context *context;
    EXPECT_OK(ejk_context_create(NULL, &context));
    EXPECT_OK(ejk_context_add_kernel(context, &kernel));
    EXPECT_OK(ejk_registry_register(ejk_context_registry(context), &implementation));
    call args = {.weight = ejk_tensor_2d(bytes, EJK_DTYPE_U4, 2, 5)};
    args.codes = ejk_tensor_2d(bytes + 6, EJK_DTYPE_I4, 2, 5);
    EXPECT_OK(ejk_call(context, &kernel, &args));
    args.codes.data = bytes + 5;
    EXPECT_FAIL(INVALID_LAYOUT, "codes overlaps weight", ejk_call(context, &kernel, &args));
    args.codes = ejk_tensor_2d(bytes + 16, EJK_DTYPE_I4, 2, 5);
    args.codes.strides[0] = 4;
    EXPECT_FAIL(INVALID_LAYOUT, "onto other elements of its own",
                ejk_call(context, &kernel, &args));

    ejk_problem *problem;
    EXPECT_OK(ejk_problem_parse(context, "packed:N=3,K=7,with=codes", &problem));
    EXPECT_OK(ejk_problem_allocate(problem, 1));
    const call *made = ejk_problem_args(problem);
    const ejk_axes *axes = ejk_problem_axes(problem);
    EXPECT_OK(check_domain(&call_record, &call_record.fields[0], made, axes));
    int64_t sum = 0;
    for (int i = 0; i < 7; i++) sum += ejki_load_i64(EJK_DTYPE_U4, made->weight.data, i);
    assert_true(sum > 0);
    ejki_store_i64(EJK_DTYPE_U4, made->weight.data, 9, 11);
    EXPECT_FAIL(INVALID_ARGUMENT, "weight is 11 at element [1,1], expected 0 to 9",
                check_domain(&call_record, &call_record.fields[0], made, axes));
    char *text;
    EXPECT_OK(ejk_problem_to_text(&kernel, made, &text));
    assert_string_equal(text, "packed:N=3,K=7,with=codes");
    ejk_free(text);
    EXPECT_OK(ejk_stable_json(&call_record, made, EJK_JSON_PLAIN, &text));
    assert_non_null(strstr(text, "{\"dtype\":\"uint4\",\"shape\":[3,7]}"));
    ejk_free(text);
    ejk_problem_destroy(problem);
    ejk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_have_rows_of_whole_bytes),
        cmocka_unit_test(rows_within_bytes_are_refused),
        cmocka_unit_test(halves_are_loaded_and_stored),
        cmocka_unit_test(copies_convert_and_keep_to_their_elements),
        cmocka_unit_test(long_runs_are_copied),
        cmocka_unit_test(files_and_others_say_what_they_can),
        cmocka_unit_test(records_take_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
