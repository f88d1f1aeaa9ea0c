/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows and caches of int8, where VPDPBUSD multiplies four bytes at once: queries and weights are whole numbers of
 * steps, of two or three signed digits of 8 bits. A row's own largest magnitude says what a step is, for weights once
 * more in each block, and is a power of two for queries. Sums of products are exact; cached bytes are offset by 128,
 * as the instruction wants one operand without signs, and what that adds is taken away before.
 *
 * Queries take as many digits as leave out next to nothing of them, else the head is multiplied in floats. Two digits
 * of weights have 15 bits below the largest of 64, which float32 results would show: for these there are three. Scales
 * of rows are multiplied with weights before. Where a weight is not finite, the head's block is added in floats.
 *
 * Lines are asked for in the order of memory, into the second-level cache, whatever `prefetch_hint` says. No loop over
 * products asks on a condition: gcc 12 then moves all sums at every turn (11 cycles for 64 bytes in place of 6).
 */
#ifndef EJKI_PAGED_DIGITS_H
#define EJKI_PAGED_DIGITS_H

#include "operations/paged/cpu/paged_ask.h"
#include "operations/paged/cpu/paged_row.h"

#include "kernels/simd/vec_avx512_vnni.h"

/* What few rows have in memory; a row's digits of weights lie BLOCK bytes apart. */
typedef struct paged_digits {
    bool used;
    paged_size depth;                /* dwords of a query or a key, in whole vectors */
    int queries[ROWS_AT_ONCE];       /* digits of a KV head's queries; 0: floats */
    bool weights[ROWS_AT_ONCE];      /* the block's weights of a KV head are digits */
    float *query, *query_step;       /* rows that are multiplied together side by side */
    float *keys;                     /* a lane of VL keys after the other */
    float *row;                      /* a query before it is digits */
    char *bytes;                     /* its digits before they are in their places */
    float *weight, *weight_step;     /* [row][digit][BLOCK bytes] */
    int32_t *query_sum, *weight_sum; /* [row][digit]: -128 times the sum of digits; of two
                                         * digits of weights the first has both */
} paged_digits;

/* Digits of weights of this call. */
static inline int weight_digits(const paged_problem *p) {
    return p->dtype == EJK_DTYPE_F32 ? 3 : 2;
}

/* Rows that are multiplied together from row i of `rows` on. */
static inline int digit_rows(paged_size rows, paged_size i) {
    return rows - i >= 4 ? 4 : rows - i >= 2 ? 2 : 1;
}

static void bind_digits(paged_digits *d, const paged_problem *p, float *memory) {
    d->used = has_digits(p);
    if (!d->used) return;
    d->depth = digit_depth(p);
    d->query = memory;
    d->query_step = d->query + ROWS_AT_ONCE * MOST_DIGITS * d->depth;
    d->weight = d->query_step + ROWS_AT_ONCE;
    d->weight_step = d->weight + ROWS_AT_ONCE * MOST_DIGITS * BLOCK / QUAD;
    d->query_sum = (int32_t *)(void *)(d->weight_step + ROWS_AT_ONCE);
    d->weight_sum = d->query_sum + ROWS_AT_ONCE * MOST_DIGITS;
    d->keys = (float *)(void *)(d->weight_sum + ROWS_AT_ONCE * MOST_DIGITS);
    d->row = d->keys + d->depth * VL;
    d->bytes = (char *)(d->row + d->depth * QUAD);
}

/* ---- Digits ----------------------------------------------------------------------------------------- */

/* VL whole numbers as signed digits, the lowest first, `step` bytes apart. */
static inline __attribute__((always_inline)) void store_digits(vf whole, const int digits, char *to,
                                                               paged_size step) {
    for (int g = 0; g < digits; g++) {
        v_store_bytes(to + g * step, whole);
        whole = v_down_whole(v_add_whole(whole, v_set1_whole(128)), 8);
    }
}

