/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with codes whose groups run along the depth. b is read as packed.h has it: a stream
 * is made in memory of the worker if the matrix is plain. A result is, over the blocks of the depth in order,
 *
 *     sum ← sum + scale · (Σ_k a[k] · code[k] + (middle − zero) · Σ_k a[k])
 *
 * with codes around their middle, and the inner sum one chain of multiply-adds in the order of the words. With pairs
 * numbers are bf16 and sums float32. Rows that are rounded to 8 bits are whole numbers here, and so are all inner sums,
 * exactly, whichever instructions make them; scale is that of the codes times that of the row's block.
 *
 * Up to FEW_ROWS rows are multiplied straight from the stream, in one pass over the memory of b. For more, TILE_COLUMNS
 * columns of up to GROUP_DEPTH words are made operands in the first-level cache and meet all rows there, a tile after
 * the other. Both add up the same numbers in the same order, so that a row's bits do not depend on other rows.
 *
 * A row with elements that ejki_packed_fit() refuses, or one of codes that are not numbers, is multiplied element by
 * element with values as dequantize makes them.
 */
#ifndef EJKI_PRODUCT_GROUPS_H
#define EJKI_PRODUCT_GROUPS_H

#include <ejkernel/device.h>

#include "operations/matmul/shared/product_chunk.h"

enum { FEW_ROWS = 4 };
/*
 * Columns that meet a part of the depth of all rows while the second-level cache has it. Rows of pairs fill that cache,
 * and come from further away for each GROUP_COLUMNS: on AMX, 256 rows of 4096 words, 512 columns take 0.92 of the time
 * that 256 take, 1024 columns 0.94.
 */
#ifdef TILE_AMX
enum { GROUP_COLUMNS = 512 };
#else
enum { GROUP_COLUMNS = 256 };
#endif
enum { GROUP_STREAMS = GROUP_COLUMNS / PACKED_COLUMNS };
#ifdef FEW_IN_STEPS
#define FEW_VECTORS(rows) ((rows) > 1 ? 2 : 4)
#elif VL == 16
#define FEW_VECTORS(rows) 4
#else
#define FEW_VECTORS(rows) ((rows) > 2 ? 2 : 4)
#endif

/*
 * Streams that few rows meet in turn, a block of each, while lines of each are asked for. Xeons before Ice Lake ask
 * ahead for so much of one place only: of one place they gave 76 % of what four give.
 */
static int group_places(void) {
    const bool few = ejk_cpu()->l1d_bytes <= 32 << 10;
    return VL == 16 && few && strcmp(ejk_cpu()->vendor, "intel") == 0 ? GROUP_STREAMS : 1;
}

/*
 * How far ahead of its use memory is asked for, in bytes, into the second-level cache; 0: not. N = K = 4096, M = 1, one
 * core, shares of the bandwidth of reading:
 *                    4 bits, rounded rows    8 bits      4 bits, bf16    4 bits, float32
 *   Zen 4  0         82 to 86                56 to 80    65 to 73        43 to 47
 *          1024      81                      85
 *          4096      32                      85
 *   Zen 5  0         28 to 35                49 to 73    29 to 31        24 to 49
 *          4096      87                      86          96              71
 *          8192      90                      90          93              68
 *          12288     86                                  96              71
 * Cascade Lake, of one place, as far as 2048 to 32768: 72 to 75, without 61 to 64; of each of four, 4096: 82, 8192: 81,
 * 16384: 80.
 * With `many` rows codes lie in as many streams as columns share a part of the depth, each of which is read a piece at
 * a time: no processor asks ahead for those. Zen 4, experts of 4 bits: 4096, 8192, 16384 0.89, 0.90, 0.92 of the time.
 */
static int64_t group_ahead(const int kind, bool many) {
    const ejk_cpu_info *cpu = ejk_cpu();
    if (VL != 16) return 0;
    const bool alone = strcmp(cpu->vendor, "amd") == 0 && cpu->family <= 25;
    if (alone && !many) return kind == CODES_EIGHT ? 0 : 1024;
    return group_places() > 1 ? 4096 : 8192;
}

