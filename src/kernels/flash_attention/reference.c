/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention as its formula reads: one row at a time, all scores of the row kept, two passes of
 * softmax, everything in double precision. What the fast implementations are measured against and
 * what runs where none of them fits.
 *
 * A key of weight 0 adds nothing, whether masking, a score of -inf or underflow made it so: its value is
 * not read.
 * A NaN among the scores is taken as the maximum, and so reaches every result of the row.
 */
#include "base/base.h"
#include "kernels/flash_attention/problem.h"

#include <ejkernel/registry.h>
#include <math.h>
#include <string.h>

/* Elements are copied out and in, because an address need not be aligned to its element's size. */
static double load(ejk_dtype dtype, const void *data, int64_t index) {
    if (dtype == EJK_DTYPE_F64) {
        double value;
        memcpy(&value, (const char *)data + index * (int64_t)sizeof value, sizeof value);
        return value;
    }
    float value;
    memcpy(&value, (const char *)data + index * (int64_t)sizeof value, sizeof value);
    return (double)value;
}

static void store(ejk_dtype dtype, void *data, int64_t index, double value) {
    if (dtype == EJK_DTYPE_F64) {
        memcpy((char *)data + index * (int64_t)sizeof value, &value, sizeof value);
        return;
    }
    float rounded = (float)value;
    memcpy((char *)data + index * (int64_t)sizeof rounded, &rounded, sizeof rounded);
}

/* One row's place. */
struct row {
    const ejki_flash_problem *problem;
    int64_t b, h, i;
    int64_t first, end; /* keys that positions allow */
};

