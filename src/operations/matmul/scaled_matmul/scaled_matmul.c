/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices of eight bits with scales of blocks, and the reference. */
#include <ejkernel/scaled_matmul.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/scaled_matmul/problem.cuh"
#include "operations/matmul/shared/product_call.h"
#include "tensor/access.h"

#include <math.h>

#define SYMBOLS "M,K,N"

#define EJK_RECORD_SELF ejk_scaled_matmul_config
EJK_RECORD_DEFINE(ejk_scaled_matmul_config_record, ejk_scaled_matmul_config,
                  EJK_SCALED_MATMUL_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_scaled_matmul_args
EJK_RECORD_DEFINE_WITH(ejk_scaled_matmul_args_record, ejk_scaled_matmul_args,
                       EJK_SCALED_MATMUL_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

static ejk_dtype wanted_type(const ejk_scaled_matmul_args *args) {
    const ejk_dtype wanted = args->preferred_element_type;
    return wanted != EJK_DTYPE_UNSET ? wanted : EJK_DTYPE_BF16;
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem) {
    const ejk_scaled_matmul_args *args = args_;
    scaled_problem *p = problem;
    const ejk_opt_float none = {0};
    const mm_size n = ejk_axes_get(axes, "N");
    mm_product own = ejki_mm_product(ejk_axes_get(axes, "M"), ejk_axes_get(axes, "K"), n);
    if (args->out.dtype != wanted_type(args))
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out: %s given, expected %s",
                         ejk_dtype_name(args->out.dtype), ejk_dtype_name(wanted_type(args)));
    if (ejki_mm_gated(args->activation))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "activation is \"%s\", expected one without a gate", args->activation);
    EJKI_TRY(ejki_mm_activation(args->activation, false, &none, n, &own));
    own.a = ejki_mm_matrix(&args->lhs);
    own.b = ejki_mm_transposed(&args->rhs);
    own.out = ejki_mm_matrix(&args->out);
    own.add = ejki_mm_matrix(&args->residual);
    own.bias = ejki_mm_vector(&args->bias);
    *p = (scaled_problem){.product = own,
                          .a_scale_row = args->lhs_scale.strides[0],
                          .b_scale_row = args->rhs_scale.strides[0]};
    return EJK_OK;
}

static void bind(const void *args_, void *problem) {
    const ejk_scaled_matmul_args *args = args_;
    scaled_problem *p = problem;
    p->product.a.data = args->lhs.data;
    p->product.b.data = args->rhs.data;
    p->product.out.data = args->out.data;
    p->product.add.data = args->residual.data;
    p->product.bias.data = args->bias.data;
    p->a_scale = args->lhs_scale.data;
    p->b_scale = args->rhs_scale.data;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const mm_product *p = &((const scaled_problem *)problem)->product;
    const double m = (double)p->rows, k = (double)p->depth, n = (double)p->columns;
    out->flops = 2 * m * k * n;
    out->bytes = (m + n) * k + m * k / 32 + m * n * (double)ejk_dtype_size((ejk_dtype)p->out.dtype);
}

static bool result(const void *args_, const char *name, ejk_tensor *view) {
    (void)name;
    const ejk_scaled_matmul_args *args = args_;
    if (args->lhs.rank != 2 || args->rhs.rank != 2) return false;
    view->dtype = wanted_type(args);
    view->rank = 2;
    view->shape[0] = args->lhs.shape[0];
    view->shape[1] = args->rhs.shape[0];
    return true;
}

/* ---- Reference -------------------------------------------------------------------------------------- */

static double load(const mm_view *v, mm_size index) {
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, index);
}

static double sum_of(const scaled_problem *s, mm_size i, mm_size j) {
    const mm_product *p = &s->product;
    double all = 0;
    for (mm_size k = 0; k < p->depth;) {
        const mm_size block = k / SCALED_BLOCK;
        const mm_size end = mm_least(p->depth, (block + 1) * SCALED_BLOCK);
        double sum = 0;
        for (; k < end; k++)
            sum += load(&p->a, i * p->a.row + k) * load(&p->b, j * p->b.column + k);
        all += sum * (double)s->a_scale[i * s->a_scale_row + block] *
               (double)s->b_scale[j / SCALED_BLOCK * s->b_scale_row + block];
    }
    return all;
}

static double activate(int activation, double x) {
    switch (activation) {
    case MM_relu: return x < 0 ? 0 : x;
    case MM_silu: return x / (1 + exp(-x));
    case MM_gelu: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case MM_gelu_tanh:
        return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    default: return x;
    }
}

static ejk_status run_reference(const ejk_run *run) {
    const scaled_problem *s = run->problem;
    const mm_product *p = &s->product;
    for (mm_size n = 0; n < p->rows * p->columns; n++) {
        const mm_size i = n / p->columns, j = n % p->columns;
        double x = sum_of(s, i, j);
        if (p->bias.present) x += load(&p->bias, j * p->bias.column);
        x = activate(p->activation, x);
        if (p->add.present) x += load(&p->add, i * p->add.row + j);
        ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data, i * p->out.row + j, x);
    }
    return EJK_OK;
}

EJKI_DECLARE(scaled_matmul_reference, .version = 1, .run = run_reference)

/* ---- Description ------------------------------------------------------------------------------------ */

const ejk_kernel ejk_scaled_matmul_kernel = {
    .op_id = "scaled_matmul",
    .version = "0",
    .doc = "products of matrices of eight bits with scales of blocks",
    .args = &ejk_scaled_matmul_args_record,
    .config = &ejk_scaled_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(scaled_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
    .result = result,
};

EJKI_DEFINE_CALL(scaled_matmul)
