/* SPDX-License-Identifier: Apache-2.0 */
/* What a row of a mask sees, as runs of columns; logical masks combine the runs of their parts. */
#include "draw/draw.h"

#include <stdlib.h>
#include <string.h>

/* ---- Limits ---------------------------------------------------------------------------------------- */

/* In units of 2^-28 of what is allowed: rows and calls of predicates count 1, 16 elements count 1. */
enum { LIMIT = 1 << 28, ELEMENTS_PER_UNIT = 16, LEAST = 64 };

/* Adds what the leaves cost; stops at the limit, so that shared parts cannot make it endless. */
static bool affordable(const ejk_splash_mask *mask, int64_t *cost) {
    int64_t work = ejki_max(mask->q, LEAST), elements;
    for (int64_t p = 0; p < mask->part_count; p++)
        if (!affordable(mask->parts[p], cost)) return false;
    bool function = mask->kind == EJK_SPLASH_MASK_FUNCTION;
    if (function || mask->kind == EJK_SPLASH_MASK_NUMPY) {
        if (!ejki_mul(mask->q, mask->kv, &elements)) return false;
        work = ejki_max(work, function ? elements : elements / ELEMENTS_PER_UNIT);
    }
    return ejki_add(*cost, work, cost) && *cost <= LIMIT;
}

ejk_status ejki_runs_check(const ejk_splash_mask *mask) {
    int64_t cost = 0;
    if (affordable(mask, &cost)) return EJK_OK;
    return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                  "exact states of a %s mask of %lld x %lld need more than 2^28 rows or calls of "
                  "predicates, or 2^32 elements, which is as much as is drawn",
                  ejk_splash_mask_kind_name(mask->kind), (long long)mask->q, (long long)mask->kv);
}

/* ---- Runs ------------------------------------------------------------------------------------------ */

static bool reserve(ejki_runs *runs, int64_t more) {
    int64_t wanted = runs->count + more;
    if (wanted <= runs->room) return true;
    int64_t room = ejki_max(wanted, ejki_max(64, 2 * runs->room));
    int64_t *larger = realloc(runs->items, (size_t)room * sizeof *larger);
    if (larger == NULL) return false;
    runs->items = larger;
    runs->room = room;
    return true;
}

static bool add_run(ejki_runs *runs, int64_t begin, int64_t end) {
    if (begin >= end) return true;
    if (!reserve(runs, 2)) return false;
    runs->items[runs->count++] = begin;
    runs->items[runs->count++] = end;
    return true;
}

/* Where the elements change, a piece of the row at a time. */
static bool element_runs(const ejk_splash_mask *mask, int64_t row, ejki_runs *runs) {
    enum { PIECE = 4096 };
    uint8_t piece[PIECE];
    int64_t begin = -1; /* of the run that is open */
    for (int64_t column = 0; column < mask->kv; column += PIECE) {
        int64_t count = ejki_min(mask->kv - column, PIECE);
        ejki_mask_row(mask, row, column, count, piece);
        for (int64_t i = 0; i < count;) {
            const uint8_t *change = memchr(piece + i, begin < 0, (size_t)(count - i));
            if (change == NULL) break;
            i = change - piece;
            if (begin >= 0 && !add_run(runs, begin, column + i)) return false;
            begin = begin < 0 ? column + i : -1;
        }
    }
    return begin < 0 || add_run(runs, begin, mask->kv);
}

/* Turns the set that begins at `base` into its complement: begins become ends. */
static bool invert(const ejk_splash_mask *mask, int64_t base, ejki_runs *runs) {
    if (!reserve(runs, 2)) return false;
    int64_t *set = runs->items + base, count = runs->count - base;
    if (count > 0 && set[0] == 0) {
        memmove(set, set + 1, (size_t)--count * sizeof *set);
    } else {
        memmove(set + 1, set, (size_t)count++ * sizeof *set);
        set[0] = 0;
    }
    if (set[count - 1] == mask->kv)
        count--;
    else
        set[count++] = mask->kv;
    runs->count = base + count;
    return true;
}

/*
 * The sets [base, middle) and [middle, count) become one. Walking over the ends of both, a column is seen
 * by as many parts as there are runs open.
 */
static bool combine(int64_t base, int64_t middle, int needed, ejki_runs *runs) {
    int64_t end = runs->count, left = base, right = middle;
    if (!reserve(runs, end - base)) return false;
    int64_t *items = runs->items;
    while (left < middle || right < end) {
        int64_t at = left >= middle ? items[right]
                     : right >= end ? items[left]
                                    : ejki_min(items[left], items[right]);
        bool was = (runs->count - end) % 2 == 1;
        if (left < middle && items[left] == at) left++;
        if (right < end && items[right] == at) right++;
        bool is = (left - base) % 2 + (right - middle) % 2 >= needed;
        if (is != was) items[runs->count++] = at;
    }
    int64_t count = runs->count - end;
    if (count > 0) memmove(items + base, items + end, (size_t)count * sizeof *items);
    runs->count = base + count;
    return true;
}

bool ejki_row_runs(const ejk_splash_mask *mask, int64_t row, ejki_runs *runs) {
    int64_t low, high, base = runs->count, middle;
    switch (mask->kind) {
    case EJK_SPLASH_MASK_FULL: return add_run(runs, 0, mask->kv);
    case EJK_SPLASH_MASK_CAUSAL:
    case EJK_SPLASH_MASK_LOCAL:
    case EJK_SPLASH_MASK_CHUNKED_CAUSAL:
        ejki_mask_interval(mask, ejki_mask_position(mask, row), &low, &high);
        return add_run(runs, low, high + 1);
    case EJK_SPLASH_MASK_NUMPY:
    case EJK_SPLASH_MASK_FUNCTION: return element_runs(mask, row, runs);
    case EJK_SPLASH_MASK_LOGICAL_AND:
    case EJK_SPLASH_MASK_LOGICAL_OR:
        if (!ejki_row_runs(mask->parts[0], row, runs)) return false;
        middle = runs->count;
        return ejki_row_runs(mask->parts[1], row, runs) &&
               combine(base, middle, mask->kind == EJK_SPLASH_MASK_LOGICAL_AND ? 2 : 1, runs);
    case EJK_SPLASH_MASK_LOGICAL_NOT:
        return ejki_row_runs(mask->parts[0], row, runs) && invert(mask, base, runs);
    case EJK_SPLASH_MASK_MULTI_HEAD: break; /* has no rows of its own */
    }
    return false;
}
