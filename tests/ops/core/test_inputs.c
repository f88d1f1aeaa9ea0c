/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What problems, tuning and replayed recordings are filled with: calls whose work is in their integers have some. An
 * implementation of the test's own stands before the library's and looks at what it is given.
 */
#include "support/expect.h"

#include "operations/attention/blocksparse/problem.h"
#include "ops/core/core.h"

#include <ejkernel/ejkernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ejk_context *context;

/* ---- What implementations see ------------------------------------------------------------------------ */

static int64_t runs, tokens, mask_blocks;

static int64_t sum_at(const ejki_flash_problem *p, const void *sums, int64_t n) {
    return p->sums_are_i64 ? ((const int64_t *)sums)[n] : ((const int32_t *)sums)[n];
}

static ejk_status look(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    runs++;
    tokens = p->query_sums ? sum_at(p, p->query_sums, p->batch) : 0;
    mask_blocks = 0;
    for (int64_t i = 0; i < p->block_mask.rows; i++)
        for (int64_t j = 0; j < p->block_mask.columns; j++)
            mask_blocks += ejki_block_list_at(&p->block_mask.state, 0, i, j) != 0;
    memset(p->out.data, 0, 8 * (size_t)(p->queries * p->query_heads * p->value_dim));
    return EJK_OK;
}

static const ejk_parameter parameters[] = {{"q_blocksize", 1, 512, 1, 64, "rows"}};
static const ejk_implementation spies[] = {
    {.algorithm = "flash_attention",
     .name = "spy",
     .platform = EJK_PLATFORM_SIMD,
     .backend = EJK_BACKEND_CPU,
     .dtype = EJK_DTYPE_F64,
     .priority = 1000,
     .parameters = parameters,
     .parameter_count = 1,
     .run = look},
    {.algorithm = "blocksparse_attention",
     .name = "spy",
     .platform = EJK_PLATFORM_SIMD,
     .backend = EJK_BACKEND_CPU,
     .dtype = EJK_DTYPE_F64,
     .priority = 1000,
     .parameters = parameters,
     .parameter_count = 1,
     .run = look},
};

static int setup(void **state) {
    (void)state;
    if (ejk_context_create(&(ejk_context_options){.threads = 1}, &context) != EJK_OK) return 1;
    for (size_t i = 0; i < sizeof spies / sizeof *spies; i++)
        if (ejk_registry_register(ejk_context_registry(context), &spies[i]) != EJK_OK) return 1;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_problem *parse(const char *text) {
    ejk_problem *problem = NULL;
    EXPECT_OK(ejk_problem_parse(context, text, &problem));
    return problem;
}

static ejk_problem *filled(const char *text, uint64_t seed) {
    ejk_problem *problem = parse(text);
    EXPECT_OK(ejk_problem_allocate(problem, seed));
    return problem;
}

static void skipped(void *user, const char *problem, const char *sentence) {
    (void)user;
    fail_msg("%s: %s", problem, sentence);
}

/* A call that was recorded is tuned without data of the caller's. */
static void tune_recorded(const char *text) {
    ejk_config_selector_chain *chain;
    ejk_executor *executor;
    ejk_recording *recording;
    ejk_problem *problem = parse(text);
    const ejk_autotune_options options = {.tuner = {.time_s = 30}};
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &chain));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    EXPECT_OK(ejk_recording_create(&recording));
    EXPECT_OK(
        ejk_record_invocation(recording, ejk_problem_kernel(problem), ejk_problem_args(problem)));
    runs = tokens = mask_blocks = 0;
    EXPECT_OK(ejk_autotune_recorded(executor, recording, &options, 1, NULL, skipped, NULL, NULL));
    assert_true(runs > 0);
    ejk_recording_destroy(recording);
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    ejk_problem_destroy(problem);
}

