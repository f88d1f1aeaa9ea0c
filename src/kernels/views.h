/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as problems hold them: an address and strides in elements, for the axes that most operations have. B batch,
 * T and S sequences, H heads, D components.
 */
#ifndef EJKI_KERNELS_VIEWS_H
#define EJKI_KERNELS_VIEWS_H

#include <ejkernel/tensor.h>

/* Elements at any address: views need not be aligned. Vector loads do not care; these are for the rest. */
typedef float ejki_float __attribute__((aligned(1), may_alias));
typedef double ejki_double __attribute__((aligned(1), may_alias));
typedef int64_t ejki_int64 __attribute__((aligned(1), may_alias));
typedef int32_t ejki_int32 __attribute__((aligned(1), may_alias));

/* [B, T or S, H, D]: strides of the first three axes; the last is contiguous. */
typedef struct ejki_bthd {
    void *data;
    int64_t stride_b, stride_t, stride_h;
} ejki_bthd;

/* [B, H, T, S], broadcast axes with stride 0; the last is contiguous. NULL data = absent once bound. */
typedef struct ejki_bhts {
    const void *data;
    int64_t stride_b, stride_h, stride_t;
} ejki_bhts;

/* [B, H, T] results; any strides. NULL data = not wanted. */
typedef struct ejki_bht {
    ejki_float *data;
    int64_t stride_b, stride_h, stride_t;
} ejki_bht;

/* [B, T or S] ids, int32 or int64; the last axis is contiguous. */
typedef struct ejki_ids {
    const void *data;
    int64_t stride_b;
} ejki_ids;

#endif
