/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths that are expressions: checked, solved for a symbol, put off until other tensors bind it. */
#include "support/expect.h"

#include <ejkernel/record.h>
#include <stdio.h>
#include <string.h>

#define CALL(F, R)                                                                                 \
    F(TENSOR, query, EJK_OPTIONAL, "", "[tokens,Hkv,D] float", "")                                 \
    F(TENSOR, key_cache, EJK_OPTIONAL, "", "[pages,page_size,2*Hkv,D] float", "")                  \
    F(TENSOR, scales, EJK_OPTIONAL, "", "[ceil(K/32)] float32", "")                                \
    F(TENSOR, packed, EJK_OPTIONAL, "", "[K*bits/8] uint8", "")                                    \
    F(TENSOR, weight, EJK_OPTIONAL, "", "[K] float", "")                                           \
    F(TENSOR, tiles, EJK_OPTIONAL, "", "[T/block] int", "")                                        \
    F(TENSOR, history, EJK_OPTIONAL, "", "[W-1] float", "")                                        \
    F(TENSOR, either, EJK_OPTIONAL, "", "[1|ceil(K/32)] float", "")                                \
    F(TENSOR, area, EJK_OPTIONAL, "", "[rows*columns] or [rows*columns,1] float", "")              \
    F(TENSOR, side, EJK_OPTIONAL, "", "[rows] float", "")                                          \
    F(INT, bits, EJK_OPTIONAL, "", "", "")                                                         \
    F(OPT_INT, block, EJK_OPTIONAL, "", "", "")
EJK_RECORD_STRUCT(call, CALL);
#define EJK_RECORD_SELF call
EJK_RECORD_DEFINE(call_record, call, CALL);
#undef EJK_RECORD_SELF

static char memory[4096];

#define TENSOR(type, ...)                                                                          \
    ejk_tensor_contiguous(memory, EJK_DTYPE_##type,                                                \
                          (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),           \
                          (int64_t[]){__VA_ARGS__})

static const char *check(const call *object, bool partial) {
    static char text[400];
    ejk_axes axes = {.count = 0};
    if ((partial ? ejk_record_bind_axes(&call_record, object, &axes)
                 : ejk_record_check_tensors(&call_record, object, &axes)) != EJK_OK) {
        assert_int_equal(axes.count, 0);
        return ejk_last_error();
    }
    text[0] = '\0';
    for (int32_t i = 0; i < axes.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s=%lld", i == 0 ? "" : ",",
                 axes.axis[i].name, (long long)axes.axis[i].length);
    return text;
}

#define EXPECT(wanted, ...) assert_string_equal(check(&(call){__VA_ARGS__}, false), wanted)

static void expressions_are_checked(void **state) {
    (void)state;
    EXPECT_OK(ejk_record_check(&call_record));
    EXPECT("tokens=3,Hkv=4,D=5,pages=2,page_size=6", .query = TENSOR(F32, 3, 4, 5),
           .key_cache = TENSOR(F32, 2, 6, 8, 5));
    EXPECT("key_cache: axis 2 (2*Hkv) has length 7, expected 8 with Hkv=4 as in query",
           .query = TENSOR(F32, 3, 4, 5), .key_cache = TENSOR(F32, 2, 6, 7, 5));
    EXPECT("bits=4,K=10", .bits = 4, .packed = TENSOR(U8, 5), .weight = TENSOR(F32, 10));
    EXPECT("weight: axis 0 (K) has length 11, expected 10 as in packed", .bits = 4,
           .packed = TENSOR(U8, 5), .weight = TENSOR(F32, 11));
}

static void expressions_are_solved_where_one_length_fits(void **state) {
    (void)state;
    EXPECT("pages=2,page_size=6,Hkv=4,D=5", .key_cache = TENSOR(F32, 2, 6, 8, 5));
    EXPECT("key_cache: axis 2 (2*Hkv) has length 7, expected a length of 2*Hkv",
           .key_cache = TENSOR(F32, 2, 6, 7, 5));
    EXPECT("W=4", .history = TENSOR(F32, 3));
    EXPECT("W=1", .history = TENSOR(F32, 0));
    EXPECT("block=16,T=48", .tiles = TENSOR(I32, 3), .block = ejk_int(16));
    EXPECT("bits=3,K=8", .bits = 3, .packed = TENSOR(U8, 3));
    EXPECT("packed: axis 0 (K*bits/8) has length 4, expected a length of K*bits/8 with bits=3 as "
           "given",
           .bits = 3, .packed = TENSOR(U8, 4));
}

