/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of attention_merge and of its gradients share. */
#ifndef EJKI_ATTENTION_MERGE_MERGE_CUDA_H
#define EJKI_ATTENTION_MERGE_MERGE_CUDA_H

#include "device/cuda.h"
#include "operations/attention/merge/problem.h"
#include "kernels/cuda/merge_arguments.cuh"

#include <ejkernel/registry.h>

/* As merge.cuh has them. */
enum { MERGE_THREADS = 256, MERGE_MOST_LANES = 32, MERGE_RUN_BYTES = 16 };

/* Elements of a run in the widest form. */
static inline int64_t ejki_merge_widest(const ejki_merge_problem *p) {
    return MERGE_RUN_BYTES / (int64_t)ejk_dtype_size(p->dtype);
}

/* Elements have to be aligned to their own size: a GPU reads them no other way. */
static inline bool ejki_merge_aligned(const void *data, int64_t bytes) {
    return (uintptr_t)data % (uintptr_t)bytes == 0;
}

/* Threads for each row: as many as it has runs, up to a power of two. */
int64_t ejki_merge_lanes(const ejki_merge_problem *p, int64_t vector);

bool ejki_merge_divides(int64_t vector, const int64_t *strides, int32_t count);

merge_arguments ejki_merge_arguments(const ejki_merge_problem *p);

#endif
