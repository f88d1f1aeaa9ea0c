/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward in bf16 on AMX tiles.
 *
 * The rows of a key head, T queries times G query heads, are cut into groups; a group is one task. A
 * worker packs the group's queries, then walks over blocks of keys at absolute positions. A block is
 * packed once and used by all row tiles of the group, 32 rows each: for each chunk of 32 keys
 * scores = query · keysᵀ, while the vector units make weights of the chunk before; then, over all chunks
 * of the block, sums += weights · values. A column of ones beside the values adds up the weights as they
 * were rounded.
 *
 * Softmax. A row's reference is the largest score of the first chunk in which it sees a key, and stays:
 * weights are 2^(z − reference), whose exponents bf16 holds as f32 does. A chunk with a weight from
 * 2^40 on raises the reference of that row: its scores become weights again, and sums and earlier weights
 * are lowered by a power of two, which loses nothing.
 *
 * Where queries and keys are small enough that no score can leave the range of amx_row_weights(), and no
 * feature changes scores, weights are made by the fast way; else row by row, the same bits where both
 * could. Log-sum-exp, row_max and row_sum have f32 accuracy, for which the weights are computed in f32;
 * without normalisation, where out is f32 too, what rounding them loses is multiplied as well.
 *
 * AMX counts numbers below 2^-126 as 0. Chunks with values that are so small, too large, or not finite
 * are added key by key, only those with a weight, which is slow. Such small queries and keys count as 0.
 *
 * Why results do not depend on tiles: blocks, chunks and lanes lie at absolute key positions, a key that
 * a row does not see adds an exact 0, and references are decided by the row alone.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "kernels/flash_attention/problem.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/flash_attention/amx_plan.h"
#include "kernels/flash_attention/amx_rows.h"

#define AMX_KEYS 2048 /* of a block at most */

/* Rows [row, end) of the task in a tensor that will be needed soon: they are asked for while products run. */
typedef struct amx_rows {
    const ejki_bthd *tensor;
    int64_t row, end, width;
} amx_rows;

/* One worker's memory and the group it is at. */
typedef struct amx_state {
    const ejki_flash_problem *problem;
    const amx_plan *plan;
    bool general;
    bool precise; /* weights are computed in f32 */
    bool split;   /* and multiplied in two parts */
    float scale;  /* of raw products to base 2; 1 if amx_modify() has done it */
    amx_exp exp;
    uint16_t *query, *keys, *values, *weights, *ones;
    float *sums, *lanes, *scores, *reference, *maximum, *base;
    flash_row *row;
    amx_tile *tile;
    amx_task task;
    int64_t block;                               /* first key of the block */
    float key_top;                               /* its largest key component */
    amx_rows soon[2];                            /* next tile's queries, this one's output */
    int64_t pace;                                /* rows of each to ask for at a chunk */
    bool plain[AMX_KEYS / AMX_CHUNK], all_plain; /* values of a chunk go through the products */
} amx_state;

static void amx_bind(amx_state *s, const ejki_flash_problem *p, const amx_plan *t, char *memory) {
    *s = (amx_state){.problem = p,
                     .plan = t,
                     .general = flash_is_general(p),
                     .precise = p->lse.data || !p->normalize,
                     .split = !p->normalize,
                     .scale = flash_scale(p),
                     .exp = amx_exp_table()};
    s->scores = (float *)(void *)(memory + t->score_at);
    s->weights = (uint16_t *)(void *)(memory + t->weight_at);
    s->ones = (uint16_t *)(void *)(memory + t->ones_at);
    s->reference = (float *)(void *)(memory + t->float_at);
    s->maximum = s->reference + t->rows;
    s->base = s->maximum + t->rows;
    s->lanes = (float *)(void *)(memory + t->lane_at);
    s->query = (uint16_t *)(void *)(memory + t->query_at);
    s->sums = (float *)(void *)(memory + t->sum_at);
    s->keys = (uint16_t *)(void *)(memory + t->key_at);
    s->values = (uint16_t *)(void *)(memory + t->value_at);
    s->row = (flash_row *)(void *)(memory + t->row_at);
    s->tile = (amx_tile *)(void *)(memory + t->tile_at);
    for (int i = 0; i < AMX_ELEMENT; i++) s->ones[i] = 0x3f80;
}

/* ---- A chunk ----------------------------------------------------------------------------------------- */

