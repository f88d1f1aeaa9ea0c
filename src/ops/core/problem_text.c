/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call as a line of text. What a reader would make of symbols, type and layout alone is worked out
 * first; a tensor that comes out like that needs no more than its name, or nothing if it is required.
 */
#include "ops/core/problem_text.h"

#include "ops/core/core.h"
#include "ops/core/json_text.h"
#include "record/tensors.h"
#include "record/unit.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    const ejk_kernel *kernel;
    ejki_slots slots;
    void *args; /* a copy: tensors on the CPU, without memory */
    ejk_axes axes;
    ejk_axes completed; /* with what a reader takes for symbols that are not said */
    ejk_dtype number;   /* UNSET: no tensor may be any float, or "dtype" is a field */
    ejki_orders orders;
    int32_t order;
    FILE *stream;
    const char *separator; /* before the next item */
} writer;

/* ---- What follows from what ------------------------------------------------------------------------ */

/* A word that is a field's name means the field. */
static bool means_field(const writer *w, const char *word) {
    return ejk_record_find(w->kernel->args, word, NULL) != NULL;
}

/* Strides of axes that are at most one long lead nowhere, and none does in a tensor without elements. */
static bool same_strides(const ejk_tensor *a, const ejk_tensor *b) {
    if (ejk_tensor_count(a) == 0) return true;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->shape[i] > 1 && a->strides[i] != b->strides[i]) return false;
    return true;
}

/* How a tensor differs from what a reader would take it for. */
typedef struct difference {
    bool dtype, sizes, strides;
} difference;

static ejk_status compare(const writer *w, const ejki_slot *slot, int32_t order, difference *out) {
    const ejk_tensor *tensor = ejki_slot_tensor(slot, w->args);
    const ejk_dtype number = w->number ? w->number : EJK_DTYPE_F32;
    ejk_dtype dtype;
    int32_t rank;
    int64_t sizes[EJK_MAX_RANK];
    EJKI_TRY(ejki_slot_dtype(slot, w->args, number, &dtype));
    out->dtype = dtype != tensor->dtype;
    out->sizes =
        ejki_member_shape(slot->field, slot->member, &w->completed, &rank, sizes) != EJK_OK ||
        rank != tensor->rank || memcmp(sizes, tensor->shape, (size_t)rank * sizeof *sizes) != 0;
    const ejk_tensor usual =
        ejki_slot_layout(slot, tensor->dtype, tensor->rank, tensor->shape, &w->orders, order);
    out->strides = !same_strides(tensor, &usual);
    return EJK_OK;
}

/* Tensors that lie as an order says, of those that are there. */
static ejk_status count_fits(const writer *w, int32_t order, int32_t *out) {
    *out = 0;
    for (int32_t i = 0; i < w->slots.count; i++) {
        difference d;
        if (!ejk_tensor_present(ejki_slot_tensor(&w->slots.list[i], w->args))) continue;
        EJKI_TRY(compare(w, &w->slots.list[i], order, &d));
        *out += !d.strides;
    }
    return EJK_OK;
}

/* Type and layout that most is said by. */
static ejk_status choose(writer *w) {
    for (int32_t i = 0; i < w->slots.count && !w->number && !means_field(w, "dtype"); i++) {
        const ejk_tensor *tensor = ejki_slot_tensor(&w->slots.list[i], w->args);
        ejk_dtype asked;
        EJKI_TRY(ejki_slot_dtype(&w->slots.list[i], NULL, EJK_DTYPE_UNSET, &asked));
        if (ejk_tensor_present(tensor) && asked == EJK_DTYPE_UNSET) w->number = tensor->dtype;
    }
    int32_t most, fits;
    EJKI_TRY(count_fits(w, 0, &most));
    for (int32_t i = 1; i < w->orders.count && !means_field(w, "layout"); i++) {
        EJKI_TRY(count_fits(w, i, &fits));
        if (fits <= most) continue;
        most = fits;
        w->order = i;
    }
    return EJK_OK;
}

/* ---- Writing --------------------------------------------------------------------------------------- */

static void start_item(writer *w, const char *key) {
    fprintf(w->stream, "%s%s", w->separator, key);
    w->separator = ",";
}

static void write_list(writer *w, const char *open, const int64_t *numbers, int32_t count) {
    fputs(open, w->stream);
    for (int32_t i = 0; i < count; i++)
        fprintf(w->stream, "%s%" PRId64, i > 0 ? "," : "", numbers[i]);
    fputs("]", w->stream);
}

