/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct division {
    ejk_tensor numerator, denominator, out; /* of one shape */
    double least;
    bool documented;
    int64_t count;
} division;

static double divide(double numerator, double denominator, double least, bool documented) {
    if (isnan(denominator)) return denominator;
    if (documented) return numerator / (denominator < least ? least : denominator);
    return numerator / (fabs(denominator) < least ? copysign(least, denominator) : denominator);
}

static void divide_part(void *argument, int64_t index) {
    const division *d = argument;
    int64_t end = ejki_min((index + 1) * EJKI_TASK, d->count);
    for (int64_t at = index * EJKI_TASK, count; at < end; at += count) {
        double numerators[EJKI_RUN], denominators[EJKI_RUN];
        count = ejki_min(end - at, EJKI_RUN);
        ejki_array_load(&d->numerator, at, count, EJK_DTYPE_F64, numerators);
        ejki_array_load(&d->denominator, at, count, EJK_DTYPE_F64, denominators);
        for (int64_t i = 0; i < count; i++) {
            numerators[i] = divide(numerators[i], denominators[i], d->least, d->documented);
        }
        ejki_array_store(&d->out, at, count, EJK_DTYPE_F64, numerators);
    }
}

/* A view of `tensor` in the shape of `out`, as NumPy spreads it. */
static ejk_status spread(const ejk_tensor *tensor, const char *name, const ejk_tensor *out,
                         ejk_tensor *view) {
    if (tensor->rank > out->rank) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s has rank %" PRId32 ", expected at most out's %" PRId32, name,
                         tensor->rank, out->rank);
    }
    *view = *out;
    view->data = tensor->data;
    view->dtype = tensor->dtype;
    for (int32_t i = 0, lacking = out->rank - tensor->rank; i < out->rank; i++) {
        int64_t length = i < lacking ? 1 : tensor->shape[i - lacking];
        if (length != 1 && length != out->shape[i]) {
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "axis %" PRId32 " of %s is %" PRId64
                             " long, expected 1 or out's %" PRId64,
                             i - lacking, name, length, out->shape[i]);
        }
        view->strides[i] = length == 1 ? 0 : tensor->strides[i - lacking];
    }
    return EJK_OK;
}

static bool same_view(const ejk_tensor *a, const ejk_tensor *b) {
    size_t size = (size_t)a->rank * sizeof(int64_t);
    return a->data == b->data && a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, size) == 0 && memcmp(a->strides, b->strides, size) == 0;
}

static ejk_status take_input(const ejk_tensor *tensor, const char *name, const ejk_tensor *out,
                             ejk_tensor *view) {
    EJKI_TRY(ejki_argument_input(tensor, name));
    EJKI_TRY(spread(tensor, name, out, view));
    return same_view(tensor, out) ? EJK_OK : ejki_argument_apart(out, "out", tensor, name);
}

ejk_status ejk_safe_divide(const ejk_tensor *numerator, const ejk_tensor *denominator,
                           const ejk_safe_divide_options *options, const ejk_tensor *out) {
    static const ejk_safe_divide_options defaults = {0};
    const ejk_safe_divide_options *chosen = options ? options : &defaults;
    division d = {.least = chosen->min_denominator.set ? chosen->min_denominator.value : 1e-10,
                  .documented = chosen->documented};
    EJKI_TRY(ejki_array_floating_output(out, "out"));
    EJKI_TRY(take_input(numerator, "numerator", out, &d.numerator));
    EJKI_TRY(take_input(denominator, "denominator", out, &d.denominator));
    if (!(d.least > 0) || isinf(d.least)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "min_denominator is %g, expected a finite number above 0", d.least);
    }
    d.count = ejk_tensor_count(out);
    if (d.count == 0) return EJK_OK;
    d.numerator = ejki_array_flat(&d.numerator);
    d.denominator = ejki_array_flat(&d.denominator);
    d.out = ejki_array_flat(out);
    ejk_parallel_for(chosen->threads, ejki_cdiv(d.count, EJKI_TASK), divide_part, &d);
    return EJK_OK;
}
