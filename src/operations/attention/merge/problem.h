/* SPDX-License-Identifier: Apache-2.0 */
/* What implementations of attention_merge and of its gradients are given; everything has been checked. */
#ifndef EJKI_ATTENTION_MERGE_PROBLEM_H
#define EJKI_ATTENTION_MERGE_PROBLEM_H

#include "operations/attention/flash/problem.h"

/* [N, B, T, Hq, Dv]: strides of the first four axes; the last is contiguous. */
typedef struct ejki_merge_parts {
    void *data;
    int64_t stride_n, stride_b, stride_t, stride_h;
} ejki_merge_parts;

/* [N, B, Hq, T] float32; the last axis is contiguous. */
typedef struct ejki_merge_rows {
    ejki_float *data;
    int64_t stride_n, stride_b, stride_h;
} ejki_merge_rows;

typedef struct ejki_merge_problem {
    int64_t parts, batch, queries, heads, value_dim; /* each may be 0 */
    ejk_dtype dtype;                                 /* of the parts and the sinks */
    ejk_dtype out_dtype;
    ejki_merge_parts part;
    ejki_merge_rows lse; /* log-sum-exp of the parts; with has_sums their largest scores */
    bool has_sums, has_sinks;
    ejki_merge_rows sums; /* with has_sums: the parts are not normalised, these are their sums */
    ejki_bthd out;
    ejki_bht merged_lse;
    /* Head h reads sink_count from sinks + (h / sink_group) * sink_stride_h. */
    const void *sinks;
    int64_t sink_count, sink_stride_h, sink_group;
} ejki_merge_problem;

/* `forward.out` and `forward.merged_lse` are what the call wrote, to be read. */
typedef struct ejki_merge_vjp_problem {
    ejki_merge_problem forward;
    bool wants_parts, wants_lse, wants_sinks, has_lse_cotangent;
    ejki_bthd d_out;
    ejki_bht d_lse;
    ejki_merge_parts d_part;
    ejki_merge_rows d_part_lse;
    void *d_sinks;           /* of forward.dtype */
    int64_t d_sink_stride_h; /* 0 where all heads share the sinks */
} ejki_merge_vjp_problem;

#endif
