/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a call of attention: sizes around the edges of tiles, every feature alone and with others. */
#include "conformance/attention.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t lengths[] = {1,  2,  3,  5,  7,  8,  15,  16,  17,  31,
                                  33, 63, 64, 65, 96, 97, 100, 127, 129, 257};
static const int64_t long_lengths[] = {257, 300, 511, 512, 513, 767, 1025};
static const int64_t dims[] = {1,  2,  3,  5,  8,  15,  16,  17,  31,  32,  33,  40,
                               63, 64, 65, 80, 96, 100, 127, 128, 129, 192, 257, 576};
static const int64_t tiled_lengths[] = {17,  31,  64,  65,  96,  127, 128, 129,
                                        130, 191, 192, 193, 255, 257, 300, 385};
static const int64_t tiled_dims[] = {8, 32, 64, 64, 64, 72, 80, 96, 100, 112, 128, 128, 128, 128};

static const int64_t decoded_dims[] = {64, 128, 128, 192, 256}; /* of few queries */

/* A size, once in a while 0. */
static int64_t size_of(struct random *r, int64_t size) {
    return random_chance(r, 0.01) ? 0 : size;
}

static int64_t scores_of(const struct attention *a) {
    return a->batch * a->heads * a->queries * a->keys;
}

static void choose_sizes(struct attention *a, struct random *r, int64_t budget) {
    do {
        const bool decode = random_chance(r, 0.35);
        a->queries = size_of(r, decode ? random_int(r, 1, 8) : RANDOM_OF(r, lengths));
        a->keys = size_of(r, decode && random_chance(r, 0.3)    ? RANDOM_OF(r, long_lengths)
                             : !decode && random_chance(r, 0.4) ? a->queries
                                                                : RANDOM_OF(r, lengths));
        a->dim = size_of(r, RANDOM_OF(r, dims));
        a->value_dim = size_of(r, random_chance(r, 0.5) ? a->dim : RANDOM_OF(r, dims));
        a->batch = size_of(r, random_int(r, 1, 3));
        a->kv_heads = size_of(r, random_int(r, 1, 3));
        a->group = random_chance(r, 0.4) ? 1 : random_int(r, 2, 9);
        a->heads = a->group * a->kv_heads;
    } while (scores_of(a) * (a->dim + a->value_dim) > budget || scores_of(a) > budget / 16);
}

/* A query or a few and hardly any keys: what is over in a microsecond. */
static void choose_tiny_sizes(struct attention *a, struct random *r) {
    a->batch = random_int(r, 1, 2);
    a->kv_heads = random_int(r, 1, 2);
    a->group = random_int(r, 1, 4);
    a->heads = a->group * a->kv_heads;
    a->queries = random_int(r, 1, 4);
    a->keys = random_int(r, 1, 40);
    a->dim = a->value_dim = RANDOM_OF(r, dims) % 130 + 1;
}

static void choose_tiled_sizes(struct attention *a, struct random *r, int64_t budget) {
    const bool few = !a->options.gradients && random_chance(r, 0.3);
    do {
        a->queries = RANDOM_OF(r, tiled_lengths);
        a->keys = random_chance(r, 0.4)   ? a->queries
                  : random_chance(r, 0.2) ? RANDOM_OF(r, long_lengths)
                                          : RANDOM_OF(r, tiled_lengths);
        a->dim = RANDOM_OF(r, tiled_dims);
        a->value_dim = random_chance(r, 0.7) ? a->dim : RANDOM_OF(r, tiled_dims);
        a->batch = random_int(r, 1, 2);
        a->kv_heads = random_int(r, 1, 2);
        a->group = random_chance(r, 0.5) ? 1 : random_int(r, 2, 4);
        if (few) {
            a->queries = random_int(r, 1, 16 / a->group);
            a->dim = RANDOM_OF(r, decoded_dims);
            a->value_dim = random_chance(r, 0.7) ? a->dim : RANDOM_OF(r, decoded_dims);
        }
        a->heads = a->group * a->kv_heads;
    } while (scores_of(a) * (a->dim + a->value_dim) > budget);
}

/* ---- Packed sequences -------------------------------------------------------------------------------- */

