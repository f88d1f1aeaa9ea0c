/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where logits are products: a block of tokens and of classes in a workspace, and the products over it, on CPUs and
 * GPUs alike.
 */
#ifndef EJKI_FUSED_CROSS_ENTROPY_BLOCKS_H
#define EJKI_FUSED_CROSS_ENTROPY_BLOCKS_H

#include "base/base.h"
#include "operations/loss/fused_cross_entropy/problem.cuh"
#include "operations/matmul/shared/product_call.h"

/* ---- Workspaces ------------------------------------------------------------------------------------- */

/* The place of so many bytes behind `end`, which moves on. */
static inline int64_t loss_reserve(int64_t *end, int64_t bytes) {
    const int64_t at = *end;
    *end = ejki_round_up(at + bytes, 256);
    return at;
}

/* By numbers, as there is no memory yet where a launch is prepared. */
static inline void *loss_place(const void *memory, int64_t at) {
    return (void *)((uintptr_t)memory + (uintptr_t)at);
}

/* Rows of logits of a block, and of their gradients, lie this far apart. */
static inline mm_size loss_stride(const loss_problem *p) {
    return ejki_round_up(p->block_classes, 16);
}

/* ---- Views ------------------------------------------------------------------------------------------ */

static inline mm_view loss_rows_at(void *data, mm_size stride, int dtype) {
    return (mm_view){.data = data, .row = stride, .column = 1, .dtype = dtype, .present = 1};
}
static inline mm_view loss_turned(mm_view v) {
    v.column = v.row;
    v.row = 1;
    v.flipped = 1;
    return v;
}
static inline mm_view loss_from_column(mm_view v, mm_size column) {
    v.data = loss_place(v.data, column * (int64_t)ejk_dtype_size((ejk_dtype)v.dtype));
    return v;
}

/* ---- Products --------------------------------------------------------------------------------------- */

/* Tokens, and classes from `first` on. Hidden and slopes, which are gradients of logits, are of the call's type. */
typedef struct loss_block {
    mm_size tokens, first, classes;
    void *hidden, *logits, *slopes, *d_hidden;
} loss_block;

static inline mm_view loss_hidden(const loss_problem *p, const loss_block *b) {
    return loss_rows_at(b->hidden, p->width, p->dtype);
}
static inline mm_view loss_slopes(const loss_problem *p, const loss_block *b) {
    return loss_rows_at(b->slopes, loss_stride(p), p->dtype);
}

static inline mm_product loss_logits(const loss_problem *p, const loss_block *b) {
    mm_product m = ejki_mm_product(b->tokens, p->width, b->classes);
    m.a = loss_hidden(p, b);
    m.b = loss_from_column(p->weight, b->first);
    m.out = loss_rows_at(b->logits, loss_stride(p), EJK_DTYPE_F32);
    if (p->bias.present) m.bias = loss_from_column(p->bias, b->first);
    return m;
}
static inline mm_product loss_d_hidden(const loss_problem *p, const loss_block *b) {
    mm_product m = ejki_mm_product(b->tokens, b->classes, p->width);
    m.a = loss_slopes(p, b);
    m.b = loss_turned(loss_from_column(p->weight, b->first));
    m.out = loss_rows_at(b->d_hidden, p->width, EJK_DTYPE_F32);
    return m;
}
/* Without what it is written to. */
static inline mm_product loss_d_weight(const loss_problem *p, const loss_block *b) {
    mm_product m = ejki_mm_product(p->width, b->tokens, b->classes);
    m.a = loss_turned(loss_hidden(p, b));
    m.b = loss_slopes(p, b);
    return m;
}

#endif
