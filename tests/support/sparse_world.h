/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls of block-sparse attention, and the same calls with the elements of their mask. */
#ifndef EJK_TESTS_SPARSE_WORLD_H
#define EJK_TESTS_SPARSE_WORLD_H

#include "support/element.h"
#include "support/soak.h"
#include "support/splash_call.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>

/* A call and everything it points to; heads before tokens. */
struct world {
    int64_t b, heads, kv_heads, q, kv, d, dv;
    ejk_splash_mask *mask;
    uint8_t *dense; /* [heads][q][kv] */
    ejk_dtype dtype;
    void *query, *key, *value, *out, *d_out, *sinks;
    float *lse;
    int32_t *query_ids, *key_ids;
    ejk_blocksparse_mask_info info;
    ejk_blocksparse_attention_args args;
};

static inline void *room(int64_t count, size_t size) {
    void *memory = calloc((size_t)count + 1, size);
    assert_non_null(memory);
    return memory;
}

static inline void *numbers(struct random *r, ejk_dtype dtype, int64_t count) {
    void *data = room(count, 8);
    for (int64_t i = 0; i < count; i++) element_store(dtype, data, i, random_normal(r));
    return data;
}

/* Keys that no row of their head's group sees become NaN. */
static inline void poison(struct world *w) {
    const int64_t group = w->heads / w->kv_heads;
    for (int64_t g = 0; g < w->kv_heads; g++)
        for (int64_t j = 0; j < w->kv; j++) {
            bool seen = false;
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                for (int64_t i = 0; i < w->q; i++) seen |= w->dense[(h * w->q + i) * w->kv + j];
            for (int64_t b = 0; !seen && b < w->b; b++) {
                const int64_t row = (b * w->kv_heads + g) * w->kv + j;
                for (int64_t k = 0; k < w->d; k++)
                    element_store(w->dtype, w->key, row * w->d + k, NAN);
                for (int64_t k = 0; k < w->dv; k++)
                    element_store(w->dtype, w->value, row * w->dv + k, NAN);
            }
        }
}

static inline ejk_splash_mask *heads_of(struct random *r, ejk_splash_mask *kinds[2],
                                        int64_t heads) {
    const ejk_splash_mask *list[8];
    ejk_splash_mask *mask = NULL;
    const double mixed = random_chance(r, 0.5) ? 0 : 0.4;
    for (int64_t i = 0; i < heads; i++) list[i] = kinds[random_chance(r, mixed)];
    EXPECT_OK(ejk_multi_head_mask_create(list, heads, &mask));
    return mask;
}

/* Elements of which whole blocks are empty or full. */
static inline ejk_splash_mask *block_mask(struct random *r, int64_t q, int64_t kv, int64_t bq,
                                          int64_t bkv) {
    uint8_t *bytes = room(q * kv, 1);
    for (int64_t i = 0; i < q; i += bq)
        for (int64_t j = 0; j < kv; j += bkv) {
            const double density = RANDOM_OF(r, ((double[]){0, 0, 0, 0.5, 1}));
            for (int64_t a = i; a < i + bq; a++)
                for (int64_t c = j; c < j + bkv; c++) bytes[a * kv + c] = random_chance(r, density);
        }
    ejk_splash_mask *mask = splash_dense(bytes, q, kv);
    free(bytes);
    return mask;
}

enum { SMALL, LARGE, WIDE };

