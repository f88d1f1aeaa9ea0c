/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the profiler share. A track has a buffer of fixed size that only its writer appends
 * to: the thread itself, or for devices whoever holds the lock. An event is written before the count that
 * includes it, so readers need nothing but the count.
 */
#ifndef EJKI_OPS_EXECUTION_PROFILER_H
#define EJKI_OPS_EXECUTION_PROFILER_H

#include <ejkernel/profiler.h>

#include <pthread.h>
#include <regex.h>
#include <stdatomic.h>

#include "base/base.h"

typedef struct ejki_scope {
    int64_t start_ns, end_ns;
    int32_t depth;
    char name[EJK_PROFILER_NAME_SIZE];
} ejki_scope;

typedef struct ejki_track {
    struct ejki_track *next; /* constant once the track can be seen */
    char name[EJK_PROFILER_NAME_SIZE];
    int32_t index;
    bool device;
    int64_t id;        /* a thread's own id; of a device, a number that no thread has */
    int64_t open;      /* scopes open now, those that found no room included */
    ejki_scope *stack; /* of the open ones; NULL for a device */
    ejki_scope *events;
    _Atomic(int64_t) count, brief, dropped;
} ejki_track;

/* Where markers go besides the tracks. */
typedef struct ejki_markers {
    int file; /* -1 = none */
    _Atomic(int64_t) lost;
    int (*push)(const char *); /* NVTX; NULL = not loaded */
    int (*pop)(void);
} ejki_markers;

struct ejk_profiler {
    pthread_key_t own;    /* a thread's track */
    pthread_mutex_t lock; /* held while a track is made, and while one of a device is written */
    _Atomic(ejki_track *) tracks; /* the latest first */
    int32_t track_count;
    _Atomic(int64_t) homeless; /* scopes dropped because their thread has no track */
    int64_t min_duration_ns, max_events;
    char *prefix, *expression; /* NULL = none */
    ejki_markers markers;
};

/* A name as it is kept: one line of UTF-8 that fits. */
void ejki_profiler_clean(const char *name, char out[EJK_PROFILER_NAME_SIZE]);

int64_t ejki_profiler_now_ns(void);

/* The kernel's number of the calling thread. */
int64_t ejki_profiler_thread_id(void);

/* ---- profiler_markers.c ----------------------------------------------------------------------------- */

ejk_status ejki_markers_open(const ejk_profiler_options *options, ejki_markers *out);
void ejki_markers_close(ejki_markers *markers);
/* `name` is a clean one. */
void ejki_markers_begin(ejki_markers *markers, int64_t thread, const char *name);
void ejki_markers_end(ejki_markers *markers, int64_t thread, const char *name, int64_t end_ns);

/* ---- profiler_events.c ------------------------------------------------------------------------------ */

/* One event on its track. */
typedef struct ejki_entry {
    const ejki_track *track;
    const ejki_scope *scope;
} ejki_entry;

/* What is known at one moment, in the order of ejk_profiler_events(). Both arrays are freed by the caller. */
typedef struct ejki_snapshot {
    const ejki_track **tracks; /* by index */
    ejki_entry *entries;
    int64_t track_count, count;
} ejki_snapshot;

ejk_status ejki_profiler_snapshot(const ejk_profiler *profiler, ejki_snapshot *out);
void ejki_snapshot_close(ejki_snapshot *snapshot);

/* Nanoseconds as seconds; whole seconds come out exactly. */
static inline double ejki_seconds(int64_t ns) {
    return (double)ns / 1e9;
}

/* An expression ready to be searched for. INVALID_ARGUMENT with what regcomp() says. */
ejk_status ejki_profiler_compile(const char *expression, regex_t *out);

#endif
