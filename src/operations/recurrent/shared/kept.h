/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the states that a delta rule keeps for its gradients, and what is written where there is nothing to keep. */
#ifndef EJKI_RECURRENT_KEPT_H
#define EJKI_RECURRENT_KEPT_H

#include "base/base.h"
#include "operations/recurrent/shared/problem.cuh"
#include "tensor/access.h"

static inline bool rec_keeps(const rec_problem *p) {
    return p->view[REC_STATES].present || p->view[REC_ERRORS].present;
}

/* The first row of a sequence: that of its first step. */
static inline rec_size rec_first_row(const rec_problem *p, const rec_sequence *s) {
    return p->packed ? s->begin / REC_KEPT_STEPS + s->index : 0;
}

/* Where the state of a head before a step, a multiple of REC_KEPT_STEPS, is; a float's index. */
static inline rec_size rec_kept_at(const rec_problem *p, const rec_sequence *s, rec_size step,
                                   rec_size h) {
    const rec_view *v = &p->view[REC_STATES];
    const rec_size row = rec_first_row(p, s) + step / REC_KEPT_STEPS;
    return s->batch * v->stride[0] + row * p->kept_stride + h * v->stride[1];
}

static inline void rec_clear_rows(const rec_problem *p, rec_size first, rec_size end) {
    const rec_view *v = &p->view[REC_STATES];
    for (rec_size n = first * p->heads; n < end * p->heads; n++) {
        const rec_size at = n / p->heads * p->kept_stride + n % p->heads * v->stride[1];
        for (rec_size i = 0; i < p->key_size; i++)
            for (rec_size j = 0; j < p->value_size; j++)
                ejki_store_f64((ejk_dtype)v->dtype, v->data,
                               at + i * v->stride[2] + j * v->stride[3], 0);
    }
}

/* Rows of no sequence: there are some among packed ones only. */
static inline void rec_clear_kept(const rec_problem *p) {
    rec_size done = 0;
    for (rec_size n = 0; n < p->sequences && p->packed && p->view[REC_STATES].present; n++) {
        const rec_sequence s = rec_sequence_of(p, n);
        const rec_size first = rec_first_row(p, &s);
        rec_clear_rows(p, done, first);
        done = first + ejki_cdiv(s.end - s.begin, REC_KEPT_STEPS);
    }
    if (p->packed && p->view[REC_STATES].present) rec_clear_rows(p, done, p->kept_rows);
}

#endif
