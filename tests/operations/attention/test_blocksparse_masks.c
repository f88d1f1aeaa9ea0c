/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What else says which keys are visible to block-sparse attention, where it is wrong: positions, and MaskInfos of a
 * call and its gradients, which have to agree. What is right is for the conformance harness.
 */
#include "support/sparse_world.h"

enum { CONTEXTS = 2 };
static ejk_context *contexts[CONTEXTS]; /* of one thread and of two */

/* ---- Positions ---------------------------------------------------------------------------------------- */

/* Gradients of query, key and value. */
struct slopes {
    double *part[3];
    int64_t count[3];
};

static void open_slopes(const struct world *w, struct slopes *s) {
    s->count[0] = w->b * w->heads * w->q * w->d;
    s->count[1] = w->b * w->kv_heads * w->kv * w->d;
    s->count[2] = w->b * w->kv_heads * w->kv * w->dv;
    for (int i = 0; i < 3; i++) s->part[i] = room(s->count[i], sizeof(double));
}

static void close_slopes(struct slopes *s) {
    for (int i = 0; i < 3; i++) free(s->part[i]);
}

static ejk_tensor with(ejk_tensor t, void *data) {
    t.data = data;
    return t;
}

static ejk_blocksparse_attention_vjp_args vjp_of(const struct world *w, struct slopes *s) {
    ejk_blocksparse_attention_vjp_args v = {.out = w->args.out,
                                            .lse = w->args.lse,
                                            .d_out = with(w->args.out, w->d_out),
                                            .d_query = with(w->args.query, s->part[0]),
                                            .d_key = with(w->args.key, s->part[1]),
                                            .d_value = with(w->args.value, s->part[2])};
    memcpy(&v, &w->args, offsetof(ejk_blocksparse_attention_args, out));
    return v;
}

static ejk_tensor ids(void *data, ejk_dtype dtype, int64_t batch, int64_t count) {
    return ejk_tensor_contiguous(data, dtype, 2, (int64_t[]){batch, count});
}

static void odd_positions_are_refused(void **state) {
    (void)state;
    struct random r = {9};
    struct world w;
    open_world(&r, EJK_DTYPE_F32, true, &w);
    int64_t *numbers_ = room(w.b * (w.q + w.kv), 8);
    ejk_blocksparse_attention_args args = w.args;
    args.q_positions = ids(numbers_, EJK_DTYPE_I32, w.b, w.q);
    args.kv_positions = ids(numbers_, EJK_DTYPE_I64, w.b, w.kv);
    EXPECT_FAIL(INVALID_DTYPE, "kv_positions has type int64, expected int32 as q_positions",
                ejk_blocksparse_attention(contexts[0], &args));
    args.kv_positions = ids(numbers_, EJK_DTYPE_I32, w.b, w.kv + 1);
    EXPECT_FAIL(INVALID_SHAPE, "kv_positions", ejk_blocksparse_attention(contexts[0], &args));
    args = w.args;
    args.q_positions = ids(numbers_, EJK_DTYPE_F32, w.b, w.q);
    EXPECT_FAIL(INVALID_DTYPE, "q_positions", ejk_blocksparse_attention(contexts[0], &args));
    args = w.args;
    strcpy(args.sequence_parallelism_mesh_axis_name, "sp");
    EXPECT_FAIL(UNAVAILABLE, "sequence_parallelism_mesh_axis_name is 'sp'",
                ejk_blocksparse_attention(contexts[0], &args));
    args = w.args;
    args.fused_backward = EJK_TRUE;
    EXPECT_OK(ejk_blocksparse_attention(contexts[0], &args));
    free(numbers_);
    close_world(&w);
}

/* ---- MaskInfos that differ ---------------------------------------------------------------------------- */

/* The world's elements as a MaskInfo; heads with the same elements share a mask. */
static void info_of(const struct world *w, uint8_t *elements, const int64_t block[2],
                    ejk_blocksparse_mask_info *out) {
    ejk_splash_mask *list[8], *mask = NULL;
    for (int64_t h = 0; h < w->heads; h++)
        list[h] = splash_dense(elements + h * w->q * w->kv, w->q, w->kv);
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)list, w->heads, &mask));
    EXPECT_OK(ejk_blocksparse_mask_info_create(
        mask, &(ejk_blocksparse_mask_options){.block_shape = {block[0], block[1]}}, out));
    for (int64_t h = 0; h < w->heads; h++) ejk_splash_mask_release(list[h]);
    ejk_splash_mask_release(mask);
}

