/* SPDX-License-Identifier: Apache-2.0 */
/* The example that trains: its loss falls, and does so alike whatever computes attention and its gradients. */
#include "model.h"

#include "support/expect.h"

#include <math.h>

/* Until the loss is far below a tenth of the first. */
enum { STEPS = 120 };

/* Of two losses of the same step, as a part of them. */
#define LOSS_TOLERANCE 1e-5

typedef struct curve {
    double loss[STEPS], right;
} curve;

static void train(const char *platform, curve *out) {
    ejk_context *context;
    copy_model *model;
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = 1}, &context));
    EXPECT_OK(copy_open(context, platform, &model));
    for (int i = 0; i < STEPS; i++) {
        EXPECT_OK(copy_step(model, &out->loss[i], &out->right));
        assert_true(isfinite(out->loss[i]));
    }
    copy_close(model);
    ejk_context_destroy(context);
}

static void test_learns(void **state) {
    (void)state;
    static curve fast, plain;
    train("simd", &fast);
    /* At first each of the symbols is as likely as any. */
    EXPECT_NEAR(fast.loss[0], log(COPY_SYMBOLS), 1);
    assert_true(fast.loss[STEPS - 1] < fast.loss[0] / 10);
    EXPECT_NEAR(fast.right, 1, 0.05);
    train("reference", &plain);
    for (int i = 0; i < STEPS; i++) EXPECT_NEAR(fast.loss[i] / plain.loss[i], 1, LOSS_TOLERANCE);
}

static void test_unknown_platform(void **state) {
    (void)state;
    double loss = -1, right = -1;
    ejk_context *context;
    copy_model *model;
    EXPECT_OK(ejk_context_create(NULL, &context));
    EXPECT_OK(copy_open(context, "abacus", &model));
    EXPECT_FAIL(UNKNOWN_NAME, "abacus", copy_step(model, &loss, &right));
    assert_true(loss == -1 && right == -1);
    copy_close(model);
    ejk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_unknown_platform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
