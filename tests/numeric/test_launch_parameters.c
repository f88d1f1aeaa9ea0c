/* SPDX-License-Identifier: Apache-2.0 */
/* The documented rules for launch parameters, value by value. */
#include "support/expect.h"

#include <ejkernel/numeric.h>
#include <stdlib.h>

#define VARIABLE "EJKERNEL_TRITON_SMEM_LIMIT"

static int clean(void **state) {
    (void)state;
    return unsetenv(VARIABLE);
}

static void warps(void **state) {
    (void)state;
    static const struct {
        int64_t q, kv;
        ejk_dtype dtype;
        int32_t wanted;
    } cases[] = {
        {8, 8, EJK_DTYPE_F16, 2},     {16, 16, EJK_DTYPE_F16, 4},   {20, 20, EJK_DTYPE_F16, 4},
        {32, 32, EJK_DTYPE_F16, 8},   {32, 32, EJK_DTYPE_F32, 4},   {16, 64, EJK_DTYPE_F16, 8},
        {128, 256, EJK_DTYPE_F16, 8}, {1, 32768, EJK_DTYPE_F16, 8}, {32, 32, EJK_DTYPE_UNSET, 8},
        {31, 31, EJK_DTYPE_F16, 4},   {31, 31, EJK_DTYPE_I8, 4},    {10, 10, EJK_DTYPE_F16, 2},
        {1, 16384, EJK_DTYPE_F16, 2}, {1, 16385, EJK_DTYPE_F16, 8}, {INT64_MAX, INT64_MAX, 0, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t head_dim = 1; head_dim <= 256; head_dim *= 16) {
            int32_t got = -1;
            EXPECT_OK(
                ejk_select_num_warps(cases[i].q, cases[i].kv, head_dim, cases[i].dtype, &got));
            assert_int_equal(got, cases[i].wanted);
        }
    }
    int32_t got = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "q_block is 0", ejk_select_num_warps(0, 1, 1, 0, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "kv_block is -1", ejk_select_num_warps(1, -1, 1, 0, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "head_dim is 0", ejk_select_num_warps(1, 1, 0, 0, &got));
    EXPECT_FAIL(INVALID_DTYPE, "77", ejk_select_num_warps(1, 1, 1, (ejk_dtype)77, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_select_num_warps(1, 1, 1, 0, NULL));
    assert_int_equal(got, -1);
}

static void limits_by_device(void **state) {
    (void)state;
    assert_int_equal(ejk_get_shared_memory_limit(NULL), 49152);
    assert_int_equal(ejk_get_shared_memory_limit("NVIDIA A100-SXM4-80GB"), 164 * 1024);
    assert_int_equal(ejk_get_shared_memory_limit("Tesla V100-PCIE-16GB"), 96 * 1024);
    assert_int_equal(ejk_get_shared_memory_limit("Tesla T4"), 64 * 1024);
    assert_int_equal(ejk_get_shared_memory_limit("NVIDIA H100"), 48 * 1024);
    assert_int_equal(ejk_get_shared_memory_limit("cpu"), 48 * 1024);
    assert_int_equal(ejk_get_shared_memory_limit(""), 48 * 1024);
}

static void limit_of_the_environment(void **state) {
    (void)state;
    assert_int_equal(setenv(VARIABLE, "101376", 1), 0);
    assert_int_equal(ejk_get_shared_memory_limit(NULL), 101376);
    assert_int_equal(ejk_get_shared_memory_limit("A100"), 101376);
    const char *const ignored[] = {
        "", "0", "-5", "+7", " 9", "12k", "1e5", "0x10000", "99999999999999999999", "many", "1 "};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        assert_int_equal(setenv(VARIABLE, ignored[i], 1), 0);
        assert_int_equal(ejk_get_shared_memory_limit("A100"), 164 * 1024);
    }
}

static void expect_stages(int64_t bytes, int32_t wanted) {
    int32_t got = -1;
    EXPECT_OK(ejk_select_num_stages(bytes, &got));
    assert_int_equal(got, wanted);
}

static void stages(void **state) {
    (void)state;
    expect_stages(0, 3);
    expect_stages(16383, 3);
    expect_stages(16384, 2); /* a third of 48 KiB: not more than twice as much is left */
    expect_stages(24575, 2);
    expect_stages(24576, 1);
    expect_stages(49152, 1);
    expect_stages(INT64_MAX, 1);
    assert_int_equal(setenv(VARIABLE, "9223372036854775807", 1), 0);
    expect_stages(INT64_MAX / 3, 3 - (INT64_MAX % 3 == 0));
    expect_stages(INT64_MAX / 2, 2);
    expect_stages(INT64_MAX, 1);
    int32_t got = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "smem_bytes is -1", ejk_select_num_stages(-1, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_select_num_stages(1, NULL));
    assert_int_equal(got, -1);
}

static void estimates(void **state) {
    (void)state;
    int64_t got = -1;
    EXPECT_OK(ejk_estimate_shared_memory_bytes(128, 128, 64, EJK_DTYPE_F16, false, &got));
    assert_int_equal(got, 49152);
    EXPECT_OK(ejk_estimate_shared_memory_bytes(128, 128, 64, EJK_DTYPE_UNSET, true, &got));
    assert_int_equal(got, 50176);
    EXPECT_OK(ejk_estimate_shared_memory_bytes(1, 1, 1, EJK_DTYPE_F32, false, &got));
    assert_int_equal(got, 128);
    EXPECT_OK(ejk_estimate_shared_memory_bytes(0, 0, 64, EJK_DTYPE_F32, true, &got));
    assert_int_equal(got, 0);
    EXPECT_OK(ejk_estimate_shared_memory_bytes(3, 5, 7, EJK_DTYPE_F64, true, &got));
    assert_int_equal(got, 768); /* 13·7·8 + 24 = 752 */
    got = -1;
    EXPECT_FAIL(OVERFLOW, "head_dim 64",
                ejk_estimate_shared_memory_bytes(1, INT64_MAX / 2, 64, 0, false, &got));
    EXPECT_FAIL(OVERFLOW, "63 bits",
                ejk_estimate_shared_memory_bytes(INT64_MAX / 2, 0, 1, 0, false, &got));
    EXPECT_FAIL(OVERFLOW, "63 bits",
                ejk_estimate_shared_memory_bytes(INT64_MAX / 4, 0, 1, 0, true, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "q_block is -1",
                ejk_estimate_shared_memory_bytes(-1, 1, 1, 0, false, &got));
    EXPECT_FAIL(INVALID_DTYPE, "99",
                ejk_estimate_shared_memory_bytes(1, 1, 1, (ejk_dtype)99, false, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_estimate_shared_memory_bytes(1, 1, 1, 0, false, NULL));
    assert_int_equal(got, -1);
}

static void blocks_and_warps(void **state) {
    (void)state;
    static const int64_t cases[][3] = {
        {1024, 1024, 4},  {10000, 16384, 16}, {0, 1, 4},          {1, 1, 4},       {1025, 2048, 8},
        {4097, 8192, 16}, {16385, 32768, 32}, {65536, 65536, 32}, {2048, 2048, 8}, {8192, 8192, 16},
    };
    int64_t block = -1;
    int32_t count = -1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        EXPECT_OK(ejk_calculate_blocksize_and_wraps(cases[i][0], &block, &count));
        assert_int_equal(block, cases[i][1]);
        assert_int_equal(count, cases[i][2]);
    }
    EXPECT_FAIL(INVALID_ARGUMENT, "n is 65537",
                ejk_calculate_blocksize_and_wraps(65537, &block, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "n is -1", ejk_calculate_blocksize_and_wraps(-1, &block, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "block_size_out",
                ejk_calculate_blocksize_and_wraps(1, NULL, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "num_warps_out",
                ejk_calculate_blocksize_and_wraps(1, &block, NULL));
    assert_int_equal(block, 8192);
    assert_int_equal(count, 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warps),
        cmocka_unit_test_setup_teardown(limits_by_device, clean, clean),
        cmocka_unit_test_setup_teardown(limit_of_the_environment, clean, clean),
        cmocka_unit_test_setup_teardown(stages, clean, clean),
        cmocka_unit_test(estimates),
        cmocka_unit_test(blocks_and_warps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
