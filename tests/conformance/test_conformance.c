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

static const struct operation *case_of(const ejk_kernel *kernel) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i]->op, kernel->op_id) == 0) return cases[i];
    return NULL;
}

/*
 * What runs an algorithm beside an implementation: the reference, or on a GPU the last of the least priority, which
 * serves every call.
 */
static const ejk_implementation *stand_in(const char *algorithm, const ejk_implementation *beside) {
    const ejk_implementation *found = NULL;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        const bool gpu = beside->backend == EJK_BACKEND_GPU;
        if (strcasecmp(e->algorithm, algorithm) == 0 && e->dtype == beside->dtype &&
            e->platform == (gpu ? EJK_PLATFORM_CUDA : EJK_PLATFORM_REFERENCE) &&
            (!found || e->priority <= found->priority))
            found = e;
    }
    return found;
}

/* True if it computes the operation, or a step of it whose other steps have implementations beside it. */
static bool computes(const ejk_kernel *kernel, const struct operation *o,
                     const ejk_implementation *e) {
    const char *algorithm = kernel->algorithm ? kernel->algorithm : kernel->op_id;
    if (o && o->only && e->dtype && e->dtype != o->only) return false;
    if (!kernel->steps) return strcasecmp(e->algorithm, algorithm) == 0;
    bool any = false;
    for (int32_t i = 0; i < kernel->step_count; i++) {
        const bool own = strcasecmp(e->algorithm, kernel->steps[i].algorithm) == 0;
        if (!own && !stand_in(kernel->steps[i].algorithm, e)) return false;
        any = any || own;
    }
    return any;
}

static struct line line_of(const ejk_kernel *kernel, const struct operation *o,
                           const ejk_implementation *e) {
    struct line line = {.implementation = e, .kernel = kernel, .operation = o};
    for (int32_t i = 0; kernel->steps && i < kernel->step_count; i++)
        line.other[i] = stand_in(kernel->steps[i].algorithm, e);
    return line;
}

static bool is_named(const ejk_kernel *kernel, int count, char **names) {
    bool found = count == 0;
    for (int i = 0; i < count; i++) found = found || strcmp(names[i], kernel->op_id) == 0;
    return found;
}

/* Lines of the operations named, a kernel's one after the other. */
static int32_t lines_of(struct line *lines, bool gpu, int count, char **names) {
    int32_t used = 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        if (!is_named(kernels[k], count, names)) continue;
        const struct operation *o = case_of(kernels[k]);
        for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
            const ejk_implementation *e = ejki_builtin_implementations[i];
            if ((e->backend == EJK_BACKEND_GPU) == gpu && computes(kernels[k], o, e) &&
                used < MOST_LINES)
                lines[used++] = line_of(kernels[k], o, e);
        }
    }
    return used;
}

/* Implementations that no operation with a case computes. */
static int64_t orphans(void) {
    int64_t failures = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        bool found = false;
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
            found = found || (case_of(kernels[k]) && computes(kernels[k], case_of(kernels[k]), e));
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
        if (o && o->good && is_named(kernels[k], count, names))
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
