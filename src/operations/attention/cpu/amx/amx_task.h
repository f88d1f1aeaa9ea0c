/* SPDX-License-Identifier: Apache-2.0 */
/* A task of flash attention on AMX from beginning to end: amx.c says how it goes. */
#ifndef EJKI_FLASH_AMX_TASK_H
#define EJKI_FLASH_AMX_TASK_H

#include "operations/attention/cpu/amx/amx_chunk.h"
#include "operations/attention/cpu/amx/amx_store.h"

/* ---- A row tile at a block ----------------------------------------------------------------------------- */

static inline void amx_prefetch_next(amx_state *s) {
    if (s->prefetch_rate == 0) return;
    for (int n = 0; n < 2; n++) {
        amx_rows *a = &s->prefetch[n];
        const int64_t end = ejki_min(a->row + s->prefetch_rate, a->end);
        for (; a->row < end; a->row++)
            amx_prefetch(amx_row_address(a->tensor, &s->row[a->row]), a->width);
    }
}

/* Where the rows of a tile's bias begin; those of rows that do not exist are the last one's. */
static void amx_bias_rows(const amx_state *s, int64_t row, const char **bias) {
    for (int64_t i = 0; i < AMX_ROWS; i++)
        bias[i] = flash_bias_row(s->problem, &s->row[ejki_min(row + i, s->task.rows - 1)]);
}

/* Prefetches the bias of a chunk, whose rows lie far apart. */
static void amx_prefetch_bias(const amx_state *s, const amx_span *span, int64_t chunk) {
    if (chunk >= span->last) return;
    for (int64_t i = 0; i < span->rows; i++) amx_prefetch_far(s->bias[i] + 2 * s->chunk[chunk].key);
}

/* What of the bias is prefetched beside a chunk: what comes soon, of this tile or of the next one, or else the chunk's
 * own, which is there. */
static inline void amx_prefetch_next_bias(amx_state *s, const amx_span *span, int64_t chunk,
                                          amx_pair *pair) {
    const int64_t prefetch = chunk + AMX_BIAS_PREFETCH_DISTANCE;
    const bool later = prefetch >= span->last && s->prefetch_row >= 0;
    const int64_t place = later                   ? s->prefetch_chunk + prefetch - span->last
                          : prefetch < span->last ? prefetch
                                                  : chunk;
    pair->ahead = later ? s->prefetch_bias : s->bias;
    pair->ahead_skip = 2 * s->chunk[place].key;
    if (later) s->prefetched = s->prefetch_row;
}

/* What the fast path needs of a span; where chunks are is still to be said. */
static amx_pair amx_pair_of(const amx_state *s, const amx_span *span) {
    return (amx_pair){.query = amx_queries(s, span->row),
                      .scores = s->scores,
                      .base = s->base + span->row,
                      .factor = v_set1(s->scale * 128),
                      .form = &s->form,
                      .bias = s->bias};
}

/* Weights of a chunk from its raw products, and the raw products of the one behind it. */
static inline void amx_make_fast(amx_state *s, amx_span *span, int64_t chunk, amx_pair *pair) {
    const amx_chunk *place = &s->chunk[chunk];
    pair->weights = amx_weights_of(s, 0, chunk);
    pair->key = amx_keys_of(s, chunk + 1);
    pair->visible = span->visible;
    pair->skip = 2 * place->key;
    pair->inside = amx_first(place->end - place->key);
    if (s->form.biased) amx_prefetch_next_bias(s, span, chunk, pair);
    const amx_fit fit =
        chunk + 1 < span->last ? amx_next(s->plan->steps, pair, &s->exp) : amx_alone(pair, &s->exp);
    if (!amx_fits(&fit, AMX_MOST_BITS)) amx_repeat(s, span, chunk, pair, &fit);
}

