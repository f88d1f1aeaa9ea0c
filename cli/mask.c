/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk mask`: masks to look at. */
#include "file.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What is asked for. */
typedef struct mask_request {
    texts words;
    const char *blocks, *head, *format, *output, *colour, *title;
    int32_t width;
    bool no_order, help;
} mask_request;

/* ---- Options ----------------------------------------------------------------------------------------- */

/* A number of at least 1 that ends where `end` then points. */
static bool read_size(const char *text, char **end, int64_t *out) {
    errno = 0;
    *out = strtoll(text, end, 10);
    return *text >= '0' && *text <= '9' && errno == 0 && *out >= 1;
}

/* "128x128", or one number for both. */
static bool read_blocks(const char *text, int64_t blocks[2]) {
    char *end;
    if (!text) return true;
    bool read = read_size(text, &end, &blocks[0]);
    blocks[1] = blocks[0];
    if (read && *end == 'x') read = read_size(end + 1, &end, &blocks[1]);
    return (read && !*end) ||
           report_error("--blocks is '%s', expected two numbers of at least 1, as 128x128", text);
}

static bool read_head(const char *text, int64_t *head) {
    char *end;
    if (!text) return true;
    errno = 0;
    *head = strtoll(text, &end, 10);
    return (*text && !*end && errno == 0 && *head >= 0) ||
           report_error("--head is '%s', expected a number from 0", text);
}

static bool read_format(const char *text, ejk_mask_drawing_format *format) {
    *format = EJK_MASK_DRAWING_TEXT;
    if (!text) return true;
    for (int f = EJK_MASK_DRAWING_TEXT; f <= EJK_MASK_DRAWING_HTML; f++) {
        *format = (ejk_mask_drawing_format)f;
        if (strcmp(text, ejk_mask_drawing_format_name(*format)) == 0) return true;
    }
    return report_error("--format is '%s', expected text, svg, png or html", text);
}

/* Colour by itself only for a terminal, and not where the user wants none anywhere. */
static bool read_colour(const char *text, bool terminal, ejk_opt_bool *colour) {
    const char *none = getenv("NO_COLOR");
    if (text && strcmp(text, "auto") != 0 && strcmp(text, "always") != 0 &&
        strcmp(text, "never") != 0)
        return report_error("--colour is '%s', expected auto, always or never", text);
    bool automatic = !text || strcmp(text, "auto") == 0;
    bool wanted = automatic ? terminal && !(none && *none) : strcmp(text, "always") == 0;
    *colour = wanted ? EJK_TRUE : EJK_FALSE;
    return true;
}

/* The terminal's columns; 0 where there is none or it is odd. */
static int64_t terminal_width(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
    return size.ws_col >= 20 && size.ws_col <= 4096 ? size.ws_col : 0;
}

static bool read_options(const mask_request *request, ejk_mask_drawing_format *format,
                         ejk_mask_drawing_options *out) {
    bool terminal = !request->output && isatty(STDOUT_FILENO);
    *out = (ejk_mask_drawing_options){.width = request->width,
                                      .order = request->no_order ? EJK_FALSE : EJK_UNSET,
                                      .title = request->title};
    if (!read_blocks(request->blocks, out->block_shape) || !read_head(request->head, &out->head) ||
        !read_format(request->format, format) ||
        !read_colour(request->colour, terminal, &out->colour))
        return false;
    if (*format == EJK_MASK_DRAWING_PNG && terminal)
        return report_error("a PNG is no text for a terminal: name a file by --output");
    if (*format == EJK_MASK_DRAWING_TEXT && out->width == 0 && terminal)
        out->width = terminal_width();
    return true;
}

/* ---- show -------------------------------------------------------------------------------------------- */

/* A mask from its JSON, or from a file of it. */
static bool read_mask(const char *spec, ejk_splash_mask **out) {
    if (spec[strspn(spec, " \t\r\n")] == '{')
        return succeeded(ejk_splash_mask_from_json(spec, strlen(spec), out));
    char *text;
    size_t size;
    if (!file_read(spec, &text, &size)) return false;
    bool done = ejk_splash_mask_from_json(text, size, out) == EJK_OK ||
                report_error("%s: %s", spec, ejk_last_error());
    free(text);
    return done;
}

static bool write_bytes(const char *path, const char *bytes, size_t length) {
    if (!path || strcmp(path, "-") == 0)
        return fwrite(bytes, 1, length, stdout) == length ||
               report_error("standard output could not be written");
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(bytes, 1, length, file) == length;
    if (file && fclose(file) != 0) written = false;
    return written || report_error("%s could not be written: %s", path, strerror(errno));
}

static int show(mask_request *request) {
    ejk_mask_drawing_options options;
    ejk_mask_drawing_format format;
    ejk_splash_mask *mask = NULL;
    char *bytes = NULL;
    size_t length = 0;
    if (request->words.count != 1) {
        report_error("mask show takes one mask as JSON, or the file of one, %d are given",
                     request->words.count);
        return FAILED;
    }
    if (request->output && strcmp(request->output, "-") == 0) request->output = NULL;
    bool done = read_options(request, &format, &options) &&
                read_mask(request->words.items[0], &mask) &&
                succeeded(ejk_mask_draw(mask, &options, format, &bytes, &length)) &&
                write_bytes(request->output, bytes, length);
    ejk_free(bytes);
    ejk_splash_mask_release(mask);
    return done ? DONE : FAILED;
}

/* ---- The command ------------------------------------------------------------------------------------- */

static int print_help(const option *own) {
    puts("usage: ejk mask show SPEC [--flag value]...\n\n"
         "Draws a mask: its elements where they fit, else its blocks, whether they are empty, "
         "partial\n"
         "or full, and the order in which the kernel visits them. SPEC is a mask as JSON, or the "
         "file\n"
         "of one, - for standard input:\n\n"
         "  ejk mask show '{\"type\": \"causal\", \"shape\": [1024, 1024]}' --blocks 128x128\n");
    return options_help(own) ? DONE : FAILED;
}

int mask_command(int count, char **words) {
    mask_request request = {.blocks = NULL};
    const option own[] = {
        {"", OPTION_TEXTS, &request.words, "", ""},
        {"blocks", OPTION_TEXT, &request.blocks, "QxK",
         "rows and columns of a block; default elements, or the least power of two that fits"},
        {"head", OPTION_TEXT, &request.head, "N", "of a mask of several heads, from 0; default 0"},
        {"format", OPTION_TEXT, &request.format, "NAME", "text, svg, png or html; default text"},
        {"output", OPTION_TEXT, &request.output, "FILE", "default -, standard output"},
        {"width", OPTION_COUNT, &request.width, "N",
         "columns of text, default the terminal's or 80; else pixels, default 768"},
        {"colour", OPTION_TEXT, &request.colour, "WHEN",
         "of text: auto, always or never; default auto: on terminals, unless NO_COLOR is set"},
        {"title", OPTION_TEXT, &request.title, "TEXT", "default what the mask is"},
        {"no-order", OPTION_ALONE, &request.no_order, "", "without the order of visits"},
        {"help", OPTION_ALONE, &request.help, "", "this text"},
        {.name = NULL}};
    if (options_ask_help(count, words)) return print_help(own);
    if (count == 0 || strcmp(words[0], "show") != 0) {
        report_error("mask needs to be told what to do, expected show");
        return FAILED;
    }
    if (!options_texts(count, &request.words)) return FAILED;
    int status = options_parse(count - 1, words + 1, own, NULL) ? show(&request) : FAILED;
    free(request.words.items);
    return status;
}
