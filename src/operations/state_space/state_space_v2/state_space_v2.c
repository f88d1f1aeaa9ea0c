/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v2 and its gradient: records, problems, steps and descriptions. */
#include <ejkernel/state_space_v2.h>

#include <math.h>

#include "base/base.h"
#include "operations/recurrent/shared/recurrent.h"
#include "operations/state_space/shared/sequences.h"
#include "operations/state_space/state_space_v2/problem.cuh"

_Static_assert(sizeof(ssd_problem) <= EJK_MAX_PROBLEM_SIZE, "problems are copied to the stack");

#define SYMBOLS "B=1,T,H,P=64,G=1,K=128,N=B"

#define EJK_RECORD_SELF ejk_state_space_v2_args
EJK_RECORD_DEFINE_WITH(ejk_state_space_v2_args_record, ejk_state_space_v2_args,
                       EJK_STATE_SPACE_V2_ARGS, SYMBOLS ",S=N", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_state_space_v2_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_state_space_v2_vjp_args_record, ejk_state_space_v2_vjp_args,
                       EJK_STATE_SPACE_V2_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* What the recurrence calls its tensors here. */
static const char *const names[REC_GRADIENT] = {[REC_QUERY] = "c",
                                                [REC_KEY] = "b",
                                                [REC_VALUE] = "x",
                                                [REC_G] = "dt",
                                                [REC_A_LOG] = "a",
                                                [REC_DT_BIAS] = "dt_bias",
                                                [REC_SKIP] = "d",
                                                [REC_OUT] = "out",
                                                [REC_INITIAL] = "initial_state",
                                                [REC_FINAL] = "final_state"};

/* Inputs, which both have under the same names. */
#define GIVEN(a)                                                                                   \
    .scale = {1, true}, .reverse = (a)->reverse, .layout = "value_key", .names = names,            \
    .tensor[REC_QUERY] = &(a)->c, .tensor[REC_KEY] = &(a)->b, .tensor[REC_VALUE] = &(a)->x,        \
    .tensor[REC_G] = &(a)->dt, .tensor[REC_A_LOG] = &(a)->a, .tensor[REC_DT_BIAS] = &(a)->dt_bias, \
    .tensor[REC_SKIP] = &(a)->d, .tensor[REC_INITIAL] = &(a)->initial_state,                       \
    .tensor[REC_ENDS] = &(a)->cu_seqlens

static rec_call forward_of(const ejk_state_space_v2_args *a) {
    return (rec_call){GIVEN(a), .state = &a->state, .tensor[REC_INDICES] = &a->state_indices,
                      .tensor[REC_FINAL] = &a->final_state};
}

static rec_call gradient_of(const ejk_state_space_v2_vjp_args *a) {
    return (rec_call){GIVEN(a),
                      .gradient = true,
                      .tensor[REC_D_FINAL] = &a->d_final_state,
                      .tensor[REC_D(REC_QUERY)] = &a->d_c,
                      .tensor[REC_D(REC_KEY)] = &a->d_b,
                      .tensor[REC_D(REC_VALUE)] = &a->d_x,
                      .tensor[REC_D(REC_G)] = &a->d_dt,
                      .tensor[REC_D(REC_A_LOG)] = &a->d_a,
                      .tensor[REC_D(REC_DT_BIAS)] = &a->d_dt_bias,
                      .tensor[REC_D(REC_SKIP)] = &a->d_d,
                      .tensor[REC_D(REC_INITIAL)] = &a->d_initial_state};
}

/* ---- Views ------------------------------------------------------------------------------------------ */

/* Rows whose heads may follow each other. */
static rec_view rows_of(const ssd_problem *p, const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (rec_view){.present = 0};
    return (rec_view){.data = t->data,
                      .stride = {t->strides[0], t->strides[1],
                                 t->rank == 4 ? t->strides[2] : p->recurrence.value_size, 1},
                      .dtype = (int)t->dtype,
                      .present = 1};
}

static rec_view list_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (rec_view){.present = 0};
    return (rec_view){
        .data = t->data, .stride = {0, 0, 0, 1}, .dtype = (int)t->dtype, .present = 1};
}

/* Where y lies: its rows follow each other in what steps share. */
static void put_y(ssd_problem *p, void *shared) {
    const rec_problem *r = &p->recurrence;
    p->y = p->result;
    if (p->keeps_y)
        p->y = (rec_view){.data = shared,
                          .stride = {r->tokens * ssd_width(p), ssd_width(p), r->value_size, 1},
                          .dtype = (int)(r->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32),
                          .present = 1};
    if (!r->gradient || p->keeps_y) p->recurrence.view[REC_OUT] = p->y;
    if (r->gradient) p->recurrence.view[REC_D_OUT] = p->y;
}

