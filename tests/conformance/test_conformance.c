/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance [gpu] [OPERATION…]: every implementation of the library, under every operation that it computes, or
 * under those named; suite.h says what is checked. An implementation that no operation with a case computes is a
 * failure. On a GPU with the word gpu: 77 where there is none.
 */
#include "conformance/all_cases.h"
#include "conformance/suite.h"
#include "kernels/registry/builtin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

/* Seeds at which bounds or kernels once were wrong. */
static const uint64_t remembered[] = {
    202409, 203067, 203579, 209231, 550,  619,  626, 1346, 1707, 34,    218,   239,   135,  353,
    651,    2325,   539,    1563,   8250, 8135, 304, 479,  5365, 71146, 71605, 82269, 83394};

/* Implementations that no operation with a case computes. */
static int64_t orphans(void) {
    int64_t failures = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        bool found = false;
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
            found =
                found || (case_of(kernels[k]) && line_computes(kernels[k], case_of(kernels[k]), e));
        if (found) continue;
        printf("FAIL %s %s: no operation with a case computes it\n", e->algorithm, e->name);
        failures++;
    }
    return failures;
}

/* Asked in a child: after it forking is of no use. */
static bool has_gpu(void) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _Exit(device_is_here() ? EXIT_SUCCESS : EXIT_FAILURE);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == EXIT_SUCCESS;
}

/* Bad calls of the operations named, under no implementation in particular. */
static int64_t unrefused(int count, char **names) {
    int64_t faults = 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        const struct operation *o = case_of(kernels[k]);
        if (o && o->good && operation_is_named(kernels[k], count, names))
            faults += refused_faults(kernels[k], o->call, o->good, o->refused);
    }
    return faults;
}

int main(int argc, char **argv) {
    static struct line lines[MOST_LINES];
    const bool named = argc > 1 && strcmp(argv[1], "gpu") == 0;
    const bool gpu = named || getenv("EJK_TEST_EXACT") != NULL; /* which is for compute-sanitizer */
    struct suite suite = {.lines = lines,
                          .gpu = gpu,
                          .remembered = remembered,
                          .remembered_count = sizeof remembered / sizeof *remembered};
    if (gpu && !has_gpu()) {
        printf("skipped: there is no GPU\n");
        return SKIPPED;
    }
    suite.count = lines_of(lines, gpu, argc - 1 - named, argv + 1 + named);
    suite_open(&suite);
    if (suite.count == 0) {
        printf("FAIL no implementation of that name\n");
        return EXIT_FAILURE;
    }
    int64_t failures = orphans() + suite_run(&suite);
    if (!gpu && !*suite.filter && suite.cases != 1)
        failures += unrefused(argc - 1 - named, argv + 1 + named);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
