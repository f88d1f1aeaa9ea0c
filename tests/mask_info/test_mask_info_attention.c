/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with a MaskInfo equals attention with the dense mask it stands for; splash masks there and back. */
#include "support/mask_world.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <string.h>

enum { MOST = 4096, D = 4 };
static float q[MOST], k[MOST], v[MOST], got[MOST], wanted[MOST];
static ejk_context *context;

static int setup(void **state) {
    (void)state;
    struct random r = {5};
    for (int i = 0; i < MOST; i++) {
        q[i] = (float)random_normal(&r);
        k[i] = (float)random_normal(&r);
        v[i] = (float)random_normal(&r);
    }
    return ejk_context_create(NULL, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_flash_attention_args call(int64_t b, int64_t t, int64_t s, float *out) {
    return (ejk_flash_attention_args){
        .query = ejk_tensor_4d(q, EJK_DTYPE_F32, b, t, 2, D),
        .key = ejk_tensor_4d(k, EJK_DTYPE_F32, b, s, 2, D),
        .value = ejk_tensor_4d(v, EJK_DTYPE_F32, b, s, 2, D),
        .out = ejk_tensor_4d(out, EJK_DTYPE_F32, b, t, 2, D),
    };
}

/* A random object after up to three random limits. */
static ejk_mask_info *limited(struct random *r, int64_t b, int64_t t, int64_t s) {
    ejk_mask_info *info = random_info(r, b, 2, t, s);
    for (int64_t steps = random_int(r, 0, 3); steps > 0; steps--) {
        int64_t offsets[3];
        for (int i = 0; i < 3; i++) offsets[i] = random_int(r, -2, 5);
        ejk_tensor offset = ejk_tensor_1d(offsets, EJK_DTYPE_I64, random_chance(r, 0.7) ? 1 : b);
        ejk_mask_window_options window = {.offset = &offset};
        if (random_chance(r, 0.7)) window.window.left = ejk_int(random_int(r, 0, 6));
        if (random_chance(r, 0.5)) window.window.right = ejk_int(random_int(r, 0, 6));
        ejk_mask_info *next = NULL;
        switch (random_int(r, 0, 2)) {
        case 0: EXPECT_OK(ejk_mask_info_apply_causal(info, &offset, &next)); break;
        case 1: EXPECT_OK(ejk_mask_info_apply_sliding_window(info, &window, &next)); break;
        default: EXPECT_OK(ejk_mask_info_apply_chunked(info, random_int(r, 1, 5), &offset, &next));
        }
        ejk_mask_info_release(info);
        info = next;
    }
    return info;
}

static void calls_equal_dense_ones(void **state) {
    (void)state;
    struct random r = {11};
    int numbers = 0, ids = 0, dense = 0;
    for (int round = 0; round < 300; round++) {
        int64_t b = random_int(&r, 1, 3), t = random_int(&r, 1, 12), s = random_int(&r, 1, 14);
        ejk_mask_info *info = limited(&r, b, t, s);
        bool own = random_chance(&r, 0.3);
        ejk_flash_attention_args plain = call(b, t, s, wanted), masked = call(b, t, s, got);
        plain.causal = masked.causal = own;
        EXPECT_OK(ejk_mask_info_attention_mask(info, &plain.attention_mask));
        EXPECT_OK(ejk_flash_attention(context, &plain));
        EXPECT_OK(ejk_flash_attention_masked(context, &masked, info));
        for (int64_t i = 0; i < b * t * 2 * D; i++) EXPECT_NEAR(got[i], wanted[i], 1e-5);
        ejk_flash_attention_args set = masked;
        EXPECT_OK(ejk_flash_attention_set_mask_info(&set, info));
        numbers += set.causal_offset.set;
        ids += ejk_tensor_present(&set.q_segment_ids);
        dense += ejk_tensor_present(&set.attention_mask);
        ejk_mask_info_release(info);
    }
    assert_true(numbers > 10 && ids > 10 && dense > 10); /* every form was met */
}

/* Arguments of gradients get what those of the call get. */
static void gradients_take_one_too(void **state) {
    (void)state;
    struct random r = {13};
    for (int round = 0; round < 50; round++) {
        ejk_mask_info *info = limited(&r, 2, 5, 7);
        ejk_flash_attention_args flash = call(2, 5, 7, got);
        flash.causal = random_chance(&r, 0.5);
        ejk_attention_vjp_args dense = {.causal = flash.causal};
        ejk_scaled_dot_product_attention_vjp_args scaled = {.causal = flash.causal};
        ejk_flash_attention_vjp_args vjp = {.d_out = flash.out};
        memcpy(&vjp, &flash, offsetof(ejk_flash_attention_args, out));
        EXPECT_OK(ejk_flash_attention_set_mask_info(&flash, info));
        EXPECT_OK(ejk_flash_attention_vjp_set_mask_info(&vjp, info));
        EXPECT_OK(ejk_attention_vjp_set_mask_info(&dense, info));
        EXPECT_OK(ejk_scaled_dot_product_attention_vjp_set_mask_info(&scaled, info));
        assert_memory_equal(&vjp, &flash, offsetof(ejk_flash_attention_args, out));
        assert_ptr_equal(vjp.d_out.data, got);
#define SAME(field)                                                                                \
    assert_memory_equal(&dense.field, &flash.field, sizeof flash.field);                           \
    assert_memory_equal(&scaled.field, &flash.field, sizeof flash.field)
        SAME(attention_mask);
        SAME(q_segment_ids);
        SAME(kv_segment_ids);
        SAME(causal);
        SAME(causal_offset);
        SAME(sliding_window);
#undef SAME
        EXPECT_FAIL(INVALID_ARGUMENT, "info is NULL",
                    ejk_attention_vjp_set_mask_info(&dense, NULL));
        ejk_mask_info_release(info);
    }
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_flash_attention_vjp_set_mask_info(NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_attention_vjp_set_mask_info(NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "args",
                ejk_scaled_dot_product_attention_vjp_set_mask_info(NULL, NULL));
}

/* Block-sparse attention goes by the positions of an object besides, where it hides by itself. */
static void blocks_take_positions_too(void **state) {
    (void)state;
    struct random r = {14};
    for (int round = 0; round < 100; round++) {
        const int64_t t = random_int(&r, 1, 12), s = random_int(&r, 1, 14);
        int32_t places[2][16];
        uint8_t shown[2 * 16 * 16];
        ejk_tensor mask;
        ejk_mask_info *bare = limited(&r, 1, t, s), *info = NULL;
        for (int i = 0; i < 16; i++)
            for (int side = 0; side < 2; side++) places[side][i] = (int32_t)random_int(&r, 0, 9);
        const ejk_mask_info_fields fields = {
            .q_positions = ejk_tensor_2d(places[0], EJK_DTYPE_I32, 1, t),
            .kv_positions = ejk_tensor_2d(places[1], EJK_DTYPE_I32, 1, s)};
        EXPECT_OK(ejk_mask_info_replace(bare, &fields, &info));
        EXPECT_OK(ejk_mask_info_attention_mask(info, &mask));
        const int64_t heads = mask.shape[1];
        for (int64_t n = 0; n < heads * t * s; n++)
            shown[n] = mask_at(info, 0, n / s / t, n / s % t, n % s) &&
                       places[1][n % s] <= places[0][n / s % t];
        ejk_flash_attention_args plain = call(1, t, s, wanted);
        plain.attention_mask = ejk_tensor_4d(shown, EJK_DTYPE_BOOL, 1, heads, t, s);
        EXPECT_OK(ejk_flash_attention(context, &plain));
        ejk_blocksparse_attention_args args = {.query = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 2, t, D),
                                               .key = ejk_tensor_4d(k, EJK_DTYPE_F32, 1, 2, s, D),
                                               .value = ejk_tensor_4d(v, EJK_DTYPE_F32, 1, 2, s, D),
                                               .causal = true,
                                               .out =
                                                   ejk_tensor_4d(got, EJK_DTYPE_F32, 1, 2, t, D)};
        ejk_tensor *swapped[] = {&args.query, &args.key, &args.value, &args.out};
        for (int i = 0; i < 4; i++) {
            swapped[i]->strides[1] = D;
            swapped[i]->strides[2] = 2 * D;
        }
        ejk_blocksparse_attention_vjp_args vjp = {.out = args.out};
        EXPECT_OK(ejk_blocksparse_attention_set_masks(&args, info));
        EXPECT_OK(ejk_blocksparse_attention_vjp_set_masks(&vjp, info));
        assert_memory_equal(&vjp.attention_mask, &args.attention_mask, sizeof vjp.attention_mask);
        assert_memory_equal(&vjp.q_positions, &args.q_positions, sizeof vjp.q_positions);
        EXPECT_OK(ejk_blocksparse_attention(context, &args));
        for (int64_t i = 0; i < t * 2 * D; i++) EXPECT_NEAR(got[i], wanted[i], 1e-5);
        EXPECT_FAIL(INVALID_ARGUMENT, "q_positions is given beside mask_info",
                    ejk_blocksparse_attention_set_masks(&args, info));
        args.q_positions = args.kv_positions = (ejk_tensor){0};
        EXPECT_FAIL(INVALID_ARGUMENT, "is given beside mask_info",
                    ejk_blocksparse_attention_set_masks(&args, info));
        ejk_mask_info_release(info);
        ejk_mask_info_release(bare);
    }
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_blocksparse_attention_set_masks(NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_blocksparse_attention_vjp_set_masks(NULL, NULL));
}

static void nothing_dense_for_structure(void **state) {
    (void)state;
    int64_t shape[2] = {1, 1 << 20}; /* a dense mask would be 1 TiB */
    int32_t *zeros = calloc(1 << 20, sizeof *zeros);
    assert_non_null(zeros);
    ejk_tensor ids = ejk_tensor_contiguous(zeros, EJK_DTYPE_I32, 2, shape);
    ejk_mask_info *packed = of_segments(ids, NULL), *causal = NULL, *local = NULL;
    ejk_mask_window_options window = {.window = {.left = {1023, true}}};
    EXPECT_OK(ejk_mask_info_apply_causal(packed, NULL, &causal));
    EXPECT_OK(ejk_mask_info_apply_sliding_window(causal, &window, &local));
    ejk_mask_info_args args;
    EXPECT_OK(ejk_mask_info_attention_args(local, true, &args));
    assert_true(args.causal && args.causal_offset.value == 0);
    assert_true(args.sliding_window.left.value == 1023 && !args.sliding_window.right.set);
    assert_false(ejk_tensor_present(&args.attention_mask));
    ejk_splash_mask *mask = NULL;
    EXPECT_OK(ejk_mask_info_to_splash_mask(local, 0, 4, &mask));
    assert_int_equal(ejk_splash_mask_kind_of(ejk_splash_mask_head(mask, 3)), EJK_SPLASH_MASK_LOCAL);
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_mask_info_to_splash_mask(causal, 0, 1, &mask));
    assert_int_equal(ejk_splash_mask_kind_of(ejk_splash_mask_head(mask, 0)),
                     EJK_SPLASH_MASK_CAUSAL);
    ejk_splash_mask_release(mask);
    ejk_mask_info_release(local);
    ejk_mask_info_release(causal);
    ejk_mask_info_release(packed);
    free(zeros);
}

static void splash_masks_and_back(void **state) {
    (void)state;
    struct random r = {12};
    for (int round = 0; round < 300; round++) {
        int64_t b = random_int(&r, 1, 3), t = random_int(&r, 1, 10), s = random_int(&r, 1, 10);
        ejk_mask_info *info = limited(&r, b, t, s), *back = NULL;
        if (random_chance(&r, 0.5)) { /* tokens of one segment, of which structure is known */
            ejk_mask_info *whole = NULL;
            int32_t ids[64] = {0};
            ejk_tensor q_ids = ejk_tensor_2d(ids, EJK_DTYPE_I32, b, t);
            ejk_tensor kv_ids = ejk_tensor_2d(ids, EJK_DTYPE_I32, b, s);
            ejk_tensor offset = ejk_tensor_1d((int64_t[]){random_int(&r, -2, 2)}, EJK_DTYPE_I64, 1);
            EXPECT_OK(ejk_mask_info_from_segments(&q_ids, &kv_ids, false, NULL, &whole));
            ejk_mask_info_release(info);
            EXPECT_OK(random_chance(&r, 0.5) ? ejk_mask_info_apply_chunked(whole, 3, &offset, &info)
                                             : ejk_mask_info_apply_causal(whole, &offset, &info));
            ejk_mask_info_release(whole);
        }
        int64_t batch = random_int(&r, 0, b - 1), heads = 2;
        ejk_splash_mask *mask = NULL;
        EXPECT_OK(ejk_mask_info_to_splash_mask(info, batch, heads, &mask));
        EXPECT_OK(ejk_mask_info_from_splash_mask(mask, 2, NULL, &back));
        for (int64_t x = 0; x < heads * t * s; x++) {
            int64_t j = x % s, i = x / s % t, h = x / s / t;
            bool is = mask_at(info, batch, ejk_mask_info_heads(info) == 1 ? 0 : h, i, j);
            assert_int_equal(mask_at(back, 0, h, i, j), is);
            assert_int_equal(mask_at(back, 1, h, i, j), is);
        }
        ejk_mask_info_release(back);
        ejk_splash_mask_release(mask);
        ejk_mask_info_release(info);
    }
}

static void errors(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 0, 0, 0), NULL), *none = NULL;
    ejk_flash_attention_args args = call(1, 3, 3, got);
    for (int i = 0; i < MOST; i++) got[i] = -7;
    EXPECT_FAIL(INVALID_ARGUMENT, "args is NULL", ejk_flash_attention_set_mask_info(NULL, info));
    EXPECT_FAIL(INVALID_ARGUMENT, "info is NULL", ejk_flash_attention_set_mask_info(&args, NULL));
    args.q_segment_ids = IDS(1, 0, 0, 0);
    EXPECT_FAIL(INVALID_ARGUMENT, "q_segment_ids is given beside mask_info",
                ejk_flash_attention_masked(context, &args, info));
    args = call(1, 2, 3, got); /* a mask of other lengths */
    EXPECT_FAIL(INVALID_SHAPE, "q_segment_ids", ejk_flash_attention_masked(context, &args, info));
    EXPECT_OK(ejk_mask_info_tree_unflatten(&(ejk_mask_info_fields){0}, &none));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_flash_attention_masked(context, &args, none));
    assert_true(got[0] == -7);
    ejk_splash_mask *mask = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "batch is 1", ejk_mask_info_to_splash_mask(info, 1, 1, &mask));
    EXPECT_FAIL(INVALID_ARGUMENT, "heads is 0", ejk_mask_info_to_splash_mask(info, 0, 0, &mask));
    ejk_mask_info_release(none);
    ejk_mask_info_release(info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_equal_dense_ones),    cmocka_unit_test(gradients_take_one_too),
        cmocka_unit_test(blocks_take_positions_too), cmocka_unit_test(nothing_dense_for_structure),
        cmocka_unit_test(splash_masks_and_back),     cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
