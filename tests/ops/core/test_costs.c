/* SPDX-License-Identifier: Apache-2.0 */
/* What calls cost by their data, against scores counted one by one from the rules of the headers. */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ejk_context *context;

static int setup(void **state) {
    (void)state;
    return ejk_context_create(&(ejk_context_options){.threads = 1}, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_problem *filled(const char *line, uint64_t seed) {
    ejk_problem *problem = NULL;
    EXPECT_OK(ejk_problem_parse(context, line, &problem));
    EXPECT_OK(ejk_problem_allocate(problem, seed));
    return problem;
}

static ejk_cost cost_of(ejk_problem *problem) {
    ejk_plan *plan;
    ejk_cost cost;
    const void *args = ejk_problem_args(problem);
    EXPECT_OK(ejk_plan_create(context, ejk_problem_kernel(problem), args, &plan));
    EXPECT_OK(ejk_plan_cost_of(plan, args, &cost));
    ejk_plan_destroy(plan);
    return cost;
}

static int64_t at(const ejk_tensor *t, int64_t i) {
    return t->dtype == EJK_DTYPE_I64 ? ((const int64_t *)t->data)[i]
                                     : ((const int32_t *)t->data)[i];
}

/* ---- Scores one by one ------------------------------------------------------------------------------- */

/* Of a sequence of `queries` and `keys`, by causal and window. */
static bool in_reach(const ejk_flash_attention_args *args, int64_t i, int64_t j, int64_t queries,
                     int64_t keys) {
    const int64_t q = i + (args->causal_offset.set ? args->causal_offset.value : keys - queries);
    const ejk_window w = args->sliding_window;
    return (!args->causal || j <= q) && (!w.left.set || j >= q - w.left.value) &&
           (!w.right.set || j <= q + w.right.value);
}

static double packed_scores(const ejk_flash_attention_args *args) {
    double scores = 0;
    for (int64_t n = 0; n + 1 < args->cum_seqlens_q.shape[0]; n++) {
        const int64_t queries = at(&args->cum_seqlens_q, n + 1) - at(&args->cum_seqlens_q, n);
        const int64_t keys = at(&args->cum_seqlens_k, n + 1) - at(&args->cum_seqlens_k, n);
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < keys; j++) scores += in_reach(args, i, j, queries, keys);
    }
    return scores;
}

static double segment_scores(const ejk_flash_attention_args *args) {
    const int64_t queries = args->query.shape[1], keys = args->key.shape[1];
    double scores = 0;
    for (int64_t b = 0; b < args->query.shape[0]; b++)
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < keys; j++) {
                const int64_t id = at(&args->q_segment_ids, b * queries + i);
                scores += id >= 0 && id == at(&args->kv_segment_ids, b * keys + j) &&
                          in_reach(args, i, j, queries, keys);
            }
    return scores;
}

/* Of plane 0. */
static bool in_blocks(const ejk_blocksparse_attention_args *args, int64_t i, int64_t j) {
    const int64_t rows = args->fwd_block_mask.shape[1], cells = args->fwd_block_mask.shape[2];
    const int64_t bq = args->query.shape[2] / rows;
    const bool partial = ejk_tensor_present(&args->fwd_partial_mask_blocks);
    const int64_t bkv =
        partial ? args->fwd_partial_mask_blocks.shape[2] : args->fwd_kv_blocksize.value;
    for (int64_t c = 0; c < cells; c++) {
        const int64_t cell = i / bq * cells + c, state = at(&args->fwd_block_mask, cell);
        if (state == 0 || at(&args->fwd_data_next, cell) != j / bkv) continue;
        if (state == 2) return true;
        const uint8_t *blocks = args->fwd_partial_mask_blocks.data;
        return blocks[(at(&args->fwd_mask_next, cell) * bq + i % bq) * bkv + j % bkv] != 0;
    }
    return false;
}

