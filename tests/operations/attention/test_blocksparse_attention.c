/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention by the library's own choice: MaskInfos that come about in other ways than the conformance
 * harness has them, against flash attention with the elements of the mask; arrays that lie; what calls are refused.
 */
#include "support/sparse_world.h"

enum { THREADS = 3 };
static ejk_context *contexts[THREADS];

/* ---- Forward ------------------------------------------------------------------------------------------ */

static void expect_lse(const struct world *w, const float *wanted) {
    for (int64_t i = 0; i < w->b * w->heads * w->q; i++)
        if (isinf(wanted[i]))
            assert_true(w->lse[i] == wanted[i]);
        else
            EXPECT_NEAR(w->lse[i], wanted[i], 1e-5 * (1 + fabs((double)wanted[i])));
}

/* What a result in f32 may be off; of 16 bits, by one unit in the last place, as it is rounded once. */
static double step(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_BF16 ? 0x1p-7 : dtype == EJK_DTYPE_F16 ? 0x1p-10 : 1e-5;
}

static void check_forward(struct random *r, struct world *w) {
    const int64_t outs = w->b * w->heads * w->q * w->dv, rows = w->b * w->heads * w->q;
    void *expected = room(outs, 8), *first = room(outs, 8);
    float *lse = room(rows, sizeof *lse);
    const ejk_flash_attention_args dense = dense_call(w, expected, lse);
    poison(w);
    EXPECT_OK(ejk_flash_attention(contexts[0], &dense));
    ejk_blocksparse_attention_args args = w->args;
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&args, &w->info));
    strcpy(args.platform, "reference");
    EXPECT_OK(ejk_blocksparse_attention_fwd(contexts[1], &args));
    assert_memory_equal(w->out, expected, (size_t)outs * ejk_dtype_size(w->dtype));
    assert_memory_equal(w->lse, lse, (size_t)rows * sizeof *lse);
    if (w->dtype != EJK_DTYPE_F64) {
        const size_t bytes = (size_t)outs * ejk_dtype_size(w->dtype);
        strcpy(args.platform, "simd");
        if (random_chance(r, 0.5)) {
            ejk_blocksparse_attention_config cfg = {.platform = "simd"};
            cfg.fwd_params.q_blocksize = ejk_int(random_int(r, 1, 60));
            cfg.fwd_params.kv_blocksize = ejk_int(random_int(r, 1, 200));
            cfg.bwd_params.q_blocksize = ejk_int(1); /* of no meaning here */
            args.cfg = cfg;
        }
        for (int i = 0; i < THREADS; i++) {
            memset(w->out, 0xee, bytes);
            EXPECT_OK(ejk_blocksparse_attention(contexts[i], &args));
            if (i == 0) memcpy(first, w->out, bytes);
            expect_near_all(w, w->out, expected, outs, step(w->dtype));
            expect_lse(w, lse);
            assert_memory_equal(w->out, first, bytes);
        }
    }
    free(expected);
    free(first);
    free(lse);
}

/* Dynamic MaskInfos, and head shards of a static one. */
static void other_mask_infos_do_too(void **state) {
    (void)state;
    for (struct random r; soak_round(&r, 43, 100);) {
        struct world w;
        open_world(&r, EJK_DTYPE_F32, false, &w);
        ejk_blocksparse_mask_info own = w.info;
        const int64_t *block = own.fwd_block_shape;
        if (random_chance(&r, 0.5)) {
            const ejk_process_dynamic_mask_args args = {
                .mask = ejk_tensor_3d(w.dense, EJK_DTYPE_BOOL, w.heads, w.q, w.kv),
                .block_shape = {block[0], block[1]},
                .downcast_smem_data = random_chance(&r, 0.5) ? EJK_TRUE : EJK_FALSE};
            EXPECT_OK(ejk_process_dynamic_mask(&args, &w.info.fwd));
        } else {
            ejk_process_mask_args args = {.mask = w.mask,
                                          .block_shape = {block[0], block[1]},
                                          .head_shards = ejk_int(w.kv_heads)};
            if (ejk_process_mask(&args, &w.info.fwd) != EJK_OK) fail_msg("%s", ejk_last_error());
            if (w.info.fwd.mask_function != NULL &&
                ejk_splash_mask_kind_of(w.info.fwd.mask_function) == EJK_SPLASH_MASK_FUNCTION) {
                ejk_splash_mask_info_close(&w.info.fwd);
                w.info.fwd = own.fwd;
            }
        }
        check_forward(&r, &w);
        if (w.info.fwd.owner != own.fwd.owner) ejk_splash_mask_info_close(&w.info.fwd);
        w.info.fwd = own.fwd;
        close_world(&w);
    }
}

