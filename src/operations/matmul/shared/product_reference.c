/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products as the formula reads, an element at a time, in double precision. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/shared/product.cuh"
#include "operations/matmul/shared/quant.h"

#include <math.h>

static double load(const mm_view *v, mm_size index) {
    return v->ones ? 1 : ejki_load_f64((ejk_dtype)v->dtype, v->data, index);
}

static double gelu(double x) {
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}
/* (1 + tanh u) / 2 is 1 / (1 + e^(-2u)), where nothing cancels. */
static double gelu_tanh(double x) {
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
static double silu(double x, double slope) {
    return x / (1 + exp(-slope * x));
}

static double activate(const mm_product *p, double gate, double value) {
    const double limit = p->limit;
    switch (p->activation) {
    case MM_relu: return gate > 0 || isnan(gate) ? gate : 0;
    case MM_silu: return silu(gate, 1);
    case MM_gelu: return gelu(gate);
    case MM_gelu_tanh: return gelu_tanh(gate);
    case MM_swiglu: return silu(gate, 1) * value;
    case MM_geglu: return gelu(gate) * value;
    case MM_geglu_tanh: return gelu_tanh(gate) * value;
    case MM_swiglu_clamped:
        if (gate > limit) gate = limit;
        if (value > limit) value = limit;
        if (value < -limit) value = -limit;
        return silu(gate, 1.702) * (value + 1);
    default: return gate;
    }
}

/* Element (step, column) of b. */
static double load_b(const mm_product *p, const mm_segment *s, mm_size step, mm_size column) {
    if (!p->quant.present)
        return load(&p->b, s->b + mm_step(p, &p->b, step, p->b.row) + column * p->b.column);
    const mm_quant *q = &p->quant;
    const mm_size row = p->b.flipped ? column : step, at = p->b.flipped ? step : column;
    const ejki_quant_group g = ejki_quant_group_of(q, s->held, row, at / q->size);
    return (double)ejki_quant_value(q, &g, ejki_quant_code_at(q, s->held, row, at));
}

/* An element of a row of a, rounded in its block unless the row is one that is not (packed.h). */
static double rounded(const mm_product *p, mm_size row, mm_size step, double a) {
    const mm_size group = step / p->quant.size * p->quant.size;
    const mm_size first = group + (step - group) / PACKED_BLOCK * PACKED_BLOCK;
    const mm_size end = mm_least(mm_least(first + PACKED_BLOCK, group + p->quant.size), p->depth);
    float most = 0;
    for (mm_size k = 0; k < p->depth; k++)
        if (!ejki_packed_fit((float)load(&p->a, row + k))) return a;
    for (mm_size k = first; k < end; k++) most = fmaxf(most, fabsf((float)load(&p->a, row + k)));
    if (most == 0) return a;
    const float scale = most / 127.0f;
    return (double)rintf((float)a * (127.0f / most)) * (double)scale;
}

static mm_size row_of_a(const mm_product *p, const mm_segment *s, mm_size i) {
    const mm_size row = s->first + i;
    return p->gather.present && p->split == MM_ROWS ? mm_number(&p->gather, row) : row;
}

/* Σ_k a · b + bias of a column of b. */
static double sum_of(const mm_product *p, const mm_segment *s, mm_size i, mm_size column) {
    double sum = 0;
    for (mm_size k = 0; k < s->depth; k++) {
        const mm_size step = s->step + k;
        const mm_size a_row = row_of_a(p, s, i);
        const mm_size a_step =
            p->gather.present && p->split == MM_DEPTH ? mm_number(&p->gather, step) : step;
        double a = load(&p->a, s->a + a_row * p->a.row + mm_step(p, &p->a, a_step, p->a.column));
        if (p->quant.rounds) a = rounded(p, s->a + a_row * p->a.row, step, a);
        double b = load_b(p, s, step, column);
        if (p->scale.present && p->split != MM_DEPTH)
            b *= load(&p->scale, mm_scale_at(p, s->held, step, column));
        sum += a * b;
    }
    sum *= p->alpha;
    if (p->bias.present) sum += load(&p->bias, s->held * p->bias.group + column * p->bias.column);
    return sum;
}

static double element(const mm_product *p, const mm_segment *s, mm_size i, mm_size j) {
    double factor = 1;
    if (s->idle || mm_is_empty(p, s)) return 0;
    if (p->scale.present && p->split == MM_DEPTH)
        factor = load(&p->scale, mm_scale_at(p, s->held, i, j));
    if (!p->gated) return factor * activate(p, sum_of(p, s, i, j), 0);
    const mm_size gate = p->interleaved ? 2 * j : j,
                  value = p->interleaved ? 2 * j + 1 : p->columns + j;
    return activate(p, sum_of(p, s, i, gate), sum_of(p, s, i, value));
}

static void plain(const mm_product *p, const mm_segment *s) {
    for (mm_size i = 0; i < s->rows; i++)
        for (mm_size j = 0; j < p->columns; j++) {
            double value = element(p, s, i, j);
            if (p->add.present)
                value += load(&p->add, s->add + (s->first + i) * p->add.row + j * p->add.column);
            ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data,
                           s->out + (s->first + i) * p->out.row + j * p->out.column, value);
        }
}

