/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrent family: layers of a trained model known in f64, values known beforehand, faults that other libraries
 * have had, and the sentences of bad calls.
 */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const ejk_recurrent_config configs[] = {{.platform = "reference"}, {.platform = "simd"}};
enum { CONFIGS = sizeof configs / sizeof *configs };

/* ---- Layers of a trained model ----------------------------------------------------------------------- */

enum { FILES = 7 };
static ejk_owned_tensor file[FILES];

static void load(const char *layer) {
    static const char *const names[FILES] = {"query", "key",    "value",      "g",
                                             "beta",  "output", "final_state"};
    char path[512];
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/examples/data/bytemix/%s_%s.npy", EJK_SOURCE_DIR, layer,
                 names[i]);
        EXPECT_OK(ejk_npy_read(path, &file[i]));
    }
}

/* Relative error of a contiguous f32 result against f64 ones. */
static double error_of(const ejk_tensor *got, const ejk_tensor *wanted) {
    const float *x = got->data;
    const double *y = wanted->data;
    double error = 0, size = 0;
    for (int64_t n = 0; n < ejk_tensor_count(wanted); n++) {
        error += ((double)x[n] - y[n]) * ((double)x[n] - y[n]);
        size += y[n] * y[n];
    }
    return sqrt(error / size);
}

/* Both members with either's tensors: kda_attention with a decay of each head is the gated delta rule. */
static void check_layer(const char *layer) {
    load(layer);
    ejk_owned_tensor out, final;
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F32, 4, file[5].tensor.shape, &out));
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F32, 4, file[6].tensor.shape, &final));
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_gated_delta_rule_args args = {.query = file[0].tensor,
                                                .key = file[1].tensor,
                                                .value = file[2].tensor,
                                                .decay = file[3].tensor,
                                                .beta = file[4].tensor,
                                                .out = out.tensor,
                                                .final_state = final.tensor,
                                                .cfg = configs[i]};
        EXPECT_OK(ejk_gated_delta_rule(context, &args));
        assert_true(error_of(&out.tensor, &file[5].tensor) < 2e-6);
        assert_true(error_of(&final.tensor, &file[6].tensor) < 2e-6);
    }
    ejk_owned_tensor_close(&out);
    ejk_owned_tensor_close(&final);
    for (int i = 0; i < FILES; i++) ejk_owned_tensor_close(&file[i]);
}

static void trained_gated_delta_rule(void **state) {
    (void)state;
    check_layer("gdn");
}
static void trained_kda(void **state) {
    (void)state;
    check_layer("kda");
}

/* ---- Values known beforehand ------------------------------------------------------------------------- */

enum { TOKENS = 70, HEADS = 2, DK = 5, DV = 3, STATE = HEADS * DK * DV };

static float query[TOKENS * HEADS * DK], key[TOKENS * HEADS * DK], value[TOKENS * HEADS * DV];
static float decay[TOKENS * HEADS], wide_decay[TOKENS * HEADS * DK], beta[TOKENS * HEADS];
static float out[TOKENS * HEADS * DV], other[TOKENS * HEADS * DV];

static ejk_tensor tensor(float *data, int64_t tokens, int64_t size) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, 1, tokens, HEADS, size);
}
static ejk_tensor numbers(float *data, int64_t tokens) {
    return ejk_tensor_3d(data, EJK_DTYPE_F32, 1, tokens, HEADS);
}
static ejk_tensor states(float *data, int64_t rows) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, rows, HEADS, DK, DV);
}

static void fill(void) {
    uint32_t bits = 1;
    float *const all[] = {query, key, value, beta, decay};
    const int count[] = {TOKENS * HEADS * DK, TOKENS * HEADS * DK, TOKENS * HEADS * DV,
                         TOKENS * HEADS, TOKENS * HEADS};
    for (int i = 0; i < 5; i++)
        for (int n = 0; n < count[i]; n++) {
            bits = bits * 1664525u + 1013904223u;
            const float x = (float)(bits >> 8) / 16777216.0f;
            all[i][n] = i < 3 ? 2 * x - 1 : i == 3 ? x : -x;
        }
    for (int n = 0; n < TOKENS * HEADS * DK; n++) wide_decay[n] = decay[n / DK];
}

