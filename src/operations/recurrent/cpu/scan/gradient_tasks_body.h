/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as tasks, a group of heads of a sequence each, and what is summed up over heads and tokens. */
#ifndef EJKI_RECURRENT_GRADIENT_TASKS_BODY_H
#define EJKI_RECURRENT_GRADIENT_TASKS_BODY_H

#include <string.h>

#include <ejkernel/registry.h>

#include "kernels/simd/subnormal.h"
#include "operations/recurrent/cpu/scan/gradient_put_body.h"

/* Heads h to h + span - 1 of sequence q. */
typedef void (*back_unit_fn)(head_work *w);

/* A kernel's work on a problem by `threads`, which begins with a head_work, in `memory` or nowhere; and how many floats
 * that has. */
typedef void (*back_then_fn)(head_work *w, rec_size floats, void *argument);
typedef void (*back_work_fn)(const rec_problem *p, rec_size threads, float *memory,
                             back_then_fn then, void *argument);

typedef struct back_kernel {
    back_work_fn work;
    back_unit_fn unit;
} back_kernel;

/* A run: a worker's floats; sums, in places of sum_floats; whether parts of groups are tasks, rather than groups. */
typedef struct back_call {
    const ejk_run *run;
    const back_kernel *kernel;
    const rec_problem *p;
    rec_size floats, sum_floats;
    float *sums, *partial;
    bool shares;
} back_call;

/* ---- Sums over heads --------------------------------------------------------------------------------- */

/*
 * Parts of a group, each with sums of its own, which are added up in order: so a group can be shared out, and bits do
 * not depend on whether it is. More of them take more memory, and more time to add up.
 */
enum { MOST_PARTS = 4 };
static rec_size parts_of_group(const head_work *w) {
    return sum_floats(w) > 0 ? ejki_min(w->in_group / w->span, MOST_PARTS) : 1;
}

/* Where workers are more than groups, parts are tasks. */
static bool shares_groups(const head_work *w, rec_size workers) {
    return workers > w->p->sequences * w->groups;
}

/* Of a task that is a part, or of a worker: the group's, and those of another part. */
static rec_size sum_places(const head_work *w, rec_size workers) {
    const rec_size parts = parts_of_group(w);
    if (shares_groups(w, workers)) return w->p->sequences * w->groups * parts;
    return workers * ejki_min(parts, 2);
}

static void clear_sums(const head_work *w) {
    for (int role = REC_QUERY; role <= REC_VALUE; role++)
        memset(w->sum[role], 0,
               (size_t)((w->q.end - w->q.begin) * sum_pitch(w, role)) * sizeof(float));
}

/* Adds the sums `by` floats on, of tokens `first` to end - 1. */
static void add_sums(const head_work *w, rec_size by, rec_size first, rec_size end) {
    for (int role = REC_QUERY; role <= REC_VALUE; role++) {
        const rec_size pitch = sum_pitch(w, role);
        float *to = w->sum[role] + (first - w->q.begin) * pitch;
        for (rec_size i = 0; i < (end - first) * pitch; i += VL)
            v_store(to + i, v_add(v_load(to + i), v_load(to + by + i)));
    }
}

