/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of dropout, and gradients of a bias where whole blocks see nothing.
 */
#include "support/expect.h"
#include "support/random.h"

#include "operations/attention/shared/dropout.h"

#include <Random123/philox.h>
#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The generator's own implementation says what its words are. */
static void dropout_words_are_philox(void **state) {
    (void)state;
    struct random r = {3};
    for (int i = 0; i < 1000; i++) {
        const uint64_t seed = random_bits(&r), a = random_bits(&r), b = random_bits(&r);
        const philox4x32_ctr_t at = {
            {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
        const philox4x32_key_t by = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
        const philox4x32_ctr_t expected = philox4x32(at, by);
        uint32_t words[4];
        ejki_dropout_words(seed, at.v[0], at.v[1], at.v[2], at.v[3], words);
        for (int n = 0; n < 4; n++) assert_int_equal(words[n], expected.v[n]);
    }
}

/* Elements of the gradient of a bias that no pair is seen for are 0, also where whole blocks see nothing. */
static void hidden_biases_have_no_gradient(void **state) {
    (void)state;
    enum { T = 700, D = 32, LEFT = 99 };
    static uint16_t in[4][T * D], bias[T * T], out[T * D], slopes[3][T * D], d_bias[T * T];
    static float lse[T];
    uint32_t random = 1;
    for (int n = 0; n < 4 * T * D; n++)
        in[n / (T * D)][n % (T * D)] =
            ejk_f32_to_bf16((float)((random = random * 1664525 + 1013904223) >> 8) / 8388608 - 1);
    memset(bias, 0, sizeof bias);
    memset(d_bias, 0xff, sizeof d_bias); /* NaN */
    const ejk_dtype bf16 = EJK_DTYPE_BF16;
    ejk_flash_attention_args a = {.causal = true, .sliding_window.left = ejk_int(LEFT)};
    a.query = ejk_tensor_4d(in[0], bf16, 1, T, 1, D);
    a.key = ejk_tensor_4d(in[1], bf16, 1, T, 1, D);
    a.value = ejk_tensor_4d(in[2], bf16, 1, T, 1, D);
    a.bias = ejk_tensor_4d(bias, bf16, 1, 1, T, T);
    a.out = ejk_tensor_4d(out, bf16, 1, T, 1, D);
    a.lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, 1, 1, T);
    ejk_flash_attention_vjp_args v = {.causal = true, .sliding_window = a.sliding_window};
    v.query = a.query;
    v.key = a.key;
    v.value = a.value;
    v.bias = a.bias;
    v.out = a.out;
    v.lse = a.lse;
    v.d_out = ejk_tensor_4d(in[3], bf16, 1, T, 1, D);
    v.d_query = ejk_tensor_4d(slopes[0], bf16, 1, T, 1, D);
    v.d_key = ejk_tensor_4d(slopes[1], bf16, 1, T, 1, D);
    v.d_value = ejk_tensor_4d(slopes[2], bf16, 1, T, 1, D);
    v.d_bias = ejk_tensor_4d(d_bias, bf16, 1, 1, T, T);
    ejk_context *own = NULL;
    assert_int_equal(ejk_context_create(NULL, &own), EJK_OK);
    assert_int_equal(ejk_flash_attention_fwd(own, &a), EJK_OK);
    assert_int_equal(ejk_flash_attention_vjp(own, &v), EJK_OK);
    for (int i = 0; i < T; i++) {
        float sum = 0, size = 0;
        for (int j = 0; j < T; j++) {
            const float slope = ejk_bf16_to_f32(d_bias[i * T + j]);
            if (j > i || j < i - LEFT) assert_true(slope == 0);
            sum += slope;
            size += fabsf(slope);
        }
        /* Weights of a row add up to 1 whatever its biases are, and out has been rounded to bf16. */
        assert_true(fabsf(sum) <= 0.02f * size + 4e-3f);
        assert_true(i == 0 || size > 0);
    }
    ejk_context_destroy(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_words_are_philox),
        cmocka_unit_test(hidden_biases_have_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
