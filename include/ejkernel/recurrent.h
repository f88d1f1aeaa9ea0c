/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file recurrent.h
 * What the recurrent (linear attention) operations have in common: one recurrence over a state.
 *
 * Each head has a state S [Dk,Dv], float32 (float64 if query is). Time runs through the tokens of each sequence; at
 * token t
 *
 *     S ← diag(e^gk_t) · e^g_t · e^γ · S · diag(e^gv_t)          gates that are absent are 0
 *     S ← S + k_t v_tᵀ                                        recurrent_attention, gla_, lightning_attention, rwkv6
 *     S ← S + k_t (β_t (v_t − Sᵀ k_t))ᵀ                      gated_delta_rule, kda_attention: S is the decayed one
 *     S ← S + a_t (S_oldᵀ b_t)ᵀ + k_t v_tᵀ                   rwkv7: S_old is the one before the decay
 *     out_t = softmax_scale · Sᵀ q_t                          the new state; rwkv6 reads the old one and its bonus
 *
 * Gates are natural-log decays: 0 keeps all, −∞ forgets all (the factor is 0), above 0 the state grows. They are
 * computed as they stand: nothing is clipped, and nothing is divided by a decay.
 *
 * Heads: H is the largest of the numbers of heads of query, key and value, each of which divides it; head h of the
 * call reads head h / (H / Hx) of a tensor with Hx heads. Gates, beta, states and out have H. Gradients are sums
 * over the heads that read. Dk and Dv are any numbers, equal or not.
 *
 * Sequences: tensors of tokens are [B,T,…], or [T,…] for one batch entry. With cu_seqlens, there is one batch entry,
 * and sequence n is its tokens cu_seqlens[n] to cu_seqlens[n+1] − 1, with a state of its own; without, N = B. Tokens
 * in no sequence get out and gradients of 0. With seg_ids the state starts at 0 where the id is another than that of
 * the token before; the initial state is that of the first segment. A token with an id below 0 is padding: its out
 * is 0, it leaves the state as it is, and it counts as no token before. An empty sequence leaves its state as it is.
 * With reverse, time runs backwards in each sequence.
 *
 * States: initial_state is read (absent: 0), final_state is written if it is given. `state` in place of both is
 * updated in place: row n belongs to sequence n, or row state_indices[n] of a pool; −1 starts at 0 and is not stored.
 * Indices outside of the pool, or given twice, are INVALID_ARGUMENT when the call is executed, before anything is
 * written; on a GPU, where nobody waits for them, an index outside counts as −1 and no index may be there twice. With
 * state_layout = "value_key" all states of the call are [Dv,Dk] in memory: its last axis is that of the key.
 *
 * Accuracy: the error against f64 is at most twice that of a plain evaluation token by token in f32 from inputs of the
 * call's types, plus 4 ulp of the type of the result. With the same implementation and parameters, results are bitwise
 * equal for any number of threads and any other sequences beside. They depend on what is asked for: in bfloat16 and
 * float16 a state that is not kept may be rounded on its way to out, one that is (final_state, state) may not, so that
 * out may have other bits then, within the same accuracy. On GPUs a NaN or an infinity among the inputs of a token may
 * reach out of up to 63 tokens before it, as chunks of 64 tokens are computed at once.
 *
 * Gradients (operations ending in _vjp) are those of out and final_state together; a cotangent that is left out is 0,
 * a gradient that is left out is not computed. Memory is O(T / chunk) states.
 *
 * Kept results: a call of a delta rule that will be followed by its gradients may be asked for chunk_states, the states
 * [Dk,Dv] before steps 0, 32, 64, … of each sequence, and for errors, v_t − Sᵀ k_t of each token. Gradients that are
 * given both do not walk over the tokens once more; they are the same but for rounding. Step 32·j of sequence n has
 * row j of batch entry n, or with cu_seqlens row floor(cu_seqlens[n] / 32) + n + j, so that the place of a row does not
 * depend on the sequences before it. Rows of no sequence are 0, as are errors of padding and of tokens in no sequence.
 * They are results of the CPU: no implementation on a GPU writes them, and gradients there do not look at them.
 *
 * Sources: S. Yang et al., "Gated Delta Networks" (2024); Kimi Team, "Kimi Linear" (2025); S. Yang et al., "Gated
 * Linear Attention" (2023); Z. Qin et al., "Lightning Attention-2" (2024); B. Peng et al., "Eagle and Finch" (2024)
 * and "RWKV-7" (2025).
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RECURRENT_H
#define EJKERNEL_RECURRENT_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration of all of them: how to compute, never what. */
#define EJK_RECURRENT_CONFIG(F, R)                                                                 \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    F(OPT_INT, chunk_size, EJK_OPTIONAL, "unset", "tokens", "tokens that are computed at once")    \
    EJK_PREFETCH_PARAMS(F, R)

EJK_RECORD_STRUCT(ejk_recurrent_config, EJK_RECURRENT_CONFIG);
extern EJK_API const ejk_record ejk_recurrent_config_record;

