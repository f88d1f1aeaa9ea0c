/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From calls of the recurrent family to their problem. A member names its tensors and says what its recurrence is;
 * checks, pointers, costs and the kernels (algorithms recurrent_attention and recurrent_attention_vjp) are shared.
 */
#ifndef EJKI_RECURRENT_H
#define EJKI_RECURRENT_H

#include <ejkernel/kernel.h>
#include <ejkernel/recurrent.h>

#include "operations/recurrent/shared/problem.cuh"

/* A call of a member or of its gradient; tensors that it has not are NULL. */
typedef struct rec_call {
    const ejk_tensor *tensor[REC_ROLES];
    const ejk_tensor *state; /* in place of REC_INITIAL and REC_FINAL */
    ejk_opt_float scale;
    double slope;
    enum rec_update update;
    enum rec_read read;
    bool normalise, beta_logits, multiply, reverse, gradient;
    const char *layout;       /* state_layout */
    const char *const *names; /* of tensors up to REC_GRADIENT in sentences; NULL: the roles' own */
} rec_call;

/* Symbols of units in their order; gates and pools have their own. */
#define REC_SYMBOLS "B=1,T,H,Hq=H,Hk=H,Hv=H,Dk,Dv=Dk,N=B"
#define REC_GATES   ",Hg=H"
#define REC_POOL    ",slots=N"
#define REC_ROWS    ",rows=N"

/* What all arguments of forward calls, and of gradients, have. `a` points to them. */
#define REC_COMMON(a)                                                                              \
    .scale = (a)->softmax_scale, .reverse = (a)->reverse, .layout = (a)->state_layout,             \
    .tensor[REC_INITIAL] = &(a)->initial_state, .tensor[REC_ENDS] = &(a)->cu_seqlens,              \
    .tensor[REC_SEGMENTS] = &(a)->seg_ids
#define REC_FORWARD(a)                                                                             \
    REC_COMMON(a), .state = &(a)->state, .tensor[REC_INDICES] = &(a)->state_indices,               \
                   .tensor[REC_OUT] = &(a)->out, .tensor[REC_FINAL] = &(a)->final_state
#define REC_BACKWARD(a)                                                                            \
    REC_COMMON(a), .gradient = true, .tensor[REC_D_OUT] = &(a)->d_out,                             \
                   .tensor[REC_D_FINAL] = &(a)->d_final_state,                                     \
                   .tensor[REC_D(REC_INITIAL)] = &(a)->d_initial_state
/* A tensor, and its gradient. */
#define REC_GIVEN(a, role, name)  .tensor[role] = &(a)->name
#define REC_WANTED(a, role, name) .tensor[REC_D(role)] = &(a)->d_##name

/* Checks what the record cannot say, and writes the problem without pointers; puts the pointers in. */
ejk_status rec_resolve(const rec_call *call, rec_problem *problem);
void rec_put_pointers(const rec_call *call, rec_problem *problem);

/* Contents of integers, and of gates and rates such as models have. `a` and `b` may be NULL. */
void rec_fill(const rec_call *call, const ejk_inputs *how);

/* Hooks of every member. */
ejk_status rec_validate(const void *problem);
void rec_cost(const void *problem, const void *args, ejk_cost *cost);

/* The hooks of a member with functions `call name_of(const type *)`. */
#define REC_HOOKS(name, type)                                                                      \
    static ejk_status name##_prepare(const void *args, const ejk_axes *axes, void *problem) {      \
        (void)axes;                                                                                \
        const rec_call call = name##_of((const type *)args);                                       \
        return rec_resolve(&call, problem);                                                        \
    }                                                                                              \
    static void name##_bind(const void *args, void *problem) {                                     \
        const rec_call call = name##_of((const type *)args);                                       \
        rec_put_pointers(&call, problem);                                                          \
    }                                                                                              \
    static ejk_status name##_inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {     \
        (void)axes;                                                                                \
        const rec_call call = name##_of((const type *)args);                                       \
        rec_fill(&call, how);                                                                      \
        return EJK_OK;                                                                             \
    }

#define REC_KERNEL(name) REC_KERNEL_WITH(name, name##_prepare)
#define REC_KERNEL_WITH(name, check)                                                               \
    .version = "0", .config = &ejk_recurrent_config_record, .config_field = "cfg",                 \
    .problem_size = sizeof(rec_problem), .prepare = check, .bind = name##_bind,                    \
    .inputs = name##_inputs, .validate = rec_validate, .cost = rec_cost

#endif