/* Tokens `first` on, with a decay of each head. */
static ejk_gated_delta_rule_args rule(int first, int tokens, float *to, int config) {
    return (ejk_gated_delta_rule_args){
        .query = tensor(query + first * HEADS * DK, tokens, DK),
        .key = tensor(key + first * HEADS * DK, tokens, DK),
        .value = tensor(value + first * HEADS * DV, tokens, DV),
        .beta = numbers(beta + first * HEADS, tokens),
        .decay = numbers(decay + first * HEADS, tokens),
        .out = tensor(to + first * HEADS * DV, tokens, DV),
        .cfg = configs[config],
    };
}

static void expect_same(const float *a, const float *b, int count) {
    for (int n = 0; n < count; n++) EXPECT_NEAR((double)a[n], (double)b[n], 2e-6);
}

static void decays_of_heads_and_of_channels(void **state) {
    (void)state;
    fill();
    for (int i = 0; i < CONFIGS; i++) {
        ejk_gated_delta_rule_args args = rule(0, TOKENS, out, i);
        EXPECT_OK(ejk_gated_delta_rule(context, &args));
        ejk_kda_attention_args kda = {.query = args.query,
                                      .key = args.key,
                                      .value = args.value,
                                      .beta = args.beta,
                                      .cfg = args.cfg};
        kda.decay = tensor(wide_decay, TOKENS, DK);
        kda.out = tensor(other, TOKENS, DV);
        EXPECT_OK(ejk_kda_attention(context, &kda));
        expect_same(out, other, TOKENS * HEADS * DV);
    }
}

/* Raw gates are made what they stand for. */
static void raw_gates(void **state) {
    (void)state;
    static float a_log[HEADS] = {0.5f, -1}, bias[HEADS] = {0.25f, 1}, raw[TOKENS * HEADS];
    static float logits[TOKENS * HEADS];
    fill();
    for (int n = 0; n < TOKENS * HEADS; n++) {
        raw[n] = 4 * decay[n] + 2;
        logits[n] = 4 * beta[n] - 2;
        const double sum = (double)(raw[n] + bias[n % HEADS]);
        decay[n] = (float)(-exp((double)a_log[n % HEADS]) * log1p(exp(sum)));
        beta[n] = (float)(1 / (1 + exp(-(double)logits[n])));
    }
    for (int i = 0; i < CONFIGS; i++) {
        ejk_gated_delta_rule_args args = rule(0, TOKENS, out, i);
        EXPECT_OK(ejk_gated_delta_rule(context, &args));
        args.decay = numbers(raw, TOKENS);
        args.A_log = ejk_tensor_1d(a_log, EJK_DTYPE_F32, HEADS);
        args.dt_bias = ejk_tensor_1d(bias, EJK_DTYPE_F32, HEADS);
        args.beta = numbers(logits, TOKENS);
        args.use_beta_sigmoid = true;
        args.out = tensor(other, TOKENS, DV);
        EXPECT_OK(ejk_gated_delta_rule(context, &args));
        expect_same(out, other, TOKENS * HEADS * DV);
    }
}

static void steps_are_the_sequence(void **state) {
    (void)state;
    static float at_once[STATE], by_steps[STATE], turned[STATE];
    fill();
    for (int i = 0; i < CONFIGS; i++) {
        ejk_gated_delta_rule_args args = rule(0, TOKENS, out, i);
        args.final_state = states(at_once, 1);
        EXPECT_OK(ejk_gated_delta_rule(context, &args));
        memset(by_steps, 0, sizeof by_steps);
        memset(turned, 0, sizeof turned);
        for (int t = 0; t < TOKENS; t++) {
            args = rule(t, 1, other, i);
            args.state = states(by_steps, 1);
            EXPECT_OK(ejk_gated_delta_rule(context, &args));
            args.state = ejk_tensor_4d(turned, EJK_DTYPE_F32, 1, HEADS, DV, DK);
            strcpy(args.state_layout, "value_key");
            EXPECT_OK(ejk_gated_delta_rule(context, &args));
        }
        expect_same(out, other, TOKENS * HEADS * DV);
        expect_same(at_once, by_steps, STATE);
        for (int n = 0; n < STATE; n++) {
            const int h = n / (DK * DV), k = n / DV % DK, v = n % DV;
            EXPECT_NEAR((double)turned[(h * DV + v) * DK + k], (double)by_steps[n], 2e-6);
        }
    }
}

