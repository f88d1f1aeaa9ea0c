/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of a kernel: their names, which one is the most specific, and running by one; choosers. */
#include "support/expect.h"
#include "support/toy.h"

#include <stdatomic.h>
#include <string.h>

static const char *ran;
static toy_config seen;

static ejk_status note(const char *name, const ejk_hook_call *call) {
    const toy_args *args = call->args;
    const float *x = args->x.data;
    float *y = args->y.data;
    ran = name;
    seen = *(const toy_config *)call->config;
    for (int64_t i = 0; i < args->x.shape[0] * args->x.shape[1]; i++)
        y[i] = (float)(x[i] * args->factor);
    return EJK_OK;
}

#define HOOK(name)                                                                                 \
    static ejk_status hook_##name(const ejk_hook_call *call) {                                     \
        return note(#name, call);                                                                  \
    }
HOOK(run)
HOOK(run_cpu)
HOOK(run_simd)
HOOK(run_triton)
HOOK(run_gpu)
HOOK(run_shard_map)
HOOK(run_shard_map_cpu)
HOOK(run_shard_map_simd)

#define ENTRY(hook)                                                                                \
    { .name = #hook, .call = hook_##hook }

static ejk_kernel plain_toy(void) {
    ejk_kernel kernel = toy_kernel;
    kernel.op_id = "hooked_toy";
    kernel.heuristic_cfg = NULL; /* it expects the toy itself */
    return kernel;
}

/* The hooks from the least specific on: each that is added is found in place of the one before. */
static void test_order(void **state) {
    (void)state;
    static const ejk_hook hooks[] = {
        ENTRY(run),           ENTRY(run_cpu),           ENTRY(run_simd),
        ENTRY(run_shard_map), ENTRY(run_shard_map_cpu), ENTRY(run_shard_map_simd)};
    ejk_kernel kernel = plain_toy();
    kernel.hooks = hooks;
    for (int32_t n = 0; n <= 6; n++) {
        kernel.hook_count = n;
        const ejk_hook *hook =
            ejk_hook_resolve(&kernel, "run", "shard_map", EJK_PLATFORM_SIMD, EJK_BACKEND_CPU);
        assert_ptr_equal(hook, n ? &hooks[n - 1] : NULL);
        hook = ejk_hook_resolve(&kernel, "run", NULL, EJK_PLATFORM_AUTO, EJK_BACKEND_ANY);
        assert_ptr_equal(hook, n ? &hooks[n < 3 ? n - 1 : 2] : NULL);
    }
    /* Another platform finds what is not bound to one; hardware that nothing is said of, the plain one. */
    assert_string_equal(
        ejk_hook_resolve(&kernel, "run", NULL, EJK_PLATFORM_REFERENCE, EJK_BACKEND_CPU)->name,
        "run_cpu");
    assert_string_equal(
        ejk_hook_resolve(&kernel, "run", NULL, EJK_PLATFORM_CUDA, EJK_BACKEND_GPU)->name, "run");
    assert_null(ejk_hook_resolve(&kernel, "vjp", NULL, EJK_PLATFORM_AUTO, EJK_BACKEND_ANY));
    assert_null(ejk_hook_resolve(NULL, "run", NULL, EJK_PLATFORM_AUTO, EJK_BACKEND_ANY));
}

static void test_run(void **state) {
    (void)state;
    static const ejk_hook hooks[] = {ENTRY(run), ENTRY(run_triton), ENTRY(run_simd),
                                     ENTRY(run_gpu)};
    ejk_context *context = toy_context(NULL);
    ejk_kernel kernel = plain_toy();
    kernel.hooks = hooks;
    kernel.hook_count = 4;
    float x[] = {1, 2, 3, 4}, y[4] = {0};
    toy_args args = toy_call(x, y, 2, 2);
    args.factor = 3;
    args.cfg.params.rows = ejk_int(24);
    EXPECT_OK(ejk_call(context, &kernel, &args));
    assert_string_equal(ran, "run_simd");
    assert_true(y[3] == 12);
    assert_int_equal(seen.params.rows.value, 24);
    strcpy(args.platform, "triton");
    EXPECT_OK(ejk_call(context, &kernel, &args));
    assert_string_equal(ran, "run_triton");
    strcpy(args.platform, "xla");
    EXPECT_OK(ejk_call(context, &kernel, &args));
    assert_string_equal(ran, "run");
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &kernel, &args, &plan));
    assert_null(ejk_plan_implementation(plan));
    char *text;
    EXPECT_OK(ejk_plan_describe(plan, &text));
    assert_non_null(strstr(text, "\"implementation\":\"run\""));
    assert_non_null(strstr(text, "\"step\":\"override\""));
    ejk_free(text);
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
}

static void advise(const ejk_invocation *invocation, void *config) {
    (void)invocation;
    (void)config;
}

