/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass on sm_90a for keys in pages, as other operations launch it. */
#ifndef EJKI_ATTENTION_CUDA_FORWARD_SM90_H
#define EJKI_ATTENTION_CUDA_FORWARD_SM90_H

#include "operations/attention/cuda/common/launch.h"

enum { EJKI_SM90_PAGES_SLOTS = 2 }; /* of what is prepared, from the caller's on */

/*
 * The problem is one of packed sequences: `keys` are the most of one, `key` and `value` have the strides of rows and
 * heads in a page, and key_sums are not looked at. Tiles are higher where `least` is above 0.
 */
bool ejki_sm90_takes_pages(const ejki_flash_problem *p, const ejki_cuda_pages *pages);
void ejki_sm90_want_pages(const ejki_flash_problem *p, const ejki_cuda_pages *pages, int32_t slot,
                          ejki_cuda_kernels *kernels);
/* Bytes of its workspace. */
ejk_status ejki_sm90_pages_bytes(const ejki_flash_problem *p, const ejki_cuda_pages *pages,
                                 int32_t device, int64_t *out);
/* Begins before the kernel ahead has ended, and neither reads nor writes what that one writes. */
ejk_status ejki_sm90_begin_pages(const ejk_run *run, const ejki_flash_problem *p,
                                 const ejki_cuda_pages *pages, int32_t slot, void *workspace);

#endif
