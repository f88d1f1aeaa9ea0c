/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded defects of other implementations of the recurrent family, each shown absent by a plain recurrence in double
 * precision and its central differences; and that a run of 10^5 tokens loses no more than the recurrence in f32.
 */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ejk_recurrent_config configs[] = {{.platform = "reference"}, {.platform = "simd"}};
enum { CONFIGS = sizeof configs / sizeof *configs };

/* ---- A recurrence in double precision ---------------------------------------------------------------- */

/* Key channels and tokens enough for chunks; two sequences of different lengths. */
enum { TOKENS = 75, SEQUENCES = 2, DK = 16, DV = 3, STATE = DK * DV };
static int32_t ends[SEQUENCES + 1] = {0, 34, TOKENS};

enum { QUERY, KEY, VALUE, G, GK, GV, BETA, START, INPUTS };
enum { MOST = TOKENS * DK };
static const int count[INPUTS] = {TOKENS * DK, TOKENS *DK, TOKENS *DV, TOKENS,
                                  TOKENS *DK,  TOKENS *DV, TOKENS,     SEQUENCES *STATE};
static float given[INPUTS][MOST], gradient[INPUTS][MOST], cotangent[TOKENS * DV];
static float final_cotangent[SEQUENCES * STATE], out[TOKENS * DV];
static double input[INPUTS][MOST], wanted_out[TOKENS * DV];

static float uniform(void) {
    static uint32_t bits = 1;
    bits = bits * 1664525u + 1013904223u;
    return (float)(bits >> 8) / 8388608.0f - 1;
}

/* Gates are `decay` times numbers of 0 to 1, keys at most of length 1. */
static void fill(float decay) {
    for (int i = 0; i < INPUTS; i++)
        for (int n = 0; n < count[i]; n++) {
            const float x = uniform();
            given[i][n] = i == KEY            ? x / 4
                          : i >= G && i <= GV ? decay * (x + 1) / 2
                          : i == BETA         ? (x + 1) / 2
                                              : x;
        }
    for (int n = 0; n < TOKENS * DV; n++) cotangent[n] = uniform();
    for (int n = 0; n < SEQUENCES * STATE; n++) final_cotangent[n] = uniform();
}

static void token(int t, bool delta, double *state) {
    for (int j = 0; j < DV; j++) {
        double read = 0, o = 0;
        for (int i = 0; i < DK; i++) {
            state[i * DV + j] *= exp(input[G][t] + input[GK][t * DK + i] + input[GV][t * DV + j]);
            read += state[i * DV + j] * input[KEY][t * DK + i];
        }
        const double v = input[VALUE][t * DV + j];
        const double u = delta ? input[BETA][t] * (v - read) : v;
        for (int i = 0; i < DK; i++) {
            state[i * DV + j] += input[KEY][t * DK + i] * u;
            o += state[i * DV + j] * input[QUERY][t * DK + i];
        }
        wanted_out[t * DV + j] = o;
    }
}

/* Runs `input`, and answers the sum of what comes out times its cotangents. */
static double recurrence(bool delta) {
    double sum = 0;
    for (int n = 0; n < SEQUENCES; n++) {
        double state[STATE];
        memcpy(state, input[START] + n * STATE, sizeof state);
        for (int t = ends[n]; t < ends[n + 1]; t++) token(t, delta, state);
        for (int i = 0; i < STATE; i++) sum += state[i] * (double)final_cotangent[n * STATE + i];
    }
    for (int n = 0; n < TOKENS * DV; n++) sum += wanted_out[n] * (double)cotangent[n];
    return sum;
}

/* Inputs without a place in the call are 0. */
static void take(unsigned used) {
    for (int i = 0; i < INPUTS; i++)
        for (int n = 0; n < count[i]; n++) input[i][n] = used >> i & 1 ? (double)given[i][n] : 0;
}

static void expect_gradients(unsigned used, bool delta) {
    const double h = 1e-3;
    take(used);
    for (int i = 0; i < INPUTS; i++)
        for (int n = 0; used >> i & 1 && n < count[i]; n += i == G || i == BETA ? 1 : 7) {
            const double x = input[i][n];
            input[i][n] = x + h;
            const double above = recurrence(delta);
            input[i][n] = x - h;
            const double wanted = (above - recurrence(delta)) / (2 * h);
            input[i][n] = x;
            EXPECT_NEAR((double)gradient[i][n], wanted, 2e-5 * (1 + fabs(wanted)));
        }
}

