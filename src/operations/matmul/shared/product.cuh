/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products as their kernels see them: read by the C compiler and by NVRTC, so plain types only. A call is up to
 * MM_PRODUCTS products, each
 *
 *     out[i][j] = activation(alpha · Σ_k a[i][k] · b[k][j] + bias[j]) + add[i][j]
 *
 * over segments, which share one of the three axes between groups:
 *   MM_EVEN    every group has matrices of its own, all of one size (a batch)
 *   MM_ROWS    rows of a and out are dealt out to groups by `sizes`, in order; a group has its own b and bias
 *   MM_DEPTH   the depth is dealt out; a group has its own out
 * b (MM_ROWS) and out (MM_DEPTH) have the groups offset to offset + held - 1 only. Strides count elements.
 */
#ifndef EJKI_MATMUL_PRODUCT_CUH
#define EJKI_MATMUL_PRODUCT_CUH

#ifdef __CUDACC_RTC__
#define MM static __device__ __forceinline__
#else
#include <string.h>
#define MM static inline
#endif

typedef long long mm_size;

/* No data: absent. With `ones` there is none either, and every element is 1. */
typedef struct mm_view {
    void *data;
    mm_size group, row, column;
    int dtype;
    unsigned char flipped; /* elements of a column are contiguous, not those of a row */
    unsigned char present, ones;
} mm_view;

/* Whole numbers of 4 bytes, or of 8 with `wide`, at any address. */
typedef struct mm_list {
    const void *data;
    int present, wide;
} mm_list;

/*
 * Quantised matrices: rows of codes, `bits` each, the lowest bits of a row's first byte being the first; a scale, and
 * with zeros a zero, for each `size` codes of a row. `signed_scale`: a scale of int8 is an exponent of 2.
 */
enum { MM_AFFINE, MM_INT8, MM_NF4, MM_FP4, MM_FP8 };
typedef struct mm_quant {
    const void *codes, *scales, *zeros, *factor; /* factor: one float32 for all, or NULL */
    mm_size code_group, code_row;                /* bytes */
    mm_size scale_group, scale_row, zero_group, zero_row;
    mm_size size;
    int mode, bits, scale_type, zero_type; /* zero_type UNSET: none */
    int present, has_factor;
    int packed; /* codes are what packed.h says, scales among them; only a CPU reads such */
    int rounds; /* rows of a are rounded to 8 bits in blocks of a group; codes run along the depth */
} mm_quant;

enum { MM_EVEN, MM_ROWS, MM_DEPTH };
enum { MM_BY_ELEMENT, MM_BY_SCALE, MM_BY_ZERO };
enum { MM_PRODUCTS = 5 };

/* Activations: name, number, whether it takes a gate and a value. */
#define MM_ACTIVATIONS(X)                                                                          \
    X(none, 0, 0)                                                                                  \
    X(relu, 1, 0)                                                                                  \
    X(silu, 2, 0)                                                                                  \
    X(gelu, 3, 0)                                                                                  \
    X(gelu_tanh, 4, 0)                                                                             \
    X(swiglu, 5, 1)                                                                                \
    X(geglu, 6, 1)                                                                                 \
    X(geglu_tanh, 7, 1)                                                                            \
    X(swiglu_clamped, 8, 1)
enum {
#define MM_ACTIVATION(name, number, gated) MM_##name = number,
    MM_ACTIVATIONS(MM_ACTIVATION)
#undef MM_ACTIVATION
};

typedef struct mm_product {
    mm_size rows, depth, columns; /* of out; MM_EVEN: of a group; MM_ROWS, MM_DEPTH: of all */
    mm_size groups, held;
    mm_size run; /* MM_EVEN, not 0: the depth is runs of this many, a and b of the next lie `group` further on */
    unsigned char split, activation;
    unsigned char gated, interleaved; /* gated: b has twice the columns, halves or in turn */
    unsigned char has_out;            /* else nothing is asked for */
    double alpha, limit; /* limit: of swiglu_clamped */
    mm_view a, b, out, add, bias;
    /* Factors of b, a row for each `block` of its rows, or if flipped of its columns; MM_DEPTH: of results. */
    mm_view scale;
    mm_size block;
    mm_view fold; /* results count times these, and those of `block` rows become one row of `out_rows`; no MM_ROWS */
    /* Not by elements: result (i, j) counts times the derivative of value i of row j of `quant`, by scale or zero. */
    unsigned char fold_by;
    mm_quant quant; /* in place of b, if present: its rows are those of b, or its columns with b.flipped */
    mm_list sizes, offset;
    mm_list gather;  /* MM_ROWS: row i of a is row gather[i]; MM_DEPTH: element i of its depth */
    mm_size a_rows;  /* rows of a that gather may name */
    mm_list scatter; /* row i is added to row scatter[i] of `out_rows`, times weight[i] */
    const void *weight;
    int weight_type; /* UNSET: none */
    mm_size out_rows;
} mm_product;

