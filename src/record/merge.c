/* SPDX-License-Identifier: Apache-2.0 */
#include "record/field.h"

void ejk_record_merge(const ejk_record *record, const void *base, const void *override, void *out) {
    if (record == NULL || out == NULL) return;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        char *target = (char *)out + field->offset;
        if (field->kind == EJK_FIELD_RECORD) {
            ejk_record_merge(field->record, base == NULL ? NULL : ejki_field_address(field, base),
                             override == NULL ? NULL : ejki_field_address(field, override), target);
            continue;
        }
        const void *source = ejk_record_is_set(field, override) ? override
                             : ejk_record_is_set(field, base)   ? base
                                                                : NULL;
        size_t size = ejk_field_size(field);
        if (source == NULL)
            memset(target, 0, size);
        else if (source != out)
            memcpy(target, ejki_field_address(field, source), size);
    }
}