static ejk_tensor rows(float *data, int64_t size) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, 1, TOKENS, 1, size);
}
static ejk_tensor numbers(float *data) {
    return ejk_tensor_3d(data, EJK_DTYPE_F32, 1, TOKENS, 1);
}
static ejk_tensor states(float *data) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, SEQUENCES, 1, DK, DV);
}
static ejk_tensor lengths(void) {
    return ejk_tensor_1d(ends, EJK_DTYPE_I32, SEQUENCES + 1);
}

/* ---- Sums -------------------------------------------------------------------------------------------- */

enum { SUMS = 1 << QUERY | 1 << KEY | 1 << VALUE | 1 << G | 1 << GK | 1 << GV | 1 << START };

static ejk_recurrent_attention_args sums(int config) {
    return (ejk_recurrent_attention_args){.query = rows(given[QUERY], DK),
                                          .key = rows(given[KEY], DK),
                                          .value = rows(given[VALUE], DV),
                                          .g = numbers(given[G]),
                                          .initial_state = states(given[START]),
                                          .softmax_scale = ejk_float(1),
                                          .cu_seqlens = lengths(),
                                          .out = rows(out, DV),
                                          .cfg = configs[config]};
}

static ejk_recurrent_attention_vjp_args gradients_of_sums(int config) {
    const ejk_recurrent_attention_args from = sums(config);
    return (ejk_recurrent_attention_vjp_args){
        .query = from.query,
        .key = from.key,
        .value = from.value,
        .g = from.g,
        .gk = rows(given[GK], DK),
        .gv = rows(given[GV], DV),
        .initial_state = from.initial_state,
        .softmax_scale = from.softmax_scale,
        .cu_seqlens = from.cu_seqlens,
        .d_out = rows(cotangent, DV),
        .d_final_state = states(final_cotangent),
        .d_query = rows(gradient[QUERY], DK),
        .d_key = rows(gradient[KEY], DK),
        .d_value = rows(gradient[VALUE], DV),
        .d_g = numbers(gradient[G]),
        .d_gk = rows(gradient[GK], DK),
        .d_gv = rows(gradient[GV], DV),
        .d_initial_state = states(gradient[START]),
        .cfg = from.cfg,
    };
}

/* The gradient of key took the transposed cotangent of the state; that of gates had the shape of the state, missed
 * the state before, and failed for every call; packed sequences had none. */
static void gradients_of_packed_sequences_and_every_gate(void **state) {
    (void)state;
    fill(-1);
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_recurrent_attention_vjp_args args = gradients_of_sums(i);
        EXPECT_OK(ejk_recurrent_attention_vjp(context, &args));
        expect_gradients(SUMS, false);
    }
}

/* Whether a gate is there was told by its values. */
static void gates_of_zero_are_gates(void **state) {
    (void)state;
    fill(0);
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_recurrent_attention_vjp_args args = gradients_of_sums(i);
        EXPECT_OK(ejk_recurrent_attention_vjp(context, &args));
        expect_gradients(SUMS, false);
    }
}

/* A gate of key channels was read as if it were one of heads. */
static void gates_of_heads_and_of_channels(void **state) {
    (void)state;
    fill(-1);
    for (int i = 0; i < CONFIGS; i++)
        for (int wide = 0; wide < 2; wide++) {
            ejk_recurrent_attention_args args = sums(i);
            if (wide) args.g = rows(given[GK], DK);
            EXPECT_OK(ejk_recurrent_attention(context, &args));
            take((SUMS & ~(1u << G | 1u << GK | 1u << GV)) | 1u << (wide ? GK : G));
            recurrence(false);
            for (int n = 0; n < TOKENS * DV; n++) EXPECT_NEAR((double)out[n], wanted_out[n], 1e-5);
        }
}

