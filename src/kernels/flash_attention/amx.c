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
#include "kernels/flash_attention/sequences.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/flash_attention/amx_plan.h"
#include "kernels/flash_attention/amx_rows.h"

#define AMX_KEYS       2048 /* of a block at most */
#define AMX_LEAST_ROWS 128  /* of a task that is cut only because it is long */
#define AMX_BIAS_AHEAD 2    /* chunks whose bias is asked for before it is needed */

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
    bool drops;
    float scale; /* of raw products to base 2; 1 if amx_modify() has done it */
    amx_exp exp;
    uint16_t *query, *keys, *values, *weights, *ones;
    float *sums, *lanes, *scores, *reference, *maximum, *base;
    float
        *rounded; /* with dropout: sums of weights as they were rounded, none left out; as lanes */
    flash_row *row;
    amx_tile *tile;
    amx_task task;
    amx_chunk *chunk;
    int64_t first, end; /* chunks of the block */
    int64_t following;  /* first key of the next one */
    tile_cells cells;   /* of the pattern's block that comes next, or that is cut there */
    ejki_cell *now;     /* those of the block's chunks */
    float key_top;      /* the block's largest key component */
    bool all_plain;     /* all its values go through the products */
    amx_rows soon[2];   /* next tile's queries, this one's output */
    int64_t pace;       /* rows of each to ask for at a chunk */
} amx_state;

#include "kernels/flash_attention/amx_blocks.h"

static void amx_set_problem(amx_state *s, const ejki_flash_problem *p, const amx_plan *t) {
    s->problem = p;
    s->plan = t;
    s->general = flash_is_general(p);
    s->drops = p->dropout > 0;
    s->precise = p->lse.data || !p->normalize || s->drops;
    s->split = !p->normalize;
    s->scale = flash_scale(p);
}

static void amx_bind(amx_state *s, const ejki_flash_problem *p, const amx_plan *t, char *memory) {
    *s = (amx_state){.exp = amx_exp_table()};
    amx_set_problem(s, p, t);
    s->scores = (float *)(void *)(memory + t->score_at);
    s->weights = (uint16_t *)(void *)(memory + t->weight_at);
    s->ones = (uint16_t *)(void *)(memory + t->ones_at);
    s->reference = (float *)(void *)(memory + t->float_at);
    s->maximum = s->reference + t->rows;
    s->base = s->maximum + t->rows;
    s->lanes = (float *)(void *)(memory + t->lane_at);
    s->rounded = s->lanes + t->rows * VL;
    s->query = (uint16_t *)(void *)(memory + t->query_at);
    s->sums = (float *)(void *)(memory + t->sum_at);
    s->keys = (uint16_t *)(void *)(memory + t->key_at);
    s->values = (uint16_t *)(void *)(memory + t->value_at);
    s->row = (flash_row *)(void *)(memory + t->row_at);
    s->tile = (amx_tile *)(void *)(memory + t->tile_at);
    s->chunk = (amx_chunk *)(void *)(memory + t->chunk_at);
    s->cells.cell = (tile_cell *)(void *)(memory + t->cell_at);
    s->cells.count = tile_cell_count(p);
    s->now = (ejki_cell *)(void *)(memory + t->now_at);
    for (int i = 0; i < AMX_ELEMENT; i++) s->ones[i] = 0x3f80;
}

/* ---- A chunk ----------------------------------------------------------------------------------------- */

/* A row tile at a block: chunks [first, end) of it, and what they need. */
typedef struct amx_span {
    int64_t row; /* first of the tile */
    int64_t rows, first, end;
    int64_t last; /* end of all that the tile has of the block */
    bool careful;
    bool fresh; /* no row has met a key yet */
    bool ready; /* the first chunk's raw products are there */
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

static inline uint16_t *amx_keys_of(const amx_state *s, int64_t chunk) {
    return s->keys + chunk * 2 * s->plan->steps * AMX_ELEMENT;
}

static void amx_set_reference(amx_state *s, int64_t row, float reference) {
    s->reference[row] = amx_round_reference(reference);
    s->base[row] = amx_base(s->reference[row]);
}

/* Raw products of a chunk. */
static inline void amx_multiply(const amx_state *s, const amx_span *span, int64_t chunk) {
    amx_scores(s->plan->steps, amx_queries(s, span->row), amx_keys_of(s, chunk), s->scores);
}

/* True if all rows see all keys of a chunk, as far as positions and the pattern go. */
static inline bool amx_is_whole(const amx_state *s, const amx_span *span, int64_t chunk) {
    const amx_chunk *place = &s->chunk[chunk];
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    return !place->hides && e->least <= place->key && e->most >= place->key + AMX_CHUNK;
}

/* True if a chunk's raw products have to be looked at before they become weights. */
static inline bool amx_needs_prepare(const amx_state *s, const amx_span *span, int64_t chunk,
                                     bool unset) {
    return unset || span->careful || !amx_is_whole(s, span, chunk);
}

static bool amx_is_unset(const amx_state *s, const amx_span *span) {
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        if (s->reference[i] == -INFINITY) return true;
    return false;
}

/* Raw products of a chunk become scores; rows that have none get their references, and all their maxima
 * if these are wanted. */
static __attribute__((noinline)) void amx_prepare_scores(amx_state *s, const amx_span *span,
                                                         int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const amx_chunk *place = &s->chunk[chunk];
    float *scores = s->scores;
    const int64_t key = place->key, count = place->end - key;
    const bool tracks = !p->normalize;
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK) {
        const flash_row *r = &s->row[i];
        if (s->general) amx_modify(p, r, key, count, scores);
        if (r->first > key || r->end < key + AMX_CHUNK) flash_hide(r, key, AMX_CHUNK, scores);
        if (place->hides) amx_hide_cells(s, r, place, scores);
        if (s->reference[i] != -INFINITY && !tracks) continue;
        const float top = amx_row_top(scores) * s->scale;
        if (s->reference[i] == -INFINITY && top != -INFINITY) amx_set_reference(s, i, top);
        if (top > s->maximum[i]) s->maximum[i] = top;
    }
}

