/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as SVG: a path of runs per state, so that a file is as long as the mask is intricate. */
#include "draw/draw.h"

enum { MARGIN = 16, LINE = 20, TEXT_SIZE = 13, SMALLEST_ORDER = 6, MOST_LINES = 64 };

void ejki_print_escaped(FILE *out, const char *text) {
    for (; *text != '\0'; text++) switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*text, out);
        }
}

void ejki_print_title(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing) {
    if (drawing->title != NULL)
        ejki_print_escaped(out, drawing->title);
    else
        ejki_print_name(out, picture);
}

/* ---- Cells ----------------------------------------------------------------------------------------- */

static void print_cells(FILE *out, const ejki_picture *picture, uint8_t state, const char *colour) {
    bool begun = false;
    for (int64_t i = 0; i < picture->cell_rows; i++) {
        const uint8_t *states = ejki_picture_row(picture, i);
        for (int64_t j = 0; j < picture->cell_columns;) {
            int64_t begin = j;
            while (j < picture->cell_columns && states[j] == state) j++;
            if (j == begin) {
                j++;
                continue;
            }
            if (!begun) fprintf(out, "<path fill=\"%s\" d=\"", colour);
            begun = true;
            fprintf(out, "M%lld %lldh%lldv1h-%lldz", (long long)begin, (long long)i,
                    (long long)(j - begin), (long long)(j - begin));
        }
    }
    if (begun) fputs("\"/>\n", out);
}

/* Lines are given in thousandths of a cell: not every program knows strokes that do not scale. */
static void print_grid(FILE *out, const ejki_picture *picture, int64_t side) {
    if (picture->cell_rows > MOST_LINES || picture->cell_columns > MOST_LINES) return;
    fprintf(out, "<path fill=\"none\" stroke=\"#8a8a8a\" stroke-width=\"0.%03lld\" d=\"",
            (long long)ejki_min(600 / side, 999));
    for (int64_t i = 1; i < picture->cell_rows; i++)
        fprintf(out, "M0 %lldh%lld", (long long)i, (long long)picture->cell_columns);
    for (int64_t j = 1; j < picture->cell_columns; j++)
        fprintf(out, "M%lld 0v%lld", (long long)j, (long long)picture->cell_rows);
    fputs("\"/>\n", out);
}

/* A line through the middles of the cells, from a dot at the first to a square at the last. */
static void print_order(FILE *out, const ejki_picture *picture, int64_t side, bool hidden) {
    int64_t first, last, end[2] = {0, 0};
    bool begun = false;
    for (int64_t i = 0; i < picture->cell_rows; i++) {
        if (!ejki_picture_visited(picture, i, &first, &last)) continue;
        if (!begun)
            fprintf(out,
                    "<g class=\"order\" transform=\"translate(.5 .5)\"%s>\n"
                    "<circle cx=\"%lld\" cy=\"%lld\" r=\".2\" fill=\"%s\"/>\n"
                    "<path fill=\"none\" stroke=\"%s\" stroke-width=\"0.%03lld\" d=\"",
                    hidden ? " visibility=\"hidden\"" : "", (long long)first, (long long)i,
                    EJKI_COLOUR_ORDER, EJKI_COLOUR_ORDER, (long long)ejki_min(1500 / side, 120));
        fprintf(out, "%c%lld %lld", begun ? 'L' : 'M', (long long)first, (long long)i);
        if (last > first) fprintf(out, "H%lld", (long long)last);
        begun = true;
        end[0] = last;
        end[1] = i;
    }
    if (begun)
        fprintf(out,
                "\"/>\n<rect x=\"%lld.8\" y=\"%lld.8\" width=\".4\" height=\".4\" "
                "transform=\"translate(-1 -1)\" fill=\"%s\"/>\n</g>\n",
                (long long)end[0], (long long)end[1], EJKI_COLOUR_ORDER);
}

/* ---- Words ----------------------------------------------------------------------------------------- */

static void print_line(FILE *out, int64_t y, const char *attributes) {
    fprintf(out, "<text x=\"%d\" y=\"%lld\"%s>", MARGIN, (long long)y, attributes);
}

