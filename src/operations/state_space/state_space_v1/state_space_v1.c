/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v1 and its gradient: records, problems and descriptions. */
#include <ejkernel/state_space_v1.h>

#include <math.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/shared/sequences.h"
#include "operations/state_space/state_space_v1/problem.cuh"

#define SYMBOLS "B=1,T,N=B,E,K=16,G=1"

#define EJK_RECORD_SELF ejk_state_space_v1_config
EJK_RECORD_DEFINE(ejk_state_space_v1_config_record, ejk_state_space_v1_config,
                  EJK_STATE_SPACE_V1_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_state_space_v1_args
EJK_RECORD_DEFINE_WITH(ejk_state_space_v1_args_record, ejk_state_space_v1_args,
                       EJK_STATE_SPACE_V1_ARGS, SYMBOLS ",S=N", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_state_space_v1_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_state_space_v1_vjp_args_record, ejk_state_space_v1_vjp_args,
                       EJK_STATE_SPACE_V1_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

static const ejk_tensor absent;

static ejki_states states_of_forward(const ejk_state_space_v1_args *a) {
    return (ejki_states){&a->cu_seqlens,    &a->state_indices, &a->state,
                         &a->initial_state, &a->final_state,   "state"};
}
static ejki_states states_of_gradient(const ejk_state_space_v1_vjp_args *a) {
    return (ejki_states){&a->cu_seqlens,    &absent,           &absent,
                         &a->initial_state, &a->d_final_state, "state"};
}

/* b and c without a group have one. */
static scan_rows rows_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (scan_rows){NULL, 0, 0, 0};
    return (scan_rows){t->data, t->strides[0], t->strides[1], t->rank == 4 ? t->strides[2] : 0};
}

static scan_states list_of(const ejk_tensor *t) {
    scan_states list = {NULL, 0, 0, (int)t->dtype};
    if (!ejk_tensor_present(t)) return list;
    list.data = t->data;
    list.channel = t->rank == 1 ? 1 : t->strides[t->rank - 2];
    list.entry = t->rank == 3 ? t->strides[0] : 0;
    return list;
}

/* Inputs, which both have under the same names. */
#define PUT(a, p)                                                                                  \
    do {                                                                                           \
        (p)->x = rows_of(&(a)->hidden_states);                                                     \
        (p)->dt = rows_of(&(a)->dt);                                                               \
        (p)->gate = rows_of(&(a)->gate);                                                           \
        (p)->b = rows_of(&(a)->b);                                                                 \
        (p)->c = rows_of(&(a)->c);                                                                 \
        (p)->a = list_of(&(a)->a);                                                                 \
        (p)->d = list_of(&(a)->d);                                                                 \
        (p)->dt_bias = list_of(&(a)->dt_bias);                                                     \
    } while (0)

static void put_states(const ejki_states *states, scan_problem *p) {
    p->pooled = ejk_tensor_present(states->pool);
    p->before = list_of(p->pooled ? states->pool : states->initial);
    p->after = list_of(p->pooled ? states->pool : states->final);
    ejki_sequences_bind(states, &p->sequences);
}

static void bind(const void *args, void *problem) {
    const ejk_state_space_v1_args *a = args;
    const ejki_states states = states_of_forward(a);
    scan_problem *p = problem;
    PUT(a, p);
    put_states(&states, p);
    p->y = rows_of(&a->out);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_state_space_v1_vjp_args *a = args;
    const ejki_states states = states_of_gradient(a);
    scan_problem *p = problem;
    PUT(a, p);
    put_states(&states, p);
    p->y = rows_of(&a->d_out);
    p->d_x = rows_of(&a->d_hidden_states);
    p->d_dt = rows_of(&a->d_dt);
    p->d_gate = rows_of(&a->d_gate);
    p->d_b = rows_of(&a->d_b);
    p->d_c = rows_of(&a->d_c);
    p->d_a = list_of(&a->d_a);
    p->d_d = list_of(&a->d_d);
    p->d_dt_bias = list_of(&a->d_dt_bias);
    p->d_before = list_of(&a->d_initial_state);
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

/* Of b, c and their gradients: all with groups, or none. */
static ejk_status check_groups(const ejk_tensor *b, const ejk_tensor *other, const char *name) {
    if (!ejk_tensor_present(other) || other->rank == b->rank) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %d, expected %d as b has", name,
                     (int)other->rank, (int)b->rank);
}

/* A state that is written is f32, or f64 beside f64. */
static ejk_status check_state(const scan_problem *p, const char *name) {
    const int wanted = p->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    if (!p->has_after || p->after.dtype == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s is %s, expected %s", name,
                     ejk_dtype_name((ejk_dtype)p->after.dtype), ejk_dtype_name((ejk_dtype)wanted));
}

typedef struct limits {
    const ejk_opt_float *least, *most;
} limits;

static ejk_status resolve_limits(limits l, scan_problem *p) {
    p->least = l.least->set ? l.least->value : -(double)INFINITY;
    p->most = l.most->set ? l.most->value : (double)INFINITY;
    if (p->least <= p->most) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "dt_min is %g, expected at most dt_max, %g",
                     p->least, p->most);
}