static int64_t *choose_ends(struct call *c, const struct attention *a, int64_t length) {
    struct random *r = &c->random;
    int64_t *ends = call_memory(c, (size_t)(a->sequences + 1) * sizeof *ends), left = length;
    for (int64_t n = 0; n < a->sequences; n++) {
        const int64_t most = a->tokens ? left : length;
        const int64_t own = random_chance(r, 0.2)   ? 0
                            : random_chance(r, 0.2) ? most
                                                    : random_int(r, 0, most);
        ends[n + 1] = ends[n] + own;
        left -= own;
    }
    return ends;
}

static ejk_tensor sums_of(struct call *c, const int64_t *ends, int64_t count, ejk_dtype dtype) {
    ejk_tensor t = CALL_TENSOR(c, dtype, count);
    for (int64_t n = 0; n < count; n++) tensor_put(&t, n, (double)ends[n]);
    return t;
}

static void choose_sequences(struct call *c, struct attention *a) {
    struct random *r = &c->random;
    const ejk_dtype dtype = random_chance(r, 0.5) ? EJK_DTYPE_I64 : EJK_DTYPE_I32;
    a->tokens = a->batch == 0 || random_chance(r, 0.6);
    a->sequences = a->tokens ? random_int(r, 1, 8) : a->batch;
    if (a->tokens) a->batch = 1;
    a->ends[0] = choose_ends(c, a, a->queries);
    a->ends[1] = choose_ends(c, a, a->keys);
    a->cum_q = sums_of(c, a->ends[0], a->sequences + 1, dtype);
    a->cum_k = sums_of(c, a->ends[1], a->sequences + 1, dtype);
}

struct attention *attention_create(struct call *c, struct attention_options options) {
    struct attention *a = call_memory(c, sizeof *a);
    struct random *r = &c->random;
    c->own = a;
    c->gradient = options.gradients;
    a->options = options;
    a->normalize = true;
    if (c->tiled)
        choose_tiled_sizes(a, r, 10 * c->budget);
    else if (random_chance(r, 0.1))
        choose_tiny_sizes(a, r);
    else
        choose_sizes(a, r, options.gradients ? c->budget / 2 : c->budget);
    if (options.packed && random_chance(r, 0.25)) choose_sequences(c, a);
    return a;
}

/* ---- Features ---------------------------------------------------------------------------------------- */

/* Causal and window, and where positions count from. */
static void choose_positions(struct call *c, struct attention *a, bool causal, bool window) {
    struct random *r = &c->random;
    if (random_chance(r, 0.4)) a->offset = ejk_int(random_int(r, -a->queries - 1, a->keys + 1));
    if (window && random_chance(r, 0.7))
        a->window.left = ejk_int(random_int(r, 0, random_chance(r, 0.5) ? 3 : a->keys));
    if (window && random_chance(r, 0.7))
        a->window.right = ejk_int(random_int(r, 0, random_chance(r, 0.5) ? 3 : a->keys));
    a->causal = causal;
}

static void choose_mask(struct call *c, struct attention *a) {
    static const double densities[] = {0, 0.05, 0.3, 0.5, 0.7, 0.95, 1};
    struct random *r = &c->random;
    const int64_t heads[] = {1, a->kv_heads, a->kv_heads, a->heads};
    a->mask = CALL_TENSOR(c, EJK_DTYPE_BOOL, random_chance(r, 0.5) ? a->batch : 1,
                          RANDOM_OF(r, heads), random_chance(r, 0.5) ? a->queries : 1, a->keys);
    const double density = RANDOM_OF(r, densities);
    /* Runs of equal entries meet whole tiles that are hidden or not. */
    const int64_t run = random_chance(r, 0.5) ? 1 : random_int(r, 8, 80);
    unsigned char *bytes = a->mask.data, allowed = 0;
    for (int64_t n = 0; n < ejk_tensor_count(&a->mask); n++) {
        if (n % a->keys % run == 0)
            allowed = random_chance(r, density) ? (unsigned char)random_int(r, 1, 255) : 0;
        bytes[n] = allowed;
    }
}

/* Ids that differ in their upper half only would be equal to whoever reads 32 of 64 bits. */
static ejk_tensor choose_ids(struct call *c, const struct attention *a, ejk_dtype dtype,
                             int64_t length, bool runs) {
    struct random *r = &c->random;
    ejk_tensor t = CALL_TENSOR(c, dtype, a->batch, length);
    const int64_t high = dtype == EJK_DTYPE_I64 ? INT64_C(1) << 32 : 4;
    for (int64_t n = 0; n < a->batch * length; n++) {
        int64_t id = runs ? n % length * 3 / (length + 1) : random_int(r, 0, 2);
        if (random_chance(r, runs ? 0.02 : 0.2)) id = -random_int(r, 1, 2);
        if (id > 0 && random_chance(r, runs ? 0.02 : 0.3)) id = high + id;
        tensor_put(&t, n, (double)id);
    }
    return t;
}

