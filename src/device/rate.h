/* SPDX-License-Identifier: Apache-2.0 */
/* How fast all threads together do something: what both ceilings are measured with. */
#ifndef EJKI_RATE_H
#define EJKI_RATE_H

#include <ejkernel/device.h>

/* A short piece of work (some 10 us) of thread `index`; returns how many units it did. */
typedef double (*ejki_work_fn)(void *argument, int64_t index);

/* INVALID_ARGUMENT unless a measurement may take that long. */
ejk_status ejki_check_seconds(double seconds);

/*
 * Units per second of all `threads` together: the median of several slices of time. Not the best: for
 * some milliseconds after a pause a core may run at a clock that it cannot keep (seen: 157 against 138
 * GFLOP/s of AVX-512), and what is measured against a ceiling is a median as well. Goes on past `seconds`,
 * which are checked already, until `least` units are done.
 */
ejk_status ejki_measure_rate(ejk_threads *threads, ejki_work_fn work, void *argument,
                             double seconds, double least, double *rate_out);

#endif
