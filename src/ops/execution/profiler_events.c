/* SPDX-License-Identifier: Apache-2.0 */
/* What a profiler knows: all events in their order, and as a list for the caller. */
#include "ops/execution/profiler.h"

#include <stdlib.h>
#include <string.h>

static int by_index(const void *a, const void *b) {
    const ejki_track *x = *(const ejki_track *const *)a, *y = *(const ejki_track *const *)b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Outer scopes before those that start with them. */
static int by_place(const void *a, const void *b) {
    const ejki_entry *x = a, *y = b;
    if (x->track != y->track) return x->track->index < y->track->index ? -1 : 1;
    const ejki_scope *p = x->scope, *q = y->scope;
    if (p->start_ns != q->start_ns) return p->start_ns < q->start_ns ? -1 : 1;
    if (p->end_ns != q->end_ns) return p->end_ns > q->end_ns ? -1 : 1;
    if (p->depth != q->depth) return p->depth < q->depth ? -1 : 1;
    return p < q ? -1 : p > q; /* as recorded, whatever qsort() does with equals */
}

void ejki_snapshot_close(ejki_snapshot *snapshot) {
    free(snapshot->tracks);
    free(snapshot->entries);
    *snapshot = (ejki_snapshot){.count = 0};
}

/* Tracks by index; those that appear meanwhile are left out. */
static bool list_tracks(const ejk_profiler *profiler, ejki_snapshot *out) {
    const ejki_track *first = atomic_load(&profiler->tracks);
    for (const ejki_track *track = first; track; track = track->next) out->track_count++;
    out->tracks = malloc(((size_t)out->track_count + 1) * sizeof *out->tracks);
    if (!out->tracks) return false;
    int64_t place = 0;
    for (const ejki_track *track = first; track; track = track->next) out->tracks[place++] = track;
    qsort(out->tracks, (size_t)out->track_count, sizeof *out->tracks, by_index);
    return true;
}

/* Every count is read once: events appended meanwhile are left out. */
static bool list_entries(ejki_snapshot *out) {
    int64_t *counts = malloc(((size_t)out->track_count + 1) * sizeof *counts), total = 0;
    if (!counts) return false;
    for (int64_t i = 0; i < out->track_count; i++) {
        counts[i] = atomic_load_explicit(&out->tracks[i]->count, memory_order_acquire);
        total += counts[i];
    }
    out->entries = malloc(((size_t)total + 1) * sizeof *out->entries);
    for (int64_t i = 0; i < out->track_count && out->entries; i++)
        for (int64_t k = 0; k < counts[i]; k++)
            out->entries[out->count++] = (ejki_entry){out->tracks[i], &out->tracks[i]->events[k]};
    free(counts);
    if (!out->entries) return false;
    qsort(out->entries, (size_t)out->count, sizeof *out->entries, by_place);
    return true;
}

ejk_status ejki_profiler_snapshot(const ejk_profiler *profiler, ejki_snapshot *out) {
    ejki_snapshot snapshot = {.count = 0};
    if (!list_tracks(profiler, &snapshot) || !list_entries(&snapshot)) {
        ejki_snapshot_close(&snapshot);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the list of a profiler's events");
    }
    *out = snapshot;
    return EJK_OK;
}

static ejk_profiler_event event_of(const ejki_entry *entry) {
    return (ejk_profiler_event){.name = entry->scope->name,
                                .track = entry->track->name,
                                .track_index = entry->track->index,
                                .depth = entry->scope->depth,
                                .device = entry->track->device,
                                .start_s = ejki_seconds(entry->scope->start_ns),
                                .end_s = ejki_seconds(entry->scope->end_ns)};
}

ejk_status ejk_profiler_events(const ejk_profiler *profiler, ejk_profiler_event **out,
                               int64_t *count) {
    if (!profiler || !out || !count)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !profiler ? "profiler"
                         : !out    ? "out"
                                   : "count");
    ejki_snapshot snapshot;
    EJKI_TRY(ejki_profiler_snapshot(profiler, &snapshot));
    ejk_profiler_event *events = malloc(((size_t)snapshot.count + 1) * sizeof *events);
    ejk_status status = EJK_OK;
    if (events) {
        for (int64_t i = 0; i < snapshot.count; i++) events[i] = event_of(&snapshot.entries[i]);
        *out = events;
        *count = snapshot.count;
    } else {
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld events",
                           (long long)snapshot.count);
    }
    ejki_snapshot_close(&snapshot);
    return status;
}
