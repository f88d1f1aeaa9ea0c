/* SPDX-License-Identifier: Apache-2.0 */
/* A line cut into its kernel and its items. Quoted values are decoded as the JSON strings they are. */
#include "ops/core/problem_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bool blank(char c) {
    return c == ' ' || c == '\t';
}

static char *skip_blanks(char *at) {
    while (blank(*at)) at++;
    return at;
}

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool in_key(char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

/* A comma ends a value if a key follows. */
static bool separates(char *comma) {
    return letter(*skip_blanks(comma + 1));
}

static int32_t place(const ejki_items *items, const char *at) {
    return (int32_t)(at - items->text) + 1;
}

static ejk_status malformed(const ejki_items *items, const char *at, const char *expected) {
    return ejki_fail(EJK_STATUS_MALFORMED, "byte %d: '%.40s' given, expected %s",
                     (int)place(items, at), at, expected);
}

/* A value between quotes; *end is put behind it. */
static ejk_status read_quoted(const ejki_items *items, char *start, char **end) {
    char *at = start + 1;
    while (*at != '\0' && *at != '"') at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    if (*at != '"') return malformed(items, start, "a closing quote");
    json_t *json = json_loadb(start, (size_t)(at - start) + 1, JSON_DECODE_ANY, NULL);
    if (!json) return malformed(items, start, "a text with the escapes of JSON");
    /* Decoding never makes it longer. */
    memcpy(start, json_string_value(json), json_string_length(json) + 1);
    json_decref(json);
    *end = at + 1;
    return EJK_OK;
}

static ejk_status read_bare(const ejki_items *items, char *start, char **end) {
    char *at = start;
    for (int depth = 0; *at != '\0' && !blank(*at); at++) {
        if (*at == '"' || *at == '#') return malformed(items, at, "quotes around the whole value");
        depth += (*at == '[') - (*at == ']');
        if (*at == ',' && depth == 0 && separates(at)) break;
    }
    if (at == start) return malformed(items, at, "a value after '='");
    *end = at;
    return EJK_OK;
}

/*
 * Reads an item at *at and moves behind it: to the next one, or to the end of the line, where *more gets
 * false. Texts are closed only after what follows them has been looked at.
 */
static ejk_status read_item(ejki_items *items, char **at, bool *more) {
    ejki_item item = {.key = *at, .at = place(items, *at)};
    char *end = *at, *key_end;
    if (!letter(*end)) return malformed(items, end, "the name of a field or a symbol");
    while (in_key(*end)) end++;
    key_end = end;
    char *next = skip_blanks(end);
    if (*next == '=') {
        char *start = skip_blanks(next + 1);
        item.value = start;
        if (*start == '"')
            EJKI_TRY(read_quoted(items, start, &end));
        else
            EJKI_TRY(read_bare(items, start, &end));
        next = skip_blanks(end);
    }
    const bool comment = *next == '#' && next > end;
    if (*next != ',' && *next != '\0' && !comment)
        return malformed(items, next, item.value ? "',' or the end" : "'=', ',' or the end");
    *more = *next == ',';
    *at = *more ? skip_blanks(next + 1) : next;
    *key_end = '\0';
    if (item.value && *end != '\0') *end = '\0';
    items->list[items->count++] = item;
    return EJK_OK;
}

static ejk_status read_kernel(ejki_items *items, char **at) {
    char *start = skip_blanks(items->text), *colon = start + strcspn(start, ":\"#"), *end = colon;
    while (end > start && blank(end[-1])) end--;
    if (*colon != ':' || end == start)
        return malformed(items, start, "a kernel's name and ':', as \"my_operation:T=128\"");
    items->kernel = start;
    *end = '\0';
    *at = skip_blanks(colon + 1);
    return EJK_OK;
}

static ejk_status read_all(ejki_items *items) {
    char *at = items->text;
    EJKI_TRY(read_kernel(items, &at));
    bool more = *at != '\0' && !(*at == '#' && blank(at[-1]));
    while (more) EJKI_TRY(read_item(items, &at, &more));
    return EJK_OK;
}

ejk_status ejki_items_read(const char *text, ejki_items *out) {
    const size_t length = strnlen(text, EJK_PROBLEM_MAX_TEXT + 1);
    if (length > EJK_PROBLEM_MAX_TEXT)
        return ejki_fail(EJK_STATUS_MALFORMED, "the line is longer than %d bytes",
                         EJK_PROBLEM_MAX_TEXT);
    size_t most = 1;
    for (size_t i = 0; i < length; i++) most += text[i] == ',';
    ejki_items items = {.text = malloc(length + 1), .list = malloc(most * sizeof *items.list)};
    ejk_status status = EJK_STATUS_OUT_OF_MEMORY;
    if (items.text && items.list) {
        memcpy(items.text, text, length);
        items.text[length] = '\0';
        status = read_all(&items);
    } else {
        ejki_fail(status, "no memory for a line of %zu bytes", length);
    }
    if (status == EJK_OK)
        *out = items;
    else
        ejki_items_close(&items);
    return status;
}

void ejki_items_close(ejki_items *items) {
    free(items->text);
    free(items->list);
}

bool ejki_items_plain(const char *value) {
    for (const char *at = value; *at != '\0'; at++)
        if (!in_key(*at) && *at != '+' && *at != '/') return false;
    return *value != '\0';
}