/* -128 times the sum of `count` digits, in whole vectors. */
static inline int32_t offset_of(const char *digits, paged_size count) {
    vf sum = v_zero();
    for (paged_size i = 0; i < count; i += CHUNK)
        sum = v_dot_bytes(v_load_bytes(digits + i), v_set1_whole((int32_t)0x80808080u), sum);
    return -v_sum_whole(sum);
}

/* A query as floats, 0 behind the last. */
static void digit_row(paged_digits *d, const paged_problem *p, const paged_row *row) {
    const paged_size start = paged_row_at(p, &p->query, row->token, row->head);
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (paged_size k = 0; k < d->depth * QUAD; k += VL) {
        const paged_size left = paged_most(paged_least(p->dim - k, VL), 0);
        float lanes[VL] = {0};
        for (paged_size i = 0; p->query_scale != 0 && i < left; i++)
            lanes[i] = asked(p, &p->query, start + k + i);
        v_store(d->row + k,
                p->query_scale != 0
                    ? v_load(lanes)
                    : v_stored_first(dtype, element_at(dtype, p->query.data, start + k), left));
    }
}

/* The step of a query of so many digits. */
static float query_step(float most, int digits) {
    int exponent = 0;
    if (!(most > 0x1p-80f && most < 0x1p80f)) return 1;
    (void)frexpf(most, &exponent);
    return ldexpf(1, exponent - (8 * digits - 2));
}

/* How many digits d->row takes; 0: more than there are. What they may leave out of it, in all, is little of its
 * magnitudes, and less where results are float32, as an LSE is. */
static int digits_of_row(const paged_digits *d, const paged_problem *p) {
    const float loss = p->dtype == EJK_DTYPE_F32 || p->lse.data ? 0x1p-19f : 0x1p-12f;
    const paged_size count = d->depth * QUAD;
    vf most = v_zero(), sum = v_zero();
    for (paged_size k = 0; k < count; k += VL) {
        const vf q = v_abs(v_load(d->row + k));
        most = v_max(q, most);
        sum = v_add(sum, q);
    }
    const float total = v_sum(sum), largest = v_largest(most);
    if (!(total < 0x1p90f)) return 0;
    for (int digits = 2; digits <= MOST_DIGITS; digits++) {
        const float step = query_step(largest, digits);
        vf left = v_zero();
        for (paged_size k = 0; k < count; k += VL) {
            const vf q = v_mul(v_load(d->row + k), v_set1(1 / step));
            left = v_add(left, v_abs(v_sub(q, v_of_whole(v_to_whole(q)))));
        }
        if (v_sum(left) * step <= total * loss) return digits;
    }
    return 0;
}

/* d->row becomes the digits of row i, which is row r of `rows` that are multiplied together. */
static void put_row_digits(paged_digits *d, paged_size i, int r, int rows, int digits) {
    const paged_size count = d->depth * QUAD;
    vf most = v_zero();
    for (paged_size k = 0; k < count; k += VL) most = v_max(v_abs(v_load(d->row + k)), most);
    const float step = query_step(v_largest(most), digits);
    for (paged_size k = 0; k < count; k += VL)
        store_digits(v_to_whole(v_mul(v_load(d->row + k), v_set1(1 / step))), digits, d->bytes + k,
                     count);
    d->query_step[i] = step;
    float *to = d->query + (i - r) * MOST_DIGITS * d->depth + r * digits;
    for (int g = 0; g < digits; g++) {
        d->query_sum[i * MOST_DIGITS + g] = offset_of(d->bytes + g * count, count);
        for (paged_size k = 0; k < d->depth; k++)
            memcpy(to + k * rows * digits + g, d->bytes + g * count + k * QUAD, QUAD);
    }
}

