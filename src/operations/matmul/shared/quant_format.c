/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/matmul/shared/quant_format.h"

#include "base/base.h"
#include "operations/matmul/shared/packed.h"
#include "tensor/access.h"

#include <string.h>

static const struct mode {
    const char *name;
    int mode, bits; /* bits 0: any, 4 where nothing is said */
    mm_size size;   /* 0: a row */
    char scales;    /* 'n' numbers, 'x' powers of two, 'v' E4M3 */
} modes[] = {
    {"affine", MM_AFFINE, 0, 64, 'n'}, {"int8", MM_INT8, 8, 0, 'n'},  {"nf4", MM_NF4, 4, 64, 'n'},
    {"mxfp4", MM_FP4, 4, 32, 'x'},     {"mxfp8", MM_FP8, 8, 32, 'x'}, {"nvfp4", MM_FP4, 4, 16, 'v'},
    {"nvfp8", MM_FP8, 8, 16, 'v'},
};

static ejk_status mode_of(const char *name, const struct mode **out) {
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        *out = &modes[i];
        if (strcmp(name[0] ? name : "affine", modes[i].name) == 0) return EJK_OK;
    }
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                     "mode is \"%s\", expected affine, int8, nf4, mxfp4, mxfp8, nvfp4 or nvfp8",
                     name);
}

static ejk_status check_scale_type(const struct mode *m, const ejki_quant_words *words) {
    const char *format = words->scale_format;
    const bool is_signed = strcmp(format, "signed") == 0;
    const ejk_dtype type = words->scales->dtype;
    ejk_dtype wanted = is_signed ? EJK_DTYPE_I8 : EJK_DTYPE_F8E8M0;
    if (format[0] && !is_signed && strcmp(format, "ocp") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "scale_format is \"%s\", expected ocp or signed",
                         format);
    if (m->scales == 'v') wanted = EJK_DTYPE_F8E4M3;
    if (m->scales == 'n' && type != EJK_DTYPE_I8) return EJK_OK;
    if (m->scales != 'n' && type == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "scales: %s given, expected %s with mode %s",
                     ejk_dtype_name(type),
                     m->scales == 'n' ? "floating-point numbers" : ejk_dtype_name(wanted), m->name);
}

static ejk_status check_sizes(const struct mode *m, const ejki_quant_words *words, mm_quant *q) {
    q->bits = m->bits ? m->bits : 4;
    if (words->bits->set && (m->bits ? words->bits->value != m->bits
                                     : words->bits->value < 1 || words->bits->value > 8))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "bits is %lld, expected %s with mode %s",
                         (long long)words->bits->value,
                         m->bits == 8 ? "8"
                         : m->bits    ? "4"
                                      : "1 to 8",
                         m->name);
    if (words->bits->set) q->bits = (int)words->bits->value;
    if (words->group_size->set && words->group_size->value < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "group_size is %lld, expected at least 1",
                         (long long)words->group_size->value);
    return EJK_OK;
}

/* Rows of one of the tensors: a matrix for all, or for each of a first axis. */
static ejk_status check_rows(const char *name, const ejk_tensor *t, mm_size rows, mm_size columns,
                             int32_t rank) {
    const int64_t *shape = t->shape + t->rank - 2;
    if (t->rank == rank && shape[0] == rows && shape[1] == columns) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rows of %lld x %lld, expected %lld x %lld",
                     name, (long long)shape[0], (long long)shape[1], rows, columns);
}

static mm_size matrix_stride(const ejk_tensor *t) {
    return t->rank > 2 ? ejki_step(t, 0) : 0;
}

/* Made by prepack: only bytes, whose header is looked at when they are there. */
static ejk_status check_packed(const ejki_quant_words *words, mm_size rows, mm_quant *q) {
    const ejk_tensor *w = words->w;
    const int64_t *shape = w->shape + w->rank - 2;
    if (ejk_tensor_present(words->zeros) || ejk_tensor_present(words->tensor_scale))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is given without scales",
                         ejk_tensor_present(words->zeros) ? "zeros" : "tensor_scale");
    if (w->dtype != EJK_DTYPE_U8)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "w: %s given, expected uint8 as prepack makes it, or scales",
                         ejk_dtype_name(w->dtype));
    if (shape[0] != rows || (rows > 1 && w->strides[w->rank - 2] != shape[1]) ||
        (w->rank > 2 && w->shape[0] > 1 && w->strides[0] != rows * shape[1]))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "w without scales has %lld rows, expected %lld without gaps",
                         (long long)shape[0], rows);
    q->packed = 1;
    q->code_row = shape[1];
    q->code_group = shape[0] * shape[1];
    return EJK_OK;
}

