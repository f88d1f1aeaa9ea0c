/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row of attention as its formula reads, in double precision: what the reference of the operation and that
 * of its gradients share. A NaN among the scores is taken as the maximum, and so reaches every result of the
 * row. Elements are copied out and in, because an address need not be aligned to its element's size.
 */
#ifndef EJKI_FLASH_ATTENTION_REFERENCE_ROW_H
#define EJKI_FLASH_ATTENTION_REFERENCE_ROW_H

#include "operations/attention/flash/problem.h"
#include "tensor/access.h"

#include <ejkernel/registry.h>

#include <math.h>
#include <string.h>

static inline double row_load(ejk_dtype dtype, const void *data, int64_t index) {
    return ejki_load_f64(dtype, data, index);
}

/* Rounded to float32 first where the type is narrower, as kernels do. */
static inline void row_store(ejk_dtype dtype, void *data, int64_t index, double value) {
    ejki_store_f64(dtype, data, index, dtype == EJK_DTYPE_F64 ? value : (double)(float)value);
}

/* One row's place. */
typedef struct reference_row {
    const ejki_flash_problem *problem;
    int64_t b, h, i;
    int64_t first, end; /* keys that indices allow */
} reference_row;

/* Where a row, or the key or value j that it reads, begins. */
static inline int64_t row_start(const reference_row *row, const ejki_bthd *t) {
    return row->b * t->stride_b + row->i * t->stride_t + row->h * t->stride_h;
}
static inline int64_t row_key_start(const reference_row *row, const ejki_bthd *t, int64_t j) {
    return row->b * t->stride_b + j * t->stride_t + row->h / row->problem->group * t->stride_h;
}

static inline double row_dot(const reference_row *row, const ejki_bthd *of_row,
                             const ejki_bthd *of_key, int64_t j, int64_t count) {
    const ejk_dtype dtype = row->problem->dtype;
    const int64_t at = row_start(row, of_row), key_at = row_key_start(row, of_key, j);
    double sum = 0;
    for (int64_t d = 0; d < count; d++)
        sum += row_load(dtype, of_row->data, at + d) * row_load(dtype, of_key->data, key_at + d);
    return sum;
}

static inline int64_t row_segment(const ejki_flash_problem *p, const ejki_ids *ids, int64_t b,
                                  int64_t index) {
    const char *data = ids->data;
    index += b * ids->stride_b;
    if (p->segments_are_i64) {
        int64_t id;
        memcpy(&id, data + index * (int64_t)sizeof id, sizeof id);
        return id;
    }
    int32_t id;
    memcpy(&id, data + index * (int64_t)sizeof id, sizeof id);
    return id;
}

static inline bool row_is_near(const reference_row *row, int64_t j) {
    const ejki_flash_problem *p = row->problem;
    const int64_t batch = row->b + p->first_sequence;
    int64_t low, high;
    ejki_position_range(&p->positions, batch, row->i, &low, &high);
    const int64_t position = ejki_key_position(&p->positions, batch, j);
    return low <= position && position <= high;
}

/* Of a key that indices allow. */
static inline bool row_sees(const reference_row *row, int64_t j) {
    const ejki_flash_problem *p = row->problem;
    if (p->has_mask) {
        const unsigned char *mask = p->mask.data;
        const int64_t head = row->h / p->mask_group;
        if (!mask[row->b * p->mask.stride_b + head * p->mask.stride_h + row->i * p->mask.stride_t +
                  j])
            return false;
    }
    if (p->has_segments) {
        const int64_t id = row_segment(p, &p->query_segments, row->b, row->i);
        if (id < 0 || id != row_segment(p, &p->key_segments, row->b, j)) return false;
    }
    if (p->positions.given && !row_is_near(row, j)) return false;
    return ejki_block_mask_visible(&p->block_mask, row->h, row->i, j);
}

/*
 * A score, -inf by a bias of that whatever the product is; *derivative, if not NULL, is its derivative by the
 * scaled product: 1 without a soft cap.
 */
static inline double row_score(const reference_row *row, int64_t j, double *derivative) {
    const ejki_flash_problem *p = row->problem;
    double z = row_dot(row, &p->query, &p->key, j, p->head_dim) * p->scale, tanh_derivative = 1;
    if (p->soft_cap > 0) {
        const double t = tanh(z / p->soft_cap);
        z = p->soft_cap * t;
        tanh_derivative = 1 - t * t;
    }
    if (derivative) *derivative = tanh_derivative;
    if (!p->has_bias) return z;
    const double bias = row_load(p->dtype, p->bias.data,
                                 row->b * p->bias.stride_b + row->h * p->bias.stride_h +
                                     row->i * p->bias.stride_t + j);
    return bias == -INFINITY ? bias : z + bias;
}

static inline double row_larger(double max, double z) {
    return z > max || isnan(z) ? z : max;
}

/* exp(z - max), 0 for -inf even where the maximum is -inf too. */
static inline double row_weight(double z, double max) {
    return z == -INFINITY ? 0 : exp(z - max);
}

/* Fills scores[first … end) with weights relative to the maximum, derivatives (if not NULL) as above; returns their
 * sum. */
static inline double row_soften(const reference_row *row, double *scores, double *derivatives,
                                double *max) {
    *max = -INFINITY;
    for (int64_t j = row->first; j < row->end; j++) {
        scores[j] =
            row_sees(row, j) ? row_score(row, j, derivatives ? &derivatives[j] : NULL) : -INFINITY;
        *max = row_larger(*max, scores[j]);
    }
    double sum = 0;
    for (int64_t j = row->first; j < row->end; j++) {
        scores[j] = row_weight(scores[j], *max);
        sum += scores[j];
    }
    return sum;
}

static inline int64_t row_sinks_start(const reference_row *row) {
    return row->h / row->problem->sink_group * row->problem->sink_stride_h;
}

/* Adds the sinks: *max and the return value are those of keys and sinks together. */
static inline double row_add_sinks(const reference_row *row, double sum, double *max) {
    const ejki_flash_problem *p = row->problem;
    if (!p->has_sinks) return sum;
    const int64_t start = row_sinks_start(row);
    double all = *max;
    for (int64_t n = 0; n < p->sink_count; n++)
        all = row_larger(all, row_load(p->dtype, p->sinks, start + n));
    sum *= row_weight(*max, all);
    for (int64_t n = 0; n < p->sink_count; n++)
        sum += row_weight(row_load(p->dtype, p->sinks, start + n), all);
    *max = all;
    return sum;
}

#endif
