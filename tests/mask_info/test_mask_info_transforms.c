/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of mask infos: documented examples, random ones against the obvious, errors. */
#include "support/mask_world.h"

typedef struct limits {
    int64_t offset[4], left, right, chunk;
} limits;

static bool allowed(const limits *l, int64_t b, int64_t i, int64_t j) {
    int64_t at = i + l->offset[b];
    if (l->chunk > 0) return i / l->chunk == j / l->chunk && j <= at;
    return j >= at - l->left && j <= at + l->right;
}

static limits random_limits(struct random *r) {
    limits l = {.left = random_int(r, 0, 4), .right = random_int(r, 0, 3)};
    for (int b = 0; b < 4; b++) l.offset[b] = random_int(r, -3, 3);
    return l;
}

static ejk_mask_info *applied(const ejk_mask_info *base, const limits *l, int64_t batch, int kind) {
    ejk_mask_info *out = NULL;
    ejk_tensor offset = ejk_tensor_1d((void *)(uintptr_t)l->offset, EJK_DTYPE_I64, batch);
    ejk_mask_window_options window = {.window = ejk_window_of(l->left, l->right),
                                      .offset = &offset};
    if (kind == 0)
        EXPECT_OK(ejk_mask_info_apply_causal(base, &offset, &out));
    else if (kind == 1)
        EXPECT_OK(ejk_mask_info_apply_sliding_window(base, &window, &out));
    else
        EXPECT_OK(ejk_mask_info_apply_chunked(base, l->chunk, &offset, &out));
    return out;
}

static void limits_against_the_obvious(void **state) {
    (void)state;
    struct random r = {7};
    for (int round = 0; round < 600; round++) {
        int64_t b = random_int(&r, 1, 3), h = random_int(&r, 1, 2), q = random_int(&r, 1, 9),
                k = random_int(&r, 1, 9);
        ejk_mask_info *base = random_info(&r, b, h, q, k), *info = ejk_mask_info_retain(base);
        limits steps[3];
        int count = (int)random_int(&r, 1, 3);
        for (int s = 0; s < count; s++) {
            int kind = (int)random_int(&r, 0, 2);
            steps[s] = random_limits(&r);
            if (kind == 0) steps[s].left = 1000, steps[s].right = 0;
            if (kind == 2) steps[s].chunk = random_int(&r, 1, 5);
            ejk_mask_info *next = applied(info, &steps[s], b, kind);
            ejk_mask_info_release(info);
            info = next;
        }
        for (int64_t x = 0; x < b * ejk_mask_info_heads(base) * q * k; x++) {
            int64_t j = x % k, i = x / k % q, hh = x / k / q % ejk_mask_info_heads(base),
                    bb = x / k / q / ejk_mask_info_heads(base);
            bool wanted = mask_at(base, bb, hh, i, j);
            for (int s = 0; s < count; s++) wanted &= allowed(&steps[s], bb, i, j);
            assert_int_equal(mask_at(info, bb, hh, i, j), wanted);
        }
        ejk_mask_info_release(info);
        ejk_mask_info_release(base);
    }
}

