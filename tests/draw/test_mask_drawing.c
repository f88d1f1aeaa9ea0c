/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures of masks: whole files against those in data/drawing (EJK_TEST_UPDATE=1 writes them anew), states
 * and counts against the elements, the order of visits against MaskInfo, pixels of PNGs against states.
 */
#include "draw/draw.h"
#include "support/random.h"
#include "support/splash_masks.h"

#include <png.h>

static const int64_t big[2] = {1000000, 1000000};

static ejk_splash_mask *from_json(const char *text) {
    ejk_splash_mask *mask = NULL;
    EXPECT_OK(ejk_splash_mask_from_json(text, strlen(text), &mask));
    return mask;
}

/* ---- Whole files ----------------------------------------------------------------------------------- */

#define CAUSAL  "{\"type\": \"causal\", \"shape\": [16, 16]}"
#define LOCAL   "{\"type\": \"local\", \"shape\": [16, 24], \"window_size\": [3, 2], \"offset\": 4}"
#define CHUNKED "{\"type\": \"chunked_causal\", \"shape\": [16, 16], \"chunk_size\": 6}"

static const struct golden {
    const char *name, *spec;
    ejk_mask_drawing_options options;
} goldens[] = {
    {"causal_elements", CAUSAL, {.width = 80}},
    {"causal_blocks", CAUSAL, {.block_shape = {4, 4}, .title = "a <causal> & \"small\" mask"}},
    {"causal_groups",
     "{\"type\": \"causal\", \"shape\": [64, 64]}",
     {.block_shape = {4, 4}, .max_rows = 8, .max_columns = 8}},
    {"causal_colour", CAUSAL, {.block_shape = {4, 4}, .colour = EJK_TRUE}},
    {"local_halves", LOCAL, {.colour = EJK_TRUE, .order = EJK_FALSE}},
    {"local_blocks", LOCAL, {.block_shape = {4, 8}}},
    {"local_edges", LOCAL, {.block_shape = {5, 7}, .order = EJK_FALSE}},
    {"chunked_blocks", CHUNKED, {.block_shape = {2, 2}}},
    {"chunked_plain", CHUNKED, {.block_shape = {4, 4}, .legend = EJK_FALSE}},
    {"and_or",
     "{\"type\": \"logical_and\", \"left\": " CAUSAL
     ", \"right\": {\"type\": \"logical_or\", \"left\": " CHUNKED
     ", \"right\": {\"type\": \"dense\", "
     "\"of\": {\"type\": \"local\", \"shape\": [16, 16], \"window_size\": [1, 0], \"offset\": "
     "-9}}}}",
     {.block_shape = {2, 2}}},
    {"heads",
     "{\"type\": \"multi_head\", \"masks\": [" CAUSAL ", " CHUNKED "]}",
     {.block_shape = {4, 4}, .head = 1}},
    {"dense",
     "{\"type\": \"dense\", \"array\": [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]}",
     {.width = 64}},
    {"large",
     "{\"type\": \"local\", \"shape\": [1000000, 500000], \"window_size\": [90000, 0]}",
     {.max_rows = 24, .max_columns = 20}},
};

/* Compares with the file, or writes it if the environment asks for it. */
static void expect_file(const char *name, const char *format, const char *bytes, size_t length) {
    char path[512];
    static char wanted[1 << 18];
    snprintf(path, sizeof path, "%s/tests/data/drawing/%s.%s", EJK_SOURCE_DIR, name, format);
    bool update = getenv("EJK_TEST_UPDATE") != NULL;
    FILE *file = fopen(path, update ? "wb" : "rb");
    if (file == NULL) fail_msg("%s cannot be opened", path);
    if (update) {
        assert_int_equal(fwrite(bytes, 1, length, file), length);
        fclose(file);
        return;
    }
    size_t size = fread(wanted, 1, sizeof wanted, file);
    fclose(file);
    if (size != length || memcmp(wanted, bytes, length) != 0)
        fail_msg("%s differs from what is drawn:\n%s", path, bytes);
}

