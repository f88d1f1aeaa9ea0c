/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of a call of attention: values, NaN where nothing may be read or matter, and what is expected. */
#include "conformance/attention.h"

#include <Random123/philox.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

static double hostile(struct random *r) {
    static const double values[] = {NAN, -NAN, INFINITY, -INFINITY};
    return RANDOM_OF(r, values);
}

ejk_tensor attention_tensor(struct call *c, const struct attention *a, ejk_dtype dtype, int64_t n,
                            int64_t heads, int64_t width) {
    if (a->tokens) return CALL_TENSOR(c, dtype, n, heads, width);
    if (a->options.heads_first) return CALL_TENSOR(c, dtype, a->batch, heads, n, width);
    return CALL_TENSOR(c, dtype, a->batch, n, heads, width);
}

/* [B,Hq,T] or [Hq,T] float32. */
static ejk_tensor row_tensor(struct call *c, const struct attention *a) {
    return a->tokens ? CALL_TENSOR(c, EJK_DTYPE_F32, a->heads, a->queries)
                     : CALL_TENSOR(c, EJK_DTYPE_F32, a->batch, a->heads, a->queries);
}

/* ---- Values ------------------------------------------------------------------------------------------ */

/* What coordinate 0 of key j adds to its score. */
static double slope(const struct attention *a, int64_t j) {
    switch (a->pattern) {
    case RISING: return 0.7 * (double)j;
    case FALLING: return -0.7 * (double)j;
    case JUMP: return j >= a->keys / 2 ? 190 : 0;
    case ONE_HOT: return j == a->keys / 3 ? 60 : 0;
    default: return 0;
    }
}

static void fill_query(struct call *c, const struct attention *a) {
    const bool sloped = a->pattern >= ONE_HOT && a->pattern <= JUMP;
    const double scale = attention_scale(a);
    const double size = a->pattern != TINY ? 1 : c->dtype == EJK_DTYPE_F16 ? 1e-6 : 1e-20;
    FOR(n, ejk_tensor_count(&a->query)) {
        double value = size * random_normal(&c->random);
        if (sloped && n % a->dim == 0 && fabs(scale) > 1e-6) value = 1 / scale;
        tensor_put(&a->query, n, value);
    }
}

static void fill_key(struct call *c, const struct attention *a) {
    const double large = 1e4 / (1e-6 + fabs(attention_scale(a)) * sqrt((double)a->dim));
    const double size = a->pattern == LARGE ? large : 1;
    FOR(b, a->batch) FOR(j, a->keys) FOR(h, a->kv_heads) FOR(d, a->dim) {
        double value =
            a->pattern == EQUAL ? 0.25 * (double)(d % 5 + 1) : size * random_normal(&c->random);
        if (d == 0) value += slope(a, j);
        tensor_put(&a->key, attention_row(a, a->keys, a->kv_heads, b, j, h) * a->dim + d, value);
    }
}

static void fill_value(struct call *c, const struct attention *a) {
    static const double sizes[] = {1, 1, 1, 1e3, 1e-3}, offsets[] = {0, 0, 5};
    struct random *r = &c->random;
    double size = RANDOM_OF(r, sizes), offset = RANDOM_OF(r, offsets);
    /* Subnormal results, and with dropout some that overflow. */
    if (c->dtype == EJK_DTYPE_F16 && random_chance(r, 0.2))
        size = random_chance(r, 0.5) ? 1e-6 : 2e4;
    if (c->dtype == EJK_DTYPE_BF16 && random_chance(r, 0.03)) size = 1e-39;
    /* Gradients are given results, which are finite. */
    if (c->dtype == EJK_DTYPE_F16 && a->options.gradients && size > 1) size = 10;
    FOR(n, ejk_tensor_count(&a->value))
    tensor_put(&a->value, n, size * (offset + random_normal(r)));
}

static void fill_bias(struct call *c, const struct attention *a) {
    struct random *r = &c->random;
    const bool infinite = random_chance(r, 0.2) && !c->hostile;
    const double size = random_chance(r, 0.3) && !c->hostile ? 10 : 1;
    const double poisoned = a->poison != IN_BIAS ? 0 : random_chance(r, 0.2) ? 0.5 : 0.01;
    FOR(n, ejk_tensor_count(&a->bias)) {
        double value = infinite && random_chance(r, 0.3) ? -INFINITY : size * random_normal(r);
        if (random_chance(r, poisoned)) value = hostile(r);
        tensor_put(&a->bias, n, value);
    }
}