/* One element is another in one of the MaskInfos; it matters unless positions hide it anyway. */
static void masks_that_differ_are_refused(void **state) {
    (void)state;
    int64_t refused = 0, computed = 0;
    for (struct random r; soak_round(&r, 63, 80);) {
        struct world w;
        struct slopes slopes;
        open_world(&r, EJK_DTYPE_F32, random_chance(&r, 0.3), &w);
        open_slopes(&w, &slopes);
        memset(slopes.part[1], 0x5a, (size_t)slopes.count[1] * sizeof(float));
        ejk_blocksparse_mask_info own, other, mixed;
        const int64_t block[2] = {w.q, random_chance(&r, 0.5) ? w.kv : 1};
        const int64_t h = random_int(&r, 0, w.heads - 1), i = random_int(&r, 0, w.q - 1);
        const int64_t j = random_int(&r, 0, w.kv - 1), flipped = (h * w.q + i) * w.kv + j;
        info_of(&w, w.dense, w.info.fwd_block_shape, &own);
        w.dense[flipped] = !w.dense[flipped];
        info_of(&w, w.dense, random_chance(&r, 0.5) ? block : w.info.fwd_block_shape, &other);
        mixed = own;
        if (random_chance(&r, 0.5)) {
            mixed.dkv = other.dkv;
            memcpy(mixed.dkv_block_shape, other.dkv_block_shape, sizeof mixed.dkv_block_shape);
            if (random_chance(&r, 0.5)) mixed.dq = (ejk_splash_mask_info){.owner = NULL};
        } else {
            mixed.dq = other.dq;
            memcpy(mixed.dq_block_shape, other.dq_block_shape, sizeof mixed.dq_block_shape);
            if (random_chance(&r, 0.5)) mixed.dkv = (ejk_splash_mask_info){.owner = NULL};
        }
        ejk_blocksparse_attention_vjp_args v = vjp_of(&w, &slopes);
        EXPECT_OK(ejk_blocksparse_attention_vjp_set_mask_info(&v, &mixed));
        if (random_chance(&r, 0.5)) strcpy(v.platform, "reference");
        const int64_t at = i + w.kv - w.q;
        const bool hidden = (v.causal && j > at) ||
                            (v.sliding_window.left.set && j < at - v.sliding_window.left.value);
        char words[96];
        snprintf(words, sizeof words, "hides key %lld from query %lld of head ", (long long)j,
                 (long long)i);
        if (hidden) {
            computed++;
            EXPECT_OK(ejk_blocksparse_attention_vjp(contexts[0], &v));
        } else {
            refused++;
            EXPECT_FAIL(INVALID_ARGUMENT, words, ejk_blocksparse_attention_vjp(contexts[0], &v));
            for (int64_t n = 0; n < slopes.count[1] * (int64_t)sizeof(float); n++)
                assert_int_equal(((uint8_t *)slopes.part[1])[n], 0x5a);
        }
        ejk_blocksparse_mask_info_close(&own);
        ejk_blocksparse_mask_info_close(&other);
        close_slopes(&slopes);
        close_world(&w);
    }
    assert_true(refused > 20 && computed > 4);
}

/* Without fwd and dq the call hides nothing, and dkv may not either. */
static void a_mask_of_keys_alone_is_refused(void **state) {
    (void)state;
    struct random r = {10};
    struct world w;
    struct slopes slopes;
    open_world(&r, EJK_DTYPE_F32, true, &w);
    open_slopes(&w, &slopes);
    w.args.causal = false;
    w.args.sliding_window = (ejk_window){{0}, {0}};
    ejk_blocksparse_mask_info info;
    memset(w.dense, 1, (size_t)(w.heads * w.q * w.kv));
    w.dense[2 * w.kv + 1] = 0;
    info_of(&w, w.dense, w.info.fwd_block_shape, &info);
    ejk_blocksparse_attention_vjp_args set = vjp_of(&w, &slopes), v = set;
    EXPECT_OK(ejk_blocksparse_attention_vjp_set_mask_info(&set, &info));
    v.dkv_data_next = set.dkv_data_next;
    v.dkv_mask_next = set.dkv_mask_next;
    v.dkv_block_mask = set.dkv_block_mask;
    v.dkv_partial_mask_blocks = set.dkv_partial_mask_blocks;
    EXPECT_FAIL(INVALID_ARGUMENT,
                "dkv hides key 1 from query 2 of head 0 and the call, which has no fwd, does not",
                ejk_blocksparse_attention_vjp(contexts[0], &v));
    ejk_blocksparse_mask_info_close(&info);
    close_slopes(&slopes);
    close_world(&w);
}

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < CONTEXTS; i++)
        EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = i + 1}, &contexts[i]));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < CONTEXTS; i++) ejk_context_destroy(contexts[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_positions_are_refused),
        SOAK_TEST(masks_that_differ_are_refused),
        cmocka_unit_test(a_mask_of_keys_alone_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
