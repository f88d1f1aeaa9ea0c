/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm and its gradient as the formulas read, in double precision. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/problem.cuh"
#include "tensor/access.h"

static double load(const norm_problem *p, const norm_rows *rows, norm_size row, norm_size d) {
    return ejki_load_f64((ejk_dtype)p->dtype, rows->data, norm_at(p, rows, row) + d);
}
static void store(const norm_problem *p, const norm_rows *rows, norm_size row, norm_size d,
                  double value) {
    if (rows->data)
        ejki_store_f64((ejk_dtype)p->dtype, rows->data, norm_at(p, rows, row) + d, value);
}
static double weight(const norm_problem *p, norm_size d) {
    return p->has_weight ? ejki_load_f64((ejk_dtype)p->dtype, p->weight, d) : 1;
}

/* act and its slope at an element's gate. */
static double gate(const norm_problem *p, norm_size row, norm_size d, double *slope) {
    *slope = 0;
    if (!p->has_gate) return 1;
    const double z = load(p, &p->gate, row, d), s = 1 / (1 + exp(-z));
    *slope = p->silu ? s * (1 + z * (1 - s)) : s * (1 - s);
    return p->silu ? z / (1 + exp(-z)) : s;
}

/* What is normed. */
static double element(const norm_problem *p, norm_size row, norm_size d) {
    double slope;
    return load(p, &p->x, row, d) * (p->norm_first ? 1 : gate(p, row, d, &slope));
}

static double scale_of(const norm_problem *p, norm_size row, norm_size first) {
    double sum = 0;
    for (norm_size d = first; d < first + p->group; d++)
        sum += element(p, row, d) * element(p, row, d);
    return 1 / sqrt(sum / (double)p->group + p->exact_eps);
}

static void forward(const norm_problem *p, norm_size row, norm_size first) {
    const double scale = scale_of(p, row, first);
    double slope;
    for (norm_size d = first; d < first + p->group; d++)
        store(p, &p->y, row, d,
              element(p, row, d) * scale * weight(p, d) *
                  (p->norm_first ? gate(p, row, d, &slope) : 1));
}

static void backward(const norm_problem *p, norm_size row, norm_size first, double *d_weight) {
    const double scale = scale_of(p, row, first);
    double mean = 0, slope;
    for (int pass = 0; pass < 2; pass++)
        for (norm_size d = first; d < first + p->group; d++) {
            const double dy = load(p, &p->y, row, d), w = weight(p, d), a = gate(p, row, d, &slope);
            const double normed = element(p, row, d) * scale;
            const double d_normed = dy * w * (p->norm_first ? a : 1);
            if (pass == 0) {
                mean += d_normed * normed / (double)p->group;
                continue;
            }
            const double d_element = scale * (d_normed - normed * mean);
            d_weight[d] += dy * normed * (p->norm_first ? a : 1);
            store(p, &p->d_x, row, d, d_element * (p->norm_first ? 1 : a));
            store(p, &p->d_gate, row, d,
                  slope * (p->norm_first ? dy * w * normed : d_element * load(p, &p->x, row, d)));
        }
}

static ejk_status run(const ejk_run *run) {
    const norm_problem *p = run->problem;
    double *d_weight = calloc((size_t)p->width + 1, sizeof *d_weight);
    if (!d_weight) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for gradients of weight");
    for (norm_size row = 0; row < p->rows; row++)
        for (norm_size first = 0; first < p->width; first += p->group)
            if (p->gradient)
                backward(p, row, first, d_weight);
            else
                forward(p, row, first);
    for (norm_size d = 0; d < p->width && p->d_weight; d++)
        ejki_store_f64((ejk_dtype)p->dtype, p->d_weight, d, d_weight[d]);
    free(d_weight);
    return EJK_OK;
}

EJKI_DECLARE(gated_rms_norm_reference, .version = 1, .run = run)
EJKI_DECLARE(gated_rms_norm_vjp_reference, .version = 1, .run = run)
