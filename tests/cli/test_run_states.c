/* SPDX-License-Identifier: Apache-2.0 */
/* The command on an operation with a state: contexts that it makes know one of a test's own. */
#include "cli.h"
#include "support/expect.h"
#include "support/toy_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 3, M = 4 };

ejk_status __real_ejk_context_create(const ejk_context_options *options, ejk_context **out);

ejk_status __wrap_ejk_context_create(const ejk_context_options *options, ejk_context **out) {
    const ejk_status status = __real_ejk_context_create(options, out);
    return status == EJK_OK ? toy_scan_add(*out) : status;
}

static char folder[] = "ejk-states-XXXXXX";

static const char *path_of(const char *name) {
    static char room[4][64];
    static int next;
    next = (next + 1) % 4;
    snprintf(room[next], sizeof room[next], "%s/%s.npy", folder, name);
    return room[next];
}

static int setup(void **unused) {
    (void)unused;
    float x[N * M], state[M];
    for (int i = 0; i < N * M; i++) x[i] = 1;
    for (int i = 0; i < M; i++) state[i] = (float)(10 * i);
    if (!mkdtemp(folder)) return 1;
    const ejk_tensor inputs = ejk_tensor_2d(x, EJK_DTYPE_F32, N, M);
    const ejk_tensor sums = ejk_tensor_1d(state, EJK_DTYPE_F32, M);
    EXPECT_OK(ejk_npy_write(path_of("x"), &inputs));
    EXPECT_OK(ejk_npy_write(path_of("state"), &sums));
    return 0;
}

static int teardown(void **unused) {
    (void)unused;
    static const char *const names[] = {"x", "state", "after", "y"};
    for (int i = 0; i < 4; i++) remove(path_of(names[i]));
    return rmdir(folder);
}

static int run(int count, const char *const *words) {
    return run_command(count, (char **)(uintptr_t)words);
}

static void expect_sums(const char *name, bool updated) {
    ejk_owned_tensor loaded;
    EXPECT_OK(ejk_tensor_load(path_of(name), &loaded));
    for (int k = 0; k < M; k++)
        assert_true(((const float *)loaded.tensor.data)[k] == (float)(10 * k + (updated ? N : 0)));
    ejk_owned_tensor_close(&loaded);
}

/* It runs twice to time the second run, and still it is one step. */
static void a_run_is_one_step_from_the_file(void **unused) {
    (void)unused;
    const char *words[] = {"toy_scan",    "--x", path_of("x"), "--state", path_of("state"),
                           "--state-out", NULL,  "--output",   NULL};
    words[6] = path_of("after");
    words[8] = path_of("y");
    assert_int_equal(run(9, words), DONE);
    expect_sums("after", true);
    expect_sums("state", false);
    ejk_owned_tensor y;
    EXPECT_OK(ejk_tensor_load(path_of("y"), &y));
    assert_true(((const float *)y.tensor.data)[0] == 1);
    ejk_owned_tensor_close(&y);
}

static void what_is_missing_is_said(void **unused) {
    (void)unused;
    const char *without[] = {"toy_scan", "--x", path_of("x")};
    assert_int_equal(run(3, without), FAILED);
    const char *nothing_given[] = {"toy_scan",       "--x",        path_of("x"), "--state",
                                   path_of("state"), "--last-out", "never.npy"};
    assert_int_equal(run(7, nothing_given), FAILED);
    const char *no_state[] = {"toy_scan",       "--x",     path_of("x"), "--state",
                              path_of("state"), "--x-out", "never.npy"};
    assert_int_equal(run(7, no_state), FAILED);
    assert_int_equal(access("never.npy", F_OK), -1);
}

/* Both platforms compute bit for bit the same: any difference would be a state that was not put back. */
static void bench_compares_from_the_same_state(void **unused) {
    (void)unused;
    const char *words[] = {"toy_scan",  "--shape",   "n=64,m=32", "--seconds", "0.01",
                           "--against", "reference", "--threads", "1",         "--json"};
    char text[1 << 16] = "";
    fflush(stdout);
    const int terminal = dup(STDOUT_FILENO);
    FILE *report = tmpfile();
    assert_non_null(report);
    dup2(fileno(report), STDOUT_FILENO);
    const int status = bench_command(10, (char **)(uintptr_t)words);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    rewind(report);
    const size_t size = fread(text, 1, sizeof text - 1, report);
    fclose(report);
    assert_int_equal(status, DONE);
    assert_in_range(size, 1, sizeof text - 2);
    assert_non_null(strstr(text, "\"maximum_error_against\": 0.0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_one_step_from_the_file),
        cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(bench_compares_from_the_same_state),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
