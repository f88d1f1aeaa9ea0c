/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How results of the process functions are related: forward to backward, the whole to its shards, masks
 * held as numbers to the same held as elements, a call to its repetition.
 */
#include "support/soak.h"
#include "support/splash_call.h"

typedef ejk_status (*process_fn)(const ejk_process_mask_args *, ejk_splash_mask_info *);

static const process_fn ways[2] = {ejk_process_mask, ejk_process_mask_dkv};

static void expect_equal(const ejk_splash_mask_info *a, const ejk_splash_mask_info *b) {
    splash_expect_same(&a->data_next, &b->data_next);
    splash_expect_same(&a->mask_next, &b->mask_next);
    splash_expect_same(&a->block_mask, &b->block_mask);
    splash_expect_same(&a->partial_mask_blocks, &b->partial_mask_blocks);
    splash_expect_same(&a->q_sequence, &b->q_sequence);
    assert_ptr_equal(a->mask_function, b->mask_function);
}

/* ---- Forward and backward -------------------------------------------------------------------------- */

static void expect_transposed(const struct splash_call *call, const ejk_tensor *forward,
                              const ejk_tensor *backward) {
    assert_int_equal(ejk_tensor_present(forward), ejk_tensor_present(backward));
    if (!ejk_tensor_present(forward)) return;
    assert_int_equal(forward->shape[0], backward->shape[0]);
    assert_int_equal(backward->shape[1], call->bkv);
    assert_int_equal(backward->shape[2], call->bq);
    const uint8_t *a = forward->data, *b = backward->data;
    for (int64_t p = 0; p < forward->shape[0]; p++)
        for (int64_t i = 0; i < call->bq; i++)
            for (int64_t j = 0; j < call->bkv; j++)
                assert_int_equal(a[(p * call->bq + i) * call->bkv + j],
                                 b[(p * call->bkv + j) * call->bq + i]);
}

static void backward_has_the_blocks_of_forward_transposed(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 21, 1000);) {
        struct splash_call call;
        ejk_splash_mask_info forward, backward;
        splash_call_open(&r, &call);
        EXPECT_OK(ejk_process_mask(&call.args, &forward));
        EXPECT_OK(ejk_process_mask_dkv(&call.args, &backward));
        expect_transposed(&call, &forward.partial_mask_blocks, &backward.partial_mask_blocks);
        splash_expect_same(&forward.q_sequence, &backward.q_sequence);
        assert_ptr_equal(forward.mask_function, backward.mask_function);
        if (call.args.shrink_grid == EJK_FALSE) {
            splash_expect_same(&forward.block_mask, &backward.block_mask);
            for (int64_t c = 0; c < ejk_tensor_count(&forward.block_mask); c++)
                if (splash_at(&forward.block_mask, c) == 1 &&
                    ejk_tensor_present(&forward.mask_next))
                    assert_int_equal(splash_at(&forward.mask_next, c),
                                     splash_at(&backward.mask_next, c));
        }
        ejk_splash_mask_info_close(&forward);
        ejk_splash_mask_info_close(&backward);
        splash_call_close(&call);
    }
}

static void is_dkv_wins_over_the_name(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 26, 200);) {
        struct splash_call call;
        splash_call_open(&r, &call);
        for (int dkv = 0; dkv < 2; dkv++) {
            ejk_splash_mask_info named, told;
            call.args.is_dkv = EJK_UNSET;
            EXPECT_OK(ways[dkv](&call.args, &named));
            call.args.is_dkv = dkv ? EJK_TRUE : EJK_FALSE;
            EXPECT_OK(ways[!dkv](&call.args, &told));
            expect_equal(&named, &told);
            ejk_splash_mask_info_close(&named);
            ejk_splash_mask_info_close(&told);
        }
        splash_call_close(&call);
    }
}

/* ---- The whole and its shards ---------------------------------------------------------------------- */

