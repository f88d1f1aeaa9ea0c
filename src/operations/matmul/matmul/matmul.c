/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products and their gradients. */
#include <ejkernel/matmul.h>

#include "base/base.h"
#include "operations/matmul/shared/product_call.h"

#define SYMBOLS "B=1,M,K,N,C=N"

#define EJK_RECORD_SELF ejk_matmul_config
EJK_RECORD_DEFINE(ejk_matmul_config_record, ejk_matmul_config, EJK_MATMUL_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_matmul_args
EJK_RECORD_DEFINE_WITH(ejk_matmul_args_record, ejk_matmul_args, EJK_MATMUL_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_matmul_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_matmul_vjp_args_record, ejk_matmul_vjp_args, EJK_MATMUL_VJP_ARGS,
                       "B=1,M,K,N", NULL);
#undef EJK_RECORD_SELF

/* ---- Checks ----------------------------------------------------------------------------------------- */

static mm_size batch_of(const ejk_tensor *t) {
    return t->rank == 3 ? t->shape[0] : 1;
}

/* The last two axes; units leave it open which is which. */
static ejk_status check_matrix(const char *name, const ejk_tensor *t, mm_size rows,
                               mm_size columns) {
    const int64_t *shape = t->shape + t->rank - 2;
    if (!ejk_tensor_present(t) || (shape[0] == rows && shape[1] == columns)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s is a matrix of %lld x %lld, expected %lld x %lld", name,
                     (long long)shape[0], (long long)shape[1], rows, columns);
}

static ejk_status check_batch(const char *name, const ejk_tensor *t, const ejk_tensor *lhs) {
    if (!ejk_tensor_present(t) || t->rank == lhs->rank) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %d, expected %d as lhs", name,
                     (int)t->rank, (int)lhs->rank);
}

static ejk_status check_rhs(const ejk_tensor *lhs, const ejk_tensor *rhs) {
    if (rhs->rank == 2 || lhs->rank == 3) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "rhs has a batch axis, expected none: lhs has none");
}

/* ---- matmul ----------------------------------------------------------------------------------------- */

/* A batch whose rows continue each other, with one rhs, is one matrix. */
static void join_rows(mm_product *p) {
    mm_view *views[] = {&p->a, &p->out, &p->add};
    if (p->b.group != 0 || p->groups <= 1) return;
    for (int i = 0; i < 3; i++)
        if (views[i]->present && views[i]->group != p->rows * views[i]->row) return;
    p->rows *= p->groups;
    p->a_rows = p->rows;
    p->groups = 1;
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem_) {
    const ejk_matmul_args *args = args_;
    mm_problem *problem = problem_;
    const mm_size m = ejk_axes_get(axes, "M"), k = ejk_axes_get(axes, "K");
    const mm_size n = args->out.shape[args->out.rank - 1];
    const mm_size c = args->rhs.shape[args->rhs.rank - (args->transpose_rhs ? 2 : 1)];
    mm_product p = ejki_mm_product(m, k, n);
    EJKI_TRY(ejki_mm_check_out(args->preferred_element_type, &args->lhs, &args->out));
    EJKI_TRY(check_matrix("lhs", &args->lhs, m, k));
    EJKI_TRY(
        check_matrix("rhs", &args->rhs, args->transpose_rhs ? c : k, args->transpose_rhs ? k : c));
    EJKI_TRY(check_matrix("residual", &args->residual, m, n));
    EJKI_TRY(check_batch("out", &args->out, &args->lhs));
    EJKI_TRY(check_batch("residual", &args->residual, &args->lhs));
    EJKI_TRY(check_rhs(&args->lhs, &args->rhs));
    EJKI_TRY(ejki_mm_activation(args->activation, args->interleaved, &args->limit, c, &p));
    if (ejk_tensor_present(&args->bias) && args->bias.shape[0] != c)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "bias has %lld numbers, expected %lld",
                         (long long)args->bias.shape[0], c);
    p.groups = batch_of(&args->lhs);
    p.a = ejki_mm_matrix(&args->lhs);
    p.b = args->transpose_rhs ? ejki_mm_transposed(&args->rhs) : ejki_mm_matrix(&args->rhs);
    p.out = ejki_mm_matrix(&args->out);
    p.add = ejki_mm_matrix(&args->residual);
    p.bias = ejki_mm_vector(&args->bias);
    if (args->scale.set) p.alpha = args->scale.value;
    join_rows(&p);
    problem->count = 1;
    problem->product[0] = p;
    return EJK_OK;
}