static void choose_sinks(struct call *c, struct attention *a) {
    static const int64_t counts[] = {1, 1, 1, 2, 4};
    struct random *r = &c->random;
    const int64_t n = RANDOM_OF(r, counts), heads[] = {a->kv_heads, a->heads};
    const bool wide = random_chance(r, 0.2) && a->poison <= IN_HIDDEN;
    a->sinks = random_chance(r, 0.3) ? CALL_TENSOR(c, c->dtype, n)
                                     : CALL_TENSOR(c, c->dtype, RANDOM_OF(r, heads), n);
    for (int64_t i = 0; i < ejk_tensor_count(&a->sinks); i++) {
        double value = random_normal(r);
        if (wide) value = random_chance(r, 0.2) ? -INFINITY : 5e3 * value;
        tensor_put(&a->sinks, i, value);
    }
}

/*
 * Visible infinities are put only where every precision agrees on what arithmetic says: no weight may underflow, for
 * 0 · inf is NaN and almost-0 · inf is not.
 */
static void choose_poison(struct call *c, struct attention *a) {
    struct random *r = &c->random;
    const double dice = random_real(r);
    if (random_chance(r, 0.5)) a->pattern = (enum pattern)random_int(r, 0, PATTERNS - 1);
    if (dice < 0.5) return;
    a->poison = dice < 0.8 ? IN_HIDDEN : dice < 0.87 ? IN_KEY : dice < 0.94 ? IN_VALUE : IN_BIAS;
    if (a->poison == IN_HIDDEN) return;
    a->pattern = NORMAL;
    a->scale = ejk_float(0.5 / sqrt((double)a->dim + 1));
    c->hostile = true;
}

static void choose_scalars(struct call *c, struct attention *a, bool cap, bool raw, bool dropout) {
    static const double caps[] = {0.3, 5, 50, 200}, scales[] = {1, 0.1, -0.3, 2, 0, 1e-3, 1e-35};
    static const double probabilities[] = {0.1, 0.1, 0.5, 0.9, 1e-3};
    struct random *r = &c->random;
    if (cap && a->options.soft_cap) a->cap = ejk_float(RANDOM_OF(r, caps));
    if (random_chance(r, 0.3) && !c->hostile) a->scale = ejk_float(RANDOM_OF(r, scales));
    if (raw && a->options.raw) a->normalize = false;
    if (dropout && a->options.dropout) a->dropout = RANDOM_OF(r, probabilities);
    a->dropout_seed = random_bits(r);
}

/* A quarter plain, a quarter with one feature, half with any. */
void attention_features(struct call *c, struct attention *a) {
    enum { CAUSAL, WINDOW, CAP, BIAS, MASK, SEGMENTS, SINKS, RAW, DROPOUT, FEATURES };
    struct random *r = &c->random;
    bool on[FEATURES] = {false};
    const int64_t how_many = random_int(r, 0, 3);
    if (how_many == 1) on[random_int(r, 0, FEATURES - 1)] = true;
    if (how_many >= 2)
        for (int i = 0; i < FEATURES; i++) on[i] = random_chance(r, 0.35);
    if (c->tiled && random_chance(r, 0.8)) on[BIAS] = on[MASK] = on[SEGMENTS] = on[DROPOUT] = false;
    if (a->tokens) on[BIAS] = on[MASK] = on[SEGMENTS] = false;
    choose_poison(c, a);
    choose_positions(c, a, on[CAUSAL], on[WINDOW]);
    choose_scalars(c, a, on[CAP], on[RAW], on[DROPOUT]);
    if (on[BIAS])
        a->bias = CALL_TENSOR(c, c->dtype, random_chance(r, 0.5) ? a->batch : 1,
                              random_chance(r, 0.5) ? a->heads : 1,
                              random_chance(r, 0.6) ? a->queries : 1, a->keys);
    if (on[MASK]) choose_mask(c, a);
    if (on[SEGMENTS]) {
        const ejk_dtype dtype = random_chance(r, 0.5) ? EJK_DTYPE_I64 : EJK_DTYPE_I32;
        const bool runs = random_chance(r, 0.5);
        a->query_ids = choose_ids(c, a, dtype, a->queries, runs);
        a->key_ids = choose_ids(c, a, dtype, a->keys, runs);
    }
    if (on[SINKS] && a->options.sinks) choose_sinks(c, a);
}

