/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to scores between the two products, row by row: soft cap, bias, visibility; the softmax
 * shift and sum of the online softmax; dropout; the end of a row. Written in the vector vocabulary;
 * shared by the tiled and the row-wise kernel. Scores are f32 and in base 2, z · log2(e), whatever the type
 * of the tensors.
 */
#ifndef EJKI_FLASH_SCORES_BODY_H
#define EJKI_FLASH_SCORES_BODY_H

#include "base/base.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/problem.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"

/* Vectors of scores that are changed at a time. */
#define FLASH_VECTORS 4

/* The type whose loops are made for it alone: of pairs the only one. */
#ifdef TILE_BF16_DOT
#define FLASH_TYPE EJK_DTYPE_BF16
#else
#define FLASH_TYPE EJK_DTYPE_F32
#endif

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

/* One query row of a problem: its heads and the keys that positions let it see. */
typedef struct flash_row {
    int64_t batch, head, kv_head, query;
    int64_t first, end;
} flash_row;

static inline flash_row flash_row_of(const ejki_flash_problem *p, int64_t batch, int64_t kv_head,
                                     int64_t row) {
    /* Rows of a KV head run over its query heads first: neighbours see nearly the same keys. */
    flash_row r = {.batch = batch, .kv_head = kv_head};
    r.query = p->group == 1 ? row : row / p->group;
    r.head = kv_head * p->group + row - r.query * p->group;
    ejki_flash_visible(p, r.query, &r.first, &r.end);
    return r;
}

/* True if scores need more than the one multiplication that flash_weights() does. */
static inline bool flash_rescales(const ejki_flash_problem *p) {
    return p->soft_cap != 0 || p->has_bias || !(p->scale > 0) || p->scale * LOG2_E < 1e-30;
}

/* True if single keys are hidden: by a mask, segments or positions. */
static inline bool flash_hides_keys(const ejki_flash_problem *p) {
    return p->has_mask || p->has_segments || p->positions.given;
}

/* True if scores have to go through flash_modify(). */
static inline bool flash_is_general(const ejki_flash_problem *p) {
    return flash_rescales(p) || flash_hides_keys(p);
}

/* The multiplication left to flash_weights(): raw products to base 2, unless flash_modify() does it. */
static inline float flash_scale(const ejki_flash_problem *p) {
    return flash_rescales(p) ? 1.0f : (float)(p->scale * LOG2_E);
}

/* True if there is so little to do that waking a thread (some microseconds) would cost more. */
static inline bool flash_is_light(const ejki_flash_problem *p) {
    return (double)p->batch * (double)p->query_heads * (double)p->queries * (double)p->keys *
               (double)(p->head_dim + p->value_dim) <
           500e3;
}

static inline ejk_status flash_too_large(const ejki_flash_problem *p) {
    return ejki_fail(EJK_STATUS_OVERFLOW,
                     "query: the scratch memory for head_dim %lld does not fit 48 bits of address",
                     (long long)p->head_dim);
}

static inline int64_t flash_id(const ejki_flash_problem *p, const void *ids, int64_t index) {
    return p->segments_are_i64 ? ((const ejki_int64 *)ids)[index]
                               : ((const ejki_int32 *)ids)[index];
}

/* An element's place in a tensor of floats. */
static inline float *flash_place(const void *data, int64_t element) {
    return element_at(EJK_DTYPE_F32, data, element);
}

/* Start of a row's mask bytes, and of its bias. */
static inline const uint8_t *flash_mask_row(const ejki_flash_problem *p, const flash_row *r) {
    return (const uint8_t *)p->mask.data + r->batch * p->mask.stride_b +
           r->head / p->mask_group * p->mask.stride_h + r->query * p->mask.stride_t;
}
static inline const void *flash_bias_row(const ejki_flash_problem *p, const flash_row *r) {
    return element_at(p->dtype, p->bias.data,
                      r->batch * p->bias.stride_b + r->head * p->bias.stride_h +
                          r->query * p->bias.stride_t);
}

