/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention: flash attention with heads before tokens and a block mask in its problem. Checks,
 * problem and gradients are those of flash attention, asked with views of the same tensors.
 */
#include "kernels/declare.h"
#include "operations/attention/blocksparse/blocksparse_attention_steps.h"
#include "operations/attention/flash/flash_attention_steps.h"
#include "operations/attention/shared/attention_symbols.h"

#include <ejkernel/flash_attention.h>

#include "base/base.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_blocksparse_attention_config
EJK_RECORD_DEFINE(ejk_blocksparse_attention_config_record, ejk_blocksparse_attention_config,
                  EJK_BLOCKSPARSE_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_blocksparse_attention_args
EJK_RECORD_DEFINE_WITH(ejk_blocksparse_attention_args_record, ejk_blocksparse_attention_args,
                       EJK_BLOCKSPARSE_ATTENTION_ARGS, "B=1,Hq,Hkv=Hq,T,S=T,D,Dv=D,n=1",
                       EJKI_ATTENTION_HEADS_FIRST);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_blocksparse_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_blocksparse_attention_vjp_args_record,
                       ejk_blocksparse_attention_vjp_args, EJK_BLOCKSPARSE_ATTENTION_VJP_ARGS,
                       "B=1,Hq,Hkv=Hq,T,S=T,D,Dv=D,n=1", EJKI_ATTENTION_HEADS_FIRST);
#undef EJK_RECORD_SELF

/* Both structs begin with the same inputs. */
_Static_assert(offsetof(ejk_blocksparse_attention_args, out) ==
                   offsetof(ejk_blocksparse_attention_vjp_args, dq_data_next),
               "the inputs come first");

/* [B,H,T,D] as [B,T,H,D]. */
static ejk_tensor tokens_first(const ejk_tensor *tensor) {
    ejk_tensor t = *tensor;
    if (t.dtype == EJK_DTYPE_UNSET) return t;
    t.shape[1] = tensor->shape[2];
    t.shape[2] = tensor->shape[1];
    t.strides[1] = tensor->strides[2];
    t.strides[2] = tensor->strides[1];
    return t;
}

static bool has_positions(const ejk_blocksparse_attention_args *args) {
    return ejk_tensor_present(&args->q_positions) || ejk_tensor_present(&args->kv_positions);
}

static ejk_flash_attention_args flash_args(const ejk_blocksparse_attention_args *args) {
    return (ejk_flash_attention_args){
        .query = tokens_first(&args->query),
        .key = tokens_first(&args->key),
        .value = tokens_first(&args->value),
        .bias = args->bias,
        .softmax_aux = args->softmax_aux,
        .attention_mask = args->attention_mask,
        .softmax_scale = args->softmax_scale,
        .causal = args->causal || args->chunk_size.set,
        .causal_offset =
            !args->causal_offset.set && has_positions(args) ? ejk_int(0) : args->causal_offset,
        .sliding_window = args->sliding_window,
        .logits_soft_cap = args->logits_soft_cap,
        .q_segment_ids = args->q_segment_ids,
        .kv_segment_ids = args->kv_segment_ids,
        .out = tokens_first(&args->out),
        .lse = args->lse,
    };
}

static ejki_block_mask_args fwd_grid(const ejk_blocksparse_attention_args *args) {
    return (ejki_block_mask_args){"fwd",
                                  &args->fwd_data_next,
                                  &args->fwd_mask_next,
                                  &args->fwd_block_mask,
                                  &args->fwd_partial_mask_blocks,
                                  args->fwd_kv_blocksize,
                                  false};
}

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_blocksparse_attention_args *args = arguments;
    const ejk_flash_attention_args flash = flash_args(args);
    const ejki_block_mask_args grid = fwd_grid(args);
    ejki_flash_problem *p = problem;
    EJKI_TRY(ejk_flash_attention_kernel.prepare(&flash, axes, p));
    EJKI_TRY(ejki_limits_of(args, p));
    return ejki_block_mask_of(&grid, p, &p->block_mask);
}

static void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

