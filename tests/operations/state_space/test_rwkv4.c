/* SPDX-License-Identifier: Apache-2.0 */
/* rwkv4: values known beforehand, and the sentences of bad calls. */
#include "support/context.h"
#include "support/expect.h"

#include <math.h>

#include <ejkernel/ejkernel.h>

enum { TOKENS = 3 };

static float w[1], u[1], k[TOKENS], v[TOKENS], out[TOKENS], state[6];
static int32_t slots[1];

static ejk_rwkv4_args call(void) {
    return (ejk_rwkv4_args){.w = ejk_tensor_contiguous(w, EJK_DTYPE_F32, 1, (int64_t[]){1}),
                            .u = ejk_tensor_contiguous(u, EJK_DTYPE_F32, 1, (int64_t[]){1}),
                            .k = ejk_tensor_3d(k, EJK_DTYPE_F32, 1, TOKENS, 1),
                            .v = ejk_tensor_3d(v, EJK_DTYPE_F32, 1, TOKENS, 1),
                            .out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, TOKENS, 1)};
}

static void set(float rate, float bonus, const float keys[TOKENS], const float values[TOKENS]) {
    w[0] = rate;
    u[0] = bonus;
    memcpy(k, keys, sizeof k);
    memcpy(v, values, sizeof v);
}

static void expect(const double wanted[TOKENS]) {
    ejk_rwkv4_args args = call();
    for (int i = 0; i < 2; i++) {
        strcpy(args.platform, i ? "simd" : "reference");
        EXPECT_OK(ejk_rwkv4(context, &args));
        for (int t = 0; t < TOKENS; t++) EXPECT_NEAR((double)out[t], wanted[t], 1e-6);
    }
}

/* Without decay, bonus and differences of keys, means; with a decay of e^-ln 2 a step, weights that halve. */
static void means_are_weighted(void **unused) {
    (void)unused;
    static const float none[TOKENS] = {0, 0, 0}, values[TOKENS] = {1, 3, 8};
    set(-INFINITY, 0, none, values);
    expect((const double[TOKENS]){1, 2, 4});
    set(logf(logf(2)), 0, none, values);
    expect((const double[TOKENS]){1, 2, (0.5 * 1 + 3 + 8) / 2.5});
}

/* Keys beyond the range of exp, up and down, leave the means that they ask for. */
static void large_keys_do_not_overflow(void **unused) {
    (void)unused;
    static const float values[TOKENS] = {1, 3, 8};
    set(-INFINITY, 0, (const float[TOKENS]){1000, 1000, 1000}, values);
    expect((const double[TOKENS]){1, 2, 4});
    set(-INFINITY, 0, (const float[TOKENS]){-1000, -1000, -1000}, values);
    expect((const double[TOKENS]){1, 2, 4});
    set(-INFINITY, 0, (const float[TOKENS]){-1000, 0, 1000}, values);
    expect((const double[TOKENS]){1, 3, 8});
}

/* A key of -inf hides its value, whatever it is; where nothing is visible, out is 0. */
static void hidden_tokens_are_not_used(void **unused) {
    (void)unused;
    set(0, 0, (const float[TOKENS]){-INFINITY, 0, -INFINITY}, (const float[TOKENS]){NAN, 3, NAN});
    expect((const double[TOKENS]){0, 3, 3});
}

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_rwkv4_args args = call();                                                              \
        args.state = ejk_tensor_3d(state, EJK_DTYPE_F32, 2, 3, 1);                                 \
        args.state_indices = ejk_tensor_contiguous(slots, EJK_DTYPE_I32, 1, (int64_t[]){1});       \
        slots[0] = 1;                                                                              \
        out[0] = state[3] = -7;                                                                    \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_rwkv4(context, &args));                                     \
        assert_true(out[0] == -7 && state[3] == -7);                                               \
    } while (0)

static void bad_calls_say_why(void **unused) {
    (void)unused;
    REFUSED(INVALID_ARGUMENT, "state_indices is 2 at element 0", slots[0] = 2);
    REFUSED(INVALID_SHAPE, "state", args.state = ejk_tensor_3d(state, EJK_DTYPE_F32, 2, 2, 1));
    REFUSED(INVALID_DTYPE, "state is bfloat16, expected float32",
            args.state = ejk_tensor_3d(state, EJK_DTYPE_BF16, 2, 3, 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_rwkv4(context, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_weighted),
        cmocka_unit_test(large_keys_do_not_overflow),
        cmocka_unit_test(hidden_tokens_are_not_used),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
