/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes a text with a hybrid language model, always by the likeliest byte, up to an empty line; then says how well
 * it predicts the prompt of the model's folder, beside the same in float32.
 * Arguments: --dtype and what layers mix, --weights and a format of quantised weights, --device and where, the model's
 * folder, the text.
 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VOCABULARY = BYTEMIX_VOCABULARY, CONTEXT = BYTEMIX_CONTEXT };

static const char function[] = "def isfile(path):\n"
                               "    \"\"\"Test whether a path is a regular file\"\"\"\n"
                               "    try:\n";

static float logits[CONTEXT * VOCABULARY];

/* The prompt in chunks, then what follows it byte by byte. */
static ejk_status complete(bytemix *model, const char *text) {
    const int length = (int)strlen(text);
    int at = length;
    double start = ejk_now();
    ejk_status status = bytemix_read(model, 0, (const uint8_t *)text, length, logits);
    const double prefill = ejk_now() - start;
    if (status != EJK_OK) return status;
    fputs(text, stdout);
    uint8_t last = (uint8_t)text[length - 1],
            next = bytemix_likeliest(&logits[(length - 1) * VOCABULARY]);
    start = ejk_now();
    for (; at < CONTEXT && (last != '\n' || next != '\n'); at++) {
        putchar(next);
        status = bytemix_read(model, at, &next, 1, logits);
        if (status != EJK_OK) return status;
        last = next;
        next = bytemix_likeliest(logits);
    }
    printf("\nprefill: %4d tokens, %6.0f a second\n", length, length / prefill);
    printf("decode:  %4d tokens, %6.0f a second\n", at - length,
           (at - length) / (ejk_now() - start));
    return EJK_OK;
}

/* Nats that each byte of the prompt takes after the first, with the model of these options. */
static ejk_status measure(ejk_context *context, const bytemix_options *options, double *loss) {
    char path[4096];
    uint8_t prompt[CONTEXT];
    bytemix *model = NULL;
    snprintf(path, sizeof path, "%s/prompt.txt", options->folder);
    FILE *file = fopen(path, "rb");
    const int count = file ? (int)fread(prompt, 1, sizeof prompt, file) : 0;
    if (file) fclose(file);
    ejk_status status = bytemix_open(context, options, &model);
    if (status == EJK_OK) status = bytemix_read(model, 0, prompt, count, logits);
    *loss = 0;
    for (int i = 0; status == EJK_OK && i + 1 < count; i++) {
        const float *row = &logits[i * VOCABULARY];
        double sum = 0;
        for (int k = 0; k < VOCABULARY; k++) sum += exp((double)row[k]);
        *loss += (log(sum) - row[prompt[i + 1]]) / (count - 1);
    }
    bytemix_close(model);
    return status;
}

static ejk_status run(ejk_context *context, const bytemix_options *options, const char *text) {
    const bytemix_options plain = {.folder = options->folder};
    bytemix *model = NULL;
    double loss = 0, exact = 0;
    ejk_status status = bytemix_open(context, options, &model);
    if (status == EJK_OK) status = complete(model, text);
    bytemix_close(model);
    if (status == EJK_OK) status = measure(context, options, &loss);
    if (status == EJK_OK) status = measure(context, &plain, &exact);
    if (status == EJK_OK)
        printf("loss:    %.6f nats a byte of prompt.txt with %s weights and %s layers, %.6f in "
               "float32\n",
               loss, options->weights ? options->weights : "dense", ejk_dtype_name(options->dtype),
               exact);
    return status;
}

static bool is_format(const char *name) {
    for (int i = 0; bytemix_formats[i]; i++)
        if (strcmp(name, bytemix_formats[i]) == 0) return true;
    return false;
}

static int usage(void) {
    fputs("usage: bytemix [--dtype bf16] [--weights FORMAT] [--device cuda] [folder "
          "[text]]\nformats:",
          stderr);
    for (int i = 0; bytemix_formats[i]; i++) fprintf(stderr, " %s", bytemix_formats[i]);
    fputc('\n', stderr);
    return 1;
}

int main(int count, char **words) {
    bytemix_options options = {.folder = "examples/data/bytemix", .dtype = EJK_DTYPE_F32};
    ejk_status status = EJK_OK;
    for (; count > 2 && strncmp(words[1], "--", 2) == 0; count -= 2, words += 2)
        if (strcmp(words[1], "--dtype") == 0)
            status = ejk_dtype_from_name(words[2], &options.dtype);
        else if (strcmp(words[1], "--device") == 0)
            options.device = words[2];
        else if (strcmp(words[1], "--weights") == 0 && is_format(words[2]))
            options.weights = words[2];
        else
            return usage();
    const char *text = count > 2 ? words[2] : function;
    if (count > 1) options.folder = words[1];
    if (count > 3 || !*text || strlen(text) > CONTEXT || *options.folder == '-') return usage();
    ejk_context *context = NULL;
    if (status == EJK_OK) status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = run(context, &options, text);
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    ejk_context_destroy(context);
    return status == EJK_OK ? 0 : 1;
}