/* The mask of one head shard and q shard alone, of elements. */
static void open_shard(const struct splash_call *call, int64_t s, int64_t t,
                       struct splash_call *shard) {
    int64_t heads = call->heads / call->args.head_shards.value;
    ejk_splash_mask *parts[4];
    *shard = *call;
    shard->heads = heads;
    shard->q = call->q / call->args.q_seq_shards.value;
    for (int64_t h = 0; h < heads; h++)
        parts[h] = splash_dense(call->dense + ((s * heads + h) * call->q + t * shard->q) * call->kv,
                                shard->q, call->kv);
    EXPECT_OK(
        ejk_multi_head_mask_create((const ejk_splash_mask *const *)parts, heads, &shard->mask));
    for (int64_t h = 0; h < heads; h++) ejk_splash_mask_release(parts[h]);
    shard->args.mask = shard->mask;
    shard->args.head_shards = shard->args.q_seq_shards = ejk_int(1);
}

/* A cell of the whole against the same cell of a shard. */
static void expect_same_cell(const struct splash_call *call, const ejk_splash_mask_info *whole,
                             int64_t cell, const struct splash_call *shard,
                             const ejk_splash_mask_info *part, int64_t part_cell, bool dkv,
                             int64_t first_row, int64_t row, int64_t column) {
    int64_t block_state = splash_at(&whole->block_mask, cell);
    assert_int_equal(block_state, splash_at(&part->block_mask, part_cell));
    if (block_state == 0) return;
    assert_int_equal(splash_at(&whole->data_next, cell), splash_at(&part->data_next, part_cell));
    for (int64_t i = row; i < row + call->bq; i++)
        for (int64_t j = column; j < column + call->bkv; j++)
            assert_int_equal(splash_told(call, whole, dkv, cell, first_row + i, j),
                             splash_told(shard, part, dkv, part_cell, i, j));
}

static void expect_shard(const struct splash_call *call, const ejk_splash_mask_info *whole,
                         bool dkv, int64_t s, int64_t t) {
    struct splash_call shard;
    ejk_splash_mask_info part;
    open_shard(call, s, t, &shard);
    EXPECT_OK(ways[dkv](&shard.args, &part));
    int64_t columns = call->kv / call->bkv, rows = shard.q / call->bq;
    int64_t all_rows = call->q / call->bq;
    for (int64_t h = 0; h < shard.heads; h++) {
        int64_t plane = (s * shard.heads + h) / (call->heads / whole->block_mask.shape[0]);
        int64_t part_plane = h / (shard.heads / part.block_mask.shape[0]);
        for (int64_t c = 0; c < rows * columns; c++)
            expect_same_cell(call, whole, (plane * all_rows + t * rows) * columns + c, &shard,
                             &part, part_plane * rows * columns + c, dkv, t * shard.q,
                             c / columns * call->bq, c % columns * call->bkv);
    }
    ejk_splash_mask_info_close(&part);
    ejk_splash_mask_release(shard.mask);
}

static void shards_are_what_they_are_alone(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 22, 500);) {
        struct splash_call call;
        splash_call_open(&r, &call);
        call.args.shrink_grid = EJK_FALSE;
        for (int dkv = 0; dkv < 2; dkv++) {
            ejk_splash_mask_info whole;
            EXPECT_OK(ways[dkv](&call.args, &whole));
            for (int64_t s = 0; s < call.args.head_shards.value; s++)
                for (int64_t t = 0; t < call.args.q_seq_shards.value; t++)
                    expect_shard(&call, &whole, dkv != 0, s, t);
            ejk_splash_mask_info_close(&whole);
        }
        splash_call_close(&call);
    }
}

/* ---- Numbers and elements -------------------------------------------------------------------------- */

/* All heads of a call become its first one: as it is, and as elements. */
static void alike(const struct splash_call *call, ejk_splash_mask *heads[2]) {
    const ejk_splash_mask *first = ejk_splash_mask_head(call->mask, 0), *list[4];
    ejk_splash_mask *elements = NULL;
    EXPECT_OK(ejk_numpy_mask_of(first, &elements));
    for (int i = 0; i < 2; i++) {
        for (int h = 0; h < 4; h++) list[h] = i ? elements : first;
        EXPECT_OK(ejk_multi_head_mask_create(list, call->heads, &heads[i]));
    }
    ejk_splash_mask_release(elements);
}