/* As flash attention binds, without views of the tensors: a call of few rows is over in a microsecond. */
static void bind(const void *arguments, void *problem) {
    const ejk_blocksparse_attention_args *args = arguments;
    const ejki_block_mask_args grid = fwd_grid(args);
    ejki_flash_problem *p = problem;
    p->query.data = args->query.data;
    p->key.data = args->key.data;
    p->value.data = args->value.data;
    p->out.data = args->out.data;
    p->lse.data = pointer(&args->lse);
    p->bias.data = pointer(&args->bias);
    p->mask.data = pointer(&args->attention_mask);
    p->query_segments.data = pointer(&args->q_segment_ids);
    p->key_segments.data = pointer(&args->kv_segment_ids);
    p->sinks = pointer(&args->softmax_aux);
    p->positions.query = pointer(&args->q_positions);
    p->positions.key = pointer(&args->kv_positions);
    ejki_block_mask_bind(&grid, &p->block_mask);
    p->block_mask.positions = pointer(&args->q_sequence);
}

static ejk_status validate(const void *problem) {
    const ejki_flash_problem *p = problem;
    return ejki_block_mask_check(p, &p->block_mask);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    ejki_flash_problem p;
    const ejki_block_mask *const own = &p.block_mask;
    EJKI_TRY(prepare(args, axes, &p));
    bind(args, &p);
    EJKI_TRY(ejki_block_masks_fill(&p, &own, 1, how));
    return ejki_blocksparse_inputs(args, axes, how);
}

const ejk_kernel ejk_blocksparse_attention_kernel = {
    .op_id = "blocksparse_attention",
    .version = "0",
    .doc = "attention over the blocks of a mask that are not empty",
    .args = &ejk_blocksparse_attention_args_record,
    .config = &ejk_blocksparse_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(ejki_flash_problem),
    .prepare = prepare,
    .bind = bind,
    .validate = validate,
    .inputs = inputs,
    .input_options = ejki_blocksparse_input_options,
    .input_option_count = 2,
    .heuristic_cfg = ejki_blocksparse_heuristic_cfg,
    .cost = ejki_blocksparse_cost,
    .candidate_cfgs = ejki_blocksparse_candidate_cfgs,
};

/* ---- Gradients ---------------------------------------------------------------------------------------- */

static ejk_blocksparse_attention_args inputs_of(const ejk_blocksparse_attention_vjp_args *args) {
    ejk_blocksparse_attention_args inputs = {.out = args->out, .lse = args->lse};
    memcpy(&inputs, args, offsetof(ejk_blocksparse_attention_args, out));
    return inputs;
}

static ejk_flash_attention_vjp_args flash_vjp_args(const ejk_blocksparse_attention_vjp_args *args) {
    const ejk_blocksparse_attention_args inputs = inputs_of(args);
    const ejk_flash_attention_args forward = flash_args(&inputs);
    ejk_flash_attention_vjp_args flash = {
        .d_out = tokens_first(&args->d_out),
        .d_lse = args->d_lse,
        .d_query = tokens_first(&args->d_query),
        .d_key = tokens_first(&args->d_key),
        .d_value = tokens_first(&args->d_value),
        .d_bias = args->d_bias,
        .d_softmax_aux = args->d_softmax_aux,
    };
    memcpy(&flash, &forward, offsetof(ejk_flash_attention_args, out));
    flash.out = forward.out;
    flash.lse = forward.lse;
    return flash;
}

static ejki_block_mask_args dq_grid(const ejk_blocksparse_attention_vjp_args *args) {
    return (ejki_block_mask_args){"dq",
                                  &args->dq_data_next,
                                  &args->dq_mask_next,
                                  &args->dq_block_mask,
                                  &args->dq_partial_mask_blocks,
                                  args->dq_kv_blocksize,
                                  false};
}

static ejki_block_mask_args dkv_grid(const ejk_blocksparse_attention_vjp_args *args) {
    return (ejki_block_mask_args){"dkv",
                                  &args->dkv_data_next,
                                  &args->dkv_mask_next,
                                  &args->dkv_block_mask,
                                  &args->dkv_partial_mask_blocks,
                                  args->dkv_q_blocksize,
                                  true};
}

/* The block lists of a call for gradients: dq, or fwd in its place; fwd if dq is given too; dkv. */
typedef struct vjp_grids {
    ejki_block_mask_args own, others[2];
} vjp_grids;

static vjp_grids grids_of(const ejk_blocksparse_attention_vjp_args *args,
                          const ejk_blocksparse_attention_args *inputs) {
    static const ejk_tensor none;
    const ejki_block_mask_args dq = dq_grid(args), fwd = fwd_grid(inputs), dkv = dkv_grid(args);
    const ejki_block_mask_args absent = {
        .next = &none, .id = &none, .state = &none, .blocks = &none};
    if (!ejki_block_mask_given(&dq)) return (vjp_grids){fwd, {absent, dkv}};
    return (vjp_grids){dq, {fwd, dkv}};
}

