/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: how a mask is held, and the states of its blocks. */
#ifndef EJKI_MASK_H
#define EJKI_MASK_H

#include "base/base.h"

#include <ejkernel/splash_mask.h>
#include <stdatomic.h>

/* The deepest nesting of logical masks: every walk over them is recursive. */
enum { EJKI_MASK_DEPTH = 2048 };

struct ejk_splash_mask {
    atomic_int_fast64_t references;
    ejk_splash_mask_kind kind;
    int32_t depth;               /* 1 for a mask without parts */
    int64_t leaves;              /* masks without parts in it: what an element takes to evaluate */
    int64_t q, kv;               /* shape, of one head */
    int64_t offset;              /* causal, local */
    ejk_window window;           /* local */
    int64_t chunk_size;          /* chunked causal */
    int32_t *q_sequence;         /* computable; NULL = 0, 1, …, q − 1 */
    const uint8_t *elements;     /* numpy: any byte but 0 is true */
    uint8_t *owned;              /* the same if they are ours, else NULL */
    int64_t row_stride;          /* of elements */
    ejk_splash_mask_fn function; /* function */
    void *user;                  /* function */
    const ejk_splash_mask **parts; /* logical: left, right; multi-head: one per head */
    int64_t part_count;
};

/* UNDECIDED: open until the block's elements are evaluated; never part of a result. */
typedef enum { EMPTY = 0, PARTIAL = 1, FULL = 2, UNDECIDED = 3 } ejki_state;

/* Notes the reason and fails: `return REFUSE(INVALID_SHAPE, MASK_NOT_3D, "…", …)`. */
void ejki_splash_reason_set(ejk_splash_reason reason);
#define REFUSE(status, reason, ...)                                                                \
    (ejki_splash_reason_set(EJK_SPLASH_REASON_##reason),                                           \
     ejki_fail(EJK_STATUS_##status, __VA_ARGS__))

/* The columns that position `q` sees of a causal, local or chunked mask: [*low, *high], cut to the mask. */
void ejki_mask_interval(const ejk_splash_mask *mask, int64_t q, int64_t *low, int64_t *high);

/* True if all a row sees is one interval of columns. */
static inline bool ejki_mask_is_interval(const ejk_splash_mask *mask) {
    return mask->kind == EJK_SPLASH_MASK_CAUSAL || mask->kind == EJK_SPLASH_MASK_LOCAL ||
           mask->kind == EJK_SPLASH_MASK_CHUNKED_CAUSAL;
}

static inline int64_t ejki_mask_position(const ejk_splash_mask *mask, int64_t row) {
    return mask->q_sequence != NULL ? mask->q_sequence[row] : row;
}

/* Elements of one row, columns [column, column + count), as 0 and 1. */
void ejki_mask_row(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t count,
                   uint8_t *out);

/*
 * The work of evaluating rows, in elements of a mask without parts: rows that are shorter than SHORT take as long as
 * those. A limit of bytes stands for as much work as takes no longer than to fill and write them.
 */
static inline int64_t ejki_mask_row_work(const ejk_splash_mask *mask, int64_t columns) {
    enum { SHORT = 256 };
    int64_t work;
    return ejki_mul(ejki_max(columns, SHORT), mask->leaves, &work) ? work : INT64_MAX;
}
static inline int64_t ejki_mask_most_work(int64_t max_bytes) {
    return max_bytes < INT64_MAX / 16 ? 16 * max_bytes : INT64_MAX;
}

/* OVERFLOW if evaluating `rows` rows of so many columns takes more work than a limit of bytes stands for. */
ejk_status ejki_mask_expect_work(const ejk_splash_mask *mask, int64_t rows, int64_t columns,
                                 int64_t max_bytes);
/* ejk_splash_mask_check() that refuses with OVERFLOW what takes more work. */
ejk_status ejki_mask_check(const ejk_splash_mask *mask, int64_t most_work);

/* Whether a rectangle of the mask, [start, stop), can be read into `out`. */
ejk_status ejki_mask_read_check(const ejk_splash_mask *mask, const int64_t *start,
                                const int64_t *stop, const ejk_tensor *out);

/* Elements of a rectangle, row after row. */
void ejki_mask_block(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t rows,
                     int64_t columns, uint8_t *out);

/* Whether any of the bytes is not 0, and whether all are. */
void ejki_scan_bytes(const uint8_t *bytes, int64_t count, bool *any, bool *all);

/*
 * States of the `count` blocks of a block row: rows [row, row + rows), columns from 0 in steps of
 * `columns`. UNDECIDED where only elements can tell. False if memory could not be had.
 */
bool ejki_mask_states(const ejk_splash_mask *mask, int64_t row, int64_t rows, int64_t columns,
                      int64_t count, uint8_t *states);

/* The state of a block from its elements, until it is known to be partial. */
ejki_state ejki_mask_evaluated(const ejk_splash_mask *mask, int64_t row, int64_t rows,
                               int64_t column, int64_t columns);

#endif
