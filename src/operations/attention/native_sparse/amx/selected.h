/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The selected branch of a token by tiles of AMX: keys are left operands where they lie in the tensor, 16 rows of 32
 * components; query heads are 16 columns of right ones. Weights, rounded to bf16, become right operands of 32 keys as
 * they are made, and values have been turned once, so that a row of a left operand is a component of 32 keys. Nothing
 * is packed for a token but its queries.
 *
 * Rows are divided by the sum of weights as they were rounded. Products take numbers below 2^-126 for 0, and 0 times
 * what is not finite is NaN: a token that sees a value which is not 0, but below 2^-60 or above 2^64 or not finite, is
 * left to floats, and what it does not see of its last keys is replaced by zeros if there is such a value.
 */
#ifndef EJKI_NATIVE_SPARSE_AMX_H
#define EJKI_NATIVE_SPARSE_AMX_H

#include <immintrin.h>

#include "kernels/simd/amx.h"
#include "operations/attention/native_sparse/tile.h"

enum { AMX_LANES = 16, AMX_KEYS = 32, AMX_STEP = 32, AMX_TILE = 512 }; /* elements of a tile */

/* Values of a block, turned: tiles of 32 keys, each of all components, as packed.tiles are counted. */
static int64_t turned_tile(nsa_size begin, nsa_size row) {
    return begin / AMX_KEYS + row;
}

static bool amx_takes(const nsa_problem *p) {
    return p->dim % AMX_STEP == 0 && p->dim > 0 && p->width % (4 * AMX_LANES) == 0 && p->width > 0;
}

static void place_turned(shared *s, void *memory, int64_t *at) {
    const nsa_problem *p = s->p;
    const int64_t heads = p->batch * p->kv_heads;
    s->turned_tiles = turned_tile(p->tokens, p->rows) + 1;
    TAKE(s->turned, heads * s->turned_tiles * AMX_KEYS * p->width);
    TAKE(s->unfit, heads * p->tokens);
    TAKE(s->unfit_blocks, heads * p->rows);
}

/* A number that products with weights do not take as it is. */
static bool is_unfit(uint16_t bits) {
    const uint16_t size = bits & 0x7fff;
    return size != 0 && (size < 0x2180 || size > 0x5f80);
}

static void turn_block(const shared *s, nsa_size head, const ejki_range *block) {
    const nsa_problem *p = s->p;
    const nsa_view *v = &p->value;
    const nsa_size b = head / p->kv_heads, h = head % p->kv_heads, width = p->width;
    uint16_t *to = s->turned + (head * s->turned_tiles + turned_tile(block->begin, block->row)) *
                                   AMX_KEYS * width;
    const int64_t tiles = ejki_cdiv(block->end - block->begin, AMX_KEYS);
    bool any = false;
    memset(to, 0, (size_t)(tiles * AMX_KEYS * width) * sizeof *to);
    for (nsa_size t = block->begin; t < block->end; t++) {
        const nsa_size n = t - block->begin;
        const char *row = element_at(EJK_DTYPE_BF16, v->data, nsa_at(v, b, t, h));
        uint16_t *column = to + n / AMX_KEYS * AMX_KEYS * width + n % AMX_KEYS;
        bool unfit = false;
        for (nsa_size d = 0; d < width; d++) {
            uint16_t bits;
            memcpy(&bits, row + 2 * d, sizeof bits);
            column[d * AMX_KEYS] = bits;
            unfit |= is_unfit(bits);
        }
        s->unfit[head * p->tokens + t] = unfit;
        any |= unfit;
    }
    s->unfit_blocks[head * p->rows + block->row] = any;
}

/* ---- A token ---------------------------------------------------------------------------------------- */

/* Halves of tiles that may end behind the last token: of blocks that begin among the last 32 and before these. */
static int64_t most_copies(const nsa_problem *p) {
    return 2 * (AMX_KEYS / p->blocks.chunk + 2);
}