/* A line says which of the shapes of a unit a tensor has. */
static void packed_calls_are_read_again(void **state) {
    (void)state;
    ejk_problem *first = parse("flash_attention:Hq=2,D=16,T=96,S=48,N=3,query=[T,Hq,D],"
                               "key=[S,Hkv,D],value=[S,Hkv,D],out=[T,Hq,D],lse=[Hq,T],"
                               "cum_seqlens_q,cum_seqlens_k");
    char *line, *again;
    EXPECT_OK(ejk_problem_to_text(ejk_problem_kernel(first), ejk_problem_args(first), &line));
    ejk_problem *second = parse(line);
    EXPECT_OK(ejk_problem_to_text(ejk_problem_kernel(second), ejk_problem_args(second), &again));
    assert_string_equal(line, again);
    const ejk_flash_attention_args *args = ejk_problem_args(second);
    assert_int_equal(args->query.rank, 3);
    assert_int_equal(args->lse.rank, 2);
    ejk_free(line);
    ejk_free(again);
    ejk_problem_destroy(first);
    ejk_problem_destroy(second);
}

static void recorded_packed_calls_have_tokens(void **state) {
    (void)state;
    tune_recorded("flash_attention:Hq=2,D=16,dtype=float64,causal,query=[96,Hq,D],key=[96,Hkv,D],"
                  "value=[96,Hkv,D],out=[96,Hq,D],N=3,cum_seqlens_q,cum_seqlens_k");
    assert_int_equal(tokens, 96);
}

static void recorded_sparse_calls_have_blocks(void **state) {
    (void)state;
    tune_recorded("blocksparse_attention:Hq=2,T=128,S=128,D=16,dtype=float64,Pf=1,Rf=8,Cf=8,"
                  "with=fwd_data_next+fwd_block_mask,fwd_kv_blocksize=16");
    assert_int_equal(mask_blocks, 32); /* a half of them */
    tune_recorded("blocksparse_attention:Hq=2,T=128,S=128,D=16,dtype=float64,Pf=1,Rf=8,Cf=3,"
                  "with=fwd_data_next+fwd_block_mask,fwd_kv_blocksize=16");
    assert_int_equal(mask_blocks, 24); /* all that there is room for */
}

/* ---- What is in the tensors -------------------------------------------------------------------------- */

static int64_t at(const ejk_tensor *t, int64_t i) {
    return t->dtype == EJK_DTYPE_I64 ? ((const int64_t *)t->data)[i]
                                     : ((const int32_t *)t->data)[i];
}

static void expect_sums(const ejk_tensor *sums, int64_t total, int64_t least) {
    const int64_t count = sums->shape[0] - 1;
    assert_int_equal(at(sums, 0), 0);
    assert_int_equal(at(sums, count), total);
    for (int64_t n = 0; n < count; n++) assert_true(at(sums, n + 1) - at(sums, n) >= least);
}

#define PACKED                                                                                     \
    "Hq=2,D=8,T=%d,S=%d,N=%d,query=[T,Hq,D],key=[S,Hkv,D],value=[S,Hkv,D],out=[T,Hq,D],"           \
    "cum_seqlens_q=int64,cum_seqlens_k=int64"

