/* SPDX-License-Identifier: Apache-2.0 */
/* A MaskInfo in place of the masks of flash attention (docs/adr/0008-mask-info-in-calls.md). */
#include <ejkernel/flash_attention.h>

#include "base/base.h"

#include <string.h>

/* The object's tensors where those of the call lie. */
static ejk_status move(const ejk_mask_info *info, const ejk_tensor *query,
                       ejk_mask_info_args *mask) {
    if (query->device_type != EJK_DEVICE_CUDA) return EJK_OK;
    EJKI_TRY(ejk_mask_info_on_device(info, query->device_index, &mask->attention_mask));
    EJKI_TRY(ejk_mask_info_on_device(info, query->device_index, &mask->q_segment_ids));
    return ejk_mask_info_on_device(info, query->device_index, &mask->kv_segment_ids);
}

ejk_status ejk_flash_attention_set_mask_info(ejk_flash_attention_args *args,
                                             const ejk_mask_info *info) {
    if (args == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    if (info == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "info is NULL");
    const ejk_tensor *given[] = {&args->attention_mask, &args->q_segment_ids,
                                 &args->kv_segment_ids};
    static const char *const names[] = {"attention_mask", "q_segment_ids", "kv_segment_ids"};
    for (int i = 0; i < 3; i++)
        if (ejk_tensor_present(given[i]))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is given beside mask_info, expected one of them", names[i]);
    /* Numbers of the call's own stay: the limits of the object then go into its mask. */
    bool own = args->causal || args->causal_offset.set || args->sliding_window.left.set ||
               args->sliding_window.right.set;
    ejk_mask_info_args mask;
    EJKI_TRY(ejk_mask_info_attention_args(info, !own, &mask));
    EJKI_TRY(move(info, &args->query, &mask));
    args->attention_mask = mask.attention_mask;
    args->q_segment_ids = mask.q_segment_ids;
    args->kv_segment_ids = mask.kv_segment_ids;
    if (own) return EJK_OK;
    args->causal = mask.causal;
    args->causal_offset = mask.causal_offset;
    args->sliding_window = mask.sliding_window;
    return EJK_OK;
}

ejk_status ejk_flash_attention_vjp_set_mask_info(ejk_flash_attention_vjp_args *args,
                                                 const ejk_mask_info *info) {
    if (args == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    const size_t inputs = offsetof(ejk_flash_attention_args, out); /* as the others begin, too */
    ejk_flash_attention_args forward = {.causal = false};
    memcpy(&forward, args, inputs);
    EJKI_TRY(ejk_flash_attention_set_mask_info(&forward, info));
    memcpy(args, &forward, inputs);
    return EJK_OK;
}

ejk_status ejk_flash_attention_masked(ejk_context *context, const ejk_flash_attention_args *args,
                                      const ejk_mask_info *info) {
    if (args == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    ejk_flash_attention_args masked = *args;
    if (info != NULL) EJKI_TRY(ejk_flash_attention_set_mask_info(&masked, info));
    return ejk_flash_attention(context, &masked);
}
