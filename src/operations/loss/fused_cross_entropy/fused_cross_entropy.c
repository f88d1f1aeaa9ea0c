/* SPDX-License-Identifier: Apache-2.0 */
/* fused_cross_entropy and its gradient: records, problems and descriptions. */
#include <ejkernel/fused_cross_entropy.h>

#include "operations/loss/fused_cross_entropy/problem.cuh"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/loss/fused_cross_entropy/rows.h"
#include "operations/loss/shared/tokens.h"
#include "operations/matmul/shared/product_call.h"

#define SYMBOLS "B=1,T,V,H"

#define EJK_RECORD_SELF ejk_fused_cross_entropy_config
EJK_RECORD_DEFINE(ejk_fused_cross_entropy_config_record, ejk_fused_cross_entropy_config,
                  EJK_FUSED_CROSS_ENTROPY_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_fused_cross_entropy_args
EJK_RECORD_DEFINE_WITH(ejk_fused_cross_entropy_args_record, ejk_fused_cross_entropy_args,
                       EJK_FUSED_CROSS_ENTROPY_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_fused_cross_entropy_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_fused_cross_entropy_vjp_args_record, ejk_fused_cross_entropy_vjp_args,
                       EJK_FUSED_CROSS_ENTROPY_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* Classes and tokens of a block of logits: 16 MiB of float32, which each product reads or writes once. */
enum { BLOCK_CLASSES = 4096, BLOCK_TOKENS = 1024 };

/* What both operations are called with. */
typedef struct call {
    const ejk_tensor *logits, *targets, *weights, *hidden, *weight, *bias, *mask, *soft, *loss,
        *lse;
    const ejk_opt_float *cap, *smoothing, *z;
    const ejk_opt_int *chunk, *ignore;
    const char *strategy, *reduction, *loss_name;
} call;

#define CALL_OF(a, loss_field)                                                                     \
    (call) {                                                                                       \
        &(a)->logits, &(a)->targets, &(a)->weights, &(a)->hidden, &(a)->lm_head_weight,            \
            &(a)->lm_head_bias, &(a)->attention_mask, &(a)->soft_targets, &(a)->loss_field,        \
            &(a)->lse, &(a)->logit_softcap, &(a)->label_smoothing, &(a)->z_loss, &(a)->chunk_size, \
            &(a)->ignore_index, (a)->chunk_strategy, (a)->reduction, #loss_field                   \
    }

static const ejk_tensor *rows_tensor(const call *c) {
    return ejk_tensor_present(c->logits) ? c->logits : c->hidden;
}

/* ---- Shapes ----------------------------------------------------------------------------------------- */

static ejk_status check_form(const call *c) {
    const bool logits = ejk_tensor_present(c->logits), hidden = ejk_tensor_present(c->hidden);
    if (logits == hidden)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         logits
                             ? "logits and hidden are given, expected one of them"
                             : "logits are missing, and hidden, of which they would be products");
    if (hidden != ejk_tensor_present(c->weight))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "lm_head_weight is %s hidden",
                         hidden ? "missing for" : "given without");
    if (!hidden && ejk_tensor_present(c->bias))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "lm_head_bias is given without hidden");
    if (!ejk_tensor_present(c->targets) && !ejk_tensor_present(c->soft))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "targets are missing, and soft_targets");
    return EJK_OK;
}

/* ---- Options ---------------------------------------------------------------------------------------- */

static ejk_status resolve_smoothing(const call *c, loss_problem *p) {
    const double a = c->smoothing->set ? c->smoothing->value : 0;
    p->right = 1;
    if (!(a >= 0 && a < 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "label_smoothing is %g, expected at least 0 and less than 1", a);
    if (a > 0 && ejk_tensor_present(c->soft))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "label_smoothing is given with soft_targets, which are smooth themselves");
    if (a == 0 || p->vocab < 2) return EJK_OK;
    p->right = 1 - a;
    p->wrong = a / (double)(p->vocab - 1);
    p->constant = p->right * log(p->right) + a * log(p->wrong);
    return EJK_OK;
}

static ejk_status resolve_numbers(const call *c, loss_problem *p) {
    p->ignore = c->ignore->set ? c->ignore->value : -100;
    p->z = c->z->set ? c->z->value : 0;
    p->cap = c->cap->set ? c->cap->value : 0;
    if (!isfinite(p->z))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "z_loss is %g, expected a finite number",
                         p->z);
    if (c->cap->set && !(p->cap > 0 && isfinite(p->cap)))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "logit_softcap is %g, expected a finite number above 0", p->cap);
    p->sums = strcmp(c->reduction, "sum") == 0;
    if (p->sums || !*c->reduction || strcmp(c->reduction, "mean") == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "reduction is '%s', expected mean or sum",
                     c->reduction);
}

