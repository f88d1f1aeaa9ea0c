/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrent family: layers of a trained model known in f64, values known beforehand, faults that other libraries
 * have had, and the sentences of bad calls.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdio.h>

static ejk_context *context;
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

static int set_up(void **state) {
    (void)state;
    return ejk_context_create(NULL, &context) == EJK_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trained_gated_delta_rule),
        cmocka_unit_test(trained_kda),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
