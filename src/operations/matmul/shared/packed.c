/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/matmul/shared/packed.h"

#include "operations/matmul/shared/quant.h"

ejk_status ejki_packed_check(const void *at, int64_t bytes, const mm_quant *q, mm_size rows,
                             mm_size columns) {
    packed_header h;
    mm_quant own = *q;
    if (bytes >= PACKED_HEADER) memcpy(&h, at, sizeof h);
    if (bytes < PACKED_HEADER || memcmp(h.magic, "EJKW", 4) != 0 || h.version != PACKED_VERSION)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "w has no scales, and is none that prepack made here");
    if (h.rows != rows || h.columns != columns)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "w is packed from %lld x %lld codes, expected %lld x %lld",
                         (long long)h.rows, (long long)h.columns, rows, columns);
    if (h.mode != q->mode || h.bits != q->bits || h.size != q->size)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "w is packed from mode %d of %d bits in groups of %lld, expected %d of %d "
                         "in groups of %lld",
                         (int)h.mode, (int)h.bits, (long long)h.size, q->mode, q->bits, q->size);
    own.scale_type = h.scale_type;
    own.zero_type = h.zero_type;
    const bool scales = h.scale_type == EJK_DTYPE_F32 || h.scale_type == EJK_DTYPE_F16 ||
                        h.scale_type == EJK_DTYPE_BF16 || h.scale_type == EJK_DTYPE_F8E8M0 ||
                        h.scale_type == EJK_DTYPE_F8E4M3;
    const bool zeros = h.zero_type == EJK_DTYPE_UNSET || h.zero_type == EJK_DTYPE_F32 ||
                       h.zero_type == EJK_DTYPE_F16 || h.zero_type == EJK_DTYPE_BF16 ||
                       h.zero_type == EJK_DTYPE_U8;
    const packed_form f = packed_form_of(scales && zeros ? &own : q, rows, columns);
    if (!scales || !zeros || packed_bytes(&f) > bytes)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "w is packed, but not whole");
    return EJK_OK;
}

packed_header ejki_packed_header(const mm_quant *q, mm_size rows, mm_size columns) {
    packed_header h = {.magic = {'E', 'J', 'K', 'W'},
                       .version = PACKED_VERSION,
                       .mode = q->mode,
                       .bits = q->bits,
                       .scale_type = packed_scale_type(q->scale_type),
                       .zero_type = packed_zero_type(q->zero_type),
                       .factor = 1,
                       .rows = rows,
                       .columns = columns,
                       .size = q->size};
    if (q->has_factor) memcpy(&h.factor, q->factor, sizeof h.factor);
    return h;
}

/* ---- Codes ------------------------------------------------------------------------------------------- */

/* Where code k of a word lies. */
static int place_of(const packed_form *f, mm_size k) {
    return (int)(f->unit == 8 ? 16 * (k % 2) + 4 * (k / 2) : 8 * k);
}

/* What is added to a code to bring its middle to that of the form. */
static int shift_of(const mm_quant *q, const packed_form *f) {
    return q->mode == MM_AFFINE ? f->centre - (1 << (q->bits - 1)) : 0;
}

/* Eight codes in their order as a word of theirs: even ones become the lower half. */
static uint32_t parted(uint32_t codes) {
    const uint32_t even = codes & 0x0f0f0f0fu, odd = codes >> 4 & 0x0f0f0f0fu;
    const uint32_t low = (even | even >> 4) & 0x00ff00ffu, high = (odd | odd >> 4) & 0x00ff00ffu;
    return ((low | low >> 8) & 0xffffu) | (high | high >> 8) << 16;
}

/* A block's codes of a row that lie in whole words of bytes. */
static void put_words(const mm_quant *q, const packed_form *f, const packed_block *b,
                      const uint8_t *codes, uint8_t *to) {
    const uint8_t *from = codes + b->first * q->bits / 8;
    const uint32_t flip = q->mode == MM_INT8 ? 0x80808080u : 0;
    for (mm_size w = 0; w < b->words; w++, to += 4 * PACKED_COLUMNS) {
        uint32_t word;
        memcpy(&word, from + w * 4, sizeof word);
        word = f->unit == 8 ? parted(word) : word ^ flip;
        memcpy(to, &word, sizeof word);
    }
}

static void put_codes(const mm_quant *q, const packed_form *f, const packed_block *b,
                      const uint8_t *codes, uint8_t *to) {
    const uint32_t flip = q->mode == MM_INT8 ? 0x80 : 0;
    const uint32_t shift = (uint32_t)shift_of(q, f);
    for (mm_size k = 0; k < b->count; to += 4 * PACKED_COLUMNS) {
        uint32_t word = 0;
        for (int i = 0; i < f->unit && k < b->count; i++, k++)
            word |= ((ejki_quant_code(codes, q->bits, b->first + k) ^ flip) + shift)
                    << place_of(f, i);
        memcpy(to, &word, sizeof word);
    }
}

