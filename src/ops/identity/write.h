/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the files of this room write texts, bit for bit as Python's json module does. jansson reads, but
 * does not write here: it gives numbers 17 digits, escapes in upper case, and has no NaN.
 */
#ifndef EJKI_OPS_IDENTITY_WRITE_H
#define EJKI_OPS_IDENTITY_WRITE_H

#include "base/base.h"

#include <ejkernel/identity.h>

#include <stdio.h>

/* ---- text.c: a text that grows, strings and numbers ------------------------------------------------- */

typedef struct ejki_text {
    FILE *stream;
    char *bytes;
    size_t size;
} ejki_text;

ejk_status ejki_text_open(ejki_text *text);

/* Ends it. If `status` is OK and all was written, *out gets the text; else it is freed. */
ejk_status ejki_text_close(ejki_text *text, ejk_status status, char **out);

/* The same, for the short hash of the text. */
ejk_status ejki_text_hash(ejki_text *text, ejk_status status, char out[EJK_SHORT_HASH_SIZE]);

/* A JSON string; INVALID_ARGUMENT, naming `name`, if it is not UTF-8. */
ejk_status ejki_write_string(FILE *stream, const char *bytes, size_t length, const char *name);

/* ---- number.c --------------------------------------------------------------------------------------- */

/* Room of any finite number, as "-2.2250738585072014e-308", and then some for what compilers suspect. */
#define EJKI_FLOAT_SIZE 64

/* A finite number as Python's repr() writes it. */
void ejki_float_text(double value, char text[EJKI_FLOAT_SIZE]);

/* ---- stable_json.c ---------------------------------------------------------------------------------- */

enum ejki_write_flags {
    EJKI_WRITE_SET_ONLY = 1, /* leave out fields that are not set */
    EJKI_WRITE_FINITE = 2,   /* refuse NaN and the infinities */
};

/* The field of the next name in sorted order; NULL = the first one, and NULL after the last. */
const ejk_field *ejki_next_field(const ejk_record *record, const ejk_field *previous);

ejk_status ejki_write_tensor(FILE *stream, const ejk_tensor *tensor, ejk_json_style style,
                             const char *name);

/* An object of a record's fields, without a tag. */
ejk_status ejki_write_fields(FILE *stream, const ejk_record *record, const void *object,
                             ejk_json_style style, int flags);

/* One field's value; null if it is not set and its kind can be unset. */
ejk_status ejki_write_field(FILE *stream, const ejk_field *field, const void *object,
                            ejk_json_style style, int flags);

/* A JSON text, made stable; MALFORMED with `name`. */
ejk_status ejki_write_json(FILE *stream, const char *json, const char *name);

/* ---- call_key.c ------------------------------------------------------------------------------------- */

/* The array of required input tensors, and the object of the other inputs that are set. */
ejk_status ejki_write_args(FILE *stream, const ejk_kernel *kernel, const void *args);
ejk_status ejki_write_kwargs(FILE *stream, const ejk_kernel *kernel, const void *args);

/* INVALID_ARGUMENT for a kernel that is NULL or lacks its name or its arguments' record, or no args. */
ejk_status ejki_call_check(const ejk_kernel *kernel, const void *args, const char *function);

/* The version that stands in identifiers. */
static inline const char *ejki_version_of(const ejk_kernel *kernel) {
    return kernel->version ? kernel->version : "0";
}

#endif
