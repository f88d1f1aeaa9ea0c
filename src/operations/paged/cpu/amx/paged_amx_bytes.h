/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows of a KV head and a cache of int8, whose bytes tiles take as they lie in memory (TDPBSSD): 16 keys are a left
 * operand, 16 values a right one.
 *
 * Queries are whole numbers of four signed digits to the base 256, weights of three, in units of a power of two, so
 * that sums of products are exact. A query's digits are columns of its right operand, those of four rows side by side.
 * Four neighbouring components of a value count as a group: rows of weights have a digit in the place of one of them
 * and 0 in the others, so that four rows of queries times four places are a left operand for each digit.
 *
 * A head whose queries are no such numbers is made of pairs of bf16. Weights are rounded, in units that follow from a
 * row's largest one in a block: bytes_have_lost() tells whether that may show, as where large weights have values of 0.
 */
#ifndef EJKI_PAGED_AMX_BYTES_H
#define EJKI_PAGED_AMX_BYTES_H

#include "operations/paged/cpu/paged_few.h"

#include "operations/attention/cpu/amx/amx_tiles.h"

enum {
    DIGITS = 4,        /* of queries */
    WEIGHT_DIGITS = 3, /* of weights */
    PLACES = 4,        /* bytes of a lane */
    SET_ROWS = 4,      /* rows of queries in a tile, each with its digits, or with its places */
    BYTES_ROWS = 8,    /* of a KV head, at most */
    BYTES_WHOLE = 64,  /* components of a tile */
    NUMBER_BITS = 30,  /* numbers are at most 2^30; of weights 2^22 */
    WEIGHT_BITS = 22,
    BYTES_GROUPS = BLOCK / 16,
    BYTES_TILE = 256, /* lanes */
    LEAST_UNIT = -90,
    MOST_UNIT = 60
};

/* Whether an item's keys and values are multiplied as bytes. */
static inline bool in_bytes(const paged_job *j) {
    const paged_problem *p = j->p;
    const bool bytes = p->key.dtype == (int)EJK_DTYPE_I8 && p->value.dtype == (int)EJK_DTYPE_I8;
    return bytes && j->rows > 1 && j->rows <= BYTES_ROWS && p->dim % BYTES_WHOLE == 0 &&
           p->tail_dim % BYTES_WHOLE == 0 && p->value_dim % BYTES_WHOLE == 0;
}

/* The exponent of the least power of two above v, a finite number of at least 0. */
static inline int exponent_above(float v) {
    int exponent = 0;
    (void)frexpf(v, &exponent);
    return exponent;
}
static inline float power(int exponent) {
    return ldexpf(1, exponent);
}

/* Numbers as their digits, the lowest first. */
static inline __m512i signed_digits(__m512i number) {
    const __m512i half = _mm512_set1_epi32((int)0x80808080u);
    return _mm512_xor_si512(_mm512_add_epi32(number, half), half);
}

