/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and views of tensors of tokens. */
#include "operations/loss/shared/tokens.h"

#include <string.h>

#include "base/base.h"
#include "tensor/view.h"

ejk_dtype ejki_loss_result_type(ejk_dtype rows) {
    return rows == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
}

ejk_status ejki_loss_check_tokens(const ejk_tensor *rows, const ejk_tensor *t, const char *name,
                                  int64_t last) {
    int64_t shape[EJK_MAX_RANK];
    if (!ejk_tensor_present(t)) return EJK_OK;
    memcpy(shape, rows->shape, sizeof shape);
    if (last >= 0) shape[rows->rank - 1] = last;
    return ejki_tensor_expect_shape(t, name, last < 0 ? rows->rank - 1 : rows->rank, shape);
}

ejk_status ejki_loss_check_type(const ejk_tensor *t, const char *name, ejk_dtype wanted) {
    if (!ejk_tensor_present(t) || t->dtype == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected %s", name,
                     ejk_dtype_name(t->dtype), ejk_dtype_name(wanted));
}

ejk_status ejki_loss_check_count(mm_size batch, mm_size tokens, mm_size vocab, mm_size width) {
    int64_t count;
    if (ejki_mul(batch, tokens, &count) && ejki_mul(count, 512, &count) &&
        ejki_mul(ejki_max(count, 512), ejki_max(ejki_max(vocab, width), 1), &count))
        return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "logits of %lld x %lld tokens cannot be counted", batch,
                     tokens);
}

loss_view ejki_loss_view(const ejk_tensor *rows, const ejk_tensor *t) {
    const bool batched = rows->rank == 3;
    if (!ejk_tensor_present(t)) return (loss_view){.dtype = 0};
    return (loss_view){.data = t->data,
                       .batch = batched ? t->strides[0] : 0,
                       .token = t->strides[batched],
                       .dtype = (int)t->dtype};
}

void ejki_loss_take_tokens(const ejk_tensor *rows, ejk_tensor *view) {
    view->rank = rows->rank - 1;
    memcpy(view->shape, rows->shape, sizeof view->shape);
}
