/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The constants that attention kernels are compiled for. What the launcher leaves out is off.
 *
 *   ELEMENT                                   element type of the tensors, as element.cuh numbers them
 *   HEAD_DIM, VALUE_DIM
 *   LAYOUT                                    EJKI_CUDA_DENSE, EJKI_CUDA_TOKENS or EJKI_CUDA_PADDED
 *   BIAS, MASK, SEGMENTS, SOFT_CAP, DROPOUT   1 = the problem has it
 *   CHUNKED, FUNCTION, POSITIONS              1 = the visible keys are limited so (problem.cuh)
 *   PAGES                                     1 = keys are in pages of a cache (sm90/forward.cu)
 *   MASK_QUERIES, MASK_KEYS                   size of a block of the block mask; 0 = there is none
 */
#ifndef EJKI_ATTENTION_CUDA_OPTIONS_CUH
#define EJKI_ATTENTION_CUDA_OPTIONS_CUH

#include "kernels/cuda/element.cuh"
#include "operations/attention/cuda/common/problem.cuh"

#ifndef LAYOUT
#define LAYOUT EJKI_CUDA_DENSE
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef SEGMENTS
#define SEGMENTS 0
#endif
#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef CHUNKED
#define CHUNKED 0
#endif
#ifndef FUNCTION
#define FUNCTION 0
#endif
#ifndef POSITIONS
#define POSITIONS 0
#endif
#ifndef PAGES
#define PAGES 0
#endif
#ifndef MASK_KEYS
#define MASK_QUERIES 0
#define MASK_KEYS    0
#endif
#define BLOCK_MASK (MASK_KEYS > 0)
#define IRREGULAR  (FUNCTION || POSITIONS) /* the visible range does not rise with the row */

#endif
