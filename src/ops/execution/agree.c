/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a result is the expected one. Everything is read through f64, a stretch of a row at a time. */
#include "ops/execution/measure.h"

#include "base/base.h"

#include <math.h>

enum { STRETCH = 512 };

/* Sums of squares over the finite elements, of numbers divided by the largest expected one: what then
 * overflows is a difference beyond any tolerance. */
typedef struct tally {
    double most_expected, most_actual, scale;
    double expected, difference;
    bool differ; /* NaN or infinity where the other has none, or another */
} tally;

typedef void (*visit_fn)(tally *sums, const double *expected, const double *actual, int64_t count);

static void find_most(tally *sums, const double *expected, const double *actual, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double e = expected[i], a = actual[i];
        if (isfinite(e) && isfinite(a)) {
            sums->most_expected = fmax(sums->most_expected, fabs(e));
            sums->most_actual = fmax(sums->most_actual, fabs(a));
        } else if (!(isnan(e) && isnan(a)) && e != a) {
            sums->differ = true;
        }
    }
}

static void add_squares(tally *sums, const double *expected, const double *actual, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(expected[i]) || !isfinite(actual[i])) continue;
        double e = expected[i] / sums->scale, d = (actual[i] - expected[i]) / sums->scale;
        sums->expected += e * e;
        sums->difference += d * d;
    }
}

/* The same elements of both. */
typedef struct pair {
    ejk_tensor expected, actual;
} pair;

static ejk_status read_row(const pair *tensors, int64_t at[2], visit_fn visit, tally *sums) {
    const ejk_tensor *source[2] = {&tensors->expected, &tensors->actual};
    const int32_t last = source[0]->rank - 1;
    double values[2][STRETCH];
    for (int64_t done = 0; done < source[0]->shape[last]; done += STRETCH) {
        int64_t count = ejki_min(STRETCH, source[0]->shape[last] - done);
        for (int s = 0; s < 2; s++) {
            int64_t place = at[s] + done * source[s]->strides[last];
            const int64_t size = (int64_t)ejk_dtype_size(source[s]->dtype);
            const int64_t offset = size > 0 ? place * size : place / 2; /* rows begin at bytes */
            ejk_tensor part =
                ejk_tensor_1d((char *)source[s]->data + offset, source[s]->dtype, count);
            part.strides[0] = source[s]->strides[last];
            ejk_tensor target = ejk_tensor_1d(values[s], EJK_DTYPE_F64, count);
            EJKI_TRY(ejk_tensor_copy(&part, &target));
        }
        visit(sums, values[0], values[1], count);
    }
    return EJK_OK;
}

static ejk_status read_rows(const pair *tensors, visit_fn visit, tally *sums) {
    int64_t index[EJK_MAX_RANK] = {0}, at[2] = {0, 0};
    for (;;) {
        EJKI_TRY(read_row(tensors, at, visit, sums));
        int32_t axis = tensors->expected.rank - 2;
        for (; axis >= 0; axis--) {
            bool carry = ++index[axis] == tensors->expected.shape[axis];
            int64_t steps = carry ? 1 - index[axis] : 1;
            at[0] += steps * tensors->expected.strides[axis];
            at[1] += steps * tensors->actual.strides[axis];
            if (!carry) break;
            index[axis] = 0;
        }
        if (axis < 0) return EJK_OK;
    }
}

/* ---- On all threads ---------------------------------------------------------------------------------- */

enum { CHUNKS = 64, LEAST_SHARED = 1 << 16 };

/* Two tensors of one axis, in equal parts. */
typedef struct sweep {
    const pair *tensors;
    visit_fn visit;
    tally parts[CHUNKS];
    ejk_status status[CHUNKS];
} sweep;

static void sweep_chunk(void *argument, int64_t index) {
    sweep *s = argument;
    const int64_t count = s->tensors->expected.shape[0], first = count * index / CHUNKS;
    const ejk_tensor *e = &s->tensors->expected, *a = &s->tensors->actual;
    int64_t at[2] = {first * e->strides[0], first * a->strides[0]};
    pair part = *s->tensors;
    part.expected.shape[0] = part.actual.shape[0] = count * (index + 1) / CHUNKS - first;
    s->status[index] = read_row(&part, at, s->visit, &s->parts[index]);
}

