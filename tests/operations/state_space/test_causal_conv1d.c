/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d: values known beforehand, states in a pool, and the sentences of bad calls. */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

enum { TOKENS = 6, TAPS = 3 };

/* out_t = x_t + 10 x_{t-1} + 100 x_{t-2} */
static float taps[TAPS] = {100, 10, 1}, x[TOKENS] = {1, 2, 3, 4, 5, 6}, out[TOKENS];
static float states[4 * 2], last[2 * 2];
static int32_t ends[] = {0, 4, 6}, slots[] = {2, -1};

static ejk_causal_conv1d_args call(void) {
    return (ejk_causal_conv1d_args){.x = ejk_tensor_3d(x, EJK_DTYPE_F32, 1, TOKENS, 1),
                                    .weight = ejk_tensor_2d(taps, EJK_DTYPE_F32, 1, TAPS),
                                    .out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, TOKENS, 1)};
}

static ejk_causal_conv1d_args pooled(void) {
    ejk_causal_conv1d_args a = call();
    a.cu_seqlens = ejk_tensor_contiguous(ends, EJK_DTYPE_I32, 1, (int64_t[]){3});
    a.state_indices = ejk_tensor_contiguous(slots, EJK_DTYPE_I32, 1, (int64_t[]){2});
    a.conv_state = ejk_tensor_3d(states, EJK_DTYPE_F32, 4, 1, 2);
    return a;
}

static void a_window_reaches_back(void **state) {
    (void)state;
    static const double wanted[TOKENS] = {1, 12, 123, 234, 345, 456};
    ejk_causal_conv1d_args a = call();
    a.final_state = ejk_tensor_3d(last, EJK_DTYPE_F32, 1, 1, 2);
    EXPECT_OK(ejk_causal_conv1d(context, &a));
    for (int t = 0; t < TOKENS; t++) EXPECT_NEAR((double)out[t], wanted[t], 1e-4);
    assert_true(last[0] == 5 && last[1] == 6);
}

/* Sequence 0 begins with slot 2; sequence 1 begins at 0 and leaves nothing. */
static void states_lie_in_a_pool(void **state) {
    (void)state;
    static const double wanted[TOKENS] = {1 + 80 + 700, 12 + 800, 123, 234, 5, 56};
    static const float before[8] = {1, 1, 2, 2, 7, 8, 3, 3};
    memcpy(states, before, sizeof before);
    ejk_causal_conv1d_args a = pooled();
    EXPECT_OK(ejk_causal_conv1d(context, &a));
    for (int t = 0; t < TOKENS; t++) EXPECT_NEAR((double)out[t], wanted[t], 1e-3);
    assert_true(states[4] == 3 && states[5] == 4);
    for (int i = 0; i < 8; i++)
        if (i != 4 && i != 5) assert_true(states[i] == before[i]);
}

/* A token at a time is the same as all of them, bit by bit. */
static void steps_are_the_whole(void **state) {
    (void)state;
    static float whole[TOKENS];
    ejk_causal_conv1d_args a = call();
    strcpy(a.activation, "silu");
    EXPECT_OK(ejk_causal_conv1d(context, &a));
    memcpy(whole, out, sizeof whole);
    memset(states, 0, sizeof states);
    for (int t = 0; t < TOKENS; t++) {
        a.x = ejk_tensor_3d(x + t, EJK_DTYPE_F32, 1, 1, 1);
        a.out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, 1, 1);
        a.conv_state = ejk_tensor_3d(states, EJK_DTYPE_F32, 1, 1, 2);
        EXPECT_OK(ejk_causal_conv1d(context, &a));
        assert_memory_equal(out, whole + t, sizeof *out);
    }
}

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_causal_conv1d_args a = pooled();                                                       \
        ends[1] = 4, slots[0] = 2, slots[1] = -1;                                                  \
        out[0] = states[4] = -7;                                                                   \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_causal_conv1d(context, &a));                                \
        assert_true(out[0] == -7 && states[4] == -7);                                              \
    } while (0)

static void bad_calls_say_why(void **state) {
    (void)state;
    REFUSED(INVALID_ARGUMENT, "state_indices is 4 at element 0", slots[0] = 4);
    REFUSED(INVALID_ARGUMENT, "state_indices is -2 at element 1", slots[1] = -2);
    REFUSED(INVALID_ARGUMENT, "a slot of no other sequence", slots[1] = 2);
    REFUSED(INVALID_ARGUMENT, "cu_seqlens is 7 at element 1", ends[1] = 7);
    REFUSED(INVALID_ARGUMENT, "cu_seqlens starts at 1, expected 0", ends[0] = 1);
    ends[0] = 0;
    REFUSED(INVALID_ARGUMENT, "beside initial_state",
            a.initial_state = ejk_tensor_3d(last, EJK_DTYPE_F32, 2, 1, 2));
    REFUSED(INVALID_ARGUMENT, "without conv_state", a.conv_state = (ejk_tensor){0});
    REFUSED(INVALID_SHAPE, "conv_state has length 4 on axis 0, expected 2",
            a.state_indices = (ejk_tensor){0});
    REFUSED(UNKNOWN_NAME, "activation is 'relu'", strcpy(a.activation, "relu"));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_causal_conv1d(context, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_reaches_back),
        cmocka_unit_test(states_lie_in_a_pool),
        cmocka_unit_test(steps_are_the_whole),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
