/* SPDX-License-Identifier: Apache-2.0 */
/* Random positions of a call of block-sparse attention, and the elements that they show. */
#ifndef EJK_TESTS_SPARSE_PLACES_H
#define EJK_TESTS_SPARSE_PLACES_H

#include "support/sparse_world.h"

/* Positions of a call and the elements that they and the mask show, [B, heads, T, S]. */
struct places {
    int64_t *query, *key;
    uint8_t *shown;
    bool has_query, has_key;
};

static inline int64_t far_or_near(struct random *r, bool wide, int64_t count) {
    if (wide && random_chance(r, 0.1))
        return RANDOM_OF(r, ((int64_t[]){INT64_MIN, INT64_MIN / 2, INT64_MAX, INT64_MAX - 1}));
    return random_int(r, -2, count + 2);
}

static inline int64_t bounded(int64_t position) {
    const int64_t far = INT64_C(1) << 61;
    return position < -far ? -far : position > far ? far : position;
}

static inline bool is_shown(const ejk_blocksparse_attention_args *a, int64_t q, int64_t k) {
    const int64_t at = bounded(q) + (a->causal_offset.set ? a->causal_offset.value : 0);
    k = bounded(k);
    if ((a->causal || a->chunk_size.set) && k > at) return false;
    if (a->sliding_window.left.set && k < at - a->sliding_window.left.value) return false;
    if (a->sliding_window.right.set && k > at + a->sliding_window.right.value) return false;
    if (!a->chunk_size.set) return true;
    const int64_t size = a->chunk_size.value;
    return k >= at - (at % size + size) % size;
}

static inline ejk_tensor ids(void *data, ejk_dtype dtype, int64_t batch, int64_t count) {
    return ejk_tensor_contiguous(data, dtype, 2, (int64_t[]){batch, count});
}

/* Numbers of 64 bits, or of 32 in their place. */
static inline void narrow(int64_t *numbers_, int64_t count) {
    for (int64_t i = 0; i < count; i++) ((int32_t *)(void *)numbers_)[i] = (int32_t)numbers_[i];
}

static inline void open_places(struct random *r, struct world *w, struct places *p) {
    const bool wide = random_chance(r, 0.5);
    const int64_t queries = w->b * w->q, keys = w->b * w->kv;
    ejk_blocksparse_attention_args *a = &w->args;
    *p = (struct places){.query = room(queries, 8), .key = room(keys, 8)};
    p->has_query = random_chance(r, 0.8);
    p->has_key = !p->has_query || random_chance(r, 0.8);
    p->shown = room(w->b * w->heads * w->q * w->kv, 1);
    for (int64_t i = 0; i < queries; i++)
        p->query[i] = p->has_query ? far_or_near(r, wide, w->kv) : i % w->q;
    for (int64_t j = 0; j < keys; j++)
        p->key[j] = p->has_key ? far_or_near(r, wide, w->kv) : j % w->kv;
    if (random_chance(r, 0.4)) a->causal = true;
    if (random_chance(r, 0.3)) a->sliding_window.left = ejk_int(random_int(r, 0, w->kv));
    if (random_chance(r, 0.3)) a->sliding_window.right = ejk_int(random_int(r, 0, w->kv));
    if (random_chance(r, 0.3)) a->chunk_size = ejk_int(random_int(r, 1, w->kv + 1));
    if (random_chance(r, 0.3)) a->causal_offset = ejk_int(random_int(r, -w->kv, w->kv));
    for (int64_t n = 0; n < w->b * w->heads * w->q * w->kv; n++) {
        const int64_t j = n % w->kv, i = n / w->kv % w->q, b = n / w->kv / w->q / w->heads;
        p->shown[n] = w->dense[n % (w->heads * w->q * w->kv)] &&
                      is_shown(a, p->query[b * w->q + i], p->key[b * w->kv + j]);
    }
    const ejk_dtype dtype = wide ? EJK_DTYPE_I64 : EJK_DTYPE_I32;
    if (!wide) narrow(p->query, queries);
    if (!wide) narrow(p->key, keys);
    if (p->has_query) a->q_positions = ids(p->query, dtype, w->b, w->q);
    if (p->has_key) a->kv_positions = ids(p->key, dtype, w->b, w->kv);
}

static inline void close_places(struct places *p) {
    free(p->query);
    free(p->key);
    free(p->shown);
}

#endif
