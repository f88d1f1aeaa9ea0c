/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison in tasks of fixed size, each with a finding of its own; the findings are joined in order. */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* How bad one element is, and where: first by grade, then by difference, then by place. */
typedef enum grade { CLOSE, OFF, OFF_INFINITE, OFF_NAN } grade;

typedef struct element {
    grade grade;
    double actual, expected, difference;
    int64_t at;
} element;

typedef struct finding {
    int64_t mismatches, nans, infinites; /* of the mismatches */
    int64_t actual_nans, expected_nans, actual_infinities, expected_infinities;
    int64_t first_mismatch, first_nan, first_infinite; /* −1: none */
    element worst;
} finding;

typedef struct comparison {
    ejk_tensor actual, expected;
    double rtol, atol;
    bool equal_nan;
    bool exact; /* both are integers */
    int64_t count;
    finding *findings;
} comparison;

/* What is loaded of a run: integers keep all their bits beside. */
typedef struct run {
    double actual[EJKI_RUN], expected[EJKI_RUN];
    int64_t exact_actual[EJKI_RUN], exact_expected[EJKI_RUN];
} run;

static double exact_difference(int64_t a, int64_t b) {
    return (double)(a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a);
}

static grade grade_of(const comparison *c, double actual, double expected, double difference) {
    if (isnan(actual) || isnan(expected)) {
        return isnan(actual) && isnan(expected) && c->equal_nan ? CLOSE : OFF_NAN;
    }
    if (isinf(actual) || isinf(expected)) {
        bool same = isinf(actual) && isinf(expected) && (actual > 0) == (expected > 0);
        return same ? CLOSE : OFF_INFINITE;
    }
    return difference <= c->atol + c->rtol * fabs(expected) ? CLOSE : OFF;
}

static bool is_worse(const element *a, const element *b) {
    return a->grade != b->grade ? a->grade > b->grade : a->difference > b->difference;
}

static void keep_first(int64_t *first, int64_t at) {
    if (*first < 0) *first = at;
}

static void judge(finding *f, element e) {
    f->actual_nans += isnan(e.actual);
    f->expected_nans += isnan(e.expected);
    f->actual_infinities += isinf(e.actual) != 0;
    f->expected_infinities += isinf(e.expected) != 0;
    if (e.grade != CLOSE) {
        f->mismatches++;
        keep_first(&f->first_mismatch, e.at);
    }
    if (e.grade == OFF_NAN) {
        f->nans++;
        keep_first(&f->first_nan, e.at);
    }
    if (e.grade == OFF_INFINITE) {
        f->infinites++;
        keep_first(&f->first_infinite, e.at);
    }
    if (is_worse(&e, &f->worst)) f->worst = e;
}

static const finding nothing = {
    .first_mismatch = -1, .first_nan = -1, .first_infinite = -1, .worst = {.at = -1}};

static void compare_part(void *argument, int64_t index) {
    const comparison *c = argument;
    int64_t end = ejki_min((index + 1) * EJKI_TASK, c->count);
    finding f = nothing;
    for (int64_t at = index * EJKI_TASK, count; at < end; at += count) {
        run r;
        count = ejki_min(end - at, EJKI_RUN);
        ejki_array_load(&c->actual, at, count, EJK_DTYPE_F64, r.actual);
        ejki_array_load(&c->expected, at, count, EJK_DTYPE_F64, r.expected);
        if (c->exact) {
            ejki_array_load(&c->actual, at, count, EJK_DTYPE_I64, r.exact_actual);
            ejki_array_load(&c->expected, at, count, EJK_DTYPE_I64, r.exact_expected);
        }
        for (int64_t i = 0; i < count; i++) {
            element e = {.actual = r.actual[i], .expected = r.expected[i], .at = at + i};
            e.difference = c->exact ? exact_difference(r.exact_actual[i], r.exact_expected[i])
                                    : fabs(e.actual - e.expected);
            e.grade = grade_of(c, e.actual, e.expected, e.difference);
            judge(&f, e);
        }
    }
    c->findings[index] = f;
}

static void join(finding *to, const finding *more) {
    to->mismatches += more->mismatches;
    to->nans += more->nans;
    to->infinites += more->infinites;
    to->actual_nans += more->actual_nans;
    to->expected_nans += more->expected_nans;
    to->actual_infinities += more->actual_infinities;
    to->expected_infinities += more->expected_infinities;
    keep_first(&to->first_mismatch, more->first_mismatch);
    keep_first(&to->first_nan, more->first_nan);
    keep_first(&to->first_infinite, more->first_infinite);
    if (is_worse(&more->worst, &to->worst)) to->worst = more->worst;
}

static ejk_status find(comparison *c, ejk_threads *threads, finding *out) {
    *out = nothing;
    if (c->count == 0) return EJK_OK;
    int64_t tasks = ejki_cdiv(c->count, EJKI_TASK);
    c->findings = calloc((size_t)tasks, sizeof *c->findings);
    if (!c->findings) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                         "no memory for the findings of %" PRId64 " parts", tasks);
    }
    ejk_parallel_for(threads, tasks, compare_part, c);
    for (int64_t i = 0; i < tasks; i++) join(out, &c->findings[i]);
    free(c->findings);
    return EJK_OK;
}

