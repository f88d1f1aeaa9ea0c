/* SPDX-License-Identifier: Apache-2.0 */
/* A mask seen as cells: one walk over its rows counts the blocks and finds the states of the cells. */
#include "draw/draw.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 1 << 28, MOST_COLUMNS = 1 << 24 };

/* ---- Blocks and cells ------------------------------------------------------------------------------ */

/* The least power of two whose blocks fit; of 1 if the elements do. */
static int64_t fitting_block(const ejk_splash_mask *mask, const ejki_drawing *drawing) {
    int64_t block = 1;
    while (block <= INT64_MAX / 2 && (ejki_cdiv(mask->q, block) > drawing->max_rows ||
                                      ejki_cdiv(mask->kv, block) > drawing->max_columns))
        block *= 2;
    return block;
}

static ejk_status lay_out(const ejki_drawing *drawing, ejki_picture *picture) {
    const ejk_splash_mask *mask = picture->mask;
    ejk_mask_survey *survey = &picture->survey;
    const int64_t *given = drawing->block_shape;
    int64_t fitting = given[0] == 0 ? fitting_block(mask, drawing) : 0, blocks;
    survey->q = mask->q;
    survey->kv = mask->kv;
    survey->block_shape[0] = ejki_min(fitting != 0 ? fitting : given[0], mask->q);
    survey->block_shape[1] = ejki_min(fitting != 0 ? fitting : given[1], mask->kv);
    survey->rows = ejki_cdiv(mask->q, survey->block_shape[0]);
    survey->columns = ejki_cdiv(mask->kv, survey->block_shape[1]);
    if (!ejki_mul(survey->rows, survey->columns, &blocks) || blocks > MOST_BLOCKS ||
        survey->columns > MOST_COLUMNS)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "block_shape {%lld, %lld} cuts the mask into %lld x %lld blocks, expected at "
                      "most 2^28, and 2^24 in a row",
                      (long long)survey->block_shape[0], (long long)survey->block_shape[1],
                      (long long)survey->rows, (long long)survey->columns);
    int64_t side = ejki_max(ejki_cdiv(survey->rows, drawing->max_rows),
                            ejki_cdiv(survey->columns, drawing->max_columns));
    picture->group[0] = ejki_min(side, survey->rows);
    picture->group[1] = ejki_min(side, survey->columns);
    picture->cell_rows = ejki_cdiv(survey->rows, picture->group[0]);
    picture->cell_columns = ejki_cdiv(survey->columns, picture->group[1]);
    return EJK_OK;
}

/* ---- States ---------------------------------------------------------------------------------------- */

/* A row of blocks. The arrays hold changes from one block to the next. */
struct walk {
    ejki_picture *picture;
    ejki_runs runs;
    int64_t *seen; /* rows and runs that touch a block */
    int64_t *full; /* rows that see all of it */
    unsigned __int128 visible;
};

static bool add_row(struct walk *walk, int64_t row) {
    const ejk_mask_survey *survey = &walk->picture->survey;
    int64_t width = survey->block_shape[1];
    walk->runs.count = 0;
    if (!ejki_row_runs(walk->picture->mask, row, &walk->runs)) return false;
    for (int64_t i = 0; i < walk->runs.count; i += 2) {
        int64_t begin = walk->runs.items[i], end = walk->runs.items[i + 1];
        int64_t first = ejki_cdiv(begin, width);
        int64_t stop = end == survey->kv ? survey->columns : end / width;
        walk->visible += (uint64_t)(end - begin);
        walk->seen[begin / width]++;
        walk->seen[(end - 1) / width + 1]--;
        if (first >= stop) continue;
        walk->full[first]++;
        walk->full[stop]--;
    }
    return true;
}

/* Counts the blocks of a row of `height` rows of the mask, and mixes them into its cells. */
static void add_blocks(struct walk *walk, int64_t index, int64_t height) {
    ejki_picture *picture = walk->picture;
    ejk_mask_survey *survey = &picture->survey;
    uint8_t *cells = NULL;
    if (picture->states != NULL)
        cells = picture->states + index / picture->group[0] * picture->cell_columns;
    bool begins = index % picture->group[0] == 0;
    int64_t seen = 0, full = 0, partials = 0, fulls = 0;
    for (int64_t cell = 0, j = 0; cell < picture->cell_columns; cell++) {
        int64_t stop = ejki_min(survey->columns, (cell + 1) * picture->group[1]);
        bool any = false, all = true;
        for (; j < stop; j++) {
            seen += walk->seen[j];
            full += walk->full[j];
            fulls += full == height;
            partials += seen > 0 && full < height;
            any |= seen > 0;
            all &= full == height;
        }
        uint8_t state = all ? FULL : any ? PARTIAL : EMPTY;
        if (cells != NULL) cells[cell] = begins || cells[cell] == state ? state : PARTIAL;
    }
    survey->partial += partials;
    survey->full += fulls;
    survey->empty += survey->columns - partials - fulls;
}

static bool walk_rows(struct walk *walk) {
    const ejk_mask_survey *survey = &walk->picture->survey;
    size_t bytes = (size_t)(survey->columns + 1) * sizeof *walk->seen;
    for (int64_t i = 0; i < survey->rows; i++) {
        int64_t row = i * survey->block_shape[0];
        int64_t height = ejki_min(survey->block_shape[0], survey->q - row);
        memset(walk->seen, 0, bytes);
        memset(walk->full, 0, bytes);
        for (int64_t a = 0; a < height; a++)
            if (!add_row(walk, row + a)) return false;
        add_blocks(walk, i, height);
    }
    return true;
}

