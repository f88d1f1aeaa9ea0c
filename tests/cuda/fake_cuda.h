/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver of the tests saw: its variable fake_cuda, found by dlsym(). */
#ifndef TESTS_CUDA_FAKE_CUDA_H
#define TESTS_CUDA_FAKE_CUDA_H

typedef struct fake_cuda_counts {
    int retained, loaded, launches, allocated, live, waits, events, maps;
    int overlapping; /* launches of cuLaunchKernelEx() */
    int graphs;      /* that are there, and those that can be launched; their launches */
    int graph_launches;
    int shared_allowed;
    unsigned grid, block; /* of the last launch */
    void *stream;
    const void *argument;
    /* Told of each launch, unless NULL: the kernel's name, and the image, which ends with what it was compiled with. */
    void (*launched)(const char *entry, const char *image);
} fake_cuda_counts;

#endif
