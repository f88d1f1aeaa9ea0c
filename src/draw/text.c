/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures for terminals. */
#include "draw/draw.h"

#include <string.h>

/* Of the 256 colours that terminals agree on, by state. */
static const int ansi[] = {255, 214, 25};
static const int ink[] = {250, 16, 231};
static const char *const shade[] = {"  ", "░░", "██"};

static int digits(int64_t value) {
    int count = 1;
    while (value >= 10) {
        value /= 10;
        count++;
    }
    return count;
}

static void repeat(FILE *out, const char *text, int64_t count) {
    for (int64_t i = 0; i < count; i++) fputs(text, out);
}

/* What a text is made of. */
struct page {
    FILE *out;
    const ejki_picture *picture;
    const ejki_drawing *drawing;
    int label;      /* width of the rows' labels */
    int cell;       /* width of a cell */
    bool numbers;   /* cells show when they are visited */
    int64_t visits; /* so far */
};

/* Numbers go where each cell is a block of several elements and the lines are wide enough. */
static void find_widths(struct page *page) {
    const ejk_mask_survey *survey = &page->picture->survey;
    int64_t visits = survey->partial + survey->full;
    int number = digits(ejki_max(visits - 1, 0));
    page->label = digits(survey->q - 1);
    page->cell = page->drawing->colour ? 1 : 2;
    page->numbers =
        page->drawing->order && visits > 0 && !ejki_blocks_are_elements(page->picture) &&
        ejki_cells_are_blocks(page->picture) &&
        page->label + 3 + page->picture->cell_columns * (number + 2) <= page->drawing->width;
    if (page->numbers) page->cell = number + 2;
}

static void print_numbers(struct page *page, const uint8_t *states) {
    for (int64_t j = 0; j < page->picture->cell_columns; j++) {
        uint8_t state = states[j];
        if (page->drawing->colour)
            fprintf(page->out, "\x1b[38;5;%d;48;5;%dm ", ink[state], ansi[state]);
        else
            fputs(state == FULL ? "█" : state == PARTIAL ? "░" : " ", page->out);
        if (state == EMPTY)
            fprintf(page->out, "%*s", page->cell - 2, "");
        else
            fprintf(page->out, "%*lld", page->cell - 2, (long long)page->visits++);
        fputc(' ', page->out);
    }
}

/* Two rows of cells in one line, the upper one in the foreground. */
static void print_halves(struct page *page, const uint8_t *upper, const uint8_t *lower) {
    int64_t count = page->picture->cell_columns;
    for (int64_t j = 0; j < count; j++) {
        bool same = j > 0 && upper[j] == upper[j - 1] && (!lower || lower[j] == lower[j - 1]);
        if (!same) {
            fprintf(page->out, "\x1b[38;5;%d", ansi[upper[j]]);
            if (lower != NULL) fprintf(page->out, ";48;5;%d", ansi[lower[j]]);
            fputc('m', page->out);
        }
        fputs("▀", page->out);
    }
}

static void print_rows(struct page *page) {
    const ejki_picture *picture = page->picture;
    bool halves = page->drawing->colour && !page->numbers;
    for (int64_t i = 0; i < picture->cell_rows; i += halves ? 2 : 1) {
        const uint8_t *states = ejki_picture_row(picture, i);
        long long first = i * ejki_cell_length(picture, 0);
        fprintf(page->out, "%*lld │", page->label, first);
        if (page->numbers)
            print_numbers(page, states);
        else if (halves)
            print_halves(page, states,
                         i + 1 < picture->cell_rows ? ejki_picture_row(picture, i + 1) : NULL);
        else
            for (int64_t j = 0; j < picture->cell_columns; j++) fputs(shade[states[j]], page->out);
        if (page->drawing->colour) fputs("\x1b[0m", page->out);
        fputs("│\n", page->out);
    }
}

/* The first key of the first and of the last cell, above the places they have. */
static void print_axis(const struct page *page) {
    const ejki_picture *picture = page->picture;
    int64_t width = picture->cell_columns * page->cell;
    long long last = (picture->cell_columns - 1) * ejki_cell_length(picture, 1);
    int64_t gap = (picture->cell_columns - 1) * page->cell - 1;
    fprintf(page->out, "%*s  0", page->label, "");
    if (gap > 0 && gap + 1 + digits(last) <= width + 1)
        fprintf(page->out, "%*s%lld", (int)gap, "", last);
    else if (width - 1 > digits(last))
        fprintf(page->out, "%*lld", (int)width - 1, last);
    fputc('\n', page->out);
}

/* Words in lines no longer than the page is wide; a word that is longer has a line of its own. */
static void print_words(const struct page *page, const char *words) {
    int64_t at = 0;
    while (*words != '\0') {
        size_t length = strcspn(words, " ");
        int64_t letters = 0;
        for (size_t i = 0; i < length; i++) letters += ((unsigned char)words[i] & 0xc0) != 0x80;
        bool fits = at + (at > 0) + letters <= page->drawing->width;
        if (at > 0) fputc(fits ? ' ' : '\n', page->out);
        at = (fits ? at + (at > 0) : 0) + letters;
        fwrite(words, 1, length, page->out);
        words += length;
        words += strspn(words, " ");
    }
    fputc('\n', page->out);
}

static void print_legend(const struct page *page) {
    const ejki_picture *picture = page->picture;
    const ejk_mask_survey *survey = &picture->survey;
    long long visits = survey->partial + survey->full;
    bool plain = ejki_shows_elements(picture);
    for (int state = FULL; state >= EMPTY; state--) {
        if (plain && state == PARTIAL) continue;
        if (page->drawing->colour)
            fprintf(page->out, "\x1b[48;5;%dm  \x1b[0m", ansi[state]);
        else
            fputs(state == EMPTY ? "blank" : shade[state], page->out);
        fprintf(page->out, " %s%s", ejki_state_word(picture, state), state == EMPTY ? "" : ", ");
    }
    fputc('\n', page->out);
    if (page->numbers)
        print_words(page, "numbers: the order of visits");
    else if (page->drawing->order && !ejki_blocks_are_elements(picture)) {
        ejki_words words;
        snprintf(words.text, sizeof words.text, "%lld visits, row after row, from left to right",
                 visits);
        print_words(page, words.text);
    }
}

void ejki_draw_text(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing) {
    struct page page = {.out = out, .picture = picture, .drawing = drawing};
    find_widths(&page);
    print_words(&page, drawing->title != NULL ? drawing->title : ejki_name_words(picture).text);
    if (drawing->legend) print_words(&page, ejki_counts_words(picture).text);
    int64_t width = picture->cell_columns * page.cell;
    print_axis(&page);
    fprintf(out, "%*s ┌", page.label, "");
    repeat(out, "─", width);
    fputs("┐\n", out);
    print_rows(&page);
    fprintf(out, "%*s └", page.label, "");
    repeat(out, "─", width);
    fputs("┘\n", out);
    if (drawing->legend) print_legend(&page);
}
