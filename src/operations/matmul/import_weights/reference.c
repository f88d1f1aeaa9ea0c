/* SPDX-License-Identifier: Apache-2.0 */
/* import_weights as its header says, a row at a time, rows shared by threads. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/import_weights/blocks.h"

#include <ejkernel/device.h>

#include <string.h>

/* ---- Codes of words ---------------------------------------------------------------------------------- */

static uint32_t word_at(const unsigned char *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Code `index` of a stream of words that lie `step` bytes apart. */
static uint32_t stream_code(const unsigned char *words, int64_t step, int bits, int64_t index) {
    const int64_t bit = index * bits;
    const int shift = (int)(bit % 32);
    uint64_t window = word_at(words + bit / 32 * step);
    if (shift + bits > 32) window |= (uint64_t)word_at(words + (bit / 32 + 1) * step) << 32;
    return (uint32_t)(window >> shift) & ((1u << bits) - 1);
}

/* Code of a row of words of eight, in the order of awq: the codes 0 2 4 6 1 3 5 7 from the low end. */
static uint32_t awq_code(const unsigned char *words, int64_t index) {
    static const unsigned char places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return word_at(words + index / 8 * 4) >> (4 * places[index % 8]) & 15;
}

static uint32_t code_at(const import_problem *p, int64_t row, int64_t input) {
    switch (p->layout->family) {
    case IMPORT_GPTQ: return stream_code(p->packed + row * 4, p->packed_row, p->bits, input);
    case IMPORT_AWQ: return awq_code(p->packed + input * p->packed_row, row);
    default: { /* two in a byte, the high half first */
        const int64_t index = row * p->columns + input;
        const unsigned char byte = p->packed[index / 2 * p->packed_row];
        return index % 2 ? byte & 15 : byte >> 4;
    }
    }
}

/* ---- Scales and zeros of words ----------------------------------------------------------------------- */

/* Scales of bnb_nf4 that are codes themselves have a table, and a scale for each 256. */
static float flat_scale(const import_problem *p, int64_t index) {
    if (p->packed_scale_type == EJK_DTYPE_F32)
        return (float)ejki_load_f64(EJK_DTYPE_F32, p->packed_scales, index);
    const unsigned char code = ((const unsigned char *)p->packed_scales)[index];
    const float value = (float)ejki_load_f64(EJK_DTYPE_F32, p->nested_table, code) *
                        (float)ejki_load_f64(EJK_DTYPE_F32, p->nested_scales, index / 256);
    if (p->nested_offset == NULL) return value;
    return value + (float)ejki_load_f64(EJK_DTYPE_F32, p->nested_offset, 0);
}

static float word_scale(const import_problem *p, int64_t row, int64_t group) {
    if (p->layout->family == IMPORT_BNB) return flat_scale(p, row * p->groups + group);
    return (float)ejki_load_f64(p->packed_scale_type, p->packed_scales,
                                group * p->packed_scale_row + row);
}

/* gptq stores a zero less 1, modulo 2^bits. */
static uint32_t word_zero(const import_problem *p, int64_t row, int64_t group) {
    const unsigned char *words = p->packed_zeros + group * p->packed_zero_row;
    if (p->layout->family == IMPORT_AWQ) return awq_code(words, row);
    const uint32_t stored = stream_code(words, 4, p->bits, row);
    return strcmp(p->layout->name, "gptq") == 0 ? (stored + 1) & ((1u << p->bits) - 1) : stored;
}

/* ---- Rows -------------------------------------------------------------------------------------------- */

static int64_t place_of(const import_rows *to, int64_t matrix, int64_t row) {
    return matrix * to->matrix + row * to->row;
}

static void put_scale(const import_problem *p, int64_t matrix, int64_t row, int64_t group,
                      float scale) {
    ejki_store_f64(p->scales.dtype, p->scales.data, place_of(&p->scales, matrix, row) + group,
                   (double)scale);
}

static void put_zero(const import_problem *p, int64_t matrix, int64_t row, int64_t group,
                     float zero) {
    const ejk_dtype type = p->zeros.dtype;
    const int64_t at = place_of(&p->zeros, matrix, row) + group;
    if (type == EJK_DTYPE_U8 || type == EJK_DTYPE_I8 || type == EJK_DTYPE_I32)
        ejki_store_i64(type, p->zeros.data, at, (int64_t)zero);
    else
        ejki_store_f64(type, p->zeros.data, at, (double)zero);
}

/* Writes codes one after the other, from the low bits on. */
typedef struct writer {
    unsigned char *at;
    uint32_t bits;
    int count;
} writer;

static void put_code(writer *to, int bits, uint32_t code) {
    to->bits |= code << to->count;
    for (to->count += bits; to->count >= 8; to->count -= 8) {
        *to->at++ = (unsigned char)to->bits;
        to->bits >>= 8;
    }
}

/* The rest of a row, up to its last word, is 0. */
static void finish_row(writer *to, const unsigned char *end) {
    if (to->count > 0) *to->at++ = (unsigned char)to->bits;
    while (to->at < end) *to->at++ = 0;
}

/* One group: without a scale its values are what is subtracted, which is a zero then. */
static bool put_group(const import_problem *p, int64_t matrix, int64_t row, int64_t group,
                      float scale, float least) {
    const bool constant = p->layout->zeros && scale == 0;
    put_scale(p, matrix, row, group, constant ? 1 : scale);
    if (p->layout->zeros) put_zero(p, matrix, row, group, constant ? least : least / scale);
    return constant;
}

static void import_blocks(const import_problem *p, int64_t matrix, int64_t row, writer *to) {
    const import_layout *layout = p->layout;
    const unsigned char *block = p->packed + matrix * p->packed_matrix + row * p->packed_row;
    unsigned char codes[IMPORT_BLOCK_MAX];
    for (int64_t first = 0; first < p->columns; first += layout->block, block += layout->bytes) {
        import_block_codes(layout, block, codes);
        for (int g = 0; g < layout->block / layout->size; g++) {
            float scale, least;
            import_block_scale(layout, block, g, &scale, &least);
            const bool constant = put_group(p, matrix, row, first / layout->size + g, scale, least);
            for (int i = g * layout->size; i < (g + 1) * layout->size; i++)
                put_code(to, p->bits, constant ? 0 : codes[i]);
        }
    }
}

static void import_words(const import_problem *p, const int32_t *order, int64_t row, writer *to) {
    for (int64_t group = 0; group < p->groups; group++) {
        put_scale(p, 0, row, group, word_scale(p, row, group));
        if (p->layout->zeros) put_zero(p, 0, row, group, (float)word_zero(p, row, group));
    }
    for (int64_t c = 0; c < p->columns; c++)
        put_code(to, p->bits, code_at(p, row, order ? order[c] : c));
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const import_problem *p = run->problem;
    const int64_t rows = p->matrices * p->rows;
    const int64_t unit = p->w.dtype == EJK_DTYPE_U32 ? 4 : 1;
    const int64_t bytes = ejki_round_up(ejki_cdiv(p->columns * p->bits, 8), unit);
    const int32_t *order = p->g_idx_type ? run->workspace : NULL;
    for (int64_t i = rows * index / run->workers; i < rows * (index + 1) / run->workers; i++) {
        const int64_t matrix = i / p->rows, row = i % p->rows;
        unsigned char *codes = (unsigned char *)p->w.data + place_of(&p->w, matrix, row) * unit;
        writer to = {.at = codes};
        if (p->layout->family == IMPORT_BLOCKS)
            import_blocks(p, matrix, row, &to);
        else
            import_words(p, order, row, &to);
        finish_row(&to, codes + bytes);
    }
}

/* ---- Order of inputs --------------------------------------------------------------------------------- */

/* Inputs sorted by group, stably: order[c] is that of column c. `next` has room for a number of each group. */
static ejk_status sort_inputs(const import_problem *p, int32_t *order, int32_t *next) {
    bool sorted = true;
    for (int64_t g = 0; g < p->groups; g++) next[g] = (int32_t)(g * p->size);
    for (int64_t k = 0; k < p->columns; k++) {
        const int64_t g = ejki_load_i64(p->g_idx_type, p->g_idx, k);
        if (next[g] == ejki_min((g + 1) * p->size, p->columns))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "g_idx has group %lld more than %lld times, expected groups of "
                             "that size",
                             (long long)g, (long long)p->size);
        sorted = sorted && next[g] == k;
        order[next[g]++] = (int32_t)k;
    }
    if (sorted || p->has_permutation) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "g_idx has inputs that are not in the order of their groups, expected a "
                     "permutation to be asked for");
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const import_problem *p = problem;
    const int64_t rows = p->matrices * p->rows;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, rows));
    if (rows * p->columns < 10000) launch->workers = 1;
    if (p->g_idx_type) launch->workspace_bytes = (size_t)(p->columns + p->groups) * sizeof(int32_t);
    return EJK_OK;
}

static ejk_status run(const ejk_run *given) {
    const import_problem *p = given->problem;
    int32_t *order = given->workspace;
    if (p->g_idx_type) EJKI_TRY(sort_inputs(p, order, order + p->columns));
    for (int64_t c = 0; p->has_permutation && c < p->columns; c++)
        p->permutation[c] = p->g_idx_type ? order[c] : (int32_t)c;
    ejk_parallel_for(given->threads, given->workers, work, (void *)(uintptr_t)given);
    return EJK_OK;
}

EJKI_DECLARE(import_weights_reference, .version = 1, .prepare = prepare, .run = run)