static void pictures_are_the_stored_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        ejk_splash_mask *mask = from_json(goldens[i].spec);
        for (int f = EJK_MASK_DRAWING_TEXT; f <= EJK_MASK_DRAWING_HTML; f++) {
            ejk_mask_drawing_format format = (ejk_mask_drawing_format)f;
            ejk_mask_drawing_options options = goldens[i].options;
            char *bytes = NULL;
            size_t length = 0;
            bool page = format == EJK_MASK_DRAWING_HTML;
            if (format == EJK_MASK_DRAWING_PNG) continue;
            if (page && strcmp(goldens[i].name, "causal_blocks") != 0) continue;
            if (options.colour == EJK_TRUE && format != EJK_MASK_DRAWING_TEXT) continue;
            if (format != EJK_MASK_DRAWING_TEXT) options.width = 320;
            EXPECT_OK(ejk_mask_draw(mask, &options, format, &bytes, &length));
            assert_int_equal(strlen(bytes), length);
            expect_file(goldens[i].name, ejk_mask_drawing_format_name(format), bytes, length);
            ejk_free(bytes);
        }
        ejk_splash_mask_release(mask);
    }
}

/* ---- States ---------------------------------------------------------------------------------------- */

static bool odd_places(void *user, int64_t q, int64_t kv) {
    return (q * 7 + kv * 3) % *(const int *)user < 2;
}

static int modulus = 5;

static ejk_splash_mask *random_mask(struct random *r, int64_t q, int64_t kv, int depth) {
    ejk_splash_mask *mask = NULL;
    const int64_t shape[2] = {q, kv};
    int32_t order[48];
    uint8_t bytes[48 * 48];
    ejk_computable_mask_options options = {.q_sequence = order, .q_sequence_length = q};
    for (int64_t i = 0; i < q; i++) order[i] = (int32_t)random_int(r, -3, 50);
    if (random_chance(r, 0.5)) options.q_sequence = NULL;
    for (int64_t i = 0; i < q * kv; i++) bytes[i] = random_chance(r, 0.8) ? 7 : 0;
    int64_t choice = random_int(r, 0, depth > 0 ? 8 : 5);
    if (choice == 0) EXPECT_OK(ejk_full_mask_create(shape, &mask));
    if (choice == 1)
        EXPECT_OK(ejk_causal_mask_create(shape, random_int(r, -20, 20), &options, &mask));
    if (choice == 2)
        EXPECT_OK(ejk_local_mask_create(shape,
                                        ejk_window_of(random_int(r, -3, 15), random_int(r, -3, 15)),
                                        random_int(r, -9, 9), &options, &mask));
    if (choice == 3)
        EXPECT_OK(ejk_chunked_causal_mask_create(shape, random_int(r, 1, 20), &options, &mask));
    if (choice == 4) mask = splash_dense(bytes, q, kv);
    if (choice == 5)
        EXPECT_OK(ejk_function_mask_create(shape, odd_places, &modulus, &options, &mask));
    if (choice <= 5) return mask;
    ejk_splash_mask *left = random_mask(r, q, kv, depth - 1);
    ejk_splash_mask *right = random_mask(r, q, kv, depth - 1);
    if (choice == 6) EXPECT_OK(ejk_logical_not_create(left, &mask));
    if (choice == 7) EXPECT_OK(ejk_logical_or_create(left, right, &mask));
    if (choice == 8) EXPECT_OK(ejk_logical_and_create(left, right, &mask));
    ejk_splash_mask_release(left);
    ejk_splash_mask_release(right);
    return mask;
}

/* The state of a rectangle, cut to the mask, by looking at each element. */
static int state_of(const uint8_t *bytes, int64_t q, int64_t kv, int64_t row, int64_t rows,
                    int64_t column, int64_t columns) {
    int64_t ones = 0, all = 0;
    for (int64_t i = row; i < row + rows && i < q; i++)
        for (int64_t j = column; j < column + columns && j < kv; j++, all++)
            ones += bytes[i * kv + j] != 0;
    return ones == 0 ? EMPTY : ones == all ? FULL : PARTIAL;
}

