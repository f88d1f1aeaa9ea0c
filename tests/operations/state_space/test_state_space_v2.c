/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_space_v2: values known beforehand, a step as the end of a run, what the documented call lacks or loses, and the
 * sentences of bad calls.
 */
#include "support/context.h"
#include "support/expect.h"

#include <math.h>

#include <ejkernel/ejkernel.h>

/* ---- Values known beforehand ------------------------------------------------------------------------- */

enum { TOKENS = 3, HEADS = 2 };

/* Heads of one number, states of two; head 0 keeps everything, head 1 nothing. */
static float x[TOKENS * HEADS] = {1, 1, 2, 2, 3, 3}, a[HEADS] = {0, -INFINITY}, d[HEADS] = {0, 2};
static float b[TOKENS * 6] = {1, 1, 1, 1, 1, 1}, c[TOKENS * 6] = {1, 10, 1, 10, 1, 10};
static float dt[TOKENS * HEADS] = {1, 1, 1, 1, 1, 1}, gate[TOKENS * HEADS], weight[HEADS] = {1, 4};
static float out[TOKENS * HEADS], state[2 * HEADS * 2];
static int32_t slots[1];

static ejk_state_space_v2_args call(void) {
    return (ejk_state_space_v2_args){.x = ejk_tensor_4d(x, EJK_DTYPE_F32, 1, TOKENS, HEADS, 1),
                                     .a = ejk_tensor_1d(a, EJK_DTYPE_F32, HEADS),
                                     .b = ejk_tensor_4d(b, EJK_DTYPE_F32, 1, TOKENS, 1, 2),
                                     .c = ejk_tensor_4d(c, EJK_DTYPE_F32, 1, TOKENS, 1, 2),
                                     .d = ejk_tensor_1d(d, EJK_DTYPE_F32, HEADS),
                                     .dt = ejk_tensor_3d(dt, EJK_DTYPE_F32, 1, TOKENS, HEADS),
                                     .out = ejk_tensor_3d(out, EJK_DTYPE_F32, 1, TOKENS, HEADS)};
}

static void expect_out(ejk_state_space_v2_args *args, const double *wanted) {
    for (int i = 0; i < 2; i++) {
        strcpy(args->platform, i ? "simd" : "reference");
        EXPECT_OK(ejk_state_space_v2(context, args));
        for (int n = 0; n < TOKENS * HEADS; n++) EXPECT_NEAR((double)out[n], wanted[n], 1e-5);
    }
}

/* A rate of 0 keeps everything, one of -inf nothing; d passes by the state. */
static void rates_keep_all_or_nothing(void **unused) {
    (void)unused;
    static const double forwards[] = {11, 13, 33, 26, 66, 39},
                        backwards[] = {66, 13, 55, 26, 33, 39};
    ejk_state_space_v2_args args = call();
    expect_out(&args, forwards);
    args.reverse = true;
    expect_out(&args, backwards);
}

static void limits_bound_the_step(void **unused) {
    (void)unused;
    static const double wanted[] = {5.5, 7.5, 16.5, 15, 33, 22.5};
    ejk_state_space_v2_args args = call();
    args.dt_softplus = true;
    args.dt_max = ejk_float(0.5);
    expect_out(&args, wanted);
}

