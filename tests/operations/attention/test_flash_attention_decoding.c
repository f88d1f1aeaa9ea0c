/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding reads keys head by head or in the order of memory, by blocksize_heads; which, changes no bit: calls on
 * every tier and in every type, with one KV head and several, sizes beside those of vectors, windows that hide parts
 * of blocks, values that are tiny or not finite, and one thread or two. That the bits are right is what the conformance
 * harness says (tests/conformance).
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <string.h>

enum { B = 2, ROOM = 400000, RESULTS = 8192 };

typedef struct sizes {
    int64_t queries, group, heads, keys, head_dim, value_dim;
} sizes;
static const sizes all[] = {
    {1, 4, 8, 300, 64, 64}, {1, 1, 5, 131, 80, 20}, {1, 3, 3, 64, 7, 33},
    {2, 2, 2, 97, 32, 48},  {1, 8, 1, 515, 16, 16}, {3, 1, 2, 77, 17, 65},
};
static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};

static float floats[ROOM], query[ROOM], key[ROOM], value[ROOM], first[RESULTS], again[RESULTS];

/* `tiny`: some numbers below those that every product takes. */
static void fill(ejk_dtype dtype, float *array, int64_t count, double step, bool tiny) {
    assert_true(count <= ROOM);
    for (int64_t i = 0; i < count; i++)
        floats[i] = (float)(sin(step * (double)i) * (tiny && i % 9973 > 9000 ? 1e-39 : 1));
    if (dtype == EJK_DTYPE_F32)
        memcpy(array, floats, (size_t)count * sizeof *floats);
    else if (dtype == EJK_DTYPE_BF16)
        ejk_convert_f32_to_bf16(floats, (uint16_t *)(void *)array, count);
    else
        ejk_convert_f32_to_f16(floats, (uint16_t *)(void *)array, count);
}

/* `distance` of prefetches into the second-level cache; 0 = as it is without one. */
static void run(ejk_context *context, ejk_dtype dtype, const sizes *n, bool window, int64_t side,
                int64_t distance, float *out) {
    ejk_flash_attention_args args = {
        .query = ejk_tensor_4d(query, dtype, B, n->queries, n->heads * n->group, n->head_dim),
        .key = ejk_tensor_4d(key, dtype, B, n->keys, n->heads, n->head_dim),
        .value = ejk_tensor_4d(value, dtype, B, n->keys, n->heads, n->value_dim),
        .out = ejk_tensor_4d(out, dtype, B, n->queries, n->heads * n->group, n->value_dim),
    };
    args.cfg.fwd_params.blocksize_keys = ejk_int(64);
    args.cfg.fwd_params.num_key_splits = ejk_int(3);
    args.cfg.fwd_params.blocksize_heads = ejk_int(side);
    args.cfg.fwd_params.prefetch_hint = ejk_int(distance > 0);
    args.cfg.fwd_params.prefetch_bytes = ejk_int(distance);
    if (window) args.sliding_window = (ejk_window){ejk_int(70), ejk_int(0)};
    memset(out, 0x7f, RESULTS * sizeof *out);
    EXPECT_OK(ejk_flash_attention(context, &args));
}

static void compare(ejk_context *context, ejk_dtype dtype, const sizes *n, bool window) {
    static const int64_t sides[] = {2, 3, 64};
    assert_true(B * n->queries * n->heads * n->group * n->value_dim <= RESULTS);
    run(context, dtype, n, window, 1, 0, first);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int64_t distance = 0; distance <= 4096; distance += 4096) {
            run(context, dtype, n, window, sides[i], distance, again);
            assert_memory_equal(first, again, sizeof first);
        }
}

static void try_type(ejk_context *context, ejk_dtype dtype, const sizes *n) {
    const int64_t keys = B * n->keys * n->heads, values = keys * n->value_dim;
    fill(dtype, query, B * n->queries * n->heads * n->group * n->head_dim, 0.7, false);
    fill(dtype, key, keys * n->head_dim, 0.3, false);
    fill(dtype, value, values, 0.11, true);
    compare(context, dtype, n, false);
    compare(context, dtype, n, true);
    fill(dtype, value, values, 0.11, false);
    compare(context, dtype, n, false);
    compare(context, dtype, n, true);
    memset(value + 2 * n->value_dim, 0xff, sizeof *value); /* NaN in every type */
    compare(context, dtype, n, false);
    compare(context, dtype, n, true);
}

static void heads_side_by_side_change_no_bit(void **state) {
    (void)state;
    static const ejk_isa tiers[] = {EJK_ISA_SCALAR, EJK_ISA_NEON, EJK_ISA_AVX2, EJK_ISA_AVX512,
                                    EJK_ISA_AVX512_BF16};
    for (size_t i = 0; i < 2 * (sizeof tiers / sizeof *tiers); i++) {
        const ejk_isa tier = tiers[i / 2];
        if (tier != EJK_ISA_SCALAR && !ejk_cpu()->tiers[tier]) continue;
        const ejk_context_options options = {.threads = 1 + (int32_t)(i % 2),
                                             .isa = ejk_isa_name(tier)};
        ejk_context *context = NULL;
        EXPECT_OK(ejk_context_create(&options, &context));
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                try_type(context, types[t], &all[k]);
        ejk_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_side_by_side_change_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