/* A row's place in a [B, H, T] result. */
static inline ejki_float *flash_at(const ejki_bht *result, const flash_row *r) {
    return result->data + r->batch * result->stride_b + r->head * result->stride_h +
           r->query * result->stride_t;
}

/* True if `width` floats are all finite. */
static inline bool flash_is_finite(const float *row, int64_t width) {
    vf probe = v_zero(); /* 0 · v is NaN for an infinite v and for NaN */
    for (int64_t d = 0; d < width; d += VL) {
        const vf v = width - d >= VL ? v_load(row + d) : v_load_first(row + d, width - d);
        probe = v_fma(v, v_zero(), probe);
    }
    const float sum = v_sum(probe);
    return sum == sum;
}

/* Where a row's query, a key, a value and a row's output start. */
static inline void *flash_row_at(const ejki_bthd *tensor, ejk_dtype dtype, const flash_row *r) {
    return element_at(dtype, tensor->data,
                      r->batch * tensor->stride_b + r->query * tensor->stride_t +
                          r->head * tensor->stride_h);
}
static inline void *flash_key_at(const ejki_bthd *tensor, ejk_dtype dtype, int64_t batch,
                                 int64_t kv_head, int64_t key) {
    return element_at(dtype, tensor->data,
                      batch * tensor->stride_b + kv_head * tensor->stride_h +
                          key * tensor->stride_t);
}
static inline const void *flash_query(const ejki_flash_problem *p, const flash_row *r) {
    return flash_row_at(&p->query, p->dtype, r);
}
static inline const void *flash_key(const ejki_flash_problem *p, int64_t batch, int64_t kv_head,
                                    int64_t key) {
    return flash_key_at(&p->key, p->dtype, batch, kv_head, key);
}
static inline const void *flash_value(const ejki_flash_problem *p, int64_t batch, int64_t kv_head,
                                      int64_t key) {
    return flash_key_at(&p->value, p->dtype, batch, kv_head, key);
}
static inline ejk_dtype flash_out_dtype(const ejki_flash_problem *p) {
    return p->normalize ? p->dtype : EJK_DTYPE_F32;
}
static inline void *flash_out(const ejki_flash_problem *p, const flash_row *r) {
    return flash_row_at(&p->out, flash_out_dtype(p), r);
}

static inline size_t flash_id_size(const ejki_flash_problem *p) {
    return p->segments_are_i64 ? sizeof(int64_t) : sizeof(int32_t);
}
static inline const void *flash_ids_of(const ejki_flash_problem *p, ejki_ids ids, int64_t batch) {
    return (const char *)ids.data + (size_t)(batch * ids.stride_b) * flash_id_size(p);
}

/* The positions that a row sees, and that of a key of its sequence. */
static inline void flash_position_range(const ejki_flash_problem *p, const flash_row *r,
                                        int64_t *low, int64_t *high) {
    ejki_position_range(&p->positions, r->batch + p->first_sequence, r->query, low, high);
}
static inline bool flash_position_is_visible(const ejki_flash_problem *p, const flash_row *r,
                                             int64_t key, int64_t low, int64_t high) {
    const int64_t at = ejki_key_position(&p->positions, r->batch + p->first_sequence, key);
    return low <= at && at <= high;
}

/* Which of up to 32 keys [key, key + count) have positions that a row sees, a bit each. */
static inline uint32_t flash_visible_positions(const ejki_flash_problem *p, const flash_row *r,
                                               int64_t key, int64_t count) {
    int64_t low, high;
    uint32_t bits = 0;
    flash_position_range(p, r, &low, &high);
    for (int64_t n = 0; n < count; n++)
        bits |= (uint32_t)flash_position_is_visible(p, r, key + n, low, high) << n;
    return bits;
}

/*
 * Which of the keys [key, key + count) mask, segments and positions allow a row to see, one byte each. Bytes up to
 * the next multiple of VL are 0.
 */
