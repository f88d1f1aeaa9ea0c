/* SPDX-License-Identifier: Apache-2.0 */
/* Text in columns. */
#ifndef EJK_CLI_TABLE_H
#define EJK_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Cells are added row by row; zero-initialise all but `align`. */
typedef struct text_table {
    const char *align; /* one letter a column: l or r */
    char **cells;
    size_t count, room;
    bool failed; /* memory could not be had */
} text_table;

/* Adds the next cell. */
__attribute__((format(printf, 2, 3))) void table_add(text_table *table, const char *format, ...);

enum { TIME_ROOM = 48 };

/* Seconds in the unit that suits them, "1.234 ms"; "-" for what was not measured (0, NaN). */
const char *time_text(double seconds, char out[TIME_ROOM]);
void table_add_time(text_table *table, double seconds);

/* Prints each row behind `indent` spaces, then releases the cells. False: memory could not be had. */
bool table_print(text_table *table, int indent);

#endif