/* Queries of a KV head, rows first to first + rows - 1, become digits, of as many as any of them takes. */
static void put_queries(paged_digits *d, const paged_problem *p, const paged_row *row,
                        paged_size first, paged_size rows, paged_size head) {
    int most = 2;
    for (paged_size i = first; i < first + rows && most > 0; i++) {
        digit_row(d, p, &row[i]);
        const int digits = digits_of_row(d, p);
        most = digits == 0 ? 0 : digits > most ? digits : most;
    }
    d->queries[head] = most;
    for (paged_size i = 0; i < rows && most > 0;) {
        const int together = digit_rows(rows, i);
        for (int r = 0; r < together; r++, i++) {
            digit_row(d, p, &row[first + i]);
            put_row_digits(d, first + i, r, together, most);
        }
    }
}

/* ---- Keys ------------------------------------------------------------------------------------------- */

/* VL keys, lanes after lanes, as the products of all their rows take them. */
static inline __attribute__((always_inline)) void
turn_keys(paged_digits *d, const char *const *key, paged_size dim, const paged_lines *ask) {
    for (paged_size at = 0; at < dim; at += CHUNK) {
        vf block[VL];
        const paged_size left = dim - at;
        if (left >= CHUNK)
            EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                v_offset_bytes(v_load_bytes(key[i] + at));
        else
            for (int i = 0; i < VL; i++)
                block[i] = v_offset_bytes(v_load_bytes_first(key[i] + at, left));
        v_transpose(block);
        EJKI_UNROLL for (int i = 0; i < VL; i++) v_store(d->keys + (at / QUAD + i) * VL, block[i]);
        ask_beside(ask, VL, at, CHUNK);
    }
}

/* Products of `rows` rows from i on with the keys that were turned. */
static inline __attribute__((always_inline)) void multiply_turned(const paged_digits *d,
                                                                  paged_size i, const int rows,
                                                                  const int digits, float *products,
                                                                  paged_size step) {
    const float *query = d->query + i * MOST_DIGITS * d->depth;
    vf sum[4 * MOST_DIGITS], odd[4 * MOST_DIGITS];
    EJKI_UNROLL for (int n = 0; n < rows * digits; n++) {
        sum[n] = v_set1_whole(d->query_sum[(i + n / digits) * MOST_DIGITS + n % digits]);
        odd[n] = v_zero();
    }
    for (paged_size k = 0; k < d->depth; k += 2, query += 2 * rows * digits) {
        const vf a = v_load(d->keys + k * VL), b = v_load(d->keys + k * VL + VL);
        EJKI_UNROLL for (int n = 0; n < rows * digits; n++) {
            sum[n] = v_dot_bytes_one(query + n, a, sum[n]);
            odd[n] = v_dot_bytes_one(query + rows * digits + n, b, odd[n]);
        }
    }
    EJKI_UNROLL for (int n = 0; n < rows * digits; n++) sum[n] = v_add_whole(sum[n], odd[n]);
    EJKI_UNROLL for (int r = 0; r < rows; r++) {
        vf all = v_of_whole(sum[(r + 1) * digits - 1]);
        EJKI_UNROLL for (int g = digits - 2; g >= 0; g--) all =
            v_fma(all, v_set1(256), v_of_whole(sum[r * digits + g]));
        v_store(products + r * step, v_mul(all, v_set1(d->query_step[i + r])));
    }
}

/* Scores of a head's rows with VL keys; scores are `step` floats from row to row. */
static void digit_scores(paged_digits *d, paged_size first, paged_size rows, int digits,
                         float *products, paged_size step) {
#define DIGIT_SCORES(n, g)                                                                         \
    if (together == n && digits == g)                                                              \
        multiply_turned(d, first + i, n, g, products + i * step, step);
    for (paged_size i = 0; i < rows;) {
        const int together = digit_rows(rows, i);
        DIGIT_SCORES(4, 2)
        DIGIT_SCORES(4, 3)
        DIGIT_SCORES(2, 2)
        DIGIT_SCORES(2, 3)
        DIGIT_SCORES(1, 2)
        DIGIT_SCORES(1, 3)
        i += together;
    }
}

/* ---- Values ----------------------------------------------------------------------------------------- */

