/* SPDX-License-Identifier: Apache-2.0 */
/* A profiler as a Chrome trace and as a table. */
#include "ops/execution/profiler.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops/core/json_text.h"

static ejk_status missing(const ejk_profiler *profiler) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                     profiler ? "out" : "profiler");
}

/* ---- Trace ----------------------------------------------------------------------------------------- */

/* A name of the process, or of the track `id`. NULL, as of all constructors here: no memory. */
static json_t *name_event(const char *kind, int64_t id, const char *name) {
    return json_pack("{s:s, s:s, s:I, s:I, s:{s:s}}", "ph", "M", "name", kind, "pid",
                     (json_int_t)getpid(), "tid", (json_int_t)id, "args", "name", name);
}

static json_t *span_event(const ejki_entry *entry) {
    const ejki_scope *scope = entry->scope;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f}", "ph", "X", "name", scope->name, "cat",
                     entry->track->device ? "device" : "thread", "pid", (json_int_t)getpid(), "tid",
                     (json_int_t)entry->track->id, "ts", (double)scope->start_ns / 1e3, "dur",
                     (double)(scope->end_ns - scope->start_ns) / 1e3);
}

static bool add_events(const ejki_snapshot *snapshot, json_t *list) {
    if (json_array_append_new(list, name_event("process_name", 0, "ejkernel"))) return false;
    for (int64_t i = 0; i < snapshot->track_count; i++)
        if (json_array_append_new(list, name_event("thread_name", snapshot->tracks[i]->id,
                                                   snapshot->tracks[i]->name)))
            return false;
    for (int64_t i = 0; i < snapshot->count; i++)
        if (json_array_append_new(list, span_event(&snapshot->entries[i]))) return false;
    return true;
}

ejk_status ejk_profiler_to_chrome_json(const ejk_profiler *profiler, char **out) {
    if (!profiler || !out) return missing(profiler);
    ejki_snapshot snapshot;
    EJKI_TRY(ejki_profiler_snapshot(profiler, &snapshot));
    const ejk_profiler_counts counts = ejk_profiler_count(profiler);
    json_t *trace =
        json_pack("{s:s, s:{s:s, s:I, s:I}, s:[]}", "displayTimeUnit", "ns", "otherData", "clock",
                  "CLOCK_MONOTONIC", "brief", (json_int_t)counts.brief, "dropped",
                  (json_int_t)counts.dropped, "traceEvents");
    ejk_status status;
    if (trace && add_events(&snapshot, json_object_get(trace, "traceEvents")))
        status = ejki_json_text(trace, JSON_COMPACT | JSON_ENSURE_ASCII, out);
    else
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a trace of %lld events",
                           (long long)snapshot.count);
    json_decref(trace);
    ejki_snapshot_close(&snapshot);
    return status;
}

/* ---- Table ----------------------------------------------------------------------------------------- */

static int by_total(const void *a, const void *b) {
    const double x = ((const ejk_profiler_time *)a)->total_s;
    const double y = ((const ejk_profiler_time *)b)->total_s;
    return (x < y) - (x > y);
}

/* Characters a text takes on a line: bytes that begin one. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) width += (*text & 0xc0) != 0x80;
    return width;
}

static void write_table(FILE *stream, const ejk_profiler_time *times, int64_t count,
                        const ejk_profiler *profiler) {
    int width = width_of("name");
    for (int64_t i = 0; i < count; i++)
        if (width_of(times[i].name) > width) width = width_of(times[i].name);
    fprintf(stream, "%-*s %9s %12s %12s %12s %12s\n", width, "name", "count", "mean ms", "std ms",
            "total ms", "union ms");
    for (int64_t i = 0; i < count; i++) {
        const ejk_profiler_time *t = &times[i];
        fprintf(stream, "%s%*s %9lld %12.6f %12.6f %12.6f %12.6f\n", t->name,
                width - width_of(t->name), "", (long long)t->count, 1e3 * t->mean_s, 1e3 * t->std_s,
                1e3 * t->total_s, 1e3 * t->union_s);
    }
    const ejk_profiler_counts counts = ejk_profiler_count(profiler);
    fprintf(stream,
            "%lld events on %lld tracks; %lld shorter than %lld ns left out, %lld dropped for want "
            "of room\n",
            (long long)counts.events, (long long)counts.tracks, (long long)counts.brief,
            (long long)profiler->min_duration_ns, (long long)counts.dropped);
}

ejk_status ejk_profiler_table(const ejk_profiler *profiler, char **out) {
    if (!profiler || !out) return missing(profiler);
    ejk_profiler_time *times;
    int64_t count;
    EJKI_TRY(ejk_profiler_times(profiler, NULL, &times, &count));
    qsort(times, (size_t)count, sizeof *times, by_total);
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream) write_table(stream, times, count, profiler);
    free(times);
    if (!stream || fclose(stream) != 0) {
        free(text);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a table of %lld names",
                         (long long)count);
    }
    *out = text;
    return EJK_OK;
}
