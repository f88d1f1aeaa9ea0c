/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/declare.h"
#include "operations/attention/flash/flash_attention_steps.h"
#include "operations/attention/shared/attention_symbols.h"

#include "base/base.h"
#include "operations/attention/shared/sequences.h"

#define EJK_RECORD_SELF ejk_flash_attention_config
EJK_RECORD_DEFINE(ejk_flash_attention_config_record, ejk_flash_attention_config,
                  EJK_FLASH_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_flash_attention_args
EJK_RECORD_DEFINE_WITH(ejk_flash_attention_args_record, ejk_flash_attention_args,
                       EJK_FLASH_ATTENTION_ARGS, "B=1!N,Hq,Hkv=Hq,T,S=T,D,Dv=D,N,n=1",
                       EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    EJKI_TRY(ejki_flash_check(args, axes));
    ejki_flash_problem_of(args, axes, problem);
    return EJK_OK;
}

static inline void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

void ejki_flash_bind(const void *arguments, void *problem) {
    const ejk_flash_attention_args *args = arguments;
    ejki_flash_problem *p = problem;
    p->query.data = args->query.data;
    p->key.data = args->key.data;
    p->value.data = args->value.data;
    p->out.data = args->out.data;
    p->lse.data = pointer(&args->lse);
    p->row_max.data = pointer(&args->row_max);
    p->row_sum.data = pointer(&args->row_sum);
    p->bias.data = pointer(&args->bias);
    p->mask.data = pointer(&args->attention_mask);
    p->query_segments.data = pointer(&args->q_segment_ids);
    p->key_segments.data = pointer(&args->kv_segment_ids);
    p->sinks = pointer(&args->softmax_aux);
    p->query_sums = pointer(&args->cum_seqlens_q);
    p->key_sums = pointer(&args->cum_seqlens_k);
}

ejk_status ejki_flash_validate(const void *problem) {
    return ejki_flash_sequences_check(problem);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    return ejki_flash_inputs(args, axes, how);
}

const ejk_kernel ejk_flash_attention_kernel = {
    .op_id = "flash_attention",
    .version = "0",
    .doc = "exact attention in memory linear in the sequence lengths",
    .args = &ejk_flash_attention_args_record,
    .config = &ejk_flash_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(ejki_flash_problem),
    .prepare = prepare,
    .bind = ejki_flash_bind,
    .validate = ejki_flash_validate,
    .inputs = inputs,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
    .heuristic_cfg = ejki_flash_heuristic_cfg,
    .cost = ejki_flash_cost,
    .candidate_cfgs = ejki_flash_candidate_cfgs,
};

EJKI_DEFINE_CALL(flash_attention)