/* Weights of columns low to high - 1, with the scales of their values, become digits of row i. Not where one is not
 * finite, or all of them are tiny. */
static inline __attribute__((always_inline)) bool
put_weights(paged_digits *d, paged_size i, const int digits, const float *weights, paged_size low,
            paged_size high, const float *scales) {
    char *bytes = (char *)(d->weight + i * MOST_DIGITS * (BLOCK / QUAD));
    vf scaled[BLOCK / VL], most = v_zero(), sum = v_zero();
    EJKI_UNROLL for (int k = 0; k < BLOCK / VL; k++) {
        const paged_size c = k * VL;
        scaled[k] = v_zero();
        if (c < low || c >= high) continue;
        scaled[k] = v_load(weights + c);
        if (scales)
            scaled[k] =
                v_select_gt(scaled[k], v_zero(), v_mul(scaled[k], v_load(scales + c)), scaled[k]);
        most = v_most_whole(v_abs(scaled[k]), most);
    }
    const float largest = v_largest_whole(most), parts = digits == 3 ? 0x1.fp22f : 0x1.fcp14f;
    if (!(largest == 0 || (largest > 0x1p-80f && largest < 0x1p80f))) return false;
    const vf by = v_set1(largest == 0 ? 0 : parts / largest);
    d->weight_step[i] = largest / parts;
    EJKI_UNROLL for (int k = 0; k < BLOCK / VL; k++) {
        const vf whole = v_to_whole(v_mul(scaled[k], by));
        sum = v_add_whole(sum, whole);
        store_digits(whole, digits, bytes + k * VL, BLOCK);
    }
    int32_t *offset = d->weight_sum + i * MOST_DIGITS;
    if (digits == 2) {
        offset[0] = -128 * v_sum_whole(sum);
        offset[1] = 0;
    } else {
        for (int g = 0; g < digits; g++) offset[g] = offset_of(bytes + g * BLOCK, BLOCK);
    }
    return true;
}

/* Half of 64 columns from `at` on: sums of values low to high - 1, multiples of QUAD, go to sums[row][2 half + j]. */
static inline __attribute__((always_inline)) void
multiply_values(const paged_digits *d, paged_size i, const int rows, const int digits,
                const char *const *value, paged_size at, const bool whole, paged_size left,
                paged_size low, paged_size high, const int half, vf sums[4][4], uintptr_t next) {
    const float *weight = d->weight + i * MOST_DIGITS * (BLOCK / QUAD) + low / QUAD;
    vf sum[4 * MOST_DIGITS * 2]; /* [row][digit][j] */
    EJKI_UNROLL for (int n = 0; n < rows * digits; n++) sum[2 * n] = sum[2 * n + 1] =
        v_set1_whole(d->weight_sum[(i + n / digits) * MOST_DIGITS + n % digits]);
    for (paged_size t = low; t < high; t += QUAD, weight++) {
        vf four[QUAD], pair[2];
        EJKI_UNROLL for (int k = 0; k < QUAD; k++) four[k] =
            whole ? v_load_bytes(value[t + k] + at) : v_load_bytes_first(value[t + k] + at, left);
        v_zip_bytes(four, half, pair);
        const vf a = v_offset_bytes(pair[0]), b = v_offset_bytes(pair[1]);
        EJKI_UNROLL for (int n = 0; n < rows * digits; n++) {
            const float *w = weight + (n / digits * MOST_DIGITS + n % digits) * (BLOCK / QUAD);
            sum[2 * n] = v_dot_bytes_one(w, a, sum[2 * n]);
            sum[2 * n + 1] = v_dot_bytes_one(w, b, sum[2 * n + 1]);
        }
        __builtin_prefetch((const void *)next, 0, 2);
        __builtin_prefetch((const void *)(next + 64), 0, 2);
        next += QUAD * CHUNK / 2;
    }
    EJKI_UNROLL for (int r = 0; r < rows; r++) EJKI_UNROLL for (int j = 0; j < 2; j++) {
        const vf *of = sum + 2 * r * digits + j;
        if (digits == 2) {
            sums[r][2 * half + j] = v_of_whole(v_add_whole(of[0], v_up_whole(of[2], 8)));
            continue;
        }
        vf all = v_of_whole(sum[2 * ((r + 1) * digits - 1) + j]);
        EJKI_UNROLL for (int g = digits - 2; g >= 0; g--) all =
            v_fma(all, v_set1(256), v_of_whole(sum[2 * (r * digits + g) + j]));
        sums[r][2 * half + j] = all;
    }
}

