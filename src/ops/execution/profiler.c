/* SPDX-License-Identifier: Apache-2.0 */
/* Making a profiler, and recording: scopes of threads, intervals of devices. */
#define _GNU_SOURCE 1
#include "ops/execution/profiler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TRACKS = 4096 };

/* Linux gives no thread a number above this. */
#define FIRST_DEVICE_ID (INT64_C(1) << 22)

int64_t ejki_profiler_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double ejk_profiler_now(void) {
    return ejki_seconds(ejki_profiler_now_ns());
}

int64_t ejki_profiler_thread_id(void) {
    return (int64_t)syscall(SYS_gettid);
}

/* ---- Names ----------------------------------------------------------------------------------------- */

/* Bytes of the character that a text begins with; 0 if that is none, or a control character. */
static size_t character(const unsigned char *text) {
    if (text[0] < 0x80) return text[0] >= 0x20 && text[0] != 0x7f;
    static const struct {
        unsigned char mask, head;
        uint32_t least;
    } kinds[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t extra = 1; extra <= 3; extra++) {
        if ((text[0] & kinds[extra - 1].mask) != kinds[extra - 1].head) continue;
        uint32_t code = text[0] & (unsigned char)~kinds[extra - 1].mask;
        for (size_t i = 1; i <= extra; i++) {
            if ((text[i] & 0xc0) != 0x80) return 0;
            code = code << 6 | (text[i] & 0x3f);
        }
        const bool surrogate = code >= 0xd800 && code < 0xe000, control = code < 0xa0;
        const bool fits = code >= kinds[extra - 1].least && code < 0x110000;
        return fits && !surrogate && !control ? extra + 1 : 0;
    }
    return 0;
}

void ejki_profiler_clean(const char *name, char out[EJK_PROFILER_NAME_SIZE]) {
    size_t used = 0;
    while (*name != '\0') {
        const size_t size = character((const unsigned char *)name);
        if (used + (size > 0 ? size : 1) >= EJK_PROFILER_NAME_SIZE) break;
        if (size == 0) out[used++] = '?';
        for (size_t i = 0; i < size; i++) out[used++] = name[i];
        name += size > 0 ? size : 1;
    }
    out[used] = '\0';
}

/* ---- Making ---------------------------------------------------------------------------------------- */

static ejk_status check_number(const char *name, ejk_opt_int given, int64_t minimum,
                               int64_t maximum, int64_t *out) {
    if (!given.set) return EJK_OK;
    if (given.value < minimum || given.value > maximum)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %lld, expected %lld to %lld", name,
                         (long long)given.value, (long long)minimum, (long long)maximum);
    *out = given.value;
    return EJK_OK;
}

static ejk_status copy_text(const char *text, char **out) {
    if (!text) return EJK_OK;
    *out = strdup(text);
    return *out ? EJK_OK : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a filter's text");
}

ejk_status ejki_profiler_compile(const char *expression, regex_t *out) {
    char reason[128];
    const int code = regcomp(out, expression, REG_EXTENDED | REG_NOSUB);
    if (code == 0) return EJK_OK;
    regerror(code, out, reason, sizeof reason);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "event_filter_regex is '%.80s', expected an extended regular expression: %s",
                     expression, reason);
}

/* All that can be undone by ejk_profiler_destroy() but the key. */
static ejk_status open_parts(const ejk_profiler_options *options, ejk_profiler *profiler) {
    profiler->min_duration_ns = 1000;
    profiler->max_events = 10000;
    EJKI_TRY(check_number("min_duration_ns", options->min_duration_ns, 0, INT64_MAX,
                          &profiler->min_duration_ns));
    EJKI_TRY(check_number("max_events", options->max_events, 1, INT64_C(1) << 24,
                          &profiler->max_events));
    if (options->event_filter_regex) {
        regex_t readable;
        EJKI_TRY(ejki_profiler_compile(options->event_filter_regex, &readable));
        regfree(&readable);
    }
    EJKI_TRY(copy_text(options->prefix_filter, &profiler->prefix));
    EJKI_TRY(copy_text(options->event_filter_regex, &profiler->expression));
    return ejki_markers_open(options, &profiler->markers);
}

static void close_parts(ejk_profiler *profiler) {
    ejki_markers_close(&profiler->markers);
    pthread_mutex_destroy(&profiler->lock);
    free(profiler->prefix);
    free(profiler->expression);
    free(profiler);
}

