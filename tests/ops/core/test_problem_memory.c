/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of problems: what it is filled with, and that it can be computed on. */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <stdio.h>

static ejk_problem *parse(const char *text) {
    ejk_problem *problem = NULL;
    EXPECT_OK(ejk_problem_parse(context, text, &problem));
    return problem;
}

static double element(const ejk_tensor *tensor, const int64_t *index) {
    int64_t offset = 0;
    for (int32_t i = 0; i < tensor->rank; i++) offset += index[i] * tensor->strides[i];
    switch (tensor->dtype) {
    case EJK_DTYPE_F64: return ((const double *)tensor->data)[offset];
    case EJK_DTYPE_F32: return (double)((const float *)tensor->data)[offset];
    case EJK_DTYPE_BF16: return (double)ejk_bf16_to_f32(((const uint16_t *)tensor->data)[offset]);
    case EJK_DTYPE_F16: return (double)ejk_f16_to_f32(((const uint16_t *)tensor->data)[offset]);
    case EJK_DTYPE_I32: return ((const int32_t *)tensor->data)[offset];
    default: return ((const uint8_t *)tensor->data)[offset];
    }
}

/* Sum, extremes and count of a tensor of up to four axes. */
typedef struct summary {
    double sum, least, largest;
    int64_t count;
} summary;

static summary summarise(const ejk_tensor *tensor) {
    summary s = {0, 1e9, -1e9, 0};
    int64_t n[4] = {1, 1, 1, 1}, i[4];
    for (int32_t k = 0; k < tensor->rank; k++) n[k] = tensor->shape[k];
    for (i[0] = 0; i[0] < n[0]; i[0]++)
        for (i[1] = 0; i[1] < n[1]; i[1]++)
            for (i[2] = 0; i[2] < n[2]; i[2]++)
                for (i[3] = 0; i[3] < n[3]; i[3]++, s.count++) {
                    const double value = element(tensor, i);
                    s.sum += value;
                    s.least = value < s.least ? value : s.least;
                    s.largest = value > s.largest ? value : s.largest;
                }
    return s;
}

static void expect_uniform(const ejk_tensor *tensor) {
    const summary s = summarise(tensor);
    assert_true(s.count > 1000);
    assert_true(s.least >= -1 && s.least < -0.95 && s.largest <= 1 && s.largest > 0.95);
    assert_true(s.sum > -0.1 * (double)s.count && s.sum < 0.1 * (double)s.count);
}

static void memory_is_filled_by_kind(void **state) {
    (void)state;
    static const char *const types[] = {"float64", "float32", "bfloat16", "float16"};
    for (int i = 0; i < 4; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "flash_attention:Hq=4,T=32,D=16,dtype=%s,bias,lse,attention_mask=%s,"
                 "q_segment_ids,kv_segment_ids",
                 types[i], i % 2 ? "uint8" : "bool");
        ejk_problem *problem = parse(line);
        EXPECT_OK(ejk_problem_allocate(problem, 7));
        const ejk_flash_attention_args *args = ejk_problem_args(problem);
        expect_uniform(&args->query);
        expect_uniform(&args->key);
        expect_uniform(&args->value);
        expect_uniform(&args->bias);
        const summary mask = summarise(&args->attention_mask);
        assert_true(mask.least == 0 && mask.largest == 1);
        assert_true(mask.sum > 0.87 * (double)mask.count && mask.sum < 0.93 * (double)mask.count);
        const ejk_tensor *zeros[] = {&args->out, &args->lse};
        for (int k = 0; k < 2; k++) {
            const summary s = summarise(zeros[k]);
            assert_true(s.count > 0 && s.least == 0 && s.largest == 0);
        }
        const summary ids = summarise(&args->q_segment_ids);
        assert_true(ids.least == 0 && ids.largest == 3);
        assert_int_equal((uintptr_t)args->query.data % 64, 0);
        ejk_problem_destroy(problem);
    }
}

