/* SPDX-License-Identifier: Apache-2.0 */
/* Gate and norm of state_space_v2 as the formulas read, in double precision, forwards and backwards. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/state_space_v2/problem.cuh"
#include "tensor/access.h"

/* Number i of all of a row. */
static double load(const ssd_problem *p, const rec_view *v, rec_size n, rec_size i) {
    const rec_size size = p->recurrence.value_size;
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, ssd_at(p, v, n, i / size) + i % size);
}
static void store(const ssd_problem *p, const rec_view *v, rec_size n, rec_size i, double value) {
    const rec_size size = p->recurrence.value_size;
    if (v->present)
        ejki_store_f64((ejk_dtype)v->dtype, v->data, ssd_at(p, v, n, i / size) + i % size, value);
}
static double weight(const ssd_problem *p, rec_size i) {
    return p->weight.present ? ejki_load_f64((ejk_dtype)p->weight.dtype, p->weight.data, i) : 1;
}

/* silu of the gate, and its slope. */
static double gate(const ssd_problem *p, rec_size n, rec_size i, double *slope) {
    *slope = 0;
    if (!p->has_gate) return 1;
    const double z = load(p, &p->gate, n, i), s = 1 / (1 + exp(-z));
    *slope = s * (1 + z * (1 - s));
    return z / (1 + exp(-z));
}

/* What is normed. */
static double normed(const ssd_problem *p, rec_size n, rec_size i) {
    double slope;
    return load(p, &p->y, n, i) * (p->norm_first ? 1 : gate(p, n, i, &slope));
}

static double scale_of(const ssd_problem *p, rec_size n, rec_size first) {
    double sum = 0;
    if (!p->has_norm) return 1;
    for (rec_size i = first; i < first + p->group; i++) sum += normed(p, n, i) * normed(p, n, i);
    return 1 / sqrt(sum / (double)p->group + p->eps);
}

/* Results take the place of what they are made of: scales come first. */
static void forward(const ssd_problem *p, rec_size n, rec_size first) {
    const double scale = scale_of(p, n, first);
    double slope;
    for (rec_size i = first; i < first + p->group; i++) {
        const double a = gate(p, n, i, &slope), y = load(p, &p->y, n, i);
        store(p, &p->result, n, i, y * a * scale * weight(p, i));
    }
}

static ejk_status run(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    for (rec_size n = 0; n < p->recurrence.batch * p->recurrence.tokens; n++)
        for (rec_size i = 0; i < ssd_width(p); i += p->group) {
            if (ssd_counts(p, n)) {
                forward(p, n, i);
                continue;
            }
            for (rec_size k = i; k < i + p->group; k++) store(p, &p->result, n, k, 0);
        }
    return EJK_OK;
}

/* Cotangent of what the norm makes, without the weight. */
static double delta(const ssd_problem *p, rec_size n, rec_size i) {
    double slope;
    return load(p, &p->result, n, i) * (p->norm_first ? gate(p, n, i, &slope) : 1);
}

static void backward(const ssd_problem *p, rec_size n, rec_size first, double *d_weight) {
    const double scale = scale_of(p, n, first);
    double mean = 0;
    for (rec_size i = first; i < first + p->group && p->has_norm; i++)
        mean += delta(p, n, i) * weight(p, i) * normed(p, n, i) * scale / (double)p->group;
    for (rec_size i = first; i < first + p->group; i++) {
        double slope, d_u;
        const double a = gate(p, n, i, &slope), dy = load(p, &p->result, n, i), w = weight(p, i);
        const double y = p->has_norm || p->d_gate.present ? load(p, &p->y, n, i) : 0;
        const bool first_normed = p->has_norm && p->norm_first;
        const double unit = p->has_norm ? normed(p, n, i) * scale : 0;
        d_u = p->has_norm ? scale * (delta(p, n, i) * w - unit * mean) : dy;
        d_weight[i] += p->has_norm ? delta(p, n, i) * unit : 0;
        store(p, &p->d_gate, n, i, slope * (first_normed ? dy * w * unit : d_u * y));
        store(p, &p->y, n, i, first_normed ? d_u : d_u * a);
    }
}

static ejk_status run_vjp(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    double *d_weight = calloc((size_t)ssd_width(p) + 1, sizeof *d_weight);
    if (!d_weight) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for d_rmsnorm_weight");
    for (rec_size n = 0; n < p->recurrence.batch * p->recurrence.tokens; n++)
        for (rec_size i = 0; i < ssd_width(p); i += p->group) {
            if (ssd_counts(p, n)) {
                backward(p, n, i, d_weight);
                continue;
            }
            for (rec_size k = i; k < i + p->group; k++) store(p, &p->d_gate, n, k, 0);
        }
    for (rec_size i = 0; i < ssd_width(p) && p->d_weight.present; i++)
        ejki_store_f64((ejk_dtype)p->d_weight.dtype, p->d_weight.data, i, d_weight[i]);
    free(d_weight);
    return EJK_OK;
}

EJKI_DECLARE(state_space_v2_gate_reference, .version = 1, .run = run)
EJKI_DECLARE(state_space_v2_gate_vjp_reference, .version = 1, .run = run_vjp)
