/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MaskInfo of thousands of random masks against what follows from its description element by element:
 * states of blocks, the mask rebuilt from the result, and what must not change it.
 */
#include "support/random.h"
#include "support/splash_masks.h"

enum { ROUNDS = 3000 };

/* ---- Random calls ---------------------------------------------------------------------------------- */

struct call {
    int64_t q, kv, bq, bkv, heads;
    ejk_splash_mask *mask;
    uint8_t *dense; /* [heads][q][kv] */
    ejk_process_mask_args args;
};

static bool user_predicate(void *user, int64_t q, int64_t kv) {
    return (q * 7 + kv * 3) % *(const int64_t *)user == 0;
}

static int64_t moduli[3] = {1, 2, 5};

static ejk_opt_int random_side(struct random *r) {
    return random_chance(r, 0.3) ? (ejk_opt_int){0, false} : ejk_int(random_int(r, -4, 12));
}

static ejk_splash_mask *random_computable(struct random *r, int64_t q, int64_t kv) {
    int32_t order[64];
    int64_t shape[2] = {q, kv};
    ejk_computable_mask_options options = {.q_sequence = order, .q_sequence_length = q};
    int way = (int)random_int(r, 0, 3);
    for (int32_t i = 0; i < q; i++)
        order[i] = way == 1 ? (int32_t)random_int(r, -5, 70) : i + (way == 2 ? i / 4 % 2 * 9 : 3);
    if (way == 0) options.q_sequence = NULL;
    ejk_splash_mask *mask = NULL;
    switch (random_int(r, 0, 3)) {
    case 0:
        EXPECT_OK(ejk_causal_mask_create(shape, random_int(r, -20, 20), &options, &mask));
        break;
    case 1: {
        ejk_window window = {random_side(r), random_side(r)};
        EXPECT_OK(ejk_local_mask_create(shape, window, random_int(r, -9, 9), &options, &mask));
        break;
    }
    case 2:
        EXPECT_OK(ejk_chunked_causal_mask_create(shape, random_int(r, 1, 20), &options, &mask));
        break;
    default:
        EXPECT_OK(ejk_function_mask_create(shape, user_predicate, &RANDOM_OF(r, moduli), &options,
                                           &mask));
    }
    return mask;
}

static ejk_splash_mask *random_dense(struct random *r, int64_t q, int64_t kv) {
    uint8_t bytes[64 * 64];
    double density = RANDOM_OF(r, ((double[]){0, 0.02, 0.5, 0.98, 1}));
    for (int64_t i = 0; i < q * kv; i++) bytes[i] = random_chance(r, density) ? 255 : 0;
    return splash_dense(bytes, q, kv);
}

static ejk_splash_mask *random_mask(struct random *r, int64_t q, int64_t kv, int depth) {
    ejk_splash_mask *mask = NULL, *left, *right;
    int64_t choice = random_int(r, 0, depth > 0 ? 9 : 5);
    if (choice < 4) return random_computable(r, q, kv);
    if (choice == 4) return random_dense(r, q, kv);
    if (choice == 5) {
        EXPECT_OK(ejk_full_mask_create((int64_t[]){q, kv}, &mask));
        return mask;
    }
    left = random_mask(r, q, kv, depth - 1);
    right = random_mask(r, q, kv, depth - 1);
    if (choice == 6)
        EXPECT_OK(ejk_logical_not_create(left, &mask));
    else if (choice == 7)
        EXPECT_OK(ejk_logical_or_create(left, right, &mask));
    else
        EXPECT_OK(ejk_logical_and_create(left, right, &mask));
    ejk_splash_mask_release(left);
    ejk_splash_mask_release(right);
    return mask;
}

static void open_call(struct random *r, struct call *call) {
    int64_t q_shards = random_int(r, 1, 3), head_shards = random_int(r, 1, 2);
    call->bq = random_int(r, 1, 5);
    call->bkv = random_int(r, 1, 5);
    call->q = call->bq * q_shards * random_int(r, 1, 4);
    call->kv = call->bkv * random_int(r, 1, 8);
    call->heads = head_shards * random_int(r, 1, 2);
    ejk_splash_mask *kinds[2], *heads[4];
    for (int i = 0; i < 2; i++) kinds[i] = random_mask(r, call->q, call->kv, 3);
    for (int64_t i = 0; i < call->heads; i++) heads[i] = kinds[random_chance(r, 0.3)];
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)heads, call->heads,
                                         &call->mask));
    for (int i = 0; i < 2; i++) ejk_splash_mask_release(kinds[i]);
    call->dense = splash_elements(call->mask);
    call->args =
        (ejk_process_mask_args){.mask = call->mask,
                                .block_shape = {call->bq, call->bkv},
                                .shrink_grid = random_chance(r, 0.5) ? EJK_UNSET : EJK_FALSE,
                                .downcast_smem_data = random_chance(r, 0.5) ? EJK_UNSET : EJK_FALSE,
                                .head_shards = ejk_int(head_shards),
                                .q_seq_shards = ejk_int(q_shards)};
}

static void close_call(struct call *call) {
    free(call->dense);
    ejk_splash_mask_release(call->mask);
}

