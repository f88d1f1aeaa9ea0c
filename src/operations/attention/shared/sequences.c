/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/shared/sequences.h"

#include "base/base.h"

#include <string.h>

static int64_t sum_before(const ejki_flash_problem *p, const void *sums, int64_t n) {
    return p->sums_are_i64 ? ((const ejki_int64 *)sums)[n] : ((const ejki_int32 *)sums)[n];
}

static ejk_status check(const ejki_flash_problem *p, const void *sums, int64_t limit,
                        const char *name) {
    int64_t before = sum_before(p, sums, 0);
    if (before != 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s starts at %lld, expected 0", name,
                         (long long)before);
    for (int64_t n = 0; n < p->batch; n++) {
        const int64_t sum = sum_before(p, sums, n + 1);
        if (sum < before)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s falls from %lld to %lld at element %lld, expected no decrease",
                             name, (long long)before, (long long)sum, (long long)(n + 1));
        if ((p->layout == EJKI_FLASH_PADDED ? sum - before : sum) > limit)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is %lld at element %lld, expected at most %lld tokens%s", name,
                             (long long)sum, (long long)(n + 1), (long long)limit,
                             p->layout == EJKI_FLASH_PADDED ? " in each sequence" : "");
        before = sum;
    }
    return EJK_OK;
}

ejk_status ejki_flash_sequences_check(const ejki_flash_problem *p) {
    if (p->layout == EJKI_FLASH_DENSE) return EJK_OK;
    EJKI_TRY(check(p, p->query_sums, p->queries, "cum_seqlens_q"));
    return check(p, p->key_sums, p->keys, "cum_seqlens_k");
}

int64_t ejki_flash_parts(const ejki_flash_problem *p) {
    return p->layout == EJKI_FLASH_PADDED ? 2 * p->batch : p->batch + 1;
}

/* Where a part lies in memory and in its sequence's batch entry. */
typedef struct place {
    int64_t entry; /* of the batch axis */
    int64_t query, queries, key, keys;
} place;

static place place_of(const ejki_flash_problem *p, int64_t part) {
    if (p->layout == EJKI_FLASH_DENSE)
        return (place){.entry = part, .queries = p->queries, .keys = p->keys};
    const bool padded = p->layout == EJKI_FLASH_PADDED;
    if (part == p->batch && !padded) {
        const int64_t end = sum_before(p, p->query_sums, p->batch);
        return (place){.query = end, .queries = p->queries - end};
    }
    const int64_t n = part % p->batch;
    const int64_t query = sum_before(p, p->query_sums, n), key = sum_before(p, p->key_sums, n);
    place own = {.entry = padded ? n : 0,
                 .query = padded ? 0 : query,
                 .queries = sum_before(p, p->query_sums, n + 1) - query,
                 .key = padded ? 0 : key,
                 .keys = sum_before(p, p->key_sums, n + 1) - key};
    if (part < p->batch) return own;
    return (place){.entry = n, .query = own.queries, .queries = p->queries - own.queries};
}

int64_t ejki_flash_part_queries(const ejki_flash_problem *p, int64_t part) {
    return place_of(p, part).queries;
}

void ejki_flash_part_lengths(const ejki_flash_problem *p, int64_t part, int64_t *queries,
                             int64_t *keys) {
    const place at = place_of(p, part);
    *queries = at.queries;
    *keys = at.keys;
}

/* By numbers, since a tensor without elements may have no memory; NULL stays NULL. */
static void *moved(const void *data, int64_t elements, int64_t size) {
    return data ? (void *)((uintptr_t)data + (uintptr_t)(elements * size)) : NULL;
}

static void move_bthd(ejki_bthd *t, int64_t b, int64_t row, int64_t size) {
    t->data = moved(t->data, b * t->stride_b + row * t->stride_t, size);
}

static void move_bht(ejki_bht *t, int64_t b, int64_t row) {
    t->data = moved(t->data, b * t->stride_b + row * t->stride_t, sizeof(float));
}

/* Offsets at ±2^61 are no limits at all; sums of others stay far from there. */
static int64_t shifted(int64_t offset, int64_t by) {
    const int64_t far = INT64_C(1) << 61;
    return offset <= -far || offset >= far ? offset : offset + by;
}

