/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a row tile and a chunk in flash attention on AMX, without the fast path: softmax shifts, visibility, the
 * slow path, and values that are added key by key.
 */
#ifndef EJKI_FLASH_AMX_CHUNK_H
#define EJKI_FLASH_AMX_CHUNK_H

#include "operations/attention/cpu/amx/amx_blocks.h"

/* The constant of a row's exponents: see amx_base() and amx_form_base(). */
static inline float amx_base_of(const amx_state *s, float shift) {
    return amx_kind(&s->form) == AMX_PLAIN ? amx_base(shift) : amx_form_base(shift);
}

static void amx_set_shift(amx_state *s, int64_t row, float shift) {
    s->shift[row] = amx_round_shift(shift);
    s->base[row] = amx_base_of(s, s->shift[row]);
}

/* Raw products of a chunk. */
static inline void amx_multiply(const amx_state *s, const amx_span *span, int64_t chunk) {
    amx_scores(s->plan->steps, amx_queries(s, span->row), amx_keys_of(s, chunk), s->scores);
}

/* True if all rows see all keys of a chunk, as far as positions and the block mask go. */
static inline bool amx_is_whole(const amx_state *s, const amx_span *span, int64_t chunk) {
    const amx_chunk *place = &s->chunk[chunk];
    const amx_tile *e = &s->tile[span->row / AMX_ROWS];
    return !place->hides && e->least <= place->key && e->most >= place->key + AMX_CHUNK;
}

/* Which of 16 rows of a span, from `first` of it on, have no shift yet. */
static inline __mmask16 amx_unset_rows(const amx_state *s, const amx_span *span, int64_t first) {
    const __mmask16 there = v_first(ejki_max(0, ejki_min(VL, span->rows - first)));
    return _mm512_mask_cmp_ps_mask(there, v_load(s->shift + span->row + first), v_set1(-INFINITY),
                                   _CMP_EQ_OQ);
}

static inline bool amx_is_unset(const amx_state *s, const amx_span *span) {
    return (amx_unset_rows(s, span, 0) | amx_unset_rows(s, span, VL)) != 0;
}

static bool amx_has_far(const amx_state *s, const amx_span *span) {
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        if (amx_is_far(s->shift[i])) return true;
    return false;
}

/* Looks up the key ranges of the rows of a tile; rows that do not exist have that of the last one. */
static __attribute__((noinline)) void amx_note_ranges(amx_state *s, const amx_span *span) {
    for (int64_t i = 0; i < AMX_ROWS; i++) {
        const flash_row *r = &s->row[span->row + ejki_min(i, span->rows - 1)];
        s->low[i] = r->first;
        s->high[i] = r->end;
    }
    s->noted = span->row;
}

/* Keys of a chunk that rows of the tile see; NULL if every row sees all. */
static const uint32_t *amx_visible_words(amx_state *s, const amx_span *span, int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const amx_chunk *place = &s->chunk[chunk];
    const bool hides = flash_hides_keys(p);
    if (amx_is_whole(s, span, chunk) && !hides) return NULL;
    if (s->noted != span->row) amx_note_ranges(s, span);
    amx_within(s->low, s->high, place->key, s->words);
    if (!place->hides && !hides) return s->words;
    uint32_t all = 0xffffffffu;
    for (int64_t i = 0; i < span->rows; i++) {
        const flash_row *r = &s->row[span->row + i];
        uint32_t visible = s->words[i];
        if (place->hides) visible &= amx_mask_block_keys(s, r, place);
        s->words[i] = amx_visible_keys(p, r, place->key, place->end - place->key, visible);
        all &= s->words[i];
    }
    return all == 0xffffffffu ? NULL : s->words;
}

/* A row's bias of a chunk; 0 where there is none. */
static inline __m512i amx_bias_of(const amx_state *s, int64_t row, int64_t chunk) {
    if (!s->form.biased) return _mm512_setzero_si512();
    const amx_chunk *place = &s->chunk[chunk];
    return amx_load(s->bias[row % AMX_ROWS] + 2 * place->key, place->end - place->key);
}

/* The larger ones of a row's scores of a chunk that it sees: to base 2 with a form that has them, else raw. NaN is
 * passed over. */
