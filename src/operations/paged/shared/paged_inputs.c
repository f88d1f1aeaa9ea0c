/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of lengths, starts and tables for measuring, and what calls cost. Without a wish every sequence has as many
 * keys as its part of the table holds. Rows of queries are shared out equally. Pages of a sequence are in random
 * order; where the cache has fewer than are needed, sequences share them.
 */
#include "operations/paged/shared/paged_call.h"

#include "base/base.h"
#include "ops/core/fill.h"
#include "tensor/access.h"

#include <stdlib.h>

const ejk_input_option ejki_paged_input_options[1] = {
    {"lengths", "keys of the sequences: 4096, 63x16 or 64x1-2048 (random), joined by +"}};

/* ---- Lengths ---------------------------------------------------------------------------------------- */

static const char *read_number(const char *at, int64_t *out) {
    *out = 0;
    if (*at < '0' || *at > '9') return NULL;
    for (; *at >= '0' && *at <= '9'; at++)
        if (!ejki_mul(*out, 10, out) || !ejki_add(*out, *at - '0', out)) return NULL;
    return at;
}

/* The wish's item that has sequence n; false if there is none that can be read. */
static bool read_length(const char *at, int64_t n, uint64_t seed, int64_t *out) {
    for (int64_t before = 0; at;) {
        int64_t count = 1, least, most;
        at = read_number(at, &least);
        if (at && *at == 'x') {
            count = least;
            at = read_number(at + 1, &least);
        }
        most = least;
        if (at && *at == '-') at = read_number(at + 1, &most);
        if (!at || most < least || (*at != '+' && *at != 0)) return false;
        if (n - before < count) {
            const uint64_t range = (uint64_t)(most - least) + 1;
            *out = least + (int64_t)(ejki_random_at(seed, (uint64_t)n) % range);
            return true;
        }
        before += count;
        at = *at == '+' ? at + 1 : NULL;
    }
    return false;
}

static void put(const ejk_tensor *t, int64_t index, int64_t value) {
    if (t && t->data) ejki_store_i64(t->dtype, t->data, index, value);
}

/* Whole numbers of 8 bits, left at 0 otherwise: from -2 to 2, as scales are up to 1. */
static void put_bytes(const ejk_tensor *t, uint64_t seed) {
    if (!t || !t->data || t->dtype != EJK_DTYPE_I8 || !ejk_tensor_is_contiguous(t)) return;
    int8_t *to = t->data;
    for (int64_t i = 0; i < ejk_tensor_count(t); i++)
        to[i] = (int8_t)((int)(ejki_random_at(seed, (uint64_t)i) % 5) - 2);
}

/* ---- Pages ------------------------------------------------------------------------------------------ */

/* Every page once, in random order. */
static int64_t *shuffled(int64_t pages, uint64_t seed) {
    int64_t *order = malloc((size_t)ejki_max(pages, 1) * sizeof *order);
    for (int64_t i = 0; order && i < pages; i++) {
        const int64_t j = (int64_t)(ejki_random_at(seed ^ 77, (uint64_t)i) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

ejk_status ejki_paged_inputs(const ejki_paged_call *c, const ejk_inputs *how) {
    const char *wish = ejki_wish(how, "lengths");
    paged_problem p;
    EJKI_TRY(ejki_paged_prepare(c, &p));
    int64_t *order = shuffled(p.pages, how->seed), next = ejki_cdiv(p.prefix, p.page);
    if (!order) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld pages", p.pages);
    const int64_t share = p.tables == PAGED_LISTS ? p.width / ejki_max(p.sequences, 1) : p.width;
    const int64_t rows = p.sequences > 0 ? p.tokens / p.sequences : 0;
    for (int64_t n = 0; n < p.sequences; n++) {
        int64_t keys = ejki_min(share * p.page, p.pages > 0 ? INT64_MAX : 0);
        if (wish && (!read_length(wish, n, how->seed, &keys) || keys > share * p.page)) {
            free(order);
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "lengths is '%.60s', expected %lld items as 4096, 63x16 or 64x1-2048 "
                             "joined by +, of at most %lld keys",
                             wish, (long long)p.sequences, (long long)(share * p.page));
        }
        put(c->lens, n, c->slot_mapping ? 0 : ejki_max(keys, p.writes ? rows : 0));
        put(c->firsts, n, 0);
        put(c->starts, n + 1, n + 1 == p.sequences ? p.tokens : (n + 1) * rows);
        if (p.tables == PAGED_LISTS) put(c->lists, n + 1, (n + 1) * share);
        for (int64_t j = 0; p.tables != PAGED_OWN && j < share && p.pages > 0; j++)
            put(c->table, p.tables == PAGED_LISTS ? n * share + j : n * p.table_step + j,
                order[j * p.page < p.prefix ? j % p.pages : next++ % p.pages]);
    }
    for (int64_t t = 0; c->slot_mapping && t < p.tokens; t++)
        put(c->slot_mapping, t,
            p.pages > 0 ? order[t / p.page % p.pages] * p.page + t % p.page : -1);
    put(c->count, c->count_at, p.sequences);
    put_bytes(c->key_cache, how->seed + 1);
    put_bytes(c->value_cache, how->seed + 2);
    free(order);
    return EJK_OK;
}

/* ---- Costs ------------------------------------------------------------------------------------------ */

/* Keys that the rows of a sequence see, summed, and keys that any of them sees. */
static void count_keys(const paged_problem *p, const paged_sequence *s, double *pairs,
                       double *keys) {
    for (paged_size r = 0; r < s->rows; r++) {
        const paged_size low = paged_low(p, s, r), high = paged_high(p, s, r);
        *pairs += (double)paged_most(high - low, 0);
    }
    const paged_size first =
        s->n > 0 ? paged_most(paged_low(p, s, 0), p->prefix) : paged_low(p, s, 0);
    if (s->rows > 0) *keys += (double)paged_most(s->keys - first, 0);
}

void ejki_paged_cost(const void *problem, const void *args, ejk_cost *out) {
    const paged_problem *p = problem;
    double pairs = 0, keys = 0;
    const paged_size full = p->width * p->page, count = args ? paged_count(p) : p->sequences;
    const paged_size rows = p->sequences > 0 ? p->tokens / p->sequences : 0;
    for (paged_size n = 0; p->attends && n < count; n++) {
        const paged_sequence guess = {n, n * rows, rows, full, 0};
        const paged_sequence s = args ? paged_sequence_of(p, n) : guess;
        count_keys(p, &s, &pairs, &keys);
    }
    const double depth = (double)(p->dim + p->tail_dim), dv = (double)p->value_dim;
    const bool latent = p->key.data == p->value.data && p->key.data;
    const double element = (double)ejk_dtype_size((ejk_dtype)p->key.dtype);
    const double own = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const double row = depth + (latent ? 0 : dv),
                 scales = p->key.scaled_rows + p->value.scaled_rows;
    out->flops = 2 * pairs * (double)p->heads * (depth + dv);
    out->bytes = keys * (double)p->kv_heads * (row * element + 4 * scales);
    if (p->attends) out->bytes += (double)p->tokens * (double)p->heads * (depth + dv) * own;
    if (p->writes) out->bytes += (double)p->tokens * (double)p->kv_heads * row * (own + element);
}