/* References of rows that meet their first keys in a tame chunk, which all of them see whole: those that
 * amx_prepare_scores() would find, 16 at a time. */
static __attribute__((noinline)) void amx_first_references(amx_state *s, const amx_span *span) {
    const vf scale = v_set1(s->scale), steps = v_set1(128), magic = v_set1(AMX_MAGIC);
    for (int64_t row = 0; row < AMX_ROWS; row += VL) {
        const float *scores = s->scores + row * AMX_CHUNK;
        vf top[VL];
        for (int64_t i = 0; i < VL; i++, scores += AMX_CHUNK)
            top[i] = v_max(v_load(scores), v_load(scores + VL));
        v_transpose(top);
        for (int64_t n = VL / 2; n > 0; n /= 2)
            for (int64_t i = 0; i < n; i++) top[i] = v_max(top[i], top[i + n]);
        const vf fine = _mm512_roundscale_ps(v_mul(v_mul(top[0], scale), steps), 8);
        v_store(s->reference + span->row + row, v_mul(fine, v_set1(1 / 128.0f)));
        v_store(s->base + span->row + row, v_add(magic, v_sub(v_set1(127 * 128), fine)));
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
    if (s->drops) {
        float *rounded = s->rounded + row * VL;
        v_store(rounded, v_mul(v_load(rounded), v_set1(factor)));
    }
    _mm512_store_si512(amx_weights_of(s, row, chunk), amx_weigh(s, row, chunk, scores, lanes));
    return true;
}

/* Rows that overflowed, after the fast way: scores, which the next chunk's have replaced, are made once more. */
static __attribute__((noinline)) void amx_raise_rows(amx_state *s, const amx_span *span,
                                                     int64_t chunk) {
    const float *scores = s->scores;
    vf unused = v_zero();
    amx_multiply(s, span, chunk);
    if (amx_needs_prepare(s, span, chunk, false)) amx_prepare_scores(s, span, chunk);
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK)
        if (amx_overflows(_mm512_load_si512(amx_weights_of(s, i, chunk))))
            amx_raise(s, span, i, chunk, scores, &unused);
    if (chunk + 1 < span->last) amx_multiply(s, span, chunk + 1);
}

/* A row's weights of a chunk join the sum of all, then those that are dropped become 0. */
static void amx_drop(amx_state *s, int64_t row, int64_t chunk) {
    const __m512i kept = amx_kept(s->problem, &s->row[row], s->chunk[chunk].key);
    uint16_t *weights = amx_weights_of(s, row, chunk), *rest = amx_rest_of(s, row, chunk);
    float *rounded = s->rounded + row * VL;
    v_store(rounded, v_add(v_load(rounded), amx_sum_weights(weights)));
    amx_clear_weights(weights, kept);
    if (!s->split) return;
    v_store(rounded, v_add(v_load(rounded), amx_sum_weights(rest)));
    amx_clear_weights(rest, kept);
}

static __attribute__((noinline)) void amx_careful_weights(amx_state *s, const amx_span *span,
                                                          int64_t chunk) {
    const float *scores = s->scores;
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
        if (s->drops) amx_drop(s, i, chunk);
    }
}