/* 64 columns of them. */
static inline __attribute__((always_inline)) void
multiply_chunk(const paged_digits *d, paged_size i, const int rows, const int digits,
               const char *const *value, paged_size at, const bool whole, paged_size left,
               paged_size low, paged_size high, vf sums[4][4], paged_ask *asked) {
    uintptr_t next = (uintptr_t)ask_next(asked, BLOCK * CHUNK / 2, value[low]);
    multiply_values(d, i, rows, digits, value, at, whole, left, low, high, 0, sums, next);
    next = (uintptr_t)ask_next(asked, BLOCK * CHUNK / 2, value[low]);
    multiply_values(d, i, rows, digits, value, at, whole, left, low, high, 1, sums, next);
}

/* Sums of `rows` rows from i on take in values low to high - 1 of a head. */
static inline __attribute__((always_inline)) void
add_digit_values(const paged_digits *d, paged_size i, const int rows, const int digits,
                 const char *const *value, paged_size low, paged_size high, paged_size dim,
                 float *sums, paged_size width, paged_ask *ask) {
    for (paged_size at = 0; at < dim; at += CHUNK) {
        vf part[4][4];
        if (at + CHUNK <= dim)
            multiply_chunk(d, i, rows, digits, value, at, true, CHUNK, low, high, part, ask);
        else
            multiply_chunk(d, i, rows, digits, value, at, false, dim - at, low, high, part, ask);
        EJKI_UNROLL for (int r = 0; r < rows; r++) {
            const vf by = v_set1(d->weight_step[i + r]);
            float *sum = sums + (i + r) * width + at;
            v_turn(part[r]);
            for (int q = 0; q < 4 && at + q * VL < width; q++)
                v_store(sum + q * VL, v_fma(part[r][q], by, v_load(sum + q * VL)));
        }
    }
}

#define DIGIT_VALUES_OF(n, g)                                                                      \
    static __attribute__((noinline)) void add_digit_values_##n##_##g(                              \
        const paged_digits *d, paged_size i, const char *const *value, paged_size low,             \
        paged_size high, paged_size dim, float *sums, paged_size width, paged_ask *ask) {          \
        add_digit_values(d, i, n, g, value, low, high, dim, sums, width, ask);                     \
    }
DIGIT_VALUES_OF(4, 2)
DIGIT_VALUES_OF(4, 3)
DIGIT_VALUES_OF(2, 2)
DIGIT_VALUES_OF(2, 3)
DIGIT_VALUES_OF(1, 2)
DIGIT_VALUES_OF(1, 3)

/* Sums of a head's rows take in values low to high - 1, multiples of QUAD. */
static void digit_values(const paged_digits *d, paged_size first, paged_size rows, int digits,
                         const char *const *value, paged_size low, paged_size high, paged_size dim,
                         float *sums, paged_size width, paged_ask *ask) {
#define DIGIT_VALUES(n, g)                                                                         \
    if (together == n && digits == g)                                                              \
        add_digit_values_##n##_##g(d, first + i, value, low, high, dim, sums, width, ask);
    for (paged_size i = 0; i < rows;) {
        const int together = digit_rows(rows, i);
        DIGIT_VALUES(4, 2)
        DIGIT_VALUES(4, 3)
        DIGIT_VALUES(2, 2)
        DIGIT_VALUES(2, 3)
        DIGIT_VALUES(1, 2)
        DIGIT_VALUES(1, 3)
        i += together;
    }
}

#endif