static inline void flash_visible_keys(const ejki_flash_problem *p, const flash_row *r, int64_t key,
                                      int64_t count, uint8_t *visible) {
    if (p->has_mask) {
        const uint8_t *mask = flash_mask_row(p, r) + key;
        for (int64_t j = 0; j < count; j++) visible[j] = mask[j] != 0;
    } else {
        memset(visible, 1, (size_t)count);
    }
    if (p->has_segments) {
        const void *ids = flash_ids_of(p, p->key_segments, r->batch);
        const int64_t own = flash_id(p, flash_ids_of(p, p->query_segments, r->batch), r->query);
        if (own < 0)
            memset(visible, 0, (size_t)count);
        else if (p->segments_are_i64)
            for (int64_t j = 0; j < count; j++)
                visible[j] &= ((const ejki_int64 *)ids)[key + j] == own;
        else
            for (int64_t j = 0; j < count; j++)
                visible[j] &= ((const ejki_int32 *)ids)[key + j] == own;
    }
    if (p->positions.given) {
        int64_t low, high;
        flash_position_range(p, r, &low, &high);
        for (int64_t j = 0; j < count; j++)
            visible[j] &= flash_position_is_visible(p, r, key + j, low, high);
    }
    memset(visible + count, 0, (size_t)(ejki_round_up(count, VL) - count));
}

/* True if a row sees any of the keys [key, end); `visible` is scratch of as many, rounded up to VL. */
static inline bool flash_any_visible(const ejki_flash_problem *p, const flash_row *r, int64_t key,
                                     int64_t end, uint8_t *visible) {
    const int64_t first = ejki_max(key, r->first), last = ejki_min(end, r->end);
    if (first >= last) return false;
    flash_visible_keys(p, r, first, last - first, visible);
    return memchr(visible, 1, (size_t)(last - first)) != NULL;
}

/* Scores, or `hidden` where the bias is -inf: that hides a key whatever its product is, even NaN. */
static inline vf flash_bias_hides(vf bias, vf hidden, vf scores) {
    return v_select_gt(v_set1(-FLT_MAX), bias, hidden, scores);
}

/* The soft cap of base-2 scores. */
static inline v_cap flash_cap_of(const ejki_flash_problem *p) {
    return p->soft_cap != 0 ? v_cap_of(p->scale / p->soft_cap, p->soft_cap * LOG2_E) : (v_cap){0};
}

/* flash_modify() for some vectors. */
static inline __attribute__((always_inline)) void
flash_modify_some(const int vectors, const bool caps, const bool hides, const ejk_dtype dtype,
                  vf scale, const v_cap *cap, const void *bias, int64_t left,
                  const uint8_t *visible, float *scores) {
    vf z[FLASH_VECTORS];
    EJKI_UNROLL for (int i = 0; i < vectors; i++) z[i] = v_load(scores + i * VL);
    if (caps) v_cap_some(vectors, cap, z);
    EJKI_UNROLL for (int i = 0; i < vectors; i++) {
        if (bias) {
            const vf b = v_widen_some(dtype, element_at(dtype, bias, i * VL), left - i * VL);
            /* Scores that count are mostly larger than their bias: they are rounded once. */
            z[i] = caps ? v_fma(b, v_set1((float)LOG2_E), z[i])
                        : v_fma(z[i], scale, v_mul(b, v_set1((float)LOG2_E)));
            z[i] = flash_bias_hides(b, v_set1(-INFINITY), z[i]);
        } else if (!caps) {
            z[i] = v_mul(z[i], scale);
        }
        if (hides) z[i] = v_allow(z[i], visible + i * VL);
        v_store(scores + i * VL, z[i]);
    }
}

