/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over the tensors that a record describes, those of nested records and of lists too: whoever looks at all
 * tensors of a call walks this way, so that none misses a kind.
 *
 *     for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
 *         const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
 *         if (!ejk_tensor_present(tensor)) continue;
 */
#ifndef EJKI_RECORD_TENSORS_H
#define EJKI_RECORD_TENSORS_H

#include "record/kinds.h"

/* Nested records deeper than this are refused by ejk_record_check(). */
#define EJKI_RECORD_DEPTH 8

/* Room for "outer.inner." before a name in a sentence; longer ones are cut there. */
#define EJKI_PREFIX_SIZE 160

typedef struct ejki_walk {
    const ejk_record *owner; /* the record that the field is one of */
    const ejk_field *field;
    size_t owner_offset, offset; /* of the record and of the tensor, in the struct */
    int32_t member;              /* in a list; -1: the field is the tensor */
    int32_t index;               /* tensors before this one */

    int32_t depth;
    struct {
        const ejk_record *record;
        size_t base;
        int32_t next; /* field */
    } level[EJKI_RECORD_DEPTH];
} ejki_walk;

ejki_walk ejki_walk_of(const ejk_record *record);

/* Every member that a list may have comes, whether it has it or not. False: no more. */
bool ejki_walk_next(ejki_walk *walk);

/* Tensors that a walk comes to. */
int32_t ejki_walk_count(const ejk_record *record);

/* "outer.parts[1]"; what does not fit is cut. */
void ejki_walk_name(const ejki_walk *walk, char out[EJKI_PREFIX_SIZE]);

/* The same without the records around. `member` is that of a walk. */
void ejki_member_name(const char *field, int32_t member, char out[EJKI_PREFIX_SIZE]);

/* NULL for a member that the list does not have. */
static inline ejk_tensor *ejki_walk_tensor(const ejki_walk *walk, const void *object) {
    ejk_tensor *tensor = (ejk_tensor *)(void *)((char *)(uintptr_t)object + walk->offset);
    if (walk->member < 0) return tensor;
    const ejk_tensors *list =
        (const void *)((const char *)object + walk->owner_offset + walk->field->offset);
    return walk->member < ejki_tensors_count(list) ? tensor : NULL;
}

/* True for a field that is a tensor or a list of them. */
static inline bool ejki_is_tensor(const ejk_field *field) {
    return field->kind == EJK_FIELD_TENSOR || field->kind == EJK_FIELD_TENSORS;
}

/* Its element type in a struct: that of a list is its first member's. */
static inline ejk_dtype ejki_dtype_of(const ejk_field *field, const void *object) {
    int32_t count;
    const ejk_tensor *tensor = ejk_field_tensors(field, object, &count);
    return count > 0 ? tensor->dtype : EJK_DTYPE_UNSET;
}

#endif
