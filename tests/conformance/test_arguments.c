/* SPDX-License-Identifier: Apache-2.0 */
/* Every argument of every operation is given by some call of its case: one that none gives could do anything. */
#include "conformance/all_cases.h"
#include "support/expect.h"

#include <stdio.h>
#include <string.h>

enum { MOST_SEEDS = 400, BUDGET = 20000 };

/* Of all operations: how to compute, and what is no result of theirs. */
static const char *const common[] = {"platform", "cfg", "status"};

/* Those that change nothing, have one value only, or are given by other tests alone. */
static const struct {
    const char *op, *arguments;
} others[] = {
    {"attention", " dtype softmax_dtype return_weights "},
    {"attention_vjp", " dtype softmax_dtype d_weights "},
    {"blocksparse_attention", " sequence_parallelism_mesh_axis_name "},
    {"blocksparse_attention_vjp", " sequence_parallelism_mesh_axis_name "},
    {"chunked_prefill_paged_decode", " causal "},
    {"flash_attention", " precision logits_dtype "},
    {"flash_attention_vjp", " precision logits_dtype normalize_output deterministic "},
    {"moe", " mode scale_format gate_up_tensor_scale down_tensor_scale "}, /* test_prepack.c */
    {"multi_latent_ragged_page_attention", " v_scale "},
    {"ragged_gated_delta_rule", " initial_state final_state "},
    {"unified_attention", " causal "},
};

static bool is_exempt(const char *op, const ejk_field *field) {
    char word[EJK_NAME_SIZE + 2];
    snprintf(word, sizeof word, " %s ", field->name);
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strcmp(field->name, common[i]) == 0) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(op, others[i].op) == 0 && strstr(others[i].arguments, word)) return true;
    return strstr(field->doc, "no effect") != NULL;
}

/* Takes fields that a call gives from those that `left` names; how many remain. */
static int32_t strike(const struct call *c, bool *left) {
    const ejk_record *record = c->kernel->args;
    int32_t count = 0;
    for (int32_t i = 0; i < record->count; i++)
        count += left[i] = left[i] && !ejk_record_is_set(&record->fields[i], c->args);
    return count;
}

/* Most of what is given is known before there are contents, where a case asks. */
static bool takes_none(const struct call *c, const void *own) {
    (void)c;
    (void)own;
    return false;
}
static const struct asker asker = {takes_none, NULL, false};

static void test_every_argument_is_given(void **state) {
    int32_t missing = 0;
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const ejk_record *record = kernels[n]->args;
        bool left[MOST_FIELDS] = {false};
        int32_t count = 0;
        for (int32_t i = 0; i < record->count; i++)
            count += left[i] = !is_exempt(kernels[n]->op_id, &record->fields[i]);
        for (uint64_t seed = 1; count > 0 && seed < MOST_SEEDS; seed++) {
            struct call call;
            const bool whole = seed % 8 == 0;
            (void)call_open(&call, cases[n], kernels[n], seed, BUDGET, whole ? NULL : &asker);
            count = strike(&call, left);
            call_close(&call);
        }
        for (int32_t i = 0; i < record->count; i++)
            if (left[i])
                printf("no call gives %s of %s\n", record->fields[i].name, kernels[n]->op_id);
        missing += count;
    }
    assert_int_equal(missing, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_argument_is_given)};
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
