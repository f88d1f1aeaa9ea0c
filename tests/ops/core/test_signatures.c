/* SPDX-License-Identifier: Apache-2.0 */
/* Implementations chosen by the element types of several tensors: x · scale, where scale is of its own type. */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#define SCALED_ARGS(F, R)                                                                          \
    F(TENSOR, x, EJK_REQUIRED, "", "[n] float32", "input")                                         \
    F(TENSOR, scale, EJK_OPTIONAL, "1", "[n] float", "factors")                                    \
    F(INT, kind, EJK_OPTIONAL, "0", "", "no tensor")                                               \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n] float32", "which implementation ran")
EJK_RECORD_STRUCT(scaled_args, SCALED_ARGS);
#define EJK_RECORD_SELF scaled_args
EJK_RECORD_DEFINE(scaled_args_record, scaled_args, SCALED_ARGS);
#undef EJK_RECORD_SELF

static float ran;

static ejk_status run_f32(const ejk_run *run) {
    (void)run;
    ran = 32;
    return EJK_OK;
}
static ejk_status run_bf16(const ejk_run *run) {
    (void)run;
    ran = 16;
    return EJK_OK;
}

static const ejk_kernel scaled_kernel = {
    .op_id = "scaled", .doc = "scales", .args = &scaled_args_record, .further_types = "scale"};

static ejk_implementation entry(const char *name, ejk_dtype scale,
                                ejk_status (*run)(const ejk_run *)) {
    return (ejk_implementation){.algorithm = "scaled",
                                .name = name,
                                .platform = EJK_PLATFORM_SIMD,
                                .backend = EJK_BACKEND_CPU,
                                .dtype = EJK_DTYPE_F32,
                                .further_dtypes = {scale},
                                .version = 1,
                                .run = run};
}

static ejk_context *new_context(void) {
    ejk_context *context;
    const ejk_implementation wide = entry("f32,f32", EJK_DTYPE_F32, run_f32),
                             narrow = entry("f32,bf16", EJK_DTYPE_BF16, run_bf16);
    assert_int_equal(ejk_context_create(NULL, &context), EJK_OK);
    assert_int_equal(ejk_registry_register(ejk_context_registry(context), &wide), EJK_OK);
    assert_int_equal(ejk_registry_register(ejk_context_registry(context), &narrow), EJK_OK);
    return context;
}

static ejk_status call(ejk_context *context, ejk_dtype scale) {
    static float x[4], y[4], factors[4];
    const int64_t shape[] = {4};
    scaled_args args = {.x = ejk_tensor_contiguous(x, EJK_DTYPE_F32, 1, shape),
                        .y = ejk_tensor_contiguous(y, EJK_DTYPE_F32, 1, shape)};
    if (scale) args.scale = ejk_tensor_contiguous(factors, scale, 1, shape);
    ran = 0;
    return ejk_call(context, &scaled_kernel, &args);
}

static void the_second_type_chooses(void **state) {
    (void)state;
    ejk_context *context = new_context();
    assert_int_equal(call(context, EJK_DTYPE_BF16), EJK_OK);
    assert_true(ran == 16);
    assert_int_equal(call(context, EJK_DTYPE_F32), EJK_OK);
    assert_true(ran == 32);
    assert_int_equal(call(context, EJK_DTYPE_UNSET),
                     EJK_OK); /* absent: any fits, the first is taken */
    assert_true(ran == 32);
    EXPECT_FAIL(UNAVAILABLE, "scaled", call(context, EJK_DTYPE_F16));
    assert_true(ran == 0);
    ejk_context_destroy(context);
}

static void a_refusal_names_the_types(void **state) {
    (void)state;
    const ejk_implementation narrow = entry("f32,bf16", EJK_DTYPE_BF16, run_bf16);
    const ejk_query query = {
        .algorithm = "scaled", .dtype = EJK_DTYPE_F32, .further_dtypes = {EJK_DTYPE_F16}};
    char why[128];
    assert_int_equal(ejk_registry_explain(&query, &narrow, why, sizeof why), EJK_OK);
    assert_string_equal(why, "takes bfloat16 as type 2 of its signature, that tensor has float16");
}

static void descriptions_are_checked(void **state) {
    (void)state;
    ejk_context *context = new_context();
    static const char *const wrong[] = {"missing", "kind", "scale,,x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ejk_kernel kernel = scaled_kernel;
        kernel.op_id = "other";
        kernel.further_types = wrong[i];
        EXPECT_FAIL(INVALID_ARGUMENT, "further_types", ejk_context_add_kernel(context, &kernel));
    }
    ejk_kernel many = scaled_kernel;
    many.op_id = "many";
    many.further_types = "scale,x,y,scale";
    EXPECT_FAIL(INVALID_ARGUMENT, "4 tensors", ejk_context_add_kernel(context, &many));
    ejk_implementation bad = entry("bad", (ejk_dtype)99, run_f32);
    EXPECT_FAIL(INVALID_ARGUMENT, "further_dtypes[0]",
                ejk_registry_register(ejk_context_registry(context), &bad));
    ejk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_second_type_chooses),
                                       cmocka_unit_test(a_refusal_names_the_types),
                                       cmocka_unit_test(descriptions_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
