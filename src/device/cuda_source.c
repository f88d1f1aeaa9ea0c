/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of kernels: found by name, and which others each includes. */
#include "device/cuda_nvrtc.h"

#include <string.h>

const ejki_cuda_source *ejki_cuda_text(const char *name) {
    for (const ejki_cuda_source *text = ejki_cuda_texts; text->name; text++)
        if (strcmp(text->name, name) == 0) return text;
    return NULL;
}

static const ejki_cuda_source *find(const char *name, size_t length) {
    for (const ejki_cuda_source *text = ejki_cuda_texts; text->name; text++)
        if (strncmp(text->name, name, length) == 0 && text->name[length] == '\0') return text;
    return NULL;
}

/* The name in a line `#include "name"`; NULL if it is another line. */
static const char *included(const char *line, size_t *length) {
    line += strspn(line, " \t");
    if (*line != '#') return NULL;
    line += 1 + strspn(line + 1, " \t");
    if (strncmp(line, "include", 7) != 0) return NULL;
    line += 7 + strspn(line + 7, " \t");
    if (*line != '"') return NULL;
    *length = strcspn(line + 1, "\"\n");
    return line + 1;
}

static bool has(const ejki_cuda_texts_used *used, const ejki_cuda_source *text) {
    for (int32_t i = 0; i < used->count; i++)
        if (used->texts[i] == text) return true;
    return false;
}

static ejk_status add_includes(const ejki_cuda_source *text, ejki_cuda_texts_used *used) {
    for (const char *line = text->text; *line;) {
        size_t length;
        const char *name = included(line, &length);
        if (name) {
            const ejki_cuda_source *header = find(name, length);
            if (!header || used->count == EJKI_CUDA_MOST_TEXTS)
                return ejki_fail(
                    EJK_STATUS_INTERNAL, "kernel text %.64s includes %.*s, which is %s", text->name,
                    (int)(length < 64 ? length : 64), name, header ? "one too many" : "not there");
            if (!has(used, header)) used->texts[used->count++] = header;
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return EJK_OK;
}

ejk_status ejki_cuda_collect(const ejki_cuda_source *source, ejki_cuda_texts_used *out) {
    ejki_cuda_texts_used used = {.texts = {source}, .count = 1};
    for (int32_t i = 0; i < used.count; i++) EJKI_TRY(add_includes(used.texts[i], &used));
    *out = used;
    return EJK_OK;
}