/* Small worlds have every kind of mask, large ones more keys and rows than a tile, wide ones some dozen tiles. */
static inline void open_world(struct random *r, ejk_dtype dtype, int large, struct world *w) {
    *w = (struct world){.dtype = dtype};
    const bool wide = large == WIDE;
    const int64_t bq = wide    ? RANDOM_OF(r, ((int64_t[]){16, 64, 128}))
                       : large ? random_int(r, 1, 70)
                               : random_int(r, 1, 8);
    const int64_t bkv = wide    ? RANDOM_OF(r, ((int64_t[]){32, 96, 128}))
                        : large ? random_int(r, 1, 130)
                                : random_int(r, 1, 8);
    w->b = wide ? 1 : random_int(r, 1, 2);
    w->kv_heads = wide ? 1 : random_int(r, 1, 2);
    w->heads = w->kv_heads * random_int(r, 1, wide ? 2 : 3);
    w->q = bq * random_int(r, 1, wide ? 2 : large ? 4 : 7);
    w->kv = bkv * (wide ? random_int(r, 10, 40) : random_int(r, 1, large ? 4 : 7));
    w->d = wide ? RANDOM_OF(r, ((int64_t[]){64, 128})) : random_int(r, 1, large ? 40 : 5);
    w->dv = wide ? w->d : random_int(r, 1, large ? 40 : 5);
    ejk_splash_mask *kinds[2];
    for (int i = 0; i < 2; i++)
        kinds[i] =
            large ? block_mask(r, w->q, w->kv, bq, bkv) : splash_random_mask(r, w->q, w->kv, 2);
    w->mask = heads_of(r, kinds, w->heads);
    for (int i = 0; i < 2; i++) ejk_splash_mask_release(kinds[i]);
    w->dense = splash_elements(w->mask);
    const int64_t rows = w->b * w->heads * w->q, keys = w->b * w->kv_heads * w->kv;
    w->query = numbers(r, dtype, rows * w->d);
    w->key = numbers(r, dtype, keys * w->d);
    w->value = numbers(r, dtype, keys * w->dv);
    w->d_out = numbers(r, dtype, rows * w->dv);
    w->sinks = numbers(r, dtype, w->heads * 2);
    w->out = room(rows * w->dv, 8);
    w->lse = room(rows, sizeof *w->lse);
    w->query_ids = room(w->b * w->q, 4);
    w->key_ids = room(w->b * w->kv, 4);
    for (int64_t i = 0; i < w->b * w->q; i++) w->query_ids[i] = (int32_t)random_int(r, -1, 3) / 2;
    for (int64_t i = 0; i < w->b * w->kv; i++) w->key_ids[i] = (int32_t)random_int(r, -1, 3) / 2;
    w->args = (ejk_blocksparse_attention_args){
        .query = ejk_tensor_4d(w->query, dtype, w->b, w->heads, w->q, w->d),
        .key = ejk_tensor_4d(w->key, dtype, w->b, w->kv_heads, w->kv, w->d),
        .value = ejk_tensor_4d(w->value, dtype, w->b, w->kv_heads, w->kv, w->dv),
        .out = ejk_tensor_4d(w->out, dtype, w->b, w->heads, w->q, w->dv),
        .lse = ejk_tensor_3d(w->lse, EJK_DTYPE_F32, w->b, w->heads, w->q)};
    if (random_chance(r, 0.3))
        w->args.softmax_aux = ejk_tensor_contiguous(w->sinks, dtype, 2, (int64_t[]){w->heads, 2});
    if (random_chance(r, 0.3)) w->args.logits_soft_cap = ejk_float(0.8);
    if (random_chance(r, 0.3)) w->args.softmax_scale = ejk_float(1.4);
    if (random_chance(r, 0.2)) w->args.causal = true;
    if (random_chance(r, 0.2)) w->args.sliding_window.left = ejk_int(random_int(r, 0, w->kv));
    if (random_chance(r, 0.2)) {
        w->args.q_segment_ids =
            ejk_tensor_contiguous(w->query_ids, EJK_DTYPE_I32, 2, (int64_t[]){w->b, w->q});
        w->args.kv_segment_ids =
            ejk_tensor_contiguous(w->key_ids, EJK_DTYPE_I32, 2, (int64_t[]){w->b, w->kv});
    }
    const ejk_blocksparse_mask_options options = {
        .block_shape = {bq, bkv}, .shrink_grid = random_chance(r, 0.5) ? EJK_UNSET : EJK_FALSE};
    EXPECT_OK(ejk_blocksparse_mask_info_create(w->mask, &options, &w->info));
}

static inline void close_world(struct world *w) {
    ejk_blocksparse_mask_info_close(&w->info);
    ejk_splash_mask_release(w->mask);
    void *all[] = {w->dense, w->query, w->key,       w->value,   w->out,
                   w->d_out, w->sinks, w->query_ids, w->key_ids, w->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static inline ejk_tensor tokens_first(ejk_tensor t) {
    const ejk_tensor from = t;
    t.shape[1] = from.shape[2];
    t.shape[2] = from.shape[1];
    t.strides[1] = from.strides[2];
    t.strides[2] = from.strides[1];
    return t;
}

/* The same call with the mask's elements. */
static inline ejk_flash_attention_args dense_call(const struct world *w, void *out, float *lse) {
    const ejk_blocksparse_attention_args *a = &w->args;
    ejk_flash_attention_args f = {
        .query = tokens_first(a->query),
        .key = tokens_first(a->key),
        .value = tokens_first(a->value),
        .softmax_aux = a->softmax_aux,
        .attention_mask = ejk_tensor_4d(w->dense, EJK_DTYPE_BOOL, 1, w->heads, w->q, w->kv),
        .softmax_scale = a->softmax_scale,
        .causal = a->causal,
        .sliding_window = a->sliding_window,
        .logits_soft_cap = a->logits_soft_cap,
        .q_segment_ids = a->q_segment_ids,
        .kv_segment_ids = a->kv_segment_ids,
        .out = tokens_first(a->out),
        .lse = a->lse,
        .platform = "reference"};
    f.out.data = out;
    f.lse.data = lse;
    return f;
}

/* Errors are relative to the largest element, SEMANTICS section 5: what cancels in others does not. */
static inline void expect_near_all(const struct world *w, const void *got, const void *wanted,
                                   int64_t count, double tolerance) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(element_load(w->dtype, wanted, i)));
    for (int64_t i = 0; i < count; i++) {
        const double a = element_load(w->dtype, got, i), b = element_load(w->dtype, wanted, i);
        if (!(fabs(a - b) <= tolerance * (1 + largest)))
            fail_msg("element %lld is %.9g, expected %.9g", (long long)i, a, b);
    }
}

#endif
