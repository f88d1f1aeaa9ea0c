/* SPDX-License-Identifier: Apache-2.0 */
/* Times per name. A duration is an event's own, or what the events inside it that match cover. */
#define _GNU_SOURCE 1
#include "ops/execution/profiler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An event that is told of. */
typedef struct sample {
    const ejki_scope *scope;
    int64_t duration_ns;
} sample;

/* What a query is answered from. `matches` tells of each entry whether the expression is found in it. */
typedef struct view {
    ejki_snapshot snapshot;
    const char *prefix;
    bool *matches;   /* NULL = no expression */
    sample *samples; /* sorted by name, then start */
    int64_t count;
} view;

/* ---- Choosing -------------------------------------------------------------------------------------- */

static ejk_status no_such_track(const ejki_snapshot *snapshot, const char *wish) {
    char names[512] = "none";
    size_t used = 0;
    for (int64_t i = 0; i < snapshot->track_count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 snapshot->tracks[i]->name);
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                     "track '%.64s' is in no track's name; these exist: %s", wish, names);
}

/* Keeps the entries of tracks whose names contain the wish. */
static ejk_status choose_tracks(ejki_snapshot *snapshot, const char *wish) {
    bool found = false;
    if (!wish) return EJK_OK;
    for (int64_t i = 0; i < snapshot->track_count; i++)
        found |= strcasestr(snapshot->tracks[i]->name, wish) != NULL;
    if (!found) return no_such_track(snapshot, wish);
    int64_t kept = 0;
    for (int64_t i = 0; i < snapshot->count; i++)
        if (strcasestr(snapshot->entries[i].track->name, wish))
            snapshot->entries[kept++] = snapshot->entries[i];
    snapshot->count = kept;
    return EJK_OK;
}

static ejk_status no_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the times of a profiler's events");
}

static ejk_status find_matches(view *v, const char *expression) {
    if (!expression) return EJK_OK;
    regex_t compiled;
    EJKI_TRY(ejki_profiler_compile(expression, &compiled));
    v->matches = calloc((size_t)v->snapshot.count + 1, sizeof *v->matches);
    for (int64_t i = 0; i < v->snapshot.count && v->matches; i++)
        v->matches[i] = regexec(&compiled, v->snapshot.entries[i].scope->name, 0, NULL, 0) == 0;
    regfree(&compiled);
    return v->matches ? EJK_OK : no_memory();
}

/* ---- Durations ------------------------------------------------------------------------------------- */

/* A union that grows by intervals in the order of their starts. */
typedef struct covered {
    int64_t length, end;
} covered;

static void cover(covered *c, int64_t start, int64_t end) {
    const int64_t from = start > c->end ? start : c->end;
    if (end <= from) return;
    c->length += end - from;
    c->end = end;
}

/* True if `i` may count for `parent`: inside it, on its track, of another name, and matching. */
static bool counts_for(const view *v, int64_t i, const ejki_entry *parent) {
    const ejki_entry *child = &v->snapshot.entries[i];
    return v->matches[i] && child->track == parent->track &&
           child->scope->start_ns >= parent->scope->start_ns &&
           child->scope->end_ns <= parent->scope->end_ns &&
           strcmp(child->scope->name, parent->scope->name) != 0;
}

static int64_t duration(const view *v, int64_t place) {
    const ejki_entry *entries = v->snapshot.entries, *parent = &entries[place];
    if (!v->matches) return parent->scope->end_ns - parent->scope->start_ns;
    /* Entries that start together stand beside each other, in any order of names. */
    int64_t first = place;
    while (first > 0 && entries[first - 1].track == parent->track &&
           entries[first - 1].scope->start_ns == parent->scope->start_ns)
        first--;
    covered inside = {.end = INT64_MIN};
    for (int64_t i = first; i < v->snapshot.count && entries[i].track == parent->track &&
                            entries[i].scope->start_ns <= parent->scope->end_ns;
         i++)
        if (counts_for(v, i, parent))
            cover(&inside, entries[i].scope->start_ns, entries[i].scope->end_ns);
    return inside.length;
}

