/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "progress.h"

#include "table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MOST_COLUMNS = 512, USUAL_COLUMNS = 80, LEAST_BAR = 8, MOST_BAR = 40 };

#define INTERVAL_S 0.1

progress_bar progress_open(void) {
    return (progress_bar){.live = isatty(STDERR_FILENO)};
}

/* The last column stays empty: some terminals go to the next line otherwise. */
static int columns(void) {
    struct winsize size;
    int count = USUAL_COLUMNS;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) count = size.ws_col;
    return (count < MOST_COLUMNS ? count : MOST_COLUMNS) - 1;
}

/* "3/12 tried, 4 left, best 1.234 ms, 0.93x of the default, 2.5/10.0 s" */
static void describe(const progress_bar *bar, const ejk_tune_progress *p, char *out, size_t room) {
    char time[TIME_ROOM], number[48] = "";
    double ratio = p->best_median_s / p->default_median_s;
    if (bar->total > 1) snprintf(number, sizeof number, "call %d of %d, ", bar->number, bar->total);
    int used =
        snprintf(out, room, "%s%-6s %d/%d tried, %d left", number, ejk_tune_phase_name(p->phase),
                 (int)p->tried, (int)p->candidates, (int)p->survivors);
    if (isfinite(ratio))
        used += snprintf(out + used, room - (size_t)used, ", best %s, %.2fx of the default",
                         time_text(p->best_median_s, time), ratio);
    snprintf(out + used, room - (size_t)used, ", %.1f/%.1f s", p->elapsed_s, p->budget_s);
}

/* "[####....] " of the budget, as wide as there is room for. */
static void draw_bar(int width, double part) {
    if (width > MOST_BAR) width = MOST_BAR;
    if (width < LEAST_BAR) return;
    int full = (int)(part < 1 ? part * (width - 3) : width - 3);
    fputc('[', stderr);
    for (int i = 0; i < width - 3; i++) fputc(i < full ? '#' : '.', stderr);
    fputs("] ", stderr);
}

void progress_show(void *user, const ejk_tune_progress *progress) {
    progress_bar *own = user;
    double now = ejk_now();
    if (!own->live || (own->drawn && now - own->last < INTERVAL_S)) return;
    char text[256];
    int room = columns();
    describe(own, progress, text, sizeof text);
    fputs("\r\033[K", stderr);
    draw_bar(room - (int)strlen(text), progress->elapsed_s / progress->budget_s);
    fprintf(stderr, "%.*s", room, text);
    fflush(stderr);
    own->last = now;
    own->drawn = true;
}

void progress_clear(progress_bar *bar) {
    if (bar->drawn) fputs("\r\033[K", stderr);
    fflush(stderr);
    bar->drawn = false;
}