ejk_status ejk_profiler_create(const ejk_profiler_options *options, ejk_profiler **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "out is NULL, expected where to put the profiler");
    const ejk_profiler_options given = options ? *options : (ejk_profiler_options){0};
    ejk_profiler *profiler = calloc(1, sizeof *profiler);
    if (!profiler) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a profiler");
    profiler->markers.file = -1;
    pthread_mutex_init(&profiler->lock, NULL);
    ejk_status status = open_parts(&given, profiler);
    if (status == EJK_OK && pthread_key_create(&profiler->own, NULL) != 0)
        status = ejki_fail(EJK_STATUS_UNAVAILABLE,
                           "no key is left for data of a thread's own: the process has made too "
                           "many, of profilers or otherwise");
    if (status == EJK_OK)
        *out = profiler;
    else
        close_parts(profiler);
    return status;
}

static void free_track(ejki_track *track) {
    free(track->events);
    free(track->stack);
    free(track);
}

void ejk_profiler_destroy(ejk_profiler *profiler) {
    if (!profiler) return;
    pthread_key_delete(profiler->own);
    for (ejki_track *track = profiler->tracks, *next; track; track = next) {
        next = track->next;
        free_track(track);
    }
    close_parts(profiler);
}

/* ---- Tracks ---------------------------------------------------------------------------------------- */

static ejki_track *allocate_track(const ejk_profiler *profiler, bool device) {
    ejki_track *track = calloc(1, sizeof *track);
    if (!track) return NULL;
    track->device = device;
    /* Pages of the buffer are had from the system as events fill them. */
    track->events = calloc((size_t)profiler->max_events, sizeof *track->events);
    if (!device) track->stack = calloc(EJK_PROFILER_MAX_DEPTH, sizeof *track->stack);
    if (track->events && (device || track->stack)) return track;
    free_track(track);
    return NULL;
}

/* Under the lock. A thread's track is its own before it can be seen. */
static ejk_status make_track(ejk_profiler *profiler, bool device, const char *name,
                             ejki_track **out) {
    if (profiler->track_count == MOST_TRACKS)
        return ejki_fail(EJK_STATUS_OVERFLOW, "the profiler has %d tracks, the most possible",
                         (int)MOST_TRACKS);
    ejki_track *track = allocate_track(profiler, device);
    if (!track || (!device && pthread_setspecific(profiler->own, track) != 0)) {
        if (track) free_track(track);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a track of %lld events",
                         (long long)profiler->max_events);
    }
    ejki_profiler_clean(name, track->name);
    track->index = profiler->track_count++;
    track->id = device ? FIRST_DEVICE_ID + 1 + track->index : ejki_profiler_thread_id();
    track->next = atomic_load(&profiler->tracks);
    atomic_store(&profiler->tracks, track);
    *out = track;
    return EJK_OK;
}

/* The calling thread's track, made when it opens its first scope. */
static ejk_status own_track(ejk_profiler *profiler, ejki_track **out) {
    *out = pthread_getspecific(profiler->own);
    if (*out) return EJK_OK;
    char thread[32] = "thread", name[64];
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    snprintf(name, sizeof name, "%s %lld", thread, (long long)ejki_profiler_thread_id());
    pthread_mutex_lock(&profiler->lock);
    const ejk_status status = make_track(profiler, false, name, out);
    pthread_mutex_unlock(&profiler->lock);
    return status;
}

/* Appends if it is long enough and there is room. Only the track's writer calls this. */
static void append(const ejk_profiler *profiler, ejki_track *track, const ejki_scope *scope) {
    const int64_t count = atomic_load_explicit(&track->count, memory_order_relaxed);
    if (scope->end_ns - scope->start_ns < profiler->min_duration_ns) {
        atomic_fetch_add_explicit(&track->brief, 1, memory_order_relaxed);
    } else if (count == profiler->max_events) {
        atomic_fetch_add_explicit(&track->dropped, 1, memory_order_relaxed);
    } else {
        track->events[count] = *scope;
        atomic_store_explicit(&track->count, count + 1, memory_order_release);
    }
}

/* ---- Scopes ---------------------------------------------------------------------------------------- */