static int by_name(const void *a, const void *b) {
    const ejki_scope *x = ((const sample *)a)->scope, *y = ((const sample *)b)->scope;
    const int names = strcmp(x->name, y->name);
    if (names != 0) return names;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

static ejk_status take_samples(view *v) {
    const size_t length = v->prefix ? strlen(v->prefix) : 0;
    v->samples = malloc(((size_t)v->snapshot.count + 1) * sizeof *v->samples);
    if (!v->samples) return no_memory();
    for (int64_t i = 0; i < v->snapshot.count; i++) {
        const ejki_scope *scope = v->snapshot.entries[i].scope;
        if (length == 0 || strncmp(scope->name, v->prefix, length) == 0)
            v->samples[v->count++] = (sample){scope, duration(v, i)};
    }
    qsort(v->samples, (size_t)v->count, sizeof *v->samples, by_name);
    return EJK_OK;
}

/* ---- Statistics ------------------------------------------------------------------------------------ */

/* Mean and deviation; of more than two, one least and one largest are left out. */
static void spread(const sample *samples, int64_t count, ejk_profiler_time *out) {
    int64_t least = 0, largest = 0;
    for (int64_t i = 1; i < count; i++) {
        if (samples[i].duration_ns < samples[least].duration_ns) least = i;
        if (samples[i].duration_ns >= samples[largest].duration_ns) largest = i;
    }
    const bool trimmed = count > 2;
    const double kept = (double)(trimmed ? count - 2 : count);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        if (!trimmed || (i != least && i != largest)) sum += ejki_seconds(samples[i].duration_ns);
    out->mean_s = sum / kept;
    for (int64_t i = 0; i < count; i++) {
        const double off = ejki_seconds(samples[i].duration_ns) - out->mean_s;
        if (!trimmed || (i != least && i != largest)) squares += off * off;
    }
    out->std_s = sqrt(squares / kept);
}

static ejk_profiler_time time_of(const sample *samples, int64_t count) {
    ejk_profiler_time result = {.name = samples->scope->name,
                                .count = count,
                                .latest_s = ejki_seconds(samples[count - 1].duration_ns)};
    covered all = {.end = INT64_MIN};
    for (int64_t i = 0; i < count; i++) {
        result.total_s += ejki_seconds(samples[i].duration_ns);
        cover(&all, samples[i].scope->start_ns, samples[i].scope->end_ns);
    }
    result.union_s = ejki_seconds(all.length);
    spread(samples, count, &result);
    return result;
}

static ejk_status summarise(const view *v, ejk_profiler_time **out, int64_t *count) {
    ejk_profiler_time *times = malloc(((size_t)v->count + 1) * sizeof *times);
    if (!times) return no_memory();
    int64_t used = 0;
    for (int64_t i = 0, next; i < v->count; i = next) {
        next = i + 1;
        while (next < v->count &&
               strcmp(v->samples[next].scope->name, v->samples[i].scope->name) == 0)
            next++;
        times[used++] = time_of(v->samples + i, next - i);
    }
    *out = times;
    *count = used;
    return EJK_OK;
}

static ejk_status answer(view *v, const char *track, const char *expression,
                         ejk_profiler_time **out, int64_t *count) {
    EJKI_TRY(choose_tracks(&v->snapshot, track));
    EJKI_TRY(find_matches(v, expression));
    EJKI_TRY(take_samples(v));
    return summarise(v, out, count);
}

ejk_status ejk_profiler_times(const ejk_profiler *profiler, const ejk_profiler_query *query,
                              ejk_profiler_time **out, int64_t *count) {
    if (!profiler || !out || !count)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !profiler ? "profiler"
                         : !out    ? "out"
                                   : "count");
    const ejk_profiler_query wish = query ? *query : (ejk_profiler_query){0};
    view v = {.prefix = wish.prefix ? wish.prefix : profiler->prefix};
    EJKI_TRY(ejki_profiler_snapshot(profiler, &v.snapshot));
    const char *expression = wish.event_regex ? wish.event_regex : profiler->expression;
    const ejk_status status = answer(&v, wish.track, expression, out, count);
    free(v.samples);
    free(v.matches);
    ejki_snapshot_close(&v.snapshot);
    return status;
}
