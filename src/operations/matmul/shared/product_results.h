/* SPDX-License-Identifier: Apache-2.0 */
/* Results of a block's sums. */
#ifndef EJKI_PRODUCT_RESULTS_H
#define EJKI_PRODUCT_RESULTS_H

#include "kernels/simd/vec_words.h"
#include "operations/matmul/shared/product_block.h"
#include "operations/matmul/shared/product_finish.h"
#include "operations/matmul/shared/quant.h"

/* True if rows of results are added up, in memory that workers share: by columns only. */
static bool adds_up(const mm_product *p) {
    return p->scatter.present || p->fold.present;
}

/* n columns of a row from `j` of the block on, activated. */
INLINE vf result_of(const product_block *k, const float *sums, mm_size j, mm_size n) {
    const mm_product *p = k->p;
    const mm_size column = k->column + j, stride = k->capacity * TILE_COLUMNS;
    float both[2 * VL];
    vf gate, value = v_zero();
    if (!p->gated) {
        const mm_size at = j - k->sums_from;
        gate = v_load(sums + at / TILE_COLUMNS * stride + at % TILE_COLUMNS);
        return activate(p, with_bias(p, k->s, gate, column, n), value);
    }
    if (!p->interleaved) {
        const mm_size second = ejki_cdiv(k->columns, TILE_COLUMNS) * stride;
        sums += j / TILE_COLUMNS * stride + j % TILE_COLUMNS;
        gate = with_bias(p, k->s, v_load(sums), column, n);
        value = with_bias(p, k->s, v_load(sums + second), p->columns + column, n);
        return activate(p, gate, value);
    }
    for (int half = 0; half < 2; half++) {
        const mm_size at = 2 * j + half * VL, left = 2 * n - half * VL;
        const vf sum = v_load(sums + at / TILE_COLUMNS * stride + at % TILE_COLUMNS);
        v_store(both + half * VL,
                left > 0 ? with_bias(p, k->s, sum, 2 * k->column + at, left) : sum);
    }
    return activate(p, every_other(both, VL), every_other(both + 1, VL));
}

/* n results of row `row` times elements of a view, at `at` and then `step` apart. */
static vf times(const mm_view *v, mm_size at, mm_size step, vf value, mm_size n) {
    float lane[VL];
    v_store(lane, value);
    for (mm_size i = 0; i < n; i++) lane[i] *= element_load(dtype_of(v), v->data, at + i * step);
    return v_load(lane);
}

/* Factors of MM_DEPTH. */
static vf with_factors(const product_block *k, vf v, mm_size row, mm_size column, mm_size n) {
    const mm_product *p = k->p;
    const mm_view *fold = &p->fold;
    float lane[VL];
    if (p->scale.present) {
        v_store(lane, v);
        for (mm_size i = 0; i < n; i++)
            lane[i] *= element_load(dtype_of(&p->scale), p->scale.data,
                                    mm_scale_at(p, k->s->held, row, column + i));
        v = v_load(lane);
    }
    if (!fold->present) return v;
    return times(fold, k->s->held * fold->group + row * fold->row + column * fold->column,
                 fold->column, v, n);
}

/* The row that a row of results is added to, and its weight; NULL: it is a result itself. */
static float *added_to(const product_block *k, mm_size row, float *weight) {
    const mm_product *p = k->p;
    mm_size at = 0;
    *weight = 1;
    if (!adds_up(p)) return NULL;
    if (p->fold.present) at = k->s->held * p->out_rows + row / p->block;
    if (p->scatter.present) at = mm_number(&p->scatter, row);
    if (p->weight_type) *weight = element_load((ejk_dtype)p->weight_type, p->weight, row);
    return k->scattered + at * p->columns + k->column;
}

/* Whether sums are added to others as they are, but for the weight of their row. */
static bool adds_plainly(const product_block *k) {
    const mm_product *p = k->p;
    return adds_up(p) && !k->s->idle && p->activation == MM_none && !p->gated && p->alpha == 1 &&
           p->split != MM_DEPTH && !p->bias.present;
}

/* finish_row() of such a row; `first` is that of a panel. */
static void add_row(const product_block *k, mm_size i, mm_size first, mm_size end) {
    const mm_size panel = k->capacity * TILE_COLUMNS;
    const float *from = sums_of_row(k, i) + (first - k->sums_from) / TILE_COLUMNS * panel;
    float weight, *to = added_to(k, k->s->first + k->row + i, &weight);
    const vf factor = v_set1(weight);
    for (mm_size j = first; j < end; j += TILE_COLUMNS, from += panel)
        EJKI_UNROLL for (int at = 0; at < TILE_COLUMNS; at += VL) {
            float *own = to + j + at;
            if (end - j - at >= VL)
                v_store(own, v_fma(v_load(from + at), factor, v_load(own)));
            else if (end - j > at)
                v_store_first(own,
                              v_fma(v_load(from + at), factor, v_load_first(own, end - j - at)),
                              end - j - at);
        }
}

/* Row `i`: columns first to end - 1 of the block. */
static void finish_row(const product_block *k, mm_size i, mm_size first, mm_size end) {
    const mm_product *p = k->p;
    const mm_segment *s = k->s;
    const mm_size row = s->first + k->row + i;
    float weight, *sums = added_to(k, row, &weight);
    for (mm_size j = first; j < end; j += VL) {
        const mm_size n = ejki_min(end - j, VL), column = k->column + j;
        vf v = s->idle ? v_zero() : result_of(k, sums_of_row(k, i), j, n);
        if (p->split == MM_DEPTH && !mm_is_empty(p, s)) v = with_factors(k, v, row, column, n);
        if (sums) {
            v = v_fma(v, v_set1(weight), v_load_first(sums + j, n));
            v_store_first(sums + j, v, n);
            continue;
        }
        if (p->add.present) v = v_add(v, view_load(&p->add, s->add + row * p->add.row + column, n));
        void *out = element_at(dtype_of(&p->out), p->out.data, s->out + row * p->out.row + column);
        v_narrow_some(dtype_of(&p->out), out, v, n);
    }
}

