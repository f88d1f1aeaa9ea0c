/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roofline: measured points under their ceilings, both axes logarithmic. A ceiling belongs to a tier, a
 * type and a number of threads; points carry numbers that the list below the diagram explains.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 920, LEFT = 80, RIGHT = 30, TOP = 60, HEIGHT = 440, LINE_HEIGHT = 20 };

/* The part of the plane that is drawn, as powers of ten. */
typedef struct plane {
    double x_low, x_high, y_low, y_high;
} plane;

/* Where a number is written, so that the next one finds another place. */
typedef struct spot {
    double x, y;
} spot;

static const char *const colours[] = {"#1f5fa8", "#c0392b", "#2e7d32", "#7b3fa0", "#b26a00"};

enum { COLOURS = sizeof colours / sizeof *colours };

/* FLOPs per byte; what cannot be drawn has none. */
static double intensity_of(const bench_result *r) {
    return r->cost.flops > 0 && r->cost.bytes > 0 ? r->cost.flops / r->cost.bytes : 0;
}

static bool same_roof(const bench_result *a, const bench_result *b) {
    return a->threads == b->threads && a->dtype == b->dtype &&
           strcmp(bench_plan_text(a, "isa"), bench_plan_text(b, "isa")) == 0;
}

/* The first result with the same ceilings: it stands for them. */
static int roof_of(const bench_result *results, int index) {
    int first = 0;
    while (!same_roof(&results[first], &results[index])) first++;
    return first;
}

static const char *colour_of(const bench_result *results, int index) {
    int roof = roof_of(results, index), order = 0;
    for (int i = 0; i < roof; i++) order += roof_of(results, i) == i;
    return colours[order % COLOURS];
}

/* ---- The plane ------------------------------------------------------------------------------------- */

static double x_of(const plane *p, double value) {
    return LEFT + (log10(value) - p->x_low) / (p->x_high - p->x_low) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plane *p, double value) {
    return TOP + (p->y_high - log10(value)) / (p->y_high - p->y_low) * HEIGHT;
}

static void include(double value, double *low, double *high) {
    if (!(value > 0) || !isfinite(value)) return;
    *low = fmin(*low, floor(log10(value) - 0.1));
    *high = fmax(*high, ceil(log10(value) + 0.1));
}

/* Whole decades around all points, ceilings, and the ridges where these meet. */
static plane plane_of(const bench_result *results, int count) {
    plane p = {0, 1, 1e9, -1e9};
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        include(intensity_of(r), &p.x_low, &p.x_high);
        include(r->compute.ceiling / r->memory.ceiling, &p.x_low, &p.x_high);
        include(r->compute.ceiling * 1e-9, &p.y_low, &p.y_high);
        include(r->compute.rate * 1e-9, &p.y_low, &p.y_high);
    }
    if (p.y_low >= p.y_high) p.y_low = 0, p.y_high = 1;
    return p;
}

/* A line across the diagram at a value of one axis; decades carry their value. */
static void draw_tick(FILE *svg, const plane *p, bool of_x, double value, bool decade) {
    double x = x_of(p, value), y = y_of(p, value);
    fprintf(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='%s'/>\n", of_x ? x : LEFT,
            of_x ? TOP : y, of_x ? x : WIDTH - RIGHT, of_x ? TOP + HEIGHT : y,
            decade ? "major" : "minor");
    if (decade)
        fprintf(svg, "<text x='%.1f' y='%.1f' text-anchor='%s'>%g</text>\n", of_x ? x : LEFT - 8,
                of_x ? TOP + HEIGHT + 18 : y + 4, of_x ? "middle" : "end", value);
}

static void draw_ticks(FILE *svg, const plane *p, bool of_x) {
    int low = (int)(of_x ? p->x_low : p->y_low), high = (int)(of_x ? p->x_high : p->y_high);
    for (int power = low; power <= high; power++)
        for (int digit = 1; digit < (power < high ? 10 : 2); digit++)
            draw_tick(svg, p, of_x, digit * pow(10, power), digit == 1);
}