/* A row tile at a block: chunks [first, end) of it, and what they need. */
typedef struct amx_span {
    int64_t row; /* first of the tile */
    int64_t rows, first, end;
    bool careful;
} amx_span;

/* Where a row's tile has its queries and sums: tiles that are done with before the next one share one place. */
static inline int64_t amx_slot(const amx_state *s, int64_t row) {
    return s->plan->slots == 1 ? 0 : row / AMX_ROWS;
}

static inline uint16_t *amx_queries(const amx_state *s, int64_t row) {
    return s->query + amx_slot(s, row) * 2 * s->plan->steps * AMX_ELEMENT;
}

/* Where a row's sums of column d begin. */
static inline float *amx_sum(const amx_state *s, int64_t row, int64_t d) {
    const int64_t half = row % AMX_ROWS / 16;
    return s->sums + amx_slot(s, row) * s->plan->sums + (d / 16 * 2 + half) * AMX_SUMS +
           row % 16 * 16 + d % 16;
}

/* The row's 32 weights of a chunk. */
static inline uint16_t *amx_weights_of(const amx_state *s, int64_t row, int64_t chunk) {
    return s->weights + chunk % AMX_PARTS * 2 * AMX_ELEMENT + row % AMX_ROWS * AMX_CHUNK;
}

/* The rest of the row's weights, where they have two parts. */
static inline uint16_t *amx_rest_of(const amx_state *s, int64_t row, int64_t chunk) {
    return amx_weights_of(s, row, chunk) + AMX_ROWS * AMX_PART;
}

static void amx_set_reference(amx_state *s, int64_t row, float reference) {
    s->reference[row] = amx_round_reference(reference);
    s->base[row] = amx_base(s->reference[row]);
}

/* Raw products of a chunk become scores; rows that have none get their references, and all their maxima
 * if these are wanted. */
static __attribute__((noinline)) void amx_prepare_scores(amx_state *s, const amx_span *span,
                                                         int64_t chunk, float *scores) {
    const ejki_flash_problem *p = s->problem;
    const int64_t key = s->block + chunk * AMX_CHUNK, count = ejki_min(AMX_CHUNK, p->keys - key);
    const bool tracks = !p->normalize;
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK) {
        const flash_row *r = &s->row[i];
        if (s->general) amx_modify(p, r, key, count, scores);
        if (r->first > key || r->end < key + AMX_CHUNK) flash_hide(r, key, AMX_CHUNK, scores);
        if (s->reference[i] != -INFINITY && !tracks) continue;
        const float top = amx_row_top(scores) * s->scale;
        if (s->reference[i] == -INFINITY && top != -INFINITY) amx_set_reference(s, i, top);
        if (top > s->maximum[i]) s->maximum[i] = top;
    }
}

/* A row's weights of a chunk by the complete way. */
static inline __m512i amx_weigh(amx_state *s, int64_t row, int64_t chunk, const float *scores,
                                vf *lanes) {
    if (!s->precise) return amx_any_weights(&s->exp, scores, s->scale, s->reference[row]);
    return amx_precise_weights(scores, s->scale, s->reference[row], lanes,
                               s->split ? amx_rest_of(s, row, chunk) : NULL);
}

static inline bool amx_overflows(__m512i weights) {
    return _mm512_cmpge_epu16_mask(weights, _mm512_set1_epi16((short)AMX_MOST_BITS)) != 0;
}

/* A row's weights have become too large in this chunk: see the head of this file. */
static __attribute__((noinline)) bool amx_raise(amx_state *s, const amx_span *span, int64_t row,
                                                int64_t chunk, const float *scores, vf *lanes) {
    const float before = s->reference[row], top = amx_row_top(scores) * s->scale;
    if (!(top > before)) return false; /* NaN made it look so */
    amx_set_reference(s, row, before + ceilf(top - before));
    const float power = s->reference[row] - before, factor = exp2f(-power);
    for (int64_t c = span->first; c < chunk; c++) {
        amx_lower_weights(amx_weights_of(s, row, c), power);
        if (s->split) amx_lower_weights(amx_rest_of(s, row, c), power);
    }
    for (int64_t d = 0; d <= s->plan->wide * 16; d += 16) {
        float *sum = amx_sum(s, row, d);
        v_store(sum, v_mul(v_load(sum), v_set1(factor)));
    }
    *lanes = v_mul(*lanes, v_set1(factor));
    _mm512_store_si512(amx_weights_of(s, row, chunk), amx_weigh(s, row, chunk, scores, lanes));
    return true;
}

