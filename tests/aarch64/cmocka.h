/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for cmocka in cross builds, for which Debian has none: the part of its interface that the
 * kernel tests use. A failed assertion says where and ends the program, without running what is left.
 */
#ifndef EJK_TESTS_AARCH64_CMOCKA_H
#define EJK_TESTS_AARCH64_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(function)                                                                 \
    { #function, function, NULL, NULL, NULL }
#define cmocka_unit_test_setup(function, setup)                                                    \
    { #function, function, setup, NULL, NULL }
#define cmocka_unit_test_setup_teardown(function, up, down)                                        \
    { #function, function, up, down, NULL }
#define cmocka_unit_test_prestate(function, state)                                                 \
    { #function, function, NULL, NULL, state }

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...)   fprintf(stderr, __VA_ARGS__)
#define _fail(file, line)  (fprintf(stderr, "%s:%d: failed\n", file, line), exit(1))
#define fail_msg(...)                                                                              \
    (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__),                 \
     fputc('\n', stderr), exit(1))
#define fail() fail_msg("failed")
#define skip() exit(77)

#define assert_holds_(condition, text) ((condition) ? (void)0 : (void)fail_msg("%s", text))

#define assert_true(c)                  assert_holds_(c, #c)
#define assert_false(c)                 assert_holds_(!(c), "not " #c)
#define assert_null(p)                  assert_holds_((p) == NULL, #p " is NULL")
#define assert_non_null(p)              assert_holds_((p) != NULL, #p " is not NULL")
#define assert_ptr_equal(a, b)          assert_holds_((a) == (b), #a " == " #b)
#define assert_int_equal(a, b)          assert_holds_((a) == (b), #a " == " #b)
#define assert_int_not_equal(a, b)      assert_holds_((a) != (b), #a " != " #b)
#define assert_string_equal(a, b)       assert_holds_(strcmp(a, b) == 0, #a " equals " #b)
#define assert_memory_equal(a, b, size) assert_holds_(memcmp(a, b, size) == 0, #a " equals " #b)

static inline int run_group_(const char *group, const struct CMUnitTest *tests, size_t count,
                             CMFixtureFunction setup, CMFixtureFunction teardown) {
    void *shared = NULL;
    if (setup && setup(&shared) != 0) fail_msg("the set-up of %s failed", group);
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].initial_state ? tests[i].initial_state : shared;
        if (tests[i].setup_func && tests[i].setup_func(&state) != 0)
            fail_msg("the set-up of %s failed", tests[i].name);
        tests[i].test_func(&state);
        if (tests[i].teardown_func && tests[i].teardown_func(&state) != 0)
            fail_msg("the clean-up of %s failed", tests[i].name);
        printf("[ ok ] %s\n", tests[i].name);
    }
    return teardown ? teardown(&shared) : 0;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_group_(#tests, tests, sizeof(tests) / sizeof *(tests), setup, teardown)

#endif
