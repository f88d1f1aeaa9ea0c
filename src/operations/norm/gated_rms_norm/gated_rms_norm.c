/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm and its gradient: records, problems and descriptions. */
#include <ejkernel/gated_rms_norm.h>

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/problem.cuh"
#include "tensor/view.h"

#define SYMBOLS "B=1,T,H,D"

#define EJK_RECORD_SELF ejk_gated_rms_norm_config
EJK_RECORD_DEFINE(ejk_gated_rms_norm_config_record, ejk_gated_rms_norm_config,
                  EJK_GATED_RMS_NORM_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_gated_rms_norm_args
EJK_RECORD_DEFINE_WITH(ejk_gated_rms_norm_args_record, ejk_gated_rms_norm_args,
                       EJK_GATED_RMS_NORM_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_gated_rms_norm_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_gated_rms_norm_vjp_args_record, ejk_gated_rms_norm_vjp_args,
                       EJK_GATED_RMS_NORM_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* The last of three outer axes are the tensor's; those it lacks are one long. */
static norm_rows rows_of(const ejk_tensor *t) {
    norm_rows rows = {.data = t->data};
    for (int32_t i = 0; ejk_tensor_present(t) && i + 1 < t->rank; i++)
        rows.stride[4 - t->rank + i] = t->strides[i];
    return rows;
}

static ejk_status read_activation(const char *name, int *silu) {
    *silu = !*name || strcmp(name, "silu") == 0;
    if (*silu || strcmp(name, "sigmoid") == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "activation is '%s', expected silu or sigmoid", name);
}

/* `other` has the shape of x. */
static ejk_status check_shape(const ejk_tensor *x, const ejk_tensor *other, const char *name) {
    if (!ejk_tensor_present(other)) return EJK_OK;
    bool same = x->rank == other->rank;
    for (int32_t i = 0; same && i < x->rank; i++) same = x->shape[i] == other->shape[i];
    if (same) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s has rank %d or other lengths, expected those of x", name,
                     (int)other->rank);
}

static ejk_status resolve_group(const ejk_opt_int *size, norm_problem *p) {
    p->group = size->set ? size->value : p->width;
    if (!size->set || (p->group >= 1 && p->width % p->group == 0)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "group_size is %lld, expected a divisor of %lld",
                     (long long)p->group, (long long)p->width);
}

static ejk_status resolve_eps(const ejk_opt_float *eps, norm_problem *p) {
    p->exact_eps = eps->set ? eps->value : 1e-5;
    p->eps = (float)p->exact_eps;
    if (p->exact_eps >= 0 && isfinite(p->exact_eps)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "eps is %g, expected a number of at least 0",
                     p->exact_eps);
}

static ejk_status resolve_rows(const ejk_tensor *x, norm_problem *p) {
    p->rows = p->outer[0] = p->outer[1] = 1;
    for (int32_t i = 0; i + 1 < x->rank; i++) {
        p->rows *= x->shape[i];
        if (4 - x->rank + i > 0) p->outer[3 - x->rank + i] = ejki_max(x->shape[i], 1);
    }
    p->width = x->shape[x->rank - 1];
    return ejki_tensor_expect_countable(x, "x", 64);
}

#define RESOLVE(a, y_name, p)                                                                      \
    do {                                                                                           \
        *(p) = (norm_problem){.dtype = (int)(a)->x.dtype};                                         \
        (p)->norm_first = (a)->norm_before_gate != EJK_FALSE;                                      \
        (p)->has_gate = ejk_tensor_present(&(a)->gate);                                            \
        (p)->has_weight = ejk_tensor_present(&(a)->weight);                                        \
        EJKI_TRY(check_shape(&(a)->x, &(a)->gate, "gate"));                                        \
        EJKI_TRY(check_shape(&(a)->x, &(a)->y_name, #y_name));                                     \
        EJKI_TRY(read_activation((a)->activation, &(p)->silu));                                    \
        EJKI_TRY(resolve_rows(&(a)->x, p));                                                        \
        EJKI_TRY(resolve_group(&(a)->group_size, p));                                              \
        EJKI_TRY(resolve_eps(&(a)->eps, p));                                                       \
    } while (0)

static void bind(const void *args, void *problem) {
    const ejk_gated_rms_norm_args *a = args;
    norm_problem *p = problem;
    p->x = rows_of(&a->x);
    p->gate = rows_of(&a->gate);
    p->y = rows_of(&a->out);
    p->weight = a->weight.data;
}
static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_gated_rms_norm_args *a = args;
    norm_problem *p = problem;
    RESOLVE(a, out, p);
    bind(args, problem);
    return EJK_OK;
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_gated_rms_norm_vjp_args *a = args;
    norm_problem *p = problem;
    p->x = rows_of(&a->x);
    p->gate = rows_of(&a->gate);
    p->y = rows_of(&a->d_out);
    p->d_x = rows_of(&a->d_x);
    p->d_gate = rows_of(&a->d_gate);
    p->weight = a->weight.data;
    p->d_weight = a->d_weight.data;
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_gated_rms_norm_vjp_args *a = args;
    norm_problem *p = problem;
    RESOLVE(a, d_out, p);
    EJKI_TRY(check_shape(&a->x, &a->d_x, "d_x"));
    EJKI_TRY(check_shape(&a->x, &a->d_gate, "d_gate"));
    if (ejk_tensor_present(&a->d_gate) && !p->has_gate)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_gate is given without gate");
    p->gradient = 1;
    bind_vjp(args, problem);
    return EJK_OK;
}

/* Rows that are read and written. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const norm_problem *p = problem;
    const double count = (double)p->rows * (double)p->width;
    const double rows = p->gradient ? 3 + 2 * p->has_gate : 2 + p->has_gate;
    out->flops = count * (p->gradient ? 10 : 4);
    out->bytes = count * rows * (double)ejk_dtype_size((ejk_dtype)p->dtype);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_gated_rms_norm_kernel = {
    .op_id = "gated_rms_norm",
    .version = "0",
    .doc = "root-mean-square norm of groups, before or after a gate",
    .args = &ejk_gated_rms_norm_args_record,
    .config = &ejk_gated_rms_norm_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(norm_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
};

const ejk_kernel ejk_gated_rms_norm_vjp_kernel = {
    .op_id = "gated_rms_norm_vjp",
    .version = "0",
    .doc = "gradients of gated_rms_norm",
    .args = &ejk_gated_rms_norm_vjp_args_record,
    .config = &ejk_gated_rms_norm_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(norm_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .cost = cost,
    .forward = &ejk_gated_rms_norm_kernel,
};

EJKI_DEFINE_CALL(gated_rms_norm)
EJKI_DEFINE_CALL(gated_rms_norm_vjp)
