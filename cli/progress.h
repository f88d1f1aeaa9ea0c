/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar on the terminal while tuning. */
#ifndef EJK_CLI_PROGRESS_H
#define EJK_CLI_PROGRESS_H

#include "cli.h"

/* Zero-initialised = nothing is shown. */
typedef struct progress_bar {
    bool live;   /* stderr is a terminal */
    double last; /* when it was drawn */
    bool drawn;
    int number, total; /* of the calls that are tuned; shown if there are several */
} progress_bar;

progress_bar progress_open(void);

/* An ejk_tune_progress_fn; `user` is the bar. Draws at most ten times a second. */
void progress_show(void *user, const ejk_tune_progress *progress);

/* Erases the line, so that something else can be printed. */
void progress_clear(progress_bar *bar);

#endif
