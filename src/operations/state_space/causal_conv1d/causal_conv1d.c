/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d and its gradient: records, problems and descriptions. */
#include <ejkernel/causal_conv1d.h>

#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/causal_conv1d/problem.cuh"
#include "operations/state_space/shared/sequences.h"
#include "tensor/view.h"

#define SYMBOLS "B=1,T,N=B,C,W=4"

#define EJK_RECORD_SELF ejk_causal_conv1d_config
EJK_RECORD_DEFINE(ejk_causal_conv1d_config_record, ejk_causal_conv1d_config,
                  EJK_CAUSAL_CONV1D_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_causal_conv1d_args
EJK_RECORD_DEFINE_WITH(ejk_causal_conv1d_args_record, ejk_causal_conv1d_args,
                       EJK_CAUSAL_CONV1D_ARGS, SYMBOLS ",S=N", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_causal_conv1d_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_causal_conv1d_vjp_args_record, ejk_causal_conv1d_vjp_args,
                       EJK_CAUSAL_CONV1D_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

static const ejk_tensor absent;

/* What both have. */
typedef struct call {
    const ejk_tensor *x, *weight, *bias, *y;
    const char *activation;
    ejki_states states;
} call;

static call forward_of(const ejk_causal_conv1d_args *a) {
    return (call){&a->x,
                  &a->weight,
                  &a->bias,
                  &a->out,
                  a->activation,
                  {.ends = &a->cu_seqlens,
                   .indices = &a->state_indices,
                   .pool = &a->conv_state,
                   .initial = &a->initial_state,
                   .final = &a->final_state,
                   .pool_name = "conv_state"}};
}

static call gradient_of(const ejk_causal_conv1d_vjp_args *a) {
    return (call){&a->x,
                  &a->weight,
                  &a->bias,
                  &a->d_out,
                  a->activation,
                  {.ends = &a->cu_seqlens,
                   .indices = &absent,
                   .pool = &absent,
                   .initial = &a->initial_state,
                   .final = &a->d_final_state,
                   .pool_name = "conv_state"}};
}

static conv_rows rows_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (conv_rows){NULL, 0, 0};
    return (conv_rows){t->data, t->strides[0], t->strides[1]};
}

static conv_states states_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (conv_states){NULL, 0, 0};
    return t->rank == 2 ? (conv_states){t->data, 0, t->strides[0]}
                        : (conv_states){t->data, t->strides[0], t->strides[1]};
}

static ejk_status read_activation(const char *name, int *silu) {
    *silu = strcmp(name, "silu") == 0;
    if (*silu || !*name || strcmp(name, "none") == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "activation is '%s', expected none or silu", name);
}

/* Addresses are the call's: those of a plan's sample do not last. */
static void put(const call *c, conv_problem *p) {
    const bool pooled = ejk_tensor_present(c->states.pool);
    p->x = rows_of(c->x);
    p->y = rows_of(c->y);
    p->weight = states_of(c->weight);
    p->bias = c->bias->data;
    p->before = states_of(pooled ? c->states.pool : c->states.initial);
    p->after = states_of(pooled ? c->states.pool : c->states.final);
    p->pooled = pooled;
    ejki_sequences_bind(&c->states, &p->sequences);
}

static ejk_status resolve(const call *c, conv_problem *p) {
    const int64_t *shape = c->x->shape;
    *p = (conv_problem){.batch = shape[0],
                        .channels = shape[2],
                        .width = c->weight->shape[1],
                        .dtype = (int)c->x->dtype};
    EJKI_TRY(read_activation(c->activation, &p->silu));
    if (p->width < 1 || p->width > CONV_MOST_TAPS)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "weight has %lld taps, expected 1 to %d",
                         (long long)p->width, (int)CONV_MOST_TAPS);
    EJKI_TRY(ejki_sequences_of(&c->states, shape[0], shape[1], &p->sequences));
    put(c, p);
    p->has_bias = ejk_tensor_present(c->bias);
    p->has_before = ejk_tensor_present(p->pooled ? c->states.pool : c->states.initial);
    p->has_after = ejk_tensor_present(p->pooled ? c->states.pool : c->states.final);
    return ejki_tensor_expect_countable(c->x, "x", 512);
}

/* ---- Hooks ------------------------------------------------------------------------------------------ */

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const call c = forward_of(args);
    return resolve(&c, problem);
}
static void bind(const void *args, void *problem) {
    const call c = forward_of(args);
    put(&c, problem);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_causal_conv1d_vjp_args *a = args;
    const call c = gradient_of(a);
    conv_problem *p = problem;
    put(&c, p);
    p->d_x = rows_of(&a->d_x);
    p->d_weight = states_of(&a->d_weight);
    p->d_bias = a->d_bias.data;
    p->d_before = states_of(&a->d_initial_state);
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_causal_conv1d_vjp_args *a = args;
    const call c = gradient_of(a);
    conv_problem *p = problem;
    EJKI_TRY(resolve(&c, p));
    const ejk_tensor *d = &a->d_initial_state;
    if (ejk_tensor_present(d) && d->shape[0] != p->sequences.count)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "d_initial_state has length %lld on axis 0, expected %lld",
                         (long long)d->shape[0], (long long)p->sequences.count);
    p->gradient = 1;
    bind_vjp(args, problem);
    return EJK_OK;
}

static ejk_status validate(const void *problem) {
    return ejki_sequences_check(&((const conv_problem *)problem)->sequences);
}

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_causal_conv1d_args *a = args;
    return ejki_sequences_fill(&a->cu_seqlens, &a->state_indices, a->x.shape[1]);
}
static ejk_status inputs_vjp(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)axes;
    (void)how;
    const ejk_causal_conv1d_vjp_args *a = args;
    return ejki_sequences_fill(&a->cu_seqlens, &absent, a->x.shape[1]);
}

/* The gradient reads x and d_out and writes d_x, and has the products of out, d_x and d_weight. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const conv_problem *p = problem;
    const double size = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const double count = (double)p->batch * (double)p->sequences.tokens * (double)p->channels;
    const double states = (double)(p->has_before + p->has_after) * (double)p->sequences.count *
                          (double)p->channels * (double)(p->width - 1);
    out->flops = count * 2 * (double)p->width * (p->gradient ? 3 : 1);
    out->bytes =
        size * (count * (p->gradient ? 3 : 2) + states + (double)p->channels * (double)p->width);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_causal_conv1d_kernel = {
    .op_id = "causal_conv1d",
    .version = "0",
    .doc = "short causal convolution of each channel, with a state",
    .args = &ejk_causal_conv1d_args_record,
    .config = &ejk_causal_conv1d_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(conv_problem),
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .validate = validate,
    .cost = cost,
};

const ejk_kernel ejk_causal_conv1d_vjp_kernel = {
    .op_id = "causal_conv1d_vjp",
    .version = "0",
    .doc = "gradients of causal_conv1d",
    .args = &ejk_causal_conv1d_vjp_args_record,
    .config = &ejk_causal_conv1d_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(conv_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .validate = validate,
    .cost = cost,
    .forward = &ejk_causal_conv1d_kernel,
};

EJKI_DEFINE_CALL(causal_conv1d)
EJKI_DEFINE_CALL(causal_conv1d_vjp)