static void expressions_wait_for_other_tensors(void **state) {
    (void)state;
    EXPECT("K=33", .scales = TENSOR(F32, 2), .weight = TENSOR(F32, 33));
    EXPECT("scales: axis 0 (ceil(K/32)) has length 2, expected 3 with K=65 as in weight",
           .scales = TENSOR(F32, 2), .weight = TENSOR(F32, 65));
    EXPECT("scales: axis 0 (ceil(K/32)) has length 2, expected a length of ceil(K/32), where K is "
           "not known",
           .scales = TENSOR(F32, 2));
    EXPECT("K=33", .either = TENSOR(F32, 1), .weight = TENSOR(F32, 33));
    EXPECT("K=33", .either = TENSOR(F32, 2), .scales = TENSOR(F32, 2), .weight = TENSOR(F32, 33));
    EXPECT("either: axis 0 (1|ceil(K/32)) has length 3, expected 1 or 2 with K=33 as in weight",
           .either = TENSOR(F32, 3), .weight = TENSOR(F32, 33));
    EXPECT("tiles: axis 0 (T/block) has length 3, expected a length of T/block, where T is not "
           "known",
           .tiles = TENSOR(I32, 3));
    EXPECT("rows=3,columns=4", .area = TENSOR(F32, 12), .side = TENSOR(F32, 3));
    EXPECT(
        "area: axis 0 (rows*columns) has length 13, expected a length of rows*columns with rows=3 "
        "as in side",
        .area = TENSOR(F32, 13), .side = TENSOR(F32, 3));
}

/* A call that is still put together may lack what binds the rest. */
static void partial_calls_leave_open_what_is(void **state) {
    (void)state;
    call object = {.scales = TENSOR(F32, 2)};
    assert_string_equal(check(&object, true), "");
    object.weight = TENSOR(F32, 65);
    assert_string_equal(
        check(&object, true),
        "scales: axis 0 (ceil(K/32)) has length 2, expected 3 with K=65 as in weight");
}

static void integer_fields_are_symbols(void **state) {
    (void)state;
    EXPECT("bits is -4, expected at least 0", .bits = -4, .packed = TENSOR(U8, 5));
    call object = {.bits = 4, .packed = TENSOR(U8, 5)};
    ejk_axes axes;
    EXPECT_OK(ejk_axes_parse("bits=8", &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "bits is 4, expected 8",
                ejk_record_check_tensors(&call_record, &object, &axes));
    EXPECT_OK(ejk_record_symbols(&call_record, &object, &axes));
    assert_int_equal(axes.count, 2);
    assert_int_equal(ejk_axes_get(&axes, "K"), 0);
    assert_int_equal(ejk_axes_get(&axes, "bits"), 0);
}

static void lengths_that_do_not_fit_are_none(void **state) {
    (void)state;
    ejk_axes axes;
    EXPECT_OK(ejk_axes_parse("Hkv=9223372036854775807", &axes));
    call object = {.key_cache = TENSOR(F32, 2, 6, 8, 5)};
    EXPECT_FAIL(INVALID_SHAPE,
                "expected 2*Hkv, which is no length with Hkv=9223372036854775807 as given",
                ejk_record_check_tensors(&call_record, &object, &axes));
    EXPECT("tiles: axis 0 (T/block) has length 1, expected T/block, which is no length with "
           "block=0 as "
           "given",
           .tiles = TENSOR(I32, 1), .block = ejk_int(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_are_checked),
        cmocka_unit_test(expressions_are_solved_where_one_length_fits),
        cmocka_unit_test(expressions_wait_for_other_tensors),
        cmocka_unit_test(partial_calls_leave_open_what_is),
        cmocka_unit_test(integer_fields_are_symbols),
        cmocka_unit_test(lengths_that_do_not_fit_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
