/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tokens.cuh"

#include "base/base.h"

ejk_status ejki_runs_of(const ejk_tensor *x, const ejk_tensor *y, int32_t trailing, ejki_runs *runs,
                        ejki_tokens *x_tokens, ejki_tokens *y_tokens) {
    int32_t place = 3;
    int64_t total = 1;
    ejki_size *length = &runs->width, x_step = 1, y_step = 1;
    *runs = (ejki_runs){{1, 1, 1}, 1};
    for (int32_t i = 1; i <= trailing; i++) {
        const int32_t x_axis = x->rank - i, y_axis = y->rank - i;
        const int64_t size = x->shape[x_axis];
        if (!ejki_mul(total, size, &total))
            return ejki_fail(EJK_STATUS_OVERFLOW, "the last %d axes cannot be counted",
                             (int)trailing);
        if (size == 1) continue;
        if (x->strides[x_axis] != x_step * *length || y->strides[y_axis] != y_step * *length) {
            length = &runs->outer[--place];
            x_tokens->outer[place] = x_step = x->strides[x_axis];
            y_tokens->outer[place] = y_step = y->strides[y_axis];
        }
        *length *= size;
    }
    if (total == 0) *runs = (ejki_runs){{1, 1, 1}, 0};
    return EJK_OK;
}
