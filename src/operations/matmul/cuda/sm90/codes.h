/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with codes of 4 bits, by codes.cu. */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_H
#define EJKI_MATMUL_CUDA_SM90_CODES_H

#include "operations/matmul/cuda/product.h"

/*
 * Affine codes of 4 bits without a factor for all, groups of multiples of 128 along the depth, rows of codes at
 * multiples of 16 bytes, 64 rows at most.
 */
bool ejki_mm_codes_takes(const mm_product *p);
ejk_status ejki_mm_codes_prepare(const mm_product *p, ejk_launch *launch);
/* Codes that begin elsewhere than at a multiple of 16 bytes are the general kernel's. */
ejk_status ejki_mm_codes_run(const ejk_run *run, const mm_product *p);

#endif
