/* SPDX-License-Identifier: Apache-2.0 */
/* Records, tensors and JSON texts as stable JSON. */
#include "ops/identity/write.h"
#include "record/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const void *place_of(const ejk_field *field, const void *object) {
    return (const char *)object + field->offset;
}

static ejk_status write_float(FILE *stream, double value, const char *name, int flags) {
    if (!isfinite(value)) {
        const char *word = isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
        if (flags & EJKI_WRITE_FINITE)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: %s given, expected a finite number",
                             name, word);
        fputs(word, stream);
        return EJK_OK;
    }
    char text[EJKI_FLOAT_SIZE];
    ejki_float_text(value + 0.0, text); /* equal records, equal texts: -0.0 is written 0.0 */
    fputs(text, stream);
    return EJK_OK;
}

static void write_side(FILE *stream, const ejk_opt_int *side) {
    if (side->set)
        fprintf(stream, "%" PRId64, side->value);
    else
        fputs("null", stream);
}

static ejk_status write_dtype(FILE *stream, ejk_dtype dtype, const char *name) {
    if (ejk_dtype_bits(dtype) == 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: element type %d does not exist", name,
                         (int)dtype);
    fprintf(stream, "\"%s\"", ejk_dtype_name(dtype));
    return EJK_OK;
}

static ejk_status write_name(FILE *stream, const char *text, const char *name) {
    size_t length = strnlen(text, EJK_NAME_SIZE);
    if (length == EJK_NAME_SIZE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: no closing zero within %d bytes", name,
                         EJK_NAME_SIZE);
    return ejki_write_string(stream, text, length, name);
}

ejk_status ejki_write_tensor(FILE *stream, const ejk_tensor *tensor, ejk_json_style style,
                             const char *name) {
    if (tensor->dtype == EJK_DTYPE_UNSET) {
        fputs("null", stream);
        return EJK_OK;
    }
    if (tensor->rank < 0 || tensor->rank > EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: rank %d given, expected 0 to %d", name,
                         (int)tensor->rank, EJK_MAX_RANK);
    fputs(style == EJK_JSON_TAGGED ? "{\"_type\":\"array\",\"dtype\":" : "{\"dtype\":", stream);
    EJKI_TRY(write_dtype(stream, tensor->dtype, name));
    fputs(",\"shape\":[", stream);
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: axis %d has the negative length %lld",
                             name, (int)i, (long long)tensor->shape[i]);
        fprintf(stream, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    }
    fputs("]}", stream);
    return EJK_OK;
}

static ejk_status write_tensors(FILE *stream, const ejk_tensors *list, ejk_json_style style,
                                const char *field) {
    for (int32_t i = 0; i < ejki_tensors_count(list); i++) {
        char name[EJKI_PREFIX_SIZE];
        ejki_member_name(field, i, name);
        putc(i == 0 ? '[' : ',', stream);
        EJKI_TRY(ejki_write_tensor(stream, &list->value[i], style, name));
    }
    putc(']', stream);
    return EJK_OK;
}

static void write_list(FILE *stream, const ejki_kind *kind, const void *place) {
    ejk_opt_int each[EJKI_MOST_LISTED];
    const int32_t count = kind->list(place, each);
    for (int32_t i = 0; i < count; i++) {
        putc(i == 0 ? '[' : ',', stream);
        write_side(stream, &each[i]);
    }
    putc(']', stream);
}

static ejk_status write_truth(FILE *stream, ejk_opt_bool value, const char *name) {
    if (value != EJK_TRUE && value != EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s: %d given, expected EJK_UNSET, EJK_TRUE or EJK_FALSE", name,
                         (int)value);
    fputs(value == EJK_TRUE ? "true" : "false", stream);
    return EJK_OK;
}

