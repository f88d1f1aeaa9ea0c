/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are flash attention under other arguments: what they have in common. `inputs` of a call are
 * written as those of flash attention, whose own steps then check and resolve them.
 */
#ifndef EJKI_MODULES_DENSE_STEPS_H
#define EJKI_MODULES_DENSE_STEPS_H

#include "operations/attention/flash/flash_attention_steps.h"

/* The fields that all of these calls have, from `from` to `to`. */
#define EJKI_DENSE_SHARED(to, from)                                                                \
    ((to)->query = (from)->query, (to)->key = (from)->key, (to)->value = (from)->value,            \
     (to)->bias = (from)->bias, (to)->attention_mask = (from)->attention_mask,                     \
     (to)->softmax_scale = (from)->softmax_scale, (to)->causal = (from)->causal,                   \
     (to)->causal_offset = (from)->causal_offset, (to)->sliding_window = (from)->sliding_window,   \
     (to)->q_segment_ids = (from)->q_segment_ids, (to)->kv_segment_ids = (from)->kv_segment_ids,   \
     (to)->out = (from)->out, (to)->lse = (from)->lse)

/* What gradients add to that. */
#define EJKI_DENSE_SHARED_VJP(to, from)                                                            \
    ((to)->d_out = (from)->d_out, (to)->d_lse = (from)->d_lse, (to)->d_query = (from)->d_query,    \
     (to)->d_key = (from)->d_key, (to)->d_value = (from)->d_value, (to)->d_bias = (from)->d_bias)

/* What a MaskInfo changes. */
#define EJKI_DENSE_MASKS(to, from)                                                                 \
    ((to)->attention_mask = (from)->attention_mask, (to)->q_segment_ids = (from)->q_segment_ids,   \
     (to)->kv_segment_ids = (from)->kv_segment_ids, (to)->causal = (from)->causal,                 \
     (to)->causal_offset = (from)->causal_offset, (to)->sliding_window = (from)->sliding_window)

/* A MaskInfo in place of the masks of a call: see ejk_flash_attention_set_mask_info(). */
#define EJKI_DENSE_SET_MASK_INFO(args, info)                                                       \
    do {                                                                                           \
        ejk_flash_attention_args flash_ = {.causal = false};                                       \
        if (!(args)) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");                \
        EJKI_DENSE_MASKS(&flash_, args);                                                           \
        flash_.query = (args)->query;                                                              \
        EJKI_TRY(ejk_flash_attention_set_mask_info(&flash_, info));                                \
        EJKI_DENSE_MASKS(args, &flash_);                                                           \
        return EJK_OK;                                                                             \
    } while (0)

/* Flash attention's parameters for a hook that runs this call. */
void ejki_dense_fwd_params(const ejk_invocation *invocation, ejk_fwd_params *out);

/* Flash attention's candidates, for gradients its gradients'; where `configs`, of `size` bytes, have them. */
ejk_status ejki_dense_candidates(const ejk_invocation *invocation, void *configs, size_t size,
                                 size_t fwd_params, size_t bwd_params, int32_t capacity,
                                 int32_t *count);

/* INVALID_ARGUMENT: gradients will be asked for, and lse is missing. */
ejk_status ejki_dense_check_residuals(const ejk_tensor *lse);

#endif
