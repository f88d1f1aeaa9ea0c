/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a small language model is from exact answers, by the type that its attention computes in: the
 * prompt's mean loss, and what is wrong with its logits. Argument: the folder of model, prompt and answers.
 */
#include "bytelm/model.h"

#include <math.h>
#include <stdio.h>

enum { VOCABULARY = BYTELM_VOCABULARY };

static uint8_t prompt[BYTELM_CONTEXT];
static float logits[BYTELM_CONTEXT * VOCABULARY];

/* Nats per byte that it takes to tell each byte after the first. */
static double mean_loss(const float *rows, int count) {
    double loss = 0;
    for (int i = 0; i + 1 < count; i++) {
        const float *row = &rows[i * VOCABULARY];
        double sum = 0;
        for (int j = 0; j < VOCABULARY; j++) sum += exp((double)row[j]);
        loss += log(sum) - row[prompt[i + 1]];
    }
    return loss / (count - 1);
}

static void report(const char *what, const float *exact, int count) {
    double squares = 0, largest = 0;
    int other = 0;
    for (int i = 0; i < count * VOCABULARY; i++) {
        double difference = fabs((double)logits[i] - exact[i]);
        squares += difference * difference;
        /* Not fmax(), which would pass over a NaN. */
        if (!(difference <= largest)) largest = difference;
    }
    for (int i = 0; i < count * VOCABULARY; i += VOCABULARY)
        other += bytelm_likeliest(&logits[i]) != bytelm_likeliest(&exact[i]);
    printf("%-8s %10.6f  %10.2g  %10.2g  %11d\n", what, mean_loss(logits, count), largest,
           sqrt(squares / (count * VOCABULARY)), other);
}

static ejk_status run(ejk_context *context, const char *folder, const char *name,
                      const float *exact, int count) {
    bytelm *model = NULL;
    ejk_dtype dtype;
    ejk_status status = ejk_dtype_from_name(name, &dtype);
    if (status == EJK_OK) status = bytelm_open(context, folder, dtype, -1, &model);
    if (status == EJK_OK) status = bytelm_read(model, prompt, count, logits);
    if (status == EJK_OK) report(name, exact, count);
    bytelm_close(model);
    return status;
}

static int read_prompt(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/prompt.txt", folder);
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    const int count = (int)fread(prompt, 1, sizeof prompt, file);
    fclose(file);
    return count;
}

int main(int words_count, char **words) {
    static const char *const names[] = {"f32", "bf16", "f16"};
    const char *folder = words_count > 1 ? words[1] : "examples/data/bytelm";
    char path[4096];
    ejk_owned_tensor exact = {0};
    ejk_context *context = NULL;
    const int count = read_prompt(folder);
    snprintf(path, sizeof path, "%s/logits.npy", folder);
    ejk_status status = ejk_npy_read(path, &exact);
    if (status == EJK_OK && (exact.tensor.dtype != EJK_DTYPE_F32 || count < 2 ||
                             ejk_tensor_count(&exact.tensor) != count * VOCABULARY)) {
        fprintf(stderr, "%s has no prompt with an answer for each of its bytes\n", folder);
        ejk_owned_tensor_close(&exact);
        return 1;
    }
    if (status == EJK_OK) status = ejk_context_create(NULL, &context);
    if (status == EJK_OK)
        printf("%d bytes  mean loss  logits off  on average  other bytes\n"
               "exact    %11.6f\n",
               count, mean_loss(exact.tensor.data, count));
    for (size_t i = 0; i < sizeof names / sizeof *names && status == EJK_OK; i++)
        status = run(context, folder, names[i], exact.tensor.data, count);
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    ejk_context_destroy(context);
    ejk_owned_tensor_close(&exact);
    return status == EJK_OK ? 0 : 1;
}
