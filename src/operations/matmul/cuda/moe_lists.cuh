/* SPDX-License-Identifier: Apache-2.0 */
/* What makes lists of a layer of experts shares: a row's expert and weight, as the router chose them. */
#ifndef EJKI_MATMUL_CUDA_MOE_LISTS_CUH
#define EJKI_MATMUL_CUDA_MOE_LISTS_CUH

#include "kernels/cuda/element.cuh"
#include "operations/matmul/cuda/moe.cuh"

DEVICE mm_size expert_of(const moe_arguments &a, mm_size row) {
    return mm_number(&a.index, row / a.each * a.index_row + row % a.each);
}

/* The weight of a row of the choice, for a sorted one. */
DEVICE void copy_weight(const moe_arguments &a, mm_size from, mm_size to) {
    const mm_size at = from / a.each * a.weight.row + from % a.each;
    if (a.weight.dtype == F32)
        ((float *)a.weights)[to] = ((const float *)a.weight.data)[at];
    else
        ((u16 *)a.weights)[to] = ((const u16 *)a.weight.data)[at];
}

#endif
