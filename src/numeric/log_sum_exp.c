/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of exponentials as a largest element and a sum relative to it. Each result is taken in pieces of
 * fixed size that are joined in their order, so that the number of threads changes nothing.
 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* sum(exp(x)) = sum * exp(top); what has not met a number yet is exp(−∞). */
typedef struct total {
    double top, sum;
    bool nan;
} total;

typedef struct reduction {
    ejk_tensor x; /* kept axes first, then those reduced */
    int64_t outputs, reduced;
    int64_t pieces;   /* of each output */
    int64_t per_task; /* pieces */
    total *totals;    /* outputs × pieces */
} reduction;

static void add(total *to, total more) {
    to->nan |= more.nan;
    double top = fmax(to->top, more.top);
    if (!isinf(top)) {
        to->sum = to->sum * exp(to->top - top) + more.sum * exp(more.top - top);
    }
    to->top = top;
}

static total total_of(const double *values, int64_t count) {
    total t = {.top = -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        t.nan |= isnan(values[i]);
        t.top = values[i] > t.top ? values[i] : t.top;
    }
    if (t.nan || isinf(t.top)) return t;
    for (int64_t i = 0; i < count; i++) t.sum += exp(values[i] - t.top);
    return t;
}

static double result_of(total t) {
    if (t.nan) return NAN;
    return isinf(t.top) ? t.top : t.top + log(t.sum);
}

static void reduce_pieces(void *argument, int64_t index) {
    reduction *r = argument;
    int64_t end = ejki_min((index + 1) * r->per_task, r->outputs * r->pieces);
    for (int64_t item = index * r->per_task; item < end; item++) {
        int64_t output = item / r->pieces, at = item % r->pieces * EJKI_TASK;
        int64_t stop = ejki_min(at + EJKI_TASK, r->reduced);
        total sum = {.top = -INFINITY};
        for (int64_t count; at < stop; at += count) {
            double values[EJKI_RUN];
            count = ejki_min(stop - at, EJKI_RUN);
            ejki_array_load(&r->x, output * r->reduced + at, count, EJK_DTYPE_F64, values);
            add(&sum, total_of(values, count));
        }
        r->totals[item] = sum;
    }
}

static ejk_status mark_axes(int32_t rank, const int32_t *axes, int32_t count, bool *marked) {
    if (count < 0 || (count > 0 && !axes)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "axis_count is %" PRId32 " with axes %s, expected as many as axes has",
                         count, axes ? "given" : "NULL");
    }
    for (int32_t i = 0; i < rank; i++) marked[i] = count == 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t axis;
        EJKI_TRY(ejki_array_axis(axes[i], rank, &axis));
        if (marked[axis]) {
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "axes has axis %" PRId32 " twice, expected each once", axis);
        }
        marked[axis] = true;
    }
    return EJK_OK;
}

/* Splits `x` by its marks; gives the shape that the result has to have. */
static reduction split(const ejk_tensor *x, const bool *marked, bool keepdims, int32_t *rank,
                       int64_t *shape) {
    reduction r = {.x = *x, .outputs = 1, .reduced = 1};
    int32_t at = 0;
    *rank = 0;
    for (int32_t i = 0; i < x->rank; i++) {
        if (keepdims || !marked[i]) shape[(*rank)++] = marked[i] ? 1 : x->shape[i];
    }
    for (int reduced = 0; reduced <= 1; reduced++) {
        for (int32_t i = 0; i < x->rank; i++) {
            if (marked[i] != (reduced == 1)) continue;
            r.x.shape[at] = x->shape[i];
            r.x.strides[at++] = x->strides[i];
            *(reduced ? &r.reduced : &r.outputs) *= x->shape[i];
        }
    }
    r.x = ejki_array_flat(&r.x);
    r.pieces = ejki_max(1, ejki_cdiv(r.reduced, EJKI_TASK));
    r.per_task = r.pieces > 1 ? 1 : ejki_max(1, EJKI_TASK / ejki_max(1, r.reduced));
    return r;
}

/* Joins the pieces of each output. All of `x` has been read. */
static void store_results(const reduction *r, const ejk_tensor *out) {
    for (int64_t at = 0, count; at < r->outputs; at += count) {
        double results[EJKI_RUN];
        count = ejki_min(r->outputs - at, EJKI_RUN);
        for (int64_t i = 0; i < count; i++) {
            const total *pieces = r->totals + (at + i) * r->pieces;
            total sum = pieces[0];
            for (int64_t piece = 1; piece < r->pieces; piece++) add(&sum, pieces[piece]);
            results[i] = result_of(sum);
        }
        ejki_array_store(out, at, count, EJK_DTYPE_F64, results);
    }
}

static ejk_status no_memory(int64_t count) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the sums of %" PRId64 " pieces",
                     count);
}

ejk_status ejk_log_sum_exp(const ejk_tensor *x, const int32_t *axes, int32_t axis_count,
                           bool keepdims, ejk_threads *threads, const ejk_tensor *out) {
    bool marked[EJK_MAX_RANK];
    EJKI_TRY(ejki_argument_input(x, "x"));
    EJKI_TRY(ejki_array_floating_output(out, "out"));
    EJKI_TRY(mark_axes(x->rank, axes, axis_count, marked));
    int32_t rank;
    int64_t shape[EJK_MAX_RANK], count, bytes;
    reduction r = split(x, marked, keepdims, &rank, shape);
    EJKI_TRY(ejki_tensor_expect_shape(out, "out", rank, shape));
    if (r.outputs == 0) return EJK_OK;
    if (!ejki_mul(r.outputs, r.pieces, &count) ||
        !ejki_mul(count, (int64_t)sizeof *r.totals, &bytes)) {
        return no_memory(r.outputs);
    }
    r.totals = malloc((size_t)bytes);
    if (!r.totals) return no_memory(count);
    ejk_parallel_for(threads, ejki_cdiv(count, r.per_task), reduce_pieces, &r);
    store_results(&r, out);
    free(r.totals);
    return EJK_OK;
}