/* Head 1 of 4 decays by 8/4 · (1 - 1/2) = 1 a token. */
static void lightning_decays_by_layer(void **state) {
    (void)state;
    float q[8] = {1, 1, 1, 1, 1, 1, 1, 1}, v[8] = {1, 1, 1, 1, 0, 0, 0, 0}, got[8];
    const ejk_tensor ones = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 2, 4, 1);
    for (int i = 0; i < CONFIGS; i++) {
        EXPECT_OK(ejk_lightning_attention(
            context,
            &(ejk_lightning_attention_args){.query = ones,
                                            .key = ones,
                                            .value = ejk_tensor_4d(v, EJK_DTYPE_F32, 1, 2, 4, 1),
                                            .layer_idx = 1,
                                            .num_layers = 2,
                                            .out = ejk_tensor_4d(got, EJK_DTYPE_F32, 1, 2, 4, 1),
                                            .cfg = configs[i]}));
        for (int h = 0; h < 4; h++) EXPECT_NEAR((double)got[4 + h], exp(-h), 1e-6);
    }
}

/* ---- Faults that other libraries have had ------------------------------------------------------------ */

/* The cotangent of the state is [Dk,Dv], not its transpose, and no state is as good as one of zeros where Dk != Dv. */
static void gradients_of_one_token(void **state) {
    (void)state;
    float q[2] = {2, 3}, k[2] = {5, 7}, v[3] = {1, -2, 4}, c[3] = {3, 1, 2};
    float d_q[2], d_k[2], d_v[3];
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_recurrent_attention_vjp_args args = {
            .query = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 1, 1, 2),
            .key = ejk_tensor_4d(k, EJK_DTYPE_F32, 1, 1, 1, 2),
            .value = ejk_tensor_4d(v, EJK_DTYPE_F32, 1, 1, 1, 3),
            .softmax_scale = ejk_float(0.5),
            .d_out = ejk_tensor_4d(c, EJK_DTYPE_F32, 1, 1, 1, 3),
            .d_query = ejk_tensor_4d(d_q, EJK_DTYPE_F32, 1, 1, 1, 2),
            .d_key = ejk_tensor_4d(d_k, EJK_DTYPE_F32, 1, 1, 1, 2),
            .d_value = ejk_tensor_4d(d_v, EJK_DTYPE_F32, 1, 1, 1, 3),
            .cfg = configs[i]};
        EXPECT_OK(ejk_recurrent_attention_vjp(context, &args));
        /* out = scale (q·k) v with q·k = 31 and v·c = 9 */
        for (int n = 0; n < 2; n++) {
            EXPECT_NEAR((double)d_q[n], 4.5 * (double)k[n], 1e-5);
            EXPECT_NEAR((double)d_k[n], 4.5 * (double)q[n], 1e-5);
        }
        for (int n = 0; n < 3; n++) EXPECT_NEAR((double)d_v[n], 15.5 * (double)c[n], 1e-5);
    }
}

/* Gates that are 0 are there: d_g has their shape and reads the state before. */
static void gates_of_zero_have_gradients(void **state) {
    (void)state;
    float q[4] = {1, 2, 3, 4}, k[4] = {5, 6, 7, 8}, v[2] = {2, 9}, c[2] = {1, 10};
    float g[4] = {0, 0, 0, 0}, d_g[4];
    for (int i = 0; i < CONFIGS; i++) {
        const ejk_gla_attention_vjp_args args = {
            .query = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 2, 1, 2),
            .key = ejk_tensor_4d(k, EJK_DTYPE_F32, 1, 2, 1, 2),
            .value = ejk_tensor_4d(v, EJK_DTYPE_F32, 1, 2, 1, 1),
            .g = ejk_tensor_4d(g, EJK_DTYPE_F32, 1, 2, 1, 2),
            .softmax_scale = ejk_float(1),
            .d_out = ejk_tensor_4d(c, EJK_DTYPE_F32, 1, 2, 1, 1),
            .d_g = ejk_tensor_4d(d_g, EJK_DTYPE_F32, 1, 2, 1, 2),
            .cfg = configs[i]};
        EXPECT_OK(ejk_gla_attention_vjp(context, &args));
        /* out_1 has q_1i e^g_i k_0i v_0 */
        const double wanted[4] = {0, 0, 3 * 5 * 2 * 10, 4 * 6 * 2 * 10};
        for (int n = 0; n < 4; n++) EXPECT_NEAR((double)d_g[n], wanted[n], 1e-3);
    }
}