/* What tensors alone say: `b` and `x` of the call. */
static ejk_status resolve_sizes(const ejk_tensor *x, const ejk_tensor *a, const ejk_tensor *b,
                                scan_problem *p) {
    p->batch = x->shape[0];
    p->channels = x->shape[2];
    p->states = a->shape[1];
    p->groups = b->rank == 4 ? b->shape[2] : 1;
    p->dtype = (int)x->dtype;
    if (p->groups < 1 || p->channels % p->groups != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "b has %lld groups, expected a divisor of %lld",
                         (long long)p->groups, (long long)p->channels);
    int64_t count = ejki_max(p->channels, 1), bytes;
    if (!ejki_mul(count, ejki_max(p->states, 1), &count) || !ejki_mul(count, p->batch, &count) ||
        !ejki_mul(count, ejki_max(x->shape[1], 1), &count) || !ejki_mul(count, 64, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "states of %lld x %lld tokens cannot be counted",
                         (long long)p->batch, (long long)x->shape[1]);
    return EJK_OK;
}

#define RESOLVE(a_, states, p)                                                                     \
    do {                                                                                           \
        *(p) = (scan_problem){.softplus = (a_)->dt_softplus};                                      \
        EJKI_TRY(resolve_sizes(&(a_)->hidden_states, &(a_)->a, &(a_)->b, p));                      \
        EJKI_TRY(check_groups(&(a_)->b, &(a_)->c, "c"));                                           \
        EJKI_TRY(resolve_limits((limits){&(a_)->dt_min, &(a_)->dt_max}, p));                       \
        EJKI_TRY(                                                                                  \
            ejki_sequences_of(states, (p)->batch, (a_)->hidden_states.shape[1], &(p)->sequences)); \
        (p)->has_gate = ejk_tensor_present(&(a_)->gate);                                           \
        (p)->has_d = ejk_tensor_present(&(a_)->d);                                                 \
        (p)->has_bias = ejk_tensor_present(&(a_)->dt_bias);                                        \
        (p)->has_before =                                                                          \
            ejk_tensor_present((states)->pool) || ejk_tensor_present((states)->initial);           \
        (p)->has_after =                                                                           \
            ejk_tensor_present((states)->pool) || ejk_tensor_present((states)->final);             \
    } while (0)

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_state_space_v1_args *a = args;
    const ejki_states states = states_of_forward(a);
    scan_problem *p = problem;
    RESOLVE(a, &states, p);
    bind(args, problem);
    return check_state(p, p->pooled ? "state" : "final_state");
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_state_space_v1_vjp_args *a = args;
    const ejki_states states = states_of_gradient(a);
    scan_problem *p = problem;
    RESOLVE(a, &states, p);
    EJKI_TRY(check_groups(&a->b, &a->d_b, "d_b"));
    EJKI_TRY(check_groups(&a->b, &a->d_c, "d_c"));
    const ejk_tensor *d = &a->d_initial_state;
    if (ejk_tensor_present(d) && d->shape[0] != p->sequences.count)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "d_initial_state has length %lld on axis 0, expected %lld",
                         (long long)d->shape[0], (long long)p->sequences.count);
    if (ejk_tensor_present(&a->d_gate) && !p->has_gate)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_gate is given without gate");
    p->gradient = 1;
    bind_vjp(args, problem);
    return check_state(p, "d_final_state");
}

/* ---- Hooks ------------------------------------------------------------------------------------------ */

static ejk_status validate(const void *problem) {
    return ejki_sequences_check(&((const scan_problem *)problem)->sequences);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_state_space_v1_args *a = args;
    ejki_fill_decays(&a->a);
    return ejki_sequences_fill(&a->cu_seqlens, &a->state_indices, a->hidden_states.shape[1]);
}
static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_state_space_v1_vjp_args *a = args;
    ejki_fill_decays(&a->a);
    return ejki_sequences_fill(&a->cu_seqlens, &absent, a->hidden_states.shape[1]);
}

/* Three multiplications and two additions for each number of a state, and an exponential, which counts as none. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const scan_problem *p = problem;
    const double tokens = (double)p->batch * (double)p->sequences.tokens;
    const double size = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const double states = (double)p->sequences.count * (double)p->channels * (double)p->states;
    const double rows = (p->gradient ? 5 : 3) + (p->gradient ? 2 : 1) * p->has_gate;
    out->flops = tokens * (double)p->channels * (double)p->states * (p->gradient ? 18 : 6);
    out->bytes = size * tokens *
                     (rows * (double)p->channels +
                      2.0 * (1 + p->gradient) * (double)(p->groups * p->states)) +
                 4 * states * (p->has_before + p->has_after);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_state_space_v1_kernel = {
    .op_id = "state_space_v1",
    .version = "0",
    .doc = "selective scan of Mamba: a state of each channel",
    .args = &ejk_state_space_v1_args_record,
    .config = &ejk_state_space_v1_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(scan_problem),
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .validate = validate,
    .cost = cost,
};

const ejk_kernel ejk_state_space_v1_vjp_kernel = {
    .op_id = "state_space_v1_vjp",
    .version = "0",
    .doc = "gradients of state_space_v1",
    .args = &ejk_state_space_v1_vjp_args_record,
    .config = &ejk_state_space_v1_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(scan_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .validate = validate,
    .cost = cost,
    .forward = &ejk_state_space_v1_kernel,
};

EJKI_DEFINE_CALL(state_space_v1)
EJKI_DEFINE_CALL(state_space_v1_vjp)
