/* SPDX-License-Identifier: Apache-2.0 */
#include "record/symbols.h"

#include "base/base.h"
#include "record/unit.h"

#include <string.h>

/* ---- The list of symbols: item { "," item }, item = symbol [ "=" length [ "!" symbol ] ] ------------ */

typedef struct item {
    char symbol[EJK_SYMBOL_SIZE];
    ejki_length fallback;          /* of size 0: none */
    char without[EJK_SYMBOL_SIZE]; /* shapes have no default where this is bound; "" = always */
} item;

/* Moves *at behind an item and the comma after it; false at the end, or in front of what cannot be read. */
static bool next_item(const char **at, item *out) {
    const char *start = *at;
    const size_t size = ejki_symbol_size(start);
    out->fallback = (ejki_length){.text = NULL};
    out->without[0] = '\0';
    if (!ejki_symbol(start, size, out->symbol)) return false;
    start += size;
    if (*start == '=') {
        start++;
        if (!ejki_length_read(&start, &out->fallback)) return false;
    }
    if (*start == '!' && out->fallback.size > 0) {
        start++;
        const size_t length = ejki_symbol_size(start);
        if (!ejki_symbol(start, length, out->without)) return false;
        start += length;
    }
    if (*start == ',' ? start[1] == '\0' : *start != '\0') return false;
    *at = start + (*start == ',');
    return true;
}

static ejk_status complete(const ejk_record *record, bool shapes, ejk_axes *axes) {
    item each;
    ejk_axes result = *axes;
    for (const char *at = record->symbols; at != NULL && next_item(&at, &each);) {
        if (each.fallback.size == 0 || ejk_axes_get(&result, each.symbol) >= 0) continue;
        if (shapes && each.without[0] != '\0' && ejk_axes_get(&result, each.without) >= 0) continue;
        const ejki_value value = ejki_length_value(&each.fallback, &result);
        if (value.state == EJKI_LENGTH_KNOWN)
            EJKI_TRY(ejk_axes_set(&result, each.symbol, value.value));
    }
    *axes = result;
    return EJK_OK;
}

ejk_status ejki_axes_complete(const ejk_record *record, ejk_axes *axes) {
    return complete(record, true, axes);
}