static void packed_lengths_fill_the_tokens(void **state) {
    (void)state;
    static const int cases[][3] = {{40, 40, 5},  {5, 700, 5}, {3, 100, 5}, {0, 8, 2},
                                   {64, 128, 1}, {7, 7, 7},   {1, 1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[400];
        const int q = cases[i][0], k = cases[i][1], n = cases[i][2];
        snprintf(line, sizeof line, "flash_attention:" PACKED, q, k, n);
        ejk_problem *problem = filled(line, 3);
        const ejk_flash_attention_args *args = ejk_problem_args(problem);
        expect_sums(&args->cum_seqlens_q, q, q >= n ? 1 : 0);
        expect_sums(&args->cum_seqlens_k, k, k >= n ? 1 : 0);
        for (int64_t s = 0; q == k && s <= n; s++)
            assert_int_equal(at(&args->cum_seqlens_q, s), at(&args->cum_seqlens_k, s));
        EXPECT_OK(ejk_call(context, ejk_problem_kernel(problem), args));
        ejk_problem_destroy(problem);
    }
}

static void padded_lengths_stay_in_their_entries(void **state) {
    (void)state;
    ejk_problem *problem = filled("scaled_dot_product_attention:B=6,Hq=2,T=1,S=90,D=8,N=6,"
                                  "with=cum_seqlens_q+cum_seqlens_k",
                                  3);
    const ejk_scaled_dot_product_attention_args *args = ejk_problem_args(problem);
    for (int64_t n = 0; n < 6; n++) {
        const int64_t keys = at(&args->cum_seqlens_k, n + 1) - at(&args->cum_seqlens_k, n);
        assert_int_equal(at(&args->cum_seqlens_q, n), n);
        assert_true(keys >= 45 && keys <= 90);
    }
    EXPECT_OK(ejk_call(context, ejk_problem_kernel(problem), args));
    ejk_problem_destroy(problem);
}

static void segments_go_on_where_keys_end(void **state) {
    (void)state;
    static const char *const lines[] = {
        "flash_attention:B=2,Hq=2,T=5,S=40,D=8,causal,with=q_segment_ids+kv_segment_ids",
        "attention:B=2,Hq=2,T=5,S=40,D=8,causal,with=q_segment_ids+kv_segment_ids",
        "blocksparse_attention:B=2,Hq=2,T=5,S=40,D=8,causal,with=q_segment_ids+kv_segment_ids"};
    for (int i = 0; i < 3; i++) {
        ejk_problem *problem = filled(lines[i], 3);
        const ejk_kernel *kernel = ejk_problem_kernel(problem);
        const char *args = ejk_problem_args(problem);
        size_t q, kv;
        assert_non_null(ejk_record_find(kernel->args, "q_segment_ids", &q));
        assert_non_null(ejk_record_find(kernel->args, "kv_segment_ids", &kv));
        const ejk_tensor *query = (const void *)(args + q), *key = (const void *)(args + kv);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t k = 0; k < 5; k++)
                assert_int_equal(at(query, b * 5 + k), at(key, b * 40 + 35 + k));
        assert_int_equal(at(key, 0), 0);
        assert_int_equal(at(key, 39), 3);
        EXPECT_OK(ejk_call(context, kernel, args));
        ejk_problem_destroy(problem);
    }
}

#define GRIDS(which) #which "_data_next+" #which "_block_mask"
#define PARTIAL(which)                                                                             \
#which "_data_next+" #which "_mask_next+" #which "_block_mask+" #which "_partial_mask_blocks"

/* MaskInfos of gradients that say another mask are refused. */
static void grids_of_gradients_agree(void **state) {
    (void)state;
    static const char *const lines[] = {
        "Pf=1,Rf=8,Cf=8,with=" GRIDS(fwd) ",fwd_kv_blocksize=16",
        "Pf=2,Rf=8,Cf=4,with=" GRIDS(fwd) ",fwd_kv_blocksize=16",
        "Pf=1,Rf=8,Cf=8,Pk=1,Rk=8,Ck=8,with=" GRIDS(fwd) "+" GRIDS(
            dkv) ",fwd_kv_blocksize=16,dkv_q_blocksize=16",
        "Pf=1,Rf=8,Cf=3,Pq=2,Rq=4,Cq=4,Pk=1,Rk=2,Ck=8,with=" GRIDS(fwd) "+" GRIDS(dq) "+" GRIDS(
            dkv) ",fwd_kv_blocksize=16,dq_kv_blocksize=32,dkv_q_blocksize=16",
        "Pk=1,Rk=8,Ck=8,with=" GRIDS(dkv) ",dkv_q_blocksize=16",
        "Pf=1,Rf=8,Cf=8,Nf=3,Qf=16,Kf=16,Pk=1,Rk=4,Ck=8,Nk=2,Kk=16,Qk=16,causal,with=" PARTIAL(
            fwd) "+" PARTIAL(dkv),
        "Pf=1,Rf=8,Cf=8,Nf=3,Qf=16,Kf=16,Pk=1,Rk=8,Ck=8,with=" PARTIAL(fwd) "+" GRIDS(
            dkv) ",dkv_q_blocksize=16",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[600];
        snprintf(line, sizeof line,
                 "blocksparse_attention_vjp:Hq=2,T=128,S=128,D=8,d_query,d_key,%s", lines[i]);
        ejk_problem *problem = filled(line, 5);
        EXPECT_OK(ejk_call(context, ejk_problem_kernel(problem), ejk_problem_args(problem)));
        ejk_problem_destroy(problem);
    }
}

