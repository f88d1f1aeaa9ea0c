/* SPDX-License-Identifier: Apache-2.0 */
/* The general kernel of attention over pages, for implementations that make keys and values first. */
#ifndef EJKI_PAGED_CUDA_ATTEND_H
#define EJKI_PAGED_CUDA_ATTEND_H

#include "kernels/cuda/launch.h"
#include "operations/paged/cuda/paged.cuh"

enum { EJKI_PAGED_CUDA_SLOTS = 3 }; /* that it takes, from 0 on */

bool ejki_paged_cuda_can_attend(const paged_problem *p);
int64_t ejki_paged_cuda_attend_bytes(const paged_problem *p);
void ejki_paged_cuda_want_attend(const paged_problem *p, ejki_cuda_kernels *kernels);
/* Launches into the run's stream. */
ejk_status ejki_paged_cuda_attend(const ejk_run *run, const paged_problem *p, void *workspace);

/* The kernel itself, in a slot of the caller's: for sequences of more than `a->few` pairs, after
 * look.cu; `overlaps`: it may begin while that runs. */
void ejki_paged_cuda_want_others(const paged_problem *p, ejki_cuda_kernels *kernels, int32_t slot);
ejk_status ejki_paged_cuda_attend_others(const ejk_run *run, int32_t slot, const paged_arguments *a,
                                         bool overlaps);

#endif
