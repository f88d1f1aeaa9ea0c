/* SPDX-License-Identifier: Apache-2.0 */
#include "record/expression.h"

#include <stdio.h>
#include <string.h>

enum { DEEPEST = 16 }; /* parentheses within each other */

/* (add + factor * the unknown symbol) / divisor, in lowest terms, with divisor > 0. */
typedef struct form {
    ejki_length_state state; /* KNOWN and LINEAR: the numbers count */
    int64_t add, factor, divisor;
} form;

typedef struct reader {
    const char *at;
    const ejk_axes *axes; /* NULL: read only */
    int32_t member;
    int32_t depth;
    bool failed;
    char symbol[EJK_SYMBOL_SIZE]; /* the unknown; "" = none yet */
} reader;

/* ---- Words ------------------------------------------------------------------------------------------ */

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

size_t ejki_symbol_size(const char *text) {
    size_t size = 0;
    if (letter(text[0]))
        while (letter(text[size]) || digit(text[size]) || text[size] == '_') size++;
    return size;
}

bool ejki_symbol(const char *text, size_t size, char out[EJK_SYMBOL_SIZE]) {
    if (size == 0 || size >= EJK_SYMBOL_SIZE || ejki_symbol_size(text) < size) return false;
    memset(out, 0, EJK_SYMBOL_SIZE);
    memcpy(out, text, size);
    return true;
}

/* The symbol at the start of a text, with the member's number in the place of "#"; *size: bytes of both. */
static bool member_symbol(const char *text, int32_t member, size_t *size,
                          char out[EJK_SYMBOL_SIZE]) {
    const size_t word = ejki_symbol_size(text);
    *size = word;
    if (word == 0 || text[word] != '#') return ejki_symbol(text, word, out);
    *size = word + 1;
    memset(out, 0, EJK_SYMBOL_SIZE);
    return snprintf(out, EJK_SYMBOL_SIZE, "%.*s%d", (int)word, text, (int)member) < EJK_SYMBOL_SIZE;
}

bool ejki_digits(const char **text, int64_t *out) {
    const char *at = *text;
    int64_t value = 0;
    if (!digit(*at)) return false;
    for (; digit(*at); at++)
        if (!ejki_mul(value, 10, &value) || !ejki_add(value, *at - '0', &value)) return false;
    *text = at;
    *out = value;
    return true;
}

/* Bytes of a word that takes an argument, "ceil(" or "floor("; 0 if there is none here. */
static size_t function_size(const char *at) {
    return strncmp(at, "ceil(", 5) == 0 ? 5 : strncmp(at, "floor(", 6) == 0 ? 6 : 0;
}

/* ---- Arithmetic ------------------------------------------------------------------------------------- */

static const form never = {.state = EJKI_LENGTH_NEVER};

static form number(int64_t value) {
    return (form){EJKI_LENGTH_KNOWN, value, 0, 1};
}

/* What two operands leave of each other: NEVER before OPEN before numbers. */
static bool hopeless(const form *x, const form *y, form *out) {
    const bool is_never = x->state == EJKI_LENGTH_NEVER || y->state == EJKI_LENGTH_NEVER;
    const bool open = x->state == EJKI_LENGTH_OPEN || y->state == EJKI_LENGTH_OPEN;
    out->state = is_never ? EJKI_LENGTH_NEVER : EJKI_LENGTH_OPEN;
    return is_never || open;
}