static void partial_blocks_lie_on_the_diagonal(void **state) {
    (void)state;
    ejk_problem *problem = filled("blocksparse_attention:Hq=2,T=64,S=128,D=8,Pf=1,Rf=4,Cf=8,Nf=2,"
                                  "Qf=16,Kf=16,with=" PARTIAL(fwd),
                                  5);
    const ejk_blocksparse_attention_args *args = ejk_problem_args(problem);
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 8; j++) {
            const int64_t state_of = at(&args->fwd_block_mask, i * 8 + j);
            assert_true(state_of >= 0 && state_of <= 2 && (state_of == 1) == (j == 2 * i + 1));
        }
    const uint8_t *block = args->fwd_partial_mask_blocks.data;
    for (int a = 0; a < 16; a++)
        for (int b = 0; b < 16; b++) assert_int_equal(block[16 * a + b], b <= a);
    EXPECT_OK(ejk_call(context, ejk_problem_kernel(problem), args));
    ejk_problem_destroy(problem);
}

/* ---- Wishes ------------------------------------------------------------------------------------------ */

static ejk_status wish(ejk_problem *problem, const char *name, const char *value) {
    const ejk_input_wish one = {name, value};
    return ejk_fill_inputs(ejk_problem_kernel(problem), ejk_problem_args(problem),
                           &(ejk_inputs){.seed = 1, .wishes = &one, .wish_count = 1});
}

