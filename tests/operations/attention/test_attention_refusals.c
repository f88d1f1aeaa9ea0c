/* SPDX-License-Identifier: Apache-2.0 */
/* What calls of attention are refused, one by one: status, words of the sentence, and what is wrong with the call. */
#include "support/refused.h"

#include <stdlib.h>

#define ROW(status, words, changes)                                                                \
    { EJK_STATUS_##status, words, changes }
#define END                                                                                        \
    { .changes = NULL }

/* clang-format off */
static const struct refused flash[] = {
    ROW(INVALID_ARGUMENT, "query", "query="),
    ROW(INVALID_ARGUMENT, "value", "value="),
    ROW(INVALID_ARGUMENT, "out", "out="),
    ROW(INVALID_SHAPE, "rank 3", "query=[3,4,5]"),
    ROW(INVALID_SHAPE, "-1", "query=[2,-1,4,5]"),
    ROW(INVALID_SHAPE, "key", "key=[1,4,2,5]"),
    ROW(INVALID_SHAPE, "value", "value=[2,3,2,6]"),
    ROW(INVALID_SHAPE, "key", "key=[2,4,2,4]"),
    ROW(INVALID_SHAPE, "out", "out=[2,3,4,5]"),
    ROW(INVALID_SHAPE, "lse", "lse=[2,4,2]"),
    ROW(INVALID_SHAPE, "3", "key=[2,4,3,5] value=[2,4,3,6]"),
    ROW(INVALID_SHAPE, "0", "key=[2,4,0,5] value=[2,4,0,6]"),
    ROW(INVALID_SHAPE, "bias", "bias=[2,3,3,4]"),
    ROW(INVALID_SHAPE, "attention_mask", "attention_mask=bool[1,3,1,4]"),
    ROW(INVALID_SHAPE, "softmax_aux", "softmax_aux=[3,1]"),
    ROW(INVALID_SHAPE, "softmax_aux", "softmax_aux=[4,1,1]"),
    ROW(INVALID_DTYPE, "key", "key=float64[2,4,2,5]"),
    ROW(INVALID_DTYPE, "query", "query=int32[2,3,4,5]"),
    ROW(INVALID_DTYPE, "out", "out=float64[2,3,4,6]"),
    ROW(INVALID_DTYPE, "lse", "lse=float64[2,4,3]"),
    ROW(INVALID_DTYPE, "attention_mask", "attention_mask=[2,4,3,4]"),
    ROW(INVALID_DTYPE, "out", "query=bfloat16[2,3,4,5] key=bfloat16[2,4,2,5] value=bfloat16[2,4,2,6]"),
    ROW(INVALID_DTYPE, "key", "query=float16[2,3,4,5] out=float16[2,3,4,6]"),
    ROW(UNAVAILABLE, "bfloat16", "logits_dtype=bfloat16"),
    ROW(INVALID_LAYOUT, "query", "query=[2,3,4,5]/[60,20,5,2]"),
    ROW(INVALID_LAYOUT, "out", "out=[2,3,4,6]/[72,24,6,-1]"),
    ROW(INVALID_LAYOUT, "out", "out=[2,3,4,6]/[72,0,6,1]"),
    ROW(INVALID_LAYOUT, "out overlaps", "value=[2,4,2,5] out=[2,3,4,5] out=@query"),
    ROW(OVERFLOW, "query", "query=[9223372036854775807,3,4,5]"),
    ROW(OVERFLOW, "key", "key=[2,4,2,5]/[40,4611686018427387903,5,1]"),
    ROW(OVERFLOW, "query", "query=[2,3,4,5]/[60,-9223372036854775808,5,1]"),
    ROW(OVERFLOW, "1152921504606846977", "query=[1,1,1,1] out=[1,1,1,1] lse= "
        "key=[1,1152921504606846977,1,1]/[1,0,1,1] value=[1,1152921504606846977,1,1]/[1,0,1,1]"),
    ROW(UNKNOWN_NAME, "abacus", "platform=abacus"),
    ROW(UNAVAILABLE, "triton", "platform=triton"),
    ROW(UNAVAILABLE, "these exist", "platform=cuda"),
    ROW(UNAVAILABLE, "pallas", "platform= cfg.platform=pallas"),
    ROW(UNKNOWN_NAME, "abacus", "cfg.backend=abacus"),
    ROW(INVALID_ARGUMENT, "logits_soft_cap is 0", "logits_soft_cap=0"),
    ROW(INVALID_ARGUMENT, "logits_soft_cap is -30", "logits_soft_cap=-30"),
    ROW(INVALID_ARGUMENT, "softmax_scale is 1e+31, expected at most 1e+30 in size", "softmax_scale=1e31"),
    ROW(INVALID_ARGUMENT, "dropout_prob is 1", "dropout_prob=1"),
    ROW(INVALID_ARGUMENT, "dropout_prob is -0.5", "dropout_prob=-0.5"),
    ROW(INVALID_ARGUMENT, "left of sliding_window is -1", "sliding_window=-1,0"),
    ROW(INVALID_ARGUMENT, "right of sliding_window is -2", "sliding_window=1,-2"),
    ROW(UNKNOWN_NAME, "precision is 'bf16'", "precision=bf16"),
    ROW(INVALID_ARGUMENT, "q_segment_ids is given alone", "q_segment_ids=int32[2,3]"),
    ROW(INVALID_ARGUMENT, "kv_segment_ids is given alone", "kv_segment_ids=int32[2,4]"),
    ROW(INVALID_DTYPE, "kv_segment_ids has type int64", "q_segment_ids=int32[2,3] kv_segment_ids=int64[2,4]"),
    ROW(INVALID_ARGUMENT, "row_max", "row_max=[2,4,3]"),
    ROW(INVALID_ARGUMENT, "row_sum", "row_sum=[2,4,3]"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q is given alone", "cum_seqlens_q={0,1,2}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k is given alone", "cum_seqlens_k={0,1,2}"),
    END};

static const struct refused packed[] = {
    ROW(INVALID_ARGUMENT, "cum_seqlens_q starts at 1", "cum_seqlens_q=int64{1,5,10}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k starts at -3", "cum_seqlens_k=int64{-3,5,10}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k falls from 11 to 10", "cum_seqlens_k=int64{0,11,10}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q is 11 at element 2", "cum_seqlens_q=int64{0,5,11}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k is 13 at element 2", "cum_seqlens_k=int64{0,5,13}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k is 13 at element 2", "cum_seqlens_k=int64{0,5,13} platform=simd"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q is 9223372036854775807", "cum_seqlens_q=int64{0,9223372036854775807,10}"),
    ROW(INVALID_SHAPE, "key has rank 4", "key=[1,12,2,20]"),
    ROW(INVALID_SHAPE, "lse has rank 3", "lse=[1,4,10]"),
    ROW(INVALID_SHAPE, "query has rank 3, expected 4", "cum_seqlens_q= cum_seqlens_k="),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q is given alone", "cum_seqlens_k="),
    ROW(INVALID_DTYPE, "cum_seqlens_k has type int32", "cum_seqlens_k={0,5,10}"),
    ROW(INVALID_ARGUMENT, "bias is given", "bias=[1,1,1,12]"),
    END};

static const struct refused padded[] = {
    ROW(INVALID_ARGUMENT, "cum_seqlens_q rises from 5 to 16", "cum_seqlens_q={0,5,16}"),
    ROW(INVALID_SHAPE, "cum_seqlens_q has 2 elements, expected 3", "cum_seqlens_q={0,5} cum_seqlens_k={0,5}"),
    END};

static const struct refused flash_fwd[] = {ROW(INVALID_ARGUMENT, "lse", "lse="), END};

static const struct refused flash_vjp[] = {
    ROW(INVALID_ARGUMENT, "normalize_output", "normalize_output=false"),
    ROW(INVALID_ARGUMENT, "d_bias", "d_bias=[1,1,1,4]"),
    ROW(INVALID_SHAPE, "d_query", "d_query=[2,4,4,5]"),
    ROW(INVALID_ARGUMENT, "lse", "lse="),
    ROW(INVALID_ARGUMENT, "dropout_prob", "dropout_prob=1"),
    ROW(INVALID_LAYOUT, "d_key", "d_key=@key"),
    ROW(INVALID_SHAPE, "d_key has rank 3", "d_key=[4,2,5]"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_k starts at 1", "cum_seqlens_q={0,3,6} cum_seqlens_k={1,4,8}"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q is given alone", "cum_seqlens_q={0,3,6}"),
    END};

static const struct refused dense[] = {
    ROW(INVALID_ARGUMENT, "return_weights", "return_weights=true weights="),
    ROW(UNAVAILABLE, "dtype is float64", "dtype=float64"),
    ROW(UNAVAILABLE, "softmax_dtype is bfloat16", "softmax_dtype=bfloat16"),
    ROW(INVALID_SHAPE, "weights", "weights=[2,4,3,5]"),
    ROW(INVALID_DTYPE, "weights", "weights=bfloat16[2,4,3,4]"),
    ROW(INVALID_LAYOUT, "weights", "weights=[2,4,3,4] bias=@weights"),
    ROW(INVALID_ARGUMENT, "dropout_prob", "dropout_prob=1"),
    ROW(INVALID_ARGUMENT, "softmax_scale", "softmax_scale=1e31"),
    ROW(INVALID_ARGUMENT, "logits_soft_cap", "logits_soft_cap=0"),
    ROW(INVALID_ARGUMENT, "sliding_window", "sliding_window=-1,0"),
    ROW(INVALID_DTYPE, "out", "out=bfloat16[2,3,4,6]"),
    ROW(INVALID_SHAPE, "key", "key=[2,4,2,6]"),
    ROW(UNAVAILABLE, "triton", "platform=triton"),
    ROW(UNKNOWN_NAME, "nonsense", "cfg.platform=nonsense"),
    END};

static const struct refused sdpa[] = {
    ROW(INVALID_ARGUMENT, "softmax_scale", "softmax_scale=1e31"),
    ROW(UNAVAILABLE, "triton", "cfg.platform=triton"),
    ROW(INVALID_ARGUMENT, "cum_seqlens_q", "cum_seqlens_q=int64{0,3}"),
    ROW(INVALID_SHAPE, "expected 4 without cum_seqlens_q",
        "query=[11,4,5] key=[11,2,5] value=[11,2,6] out=[11,4,6] lse=[4,11]"),
    END};

static const struct refused merge[] = {
    ROW(INVALID_SHAPE, "partial_lse", "partial_lse=[4,2,4,3]"),
    ROW(INVALID_SHAPE, "out", "out=[2,3,4,7]"),
    ROW(INVALID_DTYPE, "out", "out=bfloat16[2,3,4,6]"),
    ROW(INVALID_DTYPE, "partial_lse", "partial_lse=float64[3,2,4,3]"),
    ROW(INVALID_SHAPE, "softmax_aux", "softmax_aux=[5,1]"),
    ROW(UNAVAILABLE, "triton", "platform=triton"),
    END};

static const struct refused merge_vjp[] = {
    ROW(INVALID_ARGUMENT, "d_softmax_aux", "d_softmax_aux=[4,1]"),
    ROW(INVALID_SHAPE, "d_softmax_aux", "softmax_aux=[2,1] d_softmax_aux=[4,1]"),
    END};

#define QKV       "query=[2,3,4,5] key=[2,4,2,5] value=[2,4,2,6] "
#define RESULTS   "out=[2,3,4,6] lse=[2,4,3] "
#define GRADIENTS "d_out=[2,3,4,6] d_query=[2,3,4,5] d_key=[2,4,2,5] d_value=[2,4,2,6] "
#define PARTS     "partial_out=[3,2,3,4,6] partial_lse=[3,2,4,3] "
#define ENDS      "cum_seqlens_q=int64{0,5,10} cum_seqlens_k=int64{0,5,10} "

#define CALLS(X)                                                                                                      \
    X(ejk_flash_attention, ejk_flash_attention_kernel, QKV RESULTS "platform=reference", flash)                       \
    X(ejk_flash_attention, ejk_flash_attention_kernel,                                                                \
      ENDS "query=[10,4,20] key=[12,2,20] value=[12,2,9] out=[10,4,9] lse=[4,10] platform=reference", packed)          \
    X(ejk_flash_attention, ejk_flash_attention_kernel,                                                                \
      "query=[2,10,4,20] key=[2,12,2,20] value=[2,12,2,9] out=[2,10,4,9] cum_seqlens_q={0,5,10} "                     \
      "cum_seqlens_k={0,5,10}", padded)                                                                               \
    X(ejk_flash_attention_fwd, ejk_flash_attention_kernel, QKV RESULTS, flash_fwd)                                    \
    X(ejk_flash_attention_vjp, ejk_flash_attention_vjp_kernel, QKV RESULTS GRADIENTS, flash_vjp)                      \
    X(ejk_attention, ejk_attention_kernel, QKV RESULTS "weights=[2,4,3,4]", dense)                                    \
    X(ejk_attention_fwd, ejk_attention_kernel, QKV RESULTS, flash_fwd)                                                \
    X(ejk_scaled_dot_product_attention, ejk_scaled_dot_product_attention_kernel, QKV RESULTS, sdpa)                   \
    X(ejk_scaled_dot_product_attention_fwd, ejk_scaled_dot_product_attention_kernel, QKV RESULTS, flash_fwd)          \
    X(ejk_attention_merge, ejk_attention_merge_kernel, PARTS RESULTS, merge)                                          \
    X(ejk_attention_merge_fwd, ejk_attention_merge_kernel, PARTS RESULTS, flash_fwd)                                  \
    X(ejk_attention_merge_vjp, ejk_attention_merge_vjp_kernel, PARTS RESULTS "d_out=[2,3,4,6]", merge_vjp)
/* clang-format on */

REFUSED_CALL(ejk_flash_attention)
REFUSED_CALL(ejk_flash_attention_fwd)
REFUSED_CALL(ejk_flash_attention_vjp)
REFUSED_CALL(ejk_attention)
REFUSED_CALL(ejk_attention_fwd)
REFUSED_CALL(ejk_scaled_dot_product_attention)
REFUSED_CALL(ejk_scaled_dot_product_attention_fwd)
REFUSED_CALL(ejk_attention_merge)
REFUSED_CALL(ejk_attention_merge_fwd)
REFUSED_CALL(ejk_attention_merge_vjp)

int main(void) {
    int64_t faults = 0;
#define TRY(name, kernel, good, rows) faults += refused_faults(&(kernel), name##_call, good, rows);
    CALLS(TRY)
    return faults ? EXIT_FAILURE : EXIT_SUCCESS;
}
