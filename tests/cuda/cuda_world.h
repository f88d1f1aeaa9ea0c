/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what is settled once per process run each in a child, with an environment of its own. Checks are said
 * there and counted here.
 */
#ifndef TESTS_CUDA_WORLD_H
#define TESTS_CUDA_WORLD_H

#include "cuda/fake_cuda.h"
#include "device/cuda.h"
#include "support/cache_case.h"
#include "support/child.h"
#include "support/expect.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,            \
                    ejk_last_error());                                                             \
            return false;                                                                          \
        }                                                                                          \
    } while (0)
#define WORKS(call) HOLDS((call) == EJK_OK)
/* The call answers this status, and its sentence contains `words`. */
#define FAILS(status, words, call)                                                                 \
    do {                                                                                           \
        HOLDS((call) == EJK_STATUS_##status);                                                      \
        HOLDS(strstr(ejk_last_error(), words) != NULL);                                            \
    } while (0)
#define IN_CHILD(check) assert_true(holds_in_child(check, NULL))

/* A file beside the program. */
static inline const char *beside(const char *name) {
    static char paths[2][512];
    static int next;
    char *path = paths[next++ % 2];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof paths[0] - 64);
    if (length < 0) abort();
    path[length] = '\0';
    snprintf(strrchr(path, '/') + 1, 64, "%s", name);
    return path;
}
#define FAKE_CUDA  beside("libfake_cuda.so")
#define FAKE_NVRTC beside("libfake_nvrtc.so")

/* The fakes, and a cache and a count of compilations in the test's folder. */
static inline void use_fakes(void) {
    setenv("EJKERNEL_CUDA_LIBRARY", FAKE_CUDA, 1);
    setenv("EJKERNEL_NVRTC_LIBRARY", FAKE_NVRTC, 1);
    setenv("EJKERNEL_CUDA_CACHE", in_folder("cubins"), 1);
    setenv("FAKE_NVRTC_COUNT", in_folder("count"), 1);
}

static inline int world_setup(void **state) {
    (void)state;
    folder_make();
    events_clear();
    use_fakes();
    return 0;
}

static inline int world_teardown(void **state) {
    (void)state;
    folder_remove();
    return 0;
}

/* What the driver saw in this process. */
static inline const fake_cuda_counts *seen(void) {
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, "fake_cuda") : NULL;
}

/* Programs compiled so far, by all processes. */
static inline int compiled(void) {
    struct stat facts;
    return stat(in_folder("count"), &facts) == 0 ? (int)facts.st_size : 0;
}

#endif
