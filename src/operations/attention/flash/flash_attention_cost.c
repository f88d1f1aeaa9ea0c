/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What flash attention costs at least. Scores count as far as positions (causal, window) let them be seen, and, where
 * the data is in view, lengths, segment ids and blocks; without it what these hide is counted as seen.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include "base/base.h"

/* The sum over queries i of i + offset, each cut to [0, keys]. */
static double cut_sum(const ejki_flash_problem *p, int64_t offset) {
    int64_t from = ejki_min(ejki_max(-offset, 0), p->queries);           /* first above 0 */
    int64_t to = ejki_min(ejki_max(p->keys - offset, from), p->queries); /* first at `keys` */
    double ramp = (double)(to - from), first = (double)(from + offset),
           last = (double)(to - 1 + offset);
    return (ramp > 0 ? ramp * (first + last) / 2 : 0) + (double)(p->queries - to) * (double)p->keys;
}

double ejki_flash_visible_pairs(const ejki_flash_problem *p) {
    return cut_sum(p, p->last_offset + 1) - cut_sum(p, p->first_offset);
}

/* Elements of [B, H, T or S, …], where a broadcast axis has stride 0 and holds one. */
static double spread(double length, int64_t stride) {
    return stride ? length : 1;
}

static double bytes_of(const ejki_bhts *t, const ejki_flash_problem *p, double heads) {
    return spread((double)p->batch, t->stride_b) * spread(heads, t->stride_h) *
           spread((double)p->queries, t->stride_t) * (double)p->keys;
}

/* Lengths are data: packed sequences count as equally long ones. */
static ejki_flash_problem evened(const ejki_flash_problem *p) {
    ejki_flash_problem even = *p;
    if (p->layout != EJKI_FLASH_TOKENS) return even;
    even.queries /= ejki_max(1, p->batch);
    even.keys /= ejki_max(1, p->batch);
    if (!p->ends_together) return even;
    even.first_offset += even.keys - even.queries;
    even.last_offset += even.keys - even.queries;
    return even;
}

/* All scores that are visible: in every head of every sequence. */
static double scores_of(const ejki_flash_problem *p, bool in_view) {
    const ejki_flash_problem even = evened(p);
    const double counted = in_view ? ejki_flash_count(p) : -1;
    if (counted >= 0) return counted;
    return (double)p->batch * (double)p->query_heads * ejki_flash_visible_pairs(&even);
}

/* Tokens that are read: of packed sequences all, or those that the lengths leave. */
static void count_tokens(const ejki_flash_problem *p, bool in_view, double *queries, double *keys) {
    const double entries = p->layout == EJKI_FLASH_TOKENS ? 1 : (double)p->batch;
    *queries = entries * (double)p->queries;
    *keys = entries * (double)p->keys;
    if (in_view && p->layout != EJKI_FLASH_DENSE) ejki_flash_tokens(p, queries, keys);
}

void ejki_flash_cost(const void *problem, const void *args, ejk_cost *cost) {
    const ejki_flash_problem *p = problem;
    const bool in_view = ejki_flash_in_view(p, args);
    double size = (double)ejk_dtype_size(p->dtype), queries, keys;
    double d = (double)p->head_dim, dv = (double)p->value_dim;
    count_tokens(p, in_view, &queries, &keys);
    double rows = (double)p->query_heads * queries, key_rows = (double)p->kv_heads * keys;
    double bytes = size * (rows * d + key_rows * (d + dv));
    bytes += rows * dv * (p->normalize ? size : sizeof(float));
    const ejki_bht *results[] = {&p->lse, &p->row_max, &p->row_sum};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i]->stride_t) bytes += rows * sizeof(float);
    if (p->has_bias) bytes += size * bytes_of(&p->bias, p, (double)p->query_heads);
    if (p->has_mask) bytes += bytes_of(&p->mask, p, (double)p->query_heads / (double)p->mask_group);
    if (p->has_segments) bytes += (queries + keys) * (p->segments_are_i64 ? 8 : 4);
    if (p->has_sinks)
        bytes += size * (double)p->sink_count *
                 spread((double)p->query_heads / (double)p->sink_group, p->sink_stride_h);
    cost->flops = 2 * scores_of(p, in_view) * (d + dv);
    cost->bytes = bytes;
}