static void print_key(FILE *out, int64_t x, int64_t y, const char *colour, const char *word) {
    fprintf(out,
            "<rect x=\"%lld\" y=\"%lld\" width=\"12\" height=\"12\" fill=\"%s\" "
            "stroke=\"#8a8a8a\"/><text x=\"%lld\" y=\"%lld\">%s</text>\n",
            (long long)x, (long long)(y - 11), colour, (long long)(x + 18), (long long)y, word);
}

static void print_legend(FILE *out, const ejki_picture *picture, bool line, int64_t y) {
    const ejk_mask_survey *survey = &picture->survey;
    bool elements = ejki_shows_elements(picture);
    print_key(out, MARGIN, y, EJKI_COLOUR_FULL, elements ? "visible" : "full");
    print_key(out, MARGIN + 80, y, EJKI_COLOUR_EMPTY, elements ? "hidden" : "empty");
    if (!elements) print_key(out, MARGIN + 160, y, EJKI_COLOUR_PARTIAL, "partial");
    print_line(out, y + LINE, "");
    fprintf(out, "queries 0 to %lld downwards, keys 0 to %lld to the right</text>\n",
            (long long)(survey->q - 1), (long long)(survey->kv - 1));
    if (!line) return;
    print_line(out, y + 2 * LINE, " class=\"order\"");
    fputs("line: the order of visits, from the dot to the square</text>\n", out);
}

/* ---- The picture ----------------------------------------------------------------------------------- */

void ejki_draw_svg(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing) {
    const ejk_mask_survey *survey = &picture->survey;
    int64_t rows = picture->cell_rows, columns = picture->cell_columns;
    int64_t room = drawing->width - 2 * MARGIN;
    int64_t side = ejki_max(1, room / ejki_max(rows, columns));
    int64_t width = side * columns, height = side * rows;
    int64_t top = drawing->legend ? MARGIN + 2 * LINE : MARGIN;
    bool order =
        drawing->order && survey->partial + survey->full > 0 && !ejki_blocks_are_elements(picture);
    bool line = order && side >= SMALLEST_ORDER;
    int64_t foot = drawing->legend ? (line ? 3 : 2) * LINE + 8 : 0;
    int64_t all = top + height + foot + MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%lld\" "
            "viewBox=\"0 0 %lld %lld\" role=\"img\" font-family=\"sans-serif\" font-size=\"%d\" "
            "fill=\"#222222\">\n<title>",
            (long long)drawing->width, (long long)all, (long long)drawing->width, (long long)all,
            TEXT_SIZE);
    ejki_print_title(out, picture, drawing);
    fputs("</title>\n<desc>", out);
    ejki_print_counts(out, picture);
    fprintf(out, "</desc>\n<rect width=\"%lld\" height=\"%lld\" fill=\"%s\"/>\n",
            (long long)drawing->width, (long long)all, EJKI_COLOUR_PAPER);
    if (drawing->legend) {
        print_line(out, LINE + 4, " font-weight=\"bold\"");
        ejki_print_title(out, picture, drawing);
        fputs("</text>\n", out);
        print_line(out, 2 * LINE + 4, "");
        ejki_print_counts(out, picture);
        fputs("</text>\n", out);
    }
    fprintf(out,
            "<svg class=\"map\" x=\"%d\" y=\"%lld\" width=\"%lld\" height=\"%lld\" "
            "viewBox=\"0 0 %lld %lld\">\n<rect width=\"%lld\" height=\"%lld\" fill=\"%s\"/>\n"
            "<g shape-rendering=\"crispEdges\">\n",
            MARGIN, (long long)top, (long long)width, (long long)height, (long long)columns,
            (long long)rows, (long long)columns, (long long)rows, EJKI_COLOUR_EMPTY);
    print_cells(out, picture, PARTIAL, EJKI_COLOUR_PARTIAL);
    print_cells(out, picture, FULL, EJKI_COLOUR_FULL);
    fputs("</g>\n", out);
    print_grid(out, picture, side);
    if (line || (order && drawing->page)) print_order(out, picture, side, !line);
    fprintf(out,
            "</svg>\n<rect x=\"%d\" y=\"%lld\" width=\"%lld\" height=\"%lld\" fill=\"none\" "
            "stroke=\"#8a8a8a\"/>\n",
            MARGIN, (long long)top, (long long)width, (long long)height);
    if (drawing->legend) print_legend(out, picture, line, top + height + LINE);
    fputs("</svg>\n", out);
}
