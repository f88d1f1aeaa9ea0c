/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as JSON: what the readers and the writer share. */
#ifndef EJKI_MASK_JSON_H
#define EJKI_MASK_JSON_H

#include "mask/mask.h"

#include <jansson.h>

#define BAD_FORM(...) REFUSE(MALFORMED, INVALID_REQUEST, __VA_ARGS__)

/* An array that was read: its elements lie contiguous behind tensor.data, which free() frees. */
typedef struct {
    ejk_tensor tensor;
} ejki_json_array;

/* Reads an ARRAY; a bare nested list is of `bare`. */
ejk_status ejki_json_array_read(const json_t *json, ejk_dtype bare, ejki_json_array *out);

/* Refuses members that `names`, closed by NULL, does not list, and what is no object. `what` names it. */
ejk_status ejki_json_members(const json_t *json, const char *what, const char *const *names);

/* A required whole number. */
ejk_status ejki_json_integer(const json_t *json, const char *what, int64_t *out);

/* A list of two whole numbers. */
ejk_status ejki_json_pair(const json_t *json, const char *what, int64_t out[2]);

/*
 * How far masks are read. An error of form is found before any other, and sizes are refused before elements
 * are computed.
 */
typedef struct {
    enum {
        EJKI_READ_FORM,   /* nothing is made */
        EJKI_READ_SHAPES, /* a mask of the same shape stands in for a dense one `of` another */
        EJKI_READ_ALL
    } stage;
    int64_t max_bytes; /* limit of a dense mask's elements */
    bool stood_in;     /* set where a mask stood in */
} ejki_mask_reader;

/* Reads a MASK. */
ejk_status ejki_json_mask(const json_t *json, ejki_mask_reader *reader, ejk_splash_mask **out);

/* The elements of a dense mask of any rank and dtype; without data where a mask would stand in. */
ejk_status ejki_json_elements(const json_t *json, ejki_mask_reader *reader, ejki_json_array *out);

/* Parses a text; jansson's own words tell what is wrong. */
ejk_status ejki_json_parse(const char *text, size_t length, json_t **out);

/* ---- Writing --------------------------------------------------------------------------------------- */

typedef struct {
    ejk_splash_write_fn write;
    void *user;
    bool base64;
    bool failed;
    size_t used;
    char buffer[8192];
} ejki_writer;

void ejki_put(ejki_writer *writer, const char *text);
void ejki_put_integer(ejki_writer *writer, int64_t value);
/* An ARRAY; null for an unset tensor. Contiguous. */
void ejki_put_tensor(ejki_writer *writer, const ejk_tensor *tensor);
/* A text with its quotes. */
void ejki_put_text(ejki_writer *writer, const char *text);
/* The numbers of a causal, local or chunked mask: `, "offset": 0`. */
void ejki_put_numbers(ejki_writer *writer, const ejk_splash_mask *mask);
void ejki_put_info(ejki_writer *writer, const ejk_splash_mask_info *info);
/* Hands over what is left; IO if the caller's function refused any of it. */
ejk_status ejki_put_end(ejki_writer *writer);

#endif