static void states_are_those_of_the_elements(void **state) {
    (void)state;
    struct random r = {77};
    for (int round = 0; round < 3000; round++) {
        int64_t q = random_int(&r, 1, 48), kv = random_int(&r, 1, 48);
        ejk_splash_mask *mask = random_mask(&r, q, kv, 3);
        uint8_t *bytes = splash_elements(mask);
        ejki_drawing drawing = {
            .block_shape = {random_int(&r, 1, 9), random_int(&r, 1, 9)},
            .max_rows = random_int(&r, 1, 50),
            .max_columns = random_int(&r, 1, 50),
        };
        if (random_chance(&r, 0.3)) drawing.block_shape[0] = drawing.block_shape[1] = 0;
        ejki_picture picture;
        EXPECT_OK(ejki_picture_open(mask, &drawing, true, &picture));
        const ejk_mask_survey *survey = &picture.survey;
        assert_true(picture.cell_rows <= drawing.max_rows);
        assert_true(picture.cell_columns <= drawing.max_columns);
        int64_t height = ejki_cell_length(&picture, 0), width = ejki_cell_length(&picture, 1);
        assert_true(picture.cell_rows * height >= q && picture.cell_columns * width >= kv);
        for (int64_t i = 0; i < picture.cell_rows; i++)
            for (int64_t j = 0; j < picture.cell_columns; j++)
                assert_int_equal(ejki_picture_row(&picture, i)[j],
                                 state_of(bytes, q, kv, i * height, height, j * width, width));
        int64_t counts[3] = {0}, visible = 0, bq = survey->block_shape[0],
                bkv = survey->block_shape[1];
        for (int64_t i = 0; i < q; i += bq)
            for (int64_t j = 0; j < kv; j += bkv) counts[state_of(bytes, q, kv, i, bq, j, bkv)]++;
        for (int64_t i = 0; i < q * kv; i++) visible += bytes[i] != 0;
        assert_int_equal(survey->empty, counts[EMPTY]);
        assert_int_equal(survey->partial, counts[PARTIAL]);
        assert_int_equal(survey->full, counts[FULL]);
        assert_int_equal(survey->visible, visible);
        EXPECT_NEAR(survey->share, (double)visible / (double)(q * kv), 1e-12);
        ejki_picture_close(&picture);
        free(bytes);
        ejk_splash_mask_release(mask);
    }
}

/* The blocks that are not empty, row after row, are those that a shrunken grid of MaskInfo visits. */
static void visits_are_those_of_mask_info(void **state) {
    (void)state;
    struct random r = {31};
    for (int round = 0; round < 300; round++) {
        int64_t bq = random_int(&r, 1, 5), bkv = random_int(&r, 1, 5), visits = 0, seen = 0;
        int64_t rows = random_int(&r, 1, 8), columns = random_int(&r, 1, 8);
        ejk_splash_mask *mask = random_mask(&r, rows * bq, columns * bkv, 2), *heads = NULL;
        EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *[]){mask}, 1, &heads));
        ejk_process_mask_args args = {
            .mask = heads, .block_shape = {bq, bkv}, .downcast_smem_data = EJK_FALSE};
        ejk_splash_mask_info info = {0};
        EXPECT_OK(ejk_process_mask(&args, &info));
        ejki_drawing drawing = {.block_shape = {bq, bkv}, .max_rows = 64, .max_columns = 64};
        ejki_picture picture;
        EXPECT_OK(ejki_picture_open(heads, &drawing, true, &picture));
        const int32_t *states = info.block_mask.data, *next = info.data_next.data;
        int64_t wide = info.block_mask.shape[2];
        for (int64_t cell = 0; cell < rows * wide; cell++) {
            if (states[cell] == EMPTY) continue;
            while (picture.states[seen] == EMPTY) seen++;
            assert_int_equal(picture.states[seen], states[cell]);
            assert_int_equal(seen / columns, cell / wide);
            assert_int_equal(seen++ % columns, next[cell]);
            visits++;
        }
        assert_int_equal(visits, picture.survey.partial + picture.survey.full);
        ejki_picture_close(&picture);
        ejk_splash_mask_info_close(&info);
        ejk_splash_mask_release(heads);
        ejk_splash_mask_release(mask);
    }
}

