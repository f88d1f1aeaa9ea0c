/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows of a KV head by AMX tiles, which read the cache where it lies: keys are left operands, 16 of them as they
 * are, and queries right ones, packed once; values are right operands as they are. Tiles take neighbouring components
 * of a value for a pair, so that weights come with a 0 on the other side: rows of weights times even components, and
 * rows times odd ones. Sums of a row lie in that order, those of even components first, until its keys have been seen.
 *
 * Keys and values that are not bf16, rows that are not evenly spaced as at the ends of pages, and what is left of a
 * row are copied into a tile. A value that is not finite spoils the sum of its neighbour, which has_lost() finds.
 */
#ifndef EJKI_PAGED_AMX_ROWS_H
#define EJKI_PAGED_AMX_ROWS_H

#include "operations/paged/cpu/amx/paged_amx_bytes.h"

enum {
    AMX_KEYS = 16,
    AMX_GROUPS = BLOCK / AMX_KEYS,
    AMX_TILE = 256, /* floats */
    TURNS = 4       /* quarters of a block whose lines are prefetched in turn */
};

/* Rows that tiles are worth it for. */
static inline bool in_tiles(const paged_job *j) {
    return j->rows > 1;
}

/* Rows of a block as tiles: of group g they begin at row[16 g] and lie stride[g] bytes apart, if that is not 0. */
typedef struct amx_rows {
    const paged_block *block;
    const char *const *row;
    paged_size stride[AMX_GROUPS], head; /* bytes from the first head on */
    paged_size dim;
    float *copy; /* of a tile; of 8-bit floats two for each group */
    const uint8_t (*codes)[CODES];
} amx_rows;

enum { AMX_COPIES = 2 * AMX_GROUPS * AMX_TILE };

/* Halves of bf16 for the codes of a type of 8-bit floats. */
static void find_codes(int dtype, uint8_t codes[2][CODES]) {
    if (dtype != (int)EJK_DTYPE_F8E4M3 && dtype != (int)EJK_DTYPE_F8E5M2) return;
    for (int i = 0; i < CODES; i++) {
        const uint8_t code = (uint8_t)i;
        const float v =
            dtype == (int)EJK_DTYPE_F8E4M3 ? ejki_e4m3_to_f32(code) : ejki_e5m2_to_f32(code);
        const uint16_t bits = ejki_f32_to_bf16(v);
        codes[0][i] = (uint8_t)(bits >> 8);
        codes[1][i] = (uint8_t)bits;
    }
}

/* 64 codes as pairs: 32 elements each. */
AMX_INLINE void widen_codes(const uint8_t (*codes)[CODES], const void *from, float *first,
                            float *second) {
    const __m512i order =
        _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); /* unpacking stays in quarters */
    const __m512i code = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(codes[0]), code,
                                                  _mm512_loadu_si512(codes[0] + CODES / 2));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(codes[1]), code,
                                                 _mm512_loadu_si512(codes[1] + CODES / 2));
    const __m512i sign = _mm512_and_si512(code, _mm512_set1_epi8(INT8_MIN));
    const __m512i signed_high = _mm512_or_si512(high, sign);
    _mm512_storeu_si512(first, _mm512_unpacklo_epi8(low, signed_high));
    _mm512_storeu_si512(second, _mm512_unpackhi_epi8(low, signed_high));
}

static paged_size head_bytes(const paged_cache *c) {
    return c->head * paged_bytes(c->dtype);
}

static amx_rows rows_of(const paged_few *f, const paged_cache *c, const char *const *row,
                        paged_size h, paged_size dim, float *copy) {
    amx_rows r = {.block = f->block, .row = row, .dim = dim, .copy = copy};
    r.codes = f->codes[c == &f->j->p->value];
    r.head = h * head_bytes(c);
    for (paged_size g = 0, t = 0; g < AMX_GROUPS; g++, t += AMX_KEYS) {
        const intptr_t step = (intptr_t)row[t + 1] - (intptr_t)row[t];
        bool even = t >= f->block->low;
        even = even && t + AMX_KEYS <= f->block->high;
        for (int i = 2; i < AMX_KEYS; i++)
            even &= (intptr_t)row[t + i] - (intptr_t)row[t + i - 1] == step;
        r.stride[g] = even ? (paged_size)step : 0;
    }
    return r;
}

