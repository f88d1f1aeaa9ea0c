/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes a text with a small language model: byte by byte, always the likeliest, up to an empty line.
 * Arguments: --dtype and what attention computes in, --device and where, the folder of the model, and the text.
 */
#include "model.h"

#include <stdio.h>
#include <string.h>

static const char function[] = "def isfile(path):\n"
                               "    \"\"\"Test whether a path is a regular file\"\"\"\n"
                               "    try:\n";

typedef struct timing {
    int bytes;
    double seconds;
} timing;

static ejk_status timed_read(bytelm *model, const char *bytes, int count, float *logits,
                             timing *t) {
    double start = ejk_now();
    ejk_status status = bytelm_read(model, (const uint8_t *)bytes, count, logits);
    t->seconds += ejk_now() - start;
    t->bytes += count;
    return status;
}

/* Reads the text at once, then what follows it byte by byte. */
static ejk_status complete(bytelm *model, const char *text, timing *prefill, timing *decode) {
    static float logits[BYTELM_CONTEXT * BYTELM_VOCABULARY];
    const int length = (int)strlen(text);
    ejk_status status = timed_read(model, text, length, logits, prefill);
    fputs(status == EJK_OK ? text : "", stdout);
    char last = text[length - 1],
         next = (char)bytelm_likeliest(&logits[(length - 1) * BYTELM_VOCABULARY]);
    for (int i = length; i < BYTELM_CONTEXT && (last != '\n' || next != '\n'); i++) {
        if (status != EJK_OK) return status;
        putchar(next);
        status = timed_read(model, &next, 1, logits, decode);
        last = next;
        next = (char)bytelm_likeliest(logits);
    }
    return status;
}

static void report(const char *what, ejk_dtype dtype, timing t) {
    printf("%s (%s): %4d tokens, %6.0f a second\n", what, ejk_dtype_name(dtype), t.bytes,
           t.bytes / t.seconds);
}

int main(int count, char **words) {
    ejk_dtype dtype = EJK_DTYPE_F32;
    ejk_status status = EJK_OK;
    int device = -1;
    for (; count > 2 && strncmp(words[1], "--d", 3) == 0; count -= 2, words += 2)
        if (strcmp(words[1], "--dtype") == 0)
            status = ejk_dtype_from_name(words[2], &dtype);
        else if (strcmp(words[2], "cpu") != 0 && sscanf(words[2], "cuda:%d", &device) != 1)
            device = 0; /* refused where there is none */
    const char *folder = count > 1 ? words[1] : "examples/data/bytelm",
               *text = count > 2 ? words[2] : function;
    if (count > 3 || !*text || strlen(text) > BYTELM_CONTEXT) {
        fprintf(stderr,
                "usage: bytelm [--dtype bf16] [--device cuda] [folder [text of 1 to %d bytes]]\n",
                BYTELM_CONTEXT);
        return 1;
    }
    ejk_context *context = NULL;
    bytelm *model = NULL;
    timing prefill = {0}, decode = {0};
    if (status == EJK_OK) status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = bytelm_open(context, folder, dtype, device, &model);
    if (status == EJK_OK) status = complete(model, text, &prefill, &decode);
    if (status == EJK_OK) {
        putchar('\n');
        report("prefill", dtype, prefill);
        report("decode ", dtype, decode);
    } else {
        fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    }
    bytelm_close(model);
    ejk_context_destroy(context);
    return status == EJK_OK ? 0 : 1;
}