/* Weights of all chunks of a span, and the raw products of the chunk behind it. */
static __attribute__((noinline)) void amx_make_weights(amx_state *s, amx_span *span) {
    bool unset = amx_is_unset(s, span);
    const bool biased = s->problem->has_bias;
    amx_pair pair = amx_pair_of(s, span);
    for (int64_t n = 0; biased && s->prefetched != span->row && n < AMX_BIAS_PREFETCH_DISTANCE; n++)
        amx_prefetch_bias(s, span, span->first + n);
    s->prefetched = span->row;
    if (!span->ready) amx_multiply(s, span, span->first);
    for (int64_t c = span->first; c < span->end; c++) {
        amx_prefetch_next(s);
        if (s->fast) span->visible = amx_visible_words(s, span, c);
        if (s->fast && unset) {
            amx_find_shifts(s, span, c);
            unset = amx_is_unset(s, span);
        }
        if (s->fast && !span->slow) {
            amx_make_fast(s, span, c, &pair);
            continue;
        }
        if (biased) amx_prefetch_bias(s, span, c + AMX_BIAS_PREFETCH_DISTANCE);
        if (!s->fast) amx_prepare_scores(s, span, c);
        amx_slow_weights(s, span, c);
        if (c + 1 < span->last) amx_multiply(s, span, c + 1);
    }
}

/* Clears a tile's sums, if they have not been written yet. */
static void amx_clear_sums(amx_state *s, int64_t row) {
    amx_tile *e = &s->tile[row / AMX_ROWS];
    if (e->blank) memset(amx_sum(s, row, 0), 0, (size_t)s->plan->sums * sizeof(float));
    e->blank = false;
}

/* Adds small sums to what products made without them. */
static __attribute__((noinline)) void amx_add_small(const amx_state *s, float *sums) {
    for (int64_t n = 0; n < s->plan->sums; n += VL) {
        const vf kept = v_load(s->small_sums + n), sum = v_load(sums + n);
        v_store(sums + n, _mm512_mask_add_ps(sum, amx_small(kept), sum, kept));
    }
}

/* sums += weights · values over a span. */
static __attribute__((noinline)) void amx_add_values(amx_state *s, const amx_span *span) {
    const amx_plan *t = s->plan;
    amx_tile *e = &s->tile[span->row / AMX_ROWS];
    float *sums = amx_sum(s, span->row, 0);
    int64_t place[AMX_STAGE_CHUNKS];
    for (int64_t c = t->kept > 0 ? span->first : span->end; c < span->end; c++)
        place[c - span->first] = s->chunk[c].place;
    for (int64_t c = span->first, end; c < span->end; c = end) {
        end = s->all_values_fit ? span->end : c;
        while (end < span->end && s->packed[s->chunk[end].place].values_fit) end++;
        if (end == c) {
            amx_clear_sums(s, span->row);
            amx_add_values_slow(s, span, end++);
            continue;
        }
        const int64_t *at = t->kept > 0 ? place + (c - span->first) : NULL, count = end - c;
        const uint16_t *values = s->values + (at ? 0 : c * t->value_tiles * AMX_ELEMENT);
        const bool small = e->small && !e->blank;
        if (small) memcpy(s->small_sums, sums, (size_t)t->sums * sizeof(float));
        amx_values(amx_weights_of(s, 0, c), at, count, values, t->value_tiles, s->ones, e->blank,
                   sums);
        e->blank = false;
        if (s->split)
            amx_values(amx_rest_of(s, 0, c), at, count, values, t->value_tiles, s->ones, false,
                       sums);
        if (small) amx_add_small(s, sums);
    }
}

/* True if no score of the tile at this block can leave what the fast path takes, but for what that finds. */
static bool amx_is_in_range(const amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    const double top = (double)s->tile[span->row / AMX_ROWS].top;
    const double most = top * (double)s->key_top * (double)p->head_dim * fabs(p->scale) * LOG2_E;
    return (s->form.caps || most <= AMX_FAST_RANGE) && !amx_has_far(s, span);
}

