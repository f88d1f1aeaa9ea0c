/* SPDX-License-Identifier: Apache-2.0 */
/* What flash_mla and its gradients on GPUs share. */
#ifndef EJKI_PAGED_CUDA_FLASH_MLA_H
#define EJKI_PAGED_CUDA_FLASH_MLA_H

#include "kernels/cuda/launch.h"
#include "operations/paged/flash_mla/problem.h"

/*
 * Keys or values of all tokens, [tokens, heads, pitch] of which `dim` are written: latents times a weight, by the
 * kernel of project.cu that is in the slot.
 */
ejk_status ejki_mla_cuda_project(const ejk_run *run, int32_t slot, const mla_problem *m,
                                 const mla_weight *weight, int64_t dim, float *to, int64_t pitch);

#endif