/* Decays that follow from a layer's number let no gradient through: heads 0 and 1 of layer 1 of 4. */
static void gradients_of_lightning_attention(void **state) {
    (void)state;
    enum { T = 37, SIZE = 16, COUNT = T * 2 * SIZE };
    static float x[3][COUNT], c[COUNT], got[3][COUNT], wanted[3][COUNT];
    float gamma[2] = {0, -3};
    for (int n = 0; n < COUNT; n++) {
        for (int i = 0; i < 3; i++) x[i][n] = uniform();
        c[n] = uniform();
    }
#define OF(data) ejk_tensor_4d(data, EJK_DTYPE_F32, 1, T, 2, SIZE)
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_lightning_attention_vjp_args args = {.query = OF(x[0]),
                                                       .key = OF(x[1]),
                                                       .value = OF(x[2]),
                                                       .layer_idx = 1,
                                                       .num_layers = 4,
                                                       .d_out = OF(c),
                                                       .d_query = OF(got[0]),
                                                       .d_key = OF(got[1]),
                                                       .d_value = OF(got[2]),
                                                       .cfg = configs[i]};
        EXPECT_OK(ejk_lightning_attention_vjp(context, &args));
        const ejk_recurrent_attention_vjp_args by_hand = {
            .query = args.query,
            .key = args.key,
            .value = args.value,
            .g_gamma = ejk_tensor_1d(gamma, EJK_DTYPE_F32, 2),
            .d_out = args.d_out,
            .d_query = OF(wanted[0]),
            .d_key = OF(wanted[1]),
            .d_value = OF(wanted[2]),
            .cfg = args.cfg};
        EXPECT_OK(ejk_recurrent_attention_vjp(context, &by_hand));
        for (int n = 0; n < 3 * COUNT; n++)
            EXPECT_NEAR((double)got[n / COUNT][n % COUNT], (double)wanted[n / COUNT][n % COUNT],
                        1e-5);
    }
#undef OF
}

/* ---- Delta rules ------------------------------------------------------------------------------------- */

enum { DELTA = 1 << QUERY | 1 << KEY | 1 << VALUE | 1 << GK | 1 << BETA | 1 << START };

/* Decays of key channels were refused; exponents were clipped to -20 and NaN made 0 (test_recurrent.c). */
static void kda_has_decays_of_channels(void **state) {
    (void)state;
    static const float gates[] = {-1, -50, 0};
    for (int n = 0; n < 3 * CONFIGS; n++) {
        fill(gates[n / CONFIGS]);
        const ejk_kda_attention_args args = {.query = rows(given[QUERY], DK),
                                             .key = rows(given[KEY], DK),
                                             .value = rows(given[VALUE], DV),
                                             .beta = numbers(given[BETA]),
                                             .decay = rows(given[GK], DK),
                                             .initial_state = states(given[START]),
                                             .use_qk_l2norm = EJK_FALSE,
                                             .softmax_scale = ejk_float(1),
                                             .cu_seqlens = lengths(),
                                             .out = rows(out, DV),
                                             .cfg = configs[n % CONFIGS]};
        EXPECT_OK(ejk_kda_attention(context, &args));
        take(DELTA);
        recurrence(true);
        for (int i = 0; i < TOKENS * DV; i++) EXPECT_NEAR((double)out[i], wanted_out[i], 1e-5);
        const ejk_kda_attention_vjp_args back = {.query = args.query,
                                                 .key = args.key,
                                                 .value = args.value,
                                                 .beta = args.beta,
                                                 .decay = args.decay,
                                                 .initial_state = args.initial_state,
                                                 .use_qk_l2norm = EJK_FALSE,
                                                 .softmax_scale = args.softmax_scale,
                                                 .cu_seqlens = args.cu_seqlens,
                                                 .d_out = rows(cotangent, DV),
                                                 .d_final_state = states(final_cotangent),
                                                 .d_query = rows(gradient[QUERY], DK),
                                                 .d_key = rows(gradient[KEY], DK),
                                                 .d_value = rows(gradient[VALUE], DV),
                                                 .d_beta = numbers(gradient[BETA]),
                                                 .d_decay = rows(gradient[GK], DK),
                                                 .d_initial_state = states(gradient[START]),
                                                 .cfg = args.cfg};
        EXPECT_OK(ejk_kda_attention_vjp(context, &back));
        expect_gradients(DELTA, true);
    }
}

/* ---- Runs of 10^5 tokens ----------------------------------------------------------------------------- */

enum { RUN = 100000, SIZE = 16 };

