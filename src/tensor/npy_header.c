/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the header of a .npy file without Python: exactly one dict literal with the keys descr,
 * fortran_order and shape, in any order and with any spacing. What a Python literal could be beyond what
 * array writers put there (escapes, nested lists, other number forms) is refused, not guessed.
 */
#include "tensor/npy.h"

#include "base/base.h"

#include <inttypes.h>
#include <string.h>

typedef struct reader {
    const char *file, *text;
    size_t at, length;
} reader;

typedef struct word {
    const char *text;
    size_t length;
} word;

enum { KEY_DESCR = 1, KEY_FORTRAN_ORDER = 2, KEY_SHAPE = 4 };

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next character that is no space, or NUL at the end; a NUL inside matches nothing either. */
static char peek(reader *in) {
    while (in->at < in->length && is_space(in->text[in->at])) in->at++;
    return in->at < in->length ? in->text[in->at] : '\0';
}

static bool accept(reader *in, char wanted) {
    if (peek(in) != wanted) return false;
    in->at++;
    return true;
}

static ejk_status expected(const reader *in, const char *what) {
    return ejki_fail(EJK_STATUS_MALFORMED, "%s: expected %s at byte %zu of the header", in->file,
                     what, in->at);
}

static bool is(word name, const char *text) {
    return name.length == strlen(text) && memcmp(name.text, text, name.length) == 0;
}

static ejk_status read_string(reader *in, word *out) {
    char quote = peek(in);
    if (quote != '\'' && quote != '"') return expected(in, "a string in quotes");
    size_t start = ++in->at;
    while (in->at < in->length && in->text[in->at] != quote) {
        if (in->text[in->at] < ' ' || in->text[in->at] > '~' || in->text[in->at] == '\\') {
            return expected(in, "a printable ASCII character other than a backslash");
        }
        in->at++;
    }
    if (in->at == in->length) return expected(in, "the closing quote of a string");
    *out = (word){in->text + start, in->at++ - start};
    return EJK_OK;
}

static const struct {
    const char *text; /* without the byte order */
    ejk_dtype dtype;
} descrs[] = {
    {"f8", EJK_DTYPE_F64},  {"f4", EJK_DTYPE_F32}, {"f2", EJK_DTYPE_F16}, {"i8", EJK_DTYPE_I64},
    {"i4", EJK_DTYPE_I32},  {"i2", EJK_DTYPE_I16}, {"i1", EJK_DTYPE_I8},  {"u1", EJK_DTYPE_U8},
    {"b1", EJK_DTYPE_BOOL}, {"u4", EJK_DTYPE_U32},
};

/* Types without a letter of NumPy's, by the names that ml_dtypes gives them. */
static const ejk_dtype named[] = {EJK_DTYPE_BF16, EJK_DTYPE_F8E4M3, EJK_DTYPE_F8E5M2,
                                  EJK_DTYPE_F8E8M0};

/* Files call bfloat16 two raw bytes, or by its name. */
static bool find_dtype(word descr, ejki_npy_header *out) {
    if (is(descr, "<V2") || is(descr, "|V2")) {
        out->dtype = EJK_DTYPE_BF16;
        return true;
    }
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (!is(descr, ejk_dtype_name(named[i]))) continue;
        out->dtype = named[i];
        return true;
    }
    if (descr.length == 0) return false;
    char order = descr.text[0];
    word type = {descr.text + 1, descr.length - 1};
    for (size_t i = 0; i < sizeof descrs / sizeof descrs[0]; i++) {
        if (!is(type, descrs[i].text)) continue;
        /* '|' says that order does not matter, which is true of single bytes only. */
        bool single = ejk_dtype_size(descrs[i].dtype) == 1;
        if (order != '<' && order != '>' && order != '=' && !(order == '|' && single)) return false;
        out->dtype = descrs[i].dtype;
        out->big_endian = order == '>';
        return true;
    }
    return false;
}

const char *ejki_npy_descr(ejk_dtype dtype) {
    static const char *const by_dtype[] = {
        [EJK_DTYPE_F64] = "<f8",
        [EJK_DTYPE_F32] = "<f4",
        [EJK_DTYPE_BF16] = "<V2",
        [EJK_DTYPE_F16] = "<f2",
        [EJK_DTYPE_I64] = "<i8",
        [EJK_DTYPE_I32] = "<i4",
        [EJK_DTYPE_I16] = "<i2",
        [EJK_DTYPE_I8] = "|i1",
        [EJK_DTYPE_U8] = "|u1",
        [EJK_DTYPE_BOOL] = "|b1",
        [EJK_DTYPE_U32] = "<u4",
        [EJK_DTYPE_F8E4M3] = "float8_e4m3fn",
        [EJK_DTYPE_F8E5M2] = "float8_e5m2",
        [EJK_DTYPE_F8E8M0] = "float8_e8m0fnu",
    };
    return by_dtype[dtype];
}

