/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns on a terminal: continuation bytes of UTF-8 take none. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

const char *time_text(double seconds, char out[TIME_ROOM]) {
    const char *unit = "s";
    if (!(seconds > 0)) return "-";
    if (seconds < 1e-3) {
        seconds *= 1e6;
        unit = "us";
    } else if (seconds < 1) {
        seconds *= 1e3;
        unit = "ms";
    }
    snprintf(out, TIME_ROOM, "%.3f %s", seconds, unit);
    return out;
}

static char *text_of(const char *format, va_list values) {
    char cell[1024];
    int length = vsnprintf(cell, sizeof cell, format, values);
    return length < 0 ? NULL : strdup(cell);
}

void table_add(text_table *table, const char *format, ...) {
    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : 64;
        char **cells = realloc(table->cells, room * sizeof *cells);
        if (!cells) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->room = room;
    }
    va_list values;
    va_start(values, format);
    char *text = text_of(format, values);
    va_end(values);
    if (text)
        table->cells[table->count++] = text;
    else
        table->failed = true;
}

void table_add_time(text_table *table, double seconds) {
    char text[TIME_ROOM];
    table_add(table, "%s", time_text(seconds, text));
}

static int column_width(const text_table *table, size_t column) {
    int widest = 0;
    for (size_t i = column; i < table->count; i += strlen(table->align)) {
        int width = width_of(table->cells[i]);
        if (width > widest) widest = width;
    }
    return widest;
}

static void print_row(const text_table *table, size_t row, int indent) {
    int pending = indent; /* spaces before the next text, so that no line ends in them */
    for (size_t i = 0; i < strlen(table->align); i++) {
        const char *text = table->cells[row + i];
        int room = column_width(table, i) - width_of(text);
        bool right = table->align[i] == 'r';
        if (*text) {
            printf("%*s%s", pending + (right ? room : 0), "", text);
            pending = right ? 2 : room + 2;
        } else {
            pending += room + 2;
        }
    }
    putchar('\n');
}

bool table_print(text_table *table, int indent) {
    size_t columns = strlen(table->align);
    for (size_t row = 0; row + columns <= table->count && !table->failed; row += columns)
        print_row(table, row, indent);
    for (size_t i = 0; i < table->count; i++) free(table->cells[i]);
    free(table->cells);
    bool whole = !table->failed || report_error("no memory for a table");
    *table = (text_table){.align = table->align};
    return whole;
}