/* The recurrence in f32 and in f64, side by side. */
static void run_by_tokens(const float *const *x, const float *beta, double decay, float *single,
                          double *exact) {
    float s[SIZE * SIZE] = {0};
    double d[SIZE * SIZE] = {0};
    const double keep = exp(decay);
    for (int t = 0; t < RUN; t++)
        for (int j = 0; j < SIZE; j++) {
            const float *const q = x[0] + t * SIZE, *const k = x[1] + t * SIZE;
            float u = x[2][t * SIZE + j], read = 0, o = 0;
            double du = (double)u, d_read = 0, d_o = 0;
            for (int i = 0; i < SIZE; i++) {
                read += (s[i * SIZE + j] *= (float)keep) * k[i];
                d_read += (d[i * SIZE + j] *= keep) * (double)k[i];
            }
            if (beta != NULL) u = beta[t] * (u - read), du = (double)beta[t] * (du - d_read);
            for (int i = 0; i < SIZE; i++) {
                o += (s[i * SIZE + j] += k[i] * u) * q[i];
                d_o += (d[i * SIZE + j] += (double)k[i] * du) * (double)q[i];
            }
            single[t * SIZE + j] = o;
            exact[t * SIZE + j] = d_o;
        }
}

/* Root mean square error. */
static double lost(const float *got, const double *wanted) {
    double error = 0;
    for (int n = 0; n < RUN * SIZE; n++) {
        const double off = (double)got[n] - wanted[n];
        error += off * off;
    }
    return sqrt(error / (RUN * SIZE));
}

static ejk_status run(const float *const *x, float *beta, float *gates, float *to) {
#define OF(data) ejk_tensor_4d((float *)(data), EJK_DTYPE_F32, 1, RUN, 1, SIZE)
    if (beta == NULL)
        return ejk_recurrent_attention(
            context,
            &(ejk_recurrent_attention_args){.query = OF(x[0]),
                                            .key = OF(x[1]),
                                            .value = OF(x[2]),
                                            .g = ejk_tensor_3d(gates, EJK_DTYPE_F32, 1, RUN, 1),
                                            .softmax_scale = ejk_float(1),
                                            .out = OF(to)});
    return ejk_gated_delta_rule(
        context,
        &(ejk_gated_delta_rule_args){.query = OF(x[0]),
                                     .key = OF(x[1]),
                                     .value = OF(x[2]),
                                     .beta = ejk_tensor_3d(beta, EJK_DTYPE_F32, 1, RUN, 1),
                                     .decay = ejk_tensor_3d(gates, EJK_DTYPE_F32, 1, RUN, 1),
                                     .use_qk_l2norm = EJK_FALSE,
                                     .softmax_scale = ejk_float(1),
                                     .out = OF(to)});
#undef OF
}

/* Sums and the delta rule, without a decay and with one of 10^-4 a token, which the recurrence in f32 rounds. */
static void long_runs(void **state) {
    (void)state;
    float *room = malloc(sizeof *room * RUN * (5 * SIZE + 2));
    double *exact = malloc(sizeof *exact * RUN * SIZE);
    assert_true(room != NULL && exact != NULL);
    const float *const x[3] = {room, room + RUN * SIZE, room + 2 * RUN * SIZE};
    float *const got = room + 3 * RUN * SIZE, *const single = got + RUN * SIZE;
    float *const beta = single + RUN * SIZE, *const gates = beta + RUN;
    for (int n = 0; n < 3 * RUN * SIZE; n++)
        room[n] = n / (RUN * SIZE) == 1 ? uniform() / 4 : uniform();
    for (int t = 0; t < RUN; t++) beta[t] = (uniform() + 1) / 2;
    for (int n = 0; n < 4; n++) {
        float *const rate = n < 2 ? NULL : beta;
        const float decay = n % 2 ? -1e-4f : 0;
        for (int t = 0; t < RUN; t++) gates[t] = decay;
        run_by_tokens(x, rate, (double)decay, single, exact);
        EXPECT_OK(run(x, rate, gates, got));
        EXPECT_NEAR(lost(got, exact), 0, 1.5 * lost(single, exact));
    }
    free(room);
    free(exact);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_packed_sequences_and_every_gate),
        cmocka_unit_test(gates_of_zero_are_gates),
        cmocka_unit_test(gates_of_heads_and_of_channels),
        cmocka_unit_test(gradients_of_lightning_attention),
        cmocka_unit_test(kda_has_decays_of_channels),
        cmocka_unit_test(long_runs),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