/* Lines that are asked for beside those of a block: of each of GROUP_STREAMS places, `apart` bytes from place to place,
 * and then those `step` bytes behind. 0: none. */
typedef struct group_asking {
    uintptr_t at;
    uintptr_t apart, step;
} group_asking;

INLINE void group_ask(group_asking *a, const int places) {
    if (!a->at) return;
    EJKI_UNROLL for (uintptr_t j = 0; j < (uintptr_t)places; j++)
        __builtin_prefetch((const void *)(a->at + j * a->apart), 0, 2);
    a->at += a->step;
}

/* What is known of b. */
typedef struct group_codes {
    const mm_quant *q;
    packed_form form;
    codes_table table;
    int kind;
    const uint8_t *at; /* first stream of a packed matrix */
    uint8_t *own;      /* memory for GROUP_STREAMS of a plain one */
    mm_size matrix;
    float factor;
    bool nan;
#ifdef TILE_AMX
    uintptr_t end, gap; /* of a packed matrix; from there to the first stream of the next one */
#endif
} group_codes;

/* Stream `index`, which is made in place `own` of a plain matrix. */
static const uint8_t *group_stream(group_codes *c, mm_size index, int own) {
    if (c->q->packed) return c->at + index * c->form.stream;
    uint8_t *stream = c->own + own * c->form.stream;
    c->nan = ejki_packed_stream(c->q, c->matrix, &c->form, index, stream);
    return stream;
}

static const uint8_t *group_scales(const packed_block *b, const uint8_t *stream) {
    return stream + b->at + b->words * 4 * PACKED_COLUMNS;
}

/* Scales of a block as sums want them, and what its zeros are short of the middle: `vectors` of each. */
INLINE void group_factors(const int vectors, const group_codes *c, const uint8_t *scales,
                          int column, vf *scale, vf *zero) {
    const uint8_t *zeros = scales + PACKED_COLUMNS * c->form.scale_bytes;
    const vf middle = v_set1((float)(1 << (c->q->bits - 1)));
    codes_scales(c->form.scale_type, scales + column * c->form.scale_bytes, vectors, scale);
#ifdef TILE_BYTE_DOT
    EJKI_UNROLL for (int j = 0; j < vectors; j++) if (c->table.has_bytes) scale[j] =
        v_mul(scale[j], v_set1(0.5f));
#endif
    EJKI_UNROLL for (int j = 0; j < vectors; j++) zero[j] = v_zero();
    if (c->form.zero_type == EJK_DTYPE_UNSET) return;
    codes_scales(c->form.zero_type, zeros + column * c->form.zero_bytes, vectors, zero);
    EJKI_UNROLL for (int j = 0; j < vectors; j++) zero[j] = v_sub(middle, zero[j]);
}

/* What bytes of codes have in their middle. */
static int group_middle(const mm_quant *q) {
    return q->mode == MM_FP4 ? 12 : q->bits <= 4 ? 8 : 128;
}
/* ---- Few rows ---------------------------------------------------------------------------------------- */

#ifdef FEW_IN_STEPS
/* Sums of a step of tiles: first elements of pairs, and second ones. */
typedef struct few_step {
    vf first[FEW_ROWS][4], second[FEW_ROWS][4];
} few_step;

INLINE void few_end_step(const int rows, const int vectors, few_step *own, vf inner[FEW_ROWS][4]) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++) {
        inner[i][j] = v_add(inner[i][j], v_add(own->first[i][j], own->second[i][j]));
        own->first[i][j] = own->second[i][j] = v_zero();
    }
}
#endif

