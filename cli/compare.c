/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <math.h>

static bool to_f64(const ejk_tensor *tensor, ejk_owned_tensor *out) {
    if (!succeeded(ejk_owned_tensor_create(EJK_DTYPE_F64, tensor->rank, tensor->shape, out)))
        return false;
    if (succeeded(ejk_tensor_copy(tensor, &out->tensor))) return true;
    ejk_owned_tensor_close(out);
    return false;
}

/* 0 for values that are the same, infinities and NaN too. */
static double distance(double a, double b) {
    if (isnan(a) && isnan(b)) return 0;
    if (isinf(a) && isinf(b) && (a > 0) == (b > 0)) return 0;
    double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

static double ratio(double part, double whole) {
    if (whole > 0) return part / whole;
    return part > 0 ? INFINITY : 0;
}

static difference differ(const double *actual, const double *expected, int64_t count) {
    double squares = 0, norm = 0, most = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = distance(actual[i], expected[i]);
        double magnitude = isfinite(expected[i]) ? fabs(expected[i]) : 0;
        squares += d * d;
        norm += magnitude * magnitude;
        most = fmax(most, d);
        largest = fmax(largest, magnitude);
    }
    return (difference){ratio(sqrt(squares), sqrt(norm)), ratio(most, largest)};
}

static bool same_shape(const ejk_tensor *a, const ejk_tensor *b) {
    bool same = a->rank == b->rank;
    for (int32_t i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    return same;
}

bool compare(const ejk_tensor *actual, const ejk_tensor *expected, difference *out) {
    if (!same_shape(actual, expected))
        return report_error("what is expected has another shape than the result");
    ejk_owned_tensor a, b;
    if (!to_f64(actual, &a)) return false;
    bool read = to_f64(expected, &b);
    if (read) {
        *out = differ(a.tensor.data, b.tensor.data, ejk_tensor_count(actual));
        ejk_owned_tensor_close(&b);
    }
    ejk_owned_tensor_close(&a);
    return read;
}

bool check_values(const ejk_tensor *tensor, const char *name, bool finite) {
    ejk_owned_tensor values;
    if (!to_f64(tensor, &values)) return false;
    const double *value = values.tensor.data;
    int64_t count = ejk_tensor_count(tensor), i = 0;
    while (i < count && !isnan(value[i]) && !(finite && isinf(value[i]))) i++;
    double found = i < count ? value[i] : 0;
    ejk_owned_tensor_close(&values);
    return i == count ||
           report_error("element %lld of %s is %g: the result is wrong, nothing is measured",
                        (long long)i, name, found);
}
