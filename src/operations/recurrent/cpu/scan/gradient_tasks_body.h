/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as tasks, a group of heads of a sequence each, and what is summed up over heads and tokens. */
#ifndef EJKI_RECURRENT_GRADIENT_TASKS_BODY_H
#define EJKI_RECURRENT_GRADIENT_TASKS_BODY_H

#include <string.h>

#include <ejkernel/registry.h>

#include "operations/recurrent/cpu/scan/gradient_put_body.h"

/* A kernel: head h of sequence q. */
typedef void (*back_head_fn)(head_work *w);

static void clear_sums(const head_work *w) {
    for (int role = REC_QUERY; role <= REC_VALUE && w->in_group > 1; role++)
        memset(w->sum[role], 0,
               (size_t)((w->q.end - w->q.begin) * sum_pitch(w, role)) * sizeof(float));
}

/* Sums over the heads of the group, of all its query, key and value heads. */
static void put_sums(head_work *w, rec_size group) {
    const rec_problem *p = w->p;
    for (int role = REC_QUERY; role <= REC_VALUE && w->in_group > 1; role++) {
        const rec_size size = role == REC_VALUE ? p->value_size : p->key_size;
        const rec_size pitch = role == REC_VALUE ? w->value_pitch : w->pitch;
        const rec_view *v = &p->view[REC_D(role)];
        for (rec_size t = w->q.begin; t < w->q.end && v->present; t++)
            for (rec_size n = 0; n < w->shared[role]; n++) {
                const float *from =
                    w->sum[role] + (t - w->q.begin) * sum_pitch(w, role) + n * pitch;
                const rec_size at = rec_at(v, w->q.batch, t, group * w->shared[role] + n);
                for (rec_size c = 0; c < size; c += VL)
                    put_part(p, role, at, c, size, v_load(from + c));
            }
    }
}

static void back_group(head_work *w, rec_size group, back_head_fn back_head) {
    clear_sums(w);
    for (rec_size n = 0; n < w->in_group; n++) {
        w->h = group * w->in_group + n;
        float *part = w->partial + (w->q.index * w->p->heads + w->h) * partial_size(w->p);
        memset(part, 0, (size_t)partial_size(w->p) * sizeof *part);
        back_head(w);
    }
    put_sums(w, group);
}

/* Tokens in no sequence. */
static void clear_rest(head_work *w) {
    w->q = (rec_sequence){.begin = rec_covered(w->p), .end = w->p->tokens};
    clear_sums(w);
    for (rec_size group = 0; group < w->groups && w->p->heads > 0; group++) put_sums(w, group);
    for (rec_size t = w->q.begin; t < w->q.end; t++)
        for (w->h = 0; w->h < w->p->heads; w->h++) put_nothing(w, t);
}

/* Those of worker `index` of `workers`, in its memory. */
static void back_tasks(head_work *w, int64_t index, int32_t workers, back_head_fn back_head) {
    const rec_problem *p = w->p;
    const rec_size tasks = p->heads > 0 ? p->sequences * w->groups : 0;
    for (rec_size n = tasks * index / workers; n < tasks * (index + 1) / workers; n++) {
        w->q = rec_sequence_of(p, n / w->groups);
        back_group(w, n % w->groups, back_head);
    }
    if (index == 0) clear_rest(w);
}

/* ---- Sums over tokens -------------------------------------------------------------------------------- */

/* Number `i` of the part of head h, over the sequences in their order; of one of them if it is not -1. */
static float total(const rec_problem *p, const float *partial, rec_size one, rec_size h,
                   rec_size i) {
    float sum = 0;
    for (rec_size n = one < 0 ? 0 : one; n < (one < 0 ? p->sequences : one + 1); n++)
        sum += partial[(n * p->heads + h) * partial_size(p) + i];
    return sum;
}

static void put_totals(const rec_problem *p, const float *partial) {
    static const int roles[] = {REC_A_LOG, REC_DT_BIAS, REC_BONUS, REC_SKIP};
    const rec_size first[] = {1, 2, 2 + row_pitch(p), 2 + 2 * row_pitch(p)};
    for (int k = 0; k < 4; k++) {
        const rec_view *v = &p->view[REC_D(roles[k])];
        for (rec_size h = 0; h < p->heads && v->present; h++)
            for (rec_size i = 0; i < (v->stride[3] ? p->key_size : 1); i++)
                element_store((ejk_dtype)v->dtype, v->data, h * v->stride[2] + i,
                              total(p, partial, -1, h, first[k] + i));
    }
    const rec_view *gamma = &p->view[REC_D(REC_GAMMA)];
    for (rec_size n = 0; n < (p->gamma_is_each ? p->sequences : 1) && gamma->present; n++)
        for (rec_size h = 0; h < p->heads; h++)
            element_store((ejk_dtype)gamma->dtype, gamma->data,
                          n * gamma->stride[0] + h * gamma->stride[2],
                          total(p, partial, p->gamma_is_each ? n : -1, h, 0));
}

/* Workers, and their memory of `floats` each, with the parts of all heads behind it. */
static void plan_tasks(const head_work *w, rec_size floats, int32_t threads, ejk_launch *launch) {
    const rec_problem *p = w->p;
    launch->workers = (int32_t)ejki_max(ejki_min(threads, p->sequences * w->groups), 1);
    launch->workspace_bytes =
        (size_t)(launch->workers * floats + p->sequences * p->heads * partial_size(p)) *
        sizeof(float);
}

#endif
