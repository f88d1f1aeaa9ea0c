/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of a row in place, its running softmax, and where a block's keys lie. */
#ifndef EJKI_PAGED_SCORES_H
#define EJKI_PAGED_SCORES_H

#include "operations/paged/cpu/paged_row.h"

#include "kernels/simd/vec_math.h"

/* Where rows of a block of keys lie, for the item's first head. Keys that nobody sees have a row of zeros. */
typedef struct paged_block {
    paged_size first, low, high; /* key of entry 0; entries that somebody sees */
    const char *key[TILE_KEYS], *tail[TILE_KEYS], *value[TILE_KEYS];
    paged_size page[TILE_KEYS];
} paged_block;

/* The block of `count` keys from `first` on. */
static void find_block(const paged_job *j, paged_size first, paged_size count, paged_block *b) {
    const paged_problem *p = j->p;
    const paged_cache *caches[3] = {&p->key, &p->key_tail, &p->value};
    const char **lists[3] = {b->key, b->tail, b->value}, *data[3];
    paged_size page_step[3], row_step[3], page = 0;
    b->first = first;
    b->low = paged_least(paged_most(j->low - first, 0), count);
    b->high = paged_most(paged_least(j->high - first, count), b->low);
    for (int i = 0; i < 3; i++) {
        const paged_size size = paged_bytes(caches[i]->dtype);
        data[i] = (const char *)caches[i]->data + j->head * caches[i]->head * size;
        page_step[i] = caches[i]->page * size;
        row_step[i] = caches[i]->token * size;
    }
    for (int i = 0; i < 3; i++) {
        for (paged_size t = 0; t < b->low; t++) lists[i][t] = j->work->lists.zeros;
        for (paged_size t = b->high; t < count; t++) lists[i][t] = j->work->lists.zeros;
    }
    paged_size t = b->low, at = (first + t) % p->page;
    for (; t < b->high; t++, at++) {
        if (at == p->page) at = 0;
        if (at == 0 || t == b->low) page = paged_page(p, j->s.n, j->entries, (first + t) / p->page);
        b->page[t] = page;
        for (int i = 0; i < 3; i++) lists[i][t] = data[i] + page * page_step[i] + at * row_step[i];
    }
}

/* Scales of a head's rows in a block, 1 beyond them. */
static void find_scales(const paged_job *j, const paged_block *b, const paged_cache *c,
                        paged_size head, paged_size count, float *scales) {
    const paged_size page = j->p->page;
    paged_size t = b->low, at = (b->first + t) % page;
    for (paged_size i = 0; i < b->low; i++) scales[i] = 1;
    for (paged_size i = b->high; i < count; i++) scales[i] = 1;
    while (t < b->high) {
        const paged_size end = paged_least(t + page - at, b->high);
        const float *from = c->scale + b->page[t] * c->scale_page + head * c->scale_head;
        const paged_size step = c->scale_token;
        from += at * step;
        for (; t + 4 <= end; t += 4, from += 4 * step)
            EJKI_UNROLL for (int i = 0; i < 4; i++)
                memcpy(&scales[t + i], from + i * step, sizeof *scales);
        for (; t < end; t++, from += step) memcpy(&scales[t], from, sizeof *scales);
        at = 0;
    }
}

/* What a KV head's products are multiplied by to be scores in base 2; `key` is NULL or scales of the block's rows. */
typedef struct paged_scale {
    float factor;
    v_cap cap;
    const float *key;
} paged_scale;

static paged_scale score_scale(const paged_problem *p, paged_size kv_head) {
    double factor = p->scale * factor_of(&p->key, kv_head);
    if (p->query_scale != 0) factor *= p->query_scale;
    paged_scale s = {.factor = (float)(factor * LOG2E)};
    if (p->cap > 0) s.cap = v_cap_of(factor / p->cap, p->cap * LOG2E);
    return s;
}

/* Products of a row with `width` keys from `key` on become scores in base 2, -inf where it sees none; the largest. */
static float finish_scores(const paged_job *j, const paged_row *row, const paged_scale *s,
                           paged_size key, paged_size width, float *z) {
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const paged_problem *p = j->p;
    const paged_size context = j->s.keys - j->s.rows;
    const bool hides = row->low > key || row->high < key + width;
    vf most = v_set1(-INFINITY);
    for (paged_size c = 0; c < width; c += VL) {
        vf v = v_load(z + c);
        if (s->key) v = v_mul(v, v_load(s->key + c));
        v = p->cap > 0 ? v_cap_any(&s->cap, v) : v_mul(v, v_set1(s->factor));
        if (p->has_alibi)
            v = v_fma(v_set1(row->slope), v_add(v_load(lanes), v_set1((float)(key + c - context))),
                      v);
        if (hides) v = v_keep(v, row->low - key - c, row->high - key - c);
        v_store(z + c, v);
        most = v_max(v, most);
    }
    if (p->has_bias && paged_least(row->high, key + width) > context) {
        const paged_size end = paged_least(row->high, key + width);
        for (paged_size t = paged_most(paged_most(row->low, key), context); t < end; t++)
            z[t - key] +=
                element_load(EJK_DTYPE_F32, p->bias, row->r * p->bias_step + t - context) *
                (float)LOG2E;
        most = v_set1(-INFINITY);
        for (paged_size c = 0; c < width; c += VL) most = v_max(v_load(z + c), most);
    }
    return v_largest(most);
}

/* Scores become weights and join the lanes' sums; returns what the row's sums are to be multiplied by. */
static float finish_weights(paged_row *row, float block_most, paged_size width, float *z,
                            float *lanes) {
    float factor = 1;
    if (block_most > row->most) {
        factor = exp2f(row->most - block_most);
        row->most = block_most;
    }
    const vf shift = v_set1(row->most == -INFINITY ? 0 : row->most);
    vf sum = v_mul(v_load(lanes), v_set1(factor));
    for (paged_size c = 0; c < width; c += VL) {
        const vf w = v_exp2(v_sub(v_load(z + c), shift));
        v_store(z + c, w);
        sum = v_add(sum, w);
    }
    v_store(lanes, sum);
    return factor;
}

/* `count` floats, each vector `step` vectors behind the one before. */
static void multiply(float *values, paged_size step, paged_size count, float factor) {
    for (paged_size d = 0; d < count; d += VL, values += step * VL)
        v_store(values, v_mul(v_load(values), v_set1(factor)));
}

/* Whether weights of 0 leave sums as they are: rows see the same keys of the block, or all its values are finite. */
static bool sees_alike(const paged_job *j, const paged_block *b) {
    if (j->p->has_bias && b->first + b->high > j->s.keys - j->s.rows) return false;
    return j->s.rows == 1;
}

#endif