void attention_tensors(struct call *c, struct attention *a) {
    struct random *r = &c->random, own = {.state = c->seed};
    a->query = attention_tensor(c, a, c->dtype, a->queries, a->heads, a->dim);
    a->key = attention_tensor(c, a, c->dtype, a->keys, a->kv_heads, a->dim);
    a->value = attention_tensor(c, a, c->dtype, a->keys, a->kv_heads, a->value_dim);
    a->out = attention_tensor(c, a, a->normalize ? c->dtype : EJK_DTYPE_F32, a->queries, a->heads,
                              a->value_dim);
    if (a->options.gradients || random_chance(r, 0.7)) a->lse = row_tensor(c, a);
    if (!a->normalize && random_chance(r, 0.8)) a->row_max = row_tensor(c, a);
    if (!a->normalize && random_chance(r, 0.8)) a->row_sum = row_tensor(c, a);
    if (a->options.weights && random_chance(&own, 0.7))
        a->weights = CALL_TENSOR(c, c->dtype, a->batch, a->heads, a->queries, a->keys);
}

void attention_contents(struct call *c, struct attention *a) {
    static const char *const patterns[] = {"normal", "large",   "equal", "one-hot",
                                           "rising", "falling", "jump",  "tiny"};
    static const char *const poisons[] = {"", ", NaN in hidden", ", NaN in key", ", NaN in value",
                                          ", NaN in bias"};
    fill_query(c, a);
    fill_key(c, a);
    fill_value(c, a);
    if (ejk_tensor_present(&a->bias)) fill_bias(c, a);
    snprintf(c->text, sizeof c->text, "scores %s%s", patterns[a->pattern], poisons[a->poison]);
    for (int64_t n = 0; n < a->sequences && strlen(c->text) < 200; n++)
        snprintf(c->text + strlen(c->text), 50, " %" PRId64 "x%" PRId64,
                 a->ends[0][n + 1] - a->ends[0][n], a->ends[1][n + 1] - a->ends[1][n]);
}

void attention_gradients(struct call *c, struct attention *a) {
    struct random *r = &c->random;
    const bool all = random_chance(r, 0.6);
    a->d_out = attention_tensor(c, a, c->dtype, a->queries, a->heads, a->value_dim);
    if (random_chance(r, 0.3)) a->d_lse = row_tensor(c, a);
    if (all || random_chance(r, 0.5))
        a->d_query = attention_tensor(c, a, c->dtype, a->queries, a->heads, a->dim);
    if (all || random_chance(r, 0.5))
        a->d_key = attention_tensor(c, a, c->dtype, a->keys, a->kv_heads, a->dim);
    if (all || random_chance(r, 0.5))
        a->d_value = attention_tensor(c, a, c->dtype, a->keys, a->kv_heads, a->value_dim);
    if (ejk_tensor_present(&a->bias) && (all || random_chance(r, 0.5)))
        a->d_bias = call_tensor(c, c->dtype, 4, a->bias.shape);
    if (ejk_tensor_present(&a->sinks) && (all || random_chance(r, 0.5)))
        a->d_sinks = call_tensor(c, c->dtype, a->sinks.rank, a->sinks.shape);
    FOR(n, ejk_tensor_count(&a->d_out)) tensor_put(&a->d_out, n, random_normal(r));
    FOR(n, ejk_tensor_present(&a->d_lse) ? ejk_tensor_count(&a->d_lse) : 0)
    tensor_put(&a->d_lse, n, random_normal(r));
}

/* ---- What is visible --------------------------------------------------------------------------------- */

static int64_t bounded(int64_t position) {
    const int64_t far = INT64_C(1) << 61;
    return position < -far ? -far : position > far ? far : position;
}

static int64_t whole(const ejk_tensor *t, int64_t index) {
    int64_t value;
    int32_t narrow;
    if (t->dtype == EJK_DTYPE_I64) {
        memcpy(&value, (const char *)t->data + index * 8, sizeof value);
        return value;
    }
    memcpy(&narrow, (const char *)t->data + index * 4, sizeof narrow);
    return narrow;
}

/* Of row i of entry b: its sequence, and which of its rows it is. False if it is of none. */
static bool sequence_of(const struct attention *a, int which, int64_t b, int64_t i, int64_t *n,
                        int64_t *own) {
    const int64_t *ends = a->ends[which];
    *n = b;
    *own = i;
    if (!a->sequences) return true;
    if (!a->tokens) return i < ends[b + 1] - ends[b];
    for (*n = 0; *n < a->sequences; ++*n)
        if (ends[*n] <= i && i < ends[*n + 1]) {
            *own = i - ends[*n];
            return true;
        }
    return false;
}

