/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the results of a call of an operation on top of flash attention may be from what is right, wherever they were
 * computed: the bounds of oracle.h and vjp_oracle.h. Operations become the problem of flash attention that they stand
 * for: a pattern or positions a mask; weights what attention makes of an identity in place of values; merging
 * attention over the parts as keys, whose scores are their logarithms.
 */
#ifndef TESTS_CALL_ORACLE_H
#define TESTS_CALL_ORACLE_H

#include <ejkernel/ejkernel.h>

/*
 * False, and why, if a result of `got` is too far off. `args` are the call with all that it reads; of `got` only the
 * tensors of results are looked at, which may have other strides. All of them are the CPU's. *worst is raised to the
 * largest part of a tolerance that was used. The operation is flash_attention, attention, scaled_dot_product_attention,
 * blocksparse_attention, attention_merge, or the gradients of one of them.
 */
bool call_oracle_accepts(const ejk_kernel *kernel, const void *args, const void *got, double *worst,
                         char *why, size_t size);

#endif
