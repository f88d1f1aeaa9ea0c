/* SPDX-License-Identifier: Apache-2.0 */
#include "support/strided.h"

#include <stdlib.h>
#include <string.h>

void strided_create(struct strided *s, struct random *r, ejk_dtype dtype, int32_t rank,
                    const int64_t *shape) {
    ejk_tensor view = ejk_tensor_contiguous(NULL, dtype, rank, shape);
    int32_t order[EJK_MAX_RANK];
    for (int32_t i = 0; i < rank; i++) order[i] = i;
    if (random_chance(r, 0.5)) {
        for (int32_t i = rank - 1; i > 0; i--) {
            int32_t j = (int32_t)random_int(r, 0, i), axis = order[i];
            order[i] = order[j];
            order[j] = axis;
        }
    }
    bool gaps = random_chance(r, 0.5);
    int64_t step = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (gaps) step *= random_int(r, 1, 2);
        view.strides[order[i]] = random_chance(r, 0.2) ? -step : step;
        step *= shape[order[i]] > 0 ? shape[order[i]] : 1;
    }
    int64_t low, high;
    ejk_tensor_span(&view, &low, &high);
    enum guarded_side side = random_chance(r, 0.5) ? GUARDED_END : GUARDED_START;
    guarded_create(&s->memory, (size_t)(high - low), side, 0);
    guarded_fill(&s->memory);
    view.data = s->memory.data - low;
    s->view = view;
}

void strided_destroy(struct strided *s) {
    guarded_destroy(&s->memory);
}

static ejk_tensor row_major(const struct strided *s, ejk_dtype dtype, const void *numbers) {
    void *data;
    memcpy(&data, &numbers, sizeof data);
    return ejk_tensor_contiguous(data, dtype, s->view.rank, s->view.shape);
}

void strided_put(struct strided *s, ejk_dtype dtype, const void *numbers) {
    ejk_tensor source = row_major(s, dtype, numbers);
    if (ejk_tensor_copy(&source, &s->view) != EJK_OK) abort();
    guarded_protect(&s->memory);
}

void strided_get(const struct strided *s, ejk_dtype dtype, void *numbers) {
    ejk_tensor target = row_major(s, dtype, numbers);
    if (ejk_tensor_copy(&s->view, &target) != EJK_OK) abort();
}

bool strided_untouched(const struct strided *s) {
    return guarded_blank(&s->memory);
}

bool strided_gaps_untouched(struct strided *s) {
    int64_t count = ejk_tensor_count(&s->view);
    size_t size = ejk_dtype_size(s->view.dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, at = 0;
        for (int32_t axis = s->view.rank - 1; axis >= 0; axis--) {
            at += rest % s->view.shape[axis] * s->view.strides[axis];
            rest /= s->view.shape[axis];
        }
        memset((char *)s->view.data + at * (int64_t)size, GUARDED_FILL, size);
    }
    return guarded_blank(&s->memory);
}
