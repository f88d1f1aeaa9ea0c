/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/state_space/shared/sequences.h"

#include <math.h>

#include "base/base.h"
#include "tensor/access.h"

/* A tensor whose first axis is the sequences. */
static ejk_status check_count(const ejk_tensor *t, const char *name, int64_t count) {
    if (!ejk_tensor_present(t) || t->shape[0] == count) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has length %lld on axis 0, expected %lld", name,
                     (long long)t->shape[0], (long long)count);
}

ejk_status ejki_sequences_of(const ejki_states *states, int64_t batch, int64_t tokens,
                             sequences *out) {
    const bool packed = ejk_tensor_present(states->ends);
    const bool pooled = ejk_tensor_present(states->pool);
    const bool indexed = ejk_tensor_present(states->indices);
    EJKI_TRY(ejki_expect_one_row(states->ends, batch));
    if (pooled && (ejk_tensor_present(states->initial) || ejk_tensor_present(states->final)))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s is given beside initial_state or final_state, expected one of them",
                         states->pool_name);
    if (indexed && !pooled)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "state_indices is given without %s",
                         states->pool_name);
    *out = (sequences){.count = packed ? states->ends->shape[0] - 1 : batch,
                       .tokens = tokens,
                       .slots = pooled ? states->pool->shape[0] : 0,
                       .packed = packed,
                       .wide_ends = packed && states->ends->dtype == EJK_DTYPE_I64,
                       .indexed = indexed,
                       .wide_indices = indexed && states->indices->dtype == EJK_DTYPE_I64};
    EJKI_TRY(check_count(states->initial, "initial_state", out->count));
    EJKI_TRY(check_count(states->final, "final_state", out->count));
    EJKI_TRY(check_count(states->indices, "state_indices", out->count));
    return pooled && !indexed ? check_count(states->pool, states->pool_name, out->count) : EJK_OK;
}

void ejki_sequences_bind(const ejki_states *states, sequences *s) {
    s->ends = s->packed ? states->ends->data : NULL;
    s->indices = s->indexed ? states->indices->data : NULL;
}

ejk_status ejki_sequences_check(const sequences *s) {
    if (!s->indexed) return EJK_OK;
    return ejki_expect_distinct("state_indices", s->indices, s->wide_indices, s->count, s->slots);
}

ejk_status ejki_sequences_fill(const ejk_tensor *ends, const ejk_tensor *indices, int64_t tokens) {
    if (ejk_tensor_present(ends) && ends->data) {
        const int64_t count = ends->shape[0] - 1;
        for (int64_t n = 0; n <= count; n++)
            ejki_store_i64(ends->dtype, ends->data, n * ends->strides[0],
                           count > 0 ? tokens / count * n + ejki_min(n, tokens % count) : 0);
    }
    if (ejk_tensor_present(indices) && indices->data)
        for (int64_t n = 0; n < indices->shape[0]; n++)
            ejki_store_i64(indices->dtype, indices->data, n * indices->strides[0], n);
    return EJK_OK;
}

void ejki_fill_decays(const ejk_tensor *decays) {
    const int64_t width = decays->rank == 2 ? decays->shape[1] : 1;
    for (int64_t n = 0; decays->data && n < decays->shape[0] * width; n++) {
        const int64_t at = n / width * decays->strides[0] + n % width;
        const double value = ejki_load_f64(decays->dtype, decays->data, at);
        ejki_store_f64(decays->dtype, decays->data, at, value > 0 ? -value : value);
    }
}

void ejki_fill_steps(const ejk_tensor *steps) {
    const int64_t count = ejk_tensor_count(steps);
    for (int64_t n = 0; steps->data && n < count; n++) {
        int64_t rest = n, at = 0;
        for (int32_t axis = steps->rank - 1; axis >= 0; axis--) {
            at += rest % steps->shape[axis] * steps->strides[axis];
            rest /= steps->shape[axis];
        }
        ejki_store_f64(steps->dtype, steps->data, at,
                       fabs(ejki_load_f64(steps->dtype, steps->data, at)));
    }
}
