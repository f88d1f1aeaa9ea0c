/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that the numbers of their masks leave open are decided by their elements. A short text may leave open
 * what would take hours to evaluate: elements are counted first, and more than the call's limit allows are refused.
 * Most blocks that an edge crosses are partial within their first corner already; corners are looked at before
 * the rest is counted.
 */
#include "mask/process.h"

enum {
    CORNER_ROWS = 64,
    CORNER_COLUMNS = 1024,
};

/* The part of every undecided block that is looked at: rows x columns from its first element on. */
typedef struct {
    const ejki_mask_call *call;
    const ejki_masks *masks;
    int64_t rows, columns;
} looking;

static bool is_whole(const looking *look) {
    return look->rows == look->call->bq && look->columns == look->call->bkv;
}

static void look_at_row(void *look_, int64_t line) {
    const looking *look = look_;
    const ejki_mask_call *call = look->call;
    const ejk_splash_mask *mask = look->masks->masks[line / call->rows];
    uint8_t *states = look->masks->states + line * call->columns;
    for (int64_t j = 0; j < call->columns; j++) {
        if (states[j] != UNDECIDED) continue;
        ejki_state seen = ejki_mask_evaluated(mask, line % call->rows * call->bq, look->rows,
                                              j * call->bkv, look->columns);
        if (seen == PARTIAL || is_whole(look)) states[j] = (uint8_t)seen;
    }
}

/* How many blocks are undecided; false if evaluating them takes more than the limit allows. */
static bool count_work(const looking *look, int64_t *undecided) {
    const ejki_mask_call *call = look->call;
    int64_t work = 0, of_mask;
    bool fits = true;
    *undecided = 0;
    for (int64_t u = 0; u < look->masks->count; u++) {
        const uint8_t *states = look->masks->states + u * call->cells;
        int64_t count = 0;
        for (int64_t c = 0; c < call->cells; c++) count += states[c] == UNDECIDED;
        *undecided += count;
        if (count == 0) continue;
        fits =
            fits && ejki_mul(count, look->rows, &of_mask) &&
            ejki_mul(of_mask, ejki_mask_row_work(look->masks->masks[u], look->columns), &of_mask) &&
            ejki_add(work, of_mask, &work);
    }
    return *undecided == 0 || (fits && work <= ejki_mask_most_work(call->max_bytes));
}

static ejk_status look_at_blocks(looking look) {
    int64_t undecided;
    if (!count_work(&look, &undecided))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "which blocks are partial takes evaluating %lld of them, %lld x %lld "
                      "elements each, more than the limit of %lld elements in all",
                      (long long)undecided, (long long)look.rows, (long long)look.columns,
                      (long long)ejki_mask_most_work(look.call->max_bytes));
    if (undecided > 0)
        ejk_parallel_for(look.call->threads, look.masks->count * look.call->rows, look_at_row,
                         &look);
    return EJK_OK;
}

ejk_status ejki_masks_decide(const ejki_mask_call *call, const ejki_masks *masks) {
    EJKI_TRY(look_at_blocks((looking){call, masks, ejki_min(call->bq, CORNER_ROWS),
                                      ejki_min(call->bkv, CORNER_COLUMNS)}));
    return look_at_blocks((looking){call, masks, call->bq, call->bkv});
}