static void elements_give_the_blocks_that_numbers_give(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 23, 1000);) {
        struct splash_call call;
        ejk_splash_mask *heads[2];
        splash_call_open(&r, &call);
        alike(&call, heads);
        for (int dkv = 0; dkv < 2; dkv++) {
            ejk_splash_mask_info lazy, dense;
            call.args.mask = heads[0];
            EXPECT_OK(ways[dkv](&call.args, &lazy));
            call.args.mask = heads[1];
            EXPECT_OK(ways[dkv](&call.args, &dense));
            splash_expect_same(&lazy.block_mask, &dense.block_mask);
            splash_expect_same(&lazy.data_next, &dense.data_next);
            assert_null(dense.mask_function);
            assert_int_equal(ejk_splash_mask_computable(ejk_splash_mask_head(heads[0], 0)),
                             lazy.mask_function != NULL);
            assert_false(lazy.mask_function && ejk_tensor_present(&lazy.mask_next));
            if (!lazy.mask_function) expect_equal(&lazy, &dense);
            ejk_splash_mask_info_close(&lazy);
            ejk_splash_mask_info_close(&dense);
        }
        for (int i = 0; i < 2; i++) ejk_splash_mask_release(heads[i]);
        splash_call_close(&call);
    }
}

/* Elements that stay the caller's, in rows that lie apart. */
static void borrowed_elements_are_like_copied_ones(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 25, 200);) {
        uint8_t bytes[20 * 32];
        int64_t q = random_int(&r, 1, 20), kv = random_int(&r, 1, 24);
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = random_chance(&r, 0.5) ? 255 : 0;
        ejk_tensor array = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, q, kv);
        array.strides[0] = 32;
        ejk_splash_mask *copied = NULL, *borrowed = NULL;
        EXPECT_OK(ejk_numpy_mask_create(&array, &copied));
        EXPECT_OK(ejk_numpy_mask_borrow(&array, &borrowed));
        assert_true(ejk_splash_mask_equal(copied, borrowed));
        assert_true(ejk_splash_mask_hash(copied) == ejk_splash_mask_hash(borrowed));
        bytes[0] = !bytes[0];
        assert_false(ejk_splash_mask_equal(copied, borrowed));
        ejk_splash_mask_release(borrowed);
        borrowed = NULL;
        array.strides[1] = 2;
        if (kv > 1) EXPECT_FAIL(INVALID_LAYOUT, "", ejk_numpy_mask_borrow(&array, &borrowed));
        assert_null(borrowed);
        ejk_splash_mask_release(copied);
    }
}

/* ---- Again ----------------------------------------------------------------------------------------- */

static void a_call_repeated_answers_the_same(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 24, 500);) {
        struct splash_call call;
        splash_call_open(&r, &call);
        uint64_t hash = ejk_splash_mask_hash(call.mask);
        for (int dkv = 0; dkv < 2; dkv++) {
            ejk_splash_mask_info first, second;
            EXPECT_OK(ways[dkv](&call.args, &first));
            EXPECT_OK(ways[dkv](&call.args, &second));
            expect_equal(&first, &second);
            ejk_splash_mask_info_close(&first);
            ejk_splash_mask_info_close(&second);
        }
        uint8_t *elements = splash_elements(call.mask);
        assert_memory_equal(elements, call.dense, (size_t)(call.heads * call.q * call.kv));
        assert_true(ejk_splash_mask_hash(call.mask) == hash);
        free(elements);
        splash_call_close(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SOAK_TEST(backward_has_the_blocks_of_forward_transposed),
        SOAK_TEST(shards_are_what_they_are_alone),
        SOAK_TEST(elements_give_the_blocks_that_numbers_give),
        SOAK_TEST(borrowed_elements_are_like_copied_ones),
        SOAK_TEST(is_dkv_wins_over_the_name),
        SOAK_TEST(a_call_repeated_answers_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