/* What causal, window and chunks allow: query and key at these positions. */
static bool position_allows(const struct attention *a, int64_t at, int64_t k) {
    if ((a->causal || a->chunk.set) && k > at) return false;
    if (a->window.left.set && k < at - a->window.left.value) return false;
    if (a->window.right.set && k > at + a->window.right.value) return false;
    if (!a->chunk.set) return true;
    const int64_t rest = at % a->chunk.value;
    return k >= at - (rest < 0 ? rest + a->chunk.value : rest);
}

static bool mask_allows(const struct attention *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t *n = a->mask.shape;
    const int64_t head = n[1] == 1 ? 0 : n[1] == a->heads ? h : h / a->group;
    const int64_t row = ((n[0] == 1 ? 0 : b) * n[1] + head) * n[2] + (n[2] == 1 ? 0 : i);
    return ((const unsigned char *)a->mask.data)[row * n[3] + j] != 0;
}

/* Straight from the rules; `own` are the places in the sequence, of `keys` and `queries`. */
static bool visible(const struct attention *a, int64_t b, int64_t h, int64_t i, int64_t j,
                    const int64_t own[2], int64_t queries, int64_t keys) {
    const bool placed =
        ejk_tensor_present(&a->query_positions) || ejk_tensor_present(&a->key_positions);
    const int64_t offset = a->offset.set ? a->offset.value : placed ? 0 : keys - queries;
    const int64_t at = ejk_tensor_present(&a->query_positions)
                           ? bounded(whole(&a->query_positions, b * a->queries + i))
                           : own[0];
    const int64_t k = ejk_tensor_present(&a->key_positions)
                          ? bounded(whole(&a->key_positions, b * a->keys + j))
                          : own[1];
    if (!position_allows(a, at + offset, k)) return false;
    if (ejk_tensor_present(&a->mask) && !mask_allows(a, b, h, i, j)) return false;
    if (a->elements && !a->elements[(h * a->queries + i) * a->keys + j]) return false;
    if (!ejk_tensor_present(&a->query_ids)) return true;
    const int64_t q = whole(&a->query_ids, b * a->queries + i);
    return q >= 0 && q == whole(&a->key_ids, b * a->keys + j);
}

static bool keeps(const struct attention *a, int64_t n, int64_t h, int64_t i, int64_t j) {
    const philox4x32_ctr_t counter = {{(uint32_t)(j / 4), (uint32_t)i, (uint32_t)h, (uint32_t)n}};
    const philox4x32_key_t key = {{(uint32_t)a->dropout_seed, (uint32_t)(a->dropout_seed >> 32)}};
    const philox4x32_ctr_t words = philox4x32(counter, key);
    return a->dropout == 0 || words.v[j % 4] >= (uint32_t)floor(a->dropout * 0x1p32);
}

static void look(struct call *c, struct attention *a) {
    a->seen = call_memory(c, (size_t)(a->batch * a->heads * a->queries * a->keys));
    a->none = call_memory(c, (size_t)(a->batch * a->queries));
    FOR(b, a->batch) FOR(i, a->queries) {
        int64_t n, m, own[2];
        a->none[b * a->queries + i] = !sequence_of(a, 0, b, i, &n, &own[0]);
        if (a->none[b * a->queries + i]) continue;
        const int64_t queries = a->sequences ? a->ends[0][n + 1] - a->ends[0][n] : a->queries;
        const int64_t keys = a->sequences ? a->ends[1][n + 1] - a->ends[1][n] : a->keys;
        FOR(j, a->keys) {
            if (!sequence_of(a, 1, b, j, &m, &own[1]) || m != n) continue;
            FOR(h, a->heads)
            if (visible(a, b, h, i, j, own, queries, keys))
                a->seen[((b * a->heads + h) * a->queries + i) * a->keys + j] =
                    keeps(a, n, h, own[0], own[1]) ? SHOWN | KEPT : SHOWN;
        }
    }
}

/* ---- Poison ------------------------------------------------------------------------------------------ */

static void poison_row(const ejk_tensor *t, int64_t row, int64_t width, struct random *r) {
    FOR(d, width) tensor_put(t, row * width + d, r ? hostile(r) : (double)NAN);
}