/* Rows that overflowed, after the fast way. */
static __attribute__((noinline)) void amx_raise_rows(amx_state *s, const amx_span *span,
                                                     int64_t chunk, const float *scores) {
    vf unused = v_zero();
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK)
        if (amx_overflows(_mm512_load_si512(amx_weights_of(s, i, chunk))))
            amx_raise(s, span, i, chunk, scores, &unused);
}

static __attribute__((noinline)) void amx_careful_weights(amx_state *s, const amx_span *span,
                                                          int64_t chunk, const float *scores) {
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK) {
        const vf before = v_load(s->lanes + i * VL);
        vf lanes = before;
        const __m512i w = amx_weigh(s, i, chunk, scores, &lanes);
        _mm512_store_si512(amx_weights_of(s, i, chunk), w);
        if (amx_overflows(w)) {
            vf raised = before;
            if (amx_raise(s, span, i, chunk, scores, &raised)) lanes = raised;
        }
        v_store(s->lanes + i * VL, lanes);
    }
}

/* sums += weights · values of a chunk, key by key over those that have a weight: none that is hidden. */
static __attribute__((noinline)) void amx_add_carefully(amx_state *s, const amx_span *span,
                                                        int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const int64_t key = s->block + chunk * AMX_CHUNK, end = ejki_min(key + AMX_CHUNK, p->keys);
    const int64_t start = s->task.batch * p->value.stride_b + s->task.kv_head * p->value.stride_h;
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        for (int64_t j = key; j < end; j++) {
            const int64_t n = j - key, place = n % 16 / 4 * 8 + n / 16 * 4 + n % 4;
            const uint16_t bits = amx_weights_of(s, i, chunk)[place];
            if (bits == 0) continue;
            const float rest = s->split ? ejk_bf16_to_f32(amx_rest_of(s, i, chunk)[place]) : 0;
            const vf weight = v_set1(ejk_bf16_to_f32(bits) + rest);
            for (int64_t d = 0; d < p->value_dim; d += VL) {
                float *sum = amx_sum(s, i, d);
                const char *value = amx_place(p->value.data, start + j * p->value.stride_t + d);
                v_store(sum, v_fma(weight, amx_widen(value, p->value_dim - d), v_load(sum)));
            }
            float *ones = amx_sum(s, i, s->plan->wide * 16);
            v_store(ones, v_add(v_load(ones), weight));
        }
}

/* ---- A row tile at a block ----------------------------------------------------------------------------- */

/* True if a chunk's raw products have to be looked at before they become weights. */
static inline bool amx_needs_prepare(const amx_state *s, const amx_span *span, const amx_tile *e,
                                     int64_t chunk, bool unset) {
    const int64_t key = s->block + chunk * AMX_CHUNK;
    return unset || span->careful || e->least > key || e->most < key + AMX_CHUNK;
}

static bool amx_is_unset(const amx_state *s, const amx_span *span) {
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        if (s->reference[i] == -INFINITY) return true;
    return false;
}

static inline void amx_look_ahead(amx_state *s) {
    for (int n = 0; n < 2; n++) {
        amx_rows *a = &s->soon[n];
        const int64_t end = ejki_min(a->row + s->pace, a->end);
        for (; a->row < end; a->row++) amx_ask(amx_row_place(a->tensor, &s->row[a->row]), a->width);
    }
}

