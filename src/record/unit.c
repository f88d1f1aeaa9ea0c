/* SPDX-License-Identifier: Apache-2.0 */
#include "record/unit.h"

#include <string.h>

#define BIT(name) (UINT32_C(1) << EJK_DTYPE_##name)

static const ejki_element elements[] = {
    {"float", "float64, float32, bfloat16 or float16", BIT(F64) | BIT(F32) | BIT(BF16) | BIT(F16)},
    {"int", "int32 or int64", BIT(I32) | BIT(I64)},
    {"index", "int8, int16, int32 or int64", BIT(I8) | BIT(I16) | BIT(I32) | BIT(I64)},
    {"bool", "bool or uint8", BIT(BOOL) | BIT(U8)},
#define ELEMENT(name, number, size, text) {text, text, BIT(name)},
    EJK_DTYPE_LIST(ELEMENT)
#undef ELEMENT
};

/* The groups come first in the list, so "bool" is the group and not the type. */
const ejki_element *ejki_element_of(const char *word) {
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        if (strcmp(elements[i].word, word) == 0) return &elements[i];
    return NULL;
}

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

size_t ejki_symbol_size(const char *text) {
    size_t size = 0;
    if (letter(text[0]))
        while (letter(text[size]) || digit(text[size]) || text[size] == '_') size++;
    return size;
}

bool ejki_symbol(const char *text, size_t size, char out[8]) {
    if (size == 0 || size >= 8 || ejki_symbol_size(text) < size) return false;
    memset(out, 0, 8);
    memcpy(out, text, size);
    return true;
}

bool ejki_digits(const char **text, int64_t *out) {
    if (!digit(**text)) return false;
    int64_t value = 0;
    for (; digit(**text); (*text)++)
        if (!ejki_mul(value, 10, &value) || !ejki_add(value, **text - '0', &value)) return false;
    *out = value;
    return true;
}

int64_t ejki_length_of(const ejki_length *length, const ejk_axes *axes) {
    int64_t value = 0;
    if (length->symbol[0] != '\0') value = ejk_axes_get(axes, length->symbol);
    return value >= 0 && ejki_add(value, length->constant, &value) ? value : -1;
}

/* Each reader moves *at behind what it has read, or stops in front of what it cannot read. */
static bool skip(const char **at, const char *word) {
    size_t size = strlen(word);
    if (strncmp(*at, word, size) != 0) return false;
    *at += size;
    return true;
}

static bool read_length(const char **at, ejki_length *out) {
    *out = (ejki_length){.constant = 0};
    size_t size = ejki_symbol_size(*at);
    if (size == 0) return ejki_digits(at, &out->constant);
    if (!ejki_symbol(*at, size, out->symbol)) return false;
    *at += size;
    return !skip(at, "+") || ejki_digits(at, &out->constant);
}

static bool read_axis(const char **at, ejki_axis *out) {
    out->count = 0;
    out->text = *at;
    do {
        if (out->count == EJKI_UNIT_LENGTHS || !read_length(at, &out->length[out->count]))
            return false;
        out->count++;
    } while (skip(at, "|"));
    out->text_size = (int32_t)(*at - out->text);
    return true;
}

static bool read_shape(const char **at, ejki_shape *out) {
    out->rank = 0;
    if (!skip(at, "[")) return false;
    if (skip(at, "]")) return true;
    do {
        if (out->rank == EJK_MAX_RANK || !read_axis(at, &out->axis[out->rank])) return false;
        out->rank++;
    } while (skip(at, ","));
    return skip(at, "]");
}

ejk_status ejki_unit_read(const ejk_field *field, ejki_unit *out) {
    const char *at = field->unit;
    bool read = true;
    out->count = 0;
    out->shapes = at;
    do {
        read = out->count < EJKI_UNIT_SHAPES && read_shape(&at, &out->shape[out->count]);
        out->count++;
    } while (read && skip(&at, " or "));
    out->shapes_size = (int32_t)(at - out->shapes);
    read = read && skip(&at, " ");
    out->element = at;
    /* Field names may begin with "_", which symbols may not; check.c sees to what the word means. */
    if (read && *at != '\0' && strchr(at, ' ') == NULL) return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_ARGUMENT,
        "%s: unit \"%s\" cannot be read at \"%s\"; expected shapes and an element type "
        "as \"[B,T|1,N+1] or [n] float32\"",
        field->name, field->unit, at);
}