/* FEW_VECTORS columns of a block from `column` on. */
INLINE void few_block(const int rows, const int kind, const group_codes *c, const group_rows *r,
                      const packed_block *b, const uint8_t *stream, int64_t n, const float *x,
                      int column, group_asking *asking, float *totals) {
    const int vectors = FEW_VECTORS(rows), unit = kind == CODES_EIGHT ? 8 : 4;
    const uint8_t *line = stream + b->at + column * 4, *scales = group_scales(b, stream);
    const float *sums = r->sums + n * r->capacity, *own = r->scales + n * r->capacity;
    const codes_table table = c->table;
    vf inner[FEW_ROWS][4];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        inner[i][j] = group_begin(r, n * r->capacity + i);
#ifdef FEW_IN_STEPS
    few_step own_step;
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        own_step.first[i][j] = own_step.second[i][j] = v_zero();
#endif
    for (mm_size w = 0; w < b->words; w++, line += 4 * PACKED_COLUMNS) {
        v_words words[4];
        EJKI_UNROLL for (int j = 0; j < vectors; j++) words[j] = v_words_at(line + j * 4 * VL);
        group_ask(asking, vectors);
        EJKI_UNROLL for (int step = 0; step < unit / CODES_STEP; step++, x += FEW_WORDS(rows)) {
            EJKI_UNROLL for (int j = 0; j < vectors; j++) {
#ifdef FEW_IN_STEPS
                vf first, second;
                codes_both(kind, &table, words[j], step, &first, &second);
                EJKI_UNROLL for (int i = 0; i < rows; i++) {
                    own_step.first[i][j] = v_fma_one(x + 2 * i, first, own_step.first[i][j]);
                    own_step.second[i][j] = v_fma_one(x + 2 * i + 1, second, own_step.second[i][j]);
                }
#else
                const vf code = codes_step(kind, &table, words[j], step);
                EJKI_UNROLL for (int i = 0; i < rows; i++) inner[i][j] =
                    GEMM_TERM(v_set1(x[i]), code, inner[i][j]);
#endif
            }
        }
#ifdef FEW_IN_STEPS
        if ((w + 1) % (TILE_STEP * 2 / unit) == 0 || w + 1 == b->words)
            few_end_step(rows, vectors, &own_step, inner);
#endif
    }
    const bool zeros = c->form.zero_type != EJK_DTYPE_UNSET;
    const int64_t each = c->form.scale_bytes + c->form.zero_bytes;
    for (int64_t at = 0; at < each * vectors * VL; at += vectors * 64) group_ask(asking, vectors);
    vf scale[4], zero[4];
    group_factors(vectors, c, scales, column, scale, zero);
    EJKI_UNROLL for (int j = 0; j < vectors; j++) {
        EJKI_UNROLL for (int i = 0; i < rows; i++) {
            float *total = totals + i * PACKED_COLUMNS + column + j * VL;
            v_store(total, group_end(c->q->rounds, zeros, inner[i][j], scale[j], zero[j], sums[i],
                                     own[i], v_load(total)));
        }
    }
}

/* What is asked for beside a block of stream `own` of `count`, in pass `pass` over its columns. */
INLINE group_asking group_asking_of(const int vectors, const group_codes *c, const packed_block *b,
                                    const uint8_t *stream, int own, int count, int pass,
                                    int64_t ahead) {
    const int64_t size = c->form.stream, bytes = packed_block_bytes(&c->form, b->count);
    const bool together = count == vectors && count > 1;
    const int64_t part =
        together ? bytes * own / count : bytes * vectors * VL * pass / PACKED_COLUMNS;
    int64_t at = b->at + ahead + part;
    if (!ahead) return (group_asking){0};
    if (!together)
        at += own * size;
    else if (at >= size) /* of the streams behind these */
        at += (count - 1) * size;
    const uintptr_t first = (uintptr_t)stream + (uintptr_t)at;
    return together ? (group_asking){first, (uintptr_t)size, 64}
                    : (group_asking){first, 64, 64 * (uintptr_t)vectors};
}