/* The documented norm has no weight and comes before the gate; that of Mamba-2 has one and comes after. */
static void norm_has_a_weight_and_an_order(void **unused) {
    (void)unused;
    double before[TOKENS * HEADS], after[TOKENS * HEADS];
    static const double y[] = {11, 13, 33, 26, 66, 39};
    ejk_state_space_v2_args args = call();
    for (int n = 0; n < TOKENS * HEADS; n++) gate[n] = (float)n - 1;
    for (int t = 0; t < TOKENS; t++) {
        double squares[2] = {0, 0}, act[HEADS];
        for (int h = 0; h < HEADS; h++) {
            const double z = t * HEADS + h - 1, own = y[t * HEADS + h];
            act[h] = z / (1 + exp(-z));
            squares[0] += own * own / HEADS;
            squares[1] += own * own * act[h] * act[h] / HEADS;
        }
        for (int h = 0; h < HEADS; h++) {
            const double own = y[t * HEADS + h] * act[h] * (h ? 4 : 1);
            before[t * HEADS + h] = own / sqrt(squares[0] + 0.5);
            after[t * HEADS + h] = own / sqrt(squares[1] + 0.5);
        }
    }
    args.gate = ejk_tensor_4d(gate, EJK_DTYPE_F32, 1, TOKENS, HEADS, 1);
    args.use_gated_rmsnorm = true;
    args.rmsnorm_eps = ejk_float(0.5);
    args.rmsnorm_weight = ejk_tensor_1d(weight, EJK_DTYPE_F32, HEADS);
    expect_out(&args, before);
    args.norm_before_gate = EJK_FALSE;
    expect_out(&args, after);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

enum { RUN = 97, P = 20, K = 32, G = 2, H = 6 };

static float run_x[RUN * H * P], run_b[RUN * G * K], run_c[RUN * G * K], run_dt[RUN * H];
static float run_a[H], run_out[RUN * H * P], step_out[RUN * H * P], pool[3 * H * P * K];
static float final[H * P * K];

static void fill(float *to, int count, float size) {
    static uint32_t seed = 1;
    for (int n = 0; n < count; n++) {
        seed = seed * 1664525u + 1013904223u;
        to[n] = size * ((float)(seed >> 8) / 8388608.0f - 1);
    }
}

/* Tokens first to first + count - 1, to `to`. */
static ejk_state_space_v2_args part(int first, int count, float *to) {
    return (ejk_state_space_v2_args){
        .x = ejk_tensor_4d(run_x + first * H * P, EJK_DTYPE_F32, 1, count, H, P),
        .a = ejk_tensor_1d(run_a, EJK_DTYPE_F32, H),
        .b = ejk_tensor_4d(run_b + first * G * K, EJK_DTYPE_F32, 1, count, G, K),
        .c = ejk_tensor_4d(run_c + first * G * K, EJK_DTYPE_F32, 1, count, G, K),
        .dt = ejk_tensor_3d(run_dt + first * H, EJK_DTYPE_F32, 1, count, H),
        .dt_softplus = true,
        .out = ejk_tensor_3d(to + first * H * P, EJK_DTYPE_F32, 1, count, H * P)};
}

/* A run in chunks, and its last tokens one by one from a slot of a pool: the same but for rounding. */
static void steps_go_on_where_a_run_ends(void **unused) {
    (void)unused;
    fill(run_x, RUN * H * P, 1);
    fill(run_b, RUN * G * K, 1);
    fill(run_c, RUN * G * K, 1);
    fill(run_dt, RUN * H, 1);
    for (int h = 0; h < H; h++) run_a[h] = -0.1f * (float)h;
    ejk_state_space_v2_args args = part(0, RUN, run_out);
    args.final_state = ejk_tensor_4d(final, EJK_DTYPE_F32, 1, H, P, K);
    EXPECT_OK(ejk_state_space_v2(context, &args));
    slots[0] = 2;
    for (int first = 0; first < RUN; first += first == 0 ? 64 : 1) {
        args = part(first, first == 0 ? 64 : 1, step_out);
        args.state = ejk_tensor_4d(pool, EJK_DTYPE_F32, 3, H, P, K);
        args.state_indices = ejk_tensor_contiguous(slots, EJK_DTYPE_I32, 1, (int64_t[]){1});
        EXPECT_OK(ejk_state_space_v2(context, &args));
    }
    for (int n = 0; n < RUN * H * P; n++)
        EXPECT_NEAR((double)step_out[n], (double)run_out[n], 1e-3);
    for (int n = 0; n < H * P * K; n++)
        EXPECT_NEAR((double)pool[2 * H * P * K + n], (double) final[n], 1e-4);
    for (int n = 0; n < 2 * H * P * K; n++) assert_true(pool[n] == 0);
}

/* A state in bfloat16 stops growing at 256. */
static void states_are_float32(void **unused) {
    (void)unused;
    enum { LENGTH = 1000 };
    static uint16_t ones[LENGTH], read[LENGTH];
    static float rate = 0, last;
    for (int t = 0; t < LENGTH; t++) ones[t] = 0x3f80;
    const ejk_tensor rows = ejk_tensor_4d(ones, EJK_DTYPE_BF16, 1, LENGTH, 1, 1);
    const ejk_state_space_v2_args args = {.x = rows,
                                          .a = ejk_tensor_1d(&rate, EJK_DTYPE_F32, 1),
                                          .b = rows,
                                          .c = rows,
                                          .dt = ejk_tensor_3d(ones, EJK_DTYPE_BF16, 1, LENGTH, 1),
                                          .out = ejk_tensor_3d(read, EJK_DTYPE_BF16, 1, LENGTH, 1),
                                          .final_state =
                                              ejk_tensor_4d(&last, EJK_DTYPE_F32, 1, 1, 1, 1)};
    EXPECT_OK(ejk_state_space_v2(context, &args));
    assert_true(last == LENGTH);
    assert_int_equal(read[LENGTH - 1], 0x447a); /* 1000 */
}

/* The documented gradient keeps the states of all tokens. */
static void gradients_keep_few_states(void **unused) {
    (void)unused;
    ejk_problem *problem;
    ejk_plan *plan;
    EXPECT_OK(ejk_problem_parse(
        context, "state_space_v2_vjp:T=4096,H=1,P=64,G=1,K=128,with=d_x+d_b+d_c", &problem));
    EXPECT_OK(
        ejk_plan_create(context, ejk_problem_kernel(problem), ejk_problem_args(problem), &plan));
    assert_true(ejk_plan_workspace(plan) < (size_t)4096 * 64 * 128 * 4 / 8);
    ejk_plan_destroy(plan);
    ejk_problem_destroy(problem);
}

/* ---- Bad calls --------------------------------------------------------------------------------------- */

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_state_space_v2_args args = call();                                                     \
        args.state = ejk_tensor_4d(state, EJK_DTYPE_F32, 2, HEADS, 1, 2);                          \
        args.state_indices = ejk_tensor_contiguous(slots, EJK_DTYPE_I32, 1, (int64_t[]){1});       \
        slots[0] = 1;                                                                              \
        out[0] = state[4] = -7;                                                                    \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_state_space_v2(context, &args));                            \
        assert_true(out[0] == -7 && state[4] == -7);                                               \
    } while (0)

