/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gradients of flash attention do with AMX tiles besides what the forward pass does: packing rows and
 * keys, and sums of products.
 *
 * Scores are made transposed, a key's 32 rows beside each other: scoresᵀ = keys · queriesᵀ. So weights and
 * dS comes out as left operands of d_value = weightsᵀ · cotangents and d_key = dSᵀ · queries, and
 * pairs of keys' dS as a right operand of d_queryᵀ = keysᵀ · dSᵀ: nothing has to be transposed.
 *
 * A key's 32 weights come from two vectors, of rows 0-15 and 16-31, by an instruction that works in quarters: rows
 * lie in the order 0-3, 16-19, 4-7, …, "the weights' order". Seen as pairs, its even places are the rows
 * amx_vjp_row(0), amx_vjp_row(1), … and the odd ones those after them: "even" and "odd" rows. Cotangents are
 * packed so that their products come out as even rows and odd rows at once.
 *
 * Layouts, runs of tiles (16 rows of 64 bytes):
 *   keys        [16 keys][step]                     row i: 32 components of key i
 *   transposed  [32 keys][16 components]            row i: component i of 32 keys
 *   queries     [half of 16 rows][step]             row i: components 2i, 2i+1 of 16 rows
 *   cotangents  [even, odd][step]                   the same
 *   …_rows      [32 rows][16 components]            row i: even row i and the odd one after it
 *   weights     [16 keys][32 rows]                  row i: key i's 32, weights' order; dS too
 *   pairs       [32 rows][even, odd][32 keys]       row i: dS of keys 2i, 2i+1
 *   d_key       [16 keys][16 components]            floats
 *   d_query     [32 rows][even, odd][16 components] floats; row i: component i of 16 rows
 */
#ifndef EJKI_AMX_VJP_TILES_H
#define EJKI_AMX_VJP_TILES_H

#include "operations/attention/cpu/amx/amx_tiles.h"

/* The row at even place i of the weights' order; the odd place has the one after it. */
static inline int64_t amx_vjp_row(int64_t i) {
    return 4 * (i >> 2) + 2 * (i & 1) + 8 * (i & 2);
}

/* Facts of the elements that are packed. */
typedef struct amx_vjp_scan {
    __m512i top;
    __mmask32 special; /* elements that AMX cannot multiply: see AMX_LEAST_VALUE */
} amx_vjp_scan;

static inline __m512i amx_vjp_scan_row(amx_vjp_scan *scan, __m512i x) {
    const __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    const __m512i span = _mm512_set1_epi16(AMX_MOST_VALUE - AMX_LEAST_VALUE);
    scan->top = _mm512_max_epu16(scan->top, size);
    scan->special |= _mm512_mask_cmpgt_epu16_mask(
        _mm512_test_epi16_mask(size, size),
        _mm512_sub_epi16(size, _mm512_set1_epi16(AMX_LEAST_VALUE)), span);
    return x;
}

/* Components [32 s, 32 s + 32) of 32 rows; a row that is NULL counts as 0. */
static inline void amx_vjp_load(const char *const rows[AMX_ROWS], int64_t dim, int64_t s,
                                __m512i r[AMX_ROWS], amx_vjp_scan *scan) {
    for (int64_t i = 0; i < AMX_ROWS; i++)
        r[i] = rows[i] ? amx_vjp_scan_row(scan, amx_load(rows[i] + 64 * s, dim - 32 * s))
                       : _mm512_setzero_si512();
}

/* Two rows, element by element in turn: the first 16 elements, and the rest. */
static inline __m512i amx_vjp_zip_low(__m512i x, __m512i y) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_permutex2var_epi16(x, low, y);
}
static inline __m512i amx_vjp_zip_high(__m512i x, __m512i y) {
    const __m512i high =
        _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54,
                         22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
    return _mm512_permutex2var_epi16(x, high, y);
}

/* Stores 16 vectors of 16 pairs, transposed. */
static inline void amx_vjp_store_transposed(vf block[16], uint16_t *target) {
    v_transpose(block);
    for (int i = 0; i < 16; i++) _mm512_store_si512(target + 32 * i, _mm512_castps_si512(block[i]));
}