/* Rows with `count` streams, one behind the other, a block of each in turn. */
INLINE void few(const int rows, const int kind, const group_codes *c, const group_rows *r,
                const uint8_t *stream, int count, float *totals) {
    const int vectors = FEW_VECTORS(rows);
    const int64_t ahead = group_ahead(kind, false);
    packed_block b = {0};
    const float *x = r->words;
    memset(totals, 0, sizeof *totals * (size_t)(rows * PACKED_COLUMNS * count));
    for (int64_t n = 0; packed_next(&c->form, &b); n++) {
        for (int s = 0; s < count; s++)
            for (int pass = 0; pass < PACKED_COLUMNS / (vectors * VL); pass++) {
                group_asking a = group_asking_of(vectors, c, &b, stream, s, count, pass, ahead);
                few_block(rows, kind, c, r, &b, stream + s * c->form.stream, n, x,
                          pass * vectors * VL, &a, totals + s * rows * PACKED_COLUMNS);
            }
        x += b.words * (c->form.unit / CODES_STEP) * FEW_WORDS(rows);
    }
}

#define FEW_DEFINE(rows, kind)                                                                     \
    static __attribute__((noinline)) void few_##rows##_##kind(                                     \
        const group_codes *c, const group_rows *r, const uint8_t *stream, int count,               \
        float *totals) {                                                                           \
        few(rows, kind, c, r, stream, count, totals);                                              \
    }
#define FEW_EACH(X, kind) X(1, kind) X(2, kind) X(3, kind) X(4, kind)
FEW_EACH(FEW_DEFINE, CODES_EIGHT)
FEW_EACH(FEW_DEFINE, CODES_WHOLE)
#ifndef TILE_BYTE_DOT
FEW_EACH(FEW_DEFINE, CODES_E4M3)
#endif

typedef void (*few_fn)(const group_codes *c, const group_rows *r, const uint8_t *stream, int count,
                       float *totals);
static few_fn few_of(int64_t rows, int kind) {
#define FEW_NAME(rows, kind) few_##rows##_##kind,
    static const few_fn eight[] = {FEW_EACH(FEW_NAME, CODES_EIGHT)};
    static const few_fn whole[] = {FEW_EACH(FEW_NAME, CODES_WHOLE)};
#ifndef TILE_BYTE_DOT
    static const few_fn e4m3[] = {FEW_EACH(FEW_NAME, CODES_E4M3)};
    if (kind == CODES_E4M3) return e4m3[rows - 1];
#endif
#undef FEW_NAME
    if (kind == CODES_EIGHT) return eight[rows - 1];
    return whole[rows - 1];
}

/* ---- Many rows --------------------------------------------------------------------------------------- */

/* A block of a stream from `column` on, behind `used` words of the chunk. */
INLINE void chunk_block(const int kind, const group_codes *c, const packed_block *b,
                        const uint8_t *stream, int column, int64_t ahead, float *to) {
    const int unit = kind == CODES_EIGHT ? 8 : 4, middle = group_middle(c->q);
    const uint8_t *line = stream + b->at + column * 4;
    const codes_table table = c->table;
    const int64_t scales = (c->form.scale_bytes + c->form.zero_bytes) * PACKED_COLUMNS;
    for (int64_t at = 0; ahead && at < scales; at += 64)
        __builtin_prefetch(group_scales(b, stream) + at + ahead, 0, 2);
    for (mm_size w = 0; w < b->words; w++, line += 4 * PACKED_COLUMNS) {
        for (int at = 0; ahead && at < 4 * PACKED_COLUMNS; at += 64)
            __builtin_prefetch(line + at + ahead, 0, 2);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            const v_words words = v_words_at(line + j * 4 * VL);
            EJKI_UNROLL for (int step = 0; step < unit / CODES_STEP; step++)
                v_store(to + (w * (unit / CODES_STEP) + step) * TILE_COLUMNS + j * VL,
                        codes_in_tiles(codes_step(kind, &table, words, step), middle));
        }
    }
}