/* ---- Arguments --------------------------------------------------------------------------------------- */

static void set(const ejk_record *record, void *args, const char *name, const void *value,
                size_t size) {
    size_t offset;
    const ejk_field *field = ejk_record_find(record, name, &offset);
    if (field && ejk_field_size(field) != size) abort();
    if (field) memcpy((char *)args + offset, value, size);
}

#define MEMBER(name, member)                                                                       \
    { #name, offsetof(struct attention, member), sizeof(((struct attention *)0)->member) }

void attention_arguments(struct call *c, const struct attention *a) {
    static const struct {
        const char *name;
        size_t offset, size;
    } members[] = {
        MEMBER(query, query),
        MEMBER(key, key),
        MEMBER(value, value),
        MEMBER(bias, bias),
        MEMBER(attention_mask, mask),
        MEMBER(softmax_aux, sinks),
        MEMBER(cum_seqlens_q, cum_q),
        MEMBER(cum_seqlens_k, cum_k),
        MEMBER(q_segment_ids, query_ids),
        MEMBER(kv_segment_ids, key_ids),
        MEMBER(q_positions, query_positions),
        MEMBER(kv_positions, key_positions),
        MEMBER(softmax_scale, scale),
        MEMBER(logits_soft_cap, cap),
        MEMBER(dropout_prob, dropout),
        MEMBER(causal, causal),
        MEMBER(causal_offset, offset),
        MEMBER(chunk_size, chunk),
        MEMBER(sliding_window, window),
        MEMBER(out, out),
        MEMBER(lse, lse),
        MEMBER(row_max, row_max),
        MEMBER(row_sum, row_sum),
        MEMBER(weights, weights),
        MEMBER(d_out, d_out),
        MEMBER(d_lse, d_lse),
        MEMBER(d_query, d_query),
        MEMBER(d_key, d_key),
        MEMBER(d_value, d_value),
        MEMBER(d_bias, d_bias),
        MEMBER(d_softmax_aux, d_sinks),
    };
    const ejk_opt_int seed = ejk_int((int64_t)a->dropout_seed);
    const ejk_opt_bool no = EJK_FALSE;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        set(c->kernel->args, c->args, members[i].name, (const char *)a + members[i].offset,
            members[i].size);
    set(c->kernel->args, c->args, "dropout_seed", &seed, sizeof seed);
    if (!a->normalize) set(c->kernel->args, c->args, "normalize_output", &no, sizeof no);
}

struct attention *attention_generate(struct call *c, struct attention_options options) {
    struct attention *a = attention_create(c, options);
    attention_features(c, a);
    attention_tensors(c, a);
    attention_arguments(c, a);
    if (!options.gradients && !call_is_wanted(c)) return NULL;
    attention_contents(c, a);
    if (options.gradients) attention_gradients(c, a);
    attention_arguments(c, a);
    return a;
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

/*
 * Dropout goes by place, packed sequences by their ends. Gradients of keys are sums over all queries, so of those
 * only batch entries and heads are parts.
 */
bool attention_slice(const struct call *c, struct random *r, struct slice *s) {
    const struct attention *a = c->own;
    const bool drops = a->dropout > 0;
    if (a->batch * a->heads * a->queries == 0 || a->keys == 0) return false;
    if (!a->tokens && !a->sequences) slice_add(s, r, "B", a->batch, drops);
    slice_add(s, r, "Hkv", a->kv_heads, drops);
    s->range[s->count].symbol = "Hq";
    s->range[s->count].also = NULL;
    s->range[s->count].first = s->range[s->count - 1].first * a->group;
    s->range[s->count].end = s->range[s->count - 1].end * a->group;
    s->count++;
    if (a->sequences || a->elements || a->options.gradients || a->options.positions) return true;
    slice_add(s, r, "T", a->queries, drops);
    const ejk_opt_int offset = ejk_int((a->offset.set ? a->offset.value : a->keys - a->queries) +
                                       s->range[s->count - 1].first);
    set(c->kernel->args, s->args, "causal_offset", &offset, sizeof offset);
    return true;
}