AMX_INLINE bool is_f8(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F8E4M3 || dtype == EJK_DTYPE_F8E5M2;
}

/* Components 32 s to 32 s + 31 of group g, as a tile in memory. */
AMX_INLINE const void *tile_rows(const ejk_dtype dtype, const amx_rows *r, paged_size g,
                                 paged_size s, int64_t *stride) {
    const paged_size left = r->dim - LANES * s, at = LANES * s * (paged_size)stored_size(dtype);
    const bool whole = left >= LANES;
    *stride = r->stride[g];
    if (dtype == EJK_DTYPE_BF16 && whole && *stride != 0)
        return r->row[AMX_KEYS * g] + r->head + at;
    const char *row[AMX_KEYS];
    if (*stride == 0)
        head_rows(r->row, AMX_KEYS * g, AMX_KEYS, r->head, r->block, row);
    else
        EJKI_UNROLL_NOT for (int i = 0; i < AMX_KEYS; i++) row[i] =
            r->row[AMX_KEYS * g] + r->head + i * *stride;
    *stride = 64;
    if (is_f8(dtype) && r->dim - LANES * (s & ~(paged_size)1) >= 2 * LANES) {
        float *to = r->copy + 2 * g * AMX_TILE;
        for (int i = 0; s % 2 == 0 && i < AMX_KEYS; i++)
            widen_codes(r->codes, row[i] + at, to + i * VL, to + AMX_TILE + i * VL);
        AMX_BARRIER();
        return to + s % 2 * AMX_TILE;
    }
    for (int i = 0; i < AMX_KEYS; i++)
        v_store(r->copy + i * VL,
                whole ? v_operand(dtype, row[i] + at) : v_operand_first(dtype, row[i] + at, left));
    AMX_BARRIER();
    return r->copy;
}

/* What a tile of pairs takes from the cache. */
AMX_INLINE paged_size tile_size(const ejk_dtype dtype) {
    return AMX_KEYS * LANES * (paged_size)stored_size(dtype);
}

/* Begins to prefetch a block's rows, or what is left of them where heads lie together. */
static void begin_tiles(paged_few *f, const paged_cache *c, const char *const *rows, paged_size dim,
                        paged_size h) {
    paged_prefetch *a = &f->prefetch;
    begin_prefetch(f, c, rows, dim, h, 0, BLOCK);
    if (a->end - a->row == BLOCK) a->end = a->row + BLOCK / TURNS;
}

/*
 * Prefetches `bytes` bytes, as many as a tile has read: of four quarters of the block in turn, each in the order of
 * memory. The processor's own prefetching goes on in each of them; one after the other they come a quarter slower.
 */
AMX_INLINE void tile_ahead(paged_few *f, const paged_size bytes) {
    paged_prefetch *a = &f->prefetch;
    if (a->row >= a->end) return;
    const uintptr_t next = (uintptr_t)(a->row[a->turn] + a->offset + a->at);
    EJKI_UNROLL for (int i = 0; i < (int)bytes; i += LINE)
        __builtin_prefetch((const void *)(next + (uintptr_t)i), 0, 2);
    a->turn += BLOCK / TURNS;
    if (a->turn < BLOCK) return;
    a->turn = 0;
    for (a->at += bytes; a->at >= a->bytes && a->row < a->end; a->row++) a->at -= a->bytes;
}

/* ---- Scores ----------------------------------------------------------------------------------------- */