/* Packs a row tile's queries. */
static __attribute__((noinline)) void amx_begin_tile(amx_state *s, int64_t row) {
    const ejki_flash_problem *p = s->problem;
    const int64_t steps = s->plan->steps;
    uint16_t *target = amx_queries(s, row);
    s->tile[row / AMX_ROWS].begun = s->tile[row / AMX_ROWS].blank = true;
    __m512i top = _mm512_setzero_si512();
    for (int64_t i = 0; i < AMX_ROWS; i++) {
        uint16_t *to = target + i / 16 * steps * AMX_ELEMENT + i % 16 * 32;
        const bool exists = row + i < s->task.rows;
        const char *query = exists ? amx_row_address(&p->query, &s->row[row + i]) : NULL;
        for (int64_t n = 0; n < steps; n++) {
            const __m512i v =
                exists ? amx_load(query + 64 * n, p->head_dim - 32 * n) : _mm512_setzero_si512();
            top = amx_larger(top, v);
            _mm512_store_si512(to + n * AMX_ELEMENT, v);
        }
    }
    s->tile[row / AMX_ROWS].top = amx_top(top);
    if (s->precise) memset(s->lanes + row * VL, 0, AMX_ROWS * VL * sizeof(float));
    if (s->drops) memset(s->rounded + row * VL, 0, AMX_ROWS * VL * sizeof(float));
}

/* What a tile's sums are multiplied by where sinks join them; negative where amx_write_row() has to find out. */
static void amx_find_shares(const amx_state *s, int64_t row, float shares[AMX_ROWS]) {
    const ejki_flash_problem *p = s->problem;
    const int64_t end = ejki_min(AMX_ROWS, s->task.rows - row);
    const float correction = (float)flash_correction(p);
    for (int64_t i = 0; i < AMX_ROWS; i++) shares[i] = -1;
    if (!p->has_sinks || s->precise) return;
    for (int64_t first = 0; first < AMX_ROWS; first += VL) {
        float own[VL] = {0}, sink[VL];
        const vf shift = v_load(s->shift + row + first);
        for (int64_t i = 0; i < VL && first + i < end; i++)
            own[i] = *amx_sum(s, row + first + i, s->plan->value_tiles * 16);
        vf total = v_load(own);
        for (int64_t n = 0; n < p->sink_count; n++) {
            for (int64_t i = 0; i < VL; i++) {
                const flash_row *r = &s->row[row + ejki_min(first + i, end - 1)];
                sink[i] = (float)(amx_sink(p, r, n) * LOG2_E);
            }
            total = v_add(total, v_exp2(v_sub(v_load(sink), v_mul(shift, v_set1(correction)))));
        }
        const __mmask16 fits = _mm512_cmp_ps_mask(total, v_set1(0x1p100f), _CMP_LT_OQ) &
                               _mm512_cmp_ps_mask(v_load(own), v_zero(), _CMP_GT_OQ);
        v_store(shares + first, _mm512_mask_div_ps(v_set1(-1), fits, v_set1(1), total));
    }
}

/* Writes a row tile's results. */
static __attribute__((noinline)) void amx_end_tile(amx_state *s, int64_t row) {
    const amx_plan *t = s->plan;
    const int64_t end = ejki_min(row + AMX_ROWS, s->task.rows);
    float shares[AMX_ROWS];
    amx_clear_sums(s, row);
    amx_find_shares(s, row, shares);
    for (int64_t i = row; i < end; i++) {
        const float rounded =
            s->drops ? v_sum(v_load(s->rounded + i * VL)) : *amx_sum(s, i, t->value_tiles * 16);
        amx_write_row(s->problem, &s->row[i], amx_sum(s, i, 0), 2 * AMX_SUMS, s->shift[i],
                      s->maximum[i], s->precise ? v_sum(v_load(s->lanes + i * VL)) : rounded,
                      rounded, shares[i - row]);
    }
    s->tile[row / AMX_ROWS].ended = true;
}

/* Rows to prefetch while a tile's weights are made: the next tile's queries, if it begins at this block, and
 * this one's output, if it ends here. */