static void write_view(writer *w, const ejki_slot *slot, const difference *d) {
    const ejk_tensor *tensor = ejki_slot_tensor(slot, w->args);
    start_item(w, slot->path);
    if (!d->dtype && !d->sizes && !d->strides) return;
    fputs("=", w->stream);
    if (d->dtype) fputs(ejk_dtype_name(tensor->dtype), w->stream);
    if (d->sizes) write_list(w, "[", tensor->shape, tensor->rank);
    if (d->strides) write_list(w, "@[", tensor->strides, tensor->rank);
}

/* First the optional ones that follow from their names, after "with"; then those of which more is said. */
static ejk_status write_tensors(writer *w) {
    const char *before = "with=";
    const bool with = !means_field(w, "with");
    for (int said = !with; said < 2; said++)
        for (int32_t i = 0; i < w->slots.count; i++) {
            const ejki_slot *slot = &w->slots.list[i];
            difference d;
            if (!ejk_tensor_present(ejki_slot_tensor(slot, w->args))) continue;
            EJKI_TRY(compare(w, slot, w->order, &d));
            const bool follows = !d.dtype && !d.sizes && !d.strides;
            const bool expected = ejk_field_is_required(slot->field) && slot->member <= 0;
            if (follows && expected) continue;
            if (said == 1 && (!follows || !with)) write_view(w, slot, &d);
            if (said == 1 || !follows) continue;
            if (*before == 'w') start_item(w, before);
            fprintf(w->stream, "%s%s", *before == 'w' ? "" : before, slot->path);
            before = "+";
        }
    return EJK_OK;
}

/* The shortest digits that read back as the same number. */
static ejk_status write_real(writer *w, const json_t *value) {
    for (size_t digits = 1; digits <= 17; digits++) {
        char *text;
        EJKI_TRY(ejki_json_text(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits), &text));
        json_t *again = json_loads(text, JSON_DECODE_ANY, NULL);
        const bool same = again && json_number_value(again) == json_real_value(value);
        json_decref(again);
        if (same || digits == 17) fputs(text, w->stream);
        free(text);
        if (same) break;
    }
    return EJK_OK;
}

static ejk_status write_string(writer *w, const json_t *value) {
    const char *plain = json_string_value(value);
    if (ejki_items_plain(plain)) {
        fputs(plain, w->stream);
        return EJK_OK;
    }
    char *text;
    EJKI_TRY(ejki_json_text(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII, &text));
    fputs(text, w->stream);
    free(text);
    return EJK_OK;
}

static ejk_status write_value(writer *w, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_TRUE: fputs("true", w->stream); return EJK_OK;
    case JSON_FALSE: fputs("false", w->stream); return EJK_OK;
    case JSON_INTEGER:
        fprintf(w->stream, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return EJK_OK;
    case JSON_REAL: return write_real(w, value);
    case JSON_STRING: return write_string(w, value);
    case JSON_ARRAY: /* a side of a window that has no limit is left out */
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i > 0) fputs(",", w->stream);
            if (!json_is_null(json_array_get(value, i)))
                EJKI_TRY(write_value(w, json_array_get(value, i)));
        }
        return EJK_OK;
    default: return ejki_fail(EJK_STATUS_INTERNAL, "a field's JSON is of no kind that has a text");
    }
}

/* Fields of a record in their order; `values` has those that are set. */
static ejk_status write_fields(writer *w, const ejk_record *record, const json_t *values,
                               const char *prefix) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const json_t *value = json_object_get(values, field->name);
        char path[EJKI_PATH_SIZE + 2];
        const int length = snprintf(path, sizeof path, "%s%s.", prefix, field->name);
        if (!value || ejki_is_tensor(field)) continue;
        if (length >= (int)sizeof path)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%.80s...: the path of a field is longer than %d bytes", path,
                             EJKI_PATH_SIZE - 1);
        if (field->kind == EJK_FIELD_RECORD) {
            EJKI_TRY(write_fields(w, field->record, value, path));
            continue;
        }
        path[length - 1] = '\0';
        start_item(w, path);
        fputs("=", w->stream);
        EJKI_TRY(write_value(w, value));
    }
    return EJK_OK;
}