static void draw_frame(FILE *svg, const plane *p) {
    draw_ticks(svg, p, true);
    draw_ticks(svg, p, false);
    fprintf(svg, "<rect x='%d' y='%d' width='%d' height='%d' fill='none' stroke='#333'/>\n", LEFT,
            TOP, WIDTH - LEFT - RIGHT, HEIGHT);
    fprintf(svg,
            "<text x='%d' y='%d' text-anchor='middle'>FLOP per byte of inputs and outputs"
            "</text>\n",
            (WIDTH + LEFT - RIGHT) / 2, TOP + HEIGHT + 40);
    fprintf(svg,
            "<text transform='translate(24 %d) rotate(-90)' text-anchor='middle'>GFLOP/s"
            "</text>\n",
            TOP + HEIGHT / 2);
}

/* ---- What is in it --------------------------------------------------------------------------------- */

/* The highest of all results that share them: a ceiling is what was reached at best. */
static void ceilings_of(const bench_result *results, int count, int roof, double *peak,
                        double *read) {
    *peak = *read = 0;
    for (int i = roof; i < count; i++) {
        if (!same_roof(&results[roof], &results[i])) continue;
        *peak = fmax(*peak, results[i].compute.ceiling * 1e-9);
        *read = fmax(*read, results[i].memory.ceiling * 1e-9);
    }
}

/* A ceiling's name stands on it, or as far above as names of lower ceilings push it. */
static double name_height(double wanted, const double *taken, int count) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++)
            if (fabs(taken[i] - wanted) < 15) {
                wanted = taken[i] - 15;
                moved = true;
            }
    }
    return wanted;
}

/* The slope starts at the lower or the left edge and ends at the ridge; its name lies along it. */
static void draw_slope(FILE *svg, const plane *p, double peak, double read, int order,
                       const char *colour) {
    double start = fmax(pow(10, p->x_low), pow(10, p->y_low) / read);
    double x1 = x_of(p, start), y1 = y_of(p, start * read);
    double x2 = x_of(p, peak / read), y2 = y_of(p, peak), part = 0.2 + 0.3 * (order % 3);
    fprintf(svg,
            "<polyline points='%.1f,%.1f %.1f,%.1f %d,%.1f' fill='none' stroke='%s' "
            "stroke-width='2'/>\n",
            x1, y1, x2, y2, WIDTH - RIGHT, y2, colour);
    fprintf(svg,
            "<text transform='translate(%.1f %.1f) rotate(%.1f)' text-anchor='middle' "
            "style='fill:%s' class='name'>%.3g GB/s read</text>\n",
            x1 + part * (x2 - x1) - 4, y1 + part * (y2 - y1) - 6,
            atan2(y2 - y1, x2 - x1) * 180 / M_PI, colour, read);
}

static bool draw_roofs(FILE *svg, const plane *p, const bench_result *results, int count) {
    double *names = calloc((size_t)count, sizeof *names), peak, read;
    if (!names) return report_error("no memory for the ceilings of a plot");
    int drawn = 0;
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        const char *colour = colour_of(results, i);
        ceilings_of(results, count, i, &peak, &read);
        if (roof_of(results, i) != i || !(peak > 0 && read > 0)) continue;
        draw_slope(svg, p, peak, read, drawn, colour);
        names[drawn] = name_height(y_of(p, peak) - 6, names, drawn);
        fprintf(svg,
                "<text x='%d' y='%.1f' text-anchor='end' style='fill:%s' class='name'>%s %s, %d "
                "thread%s: %.4g GFLOP/s</text>\n",
                WIDTH - RIGHT - 6, names[drawn++], colour, bench_plan_text(r, "isa"),
                ejk_dtype_name(r->dtype), (int)r->threads, r->threads > 1 ? "s" : "", peak);
    }
    free(names);
    return true;
}

static bool is_free(const spot *taken, int count, spot wish) {
    for (int i = 0; i < count; i++)
        if (fabs(taken[i].x - wish.x) < 20 && fabs(taken[i].y - wish.y) < 14) return false;
    return true;
}

/* Around the point, then further away. */
static spot place_number(const spot *taken, int count, double x, double y) {
    for (int ring = 1; ring <= 4; ring++)
        for (int turn = 0; turn < 8; turn++) {
            double angle = turn * M_PI / 4;
            spot wish = {x + 16 * ring * cos(angle), y + 4 + 16 * ring * sin(angle)};
            if (is_free(taken, count, wish)) return wish;
        }
    return (spot){x + 16, y + 4};
}

