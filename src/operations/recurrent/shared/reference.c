/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence as it reads, token by token, in double precision. */
#include "operations/recurrent/shared/reference.h"

#include <string.h>

#include "kernels/declare.h"
#include "operations/recurrent/shared/kept.h"

static void load_state(const rec_problem *p, const rec_sequence *s, rec_size h, double *state) {
    const rec_view *v = &p->view[REC_INITIAL];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < p->value_size; j++)
            state[i * p->value_size + j] =
                v->present && s->row >= 0
                    ? rec_load(v, rec_state_at(v, s->row, h) + i * v->stride[2] + j * v->stride[3])
                    : 0;
}

static void store_state(const rec_problem *p, const rec_sequence *s, rec_size h,
                        const double *state) {
    const rec_view *v = &p->view[REC_FINAL];
    if (!v->present || s->row < 0) return;
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < p->value_size; j++)
            rec_add(v, rec_state_at(v, s->row, h) + i * v->stride[2] + j * v->stride[3],
                    state[i * p->value_size + j]);
}

static void write(const rec_problem *p, rec_size b, rec_size t, rec_size h, const rec_step *step,
                  const double *state, double own) {
    const rec_view *out = &p->view[REC_OUT];
    for (rec_size j = 0; j < p->value_size; j++) {
        double sum = own * (step ? step->v[j] : 0);
        for (rec_size i = 0; i < p->key_size && step; i++)
            sum += p->scale * step->q[i] * state[i * p->value_size + j];
        rec_add(out, rec_at(out, b, t, h) + j, sum);
    }
}

/* What is kept for gradients: the state before a step, and what a token finds wrong with it. */
static void keep_state(const rec_problem *p, const rec_sequence *s, rec_size n, rec_size h,
                       const double *state) {
    const rec_view *v = &p->view[REC_STATES];
    if (!v->present || n % REC_KEPT_STEPS != 0) return;
    const rec_size at = rec_kept_at(p, s, n, h);
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < p->value_size; j++)
            rec_add(v, at + i * v->stride[2] + j * v->stride[3], state[i * p->value_size + j]);
}

static void keep_errors(const rec_problem *p, rec_size b, rec_size t, rec_size h,
                        const rec_step *step, const double *state) {
    const rec_view *v = &p->view[REC_ERRORS];
    for (rec_size j = 0; j < p->value_size && v->present; j++) {
        double error = step ? step->v[j] : 0;
        for (rec_size i = 0; i < p->key_size && step; i++)
            error -= step->k[i] * step->key_decay[i] * step->value_decay[j] *
                     state[i * p->value_size + j];
        rec_add(v, rec_at(v, b, t, h) + j, error);
    }
}

static void walk(const rec_problem *p, const rec_sequence *s, rec_size h, double *state,
                 rec_step *step) {
    for (rec_size n = 0; n < s->end - s->begin; n++) {
        const rec_size t = rec_token(p, s, n);
        const rec_turn turn = rec_turn_of(p, s, n);
        keep_state(p, s, n, h, state);
        if (!turn.counts) {
            keep_errors(p, s->batch, t, h, NULL, state);
            write(p, s->batch, t, h, NULL, state, 0);
            continue;
        }
        if (turn.resets) memset(state, 0, (size_t)(p->key_size * p->value_size) * sizeof *state);
        rec_read_step(p, s, t, h, step);
        keep_errors(p, s->batch, t, h, step, state);
        if (p->read == REC_BEFORE) write(p, s->batch, t, h, step, state, rec_bonus(p, h, step));
        rec_advance(p, step, state);
        if (p->read == REC_AFTER) write(p, s->batch, t, h, step, state, rec_skip(p, h));
    }
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    (void)parameters;
    (void)threads;
    launch->workspace_bytes =
        (size_t)(p->key_size * p->value_size + rec_step_size(p)) * sizeof(double);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    double *state = run->workspace;
    rec_step step = rec_step_in(p, state + p->key_size * p->value_size);
    for (rec_size n = 0; n < p->sequences; n++)
        for (rec_size h = 0; h < p->heads; h++) {
            const rec_sequence s = rec_sequence_of(p, n);
            load_state(p, &s, h, state);
            walk(p, &s, h, state, &step);
            store_state(p, &s, h, state);
        }
    for (rec_size t = rec_covered(p); t < p->tokens; t++)
        for (rec_size h = 0; h < p->heads; h++) {
            write(p, 0, t, h, NULL, state, 0);
            keep_errors(p, 0, t, h, NULL, state);
        }
    rec_clear_kept(p);
    return EJK_OK;
}

EJKI_DECLARE(recurrent_attention_reference, .version = 1, .run = run, .prepare = prepare)