static int64_t segment(const ejki_flash_problem *p, const ejki_ids *ids, int64_t b, int64_t index) {
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

static bool visible(const struct row *row, int64_t j) {
    const ejki_flash_problem *p = row->problem;
    if (p->has_mask) {
        const unsigned char *mask = p->mask.data;
        int64_t head = row->h / p->mask_group;
        if (!mask[row->b * p->mask.stride_b + head * p->mask.stride_h + row->i * p->mask.stride_t +
                  j])
            return false;
    }
    if (p->has_segments) {
        int64_t id = segment(p, &p->query_segments, row->b, row->i);
        if (id < 0 || id != segment(p, &p->key_segments, row->b, j)) return false;
    }
    return true;
}

static double score(const struct row *row, int64_t j) {
    const ejki_flash_problem *p = row->problem;
    const ejki_bthd *q = &p->query, *k = &p->key;
    int64_t q_start = row->b * q->stride_b + row->i * q->stride_t + row->h * q->stride_h;
    int64_t k_start = row->b * k->stride_b + j * k->stride_t + row->h / p->group * k->stride_h;
    double z = 0;
    for (int64_t d = 0; d < p->head_dim; d++)
        z += load(p->dtype, q->data, q_start + d) * load(p->dtype, k->data, k_start + d);
    z *= p->scale;
    if (p->soft_cap > 0) z = p->soft_cap * tanh(z / p->soft_cap);
    if (p->has_bias)
        z += load(p->dtype, p->bias.data,
                  row->b * p->bias.stride_b + row->h * p->bias.stride_h +
                      row->i * p->bias.stride_t + j);
    return z;
}

static double larger(double max, double z) {
    return z > max || isnan(z) ? z : max;
}

/* exp(z - max), 0 for -inf even where the maximum is -inf too. */
static double weight(double z, double max) {
    return z == -INFINITY ? 0 : exp(z - max);
}

/* Turns scores into weights relative to their maximum; returns their sum. */
static double soften(const struct row *row, double *scores, double *max) {
    *max = -INFINITY;
    for (int64_t j = row->first; j < row->end; j++) {
        scores[j] = visible(row, j) ? score(row, j) : -INFINITY;
        *max = larger(*max, scores[j]);
    }
    double sum = 0;
    for (int64_t j = row->first; j < row->end; j++) {
        scores[j] = weight(scores[j], *max);
        sum += scores[j];
    }
    return sum;
}

/* Adds the sinks: *max and the return value are those of keys and sinks together. */
static double add_sinks(const struct row *row, double sum, double *max) {
    const ejki_flash_problem *p = row->problem;
    if (!p->has_sinks) return sum;
    int64_t start = row->h / p->sink_group * p->sink_stride_h;
    double all = *max;
    for (int64_t n = 0; n < p->sink_count; n++)
        all = larger(all, load(p->dtype, p->sinks, start + n));
    sum *= weight(*max, all);
    for (int64_t n = 0; n < p->sink_count; n++)
        sum += weight(load(p->dtype, p->sinks, start + n), all);
    *max = all;
    return sum;
}

static void write_out(const struct row *row, const double *weights, double *sums, double factor) {
    const ejki_flash_problem *p = row->problem;
    const ejki_bthd *v = &p->value, *out = &p->out;
    for (int64_t d = 0; d < p->value_dim; d++) sums[d] = 0;
    for (int64_t j = row->first; j < row->end; j++) {
        if (weights[j] == 0) continue;
        int64_t start = row->b * v->stride_b + j * v->stride_t + row->h / p->group * v->stride_h;
        for (int64_t d = 0; d < p->value_dim; d++)
            sums[d] += weights[j] * load(p->dtype, v->data, start + d);
    }
    int64_t start = row->b * out->stride_b + row->i * out->stride_t + row->h * out->stride_h;
    ejk_dtype dtype = p->normalize ? p->dtype : EJK_DTYPE_F32;
    for (int64_t d = 0; d < p->value_dim; d++) store(dtype, out->data, start + d, sums[d] * factor);
}

static void write_scalar(const struct row *row, const ejki_bht *target, double value) {
    if (!target->data) return;
    store(EJK_DTYPE_F32, target->data,
          row->b * target->stride_b + row->h * target->stride_h + row->i * target->stride_t, value);
}

/* `scratch` has room for the row's scores and its output. */
static void compute(struct row *row, double *scratch) {
    const ejki_flash_problem *p = row->problem;
    ejki_flash_visible(p, row->i, &row->first, &row->end);
    double max, sum = soften(row, scratch, &max);
    double all_max = max, all_sum = add_sinks(row, sum, &all_max);
    /* A row that sees nothing has weights of 0 only; 0/0 must not make a NaN of it. */
    double factor = all_sum == 0 ? 0 : weight(max, all_max) / all_sum;
    write_out(row, scratch, scratch + p->keys, p->normalize ? factor : 1);
    write_scalar(row, &p->lse, all_max + log(all_sum));
    write_scalar(row, &p->row_max, max);
    write_scalar(row, &p->row_sum, sum);
}

/* Bytes of one worker's scratch. */
static bool scratch_bytes(const ejki_flash_problem *p, int64_t *bytes) {
    if (!ejki_add(p->keys, p->value_dim, bytes) ||
        !ejki_mul(*bytes, (int64_t)sizeof(double), bytes) || !ejki_add(*bytes, 63, bytes))
        return false;
    *bytes &= ~INT64_C(63);
    return true;
}

static bool row_count(const ejki_flash_problem *p, int64_t *rows) {
    return ejki_mul(p->batch, p->query_heads, rows) && ejki_mul(*rows, p->queries, rows);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_flash_problem *p = problem;
    int64_t bytes, rows;
    if (!row_count(p, &rows) || !scratch_bytes(p, &bytes) || !ejki_mul(bytes, threads, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%lld x %lld x %lld rows of %lld scores are more than can be counted",
                         (long long)p->batch, (long long)p->query_heads, (long long)p->queries,
                         (long long)p->keys);
    int64_t workers = ejki_max(1, ejki_min(threads, rows));
    launch->workers = (int32_t)workers;
    launch->workspace_bytes = (size_t)(bytes / threads * workers);
    return EJK_OK;
}

/* Worker `index` takes every workers-th row, so that causal rows, which grow, are spread evenly. */
static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_flash_problem *p = run->problem;
    int64_t bytes = 0, rows = 0;
    if (!scratch_bytes(p, &bytes) || !row_count(p, &rows)) return; /* prepare() refused these */
    double *scratch = (double *)(void *)((char *)run->workspace + index * bytes);
    for (int64_t n = index; n < rows; n += run->workers) {
        int64_t heads = n / p->queries;
        struct row row = {.problem = p,
                          .b = heads / p->query_heads,
                          .h = heads % p->query_heads,
                          .i = n % p->queries};
        compute(&row, scratch);
    }
}

static ejk_status run(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    /* With nothing to write, the rows may be more than any memory holds. */
    if (p->value_dim == 0 && !p->lse.data && !p->row_max.data && !p->row_sum.data) return EJK_OK;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

#define REFERENCE(type, element)                                                                   \
    {                                                                                              \
        .algorithm = "flash_attention", .name = type "/reference",                                 \
        .platform = EJK_PLATFORM_REFERENCE, .backend = EJK_BACKEND_ANY, .isa = EJK_ISA_SCALAR,     \
        .dtype = element, .version = 1, .prepare = prepare, .run = run                             \
    }

extern const ejk_implementation ejki_flash_attention_f32_reference;
extern const ejk_implementation ejki_flash_attention_f64_reference;
const ejk_implementation ejki_flash_attention_f32_reference = REFERENCE("f32", EJK_DTYPE_F32);
const ejk_implementation ejki_flash_attention_f64_reference = REFERENCE("f64", EJK_DTYPE_F64);