static ejk_status read_descr(reader *in, ejki_npy_header *out) {
    if (peek(in) == '[') {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "%s: its elements are structured (descr is a list), expected one plain "
                         "element type",
                         in->file);
    }
    word descr = {0};
    EJKI_TRY(read_string(in, &descr));
    if (find_dtype(descr, out)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                     "%s: element type '%.*s' is not supported, expected f8, f4, f2, i8, i4, i2, "
                     "i1, u4, u1, b1 with a byte order before it, bfloat16 as '<V2', or a name as "
                     "'float8_e4m3fn'",
                     in->file, (int)(descr.length < 40 ? descr.length : 40), descr.text);
}

static ejk_status read_bool(reader *in, bool *out) {
    size_t left = (peek(in), in->length - in->at);
    const char *text = in->text + in->at;
    bool yes = left >= 4 && memcmp(text, "True", 4) == 0;
    if (!yes && !(left >= 5 && memcmp(text, "False", 5) == 0)) {
        return expected(in, "True or False");
    }
    in->at += yes ? 4 : 5;
    *out = yes;
    return EJK_OK;
}

static ejk_status read_length(reader *in, int64_t *out) {
    char first = peek(in);
    if (first < '0' || first > '9') return expected(in, "a length (digits)");
    size_t start = in->at;
    int64_t value = 0;
    for (; in->at < in->length && in->text[in->at] >= '0' && in->text[in->at] <= '9'; in->at++) {
        if (!ejki_mul(value, 10, &value) || !ejki_add(value, in->text[in->at] - '0', &value)) {
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "%s: the length at byte %zu of the header does not fit 63 bits",
                             in->file, start);
        }
    }
    if (first == '0' && in->at - start > 1) {
        in->at = start;
        return expected(in, "a length without leading zeros");
    }
    *out = value;
    return EJK_OK;
}

/* '()', '(3,)', '(3, 4)' or '(3, 4,)'; '(3)' is a number in Python and no shape. */
static ejk_status read_shape(reader *in, ejki_npy_header *out) {
    if (!accept(in, '(')) return expected(in, "'(' of the shape");
    out->rank = 0;
    bool comma = true;
    while (!accept(in, ')')) {
        if (!comma) return expected(in, "',' or ')' in the shape");
        if (out->rank == EJK_MAX_RANK) {
            return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: more than %d axes (byte %zu)", in->file,
                             EJK_MAX_RANK, in->at);
        }
        EJKI_TRY(read_length(in, &out->shape[out->rank++]));
        comma = accept(in, ',');
    }
    if (out->rank == 1 && !comma) return expected(in, "',' before the ')' of a shape of one axis");
    return EJK_OK;
}

static ejk_status read_entry(reader *in, int *seen, ejki_npy_header *out) {
    word name = {0};
    EJKI_TRY(read_string(in, &name));
    int key = is(name, "descr")           ? KEY_DESCR
              : is(name, "fortran_order") ? KEY_FORTRAN_ORDER
              : is(name, "shape")         ? KEY_SHAPE
                                          : 0;
    if (key == 0 || (*seen & key) != 0) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%s: key '%.*s' %s (byte %zu of the header), expected descr, "
                         "fortran_order and shape once each",
                         in->file, (int)(name.length < 40 ? name.length : 40), name.text,
                         key == 0 ? "is unknown" : "comes twice", in->at);
    }
    *seen |= key;
    if (!accept(in, ':')) return expected(in, "':' after a key");
    if (key == KEY_DESCR) return read_descr(in, out);
    if (key == KEY_FORTRAN_ORDER) return read_bool(in, &out->fortran_order);
    return read_shape(in, out);
}

ejk_status ejki_npy_parse_header(const char *file, const char *text, size_t length,
                                 ejki_npy_header *out) {
    reader in = {.file = file, .text = text, .length = length};
    ejki_npy_header header = {0};
    int seen = 0;
    if (!accept(&in, '{')) return expected(&in, "'{'");
    bool comma = true;
    while (!accept(&in, '}')) {
        if (!comma) return expected(&in, "',' or '}'");
        EJKI_TRY(read_entry(&in, &seen, &header));
        comma = accept(&in, ',');
    }
    if (seen != (KEY_DESCR | KEY_FORTRAN_ORDER | KEY_SHAPE)) {
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: the header has no '%s'", file,
                         !(seen & KEY_DESCR)           ? "descr"
                         : !(seen & KEY_FORTRAN_ORDER) ? "fortran_order"
                                                       : "shape");
    }
    peek(&in);
    if (in.at != in.length) return expected(&in, "nothing but spaces after '}'");
    *out = header;
    return EJK_OK;
}