static int64_t clip(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

static void windows_cut_out(void **state) {
    (void)state;
    struct random r = {8};
    for (int round = 0; round < 400; round++) {
        int64_t b = random_int(&r, 1, 3), q = random_int(&r, 1, 9), k = random_int(&r, 1, 9);
        ejk_mask_info *base = random_info(&r, b, 2, q, k), *cut = NULL;
        limits l = random_limits(&r);
        int64_t index[3];
        for (int i = 0; i < 3; i++) index[i] = random_int(&r, 0, q - 1);
        ejk_tensor offset = ejk_tensor_1d(l.offset, EJK_DTYPE_I64, b);
        ejk_tensor rows = ejk_tensor_1d(index, EJK_DTYPE_I64, b);
        bool decode = random_chance(&r, 0.5);
        ejk_mask_window_options options = {
            ejk_window_of(l.left, l.right), &offset,
            decode ? EJK_MASK_WINDOW_DECODE : EJK_MASK_WINDOW_PREFILL, &rows};
        EXPECT_OK(ejk_mask_info_apply_sliding_window(base, &options, &cut));
        int64_t width = l.left + l.right + 1 < k ? l.left + l.right + 1 : k;
        assert_int_equal(ejk_mask_info_kv_len(cut), width);
        assert_int_equal(ejk_mask_info_q_len(cut), decode ? 1 : q);
        for (int64_t bb = 0; bb < b; bb++)
            for (int64_t i = 0; i < (decode ? 1 : q); i++)
                for (int64_t j = 0; j < width; j++) {
                    int64_t row = decode ? index[bb] : i;
                    int64_t start =
                        decode ? clip(row + l.offset[bb] - l.left, 0, k - width) : k - width;
                    bool wanted =
                        mask_at(base, bb, 0, row, start + j) && allowed(&l, bb, row, start + j);
                    assert_int_equal(mask_at(cut, bb, 0, i, j), wanted);
                }
        ejk_mask_info_release(cut);
        ejk_mask_info_release(base);
    }
}

static void lengths_of_keys(void **state) {
    (void)state;
    struct random r = {9};
    for (int round = 0; round < 400; round++) {
        int64_t b = random_int(&r, 1, 3), q = random_int(&r, 1, 8), k = random_int(&r, 1, 8);
        ejk_mask_info *base = random_info(&r, b, 1, q, k), *cut = NULL;
        int64_t lens[3], q_len = random_int(&r, 0, q), w = random_int(&r, 1, 9);
        for (int i = 0; i < 3; i++) lens[i] = random_int(&r, 0, k);
        bool windowed = random_chance(&r, 0.5);
        ejk_tensor lengths = ejk_tensor_1d(lens, EJK_DTYPE_I64, b);
        ejk_opt_int window = {w, windowed};
        EXPECT_OK(ejk_mask_info_apply_kv_lengths(base, &lengths, q_len, window, &cut));
        int64_t width = windowed && w < k ? w : k;
        assert_int_equal(ejk_mask_info_q_len(cut), q_len);
        assert_int_equal(ejk_mask_info_kv_len(cut), width);
        for (int64_t bb = 0; bb < b; bb++)
            for (int64_t i = 0; i < q_len; i++)
                for (int64_t j = 0; j < width; j++) {
                    int64_t row = i + clip(lens[bb] - q_len, 0, q - q_len);
                    int64_t column = j + clip(lens[bb] - width, 0, k - width);
                    bool wanted = mask_at(base, bb, 0, row, column) && column < lens[bb];
                    assert_int_equal(mask_at(cut, bb, 0, i, j), wanted);
                }
        ejk_mask_info_release(cut);
        ejk_mask_info_release(base);
    }
}

static void types_of_tokens(void **state) {
    (void)state;
    struct random r = {10};
    for (int round = 0; round < 400; round++) {
        int64_t b = random_int(&r, 1, 3), q = random_int(&r, 1, 7), k = random_int(&r, 1, 7);
        int64_t types_of = random_chance(&r, 0.5) || b == 1 ? random_int(&r, 1, 3) : 1;
        if (b > 1 && types_of > 1) types_of = b;
        ejk_mask_info *base = random_info(&r, b, 1, q, k), *joined = NULL;
        int32_t tq[32], tk[32];
        for (int i = 0; i < 32; i++) {
            tq[i] = (int32_t)random_int(&r, 0, 2);
            tk[i] = (int32_t)random_int(&r, 0, 2);
        }
        ejk_mask_token_types types = {ejk_tensor_2d(tq, EJK_DTYPE_I32, types_of, q),
                                      ejk_tensor_2d(tk, EJK_DTYPE_I32, types_of, k),
                                      (ejk_mask_combine)random_int(&r, 0, 2),
                                      (ejk_mask_zero_policy)random_int(&r, 0, 3), 0};
        EXPECT_OK(ejk_mask_info_apply_token_type_ids(base, &types, &joined));
        int64_t batches = b > types_of ? b : types_of;
        assert_int_equal(ejk_mask_info_batch_size(joined), batches);
        for (int64_t x = 0; x < batches * q * k; x++) {
            int64_t j = x % k, i = x / k % q, bb = x / k / q, tb = types_of == 1 ? 0 : bb;
            int32_t own = tq[tb * q + i], other = tk[tb * k + j];
            bool zq =
                types.zero_policy == EJK_MASK_ZERO_Q || types.zero_policy == EJK_MASK_ZERO_BOTH;
            bool zk =
                types.zero_policy == EJK_MASK_ZERO_KV || types.zero_policy == EJK_MASK_ZERO_BOTH;
            bool same = own == other && !(zq && own == 0) && !(zk && other == 0);
            bool was = mask_at(base, b == 1 ? 0 : bb, 0, i, j);
            bool wanted = types.combine == EJK_MASK_UNION       ? was || same
                          : types.combine == EJK_MASK_INTERSECT ? was && same
                                                                : same;
            assert_int_equal(mask_at(joined, bb, 0, i, j), wanted);
        }
        ejk_tensor ids;
        EXPECT_OK(ejk_mask_info_q_segment_ids(joined, &ids));
        for (int64_t i = 0; types.combine != EJK_MASK_UNION && i < q; i++)
            assert_int_equal(((int32_t *)ids.data)[i], tq[i] == 0 ? -1 : tq[i]);
        ejk_mask_info_release(joined);
        ejk_mask_info_release(base);
    }
}

static void documented_examples(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 1, 1, 1, 1, 1, -1), NULL), *out = NULL;
    ejk_tensor t;
    EXPECT_OK(ejk_mask_info_apply_chunked(info, 2, NULL, &out));
    EXPECT_OK(ejk_mask_info_q_segment_ids(out, &t));
    HOLDS(t, 1, 1, 2, 2, 3, -1);
    ejk_mask_info_release(out);
    ejk_mask_info_release(info);

    info = of_segments(IDS(1, 0, 0, 0, 0), NULL);
    ejk_mask_info *causal = NULL;
    EXPECT_OK(ejk_mask_info_apply_causal(info, NULL, &causal));
    ejk_mask_token_types types = {.q_types = IDS(1, 0, 1, 1, 0)};
    EXPECT_OK(ejk_mask_info_apply_token_type_ids(causal, &types, &out));
    EXPECT_OK(ejk_mask_info_attention_mask(out, &t));
    HOLDS(t, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1);
    ejk_mask_info_release(out);
    ejk_mask_window_options two = {.window = ejk_window_of(2, 2)};
    EXPECT_OK(ejk_mask_info_apply_sliding_window(causal, &two, &out));
    EXPECT_OK(ejk_mask_info_attention_mask(out, &t));
    HOLDS(t, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1);
    ejk_mask_info_release(out);
    ejk_mask_info_release(causal);
    ejk_mask_info_release(info);
    uint8_t bytes[16];
    ejk_tensor chunked = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 4, 4);
    EXPECT_OK(ejk_create_chunked_attention_mask(2, 0, &chunked));
    HOLDS(chunked, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1);
}

