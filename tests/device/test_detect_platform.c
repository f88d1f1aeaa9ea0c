/* SPDX-License-Identifier: Apache-2.0 */
/* The documents' own rule of which platform a call runs on, beside the library's. */
#include "support/expect.h"

#include <ejkernel/registry.h>

static ejk_status nothing(const ejk_run *run) {
    (void)run;
    return EJK_OK;
}

static void add_on(ejk_registry *registry, const char *algorithm, const char *name,
                   ejk_platform platform, ejk_backend backend) {
    const ejk_implementation e = {.algorithm = algorithm,
                                  .name = name,
                                  .platform = platform,
                                  .backend = backend,
                                  .run = nothing};
    EXPECT_OK(ejk_registry_register(registry, &e));
}

/* "all" stands on every technology of the documents, "some" on pallas for a gpu only, "none" on ours. */
static void the_documented_rule_of_platforms(void **state) {
    (void)state;
    ejk_registry *registry;
    EXPECT_OK(ejk_registry_create(&registry));
    add_on(registry, "all", "t", EJK_PLATFORM_TRITON, EJK_BACKEND_GPU);
    add_on(registry, "all", "p", EJK_PLATFORM_PALLAS, EJK_BACKEND_TPU);
    add_on(registry, "all", "g", EJK_PLATFORM_PALLAS, EJK_BACKEND_GPU);
    add_on(registry, "all", "x", EJK_PLATFORM_XLA, EJK_BACKEND_ANY);
    add_on(registry, "some", "g", EJK_PLATFORM_PALLAS, EJK_BACKEND_GPU);
    add_on(registry, "some", "x", EJK_PLATFORM_XLA, EJK_BACKEND_ANY);
    add_on(registry, "none", "s", EJK_PLATFORM_SIMD, EJK_BACKEND_CPU);
    static const struct {
        const char *algorithm;
        ejk_backend backend;
        ejk_platform plain, maybe_pallas;
    } cases[] = {
        {"all", EJK_BACKEND_GPU, EJK_PLATFORM_TRITON, EJK_PLATFORM_PALLAS},
        {"ALL", EJK_BACKEND_TPU, EJK_PLATFORM_PALLAS, EJK_PLATFORM_PALLAS},
        {"all", EJK_BACKEND_CPU, EJK_PLATFORM_XLA, EJK_PLATFORM_XLA},
        {"all", EJK_BACKEND_ANY, EJK_PLATFORM_XLA, EJK_PLATFORM_XLA},
        {"some", EJK_BACKEND_GPU, EJK_PLATFORM_XLA, EJK_PLATFORM_PALLAS},
        {"some", EJK_BACKEND_TPU, EJK_PLATFORM_XLA, EJK_PLATFORM_XLA},
        {"none", EJK_BACKEND_CPU, EJK_PLATFORM_XLA, EJK_PLATFORM_XLA},
        {"none", EJK_BACKEND_GPU, EJK_PLATFORM_XLA, EJK_PLATFORM_XLA},
    };
    ejk_platform platform;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int maybe = 0; maybe < 2; maybe++) {
            platform = EJK_PLATFORM_AUTO;
            EXPECT_OK(ejk_detect_platform_documented(registry, cases[i].algorithm,
                                                     EJK_PLATFORM_AUTO, cases[i].backend, maybe,
                                                     &platform));
            assert_int_equal(platform, maybe ? cases[i].maybe_pallas : cases[i].plain);
        }
    static const ejk_platform wishes[] = {EJK_PLATFORM_TRITON, EJK_PLATFORM_PALLAS,
                                          EJK_PLATFORM_XLA};
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        EXPECT_OK(ejk_detect_platform_documented(registry, "all", wishes[i], EJK_BACKEND_ANY, false,
                                                 &platform));
        assert_int_equal(platform, wishes[i]);
    }
    platform = EJK_PLATFORM_CUDA;
#define NOT_DETECTED(status, words, algorithm, wish, backend)                                      \
    EXPECT_FAIL(                                                                                   \
        status, words,                                                                             \
        ejk_detect_platform_documented(registry, algorithm, wish, backend, true, &platform))
    NOT_DETECTED(UNAVAILABLE,
                 "some on platform triton is unavailable, these exist: pallas g, xla x", "some",
                 EJK_PLATFORM_TRITON, EJK_BACKEND_GPU);
    NOT_DETECTED(UNAVAILABLE, "backend cpu", "all", EJK_PLATFORM_TRITON, EJK_BACKEND_CPU);
    NOT_DETECTED(UNAVAILABLE, "platform cuda", "all", EJK_PLATFORM_CUDA, EJK_BACKEND_ANY);
    NOT_DETECTED(UNAVAILABLE, "platform unknown", "all", (ejk_platform)77, EJK_BACKEND_ANY);
    NOT_DETECTED(UNKNOWN_NAME, "these exist: all, none, some", "other", EJK_PLATFORM_AUTO,
                 EJK_BACKEND_CPU);
    NOT_DETECTED(INVALID_ARGUMENT, "algorithm", NULL, EJK_PLATFORM_AUTO, EJK_BACKEND_CPU);
    assert_int_equal(platform, EJK_PLATFORM_CUDA);
    EXPECT_FAIL(INVALID_ARGUMENT, "registry",
                ejk_detect_platform_documented(NULL, "all", EJK_PLATFORM_AUTO, EJK_BACKEND_CPU,
                                               false, &platform));
    EXPECT_FAIL(INVALID_ARGUMENT, "out",
                ejk_detect_platform_documented(registry, "all", EJK_PLATFORM_AUTO, EJK_BACKEND_CPU,
                                               false, NULL));
    ejk_registry_destroy(registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_documented_rule_of_platforms)};
    return cmocka_run_group_tests_name("detect_platform", tests, NULL, NULL);
}