static void place_amx(amx_token *a, const shared *s, void *memory, int64_t *at) {
    const nsa_problem *p = s->p;
    const int64_t blocks = ejki_min(p->slots, ejki_cdiv(p->tokens, p->blocks.chunk));
    const int64_t tiles =
        2 + blocks * ejki_cdiv(p->blocks.chunk, AMX_KEYS); /* four halves at a time */
    TAKE(a->query, AMX_LANES * p->dim);
    TAKE(a->scores, tiles * AMX_KEYS * AMX_LANES);
    TAKE(a->weights, tiles * AMX_TILE);
    TAKE(a->sums, AMX_LANES * p->width);
    TAKE(a->rows, most_copies(p) * AMX_LANES * p->dim);
    TAKE(a->columns, AMX_KEYS * p->width);
    TAKE(a->key, 2 * tiles);
    TAKE(a->value, tiles);
    TAKE(a->seen, tiles);
}

/* False if products with a value that the token sees are not what they should be. */
static bool amx_fits(const tile *w, const int32_t *list, int64_t count, int64_t high) {
    const shared *s = w->s;
    const int64_t chunk = s->p->blocks.chunk;
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = list[i] * chunk, end = ejki_min(high, first + chunk);
        if (!s->unfit_blocks[w->head * s->p->rows + w->line.row + list[i]]) continue;
        for (int64_t k = first; k < end; k++)
            if (s->unfit[w->head * s->p->tokens + w->line.begin + k]) return false;
    }
    return true;
}

/* Values of a tile of `count` keys of a block, of which `seen` are seen: zeros for others if one does not fit, which
 * only the last tile has. */
static const uint16_t *amx_values(const tile *w, const uint16_t *turned, nsa_size token,
                                  int64_t seen, int64_t count) {
    const shared *s = w->s;
    const int64_t width = s->p->width;
    bool unfit = false;
    for (int64_t k = seen; k < count; k++)
        unfit |= s->unfit[w->head * s->p->tokens + token + k] != 0;
    if (!unfit) return turned;
    memcpy(w->amx.columns, turned, (size_t)(AMX_KEYS * width) * sizeof *turned);
    for (int64_t d = 0; d < width; d++)
        memset(w->amx.columns + d * AMX_KEYS + seen, 0, (size_t)(AMX_KEYS - seen) * sizeof *turned);
    return w->amx.columns;
}

/* 16 keys from a token on where tiles load them, `stride` bytes apart: copies of what is there at the end. */
static const void *amx_keys(tile *w, nsa_size token) {
    const nsa_problem *p = w->s->p;
    const nsa_view *v = &p->key;
    const nsa_size left = p->tokens - token;
    if (left >= AMX_LANES)
        return element_at(EJK_DTYPE_BF16, v->data, nsa_at(v, w->b, token, w->kv_head));
    uint16_t *rows = w->amx.rows + w->amx.copies++ * AMX_LANES * p->dim;
    memset(rows, 0, (size_t)(AMX_LANES * p->dim) * sizeof *rows);
    for (nsa_size n = 0; n < left; n++)
        memcpy(rows + n * p->dim,
               element_at(EJK_DTYPE_BF16, v->data, nsa_at(v, w->b, token + n, w->kv_head)),
               (size_t)p->dim * sizeof *rows);
    return rows;
}

