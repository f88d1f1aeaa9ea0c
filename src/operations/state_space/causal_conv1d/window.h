/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over a window of rows: result r is base[r] + Σ_i taps[i] · rows[r + i], a column each. Up to TOKENS results at a
 * time share what is loaded: three loads each where a result by itself takes nine. Rows are elements of a type, taps
 * and bases floats. Include after a vec_*.h.
 */
#ifndef EJKI_CAUSAL_CONV1D_WINDOW_H
#define EJKI_CAUSAL_CONV1D_WINDOW_H

#include "base/base.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_halves.h"
#include "kernels/simd/vec_math.h"
#include "operations/state_space/causal_conv1d/problem.cuh"

/* Columns of a task at most: a few rows of so many stay in a second-level cache. */
enum { TOKENS = 4, COLUMNS = 2048, LINE = 64 };

/*
 * VL columns of a row: half 0 or 1 of 2 VL columns, from a multiple of as many on, or the last ones, of which `left`
 * count. Floats of a tile lie in the order of halves wherever there are whole ones.
 */
typedef struct lanes {
    int64_t c, left;
    int half; /* 2: none */
} lanes;

INLINE vf lanes_of(const ejk_dtype dtype, const void *row, const lanes l) {
    const void *from = element_at(dtype, row, l.c);
    return l.half == 2 ? v_widen_some(dtype, from, l.left) : v_widen_half(dtype, from, l.half);
}
INLINE int64_t floats_at(const lanes l) {
    return l.half == 1 ? l.c + VL : l.c;
}

/* Some columns of `tokens` results; constants wherever they can be. */
INLINE void window_sums(const ejk_dtype dtype, const int width, const int tokens,
                        const void *const *rows, const lanes l, const float *taps, int64_t stride,
                        vf *sum) {
    const float *own = taps + floats_at(l);
    if (width == 4) {
        vf row[TOKENS + 3];
        EJKI_UNROLL for (int k = 0; k < tokens + 3; k++) row[k] = lanes_of(dtype, rows[k], l);
        EJKI_UNROLL for (int i = 0; i < 4; i++) {
            const vf tap = v_load(own + i * stride);
            EJKI_UNROLL for (int r = 0; r < tokens; r++) sum[r] = v_fma(tap, row[r + i], sum[r]);
        }
        return;
    }
    for (int i = 0; i < width; i++) {
        const vf tap = v_load(own + i * stride);
        EJKI_UNROLL for (int r = 0; r < tokens; r++) sum[r] =
            v_fma(tap, lanes_of(dtype, rows[r + i], l), sum[r]);
    }
}

/* Elements that lie `to_step` and `from_step` apart, from the first to the last; at any addresses. */
INLINE void copy_elements(const ejk_dtype dtype, void *to, int64_t to_step, const void *from,
                          int64_t from_step, int64_t count) {
    char *t = to;
    const char *f = from;
    if (dtype == EJK_DTYPE_F32)
        for (int64_t c = 0; c < count; c++) memcpy(t + c * to_step * 4, f + c * from_step * 4, 4);
    else
        for (int64_t c = 0; c < count; c++) memcpy(t + c * to_step * 2, f + c * from_step * 2, 2);
}

/* ---- Tiles of channels ------------------------------------------------------------------------------- */

typedef struct tile {
    const conv_problem *p;
    int64_t first, columns, stride; /* channels; floats of a row below, a multiple of VL */
    float *taps, *bias;             /* [width][stride], [stride] */
    void *before;                   /* [width - 1][stride] elements: the state of a sequence */
    prefetching how;
    int64_t rows_ahead; /* that its distance is */
} tile;

/* Floats that a tile takes. */
static inline int64_t tile_floats(const conv_problem *p, int64_t stride) {
    return 2 * p->width * stride;
}

static inline void tile_open(const ejk_dtype dtype, tile *t, const conv_problem *p, int64_t first,
                             int64_t columns, int64_t stride, prefetching how, float *memory) {
    *t = (tile){.p = p,
                .first = first,
                .columns = columns,
                .stride = stride,
                .taps = memory,
                .how = how,
                .rows_ahead = ejki_max(how.bytes / ejki_max(columns * element_size(dtype), 1), 1)};
    t->bias = memory + p->width * stride;
    t->before = t->bias + stride;
    memset(memory, 0, (size_t)((p->width + 1) * stride) * sizeof *memory);
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t i = 0; i < p->width; i++)
            t->taps[i * stride + c] =
                element_load(dtype, p->weight.data, conv_state_at(&p->weight, 0, first + c) + i);
        if (p->has_bias) t->bias[c] = element_load(dtype, p->bias, first + c);
    }
    for (int64_t i = 0; i <= p->width; i++)
        v_put_in_order(dtype, false, memory + i * stride, columns);
}

/* The state of a sequence as rows. */
static inline void tile_take_state(const ejk_dtype dtype, const tile *t, int64_t n) {
    const conv_problem *p = t->p;
    const int64_t slot = conv_slot(p, p->has_before, n), size = element_size(dtype);
    if (slot < 0) {
        memset(t->before, 0, (size_t)((p->width - 1) * t->stride * size));
        return;
    }
    const int64_t at = conv_state_at(&p->before, slot, t->first);
    for (int64_t i = 0; i < p->width - 1; i++)
        copy_elements(dtype, element_at(dtype, t->before, i * t->stride), 1,
                      element_at(dtype, p->before.data, at + i), p->before.channel, t->columns);
}

/* Prefetches the line at column c of the row that is rows_ahead behind this one; rows are `step` elements apart. */
INLINE void prefetch_row(const ejk_dtype dtype, const tile *t, const void *row, int64_t c,
                         int64_t step) {
    const uintptr_t bytes = (uintptr_t)(t->rows_ahead * step * element_size(dtype));
    prefetch_line(t->how, (const void *)((uintptr_t)element_at(dtype, row, c) + bytes));
}

/* Where token `token` of a tile lies. */
INLINE void *row_at(const ejk_dtype dtype, const tile *t, const conv_rows *rows, int64_t row,
                    int64_t token) {
    return element_at(dtype, rows->data, conv_at(rows, row, token) + t->first);
}

/* Addresses of the rows that results of `count` tokens from `token` on are made of. */
INLINE void window_rows(const ejk_dtype dtype, const tile *t, seq_range range, int64_t token,
                        int64_t count, const void **rows) {
    const int64_t w = t->p->width - 1;
    for (int64_t k = 0; k < count + w; k++) {
        const int64_t j = token - range.begin + k;
        rows[k] = j < w ? element_at(dtype, t->before, j * t->stride)
                        : row_at(dtype, t, &t->p->x, range.row, range.begin + j - w);
    }
}

#endif