static bool has_nan(const mm_quant *q, const packed_block *b, const uint8_t *codes) {
    bool found = false;
    for (mm_size k = b->first; q->mode == MM_FP8 && k < b->first + b->count; k++)
        found |= (codes[k] & 0x7f) == 0x7f;
    return found;
}

static void put_number(int type, void *data, mm_size index, double value) {
    if (type == EJK_DTYPE_U8)
        ejki_store_i64(EJK_DTYPE_U8, data, index, (int64_t)value);
    else
        ejki_store_f64((ejk_dtype)type, data, index, value);
}

/* Scale and zero of a row, behind the lines of its block. */
static void put_scale(const mm_quant *q, const packed_form *f, mm_size matrix, mm_size row,
                      mm_size group, void *scales, mm_size column) {
    const ejki_quant_group g = ejki_quant_group_of(q, matrix, row, group);
    put_number(f->scale_type, scales, column, (double)g.scale);
    if (f->zero_type)
        put_number(f->zero_type, (char *)scales + PACKED_COLUMNS * f->scale_bytes, column,
                   (double)g.zero);
}

bool ejki_packed_stream(const mm_quant *q, mm_size matrix, const packed_form *f, mm_size index,
                        uint8_t *to) {
    const mm_size first = index * PACKED_COLUMNS;
    const mm_size rows = ejki_min(f->rows - first, PACKED_COLUMNS);
    packed_block b = {0};
    bool nan = false;
    while (packed_next(f, &b)) {
        uint8_t *at = to + b.at, *scales = at + b.words * 4 * PACKED_COLUMNS;
        const bool whole =
            (q->bits == 4 || q->bits == 8) && b.count % f->unit == 0 && b.first * q->bits % 8 == 0;
        memset(at, 0, (size_t)packed_block_bytes(f, b.count));
        for (mm_size i = 0; i < rows; i++) {
            const uint8_t *codes = ejki_quant_row(q, matrix, first + i);
            (whole ? put_words : put_codes)(q, f, &b, codes, at + i * 4);
            nan |= has_nan(q, &b, codes);
            put_scale(q, f, matrix, first + i, b.first / f->size, scales, i);
        }
    }
    return nan;
}

/* ---- Contents to measure with ------------------------------------------------------------------------ */

/* Types that scales of a format are usually kept in. */
static void choose_types(mm_quant *q) {
    const bool floats = q->mode == MM_FP4 || q->mode == MM_FP8;
    q->scale_type = floats ? (q->size > 16 ? EJK_DTYPE_F8E8M0 : EJK_DTYPE_F8E4M3) : EJK_DTYPE_F16;
    q->zero_type = q->mode == MM_AFFINE ? EJK_DTYPE_F16 : EJK_DTYPE_UNSET;
}

int64_t ejki_packed_usual(const mm_quant *q, mm_size rows, mm_size columns) {
    mm_quant usual = *q;
    choose_types(&usual);
    const packed_form f = packed_form_of(&usual, rows, columns);
    return packed_bytes(&f);
}

void ejki_packed_invent(const mm_quant *q, mm_size rows, mm_size columns, uint64_t seed,
                        uint8_t *to) {
    mm_quant usual = *q;
    choose_types(&usual);
    const packed_form f = packed_form_of(&usual, rows, columns);
    const packed_header h = ejki_packed_header(&usual, rows, columns);
    memcpy(to, &h, sizeof h);
    to += sizeof h;
    for (mm_size i = 0; i < ejki_cdiv(rows, PACKED_COLUMNS); i++, to += f.stream) {
        packed_block b = {0};
        while (packed_next(&f, &b)) {
            const int64_t codes = b.words * 4 * PACKED_COLUMNS;
            for (int64_t k = 0; k < codes; k++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                to[b.at + k] = (uint8_t)(seed >> 56 & (q->mode == MM_FP8 ? 0xbf : 0xff));
            }
            uint8_t *scales = to + b.at + codes;
            for (mm_size j = 0; j < PACKED_COLUMNS; j++) {
                put_number(f.scale_type, scales, j, 0x1p-6);
                if (f.zero_type)
                    put_number(f.zero_type, scales + PACKED_COLUMNS * f.scale_bytes, j,
                               (double)(1 << (q->bits - 1)) - 0.5);
            }
        }
    }
}
