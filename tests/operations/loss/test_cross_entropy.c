/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_cross_entropy where calls of the conformance harness are too small, or weigh too much: gradients that are
 * written past the caches, and slopes that are small because the weights of all tokens are.
 */
#include "support/context.h"
#include "support/element.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Gradients of many logits ------------------------------------------------------------------------ */

/* 33 MiB at least; in the second shape rows of 16 bits begin at every multiple of 2 bytes. */
static const int64_t shapes[][2] = {{136, 131072}, {137, 131071}};

static ejk_tensor filled(ejk_dtype dtype, int64_t tokens, int64_t classes) {
    const size_t size = (size_t)(tokens * classes) * ejk_dtype_size(dtype);
    const ejk_tensor t = ejk_tensor_2d(malloc(size), dtype, tokens, classes);
    assert_non_null(t.data);
    uint32_t bits = 1;
    for (int64_t i = 0; i < tokens * classes; i++) {
        bits = bits * 1664525u + 1013904223u;
        element_store(dtype, t.data, i, (double)(bits >> 24) / 32 - 4);
    }
    return t;
}

static double logit(const ejk_tensor *t, int64_t row, int64_t v) {
    return element_load(t->dtype, t->data, row * t->shape[1] + v);
}

static void expect_row(const ejk_tensor *logits, const ejk_tensor *gradient, int64_t row,
                       int64_t target) {
    const double eps = logits->dtype == EJK_DTYPE_F32 ? 1e-6 : 0.005;
    double sum = 0;
    for (int64_t v = 0; v < logits->shape[1]; v++) sum += exp(logit(logits, row, v));
    for (int64_t v = 0; v < logits->shape[1]; v++) {
        const double p = exp(logit(logits, row, v)) / sum, wanted = p - (v == target);
        if (fabs(logit(gradient, row, v) - wanted) > eps * fabs(wanted))
            fail_msg("row %d, class %d: %g, expected %g", (int)row, (int)v, logit(gradient, row, v),
                     wanted);
    }
}

static void gradients_of_many_logits(ejk_dtype dtype, int64_t tokens, int64_t classes) {
    static int32_t targets[200];
    static float one = 1;
    const ejk_tensor logits = filled(dtype, tokens, classes), d = filled(dtype, tokens, classes);
    ejk_fused_cross_entropy_vjp_args a = {.logits = logits,
                                          .targets = ejk_tensor_1d(targets, EJK_DTYPE_I32, tokens),
                                          .d_loss = ejk_tensor_1d(&one, EJK_DTYPE_F32, 1),
                                          .d_logits = d,
                                          .platform = "simd"};
    strcpy(a.reduction, "sum");
    /* Targets in the first elements and the last ones, which are written by themselves, and between. */
    for (int32_t n = 0; n < tokens; n++)
        targets[n] = n % 3 == 0 ? n / 3 : n % 3 == 1 ? (int32_t)classes - 1 - n / 3 : 900 * n;
    EXPECT_OK(ejk_fused_cross_entropy_vjp(context, &a));
    for (int64_t row = 0; row < tokens; row += row < 12 ? 1 : 31)
        expect_row(&logits, &d, row, targets[row]);
    free(logits.data);
    free(d.data);
}

static void gradients_past_the_caches_are_right(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        gradients_of_many_logits(EJK_DTYPE_F32, shapes[i][0] / 2, shapes[i][1]);
        gradients_of_many_logits(EJK_DTYPE_BF16, shapes[i][0], shapes[i][1]);
    }
}

/* ---- Tokens that weigh little ------------------------------------------------------------------------ */

enum { TOKENS = 3, CLASSES = 96, WIDTH = 4 };

/*
 * The target's column is 0, so that gradients of hidden are what all other classes have: probabilities of e^-17 times
 * weights of 2^-40, which are below 2^-60.
 */
static void small_weights_have_gradients(void **state) {
    (void)state;
    static uint16_t hidden[TOKENS * WIDTH], matrix[WIDTH * CLASSES], d_hidden[TOKENS * WIDTH],
        d_matrix[WIDTH * CLASSES];
    static float bias[CLASSES], weights[TOKENS], scale = 0x1p40f;
    static int32_t targets[TOKENS];
    for (int i = 0; i < TOKENS * WIDTH; i++) element_store(EJK_DTYPE_BF16, hidden, i, 0.125);
    for (int i = 0; i < WIDTH * CLASSES; i++)
        element_store(EJK_DTYPE_BF16, matrix, i, i % CLASSES ? 0.5 : 0);
    for (int n = 0; n < TOKENS; n++) weights[n] = 0x1p-40f;
    bias[0] = 17;
    ejk_fused_cross_entropy_vjp_args a = {
        .targets = ejk_tensor_1d(targets, EJK_DTYPE_I32, TOKENS),
        .weights = ejk_tensor_1d(weights, EJK_DTYPE_F32, TOKENS),
        .hidden = ejk_tensor_2d(hidden, EJK_DTYPE_BF16, TOKENS, WIDTH),
        .lm_head_weight = ejk_tensor_2d(matrix, EJK_DTYPE_BF16, WIDTH, CLASSES),
        .lm_head_bias = ejk_tensor_1d(bias, EJK_DTYPE_F32, CLASSES),
        .d_loss = ejk_tensor_1d(&scale, EJK_DTYPE_F32, 1),
        .d_hidden = ejk_tensor_2d(d_hidden, EJK_DTYPE_BF16, TOKENS, WIDTH),
        .d_lm_head_weight = ejk_tensor_2d(d_matrix, EJK_DTYPE_BF16, WIDTH, CLASSES),
        .platform = "simd"};
    strcpy(a.reduction, "sum");
    EXPECT_OK(ejk_fused_cross_entropy_vjp(context, &a));
    const double each = exp(0.125 * 0.5 * WIDTH - 17), p = each / (1 + (CLASSES - 1) * each);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        EXPECT_NEAR(element_load(EJK_DTYPE_BF16, d_hidden, i) / (0.5 * (CLASSES - 1) * p), 1, 0.02);
    for (int i = 1; i < CLASSES; i++)
        EXPECT_NEAR(element_load(EJK_DTYPE_BF16, d_matrix, i) / (0.125 * TOKENS * p), 1, 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_past_the_caches_are_right),
                                       cmocka_unit_test(small_weights_have_gradients)};
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