static bool key_is_seen(const struct attention *a, int64_t b, int64_t kv, int64_t j) {
    FOR(g, a->group)
    FOR(i, a->queries)
    if (a->seen[((b * a->heads + kv * a->group + g) * a->queries + i) * a->keys + j]) return true;
    return false;
}

/* Keys, values and biases that no query sees; in packed calls always those of no sequence. */
static void poison_hidden(struct call *c, const struct attention *a) {
    struct random *r = &c->random;
    int64_t n, own;
    FOR(b, a->batch) FOR(j, a->keys) FOR(h, a->kv_heads) {
        const bool outside = !sequence_of(a, 1, b, j, &n, &own);
        if (!outside && (a->poison != IN_HIDDEN || key_is_seen(a, b, h, j))) continue;
        const int64_t row = attention_row(a, a->keys, a->kv_heads, b, j, h);
        poison_row(&a->key, row, a->dim, r);
        poison_row(&a->value, row, a->value_dim, r);
    }
    FOR(b, a->batch)
    FOR(i, a->queries)
    FOR(h, a->heads)
    if (a->none[b * a->queries + i])
        poison_row(&a->query, attention_row(a, a->queries, a->heads, b, i, h), a->dim, NULL);
    if (a->poison != IN_HIDDEN || !ejk_tensor_present(&a->bias)) return;
    const int64_t count = ejk_tensor_count(&a->bias);
    uint8_t *seen = call_memory(c, (size_t)count);
    FOR(b, a->batch)
    FOR(h, a->heads)
    FOR(i, a->queries)
    FOR(j, a->keys)
    if (a->seen[((b * a->heads + h) * a->queries + i) * a->keys + j])
        seen[attention_bias(a, b, h, i) + j] = 1;
    FOR(at, count) if (!seen[at]) tensor_put(&a->bias, at, hostile(r));
}

/* One hostile element in a few rows of K or V, or a NaN in each of them. */
static void poison_some(const ejk_tensor *t, int64_t width, struct random *r) {
    const int64_t rows = width ? ejk_tensor_count(t) / width : 0;
    const bool all = random_chance(r, 0.2);
    if (rows == 0) return;
    FOR(n, all ? rows : random_int(r, 1, 3)) {
        const int64_t row = all ? n : random_int(r, 0, rows - 1);
        tensor_put(t, row * width + random_int(r, 0, width - 1), all ? (double)NAN : hostile(r));
    }
}

/* Cotangents of rows that see nothing are NaN where hidden places are hostile; of those of no sequence always. */
static void poison_cotangents(const struct attention *a) {
    const bool strict = a->poison == IN_HIDDEN && !ejk_tensor_present(&a->sinks);
    FOR(b, a->batch) FOR(h, a->heads) FOR(i, a->queries) {
        const int64_t row = (b * a->heads + h) * a->queries + i;
        bool blank = strict;
        FOR(j, a->keys) blank = blank && !a->seen[row * a->keys + j];
        if (!blank && !a->none[b * a->queries + i]) continue;
        poison_row(&a->d_out, attention_row(a, a->queries, a->heads, b, i, h), a->value_dim, NULL);
        if (ejk_tensor_present(&a->d_lse)) tensor_put(&a->d_lse, row, (double)NAN);
    }
}

/* ---- The model --------------------------------------------------------------------------------------- */

/* Values as [B,T,H,width]. */
static double *turned(struct call *c, const struct attention *a, double *values, int64_t n,
                      int64_t heads, int64_t width) {
    if (!a->options.heads_first) return values;
    double *to = call_memory(c, (size_t)(a->batch * n * heads * width) * sizeof *to);
    FOR(b, a->batch)
    FOR(i, n)
    FOR(h, heads)
    memcpy(to + ((b * n + i) * heads + h) * width, values + ((b * heads + h) * n + i) * width,
           (size_t)width * sizeof *to);
    return to;
}

static double *values_of(struct call *c, const struct attention *a, const ejk_tensor *t, int64_t n,
                         int64_t heads, int64_t width) {
    return turned(c, a, tensor_values(c, t), n, heads, width);
}

static void load(struct call *c, struct attention *a) {
    a->q = values_of(c, a, &a->query, a->queries, a->heads, a->dim);
    a->k = values_of(c, a, &a->key, a->keys, a->kv_heads, a->dim);
    a->v = values_of(c, a, &a->value, a->keys, a->kv_heads, a->value_dim);
    a->b = tensor_values(c, &a->bias);
    a->s = tensor_values(c, &a->sinks);
}