static inline __attribute__((always_inline)) void
flash_modify_row(const bool caps, const bool biased, const bool hides, const ejk_dtype dtype,
                 const ejki_flash_problem *p, const v_cap *cap, const flash_row *r, int64_t key,
                 int64_t count, float *scores, uint8_t *visible) {
    const char *bias = biased ? element_at(dtype, flash_bias_row(p, r), key) : NULL;
    const vf scale = v_set1(!flash_rescales(p) ? 1.0f : (float)(p->scale * LOG2_E));
    int64_t j = 0;
    for (; j + FLASH_VECTORS * VL <= count; j += FLASH_VECTORS * VL)
        flash_modify_some(FLASH_VECTORS, caps, hides, dtype, scale, cap,
                          biased ? element_at(dtype, bias, j) : NULL, FLASH_VECTORS * VL,
                          visible + j, scores + j);
    for (; j < count; j += VL)
        flash_modify_some(1, caps, hides, dtype, scale, cap,
                          biased ? element_at(dtype, bias, j) : NULL, count - j, visible + j,
                          scores + j);
}

/*
 * Raw products scores[0, count) of a row with the keys from `key` become base-2 scores, if there is more
 * to it than flash_scale(): scale, cap, bias; and -inf where mask or segments hide the key. `visible` is
 * scratch of count rounded up to VL. The commonest cases have loops of their own.
 */
static inline void flash_modify(const ejki_flash_problem *p, const v_cap *cap, const flash_row *r,
                                int64_t key, int64_t count, float *scores, uint8_t *visible) {
    const bool hides = flash_hides_keys(p), caps = p->soft_cap != 0, biased = p->has_bias;
    const bool simple = !hides && (!biased || p->dtype == FLASH_TYPE);
    if (hides) flash_visible_keys(p, r, key, count, visible);
    if (simple && caps && biased)
        flash_modify_row(true, true, false, FLASH_TYPE, p, cap, r, key, count, scores, visible);
    else if (simple && caps)
        flash_modify_row(true, false, false, FLASH_TYPE, p, cap, r, key, count, scores, visible);
    else if (simple && biased)
        flash_modify_row(false, true, false, FLASH_TYPE, p, cap, r, key, count, scores, visible);
    else
        flash_modify_row(caps, biased, hides, p->dtype, p, cap, r, key, count, scores, visible);
}

/* Writes -inf over the columns of a row, key `key` being column 0, that positions hide: before the first
 * that it sees, and from the end of those on. */
static inline void flash_hide(const flash_row *r, int64_t key, int64_t columns, float *scores) {
    const int64_t first = r->first - key, end = r->end - key;
    for (int64_t j = 0; j < first && j < columns; j += VL)
        v_store(scores + j, v_keep(v_load(scores + j), first - j, end - j));
    for (int64_t j = end < 0 ? 0 : end / VL * VL; j < columns; j += VL)
        v_store(scores + j, v_keep(v_load(scores + j), first - j, end - j));
}

/* Largest of `count` scores, a multiple of VL; -inf if all are hidden. NaN is passed over. */
static inline float flash_maximum(const float *scores, int64_t count) {
    vf top = v_set1(-INFINITY);
    for (int64_t j = 0; j < count; j += VL) top = v_max(v_load(scores + j), top);
    return v_largest(top);
}

/* True if any of `count` scores is -inf, as hidden ones are. */
static inline bool flash_any_hidden(const float *scores, int64_t count) {
    const vf least = v_set1(-FLT_MAX);
    vf low = least;
    int64_t j = 0;
    for (; j + VL <= count; j += VL) low = v_min(v_load(scores + j), low);
    bool hidden = v_any_gt(least, low);
    for (; j < count; j++) hidden |= scores[j] == -INFINITY;
    return hidden;
}

/*
 * `count` scores of a row, a multiple of VL, become weights 2^(scale · score − shift) in place.
 * Returns `lanes` plus their sums; columns two vectors apart add up in the same lane and half, so the sum
 * does not depend on how many hidden columns come before.
 */
