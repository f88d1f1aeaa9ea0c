/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskInfo of thousands of random masks against what follows from its description element by element:
 * states of blocks, the mask rebuilt from the result, and what must not change it.
 */
#include "support/soak.h"
#include "support/splash_call.h"
#include "support/test_threads.h"

/* ---- Elements and slices --------------------------------------------------------------------------- */

/* Elements of one mask, asked for one by one, from its parts. */
static bool obvious(const ejk_splash_mask *mask, int64_t row, int64_t column) {
    uint8_t byte = 7;
    ejk_tensor one = ejk_tensor_2d(&byte, EJK_DTYPE_BOOL, 1, 1);
    EXPECT_OK(ejk_splash_mask_read(mask, (int64_t[]){row, column}, (int64_t[]){row + 1, column + 1},
                                   &one));
    return byte;
}

static void slices_are_parts_of_the_whole(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 11, 500);) {
        int64_t q = random_int(&r, 1, 40), kv = random_int(&r, 1, 40);
        ejk_splash_mask *mask = splash_random_mask(&r, q, kv, 3);
        uint8_t *whole = splash_elements(mask), part[1600];
        int64_t start[2] = {random_int(&r, 0, q), random_int(&r, 0, kv)};
        int64_t stop[2] = {random_int(&r, start[0], q), random_int(&r, start[1], kv)};
        ejk_tensor out =
            ejk_tensor_2d(part, EJK_DTYPE_BOOL, stop[0] - start[0], stop[1] - start[1]);
        EXPECT_OK(ejk_splash_mask_read(mask, start, stop, &out));
        for (int64_t i = start[0]; i < stop[0]; i++)
            for (int64_t j = start[1]; j < stop[1]; j++) {
                bool value = whole[i * kv + j];
                assert_int_equal(part[(i - start[0]) * out.shape[1] + j - start[1]], value);
                assert_int_equal(obvious(mask, i, j), value);
            }
        free(whole);
        ejk_splash_mask_release(mask);
    }
}

/* ---- Rebuilding ------------------------------------------------------------------------------------ */

static void rebuild_plane(const struct splash_call *call, const ejk_splash_mask_info *info,
                          bool dkv, int64_t plane, uint8_t *out) {
    const int64_t *shape = info->block_mask.shape;
    int64_t shards = call->args.q_seq_shards.value, shard_rows = call->q / call->bq / shards;
    memset(out, 0, (size_t)(call->q * call->kv));
    for (int64_t w = 0; w < shape[1]; w++)
        for (int64_t j = 0; j < shape[2]; j++) {
            int64_t cell = (plane * shape[1] + w) * shape[2] + j,
                    next = splash_at(&info->data_next, cell);
            assert_in_range(next, 0, (dkv ? shard_rows : call->kv / call->bkv) - 1);
            if (splash_at(&info->block_mask, cell) == 0) continue;
            int64_t row = dkv ? w / (shape[1] / shards) * shard_rows + next : w;
            int64_t column = dkv ? j : next;
            for (int64_t i = row * call->bq; i < (row + 1) * call->bq; i++)
                for (int64_t k = column * call->bkv; k < (column + 1) * call->bkv; k++) {
                    assert_int_equal(out[i * call->kv + k], 0); /* no block comes twice */
                    out[i * call->kv + k] = splash_told(call, info, dkv, cell, i, k);
                }
        }
}

static void expect_states(const struct splash_call *call, const ejk_splash_mask_info *info) {
    int64_t counts[3] = {0}, planes = info->block_mask.shape[0], seen[3] = {0};
    for (int64_t i = 0; i < ejk_tensor_count(&info->block_mask); i++)
        seen[splash_at(&info->block_mask, i)]++;
    for (int64_t plane = 0; plane < planes; plane++) {
        const uint8_t *head = call->dense + plane * (call->heads / planes) * call->q * call->kv;
        for (int64_t i = 0; i < call->q; i += call->bq)
            for (int64_t j = 0; j < call->kv; j += call->bkv) {
                int64_t ones = 0;
                for (int64_t a = 0; a < call->bq; a++)
                    for (int64_t b = 0; b < call->bkv; b++)
                        ones += head[(i + a) * call->kv + j + b];
                counts[ones == call->bq * call->bkv ? 2 : ones > 0]++;
            }
    }
    assert_int_equal(seen[1], counts[1]);
    assert_int_equal(seen[2], counts[2]);
}

