/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between views. The axes are put in the order of the target's steps, largest first, and those that
 * continue each other are joined; then runs along the last axis are converted. Ordering also shows at a
 * glance whether the target's elements keep out of each other's way.
 */
#include "base/base.h"
#include "tensor/access.h"
#include "tensor/view.h"

#include <inttypes.h>

typedef struct axis {
    int64_t length, source, target; /* steps in bytes; in elements where some share a byte */
} axis;

static int64_t magnitude(int64_t step) {
    return step < 0 ? -step : step;
}

/* Axes of one element have no step worth keeping. The steps fit: the check saw them times length - 1. */
static int32_t collect(const ejk_tensor *source, const ejk_tensor *target, axis *axes) {
    const bool packed = ejki_is_packed(source->dtype) || ejki_is_packed(target->dtype);
    const int64_t source_size = packed ? 1 : (int64_t)ejk_dtype_size(source->dtype);
    const int64_t target_size = packed ? 1 : (int64_t)ejk_dtype_size(target->dtype);
    int32_t rank = 0;
    for (int32_t i = 0; i < target->rank; i++) {
        if (target->shape[i] == 1) continue;
        axis next = {target->shape[i], source->strides[i] * source_size,
                     target->strides[i] * target_size};
        int32_t at = rank++;
        for (; at > 0 && magnitude(axes[at - 1].target) < magnitude(next.target); at--) {
            axes[at] = axes[at - 1];
        }
        axes[at] = next;
    }
    return rank;
}

/*
 * True if each axis steps over all that the axes below it reach. Views that interleave without meeting fail
 * this too; nothing but an overlapping window sliced apart again makes them.
 */
static bool elements_apart(const axis *axes, int32_t rank, int64_t size) {
    int64_t reach = size;
    for (int32_t i = rank - 1; i >= 0; i--) {
        if (magnitude(axes[i].target) < reach) return false;
        reach += (axes[i].length - 1) * magnitude(axes[i].target);
    }
    return true;
}

/* Joins neighbours that step in both views as one longer axis would. */
static int32_t join(axis *axes, int32_t rank) {
    int32_t kept = 0;
    for (int32_t i = 1; i < rank; i++) {
        axis *outer = &axes[kept], inner = axes[i];
        int64_t source, target;
        if (ejki_mul(inner.length, inner.source, &source) && source == outer->source &&
            ejki_mul(inner.length, inner.target, &target) && target == outer->target) {
            *outer = (axis){outer->length * inner.length, inner.source, inner.target};
        } else {
            axes[++kept] = inner;
        }
    }
    return kept + 1;
}

static bool memories_meet(const ejk_tensor *a, const ejk_tensor *b) {
    int64_t a_low, a_high, b_low, b_high;
    ejk_tensor_span(a, &a_low, &a_high);
    ejk_tensor_span(b, &b_low, &b_high);
    uintptr_t a_at = (uintptr_t)a->data, b_at = (uintptr_t)b->data;
    return a_at + (uintptr_t)a_low < b_at + (uintptr_t)b_high &&
           b_at + (uintptr_t)b_low < a_at + (uintptr_t)a_high;
}

typedef struct dtypes {
    ejk_dtype source, target;
} dtypes;

static void copy_axes(const axis *axes, int32_t rank, const char *source, char *target,
                      dtypes types) {
    if (rank == 1) {
        ejki_convert_run(source, axes->source, types.source, target, axes->target, types.target,
                         axes->length);
        return;
    }
    for (int64_t i = 0; i < axes->length; i++) {
        copy_axes(axes + 1, rank - 1, source + i * axes->source, target + i * axes->target, types);
    }
}

enum { CHUNK = 256 };

static int64_t least_of(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_I4 ? -8 : 0;
}

/* Through whole numbers, which packed elements are. Steps and places count elements. */
static void copy_run(const axis *run, const char *source, int64_t from, char *target, int64_t to,
                     dtypes types) {
    int64_t whole[CHUNK];
    const int64_t source_size = (int64_t)ejk_dtype_size(types.source);
    const int64_t target_size = (int64_t)ejk_dtype_size(types.target);
    for (int64_t done = 0; done < run->length; done += CHUNK) {
        const int64_t count = ejki_min(CHUNK, run->length - done);
        const int64_t first = from + done * run->source, goal = to + done * run->target;
        for (int64_t i = 0; i < count && source_size == 0; i++)
            whole[i] = ejki_load_i64(types.source, source, first + i * run->source);
        if (source_size > 0)
            ejki_convert_run(source + first * source_size, run->source * source_size, types.source,
                             whole, sizeof *whole, EJK_DTYPE_I64, count);
        const int64_t least = least_of(types.target);
        for (int64_t i = 0; i < count && target_size == 0; i++)
            ejki_store_i64(types.target, target, goal + i * run->target,
                           ejki_min(ejki_max(whole[i], least), least + 15));
        if (target_size > 0)
            ejki_convert_run(whole, sizeof *whole, EJK_DTYPE_I64, target + goal * target_size,
                             run->target * target_size, types.target, count);
    }
}

static void copy_packed(const axis *axes, int32_t rank, const char *source, int64_t from,
                        char *target, int64_t to, dtypes types) {
    if (rank == 1) {
        copy_run(axes, source, from, target, to, types);
        return;
    }
    for (int64_t i = 0; i < axes->length; i++)
        copy_packed(axes + 1, rank - 1, source, from + i * axes->source, target,
                    to + i * axes->target, types);
}

static ejk_status check_shapes(const ejk_tensor *source, const ejk_tensor *target) {
    if (source->rank != target->rank) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "target has rank %" PRId32 ", expected source's %" PRId32, target->rank,
                         source->rank);
    }
    for (int32_t i = 0; i < source->rank; i++) {
        if (source->shape[i] == target->shape[i]) continue;
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "axis %" PRId32 " of target is %" PRId64
                         " long, expected source's %" PRId64,
                         i, target->shape[i], source->shape[i]);
    }
    return EJK_OK;
}

ejk_status ejk_tensor_copy(const ejk_tensor *source, const ejk_tensor *target) {
    EJKI_TRY(ejk_tensor_check(source, "source"));
    EJKI_TRY(ejk_tensor_check(target, "target"));
    EJKI_TRY(ejki_tensor_require_cpu(source, "source"));
    EJKI_TRY(ejki_tensor_require_cpu(target, "target"));
    EJKI_TRY(check_shapes(source, target));
    if (ejk_tensor_count(source) == 0) return EJK_OK;

    axis axes[EJK_MAX_RANK] = {{.length = 1}};
    int32_t rank = collect(source, target, axes);
    const bool packed = ejki_is_packed(source->dtype) || ejki_is_packed(target->dtype);
    if (!elements_apart(axes, rank, packed ? 1 : (int64_t)ejk_dtype_size(target->dtype))) {
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "target has elements that overlap or interleave by its strides, expected "
                         "each at a place of its own");
    }
    if (memories_meet(source, target)) {
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "target at %p lies within the bytes that source at %p spans, expected "
                         "memories that do not overlap",
                         target->data, source->data);
    }
    rank = join(axes, rank);
    const dtypes types = {source->dtype, target->dtype};
    if (packed)
        copy_packed(axes, rank, source->data, 0, target->data, 0, types);
    else
        copy_axes(axes, rank, source->data, target->data, types);
    return EJK_OK;
}
