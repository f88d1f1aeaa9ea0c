/* SPDX-License-Identifier: Apache-2.0 */
/* Long sequences of attention over pages by flash attention's kernels for sm_90a. */
#ifndef EJKI_PAGED_CUDA_PREFILL_SM90_H
#define EJKI_PAGED_CUDA_PREFILL_SM90_H

#include "operations/attention/cuda/sm90/forward.h"
#include "operations/paged/cuda/paged.cuh"

/* From shapes, strides and the GPU. */
bool ejki_paged_cuda_takes_sm90(const paged_problem *p, int32_t device);
/* In twice EJKI_SM90_PAGES_SLOTS slots; what it needs of a workspace, a multiple of 256. */
void ejki_paged_cuda_want_sm90(const paged_problem *p, int32_t slot, ejki_cuda_kernels *kernels);
ejk_status ejki_paged_cuda_sm90_bytes(const paged_problem *p, int32_t device, int64_t *out);
/* Sequences of more than PAGED_FEW pairs of a row and a head; does not look at what is wrong. */
ejk_status ejki_paged_cuda_begin_sm90(const ejk_run *run, const paged_problem *p, int32_t slot,
                                      void *workspace);

#endif