static ejk_status resolve_blocks(const call *c, loss_problem *p) {
    const int64_t size = c->chunk->set ? c->chunk->value : 0;
    const bool tokens = strcmp(c->strategy, "token") == 0, both = strcmp(c->strategy, "block") == 0;
    p->block_classes = BLOCK_CLASSES;
    p->block_tokens = BLOCK_TOKENS;
    if (*c->strategy && strcmp(c->strategy, "vocab") != 0 && !tokens && !both)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "chunk_strategy is '%s', expected vocab, token or block", c->strategy);
    if (size < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %lld, expected at least 0",
                         (long long)size);
    if (size > 0 && !tokens) p->block_classes = size;
    if (size > 0 && (tokens || both)) p->block_tokens = size;
    p->block_classes = ejki_max(ejki_min(p->block_classes, p->vocab), 1);
    p->block_tokens = ejki_max(ejki_min(p->block_tokens, loss_rows(p)), 1);
    return EJK_OK;
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static loss_view view_of(const call *c, const ejk_tensor *t) {
    return ejki_loss_view(rows_tensor(c), t);
}

static ejk_status check_tokens(const call *c, const ejk_tensor *t, const char *name, int64_t last) {
    return ejki_loss_check_tokens(rows_tensor(c), t, name, last);
}

static ejk_status resolve(const call *c, const ejk_axes *axes, loss_problem *p) {
    EJKI_TRY(check_form(c));
    const ejk_tensor *rows = rows_tensor(c);
    const int32_t rank = rows->rank;
    *p = (loss_problem){.batch = rank == 3 ? rows->shape[0] : 1,
                        .tokens = rows->shape[rank - 2],
                        .vocab = ejk_axes_get(axes, "V"),
                        .width = rows == c->logits ? -1 : rows->shape[rank - 1],
                        .dtype = (int)rows->dtype};
    p->result = (int)ejki_loss_result_type(rows->dtype);
    EJKI_TRY(ejki_loss_check_count(p->batch, p->tokens, p->vocab, p->width));
    EJKI_TRY(check_tokens(c, c->targets, "targets", -1));
    EJKI_TRY(check_tokens(c, c->weights, "weights", -1));
    EJKI_TRY(check_tokens(c, c->mask, "attention_mask", -1));
    EJKI_TRY(check_tokens(c, c->lse, "lse", -1));
    EJKI_TRY(check_tokens(c, c->soft, "soft_targets", p->vocab));
    EJKI_TRY(ejki_loss_check_type(c->loss, c->loss_name, (ejk_dtype)p->result));
    EJKI_TRY(resolve_smoothing(c, p));
    EJKI_TRY(resolve_numbers(c, p));
    EJKI_TRY(resolve_blocks(c, p));
    p->weight = ejk_tensor_present(c->weight) ? ejki_mm_matrix(c->weight) : p->weight;
    p->bias = ejki_mm_vector(c->bias);
    return EJK_OK;
}

static void bind_inputs(const call *c, loss_problem *p) {
    p->logits = view_of(c, c->logits);
    p->hidden = view_of(c, c->hidden);
    p->targets = view_of(c, c->targets);
    p->weights = view_of(c, c->weights);
    p->mask = view_of(c, c->mask);
    p->soft = view_of(c, c->soft);
    p->lse = view_of(c, c->lse);
    p->weight.data = c->weight->data;
    p->bias.data = c->bias->data;
    p->loss = c->loss->data;
}

static void bind(const void *args, void *problem) {
    const ejk_fused_cross_entropy_args *a = args;
    const call c = CALL_OF(a, loss);
    loss_problem *p = problem;
    bind_inputs(&c, p);
    p->z_loss_out = a->z_loss_out.data;
    p->weight_sum = a->weight_sum.data;
    p->accuracy = a->accuracy.data;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_fused_cross_entropy_args *a = args;
    const call c = CALL_OF(a, loss);
    EJKI_TRY(resolve(&c, axes, problem));
    bind(args, problem);
    return EJK_OK;
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_fused_cross_entropy_vjp_args *a = args;
    const call c = CALL_OF(a, d_loss);
    loss_problem *p = problem;
    bind_inputs(&c, p);
    p->d_logits = view_of(&c, &a->d_logits);
    p->d_hidden = view_of(&c, &a->d_hidden);
    p->d_weight.data = a->d_lm_head_weight.data;
    p->d_bias.data = a->d_lm_head_bias.data;
}

