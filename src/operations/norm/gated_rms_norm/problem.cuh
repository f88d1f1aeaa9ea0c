/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_rms_norm and its gradient as their kernels see them: read by the C compiler and by NVRTC, so plain types only.
 * Rows lie along three outer axes, the last two of `outer` entries. Strides count elements.
 */
#ifndef EJKI_GATED_RMS_NORM_PROBLEM_CUH
#define EJKI_GATED_RMS_NORM_PROBLEM_CUH

#ifdef __CUDACC_RTC__
#define NORM static __device__ __forceinline__
#else
#define NORM static inline
#endif

typedef long long norm_size;

typedef struct norm_rows {
    void *data;
    norm_size stride[3];
} norm_rows;

typedef struct norm_problem {
    norm_size rows, outer[2], width, group;
    norm_rows x, gate, y, d_x, d_gate; /* y: out, or its cotangent */
    const void *weight;
    void *d_weight;
    float eps;
    double exact_eps;
    int has_gate, has_weight, norm_first, silu, dtype, gradient;
} norm_problem;

NORM norm_size norm_at(const norm_problem *p, const norm_rows *r, norm_size row) {
    if (row < p->outer[1]) return row * r->stride[2];
    const norm_size rest = row / p->outer[1];
    return row % p->outer[1] * r->stride[2] + rest % p->outer[0] * r->stride[1] +
           rest / p->outer[0] * r->stride[0];
}

#endif