static void bind(const void *args_, void *problem_) {
    const ejk_matmul_args *args = args_;
    mm_product *p = &((mm_problem *)problem_)->product[0];
    p->a.data = args->lhs.data;
    p->b.data = args->rhs.data;
    p->out.data = args->out.data;
    p->add.data = args->residual.data;
    p->bias.data = args->bias.data;
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

enum { D_LHS, D_RHS, D_BIAS };

/* d_lhs = d_out · rhsᵀ */
static mm_product of_lhs(const ejk_matmul_vjp_args *args, mm_size m, mm_size k, mm_size n) {
    mm_product p = ejki_mm_product(m, n, k);
    p.groups = batch_of(&args->lhs);
    p.a = ejki_mm_matrix(&args->d_out);
    p.b = args->transpose_rhs ? ejki_mm_matrix(&args->rhs) : ejki_mm_transposed(&args->rhs);
    p.out = ejki_mm_matrix(&args->d_lhs);
    p.has_out = p.out.present;
    join_rows(&p);
    return p;
}

/* The rows of a batch are one depth, where a single result is asked for. */
static void join_depth(mm_product *p, mm_size groups, mm_size rows) {
    if (groups == 1) return;
    p->run = rows;
    p->depth = groups * rows;
    p->groups = 1;
}

/* d_rhs = lhsᵀ · d_out, or its transpose d_outᵀ · lhs. */
static mm_product of_rhs(const ejk_matmul_vjp_args *args, mm_size m, mm_size k, mm_size n) {
    const bool flips = args->transpose_rhs;
    mm_product p = ejki_mm_product(flips ? n : k, m, flips ? k : n);
    p.groups = batch_of(&args->lhs);
    p.a = ejki_mm_transposed(flips ? &args->d_out : &args->lhs);
    p.b = ejki_mm_matrix(flips ? &args->lhs : &args->d_out);
    p.out = ejki_mm_matrix(&args->d_rhs);
    p.has_out = p.out.present;
    if (args->rhs.rank == 2) join_depth(&p, p.groups, m);
    return p;
}

static mm_product of_bias(const ejk_matmul_vjp_args *args, mm_size m, mm_size n) {
    mm_product p = ejki_mm_product(1, m, n);
    p.a = (mm_view){.dtype = (int)args->lhs.dtype, .present = 1, .ones = 1};
    p.b = ejki_mm_matrix(&args->d_out);
    p.out = ejki_mm_vector(&args->d_bias);
    p.has_out = p.out.present;
    join_depth(&p, batch_of(&args->lhs), m);
    return p;
}

static ejk_status prepare_vjp(const void *args_, const ejk_axes *axes, void *problem_) {
    const ejk_matmul_vjp_args *args = args_;
    mm_problem *problem = problem_;
    const mm_size m = ejk_axes_get(axes, "M"), k = ejk_axes_get(axes, "K");
    const mm_size n = args->d_out.shape[args->d_out.rank - 1];
    const mm_size rows = args->transpose_rhs ? n : k, columns = args->transpose_rhs ? k : n;
    mm_size depth;
    EJKI_TRY(check_matrix("rhs", &args->rhs, rows, columns));
    EJKI_TRY(check_matrix("d_rhs", &args->d_rhs, rows, columns));
    EJKI_TRY(check_batch("d_out", &args->d_out, &args->lhs));
    EJKI_TRY(check_batch("d_lhs", &args->d_lhs, &args->lhs));
    EJKI_TRY(check_rhs(&args->lhs, &args->rhs));
    if (ejk_tensor_present(&args->d_rhs) && args->d_rhs.rank != args->rhs.rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "d_rhs has rank %d, expected %d as rhs",
                         (int)args->d_rhs.rank, (int)args->rhs.rank);
    if (ejk_tensor_present(&args->d_bias) && !ejk_tensor_present(&args->bias))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_bias is given without bias");
    if (ejk_tensor_present(&args->d_bias) && args->d_bias.shape[0] != n)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "d_bias has %lld numbers, expected %lld",
                         (long long)args->d_bias.shape[0], n);
    if (!ejki_mul(batch_of(&args->lhs), m, (int64_t *)&depth))
        return ejki_fail(EJK_STATUS_OVERFLOW, "the rows of lhs cannot be counted");
    problem->count = 3;
    problem->product[D_LHS] = of_lhs(args, m, k, n);
    problem->product[D_RHS] = of_rhs(args, m, k, n);
    problem->product[D_BIAS] = of_bias(args, m, n);
    for (int i = D_LHS; args->scale.set && i <= D_RHS; i++)
        problem->product[i].alpha = args->scale.value;
    return EJK_OK;
}

static void bind_vjp(const void *args_, void *problem_) {
    const ejk_matmul_vjp_args *args = args_;
    mm_product *p = ((mm_problem *)problem_)->product;
    p[D_LHS].a.data = p[D_BIAS].b.data = args->d_out.data;
    p[D_LHS].b.data = args->rhs.data;
    p[D_LHS].out.data = args->d_lhs.data;
    p[D_RHS].a.data = args->transpose_rhs ? args->d_out.data : args->lhs.data;
    p[D_RHS].b.data = args->transpose_rhs ? args->lhs.data : args->d_out.data;
    p[D_RHS].out.data = args->d_rhs.data;
    p[D_BIAS].out.data = args->d_bias.data;
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_matmul_kernel = {
    .op_id = "matmul",
    .version = "0",
    .doc = "matrix products, with bias, activation and residual",
    .args = &ejk_matmul_args_record,
    .config = &ejk_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = ejki_mm_cost,
};

const ejk_kernel ejk_matmul_vjp_kernel = {
    .op_id = "matmul_vjp",
    .version = "0",
    .doc = "gradients of matmul",
    .args = &ejk_matmul_vjp_args_record,
    .config = &ejk_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .cost = ejki_mm_cost,
    .forward = &ejk_matmul_kernel,
    .algorithm = "matmul",
};

ejk_status ejk_matmul(ejk_context *context, const ejk_matmul_args *args) {
    return ejk_call(context, &ejk_matmul_kernel, args);
}

ejk_status ejk_matmul_vjp(ejk_context *context, const ejk_matmul_vjp_args *args) {
    return ejk_call(context, &ejk_matmul_vjp_kernel, args);
}
