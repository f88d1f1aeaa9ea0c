/* SPDX-License-Identifier: Apache-2.0 */
/* What a record says about the symbols of its units: their order, defaults, and orders of axes in memory. */
#ifndef EJKI_RECORD_SYMBOLS_H
#define EJKI_RECORD_SYMBOLS_H

#include <ejkernel/record.h>

enum { EJKI_MOST_ORDERS = 8 };

/* The orders that a record declares; of the first, which is that of the units, axes are contiguous. */
typedef struct ejki_orders {
    int32_t count, rank;
    char name[EJKI_MOST_ORDERS][EJK_MAX_RANK + 1];
    const char *symbols[EJK_MAX_RANK]; /* of each letter of the first name, in the record's text */
    int32_t symbols_size[EJK_MAX_RANK];
} ejki_orders;

/* Count 0: there are none. Of a record that ejk_record_check() takes. */
ejki_orders ejki_orders_of(const ejk_record *record);

/* The number of an order; -1 if there is none of that name. */
int32_t ejki_orders_find(const ejki_orders *orders, const char *name);

/*
 * Strides of a contiguous tensor in that order of memory, if the field's unit has just the axes of the
 * orders; they stay as they are otherwise.
 */
void ejki_order_apply(const ejki_orders *orders, int32_t order, const ejk_field *field,
                      ejk_tensor *tensor);

/*
 * As ejk_record_complete(), for shapes: "B=1!N" gives B no length where N is bound, so that shapes with a batch
 * are not taken where a number of packed sequences is given.
 */
ejk_status ejki_axes_complete(const ejk_record *record, ejk_axes *axes);

/* Puts symbols first that the record lists, in its order. */
void ejki_axes_order(const ejk_record *record, ejk_axes *axes);

/* INVALID_ARGUMENT: what the texts say cannot be read, or names a symbol that no unit has. */
ejk_status ejki_symbols_check(const ejk_record *record, const ejk_axes *known);

#endif
