/* SPDX-License-Identifier: Apache-2.0 */
/* Symbols and their lengths, and the shape of a field under them. */
#include "record/line.h"
#include "record/unit.h"

#include <string.h>

enum { MOST = sizeof((ejk_axes *)0)->axis / sizeof *((ejk_axes *)0)->axis };
_Static_assert(EJK_SYMBOL_SIZE == 24, "the sentence about symbols says 23");

/* The symbol's place, or the number of symbols; a count outside the array counts as what fits. */
static int32_t place_of(const ejk_axes *axes, const char *name) {
    int32_t count = axes->count < 0 ? 0 : axes->count < MOST ? axes->count : MOST;
    for (int32_t i = 0; i < count; i++)
        if (strncmp(axes->axis[i].name, name, sizeof axes->axis[i].name) == 0) return i;
    return count;
}

ejk_status ejk_axes_set(ejk_axes *axes, const char *name, int64_t length) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    char symbol[EJK_SYMBOL_SIZE];
    if (axes == NULL || name == NULL) return ejki_fail(bad, "ejk_axes_set: axes or name is NULL");
    if (!ejki_symbol(name, strlen(name), symbol))
        return ejki_fail(bad, "axis \"%.40s\": 1 to 23 letters and digits expected, a letter first",
                         name);
    if (length < 0)
        return ejki_fail(bad, "axis %s: length %lld is negative", name, (long long)length);
    int32_t place = place_of(axes, symbol);
    if (place == MOST)
        return ejki_fail(bad, "axis %s: there are %d symbols already, the most possible", name,
                         (int)MOST);
    bool known = place < axes->count;
    memcpy(axes->axis[place].name, symbol, sizeof symbol);
    axes->axis[place].length = length;
    if (!known) axes->count = place + 1;
    return EJK_OK;
}

int64_t ejk_axes_get(const ejk_axes *axes, const char *name) {
    if (axes == NULL || name == NULL) return -1;
    int32_t place = place_of(axes, name);
    return place < MOST && place < axes->count ? axes->axis[place].length : -1;
}

ejk_status ejk_axes_parse(const char *text, ejk_axes *axes) {
    if (text == NULL || axes == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_axes_parse: text or axes is NULL");
    ejk_axes result = {.count = 0};
    const char *at = text;
    while (*at != '\0') {
        char symbol[EJK_SYMBOL_SIZE];
        int64_t length;
        const char *start = at;
        size_t size = ejki_symbol_size(at);
        bool read = ejki_symbol(at, size, symbol) && ejk_axes_get(&result, symbol) < 0;
        at += size;
        read = read && *at++ == '=' && ejki_digits(&at, &length);
        read = read && (*at == '\0' || (*at == ',' && at[1] != '\0'));
        if (!read || ejk_axes_set(&result, symbol, length) != EJK_OK)
            return ejki_fail(
                EJK_STATUS_MALFORMED,
                "axes: cannot read \"%.40s\" at byte %td; expected each symbol once, as "
                "\"B=1,H=8\", at most %d",
                start, start - text, (int)MOST);
        at += *at == ',';
    }
    *axes = result;
    return EJK_OK;
}

void ejki_line_add_symbols(ejki_line *line, const ejki_length *length, const ejk_axes *axes) {
    char symbol[EJK_SYMBOL_SIZE];
    const char *separator = " with ";
    for (const char *at = length->text; ejki_length_symbol(length, &at, symbol); separator = ", ")
        ejki_line_add(line, "%s%s=%lld", separator, symbol, (long long)ejk_axes_get(axes, symbol));
}

ejk_status ejk_field_shape(const ejk_field *field, const ejk_axes *axes, int32_t *rank,
                           int64_t shape[EJK_MAX_RANK]) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    if (field == NULL || axes == NULL || rank == NULL || shape == NULL)
        return ejki_fail(bad, "ejk_field_shape: field, axes, rank or shape is NULL");
    if (field->kind != EJK_FIELD_TENSOR)
        return ejki_fail(bad, "%s: not a tensor, it has no shape", field->name);
    return ejki_member_shape(field, -1, axes, rank, shape);
}

ejk_status ejki_member_shape(const ejk_field *field, int32_t member, const ejk_axes *axes,
                             int32_t *rank, int64_t shape[EJK_MAX_RANK]) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    ejki_unit unit;
    EJKI_TRY(ejki_unit_read_member(field, member, &unit));
    ejki_value missing = {.symbol = ""};
    const ejki_length *length = NULL; /* the one that is missing */
    for (int32_t i = 0; i < unit.count; i++) {
        const ejki_shape *candidate = &unit.shape[i];
        int64_t lengths[EJK_MAX_RANK];
        int32_t bound = 0;
        for (; bound < candidate->rank; bound++) {
            const ejki_value value = ejki_length_value(&candidate->axis[bound].length[0], axes);
            lengths[bound] = value.value;
            if (value.state == EJKI_LENGTH_KNOWN) continue;
            if (length == NULL) {
                length = &candidate->axis[bound].length[0];
                missing = value;
            }
            break;
        }
        if (bound == candidate->rank) {
            *rank = bound;
            memcpy(shape, lengths, (size_t)bound * sizeof *shape);
            return EJK_OK;
        }
    }
    if (missing.state != EJKI_LENGTH_NEVER)
        return ejki_fail(bad, "%s: the shape %.*s needs %s, which is not bound to a length",
                         field->name, (int)unit.shapes_size, unit.shapes, missing.symbol);
    ejki_line with = {.used = 0};
    ejki_line_add_symbols(&with, length, axes);
    return ejki_fail(bad, "%s: the shape %.*s needs %.*s, which is no length%s", field->name,
                     (int)unit.shapes_size, unit.shapes, (int)length->size, length->text,
                     with.text);
}
