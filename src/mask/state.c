/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of blocks: empty, partial or full, a block row at a time. Masks of intervals answer from their
 * numbers, numpy masks from one pass over their elements, logical ones from their parts. Where these leave it
 * open, the block is UNDECIDED until its elements are evaluated.
 */
#include "mask/mask.h"

#include <stdlib.h>
#include <string.h>

/* ---- Elements -------------------------------------------------------------------------------------- */

/* In pieces that end early, with bodies that the compiler turns into vector instructions. */
void ejki_scan_bytes(const uint8_t *bytes, int64_t count, bool *any, bool *all) {
    uint8_t some = 0, zero = 0;
    for (int64_t i = 0; i < count; i++) {
        some |= bytes[i];
        zero |= (uint8_t)(bytes[i] == 0);
    }
    *any = some != 0;
    *all = zero == 0;
}

static ejki_state state_of(bool any, bool all) {
    return all ? FULL : any ? PARTIAL : EMPTY;
}

ejki_state ejki_mask_evaluated(const ejk_splash_mask *mask, int64_t row, int64_t rows,
                               int64_t column, int64_t columns) {
    enum { PIECE = 1024 };
    uint8_t piece[PIECE];
    bool any = false, all = true;
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = column; j < column + columns; j += PIECE) {
            int64_t count = ejki_min(column + columns - j, PIECE);
            bool some, every;
            ejki_mask_row(mask, i, j, count, piece);
            ejki_scan_bytes(piece, count, &some, &every);
            any |= some;
            all &= every;
            if (any && !all) return PARTIAL;
        }
    return state_of(any, all);
}

/* Row by row, as they lie in memory; what is partial is not looked at again. */
static void dense_states(const ejk_splash_mask *mask, int64_t row, int64_t rows, int64_t columns,
                         int64_t count, uint8_t *states) {
    for (int64_t i = row; i < row + rows; i++) {
        const uint8_t *segment = mask->elements + i * mask->row_stride;
        for (int64_t j = 0; j < count; j++, segment += columns) {
            bool any, all;
            if (i != row && states[j] == PARTIAL) continue;
            ejki_scan_bytes(segment, columns, &any, &all);
            ejki_state state = state_of(any, all);
            states[j] = (uint8_t)(i == row || states[j] == state ? state : PARTIAL);
        }
    }
}

/* ---- Intervals ------------------------------------------------------------------------------------- */

/* The positions of a block row. */
struct rows {
    int64_t row, count;
    int64_t low, high; /* smallest and largest position */
    bool contiguous;   /* low, low + 1, …, in this order */
};

static struct rows rows_of(const ejk_splash_mask *mask, int64_t row, int64_t count) {
    struct rows rows = {row, count, row, row + count - 1, true};
    if (mask->q_sequence == NULL) return rows;
    const int32_t *position = mask->q_sequence + row;
    rows.low = rows.high = position[0];
    for (int64_t i = 1; i < count; i++) {
        rows.low = ejki_min(rows.low, position[i]);
        rows.high = ejki_max(rows.high, position[i]);
        rows.contiguous &= position[i] == (int64_t)position[0] + i;
    }
    return rows;
}

/* Whether some row of a permuted block row sees a column of [first, last]. */
static bool some_row_sees(const ejk_splash_mask *mask, const struct rows *rows, int64_t first,
                          int64_t last) {
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t low, high;
        ejki_mask_interval(mask, ejki_mask_position(mask, rows->row + i), &low, &high);
        if (ejki_max(low, first) <= ejki_min(high, last)) return true;
    }
    return false;
}

/* The same for contiguous positions and chunks: a chunk beyond the first that both touch is seen. */
static bool some_chunk_sees(int64_t chunk, const struct rows *rows, int64_t first, int64_t last) {
    if (rows->high < 0) return false;
    int64_t from = ejki_max(ejki_max(rows->low, 0) / chunk, first / chunk);
    int64_t to = ejki_min(rows->high / chunk, last / chunk);
    if (from > to) return false;
    if (from < to) return true;
    int64_t start = from * chunk, length = chunk - 1;
    int64_t end = start > INT64_MAX - length ? INT64_MAX : start + length;
    return ejki_min(rows->high, end) >= ejki_max(first, start);
}