/* Lanes of a row of pairs, whole or not: 16 elements as floats. */
static inline __m512 bf16_floats(const uint16_t *from) {
    const __m256i v = _mm256_loadu_si256((const void *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* ---- Scores ----------------------------------------------------------------------------------------- */

/* The unit of `count` elements, a multiple of 16, and more of them, in which all are whole numbers; else 0. */
static float unit_of(const uint16_t *const part[2], const paged_size count[2]) {
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < 2; i++)
        for (paged_size d = 0; d < count[i]; d += VL)
            most = _mm512_max_ps(_mm512_abs_ps(bf16_floats(part[i] + d)), most);
    const float top = _mm512_reduce_max_ps(most);
    if (top == 0) return 1;
    const int unit = top < INFINITY ? exponent_above(top) - NUMBER_BITS : LEAST_UNIT - 1;
    if (unit < LEAST_UNIT || unit > MOST_UNIT) return 0;
    const __m512 by = _mm512_set1_ps(power(-unit));
    __mmask16 whole = 0xffff;
    for (int i = 0; i < 2; i++)
        for (paged_size d = 0; d < count[i]; d += VL) {
            const __m512 v = _mm512_mul_ps(bf16_floats(part[i] + d), by);
            const __m512 near =
                _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            whole &= _mm512_cmp_ps_mask(v, near, _CMP_EQ_OQ);
        }
    return whole == 0xffff ? power(unit) : 0;
}

/* Digits of 16 components as dwords of four components: those of digit k of row r go to columns k * SET_ROWS + r. */
static void put_digits(const uint16_t *from, float unit, paged_size r, int32_t *tile) {
    const __m512i turn =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512 v = _mm512_mul_ps(bf16_floats(from), _mm512_set1_ps(1 / unit));
    int32_t digits[VL];
    _mm512_storeu_si512(digits, _mm512_shuffle_epi8(signed_digits(_mm512_cvtps_epi32(v)), turn));
    for (int i = 0; i < VL / DIGITS; i++)
        for (int k = 0; k < DIGITS; k++) tile[i * VL + k * SET_ROWS + r] = digits[i * DIGITS + k];
}

static inline paged_size byte_chunks(const paged_problem *p) {
    return (p->dim + p->tail_dim) / BYTES_WHOLE;
}

/* Queries of head h as right operands, those of a set of rows after those of another; whether they can be. */
static bool pack_byte_queries(paged_few *f, paged_size h, float *tiles) {
    const paged_problem *p = f->j->p;
    const paged_size depth = f->j->work->plan.depth, chunks = byte_chunks(p);
    const paged_size count[2] = {p->dim, p->tail_dim};
    int32_t *to = (int32_t *)(void *)tiles;
    memset(to, 0, (size_t)(ejki_cdiv(f->j->rows, SET_ROWS) * chunks * BYTES_TILE) * sizeof *to);
    for (paged_size r = 0; r < f->j->rows; r++) {
        const uint16_t *row = (const void *)(f->query + (h * f->j->rows + r) * depth);
        const uint16_t *const part[2] = {row, row + PAGED_PACK * padded(p->dim)};
        const float unit = unit_of(part, count);
        if (unit == 0) return false;
        f->query_unit[h * f->j->rows + r] = unit;
        int32_t *tile = to + r / SET_ROWS * chunks * BYTES_TILE;
        for (int i = 0; i < 2; i++)
            for (paged_size d = 0; d < count[i]; d += VL, tile += VL / DIGITS * VL)
                put_digits(part[i] + d, unit, r % SET_ROWS, tile);
    }
    return true;
}

/* Vectors of keys m, m + 4, m + 8 and m + 12, a quarter of four rows each, become up to four rows, BLOCK apart. */
AMX_INLINE void store_columns(const __m512 four[SET_ROWS], paged_size rows, float *to) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(four[0], four[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(four[2], four[3]));
    const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(four[0], four[1]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(four[2], four[3]));
    _mm512_storeu_pd(to, _mm512_unpacklo_pd(a, b));
    if (rows > 1) _mm512_storeu_pd(to + BLOCK, _mm512_unpackhi_pd(a, b));
    if (rows > 2) _mm512_storeu_pd(to + 2 * BLOCK, _mm512_unpacklo_pd(c, d));
    if (rows > 3) _mm512_storeu_pd(to + 3 * BLOCK, _mm512_unpackhi_pd(c, d));
}

/* Sums of digits of 64 keys, a row of 16 columns each, become products of up to SET_ROWS rows from row i of the item
 * on. */
static void place_byte_scores(const paged_few *f, paged_size i, paged_size rows,
                              const int32_t *sums) {
    float unit[VL];
    for (int c = 0; c < VL; c++) {
        const paged_size r = c % SET_ROWS;
        unit[c] = r < rows ? f->query_unit[i + r] * (float)(1 << 8 * (c / SET_ROWS)) : 0;
    }
    const __m512 by = _mm512_loadu_ps(unit);
    for (paged_size t = 0; t < BLOCK; t += VL, sums += BYTES_TILE) {
        __m512 four[SET_ROWS]; /* keys m, m + 4, m + 8 and m + 12, a quarter each */
        EJKI_UNROLL for (int m = 0; m < SET_ROWS; m++) {
            __m512 v[4];
            EJKI_UNROLL for (int n = 0; n < 4; n++) v[n] =
                _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums + (m + 4 * n) * VL)), by);
            const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
                                           _mm512_shuffle_f32x4(v[0], v[1], 0xee));
            const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
                                           _mm512_shuffle_f32x4(v[2], v[3], 0xee));
            four[m] =
                _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        }
        store_columns(four, rows, f->scores + i * BLOCK + t);
    }
}

/* ---- Weights ---------------------------------------------------------------------------------------- */