static ejk_status survey_mask(ejki_picture *picture, bool cells) {
    ejk_mask_survey *survey = &picture->survey;
    size_t room = (size_t)survey->columns + 1;
    struct walk walk = {.picture = picture};
    walk.seen = calloc(room, sizeof *walk.seen);
    walk.full = calloc(room, sizeof *walk.full);
    if (cells) picture->states = calloc((size_t)picture->cell_rows, (size_t)picture->cell_columns);
    bool done = walk.seen != NULL && walk.full != NULL && (!cells || picture->states != NULL) &&
                walk_rows(&walk);
    free(walk.seen);
    free(walk.full);
    free(walk.runs.items);
    if (!done)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT,
                      "memory for the states of %lld x %lld blocks could not be had",
                      (long long)survey->rows, (long long)survey->columns);
    survey->visible = walk.visible > INT64_MAX ? INT64_MAX : (int64_t)walk.visible;
    survey->share = (double)walk.visible / ((double)survey->q * (double)survey->kv);
    return EJK_OK;
}

ejk_status ejki_picture_open(const ejk_splash_mask *mask, const ejki_drawing *drawing, bool cells,
                             ejki_picture *out) {
    *out = (ejki_picture){.mask = mask, .head = drawing->head};
    bool many = mask->kind == EJK_SPLASH_MASK_MULTI_HEAD;
    int64_t heads = many ? mask->part_count : 1;
    if (drawing->head < 0 || drawing->head >= heads)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "head is %lld, expected 0 to %lld",
                      (long long)drawing->head, (long long)(heads - 1));
    if (many) {
        out->heads = heads;
        out->mask = mask->parts[drawing->head];
    }
    EJKI_TRY(lay_out(drawing, out));
    EJKI_TRY(ejki_runs_check(out->mask));
    return survey_mask(out, cells);
}

void ejki_picture_close(ejki_picture *picture) {
    free(picture->states);
    picture->states = NULL;
}

/* ---- In words -------------------------------------------------------------------------------------- */

bool ejki_picture_visited(const ejki_picture *picture, int64_t row, int64_t *first, int64_t *last) {
    const uint8_t *states = ejki_picture_row(picture, row);
    *first = 0;
    *last = picture->cell_columns - 1;
    while (*last >= 0 && states[*last] == EMPTY) --*last;
    while (*first < *last && states[*first] == EMPTY) ++*first;
    return *last >= 0;
}

/* One more piece behind the words that are there. */
#define ADD(words, ...)                                                                            \
    snprintf((words).text + strlen((words).text), sizeof(words).text - strlen((words).text),       \
             __VA_ARGS__)

ejki_words ejki_name_words(const ejki_picture *picture) {
    ejki_words words = {""};
    if (picture->heads > 0)
        ADD(words, "head %lld of %lld, ", (long long)picture->head, (long long)picture->heads);
    ADD(words, "%s mask, %lld x %lld", ejk_splash_mask_kind_name(picture->mask->kind),
        (long long)picture->survey.q, (long long)picture->survey.kv);
    return words;
}

/* In tenths of a per cent, so that no locale has a say; what is not all or nothing is not said to be. */
static void add_share(ejki_words *words, const ejk_mask_survey *survey) {
    bool none = survey->partial + survey->full == 0, all = survey->partial + survey->empty == 0;
    int tenths = (int)(survey->share * 1000 + 0.5);
    if (tenths <= 0 && !none)
        ADD(*words, "less than 0.1 %% visible");
    else if (tenths >= 1000 && !all)
        ADD(*words, "more than 99.9 %% visible");
    else
        ADD(*words, "%d.%d %% visible", tenths / 10, tenths % 10);
}

ejki_words ejki_counts_words(const ejki_picture *picture) {
    const ejk_mask_survey *survey = &picture->survey;
    ejki_words words = {""};
    if (ejki_blocks_are_elements(picture))
        ADD(words, "elements: %lld hidden, %lld visible", (long long)survey->empty,
            (long long)survey->full);
    else
        ADD(words, "blocks of %lld x %lld: %lld empty, %lld partial, %lld full",
            (long long)survey->block_shape[0], (long long)survey->block_shape[1],
            (long long)survey->empty, (long long)survey->partial, (long long)survey->full);
    if (!ejki_cells_are_blocks(picture))
        ADD(words, ", %lld x %lld to a cell", (long long)picture->group[0],
            (long long)picture->group[1]);
    ADD(words, "; ");
    add_share(&words, survey);
    return words;
}

ejki_words ejki_axes_words(const ejki_picture *picture) {
    ejki_words words = {""};
    ADD(words, "queries 0 to %lld downwards, keys 0 to %lld to the right",
        (long long)(picture->survey.q - 1), (long long)(picture->survey.kv - 1));
    return words;
}

const char *ejki_state_word(const ejki_picture *picture, int state) {
    static const char *const words[][FULL + 1] = {{"empty", "partial", "full"},
                                                  {"hidden", "", "visible"}};
    return words[ejki_shows_elements(picture)][state];
}