/* Queries of all heads as right operands: for each head and 16 lanes a lane of every row in turn; or their digits. */
static void pack_queries(paged_few *f) {
    const paged_size depth = f->j->work->plan.depth;
    for (paged_size h = 0; h < f->j->heads; h++) {
        f->byte_query[h] = f->bytes && pack_byte_queries(f, h, f->tile_query + h * depth * VL);
        for (paged_size d = 0; !f->byte_query[h] && d < depth; d += VL) {
            vf block[VL];
            for (paged_size r = 0; r < VL; r++)
                block[r] =
                    r < f->j->rows ? v_load(f->query + (h * f->j->rows + r) * depth + d) : v_zero();
            v_transpose(block);
            for (int i = 0; i < VL; i++)
                v_store(f->tile_query + (h * depth + d + i) * VL, block[i]);
        }
    }
}

/* Sums of group g take in its keys, by tile `left`: instructions have numbers of tiles in them. */
#define ADD_KEYS(g, left)                                                                          \
    do {                                                                                           \
        const void *key = tile_rows(dtype, r, g, s, &stride);                                      \
        _tile_loadd(left, key, stride);                                                            \
        _tile_dpbf16ps(g, left, 4);                                                                \
        tile_ahead(f, tile_size(dtype));                                                           \
    } while (0)

/* Tiles 0 to 3 take in products of a block's keys, or of their tails, with the queries at `query`. */
AMX_INLINE void add_scores(const ejk_dtype dtype, paged_few *f, const amx_rows *r,
                           const float *query) {
    for (paged_size s = 0; LANES * s < r->dim; s++, query += AMX_TILE) {
        int64_t stride;
        _tile_loadd(4, query, 64);
        ADD_KEYS(0, 5);
        ADD_KEYS(1, 6);
        ADD_KEYS(2, 7);
        ADD_KEYS(3, 5);
    }
}

/* The same of up to SET_ROWS rows: quarters of vectors are four products of a key each. */
static void place_few_scores(const paged_few *f, paged_size h, const float *products) {
    const paged_size rows = f->j->rows;
    for (paged_size t = 0; t < BLOCK; t += VL, products += VL * VL) {
        __m512 four[SET_ROWS]; /* keys m, m + 4, m + 8 and m + 12 */
        EJKI_UNROLL for (int m = 0; m < SET_ROWS; m++) {
            const float *from = products + m * VL;
            __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(from));
            v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(from + 4 * VL));
            v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(from + 8 * VL));
            four[m] = _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(from + 12 * VL));
        }
        store_columns(four, rows, f->scores + h * rows * BLOCK + t);
    }
}

/* Products of a head's keys, a row each, to its rows' scores. */
static void place_scores(const paged_few *f, paged_size h, const float *products) {
    if (f->j->rows <= SET_ROWS) {
        place_few_scores(f, h, products);
        return;
    }
    for (paged_size t = 0; t < BLOCK; t += VL) {
        vf block[VL];
        for (int i = 0; i < VL; i++) block[i] = v_load(products + (t + i) * VL);
        v_transpose(block);
        for (paged_size r = 0; r < f->j->rows; r++)
            v_store(f->scores + (h * f->j->rows + r) * BLOCK + t, block[r]);
    }
}

/* Bytes from component `at` on of group g, as a tile in memory. */
AMX_INLINE const void *tile_bytes(const amx_rows *r, paged_size g, paged_size at, int64_t *stride) {
    *stride = r->stride[g];
    if (*stride != 0) return r->row[AMX_KEYS * g] + r->head + at;
    const char *row[AMX_KEYS];
    char *to = (char *)r->copy;
    head_rows(r->row, AMX_KEYS * g, AMX_KEYS, r->head, r->block, row);
    for (int i = 0; i < AMX_KEYS; i++) memcpy(to + i * BYTES_WHOLE, row[i] + at, BYTES_WHOLE);
    *stride = BYTES_WHOLE;
    AMX_BARRIER();
    return to;
}

#define ADD_BYTE_KEYS(g, left)                                                                     \
    do {                                                                                           \
        const void *key = tile_bytes(r, g, at, &stride);                                           \
        _tile_loadd(left, key, stride);                                                            \
        _tile_dpbssd(g, left, 4);                                                                  \
        if (prefetches) tile_ahead(f, AMX_KEYS *BYTES_WHOLE);                                      \
    } while (0)