/* Weights of columns low to high - 1 take in the scales of their values, if there are any; totals follow. */
static void end_byte_weights(float *weights, paged_size low, paged_size high, const float *scales,
                             float factor, float *totals) {
    vf total = v_mul(v_load(totals), v_set1(factor));
    for (paged_size c = low; c < high; c += VL) {
        const vf w = v_load(weights + c);
        total = v_add(total, w);
        if (scales) v_store(weights + c, v_select_gt(w, v_zero(), v_mul(w, v_load(scales + c)), w));
    }
    v_store(totals, total);
}

/* Rows of weights of 16 keys: a digit in a place of each lane. Tiles of a digit lie BYTES_GROUPS tiles apart. */
AMX_INLINE void put_places(__m512i digits, int32_t *tiles) {
    EJKI_UNROLL for (int k = 0; k < WEIGHT_DIGITS; k++, digits = _mm512_srli_epi32(digits, 8)) {
        int32_t *tile = tiles + k * BYTES_GROUPS * BYTES_TILE;
        const __m512i low = _mm512_and_si512(digits, _mm512_set1_epi32(0xff));
        _mm512_storeu_si512(tile, low);
        _mm512_storeu_si512(tile + SET_ROWS * VL, _mm512_slli_epi32(low, 8));
        _mm512_storeu_si512(tile + 2 * SET_ROWS * VL, _mm512_slli_epi32(low, 16));
        _mm512_storeu_si512(tile + 3 * SET_ROWS * VL, _mm512_slli_epi32(low, 24));
    }
}

/* Weights of row i of the item, row r of its set, as left operands; returns their unit. */
static float pack_byte_weights(paged_few *f, paged_size i, paged_size r, int32_t *tiles) {
    const paged_size low = f->block->low / VL, high = ejki_cdiv(f->block->high, VL);
    const float *weights = f->scores + i * BLOCK;
    __m512 most = _mm512_setzero_ps();
    __mmask16 finite = 0xffff;
    for (paged_size g = low; g < high; g++) {
        const __m512 v = _mm512_abs_ps(_mm512_loadu_ps(weights + g * VL));
        finite &= _mm512_cmp_ps_mask(v, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
        most = _mm512_max_ps(v, most);
    }
    const float top = _mm512_reduce_max_ps(most);
    int unit = exponent_above(top) - WEIGHT_BITS;
    if (finite != 0xffff || unit > MOST_UNIT) f->wrong[i] = INFINITY;
    if (finite != 0xffff || unit > MOST_UNIT || top == 0) unit = MOST_UNIT; /* numbers are 0 */
    if (unit < LEAST_UNIT) unit = LEAST_UNIT;
    const bool none = f->wrong[i] == INFINITY || top == 0;
    const __m512 by = _mm512_set1_ps(none ? 0 : power(-unit));
    for (paged_size g = low; g < high; g++) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(weights + g * VL), by);
        const __m512i number = _mm512_maskz_cvtps_epi32(none ? 0 : 0xffff, v);
        put_places(signed_digits(number), tiles + g * BYTES_TILE + r * VL);
    }
    if (none) return 0;
    f->wrong[i] += power(unit);
    return power(unit);
}

/* Sums of a row, in a unit, take in those of its digits. */
AMX_INLINE void add_digits(const int32_t *digits, float unit, float *sums) {
    const __m512i lower = _mm512_loadu_si512(digits);
    const __m512i low = _mm512_loadu_si512(digits + BYTES_TILE);
    const __m512i high = _mm512_loadu_si512(digits + 2 * BYTES_TILE);
    const __m512 below = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(low, 8), lower));
    const __m512 sum = _mm512_fmadd_ps(below, _mm512_set1_ps(unit), _mm512_loadu_ps(sums));
    const __m512 above = _mm512_cvtepi32_ps(high);
    _mm512_storeu_ps(sums, _mm512_fmadd_ps(above, _mm512_set1_ps(unit * 65536), sum));
}

/*
 * Whether a row's sums may be wrong by more than those of bf16 are. In a block of 64 keys each is wrong by half a unit
 * times 128 at most, by a twentieth of that as roundings go; wrong[i] is the sum of the units. 2^5 times the most is
 * to be less than the largest sum. NaN and what is too large count.
 */
static bool bytes_have_lost(const paged_few *f, paged_size i) {
    const paged_size width = f->j->work->plan.width;
    const float *sums = f->sums + i * width;
    const float most = (float)(BLOCK * 64 * (1 << 5));
    __m512 top = _mm512_setzero_ps();
    for (paged_size d = 0; d < f->j->p->value_dim; d += VL)
        top = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(sums + d)), top);
    return !(f->wrong[i] * most <= _mm512_reduce_max_ps(top));
}

#endif