/* ---- Pixels ---------------------------------------------------------------------------------------- */

static const uint8_t colours[3][3] = {{0xff, 0xff, 0xff}, {0xd9, 0x7f, 0x0c}, {0x2a, 0x6f, 0xb0}};

static void pixels_are_the_states(void **state) {
    (void)state;
    struct random r = {9};
    for (int round = 0; round < 60; round++) {
        int64_t q = random_int(&r, 1, 48), kv = random_int(&r, 1, 48);
        ejk_splash_mask *mask = random_mask(&r, q, kv, 2);
        ejk_mask_drawing_options options = {
            .block_shape = {3, 2}, .order = EJK_FALSE, .legend = EJK_FALSE};
        options.width = random_int(&r, 64, 900);
        char *bytes = NULL;
        size_t length = 0;
        EXPECT_OK(ejk_mask_draw(mask, &options, EJK_MASK_DRAWING_PNG, &bytes, &length));
        png_image image = {.version = PNG_IMAGE_VERSION};
        assert_true(png_image_begin_read_from_memory(&image, bytes, length));
        assert_true((image.format & PNG_FORMAT_FLAG_COLORMAP) != 0);
        image.format = PNG_FORMAT_RGB;
        uint8_t *pixels = malloc(PNG_IMAGE_SIZE(image)), *elements = splash_elements(mask);
        assert_non_null(pixels);
        assert_true(png_image_finish_read(&image, NULL, pixels, 0, NULL));
        int64_t rows = (q + 2) / 3, columns = (kv + 1) / 2, side = (image.width - 16) / columns;
        assert_int_equal(image.width, columns * side + 16);
        assert_int_equal(image.height, rows * side + 16);
        assert_true(image.width <= options.width);
        for (int64_t y = 0; y < rows * side; y++)
            for (int64_t x = 0; x < columns * side; x++) {
                if (side >= 6 && (x % side == side - 1 || y % side == side - 1)) continue;
                int wanted = state_of(elements, q, kv, y / side * 3, 3, x / side * 2, 2);
                assert_memory_equal(pixels + ((y + 8) * image.width + x + 8) * 3, colours[wanted],
                                    3);
            }
        free(pixels);
        free(elements);
        ejk_free(bytes);
        ejk_splash_mask_release(mask);
    }
}

/* The line of visits leaves the corners of the cells as they are, and goes through the first one's middle. */
static void the_order_is_drawn(void **state) {
    (void)state;
    ejk_splash_mask *mask = from_json(CAUSAL);
    ejk_mask_drawing_options options = {.block_shape = {4, 4}, .width = 136, .legend = EJK_FALSE};
    char *bytes = NULL;
    size_t length = 0;
    EXPECT_OK(ejk_mask_draw(mask, &options, EJK_MASK_DRAWING_PNG, &bytes, &length));
    png_image image = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_memory(&image, bytes, length));
    image.format = PNG_FORMAT_RGB;
    static uint8_t pixels[136 * 136 * 3];
    assert_int_equal(PNG_IMAGE_SIZE(image), sizeof pixels);
    assert_true(png_image_finish_read(&image, NULL, pixels, 0, NULL));
    assert_memory_equal(pixels + (8 * 136 + 8) * 3, colours[PARTIAL], 3);
    assert_int_equal(pixels[((8 + 14) * 136 + 8 + 14) * 3], 0x11);
    ejk_free(bytes);
    ejk_splash_mask_release(mask);
}

/* A PNG, read again: three bytes to a pixel. */
struct pixels {
    int64_t width, height;
    uint8_t *bytes;
};