/* The same as add_scores() with digits of a set of rows. */
AMX_INLINE void add_byte_scores(paged_few *f, const amx_rows *r, const float *query,
                                bool prefetches) {
    for (paged_size at = 0; at < r->dim; at += BYTES_WHOLE, query += BYTES_TILE) {
        int64_t stride;
        _tile_loadd(4, query, 64);
        ADD_BYTE_KEYS(0, 5);
        ADD_BYTE_KEYS(1, 6);
        ADD_BYTE_KEYS(2, 7);
        ADD_BYTE_KEYS(3, 5);
    }
}

AMX_INLINE void store_scores(void *products) {
    char *to = products;
    AMX_BARRIER();
    _tile_stored(0, to, 64);
    _tile_stored(1, to + 4 * AMX_TILE, 64);
    _tile_stored(2, to + 8 * AMX_TILE, 64);
    _tile_stored(3, to + 12 * AMX_TILE, 64);
    AMX_BARRIER();
}

/* Scores of head h whose queries are digits; their tails follow. */
static void byte_scores(paged_few *f, paged_size h, const amx_rows *keys, const amx_rows *tails,
                        void *products) {
    const paged_size rows = f->j->rows;
    const float *query = f->tile_query + h * f->j->work->plan.depth * VL;
    for (paged_size r = 0; r < rows; r += SET_ROWS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        add_byte_scores(f, keys, query, r == 0);
        query += keys->dim / BYTES_WHOLE * BYTES_TILE;
        if (tails->dim > 0) add_byte_scores(f, tails, query, r == 0);
        query += tails->dim / BYTES_WHOLE * BYTES_TILE;
        store_scores(products);
        place_byte_scores(f, h * rows + r, paged_least(rows - r, SET_ROWS), products);
    }
}

AMX_INLINE void tile_scores(const ejk_dtype dtype, paged_few *f) {
    const paged_problem *p = f->j->p;
    const paged_size depth = f->j->work->plan.depth;
    const bool same = p->value.data == p->key.data;
    _Alignas(64) float copy[AMX_COPIES], products[BLOCK * VL];
    amx_open();
    prefetch_rows(&f->prefetch, NULL, 0, 0, 0);
    amx_rows keys = rows_of(f, &p->key, f->block->key, 0, p->dim, copy), tails = {0};
    if (p->tail_dim > 0) tails = rows_of(f, &p->key_tail, f->block->tail, 0, p->tail_dim, copy);
    const paged_size step = head_bytes(&p->key), tail_step = head_bytes(&p->key_tail);
    for (paged_size h = 0; h < f->j->heads; h++, keys.head += step, tails.head += tail_step) {
        const float *query = f->tile_query + h * depth * VL;
        if (!same) begin_tiles(f, &p->value, f->block->value, p->value_dim, h);
        if (dtype == EJK_DTYPE_I8 && f->byte_query[h]) {
            byte_scores(f, h, &keys, &tails, products);
            continue;
        }
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        add_scores(dtype, f, &keys, query);
        if (p->tail_dim > 0) add_scores(dtype, f, &tails, query + padded(p->dim) * VL);
        store_scores(products);
        place_scores(f, h, products);
    }
}

/* ---- Values ----------------------------------------------------------------------------------------- */

/* Weights of a head's rows for group g: rows for even and odd components in turn, or up to 16 of each. */
static void pack_weights(const paged_few *f, paged_size h, paged_size g, float *even, float *odd,
                         int step) {
    for (paged_size r = 0; r < f->j->rows; r++) {
        const float *weights = f->scores + (h * f->j->rows + r) * BLOCK + g * AMX_KEYS / 2;
        const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)weights));
        _mm512_storeu_si512(even + r * step, w);
        _mm512_storeu_si512(odd + r * step, _mm512_slli_epi32(w, 16));
    }
}

