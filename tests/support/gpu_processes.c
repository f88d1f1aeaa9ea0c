/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_PROCESSES = 64 };

static bool succeeded(pid_t child, int *status) {
    return child > 0 && waitpid(child, status, 0) == child && WIFEXITED(*status) &&
           WEXITSTATUS(*status) == EXIT_SUCCESS;
}

bool gpu_present(void) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const bool there = gpu_is_here();
        fflush(stdout);
        _Exit(there ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status = 0;
    return succeeded(child, &status);
}

uint64_t gpu_number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static pid_t start(const gpu_work *work, void *counts, const gpu_share *share) {
    const pid_t child = fork();
    if (child != 0) return child;
    work->run(counts, share);
    fflush(stdout);
    _Exit(EXIT_SUCCESS);
}

int gpu_run_processes(const gpu_work *work, void **counts, int *processes) {
    const uint64_t wish = gpu_number("EJK_TEST_PROCESSES", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    const int many = wish < 1 ? 1 : wish > MOST_PROCESSES ? MOST_PROCESSES : (int)wish;
    gpu_share share = {.step = (uint64_t)many,
                       .cases = gpu_number("EJK_TEST_CASES", work->cases),
                       .end = time(NULL) + (time_t)gpu_number("EJK_TEST_SECONDS", work->seconds)};
    pid_t children[MOST_PROCESSES];
    int failures = 0;
    char *all = mmap(NULL, work->size * (size_t)many, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *processes = all == MAP_FAILED ? 0 : many;
    *counts = all;
    if (all == MAP_FAILED) return many;
    fflush(stdout);
    for (int n = 0; n < many; n++) {
        share.first = (uint64_t)n;
        children[n] = start(work, all + work->size * (size_t)n, &share);
    }
    for (int n = 0; n < many; n++) {
        int status = 0;
        if (succeeded(children[n], &status)) continue;
        printf("FAIL a process ended with %d in %s\n", status, all + work->size * (size_t)n);
        failures++;
    }
    return failures;
}