/* ---- Gradients of scales and zeros ------------------------------------------------------------------ */

/* Codes `index` of n rows from `column` on, words of whole codes being kept from one index to the next. */
INLINE v_words fold_codes(const mm_quant *q, mm_size columns, mm_size column, mm_size n,
                          mm_size index, bool is_first, v_words *kept) {
    const mm_size each = 32 / q->bits, at = index / each * 4;
    uint32_t lane[VL] = {0};
    if (32 % q->bits != 0) {
        for (mm_size i = 0; i < n; i++)
            lane[i] = ejki_quant_code(ejki_quant_row(q, 0, column + i), q->bits, index);
        return v_words_at(lane);
    }
    if (is_first || index % each == 0) {
        const mm_size bytes = ejki_min(4, ejki_cdiv(columns * q->bits, 8) - at);
        for (mm_size i = 0; i < n; i++)
            memcpy(&lane[i], ejki_quant_row(q, 0, column + i) + at, (size_t)bytes);
        *kept = v_words_at(lane);
    }
    return *kept >> (uint32_t)(index % each * q->bits) & ((1u << q->bits) - 1);
}

/* As ejki_quant_number(). */
INLINE vf fold_numbers(const mm_quant *q, v_words codes, vf zero) {
    if (q->mode == MM_NF4) return v_entries(codes, v_table_of(ejki_nf4));
    if (q->mode == MM_INT8) return v_sub(v_numbers(codes ^ 0x80), v_set1(128));
    return v_sub(v_numbers(codes), zero);
}

static vf fold_zeros(const mm_quant *q, mm_size column, mm_size n, mm_size group) {
    float lane[VL] = {0};
    if (!q->zero_type) return v_set1((float)(1 << (q->bits - 1)));
    for (mm_size i = 0; i < n; i++)
        lane[i] = (float)ejki_load_f64((ejk_dtype)q->zero_type, q->zeros,
                                       (column + i) * q->zero_row + group);
    return v_load(lane);
}

/* Results of n columns from `j` of the block on, times what codes are without scales, added up in their groups. By
 * zeros they are only added up: their factor is one of the group. */
static void fold_columns(const product_block *k, mm_size j, mm_size n) {
    const mm_product *p = k->p;
    const mm_quant *q = &p->quant;
    const mm_size column = k->column + j;
    v_words kept = {0};
    for (mm_size i = 0; i < k->rows;) {
        const mm_size group = (k->row + i) / p->block;
        const mm_size stop = ejki_min(k->rows, (group + 1) * p->block - k->row);
        const vf zero = fold_zeros(q, column, n, group);
        float *to = k->scattered + group * p->columns + column;
        vf total = v_load_first(to, n);
        for (; i < stop; i++) {
            const vf v = result_of(k, sums_of_row(k, i), j, n);
            if (p->fold_by == MM_BY_ZERO) {
                total = v_add(total, v);
                continue;
            }
            const v_words codes = fold_codes(q, p->rows, column, n, k->row + i, i == 0, &kept);
            total = v_fma(v, fold_numbers(q, codes, zero), total);
        }
        v_store_first(to, total, n);
    }
}

/* ---- Blocks ------------------------------------------------------------------------------------------ */

/* Whether sums are the results. */
static bool is_plain(const product_block *k) {
    const mm_product *p = k->p;
    return !k->s->idle && p->activation == MM_none && !p->gated && p->alpha == 1 &&
           !p->bias.present && !p->add.present && !p->scale.present && !adds_up(p);
}

/* finish_row() of plain results; `first` is that of a panel. */
INLINE void store_row(const ejk_dtype dtype, const product_block *k, mm_size i, mm_size first,
                      mm_size end) {
    const mm_product *p = k->p;
    const mm_size row = k->s->first + k->row + i, panel = k->capacity * TILE_COLUMNS;
    const float *sums = sums_of_row(k, i) + (first - k->sums_from) / TILE_COLUMNS * panel;
    char *out = element_at(dtype, p->out.data, k->s->out + row * p->out.row + k->column + first);
    for (mm_size j = first; j < end; j += TILE_COLUMNS, sums += panel)
        EJKI_UNROLL for (int at = 0; at < TILE_COLUMNS; at += VL, out += VL * element_size(dtype)) {
            if (end - j - at >= VL)
                v_narrow(dtype, out, v_load(sums + at));
            else if (end - j > at)
                v_narrow_some(dtype, out, v_load(sums + at), end - j - at);
        }
}

/* Results of rows low to high - 1, columns first to end - 1 of the block. */
static void finish_part(const product_block *k, mm_size low, mm_size high, mm_size first,
                        mm_size end) {
    const bool plain = is_plain(k), adds = adds_plainly(k);
    for (mm_size i = low; i < high && first < end; i++)
        if (adds)
            add_row(k, i, first, end);
        else if (plain)
            ELEMENT_CALL(dtype_of(&k->p->out), store_row, k, i, first, end);
        else
            finish_row(k, i, first, end);
}

/* Results of columns first to end - 1 of the block. */
static void finish_columns(const product_block *k, mm_size first, mm_size end) {
    if (!k->p->fold_by) {
        finish_part(k, 0, k->rows, first, end);
        return;
    }
    for (mm_size j = first; j < end && k->s->depth > 0; j += VL)
        fold_columns(k, j, ejki_min(end - j, VL));
}

#endif
