/* SPDX-License-Identifier: Apache-2.0 */
/* fused_kl_divergence and its gradient: records, problems and descriptions. */
#include <ejkernel/fused_kl_divergence.h>

#include "operations/loss/fused_kl_divergence/problem.cuh"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/loss/shared/tokens.h"
#include "tensor/view.h"

#define SYMBOLS "B=1,T,V"

#define EJK_RECORD_SELF ejk_fused_kl_divergence_config
EJK_RECORD_DEFINE(ejk_fused_kl_divergence_config_record, ejk_fused_kl_divergence_config,
                  EJK_FUSED_KL_DIVERGENCE_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_fused_kl_divergence_args
EJK_RECORD_DEFINE_WITH(ejk_fused_kl_divergence_args_record, ejk_fused_kl_divergence_args,
                       EJK_FUSED_KL_DIVERGENCE_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_fused_kl_divergence_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_fused_kl_divergence_vjp_args_record, ejk_fused_kl_divergence_vjp_args,
                       EJK_FUSED_KL_DIVERGENCE_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* What both operations are called with. */
typedef struct call {
    const ejk_tensor *student, *teacher, *weights, *mask, *loss, *student_lse, *teacher_lse;
    const ejk_opt_float *temperature, *beta;
    const char *reduction, *direction, *loss_name;
} call;

#define CALL_OF(a, loss_field)                                                                     \
    (call) {                                                                                       \
        &(a)->student, &(a)->teacher, &(a)->weights, &(a)->attention_mask, &(a)->loss_field,       \
            &(a)->student_lse, &(a)->teacher_lse, &(a)->temperature, &(a)->beta, (a)->reduction,   \
            (a)->direction, #loss_field                                                            \
    }

/* ---- Options ---------------------------------------------------------------------------------------- */

static ejk_status resolve_names(const call *c, kl_problem *p) {
    const bool none = strcmp(c->reduction, "none") == 0, sum = strcmp(c->reduction, "sum") == 0;
    const bool reverse = strcmp(c->direction, "reverse") == 0;
    p->reduction = none ? KL_NONE : sum ? KL_SUM : KL_MEAN;
    p->mixes = strcmp(c->direction, "jsd") == 0;
    p->teaches = !reverse;
    if (!none && !sum && *c->reduction && strcmp(c->reduction, "mean") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "reduction is '%s', expected mean, sum or none",
                         c->reduction);
    if (!p->mixes && !reverse && *c->direction && strcmp(c->direction, "forward") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "direction is '%s', expected forward, reverse or jsd", c->direction);
    return EJK_OK;
}

static ejk_status resolve_numbers(const call *c, kl_problem *p) {
    p->temperature = c->temperature->set ? c->temperature->value : 1;
    p->beta = c->beta->set ? c->beta->value : 0.5;
    if (!(p->temperature > 0 && isfinite(p->temperature)))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "temperature is %g, expected a finite number above 0", p->temperature);
    if (!(p->beta > 0 && p->beta < 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "beta is %g, expected more than 0 and less than 1", p->beta);
    return EJK_OK;
}

/* A result that is reduced like the loss has the axes of tokens, or one element. */
static ejk_status check_reduced(const call *c, const kl_problem *p, const ejk_tensor *t,
                                const char *name) {
    if (!ejk_tensor_present(t)) return EJK_OK;
    EJKI_TRY(ejki_loss_check_type(t, name, (ejk_dtype)p->result));
    if (p->reduction == KL_NONE) return ejki_loss_check_tokens(c->student, t, name, -1);
    if (t->rank == 0 || (t->rank == 1 && t->shape[0] == 1)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "%s has rank %d, expected one element: reduction is not none", name,
                     (int)t->rank);
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static loss_view reduced_view(const call *c, const kl_problem *p, const ejk_tensor *t) {
    if (p->reduction == KL_NONE) return ejki_loss_view(c->student, t);
    return (loss_view){.data = t->data, .dtype = ejk_tensor_present(t) ? (int)t->dtype : 0};
}

/* What the student and the teacher have becomes what the first and the second have. */
static void take_both(const call *c, const kl_problem *p, const ejk_tensor *student,
                      const ejk_tensor *teacher, loss_view *first, loss_view *second) {
    *first = ejki_loss_view(c->student, p->teaches ? teacher : student);
    *second = ejki_loss_view(c->student, p->teaches ? student : teacher);
}

static void bind_inputs(const call *c, kl_problem *p) {
    take_both(c, p, c->student, c->teacher, &p->first, &p->second);
    take_both(c, p, c->student_lse, c->teacher_lse, &p->first_lse, &p->second_lse);
    p->weights = ejki_loss_view(c->student, c->weights);
    p->mask = ejki_loss_view(c->student, c->mask);
    p->loss = reduced_view(c, p, c->loss);
}

static ejk_status resolve(const call *c, const ejk_axes *axes, kl_problem *p) {
    const ejk_tensor *rows = c->student;
    *p = (kl_problem){.batch = rows->rank == 3 ? rows->shape[0] : 1,
                      .tokens = rows->shape[rows->rank - 2],
                      .vocab = ejk_axes_get(axes, "V"),
                      .dtype = (int)rows->dtype,
                      .result = (int)ejki_loss_result_type(rows->dtype)};
    EJKI_TRY(resolve_names(c, p));
    EJKI_TRY(resolve_numbers(c, p));
    EJKI_TRY(ejki_loss_check_count(p->batch, p->tokens, p->vocab, 0));
    EJKI_TRY(ejki_loss_check_tokens(rows, c->teacher, "teacher", p->vocab));
    EJKI_TRY(ejki_loss_check_tokens(rows, c->weights, "weights", -1));
    EJKI_TRY(ejki_loss_check_tokens(rows, c->mask, "attention_mask", -1));
    EJKI_TRY(ejki_loss_check_tokens(rows, c->student_lse, "student_lse", -1));
    EJKI_TRY(ejki_loss_check_tokens(rows, c->teacher_lse, "teacher_lse", -1));
    return check_reduced(c, p, c->loss, c->loss_name);
}

static void bind(const void *args, void *problem) {
    const ejk_fused_kl_divergence_args *a = args;
    const call c = CALL_OF(a, loss);
    kl_problem *p = problem;
    bind_inputs(&c, p);
    p->entropy = reduced_view(&c, p, &a->teacher_entropy);
    p->weight_sum = a->weight_sum.data;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_fused_kl_divergence_args *a = args;
    const call c = CALL_OF(a, loss);
    EJKI_TRY(resolve(&c, axes, problem));
    EJKI_TRY(check_reduced(&c, problem, &a->teacher_entropy, "teacher_entropy"));
    bind(args, problem);
    return EJK_OK;
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_fused_kl_divergence_vjp_args *a = args;
    const call c = CALL_OF(a, d_loss);
    kl_problem *p = problem;
    bind_inputs(&c, p);
    take_both(&c, p, &a->d_student, &a->d_teacher, &p->d_first, &p->d_second);
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_fused_kl_divergence_vjp_args *a = args;
    const call c = CALL_OF(a, d_loss);
    kl_problem *p = problem;
    EJKI_TRY(resolve(&c, axes, p));
    EJKI_TRY(ejki_loss_check_tokens(&a->student, &a->d_student, "d_student", p->vocab));
    EJKI_TRY(ejki_loss_check_tokens(&a->student, &a->d_teacher, "d_teacher", p->vocab));
    p->gradient = 1;
    bind_vjp(args, problem);
    return EJK_OK;
}

/* Logits are read once, and gradients written. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const kl_problem *p = problem;
    const double logits = (double)kl_rows(p) * (double)p->vocab;
    const int written = (p->d_first.dtype ? 1 : 0) + (p->d_second.dtype ? 1 : 0);
    out->flops = logits * (p->gradient ? 16 : 10);
    out->bytes = logits * (double)ejk_dtype_size((ejk_dtype)p->dtype) * (2 + written);
}

/* The axes of tokens are those of all results but weights' sum, where nothing is reduced. */
static bool result(const void *args, const char *name, ejk_tensor *view) {
    const ejk_fused_kl_divergence_args *a = args;
    view->dtype = ejki_loss_result_type(a->student.dtype);
    if (a->student.rank < 1 || strcmp(name, "weight_sum") == 0) return true;
    const bool is_lse = strcmp(name, "student_lse") == 0 || strcmp(name, "teacher_lse") == 0;
    if (is_lse || strcmp(a->reduction, "none") == 0) ejki_loss_take_tokens(&a->student, view);
    return true;
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_fused_kl_divergence_config_record, .config_field = "cfg",       \
    .problem_size = sizeof(kl_problem), .cost = cost
const ejk_kernel ejk_fused_kl_divergence_kernel = {
    SHARED,
    .op_id = "fused_kl_divergence",
    .doc = "divergence of a student's distributions from a teacher's, from logits",
    .args = &ejk_fused_kl_divergence_args_record,
    .prepare = prepare,
    .bind = bind,
    .result = result,
};
const ejk_kernel ejk_fused_kl_divergence_vjp_kernel = {
    SHARED,
    .op_id = "fused_kl_divergence_vjp",
    .doc = "gradients of fused_kl_divergence",
    .args = &ejk_fused_kl_divergence_vjp_args_record,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .forward = &ejk_fused_kl_divergence_kernel,
    .algorithm = "fused_kl_divergence",
};

EJKI_DEFINE_CALL(fused_kl_divergence)
EJKI_DEFINE_CALL(fused_kl_divergence_vjp)
