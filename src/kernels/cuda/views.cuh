/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views of tensors and tensor maps as kernels take them. Read by the C compiler and by NVRTC, so that both agree
 * on every offset; plain types only. Strides count elements; NULL data = not there.
 */
#ifndef EJKI_CUDA_VIEWS_CUH
#define EJKI_CUDA_VIEWS_CUH

/* [B, T, H, D] with a contiguous last axis. */
typedef struct ejki_cuda_bthd {
    void *data;
    long long stride_b, stride_t, stride_h;
} ejki_cuda_bthd;

/* [B, H, T, S] with a contiguous last axis, or [B, H, T]. */
typedef struct ejki_cuda_bhts {
    void *data;
    long long stride_b, stride_h, stride_t;
} ejki_cuda_bhts;

/* A tensor map as the driver encodes it, for TMA. */
typedef struct ejki_cuda_map {
    unsigned long long opaque[16];
} __attribute__((aligned(64))) ejki_cuda_map;

#endif