/* Lists tiles of keys of the blocks; how many. */
static int64_t amx_list(tile *w, const int32_t *list, int64_t count, int64_t high) {
    const shared *s = w->s;
    const nsa_problem *p = s->p;
    const amx_token *a = &w->amx;
    const int64_t chunk = p->blocks.chunk;
    int64_t tiles = 0;
    w->amx.copies = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = list[i] * chunk, end = ejki_min(high, first + chunk);
        const int64_t all = ejki_min(first + chunk, w->line.end - w->line.begin);
        const int64_t turned =
            w->head * s->turned_tiles + turned_tile(w->line.begin + first, w->line.row + list[i]);
        for (int64_t k = first; k < end; k += AMX_KEYS, tiles++) {
            const nsa_size token = w->line.begin + k;
            const int64_t seen = ejki_min(AMX_KEYS, end - k);
            a->key[2 * tiles] = amx_keys(w, token);
            a->key[2 * tiles + 1] =
                seen > AMX_LANES ? amx_keys(w, token + AMX_LANES) : a->key[2 * tiles];
            a->value[tiles] =
                amx_values(w, s->turned + (turned + (k - first) / AMX_KEYS) * AMX_KEYS * p->width,
                           token, seen, ejki_min(AMX_KEYS, all - k));
            a->seen[tiles] = seen;
        }
    }
    return tiles;
}

/* Queries of up to 16 heads as right operands: a row has a pair of components of each. */
static void amx_pack_queries(const tile *w, nsa_size t, int64_t first, int64_t heads) {
    const nsa_problem *p = w->s->p;
    const nsa_view *v = &p->query;
    for (int64_t d = 0; d < p->dim; d += AMX_STEP) {
        vf block[VL];
        for (int64_t i = 0; i < VL; i++) {
            const nsa_size at = nsa_at(v, w->b, t, w->kv_head * p->group + first + i);
            block[i] =
                i < heads ? v_load_pairs(element_at(EJK_DTYPE_BF16, v->data, at + d)) : v_zero();
        }
        v_transpose(block);
        for (int64_t i = 0; i < VL; i++)
            v_store((float *)(void *)(w->amx.query + d * AMX_LANES) + i * VL, block[i]);
    }
}

/* The stride of keys: those of copies lie side by side. */
INLINE int64_t key_stride(const tile *w, const void *key) {
    const nsa_problem *p = w->s->p;
    const uintptr_t at = (uintptr_t)key, copies = (uintptr_t)w->amx.rows;
    const bool is_copy =
        at >= copies && at < copies + (uintptr_t)(2 * most_copies(p) * AMX_LANES * p->dim);
    return 2 * (is_copy ? p->dim : p->key.token);
}

/* scores[key][16] of four halves of tiles. */
INLINE void amx_scores(const tile *w, const void *const key[4], float *scores) {
    const char *a[4];
    int64_t stride[4];
    for (int n = 0; n < 4; n++) {
        a[n] = key[n];
        stride[n] = key_stride(w, key[n]);
    }
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < w->s->p->dim; d += AMX_STEP) {
        _tile_loadd(4, w->amx.query + d * AMX_LANES, 64);
        _tile_loadd(5, a[0] + 2 * d, stride[0]);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, a[1] + 2 * d, stride[1]);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(7, a[2] + 2 * d, stride[2]);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, a[3] + 2 * d, stride[3]);
        _tile_dpbf16ps(3, 5, 4);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + 256, 64);
    _tile_stored(2, scores + 512, 64);
    _tile_stored(3, scores + 768, 64);
    AMX_BARRIER();
}

/* Scores of all tiles; those of keys that are not seen are -inf. */
static void amx_score(const tile *w, int64_t tiles) {
    const amx_token *a = &w->amx;
    /* Halves behind the last are computed, too. */
    a->key[2 * tiles] = a->key[2 * tiles + 1] = a->key[2 * tiles - 1];
    for (int64_t n = 0; n < 2 * tiles; n += 4)
        amx_scores(w, a->key + n, a->scores + n * AMX_LANES * AMX_LANES);
    for (int64_t n = 0; n < tiles; n++)
        for (int64_t k = a->seen[n]; k < AMX_KEYS; k++)
            v_store(a->scores + (n * AMX_KEYS + k) * AMX_LANES, v_set1(-INFINITY));
}