static ejk_status prepare_vjp(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_blocksparse_attention_vjp_args *args = arguments;
    const ejk_blocksparse_attention_args inputs = inputs_of(args);
    const ejk_flash_attention_vjp_args flash = flash_vjp_args(args);
    const vjp_grids grids = grids_of(args, &inputs);
    ejki_blocksparse_vjp_problem *v = problem;
    ejki_flash_problem *p = &v->flash.forward;
    *v = (ejki_blocksparse_vjp_problem){0};
    EJKI_TRY(ejk_flash_attention_vjp_kernel.prepare(&flash, axes, &v->flash));
    EJKI_TRY(ejki_limits_of(&inputs, p));
    for (int i = 0; i < 2; i++) {
        v->others[i] = p->block_mask;
        EJKI_TRY(ejki_block_mask_of(&grids.others[i], p, &v->others[i]));
    }
    return ejki_block_mask_of(&grids.own, p, &p->block_mask);
}

static void bind_vjp(const void *arguments, void *problem) {
    const ejk_blocksparse_attention_vjp_args *args = arguments;
    const ejk_blocksparse_attention_args inputs = inputs_of(args);
    const ejk_flash_attention_vjp_args flash = flash_vjp_args(args);
    const vjp_grids grids = grids_of(args, &inputs);
    ejki_blocksparse_vjp_problem *v = problem;
    ejki_flash_problem *p = &v->flash.forward;
    ejk_flash_attention_vjp_kernel.bind(&flash, &v->flash);
    ejki_block_mask_bind(&grids.own, &p->block_mask);
    for (int i = 0; i < 2; i++) ejki_block_mask_bind(&grids.others[i], &v->others[i]);
    p->block_mask.positions = pointer(&args->q_sequence);
    p->positions.query = pointer(&args->q_positions);
    p->positions.key = pointer(&args->kv_positions);
}

/* All block lists have to be sound before any two are compared. */
static ejk_status validate_vjp(const void *problem) {
    const ejki_blocksparse_vjp_problem *v = problem;
    const ejki_flash_problem *p = &v->flash.forward;
    EJKI_TRY(ejki_block_mask_check(p, &p->block_mask));
    for (size_t i = 0; i < sizeof v->others / sizeof *v->others; i++)
        EJKI_TRY(ejki_block_mask_check(p, &v->others[i]));
    for (size_t i = 0; i < sizeof v->others / sizeof *v->others; i++)
        EJKI_TRY(ejki_block_mask_agree(p, &p->block_mask, &v->others[i]));
    return EJK_OK;
}

static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    ejki_blocksparse_vjp_problem v;
    const ejki_block_mask *const all[] = {&v.flash.forward.block_mask, &v.others[0], &v.others[1]};
    const ejk_blocksparse_attention_args forward = inputs_of(args);
    EJKI_TRY(prepare_vjp(args, axes, &v));
    bind_vjp(args, &v);
    EJKI_TRY(ejki_block_masks_fill(&v.flash.forward, all, 3, how));
    return ejki_blocksparse_inputs(&forward, axes, how);
}

const ejk_kernel ejk_blocksparse_attention_vjp_kernel = {
    .op_id = "blocksparse_attention_vjp",
    .version = "0",
    .doc = "gradients of blocksparse_attention",
    .args = &ejk_blocksparse_attention_vjp_args_record,
    .config = &ejk_blocksparse_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "bwd_params",
    .problem_size = sizeof(ejki_blocksparse_vjp_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .validate = validate_vjp,
    .inputs = inputs_vjp,
    .input_options = ejki_blocksparse_input_options,
    .input_option_count = 2,
    .candidate_cfgs = ejki_blocksparse_vjp_candidate_cfgs,
    .cost = ejki_blocksparse_vjp_cost,
    .forward = &ejk_blocksparse_attention_kernel,
};

/* ---- Calls -------------------------------------------------------------------------------------------- */

EJKI_DEFINE_CALL(blocksparse_attention)

ejk_status ejk_blocksparse_attention_fwd(ejk_context *context,
                                         const ejk_blocksparse_attention_args *args) {
    if (args && !ejk_tensor_present(&args->lse))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "lse is not given, expected it: the gradients need it");
    return ejk_call(context, &ejk_blocksparse_attention_kernel, args);
}

EJKI_DEFINE_CALL(blocksparse_attention_vjp)