/* All points keep their places free before the first number is placed. */
static bool draw_points(FILE *svg, const plane *p, const bench_result *results, int count) {
    spot *taken = calloc((size_t)count * 2, sizeof *taken);
    if (!taken) return report_error("no memory for the points of a plot");
    int used = 0;
    for (int i = 0; i < count; i++) {
        double x = intensity_of(&results[i]), y = results[i].compute.rate * 1e-9;
        if (!(x > 0)) continue;
        fprintf(svg, "<circle cx='%.1f' cy='%.1f' r='5' fill='%s'/>\n", x_of(p, x), y_of(p, y),
                colour_of(results, i));
        taken[used++] = (spot){x_of(p, x), y_of(p, y) + 4};
    }
    for (int i = 0; i < count; i++) {
        double x = intensity_of(&results[i]), y = results[i].compute.rate * 1e-9;
        if (!(x > 0)) continue;
        spot at = place_number(taken, used, x_of(p, x), y_of(p, y));
        taken[used++] = at;
        fprintf(svg, "<text x='%.1f' y='%.1f' text-anchor='middle' class='number'>%d</text>\n",
                at.x, at.y, i + 1);
    }
    free(taken);
    return true;
}

static void draw_list(FILE *svg, const bench_result *results, int count) {
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        int y = TOP + HEIGHT + 74 + i * LINE_HEIGHT;
        fprintf(svg, "<circle cx='%d' cy='%d' r='5' fill='%s'/>\n", LEFT, y - 4,
                colour_of(results, i));
        fprintf(svg, "<text x='%d' y='%d'>%d. %s, %s, %d thread%s: %.4g GFLOP/s, ", LEFT + 14, y,
                i + 1, r->shape, bench_plan_text(r, "implementation"), (int)r->threads,
                r->threads > 1 ? "s" : "", r->compute.rate * 1e-9);
        if (r->cold)
            fprintf(svg, "%.1f %% of bandwidth</text>\n", 100 * r->memory.share);
        else
            fprintf(svg, "%.1f %% of peak</text>\n", 100 * r->compute.share);
    }
}

/* What stands for markup is left out: names of processors and operations do not need it. */
static void put_plain(FILE *svg, const char *text) {
    for (; *text; text++)
        if (!strchr("<>&", *text)) fputc(*text, svg);
}

static void draw_title(FILE *svg, const bench_result *results) {
    fprintf(svg, "<text x='%d' y='24' class='title'>", LEFT);
    put_plain(svg, results[0].kernel->op_id);
    fprintf(svg, ": measured rates under their ceilings</text>\n<text x='%d' y='44'>", LEFT);
    put_plain(svg, ejk_cpu()->name);
    fputs(" (", svg);
    put_plain(svg, ejk_device_fingerprint());
    fputs(")</text>\n", svg);
}

static bool draw(FILE *svg, const bench_result *results, int count) {
    plane p = plane_of(results, count);
    int height = TOP + HEIGHT + 74 + count * LINE_HEIGHT;
    fprintf(svg,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d'>\n"
            "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold;font-size:16px}"
            ".major{stroke:#bbb}.minor{stroke:#eee}.number{font-weight:bold}"
            ".name{font-size:12px;paint-order:stroke;stroke:white;stroke-width:4px}</style>\n"
            "<rect width='%d' height='%d' fill='white'/>\n",
            WIDTH, height, WIDTH, height, WIDTH, height);
    draw_title(svg, results);
    draw_frame(svg, &p);
    bool drawn = draw_roofs(svg, &p, results, count) && draw_points(svg, &p, results, count);
    draw_list(svg, results, count);
    fputs("</svg>\n", svg);
    return drawn;
}

bool bench_plot(const char *path, const bench_result *results, int count) {
    FILE *svg = fopen(path, "w");
    if (!svg) return report_error("%s cannot be written", path);
    bool drawn = draw(svg, results, count);
    bool failed = ferror(svg) != 0;
    return ((fclose(svg) == 0 && !failed) || report_error("%s cannot be written", path)) && drawn;
}