static inline vf flash_weights(float *scores, int64_t count, float scale, float shift, vf lanes) {
    const vf base = v_set1(shift == -INFINITY ? 0.0f : shift), factor = v_set1(scale);
    vf even = v_zero(), odd = v_zero();
    int64_t j = 0;
    for (; j + 2 * VL <= count; j += 2 * VL) {
        const vf a = v_exp2(v_fms(v_load(scores + j), factor, base));
        const vf b = v_exp2(v_fms(v_load(scores + j + VL), factor, base));
        v_store(scores + j, a);
        v_store(scores + j + VL, b);
        even = v_add(even, a);
        odd = v_add(odd, b);
    }
    if (j < count) {
        const vf a = v_exp2(v_fms(v_load(scores + j), factor, base));
        v_store(scores + j, a);
        even = v_add(even, a);
    }
    return v_add(lanes, v_add(even, odd));
}

/*
 * Dropout of a row's weights of the keys [key, key + count), key a multiple of 2 VL: those that it does not
 * keep become 0, up to the next multiple of 2 VL. What is kept is multiplied at the end of the row.
 *
 * Quads of keys are lanes of 64 bits, of which Philox uses the lower half and leaves anything in the upper;
 * their order over the lanes is such that v_zip brings the words into the order of keys.
 */
static inline void flash_drop(const ejki_flash_problem *p, const flash_row *r, int64_t key,
                              int64_t count, float *weights) {
    typedef uint32_t vu __attribute__((vector_size(4 * VL)));
    const uint32_t threshold = ejki_dropout_threshold(p->dropout);
    const vw none = {0}, low = none + 0xffffffffu;
    vw lanes;
    for (uint64_t i = 0; i < VL / 2; i++) lanes[i] = i % 2 * (VL / 4) + i / 2;
    for (int64_t j = 0; j < count; j += 2 * VL) {
        uint32_t k0 = (uint32_t)p->dropout_seed, k1 = (uint32_t)(p->dropout_seed >> 32);
        vw c0 = lanes + (uint64_t)(key + j) / 4, c1 = none + (uint64_t)r->query;
        vw c2 = none + (uint64_t)r->head, c3 = none + (uint64_t)(r->batch + p->first_sequence);
        for (int round = 0; round < 10; round++) {
            const vw a = v_multiply(none + 0xD2511F53u, c0), b = v_multiply(none + 0xCD9E8D57u, c2);
            c0 = (b >> 32) ^ c1 ^ k0;
            c2 = (a >> 32) ^ c3 ^ k1;
            c1 = b;
            c3 = a;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const vw first = (c0 & low) | c1 << 32, second = (c2 & low) | c3 << 32;
        const vu words[2] = {(vu)v_zip_even(first, second), (vu)v_zip_odd(first, second)};
        for (int i = 0; i < 2; i++) {
            const vu kept = (vu)(words[i] >= threshold);
            float *at = weights + j + i * VL;
            v_store(at, (vf)((vu)v_load(at) & kept));
        }
    }
}

/* A row's end: out = accumulator · factor, and the natural log-sum-exp. */
typedef struct flash_end {
    float factor, lse;
} flash_end;

/*
 * Scores are multiplied by a constant that is rounded to f32; its relative error moves all scores of a
 * row together, which matters only beside sinks and in the log-sum-exp. What a shift is true to: the
 * shift times this.
 */
static inline double flash_correction(const ejki_flash_problem *p) {
    const bool far =
        p->soft_cap != 0 && !v_cap_has_near(p->scale / p->soft_cap, p->soft_cap * LOG2_E);
    const double factor = (far ? p->soft_cap : p->scale) * LOG2_E;
    const double rounded = (float)factor;
    return p->has_bias || !(fabs(rounded) > 0) ? 1 : factor / rounded;
}

/* What the ends of a head's rows have in common: the correction, and its sinks in base 2, the sum of whose weights
 * is total · 2^top. */
typedef struct flash_common {
    double correction, top, total;
} flash_common;

static inline flash_common flash_common_of(const ejki_flash_problem *p, int64_t head) {
    flash_common c = {.correction = 1, .top = -INFINITY};
    if (p->has_sinks || p->lse.data || !p->normalize) c.correction = flash_correction(p);
    const int64_t first = p->has_sinks ? head / p->sink_group * p->sink_stride_h : 0;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const double sink = element_load(p->dtype, p->sinks, first + n) * LOG2_E;
        if (sink > c.top) c.top = sink;
    }
    for (int64_t n = 0; n < p->sink_count; n++) {
        const double sink = element_load(p->dtype, p->sinks, first + n) * LOG2_E;
        if (sink != -INFINITY) c.total += exp2(sink - c.top);
    }
    return c;
}

