/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of grouped products, each a product itself: d_lhs of rows with transposed matrices; d_rhs, d_rhs_scale and
 * d_rhs_bias of transposed rows (or ones) with d_out, the depth dealt out; d_existing_out is one without a depth.
 */
#include <ejkernel/grouped_matmul.h>

#include "base/base.h"
#include "operations/matmul/grouped_matmul/grouped.h"

#define EJK_RECORD_SELF ejk_grouped_matmul_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_grouped_matmul_vjp_args_record, ejk_grouped_matmul_vjp_args,
                       EJK_GROUPED_MATMUL_VJP_ARGS, "M,K,E,N,G=E,Q=1", NULL);
#undef EJK_RECORD_SELF

enum { D_LHS, D_RHS, D_EXISTING, D_SCALE, D_BIAS, GRADIENTS };

static void split(const ejk_grouped_matmul_vjp_args *args, int how, mm_product *p) {
    ejki_grouped_split(&args->group_sizes, &args->group_offset, args->rhs.shape[0], how, p);
}

static void with_scale(const ejk_grouped_matmul_vjp_args *args, bool flipped, mm_product *p) {
    p->scale = ejki_grouped_scale(&args->rhs_scale);
    p->scale.flipped = flipped;
    p->block = ejki_grouped_block(&args->rhs_scale, args->lhs.shape[1]);
}

/* Rows of d_out times the transposed matrix, whose rows are columns of the scales. */
static mm_product of_lhs(const ejk_grouped_matmul_vjp_args *args, mm_size m, mm_size k, mm_size n) {
    mm_product p = ejki_mm_product(m, n, k);
    split(args, MM_ROWS, &p);
    p.a = ejki_mm_matrix(&args->d_out);
    p.b = args->transpose_rhs ? ejki_mm_matrix(&args->rhs) : ejki_mm_transposed(&args->rhs);
    p.out = ejki_mm_matrix(&args->d_lhs);
    with_scale(args, true, &p);
    return p;
}

static mm_product of_rhs(const ejk_grouped_matmul_vjp_args *args, mm_size m, mm_size k, mm_size n) {
    const bool flips = args->transpose_rhs;
    mm_product p = ejki_mm_product(flips ? n : k, m, flips ? k : n);
    split(args, MM_DEPTH, &p);
    p.a = ejki_mm_transposed(flips ? &args->d_out : &args->lhs);
    p.b = ejki_mm_matrix(flips ? &args->lhs : &args->d_out);
    p.out = ejki_mm_matrix(&args->d_rhs);
    with_scale(args, flips, &p);
    return p;
}

static mm_product of_existing(const ejk_grouped_matmul_vjp_args *args, mm_size m, mm_size n) {
    mm_product p = ejki_mm_product(m, 0, n);
    p.a = p.add = ejki_mm_matrix(&args->d_out);
    p.b = (mm_view){.dtype = (int)args->d_out.dtype, .present = 1, .column = 1};
    p.out = ejki_mm_matrix(&args->d_existing_out);
    return p;
}

/* The gradient that rhs would have without scales, times rhs, summed over a block's rows. */
static mm_product of_scale(const ejk_grouped_matmul_vjp_args *args, mm_size m, mm_size k,
                           mm_size n) {
    mm_product p = ejki_mm_product(k, m, n);
    split(args, MM_DEPTH, &p);
    p.a = ejki_mm_transposed(&args->lhs);
    p.b = ejki_mm_matrix(&args->d_out);
    p.out = ejki_grouped_scale(&args->d_rhs_scale);
    p.fold = args->transpose_rhs ? ejki_mm_transposed(&args->rhs) : ejki_mm_matrix(&args->rhs);
    p.block = ejki_grouped_block(&args->rhs_scale, k);
    p.out_rows = p.out.present ? args->d_rhs_scale.shape[1] : 0;
    return p;
}

static mm_product of_bias(const ejk_grouped_matmul_vjp_args *args, mm_size m, mm_size n) {
    mm_product p = ejki_mm_product(1, m, n);
    split(args, MM_DEPTH, &p);
    p.a = (mm_view){.dtype = (int)args->lhs.dtype, .present = 1, .ones = 1};
    p.b = ejki_mm_matrix(&args->d_out);
    p.out = ejki_mm_vector(&args->d_rhs_bias);
    return p;
}

