// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bindings/call_text.h"

enum { PARTS = 5 };

/* The names of a part, behind those that are there. */
static bool read_names(const char *at, const char *end, ejki_call_text *out, int32_t *count) {
    *count = 0;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *last = comma ? comma : end;
        bool mapped = *at == '*';
        at += mapped;
        if (at >= last || last - at > INT32_MAX ||
            out->operands + out->results >= EJKI_CALL_TENSORS)
            return false;
        out->names[out->operands + out->results] = (ejki_call_name){at, (int)(last - at), mapped};
        ++*count;
        at = comma ? comma + 1 : end;
        if (comma && at == end) return false;
    }
    return true;
}

ejk_status ejki_read_call_text(const char *text, size_t length, ejki_call_text *out) {
    const char *parts[PARTS + 1] = {text};
    const char *end = text + length;
    for (int i = 1; i < PARTS; i++) {
        const char *mark = memchr(parts[i - 1], ';', (size_t)(end - parts[i - 1]));
        if (!mark) return ejki_fail(EJK_STATUS_MALFORMED, "call \"%s\" has %d parts of 5", text, i);
        parts[i] = mark + 1;
    }
    memset(out, 0, sizeof *out);
    size_t name = (size_t)(parts[1] - parts[0] - 1);
    if (name == 0 || name >= sizeof out->operation)
        return ejki_fail(EJK_STATUS_MALFORMED, "call \"%s\" names no operation", text);
    memcpy(out->operation, text, name);
    if (!read_names(parts[1], parts[2] - 1, out, &out->operands) ||
        !read_names(parts[2], parts[3] - 1, out, &out->results))
        return ejki_fail(EJK_STATUS_MALFORMED, "call \"%s\": its tensors cannot be read", text);
    char *rest;
    out->elements = strtoll(parts[3], &rest, 10);
    if (rest != parts[4] - 1 || out->elements < 0)
        return ejki_fail(EJK_STATUS_MALFORMED, "call \"%s\": its elements cannot be read", text);
    out->arguments = parts[4];
    return EJK_OK;
}
