/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fast kernels of single products, for whoever has several or has some of a call's own making: a kernel says whether it
 * takes a product, is asked for in the slot of product n, and runs it.
 */
#ifndef EJKI_MATMUL_CUDA_FAST_H
#define EJKI_MATMUL_CUDA_FAST_H

#include "operations/matmul/cuda/product.h"

struct moe_arguments;

typedef struct ejki_mm_fast {
    bool (*takes)(const mm_product *p);
    void (*want)(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels);
    /* Of a product that it takes, at addresses that it takes; the workspace is only looked at by those with a list of
     * rows that others are added to. */
    bool (*can_run)(const mm_product *p);
    ejk_status (*run)(const ejk_run *run, int32_t n, const mm_product *p);
    /* Of experts with few rows, if it is there: without sizes, it finds rows by the choice of the tokens. */
    bool (*sorts)(const mm_product *p);
    ejk_status (*run_choice)(const ejk_run *run, int32_t n, const mm_product *p,
                             const struct moe_arguments *choice);
} ejki_mm_fast;

/*
 * For few rows, and for many; and with codes of 4 or 8 bits, groups of which run along the depth, in whole chunks of
 * codes.cuh or whole steps, rows of codes at multiples of 16 bytes: for few rows, for more, if groups are multiples of
 * 64, by two kernels, and for the experts of a layer, of which the first product takes rows from a list. sm_90 only.
 */
extern const ejki_mm_fast ejki_mm_rows, ejki_mm_tiles, ejki_mm_codes, ejki_mm_codes_many,
    ejki_mm_tiles_of_codes, ejki_mm_experts;

/* Which of them suits a product; NULL: none. */
typedef const ejki_mm_fast *ejki_mm_choice(const mm_product *p);
ejki_mm_choice ejki_mm_fast_of;

#endif