static void bind(const void *args, void *problem) {
    const ejk_state_space_v2_args *a = args;
    const rec_call call = forward_of(a);
    ssd_problem *p = problem;
    rec_put_pointers(&call, &p->recurrence);
    p->result = rows_of(p, &a->out);
    p->gate = rows_of(p, &a->gate);
    p->weight = list_of(&a->rmsnorm_weight);
    put_y(p, NULL);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_state_space_v2_vjp_args *a = args;
    const rec_call call = gradient_of(a);
    ssd_problem *p = problem;
    rec_put_pointers(&call, &p->recurrence);
    p->result = rows_of(p, &a->d_out);
    p->gate = rows_of(p, &a->gate);
    p->d_gate = rows_of(p, &a->d_gate);
    p->weight = list_of(&a->rmsnorm_weight);
    p->d_weight = list_of(&a->d_rmsnorm_weight);
    put_y(p, NULL);
}

static void bind_shared(void *problem, void *shared) {
    put_y(problem, shared);
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

static ejk_status check_groups(const ejk_tensor *b, const ejk_tensor *x,
                               const ejk_opt_int *wanted) {
    const long long groups = (long long)b->shape[2], heads = (long long)x->shape[2];
    if (heads != groups && (groups < 1 || heads % groups != 0))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "b has %lld groups, expected a divisor of %lld",
                         groups, heads);
    if (!wanted->set || wanted->value == groups) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "n_groups is %lld, expected %lld as b has",
                     (long long)wanted->value, groups);
}

typedef struct limits {
    const ejk_opt_float *least, *most;
} limits;

static ejk_status resolve_steps(limits l, bool softplus, rec_problem *p) {
    p->by_step = 1;
    p->softplus = softplus;
    p->least = l.least->set ? l.least->value : -(double)INFINITY;
    p->most = l.most->set ? l.most->value : (double)INFINITY;
    if (p->least <= p->most) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "dt_min is %g, expected at most dt_max, %g",
                     p->least, p->most);
}

/* Of the norm: its numbers and its weight. */
typedef struct norm {
    const ejk_opt_int *group;
    const ejk_opt_float *eps;
    const ejk_tensor *weight;
} norm;

static ejk_status resolve_norm(norm n, ssd_problem *p) {
    const rec_size width = ssd_width(p);
    const ejk_dtype own = n.weight->dtype, x = (ejk_dtype)p->recurrence.dtype;
    p->group = n.group->set ? n.group->value : width;
    p->eps = n.eps->set ? n.eps->value : 1e-5;
    if (n.group->set && (p->group < 1 || width % p->group != 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "rmsnorm_group_size is %lld, expected a divisor of %lld",
                         (long long)p->group, (long long)width);
    if (!(p->eps >= 0) || !isfinite(p->eps))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "rmsnorm_eps is %g, expected a number of at least 0", p->eps);
    if (!ejk_tensor_present(n.weight)) return EJK_OK;
    if (!p->has_norm)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "rmsnorm_weight is given without use_gated_rmsnorm");
    if (own == x || own == EJK_DTYPE_F32) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "rmsnorm_weight is %s, expected %s",
                     ejk_dtype_name(own), ejk_dtype_name(x));
}

static ejk_status check_count(const ssd_problem *p) {
    int64_t count = p->recurrence.batch, bytes;
    if (ejki_mul(count, p->recurrence.tokens, &count) && ejki_mul(count, ssd_width(p), &count) &&
        ejki_mul(count, 64, &bytes))
        return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "rows of %lld numbers cannot be counted",
                     (long long)ssd_width(p));
}

#define RESOLVE(args, call, p)                                                                     \
    do {                                                                                           \
        *(p) = (ssd_problem){.has_norm = (args)->use_gated_rmsnorm};                               \
        (p)->has_gate = ejk_tensor_present(&(args)->gate);                                         \
        (p)->norm_first = (args)->norm_before_gate != EJK_FALSE;                                   \
        EJKI_TRY(check_groups(&(args)->b, &(args)->x, &(args)->n_groups));                         \
        EJKI_TRY(rec_resolve(call, &(p)->recurrence));                                             \
        EJKI_TRY(check_count(p));                                                                  \
        EJKI_TRY(resolve_steps((limits){&(args)->dt_min, &(args)->dt_max}, (args)->dt_softplus,    \
                               &(p)->recurrence));                                                 \
        EJKI_TRY(resolve_norm(                                                                     \
            (norm){&(args)->rmsnorm_group_size, &(args)->rmsnorm_eps, &(args)->rmsnorm_weight},    \
            p));                                                                                   \
    } while (0)

/* Whether there is a step behind the recurrence. */
static bool gates(const void *problem) {
    const ssd_problem *p = problem;
    return p->has_gate || p->has_norm;
}

/* Of gradients: whether y has to be known. */
static bool reads_y(const void *problem) {
    const ssd_problem *p = problem;
    return p->has_norm || p->d_gate.present;
}