static double sparse_scores(const ejk_blocksparse_attention_args *args) {
    const int64_t queries = args->query.shape[2], keys = args->key.shape[2];
    const int64_t chunk = args->chunk_size.set ? args->chunk_size.value : 0;
    const bool segments = ejk_tensor_present(&args->q_segment_ids);
    double scores = 0;
    for (int64_t b = 0; b < args->query.shape[0]; b++)
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < keys; j++) {
                const int64_t q = i + keys - queries;
                bool visible = !(args->causal || chunk) || j <= q;
                visible = visible && (!chunk || j >= q - q % chunk);
                visible = visible && (!args->sliding_window.left.set ||
                                      j >= q - args->sliding_window.left.value);
                visible = visible &&
                          (!ejk_tensor_present(&args->fwd_block_mask) || in_blocks(args, i, j));
                visible = visible && (!segments || at(&args->q_segment_ids, b * queries + i) ==
                                                       at(&args->kv_segment_ids, b * keys + j));
                scores += visible;
            }
    return scores;
}

/* ---- Tests ------------------------------------------------------------------------------------------- */

enum { HEADS = 4, D = 8, DV = 12 };

static void expect_scores(ejk_problem *problem, double scores) {
    const double flops = cost_of(problem).flops;
    assert_true(scores > 0);
    if (flops != 2 * scores * HEADS * (D + DV))
        fail_msg("%g flops, expected %g", flops, 2 * scores * HEADS * (D + DV));
}

#define SIZES "Hq=4,Hkv=2,D=8,Dv=12,"

static void packed_calls_by_their_lengths(void **state) {
    (void)state;
    static const char *const lines[] = {
        SIZES "T=60,S=60,N=7,cum_seqlens_q,cum_seqlens_k,query=[T,Hq,D],key=[S,Hkv,D],"
              "value=[S,Hkv,Dv],out=[T,Hq,Dv]",
        SIZES "T=60,S=60,N=7,causal,cum_seqlens_q=int64,query=[T,Hq,D],key=[S,Hkv,D],"
              "value=[S,Hkv,Dv],out=[T,Hq,Dv],cum_seqlens_k=int64",
        SIZES "T=5,S=90,N=5,causal,sliding_window=9,0,cum_seqlens_q,cum_seqlens_k,"
              "query=[T,Hq,D],key=[S,Hkv,D],value=[S,Hkv,Dv],out=[T,Hq,Dv]",
        SIZES "B=6,T=20,S=30,N=6,causal,causal_offset=2,cum_seqlens_q,cum_seqlens_k",
        SIZES "B=6,T=20,S=30,N=6,sliding_window=4,3,cum_seqlens_q,cum_seqlens_k",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[400];
        snprintf(line, sizeof line, "flash_attention:%s", lines[i]);
        ejk_problem *problem = filled(line, i);
        expect_scores(problem, packed_scores(ejk_problem_args(problem)));
        ejk_problem_destroy(problem);
    }
    /* Only tokens of sequences are read. */
    ejk_problem *problem =
        filled("flash_attention:B=2,N=2,Hq=1,T=8,D=4,cum_seqlens_q,cum_seqlens_k", 1);
    const ejk_input_wish short_ones = {"lengths", "2x3"};
    EXPECT_OK(ejk_fill_inputs(ejk_problem_kernel(problem), ejk_problem_args(problem),
                              &(ejk_inputs){.wishes = &short_ones, .wish_count = 1}));
    assert_true(cost_of(problem).bytes == 4 * 4 * 4 * 6);
    ejk_problem_destroy(problem);
}

static void segments_by_their_ids(void **state) {
    (void)state;
    static const char *const lines[] = {
        "flash_attention:B=3," SIZES "T=20,S=33,with=q_segment_ids+kv_segment_ids",
        "flash_attention:B=3," SIZES "T=33,S=20,causal,with=q_segment_ids+kv_segment_ids",
    };
    for (uint64_t i = 0; i < 4; i++) {
        ejk_problem *problem = filled(lines[i % 2], i);
        const ejk_flash_attention_args *args = ejk_problem_args(problem);
        /* Ids in no order, and padding among them. */
        for (int64_t k = 0; i >= 2 && k < 60; k++) {
            ((int32_t *)args->q_segment_ids.data)[k] = (int32_t)(k * 7 % 5) - 1;
            ((int32_t *)args->kv_segment_ids.data)[k] = (int32_t)(k * 3 % 5) - 1;
        }
        expect_scores(problem, segment_scores(args));
        ejk_problem_destroy(problem);
    }
}