static struct pixels draw_pixels(const ejk_splash_mask *mask,
                                 const ejk_mask_drawing_options *options) {
    char *file = NULL;
    size_t length = 0;
    png_image image = {.version = PNG_IMAGE_VERSION};
    EXPECT_OK(ejk_mask_draw(mask, options, EJK_MASK_DRAWING_PNG, &file, &length));
    assert_true(png_image_begin_read_from_memory(&image, file, length));
    image.format = PNG_FORMAT_RGB;
    struct pixels pixels = {image.width, image.height, malloc(PNG_IMAGE_SIZE(image))};
    assert_non_null(pixels.bytes);
    assert_true(png_image_finish_read(&image, NULL, pixels.bytes, 0, NULL));
    ejk_free(file);
    return pixels;
}

static const uint8_t *pixel_at(const struct pixels *pixels, int64_t x, int64_t y) {
    return pixels->bytes + (y * pixels->width + x) * 3;
}

/* Where in `whole` the rows of `part` are, from its left edge on; -1 if nowhere. */
static int64_t find_rows(const struct pixels *whole, const struct pixels *part, int64_t first,
                         int64_t count) {
    for (int64_t y = 0; y + count <= whole->height; y++) {
        int64_t same = 0;
        while (same < count && memcmp(pixel_at(whole, 0, y + same), pixel_at(part, 0, first + same),
                                      (size_t)part->width * 3) == 0)
            same++;
        if (same == count) return y;
    }
    return -1;
}

/* Pixels of a colour from row `first` to row `end`. */
static int64_t count_pixels(const struct pixels *pixels, const uint8_t colour[3], int64_t first,
                            int64_t end) {
    int64_t count = 0;
    for (int64_t y = first; y < end; y++)
        for (int64_t x = 0; x < pixels->width; x++)
            count += memcmp(pixel_at(pixels, x, y), colour, 3) == 0;
    return count;
}

static const uint8_t ink[3] = {0x11, 0x11, 0x11};

/* Words above the cells, squares of their colours below, and the cells as they are without. */
static void a_legend_is_drawn(void **state) {
    (void)state;
    static const int64_t widths[] = {64, 131, 320, 768, 1600};
    ejk_splash_mask *mask = from_json(CAUSAL);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int elements = 0; elements < 2; elements++) {
            ejk_mask_drawing_options options = {.width = widths[i], .legend = EJK_FALSE};
            if (!elements) options.block_shape[0] = options.block_shape[1] = 4;
            struct pixels bare = draw_pixels(mask, &options);
            options.legend = EJK_UNSET;
            struct pixels whole = draw_pixels(mask, &options);
            int64_t cells = bare.height - 16, top = find_rows(&whole, &bare, 8, cells);
            assert_int_equal(whole.width, widths[i]);
            assert_true(top > 20 && top + cells + 20 < whole.height);
            assert_true(count_pixels(&whole, ink, 0, top - 1) > 200);
            for (int s = 0; s < 3; s++) {
                int64_t there = count_pixels(&whole, colours[s], top + cells + 1, whole.height);
                assert_int_equal(there > 0, !elements || s != PARTIAL);
            }
            free(bare.bytes);
            free(whole.bytes);
        }
    ejk_splash_mask_release(mask);
}

/* A title of one letter, by its pixels; one that ASCII has not is one box; long ones go on below. */
static void titles_are_drawn(void **state) {
    (void)state;
    ejk_splash_mask *mask = from_json(CAUSAL);
    ejk_mask_drawing_options options = {.width = 300, .title = "L"};
    struct pixels one = draw_pixels(mask, &options);
    for (int64_t y = 0; y < 7; y++)
        for (int64_t x = 0; x < 6; x++) {
            bool stroke = x == 0 || (y == 6 && x < 5);
            assert_int_equal(memcmp(pixel_at(&one, 8 + x, 8 + y), ink, 3) == 0, stroke);
        }
    assert_int_equal(count_pixels(&one, ink, 0, 17), 11);
    options.title = "L\xc3\xa9L";
    struct pixels three = draw_pixels(mask, &options);
    assert_int_equal(count_pixels(&three, ink, 0, 17), 11 + 20 + 11);
    assert_memory_equal(pixel_at(&three, 8 + 12, 14), ink, 3);
    char *title = malloc(100001);
    memset(title, 'x', 100000);
    title[100000] = '\0';
    options.title = title;
    struct pixels many = draw_pixels(mask, &options);
    assert_in_range(many.height - one.height, 60 * 12, 64 * 12);
    options.title = "";
    struct pixels none = draw_pixels(mask, &options);
    assert_int_equal(one.height - none.height, 12);
    free(title);
    free(one.bytes);
    free(three.bytes);
    free(many.bytes);
    free(none.bytes);
    ejk_splash_mask_release(mask);
}