/* Different from each other, neither empty nor full, each used. */
static void expect_table(const struct splash_call *call, const ejk_splash_mask_info *info) {
    if (!ejk_tensor_present(&info->partial_mask_blocks)) return;
    int64_t count = info->partial_mask_blocks.shape[0], size = call->bq * call->bkv;
    const uint8_t *blocks = info->partial_mask_blocks.data;
    for (int64_t i = 0; i < count; i++) {
        bool used = false;
        for (int64_t j = 0; j < i; j++)
            assert_true(memcmp(blocks + i * size, blocks + j * size, (size_t)size) != 0);
        assert_non_null(memchr(blocks + i * size, 0, (size_t)size));
        assert_non_null(memchr(blocks + i * size, 1, (size_t)size));
        for (int64_t c = 0; c < ejk_tensor_count(&info->block_mask); c++)
            used |= splash_at(&info->block_mask, c) == 1 && splash_at(&info->mask_next, c) == i;
        assert_true(used);
    }
    for (int64_t c = 0; c < ejk_tensor_count(&info->mask_next); c++)
        assert_in_range(splash_at(&info->mask_next, c), 0, count - 1);
}

static void masks_are_rebuilt_from_the_result(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 1, 3000);) {
        struct splash_call call;
        splash_call_open(&r, &call);
        uint8_t *plane_bytes = malloc((size_t)(call.q * call.kv));
        for (int dkv = 0; dkv < 2; dkv++) {
            ejk_splash_mask_info info;
            EXPECT_OK((dkv ? ejk_process_mask_dkv : ejk_process_mask)(&call.args, &info));
            int64_t planes = info.block_mask.shape[0];
            assert_true(planes == call.heads || planes == call.args.head_shards.value);
            for (int64_t h = 0; h < call.heads; h++) {
                rebuild_plane(&call, &info, dkv != 0, h / (call.heads / planes), plane_bytes);
                assert_memory_equal(plane_bytes, call.dense + h * call.q * call.kv,
                                    (size_t)(call.q * call.kv));
            }
            expect_states(&call, &info);
            expect_table(&call, &info);
            ejk_splash_mask_info_close(&info);
        }
        free(plane_bytes);
        splash_call_close(&call);
    }
}

/* ---- What must not change the result --------------------------------------------------------------- */

static void threads_change_nothing(void **state) {
    (void)state;
    ejk_threads *threads = NULL;
    threads = test_threads_create(4);
    for (struct random r; soak_round(&r, 2, 200);) {
        struct splash_call call;
        ejk_splash_mask_info alone, together;
        splash_call_open(&r, &call);
        EXPECT_OK(ejk_process_mask(&call.args, &alone));
        call.args.threads = threads;
        EXPECT_OK(ejk_process_mask(&call.args, &together));
        splash_expect_same(&alone.data_next, &together.data_next);
        splash_expect_same(&alone.mask_next, &together.mask_next);
        splash_expect_same(&alone.block_mask, &together.block_mask);
        splash_expect_same(&alone.partial_mask_blocks, &together.partial_mask_blocks);
        splash_expect_same(&alone.q_sequence, &together.q_sequence);
        ejk_splash_mask_info_close(&alone);
        ejk_splash_mask_info_close(&together);
        splash_call_close(&call);
    }
    ejk_threads_destroy(threads);
}

/* A dynamic call tells the states of the static one, a plane per head, and keeps every block. */
static void dynamic_masks_agree_with_static_ones(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 3, 1000);) {
        struct splash_call call;
        ejk_splash_mask_info fixed, dynamic;
        splash_call_open(&r, &call);
        call.args.shrink_grid = EJK_FALSE;
        ejk_process_dynamic_mask_args args = {
            .mask = ejk_tensor_3d(call.dense, EJK_DTYPE_BOOL, call.heads, call.q, call.kv),
            .block_shape = {call.bq, call.bkv},
            .head_shards = call.args.head_shards,
            .q_seq_shards = call.args.q_seq_shards};
        EXPECT_OK(ejk_process_mask(&call.args, &fixed));
        EXPECT_OK(ejk_process_dynamic_mask(&args, &dynamic));
        int64_t cells = call.q / call.bq * (call.kv / call.bkv), size = call.bq * call.bkv;
        int64_t heads_per_plane = call.heads / fixed.block_mask.shape[0];
        const uint8_t *blocks = dynamic.partial_mask_blocks.data;
        for (int64_t c = 0; c < call.heads * cells; c++) {
            int64_t h = c / cells, i = c % cells / (call.kv / call.bkv) * call.bq;
            int64_t j = c % cells % (call.kv / call.bkv) * call.bkv;
            assert_int_equal(splash_at(&dynamic.block_mask, c),
                             splash_at(&fixed.block_mask, h / heads_per_plane * cells + c % cells));
            for (int64_t e = 0; e < size; e++)
                assert_int_equal(
                    blocks[c * size + e],
                    call.dense[(h * call.q + i + e / call.bkv) * call.kv + j + e % call.bkv]);
        }
        ejk_splash_mask_info_close(&fixed);
        ejk_splash_mask_info_close(&dynamic);
        splash_call_close(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SOAK_TEST(slices_are_parts_of_the_whole),
        SOAK_TEST(masks_are_rebuilt_from_the_result),
        SOAK_TEST(threads_change_nothing),
        SOAK_TEST(dynamic_masks_agree_with_static_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