static ejk_status check_gradient(const ejk_tensor *gradient, const ejk_tensor *of,
                                 const char *name) {
    if (!ejk_tensor_present(gradient) || ejk_tensor_present(of)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_%s is given without %s", name, name);
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_fused_cross_entropy_vjp_args *a = args;
    const call c = CALL_OF(a, d_loss);
    loss_problem *p = problem;
    EJKI_TRY(resolve(&c, axes, p));
    EJKI_TRY(check_gradient(&a->d_logits, &a->logits, "logits"));
    EJKI_TRY(check_gradient(&a->d_hidden, &a->hidden, "hidden"));
    EJKI_TRY(check_gradient(&a->d_lm_head_weight, &a->hidden, "lm_head_weight"));
    EJKI_TRY(check_gradient(&a->d_lm_head_bias, &a->lm_head_bias, "lm_head_bias"));
    EJKI_TRY(check_tokens(&c, &a->d_logits, "d_logits", p->vocab));
    EJKI_TRY(check_tokens(&c, &a->d_hidden, "d_hidden", p->width));
    p->gradient = 1;
    if (ejk_tensor_present(&a->d_lm_head_weight))
        p->d_weight = ejki_mm_matrix(&a->d_lm_head_weight);
    p->d_bias = ejki_mm_vector(&a->d_lm_head_bias);
    bind_vjp(args, problem);
    return EJK_OK;
}

/* ---- Contents --------------------------------------------------------------------------------------- */

static ejk_status validate(const void *problem) {
    const loss_problem *p = problem;
    for (mm_size row = 0; p->targets.dtype && row < loss_rows(p); row++) {
        const mm_size target = loss_target(p, row);
        if (target == p->ignore || (target >= 0 && target < p->vocab)) continue;
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "targets has %lld for token %lld, expected 0 to %lld or ignore_index, %lld", target,
            row, p->vocab - 1, p->ignore);
    }
    return EJK_OK;
}

static void fill_targets(const ejk_tensor *targets, int64_t classes, uint64_t state) {
    const int64_t tokens = targets->shape[targets->rank - 1];
    for (int64_t n = 0; targets->data && classes > 0 && n < ejk_tensor_count(targets); n++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t at = targets->rank == 2
                               ? n / tokens * targets->strides[0] + n % tokens * targets->strides[1]
                               : n * targets->strides[0];
        ejki_store_i64(targets->dtype, targets->data, at,
                       (int64_t)((state >> 33) % (uint64_t)classes));
    }
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_fused_cross_entropy_args *a = args;
    if (ejk_tensor_present(&a->targets))
        fill_targets(&a->targets, ejk_axes_get(axes, "V"), how->seed);
    return EJK_OK;
}
static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_fused_cross_entropy_vjp_args *a = args;
    if (ejk_tensor_present(&a->targets))
        fill_targets(&a->targets, ejk_axes_get(axes, "V"), how->seed);
    return EJK_OK;
}

/* Logits are read, and gradients written, once; products with the matrix are all wanted ones, with those of lse. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const loss_problem *p = problem;
    const double size = (double)ejk_dtype_size((ejk_dtype)p->dtype), rows = (double)loss_rows(p);
    const double logits = rows * (double)p->vocab, matrix = (double)p->vocab * (double)p->width;
    const double hidden = rows * (double)p->width;
    if (p->width < 0) {
        out->flops = logits * (p->gradient ? 8 : 4);
        out->bytes = logits * size * (p->gradient && p->d_logits.dtype ? 2 : 1);
        return;
    }
    const double products =
        p->gradient ? 1 + (p->lse.dtype ? 0 : 1) + (p->d_hidden.dtype ? 1 : 0) + p->d_weight.present
                    : 1;
    out->flops = 2 * hidden * (double)p->vocab * products;
    out->bytes =
        size * (hidden * (1 + (p->d_hidden.dtype ? 1 : 0)) + matrix * (1 + p->d_weight.present));
}

static ejk_dtype dtype(const void *args) {
    const ejk_fused_cross_entropy_args *a = args;
    return ejk_tensor_present(&a->logits) ? a->logits.dtype : a->hidden.dtype;
}
static ejk_dtype dtype_vjp(const void *args) {
    const ejk_fused_cross_entropy_vjp_args *a = args;
    return ejk_tensor_present(&a->logits) ? a->logits.dtype : a->hidden.dtype;
}

/* lse has the axes that the rows have without their last one. */
static bool result(const void *args, const char *name, ejk_tensor *view) {
    const ejk_fused_cross_entropy_args *a = args;
    const ejk_tensor *rows = ejk_tensor_present(&a->logits) ? &a->logits : &a->hidden;
    view->dtype = ejki_loss_result_type(rows->dtype);
    if (strcmp(name, "lse") != 0 || rows->rank < 1) return true;
    ejki_loss_take_tokens(rows, view);
    return true;
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_fused_cross_entropy_config_record, .config_field = "cfg",       \
    .problem_size = sizeof(loss_problem), .cost = cost, .validate = validate
const ejk_kernel ejk_fused_cross_entropy_kernel = {
    SHARED,
    .op_id = "fused_cross_entropy",
    .doc = "cross entropy of logits, or of the products that they are",
    .args = &ejk_fused_cross_entropy_args_record,
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .dtype = dtype,
    .result = result,
};
const ejk_kernel ejk_fused_cross_entropy_vjp_kernel = {
    SHARED,
    .op_id = "fused_cross_entropy_vjp",
    .doc = "gradients of fused_cross_entropy",
    .args = &ejk_fused_cross_entropy_vjp_args_record,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .dtype = dtype_vjp,
    .forward = &ejk_fused_cross_entropy_kernel,
    .algorithm = "fused_cross_entropy",
};

EJKI_DEFINE_CALL(fused_cross_entropy)
EJKI_DEFINE_CALL(fused_cross_entropy_vjp)