AMX_INLINE vf amx_larger_scores(const amx_state *s, const amx_form *f, const amx_span *span,
                                int64_t row, int64_t chunk, const float *scores) {
    const vf none = v_set1(-INFINITY);
    vf a = v_load(scores), b = v_load(scores + VL);
    if (amx_kind(f) != AMX_PLAIN) {
        const __m512i bias = f->biased ? amx_bias_of(s, row, chunk) : _mm512_setzero_si512();
        a = amx_number(f, a, amx_wide_low(bias), v_zero(), 1 / 128.0f);
        b = amx_number(f, b, amx_wide_high(bias), v_zero(), 1 / 128.0f);
    }
    if (span->visible) {
        const uint32_t visible = span->visible[row % AMX_ROWS];
        a = _mm512_mask_mov_ps(none, (__mmask16)visible, a);
        b = _mm512_mask_mov_ps(none, (__mmask16)(visible >> 16), b);
    }
    return v_max(b, v_max(a, none));
}

static inline float amx_top_score(const amx_state *s, const amx_span *span, int64_t row,
                                  int64_t chunk, const float *scores) {
    return v_largest(amx_larger_scores(s, &s->form, span, row, chunk, scores)) * s->scale;
}

/* Base-2 scores from raw products, where weights are not made by a form. */
typedef struct amx_change {
    bool rescales, caps;
    vf scale, cap;
} amx_change;

static inline amx_change amx_change_of(const ejki_flash_problem *p) {
    const bool caps = p->soft_cap != 0;
    return (amx_change){flash_rescales(p), caps,
                        v_set1((float)(caps ? p->scale / p->soft_cap : p->scale * LOG2_E)),
                        v_set1((float)(p->soft_cap * LOG2_E))};
}

/* 16 raw products to scores, and the bias added to them if there is one. */
static inline vf amx_changed(const amx_change *change, bool biased, vf z, vf bias) {
    if (change->rescales) z = v_mul(z, change->scale);
    if (change->caps) z = v_mul(v_tanh(z), change->cap);
    return biased ? amx_bias_hides(bias, v_fma(bias, v_set1((float)LOG2_E), z)) : z;
}

/* Raw products of a chunk become scores, -inf where they are hidden. */
static __attribute__((noinline)) void amx_change_scores(amx_state *s, const amx_span *span,
                                                        int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const amx_change change = amx_change_of(p);
    const amx_chunk *place = &s->chunk[chunk];
    const uint32_t *visible = amx_visible_words(s, span, chunk);
    const vf none = v_set1(-INFINITY);
    if (!visible && !change.rescales) return;
    for (int64_t i = 0; i < span->rows; i++) {
        float *scores = s->scores + i * AMX_CHUNK;
        const __m512i bias = p->has_bias
                                 ? amx_load(s->bias[i] + 2 * place->key, place->end - place->key)
                                 : _mm512_setzero_si512();
        const uint32_t own = visible ? visible[i] : 0xffffffffu;
        const vf a = amx_changed(&change, p->has_bias, v_load(scores), amx_wide_low(bias));
        const vf b = amx_changed(&change, p->has_bias, v_load(scores + VL), amx_wide_high(bias));
        v_store(scores, _mm512_mask_mov_ps(none, (__mmask16)own, a));
        v_store(scores + VL, _mm512_mask_mov_ps(none, (__mmask16)(own >> 16), b));
    }
}

/* The same; rows that have none get their softmax shifts, and all their maxima if these are wanted. */
static __attribute__((noinline)) void amx_prepare_scores(amx_state *s, const amx_span *span,
                                                         int64_t chunk) {
    const bool tracks = !s->problem->normalize;
    const float *scores = s->scores;
    amx_change_scores(s, span, chunk);
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK) {
        if (s->shift[i] != -INFINITY && !tracks) continue;
        const float top = flash_maximum(scores, AMX_CHUNK) * s->scale;
        if (s->shift[i] == -INFINITY && top != -INFINITY) amx_set_shift(s, i, top);
        if (top > s->maximum[i]) s->maximum[i] = top;
    }
}

/* Lane i: the largest of top[i]'s lanes, to base 2. */
static inline vf amx_largests(const amx_state *s, vf top[VL]) {
    v_transpose(top);
    for (int64_t n = VL / 2; n > 0; n /= 2)
        for (int64_t i = 0; i < n; i++) top[i] = v_max(top[i], top[i + n]);
    return v_mul(top[0], v_set1(s->scale));
}