/* `sum` is Σ 2^(z − shift) over visible keys: 0 if nothing has any weight, sinks still to come. */
static inline flash_end flash_finish(const ejki_flash_problem *p, const flash_common *common,
                                     float shift, float sum, bool want_lse) {
    const bool empty = sum == 0;
    if (!p->has_sinks && !want_lse) return (flash_end){.factor = empty ? 0 : 1 / sum};
    const double own = empty ? -INFINITY : shift * common->correction;
    const double top = common->top > own ? common->top : own;
    if (top == -INFINITY && empty) return (flash_end){.factor = 0, .lse = -INFINITY};
    double total = common->total;
    if (total != 0 && common->top != top) total *= exp2(common->top - top);
    const double weight = empty ? 0 : own == top ? 1 : exp2(own - top);
    total += weight * sum;
    return (flash_end){.factor = empty ? 0 : (float)(weight / total),
                       .lse = want_lse ? (float)((top + log2(total)) * LN_2) : 0};
}

/* A base-2 maximum in natural units, rounded; what is relative to the maximum, times *factor, is relative to that. */
static inline float flash_row_max(double maximum, float *factor) {
    const double natural = maximum * LN_2;
    const float rounded = (float)natural;
    *factor = isfinite(rounded) ? (float)exp(natural - (double)rounded) : 1;
    return rounded;
}

/*
 * Writes a finished row: out, and lse, row_max, row_sum where wanted. `maximum` is the largest visible
 * base-2 score and is looked at only without normalisation; `total` is the sum of the weights as they were
 * multiplied, if they were rounded, else `sum`. `panel` sums lie side by side, the next ones `step` further.
 */
static inline void flash_write_row(const ejki_flash_problem *p, const flash_row *r,
                                   const flash_common *common, const float *sums, int64_t panel,
                                   int64_t step, float shift, float maximum, float sum,
                                   float total) {
    flash_end end = flash_finish(p, common, shift, sum, p->lse.data != NULL);
    if (p->lse.data) *flash_at(&p->lse, r) = end.lse;
    if (!p->normalize) {
        /* From the shift to the true maximum, and to that as it is rounded. */
        float rounding;
        const float row_max = flash_row_max(maximum * common->correction, &rounding);
        end.factor = sum == 0 ? 0 : sum == sum ? exp2f(shift - maximum) * rounding : NAN;
        if (p->row_max.data) *flash_at(&p->row_max, r) = row_max;
        if (p->row_sum.data) *flash_at(&p->row_sum, r) = sum == 0 ? 0 : sum * end.factor;
    }
    if (total != sum) end.factor *= sum / total;
    if (p->dropout > 0) end.factor *= (float)ejki_dropout_factor(p->dropout);
    const ejk_dtype dtype = flash_out_dtype(p);
    void *out = flash_out(p, r);
    const vf factor = v_set1(end.factor);
    const bool blank = sum == 0; /* 0 · inf must not make NaN in a row that saw nothing */
    /* + 0: a sum that has underflowed to -0 becomes +0, as where a neighbour sees keys that the row does not. */
    for (int64_t d = 0; d < p->value_dim; d += VL) {
        const float *from = sums + d / panel * step + d % panel;
        const vf v = blank ? v_zero() : v_fma(v_load(from), factor, v_zero());
        if (p->value_dim - d >= VL)
            v_narrow(dtype, element_at(dtype, out, d), v);
        else
            v_narrow_first(dtype, element_at(dtype, out, d), v, p->value_dim - d);
    }
}

#endif
