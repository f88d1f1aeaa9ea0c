/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as SVG: a path of runs per state, so that a file is as long as the mask is intricate. */
#include "draw/draw.h"

#include <string.h>

enum { MARGIN = 16, LINE = 20, TEXT_SIZE = 13, LETTER = 7, SMALLEST_ORDER = 6, MOST_LINES = 64 };

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
        fputs(ejki_name_words(picture).text, out);
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

/* A line of text, drawn narrower if it might not fit: letters are about half as wide as high. */
static void open_line(FILE *out, int64_t y, int64_t room, size_t letters, const char *attributes) {
    fprintf(out, "<text x=\"%d\" y=\"%lld\"%s", MARGIN, (long long)y, attributes);
    if ((int64_t)letters * LETTER > room)
        fprintf(out, " textLength=\"%lld\" lengthAdjust=\"spacingAndGlyphs\"", (long long)room);
    fputc('>', out);
}

static void print_line(FILE *out, int64_t y, int64_t room, const char *words,
                       const char *attributes) {
    open_line(out, y, room, strlen(words), attributes);
    fprintf(out, "%s</text>\n", words);
}

static void print_caption(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing,
                          int64_t room) {
    const char *title = drawing->title;
    size_t letters = title != NULL ? strlen(title) : strlen(ejki_name_words(picture).text);
    open_line(out, LINE + 4, room, letters, " font-weight=\"bold\"");
    ejki_print_title(out, picture, drawing);
    fputs("</text>\n", out);
    print_line(out, 2 * LINE + 4, room, ejki_counts_words(picture).text, "");
}

static void print_key(FILE *out, int64_t x, int64_t y, const char *colour, const char *word) {
    fprintf(out,
            "<rect x=\"%lld\" y=\"%lld\" width=\"12\" height=\"12\" fill=\"%s\" "
            "stroke=\"#8a8a8a\"/><text x=\"%lld\" y=\"%lld\">%s</text>\n",
            (long long)x, (long long)(y - 11), colour, (long long)(x + 18), (long long)y, word);
}

static void print_legend(FILE *out, const ejki_picture *picture, bool line, int64_t room,
                         int64_t y) {
    static const char *const colours[] = {EJKI_COLOUR_EMPTY, EJKI_COLOUR_PARTIAL, EJKI_COLOUR_FULL};
    static const int order[] = {FULL, EMPTY, PARTIAL};
    int64_t step = ejki_min(80, room / 3);
    for (int i = 0; i < (ejki_shows_elements(picture) ? 2 : 3); i++)
        print_key(out, MARGIN + i * step, y, colours[order[i]], ejki_state_word(picture, order[i]));
    print_line(out, y + LINE, room, ejki_axes_words(picture).text, "");
    if (line) print_line(out, y + 2 * LINE, room, EJKI_ORDER_WORDS, " class=\"order\"");
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
            "viewBox=\"0 0 %lld %lld\"%s role=\"img\" font-family=\"sans-serif\" font-size=\"%d\" "
            "fill=\"#222222\">\n<title>",
            (long long)drawing->width, (long long)all, (long long)drawing->width, (long long)all,
            drawing->page ? " preserveAspectRatio=\"xMinYMin\"" : "", TEXT_SIZE);
    ejki_print_title(out, picture, drawing);
    fprintf(out, "</title>\n<desc>%s</desc>\n<rect width=\"%lld\" height=\"%lld\" fill=\"%s\"/>\n",
            ejki_counts_words(picture).text, (long long)drawing->width, (long long)all,
            EJKI_COLOUR_PAPER);
    if (drawing->legend) print_caption(out, picture, drawing, room);
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
    if (drawing->legend) print_legend(out, picture, line, room, top + height + LINE);
    fputs("</svg>\n", out);
}
