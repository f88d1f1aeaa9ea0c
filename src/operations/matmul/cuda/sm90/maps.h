/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers of products by TMA and wgmma share: operands that have maps, and constants of the epilogue. */
#ifndef EJKI_MATMUL_CUDA_SM90_MAPS_H
#define EJKI_MATMUL_CUDA_SM90_MAPS_H

#include "kernels/cuda/views.cuh"
#include "operations/matmul/cuda/product.h"

/* Both sides bf16 or f16 with strides that maps can have, and results that finish.cuh makes. */
bool ejki_mm_sm90_takes(const mm_product *p);
/* Do both sides begin where maps can? */
bool ejki_mm_sm90_is_mapped(const mm_product *p);
/* Maps of both sides, under a swizzle of 128 bytes: boxes of 64 elements and `lines` lines of a, 64 of b. */
ejk_status ejki_mm_sm90_maps(int32_t device, const mm_product *p, int32_t lines, ejki_cuda_map *a,
                             ejki_cuda_map *b);
/* Does what is added have a map, if it begins at a multiple of 16 bytes; in boxes of 64 elements of 64 rows. */
bool ejki_mm_sm90_maps_added(const mm_product *p);
ejk_status ejki_mm_sm90_map_added(int32_t device, const mm_product *p, ejki_cuda_map *map);
/* Those of finish.cuh; and ELEMENT, SPLIT and B_FLIPPED with them. */
ejki_cuda_constants ejki_mm_sm90_finish(const mm_product *p);
ejki_cuda_constants ejki_mm_sm90_constants(const mm_product *p);

#endif
