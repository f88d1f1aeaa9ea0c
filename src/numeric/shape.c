/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"

#include <inttypes.h>
#include <string.h>

static ejk_status require_out(const void *out) {
    return out ? EJK_OK : ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
}

ejk_status ejk_cdiv(int64_t a, int64_t b, int64_t *out) {
    EJKI_TRY(require_out(out));
    if (b < 1) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "b is %" PRId64 ", expected at least 1", b);
    }
    *out = a / b + (a % b > 0);
    return EJK_OK;
}

static ejk_status next_power_of_2(int64_t x, const char *name, int64_t *out) {
    EJKI_TRY(require_out(out));
    if (x < 0) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %" PRId64 ", expected at least 0",
                         name, x);
    }
    if (x > INT64_C(1) << 62) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%s is %" PRId64 ", above which no power of two fits 63 bits", name, x);
    }
    int64_t power = 1;
    while (power < x) power *= 2;
    *out = power;
    return EJK_OK;
}

ejk_status ejk_next_power_of_2(int64_t x, int64_t *out) {
    return next_power_of_2(x, "x", out);
}

ejk_status ejk_get_padded_headsize(int64_t head_dim, int64_t *out) {
    int64_t power = 0;
    EJKI_TRY(require_out(out));
    EJKI_TRY(next_power_of_2(head_dim, "head_dim", &power));
    *out = ejki_max(16, power);
    return EJK_OK;
}

ejk_status ejk_get_input_shapes(int64_t shapes_out[EJK_INPUT_SHAPES][EJK_INPUT_SHAPE_AXES]) {
    if (!shapes_out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "shapes_out is NULL");
    for (int n = 0; n < EJK_INPUT_SHAPES; n++) {
        int power = 8 + n % 10;
        const int64_t shape[EJK_INPUT_SHAPE_AXES] = {power < 16 ? INT64_C(1) << (16 - power) : 1,
                                                     1,
                                                     INT64_C(1) << power,
                                                     16,
                                                     1 + n / 10,
                                                     128};
        memcpy(shapes_out[n], shape, sizeof shape);
    }
    return EJK_OK;
}

ejk_status ejk_strides_from_shape(const int64_t *shape, int32_t rank, int64_t *strides_out) {
    if (rank < 0 || rank > EJK_MAX_RANK) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "rank is %" PRId32 ", expected 0 to %d", rank,
                         EJK_MAX_RANK);
    }
    if (rank > 0 && (!shape || !strides_out)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         shape ? "strides_out" : "shape");
    }
    int64_t strides[EJK_MAX_RANK], stride = 1;
    bool empty = false;
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (shape[i] < 0) {
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "axis %" PRId32 " of shape is %" PRId64 " long, expected at least 0",
                             i, shape[i]);
        }
        empty |= shape[i] == 0;
        strides[i] = stride;
        if (!ejki_mul(stride, ejki_max(shape[i], 1), &stride)) {
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "shape has more elements from axis %" PRId32 " on than 63 bits count",
                             i);
        }
    }
    for (int32_t i = 0; i < rank; i++) strides_out[i] = empty ? 0 : strides[i];
    return EJK_OK;
}
