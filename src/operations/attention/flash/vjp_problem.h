/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every implementation of the gradients of flash attention is given. `forward` is the call whose
 * gradients these are, its `out` and `lse` being what it wrote, to be read; it is normalised. With weights
 * P, dropout multipliers M (1 without) and cotangents dO and, where given, dL of lse:
 *
 *     δ_i = Σ_d dO_id out_id − dL_i           dZ_ij = P_ij (M_ij <dO_i, value_j> − δ_i)
 *     dvalue_j = Σ_i P_ij M_ij dO_i           dbias_ij = dZ_ij, summed over broadcast axes
 *     dX_ij = scale · dZ_ij · (1 − tanh²)     with the tanh of the soft cap, 0 without
 *     dquery_i = Σ_j dX_ij key_j              dkey_j = Σ_i dX_ij query_i, over all heads of the group
 *     dsink_n = −Σ_i exp(sink_n − lse_i) δ_i  over the rows that read sink n
 *
 * Rows that see nothing (lse = −∞, or P all 0) and keys that nobody sees have gradients of exactly 0, whatever
 * lies in masked places. All results are written whole.
 */
#ifndef EJKI_FLASH_ATTENTION_VJP_PROBLEM_H
#define EJKI_FLASH_ATTENTION_VJP_PROBLEM_H

#include "operations/attention/flash/problem.h"

/* A gradient of the bias, [B or 1, Hq or 1, T or 1, S]: strides of the axes that are not summed, else 0. */
typedef struct ejki_bias_gradient {
    void *data;
    int64_t stride_b, stride_h, stride_t;
} ejki_bias_gradient;

typedef struct ejki_flash_vjp_problem {
    ejki_flash_problem forward;
    bool wants_query, wants_key, wants_value, wants_bias, wants_sinks, has_lse_cotangent;
    bool unordered; /* sums may be added in any order, so that two runs differ by rounding */
    ejki_bthd out_cotangent;           /* of forward.dtype */
    ejki_bht lse_cotangent;            /* f32, read */
    ejki_bthd d_query, d_key, d_value; /* of forward.dtype; data only if wanted */
    ejki_bias_gradient d_bias;         /* of forward.dtype */
    void *d_sinks;           /* forward.dtype; head h's at (h / sink_group) * d_sink_stride_h */
    int64_t d_sink_stride_h; /* 0 where all heads share the sinks */
} ejki_flash_vjp_problem;

#endif
