/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields as the files of this room see them. What a kind is lies in one table (kinds.h); what "set"
 * means for a number, and when two numbers are the same, lies in ejki_scalar().
 */
#ifndef EJKI_RECORD_FIELD_H
#define EJKI_RECORD_FIELD_H

#include "record/tensors.h"

#include <ejkernel/record.h>

#include <stdlib.h>
#include <string.h>

struct json_t;

/* A record's own field by the first `length` bytes of `name`; NULL if there is none. */
const ejk_field *ejki_own_field(const ejk_record *record, const char *name, size_t length);

/* Fails with "<path>: no such field of <record>, which has …". */
ejk_status ejki_fail_unknown(ejk_status status, const ejk_record *record, const char *path);

/* Reads a field's value from JSON into zeroed memory; `prefix` as "outer." for the sentence. */
ejk_status ejki_json_read(const ejk_field *field, struct json_t *value, const char *prefix,
                          void *place);

/* The bits of a number in which equal numbers agree: one zero, one NaN. */
static inline uint64_t ejki_float_word(double value) {
    if (value != value) return UINT64_C(0x7ff8000000000000);
    value += 0.0; /* -0.0 + 0.0 is 0.0 */
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

/*
 * A value of one word: whether it is set, and a word that is equal for equal values and 0 if unset.
 * False for the kinds of several words.
 */
static inline bool ejki_scalar(ejk_field_kind kind, const void *place, uint64_t *word) {
    *word = 0;
    switch (kind) {
    case EJK_FIELD_BOOL: *word = *(const bool *)place; break;
    case EJK_FIELD_INT: *word = (uint64_t) * (const int64_t *)place; break;
    case EJK_FIELD_FLOAT: *word = ejki_float_word(*(const double *)place); break;
    case EJK_FIELD_OPT_BOOL: *word = *(const ejk_opt_bool *)place; break;
    case EJK_FIELD_DTYPE: *word = *(const ejk_dtype *)place; break;
    case EJK_FIELD_OPT_INT: {
        const ejk_opt_int *number = place;
        if (number->set) *word = (uint64_t)number->value;
        return number->set;
    }
    case EJK_FIELD_OPT_FLOAT: {
        const ejk_opt_float *number = place;
        if (number->set) *word = ejki_float_word(number->value);
        return number->set;
    }
    default: break;
    }
    return *word != 0;
}

/* Zeroed memory to fill in a struct's place; a struct of no fields has some too. NULL: out of memory. */
static inline void *ejki_aside(size_t size) {
    return calloc(1, size > 0 ? size : 1);
}

static inline const void *ejki_field_address(const ejk_field *field, const void *object) {
    return (const char *)object + field->offset;
}

#endif
