/* SPDX-License-Identifier: Apache-2.0 */
#include "support/splash_call.h"

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

ejk_splash_mask *splash_random_mask(struct random *r, int64_t q, int64_t kv, int depth) {
    ejk_splash_mask *mask = NULL, *left, *right;
    int64_t choice = random_int(r, 0, depth > 0 ? 9 : 5);
    if (choice < 4) return random_computable(r, q, kv);
    if (choice == 4) return random_dense(r, q, kv);
    if (choice == 5) {
        EXPECT_OK(ejk_full_mask_create((int64_t[]){q, kv}, &mask));
        return mask;
    }
    left = splash_random_mask(r, q, kv, depth - 1);
    right = splash_random_mask(r, q, kv, depth - 1);
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

void splash_call_open(struct random *r, struct splash_call *call) {
    int64_t q_shards = random_int(r, 1, 3), head_shards = random_int(r, 1, 2);
    call->bq = random_int(r, 1, 5);
    call->bkv = random_int(r, 1, 5);
    call->q = call->bq * q_shards * random_int(r, 1, 4);
    call->kv = call->bkv * random_int(r, 1, 8);
    call->heads = head_shards * random_int(r, 1, 2);
    ejk_splash_mask *kinds[2], *heads[4];
    for (int i = 0; i < 2; i++) kinds[i] = splash_random_mask(r, call->q, call->kv, 3);
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

void splash_call_close(struct splash_call *call) {
    free(call->dense);
    ejk_splash_mask_release(call->mask);
}

int64_t splash_at(const ejk_tensor *tensor, int64_t index) {
    if (tensor->dtype == EJK_DTYPE_I8) return ((const int8_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I16) return ((const int16_t *)tensor->data)[index];
    return ((const int32_t *)tensor->data)[index];
}

bool splash_told(const struct splash_call *call, const ejk_splash_mask_info *info, bool dkv,
                 int64_t cell, int64_t row, int64_t column) {
    if (info->mask_function != NULL)
        return ejk_splash_mask_call(info->mask_function, splash_at(&info->q_sequence, row), column);
    if (splash_at(&info->block_mask, cell) == 2) return true;
    int64_t a = row % call->bq, b = column % call->bkv, block = splash_at(&info->mask_next, cell);
    const uint8_t *bytes =
        (const uint8_t *)info->partial_mask_blocks.data + block * call->bq * call->bkv;
    return dkv ? bytes[b * call->bq + a] : bytes[a * call->bkv + b];
}

void splash_expect_same(const ejk_tensor *a, const ejk_tensor *b) {
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->rank, b->rank);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    if (ejk_tensor_present(a))
        assert_memory_equal(a->data, b->data,
                            (size_t)ejk_tensor_count(a) * ejk_dtype_size(a->dtype));
}