static void lengths_can_be_given(void **state) {
    (void)state;
    char line[400];
    snprintf(line, sizeof line, "flash_attention:" PACKED, 64, 64, 4);
    ejk_problem *problem = filled(line, 3);
    const ejk_flash_attention_args *args = ejk_problem_args(problem);
    EXPECT_OK(wish(problem, "lengths", "40+2x8+5"));
    static const int64_t ends[] = {0, 40, 48, 56, 61};
    for (int64_t n = 0; n < 5; n++) assert_int_equal(at(&args->cum_seqlens_k, n), ends[n]);
    EXPECT_OK(wish(problem, "lengths", "4x1-16"));
    EXPECT_FAIL(INVALID_ARGUMENT, "at most 64 tokens", wish(problem, "lengths", "3x8+41"));
    EXPECT_FAIL(INVALID_ARGUMENT, "expected 4 sequences", wish(problem, "lengths", "5x8"));
    EXPECT_FAIL(INVALID_ARGUMENT, "3 sequences, expected 4", wish(problem, "lengths", "3x8"));
    static const char *const bad[] = {"",     "x",   "4,4",  "4x",
                                      "4x8-", "8-4", "4x8+", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, "expected items", wish(problem, "lengths", bad[i]));
    EXPECT_FAIL(UNKNOWN_NAME, "expected lengths", wish(problem, "alive", "0.5"));
    EXPECT_FAIL(INVALID_ARGUMENT, "no value", wish(problem, "lengths", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "how", ejk_fill_inputs(ejk_problem_kernel(problem), args, NULL));
    ejk_problem_destroy(problem);
    problem = filled("attention:B=2,Hq=2,T=16,D=8,with=q_segment_ids+kv_segment_ids", 3);
    const ejk_attention_args *dense = ejk_problem_args(problem);
    EXPECT_OK(wish(problem, "lengths", "10+2x2"));
    for (int64_t b = 0; b < 32; b += 16) {
        assert_int_equal(at(&dense->q_segment_ids, b + 9), 0);
        assert_int_equal(at(&dense->q_segment_ids, b + 10), 1);
        assert_int_equal(at(&dense->kv_segment_ids, b + 13), 2);
        assert_int_equal(at(&dense->kv_segment_ids, b + 14), -1);
    }
    ejk_problem_destroy(problem);
}

static void alive_blocks_can_be_given(void **state) {
    (void)state;
    ejk_problem *problem =
        filled("blocksparse_attention:Hq=2,T=128,S=256,D=8,Pf=2,Rf=8,Cf=16,with=" GRIDS(
                   fwd) ",fwd_kv_blocksize=16",
               5);
    const ejk_blocksparse_attention_args *args = ejk_problem_args(problem);
    static const struct {
        const char *text;
        int64_t count;
    } cases[] = {{"0.25", 4}, {"1", 16}, {"0.001", 1}, {"0.5", 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_OK(wish(problem, "alive", cases[i].text));
        for (int64_t row = 0; row < 16; row++) {
            int64_t count = 0;
            for (int64_t j = 0; j < 16; j++) count += at(&args->fwd_block_mask, 16 * row + j) != 0;
            assert_int_equal(count, cases[i].count);
            assert_int_equal(at(&args->fwd_block_mask, 16 * row + 2 * (row % 8) + 1), 2);
        }
    }
    static const char *const bad[] = {"", "0", "-1", "1.5", "nan", "half", "0.5x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, "alive is", wish(problem, "alive", bad[i]));
    ejk_problem_destroy(problem);
}

/* Tensors that the caller has data for are used as they are. */
static void data_of_the_caller_is_kept(void **state) {
    (void)state;
    int32_t sums[] = {0, 1, 40};
    ejk_problem *problem =
        parse("flash_attention:Hq=2,D=16,dtype=float64,query=[40,Hq,D],key=[40,Hkv,D],"
              "value=[40,Hkv,D],out=[40,Hq,D],cum_seqlens_q=[3],cum_seqlens_k=[3]");
    ejk_flash_attention_args args = *(const ejk_flash_attention_args *)ejk_problem_args(problem);
    args.cum_seqlens_q.data = sums;
    args.query.data = NULL;
    EXPECT_OK(ejk_fill_inputs(ejk_problem_kernel(problem), &args, &(ejk_inputs){.seed = 9}));
    assert_true(sums[1] != 1); /* asked to be filled */
    sums[1] = 1;
    args.cum_seqlens_q.data = NULL;
    EXPECT_OK(ejk_fill_inputs(ejk_problem_kernel(problem), &args, &(ejk_inputs){.seed = 9}));
    assert_int_equal(sums[1], 1);
    ejk_problem_destroy(problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_calls_are_read_again),
        cmocka_unit_test(recorded_packed_calls_have_tokens),
        cmocka_unit_test(recorded_sparse_calls_have_blocks),
        cmocka_unit_test(packed_lengths_fill_the_tokens),
        cmocka_unit_test(padded_lengths_stay_in_their_entries),
        cmocka_unit_test(segments_go_on_where_keys_end),
        cmocka_unit_test(grids_of_gradients_agree),
        cmocka_unit_test(partial_blocks_lie_on_the_diagonal),
        cmocka_unit_test(lengths_can_be_given),
        cmocka_unit_test(alive_blocks_can_be_given),
        cmocka_unit_test(data_of_the_caller_is_kept),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
