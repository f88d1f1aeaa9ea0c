/* SPDX-License-Identifier: Apache-2.0 */
#include "record/unit.h"

#include <string.h>

#define BIT(name) EJKI_TYPE_BIT(name)

static const ejki_element elements[] = {
    {"float", "float64, float32, bfloat16 or float16", EJKI_FLOAT_TYPES},
    {"int", "int32 or int64", BIT(I32) | BIT(I64)},
    {"index", "int8, int16, int32 or int64", BIT(I8) | BIT(I16) | BIT(I32) | BIT(I64)},
    {"bool", "bool or uint8", BIT(BOOL) | BIT(U8)},
    {"float8", "float8_e4m3fn or float8_e5m2", BIT(F8E4M3) | BIT(F8E5M2)},
    {"element", "float64, float32, bfloat16, float16, int8, float8_e4m3fn or float8_e5m2",
     EJKI_FLOAT_TYPES | BIT(I8) | BIT(F8E4M3) | BIT(F8E5M2)},
    {"codes", "uint32 or uint8", BIT(U32) | BIT(U8)},
    {"words", "uint8, uint32 or int32", BIT(U8) | BIT(U32) | BIT(I32)},
    {"scales", "float32, bfloat16, float16, float8_e4m3fn, float8_e8m0fnu or int8",
     BIT(F32) | BIT(BF16) | BIT(F16) | BIT(F8E4M3) | BIT(F8E8M0) | BIT(I8)},
    {"zeros", "float32, bfloat16, float16, uint8, int8 or int32",
     BIT(F32) | BIT(BF16) | BIT(F16) | BIT(U8) | BIT(I8) | BIT(I32)},
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

/* Each reader moves *at behind what it has read, or stops in front of what it cannot read. */
static bool skip(const char **at, const char *word) {
    size_t size = strlen(word);
    if (strncmp(*at, word, size) != 0) return false;
    *at += size;
    return true;
}

static bool read_axis(const char **at, ejki_axis *out) {
    out->count = 0;
    out->text = *at;
    do {
        if (out->count == EJKI_UNIT_LENGTHS || !ejki_length_read(at, &out->length[out->count]))
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

/* Letters, digits and "_" up to a blank or the end. */
static bool read_element(const char **at, char out[EJK_NAME_SIZE]) {
    const size_t size = strcspn(*at, " ");
    if (size == 0 || size >= EJK_NAME_SIZE) return false;
    memset(out, 0, EJK_NAME_SIZE);
    memcpy(out, *at, size);
    *at += size;
    return true;
}

static bool read_bound(const char **at, ejki_length *out) {
    const char *start = *at;
    int64_t number;
    if (**at != '-') return ejki_length_read(at, out);
    (*at)++;
    if (!ejki_digits(at, &number)) return false;
    *out = (ejki_length){.text = start, .size = (int32_t)(*at - start)};
    return true;
}

static bool read_range(const char **at, ejki_domain *out) {
    out->kind = EJK_DOMAIN_RANGE;
    out->low_open = **at == '(';
    if (!skip(at, "[") && !skip(at, "(")) return false;
    if (!read_bound(at, &out->low) || !skip(at, ",") || !read_bound(at, &out->high)) return false;
    out->high_open = **at == ')';
    return skip(at, "]") || skip(at, ")");
}

static bool read_ascending(const char **at, ejki_domain *out) {
    out->kind = EJK_DOMAIN_ASCENDING;
    if (!read_bound(at, &out->low) || !skip(at, " to ") || !read_bound(at, &out->high))
        return false;
    return !skip(at, " by ") || read_bound(at, &out->step);
}

static bool read_domain(const char **at, ejki_domain *out) {
    *out = (ejki_domain){.kind = EJK_DOMAIN_NONE};
    if (**at == '\0') return true;
    if (!skip(at, " ")) return false;
    bool read = false;
    if (skip(at, "in ")) {
        read = read_range(at, out);
    } else if (skip(at, "ascending from ")) {
        read = read_ascending(at, out);
    } else if (skip(at, "sum <= ")) {
        out->kind = EJK_DOMAIN_SUM;
        read = read_bound(at, &out->high);
    }
    return read && **at == '\0';
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
    /* Field names may begin with "_", which symbols may not; check.c sees to what the word means. */
    if (read && skip(&at, " ") && read_element(&at, out->element) && read_domain(&at, &out->domain))
        return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_ARGUMENT,
        "%s: unit \"%s\" cannot be read at \"%s\"; expected shapes, an element type and values "
        "as \"[B,T|1,2*N+1] or [n] int in [0,n)\"",
        field->name, field->unit, at);
}

ejk_status ejki_unit_read_member(const ejk_field *field, int32_t member, ejki_unit *out) {
    EJKI_TRY(ejki_unit_read(field, out));
    if (member <= 0) return EJK_OK;
    for (int32_t s = 0; s < out->count; s++)
        for (int32_t i = 0; i < out->shape[s].rank; i++)
            for (int32_t k = 0; k < out->shape[s].axis[i].count; k++)
                out->shape[s].axis[i].length[k].member = member;
    out->domain.low.member = out->domain.high.member = out->domain.step.member = member;
    return EJK_OK;
}

ejk_status ejki_unit_lengths(const ejki_unit *unit, bool domain,
                             ejk_status (*each)(const ejki_length *length, void *user),
                             void *user) {
    for (int32_t s = 0; s < unit->count; s++)
        for (int32_t i = 0; i < unit->shape[s].rank; i++)
            for (int32_t k = 0; k < unit->shape[s].axis[i].count; k++)
                EJKI_TRY(each(&unit->shape[s].axis[i].length[k], user));
    const ejki_length *bounds[] = {&unit->domain.low, &unit->domain.high, &unit->domain.step};
    for (int i = 0; i < 3 && domain; i++)
        if (bounds[i]->size > 0) EJKI_TRY(each(bounds[i], user));
    return EJK_OK;
}