ejk_status ejki_write_field(FILE *stream, const ejk_field *field, const void *object,
                            ejk_json_style style, int flags) {
    const void *place = place_of(field, object);
    const ejki_kind *kind = ejki_kind_of(field->kind);
    const bool can_be_unset = !kind->always_set && field->kind != EJK_FIELD_RECORD;
    if (can_be_unset && !ejk_record_is_set(field, object)) {
        fputs("null", stream);
        return EJK_OK;
    }
    switch (field->kind) {
    case EJK_FIELD_BOOL: fputs(*(const bool *)place ? "true" : "false", stream); break;
    case EJK_FIELD_INT: fprintf(stream, "%" PRId64, *(const int64_t *)place); break;
    case EJK_FIELD_FLOAT: return write_float(stream, *(const double *)place, field->name, flags);
    case EJK_FIELD_OPT_BOOL: return write_truth(stream, *(const ejk_opt_bool *)place, field->name);
    case EJK_FIELD_OPT_INT: write_side(stream, place); break;
    case EJK_FIELD_OPT_FLOAT:
        return write_float(stream, ((const ejk_opt_float *)place)->value, field->name, flags);
    case EJK_FIELD_NAME: return write_name(stream, place, field->name);
    case EJK_FIELD_DTYPE: return write_dtype(stream, *(const ejk_dtype *)place, field->name);
    case EJK_FIELD_TENSOR: return ejki_write_tensor(stream, place, style, field->name);
    case EJK_FIELD_TENSORS: return write_tensors(stream, place, style, field->name);
    case EJK_FIELD_RECORD: return ejki_write_fields(stream, field->record, place, style, flags);
    default: write_list(stream, kind, place); break;
    }
    return EJK_OK;
}

const ejk_field *ejki_next_field(const ejk_record *record, const ejk_field *previous) {
    const ejk_field *next = NULL;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (previous && strcmp(field->name, previous->name) <= 0) continue;
        if (!next || strcmp(field->name, next->name) < 0) next = field;
    }
    return next;
}

ejk_status ejki_write_fields(FILE *stream, const ejk_record *record, const void *object,
                             ejk_json_style style, int flags) {
    const char *separator = "{";
    const ejk_field *field = NULL;
    while ((field = ejki_next_field(record, field)) != NULL) {
        if ((flags & EJKI_WRITE_SET_ONLY) && !ejk_record_is_set(field, object)) continue;
        fputs(separator, stream);
        EJKI_TRY(ejki_write_string(stream, field->name, strlen(field->name), field->name));
        putc(':', stream);
        EJKI_TRY(ejki_write_field(stream, field, object, style, flags));
        separator = ",";
    }
    fputs(*separator == '{' ? "{}" : "}", stream);
    return EJK_OK;
}

static ejk_status write_record(FILE *stream, const ejk_record *record, const void *object,
                               ejk_json_style style, int flags) {
    if (style == EJK_JSON_PLAIN) return ejki_write_fields(stream, record, object, style, flags);
    fputs("{\"_type\":\"dataclass\",\"class\":", stream);
    EJKI_TRY(ejki_write_string(stream, record->name, strlen(record->name), "record's name"));
    fputs(",\"data\":", stream);
    EJKI_TRY(ejki_write_fields(stream, record, object, style, flags));
    putc('}', stream);
    return EJK_OK;
}

static ejk_status check_style(ejk_json_style style) {
    if (style == EJK_JSON_PLAIN || style == EJK_JSON_TAGGED) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "style: %d given, expected EJK_JSON_PLAIN or EJK_JSON_TAGGED", (int)style);
}

static ejk_status record_to_text(const ejk_record *record, const void *object, ejk_json_style style,
                                 int flags, char **out) {
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_close(&text, write_record(text.stream, record, object, style, flags), out);
}

ejk_status ejk_stable_json(const ejk_record *record, const void *object, ejk_json_style style,
                           char **out) {
    if (record == NULL || object == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_stable_json: record, object or out is NULL");
    EJKI_TRY(check_style(style));
    return record_to_text(record, object, style, 0, out);
}

ejk_status ejk_stable_json_tensor(const ejk_tensor *tensor, ejk_json_style style, char **out) {
    if (tensor == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_stable_json_tensor: tensor or out is NULL");
    EJKI_TRY(check_style(style));
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_close(&text, ejki_write_tensor(text.stream, tensor, style, "tensor"), out);
}

ejk_status ejk_to_json(const ejk_record *record, const void *object, char **out) {
    if (record == NULL || object == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_to_json: record, object or out is NULL");
    return record_to_text(record, object, EJK_JSON_PLAIN, EJKI_WRITE_FINITE, out);
}

ejk_status ejk_from_json(const ejk_record *record, const char *json, void *object) {
    return ejk_record_from_json(record, json, object);
}