/* Sums of tile n take in components 32 (c + n) to 32 (c + n) + 31 of group g's values, by tile `right`. */
#define ADD_VALUES(n, right)                                                                       \
    do {                                                                                           \
        const void *value = tile_rows(dtype, r, g, c + (n), &step);                                \
        _tile_loadd(right, value, step);                                                           \
        _tile_dpbf16ps(n, 6, right);                                                               \
        tile_ahead(f, tile_size(dtype));                                                           \
    } while (0)

/* Sums of up to 8 rows take in a block's values: components 32 c to 32 c + 127, of which `tiles` tiles are there. */
AMX_INLINE void add_values_twice(const ejk_dtype dtype, const int tiles, paged_few *f,
                                 const amx_rows *r, paged_size c, const float *weights, float *sums,
                                 int64_t stride) {
    const paged_size end = ejki_cdiv(f->block->high, AMX_KEYS);
    int64_t step;
    AMX_BARRIER();
    _tile_loadd(0, sums, stride);
    if (tiles > 1) _tile_loadd(1, sums + VL, stride);
    if (tiles > 2) _tile_loadd(2, sums + 2 * VL, stride);
    if (tiles > 3) _tile_loadd(3, sums + 3 * VL, stride);
    for (paged_size g = f->block->low / AMX_KEYS; g < end; g++) {
        _tile_loadd(6, weights + g * AMX_TILE, 64);
        ADD_VALUES(0, 4);
        if (tiles > 1) ADD_VALUES(1, 5);
        if (tiles > 2) ADD_VALUES(2, 4);
        if (tiles > 3) ADD_VALUES(3, 5);
    }
    _tile_stored(0, sums, stride);
    if (tiles > 1) _tile_stored(1, sums + VL, stride);
    if (tiles > 2) _tile_stored(2, sums + 2 * VL, stride);
    if (tiles > 3) _tile_stored(3, sums + 3 * VL, stride);
    AMX_BARRIER();
}

/* Sums of up to 16 rows, even and odd ones apart, take in components 32 c to 32 c + 63; weights of odd ones lie
 * AMX_GROUPS tiles behind. */
AMX_INLINE void add_values_apart(const ejk_dtype dtype, const int tiles, paged_few *f,
                                 const amx_rows *r, paged_size c, const float *weights, float *sums,
                                 paged_size width) {
    const paged_size end = ejki_cdiv(f->block->high, AMX_KEYS);
    float *odd = sums + width / 2;
    int64_t step;
    AMX_BARRIER();
    _tile_loadd(0, sums, 4 * width);
    _tile_loadd(1, odd, 4 * width);
    if (tiles > 1) _tile_loadd(2, sums + VL, 4 * width);
    if (tiles > 1) _tile_loadd(3, odd + VL, 4 * width);
    for (paged_size g = f->block->low / AMX_KEYS; g < end; g++) {
        const void *value = tile_rows(dtype, r, g, c, &step);
        _tile_loadd(6, weights + g * AMX_TILE, 64);
        _tile_loadd(4, value, step);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, weights + (AMX_GROUPS + g) * AMX_TILE, 64);
        _tile_dpbf16ps(1, 7, 4);
        tile_ahead(f, tile_size(dtype));
        if (tiles > 1) {
            value = tile_rows(dtype, r, g, c + 1, &step);
            _tile_loadd(5, value, step);
            _tile_dpbf16ps(2, 6, 5);
            _tile_dpbf16ps(3, 7, 5);
            tile_ahead(f, tile_size(dtype));
        }
    }
    _tile_stored(0, sums, 4 * width);
    _tile_stored(1, odd, 4 * width);
    if (tiles > 1) _tile_stored(2, sums + VL, 4 * width);
    if (tiles > 1) _tile_stored(3, odd + VL, 4 * width);
    AMX_BARRIER();
}

/* Keys of the next block, with their tails where these follow. */
static void begin_next_keys(paged_few *f, paged_size h) {
    const paged_problem *p = f->j->p;
    const bool more = f->next->high > 0;
    const bool follows = p->tail_dim > 0 && more &&
                         f->next->key[f->next->low] + p->dim * paged_bytes(p->key.dtype) ==
                             f->next->tail[f->next->low];
    const paged_size dim = p->dim + (follows ? p->tail_dim : 0);
    begin_tiles(f, &p->key, more ? f->next->key : NULL, dim, h);
}