/* ---- Sizes ----------------------------------------------------------------------------------------- */

static void large_masks_are_counted_from_structure(void **state) {
    (void)state;
    ejk_splash_mask *causal = NULL, *local = NULL, *both = NULL;
    ejk_mask_survey survey;
    ejk_mask_drawing_options options = {.block_shape = {128, 128}};
    EXPECT_OK(ejk_causal_mask_create(big, 0, NULL, &causal));
    EXPECT_OK(ejk_local_mask_create(big, ejk_window_of(127, 0), 0, NULL, &local));
    EXPECT_OK(ejk_logical_and_create(causal, local, &both));
    EXPECT_OK(ejk_mask_survey_take(causal, &options, &survey));
    assert_int_equal(survey.rows, 7813);
    assert_int_equal(survey.partial, 7813);
    assert_int_equal(survey.full, INT64_C(7813) * 7812 / 2);
    assert_int_equal(survey.visible, INT64_C(500000500000));
    EXPECT_OK(ejk_mask_survey_take(both, &options, &survey));
    assert_int_equal(survey.full, 0);
    assert_int_equal(survey.partial, 7813 + 7812);
    assert_int_equal(survey.visible, INT64_C(128) * 1000000 - 127 * 64);
    ejk_splash_mask_release(causal);
    ejk_splash_mask_release(local);
    ejk_splash_mask_release(both);
}

#define EXPECT_REFUSED(status, words, mask, options, format)                                       \
    do {                                                                                           \
        char *bytes = (char *)8;                                                                   \
        size_t length = 5;                                                                         \
        EXPECT_FAIL(status, words, ejk_mask_draw(mask, options, format, &bytes, &length));         \
        assert_ptr_equal(bytes, (char *)8);                                                        \
        assert_int_equal(length, 5);                                                               \
    } while (0)

