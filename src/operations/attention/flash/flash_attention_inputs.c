/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of cumulative lengths and segment ids. Without the option "lengths", the N sequences of a packed call are
 * between a half and one and a half of their mean, fill the tokens, and have as many keys as queries in proportion:
 * where T equals S, exactly as many, and one query each where T is N. Padded sequences are between a half of
 * their batch entry and all of it. Segments are up to four in a batch entry, cut likewise; queries have the ids of the
 * last T keys, as causal has it where nothing else is said.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include "base/base.h"
#include "ops/core/fill.h"

#include <stdlib.h>

enum { SEGMENTS = 4 };

const ejk_input_option ejki_flash_input_options[1] = {
    {"lengths", "of the sequences: 4096+63x16 (one, and 63 of 16) or 64x1-2048 (random); segment "
                "ids have them in every batch entry"}};

/* ---- Lengths as text --------------------------------------------------------------------------------- */

/* One item: "4096", "63x16" (63 sequences of 16), "64x1-2048" (64 of random lengths). */
typedef struct item {
    int64_t count, least, most;
} item;

static const char *read_number(const char *at, int64_t *out) {
    *out = 0;
    if (*at < '0' || *at > '9') return NULL;
    for (; *at >= '0' && *at <= '9'; at++)
        if (!ejki_mul(*out, 10, out) || !ejki_add(*out, *at - '0', out)) return NULL;
    return at;
}

/* NULL if there is none. */
static const char *read_item(const char *at, item *out) {
    *out = (item){.count = 1};
    at = read_number(at, &out->least);
    if (at && *at == 'x') {
        out->count = out->least;
        at = read_number(at + 1, &out->least);
    }
    out->most = out->least;
    if (at && *at == '-') at = read_number(at + 1, &out->most);
    return at && out->most >= out->least && (*at == '+' || *at == 0) ? at : NULL;
}

static ejk_status unreadable(const char *text) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "lengths is '%.60s', expected items as 4096, 63x16 or 64x1-2048 joined by +",
                     text);
}

/* Where each of `count` sequences ends, of at most `room` tokens each and `total` together; ends[0] is 0. */
static ejk_status read_ends(const char *text, int64_t count, int64_t room, int64_t total,
                            uint64_t seed, int64_t *ends) {
    int64_t n = 0;
    item each;
    for (const char *at = text; at;) {
        at = read_item(at, &each);
        if (!at) return unreadable(text);
        for (; each.count > 0 && n < count; each.count--, n++) {
            const uint64_t range = (uint64_t)(each.most - each.least) + 1;
            const int64_t length =
                each.least + (int64_t)(range ? ejki_random_at(seed, (uint64_t)n) % range : 0);
            if (length > room || !ejki_add(ends[n], length, &ends[n + 1]) || ends[n + 1] > total)
                return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                                 "lengths is '%.60s', expected at most %lld tokens%s", text,
                                 (long long)(length > room ? room : total),
                                 length > room ? " in each sequence" : "");
        }
        if (each.count > 0)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "lengths is '%.60s', expected %lld sequences", text, (long long)count);
        at = *at == '+' ? at + 1 : NULL;
    }
    if (n == count) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "lengths is '%.60s', %lld sequences, expected %lld", text, (long long)n,
                     (long long)count);
}

/* How many sequences the text has; a bad one has as many as can be read. */
static int64_t count_items(const char *text) {
    int64_t count = 0;
    item each;
    for (const char *at = text; at && (at = read_item(at, &each)) != NULL;) {
        if (!ejki_add(count, each.count, &count)) return INT64_MAX;
        at = *at == '+' ? at + 1 : NULL;
    }
    return count;
}

/* ---- Lengths drawn ----------------------------------------------------------------------------------- */

/* A sequence's share, between a half and one and a half. */
static double weight(uint64_t seed, int64_t n) {
    return 0.5 + (double)(ejki_random_at(seed, (uint64_t)n) >> 11) * 0x1p-53;
}

/* Ends that divide `total`, each sequence at least one token if there are as many. */
static void draw_ends(int64_t count, int64_t total, uint64_t seed, int64_t *ends) {
    const int64_t each = total >= count ? 1 : 0, rest = total - each * count;
    double all = 0, before = 0;
    for (int64_t n = 0; n < count; n++) all += weight(seed, n);
    for (int64_t n = 0; n < count; n++) {
        before += weight(seed, n);
        const int64_t end = each * (n + 1) + (int64_t)((double)rest * (before / all));
        ends[n + 1] = n + 1 == count ? total : ejki_min(end, total);
    }
}