ejki_flash_problem ejki_flash_part(const ejki_flash_problem *whole, int64_t part) {
    ejki_flash_problem p = *whole;
    const place at = place_of(whole, part);
    const int64_t size = (int64_t)ejk_dtype_size(p.dtype), id = p.segments_are_i64 ? 8 : 4;
    p.layout = EJKI_FLASH_DENSE;
    p.batch = 1;
    p.queries = at.queries;
    p.keys = at.keys;
    p.first_sequence += part;
    move_bthd(&p.query, at.entry, at.query, size);
    move_bthd(&p.key, at.entry, at.key, size);
    move_bthd(&p.value, at.entry, at.key, size);
    move_bthd(&p.out, at.entry, at.query, p.normalize ? size : (int64_t)sizeof(float));
    move_bht(&p.lse, at.entry, at.query);
    move_bht(&p.row_max, at.entry, at.query);
    move_bht(&p.row_sum, at.entry, at.query);
    p.bias.data = moved(p.bias.data, at.entry * p.bias.stride_b, size);
    p.mask.data = moved(p.mask.data, at.entry * p.mask.stride_b, 1);
    p.query_segments.data = moved(p.query_segments.data, at.entry * p.query_segments.stride_b, id);
    p.key_segments.data = moved(p.key_segments.data, at.entry * p.key_segments.stride_b, id);
    if (p.ends_together) {
        p.first_offset = shifted(p.first_offset, at.keys - at.queries);
        p.last_offset = shifted(p.last_offset, at.keys - at.queries);
    }
    if (part < whole->batch) return p;
    p.has_bias = p.has_mask = p.has_segments = p.has_sinks = false;
    p.sink_count = 0;
    return p;
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

ejki_flash_vjp_problem ejki_flash_vjp_part(const ejki_flash_vjp_problem *whole, int64_t sequence) {
    ejki_flash_vjp_problem v = *whole;
    const place at = place_of(&whole->forward, sequence);
    const int64_t size = (int64_t)ejk_dtype_size(whole->forward.dtype);
    v.forward = ejki_flash_part(&whole->forward, sequence);
    move_bthd(&v.out_cotangent, at.entry, at.query, size);
    move_bht(&v.lse_cotangent, at.entry, at.query);
    move_bthd(&v.d_query, at.entry, at.query, size);
    move_bthd(&v.d_key, at.entry, at.key, size);
    move_bthd(&v.d_value, at.entry, at.key, size);
    v.d_bias.data = moved(v.d_bias.data, at.entry * v.d_bias.stride_b, size);
    return v;
}

/* Tokens from the end of a sequence, or of all, to that of the tensor. */
typedef struct gap {
    int64_t entry, first, end;
} gap;

static void clear_rows(const ejki_bthd *t, const gap *g, int64_t heads, int64_t bytes,
                       int64_t size) {
    for (int64_t i = g->first; bytes > 0 && i < g->end; i++)
        for (int64_t h = 0; h < heads; h++)
            memset(moved(t->data, g->entry * t->stride_b + i * t->stride_t + h * t->stride_h, size),
                   0, (size_t)bytes);
}

static void clear_gap(const ejki_flash_vjp_problem *v, const gap *queries, const gap *keys) {
    const ejki_flash_problem *p = &v->forward;
    const int64_t size = (int64_t)ejk_dtype_size(p->dtype);
    if (v->wants_query) clear_rows(&v->d_query, queries, p->query_heads, p->head_dim * size, size);
    if (v->wants_key) clear_rows(&v->d_key, keys, p->kv_heads, p->head_dim * size, size);
    if (v->wants_value) clear_rows(&v->d_value, keys, p->kv_heads, p->value_dim * size, size);
}

/* A worker's share of the tokens of a gap. */
static gap share_of(int64_t entry, int64_t first, int64_t end, int64_t index, int64_t workers) {
    const int64_t share = ejki_cdiv(end - first, workers);
    return (gap){.entry = entry,
                 .first = ejki_min(end, first + index * share),
                 .end = ejki_min(end, first + (index + 1) * share)};
}

void ejki_flash_vjp_clear(const ejki_flash_vjp_problem *v, int64_t index, int64_t workers) {
    const ejki_flash_problem *p = &v->forward;
    if (p->layout == EJKI_FLASH_DENSE) return;
    const bool padded = p->layout == EJKI_FLASH_PADDED;
    for (int64_t n = 0; n < (padded ? p->batch : 1); n++) {
        int64_t queries = sum_before(p, p->query_sums, padded ? n + 1 : p->batch);
        int64_t keys = sum_before(p, p->key_sums, padded ? n + 1 : p->batch);
        if (padded) queries -= sum_before(p, p->query_sums, n);
        if (padded) keys -= sum_before(p, p->key_sums, n);
        const gap of_queries = share_of(n, queries, p->queries, index, workers);
        const gap of_keys = share_of(n, keys, p->keys, index, workers);
        clear_gap(v, &of_queries, &of_keys);
    }
}