/**
 * Units. Symbols: B batch, T tokens, N sequences, H heads, Hq, Hk, Hv those of query, key and value, Dk and Dv their
 * sizes, slots rows of a pool of states, Hg the H heads of gates: where T = Hg a gate [T,Hg,Dk] looks like [B,T,Hg],
 * and it is the rank of query that tells; rows are ceil(T/32)+N-B then, too.
 */
#define EJK_RECURRENT_QUERY    "[B,T,Hq,Dk] or [T,Hq,Dk] "
#define EJK_RECURRENT_KEY      "[B,T,Hk,Dk] or [T,Hk,Dk] "
#define EJK_RECURRENT_VALUE    "[B,T,Hv,Dv] or [T,Hv,Dv] "
#define EJK_RECURRENT_OUT      "[B,T,H,Dv] or [T,H,Dv] "
#define EJK_RECURRENT_PER_KEY  "[B,T,H,Dk] or [T,H,Dk] "
#define EJK_RECURRENT_PER_HEAD "[B,T,H] or [T,H] "
#define EJK_RECURRENT_GATE     "[B,T,Hg] or [B,T,Hg,Dk] or [T,Hg] or [T,Hg,Dk] "
#define EJK_RECURRENT_GAMMA    "[H] or [N,H] "
#define EJK_RECURRENT_BIAS     "[H] or [H,Dk] "
#define EJK_RECURRENT_STATES   "[N,H,Dk,Dv] or [N,H,Dv,Dk] "
#define EJK_RECURRENT_POOL     "[slots,H,Dk,Dv] or [slots,H,Dv,Dk] "
#define EJK_RECURRENT_KEPT     "[B,ceil(T/32)+N-B,H,Dk,Dv] or [1,rows,H,Dk,Dv] "

/** What a call starts from, and its sequences; in the order of the documented calls. */
#define EJK_RECURRENT_START(F)                                                                     \
    F(TENSOR, initial_state, EJK_OPTIONAL, "0", EJK_RECURRENT_STATES "float",                      \
      "states before the first token")                                                             \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")

/** Options of all. */
#define EJK_RECURRENT_OPTIONS(F, R)                                                                \
    F(TENSOR, seg_ids, EJK_OPTIONAL, "none", "[B,T] or [T] int",                                   \
      "segment of each token, below 0 = padding; the state starts at 0 where it changes")          \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(Dk)", "", "factor of the query")             \
    F(BOOL, reverse, EJK_OPTIONAL, "false", "", "time runs backwards in each sequence")            \
    F(NAME, state_layout, EJK_OPTIONAL, "key_value", "",                                           \
      "key_value: states are [Dk,Dv]; value_key: [Dv,Dk], faster to decode on some processors")    \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_recurrent_config, cfg, ejk_recurrent_config_record,                                      \
      "explicit configuration, always honoured")

/** What a call writes. */
#define EJK_RECURRENT_RESULTS(F)                                                                   \
    F(TENSOR, state, EJK_INOUT, "none", EJK_RECURRENT_POOL "float",                                \
      "states, updated in place: in place of initial_state and final_state; float32")              \
    F(TENSOR, state_indices, EJK_OPTIONAL, "0, 1, …", "[N] int in [-1,slots)",                     \
      "rows of state; -1: starts at 0, is not stored")                                             \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", EJK_RECURRENT_OUT "float",                             \
      "outputs, in the type of the query")                                                         \
    F(TENSOR, final_state, EJK_OUTPUT, "not written", EJK_RECURRENT_STATES "float",                \
      "states after the last token; float32")

/** What a call of a delta rule writes for its gradients, and these read. */
#define EJK_RECURRENT_KEPT_RESULTS(F)                                                              \
    F(TENSOR, chunk_states, EJK_OUTPUT, "not written", EJK_RECURRENT_KEPT "float32",               \
      "states before every 32nd step of a sequence, for gradients; on CPUs")                       \
    F(TENSOR, errors, EJK_OUTPUT, "not written", EJK_RECURRENT_OUT "float32",                      \
      "value - S' key of each token, for gradients; on CPUs")
#define EJK_RECURRENT_KEPT_INPUTS(F)                                                               \
    F(TENSOR, chunk_states, EJK_OPTIONAL, "computed again", EJK_RECURRENT_KEPT "float32",          \
      "what the call wrote; counts together with errors")                                          \
    F(TENSOR, errors, EJK_OPTIONAL, "computed again", EJK_RECURRENT_OUT "float32",                 \
      "what the call wrote; counts together with chunk_states")

/** Cotangents, and the gradient of the initial state. */
#define EJK_RECURRENT_COTANGENTS(F)                                                                \
    F(TENSOR, d_out, EJK_OPTIONAL, "0", EJK_RECURRENT_OUT "float", "cotangent of out")             \
    F(TENSOR, d_final_state, EJK_OPTIONAL, "0", EJK_RECURRENT_STATES "float",                      \
      "cotangent of final_state")                                                                  \
    F(TENSOR, d_initial_state, EJK_OUTPUT, "not computed", EJK_RECURRENT_STATES "float",           \
      "gradient; float32 or the type of initial_state")

#ifdef __cplusplus
}
#endif
#endif
