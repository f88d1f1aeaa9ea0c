/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers of matrix products on GPUs share: the general kernels for whatever a faster one declines, checks of
 * addresses, and sums of rows that a list names. A product n of a call has the slot n for its general kernel.
 */
#ifndef EJKI_MATMUL_CUDA_PRODUCT_H
#define EJKI_MATMUL_CUDA_PRODUCT_H

#include "kernels/cuda/launch.h"
#include "operations/matmul/shared/product.cuh"

/* Slots from this one on are the faster kernels'. */
enum { MM_CUDA_SCATTER = MM_PRODUCTS, MM_CUDA_OWN_SLOTS };

/* bf16 or f16. */
bool ejki_mm_cuda_is_half(int dtype);

/* Can the general kernels compute all products? */
bool ejki_mm_cuda_applicable(const mm_problem *problem);
/* Asks for the general kernel of product n, and for what adds rows to others, with its workspace. */
void ejki_mm_cuda_want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels);
void ejki_mm_cuda_want_scatter(const mm_product *p, ejki_cuda_kernels *kernels, ejk_launch *launch);

/* Addresses of all products. */
ejk_status ejki_mm_cuda_check(const mm_problem *problem);
/* Runs the general kernel of product n, and what adds its rows to others. */
ejk_status ejki_mm_cuda_run(const ejk_run *run, int32_t n, const mm_product *p);

/* Of a product whose rows are added to others: its rows by themselves, in the workspace; then their sums. */
mm_product ejki_mm_cuda_rows_alone(const ejk_run *run, const mm_product *p);
ejk_status ejki_mm_cuda_scatter(const ejk_run *run, const mm_product *p);

#endif
