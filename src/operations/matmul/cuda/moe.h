/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts on GPUs, with what computes its products as each generation has it. */
#ifndef EJKI_MATMUL_CUDA_MOE_H
#define EJKI_MATMUL_CUDA_MOE_H

#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/moe/problem.h"

bool ejki_moe_cuda_applicable(const moe_problem *p, ejki_mm_choice *choose);
ejk_status ejki_moe_cuda_prepare(const moe_problem *p, ejki_mm_choice *choose, ejk_launch *launch);
ejk_status ejki_moe_cuda_run(const ejk_run *run, ejki_mm_choice *choose);

#endif
