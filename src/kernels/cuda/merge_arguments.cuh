/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel of attention_merge is given: read by the compiler of the host and by that of the GPU. */
#ifndef EJKI_CUDA_MERGE_ARGUMENTS_CUH
#define EJKI_CUDA_MERGE_ARGUMENTS_CUH

typedef long long merge_size;

/* Strides in elements. Axes and meaning as in kernels/attention_merge/problem.h. */
typedef struct merge_arguments {
    merge_size parts, batch, queries, heads, value_dim;
    const void *part;
    merge_size part_n, part_b, part_t, part_h;
    const float *lse;
    merge_size lse_n, lse_b, lse_h;
    const float *sums; /* NULL: the parts are normalised */
    merge_size sums_n, sums_b, sums_h;
    const void *sinks;
    merge_size sink_count, sink_stride_h, sink_group; /* count 0: none */
    void *out;
    merge_size out_b, out_t, out_h;
    float *merged; /* NULL: not wanted */
    merge_size merged_b, merged_h, merged_t;
} merge_arguments;

#endif
