/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of this folder share: problems as kernels take them, constants, and tiles. */
#ifndef EJKI_ATTENTION_CUDA_LAUNCH_H
#define EJKI_ATTENTION_CUDA_LAUNCH_H

#include "kernels/cuda/launch.h"
#include "operations/attention/cuda/common/problem.cuh"
#include "operations/attention/flash/vjp_problem.h"

/* Those of options.cuh that say which rows there are, and what they are made of. */
ejki_cuda_constants ejki_flash_cuda_row_constants_of(const ejki_flash_problem *p);

/* All of options.cuh, the block mask's included. */
ejki_cuda_constants ejki_flash_cuda_constants_of(const ejki_flash_problem *p);

/* Sizes that the kernels' 32-bit numbers hold. */
bool ejki_flash_cuda_fits(const ejki_flash_problem *p);

/* Rows of all heads, those of the tensors. */
int64_t ejki_flash_cuda_rows(const ejki_flash_problem *p);

/* Entries of the batch axis. */
int64_t ejki_flash_cuda_entries(const ejki_flash_problem *p);

/* Tiles of `size` of `times` rows for each of `tokens` tokens; for packed sequences as many as there can be. */
int64_t ejki_flash_cuda_tiles(const ejki_flash_problem *p, int64_t tokens, int64_t times,
                              int64_t size);

/* Blocks of the grid for so many tiles. */
int64_t ejki_flash_cuda_blocks(const ejki_flash_problem *p, int64_t tiles);

/* All but tiles and parts of keys. */
ejki_cuda_problem ejki_flash_cuda_problem_of(const ejki_flash_problem *p);

/* ---- Block masks: block_mask.c ----------------------------------------------------------------------- */

/* Adds what a block mask and positions are to the constants; the same for a problem, whose block_mask is made below. */
void ejki_flash_cuda_add_visibility(ejki_cuda_constants *constants, const ejki_flash_problem *p);
ejki_cuda_visibility ejki_flash_cuda_visibility_of(const ejki_flash_problem *p, int *block_mask);

/* Offsets of visible keys, narrowed by a predicate that goes by indices. */
int64_t ejki_flash_cuda_first_offset(const ejki_flash_problem *p);
int64_t ejki_flash_cuda_last_offset(const ejki_flash_problem *p);

/* Bytes of the block_mask of a problem, a multiple of 256; 0 = it has none, -1 = more than can be counted. */
int64_t ejki_flash_cuda_block_mask_bytes(const ejki_flash_problem *p);

/* Compiles the kernel that writes the block mask, if there is one; launches it. */
ejk_status ejki_flash_cuda_ready_block_mask(ejk_launch *launch, int32_t slot,
                                            const ejki_flash_problem *p);
ejk_status ejki_flash_cuda_begin_block_mask(const ejk_run *run, int32_t slot,
                                            const ejki_flash_problem *p, int *block_mask);

/* INVALID_LAYOUT as below, of the lists of a block mask. */
ejk_status ejki_flash_cuda_check_block_lists(const ejki_flash_problem *p);

/* ---- Addresses ------------------------------------------------------------------------------------------ */

/* INVALID_LAYOUT as ejki_cuda_check_address() says, of all tensors. */
ejk_status ejki_flash_cuda_check_aligned(const ejki_flash_problem *p);

#endif
