/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "device/rate.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* Enough for a median; few enough that each is long against starting a loop. Of longer measurements the
 * last MOST_SLICES count. */
#define SLICES      10
#define MOST_SLICES 64

/* Longer measurements are mistakes of a caller. */
#define MOST_SECONDS 3600.0

struct window {
    _Alignas(64) double start;
    double end, units;
};

struct slice {
    ejki_work_fn work;
    void *argument;
    double seconds;
    struct window *windows;
};

double ejk_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_window(void *slice_, int64_t index) {
    const struct slice *slice = slice_;
    struct window window = {.start = ejk_now()};
    do {
        window.units += slice->work(slice->argument, index);
        window.end = ejk_now();
    } while (window.end - window.start < slice->seconds);
    slice->windows[index] = window;
}

/* Joins all windows into one: threads that ran one after the other do not add up to more than one. */
static struct window run_slice(struct slice *slice, ejk_threads *threads) {
    int32_t count = ejk_threads_count(threads);
    ejk_parallel_for(threads, count, run_window, slice);
    struct window all = slice->windows[0];
    for (int32_t i = 1; i < count; i++) {
        all.start = fmin(all.start, slice->windows[i].start);
        all.end = fmax(all.end, slice->windows[i].end);
        all.units += slice->windows[i].units;
    }
    return all;
}

ejk_status ejki_check_seconds(double seconds) {
    if (!(seconds > 0 && seconds <= MOST_SECONDS))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "seconds is %g; expected above 0, at most %g",
                         seconds, MOST_SECONDS);
    return EJK_OK;
}

ejk_status ejki_measure_rate(ejk_threads *threads, ejki_work_fn work, void *argument,
                             double seconds, double least, double *rate_out) {
    size_t bytes = (size_t)ejk_threads_count(threads) * sizeof(struct window);
    struct slice slice = {work, argument, seconds / SLICES, aligned_alloc(64, bytes)};
    if (!slice.windows)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the clocks of %d threads",
                         ejk_threads_count(threads));
    double rates[MOST_SLICES], units = 0;
    const double end = ejk_now() + seconds;
    int64_t count = 0;
    do {
        struct window all = run_slice(&slice, threads);
        rates[count++ % MOST_SLICES] = all.units / (all.end - all.start);
        units += all.units;
    } while (ejk_now() < end || units < least);
    free(slice.windows);
    *rate_out = ejki_quantile(rates, ejki_min(count, MOST_SLICES), 0.5);
    return EJK_OK;
}
