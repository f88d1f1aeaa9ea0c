/* SPDX-License-Identifier: Apache-2.0 */
/* An identity whose gradient has a type of its own. */
#include "device/copy.h"
#include "sequence/sequence.h"

static ejk_status check(const ejk_identity_convert *convert) {
    if (!convert) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "convert is NULL, expected one");
    if (ejk_dtype_size(convert->dtype) != 0 && ejki_dtype_in(convert->dtype, EJKI_FLOATING)) {
        return EJK_OK;
    }
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "dtype is %s, expected a floating type",
                     ejk_dtype_name(convert->dtype));
}

ejk_status ejk_identity_dtype_convert(ejk_dtype dtype, ejk_identity_convert *out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_identity_convert convert = {dtype};
    EJKI_TRY(check(&convert));
    *out = convert;
    return EJK_OK;
}

ejk_status ejk_identity_convert_forward(const ejk_identity_convert *convert, const ejk_tensor *x,
                                        ejk_tensor *out) {
    EJKI_TRY(check(convert));
    EJKI_TRY(ejk_tensor_check(x, "x"));
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put x");
    *out = *x;
    return EJK_OK;
}

ejk_status ejk_identity_convert_backward(ejk_threads *threads, const ejk_identity_convert *convert,
                                         const ejk_tensor *gradient,
                                         const ejk_tensor *gradient_out) {
    EJKI_TRY(check(convert));
    EJKI_TRY(ejki_sequence_input(gradient, "gradient", EJKI_FLOATING));
    EJKI_TRY(ejki_sequence_output(gradient_out, "gradient_out", EJKI_FLOATING, gradient->rank,
                                  gradient->shape));
    if (gradient_out->dtype != convert->dtype) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "gradient_out has element type %s, expected %s",
                         ejk_dtype_name(gradient_out->dtype), ejk_dtype_name(convert->dtype));
    }
    EJKI_TRY(ejki_argument_apart(gradient_out, "gradient_out", gradient, "gradient"));
    return ejki_copy(threads, gradient, gradient_out);
}
