/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `ejk tune` share. */
#ifndef EJK_CLI_TUNE_H
#define EJK_CLI_TUNE_H

#include "cache_rows.h"
#include "line.h"
#include "options.h"
#include "progress.h"

/* What is asked for. */
typedef struct tune_options {
    call_words call;
    const char *recorded, *cache;
    texts candidates;
    double budget;
    int32_t seed;
    bool backward, no_store, json, help;
} tune_options;

/* Configurations from --candidates, each text an object or a list of them; freed with free(). */
bool tune_candidates(const texts *given, const ejk_kernel *kernel, void **configs, int32_t *count);

/* What became of a call's configuration. */
typedef struct tune_outcome {
    const ejk_tuned_call *call;
    const char *path;     /* of the cache it was stored in, or NULL */
    const char *unstored; /* why it was not, or NULL */
} tune_outcome;

/* Prints the closing table. */
bool tune_report_print(const tune_outcome *outcome);

/* The same as an object; a new reference, NULL after a sentence. */
json_t *tune_report_json(const tune_outcome *outcome);

#endif