/* ---- Gradients ---------------------------------------------------------------------------------------- */

struct gradients {
    double *part[4]; /* of query, key, value, sinks */
    int64_t count[4];
};

static void open_gradients(const struct world *w, struct gradients *g) {
    const int64_t rows = w->b * w->heads * w->q, keys = w->b * w->kv_heads * w->kv;
    const int64_t counts[4] = {rows * w->d, keys * w->d, keys * w->dv, w->heads * 2};
    for (int i = 0; i < 4; i++) {
        g->count[i] = counts[i];
        g->part[i] = room(counts[i], sizeof(double));
        for (int64_t n = 0; n < counts[i]; n++) g->part[i][n] = NAN;
    }
}

static ejk_tensor at(ejk_tensor t, void *data) {
    if (t.dtype != EJK_DTYPE_UNSET) t.data = data;
    return t;
}

/* ---- Arrays that lie ---------------------------------------------------------------------------------- */

static void scramble(struct random *r, ejk_tensor *t, const void *from, void *to,
                     double how_often) {
    const int64_t bytes = ejk_tensor_count(t) * (int64_t)ejk_dtype_size(t->dtype);
    memcpy(to, from, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        if (random_chance(r, how_often))
            ((uint8_t *)to)[i] = (uint8_t)RANDOM_OF(r, ((int[]){0, 1, 2, 3, 7, 127, 128, 255}));
    t->data = to;
}

static void arrays_that_lie_are_found(void **state) {
    (void)state;
    int64_t refused = 0, computed = 0;
    for (struct random r; soak_round(&r, 46, 400);) {
        struct world w;
        open_world(&r, EJK_DTYPE_F32, false, &w);
        const int64_t outs = w.b * w.heads * w.q * w.dv;
        ejk_blocksparse_mask_info own = w.info;
        ejk_tensor *arrays[] = {&own.fwd.data_next, &own.fwd.block_mask, &own.fwd.mask_next,
                                &own.dq.data_next,  &own.dq.block_mask,  &own.dq.mask_next,
                                &own.dkv.data_next, &own.dkv.block_mask, &own.dkv.mask_next};
        void *copies[9];
        for (int i = 0; i < 9; i++) {
            const int64_t size =
                ejk_tensor_present(arrays[i])
                    ? ejk_tensor_count(arrays[i]) * (int64_t)ejk_dtype_size(arrays[i]->dtype)
                    : 0;
            copies[i] = malloc((size_t)size + 1);
            assert_non_null(copies[i]);
            if (size > 0)
                scramble(&r, arrays[i], arrays[i]->data, copies[i],
                         RANDOM_OF(&r, ((double[]){0, 0.02, 0.5})));
        }
        ejk_blocksparse_attention_args args = w.args;
        EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&args, &own));
        if (random_chance(&r, 0.3)) strcpy(args.platform, "reference");
        memset(w.out, 0x5a, (size_t)outs * sizeof(float));
        const ejk_status status = ejk_blocksparse_attention(contexts[random_int(&r, 0, 2)], &args);
        if (status == EJK_OK) {
            computed++;
        } else {
            refused++;
            assert_int_equal(status, EJK_STATUS_INVALID_ARGUMENT);
            assert_non_null(strstr(ejk_last_error(), "fwd_"));
            for (int64_t i = 0; i < outs * (int64_t)sizeof(float); i++)
                assert_int_equal(((uint8_t *)w.out)[i], 0x5a);
        }
        struct gradients g;
        open_gradients(&w, &g);
        memset(g.part[0], 0x5a, (size_t)g.count[0] * sizeof(float));
        ejk_blocksparse_attention_vjp_args v = {.out = w.args.out,
                                                .lse = w.args.lse,
                                                .d_out = at(w.args.out, w.d_out),
                                                .d_query = at(w.args.query, g.part[0]),
                                                .d_key = at(w.args.key, g.part[1])};
        memcpy(&v, &w.args, offsetof(ejk_blocksparse_attention_args, out));
        EXPECT_OK(ejk_blocksparse_attention_vjp_set_mask_info(&v, &own));
        if (ejk_blocksparse_attention_vjp(contexts[0], &v) != EJK_OK)
            for (int64_t i = 0; i < g.count[0] * (int64_t)sizeof(float); i++)
                assert_int_equal(((uint8_t *)g.part[0])[i], 0x5a);
        for (int i = 0; i < 4; i++) free(g.part[i]);
        for (int i = 0; i < 9; i++) free(copies[i]);
        close_world(&w);
    }
    assert_true(refused > 30 && computed > 30);
}