static void amx_plan_rows(amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    const int64_t next = span->row + AMX_ROWS, element = sizeof(uint16_t);
    s->prefetch_rate = 0;
    s->prefetch[0] = s->prefetch[1] = (amx_rows){0};
    if (next < s->task.rows && !e[1].begun && e[1].low < s->following)
        s->prefetch[0] = (amx_rows){&p->query, next, ejki_min(next + AMX_ROWS, s->task.rows),
                                    p->head_dim * element};
    if (e->high <= s->following && p->normalize)
        s->prefetch[1] =
            (amx_rows){&p->out, span->row, span->row + span->rows, p->value_dim * element};
    if (s->prefetch[0].row < s->prefetch[0].end || s->prefetch[1].row < s->prefetch[1].end)
        s->prefetch_rate = ejki_cdiv(AMX_ROWS, span->end - span->first);
}

/* True if mask, segments and positions let a row of the span see any of its keys. */
static bool amx_any_visible(const amx_state *s, const amx_span *span) {
    const ejki_flash_problem *p = s->problem;
    uint8_t visible[AMX_STAGE_CHUNKS * AMX_CHUNK];
    if (!flash_hides_keys(p)) return true;
    for (int64_t c = span->first, next; c < span->end; c = next) {
        /* A run of keys, as far as it goes. */
        next = c + 1;
        while (next < span->end && s->chunk[next].key == s->chunk[next - 1].end) next++;
        for (int64_t i = span->row; i < span->row + span->rows; i++)
            if (flash_any_visible(p, &s->row[i], s->chunk[c].key, s->chunk[next - 1].end, visible))
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

/*
 * Finds the bias of a tile that begins a block, and of the one that comes next, if that has chunks enough to
 * prefetch.
 */
static void amx_begin_bias(amx_state *s, int64_t row) {
    const int64_t next = row + AMX_ROWS;
    int64_t end = 0;
    amx_bias_rows(s, row, s->bias);
    s->prefetch_row = -1;
    s->prefetch_chunk = 0;
    if (next < s->task.rows)
        amx_narrow_span(s, &s->tile[next / AMX_ROWS], &s->prefetch_chunk, &end);
    if (s->prefetch_chunk + AMX_BIAS_PREFETCH_DISTANCE > end) return;
    s->prefetch_row = next;
    amx_bias_rows(s, next, s->prefetch_bias);
}

static void amx_block(amx_state *s, int64_t row) {
    amx_tile *e = &s->tile[row / AMX_ROWS];
    amx_span span = {.row = row, .rows = ejki_min(AMX_ROWS, s->task.rows - row)};
    amx_narrow_span(s, e, &span.first, &span.end);
    if (span.first >= span.end) return;
    if (!e->begun) amx_begin_tile(s, row);
    span.slow = !s->fast || !amx_is_in_range(s, &span);
    if (s->problem->has_bias) amx_begin_bias(s, row);
    amx_plan_rows(s, &span);
    for (span.last = span.end; span.first < span.last; span.first = span.end) {
        span.end = ejki_min(span.last, (span.first / AMX_STAGE_CHUNKS + 1) * AMX_STAGE_CHUNKS);
        const bool visible = amx_any_visible(s, &span);
        if (visible) {
            amx_make_weights(s, &span);
            amx_add_values(s, &span);
        }
        span.ready = visible;
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
    s->noted = -1;
    for (int64_t i = 0; i < tiles * AMX_ROWS; i++) {
        if (i < task->rows)
            s->row[i] = flash_row_of(p, task->batch, task->kv_head, task->first_row + i);
        s->shift[i] = s->maximum[i] = -INFINITY;
        s->base[i] = amx_base_of(s, -INFINITY);
    }
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t row = i * AMX_ROWS;
        s->tile[i] = amx_tile_of(p, s->row + row, ejki_min(AMX_ROWS, task->rows - row));
        if (s->tile[i].low >= s->tile[i].high) continue;
        *low = ejki_min(*low, s->tile[i].low);
        *high = ejki_max(*high, s->tile[i].high);
    }
}

/* Task `index` of all from beginning to end. */
static void amx_group(amx_state *s, amx_task task, int64_t index) {
    int64_t low, high;
    s->task = task;
    amx_begin(s, &low, &high);
    if (low < high) {
        if (s->plan->kept > 0) amx_store_advance(s, index);
        amx_first_block(s, low);
        while (amx_next_block(s, low, high)) {
            amx_pack(s);
            s->prefetched = -1;
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

#endif