static void each_segment(const mm_product *p, mm_size j, double *sums) {
    mm_segment s = {0};
    for (mm_size g = 0; g < mm_segments(p); g++) {
        mm_take(p, g, &s);
        if (s.idle) continue;
        for (mm_size i = 0; i < s.rows; i++) {
            const double weight =
                p->weight_type ? ejki_load_f64((ejk_dtype)p->weight_type, p->weight, s.first + i)
                               : 1;
            sums[mm_number(&p->scatter, s.first + i)] += weight * element(p, &s, i, j);
        }
    }
}

/* A column at a time, rows in order. */
static void scattered(const mm_product *p, double *sums) {
    for (mm_size j = 0; j < p->columns; j++) {
        memset(sums, 0, (size_t)p->out_rows * sizeof *sums);
        each_segment(p, j, sums);
        for (mm_size i = 0; i < p->out_rows; i++) {
            if (p->add.present) sums[i] += load(&p->add, i * p->add.row + j * p->add.column);
            ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data, i * p->out.row + j * p->out.column,
                           sums[i]);
        }
    }
}

/* What result (i, j) of a block of rows counts times. */
static double fold_of(const mm_product *p, const mm_segment *s, mm_size block, mm_size i,
                      mm_size j) {
    if (p->fold_by) return (double)ejki_quant_slope(&p->quant, p->fold_by, j, block, i);
    return load(&p->fold, s->held * p->fold.group + i * p->fold.row + j * p->fold.column);
}

/* Results times other elements, summed over the rows of a block. */
static void folded(const mm_product *p, const mm_segment *s) {
    for (mm_size q = 0; q < p->out_rows; q++)
        for (mm_size j = 0; j < p->columns; j++) {
            double sum = 0;
            const mm_size end = mm_is_empty(p, s) ? 0 : mm_least(p->rows, (q + 1) * p->block);
            for (mm_size i = q * p->block; i < end; i++)
                sum += element(p, s, i, j) * fold_of(p, s, q, i, j);
            ejki_store_f64((ejk_dtype)p->out.dtype, p->out.data,
                           s->out + q * p->out.row + j * p->out.column, sum);
        }
}

static ejk_status prepare(const void *problem_, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const mm_problem *problem = problem_;
    for (int n = 0; n < problem->count; n++)
        if (problem->product[n].scatter.present)
            launch->workspace_bytes = (size_t)problem->product[n].out_rows * sizeof(double);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const mm_problem *problem = run->problem;
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        mm_segment s = {0};
        if (!p->has_out) continue;
        if (p->scatter.present) {
            scattered(p, run->workspace);
            continue;
        }
        for (mm_size g = 0; g < mm_segments(p); g++) {
            mm_take(p, g, &s);
            if (p->split != MM_DEPTH || !s.idle) (p->fold.present ? folded : plain)(p, &s);
        }
    }
    return EJK_OK;
}

EJKI_DECLARE(matmul_reference, .version = 1, .prepare = prepare, .run = run)
