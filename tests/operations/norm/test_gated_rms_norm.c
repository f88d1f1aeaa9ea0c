/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm: values known beforehand, and the sentences of bad calls. */
#include "support/context.h"
#include "support/expect.h"

#include <math.h>

#include <ejkernel/ejkernel.h>

static float x[4] = {3, 4, 0, 0}, gate[4] = {0, 0, 1, 1}, out[4];

static ejk_gated_rms_norm_args call(void) {
    return (ejk_gated_rms_norm_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, 1, 4),
                                     .eps = ejk_float(0),
                                     .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, 4)};
}

static void groups_are_normed_by_themselves(void **state) {
    (void)state;
    ejk_gated_rms_norm_args a = call();
    EXPECT_OK(ejk_gated_rms_norm(context, &a));
    EXPECT_NEAR((double)out[0], 3 / 2.5, 1e-6);
    a.group_size = ejk_int(2);
    a.eps = (ejk_opt_float){0};
    EXPECT_OK(ejk_gated_rms_norm(context, &a));
    EXPECT_NEAR((double)out[1], 4 / sqrt(12.5 + 1e-5), 1e-6);
    assert_true(out[2] == 0 && out[3] == 0);
}

/* sigmoid(0) = 1/2: after the norm it halves, before it it cancels. */
static void the_order_counts(void **state) {
    (void)state;
    ejk_gated_rms_norm_args a = call();
    a.gate = ejk_tensor_2d(gate, EJK_DTYPE_F32, 1, 4);
    strcpy(a.activation, "sigmoid");
    EXPECT_OK(ejk_gated_rms_norm(context, &a));
    EXPECT_NEAR((double)out[0], 3 / 2.5 / 2, 1e-6);
    a.norm_before_gate = EJK_FALSE;
    EXPECT_OK(ejk_gated_rms_norm(context, &a));
    EXPECT_NEAR((double)out[0], 3 / 2.5, 1e-6);
}

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_gated_rms_norm_args a = call();                                                        \
        change;                                                                                    \
        out[0] = -7;                                                                               \
        EXPECT_FAIL(status, words, ejk_gated_rms_norm(context, &a));                               \
        assert_true(out[0] == -7);                                                                 \
    } while (0)

static void bad_calls_say_why(void **state) {
    (void)state;
    REFUSED(INVALID_ARGUMENT, "group_size is 3", a.group_size = ejk_int(3));
    REFUSED(INVALID_ARGUMENT, "group_size is 0", a.group_size = ejk_int(0));
    REFUSED(INVALID_ARGUMENT, "eps is -1", a.eps = ejk_float(-1));
    REFUSED(INVALID_ARGUMENT, "eps is nan", a.eps = ejk_float((double)NAN));
    REFUSED(UNKNOWN_NAME, "activation is 'none'", strcpy(a.activation, "none"));
    REFUSED(INVALID_SHAPE, "gate", a.gate = ejk_tensor_3d(gate, EJK_DTYPE_F32, 1, 1, 4));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_gated_rms_norm(context, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_normed_by_themselves),
        cmocka_unit_test(the_order_counts),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