/* What the operation would have written. */
static void write_forward(struct call *c, struct attention *a) {
    const int64_t count = ejk_tensor_count(&a->out), rows = ejk_tensor_count(&a->lse);
    struct attention_results r = {.out = call_memory(c, (size_t)count * 8),
                                  .lse = call_memory(c, (size_t)rows * 8)};
    attention_long_forward(c, a, 0, &r);
    FOR(n, count)
    tensor_put(&a->out, n, r.out[n]); /* infinities of f16 would go through all gradients */
    FOR(n, rows) tensor_put(&a->lse, n, r.lse[n]);
    a->exact_out = turned(c, a, r.out, a->queries, a->heads, a->value_dim);
    a->exact_lse = r.lse;
}

void attention_finish(struct call *c) {
    struct attention *a = c->own;
    struct random *r = &c->random;
    look(c, a);
    if (a->poison == IN_HIDDEN || a->sequences) poison_hidden(c, a);
    if (a->poison == IN_KEY) poison_some(&a->key, a->dim, r);
    if (a->poison == IN_VALUE) poison_some(&a->value, a->value_dim, r);
    load(c, a);
    if (!a->options.gradients) return;
    write_forward(c, a);
    poison_cotangents(a);
    const bool wide = c->dtype == EJK_DTYPE_F64; /* the reference computes statistics anew */
    a->given_out =
        wide ? a->exact_out : values_of(c, a, &a->out, a->queries, a->heads, a->value_dim);
    a->given_lse = wide ? a->exact_lse : tensor_values(c, &a->lse);
    a->c_out = values_of(c, a, &a->d_out, a->queries, a->heads, a->value_dim);
    a->c_lse = tensor_values(c, &a->d_lse);
}

static struct attention_results results_of(struct call *c, int which, bool spread) {
    static const char *const names[] = {"d_query", "d_key", "d_value", "d_bias", "d_softmax_aux"};
    struct attention_results r = {.out = call_result(c, "out", which, ELEMENT),
                                  .lse = call_result(c, "lse", which, LOG_SUM),
                                  .row_max = call_result(c, "row_max", which, MAXIMUM),
                                  .row_sum = call_result(c, "row_sum", which, SUM),
                                  .weights = call_result(c, "weights", which, ELEMENT)};
    if (spread) r.out_spread = call_result(c, "out", SPREAD, ELEMENT);
    for (int i = 0; i < 5; i++) {
        r.d[i] = call_result(c, names[i], which, ELEMENT);
        if (spread) r.d_spread[i] = call_result(c, names[i], SPREAD, ELEMENT);
    }
    return r;
}

/* What is relative to the largest score cannot be better known than that is in f32. */
static void relate(struct call *c, const struct attention *a) {
    double largest = 0;
    struct attention_results r = {
        .row_max = call_memory(c, (size_t)(a->batch * a->heads * a->queries) * 8)};
    attention_long_forward(c, a, 0, &r);
    FOR(n, a->batch * a->heads * a->queries)
    if (isfinite(r.row_max[n])) largest = fmax(largest, fabs(r.row_max[n]));
    for (int i = 0; i < c->kernel->args->count; i++) {
        struct expected *e = &c->expected[i];
        const char *name = c->kernel->args->fields[i].name;
        if (e->exact && (strcmp(name, "out") == 0 || strcmp(name, "row_sum") == 0))
            e->relative_to = 1 + largest;
    }
}

void attention_exact(struct call *c) {
    struct attention *a = c->own;
    const struct attention_results r = results_of(c, EXACT, true);
    const int64_t rows = a->batch * a->heads * a->queries;
    c->scarce = rows < (a->options.gradients ? 32 : 16);
    for (int i = 0; i < c->kernel->args->count; i++)
        c->expected[i].open =
            a->options.gradients || strcmp(c->kernel->args->fields[i].name, "weights") == 0;
    if (a->options.gradients)
        attention_long_backward(c, a, 0, &r);
    else
        attention_long_forward(c, a, 0, &r);
    if (!a->normalize) relate(c, a);
}

void attention_naive(struct call *c, int order) {
    const struct attention *a = c->own;
    const struct attention_results r = results_of(c, order, false);
    const bool wide = c->dtype == EJK_DTYPE_F64;
    if (a->options.gradients)
        (wide ? attention_double_backward : attention_float_backward)(c, a, order, &r);
    else
        (wide ? attention_double_forward : attention_float_forward)(c, a, order, &r);
}
