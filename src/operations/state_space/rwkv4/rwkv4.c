/* SPDX-License-Identifier: Apache-2.0 */
/* rwkv4 and its gradient: records, problems and descriptions. */
#include <ejkernel/rwkv4.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/rwkv4/problem.cuh"
#include "operations/state_space/shared/sequences.h"
#include "tensor/view.h"

#define SYMBOLS "B=1,T,N=B,C"

#define EJK_RECORD_SELF ejk_rwkv4_config
EJK_RECORD_DEFINE(ejk_rwkv4_config_record, ejk_rwkv4_config, EJK_RWKV4_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_rwkv4_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv4_args_record, ejk_rwkv4_args, EJK_RWKV4_ARGS, SYMBOLS ",S=N", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_rwkv4_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv4_vjp_args_record, ejk_rwkv4_vjp_args, EJK_RWKV4_VJP_ARGS, SYMBOLS,
                       NULL);
#undef EJK_RECORD_SELF

static const ejk_tensor absent;

static ejki_states states_of_forward(const ejk_rwkv4_args *a) {
    return (ejki_states){&a->cu_seqlens,    &a->state_indices, &a->state,
                         &a->initial_state, &a->final_state,   "state"};
}
static ejki_states states_of_gradient(const ejk_rwkv4_vjp_args *a) {
    return (ejki_states){&a->cu_seqlens,    &absent,           &absent,
                         &a->initial_state, &a->d_final_state, "state"};
}

static wkv_rows rows_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (wkv_rows){NULL, 0, 0};
    return (wkv_rows){t->data, t->strides[0], t->strides[1]};
}

static wkv_states list_of(const ejk_tensor *t) {
    wkv_states list = {NULL, 0, 0, (int)t->dtype};
    if (!ejk_tensor_present(t)) return list;
    list.data = t->data;
    if (t->rank == 3) {
        list.entry = t->strides[0];
        list.number = t->strides[1];
    }
    return list;
}

/* Inputs, which both have under the same names. */
#define PUT(a, states, p)                                                                          \
    do {                                                                                           \
        (p)->w = list_of(&(a)->w);                                                                 \
        (p)->u = list_of(&(a)->u);                                                                 \
        (p)->k = rows_of(&(a)->k);                                                                 \
        (p)->v = rows_of(&(a)->v);                                                                 \
        (p)->before = list_of((p)->pooled ? (states)->pool : (states)->initial);                   \
        (p)->after = list_of((p)->pooled ? (states)->pool : (states)->final);                      \
        ejki_sequences_bind(states, &(p)->sequences);                                              \
    } while (0)

static void bind(const void *args, void *problem) {
    const ejk_rwkv4_args *a = args;
    const ejki_states states = states_of_forward(a);
    wkv_problem *p = problem;
    PUT(a, &states, p);
    p->y = rows_of(&a->out);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_rwkv4_vjp_args *a = args;
    const ejki_states states = states_of_gradient(a);
    wkv_problem *p = problem;
    PUT(a, &states, p);
    p->y = rows_of(&a->d_out);
    p->d_k = rows_of(&a->d_k);
    p->d_v = rows_of(&a->d_v);
    p->d_w = list_of(&a->d_w);
    p->d_u = list_of(&a->d_u);
    p->d_before = list_of(&a->d_initial_state);
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

/* A state that is written is f32, or f64 beside f64. */
static ejk_status check_state(const wkv_problem *p, const char *name) {
    const ejk_dtype wanted = p->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    if (!p->has_after || (ejk_dtype)p->after.dtype == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s is %s, expected %s", name,
                     ejk_dtype_name((ejk_dtype)p->after.dtype), ejk_dtype_name(wanted));
}

static ejk_status resolve(const ejk_tensor *k, const ejki_states *states, bool reverse,
                          wkv_problem *p) {
    *p = (wkv_problem){
        .batch = k->shape[0], .channels = k->shape[2], .dtype = (int)k->dtype, .reverse = reverse};
    EJKI_TRY(ejki_tensor_expect_countable(k, "k", 64));
    EJKI_TRY(ejki_sequences_of(states, p->batch, k->shape[1], &p->sequences));
    p->pooled = ejk_tensor_present(states->pool);
    p->has_before = p->pooled || ejk_tensor_present(states->initial);
    p->has_after = p->pooled || ejk_tensor_present(states->final);
    return EJK_OK;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_rwkv4_args *a = args;
    const ejki_states states = states_of_forward(a);
    wkv_problem *p = problem;
    EJKI_TRY(resolve(&a->k, &states, a->reverse, p));
    bind(args, problem);
    return check_state(p, p->pooled ? "state" : "final_state");
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_rwkv4_vjp_args *a = args;
    const ejki_states states = states_of_gradient(a);
    wkv_problem *p = problem;
    EJKI_TRY(resolve(&a->k, &states, a->reverse, p));
    const ejk_tensor *d = &a->d_initial_state;
    if (ejk_tensor_present(d) && d->shape[0] != p->sequences.count)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "d_initial_state has length %lld on axis 0, expected %lld",
                         (long long)d->shape[0], (long long)p->sequences.count);
    p->gradient = true;
    bind_vjp(args, problem);
    return check_state(p, "d_final_state");
}

/* ---- Hooks ------------------------------------------------------------------------------------------ */

static ejk_dtype dtype_of_forward(const void *args) {
    return ((const ejk_rwkv4_args *)args)->k.dtype;
}
static ejk_dtype dtype_of_gradient(const void *args) {
    return ((const ejk_rwkv4_vjp_args *)args)->k.dtype;
}

static ejk_status validate(const void *problem) {
    return ejki_sequences_check(&((const wkv_problem *)problem)->sequences);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_rwkv4_args *a = args;
    return ejki_sequences_fill(&a->cu_seqlens, &a->state_indices, a->k.shape[1]);
}
static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_rwkv4_vjp_args *a = args;
    return ejki_sequences_fill(&a->cu_seqlens, &absent, a->k.shape[1]);
}

/* Additions, multiplications and one division of a token; exponentials count as none. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const wkv_problem *p = problem;
    const double count = (double)p->batch * (double)p->sequences.tokens * (double)p->channels;
    const double states =
        (double)p->sequences.count * (double)p->channels * STATE_NUMBERS * sizeof(float);
    out->flops = count * (p->gradient ? 38 : 13);
    out->bytes = (double)ejk_dtype_size((ejk_dtype)p->dtype) * count * (p->gradient ? 5 : 3) +
                 states * (p->has_before + p->has_after);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_rwkv4_kernel = {
    .op_id = "rwkv4",
    .version = "0",
    .doc = "RWKV-4: means of values by weights that fade, in each channel",
    .args = &ejk_rwkv4_args_record,
    .config = &ejk_rwkv4_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(wkv_problem),
    .dtype = dtype_of_forward,
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .validate = validate,
    .cost = cost,
};

const ejk_kernel ejk_rwkv4_vjp_kernel = {
    .op_id = "rwkv4_vjp",
    .version = "0",
    .doc = "gradients of rwkv4",
    .args = &ejk_rwkv4_vjp_args_record,
    .config = &ejk_rwkv4_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(wkv_problem),
    .dtype = dtype_of_gradient,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .validate = validate,
    .cost = cost,
    .forward = &ejk_rwkv4_kernel,
};

EJKI_DEFINE_CALL(rwkv4)
EJKI_DEFINE_CALL(rwkv4_vjp)
