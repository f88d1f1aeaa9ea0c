/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts: two grouped products over tokens sorted by expert. */
#include <ejkernel/moe.h>

#include "base/base.h"
#include "operations/matmul/moe/problem.h"
#include "operations/matmul/shared/product_call.h"
#include "operations/matmul/shared/quant_format.h"
#include "tensor/access.h"

#define EJK_RECORD_SELF ejk_moe_config
EJK_RECORD_DEFINE(ejk_moe_config_record, ejk_moe_config, EJK_MOE_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_moe_args
EJK_RECORD_DEFINE_WITH(ejk_moe_args_record, ejk_moe_args, EJK_MOE_ARGS,
                       "T,D,A,E,I,C=2*I,B=C,R=C,W=D/8,S=D/64,P=D,V=I/8,Q=I/64", NULL);
#undef EJK_RECORD_SELF

/* Matrices that are codes, with scales or packed. */
static bool is_quantised(const ejk_tensor *w) {
    return w->dtype == EJK_DTYPE_U32 || w->dtype == EJK_DTYPE_U8;
}

static ejki_quant_words words_of(const ejk_moe_args *args, int which) {
    const bool first = which == MOE_FIRST;
    return (ejki_quant_words){args->mode,
                              args->scale_format,
                              &args->bits,
                              &args->group_size,
                              first ? &args->w_gate_up : &args->w_down,
                              first ? &args->gate_up_scales : &args->down_scales,
                              first ? &args->gate_up_zeros : &args->down_zeros,
                              first ? &args->gate_up_tensor_scale : &args->down_tensor_scale};
}

/* Plain matrices [in, out] or [out, in]; of codes the last axis says nothing. */
static ejk_status check_matrices(const ejk_moe_args *args, const ejk_tensor *w, const char *name,
                                 mm_size in, mm_size out) {
    const bool flips = args->transpose;
    const mm_size rows = flips ? out : in, columns = flips ? in : out;
    const bool codes = is_quantised(w);
    if (!codes && w->dtype != args->hidden.dtype)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected %s as hidden, or codes",
                         name, ejk_dtype_name(w->dtype), ejk_dtype_name(args->hidden.dtype));
    if (w->shape[1] == rows && (codes || w->shape[2] == columns)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s has matrices of %lld x %lld, expected %lld rows%s%s", name,
                     (long long)w->shape[1], (long long)w->shape[2], rows, codes ? " of codes" : "",
                     flips ? " with transpose" : "");
}

/* Rows of w_down that are used: what lies between the products. */
static mm_size inner_of(const ejk_moe_args *args, bool gated) {
    const ejk_tensor *first = &args->w_gate_up, *second = &args->w_down;
    if (!args->transpose) return second->shape[1];
    return is_quantised(second) ? first->shape[1] / (gated ? 2 : 1) : second->shape[2];
}

static ejk_status product(const ejk_moe_args *args, int which, mm_size rows, mm_size depth,
                          mm_size columns, mm_product *p) {
    const ejk_tensor *w = which == MOE_FIRST ? &args->w_gate_up : &args->w_down;
    const ejki_quant_words words = words_of(args, which);
    const bool flips = args->transpose;
    mm_product own = ejki_mm_product(rows, depth, columns);
    own.split = MM_ROWS;
    own.groups = own.held = w->shape[0];
    own.sizes = (mm_list){.present = 1, .wide = 1};
    own.b = flips ? ejki_mm_transposed(w) : ejki_mm_matrix(w);
    own.block = 1;
    *p = own;
    if (is_quantised(w)) return EJK_OK;
    if (!ejk_tensor_present(words.scales) && !ejk_tensor_present(words.zeros) &&
        !ejk_tensor_present(words.tensor_scale) && !args->activation_bits.set)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "scales, zeros or activation_bits are given, but %s is no codes",
                     which == MOE_FIRST ? "w_gate_up" : "w_down");
}

/* The format of codes; columns of b are known by now. */
static ejk_status quantised(const ejk_moe_args *args, int which, mm_product *p) {
    const ejki_quant_words words = words_of(args, which);
    const mm_size columns = mm_columns_of_b(p);
    if (!is_quantised(words.w)) return EJK_OK;
    if (!ejk_tensor_present(words.scales) && !args->transpose)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "scales are missing: only with transpose may matrices be what prepack "
                         "made");
    EJKI_TRY(ejki_quant_format(&words, args->transpose ? columns : p->depth,
                               args->transpose ? p->depth : columns, &p->quant));
    return ejki_quant_rounds(&args->activation_bits, args->transpose, &p->quant);
}