static ejk_status visit_all(ejk_threads *threads, const pair *tensors, visit_fn visit,
                            tally *sums) {
    if (!threads || tensors->expected.rank != 1 || tensors->expected.shape[0] < LEAST_SHARED)
        return read_rows(tensors, visit, sums);
    sweep s = {.tensors = tensors, .visit = visit};
    for (int i = 0; i < CHUNKS; i++) s.parts[i].scale = sums->scale;
    ejk_parallel_for(threads, CHUNKS, sweep_chunk, &s);
    for (int i = 0; i < CHUNKS; i++) {
        EJKI_TRY(s.status[i]);
        sums->most_expected = fmax(sums->most_expected, s.parts[i].most_expected);
        sums->most_actual = fmax(sums->most_actual, s.parts[i].most_actual);
        sums->expected += s.parts[i].expected;
        sums->difference += s.parts[i].difference;
        sums->differ |= s.parts[i].differ;
    }
    return EJK_OK;
}

/* ---- The question ------------------------------------------------------------------------------------ */

static ejk_status check_argument(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejk_tensor_check(tensor, name));
    if (tensor->device_type == EJK_DEVICE_CPU) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "%s: lies on device type %d, expected the CPU", name,
                     (int)tensor->device_type);
}

static ejk_status check_shapes(const ejk_tensor *expected, const ejk_tensor *actual) {
    if (expected->rank != actual->rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "actual: rank %d given, expected %d",
                         (int)actual->rank, (int)expected->rank);
    for (int32_t i = 0; i < expected->rank; i++)
        if (expected->shape[i] != actual->shape[i])
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "actual: axis %d has length %lld, expected %lld", (int)i,
                             (long long)actual->shape[i], (long long)expected->shape[i]);
    return EJK_OK;
}

/* At least one axis, and rows as long as can be. */
static pair rows_of(const ejk_tensor *expected, const ejk_tensor *actual) {
    if (expected->rank == 0 ||
        (ejk_tensor_is_contiguous(expected) && ejk_tensor_is_contiguous(actual))) {
        int64_t count = ejk_tensor_count(expected);
        return (pair){ejk_tensor_1d(expected->data, expected->dtype, count),
                      ejk_tensor_1d(actual->data, actual->dtype, count)};
    }
    return (pair){*expected, *actual};
}

static double relative(const tally *sums) {
    if (sums->differ) return INFINITY;
    if (sums->difference == 0) return 0;
    if (sums->expected == 0) return sqrt(sums->difference) * sums->scale;
    return sqrt(sums->difference) / sqrt(sums->expected);
}

ejk_status ejki_tensors_agree(ejk_threads *threads, const ejk_tensor *expected,
                              const ejk_tensor *actual, double tolerance, bool *agrees,
                              double *difference) {
    if (expected == NULL || actual == NULL || agrees == NULL || difference == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_tensors_agree: expected, actual, agrees or difference is NULL");
    if (!(tolerance >= 0) || isinf(tolerance))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "tolerance: %g given, expected a finite number ≥ 0", tolerance);
    EJKI_TRY(check_argument(expected, "expected"));
    EJKI_TRY(check_argument(actual, "actual"));
    EJKI_TRY(check_shapes(expected, actual));
    tally sums = {0};
    if (ejk_tensor_count(expected) > 0) {
        pair tensors = rows_of(expected, actual);
        EJKI_TRY(visit_all(threads, &tensors, find_most, &sums));
        sums.scale = sums.most_expected > 0 ? sums.most_expected : sums.most_actual;
        if (sums.scale > 0) EJKI_TRY(visit_all(threads, &tensors, add_squares, &sums));
    }
    *difference = relative(&sums);
    *agrees = *difference <= tolerance;
    return EJK_OK;
}

ejk_status ejk_tensors_agree(const ejk_tensor *expected, const ejk_tensor *actual, double tolerance,
                             bool *agrees, double *difference) {
    return ejki_tensors_agree(NULL, expected, actual, tolerance, agrees, difference);
}
