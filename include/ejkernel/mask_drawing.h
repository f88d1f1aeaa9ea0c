/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mask_drawing.h
 * Draws masks: as text for a terminal, as SVG, as PNG, or as an HTML page that zooms.
 *
 * @code
 * ejk_mask_drawing_options options = {.block_shape = {128, 128}};
 * char *bytes = NULL;
 * size_t length = 0;
 * status = ejk_mask_draw(mask, &options, EJK_MASK_DRAWING_SVG, &bytes, &length);
 * …
 * ejk_free(bytes);
 * @endcode
 *
 * A picture is a grid of cells. A cell is one element if all elements fit, else one block, else a square of
 * blocks. It is empty (no query sees a key in it), full (every query sees every key) or partial. The states are
 * exact for masks of any size: each row is represented by the intervals of columns that it sees, which are
 * computed from the parameters of structured masks. A block at the edge counts only the elements inside the mask.
 * A picture also gives the numbers of empty, partial and full blocks, the share of visible elements, and the
 * order in which the forward kernel visits the blocks: the non-empty ones, row by row from left to right;
 * shrunken grids keep this order.
 *
 * Limits, beyond which a call returns OVERFLOW: 2^28 blocks, 2^24 blocks in a row, and in total 2^28 rows, 2^28
 * calls of predicates and 2^32 elements of numpy masks, counted again for each use of a mask in a combination.
 *
 * Thread-safety: all functions may be called from several threads at once. Nothing depends on the locale.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_MASK_DRAWING_H
#define EJKERNEL_MASK_DRAWING_H

#include <ejkernel/mask_info.h>
#include <ejkernel/splash_mask.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a picture is written as: name, number (pinned), text. */
#define EJK_MASK_DRAWING_LIST(X)                                                                   \
    X(TEXT, 1, "text")                                                                             \
    X(SVG, 2, "svg")                                                                               \
    X(PNG, 3, "png")                                                                               \
    X(HTML, 4, "html")

/** A format of pictures. HTML is a single self-contained page; without scripts it shows the SVG. */
typedef enum ejk_mask_drawing_format {
#define EJK_MASK_DRAWING_ENUM(name, number, text) EJK_MASK_DRAWING_##name = number,
    EJK_MASK_DRAWING_LIST(EJK_MASK_DRAWING_ENUM)
#undef EJK_MASK_DRAWING_ENUM
} ejk_mask_drawing_format;

/** Name of a format; "unknown" for none. Static text. */
EJK_API const char *ejk_mask_drawing_format_name(ejk_mask_drawing_format format);

/** How a mask is drawn. NULL or all zeros = default. */
typedef struct ejk_mask_drawing_options {
    /**
     * {bq, bkv}, cut to the mask's lengths. {0, 0} = elements if they fit, else the least power of two whose
     * blocks do.
     */
    int64_t block_shape[2];
    int64_t head; /**< of a multi-head mask, from 0 */
    int64_t
        width; /**< text: columns, 20 to 4096, default 80; else pixels, 64 to 8192, default 768 */
    int64_t max_rows; /**< cells from top to bottom, 1 to 4096; default 64 for text, else 256 */
    int64_t
        max_columns; /**< cells from left to right; default as many as fit the width, at most 256 */
    ejk_opt_bool colour; /**< text: ANSI escapes, and two cells to a character; unset = no */
    ejk_opt_bool legend; /**< title, counts, and what the colours mean; unset = yes */
    ejk_opt_bool order;  /**< the order of visits; unset = yes */
    const char *title; /**< UTF-8; NULL = what the mask is; PNG shows what is not ASCII as boxes */
} ejk_mask_drawing_options;

/**
 * Draws a mask. `*bytes` gets the picture, closed by a zero byte that `*length` does not count; it is freed
 * by ejk_free().
 *
 * | format | cells | order of visits |
 * |---|---|---|
 * | TEXT | `██` full, `░░` partial | numbers, where blocks are cells and leave room for them |
 * | SVG, HTML | blue full, orange partial, white empty | a line from the first block to the last |
 * | PNG | the same, with a palette; sides of cells are whole pixels | the same |
 *
 * The line is left out where cells have less than 6 pixels (on a page, until it is asked for), and no
 * visits are shown of single elements.
 *
 * Statuses: INVALID_ARGUMENT (NULL, a format or a number out of its range, a title that is not UTF-8),
 * OVERFLOW (beyond the limits above), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_draw(const ejk_splash_mask *mask,
                                               const ejk_mask_drawing_options *options,
                                               ejk_mask_drawing_format format, char **bytes,
                                               size_t *length);

/** The same, handed to `write`. Statuses: as above, IO (`write` refused). */
EJK_API EJK_NODISCARD ejk_status ejk_mask_draw_to(const ejk_splash_mask *mask,
                                                  const ejk_mask_drawing_options *options,
                                                  ejk_mask_drawing_format format,
                                                  ejk_splash_write_fn write, void *user);

/** What a picture shows, as numbers. */
typedef struct ejk_mask_survey {
    int64_t q, kv;                /**< shape of the head */
    int64_t block_shape[2];       /**< as given, or as found */
    int64_t rows, columns;        /**< blocks, those at the edge included */
    int64_t empty, partial, full; /**< blocks */
    int64_t visible;              /**< elements; INT64_MAX if there are more */
    double share;                 /**< of all elements that is visible, 0 to 1 */
} ejk_mask_survey;

/** Counts what ejk_mask_draw() would say of a mask. `*out` is untouched on failure. Statuses: the same. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_survey_take(const ejk_splash_mask *mask,
                                                      const ejk_mask_drawing_options *options,
                                                      ejk_mask_survey *out);

/** What ejk_mask_visualize() takes. Zeros = default. */
typedef struct ejk_mask_visualize_args {
    ejk_tensor mask;          /**< bool [B,H,Q,K], on the CPU, any strides */
    ejk_tensor q_segment_ids; /**< int32 [B,Q]; unset = numbered from the mask, as kv_segment_ids */
    ejk_tensor kv_segment_ids;  /**< int32 [B,K] */
    ejk_opt_int block_size[2];  /**< q, kv; the second unset = the first; both unset = 32 */
    int64_t batch, head;        /**< from 0 */
    ejk_opt_bool fit_in_screen; /**< merges blocks to stay within the limits; unset = yes */
    ejk_opt_int max_rows;       /**< unset = 32 */
    ejk_opt_int max_cols;       /**< unset = 64 */
    bool ascii;                 /**< `##` and `..` in place of `██` and `░░` */
    ejk_opt_bool show_segments; /**< labels of rows and columns; unset = yes */
} ejk_mask_visualize_args;

/**
 * The documented `visualize`: a text of two characters per block, with the segment ids of rows and columns
 * (two decimal digits; blank or PAD for padding, `??` or MIX for blocks of several ids). The mask is padded
 * with false, so that a block at the edge that it does not fill is never full. Text and ownership as
 * above.
 *
 * Statuses: INVALID_ARGUMENT (NULL, a block, limit, batch or head out of range), INVALID_SHAPE,
 * INVALID_DTYPE, UNAVAILABLE (a device other than the CPU), those of ejk_tensor_check(), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_visualize(const ejk_mask_visualize_args *args,
                                                    char **text, size_t *length);

/**
 * The same of a MaskInfo: mask and ids are its own, and those of `args` (NULL = defaults) stay unset. The
 * mask is computed if it has not been. Statuses: those above, and of mask_info.h.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_visualize(const ejk_mask_info *info,
                                                         const ejk_mask_visualize_args *args,
                                                         char **text, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
