/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding labels and JSON stamps in the text of a program. The text is anybody's, and may be large: one
 * pass, in which no byte is looked at more than a few times whatever stands there.
 */
#include "ops/identity/label.h"

#include "base/base.h"

#include <ejkernel/labels.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PREFIXES 16

struct ejk_labels {
    ejk_label_match *matches;
    size_t count, capacity;
    int64_t cut;
};

/* A text that is looked for. */
typedef struct needle {
    const char *text;
    size_t length;
    size_t run_end; /* of a prefix: where the operation ends that was last looked at behind it */
} needle;

typedef struct finder {
    const char *text;
    size_t length;
    needle prefixes[MAX_PREFIXES];
    int prefix_count;
    needle stamp; /* with its colon and brace; length 0 = not looked for */
    bool starts[256];
    size_t label_from; /* where the next label may start */
    size_t stamp_from; /* where the next stamp may start */
    char *unescaped;   /* room for any stamp */
    ejk_labels *labels;
} finder;

static bool has(const finder *f, size_t at, const needle *n) {
    return f->length - at >= n->length && memcmp(f->text + at, n->text, n->length) == 0;
}

static ejk_status add(finder *f, size_t at, size_t length, const char *bytes, size_t size,
                      bool json) {
    ejk_labels *labels = f->labels;
    if (labels->count == labels->capacity) {
        size_t capacity = labels->capacity * 2 + 8;
        ejk_label_match *matches = realloc(labels->matches, capacity * sizeof *matches);
        if (matches == NULL)
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu labels could not be had",
                             capacity);
        labels->matches = matches;
        labels->capacity = capacity;
    }
    char *copy = strndup(bytes, size);
    if (copy == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a label could not be had");
    labels->matches[labels->count++] =
        (ejk_label_match){.text = copy, .offset = at, .length = length, .json = json};
    return EJK_OK;
}

/* ---- Labels ---------------------------------------------------------------------------------------- */

/* Behind an operation's characters from `at` on; each stretch of them is walked through once a prefix. */
static size_t end_of_run(const finder *f, needle *prefix, size_t at) {
    if (at >= prefix->run_end) {
        size_t end = at;
        while (end < f->length && ejki_is_op_char((unsigned char)f->text[end])) end++;
        prefix->run_end = end;
    }
    return prefix->run_end;
}

static ejk_status try_label(finder *f, size_t at) {
    bool cut = false;
    for (int i = 0; i < f->prefix_count; i++) {
        if (!has(f, at, &f->prefixes[i])) continue;
        cut = true;
        size_t op = at + f->prefixes[i].length, end = end_of_run(f, &f->prefixes[i], op);
        if (end == op || end == f->length || f->text[end] != ':') continue;
        if (!ejki_is_key(f->text + end + 1, f->length - end - 1)) continue;
        f->label_from = end + 1 + EJKI_KEY_DIGITS;
        return add(f, at, f->label_from - at, f->text + at, f->label_from - at, false);
    }
    f->labels->cut += cut;
    return EJK_OK;
}

/* ---- Stamps ---------------------------------------------------------------------------------------- */

/* How the string around a stamp writes a quote. */
typedef enum quoting { RAW, BACKSLASH, HEX } quoting;

static quoting quoting_at(const finder *f, size_t at) {
    if (f->length - at < 2 || f->text[at] != '\\') return RAW;
    return f->text[at + 1] == '"' ? BACKSLASH : HEX;
}

/*
 * The stamp's next byte, behind which *at moves; 0 where its string ends. HLO writes \" and \\ in a
 * string, MLIR \22 and \\ (or \5C). Outside of strings, a line ends it.
 */
static char next_byte(const finder *f, quoting mode, size_t *at) {
    char c = f->text[*at];
    if ((unsigned char)c < ' ' || (c == '"' && mode != RAW)) return 0;
    if (c != '\\' || mode == RAW) {
        (*at)++;
        return c;
    }
    const char *escape = f->text + *at + 1;
    size_t left = f->length - *at - 1;
    if (mode == HEX && left >= 2 && memcmp(escape, "22", 2) == 0) {
        *at += 3;
        return '"';
    }
    if (mode == HEX && left >= 2 && escape[0] == '5' && (escape[1] | 0x20) == 'c') {
        *at += 3;
        return '\\';
    }
    if (left == 0 || (escape[0] != '\\' && (mode == HEX || (escape[0] != '"' && *escape != '\''))))
        return 0;
    *at += 2;
    return *escape;
}

/* A stamp that closes is kept; one that does not is passed over, up to where its string ends. */
static ejk_status try_stamp(finder *f, size_t at) {
    size_t next = at + f->stamp.length, size = f->stamp.length, depth = 1;
    quoting mode = quoting_at(f, next);
    memcpy(f->unescaped, f->stamp.text, size);
    bool in_text = false;
    while (depth > 0 && next < f->length) {
        char c = next_byte(f, mode, &next);
        if (c == 0) break;
        f->unescaped[size++] = c;
        if (in_text && c == '\\') {
            c = next < f->length ? next_byte(f, mode, &next) : 0;
            if (c == 0) break;
            f->unescaped[size++] = c;
        } else if (c == '"') {
            in_text = !in_text;
        } else if (!in_text) {
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
        }
    }
    f->stamp_from = next;
    return depth == 0 ? add(f, at, next - at, f->unescaped, size, true) : EJK_OK;
}