ejk_status ejk_profiler_begin(ejk_profiler *profiler, const char *name) {
    if (!profiler) return EJK_OK;
    if (!name) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "name is NULL, expected a text");
    ejki_track *track;
    const ejk_status status = own_track(profiler, &track);
    if (status != EJK_OK) {
        atomic_fetch_add_explicit(&profiler->homeless, 1, memory_order_relaxed);
        return status;
    }
    if (track->open++ >= EJK_PROFILER_MAX_DEPTH) {
        atomic_fetch_add_explicit(&track->dropped, 1, memory_order_relaxed);
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "scope '%.64s' is number %lld open on this thread, expected at most %d",
                         name, (long long)track->open, EJK_PROFILER_MAX_DEPTH);
    }
    ejki_scope *scope = &track->stack[track->open - 1];
    ejki_profiler_clean(name, scope->name);
    scope->depth = (int32_t)track->open - 1;
    ejki_markers_begin(&profiler->markers, track->id, scope->name);
    scope->start_ns = ejki_profiler_now_ns();
    return EJK_OK;
}

static ejk_status check_name(const ejki_scope *scope, const char *name) {
    char clean[EJK_PROFILER_NAME_SIZE];
    if (!name) return EJK_OK;
    ejki_profiler_clean(name, clean);
    if (strcmp(clean, scope->name) == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "scope '%.64s' is to end, but the innermost one open on this thread is "
                     "'%.64s'",
                     clean, scope->name);
}

ejk_status ejk_profiler_end(ejk_profiler *profiler, const char *name) {
    if (!profiler) return EJK_OK;
    const int64_t now = ejki_profiler_now_ns();
    ejki_track *track = pthread_getspecific(profiler->own);
    if (!track || track->open == 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "scope '%.64s' is to end, but none is open on this thread",
                         name ? name : "");
    if (track->open <= EJK_PROFILER_MAX_DEPTH) {
        ejki_scope *scope = &track->stack[track->open - 1];
        EJKI_TRY(check_name(scope, name));
        scope->end_ns = now;
        append(profiler, track, scope);
        ejki_markers_end(&profiler->markers, track->id, scope->name, now);
    }
    track->open--;
    return EJK_OK;
}

/* ---- Devices --------------------------------------------------------------------------------------- */

static ejk_status device_track(ejk_profiler *profiler, const char *name, ejki_track **out) {
    char clean[EJK_PROFILER_NAME_SIZE];
    ejki_profiler_clean(name, clean);
    for (ejki_track *track = atomic_load(&profiler->tracks); track; track = track->next)
        if (track->device && strcmp(track->name, clean) == 0) {
            *out = track;
            return EJK_OK;
        }
    return make_track(profiler, true, clean, out);
}

static ejk_status check_interval(double start_s, double end_s) {
    const double most = 9e9; /* in nanoseconds it fits 63 bits */
    if (!(fabs(start_s) <= most && fabs(end_s) <= most))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "interval is %g to %g s, expected times within 9e9 s", start_s, end_s);
    if (end_s < start_s)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "interval is %.9f to %.9f s, expected an end that is not before the start",
                         start_s, end_s);
    return EJK_OK;
}

ejk_status ejk_profiler_add(ejk_profiler *profiler, const char *track, const char *name,
                            double start_s, double end_s) {
    if (!profiler) return EJK_OK;
    if (!track || !name)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected a text",
                         track ? "name" : "track");
    EJKI_TRY(check_interval(start_s, end_s));
    ejki_scope scope = {.start_ns = llround(start_s * 1e9), .end_ns = llround(end_s * 1e9)};
    ejki_profiler_clean(name, scope.name);
    ejki_track *found;
    pthread_mutex_lock(&profiler->lock);
    const ejk_status status = device_track(profiler, track, &found);
    if (status == EJK_OK) append(profiler, found, &scope);
    pthread_mutex_unlock(&profiler->lock);
    return status;
}

/* ---- Counts ---------------------------------------------------------------------------------------- */

ejk_profiler_counts ejk_profiler_count(const ejk_profiler *profiler) {
    ejk_profiler_counts counts = {0};
    if (!profiler) return counts;
    for (const ejki_track *track = atomic_load(&profiler->tracks); track; track = track->next) {
        counts.tracks++;
        counts.events += atomic_load(&track->count);
        counts.brief += atomic_load(&track->brief);
        counts.dropped += atomic_load(&track->dropped);
    }
    counts.dropped += atomic_load(&profiler->homeless);
    counts.lost_markers = atomic_load(&profiler->markers.lost);
    return counts;
}
