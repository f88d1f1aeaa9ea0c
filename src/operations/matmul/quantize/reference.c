/* SPDX-License-Identifier: Apache-2.0 */
/* quantize and dequantize as their header says, a value at a time, rows shared by threads. Both are exact. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/quantize/problem.h"
#include "operations/matmul/shared/quant.h"

static float value_at(const quantize_problem *p, mm_size matrix, mm_size row, mm_size c) {
    const mm_view *v = &p->values;
    return (float)ejki_load_f64((ejk_dtype)v->dtype, v->data, matrix * v->group + row * v->row + c);
}

/* ---- Codes ------------------------------------------------------------------------------------------- */

/* Rounded, from low to high; NaN is low. */
static uint32_t kept(float x, float low, float high) {
    if (!(x > low)) return (uint32_t)(int32_t)low;
    return (uint32_t)(int32_t)(x < high ? rintf(x) : high);
}

/* The nearest of a table of ascending entries, by midpoints. */
static uint32_t nearest_nf4(float x) {
    uint32_t code = 0;
    if (x != x) return 7;
    while (code < 15 && x > (ejki_nf4[code] + ejki_nf4[code + 1]) * 0.5f) code++;
    return code;
}

/* The nearest magnitude, of two the one with the even code; NaN is 0. */
static uint32_t nearest_fp4(float x) {
    const float size = fabsf(x);
    uint32_t code = 0;
    while (code < 7) {
        const float middle = (ejki_fp4[code] + ejki_fp4[code + 1]) * 0.5f;
        if (!(size > middle || (size == middle && code % 2 == 1))) break;
        code++;
    }
    return signbit(x) && x == x ? code | 8 : code;
}

static uint32_t code_of(const quantize_problem *p, const ejki_quant_group *g, float x) {
    const mm_quant *q = &p->quant;
    const float scale = g->scale * g->factor, y = scale == 0 ? 0 : x / scale;
    switch (q->mode) {
    case MM_INT8: return y != y ? 0 : (uint8_t)kept(y, -127, 127);
    case MM_NF4: return nearest_nf4(y);
    case MM_FP4: return nearest_fp4(y);
    case MM_FP8: return ejki_f32_to_e4m3(y);
    default: return kept(y + g->zero, 0, (float)((1 << q->bits) - 1));
    }
}

