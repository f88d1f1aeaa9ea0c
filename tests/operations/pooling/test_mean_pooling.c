/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient: values known beforehand, and the sentences of bad calls. */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

static ejk_context *context;

/* ---- Values ------------------------------------------------------------------------------------------ */

enum { TOKENS = 9, ROWS = 7 };

/* Token t is {t, 10}. */
static int32_t ends[] = {0, 3, 5, 9};
static float x[TOKENS * 2], out[ROWS * 2], d_x[TOKENS * 2];

static ejk_tensor sequences(void) {
    return ejk_tensor_contiguous(ends, EJK_DTYPE_I32, 1, (int64_t[]){4});
}

static void check_means(ejk_mean_pooling_args args, const double *wanted, int rows) {
    for (int t = 0; t < TOKENS; t++) x[2 * t] = (float)t, x[2 * t + 1] = 10;
    EXPECT_OK(ejk_mean_pooling(context, &args));
    for (int n = 0; n < rows; n++) {
        EXPECT_NEAR((double)out[2 * n], wanted[n], 1e-6);
        EXPECT_NEAR((double)out[2 * n + 1], wanted[n] == 0 ? 0 : 10, 1e-6);
    }
}

static void means_of_packed_sequences(void **state) {
    (void)state;
    check_means((ejk_mean_pooling_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, TOKENS, 2),
                                        .cu_seqlens = sequences(),
                                        .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 3, 2)},
                (double[]){1, 3.5, 6.5}, 3);
}

/* Sequence n begins at row floor(cu_seqlens[n] / 2) + n: rows 3 and 6 are no chunk. */
static void means_of_packed_chunks(void **state) {
    (void)state;
    check_means((ejk_mean_pooling_args){.x = ejk_tensor_3d(x, EJK_DTYPE_F32, 1, TOKENS, 2),
                                        .cu_seqlens = sequences(),
                                        .chunk_size = ejk_int(2),
                                        .out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, ROWS, 2)},
                (double[]){0.5, 2, 3.5, 0, 5.5, 7.5, 0}, ROWS);
}

static void gradients_are_one_by_length(void **state) {
    (void)state;
    static const double wanted[TOKENS] = {1. / 3, 1. / 3, 1. / 3, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25};
    static const ejk_mean_pooling_config configs[] = {{.platform = "reference"},
                                                      {.platform = "simd"}};
    for (int n = 0; n < ROWS * 2; n++) out[n] = 1;
    for (int i = 0; i < 2; i++) {
        memset(d_x, 0, sizeof d_x);
        EXPECT_OK(ejk_mean_pooling_vjp(
            context,
            &(ejk_mean_pooling_vjp_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, TOKENS, 2),
                                         .cu_seqlens = sequences(),
                                         .d_out = ejk_tensor_2d(out, EJK_DTYPE_F32, 3, 2),
                                         .d_x = ejk_tensor_2d(d_x, EJK_DTYPE_F32, TOKENS, 2),
                                         .cfg = configs[i]}));
        for (int n = 0; n < TOKENS * 2; n++) EXPECT_NEAR((double)d_x[n], wanted[n / 2], 1e-6);
    }
}

/* ---- Bad calls --------------------------------------------------------------------------------------- */

static float from[2 * 12 * 5], to[2 * 5 * 5];
static int32_t starts[3];

/* x [2,12,4] in chunks of 5, or with two sequences [1,12,4]. */
static ejk_mean_pooling_args call(bool packed) {
    starts[1] = 7, starts[2] = 12;
    ejk_mean_pooling_args args = {
        .x = ejk_tensor_3d(from, EJK_DTYPE_F32, packed ? 1 : 2, 12, 4),
        .chunk_size = ejk_int(5),
        .out = ejk_tensor_3d(to, EJK_DTYPE_F32, packed ? 1 : 2, packed ? 4 : 3, 4),
    };
    if (packed) args.cu_seqlens = ejk_tensor_contiguous(starts, EJK_DTYPE_I32, 1, (int64_t[]){3});
    return args;
}

#define REFUSED(packed, status, words, change)                                                     \
    do {                                                                                           \
        ejk_mean_pooling_args a = call(packed);                                                    \
        change;                                                                                    \
        to[0] = -7;                                                                                \
        EXPECT_FAIL(status, words, ejk_mean_pooling(context, &a));                                 \
        assert_true(to[0] == -7);                                                                  \
    } while (0)

static void bad_calls_say_why(void **state) {
    (void)state;
    REFUSED(false, INVALID_SHAPE, "5 chunks on axis 1, expected 3",
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 2, 5, 4));
    REFUSED(false, INVALID_SHAPE, "out: shape [2,3,5]",
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 2, 3, 5));
    REFUSED(false, INVALID_SHAPE, "rank 3, expected 2 without", a.chunk_size.set = false);
    REFUSED(false, INVALID_ARGUMENT, "chunk_size is -1", a.chunk_size.value = -1);
    REFUSED(false, INVALID_ARGUMENT, "chunk_size is 0", a.chunk_size.value = 0);
    REFUSED(false, UNKNOWN_NAME, "nowhere", strcpy(a.platform, "nowhere"));
    REFUSED(false, INVALID_LAYOUT, "out", a.out.data = a.x.data);
    REFUSED(false, INVALID_ARGUMENT, "rank 2 without cu_seqlens",
            a.x = ejk_tensor_2d(from, EJK_DTYPE_F32, 12, 4);
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 1, 3, 4));
    REFUSED(true, INVALID_SHAPE, "out: shape [1,5,4]",
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 1, 5, 4));
    REFUSED(true, INVALID_SHAPE, "2 on axis 0, expected 1",
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 2, 5, 4));
    REFUSED(true, INVALID_ARGUMENT, "cu_seqlens is 13", starts[1] = 13);
    REFUSED(true, INVALID_SHAPE, "batch 2, expected 1",
            a.x = ejk_tensor_3d(from, EJK_DTYPE_F32, 2, 12, 4);
            a.out = ejk_tensor_3d(to, EJK_DTYPE_F32, 2, 3, 4));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_mean_pooling(context, NULL));
}

static int set_up(void **state) {
    (void)state;
    return ejk_context_create(NULL, &context) == EJK_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_of_packed_sequences),
        cmocka_unit_test(means_of_packed_chunks),
        cmocka_unit_test(gradients_are_one_by_length),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