static void positions_follow_cuts(void **state) {
    (void)state;
    ejk_mask_info *info = NULL, *cut = NULL;
    ejk_tensor ids = IDS(1, 0, 0, 0, 0), t;
    ejk_mask_info_options options = {.q_positions = IDS(1, 10, 11, 12, 13),
                                     .kv_positions = IDS(1, 20, 21, 22, 23)};
    EXPECT_OK(ejk_mask_info_from_segments(&ids, NULL, false, &options, &info));
    EXPECT_OK(ejk_mask_info_apply_causal(info, NULL, &cut));
    EXPECT_OK(ejk_mask_info_q_positions(cut, &t));
    HOLDS(t, 10, 11, 12, 13);
    ejk_mask_info_release(cut);
    ejk_tensor lengths = ejk_tensor_1d((int32_t[]){3}, EJK_DTYPE_I32, 1);
    EXPECT_OK(ejk_mask_info_apply_kv_lengths(info, &lengths, 2, ejk_int(2), &cut));
    EXPECT_OK(ejk_mask_info_q_positions(cut, &t));
    HOLDS(t, 11, 12);
    EXPECT_OK(ejk_mask_info_kv_positions(cut, &t));
    HOLDS(t, 21, 22);
    ejk_mask_info_release(cut);
    ejk_mask_info_release(info);
}

