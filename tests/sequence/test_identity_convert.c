/* SPDX-License-Identifier: Apache-2.0 */
/* The identity whose gradient has a type of its own. */
#include "support/expect.h"

#include <ejkernel/sequence.h>

/* The documented use: a key in float16 whose gradient goes back in the type of the query, float32. */
static void documented_use(void **state) {
    (void)state;
    uint16_t key[] = {0x3c00, 0xc000, 0x0001}, gradient[] = {0x3555, 0x7bff, 0x8001};
    float back[3];
    ejk_identity_convert convert;
    EXPECT_OK(ejk_identity_dtype_convert(EJK_DTYPE_F32, &convert));
    ejk_tensor x = ejk_tensor_1d(key, EJK_DTYPE_F16, 3), y = {0};
    x.strides[0] = 1;
    EXPECT_OK(ejk_identity_convert_forward(&convert, &x, &y));
    assert_memory_equal(&x, &y, sizeof x);
    ejk_tensor g = ejk_tensor_1d(gradient, EJK_DTYPE_F16, 3);
    ejk_tensor out = ejk_tensor_1d(back, EJK_DTYPE_F32, 3);
    EXPECT_OK(ejk_identity_convert_backward(NULL, &convert, &g, &out));
    EXPECT_NEAR(back[0], 0x1.554p-2, 0);
    EXPECT_NEAR(back[1], 65504, 0);
    EXPECT_NEAR(back[2], -0x1p-24, 0);
}

static void narrower_and_backwards(void **state) {
    (void)state;
    double gradient[] = {1, 2, 1 + 0x1p-8};
    uint16_t back[3];
    ejk_identity_convert convert;
    EXPECT_OK(ejk_identity_dtype_convert(EJK_DTYPE_BF16, &convert));
    ejk_tensor g = ejk_tensor_1d(gradient + 2, EJK_DTYPE_F64, 3);
    g.strides[0] = -1;
    ejk_tensor out = ejk_tensor_1d(back, EJK_DTYPE_BF16, 3);
    EXPECT_OK(ejk_identity_convert_backward(NULL, &convert, &g, &out));
    assert_true(back[0] == 0x3f80 && back[1] == 0x4000 && back[2] == 0x3f80);
}

/* A large gradient of any axes' order is the same from any number of threads. */
static void large_by_threads(void **state) {
    (void)state;
    enum { ROWS = 300, COLUMNS = 900, COUNT = ROWS * COLUMNS };
    static float gradient[COUNT];
    static uint16_t alone[COUNT], shared[COUNT];
    for (int i = 0; i < COUNT; i++) gradient[i] = (float)(i % 5003) * 0.37f - 900;
    ejk_identity_convert convert;
    ejk_threads *threads;
    EXPECT_OK(ejk_threads_create(3, &threads));
    EXPECT_OK(ejk_identity_dtype_convert(EJK_DTYPE_BF16, &convert));
    ejk_tensor g =
        ejk_tensor_transpose(ejk_tensor_2d(gradient, EJK_DTYPE_F32, COLUMNS, ROWS), 0, 1);
    ejk_tensor wanted = ejk_tensor_2d(alone, EJK_DTYPE_BF16, ROWS, COLUMNS), got = wanted;
    got.data = shared;
    EXPECT_OK(ejk_identity_convert_backward(NULL, &convert, &g, &wanted));
    EXPECT_OK(ejk_identity_convert_backward(threads, &convert, &g, &got));
    assert_memory_equal(shared, alone, sizeof alone);
    ejk_threads_destroy(threads);
}

static void errors(void **state) {
    (void)state;
    float gradient[2] = {1, 2}, back[2] = {7, 7};
    int32_t whole[2] = {1, 2};
    ejk_identity_convert convert = {EJK_DTYPE_F64};
    EXPECT_FAIL(INVALID_DTYPE, "dtype is int32",
                ejk_identity_dtype_convert(EJK_DTYPE_I32, &convert));
    EXPECT_FAIL(INVALID_DTYPE, "dtype is unset",
                ejk_identity_dtype_convert(EJK_DTYPE_UNSET, &convert));
    assert_int_equal(convert.dtype, EJK_DTYPE_F64);
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_identity_dtype_convert(EJK_DTYPE_F32, NULL));
    ejk_tensor g = ejk_tensor_1d(gradient, EJK_DTYPE_F32, 2);
    ejk_tensor out = ejk_tensor_1d(back, EJK_DTYPE_F32, 2);
    EXPECT_FAIL(INVALID_DTYPE, "gradient_out has element type float32, expected float64",
                ejk_identity_convert_backward(NULL, &convert, &g, &out));
    EXPECT_OK(ejk_identity_dtype_convert(EJK_DTYPE_F32, &convert));
    ejk_tensor bad = ejk_tensor_1d(whole, EJK_DTYPE_I32, 2);
    EXPECT_FAIL(INVALID_DTYPE, "gradient has element type int32, expected a floating type",
                ejk_identity_convert_backward(NULL, &convert, &bad, &out));
    bad = ejk_tensor_1d(back, EJK_DTYPE_F32, 1);
    EXPECT_FAIL(INVALID_SHAPE, "gradient_out has length 1 on axis 0, expected 2",
                ejk_identity_convert_backward(NULL, &convert, &g, &bad));
    EXPECT_FAIL(INVALID_LAYOUT, "gradient_out at",
                ejk_identity_convert_backward(NULL, &convert, &g, &g));
    EXPECT_FAIL(INVALID_ARGUMENT, "convert is NULL",
                ejk_identity_convert_backward(NULL, NULL, &g, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "x is NULL", ejk_identity_convert_forward(&convert, NULL, &bad));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_identity_convert_forward(&convert, &g, NULL));
    assert_true(back[0] == 7 && back[1] == 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_use),
        cmocka_unit_test(narrower_and_backwards),
        cmocka_unit_test(large_by_threads),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