static void test_names(void **state) {
    (void)state;
    ejk_context *context = toy_context(NULL);
    static const char *const wrong[] = {"",
                                        "runs",
                                        "run_",
                                        "run_auto",
                                        "run_any",
                                        "run_abacus",
                                        "simd_run",
                                        "run_simd_shard_map",
                                        "run_shard_map_",
                                        "vjp_simd_cpu"};
    ejk_kernel kernel = plain_toy();
    ejk_hook hooks[2] = {ENTRY(run)};
    kernel.hooks = hooks;
    kernel.hook_count = 1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        hooks[0].name = wrong[i];
        EXPECT_FAIL(INVALID_ARGUMENT, "is no hook", ejk_context_add_kernel(context, &kernel));
    }
    hooks[0].name = "heuristic_cfg_cpu";
    EXPECT_FAIL(INVALID_ARGUMENT, "heuristic_cfg function",
                ejk_context_add_kernel(context, &kernel));
    hooks[0] = (ejk_hook){.name = "run_simd", .heuristic_cfg = advise};
    EXPECT_FAIL(INVALID_ARGUMENT, "call function", ejk_context_add_kernel(context, &kernel));
    hooks[0] = hooks[1] = (ejk_hook)ENTRY(run);
    kernel.hook_count = 2;
    EXPECT_FAIL(INVALID_ARGUMENT, "given twice", ejk_context_add_kernel(context, &kernel));
    kernel.hooks = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "hook_count", ejk_context_add_kernel(context, &kernel));
    ejk_context_destroy(context);
}

/* ---- Choosers --------------------------------------------------------------------------------------- */

static _Atomic(uint64_t) generation;
static int asked;
static int64_t answer;

static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    assert_ptr_equal(self, &answer);
    assert_non_null(invocation->implementation);
    asked++;
    ((toy_config *)config)->params.rows = ejk_int(answer);
    *step = EJK_CHOICE_MEMORY;
    return EJK_OK;
}

static uint64_t generation_now(void *self) {
    (void)self;
    return atomic_load(&generation);
}

static void test_chooser(void **state) {
    (void)state;
    const ejk_config_chooser chooser = {&answer, choose, generation_now};
    ejk_context *context = toy_context(&(ejk_context_options){.threads = 1, .chooser = &chooser});
    float x[] = {1, 2}, y[2];
    toy_args args = toy_call(x, y, 1, 2);
    answer = 32;
    for (int i = 0; i < 3; i++) EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    assert_int_equal(asked, 1);
    atomic_fetch_add(&generation, 1);
    for (int i = 0; i < 3; i++) EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    assert_int_equal(asked, 2);
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &toy_kernel, &args, &plan));
    assert_int_equal(ejk_plan_step(plan), EJK_CHOICE_MEMORY);
    assert_int_equal(((const toy_config *)ejk_plan_config(plan))->params.rows.value, 32);
    ejk_plan_destroy(plan);
    answer = 7; /* which the implementation does not take */
    EXPECT_OK(ejk_plan_create(context, &toy_kernel, &args, &plan));
    char *text;
    EXPECT_OK(ejk_plan_describe(plan, &text));
    assert_non_null(
        strstr(text, "\"parameters\":{\"rows\":16},\"chosen_by\":{\"rows\":\"default\"}"));
    ejk_free(text);
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
}

/* ---- Candidates ------------------------------------------------------------------------------------- */

static const ejk_invocation toy_invocation = {.kernel = &toy_kernel,
                                              .implementation = &toy_implementation};

static void test_derived_candidates(void **state) {
    (void)state;
    toy_config list[16];
    int32_t count;
    toy_advice = ejk_int(32);
    EXPECT_OK(ejk_invocation_candidates(&toy_invocation, list, 16, &count));
    static const int64_t expected[] = {32, 16, 64, 8};
    assert_int_equal(count, 4); /* 128 is beyond the bounds and snaps to 64 */
    for (int32_t i = 0; i < count; i++) assert_int_equal(list[i].params.rows.value, expected[i]);
    EXPECT_OK(ejk_invocation_candidates(&toy_invocation, list, 2, &count));
    assert_int_equal(count, 2);
    toy_advice = ejk_int(33); /* not allowed: left unset, the default is varied */
    EXPECT_OK(ejk_invocation_heuristics(&toy_invocation, list));
    assert_false(list[0].params.rows.set);
    EXPECT_OK(ejk_invocation_candidates(&toy_invocation, list, 16, &count));
    assert_int_equal(list[1].params.rows.value, 8);
    toy_advice = (ejk_opt_int){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "capacity",
                ejk_invocation_candidates(&toy_invocation, list, 0, &count));
}

static ejk_status some(const ejk_invocation *invocation, void *configs, int32_t capacity,
                       int32_t *count) {
    (void)invocation;
    static const int64_t rows[] = {24, 7, 24, 40};
    toy_config *list = configs;
    *count = capacity < 4 ? capacity : 4;
    for (int32_t i = 0; i < *count; i++) list[i].params.rows = ejk_int(rows[i]);
    return EJK_OK;
}

static void test_own_candidates(void **state) {
    (void)state;
    ejk_kernel kernel = plain_toy();
    kernel.candidate_cfgs = some;
    ejk_invocation invocation = toy_invocation;
    invocation.kernel = &kernel;
    toy_config list[8];
    int32_t count;
    EXPECT_OK(ejk_invocation_candidates(&invocation, list, 8, &count));
    assert_int_equal(count, 3); /* the heuristic one; 7 is not allowed, 24 is there already */
    assert_false(list[0].params.rows.set);
    assert_int_equal(list[1].params.rows.value, 24);
    assert_int_equal(list[2].params.rows.value, 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_chooser),
        cmocka_unit_test(test_derived_candidates),
        cmocka_unit_test(test_own_candidates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