static void errors(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(2, 0, 0, 0, 1, 1, 1), NULL), *out = NULL, *none = NULL;
    EXPECT_OK(ejk_mask_info_tree_unflatten(&(ejk_mask_info_fields){0}, &none));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_mask_info_apply_causal(none, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_mask_info_apply_chunked(none, 2, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "info", ejk_mask_info_apply_causal(NULL, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is 0",
                ejk_mask_info_apply_chunked(info, 0, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is -4",
                ejk_mask_info_apply_chunked(info, -4, NULL, &out));
    ejk_tensor three = ejk_tensor_1d((int32_t[]){1, 2, 3}, EJK_DTYPE_I32, 3);
    EXPECT_FAIL(INVALID_SHAPE, "offset has 3", ejk_mask_info_apply_causal(info, &three, &out));
    ejk_tensor real = ejk_tensor_1d((float[]){1}, EJK_DTYPE_F32, 1);
    EXPECT_FAIL(INVALID_DTYPE, "offset has type float32",
                ejk_mask_info_apply_causal(info, &real, &out));
    ejk_mask_window_options window = {.window = ejk_window_of(-1, 0)};
    EXPECT_FAIL(INVALID_ARGUMENT, "left of window is -1",
                ejk_mask_info_apply_sliding_window(info, &window, &out));
    window =
        (ejk_mask_window_options){.window = ejk_window_of(1, 0), .mode = EJK_MASK_WINDOW_DECODE};
    EXPECT_FAIL(INVALID_ARGUMENT, "index is NULL",
                ejk_mask_info_apply_sliding_window(info, &window, &out));
    ejk_tensor index = ejk_tensor_1d((int32_t[]){3}, EJK_DTYPE_I32, 1);
    window.index = &index;
    EXPECT_FAIL(INVALID_ARGUMENT, "index of batch 0 is 3",
                ejk_mask_info_apply_sliding_window(info, &window, &out));
    ejk_tensor lens = ejk_tensor_1d((int32_t[]){4, 1}, EJK_DTYPE_I32, 2);
    ejk_opt_int unset = {0};
    EXPECT_FAIL(INVALID_ARGUMENT, "element 0 of lengths is 4",
                ejk_mask_info_apply_kv_lengths(info, &lens, 1, unset, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "q_len is 4",
                ejk_mask_info_apply_kv_lengths(info, &lens, 4, unset, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "sliding_window is 0",
                ejk_mask_info_apply_kv_lengths(info, &lens, 1, ejk_int(0), &out));
    ejk_mask_token_types types = {.q_types = IDS(3, 0, 0, 0, 0, 0, 0, 0, 0, 0)};
    EXPECT_FAIL(INVALID_SHAPE, "batch of 3",
                ejk_mask_info_apply_token_type_ids(info, &types, &out));
    types.q_types = three;
    EXPECT_FAIL(INVALID_SHAPE, "rank 1", ejk_mask_info_apply_token_type_ids(info, &types, &out));
    types = (ejk_mask_token_types){.q_types = IDS(1, 0, 0, 0), .combine = (ejk_mask_combine)3};
    EXPECT_FAIL(INVALID_ARGUMENT, "combine is 3",
                ejk_mask_info_apply_token_type_ids(info, &types, &out));
    assert_null(out);
    ejk_mask_info_release(none);
    ejk_mask_info_release(info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_against_the_obvious),
        cmocka_unit_test(windows_cut_out),
        cmocka_unit_test(lengths_of_keys),
        cmocka_unit_test(types_of_tokens),
        cmocka_unit_test(documented_examples),
        cmocka_unit_test(positions_follow_cuts),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