static void numbers_do_not_depend_on_strides(void **state) {
    (void)state;
    static const char *const lines[] = {
        "flash_attention:B=2,Hq=4,T=8,D=16", "flash_attention:B=2,Hq=4,T=8,D=16,layout=bhtd",
        "flash_attention:B=2,Hq=4,T=8,D=16,query=@[-512,-64,16,1],lse"};
    ejk_problem *problems[4];
    for (int i = 0; i < 3; i++) {
        problems[i] = parse(lines[i]);
        EXPECT_OK(ejk_problem_allocate(problems[i], 1));
    }
    problems[3] = parse(lines[0]);
    EXPECT_OK(ejk_problem_allocate(problems[3], 2));
    const ejk_flash_attention_args *first = ejk_problem_args(problems[0]);
    const int64_t places[][4] = {{0, 0, 0, 0}, {1, 7, 3, 15}, {1, 2, 3, 4}, {0, 5, 1, 9}};
    for (int k = 0; k < 4; k++) {
        for (int i = 1; i < 3; i++) {
            const ejk_flash_attention_args *args = ejk_problem_args(problems[i]);
            assert_true(element(&args->query, places[k]) == element(&first->query, places[k]));
            assert_true(element(&args->value, places[k]) == element(&first->value, places[k]));
        }
        const ejk_flash_attention_args *other = ejk_problem_args(problems[3]);
        assert_true(element(&other->query, places[k]) != element(&first->query, places[k]));
        assert_true(element(&first->key, places[k]) != element(&first->query, places[k]));
    }
    /* Filled again, whatever has been written since. */
    const void *address = first->query.data;
    const double before = element(&first->query, places[2]);
    memset(first->query.data, 1, 64);
    memset(first->out.data, 1, 64);
    EXPECT_OK(ejk_problem_allocate(problems[0], 1));
    assert_ptr_equal(first->query.data, address);
    assert_true(element(&first->query, places[2]) == before);
    assert_true(summarise(&first->out).largest == 0);
    for (int i = 0; i < 4; i++) ejk_problem_destroy(problems[i]);
}

static void what_is_allocated_can_be_called(void **state) {
    (void)state;
    static const char *const lines[] = {
        "flash_attention:B=2,Hq=4,Hkv=2,T=9,S=33,D=16,Dv=24,causal,with=lse+attention_mask",
        "flash_attention:Hq=4,T=9,D=16,layout=bhtd,softmax_aux,sliding_window=3,0",
        "flash_attention:Hq=4,T=9,D=16,key=@[0,-16,0,1]",
        "flash_attention:B=0,Hq=4,T=9,D=16",
        "flash_attention:B=1,Hq=4,T=9,S=0,D=16",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        ejk_problem *problem = parse(lines[i]);
        EXPECT_OK(ejk_problem_allocate(problem, 3));
        EXPECT_OK(ejk_call(context, ejk_problem_kernel(problem), ejk_problem_args(problem)));
        const ejk_flash_attention_args *args = ejk_problem_args(problem);
        if (args->out.shape[0] > 0 && args->key.shape[1] > 0)
            assert_true(summarise(&args->out).largest > 0);
        ejk_problem_destroy(problem);
    }
}

static void more_memory_than_there_is(void **state) {
    (void)state;
    ejk_problem *problem = parse("flash_attention:B=1000000,Hq=1000,T=1000,D=100");
    EXPECT_FAIL(OUT_OF_MEMORY, "of this machine", ejk_problem_allocate(problem, 0));
    const ejk_flash_attention_args *args = ejk_problem_args(problem);
    assert_null(args->query.data);
    ejk_problem_destroy(problem);
    /* Overlapping elements take no room, but would take a lifetime to write. */
    problem = parse("flash_attention:query=[1,1000000000,1000,4]@[4,4,4,1],key=[1,1,1,4],"
                    "value=[1,1,1,4],out=@[0,0,0,1]");
    EXPECT_FAIL(OUT_OF_MEMORY, "of this machine", ejk_problem_allocate(problem, 0));
    ejk_problem_destroy(problem);
    problem = parse("flash_attention:query=[1,1000000000,1000,4]@[0,0,0,1],key=[1,1,1,4],"
                    "value=[1,1,1,4],out=@[0,0,0,1]");
    EXPECT_OK(ejk_problem_allocate(problem, 0));
    ejk_problem_destroy(problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_filled_by_kind),
        cmocka_unit_test(numbers_do_not_depend_on_strides),
        cmocka_unit_test(what_is_allocated_can_be_called),
        cmocka_unit_test(more_memory_than_there_is),
    };
    return cmocka_run_group_tests_name("problem_memory", tests, context_set_up, context_tear_down);
}
