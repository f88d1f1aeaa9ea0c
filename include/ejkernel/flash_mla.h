/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file flash_mla.h
 * Multi-head latent attention in its dense form: keys and values are products of a latent that all heads share.
 *
 *     k[b,s,h] = key_value[b,s] · w_kc[:,h]            v[b,s,h] = key_value[b,s] · w_vc[:,h]
 *     z        = softmax_scale·(<query[b,t,h], k[b,s,h]> + <q_rope[b,t,h], b_k[b,s]>)
 *
 * then the soft cap, masks, sinks and softmax as in flash_attention.h. The rope part of the queries is b_q, of all
 * heads or of each, or, with b_k alone, the end of query. softmax_scale unset is 1/sqrt of the elements that a score
 * is made of. Keys and values are float32 in the workspace; scores are never in memory as a whole.
 *
 * For decoding over pages, with weights absorbed, see multi_latent_ragged_page_attention in paged_attention.h.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_FLASH_MLA_H
#define EJKERNEL_FLASH_MLA_H

#include <ejkernel/paged_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What is given to the call and to its gradients. Symbols: B batch, T tokens, R elements of a latent, Dn, Dr, Dv of a
 * head; Dq = Dn, or Dn + Dr with b_k alone.
 */
#define EJK_FLASH_MLA_INPUTS(F, R)                                                                 \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,Dq] float", "queries")                             \
    F(TENSOR, key_value, EJK_REQUIRED, "", "[B,T,R] query", "latents")                             \
    F(TENSOR, w_kc, EJK_REQUIRED, "", "[R,Hkv,Dn] query", "latents to keys")                       \
    F(TENSOR, w_vc, EJK_REQUIRED, "", "[R,Hkv,Dv] query", "latents to values")                     \
    F(TENSOR, b_q, EJK_OPTIONAL, "none, or the end of query", "[B,T,Dr] or [B,T,Hq,Dr] query",     \
      "rope parts of the queries")                                                                 \
    F(TENSOR, b_k, EJK_OPTIONAL, "none", "[B,T,Dr] query", "rope parts of the keys")               \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences; B is 1")                                              \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] query",                 \
      "sinks: logits that join the denominator only")                                              \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(Dn+Dr)", "", "factor of the scores")         \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "hide keys after the query's own position")         \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys before its own and this that a row sees, with causal; 0 or less: all")                 \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    EJK_PAGED_ATTENTION_CHOICE(F, R)

/** flash_mla. */
#define EJK_FLASH_MLA_ARGS(F, R)                                                                   \
    EJK_FLASH_MLA_INPUTS(F, R)                                                                     \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] query", "result")                         \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] float32", "log-sum-exp of each row")

EJK_RECORD_STRUCT(ejk_flash_mla_args, EJK_FLASH_MLA_ARGS);
extern EJK_API const ejk_record ejk_flash_mla_args_record;
extern EJK_API const ejk_kernel ejk_flash_mla_kernel;

/**
 * Gradients: the inputs, the cotangents of what the call wrote, and where gradients go. What the call wrote is not
 * needed: keys, values and weights are computed once more. A gradient that is left out is not written. Tokens of no
 * sequence have gradients of 0 and nothing of theirs is read into another. Memory besides keys, values and their
 * gradients in float32 grows with a sequence's length, not with its square. Bits do not depend on threads.
 */
#define EJK_FLASH_MLA_VJP_ARGS(F, R)                                                               \
    EJK_FLASH_MLA_INPUTS(F, R)                                                                     \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] query", "cotangent of out")                    \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] float32", "cotangent of lse")                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,T,Hq,Dq] query", "gradient")                \
    F(TENSOR, d_key_value, EJK_OUTPUT, "not computed", "[B,T,R] query", "gradient")                \
    F(TENSOR, d_w_kc, EJK_OUTPUT, "not computed", "[R,Hkv,Dn] query", "gradient")                  \
    F(TENSOR, d_w_vc, EJK_OUTPUT, "not computed", "[R,Hkv,Dv] query", "gradient")                  \
    F(TENSOR, d_b_q, EJK_OUTPUT, "not computed", "[B,T,Dr] or [B,T,Hq,Dr] query",                  \
      "gradient, of the shape of b_q")                                                             \
    F(TENSOR, d_b_k, EJK_OUTPUT, "not computed", "[B,T,Dr] query", "gradient, over all heads")     \
    F(TENSOR, d_softmax_aux, EJK_OUTPUT, "not computed", "[n] or [Hq,n] or [Hkv,n] query",         \
      "gradient, of the shape of softmax_aux")

EJK_RECORD_STRUCT(ejk_flash_mla_vjp_args, EJK_FLASH_MLA_VJP_ARGS);
extern EJK_API const ejk_record ejk_flash_mla_vjp_args_record;
extern EJK_API const ejk_kernel ejk_flash_mla_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_flash_mla(ejk_context *context,
                                               const ejk_flash_mla_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_flash_mla_vjp(ejk_context *context,
                                                   const ejk_flash_mla_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