/* Sums of a set of rows, from row i of the item on, take in a block's values; digits of weights as left operands. */
AMX_INLINE void add_byte_values(paged_few *f, const amx_rows *values, const int32_t *weights,
                                const float unit[SET_ROWS], paged_size i, paged_size rows,
                                bool prefetches) {
    const paged_size width = f->j->work->plan.width, end = ejki_cdiv(f->block->high, AMX_KEYS);
    const paged_size digit = BYTES_GROUPS * BYTES_TILE;
    _Alignas(64) int32_t sums[WEIGHT_DIGITS * BYTES_TILE];
    for (paged_size c = 0; c < values->dim; c += BYTES_WHOLE) {
        int64_t stride;
        AMX_BARRIER();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (paged_size g = f->block->low / AMX_KEYS; g < end; g++) {
            const int32_t *left = weights + g * BYTES_TILE;
            const void *value = tile_bytes(values, g, c, &stride);
            _tile_loadd(4, value, stride);
            _tile_loadd(6, left, 64);
            _tile_dpbssd(0, 6, 4);
            _tile_loadd(7, left + digit, 64);
            _tile_dpbssd(1, 7, 4);
            _tile_loadd(6, left + 2 * digit, 64);
            _tile_dpbssd(2, 6, 4);
            if (prefetches) tile_ahead(f, AMX_KEYS * BYTES_WHOLE);
        }
        AMX_BARRIER();
        _tile_stored(0, sums, 64);
        _tile_stored(1, sums + BYTES_TILE, 64);
        _tile_stored(2, sums + 2 * BYTES_TILE, 64);
        AMX_BARRIER();
        for (paged_size r = 0; r < rows; r++)
            EJKI_UNROLL for (int place = 0; place < PLACES; place++)
                add_digits(sums + (place * SET_ROWS + r) * VL, unit[r],
                           f->sums + (i + r) * width + place * (width / PLACES) + c / PLACES);
    }
}

/* A set of rows of an item, and its weights as left operands. */
typedef struct byte_set {
    paged_size i, count; /* the first of its rows, and how many */
    float unit[SET_ROWS];
    int32_t *weights;
} byte_set;

static void pack_byte_set(paged_few *f, byte_set *s, paged_size i, paged_size end) {
    s->i = i;
    s->count = paged_least(end - i, SET_ROWS);
    for (paged_size k = 0; k < s->count; k++)
        s->unit[k] = pack_byte_weights(f, i + k, k, s->weights);
}

/* Weights of a set are packed before values meet those of the set ahead: tiles do not wait for what was just stored. */
static void byte_values(paged_few *f, paged_size first, paged_size heads) {
    const paged_problem *p = f->j->p;
    const paged_size rows = f->j->rows, end = (first + heads) * rows;
    _Alignas(64) float copy[AMX_TILE];
    _Alignas(64) int32_t weights[2][WEIGHT_DIGITS * BYTES_GROUPS * BYTES_TILE];
    byte_set now = {.weights = weights[0]}, next = {.weights = weights[1]};
    amx_open();
    if (rows % SET_ROWS != 0) memset(weights, 0, sizeof weights);
    amx_rows values = rows_of(f, &p->value, f->block->value, first, p->value_dim, copy);
    pack_byte_set(f, &next, first * rows, (first + 1) * rows);
    for (paged_size h = first, i = first * rows; h < first + heads;) {
        const byte_set done = now;
        const bool begins = i == h * rows, ends = i + next.count == (h + 1) * rows;
        now = next;
        next = done;
        if (begins) begin_next_keys(f, h);
        i += now.count;
        if (i < end) pack_byte_set(f, &next, i, (h + 1 + ends) * rows);
        add_byte_values(f, &values, now.weights, now.unit, now.i, now.count, begins);
        if (!ends) continue;
        h++;
        values.head += head_bytes(&p->value);
    }
}