/* As many blocks as a chunk holds from chunk->first on, *b being the last one before it; false: there are none. */
static bool chunk_fill(const group_codes *c, const uint8_t *stream, int column, packed_block *b,
                       group_chunk *chunk) {
    const int each = c->form.unit / CODES_STEP;
    /* The first columns ask for all of a stream's. */
#ifdef TILE_AMX
    const int64_t ahead = 0; /* group_ask_chunk() */
#else
    const int64_t ahead = column == 0 ? group_ahead(c->kind, true) : 0;
#endif
    int64_t used = 0;
    packed_block next = *b;
    chunk->blocks = 0;
    while (packed_next(&c->form, &next)) {
        const int64_t n = chunk->blocks, steps = pack_room(next.words * each);
        if (n == GROUP_BLOCKS || (n > 0 && used + steps > GROUP_DEPTH)) break;
        float *to = chunk->words + used * TILE_COLUMNS;
        if (c->kind == CODES_EIGHT)
            chunk_block(CODES_EIGHT, c, &next, stream, column, ahead, to);
        else if (c->kind == CODES_WHOLE)
            chunk_block(CODES_WHOLE, c, &next, stream, column, ahead, to);
#ifndef TILE_BYTE_DOT
        else
            chunk_block(CODES_E4M3, c, &next, stream, column, ahead, to);
#endif
        for (int64_t i = next.words * each * TILE_COLUMNS; i < steps * TILE_COLUMNS; i += VL)
            v_store(to + i, v_zero());
        const uint8_t *scales = group_scales(&next, stream);
        vf scale[TILE_VECTORS], zero[TILE_VECTORS];
        group_factors(TILE_VECTORS, c, scales, column, scale, zero);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            v_store(&chunk->scale[n][j * VL], scale[j]);
            v_store(&chunk->zero[n][j * VL], zero[j]);
        }
        chunk->steps[n] = steps;
        used += steps;
        chunk->blocks++;
        *b = next;
    }
    return chunk->blocks > 0;
}

#ifdef TILE_AMX
/*
 * Has half of the bytes asked for that come behind blocks first + 1 to last of a stream, half being what its first and
 * its second columns ask for, and from the end of a stream on those of the stream that takes its place.
 */
static void group_ask_chunk(const group_codes *c, const packed_block *first,
                            const packed_block *last, const uint8_t *stream, int column,
                            int64_t rows, group_chunk *chunk) {
    const int64_t begin = first->count ? first->at + packed_block_bytes(&c->form, first->count) : 0;
    int64_t at = last->at + packed_block_bytes(&c->form, last->count), bytes = at - begin;
    chunk->ask_each = 0;
    chunk->ask = chunk->ask_end = 0;
    if (!c->q->packed) return;
    if (at >= c->form.stream) at += (GROUP_STREAMS - 1) * c->form.stream;
    bytes = ejki_round_up(bytes / 2, 64);
    if (column % PACKED_COLUMNS != 0) at += bytes;
    const int64_t times = rows * ejki_cdiv(chunk->blocks, SETTLED);
    chunk->ask = (uintptr_t)stream + (uintptr_t)at;
    if (chunk->ask >= c->end) chunk->ask += c->gap;
    chunk->ask_end = chunk->ask + (uintptr_t)bytes;
    chunk->ask_each = ejki_cdiv(bytes / 64, times);
}

/* Words of rows behind those of a chunk, of which each set of columns asks for a part. */
typedef struct group_later {
    int64_t word, from, to; /* bytes `from` to to - 1 of those of a tile of rows from `word` on */
} group_later;

static group_later group_later_of(const group_chunk *chunk, const group_rows *r, int64_t depth,
                                  int64_t column, int64_t columns) {
    int64_t words = 0;
    for (int64_t n = 0; n < chunk->blocks; n++) words += chunk->steps[n];
    const int64_t bytes = ejki_min(words, r->depth - depth - words) * TILE_ROWS * 4;
    const int64_t part = ejki_round_up(bytes * TILE_COLUMNS / columns, 64);
    const int64_t from = column / TILE_COLUMNS * part;
    return (group_later){depth + words, from, ejki_min(from + part, bytes)};
}
INLINE void group_ask_rows(const group_later *later, const group_rows *r, int64_t t) {
    const char *at = (const char *)(r->words + t * r->depth + later->word * TILE_ROWS);
    for (int64_t i = later->from; i < later->to; i += 64) __builtin_prefetch(at + i, 0, 2);
}
#endif

