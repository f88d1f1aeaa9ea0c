/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of fields: all that differs between them, in one table. A new kind is a member macro in record.h, a
 * line of EJK_FIELD_LIST and a line of the table; whoever walks over a record asks it. Only compare.c, which
 * runs on calls that find their plan, has the frequent kinds spelled out besides.
 */
#ifndef EJKI_RECORD_KINDS_H
#define EJKI_RECORD_KINDS_H

#include "base/base.h"

#include <ejkernel/record.h>

struct json_t;

/* The most elements of a list of whole numbers. */
#define EJKI_MOST_LISTED EJK_MAX_INTS

typedef struct ejki_kind {
    const char *word;     /* in help texts */
    const char *expected; /* in error sentences */
    size_t size;          /* of the member; 0 for a nested record, whose description knows */
    size_t alignment;     /* of the member; 1 for a nested record, whose fields know */
    bool always_set;      /* it has a zero, but no "unset" */

    /*
     * NULL for those of one word, which ejki_scalar() knows, for tensors, lists of them and nested records; tensors
     * are compared with or without their addresses.
     */
    bool (*set)(const void *place);
    bool (*same)(const void *a, const void *b);
    uint64_t (*hash)(const void *place); /* of one that is set */

    /* A kind that is a list of whole numbers: writes them and says how many; an unset one is unlimited. */
    int32_t (*list)(const void *place, ejk_opt_int out[EJKI_MOST_LISTED]);

    /* What is expected, where the bytes are no value of the kind; NULL otherwise. */
    const char *(*fault)(const void *place);

    /* Marks the bytes that count of a value that has no fault, in a mask of its size. */
    void (*counts)(const void *place, unsigned char *mask);

    /* JSON of a set value and back, into zeroed memory; NULL for nested records. */
    bool (*read)(const struct json_t *value, void *place);
    ejk_status (*write)(const ejk_field *field, const void *place, const char *prefix,
                        struct json_t **out);

    /* The JSON that a command line's text stands for; NULL: the text is JSON. */
    struct json_t *(*parse)(const char *text);
} ejki_kind;

/* NULL for a number that is no kind. */
const ejki_kind *ejki_kind_of(ejk_field_kind kind);

/* ---- kinds_json.c ------------------------------------------------------------------------------------ */

bool ejki_read_bool(const struct json_t *value, void *place);
bool ejki_read_int(const struct json_t *value, void *place);
bool ejki_read_float(const struct json_t *value, void *place);
bool ejki_read_opt_bool(const struct json_t *value, void *place);
bool ejki_read_opt_int(const struct json_t *value, void *place);
bool ejki_read_opt_float(const struct json_t *value, void *place);
bool ejki_read_window(const struct json_t *value, void *place);
bool ejki_read_ints(const struct json_t *value, void *place);
bool ejki_read_name(const struct json_t *value, void *place);
bool ejki_read_dtype(const struct json_t *value, void *place);
bool ejki_read_tensor(const struct json_t *value, void *place);
bool ejki_read_tensors(const struct json_t *value, void *place);

typedef ejk_status ejki_write_fn(const ejk_field *field, const void *place, const char *prefix,
                                 struct json_t **out);
ejki_write_fn ejki_write_bool, ejki_write_int, ejki_write_float, ejki_write_opt_bool,
    ejki_write_opt_int, ejki_write_opt_float, ejki_write_list, ejki_write_name, ejki_write_dtype,
    ejki_write_tensor_shape, ejki_write_tensors;

struct json_t *ejki_parse_truth(const char *text);
struct json_t *ejki_parse_string(const char *text);
struct json_t *ejki_parse_window(const char *text);
struct json_t *ejki_parse_ints(const char *text);

/* ---- Values of several words, which compare.c has inline ---------------------------------------------- */

static inline bool ejki_same_int(const ejk_opt_int *a, const ejk_opt_int *b) {
    return (a->set == b->set) & (!a->set | (a->value == b->value));
}

static inline bool ejki_same_window(const void *x, const void *y) {
    const ejk_window *a = x, *b = y;
    return ejki_same_int(&a->left, &b->left) && ejki_same_int(&a->right, &b->right);
}

/* Counts from hostile hands lead nowhere outside the array. */
static inline int32_t ejki_ints_count(const ejk_ints *ints) {
    return ints->count < 0 ? 0 : ints->count < EJK_MAX_INTS ? ints->count : EJK_MAX_INTS;
}

static inline int32_t ejki_tensors_count(const ejk_tensors *list) {
    return list->count < 0 ? 0 : list->count < EJK_MAX_TENSORS ? list->count : EJK_MAX_TENSORS;
}

#endif