/* Packed sequences are the sequences, from rows of a pool in any order; an empty one leaves its row as it is. */
static void packed_sequences(void **state) {
    (void)state;
    static float pool[4 * STATE], alone[STATE], start[4 * STATE];
    static int32_t ends[] = {0, 33, 33, TOKENS}, rows[] = {2, 0, 3};
    fill();
    for (int n = 0; n < 4 * STATE; n++) start[n] = (float)(n % 7) - 3;
    for (int i = 0; i < CONFIGS; i++) {
        memcpy(pool, start, sizeof pool);
        const ejk_gated_delta_rule_args all = rule(0, TOKENS, out, i);
        EXPECT_OK(ejk_ragged_gated_delta_rule(
            context, &(ejk_ragged_gated_delta_rule_args){
                         .query = all.query,
                         .key = all.key,
                         .value = all.value,
                         .beta = all.beta,
                         .decay = all.decay,
                         .cu_seqlens = ejk_tensor_1d(ends, EJK_DTYPE_I32, 4),
                         .state = states(pool, 4),
                         .state_indices = ejk_tensor_1d(rows, EJK_DTYPE_I32, 3),
                         .out = all.out,
                         .cfg = configs[i]}));
        for (int n = 0; n < 3; n += 2) {
            ejk_gated_delta_rule_args args = rule(ends[n], ends[n + 1] - ends[n], other, i);
            memcpy(alone, start + rows[n] * STATE, sizeof alone);
            args.state = states(alone, 1);
            EXPECT_OK(ejk_gated_delta_rule(context, &args));
            expect_same(alone, pool + rows[n] * STATE, STATE);
        }
        expect_same(out, other, TOKENS * HEADS * DV);
        assert_memory_equal(pool, start, 2 * STATE * sizeof *pool);
    }
}

/* A segment that ends inside of a chunk; the last one's state is the final one, with one token, too. */
static void segments_end_anywhere(void **state) {
    (void)state;
    static float last[STATE], alone[STATE];
    static int32_t ids[TOKENS];
    fill();
    for (int first = 35; first < TOKENS; first += 34)
        for (int i = 0; i < CONFIGS; i++) {
            for (int t = 0; t < TOKENS; t++) ids[t] = t < first ? 4 : 2;
            ejk_gated_delta_rule_args args = rule(0, TOKENS, out, i);
            args.seg_ids = ejk_tensor_2d(ids, EJK_DTYPE_I32, 1, TOKENS);
            args.final_state = states(last, 1);
            EXPECT_OK(ejk_gated_delta_rule(context, &args));
            args = rule(first, TOKENS - first, other, i);
            args.final_state = states(alone, 1);
            EXPECT_OK(ejk_gated_delta_rule(context, &args));
            expect_same(last, alone, STATE);
            expect_same(out + first * HEADS * DV, other + first * HEADS * DV,
                        (TOKENS - first) * HEADS * DV);
        }
}

/* Decays beyond e^±20 are what they are, and NaN is not 0. */
static void nothing_is_clipped(void **state) {
    (void)state;
    float q[1] = {1}, k[1] = {1}, v[1] = {0}, g[1], start[1] = {1e20f}, got[1];
    static const double gates[] = {-60, -30, 30};
    for (int i = 0; i < CONFIGS; i++)
        for (int n = 0; n < 4; n++) {
            g[0] = n < 3 ? (float)gates[n] : NAN;
            const ejk_tensor one = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 1, 1, 1);
            EXPECT_OK(ejk_recurrent_attention(
                context, &(ejk_recurrent_attention_args){
                             .query = one,
                             .key = ejk_tensor_4d(k, EJK_DTYPE_F32, 1, 1, 1, 1),
                             .value = ejk_tensor_4d(v, EJK_DTYPE_F32, 1, 1, 1, 1),
                             .g = ejk_tensor_3d(g, EJK_DTYPE_F32, 1, 1, 1),
                             .initial_state = ejk_tensor_4d(start, EJK_DTYPE_F32, 1, 1, 1, 1),
                             .out = ejk_tensor_4d(got, EJK_DTYPE_F32, 1, 1, 1, 1),
                             .cfg = configs[i]}));
            if (n == 3)
                assert_true(isnan(got[0]));
            else
                EXPECT_NEAR((double)got[0] / (1e20 * exp(gates[n])), 1, 1e-6);
        }
}

