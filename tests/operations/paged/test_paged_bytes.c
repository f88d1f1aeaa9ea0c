/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages of elements of 8 bits: NaN among their codes, and what queries lose. */
#include "support/context.h"

#include <math.h>

static ejk_tensor list(int32_t *from, int64_t count) {
    return ejk_tensor_1d(from, EJK_DTYPE_I32, count);
}

/* Queries of which one component is far larger than the others, and cached bytes that are 0 there. */
static void wide_queries_meet_bytes(void **state) {
    (void)state;
    enum { LENGTH = 70, DIM = 80, WIDE_GROUP = 3 };
    static int8_t key_bytes[LENGTH * DIM], value_bytes[LENGTH * DIM];
    static float wide[WIDE_GROUP * DIM], result[WIDE_GROUP * DIM];
    const float large[] = {0, 1, 300, 1e7f, 1e30f};
    float scale = 0.01f;
    int32_t length = LENGTH, first[2] = {0, 1}, page[LENGTH];
    for (int t = 0; t < LENGTH; t++) page[t] = (t * 3) % LENGTH;
    for (int i = 0; i < LENGTH * DIM; i++) {
        key_bytes[i] = (int8_t)(i % DIM == 0 ? 0 : i * 37 % 201 - 100);
        value_bytes[i] = (int8_t)(i * 53 % 256 - 128);
    }
    for (size_t k = 0; k < sizeof large / sizeof *large; k++) {
        for (int i = 0; i < WIDE_GROUP * DIM; i++)
            wide[i] = i % DIM == 0 ? large[k] : (float)(i * 29 % 101 - 50) / 50;
        const ejk_unified_attention_args a = {
            .query = ejk_tensor_3d(wide, EJK_DTYPE_F32, 1, WIDE_GROUP, DIM),
            .key_cache = ejk_tensor_4d(key_bytes, EJK_DTYPE_I8, LENGTH, 1, 1, DIM),
            .value_cache = ejk_tensor_4d(value_bytes, EJK_DTYPE_I8, LENGTH, 1, 1, DIM),
            .kv_lens = list(&length, 1),
            .block_tables = ejk_tensor_2d(page, EJK_DTYPE_I32, 1, LENGTH),
            .query_start_loc = list(first, 2),
            .k_scale = ejk_tensor_1d(&scale, EJK_DTYPE_F32, 1),
            .v_scale = ejk_tensor_1d(&scale, EJK_DTYPE_F32, 1),
            .out = ejk_tensor_3d(result, EJK_DTYPE_F32, 1, WIDE_GROUP, DIM),
        };
        EXPECT_OK(ejk_unified_attention(context, &a));
        for (int h = 0; h < WIDE_GROUP; h++) {
            double sum = 0, wanted[DIM] = {0};
            for (int t = 0; t < LENGTH; t++) {
                double z = 0;
                for (int d = 0; d < DIM; d++)
                    z += (double)wide[h * DIM + d] * key_bytes[page[t] * DIM + d];
                const double w = exp(z * 0.01 / sqrt(DIM));
                sum += w;
                for (int d = 0; d < DIM; d++)
                    wanted[d] += w * value_bytes[page[t] * DIM + d] * 0.01;
            }
            for (int d = 0; d < DIM; d++)
                EXPECT_NEAR((double)result[h * DIM + d], wanted[d] / sum, 3e-6);
        }
    }
}

/* A NaN in a cached key is a score of NaN, of its own head alone. */
static void a_nan_of_float8_in_a_key_is_seen(void **state) {
    (void)state;
    enum { LENGTH = 70, DIM = 80, NAN_KEY = 67 };
    static uint8_t key_codes[LENGTH * 2 * DIM], value_codes[LENGTH * 2 * DIM];
    static float asks[2 * DIM], found[2 * DIM];
    int32_t length = LENGTH, first[2] = {0, 1}, page[LENGTH];
    for (int t = 0; t < LENGTH; t++) page[t] = t;
    for (int i = 0; i < LENGTH * 2 * DIM; i++) {
        key_codes[i] = (uint8_t)(i * 37 % 100);
        value_codes[i] = (uint8_t)(i * 53 % 120);
    }
    const ejk_unified_attention_args a = {
        .query = ejk_tensor_3d(asks, EJK_DTYPE_F32, 1, 2, DIM),
        .key_cache = ejk_tensor_4d(key_codes, EJK_DTYPE_F8E4M3, LENGTH, 1, 2, DIM),
        .value_cache = ejk_tensor_4d(value_codes, EJK_DTYPE_F8E4M3, LENGTH, 1, 2, DIM),
        .kv_lens = list(&length, 1),
        .block_tables = ejk_tensor_2d(page, EJK_DTYPE_I32, 1, LENGTH),
        .query_start_loc = list(first, 2),
        .out = ejk_tensor_3d(found, EJK_DTYPE_F32, 1, 2, DIM)};
    for (int d = 5; d < DIM; d += 70) {
        uint8_t *code = &key_codes[(NAN_KEY * 2 + 1) * DIM + d];
        const uint8_t kept = *code;
        *code = 0xff;
        EXPECT_OK(ejk_unified_attention(context, &a));
        *code = kept;
        for (int i = 0; i < DIM; i++) {
            assert_true(isfinite(found[i]));
            assert_true(isnan(found[DIM + i]));
        }
    }
}