/* Whether the window holds no column wherever it stands: left + right < 0. */
static bool void_window(const ejk_splash_mask *mask) {
    int64_t width;
    if (mask->kind != EJK_SPLASH_MASK_LOCAL || !mask->window.left.set || !mask->window.right.set)
        return false;
    if (!ejki_add(mask->window.left.value, mask->window.right.value, &width))
        return mask->window.left.value < 0;
    return width < 0;
}

static void interval_states(const ejk_splash_mask *mask, int64_t row, int64_t rows_,
                            int64_t columns, int64_t count, uint8_t *states) {
    struct rows rows = rows_of(mask, row, rows_);
    bool chunked = mask->kind == EJK_SPLASH_MASK_CHUNKED_CAUSAL;
    int64_t low_low, low_high, high_low, high_high; /* ends of the intervals of both extremes */
    ejki_mask_interval(mask, rows.low, &low_low, &low_high);
    ejki_mask_interval(mask, rows.high, &high_low, &high_high);
    bool nothing = void_window(mask);
    for (int64_t j = 0; j < count; j++) {
        int64_t first = j * columns, last = first + columns - 1;
        if (nothing || low_low > last || high_high < first)
            states[j] = EMPTY;
        else if (first >= high_low && last <= low_high)
            states[j] = FULL;
        else if (!rows.contiguous)
            states[j] = some_row_sees(mask, &rows, first, last) ? PARTIAL : EMPTY;
        else if (chunked)
            states[j] = some_chunk_sees(mask->chunk_size, &rows, first, last) ? PARTIAL : EMPTY;
        else
            states[j] = PARTIAL;
    }
}

/* ---- Logical masks --------------------------------------------------------------------------------- */

/* What both parts' states say of the whole. */
static uint8_t combined(ejk_splash_mask_kind kind, uint8_t left, uint8_t right) {
    uint8_t strong = kind == EJK_SPLASH_MASK_LOGICAL_AND ? EMPTY : FULL;
    uint8_t weak = kind == EJK_SPLASH_MASK_LOGICAL_AND ? FULL : EMPTY;
    if (left == strong || right == strong) return strong;
    if (left == weak) return right;
    return right == weak ? left : UNDECIDED;
}

static bool pair_states(const ejk_splash_mask *mask, int64_t row, int64_t rows, int64_t columns,
                        int64_t count, uint8_t *states) {
    uint8_t *right = malloc((size_t)count);
    bool known = right != NULL &&
                 ejki_mask_states(mask->parts[0], row, rows, columns, count, states) &&
                 ejki_mask_states(mask->parts[1], row, rows, columns, count, right);
    for (int64_t j = 0; known && j < count; j++)
        states[j] = combined(mask->kind, states[j], right[j]);
    free(right);
    return known;
}

bool ejki_mask_states(const ejk_splash_mask *mask, int64_t row, int64_t rows, int64_t columns,
                      int64_t count, uint8_t *states) {
    switch (mask->kind) {
    case EJK_SPLASH_MASK_FULL: memset(states, FULL, (size_t)count); break;
    case EJK_SPLASH_MASK_CAUSAL:
    case EJK_SPLASH_MASK_LOCAL:
    case EJK_SPLASH_MASK_CHUNKED_CAUSAL:
        interval_states(mask, row, rows, columns, count, states);
        break;
    case EJK_SPLASH_MASK_NUMPY: dense_states(mask, row, rows, columns, count, states); break;
    case EJK_SPLASH_MASK_FUNCTION: memset(states, UNDECIDED, (size_t)count); break;
    case EJK_SPLASH_MASK_LOGICAL_AND:
    case EJK_SPLASH_MASK_LOGICAL_OR: return pair_states(mask, row, rows, columns, count, states);
    case EJK_SPLASH_MASK_LOGICAL_NOT:
        if (!ejki_mask_states(mask->parts[0], row, rows, columns, count, states)) return false;
        for (int64_t j = 0; j < count; j++)
            if (states[j] != UNDECIDED) states[j] = (uint8_t)(FULL - states[j]);
        break;
    case EJK_SPLASH_MASK_MULTI_HEAD: return false; /* has no blocks of its own */
    }
    return true;
}