/* Weights of all chunks of a span. */
static __attribute__((noinline)) void amx_make_weights(amx_state *s, const amx_span *span) {
    const int64_t steps = s->plan->steps;
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    const uint16_t *query = amx_queries(s, span->row);
    float *scores = s->scores, *other = s->scores + AMX_ROWS * AMX_CHUNK;
    bool unset = amx_is_unset(s, span);
    amx_pair pair = {.query = query, .base = s->base + span->row, .factor = v_set1(s->scale * 128)};
    amx_scores(steps, query, s->keys + span->first * 2 * steps * AMX_ELEMENT, scores);
    for (int64_t c = span->first; c < span->end; c++) {
        amx_look_ahead(s);
        const uint16_t *next = s->keys + (c + 1) * 2 * steps * AMX_ELEMENT;
        if (amx_needs_prepare(s, span, e, c, unset)) {
            amx_prepare_scores(s, span, c, scores);
            if (unset) unset = amx_is_unset(s, span);
        }
        if (span->careful) {
            amx_careful_weights(s, span, c, scores);
            if (c + 1 < span->end) amx_scores(steps, query, next, other);
        } else {
            __m512i top;
            pair.scores = scores;
            pair.weights = amx_weights_of(s, 0, c);
            pair.key = next;
            pair.next = other;
            if (c + 1 < span->end)
                top = amx_next(steps, &pair, &s->exp);
            else
                top = amx_some_weights(&pair, &s->exp, 0, AMX_ROWS, _mm512_setzero_si512());
            if (amx_overflows(top)) amx_raise_rows(s, span, c, scores);
        }
        float *swap = scores;
        scores = other;
        other = swap;
    }
}

/* sums += weights · values over a span. */
static __attribute__((noinline)) void amx_add_values(amx_state *s, const amx_span *span) {
    const amx_plan *t = s->plan;
    float *sums = amx_sum(s, span->row, 0);
    for (int64_t c = span->first, end; c < span->end; c = end) {
        end = s->all_plain ? span->end : c;
        while (end < span->end && s->plain[end]) end++;
        if (end == c) {
            amx_add_carefully(s, span, end++);
            continue;
        }
        const uint16_t *values = s->values + c * t->wide * AMX_ELEMENT;
        amx_values(amx_weights_of(s, 0, c), end - c, values, t->wide, s->ones, sums);
        if (s->split) amx_values(amx_rest_of(s, 0, c), end - c, values, t->wide, s->ones, sums);
    }
}

/* True if no score of the tile at this block can leave what the fast way takes. */
static bool amx_is_tame(const amx_state *s, const amx_span *span) {
    const double top = (double)s->tile[span->row / AMX_ROWS].top;
    if (!(top * (double)s->key_top * (double)s->problem->head_dim * (double)s->scale <= AMX_TAME))
        return false;
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        if (amx_is_far(s->reference[i])) return false;
    return true;
}

/* Packs a row tile's queries and clears its sums. */
static __attribute__((noinline)) void amx_begin_tile(amx_state *s, int64_t row) {
    const ejki_flash_problem *p = s->problem;
    const int64_t steps = s->plan->steps, sums = s->plan->sums;
    uint16_t *target = amx_queries(s, row);
    __m512i top = _mm512_setzero_si512();
    for (int64_t i = 0; i < AMX_ROWS; i++) {
        uint16_t *to = target + i / 16 * steps * AMX_ELEMENT + i % 16 * 32;
        const bool exists = row + i < s->task.rows;
        const char *query = exists ? amx_row_place(&p->query, &s->row[row + i]) : NULL;
        for (int64_t n = 0; n < steps; n++) {
            const __m512i v =
                exists ? amx_load(query + 64 * n, p->head_dim - 32 * n) : _mm512_setzero_si512();
            top = amx_larger(top, v);
            _mm512_store_si512(to + n * AMX_ELEMENT, v);
        }
    }
    s->tile[row / AMX_ROWS].top = amx_top(top);
    memset(amx_sum(s, row, 0), 0, (size_t)sums * sizeof(float));
    if (s->precise) memset(s->lanes + row * VL, 0, AMX_ROWS * VL * sizeof(float));
}

/* Writes a row tile's results. */
static __attribute__((noinline)) void amx_end_tile(amx_state *s, int64_t row) {
    const amx_plan *t = s->plan;
    const int64_t end = ejki_min(row + AMX_ROWS, s->task.rows);
    for (int64_t i = row; i < end; i++) {
        const float rounded = *amx_sum(s, i, t->wide * 16);
        amx_write_row(s->problem, &s->row[i], amx_sum(s, i, 0), 2 * AMX_SUMS, s->reference[i],
                      s->maximum[i], s->precise ? v_sum(v_load(s->lanes + i * VL)) : rounded,
                      rounded);
    }
}

/* Rows to ask for while a tile's weights are made: the next tile's queries, if it begins at this block, and
 * this one's output, if it ends here. */
