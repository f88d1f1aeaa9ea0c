/* SPDX-License-Identifier: Apache-2.0 */
/* ejk_mask_draw(): options, and who writes which format. */
#include "draw/draw.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Options --------------------------------------------------------------------------------------- */

enum { MOST_CELLS = 4096, FRAME = 32 };

static const char *const format_names[] = {
#define FORMAT(name, number, text) [number] = text,
    EJK_MASK_DRAWING_LIST(FORMAT)
#undef FORMAT
};

static bool is_format(ejk_mask_drawing_format format) {
    return (int)format >= EJK_MASK_DRAWING_TEXT && (int)format <= EJK_MASK_DRAWING_HTML;
}

const char *ejk_mask_drawing_format_name(ejk_mask_drawing_format format) {
    return is_format(format) ? format_names[format] : "unknown";
}

static ejk_status number(const char *name, int64_t given, int64_t least, int64_t most,
                         int64_t normal, int64_t *out) {
    if (given != 0 && (given < least || given > most))
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s is %lld, expected %lld to %lld", name,
                      (long long)given, (long long)least, (long long)most);
    *out = given != 0 ? given : normal;
    return EJK_OK;
}

/* A text of one line; control characters have no place in terminals and XML. */
static ejk_status take_title(const char *given, char **out) {
    if (given == NULL) return EJK_OK;
    json_t *checked = json_string(given);
    bool sound = checked != NULL;
    json_decref(checked);
    if (!sound)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "title is not UTF-8, expected UTF-8");
    *out = strdup(given);
    if (*out == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for a title could not be had");
    for (char *at = *out; *at != '\0'; at++) {
        unsigned char byte = (unsigned char)*at, next = (unsigned char)at[1];
        if (byte < ' ' || byte == 0x7f) *at = ' ';
        if (byte == 0xc2 && next < 0xa0) at[0] = at[1] = ' '; /* C1 controls */
        if (byte == 0xef && next == 0xbf && ((unsigned char)at[2] & 0xfe) == 0xbe)
            at[0] = at[1] = at[2] = '?'; /* U+FFFE and U+FFFF, which XML refuses */
    }
    return EJK_OK;
}

static int label_width(const ejk_splash_mask *mask) {
    return snprintf(NULL, 0, "%lld", (long long)(mask->q - 1));
}

static ejk_status resolve(const ejk_splash_mask *mask, const ejk_mask_drawing_options *options,
                          ejk_mask_drawing_format format, ejki_drawing *out) {
    static const ejk_mask_drawing_options none = {.head = 0};
    if (options == NULL) options = &none;
    const int64_t *block = options->block_shape;
    bool text = format == EJK_MASK_DRAWING_TEXT, given = block[0] != 0 || block[1] != 0;
    *out = (ejki_drawing){.block_shape = {block[0], block[1]},
                          .head = options->head,
                          .colour = text && options->colour == EJK_TRUE,
                          .legend = options->legend != EJK_FALSE,
                          .order = options->order != EJK_FALSE,
                          .page = format == EJK_MASK_DRAWING_HTML};
    if (given && (block[0] < 1 || block[1] < 1))
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "block_shape is {%lld, %lld}, expected two numbers of at least 1, or zeros",
                      (long long)block[0], (long long)block[1]);
    if (text)
        EJKI_TRY(number("width", options->width, 20, 4096, 80, &out->width));
    else
        EJKI_TRY(number("width", options->width, 64, 8192, 768, &out->width));
    EJKI_TRY(number("max_rows", options->max_rows, 1, MOST_CELLS, text ? 64 : 256, &out->max_rows));
    int64_t room =
        text ? (out->width - label_width(mask) - 3) / (out->colour ? 1 : 2) : out->width - FRAME;
    room = ejki_max(room, 1);
    EJKI_TRY(number("max_columns", options->max_columns, 1, MOST_CELLS, ejki_min(room, 256),
                    &out->max_columns));
    out->max_columns = ejki_min(out->max_columns, room);
    return take_title(options->title, &out->title);
}

/* ---- Drawing --------------------------------------------------------------------------------------- */

static ejk_status write_format(FILE *stream, ejk_mask_drawing_format format,
                               const ejki_picture *picture, const ejki_drawing *drawing) {
    switch (format) {
    case EJK_MASK_DRAWING_TEXT: ejki_draw_text(stream, picture, drawing); break;
    case EJK_MASK_DRAWING_SVG: ejki_draw_svg(stream, picture, drawing); break;
    case EJK_MASK_DRAWING_PNG: return ejki_draw_png(stream, picture, drawing);
    case EJK_MASK_DRAWING_HTML: ejki_draw_html(stream, picture, drawing); break;
    }
    return EJK_OK;
}

static ejk_status draw_picture(const ejki_picture *picture, const ejki_drawing *drawing,
                               ejk_mask_drawing_format format, char **bytes, size_t *length) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    ejk_status status = EJK_OK;
    bool written = stream != NULL;
    if (written) {
        status = write_format(stream, format, picture, drawing);
        written = !ferror(stream);
        written &= fclose(stream) == 0;
    }
    if (status == EJK_OK && !written)
        status = REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for a picture could not be had");
    if (status != EJK_OK) {
        free(text);
        return status;
    }
    *bytes = text;
    *length = size;
    return EJK_OK;
}

ejk_status ejk_mask_draw(const ejk_splash_mask *mask, const ejk_mask_drawing_options *options,
                         ejk_mask_drawing_format format, char **bytes, size_t *length) {
    if (mask == NULL || bytes == NULL || length == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_mask_draw: mask, bytes or length is NULL");
    if (!is_format(format))
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "format is %d, expected one of ejk_mask_drawing_format", (int)format);
    ejki_drawing drawing;
    ejki_picture picture;
    EJKI_TRY(resolve(mask, options, format, &drawing));
    ejk_status status = ejki_picture_open(mask, &drawing, true, &picture);
    if (status == EJK_OK) status = draw_picture(&picture, &drawing, format, bytes, length);
    ejki_picture_close(&picture);
    free(drawing.title);
    return status;
}

ejk_status ejk_mask_draw_to(const ejk_splash_mask *mask, const ejk_mask_drawing_options *options,
                            ejk_mask_drawing_format format, ejk_splash_write_fn write, void *user) {
    char *bytes = NULL;
    size_t length = 0;
    if (write == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "ejk_mask_draw_to: write is NULL");
    EJKI_TRY(ejk_mask_draw(mask, options, format, &bytes, &length));
    bool taken = write(user, bytes, length);
    free(bytes);
    return taken ? EJK_OK
                 : REFUSE(IO, INVALID_ARGUMENT, "the picture of %zu bytes was not taken", length);
}

ejk_status ejk_mask_survey_take(const ejk_splash_mask *mask,
                                const ejk_mask_drawing_options *options, ejk_mask_survey *out) {
    if (mask == NULL || out == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_mask_survey_take: mask or out is NULL");
    ejki_drawing drawing;
    ejki_picture picture;
    EJKI_TRY(resolve(mask, options, EJK_MASK_DRAWING_SVG, &drawing));
    free(drawing.title);
    EJKI_TRY(ejki_picture_open(mask, &drawing, false, &picture));
    *out = picture.survey;
    return EJK_OK;
}