/* Ends of sequences of which each may have `room` tokens. */
static void draw_padded(int64_t count, int64_t room, uint64_t seed, int64_t *ends) {
    for (int64_t n = 0; n < count; n++) {
        const int64_t length = (int64_t)((double)room * (weight(seed, n) / 2 + 0.25));
        ends[n + 1] = ends[n] + ejki_max(ejki_min(1, room), ejki_min(length, room));
    }
}

/* ends[0] is 0; freed by the caller. */
static ejk_status allocate_ends(int64_t count, int64_t **out) {
    *out = calloc((size_t)count + 1, sizeof **out);
    return *out ? EJK_OK
                : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld lengths",
                            (long long)count);
}

/* ---- Tensors ----------------------------------------------------------------------------------------- */

static int64_t largest_of(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_I32 ? INT32_MAX : INT64_MAX;
}

static ejk_status fill_sums(const ejk_tensor *sums, int64_t room, bool padded,
                            const ejk_inputs *how) {
    const char *text = ejki_wish(how, "lengths");
    int64_t *ends;
    if (!ejk_tensor_present(sums) || !sums->data) return EJK_OK;
    const int64_t count = sums->shape[0] - 1;
    const int64_t total = padded ? largest_of(sums) : ejki_min(room, largest_of(sums));
    EJKI_TRY(allocate_ends(count, &ends));
    ejk_status status = EJK_OK;
    if (text)
        status = read_ends(text, count, room, total, how->seed, ends);
    else if (padded)
        draw_padded(count, ejki_min(room, total / ejki_max(1, count)), how->seed, ends);
    else
        draw_ends(count, total, how->seed, ends);
    for (int64_t n = 0; n <= count && status == EJK_OK; n++)
        ejki_element_set(sums, n * sums->strides[0], ends[n]);
    free(ends);
    return status;
}

/* The number of its segment for each place of a batch entry, the last of `all` places; behind all, -1. */
static void put_ids(const ejk_tensor *ids, int64_t entry, int64_t all, int64_t count,
                    const int64_t *ends) {
    const int64_t before = all - ids->shape[1];
    int64_t segment = 0;
    for (int64_t i = 0; i < ids->shape[1]; i++) {
        while (segment < count && before + i >= ends[segment + 1]) segment++;
        ejki_element_set(ids, entry * ids->strides[0] + i * ids->strides[1],
                         segment < count ? segment : -1);
    }
}

static ejk_status fill_segments(const ejk_tensor *query, const ejk_tensor *key,
                                const ejk_inputs *how) {
    const char *text = ejki_wish(how, "lengths");
    int64_t *ends;
    if (!ejk_tensor_present(query) || !ejk_tensor_present(key)) return EJK_OK;
    const int64_t all = ejki_max(query->shape[1], key->shape[1]);
    const int64_t count = text ? ejki_min(count_items(text), all + 1) : ejki_min(SEGMENTS, all);
    EJKI_TRY(allocate_ends(count, &ends));
    ejk_status status = EJK_OK;
    for (int64_t b = 0; b < query->shape[0] && status == EJK_OK; b++) {
        if (text)
            status = read_ends(text, count, all, all, how->seed, ends);
        else
            draw_ends(count, all, how->seed + (uint64_t)b, ends);
        if (status == EJK_OK && query->data) put_ids(query, b, all, count, ends);
        if (status == EJK_OK && key->data) put_ids(key, b, all, count, ends);
    }
    free(ends);
    return status;
}

ejk_status ejki_flash_inputs(const ejk_flash_attention_args *args, const ejk_axes *axes,
                             const ejk_inputs *how) {
    const bool padded = args->query.rank == 4;
    EJKI_TRY(fill_sums(&args->cum_seqlens_q, ejk_axes_get(axes, "T"), padded, how));
    EJKI_TRY(fill_sums(&args->cum_seqlens_k, ejk_axes_get(axes, "S"), padded, how));
    return fill_segments(&args->q_segment_ids, &args->kv_segment_ids, how);
}
