/* SPDX-License-Identifier: Apache-2.0 */
#include "device/copy.h"

#include "base/base.h"

enum { PIECE = 1 << 16 }; /* elements, or what one step along the axis holds */

typedef struct copying {
    ejk_tensor source, target;
    int32_t axis;
    int64_t steps; /* of a piece */
} copying;

static int64_t magnitude(int64_t step) {
    return step < 0 ? -step : step;
}

/* The axis of the target's widest steps that gives enough pieces, else the longest. */
static int32_t axis_to_cut(const ejk_tensor *target, int64_t pieces) {
    int32_t longest = 0, widest = -1;
    for (int32_t i = 0; i < target->rank; i++) {
        if (target->shape[i] > target->shape[longest]) longest = i;
        if (target->shape[i] < pieces) continue;
        if (widest < 0 || magnitude(target->strides[i]) > magnitude(target->strides[widest]))
            widest = i;
    }
    return widest < 0 ? longest : widest;
}

static void copy_piece(void *argument, int64_t index) {
    const copying *c = argument;
    int64_t start = index * c->steps;
    int64_t count = ejki_min(c->steps, c->target.shape[c->axis] - start);
    ejk_tensor source = ejk_tensor_slice(c->source, c->axis, start, count);
    ejk_tensor target = ejk_tensor_slice(c->target, c->axis, start, count);
    /* Parts of views that were checked cannot be refused. */
    ejk_status status = ejk_tensor_copy(&source, &target);
    (void)status;
}

ejk_status ejki_copy(ejk_threads *threads, const ejk_tensor *source, const ejk_tensor *target) {
    int64_t pieces = ejki_cdiv(ejk_tensor_count(target), PIECE);
    if (pieces < 2 || ejk_threads_count(threads) < 2) return ejk_tensor_copy(source, target);
    copying c = {.source = *source, .target = *target};
    c.axis = axis_to_cut(target, pieces);
    c.steps = ejki_cdiv(target->shape[c.axis], pieces);
    ejk_parallel_for(threads, ejki_cdiv(target->shape[c.axis], c.steps), copy_piece, &c);
    return EJK_OK;
}
