/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file profiler.h
 * A profiler that records when scopes of threads and intervals of devices began and ended.
 *
 * It exports events, times per name, a Chrome trace (opens in https://ui.perfetto.dev) and a table.
 * docs/howto/profiling.md has examples, and shows how scopes get into `perf` and Nsight.
 *
 *     ejk_profiler *profiler;
 *     ejk_profiler_create(NULL, &profiler);
 *     ejk_profiler_begin(profiler, "step");
 *     ...
 *     ejk_profiler_end(profiler, "step");
 *     ejk_profiler_to_chrome_json(profiler, &text);
 *
 * Events lie on tracks: one for each thread that opened a scope, one for each device that was named.
 * Intervals shorter than a minimum are only counted, not stored; a full track drops later events and counts
 * them. Names are one line of at most #EJK_PROFILER_NAME_SIZE - 1 bytes: longer names are cut, control characters
 * and bytes that are not UTF-8 become '?'.
 *
 * All times are seconds of CLOCK_MONOTONIC, kept in whole nanoseconds.
 *
 * A NULL profiler is off: opening and closing a scope is then one comparison.
 *
 * Thread-safety: every function but ejk_profiler_destroy() may be called from any thread at once, and
 * events may be read while others are recorded. A thread allocates at its first scope; later ones take no
 * lock and allocate nothing.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PROFILER_H
#define EJKERNEL_PROFILER_H

#include <ejkernel/record.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Room of a name, with its closing zero. */
#define EJK_PROFILER_NAME_SIZE 108

/** The most scopes a thread may have open at once. */
#define EJK_PROFILER_MAX_DEPTH 64

/** A profiler; private. */
typedef struct ejk_profiler ejk_profiler;

/** How a profiler is made. Zero-initialised = defaults. Texts are copied. */
typedef struct ejk_profiler_options {
    /** Only names with this prefix are reported. NULL = all; the documented "jit_" is XLA's prefix. */
    const char *prefix_filter;
    /** POSIX extended regular expression: see ejk_profiler_times(). NULL = none. */
    const char *event_filter_regex;
    ejk_opt_int min_duration_ns; /**< shorter intervals are left out; unset = 1000, 0 = none are */
    ejk_opt_int max_events;      /**< kept per track, 1 to 2^24; unset = 10000 */
    /**
     * File that a line is appended to when a scope opens and when it closes. NULL = that of the
     * environment's EJKERNEL_MARKERS, if that is set; "" = none.
     */
    const char *marker_path;
    /** False: do not call NVTX. Otherwise its ranges are pushed and popped if the process has loaded it. */
    ejk_opt_bool nvtx;
} ejk_profiler_options;

/**
 * Makes a profiler. NULL options = defaults. Statuses: INVALID_ARGUMENT (a number out of range, an
 * expression that cannot be read), IO (the file of markers), UNAVAILABLE (the process has no key for a
 * thread's own data left), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_create(const ejk_profiler_options *options,
                                                     ejk_profiler **out);

/** Ends it; no other call of it may be running, nor be made later. NULL is allowed. */
EJK_API void ejk_profiler_destroy(ejk_profiler *profiler);

/** The time now, in seconds of CLOCK_MONOTONIC: the clock of all events. */
EJK_API double ejk_profiler_now(void);

/**
 * Opens a scope of the calling thread, inside those it has open. `name` may go away afterwards. NULL
 * profiler: nothing happens. The status may be ignored: a scope that cannot be opened is counted as
 * dropped. Statuses: INVALID_ARGUMENT (NULL name), OVERFLOW (more than #EJK_PROFILER_MAX_DEPTH open: it
 * is not recorded, and has to be closed all the same), OUT_OF_MEMORY (the thread's first scope: it is
 * not open).
 */
EJK_API ejk_status ejk_profiler_begin(ejk_profiler *profiler, const char *name);

/**
 * Closes the thread's innermost scope, which must have been opened by this name; NULL = whichever it is.
 * Statuses: INVALID_ARGUMENT (no scope is open, or the innermost has another name; nothing is closed).
 */
EJK_API ejk_status ejk_profiler_end(ejk_profiler *profiler, const char *name);

/**
 * Adds an interval of a device's track, by the track's name ("gpu 0"); its first event makes the track.
 * NULL profiler: nothing happens. In a trace, intervals of one track should be nested or apart: give each
 * stream its own. Statuses: INVALID_ARGUMENT (NULL track or name, a time that is not finite or beyond
 * ±9e9 s, an end before the start), OVERFLOW (more than 4096 tracks), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_add(ejk_profiler *profiler, const char *track,
                                                  const char *name, double start_s, double end_s);

/** An interval. The texts belong to the profiler. */
typedef struct ejk_profiler_event {
    const char *name;
    const char *track;   /**< "python 4711" of a thread, else the device's name */
    int32_t track_index; /**< in the order in which tracks appeared */
    int32_t depth;       /**< of a thread's scope: how many were open around it; of a device 0 */
    bool device;
    double start_s, end_s;
} ejk_profiler_event;

/**
 * All events so far, by track, then start, outer ones first. Scopes still open are not among them.
 * `*out` is freed with ejk_free(). Statuses: INVALID_ARGUMENT (NULL), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_events(const ejk_profiler *profiler,
                                                     ejk_profiler_event **out, int64_t *count);

/** Selects events. NULL members are taken from the profiler's options. */
typedef struct ejk_profiler_query {
    const char *track; /**< only tracks whose name contains this, whatever the case; NULL = all */
    const char *prefix;
    const char *event_regex;
} ejk_profiler_query;

/** What is known of one name. The text belongs to the profiler. */
typedef struct ejk_profiler_time {
    const char *name;
    int64_t count;   /**< events of that name */
    double latest_s; /**< the duration of the one that started last */
    /** Mean and population standard deviation; of more than two the least and the largest are left out. */
    double mean_s, std_s;
    double total_s; /**< sum of all durations */
    double union_s; /**< time during which at least one of them ran */
} ejk_profiler_time;

/**
 * Times per name, sorted by name, of names with the prefix. An event's duration is its own length; with an
 * expression, the length of the union of the events that it is found in and that lie inside this one, on
 * the same track and of another name. Intervals that overlap or touch are merged: inside 0 to 100, the
 * intervals 10-20, 15-30, 30-40, 90-120 and 100-100 have the union 30. NULL query = the profiler's.
 * `*out` is freed with ejk_free(). Statuses: INVALID_ARGUMENT (NULL; an expression that cannot be read),
 * UNKNOWN_NAME (no track has such a name; the sentence lists them), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_times(const ejk_profiler *profiler,
                                                    const ejk_profiler_query *query,
                                                    ejk_profiler_time **out, int64_t *count);

/** What a profiler holds, and what it does not. */
typedef struct ejk_profiler_counts {
    int64_t tracks;
    int64_t events;       /**< kept */
    int64_t brief;        /**< left out: shorter than the minimum */
    int64_t dropped;      /**< lost: no room on the track, or too many scopes open */
    int64_t lost_markers; /**< lines that could not be written to the file of markers */
} ejk_profiler_counts;

/** Counts so far; all 0 for NULL. */
EJK_API ejk_profiler_counts ejk_profiler_count(const ejk_profiler *profiler);

/**
 * A trace in the JSON of Chrome's trace viewer: "X" events in microseconds of CLOCK_MONOTONIC, "M" events
 * with the names of the process and of its tracks; the counts under "otherData". Freed with ejk_free().
 * Statuses: INVALID_ARGUMENT (NULL), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_to_chrome_json(const ejk_profiler *profiler,
                                                             char **out);

/**
 * The times of ejk_profiler_times() with the profiler's own filters as a table for readers, in
 * milliseconds, largest total first, with a last line of counts. Freed with ejk_free(). Statuses:
 * INVALID_ARGUMENT (NULL), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_profiler_table(const ejk_profiler *profiler, char **out);

#ifdef __cplusplus
}
#endif
#endif