/* ---- Report and sentence --------------------------------------------------------------------------- */

static void set_index(const ejk_tensor *shape, int64_t at, int64_t *index) {
    for (int32_t i = 0; i < EJK_MAX_RANK; i++) index[i] = -1;
    if (at >= 0) ejki_array_index(shape, at, index);
}

static ejk_allclose_report report_of(const ejk_tensor *actual, const ejk_tensor *expected,
                                     const finding *f) {
    ejk_allclose_report report = {
        .count = ejk_tensor_count(actual),
        .mismatches = f->mismatches,
        .nan_mismatches = f->nans,
        .infinite_mismatches = f->infinites,
        .actual_nans = f->actual_nans,
        .expected_nans = f->expected_nans,
        .actual_infinities = f->actual_infinities,
        .expected_infinities = f->expected_infinities,
        .dtypes_differ = actual->dtype != expected->dtype,
        .actual_dtype = actual->dtype,
        .expected_dtype = expected->dtype,
        .worst_actual = f->worst.actual,
        .worst_expected = f->worst.expected,
        .worst_difference = f->worst.difference,
    };
    set_index(actual, f->worst.at, report.worst);
    set_index(actual, f->first_mismatch, report.first_mismatch);
    set_index(actual, f->first_nan, report.first_nan);
    set_index(actual, f->first_infinite, report.first_infinite);
    return report;
}

/* An index as "[1, 2]"; room for eight numbers of 63 bits. */
typedef struct index_text {
    char text[192];
} index_text;

static index_text text_of(const int64_t *index, int32_t rank) {
    index_text t;
    size_t used = (size_t)snprintf(t.text, sizeof t.text, "[");
    for (int32_t i = 0; i < rank; i++) {
        used += (size_t)snprintf(t.text + used, sizeof t.text - used, "%s%" PRId64, i ? ", " : "",
                                 index[i]);
    }
    snprintf(t.text + used, sizeof t.text - used, "]");
    return t;
}

static ejk_status fail_mismatch(const comparison *c, int32_t axes, const ejk_allclose_report *r) {
    char nan[256] = "", infinite[256] = "", dtypes[80] = "";
    if (r->nan_mismatches > 0) {
        snprintf(nan, sizeof nan, "; NaN does not fit at %" PRId64 ", first at %s",
                 r->nan_mismatches, text_of(r->first_nan, axes).text);
    }
    if (r->infinite_mismatches > 0) {
        snprintf(infinite, sizeof infinite, "; infinity does not fit at %" PRId64 ", first at %s",
                 r->infinite_mismatches, text_of(r->first_infinite, axes).text);
    }
    if (r->dtypes_differ) {
        snprintf(dtypes, sizeof dtypes, "; actual is %s, expected %s",
                 ejk_dtype_name(r->actual_dtype), ejk_dtype_name(r->expected_dtype));
    }
    return ejki_fail(EJK_STATUS_MISMATCH,
                     "%" PRId64 " of %" PRId64 " elements differ by more than atol %g + rtol %g: "
                     "worst at %s, actual %.9g, expected %.9g, difference %.3g%s%s%s",
                     r->mismatches, r->count, c->atol, c->rtol, text_of(r->worst, axes).text,
                     r->worst_actual, r->worst_expected, r->worst_difference, nan, infinite,
                     dtypes);
}

static ejk_status check_tolerance(const char *name, double value) {
    if (value >= 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %g, expected at least 0", name, value);
}

ejk_status ejk_assert_allclose(const ejk_tensor *actual, const ejk_tensor *expected,
                               const ejk_allclose_options *options, ejk_allclose_report *report) {
    static const ejk_allclose_options defaults = {0};
    if (!options) options = &defaults;
    comparison c = {.rtol = options->rtol.set ? options->rtol.value : 1e-5,
                    .atol = options->atol.set ? options->atol.value : 1e-8,
                    .equal_nan = options->equal_nan != EJK_FALSE};
    EJKI_TRY(ejki_argument_input(actual, "actual"));
    EJKI_TRY(ejki_argument_input(expected, "expected"));
    EJKI_TRY(check_tolerance("rtol", c.rtol));
    EJKI_TRY(check_tolerance("atol", c.atol));
    EJKI_TRY(ejki_tensor_expect_shape(actual, "actual", expected->rank, expected->shape));
    c.actual = ejki_array_flat(actual);
    c.expected = ejki_array_flat(expected);
    c.exact = !ejki_dtype_is_floating(actual->dtype) && !ejki_dtype_is_floating(expected->dtype);
    c.count = ejk_tensor_count(actual);
    finding f;
    EJKI_TRY(find(&c, options->threads, &f));
    ejk_allclose_report found = report_of(actual, expected, &f);
    if (report) *report = found;
    return f.mismatches == 0 ? EJK_OK : fail_mismatch(&c, actual->rank, &found);
}
