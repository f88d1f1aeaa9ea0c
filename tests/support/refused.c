/* SPDX-License-Identifier: Apache-2.0 */
#include "support/refused.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 40, MOST_BYTES = 1 << 20, PATTERN = 0xa5 };

struct made {
    const ejk_record *record;
    void *args;
    struct {
        unsigned char *data;
        size_t bytes;
        bool result;
    } memory[MOST_TENSORS];
    int32_t count;
};

static void *memory_of(struct made *m, size_t bytes, bool result) {
    if (m->count == MOST_TENSORS) abort();
    unsigned char *data = malloc(bytes + 16);
    if (!data) abort();
    memset(data, result ? PATTERN : 0, bytes + 16);
    m->memory[m->count].data = data;
    m->memory[m->count].bytes = bytes;
    m->memory[m->count++].result = result;
    return data;
}

static bool is_unwritten(const struct made *m) {
    for (int32_t i = 0; i < m->count; i++)
        for (size_t n = 0; m->memory[i].result && n < m->memory[i].bytes; n++)
            if (m->memory[i].data[n] != PATTERN) return false;
    return true;
}

/* ---- Text -------------------------------------------------------------------------------------------- */

/* Numbers between a bracket and its end; behind it, or NULL. */
static const char *read_list(const char *at, char end, int64_t *list, int32_t *count) {
    for (*count = 0, at++; *at != end;) {
        char *rest;
        if (*count == EJK_MAX_RANK) return NULL;
        list[(*count)++] = strtoll(at, &rest, 10);
        if (rest == at || (*rest != ',' && *rest != end)) return NULL;
        at = rest + (*rest == ',');
    }
    return at + 1;
}

/* Room for all of a dense tensor; little for one that is too large to be read. */
static size_t bytes_of(const ejk_tensor *t) {
    size_t bytes = ejk_dtype_size(t->dtype);
    for (int32_t i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(bytes, (size_t)t->shape[i], &bytes) ||
            bytes > MOST_BYTES)
            return 64;
    return bytes;
}

static bool read_tensor(struct made *m, const ejk_field *field, ejk_tensor *t, const char *value) {
    int64_t list[EJK_MAX_RANK];
    int32_t count;
    char type[32] = "float32";
    ejk_dtype dtype;
    if (*value == '@') {
        const ejk_field *other = ejk_record_find(m->record, value + 1, NULL);
        if (other) memcpy(t, (const char *)m->args + other->offset, sizeof *t);
        return other != NULL;
    }
    const bool numbers = strchr(value, '{') != NULL;
    if (numbers) strcpy(type, "int32");
    if (*value != '[' && *value != '{') sscanf(value, "%31[a-z0-9_]", type);
    value = strpbrk(value, "[{");
    if (!value || ejk_dtype_from_name(type, &dtype) != EJK_OK) return false;
    value = read_list(value, numbers ? '}' : ']', list, &count);
    if (!value) return false;
    if (numbers) {
        *t = ejk_tensor_1d(memory_of(m, sizeof *list * EJK_MAX_RANK, false), dtype, count);
        for (int32_t i = 0; i < count; i++)
            if (dtype == EJK_DTYPE_I64)
                ((int64_t *)t->data)[i] = list[i];
            else
                ((int32_t *)t->data)[i] = (int32_t)list[i];
        return true;
    }
    *t = ejk_tensor_contiguous(NULL, dtype, count, list);
    t->data = memory_of(m, bytes_of(t), ejk_field_is_output(field));
    return *value == '\0' || (value[0] == '/' && value[1] == '[' &&
                              read_list(value + 1, ']', t->strides, &count) && count == t->rank);
}

static bool read_field(struct made *m, char *word) {
    char *value = strchr(word, '=');
    if (!value) return false;
    *value++ = '\0';
    size_t offset;
    const ejk_field *field = ejk_record_find(m->record, word, &offset);
    if (!field) return false;
    if (!*value) {
        memset((char *)m->args + offset, 0, ejk_field_size(field));
        return true;
    }
    if (field->kind != EJK_FIELD_TENSOR)
        return ejk_record_set_text(m->record, m->args, word, value) == EJK_OK;
    return read_tensor(m, field, (ejk_tensor *)(void *)((char *)m->args + offset), value);
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

static bool is_as_said(ejk_context *context, const ejk_kernel *kernel, refused_call *call,
                       const char *good, const struct refused *row) {
    struct made m = {.record = kernel->args, .args = calloc(1, kernel->args->size)};
    char text[2000], *rest = text;
    bool fine = m.args && snprintf(text, sizeof text, "%s %s", good, row->changes) < 2000;
    for (char *word; fine && (word = strtok_r(rest, " ", &rest));) fine = read_field(&m, word);
    if (!fine) {
        printf("FAIL %s %s: cannot be read\n", kernel->op_id, row->changes);
    } else {
        const ejk_status status = call(context, m.args);
        const char *why = status == EJK_OK ? "" : ejk_last_error();
        fine = status == row->status && strstr(why, row->words) &&
               (status == EJK_OK || is_unwritten(&m));
        if (!fine)
            printf("FAIL %s %s: %s (%s)%s, expected %s with '%s'\n", kernel->op_id, row->changes,
                   ejk_status_name(status), why, is_unwritten(&m) ? "" : ", results written",
                   ejk_status_name(row->status), row->words);
    }
    for (int32_t i = 0; i < m.count; i++) free(m.memory[i].data);
    free(m.args);
    return fine;
}

int64_t refused_faults(const ejk_kernel *kernel, refused_call *call, const char *good,
                       const struct refused *rows) {
    ejk_context *context;
    if (ejk_context_create(NULL, &context) != EJK_OK) abort();
    int64_t faults = !is_as_said(context, kernel, call, good, &(struct refused){EJK_OK, "", ""});
    for (; rows && rows->changes; rows++) faults += !is_as_said(context, kernel, call, good, rows);
    ejk_context_destroy(context);
    return faults;
}
