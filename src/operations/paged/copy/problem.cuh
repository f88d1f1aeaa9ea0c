/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache_copy as its kernels see it: read by the C compiler and by NVRTC, so plain types only. */
#ifndef EJKI_PAGED_COPY_PROBLEM_CUH
#define EJKI_PAGED_COPY_PROBLEM_CUH

#include "operations/paged/shared/problem.cuh"

/* Rows of `bytes` bytes; strides in bytes. */
typedef struct paged_copied {
    char *data;
    paged_size page, row, head, bytes;
} paged_copied;

typedef struct paged_copy_problem {
    paged_size copies, pages, rows, heads;
    paged_copied part[4]; /* keys, values and their scales; no bytes: not there */
    paged_ints mapping;
    paged_size mapping_step;
} paged_copy_problem;

#endif