static int64_t at(const ejk_tensor *tensor, int64_t index) {
    if (tensor->dtype == EJK_DTYPE_I8) return ((const int8_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I16) return ((const int16_t *)tensor->data)[index];
    return ((const int32_t *)tensor->data)[index];
}

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
    struct random r = {11};
    for (int round = 0; round < 500; round++) {
        int64_t q = random_int(&r, 1, 40), kv = random_int(&r, 1, 40);
        ejk_splash_mask *mask = random_mask(&r, q, kv, 3);
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

/* The element of a visited block that the result tells of. */
static bool told(const struct call *call, const ejk_splash_mask_info *info, bool dkv, int64_t cell,
                 int64_t row, int64_t column) {
    if (info->mask_function != NULL)
        return ejk_splash_mask_call(info->mask_function, at(&info->q_sequence, row), column);
    if (at(&info->block_mask, cell) == 2) return true;
    int64_t a = row % call->bq, b = column % call->bkv, block = at(&info->mask_next, cell);
    const uint8_t *bytes =
        (const uint8_t *)info->partial_mask_blocks.data + block * call->bq * call->bkv;
    return dkv ? bytes[b * call->bq + a] : bytes[a * call->bkv + b];
}

static void rebuild_plane(const struct call *call, const ejk_splash_mask_info *info, bool dkv,
                          int64_t plane, uint8_t *out) {
    const int64_t *shape = info->block_mask.shape;
    int64_t shards = call->args.q_seq_shards.value, shard_rows = call->q / call->bq / shards;
    memset(out, 0, (size_t)(call->q * call->kv));
    for (int64_t w = 0; w < shape[1]; w++)
        for (int64_t j = 0; j < shape[2]; j++) {
            int64_t cell = (plane * shape[1] + w) * shape[2] + j, next = at(&info->data_next, cell);
            assert_in_range(next, 0, (dkv ? shard_rows : call->kv / call->bkv) - 1);
            if (at(&info->block_mask, cell) == 0) continue;
            int64_t row = dkv ? w / (shape[1] / shards) * shard_rows + next : w;
            int64_t column = dkv ? j : next;
            for (int64_t i = row * call->bq; i < (row + 1) * call->bq; i++)
                for (int64_t k = column * call->bkv; k < (column + 1) * call->bkv; k++) {
                    assert_int_equal(out[i * call->kv + k], 0); /* no block comes twice */
                    out[i * call->kv + k] = told(call, info, dkv, cell, i, k);
                }
        }
}

static void expect_states(const struct call *call, const ejk_splash_mask_info *info) {
    int64_t counts[3] = {0}, planes = info->block_mask.shape[0], seen[3] = {0};
    for (int64_t i = 0; i < ejk_tensor_count(&info->block_mask); i++)
        seen[at(&info->block_mask, i)]++;
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
static void expect_table(const struct call *call, const ejk_splash_mask_info *info) {
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
            used |= at(&info->block_mask, c) == 1 && at(&info->mask_next, c) == i;
        assert_true(used);
    }
    for (int64_t c = 0; c < ejk_tensor_count(&info->mask_next); c++)
        assert_in_range(at(&info->mask_next, c), 0, count - 1);
}

static void masks_are_rebuilt_from_the_result(void **state) {
    (void)state;
    struct random r = {1};
    for (int round = 0; round < ROUNDS; round++) {
        struct call call;
        open_call(&r, &call);
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
        close_call(&call);
    }
}

/* ---- What must not change the result --------------------------------------------------------------- */

static void expect_same(const ejk_tensor *a, const ejk_tensor *b) {
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->rank, b->rank);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    if (ejk_tensor_present(a))
        assert_memory_equal(a->data, b->data,
                            (size_t)ejk_tensor_count(a) * ejk_dtype_size(a->dtype));
}

static void threads_change_nothing(void **state) {
    (void)state;
    struct random r = {2};
    ejk_threads *threads = NULL;
    EXPECT_OK(ejk_threads_create(4, &threads));
    for (int round = 0; round < 200; round++) {
        struct call call;
        ejk_splash_mask_info alone, together;
        open_call(&r, &call);
        EXPECT_OK(ejk_process_mask(&call.args, &alone));
        call.args.threads = threads;
        EXPECT_OK(ejk_process_mask(&call.args, &together));
        expect_same(&alone.data_next, &together.data_next);
        expect_same(&alone.mask_next, &together.mask_next);
        expect_same(&alone.block_mask, &together.block_mask);
        expect_same(&alone.partial_mask_blocks, &together.partial_mask_blocks);
        expect_same(&alone.q_sequence, &together.q_sequence);
        ejk_splash_mask_info_close(&alone);
        ejk_splash_mask_info_close(&together);
        close_call(&call);
    }
    ejk_threads_destroy(threads);
}

/* A dynamic call tells the states of the static one, a plane per head, and keeps every block. */
static void dynamic_masks_agree_with_static_ones(void **state) {
    (void)state;
    struct random r = {3};
    for (int round = 0; round < 1000; round++) {
        struct call call;
        ejk_splash_mask_info fixed, dynamic;
        open_call(&r, &call);
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
            assert_int_equal(at(&dynamic.block_mask, c),
                             at(&fixed.block_mask, h / heads_per_plane * cells + c % cells));
            for (int64_t e = 0; e < size; e++)
                assert_int_equal(
                    blocks[c * size + e],
                    call.dense[(h * call.q + i + e / call.bkv) * call.kv + j + e % call.bkv]);
        }
        ejk_splash_mask_info_close(&fixed);
        ejk_splash_mask_info_close(&dynamic);
        close_call(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_are_parts_of_the_whole),
        cmocka_unit_test(masks_are_rebuilt_from_the_result),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(dynamic_masks_agree_with_static_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