/* What is rounded is kept apart until it is the result; other results are gated in place. */
static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_state_space_v2_args *a = args;
    const rec_call call = forward_of(a);
    ssd_problem *p = problem;
    RESOLVE(a, &call, p);
    p->keeps_y = gates(p) && ejk_dtype_size((ejk_dtype)p->recurrence.dtype) < 4;
    bind(args, problem);
    return EJK_OK;
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_state_space_v2_vjp_args *a = args;
    const rec_call call = gradient_of(a);
    ssd_problem *p = problem;
    RESOLVE(a, &call, p);
    if (ejk_tensor_present(&a->d_gate) && !p->has_gate)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_gate is given without gate");
    if (ejk_tensor_present(&a->d_rmsnorm_weight) && !ejk_tensor_present(&a->rmsnorm_weight))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "d_rmsnorm_weight is given without rmsnorm_weight");
    p->keeps_y = gates(p);
    bind_vjp(args, problem);
    return EJK_OK;
}

/* ---- Hooks ------------------------------------------------------------------------------------------ */

static size_t shared_bytes(const void *problem) {
    const ssd_problem *p = problem;
    const rec_problem *r = &p->recurrence;
    if (!p->keeps_y) return 0;
    return (size_t)(r->batch * r->tokens * ssd_width(p)) * ejk_dtype_size((ejk_dtype)p->y.dtype);
}

/* States grow without bounds unless rates are negative and steps positive. */
static ejk_status fill(const ejk_tensor *a, const ejk_tensor *dt, bool softplus) {
    ejki_fill_decays(a);
    if (!softplus) ejki_fill_steps(dt);
    return EJK_OK;
}
static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_state_space_v2_args *a = args;
    EJKI_TRY(fill(&a->a, &a->dt, a->dt_softplus));
    return ejki_sequences_fill(&a->cu_seqlens, &a->state_indices, a->x.shape[1]);
}
static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    static const ejk_tensor absent;
    const ejk_state_space_v2_vjp_args *a = args;
    EJKI_TRY(fill(&a->a, &a->dt, a->dt_softplus));
    return ejki_sequences_fill(&a->cu_seqlens, &absent, a->x.shape[1]);
}

/* Multiplications and additions in chunks of 64, triangles half: products of c and b once for a group. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    const ssd_problem *p = problem;
    rec_problem r = p->recurrence;
    const double tokens = (double)r.batch * (double)r.tokens, width = (double)ssd_width(p);
    const double chunk = (double)ejki_min(r.tokens / ejki_max(r.packed ? r.sequences : 1, 1), 64);
    r.view[REC_OUT].present = 0;
    r.view[r.gradient ? REC_D_OUT : REC_OUT] = p->result;
    rec_cost(&r, args, out);
    out->flops =
        tokens * (r.gradient ? 3 : 1) *
        (width * (chunk + 4 * (double)r.key_size) + chunk * (double)(r.key_heads * r.key_size));
    out->bytes += tokens * width * (double)ejk_dtype_size((ejk_dtype)r.dtype) *
                  (p->has_gate + p->d_gate.present);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

static const ejk_step steps[] = {
    {.algorithm = "recurrent_attention", .doc = "the scan, and what passes by the state"},
    {.algorithm = "state_space_v2_gate", .doc = "gate and norm", .wanted = gates},
};

static const ejk_step steps_vjp[] = {
    {.algorithm = "recurrent_attention", .doc = "the scan once more", .wanted = reads_y},
    {.algorithm = "state_space_v2_gate_vjp", .doc = "back through gate and norm", .wanted = gates},
    {.algorithm = "recurrent_attention_vjp", .doc = "back through the scan"},
};

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_recurrent_config_record, .config_field = "cfg",                 \
    .problem_size = sizeof(ssd_problem), .validate = rec_validate, .cost = cost,                   \
    .shared_bytes = shared_bytes, .bind_shared = bind_shared

const ejk_kernel ejk_state_space_v2_kernel = {
    .op_id = "state_space_v2",
    .doc = "scan of Mamba-2: a state of each head, gate and norm",
    .args = &ejk_state_space_v2_args_record,
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .steps = steps,
    .step_count = 2,
    SHARED,
};

const ejk_kernel ejk_state_space_v2_vjp_kernel = {
    .op_id = "state_space_v2_vjp",
    .doc = "gradients of state_space_v2",
    .args = &ejk_state_space_v2_vjp_args_record,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .steps = steps_vjp,
    .step_count = 3,
    .forward = &ejk_state_space_v2_kernel,
    SHARED,
};

ejk_status ejk_state_space_v2(ejk_context *context, const ejk_state_space_v2_args *args) {
    return ejk_call(context, &ejk_state_space_v2_kernel, args);
}

ejk_status ejk_state_space_v2_vjp(ejk_context *context, const ejk_state_space_v2_vjp_args *args) {
    return ejk_call(context, &ejk_state_space_v2_vjp_kernel, args);
}