enum { BYTES = 128, KEYS = 150, MOST_GROUP = 8, LOUD = 37 };

/* From -128 to 127. */
static int noise(int i) {
    uint32_t x = (uint32_t)i * 0x9e3779b1u;
    x = (x ^ x >> 15) * 0x85ebca77u;
    return (int)((x ^ x >> 13) % 256) - 128;
}

/* Queries in bf16 and a cache of int8, whose bytes tiles may take as they are: against sums in double precision. */
static void expect_bytes(int group, float large, float loud, float loud_scale) {
    static int8_t key[KEYS * BYTES], value[KEYS * BYTES];
    static uint16_t asks[MOST_GROUP * BYTES], found[MOST_GROUP * BYTES];
    static float key_scale[KEYS], value_scale[KEYS];
    int32_t length = KEYS, first[2] = {0, 1}, page[KEYS];
    for (int t = 0; t < KEYS; t++) {
        page[t] = (t * 7) % KEYS;
        key_scale[t] = 0.01f + 0.0001f * (float)(t % 9);
        if (t == LOUD && loud != 0) key_scale[t] = 0.03f;
        value_scale[t] = t == LOUD ? loud_scale : 0.02f - 0.0001f * (float)(t % 5);
    }
    for (int i = 0; i < KEYS * BYTES; i++) {
        const int t = i / BYTES, d = i % BYTES;
        key[i] = (int8_t)(d == 0 ? 0 : noise(i));
        value[i] = (int8_t)noise(i + 7777777);
        if (t == LOUD && d > 0) key[i] = (int8_t)((float)noise(-d - 1) * loud);
        if (t == LOUD && loud != 0) value[i] = 0;
    }
    for (int i = 0; i < group * BYTES; i++)
        asks[i] = ejk_f32_to_bf16(i % BYTES == 0 ? large : (float)noise(-i % BYTES - 1) / 64);
    const ejk_unified_attention_args a = {
        .query = ejk_tensor_3d(asks, EJK_DTYPE_BF16, 1, group, BYTES),
        .key_cache = ejk_tensor_4d(key, EJK_DTYPE_I8, KEYS, 1, 1, BYTES),
        .value_cache = ejk_tensor_4d(value, EJK_DTYPE_I8, KEYS, 1, 1, BYTES),
        .kv_lens = list(&length, 1),
        .block_tables = ejk_tensor_2d(page, EJK_DTYPE_I32, 1, KEYS),
        .query_start_loc = list(first, 2),
        .k_scale = ejk_tensor_3d(key_scale, EJK_DTYPE_F32, KEYS, 1, 1),
        .v_scale = ejk_tensor_3d(value_scale, EJK_DTYPE_F32, KEYS, 1, 1),
        .out = ejk_tensor_3d(found, EJK_DTYPE_BF16, 1, group, BYTES),
    };
    EXPECT_OK(ejk_unified_attention(context, &a));
    for (int h = 0; h < group; h++) {
        double z[KEYS], top = -INFINITY, sum = 0, wanted[BYTES] = {0}, most = 0;
        for (int t = 0; t < KEYS; t++) {
            z[t] = 0;
            for (int d = 0; d < BYTES; d++)
                z[t] += (double)ejk_bf16_to_f32(asks[h * BYTES + d]) * key[t * BYTES + d];
            z[t] *= (double)key_scale[t] / sqrt(BYTES);
            top = fmax(top, z[t]);
        }
        for (int t = 0; t < KEYS; t++) {
            const double w = exp(z[t] - top);
            sum += w;
            for (int d = 0; d < BYTES; d++)
                wanted[d] += w * value[t * BYTES + d] * (double)value_scale[t];
        }
        for (int d = 0; d < BYTES; d++) most = fmax(most, fabs(wanted[d] / sum));
        for (int d = 0; d < BYTES; d++) {
            const double got = (double)ejk_bf16_to_f32(found[h * BYTES + d]);
            if (isfinite(most))
                EXPECT_NEAR(got, wanted[d] / sum, most / 64);
            else
                assert_true(!isfinite(got));
        }
    }
}

static void tiles_meet_bytes(void **state) {
    (void)state;
    for (int group = 2; group <= MOST_GROUP; group++) {
        expect_bytes(group, 1, 0, 0.02f);
        expect_bytes(group, 1, 0, -3);
        expect_bytes(group, 0x1p30f, 0, 0.02f); /* queries lose digits */
        expect_bytes(group, 1, 0.9f, 0.02f);    /* weights do, where the largest has values of 0 */
        expect_bytes(group, 1, 0, INFINITY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_queries_meet_bytes),
        cmocka_unit_test(a_nan_of_float8_in_a_key_is_seen),
        cmocka_unit_test(tiles_meet_bytes),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
