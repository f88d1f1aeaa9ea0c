/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices in the order in which products read them: what prepack makes, and what kernels make of plain ones
 * for themselves, so that both give the same bits. Version 1 is the same on every processor.
 *
 * A header of 64 bytes, then a stream for each PACKED_COLUMNS rows of codes (columns of the product). Groups are cut
 * into blocks of up to PACKED_BLOCK codes, one after the other in the stream; a block is
 *     lines    of PACKED_COLUMNS words of 32 bits, the next 8 codes of each row (of 4 bits), or the next 4 (of 8 bits)
 *     scales   of the rows, then zeros, if there are any: PACKED_COLUMNS elements each
 * Code k of a word of eight has the bits 16 (k mod 2) + 4 (k div 2) on: neighbours of the depth become a pair by one
 * shift, halves of bytes become bytes by one mask. Code k of a word of four is byte k. What rows, or codes of a block,
 * lack is 0.
 *
 * Affine codes of 1 to 4 bits are kept with 8, those of 5 to 8 bits and two's complement with 128 in the middle; others
 * are kept as they are. Types of scales and zeros that are not named below become ones that hold all of their values.
 */
#ifndef EJKI_MATMUL_PACKED_H
#define EJKI_MATMUL_PACKED_H

#include "base/base.h"
#include "operations/matmul/shared/product.cuh"

#include <ejkernel/tensor.h>

#include <string.h>

enum { PACKED_COLUMNS = 64, PACKED_BLOCK = 128, PACKED_HEADER = 64, PACKED_VERSION = 1 };

typedef struct packed_header {
    char magic[4];                                      /* EJKW */
    int32_t version, mode, bits, scale_type, zero_type; /* zero_type UNSET: none */
    int32_t has_nan;                                    /* some code is one */
    float factor;                                       /* of all values */
    int64_t rows, columns, size, unused;
} packed_header;
_Static_assert(sizeof(packed_header) == PACKED_HEADER, "a line");

/* Where things lie in a stream. */
typedef struct packed_form {
    int unit;                  /* codes of a word: 8 or 4 */
    int centre;                /* of whole numbers; 0: codes of a table */
    int scale_type, zero_type; /* as kept */
    int scale_bytes, zero_bytes;
    mm_size rows, columns, size;
    int64_t group, stream; /* bytes of a whole group, of a stream */
} packed_form;

/* A block: codes first to first + count - 1 of the depth. */
typedef struct packed_block {
    mm_size first, count, words;
    mm_size left; /* of its group, from `first` on */
    int64_t at;   /* in its stream */
} packed_block;

static inline int packed_scale_type(int type) {
    switch (type) {
    case EJK_DTYPE_F64: return EJK_DTYPE_F32;
    case EJK_DTYPE_I8: return EJK_DTYPE_BF16; /* powers of two */
    default: return type;
    }
}
static inline int packed_zero_type(int type) {
    switch (type) {
    case EJK_DTYPE_UNSET:
    case EJK_DTYPE_F32:
    case EJK_DTYPE_F16:
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_U8: return type;
    default: return EJK_DTYPE_F32;
    }
}

static inline mm_size packed_words(const packed_form *f, mm_size count) {
    return (count + f->unit - 1) >> (f->unit == 8 ? 3 : 2);
}
static inline int64_t packed_block_bytes(const packed_form *f, mm_size count) {
    return (packed_words(f, count) * 4 + f->scale_bytes + f->zero_bytes) * PACKED_COLUMNS;
}
/* Bytes of the blocks of `count` codes of a group. */
static inline int64_t packed_group_bytes(const packed_form *f, mm_size count) {
    const int64_t whole = count / PACKED_BLOCK * packed_block_bytes(f, PACKED_BLOCK);
    return count % PACKED_BLOCK ? whole + packed_block_bytes(f, count % PACKED_BLOCK) : whole;
}

/* Of q's types if it is plain, else of those kept: both are the same by then. */
static inline packed_form packed_form_of(const mm_quant *q, mm_size rows, mm_size columns) {
    packed_form f = {.unit = q->bits <= 4 ? 8 : 4, .rows = rows, .columns = columns};
    f.scale_type = packed_scale_type(q->scale_type);
    f.zero_type = packed_zero_type(q->zero_type);
    f.scale_bytes = (int)ejk_dtype_size((ejk_dtype)f.scale_type);
    f.zero_bytes = f.zero_type ? (int)ejk_dtype_size((ejk_dtype)f.zero_type) : 0;
    if (q->mode == MM_AFFINE || q->mode == MM_INT8) f.centre = f.unit == 8 ? 8 : 128;
    f.size = ejki_min(q->size, ejki_max(columns, 1));
    f.group = packed_group_bytes(&f, f.size);
    f.stream = columns / f.size * f.group + packed_group_bytes(&f, columns % f.size);
    return f;
}

static inline int64_t packed_bytes(const packed_form *f) {
    return PACKED_HEADER + ejki_cdiv(f->rows, PACKED_COLUMNS) * f->stream;
}

/* The first block is that of {0}; false behind the last one. Nothing is divided: blocks are short. */
static inline bool packed_next(const packed_form *f, packed_block *b) {
    b->at += b->count ? packed_block_bytes(f, b->count) : 0;
    b->first += b->count;
    b->left -= b->count;
    if (b->first >= f->columns) return false;
    if (b->left == 0) b->left = ejki_min(f->size, f->columns - b->first);
    b->count = ejki_min(b->left, PACKED_BLOCK);
    b->words = packed_words(f, b->count);
    return true;
}

/* The block of code `index` of the depth. */
static inline packed_block packed_block_of(const packed_form *f, mm_size index) {
    const mm_size group = index / f->size, in = index % f->size / PACKED_BLOCK * PACKED_BLOCK;
    packed_block b = {.first = group * f->size + in};
    const mm_size end = ejki_min((group + 1) * f->size, f->columns);
    b.left = end - b.first;
    b.count = ejki_min(b.left, PACKED_BLOCK);
    b.words = packed_words(f, b.count);
    b.at = group * f->group + packed_group_bytes(f, in);
    return b;
}

/*
 * Whether a row that has such an element may be added up group by group: its sums stay in range, and instructions that
 * take tiny numbers for 0 do not meet any. Rows that have others are multiplied element by element.
 */
static inline bool ejki_packed_fit(float x) {
    const float size = x < 0 ? -x : x;
    return size == 0 || (size >= 0x1p-100f && size <= 0x1p60f);
}

/* Whether `at` holds the matrix that a call has, of rows x columns codes, in `bytes` bytes. */
ejk_status ejki_packed_check(const void *at, int64_t bytes, const mm_quant *q, mm_size rows,
                             mm_size columns);
/* Header of a plain matrix without NaN. */
packed_header ejki_packed_header(const mm_quant *q, mm_size rows, mm_size columns);
/* Stream `index` of a plain matrix; true if one of its codes is a NaN. */
bool ejki_packed_stream(const mm_quant *q, mm_size matrix, const packed_form *f, mm_size index,
                        uint8_t *to);
/* A matrix of any codes, with scales of the usual types, and its bytes. */
void ejki_packed_invent(const mm_quant *q, mm_size rows, mm_size columns, uint64_t seed,
                        uint8_t *to);
int64_t ejki_packed_usual(const mm_quant *q, mm_size rows, mm_size columns);

#endif
