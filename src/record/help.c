/* SPDX-License-Identifier: Apache-2.0 */
/* Help: a table of a record's fields, nested ones under their outer flag. */
#include "record/field.h"

#include <stdio.h>
#include <stdlib.h>

enum { FLAG, TYPE, DEFAULT, UNIT, DOC, COLUMNS };

/* A table is walked twice: first its columns are measured, then it is printed. */
typedef struct help_table {
    FILE *stream; /* NULL while measuring */
    size_t width[COLUMNS];
} help_table;

/* Columns on a terminal: continuation bytes of UTF-8 take none. */
static size_t columns_of(const char *text) {
    size_t columns = 0;
    for (; *text != '\0'; text++) columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

static void add_line(help_table *table, const char *const cell[COLUMNS]) {
    size_t pending = 0; /* spaces before the next text, so that no line ends in them */
    for (int i = 0; i < COLUMNS; i++) {
        size_t columns = columns_of(cell[i]);
        if (table->stream == NULL) {
            if (columns > table->width[i]) table->width[i] = columns;
            continue;
        }
        if (columns > 0) {
            fprintf(table->stream, "%*s%s", (int)pending, "", cell[i]);
            pending = 0;
        }
        pending += table->width[i] - columns + 2;
    }
    if (table->stream != NULL) fputc('\n', table->stream);
}

static const char *default_of(const ejk_field *field) {
    return ejk_field_is_required(field) ? "required" : field->fallback;
}

static const char *type_of(const ejk_field *field) {
    if (!ejk_field_is_output(field)) return ejki_kind_of(field->kind)->word;
    return ejk_field_is_input(field) ? "in, out" : "output";
}

static void add_record(help_table *table, const ejk_record *record, const char *prefix) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        char flag[EJKI_PREFIX_SIZE];
        snprintf(flag, sizeof flag, "%s%s", prefix, field->name);
        for (char *c = flag; *c != '\0'; c++)
            if (*c == '_') *c = '-';
        add_line(table, (const char *const[COLUMNS]){[FLAG] = flag,
                                                     [TYPE] = type_of(field),
                                                     [DEFAULT] = default_of(field),
                                                     [UNIT] = field->unit,
                                                     [DOC] = field->doc});
        if (field->kind == EJK_FIELD_RECORD) {
            char inner[EJKI_PREFIX_SIZE];
            snprintf(inner, sizeof inner, "%.*s.", (int)sizeof inner - 2, flag);
            add_record(table, field->record, inner);
        }
    }
}

ejk_status ejk_record_help(const ejk_record *record, char **out) {
    if (record == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_record_help: record or out is NULL");
    help_table table = {.stream = NULL};
    add_record(&table, record, "--");
    char *text = NULL;
    size_t size = 0;
    table.stream = open_memstream(&text, &size);
    if (table.stream != NULL) {
        add_record(&table, record, "--");
        bool failed = ferror(table.stream) != 0;
        if (fclose(table.stream) == 0 && !failed) {
            *out = text;
            return EJK_OK;
        }
        free(text);
    }
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the help of %s could not be had",
                     record->name);
}