static int64_t magnitude(int64_t a) {
    return a < 0 ? -a : a; /* never the least number: reduce() refuses it */
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static form reduce(int64_t add, int64_t factor, int64_t divisor) {
    if (add == INT64_MIN || factor == INT64_MIN || divisor == INT64_MIN || divisor == 0)
        return never;
    const int64_t common =
        common_divisor(common_divisor(magnitude(divisor), magnitude(add)), magnitude(factor));
    const int64_t unit = divisor < 0 ? -common : common;
    return (form){factor != 0 ? EJKI_LENGTH_LINEAR : EJKI_LENGTH_KNOWN, add / unit, factor / unit,
                  divisor / unit};
}

static form sum(form x, form y, int64_t sign) {
    form out;
    int64_t add[2], factor[2], divisor;
    if (hopeless(&x, &y, &out)) return out;
    if (!ejki_mul(y.add, sign, &y.add) || !ejki_mul(y.factor, sign, &y.factor) ||
        !ejki_mul(x.add, y.divisor, &add[0]) || !ejki_mul(y.add, x.divisor, &add[1]) ||
        !ejki_mul(x.factor, y.divisor, &factor[0]) || !ejki_mul(y.factor, x.divisor, &factor[1]) ||
        !ejki_mul(x.divisor, y.divisor, &divisor) || !ejki_add(add[0], add[1], &add[0]) ||
        !ejki_add(factor[0], factor[1], &factor[0]))
        return never;
    return reduce(add[0], factor[0], divisor);
}

static form product(form x, form y) {
    form out;
    int64_t add, factor[2], divisor;
    if (hopeless(&x, &y, &out)) return out;
    if (x.factor != 0 && y.factor != 0) return (form){.state = EJKI_LENGTH_OPEN};
    if (!ejki_mul(x.add, y.add, &add) || !ejki_mul(x.add, y.factor, &factor[0]) ||
        !ejki_mul(x.factor, y.add, &factor[1]) || !ejki_mul(x.divisor, y.divisor, &divisor))
        return never;
    return reduce(add, factor[0] != 0 ? factor[0] : factor[1], divisor);
}

static form quotient(form x, form y) {
    form out;
    if (hopeless(&x, &y, &out)) return out;
    if (y.factor != 0) return (form){.state = EJKI_LENGTH_OPEN};
    if (y.add == 0) return never;
    return product(x, reduce(y.divisor, 0, y.add));
}

/* A known number up or down to a whole one; the direction of "/" in C depends on the sign. */
static form round_to(form x, bool up) {
    if (x.state == EJKI_LENGTH_LINEAR) return (form){.state = EJKI_LENGTH_OPEN};
    if (x.state != EJKI_LENGTH_KNOWN) return x;
    const int64_t rest = x.add % x.divisor;
    return number(x.add / x.divisor + (up ? rest > 0 : -(rest < 0)));
}

/* ---- Reading ---------------------------------------------------------------------------------------- */

static form read_sum(reader *r);

static form fail(reader *r) {
    r->failed = true;
    return never;
}

/* "(" has been read. */
static form read_inner(reader *r) {
    if (r->depth == DEEPEST) return fail(r);
    r->depth++;
    const form inner = read_sum(r);
    r->depth--;
    if (r->failed) return never;
    if (*r->at != ')') return fail(r);
    r->at++;
    return inner;
}

static form read_symbol(reader *r) {
    char symbol[EJK_SYMBOL_SIZE];
    size_t size;
    if (!member_symbol(r->at, r->member, &size, symbol)) return fail(r);
    r->at += size;
    const int64_t length = r->axes != NULL ? ejk_axes_get(r->axes, symbol) : -1;
    if (length >= 0) return number(length);
    if (r->symbol[0] == '\0') memcpy(r->symbol, symbol, sizeof symbol);
    if (strcmp(r->symbol, symbol) == 0) return (form){EJKI_LENGTH_LINEAR, 0, 1, 1};
    return (form){.state = EJKI_LENGTH_OPEN};
}

static form read_factor(reader *r) {
    const size_t function = function_size(r->at);
    int64_t value;
    if (ejki_digits(&r->at, &value)) return number(value);
    if (*r->at == '(') {
        r->at++;
        return read_inner(r);
    }
    if (function == 0) return read_symbol(r);
    const bool up = *r->at == 'c';
    r->at += function;
    return round_to(read_inner(r), up);
}

static form read_term(reader *r) {
    form value = read_factor(r);
    while (!r->failed && (*r->at == '*' || *r->at == '/')) {
        const bool times = *r->at++ == '*';
        const form other = read_factor(r);
        value = times ? product(value, other) : quotient(value, other);
    }
    return value;
}

static form read_sum(reader *r) {
    form value = read_term(r);
    while (!r->failed && (*r->at == '+' || *r->at == '-')) {
        const int64_t sign = *r->at++ == '+' ? 1 : -1;
        value = sum(value, read_term(r), sign);
    }
    return value;
}

bool ejki_length_read(const char **at, ejki_length *out) {
    reader r = {.at = *at};
    (void)read_sum(&r);
    *out = (ejki_length){.text = *at, .size = (int32_t)(r.at - *at)};
    *at = r.at;
    return !r.failed;
}

/* ---- Values ----------------------------------------------------------------------------------------- */

ejki_value ejki_bound_value(const ejki_length *length, const ejk_axes *axes) {
    const bool negative = *length->text == '-';
    reader r = {.at = length->text + negative, .axes = axes, .member = length->member};
    form f = read_sum(&r);
    if (negative) f = product(f, number(-1));
    ejki_value value = {f.state, f.add, f.add, f.factor, f.divisor, ""};
    memcpy(value.symbol, r.symbol, sizeof value.symbol);
    if (f.state == EJKI_LENGTH_KNOWN && f.divisor != 1) value.state = EJKI_LENGTH_NEVER;
    return value;
}

ejki_value ejki_length_value(const ejki_length *length, const ejk_axes *axes) {
    ejki_value value = ejki_bound_value(length, axes);
    if (value.state == EJKI_LENGTH_KNOWN && value.value < 0) value.state = EJKI_LENGTH_NEVER;
    return value;
}

bool ejki_length_solve(const ejki_value *value, int64_t length, int64_t *out) {
    int64_t scaled;
    if (!ejki_mul(length, value->divisor, &scaled) ||
        __builtin_sub_overflow(scaled, value->add, &scaled) || scaled == INT64_MIN ||
        scaled % value->factor != 0 || scaled / value->factor < 0)
        return false;
    *out = scaled / value->factor;
    return true;
}

/* The first symbol of a length at or after *at. */
static bool next_symbol(const char **at, const ejki_length *length, char out[EJK_SYMBOL_SIZE]) {
    const char *end = length->text + length->size;
    while (*at < end) {
        const size_t function = function_size(*at);
        size_t size;
        const bool found = member_symbol(*at, length->member, &size, out) && function == 0;
        *at += function > 0 ? function : size > 0 ? size : 1;
        if (found) return true;
    }
    return false;
}

bool ejki_length_symbol(const ejki_length *length, const char **at, char out[EJK_SYMBOL_SIZE]) {
    char other[EJK_SYMBOL_SIZE];
    const char *begin = *at;
    while (next_symbol(at, length, out)) {
        bool seen = false;
        const ejki_length earlier = {length->text, (int32_t)(begin - length->text), length->member};
        for (const char *before = length->text; !seen && next_symbol(&before, &earlier, other);)
            seen = strcmp(other, out) == 0;
        if (!seen) return true;
        begin = *at;
    }
    return false;
}

bool ejki_length_plain(const ejki_length *length) {
    for (int32_t i = 0; i < length->size; i++)
        if (strchr("+-*/(", length->text[i]) != NULL) return false;
    return true;
}