/* Sets softmax shifts of rows, as amx_set_shift() does; true if one is far. */
static inline bool amx_set_shifts(amx_state *s, int64_t row, __mmask16 which, vf found) {
    const vf steps = v_set1(128), most = v_set1(AMX_FAST_RANGE);
    const vf fine = v_mul(_mm512_roundscale_ps(v_mul(found, steps), 8), v_set1(1 / 128.0f));
    const vf size = _mm512_abs_ps(found);
    const vf shift =
        _mm512_mask_roundscale_ps(fine, _mm512_cmp_ps_mask(size, most, _CMP_NLE_UQ), found, 8);
    const __mmask16 far = _mm512_cmp_ps_mask(_mm512_abs_ps(shift), most, _CMP_NLE_UQ);
    const bool plain = amx_kind(&s->form) == AMX_PLAIN;
    const vf start = v_set1(plain ? AMX_MAGIC : 0), none = v_set1(amx_base_of(s, -INFINITY));
    const vf base = v_add(start, v_mul(steps, v_sub(v_set1(127), shift)));
    _mm512_mask_store_ps(s->shift + row, which, shift);
    _mm512_mask_store_ps(s->base + row, which, _mm512_mask_mov_ps(base, far, none));
    return (far & which) != 0;
}

/* Softmax shifts of the rows of a tile that have none yet, if they see any key of a chunk, 16 at a time. */
AMX_INLINE void amx_shifts(const int kind, amx_state *s, amx_span *span, int64_t chunk) {
    amx_form form = s->form;
    form.caps = (kind & AMX_CAPS) != 0;
    form.biased = (kind & AMX_BIASED) != 0;
    for (int64_t first = 0; first < AMX_ROWS; first += VL) {
        const __mmask16 unset = amx_unset_rows(s, span, first);
        const int64_t row = span->row + first;
        const float *scores = s->scores + first * AMX_CHUNK;
        vf top[VL];
        if (unset == 0) continue;
        for (int64_t i = 0; i < VL; i++, scores += AMX_CHUNK)
            top[i] = amx_larger_scores(s, &form, span, row + i, chunk, scores);
        const vf found = amx_largests(s, top);
        const __mmask16 some =
            _mm512_mask_cmp_ps_mask(unset, found, v_set1(-INFINITY), _CMP_NEQ_UQ);
        if (amx_set_shifts(s, row, some, found)) span->slow = true;
    }
}

#define AMX_SHIFTS_OF(name, kind)                                                                  \
    static __attribute__((noinline)) void name(amx_state *s, amx_span *span, int64_t chunk) {      \
        amx_shifts(kind, s, span, chunk);                                                          \
    }
AMX_SHIFTS_OF(amx_plain_shifts, AMX_PLAIN)
AMX_SHIFTS_OF(amx_caps_shifts, AMX_CAPS)
AMX_SHIFTS_OF(amx_biased_shifts, AMX_BIASED)
AMX_SHIFTS_OF(amx_caps_biased_shifts, AMX_BOTH)

static void amx_find_shifts(amx_state *s, amx_span *span, int64_t chunk) {
    switch (amx_kind(&s->form)) {
    case AMX_PLAIN: amx_plain_shifts(s, span, chunk); return;
    case AMX_CAPS: amx_caps_shifts(s, span, chunk); return;
    case AMX_BIASED: amx_biased_shifts(s, span, chunk); return;
    default: amx_caps_biased_shifts(s, span, chunk); return;
    }
}

/* A row's weights of a chunk, the slow path. */
static inline __m512i amx_weigh(amx_state *s, const amx_span *span, int64_t row, int64_t chunk,
                                const float *scores, vf *lanes) {
    const float shift = s->shift[row];
    if (s->precise)
        return amx_precise_weights(scores, s->scale, shift, lanes,
                                   s->split ? amx_rest_of(s, row, chunk) : NULL);
    const __m512i w =
        amx_kind(&s->form) == AMX_PLAIN
            ? amx_any_weights(&s->exp, scores, s->scale, shift)
            : amx_any_form_weights(&s->form, &s->exp, scores, amx_bias_of(s, row, chunk), shift);
    return span->visible ? _mm512_maskz_mov_epi16(amx_in_order(span->visible[row % AMX_ROWS]), w)
                         : w;
}

