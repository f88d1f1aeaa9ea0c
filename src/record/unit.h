/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit of a tensor field, read into shapes and an element type:
 *
 *     unit    = shape { " or " shape } " " element
 *     shape   = "[" [ axis { "," axis } ] "]"
 *     axis    = length { "|" length }
 *     length  = number | symbol [ "+" number ]
 *     element = a word: a group of types, a type, or a tensor field's name
 *
 * Units are read when they are needed and not kept: that happens when a plan is made, not when it is run.
 */
#ifndef EJKI_RECORD_UNIT_H
#define EJKI_RECORD_UNIT_H

#include "base/base.h"

#include <ejkernel/record.h>

/* The most shapes of a unit and lengths of an axis: the widest in use, and one more. */
#define EJKI_UNIT_SHAPES  4
#define EJKI_UNIT_LENGTHS 4

typedef struct ejki_length {
    char symbol[8];   /* "" = a number alone */
    int64_t constant; /* the number, or what is added to the symbol */
} ejki_length;

typedef struct ejki_axis {
    ejki_length length[EJKI_UNIT_LENGTHS];
    int32_t count;
    const char *text; /* in the unit, not ended by a zero */
    int32_t text_size;
} ejki_axis;

typedef struct ejki_shape {
    ejki_axis axis[EJK_MAX_RANK];
    int32_t rank;
} ejki_shape;

typedef struct ejki_unit {
    ejki_shape shape[EJKI_UNIT_SHAPES];
    int32_t count;
    const char *shapes; /* in the unit: all of it before the element type */
    int32_t shapes_size;
    const char *element;
} ejki_unit;

/* INVALID_ARGUMENT with the place that cannot be read. The result points into the field's unit. */
ejk_status ejki_unit_read(const ejk_field *field, ejki_unit *out);

/* Element types that a word stands for. */
typedef struct ejki_element {
    const char *word;
    const char *names; /* for sentences */
    uint32_t types;    /* bit d: #ejk_dtype d */
} ejki_element;

/* NULL: the word is none, but may be the name of a field. */
const ejki_element *ejki_element_of(const char *word);

/* A symbol's first `size` bytes as a name of an axis; false if it is none or too long. */
bool ejki_symbol(const char *text, size_t size, char out[8]);

/* Bytes at the start of a text that a symbol may consist of, and that a number may. */
size_t ejki_symbol_size(const char *text);

/* Reads decimal digits and moves behind them; false without digits or above 63 bits. */
bool ejki_digits(const char **text, int64_t *out);

/* The length under bound symbols; -1 if its symbol is unbound or the sum does not fit. */
int64_t ejki_length_of(const ejki_length *length, const ejk_axes *axes);

#endif