AMX_INLINE void tile_values(const ejk_dtype dtype, paged_few *f, paged_size first,
                            paged_size heads) {
    const paged_problem *p = f->j->p;
    const paged_size width = f->j->work->plan.width, rows = f->j->rows;
    const bool twice = rows <= 8;
    _Alignas(64) float copy[AMX_COPIES], weights[2 * AMX_GROUPS * AMX_TILE];
    amx_open_rows((int)(twice ? 2 * rows : rows),
                  AMX_KEYS); /* sums, 0 to 3, and weights, 6 and 7; values */
    amx_rows values = rows_of(f, &p->value, f->block->value, first, p->value_dim, copy);
    for (paged_size h = first; h < first + heads; h++, values.head += head_bytes(&p->value)) {
        const paged_size tiles = width / LANES;
        begin_next_keys(f, h);
        for (paged_size g = 0; g < AMX_GROUPS; g++) {
            float *even = weights + g * AMX_TILE;
            pack_weights(f, h, g, even, twice ? even + VL : even + AMX_GROUPS * AMX_TILE,
                         twice ? 2 * VL : VL);
        }
        float *sums = f->sums + h * rows * width;
        for (paged_size c = 0; c < tiles; c += twice ? 4 : 2) {
            float *to = sums + c * VL;
            if (!twice && tiles - c > 1)
                add_values_apart(dtype, 2, f, &values, c, weights, to, width);
            else if (!twice)
                add_values_apart(dtype, 1, f, &values, c, weights, to, width);
            else if (tiles - c >= 4)
                add_values_twice(dtype, 4, f, &values, c, weights, to, 2 * width);
            else if (tiles - c == 3)
                add_values_twice(dtype, 3, f, &values, c, weights, to, 2 * width);
            else if (tiles - c == 2)
                add_values_twice(dtype, 2, f, &values, c, weights, to, 2 * width);
            else
                add_values_twice(dtype, 1, f, &values, c, weights, to, 2 * width);
        }
    }
}

/* Sums of a row in their own order, or in that of tiles again, which have every second component side by side, of bytes
 * every fourth; `scratch` has room for them. */
static void order_sums(const paged_few *f, bool tiles, float *sums, float *scratch) {
    const paged_size width = f->j->work->plan.width, places = f->bytes ? PLACES : 2;
    const paged_size part = width / places;
    memcpy(scratch, sums, sizeof *sums * (size_t)width);
    for (paged_size k = 0; k < part; k++)
        for (paged_size i = 0; i < places; i++)
            sums[tiles ? i * part + k : places * k + i] =
                scratch[tiles ? places * k + i : i * part + k];
}

#define TILE_SCORES_OF(T)                                                                          \
    static __attribute__((noinline)) void tile_scores_##T(paged_few *f) {                          \
        tile_scores(EJK_DTYPE_##T, f);                                                             \
    }
#define TILE_VALUES_OF(T)                                                                          \
    static __attribute__((noinline)) void tile_values_##T(paged_few *f, paged_size h,              \
                                                          paged_size heads) {                      \
        tile_values(EJK_DTYPE_##T, f, h, heads);                                                   \
    }
OPERAND_TYPES(TILE_SCORES_OF)
OPERAND_TYPES(TILE_VALUES_OF)
#define TILE_SCORES_CASE(T)                                                                        \
    case EJK_DTYPE_##T:                                                                            \
        tile_scores_##T(f);                                                                        \
        break;
#define TILE_VALUES_CASE(T)                                                                        \
    case EJK_DTYPE_##T: tile_values_##T(f, h, heads); break;

static void any_tile_scores(paged_few *f) {
    switch (f->j->p->key.dtype) {
        OPERAND_TYPES(TILE_SCORES_CASE)
    default: break;
    }
}
static void any_tile_values(paged_few *f, paged_size h, paged_size heads) {
    if (f->bytes) {
        byte_values(f, h, heads);
        return;
    }
    switch (f->j->p->value.dtype) {
        OPERAND_TYPES(TILE_VALUES_CASE)
    default: break;
    }
}

#endif
