/* SPDX-License-Identifier: Apache-2.0 */
/* The line on a terminal that shows how far tuning has come. */
#ifndef EJK_CLI_BAR_H
#define EJK_CLI_BAR_H

#include "cli.h"

/* Zero-initialised = nothing is shown. */
typedef struct progress_bar {
    bool live;   /* stderr is a terminal */
    double last; /* when it was drawn */
    bool drawn;
    int number, total; /* of the calls that are tuned; shown if there are several */
} progress_bar;

progress_bar bar_open(void);

/* An ejk_tune_progress_fn; `user` is the bar. Draws at most ten times a second. */
void bar_progress(void *user, const ejk_tune_progress *progress);

/* Takes the line away, so that something else can be printed. */
void bar_clear(progress_bar *bar);

#endif