static void blocks_by_their_cells(void **state) {
    (void)state;
    static const char *const lines[] = {
        "Pf=1,Rf=8,Cf=16,with=fwd_data_next+fwd_block_mask,fwd_kv_blocksize=8",
        "Pf=2,Rf=8,Cf=5,with=fwd_data_next+fwd_block_mask,fwd_kv_blocksize=8,causal",
        "Pf=1,Rf=8,Cf=16,Nf=3,Qf=8,Kf=8,with=fwd_data_next+fwd_mask_next+fwd_block_mask+"
        "fwd_partial_mask_blocks,sliding_window=40,",
        "Pf=4,Rf=8,Cf=16,Nf=3,Qf=8,Kf=8,with=fwd_data_next+fwd_mask_next+fwd_block_mask+"
        "fwd_partial_mask_blocks+q_segment_ids+kv_segment_ids,chunk_size=24",
        "chunk_size=24",
        "causal,with=q_segment_ids+kv_segment_ids",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[400];
        snprintf(line, sizeof line, "blocksparse_attention:B=2," SIZES "T=64,S=128,%s", lines[i]);
        ejk_problem *problem = filled(line, i);
        expect_scores(problem, sparse_scores(ejk_problem_args(problem)));
        ejk_problem_destroy(problem);
    }
}

/* Gradients cost five products for two. */
static void gradients_by_the_same_data(void **state) {
    (void)state;
    ejk_problem *problem = filled("flash_attention_vjp:B=4,N=4,Hq=4,T=20,D=8,causal,cum_seqlens_q,"
                                  "cum_seqlens_k,d_query",
                                  3);
    const ejk_flash_attention_vjp_args *args = ejk_problem_args(problem);
    const ejk_flash_attention_args forward = {
        .cum_seqlens_q = args->cum_seqlens_q, .cum_seqlens_k = args->cum_seqlens_k, .causal = true};
    assert_true(cost_of(problem).flops == 2 * packed_scores(&forward) * 4 * 16 * 2.5);
    ejk_problem_destroy(problem);
}

static void what_lacks_data_or_is_wrong(void **state) {
    (void)state;
    ejk_problem *problem =
        filled("flash_attention:B=2,N=2,Hq=2,T=8,D=4,cum_seqlens_q,cum_seqlens_k", 1);
    ejk_flash_attention_args args = *(const ejk_flash_attention_args *)ejk_problem_args(problem);
    ejk_plan *plan;
    ejk_cost cost = {.flops = 7};
    EXPECT_OK(ejk_plan_create(context, ejk_problem_kernel(problem), &args, &plan));
    int32_t *sums = args.cum_seqlens_q.data;
    sums[1] = 9;
    EXPECT_FAIL(INVALID_ARGUMENT, "cum_seqlens_q rises from 0 to 9",
                ejk_plan_cost_of(plan, &args, &cost));
    assert_true(cost.flops == 7);
    args.cum_seqlens_q.data = NULL;
    EXPECT_OK(ejk_plan_cost_of(plan, &args, &cost));
    assert_true(cost.flops == ejk_plan_cost(plan).flops && cost.flops == 2.0 * 2 * 2 * 64 * 8);
    args.causal = true;
    EXPECT_FAIL(INVALID_ARGUMENT, "causal", ejk_plan_cost_of(plan, &args, &cost));
    EXPECT_FAIL(INVALID_ARGUMENT, "plan", ejk_plan_cost_of(NULL, &args, &cost));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_plan_cost_of(plan, NULL, &cost));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_plan_cost_of(plan, &args, NULL));
    ejk_plan_destroy(plan);
    ejk_problem_destroy(problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_calls_by_their_lengths),
        cmocka_unit_test(segments_by_their_ids),
        cmocka_unit_test(blocks_by_their_cells),
        cmocka_unit_test(gradients_by_the_same_data),
        cmocka_unit_test(what_lacks_data_or_is_wrong),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
