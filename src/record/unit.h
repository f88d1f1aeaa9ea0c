/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit of a tensor field, read into shapes, an element type and what its values may be:
 *
 *     unit    = shape { " or " shape } " " element [ " " domain ]
 *     shape   = "[" [ axis { "," axis } ] "]"
 *     axis    = length { "|" length }
 *     length  = as expression.h has it
 *     element = a word: a group of types, a type, or a tensor field's name
 *     domain  = "in " ( "[" | "(" ) bound "," bound ( "]" | ")" )
 *             | "ascending from " bound " to " bound [ " by " bound ]
 *             | "sum <= " bound
 *     bound   = length | "-" number
 *
 * Units are read when they are needed and not kept: that happens when a plan is made, not when it is run.
 */
#ifndef EJKI_RECORD_UNIT_H
#define EJKI_RECORD_UNIT_H

#include "record/expression.h"

/* The most shapes of a unit and lengths of an axis. */
#define EJKI_UNIT_SHAPES  EJK_MAX_RANK
#define EJKI_UNIT_LENGTHS EJK_MAX_RANK

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

/* What values may be; the bounds are in the unit's text. */
typedef struct ejki_domain {
    ejk_domain_kind kind;
    ejki_length low, high, step; /* as ejk_domain has them; of size 0 = none */
    bool low_open, high_open;    /* the bound itself is outside */
} ejki_domain;

typedef struct ejki_unit {
    ejki_shape shape[EJKI_UNIT_SHAPES];
    int32_t count;
    const char *shapes; /* in the unit: all of it before the element type */
    int32_t shapes_size;
    char element[EJK_NAME_SIZE];
    ejki_domain domain;
} ejki_unit;

/* INVALID_ARGUMENT with the place that cannot be read. The result points into the field's unit. */
ejk_status ejki_unit_read(const ejk_field *field, ejki_unit *out);

/* The same for a member of a list; one below 0 counts as the first. */
ejk_status ejki_unit_read_member(const ejk_field *field, int32_t member, ejki_unit *out);

/* ejk_field_shape() of a member of a list, or of a tensor, whatever `member` is. */
ejk_status ejki_member_shape(const ejk_field *field, int32_t member, const ejk_axes *axes,
                             int32_t *rank, int64_t shape[EJK_MAX_RANK]);

struct ejki_line;

/* " with K=5, bits=4": the symbols of a length, as far as they are bound. */
void ejki_line_add_symbols(struct ejki_line *line, const ejki_length *length, const ejk_axes *axes);

/* Every length of a unit, with those of its domain if asked for, until `each` fails. */
ejk_status ejki_unit_lengths(const ejki_unit *unit, bool domain,
                             ejk_status (*each)(const ejki_length *length, void *user), void *user);

#define EJKI_TYPE_BIT(name) (UINT32_C(1) << EJK_DTYPE_##name)
#define EJKI_FLOAT_TYPES                                                                           \
    (EJKI_TYPE_BIT(F64) | EJKI_TYPE_BIT(F32) | EJKI_TYPE_BIT(BF16) | EJKI_TYPE_BIT(F16))

/* Element types that a word stands for. */
typedef struct ejki_element {
    const char *word;
    const char *names; /* for sentences */
    uint32_t types;    /* bit d: #ejk_dtype d */
} ejki_element;

/* NULL: the word is none, but may be the name of a field. */
const ejki_element *ejki_element_of(const char *word);

#endif
