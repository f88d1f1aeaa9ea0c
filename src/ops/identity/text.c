/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows while it is written, and strings in it as JSON has them. */
#include "ops/identity/write.h"

#include <jansson.h>
#include <stdlib.h>

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a text could not be had");
}

ejk_status ejki_text_open(ejki_text *text) {
    *text = (ejki_text){.stream = NULL};
    text->stream = open_memstream(&text->bytes, &text->size);
    return text->stream != NULL ? EJK_OK : out_of_memory();
}

ejk_status ejki_text_close(ejki_text *text, ejk_status status, char **out) {
    bool lost = ferror(text->stream) != 0;
    lost |= fclose(text->stream) != 0;
    if (status == EJK_OK && lost) status = out_of_memory();
    if (status == EJK_OK)
        *out = text->bytes;
    else
        free(text->bytes);
    return status;
}

ejk_status ejki_text_hash(ejki_text *text, ejk_status status, char out[EJK_SHORT_HASH_SIZE]) {
    char *bytes = NULL;
    EJKI_TRY(ejki_text_close(text, status, &bytes));
    status = ejk_short_hash_text(bytes, out);
    free(bytes);
    return status;
}

/* The code point that starts at *c, which moves behind it; the text is known to be UTF-8. */
static uint32_t next_point(const unsigned char **c) {
    uint32_t first = *(*c)++;
    if (first < 0x80) return first;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    uint32_t point = first & (0x3fU >> more);
    for (; more > 0; more--) point = point << 6 | (*(*c)++ & 0x3fU);
    return point;
}

static void write_point(FILE *stream, uint32_t point) {
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    for (size_t i = 0; i < sizeof escaped - 1; i++)
        if (point == (unsigned char)escaped[i]) {
            fprintf(stream, "\\%c", letters[i]);
            return;
        }
    if (point >= ' ' && point <= '~')
        putc((int)point, stream);
    else if (point < 0x10000)
        fprintf(stream, "\\u%04x", point);
    else
        fprintf(stream, "\\u%04x\\u%04x", 0xd800 + ((point - 0x10000) >> 10),
                0xdc00 + (point & 0x3ff));
}

ejk_status ejki_write_string(FILE *stream, const char *bytes, size_t length, const char *name) {
    json_t *checked = json_stringn(bytes, length);
    if (checked == NULL) {
        json_t *unchecked = json_stringn_nocheck(bytes, length);
        if (unchecked == NULL) return out_of_memory();
        json_decref(unchecked);
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%.80s: %zu bytes given that are not UTF-8",
                         name, length);
    }
    json_decref(checked);
    putc('"', stream);
    const unsigned char *c = (const unsigned char *)bytes, *end = c + length;
    while (c < end) write_point(stream, next_point(&c));
    putc('"', stream);
    return EJK_OK;
}