/* A weight of the row in this chunk is too large: raises its shift (amx.c). */
static __attribute__((noinline)) bool amx_raise(amx_state *s, const amx_span *span, int64_t row,
                                                int64_t chunk, const float *scores, vf *lanes) {
    const float before = s->shift[row], top = amx_top_score(s, span, row, chunk, scores);
    if (!(top > before)) return false; /* NaN made it look so */
    amx_set_shift(s, row, before + ceilf(top - before));
    const float power = s->shift[row] - before, factor = exp2f(-power);
    for (int64_t c = span->first; c < chunk; c++) {
        amx_lower_weights(amx_weights_of(s, row, c), power);
        if (s->split) amx_lower_weights(amx_rest_of(s, row, c), power);
    }
    amx_tile *tile = &s->tile[row / AMX_ROWS];
    for (int64_t d = 0; !tile->blank && d <= s->plan->value_tiles * 16; d += 16) {
        float *sum = amx_sum(s, row, d);
        const vf lower = v_mul(v_load(sum), v_set1(factor));
        tile->small |= amx_small(lower) != 0;
        v_store(sum, lower);
    }
    *lanes = v_mul(*lanes, v_set1(factor));
    if (s->drops) {
        float *rounded = s->rounded + row * VL;
        v_store(rounded, v_mul(v_load(rounded), v_set1(factor)));
    }
    _mm512_store_si512(amx_weights_of(s, row, chunk),
                       amx_weigh(s, span, row, chunk, scores, lanes));
    return true;
}

/* Adds a row's weights of a chunk to its sum, then clears those that dropout drops. */
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

static __attribute__((noinline)) void amx_slow_weights(amx_state *s, const amx_span *span,
                                                       int64_t chunk) {
    const float *scores = s->scores;
    for (int64_t i = span->row; i < span->row + span->rows; i++, scores += AMX_CHUNK) {
        const vf before = v_load(s->lanes + i * VL);
        vf lanes = before;
        const __m512i w = amx_weigh(s, span, i, chunk, scores, &lanes);
        _mm512_store_si512(amx_weights_of(s, i, chunk), w);
        if (amx_overflows(w)) {
            vf raised = before;
            if (amx_raise(s, span, i, chunk, scores, &raised)) lanes = raised;
        }
        v_store(s->lanes + i * VL, lanes);
        if (s->drops) amx_drop(s, i, chunk);
    }
}

/* Makes weights of a chunk again by a polynomial of degree 4, if degree 2 failed; false if that fails, too. */
static bool amx_try_degree_4(amx_state *s, amx_pair *pair, const amx_fit *fit) {
    if (pair->degree_4 || fit->square == 0xffff) return false;
    pair->degree_4 = true;
    const amx_fit again = amx_alone(pair, &s->exp);
    return amx_fits(&again, AMX_MOST_BITS);
}

/*
 * The fast path failed on a chunk: recomputes its scores, which those of the next chunk have replaced, and its
 * weights.
 */
static __attribute__((noinline)) void amx_repeat(amx_state *s, amx_span *span, int64_t chunk,
                                                 amx_pair *pair, const amx_fit *fit) {
    amx_multiply(s, span, chunk);
    if (!amx_try_degree_4(s, pair, fit)) amx_slow_weights(s, span, chunk);
    if (chunk + 1 < span->last) amx_multiply(s, span, chunk + 1);
    span->slow |= amx_has_far(s, span);
}

/* sums += weights · values of a chunk, key by key, skipping weights of 0. */
static __attribute__((noinline)) void amx_add_values_slow(amx_state *s, const amx_span *span,
                                                          int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const int64_t key = s->chunk[chunk].key, end = s->chunk[chunk].end;
    const int64_t start = s->task.batch * p->value.stride_b + s->task.kv_head * p->value.stride_h;
    amx_places places;
    if (s->pages) s->pages->find(s->pages->context, key, &places);
    amx_tile *tile = &s->tile[span->row / AMX_ROWS];
    for (int64_t i = span->row; i < span->row + span->rows; i++)
        for (int64_t j = key; j < end; j++) {
            const int64_t n = j - key, place = n % 16 / 4 * 8 + n / 16 * 4 + n % 4;
            const uint16_t bits = amx_weights_of(s, i, chunk)[place];
            if (bits == 0) continue;
            const float rest = s->split ? ejk_bf16_to_f32(amx_rest_of(s, i, chunk)[place]) : 0;
            const vf weight = v_set1(ejk_bf16_to_f32(bits) + rest);
            const char *value = s->pages
                                    ? places.value[n]
                                    : amx_address(p->value.data, start + j * p->value.stride_t);
            for (int64_t d = 0; d < p->value_dim; d += VL) {
                float *sum = amx_sum(s, i, d);
                const vf more =
                    v_fma(weight, amx_widen(value + 2 * d, p->value_dim - d), v_load(sum));
                tile->small |= amx_small(more) != 0;
                v_store(sum, more);
            }
            float *ones = amx_sum(s, i, s->plan->value_tiles * 16);
            v_store(ones, v_add(v_load(ones), weight));
        }
}

#endif
