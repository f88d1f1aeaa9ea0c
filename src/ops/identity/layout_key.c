/* SPDX-License-Identifier: Apache-2.0 */
/* How tensors lie in memory, by classes of strides. */
#include "ops/identity/write.h"
#include "record/tensors.h"

/* The length of a stride, also of INT64_MIN. */
static uint64_t magnitude(int64_t stride) {
    return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

/* Axes of more than one element, by falling length of stride; of equal ones, the first first. */
static int sorted_axes(const ejk_tensor *tensor, int axes[EJK_MAX_RANK]) {
    int count = 0;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0) return 0;
        if (tensor->shape[i] == 1) continue;
        int at = count++;
        for (; at > 0 && magnitude(tensor->strides[axes[at - 1]]) < magnitude(tensor->strides[i]);
             at--)
            axes[at] = axes[at - 1];
        axes[at] = i;
    }
    return count;
}

/* Each axis as its number, behind it "-" if read backwards or "=" if repeated; "gaps" at the end. */
static void write_class(FILE *stream, const ejk_tensor *tensor) {
    int axes[EJK_MAX_RANK] = {0};
    int count = sorted_axes(tensor, axes);
    int64_t packed = 1; /* the stride an axis has if what lies inside it leaves no gap */
    bool gaps = false;
    for (int i = count - 1; i >= 0; i--) {
        int64_t stride = tensor->strides[axes[i]];
        if (stride == 0) continue;
        gaps = gaps || magnitude(stride) != (uint64_t)packed ||
               !ejki_mul(packed, tensor->shape[axes[i]], &packed);
    }
    for (int i = 0; i < count; i++) {
        int64_t stride = tensor->strides[axes[i]];
        fprintf(stream, "%d%s", axes[i], stride < 0 ? "-" : stride == 0 ? "=" : "");
    }
    fputs(gaps ? " gaps" : "", stream);
}

static ejk_status write_classes(FILE *stream, const ejk_record *record, const void *object) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, object);
        char name[EJKI_PREFIX_SIZE];
        if (!ejk_tensor_present(tensor)) continue;
        ejki_walk_name(&w, name);
        if (tensor->rank < 0 || tensor->rank > EJK_MAX_RANK)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: rank %d given, expected 0 to %d", name,
                             (int)tensor->rank, EJK_MAX_RANK);
        fprintf(stream, "%s:", name);
        write_class(stream, tensor);
        putc(';', stream);
    }
    return EJK_OK;
}

ejk_status ejk_layout_key(const ejk_record *args_record, const void *args,
                          char out[EJK_SHORT_HASH_SIZE]) {
    if (args_record == NULL || args == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_layout_key: args_record, args or out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_hash(&text, write_classes(text.stream, args_record, args), out);
}
