/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of a state, a few vectors wide: sums over its rows, its update, and where it comes from and
 * goes. */
#ifndef EJKI_RECURRENT_SLAB_BODY_H
#define EJKI_RECURRENT_SLAB_BODY_H

#include "operations/recurrent/cpu/scan/token_body.h"

#include <string.h>

/* Vectors that a slab is wide at most, as registers allow. */
enum { WIDEST = VL == 16 ? 8 : 4 };

/* Columns of a state in floats: row i is i * stride on. */
typedef struct slab {
    float *data;
    rec_size stride;
} slab;

/* Sums over rows, each times its number in by_x and by_y; x only with has_x. how: where the slab is not in a
 * cache; else NULL. */
INLINE void sum_rows(const int width, const bool has_x, const prefetching *how, const float *by_x,
                     const float *by_y, rec_size rows, slab from, vf *x, vf *y) {
    const float *at = from.data;
    for (int w = 0; w < width; w++) x[w] = y[w] = v_zero();
    for (rec_size i = 0; i < rows; i++, at += from.stride) {
        const vf xi = has_x ? v_set1(by_x[i]) : v_zero(), yi = v_set1(by_y[i]);
        for (int w = 0; w < width; w++) {
            const vf s = v_load(at + w * VL);
            if (how) prefetch_state(how, at + w * VL, w * VL);
            if (has_x) x[w] = v_fma(xi, s, x[w]);
            y[w] = v_fma(yi, s, y[w]);
        }
    }
}

INLINE void update_rows(const int width, const bool has_a, const bool has_dv, const token *t,
                        rec_size rows, slab from, slab to, const vf *u, const vf *x, const vf *dv) {
    const float *at = from.data;
    float *place = to.data;
    for (rec_size i = 0; i < rows; i++, at += from.stride, place += to.stride) {
        const vf d = v_set1(t->d[i]), k = v_set1(t->k[i]), a = v_set1(has_a ? t->a[i] : 0);
        for (int w = 0; w < width; w++) {
            vf s = v_mul(d, v_load(at + w * VL));
            if (has_dv) s = v_mul(s, dv[w]);
            s = v_fma(k, u[w], s);
            if (has_a) s = v_fma(a, x[w], s);
            v_store(place + w * VL, s);
        }
    }
}

/* Columns c on of the state of a head, in a slab of `width` vectors; 0 where there is none. */
static void load_state(const rec_problem *p, const rec_view *v, rec_size row, rec_size h,
                       rec_size c, int width, slab to) {
    const rec_size columns = ejki_min(p->value_size - c, width * VL);
    memset(to.data, 0, (size_t)(p->key_size * to.stride) * sizeof *to.data);
    if (!v->present || row < 0) return;
    const rec_size at = rec_state_at(v, row, h) + c * v->stride[3];
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j += v->stride[3] == 1 ? VL : 1) {
            const rec_size from = at + i * v->stride[2] + j * v->stride[3];
            if (v->stride[3] == 1)
                v_store_first(to.data + i * to.stride + j, view_part(v, from - j, j, columns),
                              ejki_min(columns - j, VL));
            else
                to.data[i * to.stride + j] = view_load(v, from);
        }
}

/* Of a state that lies from element `at` on, unless there is no such tensor. */
static void store_at(const rec_problem *p, const rec_view *v, rec_size at, rec_size c, int width,
                     slab from) {
    const rec_size columns = ejki_min(p->value_size - c, width * VL);
    at += c * v->stride[3];
    if (!v->present) return;
    for (rec_size i = 0; i < p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            element_store((ejk_dtype)v->dtype, v->data, at + i * v->stride[2] + j * v->stride[3],
                          from.data[i * from.stride + j]);
}
static void store_state(const rec_problem *p, const rec_view *v, rec_size row, rec_size h,
                        rec_size c, int width, slab from) {
    if (row >= 0) store_at(p, v, rec_state_at(v, row, h), c, width, from);
}

#endif