static void hostile_sizes_are_refused(void **state) {
    (void)state;
    ejk_splash_mask *mask = NULL, *next;
    const int64_t vast[2] = {INT64_MAX, INT64_MAX}, wide[2] = {1, INT64_MAX};
    ejk_mask_survey survey;
    EXPECT_OK(ejk_causal_mask_create(vast, INT64_MAX, NULL, &mask));
    EXPECT_REFUSED(OVERFLOW, "2^28 rows", mask, NULL, EJK_MASK_DRAWING_SVG);
    EXPECT_REFUSED(OVERFLOW, "blocks", mask, (&(ejk_mask_drawing_options){.block_shape = {1, 1}}),
                   EJK_MASK_DRAWING_TEXT);
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_local_mask_create(wide, ejk_window_of(0, 9), INT64_MAX / 2, NULL, &mask));
    EXPECT_OK(ejk_mask_survey_take(mask, NULL, &survey));
    assert_int_equal(survey.visible, 10);
    assert_int_equal(survey.partial, 2); /* 2^62 - 1 to 2^62 + 8 */
    EXPECT_REFUSED(OVERFLOW, "2^24 in a row", mask,
                   (&(ejk_mask_drawing_options){.block_shape = {1, 1000}}), EJK_MASK_DRAWING_PNG);
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_function_mask_create(big, odd_places, &modulus, NULL, &mask));
    EXPECT_REFUSED(OVERFLOW, "calls of predicates", mask, NULL, EJK_MASK_DRAWING_HTML);
    ejk_splash_mask_release(mask);
    /* Parts that are shared count at every place they have: 2^60 of them here. */
    EXPECT_OK(ejk_full_mask_create((int64_t[]){4, 4}, &mask));
    for (int i = 0; i < 60; i++) {
        EXPECT_OK(ejk_logical_or_create(mask, mask, &next));
        ejk_splash_mask_release(mask);
        mask = next;
    }
    EXPECT_REFUSED(OVERFLOW, "2^28 rows", mask, NULL, EJK_MASK_DRAWING_TEXT);
    ejk_splash_mask_release(mask);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    ejk_splash_mask *mask = from_json(CAUSAL);
    ejk_mask_survey survey = {.q = 3};
    static const struct {
        ejk_mask_drawing_options options;
        ejk_mask_drawing_format format;
        const char *words;
    } wrong[] = {
        {{.head = 1}, EJK_MASK_DRAWING_TEXT, "head is 1, expected 0 to 0"},
        {{.head = -1}, EJK_MASK_DRAWING_TEXT, "head is -1"},
        {{.width = 19}, EJK_MASK_DRAWING_TEXT, "width is 19, expected 20 to 4096"},
        {{.width = 8193}, EJK_MASK_DRAWING_PNG, "width is 8193, expected 64 to 8192"},
        {{.block_shape = {4, 0}}, EJK_MASK_DRAWING_SVG, "block_shape is {4, 0}"},
        {{.block_shape = {-1, 4}}, EJK_MASK_DRAWING_SVG, "block_shape is {-1, 4}"},
        {{.max_rows = -1}, EJK_MASK_DRAWING_SVG, "max_rows is -1"},
        {{.max_columns = 4097}, EJK_MASK_DRAWING_SVG, "max_columns is 4097"},
        {{.title = "\xff"}, EJK_MASK_DRAWING_HTML, "title is not UTF-8"},
        {{.head = 0}, (ejk_mask_drawing_format)5, "format is 5"},
        {{.head = 0}, (ejk_mask_drawing_format)0, "format is 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_REFUSED(INVALID_ARGUMENT, wrong[i].words, mask, &wrong[i].options, wrong[i].format);
    EXPECT_REFUSED(INVALID_ARGUMENT, "NULL", NULL, NULL, EJK_MASK_DRAWING_TEXT);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_mask_survey_take(mask, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "head", ejk_mask_survey_take(mask, &wrong[0].options, &survey));
    assert_int_equal(survey.q, 3);
    EXPECT_FAIL(INVALID_ARGUMENT, "write is NULL",
                ejk_mask_draw_to(mask, NULL, EJK_MASK_DRAWING_TEXT, NULL, NULL));
    assert_string_equal(ejk_mask_drawing_format_name((ejk_mask_drawing_format)9), "unknown");
    ejk_splash_mask_release(mask);
}

static bool take(void *user, const char *bytes, size_t count) {
    (void)bytes;
    size_t *taken = user;
    *taken += count;
    return *taken < 100000;
}

static void sinks_get_the_same(void **state) {
    (void)state;
    ejk_splash_mask *mask = from_json(CAUSAL);
    char *bytes = NULL;
    size_t length = 0, taken = 0;
    EXPECT_OK(ejk_mask_draw(mask, NULL, EJK_MASK_DRAWING_PNG, &bytes, &length));
    EXPECT_OK(ejk_mask_draw_to(mask, NULL, EJK_MASK_DRAWING_PNG, take, &taken));
    assert_int_equal(taken, length);
    taken = 100000;
    EXPECT_FAIL(IO, "not taken", ejk_mask_draw_to(mask, NULL, EJK_MASK_DRAWING_PNG, take, &taken));
    ejk_free(bytes);
    ejk_splash_mask_release(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_the_stored_ones),
        cmocka_unit_test(states_are_those_of_the_elements),
        cmocka_unit_test(visits_are_those_of_mask_info),
        cmocka_unit_test(pixels_are_the_states),
        cmocka_unit_test(the_order_is_drawn),
        cmocka_unit_test(a_legend_is_drawn),
        cmocka_unit_test(titles_are_drawn),
        cmocka_unit_test(large_masks_are_counted_from_structure),
        cmocka_unit_test(hostile_sizes_are_refused),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(sinks_get_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