/* Kernels have the processor flush subnormal numbers; behind them it is as it was. */
static void subnormal_numbers_stay(void **state) {
    (void)state;
    static float rows[64 * 16], got[64 * 16], slope[64 * 16];
    volatile float least = 0x1p-126f;
    for (int i = 0; i < 64 * 16; i++) rows[i] = 1;
    for (int64_t tokens = 1; tokens <= 64; tokens += 63) {
        const ejk_tensor one = ejk_tensor_4d(rows, EJK_DTYPE_F32, 1, tokens, 1, 16);
        EXPECT_OK(ejk_recurrent_attention(
            context, &(ejk_recurrent_attention_args){
                         .query = one,
                         .key = one,
                         .value = one,
                         .out = ejk_tensor_4d(got, EJK_DTYPE_F32, 1, tokens, 1, 16)}));
        assert_true(least / 2 > 0);
        EXPECT_OK(ejk_recurrent_attention_vjp(
            context, &(ejk_recurrent_attention_vjp_args){
                         .query = one,
                         .key = one,
                         .value = one,
                         .d_out = one,
                         .d_value = ejk_tensor_4d(slope, EJK_DTYPE_F32, 1, tokens, 1, 16)}));
        assert_true(least / 2 > 0);
    }
}

/* Where nothing decays a long sum stays as good as the recurrence: 4096 ones. */
static void long_sums(void **state) {
    (void)state;
    enum { LONG = 4096 };
    static float ones[LONG], got[LONG];
    for (int n = 0; n < LONG; n++) ones[n] = 1;
    const ejk_tensor x = ejk_tensor_4d(ones, EJK_DTYPE_F32, 1, LONG, 1, 1);
    for (int i = 0; i < CONFIGS; i++) {
        EXPECT_OK(ejk_recurrent_attention(
            context,
            &(ejk_recurrent_attention_args){.query = x,
                                            .key = x,
                                            .value = x,
                                            .out = ejk_tensor_4d(got, EJK_DTYPE_F32, 1, LONG, 1, 1),
                                            .cfg = configs[i]}));
        for (int n = 0; n < LONG; n++) assert_true(got[n] == (float)(n + 1));
    }
}

/* ---- Bad calls --------------------------------------------------------------------------------------- */

static float room[8 * STATE];
static int32_t indices[] = {0, 1};

/* Two sequences of a token each, with a pool of three states. */
static ejk_gated_delta_rule_args call(void) {
    return (ejk_gated_delta_rule_args){
        .query = ejk_tensor_4d(query, EJK_DTYPE_F32, 2, 1, HEADS, DK),
        .key = ejk_tensor_4d(key, EJK_DTYPE_F32, 2, 1, HEADS, DK),
        .value = ejk_tensor_4d(value, EJK_DTYPE_F32, 2, 1, HEADS, DV),
        .state = states(room, 3),
        .state_indices = ejk_tensor_1d(indices, EJK_DTYPE_I32, 2),
        .out = ejk_tensor_4d(out, EJK_DTYPE_F32, 2, 1, HEADS, DV),
    };
}

#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        ejk_gated_delta_rule_args a = call();                                                      \
        indices[0] = 0, indices[1] = 1;                                                            \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(status, words, ejk_gated_delta_rule(context, &a));                             \
    } while (0)

