/* SPDX-License-Identifier: Apache-2.0 */
/* The command on an operation with lists of tensors: contexts that it makes know one of a test's own. */
#include "cli.h"
#include "support/expect.h"
#include "support/toy_sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { M = 4 };

ejk_status __real_ejk_context_create(const ejk_context_options *options, ejk_context **out);

ejk_status __wrap_ejk_context_create(const ejk_context_options *options, ejk_context **out) {
    const ejk_status status = __real_ejk_context_create(options, out);
    return status == EJK_OK ? toy_sums_add(*out) : status;
}

static char folder[] = "ejk-lists-XXXXXX";
static char a[64], b[64], picks[64], y[64], both[192], nine[1024];

static int setup(void **unused) {
    (void)unused;
    float ones[3 * M];
    int32_t columns[2] = {1, 1};
    for (int i = 0; i < 3 * M; i++) ones[i] = 1;
    if (!mkdtemp(folder)) return 1;
    snprintf(a, sizeof a, "%s/a.npy", folder);
    snprintf(b, sizeof b, "%s/b.npy", folder);
    snprintf(picks, sizeof picks, "%s/picks.npy", folder);
    snprintf(y, sizeof y, "%s/y.npy", folder);
    snprintf(both, sizeof both, "%s,%s", a, b);
    for (int i = 0; i < 9; i++) strcat(strcat(nine, i > 0 ? "," : ""), a);
    const ejk_tensor one = ejk_tensor_2d(ones, EJK_DTYPE_F32, 1, M);
    const ejk_tensor three = ejk_tensor_2d(ones, EJK_DTYPE_F32, 3, M);
    const ejk_tensor two = ejk_tensor_1d(columns, EJK_DTYPE_I32, 2);
    EXPECT_OK(ejk_npy_write(a, &one));
    EXPECT_OK(ejk_npy_write(b, &three));
    EXPECT_OK(ejk_npy_write(picks, &two));
    return 0;
}

static int teardown(void **unused) {
    (void)unused;
    remove(a);
    remove(b);
    remove(picks);
    remove(y);
    return rmdir(folder);
}

/* The exit status of a command; `said` gets what it prints there. */
static int listen(int descriptor, int (*command)(int, char **), int count, const char **words,
                  char *said, size_t room) {
    fflush(NULL);
    const int before = dup(descriptor);
    FILE *report = tmpfile();
    assert_non_null(report);
    dup2(fileno(report), descriptor);
    const int status = command(count, (char **)(uintptr_t)words);
    fflush(NULL);
    dup2(before, descriptor);
    close(before);
    rewind(report);
    said[fread(said, 1, room - 1, report)] = 0;
    fclose(report);
    return status;
}

static void a_list_is_files(void **unused) {
    (void)unused;
    const char *words[] = {"toy_sums", "--parts", both, "--picks", picks, "--output", y};
    char said[4096];
    assert_int_equal(listen(STDOUT_FILENO, run_command, 7, words, said, sizeof said), DONE);
    ejk_owned_tensor loaded;
    EXPECT_OK(ejk_tensor_load(y, &loaded));
    const float *sums = loaded.tensor.data;
    assert_true(sums[0] == 4 && sums[1] == 6 && sums[3] == 4);
    ejk_owned_tensor_close(&loaded);
}

static void expect_error(const char *parts, const char *words) {
    const char *given[] = {"toy_sums", "--output", y, "--parts", parts};
    char said[4096];
    assert_int_equal(listen(STDERR_FILENO, run_command, parts ? 5 : 3, given, said, sizeof said),
                     FAILED);
    if (!strstr(said, words)) fail_msg("'%s' said, expected '%s'", said, words);
}

static void what_is_wrong_is_said(void **unused) {
    (void)unused;
    char list[256];
    expect_error(NULL, "--parts is missing: files, with commas between");
    expect_error(nine, "--parts has more than 8 files");
    snprintf(list, sizeof list, "%s,%s", a, picks);
    expect_error(list, "parts[1]: rank 1 given, expected [n#,m]");
    snprintf(list, sizeof list, "%s,", a);
    expect_error(list, "");
}

static void bench_makes_the_members(void **unused) {
    (void)unused;
    const char *words[] = {"toy_sums",
                           "--shape",
                           "n0=64,n1=32,k0=100,m=16",
                           "--with",
                           "parts.1+picks.0",
                           "--seconds",
                           "0.01",
                           "--against",
                           "reference",
                           "--threads",
                           "1",
                           "--json"};
    static char said[1 << 16];
    toy_sums_strays = 0;
    assert_int_equal(listen(STDOUT_FILENO, bench_command, 12, words, said, sizeof said), DONE);
    assert_int_equal(toy_sums_strays, 0);
    assert_non_null(strstr(said, "\"maximum_error_against\": 0.0"));
    assert_non_null(strstr(said, "\"flops\": 1536"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_files),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(bench_makes_the_members),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