static ejk_status check_given(const char *name, const ejk_tensor *gradient, const ejk_tensor *of) {
    if (!ejk_tensor_present(gradient) || ejk_tensor_present(of)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_%s is given without %s", name, name);
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem_) {
    (void)axes;
    const ejk_grouped_matmul_vjp_args *args = args_;
    const mm_size m = args->lhs.shape[0], k = args->lhs.shape[1], n = args->d_out.shape[1];
    const ejk_tensor *matrices[] = {&args->rhs, &args->d_rhs};
    mm_problem *problem = problem_;
    mm_product *p = problem->product;
    for (int i = 0; i < 2; i++) {
        const int64_t *shape = matrices[i]->shape;
        if (!ejk_tensor_present(matrices[i]) ||
            (shape[1 + args->transpose_rhs] == k && shape[2 - args->transpose_rhs] == n))
            continue;
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has matrices of %lld x %lld, expected %s",
                         i ? "d_rhs" : "rhs", (long long)shape[1], (long long)shape[2],
                         args->transpose_rhs ? "[N,K]" : "[K,N]");
    }
    EJKI_TRY(check_given("existing_out", &args->d_existing_out, &args->existing_out));
    EJKI_TRY(check_given("rhs_scale", &args->d_rhs_scale, &args->rhs_scale));
    EJKI_TRY(check_given("rhs_bias", &args->d_rhs_bias, &args->rhs_bias));
    EJKI_TRY(ejki_grouped_check(&args->group_sizes, &args->group_offset, args->rhs.shape[0]));
    EJKI_TRY(ejki_grouped_check_scale(&args->rhs_scale, k));
    problem->count = GRADIENTS;
    p[D_LHS] = of_lhs(args, m, k, n);
    p[D_RHS] = of_rhs(args, m, k, n);
    p[D_EXISTING] = of_existing(args, m, n);
    p[D_SCALE] = of_scale(args, m, k, n);
    p[D_BIAS] = of_bias(args, m, n);
    for (int i = 0; i < GRADIENTS; i++) p[i].has_out = p[i].out.present;
    return EJK_OK;
}

static void bind(const void *args_, void *problem_) {
    const ejk_grouped_matmul_vjp_args *args = args_;
    mm_product *p = ((mm_problem *)problem_)->product;
    const bool flips = args->transpose_rhs;
    p[D_LHS].a.data = p[D_EXISTING].add.data = p[D_SCALE].b.data = p[D_BIAS].b.data =
        args->d_out.data;
    p[D_LHS].b.data = p[D_SCALE].fold.data = args->rhs.data;
    p[D_RHS].a.data = flips ? args->d_out.data : args->lhs.data;
    p[D_RHS].b.data = flips ? args->lhs.data : args->d_out.data;
    p[D_SCALE].a.data = args->lhs.data;
    p[D_LHS].scale.data = p[D_RHS].scale.data = args->rhs_scale.data;
    p[D_LHS].out.data = args->d_lhs.data;
    p[D_RHS].out.data = args->d_rhs.data;
    p[D_EXISTING].out.data = args->d_existing_out.data;
    p[D_SCALE].out.data = args->d_rhs_scale.data;
    p[D_BIAS].out.data = args->d_rhs_bias.data;
    for (int i = 0; i < GRADIENTS; i++) {
        p[i].sizes.data = args->group_sizes.data;
        p[i].offset.data = args->group_offset.data;
    }
}

static ejk_status inputs(void *args_, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_grouped_matmul_vjp_args *args = args_;
    (void)axes;
    return ejki_grouped_inputs(&args->group_sizes, args->lhs.shape[0], how);
}

const ejk_kernel ejk_grouped_matmul_vjp_kernel = {
    .op_id = "grouped_matmul_vjp",
    .version = "0",
    .doc = "gradients of grouped_matmul",
    .args = &ejk_grouped_matmul_vjp_args_record,
    .config = &ejk_grouped_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .input_options = ejki_grouped_input_options,
    .input_option_count = 1,
    .cost = ejki_mm_cost,
    .forward = &ejk_grouped_matmul_kernel,
    .algorithm = "matmul",
};

ejk_status ejk_grouped_matmul_vjp(ejk_context *context, const ejk_grouped_matmul_vjp_args *args) {
    return ejk_call(context, &ejk_grouped_matmul_vjp_kernel, args);
}
