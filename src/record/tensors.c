/* SPDX-License-Identifier: Apache-2.0 */
#include "record/tensors.h"

#include <stdio.h>

ejki_walk ejki_walk_of(const ejk_record *record) {
    return (ejki_walk){.member = -1, .index = -1, .depth = 1, .level = {{.record = record}}};
}

/* The next member of the list that the walk is in. */
static bool next_member(ejki_walk *w) {
    if (w->member < 0 || w->member + 1 == EJK_MAX_TENSORS) return false;
    w->member++;
    w->index++;
    w->offset += sizeof(ejk_tensor);
    return true;
}

bool ejki_walk_next(ejki_walk *w) {
    if (next_member(w)) return true;
    while (w->depth > 0) {
        const int32_t top = w->depth - 1;
        const ejk_record *record = w->level[top].record;
        if (w->level[top].next == record->count) {
            w->depth--;
            continue;
        }
        const ejk_field *field = &record->fields[w->level[top].next++];
        const size_t base = w->level[top].base, offset = base + field->offset;
        if (field->kind == EJK_FIELD_RECORD && w->depth < EJKI_RECORD_DEPTH) {
            w->level[w->depth].record = field->record;
            w->level[w->depth].base = offset;
            w->level[w->depth++].next = 0;
        }
        if (!ejki_is_tensor(field)) continue;
        w->owner = record;
        w->field = field;
        w->owner_offset = base;
        w->offset = offset;
        w->member = field->kind == EJK_FIELD_TENSORS ? 0 : -1;
        w->index++;
        return true;
    }
    return false;
}

int32_t ejki_walk_count(const ejk_record *record) {
    int32_t count = 0;
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) count++;
    return count;
}

void ejki_member_name(const char *field, int32_t member, char out[EJKI_PREFIX_SIZE]) {
    if (member < 0)
        snprintf(out, EJKI_PREFIX_SIZE, "%s", field);
    else
        snprintf(out, EJKI_PREFIX_SIZE, "%s[%d]", field, (int)member);
}

void ejki_walk_name(const ejki_walk *w, char out[EJKI_PREFIX_SIZE]) {
    size_t used = 0;
    for (int32_t i = 0; i + 1 < w->depth && used + 1 < EJKI_PREFIX_SIZE; i++) {
        const ejk_field *outer = &w->level[i].record->fields[w->level[i].next - 1];
        const int length = snprintf(out + used, EJKI_PREFIX_SIZE - used, "%s.", outer->name);
        used =
            used + (size_t)length < EJKI_PREFIX_SIZE ? used + (size_t)length : EJKI_PREFIX_SIZE - 1;
    }
    char own[EJKI_PREFIX_SIZE];
    ejki_member_name(w->field->name, w->member, own);
    snprintf(out + used, EJKI_PREFIX_SIZE - used, "%s", own);
}

ejk_tensor *ejk_field_tensors(const ejk_field *field, const void *object, int32_t *count) {
    int32_t own = 0;
    char *place = field && object ? (char *)(uintptr_t)object + field->offset : NULL;
    if (place && field->kind == EJK_FIELD_TENSOR) own = 1;
    if (place && field->kind == EJK_FIELD_TENSORS)
        own = ejki_tensors_count((const ejk_tensors *)(const void *)place);
    if (count) *count = own;
    return own > 0 ? (ejk_tensor *)(void *)place : NULL;
}
