/* SPDX-License-Identifier: Apache-2.0 */
/* Errors in tasks of fixed size, joined in order: the number of threads changes nothing. */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct errors {
    double largest, difference_squares, reference_squares;
} errors;

typedef struct measurement {
    ejk_tensor reference, value;
    int64_t count;
    errors *parts; /* one a task */
} measurement;

/* NaN stays, whatever comes after it. */
static void keep_largest(double *largest, double more) {
    if (!(more <= *largest) && !isnan(*largest)) *largest = more;
}

static void measure_part(void *argument, int64_t index) {
    const measurement *m = argument;
    int64_t end = ejki_min((index + 1) * EJKI_TASK, m->count);
    errors sum = {0};
    for (int64_t at = index * EJKI_TASK, count; at < end; at += count) {
        double expected[EJKI_RUN], got[EJKI_RUN];
        count = ejki_min(end - at, EJKI_RUN);
        ejki_array_load(&m->reference, at, count, EJK_DTYPE_F64, expected);
        ejki_array_load(&m->value, at, count, EJK_DTYPE_F64, got);
        for (int64_t i = 0; i < count; i++) {
            double difference = fabs(expected[i] - got[i]);
            keep_largest(&sum.largest, difference);
            sum.difference_squares += difference * difference;
            sum.reference_squares += expected[i] * expected[i];
        }
    }
    m->parts[index] = sum;
}

static ejk_status measure(const ejk_tensor *reference, const ejk_tensor *value,
                          ejk_threads *threads, errors *out) {
    EJKI_TRY(ejki_argument_input(reference, "reference"));
    EJKI_TRY(ejki_argument_input(value, "value"));
    EJKI_TRY(ejki_tensor_expect_shape(value, "value", reference->rank, reference->shape));
    measurement m = {.reference = ejki_array_flat(reference),
                     .value = ejki_array_flat(value),
                     .count = ejk_tensor_count(reference)};
    *out = (errors){0};
    if (m.count == 0) return EJK_OK;
    int64_t tasks = ejki_cdiv(m.count, EJKI_TASK);
    m.parts = calloc((size_t)tasks, sizeof *m.parts);
    if (!m.parts) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the errors of %" PRId64 " parts",
                         tasks);
    }
    ejk_parallel_for(threads, tasks, measure_part, &m);
    for (int64_t i = 0; i < tasks; i++) {
        keep_largest(&out->largest, m.parts[i].largest);
        out->difference_squares += m.parts[i].difference_squares;
        out->reference_squares += m.parts[i].reference_squares;
    }
    free(m.parts);
    return EJK_OK;
}

static double ratio_of(const errors *e, int64_t count) {
    if (count == 0) return 0;
    double difference = sqrt(e->difference_squares / (double)count);
    return difference / (sqrt(e->reference_squares / (double)count) + 1e-8);
}

static ejk_status require_out(const void *out) {
    return out ? EJK_OK : ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
}

ejk_status ejk_get_abs_err(const ejk_tensor *reference, const ejk_tensor *value,
                           ejk_threads *threads, double *out) {
    errors e;
    EJKI_TRY(require_out(out));
    EJKI_TRY(measure(reference, value, threads, &e));
    *out = e.largest;
    return EJK_OK;
}

ejk_status ejk_get_err_ratio(const ejk_tensor *reference, const ejk_tensor *value,
                             ejk_threads *threads, double *out) {
    errors e;
    EJKI_TRY(require_out(out));
    EJKI_TRY(measure(reference, value, threads, &e));
    *out = ratio_of(&e, ejk_tensor_count(reference));
    return EJK_OK;
}

ejk_status ejk_assert_close(const char *prefix, const ejk_tensor *reference,
                            const ejk_tensor *value, double ratio,
                            const ejk_assert_close_options *options,
                            ejk_assert_close_report *report) {
    static const ejk_assert_close_options defaults = {0};
    if (!options) options = &defaults;
    double err_atol = options->err_atol.set ? options->err_atol.value : 1e-6;
    errors e;
    EJKI_TRY(measure(reference, value, options->threads, &e));
    if (!(ratio >= 0) || !(err_atol >= 0)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ratio is %g and err_atol %g, expected at least 0", ratio, err_atol);
    }
    ejk_assert_close_report found = {.abs_err = e.largest,
                                     .err_ratio = ratio_of(&e, ejk_tensor_count(reference))};
    bool equal = found.abs_err <= err_atol;
    bool lenient = options->warning || found.err_ratio < 0.01 || found.abs_err <= 0.3;
    found.warned = !equal && lenient && !(found.err_ratio <= ratio);
    if (report) *report = found;
    if (equal || lenient || found.err_ratio < ratio) return EJK_OK;
    return ejki_fail(EJK_STATUS_MISMATCH,
                     "%.200s%svalue is off by %g at most and by a ratio of %g, expected below %g",
                     prefix ? prefix : "", prefix && *prefix ? ": " : "", found.abs_err,
                     found.err_ratio, ratio);
}