static void amx_plan_rows(amx_state *s, const amx_span *span, int64_t block_end) {
    const ejki_flash_problem *p = s->problem;
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    const int64_t next = span->row + AMX_ROWS, element = sizeof(uint16_t);
    s->pace = ejki_cdiv(AMX_ROWS, span->end - span->first);
    s->soon[0] = s->soon[1] = (amx_rows){0};
    if (next < s->task.rows && e[1].low >= s->block && e[1].low < block_end)
        s->soon[0] = (amx_rows){&p->query, next, ejki_min(next + AMX_ROWS, s->task.rows),
                                p->head_dim * element};
    if (e->high <= block_end && p->normalize)
        s->soon[1] = (amx_rows){&p->out, span->row, span->row + span->rows, p->value_dim * element};
}

/* True if mask and segments let a row of the span see any of its keys. */
static bool amx_sees(const amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    uint8_t allowed[AMX_PARTS * AMX_CHUNK];
    if (!p->has_mask && !p->has_segments) return true;
    for (int64_t i = 0; i < span->rows; i++)
        if (flash_sees_any(p, &s->row[span->row + i], s->block + span->first * AMX_CHUNK,
                           s->block + span->end * AMX_CHUNK, allowed))
            return true;
    return false;
}

static void amx_block(amx_state *s, int64_t row, int64_t block_end) {
    const amx_tile *e = &s->tile[row / AMX_ROWS];
    const int64_t low = ejki_max(e->low, s->block) - s->block;
    const int64_t high = ejki_min(e->high, block_end) - s->block;
    if (low >= high) return;
    amx_span span = {.row = row,
                     .rows = ejki_min(AMX_ROWS, s->task.rows - row),
                     .first = low / AMX_CHUNK,
                     .end = ejki_cdiv(high, AMX_CHUNK)};
    if (e->low >= s->block) amx_begin_tile(s, row);
    span.careful = s->general || s->precise || !amx_is_tame(s, &span);
    amx_plan_rows(s, &span, block_end);
    for (const int64_t last = span.end; span.first < last; span.first = span.end) {
        span.end = ejki_min(last, (span.first / AMX_PARTS + 1) * AMX_PARTS);
        if (!amx_sees(s, &span)) continue;
        amx_make_weights(s, &span);
        amx_add_values(s, &span);
    }
    if (e->high <= block_end) amx_end_tile(s, row);
}

/* ---- A task ------------------------------------------------------------------------------------------ */

/* What a row tile sees. */
static amx_tile amx_tile_of(const ejki_flash_problem *p, const flash_row *rows, int64_t count) {
    amx_tile e = {.low = p->keys, .high = 0, .least = 0, .most = p->keys};
    for (const flash_row *r = rows; r < rows + count; r++) {
        e.low = ejki_min(e.low, r->first);
        e.high = ejki_max(e.high, r->end);
        e.least = ejki_max(e.least, r->first);
        e.most = ejki_min(e.most, r->end);
    }
    return e;
}

/* Starts a task's rows. Returns the range of keys that any of them sees. */
static __attribute__((noinline)) void amx_begin(amx_state *s, int64_t *low, int64_t *high) {
    const ejki_flash_problem *p = s->problem;
    const amx_task *task = &s->task;
    const int64_t tiles = ejki_cdiv(task->rows, AMX_ROWS);
    *low = p->keys;
    *high = 0;
    for (int64_t i = 0; i < tiles * AMX_ROWS; i++) {
        if (i < task->rows)
            s->row[i] = flash_row_of(p, task->batch, task->kv_head, task->first_row + i);
        s->reference[i] = s->maximum[i] = -INFINITY;
        s->base[i] = amx_base(-INFINITY);
    }
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t row = i * AMX_ROWS;
        s->tile[i] = amx_tile_of(p, s->row + row, ejki_min(AMX_ROWS, task->rows - row));
        if (s->tile[i].low >= s->tile[i].high) continue;
        *low = ejki_min(*low, s->tile[i].low);
        *high = ejki_max(*high, s->tile[i].high);
    }
}

