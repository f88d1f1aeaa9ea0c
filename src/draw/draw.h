/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: a mask seen as a grid of cells, and who writes it. */
#ifndef EJKI_DRAW_H
#define EJKI_DRAW_H

#include "mask/mask.h"

#include <ejkernel/mask_drawing.h>
#include <stdio.h>

/* ---- Runs of a row --------------------------------------------------------------------------------- */

/* Sets of columns as the places where they begin and end: [0], [1]), [2], [3]), … ascending, none empty. */
typedef struct {
    int64_t *items;
    int64_t count, room;
} ejki_runs;

/* Appends what a row of the mask sees. False if memory could not be had. */
bool ejki_row_runs(const ejk_splash_mask *mask, int64_t row, ejki_runs *runs);

/* Whether the rows of a mask can be had within the documented limits; else the status. */
ejk_status ejki_runs_check(const ejk_splash_mask *mask);

/* ---- Pictures -------------------------------------------------------------------------------------- */

typedef struct {
    const ejk_splash_mask *mask; /* of the head */
    int64_t heads, head;         /* heads 0: the mask is not multi-head */
    ejk_mask_survey survey;
    int64_t group[2]; /* blocks to a cell, from top to bottom and from left to right */
    int64_t cell_rows, cell_columns;
    uint8_t *states; /* of the cells; NULL if they are not wanted */
} ejki_picture;

/* The options with defaults in place of zeros, checked. */
typedef struct {
    int64_t block_shape[2], head, width, max_rows, max_columns;
    bool colour, legend, order,
        page;    /* page: the line of visits is there even where it is too dense */
    char *title; /* NULL for none */
} ejki_drawing;

/* Finds blocks, cells and states. Closed by ejki_picture_close(), also after a failure. */
ejk_status ejki_picture_open(const ejk_splash_mask *mask, const ejki_drawing *drawing, bool cells,
                             ejki_picture *out);

void ejki_picture_close(ejki_picture *picture);

/* True if every cell is one block: the visits can be numbered. */
static inline bool ejki_cells_are_blocks(const ejki_picture *picture) {
    return picture->group[0] == 1 && picture->group[1] == 1;
}

static inline bool ejki_blocks_are_elements(const ejki_picture *picture) {
    return picture->survey.block_shape[0] == 1 && picture->survey.block_shape[1] == 1;
}

static inline bool ejki_shows_elements(const ejki_picture *picture) {
    return ejki_blocks_are_elements(picture) && ejki_cells_are_blocks(picture);
}

static inline const uint8_t *ejki_picture_row(const ejki_picture *picture, int64_t row) {
    return picture->states + row * picture->cell_columns;
}

/* Elements that a cell spans along an axis, 0 for rows, without the cut at the edge. */
static inline int64_t ejki_cell_length(const ejki_picture *picture, int axis) {
    return picture->group[axis] * picture->survey.block_shape[axis];
}

/* The first and last cell of a row that is not empty; false if all are. */
bool ejki_picture_visited(const ejki_picture *picture, int64_t row, int64_t *first, int64_t *last);

/* A line of words about a picture: what they say has a bound. */
typedef struct {
    char text[256];
} ejki_words;

/* "causal mask, 64 x 64" and the like. */
ejki_words ejki_name_words(const ejki_picture *picture);

/* "blocks of 8 x 8: 28 empty, 8 partial, 28 full; 50.8 % visible" */
ejki_words ejki_counts_words(const ejki_picture *picture);

/* "queries 0 to 63 downwards, keys 0 to 63 to the right" */
ejki_words ejki_axes_words(const ejki_picture *picture);

/* What the line of visits is said to be. */
#define EJKI_ORDER_WORDS "line: the order of visits, from the dot to the square"

/* What a state is called. */
const char *ejki_state_word(const ejki_picture *picture, int state);

/* ---- Formats --------------------------------------------------------------------------------------- */

void ejki_draw_text(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing);
void ejki_draw_svg(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing);
void ejki_draw_html(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing);
ejk_status ejki_draw_png(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing);

/* Letters of pixels: a step to the next one, with a free column; rows with those below the line. */
enum { EJKI_LETTER_STEP = 6, EJKI_LETTER_ROWS = 9 };

/* The letter that a text in UTF-8 begins with, as one that can be drawn, and the text behind it. */
const char *ejki_next_letter(const char *text, unsigned char *letter);

bool ejki_letter_pixel(unsigned char letter, int row, int column);

/* Text between the tags of XML and HTML. */
void ejki_print_escaped(FILE *out, const char *text);

/* Title as XML: the user's, or the mask's name. */
void ejki_print_title(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing);

/*
 * The colours, told apart without red and green: by hue and by lightness. Both have a contrast of 3:1 to empty
 * cells and to the line of visits, as is asked of graphics.
 */
#define EJKI_COLOUR_EMPTY   "#ffffff"
#define EJKI_COLOUR_PARTIAL "#d97f0c"
#define EJKI_COLOUR_FULL    "#2a6fb0"
#define EJKI_COLOUR_PAPER   "#f4f4f1"
#define EJKI_COLOUR_ORDER   "#111111"

#endif
