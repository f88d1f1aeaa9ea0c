/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts: two grouped products over tokens sorted by expert. */
#include <ejkernel/moe.h>

#include "base/base.h"
#include "operations/matmul/moe/problem.h"
#include "operations/matmul/shared/product_call.h"

#define EJK_RECORD_SELF ejk_moe_config
EJK_RECORD_DEFINE(ejk_moe_config_record, ejk_moe_config, EJK_MOE_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_moe_args
EJK_RECORD_DEFINE_WITH(ejk_moe_args_record, ejk_moe_args, EJK_MOE_ARGS, "T,D,A,E,I,C=2*I", NULL);
#undef EJK_RECORD_SELF

/* The last two axes of matrices, as they are used. */
static mm_size inputs_of(const ejk_tensor *t, bool transposed) {
    return t->shape[transposed ? 2 : 1];
}
static mm_size outputs_of(const ejk_tensor *t, bool transposed) {
    return t->shape[transposed ? 1 : 2];
}

static mm_product product(const ejk_moe_args *args, const ejk_tensor *w, mm_size rows,
                          mm_size depth, mm_size columns) {
    mm_product p = ejki_mm_product(rows, depth, columns);
    p.split = MM_ROWS;
    p.groups = p.held = w->shape[0];
    p.sizes = (mm_list){.present = 1, .wide = 1};
    p.b = args->transpose ? ejki_mm_transposed(w) : ejki_mm_matrix(w);
    p.block = 1;
    return p;
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_moe_args *args = args_;
    moe_problem *p = problem;
    const bool flips = args->transpose;
    const mm_size width = args->hidden.shape[1], inner = inputs_of(&args->w_down, flips);
    int64_t rows, count;
    p->tokens = args->hidden.shape[0];
    p->each = args->expert_index.shape[1];
    p->experts = args->w_gate_up.shape[0];
    if (inputs_of(&args->w_gate_up, flips) != width || outputs_of(&args->w_down, flips) != width)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "matrices of experts do not fit hidden of width %lld%s", width,
                         flips ? " with transpose" : "");
    if (!ejki_mul(p->tokens, p->each, &rows) ||
        !ejki_mul(rows, ejki_max(64, 8 * ejki_max(inner, width)), &count))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld x %lld rows of experts cannot be counted",
                         p->tokens, p->each);
    mm_product first = product(args, &args->w_gate_up, rows, width, inner);
    mm_product second = product(args, &args->w_down, rows, inner, width);
    EJKI_TRY(ejki_mm_activation(args->activation[0] ? args->activation : "swiglu",
                                args->interleaved, &args->limit,
                                outputs_of(&args->w_gate_up, flips), &first));
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
    p->index.data = args->expert_index.data;
    p->weight.data = args->expert_weight.data;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    const moe_problem *p = problem;
    ejki_mm_cost(&p->products, args, out);
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
};

ejk_status ejk_moe(ejk_context *context, const ejk_moe_args *args) {
    return ejk_call(context, &ejk_moe_kernel, args);
}
