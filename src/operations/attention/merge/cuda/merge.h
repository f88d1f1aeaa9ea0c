/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of attention_merge and of its gradients share. */
#ifndef EJKI_ATTENTION_MERGE_CUDA_MERGE_H
#define EJKI_ATTENTION_MERGE_CUDA_MERGE_H

#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/attention/merge/cuda/arguments.cuh"
#include "operations/attention/merge/problem.h"

merge_arguments ejki_merge_arguments(const ejki_merge_problem *p);

#endif