/* Scores become weights, in pairs of keys; the sum is of what they are rounded to. */
static vf amx_weigh(const nsa_problem *p, const amx_token *a, int64_t tiles) {
    const vf scale = v_set1((float)p->scale);
    vf top = v_set1(-INFINITY), all = v_zero();
    for (int64_t k = 0; k < tiles * AMX_KEYS; k++)
        top = v_max(v_mul(v_load(a->scores + k * AMX_LANES), scale), top);
    top = v_select_gt(top, v_set1(-INFINITY), top, v_zero());
    for (int64_t n = 0; n < tiles; n++) {
        vf even = v_zero(), odd = v_zero();
        for (int64_t k = 0; k < AMX_KEYS; k += 2) {
            const float *at = a->scores + (n * AMX_KEYS + k) * AMX_LANES;
            const vf x = exponential(v_mul(v_load(at), scale), top);
            const vf y = exponential(v_mul(v_load(at + AMX_LANES), scale), top);
            const vf pairs = v_zip_first(v_pairs(x, x), v_pairs(y, y));
            even = v_add(even, v_of_first(pairs));
            odd = v_add(odd, v_of_second(pairs));
            v_store((float *)(void *)(a->weights + n * AMX_TILE) + k / 2 * VL, pairs);
        }
        all = v_add(all, v_add(even, odd));
    }
    return all;
}

/* sums[component][16] of four tiles of components from d on. */
INLINE void amx_add(const amx_token *a, int64_t tiles, int64_t d, float *sums) {
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t n = 0; n < tiles; n++) {
        const uint16_t *value = a->value[n] + d * AMX_KEYS;
        _tile_loadd(4, a->weights + n * AMX_TILE, 64);
        _tile_loadd(5, value, 64);
        _tile_dpbf16ps(0, 5, 4);
        _tile_loadd(6, value + AMX_TILE, 64);
        _tile_dpbf16ps(1, 6, 4);
        _tile_loadd(7, value + 2 * AMX_TILE, 64);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, value + 3 * AMX_TILE, 64);
        _tile_dpbf16ps(3, 5, 4);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    AMX_BARRIER();
}

/* What query heads from `first` on make of a token's blocks, to `sums`, and what that is multiplied by. */
static void amx_attend(const tile *w, nsa_size t, int64_t first, int64_t heads, int64_t tiles,
                       float *sums, float *part) {
    const nsa_problem *p = w->s->p;
    const int64_t width = w->s->value.width;
    amx_pack_queries(w, t, first, heads);
    amx_score(w, tiles);
    const vf all = amx_weigh(p, &w->amx, tiles);
    float sum[VL];
    v_store(sum, all);
    for (int64_t i = 0; i < heads; i++) part[i] = sum[i] == 0 ? 0 : 1 / sum[i];
    for (int64_t d = 0; d < p->width; d += 4 * AMX_LANES)
        amx_add(&w->amx, tiles, d, w->amx.sums + d * AMX_LANES);
    for (int64_t d = 0; d < p->width; d += VL) {
        vf block[VL];
        for (int64_t i = 0; i < VL; i++) block[i] = v_load(w->amx.sums + (d + i) * AMX_LANES);
        v_transpose(block);
        for (int64_t i = 0; i < heads; i++) v_store(sums + i * width + d, block[i]);
    }
}

/* The selected branch of token i to w->sums and w->part; false if it is left to floats. */
static bool amx_select(tile *w, int64_t i, const int32_t *list, int64_t count) {
    const nsa_problem *p = w->s->p;
    const nsa_size t = w->first + i, high = t - w->line.begin + 1;
    if (count == 0 || !amx_fits(w, list, count, high)) return false;
    const int64_t tiles = amx_list(w, list, count, high);
    for (int64_t g = 0; g < p->group; g += AMX_LANES)
        amx_attend(w, t, g, ejki_min(AMX_LANES, p->group - g), tiles,
                   w->sums + g * w->s->value.width, w->part + g);
    return true;
}

#endif