ejk_status ejki_quant_format(const ejki_quant_words *words, mm_size rows, mm_size columns,
                             mm_quant *q) {
    const struct mode *m;
    const mm_size unit = words->w->dtype == EJK_DTYPE_U32 ? 32 : 8;
    const bool packed = !ejk_tensor_present(words->scales);
    int64_t bits;
    *q = (mm_quant){.present = 1, .scale_type = (int)words->scales->dtype};
    EJKI_TRY(mode_of(words->mode, &m));
    if (!packed) EJKI_TRY(check_scale_type(m, words));
    EJKI_TRY(check_sizes(m, words, q));
    if (!ejki_mul(columns, 8, &bits))
        return ejki_fail(EJK_STATUS_OVERFLOW, "rows of %lld codes cannot be counted", columns);
    q->mode = m->mode;
    q->size = words->group_size->set ? words->group_size->value : m->size ? m->size : columns;
    q->size = ejki_max(1, q->size);
    if (packed) return check_packed(words, rows, q);
    const mm_size groups = ejki_cdiv(columns, q->size);
    const int32_t rank = words->w->rank;
    EJKI_TRY(check_rows("w", words->w, rows, ejki_cdiv(columns * q->bits, unit), rank));
    EJKI_TRY(check_rows("scales", words->scales, rows, groups, rank));
    q->code_row = ejki_step(words->w, rank - 2) * unit / 8;
    q->code_group = matrix_stride(words->w) * unit / 8;
    q->scale_row = words->scales->strides[rank - 2];
    q->scale_group = matrix_stride(words->scales);
    q->has_factor = ejk_tensor_present(words->tensor_scale);
    if (q->has_factor && m->scales != 'v')
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "tensor_scale is given with mode %s",
                         m->name);
    if (!ejk_tensor_present(words->zeros)) return EJK_OK;
    if (q->mode != MM_AFFINE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "zeros are given with mode %s", m->name);
    EJKI_TRY(check_rows("zeros", words->zeros, rows, groups, rank));
    q->zero_type = (int)words->zeros->dtype;
    q->zero_row = words->zeros->strides[rank - 2];
    q->zero_group = matrix_stride(words->zeros);
    return EJK_OK;
}

/* ---- What results look like -------------------------------------------------------------------------- */

static int64_t bits_of(const struct mode *m, const ejki_quant_words *words) {
    return words->bits->set ? words->bits->value : m->bits ? m->bits : 4;
}

/* Values that share a scale; 0: all of a row. */
static int64_t group_of(const struct mode *m, const ejki_quant_words *words) {
    return words->group_size->set ? words->group_size->value : m->size;
}

int64_t ejki_quant_columns(const ejki_quant_words *words) {
    const struct mode *m;
    const ejk_tensor *w = words->w, *scales = words->scales;
    if (mode_of(words->mode, &m) != EJK_OK || w->rank < 1 || scales->rank < 1) return -1;
    const int64_t bits = bits_of(m, words), unit = w->dtype == EJK_DTYPE_U32 ? 32 : 8;
    const int64_t group = group_of(m, words);
    int64_t stored, most;
    if (bits < 1 || group < 0 || !ejki_mul(w->shape[w->rank - 1], unit, &stored)) return -1;
    stored /= bits;
    if (group == 0) return stored;
    return ejki_mul(scales->shape[scales->rank - 1], group, &most) ? ejki_min(stored, most)
                                                                   : stored;
}

bool ejki_quant_result(const ejki_quant_words *words, const ejk_tensor *values, const char *name,
                       ejk_tensor *view) {
    const struct mode *m;
    if (mode_of(words->mode, &m) != EJK_OK || values->rank < 2 || values->rank > 3) return false;
    const int64_t columns = values->shape[values->rank - 1], group = group_of(m, words);
    const int64_t bits = bits_of(m, words);
    int64_t length, all;
    if (bits < 1 || group < 0 || !ejki_mul(columns, bits, &all)) return false;
    if (strcmp(name, "w") == 0) {
        view->dtype = EJK_DTYPE_U32;
        length = ejki_cdiv(all, 32);
    } else if (strcmp(name, "scales") == 0 || strcmp(name, "zeros") == 0) {
        view->dtype = values->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F32 : values->dtype;
        if (m->scales == 'v') view->dtype = EJK_DTYPE_F8E4M3;
        if (m->scales == 'x')
            view->dtype = strcmp(words->scale_format, "signed") ? EJK_DTYPE_F8E8M0 : EJK_DTYPE_I8;
        length = ejki_cdiv(columns, ejki_max(1, group ? group : columns));
    } else {
        return false;
    }
    view->rank = values->rank;
    memcpy(view->shape, values->shape, sizeof view->shape);
    view->shape[view->rank - 1] = length;
    return true;
}

ejk_status ejki_quant_rounds(const ejk_opt_int *bits, bool along_depth, mm_quant *q) {
    if (!bits->set) return EJK_OK;
    if (bits->value != 8 || !along_depth)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "activation_bits is %lld%s, expected %s",
                         (long long)bits->value, along_depth ? "" : " without transpose",
                         along_depth ? "8" : "none");
    q->rounds = 1;
    return EJK_OK;
}

ejk_status ejki_quant_validate(const mm_quant *q, mm_size matrices, mm_size rows, mm_size columns) {
    for (mm_size i = 0; q->packed && i < matrices; i++)
        EJKI_TRY(ejki_packed_check((const char *)q->codes + i * q->code_group, q->code_group, q,
                                   rows, columns));
    return EJK_OK;
}

ejk_status ejki_quant_invent(const mm_quant *q, mm_size matrices, mm_size rows, mm_size columns,
                             uint64_t seed, void *codes) {
    const int64_t bytes = q->packed ? ejki_packed_usual(q, rows, columns) : 0;
    if (!q->packed || !codes) return EJK_OK;
    if (bytes > q->code_group)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "w has %lld bytes for a packed matrix, expected %lld",
                         (long long)q->code_group, (long long)bytes);
    for (mm_size i = 0; i < matrices; i++)
        ejki_packed_invent(q, rows, columns, seed + (uint64_t)i,
                           (uint8_t *)codes + i * q->code_group);
    return EJK_OK;
}

void ejki_quant_bind(const ejki_quant_words *words, mm_quant *q) {
    q->codes = words->w->data;
    q->scales = words->scales->data;
    q->zeros = words->zeros->data;
    q->factor = words->tensor_scale->data;
}