ejk_status ejk_record_complete(const ejk_record *record, ejk_axes *axes) {
    if (record == NULL || axes == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_complete: record or axes is NULL");
    return complete(record, false, axes);
}

void ejki_axes_order(const ejk_record *record, ejk_axes *axes) {
    item each;
    int32_t sorted = 0;
    for (const char *at = record->symbols; at != NULL && next_item(&at, &each);)
        for (int32_t i = sorted; i < axes->count; i++) {
            if (strcmp(axes->axis[i].name, each.symbol) != 0) continue;
            const ejk_axes before = *axes;
            axes->axis[sorted] = before.axis[i];
            memcpy(&axes->axis[sorted + 1], &before.axis[sorted],
                   (size_t)(i - sorted) * sizeof *axes->axis);
            sorted++;
            break;
        }
}

/* ---- Orders: name { "|" name } { " " letter "=" symbol { "|" symbol } } ------------------------------ */

static int32_t letter_at(const ejki_orders *orders, char letter) {
    const char *place = letter != '\0' ? strchr(orders->name[0], letter) : NULL;
    return place != NULL ? (int32_t)(place - orders->name[0]) : -1;
}

/* A name of as many different letters as the first has. */
static bool read_name(const char **at, ejki_orders *out) {
    const size_t size = strcspn(*at, "| ");
    if (out->count == EJKI_MOST_ORDERS || size == 0 || size > EJK_MAX_RANK) return false;
    char *name = out->name[out->count];
    memcpy(name, *at, size);
    for (size_t i = 0; i < size; i++)
        if (strchr(name + i + 1, name[i]) != NULL ||
            (out->count > 0 && letter_at(out, name[i]) < 0))
            return false;
    if (out->count++ == 0) out->rank = (int32_t)size;
    *at += size;
    return (int32_t)size == out->rank;
}

static bool read_letter(const char **at, ejki_orders *out) {
    const int32_t place = letter_at(out, **at);
    if (place < 0 || (*at)[1] != '=' || out->symbols[place] != NULL) return false;
    *at += 2;
    out->symbols[place] = *at;
    out->symbols_size[place] = (int32_t)strcspn(*at, " ");
    *at += out->symbols_size[place];
    return out->symbols_size[place] > 0;
}

static bool read_orders(const char *text, ejki_orders *out) {
    *out = (ejki_orders){.count = 0};
    if (text == NULL) return true;
    for (;; text++) {
        if (!read_name(&text, out)) return false;
        if (*text != '|') break;
    }
    for (; *text == ' ';) {
        text++;
        if (!read_letter(&text, out)) return false;
    }
    for (int32_t i = 0; i < out->rank; i++)
        if (out->symbols[i] == NULL) return false;
    return *text == '\0';
}

ejki_orders ejki_orders_of(const ejk_record *record) {
    ejki_orders orders;
    if (!read_orders(record->orders, &orders)) orders.count = 0;
    return orders;
}

int32_t ejki_orders_find(const ejki_orders *orders, const char *name) {
    for (int32_t i = 0; i < orders->count; i++)
        if (strcmp(orders->name[i], name) == 0) return i;
    return -1;
}

/* The next of the symbols of a letter; false if there is none. */
static bool next_symbol(const char **at, const char *end, const char **symbol, size_t *size) {
    if (*at >= end) return false;
    *symbol = *at;
    for (*size = 0; *at + *size < end && (*at)[*size] != '|';) (*size)++;
    *at += *size + 1;
    return true;
}

static bool stands_for(const ejki_orders *orders, int32_t letter, const ejki_axis *axis) {
    const char *at = orders->symbols[letter], *end = at + orders->symbols_size[letter], *symbol;
    size_t size;
    while (next_symbol(&at, end, &symbol, &size))
        if ((int32_t)size == axis->text_size && strncmp(symbol, axis->text, size) == 0) return true;
    return false;
}

/* True if a shape of the unit has just the axes of the first order. */
static bool has_axes(const ejki_orders *orders, const ejk_field *field) {
    ejki_unit unit;
    if (ejki_unit_read(field, &unit) != EJK_OK) return false;
    for (int32_t i = 0; i < unit.count; i++) {
        bool fits = unit.shape[i].rank == orders->rank;
        for (int32_t k = 0; k < orders->rank && fits; k++)
            fits = stands_for(orders, k, &unit.shape[i].axis[k]);
        if (fits) return true;
    }
    return false;
}

void ejki_order_apply(const ejki_orders *orders, int32_t order, const ejk_field *field,
                      ejk_tensor *tensor) {
    int64_t strides[EJK_MAX_RANK] = {0}, step = 1;
    if (order <= 0 || tensor->rank != orders->rank || !has_axes(orders, field)) return;
    for (int32_t i = orders->rank - 1; i >= 0; i--) {
        const int32_t axis = letter_at(orders, orders->name[order][i]);
        strides[axis] = step;
        /* What overflows is refused when it is checked. */
        if (!ejki_mul(step, ejki_max(tensor->shape[axis], 1), &step)) return;
    }
    memcpy(tensor->strides, strides, sizeof strides);
}

/* ---- Checks ------------------------------------------------------------------------------------------ */

static ejk_status check_known(const ejk_record *record, const ejk_axes *known, const char *symbol) {
    if (ejk_axes_get(known, symbol) >= 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: %s is in no unit, expected symbols of units",
                     record->name, symbol);
}

static ejk_status check_items(const ejk_record *record, const ejk_axes *known) {
    const char *at = record->symbols;
    char symbol[EJK_SYMBOL_SIZE];
    ejk_axes seen = {.count = 0};
    for (item each; at != NULL && *at != '\0';) {
        if (!next_item(&at, &each) || ejk_axes_get(&seen, each.symbol) >= 0)
            return ejki_fail(
                EJK_STATUS_INVALID_ARGUMENT,
                "%s: symbols \"%s\" cannot be read at \"%s\"; expected each once, with "
                "defaults as \"B=1,T,S=T\"",
                record->name, record->symbols, at);
        EJKI_TRY(check_known(record, known, each.symbol));
        EJKI_TRY(ejk_axes_set(&seen, each.symbol, 0));
        if (each.without[0] != '\0') EJKI_TRY(check_known(record, known, each.without));
        if (each.fallback.size == 0) continue;
        for (const char *in = each.fallback.text; ejki_length_symbol(&each.fallback, &in, symbol);)
            EJKI_TRY(check_known(record, known, symbol));
    }
    return EJK_OK;
}

static ejk_status check_orders(const ejk_record *record, const ejk_axes *known) {
    ejki_orders orders;
    if (!read_orders(record->orders, &orders))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s: orders \"%s\" cannot be read; expected names of the same letters and "
                         "what these stand for, as \"bthd|bhtd b=B t=T|S h=H d=D\"",
                         record->name, record->orders);
    for (int32_t i = 0; i < orders.rank; i++) {
        const char *at = orders.symbols[i], *end = at + orders.symbols_size[i], *symbol;
        size_t size;
        while (next_symbol(&at, end, &symbol, &size)) {
            char name[EJK_SYMBOL_SIZE] = "";
            memcpy(name, symbol, size < sizeof name ? size : sizeof name - 1);
            EJKI_TRY(check_known(record, known, name));
        }
    }
    return EJK_OK;
}

ejk_status ejki_symbols_check(const ejk_record *record, const ejk_axes *known) {
    EJKI_TRY(check_items(record, known));
    return check_orders(record, known);
}
