/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v1: values known beforehand, and the sentences of bad calls. */
#include "support/context.h"
#include "support/expect.h"

#include <math.h>

#include <ejkernel/ejkernel.h>

enum { TOKENS = 3 };

static float x[TOKENS] = {1, 2, 3}, a[2] = {0, -INFINITY}, b[TOKENS * 2] = {1, 1, 1, 1, 1, 1};
static float c[TOKENS * 2] = {1, 10, 1, 10, 1, 10}, dt[TOKENS] = {1, 1, 1}, out[TOKENS], state[4];
static int32_t slots[1];

static ejk_state_space_v1_args call(void) {
    return (ejk_state_space_v1_args){.hidden_states = ejk_tensor_3d(x, EJK_DTYPE_F32, 1, TOKENS, 1),
                                     .a = ejk_tensor_2d(a, EJK_DTYPE_F32, 1, 2),
                                     .b = ejk_tensor_3d(b, EJK_DTYPE_F32, 1, TOKENS, 2),
                                     .c = ejk_tensor_3d(c, EJK_DTYPE_F32, 1, TOKENS, 2),
                                     .dt = ejk_tensor_3d(dt, EJK_DTYPE_F32, 1, TOKENS, 1),
                                     .out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, TOKENS, 1)};
}

/* A decay of 0 keeps everything, one of -inf nothing. */
static void decays_keep_all_or_nothing(void **unused) {
    (void)unused;
    static const double wanted[TOKENS] = {1 + 10, 3 + 20, 6 + 30};
    ejk_state_space_v1_args args = call();
    for (int i = 0; i < 2; i++) {
        strcpy(args.platform, i ? "simd" : "reference");
        EXPECT_OK(ejk_state_space_v1(context, &args));
        for (int t = 0; t < TOKENS; t++) EXPECT_NEAR((double)out[t], wanted[t], 1e-5);
    }
}

static void limits_bound_the_step(void **unused) {
    (void)unused;
    ejk_state_space_v1_args args = call();
    args.dt_softplus = true;
    args.dt_max = ejk_float(0.5);
    EXPECT_OK(ejk_state_space_v1(context, &args));
    EXPECT_NEAR((double)out[2], 3 + 15, 1e-5);
}

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_state_space_v1_args args = call();                                                     \
        args.state = ejk_tensor_3d(state, EJK_DTYPE_F32, 2, 1, 2);                                 \
        args.state_indices = ejk_tensor_contiguous(slots, EJK_DTYPE_I32, 1, (int64_t[]){1});       \
        slots[0] = 1;                                                                              \
        out[0] = state[2] = -7;                                                                    \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_state_space_v1(context, &args));                            \
        assert_true(out[0] == -7 && state[2] == -7);                                               \
    } while (0)

static void bad_calls_say_why(void **unused) {
    (void)unused;
    REFUSED(INVALID_ARGUMENT, "state_indices is 2 at element 0", slots[0] = 2);
    REFUSED(INVALID_ARGUMENT, "dt_min is 2, expected at most dt_max", args.dt_min = ejk_float(2);
            args.dt_max = ejk_float(1));
    REFUSED(INVALID_SHAPE, "c has rank 4, expected 3",
            args.c = ejk_tensor_4d(c, EJK_DTYPE_F32, 1, TOKENS, 1, 2));
    REFUSED(INVALID_DTYPE, "state is bfloat16, expected float32",
            args.state = ejk_tensor_3d(state, EJK_DTYPE_BF16, 2, 1, 2));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_state_space_v1(context, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decays_keep_all_or_nothing),
        cmocka_unit_test(limits_bound_the_step),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
