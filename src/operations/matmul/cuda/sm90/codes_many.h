/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many rows with codes, whose depth is put into another order in the workspace first. */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_MANY_H
#define EJKI_MATMUL_CUDA_SM90_CODES_MANY_H

#include "kernels/cuda/launch.h"
#include "operations/matmul/shared/product.cuh"

bool ejki_mm_codes_many_takes(const mm_product *p);
/* Of the workspace. */
int64_t ejki_mm_codes_many_bytes(const mm_product *p);
void ejki_mm_codes_many_want(const mm_product *p, int32_t slot, int32_t order_slot,
                             ejki_cuda_kernels *kernels);
/* At addresses that suit products with codes. */
ejk_status ejki_mm_codes_many_run(const ejk_run *run, int32_t slot, int32_t order_slot,
                                  const mm_product *p);

#endif