/* sums += weights · values of a chunk, key by key over those that have a weight: none that is hidden. */
static __attribute__((noinline)) void amx_add_carefully(amx_state *s, const amx_span *span,
                                                        int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const int64_t key = s->chunk[chunk].key, end = s->chunk[chunk].end;
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

static inline void amx_look_ahead(amx_state *s) {
    if (s->pace == 0) return;
    for (int n = 0; n < 2; n++) {
        amx_rows *a = &s->soon[n];
        const int64_t end = ejki_min(a->row + s->pace, a->end);
        for (; a->row < end; a->row++) amx_ask(amx_row_place(a->tensor, &s->row[a->row]), a->width);
    }
}

/* Asks for the bias of a chunk, whose rows lie far apart. */
AMX_INLINE void amx_ask_bias(const amx_state *s, const amx_span *span, int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    if (chunk >= span->last) return;
    const int64_t last = s->chunk[chunk].end - 1;
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        _mm_prefetch(amx_place(flash_bias_row(p, &s->row[i]), last), _MM_HINT_T0);
}

/* Weights of all chunks of a span, and the raw products of the chunk behind it. */
static __attribute__((noinline)) void amx_make_weights(amx_state *s, const amx_span *span) {
    const int64_t steps = s->plan->steps;
    bool unset = amx_is_unset(s, span), fresh = span->fresh;
    amx_pair pair = {.query = amx_queries(s, span->row),
                     .scores = s->scores,
                     .base = s->base + span->row,
                     .factor = v_set1(s->scale * 128)};
    const bool biased = s->problem->has_bias;
    for (int64_t n = 0; biased && n < AMX_BIAS_AHEAD; n++) amx_ask_bias(s, span, span->first + n);
    if (!span->ready) amx_multiply(s, span, span->first);
    for (int64_t c = span->first; c < span->end; c++) {
        const bool more = c + 1 < span->last;
        amx_look_ahead(s);
        if (biased) amx_ask_bias(s, span, c + AMX_BIAS_AHEAD);
        if (amx_needs_prepare(s, span, c, unset)) {
            if (fresh && !span->careful && amx_is_whole(s, span, c))
                amx_first_references(s, span);
            else
                amx_prepare_scores(s, span, c);
            fresh = false;
            if (unset) unset = amx_is_unset(s, span);
        }
        if (span->careful) {
            amx_careful_weights(s, span, c);
            if (more) amx_multiply(s, span, c + 1);
            continue;
        }
        pair.weights = amx_weights_of(s, 0, c);
        pair.key = amx_keys_of(s, c + 1);
        const __m512i top =
            more ? amx_next(steps, &pair, &s->exp)
                 : amx_some_weights(&pair, &s->exp, 0, AMX_ROWS, _mm512_setzero_si512());
        if (amx_overflows(top)) amx_raise_rows(s, span, c);
    }
}

/* sums += weights · values over a span. */
static __attribute__((noinline)) void amx_add_values(amx_state *s, const amx_span *span) {
    const amx_plan *t = s->plan;
    float *sums = amx_sum(s, span->row, 0);
    for (int64_t c = span->first, end; c < span->end; c = end) {
        end = s->all_plain ? span->end : c;
        while (end < span->end && s->chunk[end].plain) end++;
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
    s->tile[row / AMX_ROWS].begun = true;
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
    if (s->drops) memset(s->rounded + row * VL, 0, AMX_ROWS * VL * sizeof(float));
}

/* Writes a row tile's results. */
static __attribute__((noinline)) void amx_end_tile(amx_state *s, int64_t row) {
    const amx_plan *t = s->plan;
    const int64_t end = ejki_min(row + AMX_ROWS, s->task.rows);
    for (int64_t i = row; i < end; i++) {
        const float rounded =
            s->drops ? v_sum(v_load(s->rounded + i * VL)) : *amx_sum(s, i, t->wide * 16);
        amx_write_row(s->problem, &s->row[i], amx_sum(s, i, 0), 2 * AMX_SUMS, s->reference[i],
                      s->maximum[i], s->precise ? v_sum(v_load(s->lanes + i * VL)) : rounded,
                      rounded);
    }
    s->tile[row / AMX_ROWS].ended = true;
}

/* Rows to ask for while a tile's weights are made: the next tile's queries, if it begins at this block, and
 * this one's output, if it ends here. */
static void amx_plan_rows(amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    const int64_t next = span->row + AMX_ROWS, element = sizeof(uint16_t);
    s->pace = 0;
    s->soon[0] = s->soon[1] = (amx_rows){0};
    if (next < s->task.rows && !e[1].begun && e[1].low < s->following)
        s->soon[0] = (amx_rows){&p->query, next, ejki_min(next + AMX_ROWS, s->task.rows),
                                p->head_dim * element};
    if (e->high <= s->following && p->normalize)
        s->soon[1] = (amx_rows){&p->out, span->row, span->row + span->rows, p->value_dim * element};
    if (s->soon[0].row < s->soon[0].end || s->soon[1].row < s->soon[1].end)
        s->pace = ejki_cdiv(AMX_ROWS, span->end - span->first);
}

/* True if mask, segments and positions let a row of the span see any of its keys. */
static bool amx_sees(const amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    uint8_t allowed[AMX_PARTS * AMX_CHUNK];
    if (!flash_hides_keys(p)) return true;
    for (int64_t c = span->first, next; c < span->end; c = next) {
        /* A run of keys, as far as it goes. */
        next = c + 1;
        while (next < span->end && s->chunk[next].key == s->chunk[next - 1].end) next++;
        for (int64_t i = span->row; i < span->row + span->rows; i++)
            if (flash_sees_any(p, &s->row[i], s->chunk[c].key, s->chunk[next - 1].end, allowed))
                return true;
    }
    return false;
}

/* Chunks of the block in which a row of the tile sees a key by positions. */
static void amx_narrow_span(const amx_state *s, const amx_tile *e, int64_t *first, int64_t *end) {
    *first = s->first;
    *end = e->low < e->high ? s->end : s->first;
    while (*first < *end && s->chunk[*first].end <= e->low) ++*first;
    while (*first < *end && s->chunk[*end - 1].key >= e->high) --*end;
}

static void amx_block(amx_state *s, int64_t row) {
    amx_tile *e = &s->tile[row / AMX_ROWS];
    amx_span span = {.row = row, .rows = ejki_min(AMX_ROWS, s->task.rows - row)};
    amx_narrow_span(s, e, &span.first, &span.end);
    if (span.first >= span.end) return;
    span.fresh = !e->begun;
    if (span.fresh) amx_begin_tile(s, row);
    span.careful = s->general || s->precise || !amx_is_tame(s, &span);
    amx_plan_rows(s, &span);
    for (span.last = span.end; span.first < span.last; span.first = span.end) {
        span.end = ejki_min(span.last, (span.first / AMX_PARTS + 1) * AMX_PARTS);
        const bool sees = amx_sees(s, &span);
        if (sees) {
            amx_make_weights(s, &span);
            amx_add_values(s, &span);
            span.fresh = false;
        }
        span.ready = sees;
    }
    if (e->high <= s->following) amx_end_tile(s, row);
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

/* A chunk's rows in keys or values, and those of the next one. */
static amx_source amx_source_of(const amx_state *s, const ejki_bthd *tensor, int64_t chunk) {
    const int64_t start = s->task.batch * tensor->stride_b + s->task.kv_head * tensor->stride_h;
    const amx_chunk *c = &s->chunk[chunk];
    return (amx_source){.row = amx_place(tensor->data, start + c->key * tensor->stride_t),
                        .ahead = amx_place(tensor->data, start + c[1].key * tensor->stride_t),
                        .stride = tensor->stride_t * (int64_t)sizeof(uint16_t),
                        .count = c->end - c->key,
                        .coming = c[1].end - c[1].key};
}

/* Packs keys and values of a block. */
static __attribute__((noinline)) void amx_pack(amx_state *s) {
    const ejki_flash_problem *p = s->problem;
    const amx_plan *t = s->plan;
    __m512i top = _mm512_setzero_si512();
    s->all_plain = true;
    for (int64_t c = s->first; c < s->end; c++) {
        amx_source keys = amx_source_of(s, &p->key, c);
        uint16_t *target = s->keys + 2 * c * t->steps * AMX_ELEMENT;
        top = amx_pack_keys(&keys, p->head_dim, t->steps, target, top);
        keys.row += 16 * keys.stride;
        keys.ahead += 16 * keys.stride;
        keys.count -= 16;
        keys.coming -= 16;
        top = amx_pack_keys(&keys, p->head_dim, t->steps, target + t->steps * AMX_ELEMENT, top);
        s->chunk[c].plain = amx_pack_values(amx_source_of(s, &p->value, c), p->value_dim, t->wide,
                                            s->values + c * t->wide * AMX_ELEMENT);
        s->all_plain &= s->chunk[c].plain;
    }
    s->key_top = amx_top(top);
}

/* One task from beginning to end. */
static void amx_group(amx_state *s, amx_task task) {
    int64_t low, high;
    s->task = task;
    amx_begin(s, &low, &high);
    if (low < high) {
        amx_first_block(s, low);
        while (amx_next_block(s, low, high)) {
            amx_pack(s);
            for (int64_t row = 0; row < task.rows; row += AMX_ROWS) amx_block(s, row);
        }
    }
    /* What has met no key, or has more before it than there are. */
    for (int64_t row = 0; row < task.rows; row += AMX_ROWS) {
        const amx_tile *e = &s->tile[row / AMX_ROWS];
        if (!e->begun) amx_begin_tile(s, row);
        if (!e->ended) amx_end_tile(s, row);
    }
}

#include "kernels/flash_attention/amx_workers.h"
