/* SPDX-License-Identifier: Apache-2.0 */
/* What reading and writing a problem's text share; the grammar is in <ejkernel/problem.h>. */
#ifndef EJKI_OPS_CORE_PROBLEM_TEXT_H
#define EJKI_OPS_CORE_PROBLEM_TEXT_H

#include <ejkernel/problem.h>

#include "base/base.h"
#include "record/symbols.h"

/* Room for a field's path, "outer.inner". */
#define EJKI_PATH_SIZE 160

/* ---- problem_items.c: a line cut into items --------------------------------------------------------- */

typedef struct ejki_item {
    char *key;
    const char *value; /* without quotes; NULL: the key is alone */
    int32_t at;        /* byte of the line, from 1 */
} ejki_item;

typedef struct ejki_items {
    char *text; /* a copy of the line that the items point into */
    const char *kernel;
    ejki_item *list;
    int32_t count;
} ejki_items;

/* MALFORMED with the byte. */
ejk_status ejki_items_read(const char *text, ejki_items *out);
void ejki_items_close(ejki_items *items);

/* True for a value that needs no quotes. */
bool ejki_items_plain(const char *value);

/* ---- problem_tensor.c: tensors that follow from symbols --------------------------------------------- */

/* A tensor of the arguments, those of nested records and of lists too. */
typedef struct ejki_slot {
    const ejk_record *owner; /* the record that it is a field of */
    const ejk_field *field;
    int32_t member;              /* in a list; -1: the field is the tensor */
    size_t owner_offset, offset; /* in the arguments */
    char path[EJKI_PATH_SIZE];   /* of member 1 of the list parts "parts.1" */
} ejki_slot;

typedef struct ejki_slots {
    ejki_slot *list;
    int32_t count;
} ejki_slots;

/* Freed by free(list). Members that the lists of `args` do not have are left out; NULL: none are. */
ejk_status ejki_slots_create(const ejk_record *record, const void *args, ejki_slots *out);
int32_t ejki_slots_find(const ejki_slots *slots, const char *path); /* -1 = none */

static inline ejk_tensor *ejki_slot_tensor(const ejki_slot *slot, void *args) {
    return (ejk_tensor *)(void *)((char *)args + slot->offset);
}

/* What a view says; the rest follows. */
typedef struct ejki_view {
    ejk_dtype dtype; /* UNSET = not said */
    bool sized, strided;
    int32_t rank, stride_count;
    struct {
        char symbol[EJK_SYMBOL_SIZE]; /* "" = a number alone */
        int64_t number;
    } size[EJK_MAX_RANK];
    int64_t stride[EJK_MAX_RANK];
} ejki_view;

/* MALFORMED or UNKNOWN_NAME (type); NULL says nothing. */
ejk_status ejki_view_read(const char *text, ejki_view *out);

/* The sizes that a view says; false if one of its symbols is unbound or does not fit. */
bool ejki_view_sizes(const ejki_view *view, const ejk_axes *axes, int64_t sizes[EJK_MAX_RANK]);

/* The type that the unit asks for, seen from what `args` has already. */
ejk_status ejki_slot_dtype(const ejki_slot *slot, const void *args, ejk_dtype number,
                           ejk_dtype *out);

/* A view without memory of these sizes, in an order of the record. */
ejk_tensor ejki_slot_layout(const ejki_slot *slot, ejk_dtype dtype, int32_t rank,
                            const int64_t *sizes, const ejki_orders *orders, int32_t order);

/* Binds symbols by the tensors there are, without memory or with. `whole`: required ones must be there. */
ejk_status ejki_slots_bind(const ejk_record *record, const ejki_slots *slots, void *args,
                           bool whole, ejk_axes *axes);

/* ---- problem.c ------------------------------------------------------------------------------------- */

struct ejk_problem {
    const ejk_kernel *kernel;
    void *args;
    ejk_axes axes;
    ejki_slots slots;
    ejk_owned_tensor *memory; /* one a slot, empty before ejk_problem_allocate() */
    ejk_input_wish *wishes;   /* values are its own */
    ejk_inputs inputs;        /* the same */
};

#endif
