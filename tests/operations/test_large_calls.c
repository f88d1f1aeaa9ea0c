/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of large calls go past the caches, which random cases are too small for: they have the bits of the same rows
 * in calls of a tenth, on every tier of this processor.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A large call is PARTS small ones of ROWS rows of WIDTH elements; 4 MiB and more in either type. */
enum {
    PARTS = 11,
    ROWS = 200,
    WIDTH = 1024,
    HEADS = 8,
    PAGE = 10,
    ELEMENTS = PARTS * ROWS * WIDTH
};
enum { TAPS = 4, INPUTS = 3, OUTPUTS = 2 };

static ejk_context *context;
static ejk_dtype dtype;
static char *inputs[INPUTS],
    *outputs[2][OUTPUTS]; /* outputs of the large call, and of small ones */

static size_t bytes_of(int64_t elements) {
    return (size_t)elements * ejk_dtype_size(dtype);
}

/* Part `part` of an array as [1, rows, width], or all parts as one call's. */
static ejk_tensor rows_of(char *from, int part) {
    const int64_t rows = part < 0 ? PARTS * ROWS : ROWS;
    return ejk_tensor_3d(from + bytes_of((part < 0 ? 0 : part) * ROWS * (int64_t)WIDTH), dtype, 1,
                         rows, WIDTH);
}

static void set_inputs(void) {
    for (int n = 0; n < INPUTS; n++)
        for (int64_t i = 0; i < ELEMENTS; i++) {
            const float value = sinf((float)(i % 9973 + 3 * n));
            const uint16_t upper = (uint16_t)((union {
                                                  float f;
                                                  uint32_t u;
                                              }){value}
                                                  .u >>
                                              16);
            if (dtype == EJK_DTYPE_F32)
                memcpy(inputs[n] + 4 * i, &value, 4);
            else
                memcpy(inputs[n] + 2 * i, &upper, 2);
        }
    for (int n = 0; n < 2 * OUTPUTS; n++)
        memset(outputs[n / OUTPUTS][n % OUTPUTS], 0xff, bytes_of(ELEMENTS));
}

static void expect_same_bits(void) {
    for (int n = 0; n < OUTPUTS; n++)
        assert_memory_equal(outputs[0][n], outputs[1][n], bytes_of(ELEMENTS));
}

/* ---- Calls of a part, or of all ---------------------------------------------------------------------- */

static void norm(char *const to[OUTPUTS], int part) {
    ejk_gated_rms_norm_args a = {.x = rows_of(inputs[0], part),
                                 .gate = rows_of(inputs[1], part),
                                 .out = rows_of(to[0], part)};
    EXPECT_OK(ejk_gated_rms_norm(context, &a));
}

static void norm_gradients(char *const to[OUTPUTS], int part) {
    ejk_gated_rms_norm_vjp_args a = {.x = rows_of(inputs[0], part),
                                     .gate = rows_of(inputs[1], part),
                                     .d_out = rows_of(inputs[2], part),
                                     .d_x = rows_of(to[0], part),
                                     .d_gate = rows_of(to[1], part)};
    EXPECT_OK(ejk_gated_rms_norm_vjp(context, &a));
}

/* Parts are sequences of a batch. */
static ejk_tensor batch_of(char *from, int part) {
    ejk_tensor t = rows_of(from, part);
    return ejk_tensor_3d(t.data, dtype, part < 0 ? PARTS : 1, ROWS, WIDTH);
}
static void convolution(char *const to[OUTPUTS], int part) {
    ejk_causal_conv1d_args a = {.x = batch_of(inputs[0], part),
                                .weight = ejk_tensor_2d(inputs[1], dtype, WIDTH, TAPS),
                                .out = batch_of(to[0], part)};
    EXPECT_OK(ejk_causal_conv1d(context, &a));
}

/* Rows are tokens, which go to pages from the last one on. */
static ejk_tensor heads_of(char *from, int part) {
    const ejk_tensor t = rows_of(from, part);
    return ejk_tensor_3d(t.data, dtype, t.shape[1], HEADS, WIDTH / HEADS);
}
static ejk_tensor cache_of(char *from) {
    return ejk_tensor_contiguous(from, dtype, 4,
                                 (int64_t[]){PARTS * ROWS / PAGE, PAGE, HEADS, WIDTH / HEADS});
}
static void update(char *const to[OUTPUTS], int part) {
    static int32_t slots[PARTS * ROWS];
    for (int t = 0; t < PARTS * ROWS; t++) slots[t] = PARTS * ROWS - 1 - t;
    ejk_update_kv_cache_args a = {.key = heads_of(inputs[0], part),
                                  .value = heads_of(inputs[1], part),
                                  .key_cache = cache_of(to[0]),
                                  .value_cache = cache_of(to[1]),
                                  .slot_mapping =
                                      ejk_tensor_1d(slots + (part < 0 ? 0 : part * ROWS),
                                                    EJK_DTYPE_I32, part < 0 ? PARTS * ROWS : ROWS)};
    EXPECT_OK(ejk_update_kv_cache(context, &a));
}

/* ---- Tests ------------------------------------------------------------------------------------------- */

static void try_on_all_tiers(void (*call)(char *const to[OUTPUTS], int part)) {
    for (int tier = 0; tier < 64; tier++) {
        if (!ejk_cpu()->tiers[tier]) continue;
        const ejk_context_options options = {.isa = ejk_isa_name((ejk_isa)tier)};
        EXPECT_OK(ejk_context_create(&options, &context));
        for (int n = 0; n < 2; n++) {
            dtype = n ? EJK_DTYPE_BF16 : EJK_DTYPE_F32;
            set_inputs();
            call(outputs[0], -1);
            for (int part = 0; part < PARTS; part++) call(outputs[1], part);
            expect_same_bits();
        }
        ejk_context_destroy(context);
    }
}

static void norms(void **state) {
    (void)state;
    try_on_all_tiers(norm);
}
static void gradients_of_norms(void **state) {
    (void)state;
    try_on_all_tiers(norm_gradients);
}
static void convolutions(void **state) {
    (void)state;
    try_on_all_tiers(convolution);
}
static void updates_of_caches(void **state) {
    (void)state;
    try_on_all_tiers(update);
}

static int allocate(void **state) {
    (void)state;
    bool done = true;
    for (int n = 0; n < INPUTS; n++)
        done &= (inputs[n] = aligned_alloc(64, 4 * (size_t)ELEMENTS)) != NULL;
    for (int n = 0; n < 2 * OUTPUTS; n++)
        done &=
            (outputs[n / OUTPUTS][n % OUTPUTS] = aligned_alloc(64, 4 * (size_t)ELEMENTS)) != NULL;
    return done ? 0 : -1;
}
static int release(void **state) {
    (void)state;
    for (int n = 0; n < INPUTS; n++) free(inputs[n]);
    for (int n = 0; n < 2 * OUTPUTS; n++) free(outputs[n / OUTPUTS][n % OUTPUTS]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(gradients_of_norms),
        cmocka_unit_test(convolutions),
        cmocka_unit_test(updates_of_caches),
    };
    return cmocka_run_group_tests(tests, allocate, release);
}