static void bad_calls_say_why(void **state) {
    (void)state;
    static float before[8 * STATE];
    for (int n = 0; n < 8 * STATE; n++) before[n] = room[n] = (float)n;
    REFUSED(INVALID_ARGUMENT,
            "state_indices is 0 at element 1, expected a slot of no other sequence",
            indices[1] = 0);
    REFUSED(INVALID_ARGUMENT, "expected -1 to 2", indices[1] = 3);
    REFUSED(INVALID_ARGUMENT, "is -2", indices[0] = -2);
    REFUSED(INVALID_ARGUMENT, "together with final_state", a.final_state = states(room, 2));
    REFUSED(INVALID_ARGUMENT, "without state", a.state = (ejk_tensor){.dtype = EJK_DTYPE_UNSET});
    REFUSED(INVALID_ARGUMENT, "A_log is given without decay",
            a.A_log = ejk_tensor_1d(beta, EJK_DTYPE_F32, HEADS));
    REFUSED(UNKNOWN_NAME, "state_layout is 'rows'", strcpy(a.state_layout, "rows"));
    REFUSED(INVALID_SHAPE, "key has 3 heads, expected a divisor of 4",
            a.key = ejk_tensor_4d(key, EJK_DTYPE_F32, 2, 1, 3, DK);
            a.query = ejk_tensor_4d(query, EJK_DTYPE_F32, 2, 1, 4, DK));
    REFUSED(INVALID_SHAPE, "state", a.state_indices = (ejk_tensor){.dtype = EJK_DTYPE_UNSET});
    REFUSED(INVALID_DTYPE, "state is bfloat16, expected float32",
            a.state = ejk_tensor_4d(room, EJK_DTYPE_BF16, 3, HEADS, DK, DV));
    REFUSED(INVALID_DTYPE, "beta is bfloat16, expected float32",
            a.beta = ejk_tensor_3d(beta, EJK_DTYPE_BF16, 2, 1, HEADS));
    REFUSED(INVALID_ARGUMENT, "dt_bias is given without A_log",
            a.dt_bias = ejk_tensor_1d(beta, EJK_DTYPE_F32, HEADS));
    static int32_t starts[] = {0, 1, 2};
    REFUSED(INVALID_SHAPE, "query has batch 2, expected 1",
            a.cu_seqlens = ejk_tensor_1d(starts, EJK_DTYPE_I32, 3));
    starts[0] = 1;
    REFUSED(INVALID_ARGUMENT, "cu_seqlens starts at 1, expected 0",
            a.query = ejk_tensor_3d(query, EJK_DTYPE_F32, 2, HEADS, DK);
            a.key = ejk_tensor_3d(key, EJK_DTYPE_F32, 2, HEADS, DK);
            a.value = ejk_tensor_3d(value, EJK_DTYPE_F32, 2, HEADS, DV);
            a.out = ejk_tensor_3d(out, EJK_DTYPE_F32, 2, HEADS, DV);
            a.cu_seqlens = ejk_tensor_1d(starts, EJK_DTYPE_I32, 3));
    assert_memory_equal(room, before, sizeof room);
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_gated_delta_rule(context, NULL));
    const ejk_gated_delta_rule_args from = call();
    const ejk_gated_delta_rule_vjp_args back = {
        .query = from.query,
        .key = from.key,
        .value = from.value,
        .d_out = from.out,
        .d_beta = ejk_tensor_3d(room, EJK_DTYPE_F32, 2, 1, HEADS),
    };
    EXPECT_FAIL(INVALID_ARGUMENT, "d_beta is given without beta",
                ejk_gated_delta_rule_vjp(context, &back));
}

static void lightning_has_layers(void **state) {
    (void)state;
    const ejk_gated_delta_rule_args from = call();
    ejk_lightning_attention_args args = {
        .query = from.query, .key = from.key, .value = from.value, .out = from.out};
    EXPECT_FAIL(INVALID_ARGUMENT, "num_layers is 0", ejk_lightning_attention(context, &args));
    args.num_layers = 3;
    args.layer_idx = 4;
    EXPECT_FAIL(INVALID_ARGUMENT, "layer_idx is 4, expected 0 to 3",
                ejk_lightning_attention(context, &args));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trained_gated_delta_rule),
        cmocka_unit_test(trained_kda),
        cmocka_unit_test(decays_of_heads_and_of_channels),
        cmocka_unit_test(raw_gates),
        cmocka_unit_test(steps_are_the_sequence),
        cmocka_unit_test(lightning_decays_by_layer),
        cmocka_unit_test(gradients_of_one_token),
        cmocka_unit_test(gates_of_zero_have_gradients),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(segments_end_anywhere),
        cmocka_unit_test(nothing_is_clipped),
        cmocka_unit_test(subnormal_numbers_stay),
        cmocka_unit_test(long_sums),
        cmocka_unit_test(bad_calls_say_why),
        cmocka_unit_test(lightning_has_layers),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
