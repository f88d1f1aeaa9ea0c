/* SPDX-License-Identifier: Apache-2.0 */
/* A row of attention_merge, where its things lie: what the implementations share. */
#ifndef EJKI_ATTENTION_MERGE_ROW_H
#define EJKI_ATTENTION_MERGE_ROW_H

#include "operations/attention/merge/problem.h"
#include "operations/attention/flash/reference_row.h"

typedef struct merge_row {
    int64_t b, h, i;
} merge_row;

static inline int64_t merge_part_start(const ejki_merge_parts *t, const merge_row *r, int64_t n) {
    return n * t->stride_n + r->b * t->stride_b + r->i * t->stride_t + r->h * t->stride_h;
}
static inline int64_t merge_lse_start(const ejki_merge_rows *t, const merge_row *r, int64_t n) {
    return n * t->stride_n + r->b * t->stride_b + r->h * t->stride_h + r->i;
}
static inline int64_t merge_out_start(const ejki_bthd *t, const merge_row *r) {
    return r->b * t->stride_b + r->i * t->stride_t + r->h * t->stride_h;
}
static inline int64_t merge_scalar_start(const ejki_bht *t, const merge_row *r) {
    return r->b * t->stride_b + r->h * t->stride_h + r->i * t->stride_t;
}
static inline double merge_sink(const ejki_merge_problem *p, int64_t h, int64_t m) {
    return row_load(p->dtype, p->sinks, h / p->sink_group * p->sink_stride_h + m);
}

/* The logarithm that a part brings; that of an accumulator is its largest score. */
static inline double merge_log(const ejki_merge_problem *p, const merge_row *r, int64_t n) {
    return row_load(EJK_DTYPE_F32, p->lse.data, merge_lse_start(&p->lse, r, n));
}

#endif
