/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves a language model to requests that arrive over time. A line of the file of requests, or of standard input, is
 *
 *     milliseconds bytes text
 *
 * when it arrives after the start, not before those above it, how many bytes are wanted, and the prompt, with \n and
 * \\ in it.
 */
#include "engine.h"

#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: serve [options] [requests, or - for standard input]\n"
                            "  --model FOLDER   examples/data/bytemix or examples/data/bytelm\n"
                            "  --device DEVICE  cpu, cuda or cuda:1; cpu\n"
                            "  --dtype TYPE     and --weights FORMAT: as bytemix has them\n"
                            "  --rows N         bytes that a step reads, at most; 128\n"
                            "  --pages N        pages of the caches, of 16 bytes each; 256\n"
                            "  --running N      texts at once; 16\n"
                            "  --timeline FILE  draw what happened as SVG\n";

typedef struct wishes {
    bytemix_options model;
    engine_options engine;
    const char *timeline;
} wishes;

typedef struct arrival {
    double time; /* seconds */
    int count, length;
    uint8_t prompt[BYTEMIX_CONTEXT];
} arrival;

/* Reads a line; false if it is none. */
static bool parse(const char *line, arrival *out) {
    int at = 0, milliseconds;
    if (sscanf(line, "%d %d %n", &milliseconds, &out->count, &at) != 2 || at == 0) return false;
    out->time = milliseconds / 1000.0;
    out->length = 0;
    for (const char *c = line + at; *c && *c != '\n'; c++) {
        if (out->length == BYTEMIX_CONTEXT) return false;
        const bool escaped = *c == '\\' && c[1];
        c += escaped;
        out->prompt[out->length++] = (uint8_t)(escaped && *c == 'n' ? '\n' : *c);
    }
    return true;
}

/* The next request of a file; false at its end. */
static bool next_request(FILE *file, arrival *out) {
    static char line[2 * BYTEMIX_CONTEXT];
    while (fgets(line, sizeof line, file)) {
        if (parse(line, out)) return true;
        fprintf(stderr, "serve: no request, expected milliseconds, bytes and text: %s", line);
    }
    return false;
}

/* Steps while there is work; waits, awake, for those that have not arrived. */
static ejk_status serve(engine *e, FILE *requests) {
    arrival a;
    bool busy = true, more = next_request(requests, &a);
    while (busy || more) {
        for (; more && a.time <= engine_seconds(e); more = next_request(requests, &a)) {
            const ejk_status status = engine_submit(e, a.time, a.prompt, a.length, a.count);
            if (status == EJK_STATUS_INVALID_ARGUMENT)
                fprintf(stderr, "serve: a prompt of %d bytes and %d more do not fit\n", a.length,
                        a.count);
            else if (status != EJK_OK)
                return status;
        }
        TRY(engine_step(e, &busy));
    }
    return EJK_OK;
}

static void report(const engine *e, int pages) {
    const engine_view v = engine_look(e);
    const int count = v.request_count, steps = v.event_count;
    double wait = 0, longest = 0, used = 0;
    int written = 0, read = 0, shared = 0, preempted = 0, most = 0;
    for (int i = 0; i < count; i++) {
        const request *r = v.requests[i];
        const double first = r->first - r->arrived;
        printf("[%d] first byte after %.1f ms, %d bytes in %.1f ms\n%.*s|%.*s\n", r->id,
               1000 * first, r->end - r->prompt, 1000 * (r->finished - r->arrived), r->prompt,
               (const char *)r->bytes, r->end - r->prompt, (const char *)r->bytes + r->prompt);
        wait += first / count;
        if (first > longest) longest = first;
        written += r->end - r->prompt;
        shared += r->shared;
        preempted += r->preempted;
    }
    for (int i = 0; i < steps; i++) {
        read += v.events[i].rows;
        used += v.events[i].used * (double)v.events[i].rows;
        if (v.events[i].used > most) most = v.events[i].used;
    }
    const double seconds = steps > 0 ? v.events[steps - 1].end - v.events[0].start : 1;
    printf("\n%d requests in %.3f s: %.0f tokens written a second, %.0f read\n", count, seconds,
           written / seconds, read / seconds);
    printf("time to first token: %.1f ms on average, %.1f at most\n", 1000 * wait, 1000 * longest);
    printf("caches: %.0f of %d pages in use for a token on average, %d at most; %d bytes from "
           "shared prefixes, "
           "%d preemptions\n",
           read > 0 ? used / read : 0, pages, most, shared, preempted);
}

static ejk_status run(const wishes *w, FILE *requests) {
    ejk_context *context = NULL;
    bytemix *model = NULL;
    engine *e = NULL;
    ejk_status status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = bytemix_open(context, &w->model, &model);
    if (status == EJK_OK) status = engine_open(model, w->engine, &e);
    if (status == EJK_OK) status = serve(e, requests);
    if (status == EJK_OK) report(e, w->engine.pages);
    if (status == EJK_OK && w->timeline) status = engine_draw(e, w->timeline);
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    engine_close(e);
    bytemix_close(model);
    ejk_context_destroy(context);
    return status;
}

static bool number(const char *text, int most, int *out) {
    return sscanf(text, "%d", out) == 1 && *out > 0 && *out <= most;
}

/* One option; false if it is none. */
static bool take(wishes *w, const char *name, const char *value) {
    if (strcmp(name, "--model") == 0) return (w->model.folder = value), true;
    if (strcmp(name, "--weights") == 0) return (w->model.weights = value), true;
    if (strcmp(name, "--timeline") == 0) return (w->timeline = value), true;
    if (strcmp(name, "--dtype") == 0) return ejk_dtype_from_name(value, &w->model.dtype) == EJK_OK;
    if (strcmp(name, "--rows") == 0) return number(value, ENGINE_ROWS, &w->engine.rows);
    if (strcmp(name, "--pages") == 0) return number(value, ENGINE_PAGES, &w->engine.pages);
    if (strcmp(name, "--running") == 0) return number(value, ENGINE_RUNNING, &w->engine.running);
    if (strcmp(name, "--device") != 0) return false;
    w->model.device = value;
    return strcmp(value, "cpu") == 0 || strncmp(value, "cuda", 4) == 0;
}

int main(int count, char **words) {
    wishes w = {.engine = {.rows = 128, .pages = 256, .running = 16, .prefixes = ENGINE_PREFIXES}};
    for (; count > 2 && strncmp(words[1], "--", 2) == 0; count -= 2, words += 2)
        if (!take(&w, words[1], words[2])) break;
    if (count > 2 || (count == 2 && strncmp(words[1], "--", 2) == 0)) {
        fputs(usage, stderr);
        return 1;
    }
    const char *path = count == 2 ? words[1] : "examples/data/requests.txt";
    FILE *requests = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    w.model.rows = w.engine.rows;
    w.model.pages = w.engine.pages;
    w.model.slots = w.engine.running + ENGINE_PREFIXES;
    if (!requests) return perror(path), 1;
    const ejk_status status = run(&w, requests);
    fclose(requests);
    return status == EJK_OK ? 0 : 1;
}