/*
 * Columns low to high - 1 of some streams that lie one behind the other, in sets of TILE_COLUMNS, with all rows; totals
 * of a set are behind those of the one before it.
 */
static void group_many(const group_codes *c, const group_rows *r, int64_t rows,
                       const uint8_t *const *stream, int low, int high, float *words,
                       float *totals) {
    group_chunk chunk;
    packed_block b = {0};
    int64_t depth = 0;
    chunk.words = words;
    chunk.first = 0;
    chunk.rounds = c->q->rounds;
    chunk.zeros = c->form.zero_type != EJK_DTYPE_UNSET;
    for (bool more = low < high; more; chunk.first += chunk.blocks) {
        packed_block next = b;
        for (int column = low; more && column < high; column += TILE_COLUMNS) {
            float *own = totals + (column - low) * r->capacity;
            next = b;
            more = chunk_fill(c, stream[column / PACKED_COLUMNS], column % PACKED_COLUMNS, &next,
                              &chunk);
#ifdef TILE_AMX
            if (more)
                group_ask_chunk(c, &b, &next, stream[column / PACKED_COLUMNS], column, rows,
                                &chunk);
            const group_later later = group_later_of(&chunk, r, depth, column - low, high - low);
#endif
            for (int64_t t = 0; more && t < rows; t += TILE_ROWS) {
#ifdef TILE_AMX
                group_ask_rows(&later, r, t);
#endif
                group_multiply(ejki_min(rows - t, TILE_ROWS), &chunk, r, t,
                               r->words + t * r->depth + depth * TILE_ROWS, own + t * TILE_COLUMNS);
            }
        }
        b = next;
        for (int64_t n = 0; n < chunk.blocks; n++) depth += chunk.steps[n];
    }
}

/* ---- Any numbers ------------------------------------------------------------------------------------- */

/* A line's code of each column as dequantize makes it. */
INLINE vf group_value(const group_codes *c, const packed_block *b, const uint8_t *stream,
                      const uint8_t *line, int k, int column) {
    const mm_quant *q = c->q;
    const uint8_t *scales = group_scales(b, stream);
    const v_words words = v_words_at(line);
    vf number = c->kind == CODES_EIGHT   ? codes_float(CODES_EIGHT, &c->table, words, k)
                : c->kind == CODES_WHOLE ? codes_float(CODES_WHOLE, &c->table, words, k)
                                         : codes_float(CODES_E4M3, &c->table, words, k);
    if (c->kind == CODES_E4M3) {
        const v_words size = words >> (8 * k) & 0x7f;
        number = v_of_bits(v_bits(number) | ((v_words)(size == 0x7f) & 0x7fc00000u));
    }
    if (c->form.zero_type) {
        const uint8_t *zeros = scales + PACKED_COLUMNS * c->form.scale_bytes;
        number = v_add(number, v_set1((float)(1 << (q->bits - 1))));
        number = v_sub(number, codes_scale(c->form.zero_type, zeros + column * c->form.zero_bytes));
    }
    number = v_mul(number, codes_scale(c->form.scale_type, scales + column * c->form.scale_bytes));
    return v_mul(number, v_set1(c->factor));
}

/* Columns column to end - 1 of a stream with a row as it is. */
static void group_row(const ejk_dtype dtype, const group_codes *c, const void *row,
                      const uint8_t *stream, int column, int end, float *totals) {
    for (; column < end; column += VL, totals += VL) {
        packed_block b = {0};
        vf total = v_zero();
        while (packed_next(&c->form, &b))
            for (mm_size k = 0; k < b.count; k++) {
                const uint8_t *line =
                    stream + b.at + (k / c->form.unit * PACKED_COLUMNS + column) * 4;
                const vf value = group_value(c, &b, stream, line, (int)(k % c->form.unit), column);
                total = v_fma(v_set1(element_load(dtype, row, b.first + k)), value, total);
            }
        v_store(totals, total);
    }
}

#endif