typedef struct mm_problem {
    int count;
    mm_product product[MM_PRODUCTS];
} mm_problem;

MM mm_size mm_number(const mm_list *list, mm_size index) {
    mm_size value;
#ifdef __CUDACC_RTC__
    value = list->wide ? ((const mm_size *)list->data)[index] : ((const int *)list->data)[index];
#else
    int narrow;
    if (list->wide) {
        memcpy(&value, (const char *)list->data + index * 8, sizeof value);
    } else {
        memcpy(&narrow, (const char *)list->data + index * 4, sizeof narrow);
        value = narrow;
    }
#endif
    return value;
}

MM mm_size mm_least(mm_size a, mm_size b) {
    return a < b ? a : b;
}

/* A group's part of a product. */
typedef struct mm_segment {
    mm_size group;             /* which; `groups` is what lies behind all (MM_ROWS) */
    mm_size first, rows;       /* of out */
    mm_size step, depth;       /* first of the depth, and how much of it */
    mm_size a, b, out, add;    /* offsets of its matrices */
    mm_size held;              /* its place among those of b, bias, scale */
    int idle;                  /* there is no b for it: rows are 0, or `add` */
} mm_segment;

MM mm_size mm_segments(const mm_product *p) {
    return p->groups + (p->split == MM_ROWS);
}

/* Segment `group`, the one before it being *s; call with 0, 1, … in turn. Sizes are kept inside: on a GPU nobody has
 * looked at them before. */
MM void mm_take(const mm_product *p, mm_size group, mm_segment *s) {
    const mm_size all = p->split == MM_DEPTH ? p->depth : p->rows;
    const mm_size low = group == 0               ? 0
                        : p->split == MM_DEPTH ? s->step + s->depth
                                               : s->first + s->rows;
    mm_size size = all - low;
    const mm_size base = p->offset.present ? mm_number(&p->offset, 0) : 0;
    s->group = s->held = group;
    s->idle = 0;
    s->a = s->b = s->out = s->add = 0;
    s->first = s->step = 0;
    s->rows = p->rows;
    s->depth = p->depth;
    if (p->split == MM_EVEN) {
        s->a = p->run ? 0 : group * p->a.group;
        s->b = p->run ? 0 : group * p->b.group;
        s->out = group * p->out.group;
        s->add = group * p->add.group;
        return;
    }
    if (group < p->groups) {
        const mm_size own = mm_number(&p->sizes, group);
        size = own < 0 ? 0 : mm_least(own, size);
    }
    s->held = group - base;
    s->idle = group == p->groups || s->held < 0 || s->held >= p->held;
    if (p->split == MM_ROWS) {
        s->first = low;
        s->rows = size;
        if (!s->idle) s->b = s->held * p->b.group;
    } else {
        s->step = low;
        s->depth = size;
        if (!s->idle) s->out = s->held * p->out.group, s->add = s->held * p->add.group;
    }
}

/* True of a sum over no rows, which is 0: nobody reads its factors. */
MM int mm_is_empty(const mm_product *p, const mm_segment *s) {
    return (p->split == MM_DEPTH || p->fold.present) && s->depth == 0;
}

/* Where element `step` of the depth of a and of b lies. */
MM mm_size mm_step(const mm_product *p, const mm_view *v, mm_size step, mm_size stride) {
    return p->run ? step / p->run * v->group + step % p->run * stride : step * stride;
}

/* Where the factor of element (row, column) lies, in a group. */
MM mm_size mm_scale_at(const mm_product *p, mm_size held, mm_size row, mm_size column) {
    const mm_view *v = &p->scale;
    return held * v->group + (v->flipped ? column : row) / p->block * v->row + (v->flipped ? row : column);
}

/* Columns of b. */
MM mm_size mm_columns_of_b(const mm_product *p) {
    return p->gated ? 2 * p->columns : p->columns;
}

#endif