/* ---- Refusals ----------------------------------------------------------------------------------------- */

static bool always(void *user, int64_t q, int64_t kv) {
    (void)user;
    return q >= 0 && kv >= 0;
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    struct random r = {7};
    struct world w;
    open_world(&r, EJK_DTYPE_F32, true, &w);
    ejk_blocksparse_attention_args args = w.args, bad;
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&args, &w.info));
    EXPECT_FAIL(INVALID_ARGUMENT, "already",
                ejk_blocksparse_attention_set_mask_info(&args, &w.info));
    EXPECT_FAIL(INVALID_ARGUMENT, "info", ejk_blocksparse_attention_set_mask_info(&args, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_blocksparse_attention_set_mask_info(NULL, &w.info));
    bad = args;
    bad.fwd_data_next = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "fwd_data_next", ejk_blocksparse_attention(contexts[0], &bad));
    bad = args;
    bad.fwd_kv_blocksize = ejk_int(0);
    EXPECT_FAIL(INVALID_SHAPE, "blocks of 0 keys", ejk_blocksparse_attention(contexts[0], &bad));
    bad = args;
    bad.fwd_kv_blocksize.set = false;
    bad.fwd_mask_next = bad.fwd_partial_mask_blocks = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "fwd_kv_blocksize", ejk_blocksparse_attention(contexts[0], &bad));
    bad = args;
    bad.chunk_size = ejk_int(0);
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size", ejk_blocksparse_attention(contexts[0], &bad));
    bad = args;
    strcpy(bad.mask_function, "causal");
    EXPECT_FAIL(UNKNOWN_NAME, "mask_function", ejk_blocksparse_attention(contexts[0], &bad));
    bad = args;
    bad.lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_blocksparse_attention_fwd(contexts[0], &bad));
    /* A predicate of the user's own becomes elements where the library processes the mask. */
    ejk_splash_mask *own = NULL, *heads = NULL;
    EXPECT_OK(ejk_function_mask_create((int64_t[]){w.q, w.kv}, always, NULL, NULL, &own));
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)&own, 1, &heads));
    ejk_process_mask_args process = {
        .mask = heads, .block_shape = {w.info.fwd_block_shape[0], w.info.fwd_block_shape[1]}};
    ejk_blocksparse_mask_info info = {
        .fwd_block_shape = {process.block_shape[0], process.block_shape[1]}};
    EXPECT_OK(ejk_process_mask(&process, &info.fwd));
    bad = w.args;
    EXPECT_FAIL(INVALID_ARGUMENT, "function mask",
                ejk_blocksparse_attention_set_mask_info(&bad, &info));
    EXPECT_OK(ejk_blocksparse_attention_masked(contexts[0], &w.args, own));
    EXPECT_OK(ejk_blocksparse_attention_masked(contexts[0], &w.args, heads));
    EXPECT_OK(ejk_blocksparse_attention_masked(contexts[0], &w.args, NULL));
    ejk_blocksparse_mask_info_close(&info);
    ejk_splash_mask_release(own);
    ejk_splash_mask_release(heads);
    close_world(&w);
}

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < THREADS; i++)
        EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = i + 1}, &contexts[i]));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < THREADS; i++) ejk_context_destroy(contexts[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SOAK_TEST(other_mask_infos_do_too),
        SOAK_TEST(arrays_that_lie_are_found),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
