/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel of attention_merge is given: read by the compiler of the host and by that of the GPU. */
#ifndef EJKI_CUDA_MERGE_ARGUMENTS_CUH
#define EJKI_CUDA_MERGE_ARGUMENTS_CUH

typedef long long merge_size;

/* Strides in elements. Axes and meaning as in operations/attention/merge/problem.h. */
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

/* Gradients; `forward` as it was, `out` and `merged` to be read. NULL: not wanted, or not given. */
typedef struct merge_vjp_arguments {
    merge_arguments forward;
    const void *d_out;
    merge_size d_out_b, d_out_t, d_out_h;
    const float *d_lse;
    merge_size d_lse_b, d_lse_h, d_lse_t;
    void *d_part;
    merge_size d_part_n, d_part_b, d_part_t, d_part_h;
    float *d_part_lse;
    merge_size d_part_lse_n, d_part_lse_b, d_part_lse_h;
    void *d_sinks;
    merge_size d_sink_stride_h; /* 0: all heads share the sinks */
    float *delta;               /* [batch, heads, queries], where sinks are wanted */
} merge_vjp_arguments;

#endif