/* Packs 32 rows as pairs of components, even and odd rows if `apart`, and as pairs of rows. */
static inline void amx_vjp_pack_rows(const char *const rows[AMX_ROWS], int64_t dim, int64_t steps,
                                     bool apart, uint16_t *components, uint16_t *pairs,
                                     amx_vjp_scan *scan) {
    for (int64_t s = 0; s < steps; s++) {
        __m512i r[AMX_ROWS];
        vf block[2][16];
        amx_vjp_load(rows, dim, s, r, scan);
        for (int64_t i = 0; i < 16; i++) {
            const int64_t row = amx_vjp_row(i);
            block[0][i] = _mm512_castsi512_ps(r[apart ? row : i]);
            block[1][i] = _mm512_castsi512_ps(r[apart ? row + 1 : i + 16]);
            uint16_t *to = pairs + 2 * s * AMX_ELEMENT + 32 * i;
            _mm512_store_si512(to, amx_vjp_zip_low(r[row], r[row + 1]));
            _mm512_store_si512(to + AMX_ELEMENT, amx_vjp_zip_high(r[row], r[row + 1]));
        }
        amx_vjp_store_transposed(block[0], components + s * AMX_ELEMENT);
        amx_vjp_store_transposed(block[1], components + (steps + s) * AMX_ELEMENT);
    }
}

/* Packs 32 keys as they are, and transposed if that is not NULL. */
static inline void amx_vjp_pack_keys(const char *const keys[AMX_CHUNK], int64_t dim, int64_t steps,
                                     uint16_t *target, uint16_t *transposed, amx_vjp_scan *scan) {
    for (int64_t s = 0; s < steps; s++) {
        __m512i r[AMX_CHUNK];
        amx_vjp_load(keys, dim, s, r, scan);
        for (int64_t i = 0; i < AMX_CHUNK; i++)
            _mm512_store_si512(target + (i / 16 * steps + s) * AMX_ELEMENT + i % 16 * 32, r[i]);
        if (!transposed) continue;
        vf block[2][16];
        for (int64_t i = 0; i < 16; i++) {
            block[0][i] = _mm512_castsi512_ps(amx_vjp_zip_low(r[2 * i], r[2 * i + 1]));
            block[1][i] = _mm512_castsi512_ps(amx_vjp_zip_high(r[2 * i], r[2 * i + 1]));
        }
        amx_vjp_store_transposed(block[0], transposed + 2 * s * AMX_ELEMENT);
        amx_vjp_store_transposed(block[1], transposed + (2 * s + 1) * AMX_ELEMENT);
    }
}

/* ---- Sums of products --------------------------------------------------------------------------------- */

/* A run of operands: how far tiles are apart that are multiplied beside each other, and one after the other. */
typedef struct amx_vjp_operand {
    const uint16_t *tile;
    int64_t beside, step;
} amx_vjp_operand;

/* Four sums, `beside` floats apart, += four left operands times one right operand, over `count` steps. */
static inline void amx_vjp_add_four(amx_vjp_operand left, amx_vjp_operand right, int64_t count,
                                    float *sums, int64_t beside) {
    const uint16_t *a = left.tile, *b = right.tile;
    AMX_BARRIER();
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + beside, 64);
    _tile_loadd(2, sums + 2 * beside, 64);
    _tile_loadd(3, sums + 3 * beside, 64);
    for (int64_t n = 0; n < count; n++) {
        _tile_loadd(4, b, 64);
        _tile_loadd(6, a, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, a + left.beside, 64);
        _tile_dpbf16ps(1, 7, 4);
        _tile_loadd(5, a + 2 * left.beside, 64);
        _tile_dpbf16ps(2, 5, 4);
        _tile_loadd(6, a + 3 * left.beside, 64);
        _tile_dpbf16ps(3, 6, 4);
        a += left.step;
        b += right.step;
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + beside, 64);
    _tile_stored(2, sums + 2 * beside, 64);
    _tile_stored(3, sums + 3 * beside, 64);
    AMX_BARRIER();
}

/* Two by two sums += two left operands times two right operands. `down` floats lie between sums of neighbours
 * on the left, `along` between those on the right. */
static inline void amx_vjp_add_square(amx_vjp_operand left, amx_vjp_operand right, int64_t count,
                                      float *sums, int64_t down, int64_t along) {
    const uint16_t *a = left.tile, *b = right.tile;
    AMX_BARRIER();
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + down, 64);
    _tile_loadd(2, sums + along, 64);
    _tile_loadd(3, sums + down + along, 64);
    for (int64_t n = 0; n < count; n++) {
        _tile_loadd(4, b, 64);
        _tile_loadd(6, a, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, a + left.beside, 64);
        _tile_dpbf16ps(1, 7, 4);
        _tile_loadd(5, b + right.beside, 64);
        _tile_dpbf16ps(2, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
        a += left.step;
        b += right.step;
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + down, 64);
    _tile_stored(2, sums + along, 64);
    _tile_stored(3, sums + down + along, 64);
    AMX_BARRIER();
}

#endif