/* Packs keys and values of the chunks [first, end) of a block. */
static __attribute__((noinline)) void amx_pack(amx_state *s, int64_t first, int64_t end) {
    const ejki_flash_problem *p = s->problem;
    const amx_plan *t = s->plan;
    const int64_t element = sizeof(uint16_t);
    const int64_t key_at = s->task.batch * p->key.stride_b + s->task.kv_head * p->key.stride_h;
    const int64_t value_at =
        s->task.batch * p->value.stride_b + s->task.kv_head * p->value.stride_h;
    __m512i top = _mm512_setzero_si512();
    s->all_plain = true;
    for (int64_t c = first; c < end; c++) {
        const int64_t key = s->block + c * AMX_CHUNK, left = p->keys - key;
        for (int64_t half = 0; half < 2; half++)
            top =
                amx_pack_keys(amx_place(p->key.data, key_at + (key + 16 * half) * p->key.stride_t),
                              p->key.stride_t * element, left - 16 * half, p->head_dim, t->steps,
                              s->keys + (2 * c + half) * t->steps * AMX_ELEMENT, top);
        s->plain[c] = amx_pack_values(amx_place(p->value.data, value_at + key * p->value.stride_t),
                                      p->value.stride_t * element, left, p->value_dim, t->wide,
                                      s->values + c * t->wide * AMX_ELEMENT);
        s->all_plain &= s->plain[c];
    }
    s->key_top = amx_top(top);
}

/* One task from beginning to end. */
static void amx_group(amx_state *s, amx_task task) {
    const amx_plan *t = s->plan;
    int64_t low, high;
    s->task = task;
    amx_begin(s, &low, &high);
    for (s->block = low / t->keys * t->keys; s->block < high; s->block += t->keys) {
        const int64_t end = ejki_min(s->block + t->keys, high);
        amx_pack(s, ejki_max(low - s->block, 0) / AMX_CHUNK, ejki_cdiv(end - s->block, AMX_CHUNK));
        for (int64_t row = 0; row < task.rows; row += AMX_ROWS) amx_block(s, row, end);
    }
    /* What sees nothing has not been begun. */
    for (int64_t row = 0; row < task.rows; row += AMX_ROWS) {
        const amx_tile *e = &s->tile[row / AMX_ROWS];
        if (e->low < e->high) continue;
        amx_begin_tile(s, row);
        amx_end_tile(s, row);
    }
}

/* What the workers of one run share. */
typedef struct amx_shared {
    const ejki_flash_problem *problem;
    amx_plan plan;
    char *workspace;
    int32_t workers;
    _Atomic int64_t next;
} amx_shared;

/* A worker takes tasks until none is left. */
static void amx_worker(void *argument, int64_t worker) {
    amx_shared *shared = argument;
    const amx_plan *t = &shared->plan;
    amx_state state;
    amx_bind(&state, shared->problem, t, shared->workspace + worker * t->bytes);
    amx_open();
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= t->tasks) break;
        amx_group(&state, amx_task_of(shared->problem, t, index));
    }
    amx_close();
}

static ejk_status amx_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    const amx_plan t = amx_plan_of(problem, parameters, 1);
    if (t.bytes >= (int64_t)1 << 50) return flash_too_large(problem);
    launch->workers =
        flash_is_light(problem) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, t.tasks));
    launch->workspace_bytes = (size_t)(t.bytes * launch->workers);
    return EJK_OK;
}

static ejk_status amx_run(const ejk_run *run) {
    amx_shared shared = {
        .problem = run->problem, .workspace = run->workspace, .workers = run->workers};
    shared.plan = amx_plan_of(run->problem, run->parameters, run->workers);
    if (run->workers == 1)
        amx_worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, amx_worker, &shared);
    return EJK_OK;
}

static bool amx_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return p->dropout == 0 && p->layout == EJKI_FLASH_DENSE && ejki_pattern_is_empty(&p->pattern);
}

static const ejk_parameter amx_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 1024, "query rows of a task"},
    {"kv_blocksize", 1, AMX_KEYS, 1, 1024, "keys packed at a time"},
};

extern const ejk_implementation ejki_flash_attention_bf16_amx_tile;
const ejk_implementation ejki_flash_attention_bf16_amx_tile = {
    .algorithm = "flash_attention",
    .name = "bf16/amx/matrix",
    .platform = EJK_PLATFORM_SIMD,
    .backend = EJK_BACKEND_CPU,
    .isa = EJK_ISA_AMX,
    .dtype = EJK_DTYPE_BF16,
    .priority = 5,
    .version = 1,
    .parameters = amx_parameters,
    .parameter_count = 2,
    .applicable = amx_applicable,
    .prepare = amx_prepare,
    .run = amx_run,
};