static void bad_calls_say_why(void **unused) {
    (void)unused;
    REFUSED(INVALID_ARGUMENT, "state_indices is 2 at element 0", slots[0] = 2);
    REFUSED(INVALID_ARGUMENT, "dt_min is 2, expected at most dt_max", args.dt_min = ejk_float(2);
            args.dt_max = ejk_float(1));
    REFUSED(INVALID_ARGUMENT, "n_groups is 2, expected 1", args.n_groups = ejk_int(2));
    REFUSED(INVALID_SHAPE, "b has 3 groups, expected a divisor of 2",
            args.b = args.c = ejk_tensor_4d(b, EJK_DTYPE_F32, 1, TOKENS, 3, 2));
    REFUSED(INVALID_ARGUMENT, "rmsnorm_group_size is 3, expected a divisor of 2",
            args.use_gated_rmsnorm = true;
            args.rmsnorm_group_size = ejk_int(3));
    REFUSED(INVALID_ARGUMENT, "rmsnorm_eps is -1", args.rmsnorm_eps = ejk_float(-1));
    REFUSED(INVALID_ARGUMENT, "rmsnorm_weight is given without use_gated_rmsnorm",
            args.rmsnorm_weight = ejk_tensor_1d(weight, EJK_DTYPE_F32, HEADS));
    REFUSED(INVALID_DTYPE, "d is bfloat16, expected float32",
            args.d = ejk_tensor_1d(d, EJK_DTYPE_BF16, HEADS));
    REFUSED(INVALID_DTYPE, "state is bfloat16, expected float32",
            args.state = ejk_tensor_4d(state, EJK_DTYPE_BF16, 2, HEADS, 1, 2));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_state_space_v2(context, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_keep_all_or_nothing),
        cmocka_unit_test(limits_bound_the_step),
        cmocka_unit_test(norm_has_a_weight_and_an_order),
        cmocka_unit_test(steps_go_on_where_a_run_ends),
        cmocka_unit_test(states_are_float32),
        cmocka_unit_test(gradients_keep_few_states),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
