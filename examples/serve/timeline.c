/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine did, as a picture: a row for each request, pages in use below. Time runs to the right. */
#include "engine.h"

#include <stdio.h>

enum { LEFT = 40, WIDTH = 960, ROW = 12, GRAPH = 80, GAP = 20 };

static const char waits[] = "#dddddd", reads[] = "#4477aa", writes[] = "#ee8866";

typedef struct drawing {
    FILE *file;
    double scale; /* points a second */
    int height;   /* of the rows */
} drawing;

static void box(const drawing *d, double start, double end, double y, double height,
                const char *colour) {
    fprintf(d->file, "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s'/>\n",
            LEFT + start * d->scale, y, (end - start) * d->scale, height, colour);
}

static void draw(const drawing *d, const engine_view *v, double end) {
    const engine_event *events = v->events;
    const double floor = d->height + GAP + GRAPH;
    int most = 1;
    fprintf(d->file,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%.0f' font-size='9' "
            "font-family='sans-serif'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
            LEFT + WIDTH + GAP, floor + 3 * GAP);
    for (int i = 0; i < v->request_count; i++) {
        const request *r = v->requests[i];
        fprintf(d->file, "<text x='4' y='%d'>%d</text>\n", i * ROW + 9, i);
        box(d, r->arrived, r->state == REQUEST_DONE ? r->finished : end, i * ROW + 5, 2, waits);
    }
    for (int i = 0; i < v->event_count; i++) {
        box(d, events[i].start, events[i].end, events[i].request * ROW + 1, ROW - 2,
            events[i].rows > 1 ? reads : writes);
        if (events[i].used > most) most = events[i].used;
    }
    for (int i = 0; i < v->event_count; i++)
        if (i == 0 || events[i].start > events[i - 1].start) {
            const double height = (double)GRAPH * events[i].used / most;
            box(d, events[i].start, events[i].end, floor - height, height, "#228833");
        }
    fprintf(
        d->file,
        "<text x='4' y='%.0f'>%d pages</text>\n<text x='%d' y='%.0f'>%.3f s: <tspan "
        "fill='%s'>reads several bytes</tspan> <tspan fill='%s'>reads one</tspan></text>\n</svg>\n",
        floor - GRAPH - 3, most, LEFT, floor + GAP, end, reads, writes);
}

ejk_status engine_draw(const engine *e, const char *path) {
    const engine_view v = engine_look(e);
    const double end = v.event_count > 0 ? v.events[v.event_count - 1].end : 1;
    const drawing d = {fopen(path, "w"), WIDTH / end, v.request_count * ROW};
    if (!d.file) return EJK_STATUS_IO;
    draw(&d, &v, end);
    const bool failed = ferror(d.file) != 0;
    return fclose(d.file) != 0 || failed ? EJK_STATUS_IO : EJK_OK;
}