/* ---- The pass -------------------------------------------------------------------------------------- */

static ejk_status find_all(finder *f) {
    for (size_t at = 0; at < f->length; at++) {
        if (!f->starts[(unsigned char)f->text[at]]) continue;
        if (at >= f->label_from) EJKI_TRY(try_label(f, at));
        if (f->stamp.length > 0 && at >= f->stamp_from && has(f, at, &f->stamp))
            EJKI_TRY(try_stamp(f, at));
    }
    return EJK_OK;
}

static void look_for(finder *f, needle n) {
    f->starts[(unsigned char)n.text[0]] = true;
}

static ejk_status take_prefixes(finder *f, const ejk_label_options *options) {
    static const char *const standard[] = {EJK_LABEL_PREFIX};
    const char *const *prefixes = options->prefixes ? options->prefixes : standard;
    f->prefix_count = options->prefixes ? options->prefix_count : 1;
    if (f->prefix_count < 0 || f->prefix_count > MAX_PREFIXES)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "prefix_count: %d given, expected at most %d",
                         f->prefix_count, MAX_PREFIXES);
    for (int i = 0; i < f->prefix_count; i++) {
        if (prefixes[i] == NULL || *prefixes[i] == '\0')
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "prefixes: number %d is NULL or '', expected a text", i);
        f->prefixes[i] = (needle){prefixes[i], strlen(prefixes[i]), 0};
        look_for(f, f->prefixes[i]);
    }
    return EJK_OK;
}

/* The stamp's needle in memory of its own, and room for what is found. */
static ejk_status take_stamp(finder *f, const ejk_label_options *options, char **memory) {
    if (!options->json_stamps) return EJK_OK;
    const char *prefix = options->stamp_prefix ? options->stamp_prefix : EJK_STAMP_PREFIX;
    size_t length = strlen(prefix);
    if (length == 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "stamp_prefix: '' given, expected a text");
    char *text = malloc(length + 3 + f->length);
    if (text == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "%zu bytes could not be had", f->length);
    memcpy(text, prefix, length);
    memcpy(text + length, ":{", 3);
    *memory = text;
    f->stamp = (needle){text, length + 2, 0};
    f->unescaped = text + length + 3;
    look_for(f, f->stamp);
    return EJK_OK;
}

ejk_status ejk_extract_labels_from_hlo_text_ex(const char *text, size_t length,
                                               const ejk_label_options *options, ejk_labels **out) {
    if (out == NULL || (text == NULL && length > 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "labels: text or out is NULL");
    const ejk_label_options standard = {.prefixes = NULL};
    finder f = {.text = text, .length = length};
    if (options == NULL) options = &standard;
    EJKI_TRY(take_prefixes(&f, options));
    char *memory = NULL;
    EJKI_TRY(take_stamp(&f, options, &memory));
    f.labels = calloc(1, sizeof *f.labels);
    ejk_status status = f.labels ? find_all(&f)
                                 : ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                                             "memory for a list of labels could not be had");
    free(memory);
    if (status == EJK_OK)
        *out = f.labels;
    else
        ejk_labels_free(f.labels);
    return status;
}

ejk_status ejk_extract_labels_from_hlo_text(const char *text, size_t length, ejk_labels **out) {
    return ejk_extract_labels_from_hlo_text_ex(text, length, NULL, out);
}

/* ---- Files and lists ------------------------------------------------------------------------------- */

static ejk_status read_all(FILE *file, const char *path, char **text, size_t *length) {
    size_t capacity = 0;
    for (;;) {
        if (*length == capacity) {
            capacity = capacity * 2 + 65536;
            char *more = realloc(*text, capacity);
            if (more == NULL)
                return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                                 "%.200s: %zu bytes could not be had to read it", path, capacity);
            *text = more;
        }
        size_t got = fread(*text + *length, 1, capacity - *length, file);
        *length += got;
        if (ferror(file))
            return ejki_fail(EJK_STATUS_IO, "%.200s: not readable: %s", path, strerror(errno));
        if (got == 0) return EJK_OK;
    }
}

ejk_status ejk_find_labels_in_lowered(const char *path, const ejk_label_options *options,
                                      ejk_labels **out) {
    if (path == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_find_labels_in_lowered: path or out is NULL");
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return ejki_fail(EJK_STATUS_IO, "%.200s: cannot be opened: %s", path, strerror(errno));
    char *text = NULL;
    size_t length = 0;
    ejk_status status = read_all(file, path, &text, &length);
    fclose(file);
    if (status == EJK_OK) status = ejk_extract_labels_from_hlo_text_ex(text, length, options, out);
    free(text);
    return status;
}

int64_t ejk_labels_count(const ejk_labels *labels) {
    return labels != NULL ? (int64_t)labels->count : 0;
}

const ejk_label_match *ejk_labels_get(const ejk_labels *labels, int64_t index) {
    if (index < 0 || index >= ejk_labels_count(labels)) return NULL;
    return &labels->matches[index];
}

int64_t ejk_labels_cut(const ejk_labels *labels) {
    return labels != NULL ? labels->cut : 0;
}

void ejk_labels_free(ejk_labels *labels) {
    if (labels == NULL) return;
    for (size_t i = 0; i < labels->count; i++) free((char *)(uintptr_t)labels->matches[i].text);
    free(labels->matches);
    free(labels);
}