static ejk_status check_bias(const ejk_tensor *bias, mm_size columns) {
    if (!ejk_tensor_present(bias) || bias->shape[1] == columns) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "gate_up_bias has %lld columns, expected %lld",
                     (long long)bias->shape[1], columns);
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_moe_args *args = args_;
    moe_problem *p = problem;
    const char *name = args->activation[0] ? args->activation : "swiglu";
    const mm_size width = args->hidden.shape[1];
    const mm_size columns = args->transpose || !is_quantised(&args->w_gate_up)
                                ? args->w_gate_up.shape[args->transpose ? 1 : 2]
                                : -1;
    mm_product first, second;
    int64_t rows, count;
    const bool gated = ejki_mm_gated(name);
    const mm_size inner = inner_of(args, gated), wide = gated ? 2 * inner : inner;
    p->tokens = args->hidden.shape[0];
    p->each = args->expert_index.shape[1];
    p->experts = args->w_gate_up.shape[0];
    if (!ejki_mul(p->tokens, p->each, &rows) ||
        !ejki_mul(rows, ejki_max(64, 8 * ejki_max(inner, width)), &count))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld x %lld rows of experts cannot be counted",
                         p->tokens, p->each);
    EJKI_TRY(product(args, MOE_FIRST, rows, width, inner, &first));
    EJKI_TRY(product(args, MOE_SECOND, rows, inner, width, &second));
    EJKI_TRY(ejki_mm_activation(name, args->interleaved, &args->limit, columns < 0 ? wide : columns,
                                &first));
    EJKI_TRY(check_matrices(args, &args->w_gate_up, "w_gate_up", width, wide));
    EJKI_TRY(check_matrices(args, &args->w_down, "w_down", inner, width));
    EJKI_TRY(check_bias(&args->gate_up_bias, wide));
    EJKI_TRY(quantised(args, MOE_FIRST, &first));
    EJKI_TRY(quantised(args, MOE_SECOND, &second));
    first.a = ejki_mm_matrix(&args->hidden);
    first.gather = (mm_list){.present = 1, .wide = 1};
    first.bias = ejki_mm_vector(&args->gate_up_bias);
    first.out = second.a =
        (mm_view){.present = 1, .dtype = (int)args->hidden.dtype, .row = inner, .column = 1};
    second.out = ejki_mm_matrix(&args->out);
    second.out_rows = p->tokens;
    second.scatter = first.gather;
    second.weight_type = (int)args->expert_weight.dtype;
    second.bias = ejki_mm_vector(&args->down_bias);
    p->products.count = 2;
    p->products.product[MOE_FIRST] = first;
    p->products.product[MOE_SECOND] = second;
    p->index = ejki_mm_list(&args->expert_index);
    p->index_row = args->expert_index.strides[0];
    p->weight = ejki_mm_matrix(&args->expert_weight);
    return EJK_OK;
}

static ejk_status validate(const void *problem) {
    const moe_problem *p = problem;
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_product *own = &p->products.product[i];
        EJKI_TRY(ejki_quant_validate(&own->quant, own->held, mm_columns_of_b(own), own->depth));
    }
    return EJK_OK;
}

static void bind(const void *args_, void *problem) {
    const ejk_moe_args *args = args_;
    moe_problem *p = problem;
    mm_product *first = &p->products.product[MOE_FIRST], *second = first + 1;
    first->a.data = args->hidden.data;
    first->b.data = args->w_gate_up.data;
    first->bias.data = args->gate_up_bias.data;
    second->b.data = args->w_down.data;
    second->bias.data = args->down_bias.data;
    second->out.data = args->out.data;
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const ejki_quant_words words = words_of(args, i);
        ejki_quant_bind(&words, &p->products.product[i].quant);
    }
    p->index.data = args->expert_index.data;
    p->weight.data = args->expert_weight.data;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    const moe_problem *p = problem;
    ejki_mm_cost(&p->products, args, out);
}

/* Any experts; packed matrices are no bytes like others. */
static ejk_status inputs(void *args_, const ejk_axes *axes, const ejk_inputs *how) {
    ejk_moe_args *args = args_;
    const ejk_tensor *index = &args->expert_index;
    moe_problem problem;
    uint64_t state = how->seed;
    EJKI_TRY(prepare(args, axes, &problem));
    for (int64_t t = 0; index->data && t < index->shape[0]; t++)
        for (int64_t a = 0; a < index->shape[1]; a++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ejki_store_i64(index->dtype, index->data, t * index->strides[0] + a,
                           (int64_t)((state >> 33) % (uint64_t)problem.experts));
        }
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_product *p = &problem.products.product[i];
        const ejki_quant_words words = words_of(args, i);
        EJKI_TRY(ejki_quant_invent(&p->quant, p->held, mm_columns_of_b(p), p->depth, how->seed,
                                   words.w->data));
    }
    return EJK_OK;
}

const ejk_kernel ejk_moe_kernel = {
    .op_id = "moe",
    .version = "0",
    .doc = "a layer of experts, from the experts and weights of each token",
    .args = &ejk_moe_args_record,
    .config = &ejk_moe_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(moe_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
    .validate = validate,
    .inputs = inputs,
};

ejk_status ejk_moe(ejk_context *context, const ejk_moe_args *args) {
    return ejk_call(context, &ejk_moe_kernel, args);
}