/* Of all query, key and value heads of a group, tokens `first` to end - 1. */
static void put_sums(const head_work *w, rec_size group, rec_size first, rec_size end) {
    const rec_problem *p = w->p;
    for (int role = REC_QUERY; role <= REC_VALUE; role++) {
        const rec_size size = role == REC_VALUE ? p->value_size : p->key_size;
        const rec_size pitch = role == REC_VALUE ? w->value_pitch : w->pitch;
        const rec_view *v = &p->view[REC_D(role)];
        for (rec_size t = first; t < end && v->present; t++)
            for (rec_size n = 0; n < w->shared[role]; n++) {
                const float *from =
                    w->sum[role] + (t - w->q.begin) * sum_pitch(w, role) + n * pitch;
                const rec_size at = rec_at(v, w->q.batch, t, group * w->shared[role] + n);
                for (rec_size c = 0; c < size; c += VL)
                    put_part(p, role, at, c, size, v_load(from + c));
            }
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static void back_part(head_work *w, const back_call *c, rec_size group, rec_size part) {
    const rec_size spans = w->in_group / w->span, parts = parts_of_group(w);
    clear_sums(w);
    for (rec_size n = spans * part / parts; n < spans * (part + 1) / parts; n++) {
        const rec_size first = group * w->in_group + n * w->span;
        for (w->h = first; w->h < first + w->span; w->h++)
            memset(part_of(w), 0, (size_t)partial_size(w->p) * sizeof(float));
        w->h = first;
        c->kernel->unit(w);
    }
}

static void back_group(head_work *w, const back_call *c, rec_size group, float *sums) {
    for (rec_size part = 0; part < parts_of_group(w); part++) {
        place_sums(w, part > 0 ? sums + c->sum_floats : sums);
        back_part(w, c, group, part);
        place_sums(w, sums);
        if (part > 0) add_sums(w, c->sum_floats, w->q.begin, w->q.end);
    }
    put_sums(w, group, w->q.begin, w->q.end);
}

/* Tokens in no sequence. */
static void clear_rest(head_work *w) {
    w->q = (rec_sequence){.begin = rec_covered(w->p), .end = w->p->tokens};
    clear_sums(w);
    for (rec_size group = 0; group < w->groups && w->p->heads > 0; group++)
        put_sums(w, group, w->q.begin, w->q.end);
    for (rec_size t = w->q.begin; t < w->q.end; t++)
        for (w->h = 0; w->h < w->p->heads; w->h++) put_nothing(w, t);
}

typedef struct back_worker {
    const back_call *call;
    int64_t index;
} back_worker;

static void back_tasks(head_work *w, rec_size floats, void *argument) {
    const back_worker *worker = argument;
    const back_call *c = worker->call;
    const rec_problem *p = w->p;
    const rec_size workers = c->run->workers, index = worker->index;
    const rec_size parts = c->shares ? parts_of_group(w) : 1;
    const rec_size tasks = p->heads > 0 ? p->sequences * w->groups * parts : 0;
    (void)floats;
    w->partial = c->partial;
    for (rec_size n = tasks * index / workers; n < tasks * (index + 1) / workers; n++) {
        const rec_size group = n / parts % w->groups;
        w->q = rec_sequence_of(p, n / parts / w->groups);
        if (!c->shares) {
            back_group(w, c, group,
                       c->sums + index * ejki_min(parts_of_group(w), 2) * c->sum_floats);
            continue;
        }
        place_sums(w, c->sums + n * c->sum_floats);
        back_part(w, c, group, n % parts);
    }
}

static void do_tasks(void *argument, int64_t index) {
    const back_call *c = argument;
    back_worker worker = {c, index};
    const unsigned mode = flush_subnormals();
    c->kernel->work(c->p, c->run->workers, (float *)c->run->workspace + index * c->floats,
                    back_tasks, &worker);
    restore_subnormals(mode);
}

/* Groups that were shared out are added up, a range of tokens for each worker. Then the rest, in sums nobody needs. */
static void put_tasks(head_work *w, rec_size floats, void *argument) {
    const back_worker *worker = argument;
    const back_call *c = worker->call;
    const rec_problem *p = w->p;
    const rec_size parts = parts_of_group(w), workers = c->run->workers, index = worker->index;
    (void)floats;
    for (rec_size n = 0; n < p->sequences * w->groups && c->shares && p->heads > 0; n++) {
        w->q = rec_sequence_of(p, n / w->groups);
        const rec_size steps = w->q.end - w->q.begin;
        const rec_size first = w->q.begin + steps * index / workers;
        const rec_size end = w->q.begin + steps * (index + 1) / workers;
        place_sums(w, c->sums + n * parts * c->sum_floats);
        for (rec_size part = 1; part < parts; part++) add_sums(w, part * c->sum_floats, first, end);
        put_sums(w, n % w->groups, first, end);
    }
}

static void do_puts(void *argument, int64_t index) {
    const back_call *c = argument;
    back_worker worker = {c, index};
    c->kernel->work(c->p, c->run->workers, NULL, put_tasks, &worker);
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

/* ---- A run ------------------------------------------------------------------------------------------- */

typedef struct back_plan {
    int32_t threads;
    ejk_launch *launch;
} back_plan;

/* Workers, and their memory, with sums and the parts of all heads behind it. */
static void plan_tasks(head_work *w, rec_size floats, void *argument) {
    const back_plan *plan = argument;
    const rec_problem *p = w->p;
    const rec_size tasks = p->sequences * w->groups * parts_of_group(w);
    const rec_size workers = ejki_max(ejki_min(plan->threads, tasks), 1);
    const rec_size sums = ejki_max(sum_places(w, workers), 1) * sum_floats(w);
    plan->launch->workers = (int32_t)workers;
    plan->launch->workspace_bytes =
        (size_t)(workers * floats + sums + p->sequences * p->heads * partial_size(p)) *
        sizeof(float);
}

static void begin_call(head_work *w, rec_size floats, void *argument) {
    back_call *c = argument;
    const rec_size workers = c->run->workers;
    c->floats = floats;
    c->sum_floats = sum_floats(w);
    c->shares = shares_groups(w, workers);
    c->sums = (float *)c->run->workspace + workers * floats;
    c->partial = c->sums + ejki_max(sum_places(w, workers), 1) * c->sum_floats;
}

static void end_call(head_work *w, rec_size floats, void *argument) {
    const back_call *c = argument;
    (void)floats;
    place_sums(w, c->sums);
    clear_rest(w);
    put_totals(c->p, c->partial);
}

static ejk_status back_prepare(const back_kernel *kernel, const rec_problem *p, int32_t threads,
                               ejk_launch *launch) {
    back_plan plan = {threads, launch};
    kernel->work(p, threads, NULL, plan_tasks, &plan);
    return EJK_OK;
}

static ejk_status back_run(const back_kernel *kernel, const ejk_run *run) {
    back_call c = {.run = run, .kernel = kernel, .p = run->problem};
    kernel->work(c.p, run->workers, NULL, begin_call, &c);
    ejk_parallel_for(run->threads, run->workers, do_tasks, &c);
    if (c.shares) ejk_parallel_for(run->threads, run->workers, do_puts, &c);
    kernel->work(c.p, run->workers, NULL, end_call, &c);
    return EJK_OK;
}

#endif