static ejk_status write_line(writer *w) {
    char *text;
    EJKI_TRY(ejk_record_to_json(w->kernel->args, w->args, EJK_JSON_SET_ONLY, &text));
    json_t *values = json_loads(text, 0, NULL);
    ejk_free(text);
    if (!values)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the values of a problem");
    fprintf(w->stream, "%s:", w->kernel->op_id);
    for (int32_t i = 0; i < w->axes.count; i++) {
        if (means_field(w, w->axes.axis[i].name)) continue;
        start_item(w, w->axes.axis[i].name);
        fprintf(w->stream, "=%" PRId64, w->axes.axis[i].length);
    }
    if (w->number) {
        start_item(w, "dtype=");
        fputs(ejk_dtype_name(w->number), w->stream);
    }
    if (w->order > 0) {
        start_item(w, "layout=");
        fputs(w->orders.name[w->order], w->stream);
    }
    ejk_status status = write_tensors(w);
    if (status == EJK_OK) status = write_fields(w, w->kernel->args, values, "");
    json_decref(values);
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------------- */

static ejk_status check_name(const char *op_id) {
    for (const char *at = op_id; *at; at++)
        if ((unsigned char)*at <= ' ' || strchr(":#\"", *at))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "kernel '%.64s': a name with blanks, ':', '#' or '\"' has no text",
                             op_id);
    return EJK_OK;
}

/* True for the name of an integer field that is set: a symbol of that name is its value. */
static bool is_field_value(const writer *w, const char *word) {
    const ejk_field *field = ejk_record_find(w->kernel->args, word, NULL);
    return field && (field->kind == EJK_FIELD_INT || field->kind == EJK_FIELD_OPT_INT) &&
           ejk_record_is_set(field, w->args);
}

/* Symbols whose names mean other fields cannot be said; tensors that have them say their sizes. */
static ejk_status say_symbols(writer *w) {
    ejk_axes axes = {.count = 0}, said = {.count = 0};
    EJKI_TRY(ejki_slots_bind(w->kernel->args, &w->slots, w->args, true, &axes));
    for (int32_t i = 0; i < axes.count; i++)
        if (!means_field(w, axes.axis[i].name) || is_field_value(w, axes.axis[i].name))
            EJKI_TRY(ejk_axes_set(&said, axes.axis[i].name, axes.axis[i].length));
    ejki_axes_order(w->kernel->args, &said);
    w->axes = w->completed = said;
    return ejki_axes_complete(w->kernel->args, &w->completed);
}

/* What the text says of a copy of the arguments, which becomes the call that the text means. */
static ejk_status resolve(writer *w, void *copy) {
    const ejk_record *record = w->kernel->args;
    w->args = copy;
    EJKI_TRY(ejki_values_check(record, w->args));
    EJKI_TRY(ejki_slots_create(record, w->args, &w->slots));
    for (int32_t i = 0; i < w->slots.count; i++) {
        ejk_tensor *tensor = ejki_slot_tensor(&w->slots.list[i], w->args);
        tensor->device_type = EJK_DEVICE_CPU;
        tensor->device_index = 0;
    }
    EJKI_TRY(say_symbols(w));
    w->orders = ejki_orders_of(record);
    return choose(w);
}

static ejk_status write_text(writer *w, char **out) {
    char *text = NULL;
    size_t size = 0;
    w->stream = open_memstream(&text, &size);
    ejk_status status = EJK_STATUS_OUT_OF_MEMORY;
    if (w->stream) status = write_line(w);
    const bool complete = w->stream && fclose(w->stream) == 0;
    if (status == EJK_OK && !complete) status = EJK_STATUS_OUT_OF_MEMORY;
    if (!complete && status == EJK_STATUS_OUT_OF_MEMORY)
        ejki_fail(status, "no memory for the text of a problem");
    if (status == EJK_OK && size > EJK_PROBLEM_MAX_TEXT)
        status =
            ejki_fail(EJK_STATUS_OVERFLOW, "the text of this call has %zu bytes, at most %d fit",
                      size, EJK_PROBLEM_MAX_TEXT);
    if (status == EJK_OK)
        *out = text;
    else
        free(text);
    return status;
}

ejk_status ejk_problem_to_text(const ejk_kernel *kernel, const void *args, char **out) {
    if (!kernel || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !kernel ? "kernel"
                         : !args ? "args"
                                 : "out");
    EJKI_TRY(ejki_kernel_check(kernel));
    EJKI_TRY(check_name(kernel->op_id));
    writer w = {.kernel = kernel, .separator = ""};
    void *copy = malloc(kernel->args->size + 1);
    if (!copy) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of arguments");
    memcpy(copy, args, kernel->args->size);
    ejk_status status = resolve(&w, copy);
    if (status == EJK_OK) status = write_text(&w, out);
    free(w.slots.list);
    free(copy);
    return status;
}