static void put_code(uint8_t *row, int bits, mm_size index, uint32_t code) {
    for (int i = 0; i < bits; i++) {
        const mm_size bit = index * bits + i;
        row[bit / 8] = (uint8_t)(row[bit / 8] | ((code >> i) & 1) << (bit % 8));
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------ */

typedef struct range {
    float low, high, size; /* size: the largest magnitude */
} range;

static range range_of(const quantize_problem *p, mm_size matrix, mm_size row, mm_size first,
                      mm_size end) {
    range r = {INFINITY, -INFINITY, 0};
    for (mm_size c = first; c < end; c++) {
        const float x = value_at(p, matrix, row, c);
        if (x < r.low) r.low = x;
        if (x > r.high) r.high = x;
        if (fabsf(x) > r.size) r.size = fabsf(x);
    }
    if (!(r.low <= r.high)) r.low = r.high = 0;
    return r;
}

/* Largest magnitude of the codes. */
static float largest(int mode) {
    return mode == MM_FP4 ? 6 : mode == MM_FP8 ? 448 : 1;
}

/* The exponent of an mx scale. */
static int exponent_of(const quantize_problem *p, float size) {
    const int least = p->quant.scale_type == EJK_DTYPE_I8 ? -128 : -127;
    int e;
    if (!(size > 0)) return least;
    if (!isfinite(size)) return 127;
    const float fraction = frexpf(size, &e); /* size = fraction · 2^e, from 1/2 to below 1 */
    if (p->floors) {
        e -= p->quant.mode == MM_FP4 ? 3 : 9;
    } else { /* 6 is 3/4 · 2^3, 448 is 7/8 · 2^9 */
        const float top = p->quant.mode == MM_FP4 ? 0.75f : 0.875f;
        e = e - (p->quant.mode == MM_FP4 ? 3 : 9) + (fraction > top);
    }
    return e < least ? least : e > 127 ? 127 : e;
}

static float scale_of(const quantize_problem *p, const range *r, float factor) {
    const mm_quant *q = &p->quant;
    const float steps = (float)((1 << q->bits) - 1);
    float scale = r->size / (largest(q->mode) * factor);
    if (q->scale_type == EJK_DTYPE_F8E8M0 || q->scale_type == EJK_DTYPE_I8)
        return ldexpf(1.0f, exponent_of(p, r->size));
    if (q->mode == MM_INT8) scale = r->size / 127;
    if (q->mode == MM_AFFINE) {
        scale = q->zero_type ? (r->high - r->low) / steps : r->size / (float)(1 << (q->bits - 1));
        if (scale == 0) scale = 1;
    }
    return scale;
}

/* Rounded to the type of scales, and read back. */
static float put_scale(const mm_quant *q, mm_size index, float scale) {
    void *data = (void *)(uintptr_t)q->scales;
    if (q->scale_type == EJK_DTYPE_I8)
        ((int8_t *)data)[index] = (int8_t)(ilogbf(scale));
    else
        ejki_store_f64((ejk_dtype)q->scale_type, data, index, (double)scale);
    return ejki_quant_scale(q->scale_type, data, index);
}

static bool is_whole(int type) {
    return type == EJK_DTYPE_U8 || type == EJK_DTYPE_I8 || type == EJK_DTYPE_I32;
}

static void put_zero(const mm_quant *q, mm_size index, float low, float scale) {
    void *data = (void *)(uintptr_t)q->zeros;
    float zero = scale == 0 ? 0 : -low / scale;
    const float most = q->zero_type == EJK_DTYPE_F16 ? 65504 : 3e38f;
    if (is_whole(q->zero_type)) {
        const float steps = (float)((1 << q->bits) - 1),
                    top = q->zero_type == EJK_DTYPE_I8 ? 127 : 255;
        ejki_store_i64((ejk_dtype)q->zero_type, data, index,
                       (int64_t)(int32_t)kept(zero, 0, steps < top ? steps : top));
        return;
    }
    zero = zero > most ? most : zero < -most ? -most : zero; /* finite codes */
    ejki_store_f64((ejk_dtype)q->zero_type, data, index, (double)zero);
}

/* ---- Rows -------------------------------------------------------------------------------------------- */

static void quantize_row(const quantize_problem *p, mm_size matrix, mm_size row, mm_size bytes) {
    const mm_quant *q = &p->quant;
    uint8_t *codes = (uint8_t *)(uintptr_t)ejki_quant_row(q, matrix, row);
    float factor = 1;
    if (bytes == 0) return;
    if (q->has_factor) memcpy(&factor, q->factor, sizeof factor);
    memset(codes, 0, (size_t)bytes);
    for (mm_size first = 0; first < p->columns; first += q->size) {
        const mm_size end = ejki_min(p->columns, first + q->size), group = first / q->size;
        const range r = range_of(p, matrix, row, first, end);
        const float scale = put_scale(q, matrix * q->scale_group + row * q->scale_row + group,
                                      scale_of(p, &r, factor));
        if (q->zero_type)
            put_zero(q, matrix * q->zero_group + row * q->zero_row + group, r.low, scale);
        const ejki_quant_group g = ejki_quant_group_of(q, matrix, row, group);
        for (mm_size c = first; c < end; c++)
            put_code(codes, q->bits, c, code_of(p, &g, value_at(p, matrix, row, c)));
    }
}

static void dequantize_row(const quantize_problem *p, mm_size matrix, mm_size row) {
    const mm_quant *q = &p->quant;
    const mm_view *v = &p->values;
    const uint8_t *codes = ejki_quant_row(q, matrix, row);
    for (mm_size first = 0; first < p->columns; first += q->size) {
        const mm_size end = ejki_min(p->columns, first + q->size);
        const ejki_quant_group g = ejki_quant_group_of(q, matrix, row, first / q->size);
        for (mm_size c = first; c < end; c++)
            ejki_store_f64((ejk_dtype)v->dtype, v->data, matrix * v->group + row * v->row + c,
                           (double)ejki_quant_value(q, &g, ejki_quant_code(codes, q->bits, c)));
    }
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const quantize_problem *p = problem;
    const mm_size rows = p->matrices * p->rows;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, rows));
    if (rows * p->columns < 10000) launch->workers = 1;
    return EJK_OK;
}

static void work_quantize(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const quantize_problem *p = run->problem;
    const mm_size rows = p->matrices * p->rows;
    const mm_size bytes = ejki_round_up(ejki_cdiv(p->columns * p->quant.bits, 8), p->unit);
    for (mm_size i = rows * index / run->workers; i < rows * (index + 1) / run->workers; i++)
        quantize_row(p, i / p->rows, i % p->rows, bytes);
}

static void work_dequantize(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const quantize_problem *p = run->problem;
    const mm_size rows = p->matrices * p->rows;
    for (mm_size i = rows * index / run->workers; i < rows * (index + 1) / run->workers; i++)
        dequantize_row(p, i / p->rows, i % p->rows);
}

static ejk_status run_quantize(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work_quantize, (void *)(uintptr_t)run);
    return EJK_OK;
}

static ejk_status run_dequantize(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work_dequantize, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(quantize_reference, .version = 1, .prepare = prepare, .run = run_quantize)
EJKI_DECLARE(dequantize_reference, .version = 1, .prepare = prepare, .run = run_dequantize)
