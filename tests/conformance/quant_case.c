/* SPDX-License-Identifier: Apache-2.0 */
/* quantize, dequantize, prepack, quantized_matmul and its gradients. Codes and values are made here in another way. */
#include "conformance/cases.h"
#include "conformance/product.h"

#include <string.h>

enum kind_of_code { AFFINE, INT8, NF4, FP4, FP8 };

struct format {
    const char *mode, *scale_format;
    enum kind_of_code kind;
    int64_t bits, size, rows, columns, groups, matrices; /* matrices 0: no axis */
    ejk_dtype scale_type, zero_type;
    bool says_bits, says_size, has_factor, bytes;
};

struct quant {
    struct format f;
    bool rounds;
    ejk_tensor w, scales, zeros, factor, values;
    int64_t m, k, n;
    double *x, *weights, *rounded, *bias, *residual, *rows; /* rows: where x is d_out */
};

/* ---- Formats ----------------------------------------------------------------------------------------- */

/* What kernels for codes of 4 bits take. */
static struct format long_groups(struct random *r, int64_t rows, int64_t columns) {
    static const ejk_dtype zeros[] = {EJK_DTYPE_UNSET, EJK_DTYPE_UNSET, EJK_DTYPE_UNSET,
                                      EJK_DTYPE_U8, EJK_DTYPE_I8};
    static const ejk_dtype numbers[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    return (struct format){.mode = "affine",
                           .scale_format = "",
                           .kind = AFFINE,
                           .bits = 4,
                           .size = random_chance(r, 0.5) ? 128 : 256,
                           .says_bits = true,
                           .says_size = true,
                           .rows = rows,
                           .columns = columns,
                           .scale_type = RANDOM_OF(r, numbers),
                           .zero_type = RANDOM_OF(r, zeros)};
}

static struct format choose(struct random *r, int64_t rows, int64_t columns, double is_long) {
    static const struct format formats[] = {
        {.mode = "", .kind = AFFINE, .bits = 4, .size = 64},
        {.mode = "affine", .kind = AFFINE, .bits = 8, .size = 64},
        {.mode = "int8", .kind = INT8, .bits = 8, .scale_type = EJK_DTYPE_F32},
        {.mode = "nf4", .kind = NF4, .bits = 4, .size = 64},
        {.mode = "mxfp4", .kind = FP4, .bits = 4, .size = 32, .scale_type = EJK_DTYPE_F8E8M0},
        {.mode = "mxfp8", .kind = FP8, .bits = 8, .size = 32, .scale_type = EJK_DTYPE_F8E8M0},
        {.mode = "nvfp4", .kind = FP4, .bits = 4, .size = 16, .scale_type = EJK_DTYPE_F8E4M3},
        {.mode = "nvfp8", .kind = FP8, .bits = 8, .size = 16, .scale_type = EJK_DTYPE_F8E4M3}};
    static const ejk_dtype numbers[] = {EJK_DTYPE_F16, EJK_DTYPE_F32, EJK_DTYPE_BF16};
    static const ejk_dtype zeros[] = {EJK_DTYPE_UNSET, EJK_DTYPE_F16, EJK_DTYPE_F32,
                                      EJK_DTYPE_BF16,  EJK_DTYPE_U8,  EJK_DTYPE_I32};
    static const int64_t sizes[] = {16, 32, 64, 128, 100, 1024, 7};
    struct format f = RANDOM_OF(r, formats);
    f.rows = rows;
    f.columns = columns;
    f.scale_format = "";
    if (f.kind == AFFINE) {
        f.zero_type = RANDOM_OF(r, zeros);
        f.says_bits = f.bits != 4 || random_chance(r, 0.5);
        if (f.says_bits && random_chance(r, 0.6)) f.bits = random_int(r, 1, 8);
    }
    if (f.scale_type == EJK_DTYPE_UNSET) f.scale_type = RANDOM_OF(r, numbers);
    if (f.scale_type == EJK_DTYPE_F8E8M0 && random_chance(r, 0.5)) {
        f.scale_type = EJK_DTYPE_I8;
        f.scale_format = "signed";
    }
    if (random_chance(r, is_long)) f = long_groups(r, rows, columns);
    f.has_factor = f.scale_type == EJK_DTYPE_F8E4M3 && random_chance(r, 0.6);
    if (f.size == 0)
        f.size = columns > 0 ? columns : 1;
    else if (!f.says_size && random_chance(r, 0.5))
        f.says_size = true, f.size = RANDOM_OF(r, sizes);
    f.groups = columns / f.size + (columns % f.size != 0);
    f.bytes = random_chance(r, 0.3);
    return f;
}

static ejk_tensor rows_of(struct call *c, const struct format *f, ejk_dtype type, int64_t width) {
    if (f->matrices) return CALL_TENSOR(c, type, f->matrices, f->rows, width);
    return CALL_TENSOR(c, type, f->rows, width);
}

static void make_tensors(struct call *c, struct quant *p) {
    const struct format *f = &p->f;
    const int64_t unit = f->bytes ? 8 : 32;
    p->w = rows_of(c, f, f->bytes ? EJK_DTYPE_U8 : EJK_DTYPE_U32,
                   (f->columns * f->bits + unit - 1) / unit);
    p->scales = rows_of(c, f, f->scale_type, f->groups);
    if (f->zero_type) p->zeros = rows_of(c, f, f->zero_type, f->groups);
    if (f->has_factor) p->factor = CALL_TENSOR(c, EJK_DTYPE_F32, 1);
    if (f->has_factor) tensor_put(&p->factor, 0, random_real(&c->random) / 64 + 0.001);
}

/* Any codes and scales. */
static void fill(struct call *c, struct quant *p) {
    struct random *r = &c->random;
    const bool powers = p->f.scale_type == EJK_DTYPE_F8E8M0;
    unsigned char *bytes = p->w.data;
    const int64_t size = ejk_tensor_count(&p->w) * (p->f.bytes ? 1 : 4);
    for (int64_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)random_bits(r);
        if (p->f.kind == FP8 && (bytes[i] & 0x7f) == 0x7f) bytes[i] = 0; /* NaN */
    }
    for (int64_t i = 0; i < ejk_tensor_count(&p->scales); i++) {
        const int64_t e = random_int(r, -6, 3);
        if (p->f.scale_type == EJK_DTYPE_I8)
            tensor_put(&p->scales, i, (double)e);
        else
            tensor_put(&p->scales, i, powers ? ldexp(1, (int)e) : random_real(r) + 0.01);
    }
    for (int64_t i = 0; p->f.zero_type && i < ejk_tensor_count(&p->zeros); i++)
        tensor_put(&p->zeros, i, (double)random_int(r, 0, (1 << p->f.bits) - 1));
}

static uint32_t code_at(const struct quant *p, int64_t row, int64_t c) {
    const int64_t stride = p->w.shape[p->w.rank - 1] * (p->f.bytes ? 1 : 4);
    const unsigned char *bytes = (const unsigned char *)p->w.data + row * stride;
    uint32_t code = 0;
    for (int i = 0; i < p->f.bits; i++) {
        const int64_t bit = c * p->f.bits + i;
        code |= (uint32_t)((bytes[bit / 8] >> bit % 8) & 1) << i;
    }
    return code;
}

/* A number of `exponent` and `mantissa` bits with a sign before them, as IEEE has them. */
static double small_float(uint32_t code, int exponent, int mantissa, int bias) {
    const uint32_t m = code & ((1u << mantissa) - 1), e = code >> mantissa & ((1u << exponent) - 1);
    const double size = e == 0 ? ldexp(m, 1 - bias - mantissa)
                               : ldexp(m + (1u << mantissa), (int)e - bias - mantissa);
    return code >> (exponent + mantissa) ? -size : size;
}

static double number_of(const struct format *f, uint32_t code, double zero) {
    static const float nf4[16] = {
        -1.0f,     -.6961928f, -.52507305f, -.3949175f, -.28444138f, -.18477343f, -.09105004f, 0,
        .0795803f, .1609302f,  .2461123f,   .33791524f, .44070983f,  .562617f,    .72295684f,  1};
    switch (f->kind) {
    case INT8: return (int8_t)code;
    case NF4: return (double)nf4[code];
    case FP4: return small_float(code, 2, 1, 1);
    case FP8: return small_float(code, 4, 3, 7);
    default: return (double)((float)code - (float)zero);
    }
}

static double value_at(const struct quant *p, int64_t row, int64_t c) {
    const struct format *f = &p->f;
    const int64_t group = row * f->groups + c / f->size;
    double scale = tensor_get(&p->scales, group), zero = 1 << (f->bits - 1);
    if (f->scale_type == EJK_DTYPE_I8) scale = ldexp(1, (int)scale);
    if (f->zero_type) zero = tensor_get(&p->zeros, group);
    const float value = (float)(number_of(f, code_at(p, row, c), zero) * scale);
    return f->has_factor ? (double)(float)((double)value * tensor_get(&p->factor, 0))
                         : (double)value;
}

#define SET_FORMAT(args, p)                                                                        \
    do {                                                                                           \
        const struct format *f_ = &(p)->f;                                                         \
        strcpy((args)->mode, f_->mode);                                                            \
        strcpy((args)->scale_format, f_->scale_format);                                            \
        if (f_->says_bits) (args)->bits = ejk_int(f_->bits);                                       \
        if (f_->says_size) (args)->group_size = ejk_int(f_->size);                                 \
        (args)->w = (p)->w;                                                                        \
        (args)->scales = (p)->scales;                                                              \
        (args)->zeros = (p)->zeros;                                                                \
        (args)->tensor_scale = (p)->factor;                                                        \
    } while (0)

/* ---- dequantize -------------------------------------------------------------------------------------- */

static struct quant *make(struct call *c) {
    static const int64_t columns[] = {0, 1, 5, 16, 31, 33, 64, 65, 100, 200};
    struct quant *p = call_memory(c, sizeof *p);
    c->own = p;
    p->f = choose(&c->random, random_int(&c->random, 0, 5), RANDOM_OF(&c->random, columns), 0.15);
    p->f.matrices = random_chance(&c->random, 0.3) ? random_int(&c->random, 1, 3) : 0;
    make_tensors(c, p);
    return p;
}

static bool generate_values(struct call *c) {
    ejk_dequantize_args *args = c->args;
    struct quant *p = make(c);
    fill(c, p);
    SET_FORMAT(args, p);
    args->out = rows_of(c, &p->f, c->dtype, p->f.columns);
    return true;
}

static void values(struct call *c) {
    const struct quant *p = c->own;
    double *out = call_result(c, "out", EXACT, ELEMENT);
    const int64_t columns = p->f.columns, rows = p->f.rows * (p->f.matrices ? p->f.matrices : 1);
    for (int64_t i = 0; i < rows * columns; i++) out[i] = value_at(p, i / columns, i % columns);
}

/* ---- prepack ----------------------------------------------------------------------------------------- */

static int64_t words_of_block(const struct format *f, int64_t count) {
    const int64_t unit = f->bits > 4 ? 4 : 8;
    return (count + unit - 1) / unit;
}

/* Types that are kept as they are, or one that has all their values. */
static ejk_dtype kept_scale(const struct format *f) {
    return f->scale_type == EJK_DTYPE_I8 ? EJK_DTYPE_BF16 : f->scale_type;
}
static ejk_dtype kept_zero(const struct format *f) {
    const bool kept = f->zero_type != EJK_DTYPE_I32 && f->zero_type != EJK_DTYPE_I8;
    return kept ? f->zero_type : EJK_DTYPE_F32;
}

/* One row: of the 64 of a stream the others are 0. Matrices of more rows have gaps here, which they must not. */
static bool generate_packed(struct call *c) {
    static const int64_t columns[] = {1, 5, 16, 31, 33, 64, 65, 100, 200, 300};
    ejk_prepack_args *args = c->args;
    struct quant *p = call_memory(c, sizeof *p);
    c->own = p;
    p->f = choose(&c->random, 1, RANDOM_OF(&c->random, columns), 0.15);
    make_tensors(c, p);
    fill(c, p);
    SET_FORMAT(args, p);
    args->columns = ejk_int(p->f.columns);
    int64_t bytes = 64;
    for (int64_t k = 0; k < p->f.columns;) {
        const int64_t in = k % p->f.size, left = p->f.columns - k;
        int64_t count = in + 128 < p->f.size ? 128 : p->f.size - in;
        if (count > left) count = left;
        bytes +=
            64 * (words_of_block(&p->f, count) * 4 + (int64_t)ejk_dtype_size(kept_scale(&p->f)) +
                  (p->f.zero_type ? (int64_t)ejk_dtype_size(kept_zero(&p->f)) : 0));
        k += count;
    }
    p->n = bytes;
    args->packed = CALL_TENSOR(c, EJK_DTYPE_U8, 1, bytes);
    return true;
}

static void put_bytes(double *out, int64_t *at, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) out[(*at)++] = ((const unsigned char *)data)[i];
}

/* An element of a type, and 63 that are 0. */
static void put_element(struct call *c, double *out, int64_t *at, ejk_dtype type, double value) {
    const ejk_tensor all = CALL_TENSOR(c, type, 64);
    tensor_put(&all, 0, value);
    put_bytes(out, at, all.data, 64 * ejk_dtype_size(type));
}

static void put_header(const struct quant *p, double *out, int64_t *at) {
    static const int modes[] = {[AFFINE] = 0, [INT8] = 1, [NF4] = 2, [FP4] = 3, [FP8] = 4};
    const struct format *f = &p->f;
    const int32_t words[] = {1,
                             modes[f->kind],
                             (int32_t)f->bits,
                             (int32_t)kept_scale(f),
                             f->zero_type ? (int32_t)kept_zero(f) : 0,
                             0};
    const float factor = f->has_factor ? (float)tensor_get(&p->factor, 0) : 1;
    const int64_t sizes[] = {1, f->columns, f->size, 0};
    put_bytes(out, at, "EJKW", 4);
    put_bytes(out, at, words, sizeof words);
    put_bytes(out, at, &factor, sizeof factor);
    put_bytes(out, at, sizes, sizeof sizes);
}

/* Code k as it is kept: affine ones of few bits with the middle of those of 4 or 8. */
static uint32_t kept_code(const struct quant *p, int64_t k) {
    const struct format *f = &p->f;
    const uint32_t code = code_at(p, 0, k);
    if (f->kind == INT8) return code ^ 0x80;
    if (f->kind != AFFINE) return code;
    return code + (f->bits > 4 ? 128u : 8u) - (1u << (f->bits - 1));
}

static void packed(struct call *c) {
    const struct quant *p = c->own;
    const struct format *f = &p->f;
    double *out = call_result(c, "packed", EXACT, ELEMENT);
    const int unit = f->bits > 4 ? 4 : 8;
    int64_t at = 0;
    put_header(p, out, &at);
    for (int64_t first = 0, end; first < f->columns; first = end) {
        const int64_t group = first / f->size;
        end = (first - group * f->size) / 128 * 128 + 128 + group * f->size;
        if (end > (group + 1) * f->size) end = (group + 1) * f->size;
        if (end > f->columns) end = f->columns;
        for (int64_t line = 0; line < words_of_block(f, end - first); line++) {
            uint32_t word = 0;
            for (int k = 0; k < unit && first + line * unit + k < end; k++)
                word |= kept_code(p, first + line * unit + k)
                        << (unit == 4 ? 8 * k : 16 * (k % 2) + 4 * (k / 2));
            put_bytes(out, &at, &word, 4);
            at += 63 * 4;
        }
        double scale = tensor_get(&p->scales, group);
        if (f->scale_type == EJK_DTYPE_I8) scale = ldexp(1, (int)scale);
        put_element(c, out, &at, kept_scale(f), scale);
        if (f->zero_type) put_element(c, out, &at, kept_zero(f), tensor_get(&p->zeros, group));
    }
}

/* ---- quantize ---------------------------------------------------------------------------------------- */

static bool generate_codes(struct call *c) {
    ejk_quantize_args *args = c->args;
    struct quant *p = make(c);
    SET_FORMAT(args, p);
    args->values = p->values = rows_of(c, &p->f, c->dtype, p->f.columns);
    product_fill(c, &p->values, false);
    if (random_chance(&c->random, 0.5)) strcpy(args->scale_rule, "floor");
    return true;
}

static void scale_group(const ejk_quantize_args *args, struct quant *p, int64_t row, int64_t g) {
    const struct format *f = &p->f;
    const int64_t first = g * f->size,
                  end = first + f->size < f->columns ? first + f->size : f->columns;
    const float top = f->kind == FP4 ? 6 : f->kind == FP8 ? 448 : f->kind == INT8 ? 127 : 1;
    float low = INFINITY, high = -INFINITY, size = 0;
    for (int64_t c = first; c < end; c++) {
        const float x = (float)tensor_get(&p->values, row * f->columns + c);
        low = fminf(low, x), high = fmaxf(high, x), size = fmaxf(size, fabsf(x));
    }
    const float factor = f->has_factor ? (float)tensor_get(&p->factor, 0) : 1;
    double scale = (double)(size / (top * factor));
    if (f->kind == AFFINE)
        scale = (double)(f->zero_type ? (high - low) / (float)((1 << f->bits) - 1)
                                      : size / (float)(1 << (f->bits - 1)));
    if (f->kind == AFFINE && scale == 0) scale = 1;
    if (f->scale_type == EJK_DTYPE_I8 || f->scale_type == EJK_DTYPE_F8E8M0) {
        int e = f->scale_type == EJK_DTYPE_I8 ? -128 : -127;
        while (e < 127 && (double)size > (double)top * ldexp(1, e)) e++;
        if (strcmp(args->scale_rule, "floor") == 0)
            for (e = f->scale_type == EJK_DTYPE_I8 ? -128 : -127;
                 e < 127 && (double)size >= ldexp(f->kind == FP4 ? 8 : 512, e);)
                e++;
        scale = f->scale_type == EJK_DTYPE_I8 ? e : ldexp(1, e);
    }
    tensor_put(&p->scales, row * f->groups + g, scale);
    if (!f->zero_type) return;
    const float rounded = (float)tensor_get(&p->scales, row * f->groups + g);
    double zero = rounded == 0 ? 0 : (double)(-low / rounded);
    if (f->zero_type > EJK_DTYPE_F16) zero = fmax(0, fmin(rint(zero), (1 << f->bits) - 1));
    tensor_put(&p->zeros, row * f->groups + g, zero);
}

/* The code whose number is nearest to y; of two the even one, of two zeros that of y's sign. */
static uint32_t nearest(const struct format *f, float y, float zero) {
    const uint32_t count = 1u << f->bits;
    uint32_t best = 0;
    double least = INFINITY;
    if (f->kind == AFFINE) return (uint32_t)fminf(fmaxf(rintf(y + zero), 0), (float)(count - 1));
    for (uint32_t code = 0; code < count; code++) {
        if (f->kind == FP8 && (code & 0x7f) == 0x7f) continue;
        if (f->kind == INT8 && code == 0x80) continue;
        const double off = fabs(number_of(f, code, 0) - (double)y);
        if (f->kind >= FP4 && (code >> (f->bits - 1) == 1) != (signbit(y) != 0)) continue;
        if (off < least || (off == least && code % 2 == 0 && f->kind != NF4))
            best = code, least = off;
    }
    return best;
}

static void codes(struct call *c) {
    const ejk_quantize_args *args = c->args;
    struct quant *p = c->own, own = *p;
    const struct format *f = &p->f;
    double *w = call_result(c, "w", EXACT, ELEMENT),
           *scales = call_result(c, "scales", EXACT, ELEMENT);
    double *zeros = call_result(c, "zeros", EXACT, ELEMENT);
    const int64_t rows = f->rows * (f->matrices ? f->matrices : 1);
    make_tensors(c, &own); /* not into those that hold what a run should not leave */
    if (f->has_factor) own.factor = p->factor;
    const int64_t stride = own.w.shape[own.w.rank - 1] * (f->bytes ? 1 : 4);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < f->columns; i++) {
            const int64_t g = row * f->groups + i / f->size;
            if (i % f->size == 0) scale_group(args, &own, row, i / f->size);
            double scale = tensor_get(&own.scales, g);
            if (f->scale_type == EJK_DTYPE_I8) scale = ldexp(1, (int)scale);
            const float factor = f->has_factor ? (float)tensor_get(&p->factor, 0) : 1;
            const float by = (float)scale * factor,
                        x = (float)tensor_get(&p->values, row * f->columns + i);
            const double zero = f->zero_type ? tensor_get(&own.zeros, g) : 1 << (f->bits - 1);
            const uint32_t code = nearest(f, by == 0 ? 0 : x / by, (float)zero);
            for (int64_t b = 0; b < f->bits; b++) {
                const int64_t bit = i * f->bits + b;
                ((unsigned char *)own.w.data)[row * stride + bit / 8] |=
                    (unsigned char)((code >> b & 1) << bit % 8);
            }
        }
    for (int64_t i = 0; i < ejk_tensor_count(&own.w); i++) w[i] = tensor_get(&own.w, i);
    for (int64_t i = 0; i < rows * f->groups; i++) scales[i] = tensor_get(&own.scales, i);
    for (int64_t i = 0; zeros && i < rows * f->groups; i++) zeros[i] = tensor_get(&own.zeros, i);
}

/* ---- Products ---------------------------------------------------------------------------------------- */

static struct quant *make_product(struct call *c, bool transposed) {
    static const int64_t rows[] = {0, 1, 1, 3, 12, 13, 30},
                         sizes[] = {0, 1, 2, 16, 31, 64, 65, 130, 300};
    static const int64_t tiled_rows[] = {1, 2, 8, 9, 17, 33, 64, 66, 100, 130, 130, 200, 200, 290},
                         depths[] = {31, 64, 128, 130, 256, 300, 1000, 1024, 2100, 4100};
    struct random *r = &c->random;
    struct quant *p = call_memory(c, sizeof *p);
    c->own = p;
    c->tiled = c->tiled || random_chance(r, 0.3);
    p->m = c->tiled ? RANDOM_OF(r, tiled_rows) : RANDOM_OF(r, rows);
    p->k = c->tiled ? RANDOM_OF(r, depths) : RANDOM_OF(r, sizes);
    p->n = RANDOM_OF(r, sizes);
    while (p->m * p->k * p->n > c->budget && p->k > 1) p->k /= 2;
    p->f = choose(r, transposed ? p->n : p->k, transposed ? p->k : p->n, c->tiled ? 0.6 : 0.15);
    make_tensors(c, p);
    fill(c, p);
    return p;
}

static bool generate(struct call *c) {
    static const char *activations[] = {"", "", "silu", "relu", "gelu_tanh"};
    ejk_quantized_matmul_args *args = c->args;
    struct random *r = &c->random;
    args->transpose = random_chance(r, 0.7);
    struct quant *p = make_product(c, args->transpose);
    p->rounds = args->transpose && random_chance(r, c->tiled ? 0.1 : 0.4);
    if (p->rounds) args->activation_bits = ejk_int(8);
    SET_FORMAT(args, p);
    strcpy(args->activation, RANDOM_OF(r, activations));
    args->x = CALL_TENSOR(c, c->dtype, p->m, p->k);
    product_fill(c, &args->x, true);
    if (random_chance(r, 0.3)) {
        args->bias = CALL_TENSOR(c, product_type(c), p->n);
        product_fill(c, &args->bias, false);
    }
    if (random_chance(r, 0.3)) {
        args->residual = CALL_TENSOR(c, product_type(c), p->m, p->n);
        product_fill(c, &args->residual, false);
    }
    const ejk_dtype type = random_chance(r, 0.7) ? c->dtype : product_type(c);
    if (type != c->dtype) args->preferred_element_type = type;
    args->out = CALL_TENSOR(c, type, p->m, p->n);
    c->scarce = p->m * p->n < 64;
    return true;
}

/* A gradient of scales or zeros that are numbers, now and then. */
static ejk_tensor gradient_of(struct call *c, const ejk_tensor *of) {
    const ejk_dtype own = of->dtype;
    const bool is_number = own == EJK_DTYPE_F32 || own == EJK_DTYPE_BF16 || own == EJK_DTYPE_F16;
    if (!is_number || random_chance(&c->random, 0.4)) return (ejk_tensor){0};
    return CALL_TENSOR(c, random_chance(&c->random, 0.5) ? own : product_type(c), of->shape[0],
                       of->shape[1]);
}

static bool generate_vjp(struct call *c) {
    ejk_quantized_matmul_vjp_args *args = c->args;
    args->transpose = random_chance(&c->random, 0.6);
    const struct quant *p = make_product(c, args->transpose);
    SET_FORMAT(args, p);
    c->gradient = true;
    args->x = CALL_TENSOR(c, c->dtype, p->m, p->k);
    args->d_out = CALL_TENSOR(c, c->dtype, p->m, p->n);
    product_fill(c, &args->x, false);
    product_fill(c, &args->d_out, false);
    args->d_x = CALL_TENSOR(c, c->dtype, p->m, p->k);
    args->d_scales = gradient_of(c, &args->scales);
    args->d_zeros = gradient_of(c, &args->zeros);
    return true;
}

/* Row-major [K,N]. */
static double *weights_of(struct call *c, const struct quant *p, bool transposed) {
    double *values_of = call_memory(c, (size_t)(p->k * p->n) * sizeof *values_of);
    for (int64_t i = 0; i < p->k * p->n; i++)
        values_of[i] =
            transposed ? value_at(p, i % p->n, i / p->n) : value_at(p, i / p->n, i % p->n);
    return values_of;
}

static void products(struct call *c, int order) {
    const ejk_quantized_matmul_args *args = c->args;
    struct quant *p = c->own;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    if (!p->weights) p->weights = weights_of(c, p, args->transpose);
    if (!p->x) {
        p->x = tensor_values(c, &args->x);
        for (int64_t i = 0; p->rounds && i < p->m; i++)
            product_round_row(p->x + i * p->k, p->k, p->f.size);
    }
    if (!p->bias) p->bias = tensor_values(c, &args->bias);
    if (!p->residual) p->residual = tensor_values(c, &args->residual);
    for (int64_t at = 0; at < p->m * p->n; at++) {
        const int64_t j = at % p->n, i = at / p->n;
        double size = 0;
        long double sum =
            product_sum(c, order, p->k, p->x + i * p->k, 1, p->weights + j, p->n, &size);
        if (p->bias) sum = product_round(c, order, sum + (long double)p->bias[j]);
        sum = product_round(c, order, product_activate(args->activation, 7, sum, 0));
        if (p->residual) sum = product_round(c, order, sum + (long double)p->residual[at]);
        out[at] = (double)sum;
        if (spread)
            spread[at] =
                size + (p->bias ? fabs(p->bias[j]) : 0) + (p->residual ? fabs(p->residual[at]) : 0);
    }
}

static void exact(struct call *c) {
    products(c, EXACT);
}

/* Of the scale (or the zero) of each group: what the matrix would have as its gradient, times derivatives. */
static void over_groups(struct call *c, int order, const char *name, bool by_zero) {
    const ejk_quantized_matmul_vjp_args *args = c->args;
    struct quant *p = c->own;
    const struct format *f = &p->f;
    double *out = call_result(c, name, order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, name, SPREAD, ELEMENT) : NULL;
    if (!out) return;
    if (!p->rows) p->rows = tensor_values(c, &args->x);
    for (int64_t at = 0; at < f->rows * f->columns; at++) {
        const int64_t row = at / f->columns, i = at % f->columns;
        const int64_t k = args->transpose ? i : row, n = args->transpose ? row : i;
        const int64_t group = row * f->groups + i / f->size;
        double size = 0, zero = 1 << (f->bits - 1);
        if (f->zero_type) zero = tensor_get(&p->zeros, group);
        double by = number_of(f, code_at(p, row, i), zero);
        if (by_zero) by = -tensor_get(&p->scales, group);
        long double sum = product_sum(c, order, p->m, p->rows + k, p->k, p->x + n, p->n, &size);
        sum = product_round(c, order, sum * (long double)by);
        out[group] = (double)product_round(c, order, (long double)out[group] + sum);
        if (spread) spread[group] += size * fabs(by);
    }
}

static void gradients(struct call *c, int order) {
    const ejk_quantized_matmul_vjp_args *args = c->args;
    struct quant *p = c->own;
    double *d_x = call_result(c, "d_x", order, ELEMENT);
    if (!p->weights) p->weights = weights_of(c, p, args->transpose);
    if (!p->rounded) p->rounded = product_rounded(c, p->weights, p->k * p->n);
    if (!p->x) p->x = tensor_values(c, &args->d_out);
    const double *weights = order == EXACT ? p->weights : p->rounded;
    for (int64_t at = 0; at < p->m * p->k; at++)
        d_x[at] = (double)product_sum(c, order, p->n, p->x + at / p->k * p->n, 1,
                                      weights + at % p->k * p->n, 1, NULL);
    over_groups(c, order, "d_scales", false);
    over_groups(c, order, "d_zeros", true);
}

const struct operation quantize_case = {
    .op = "quantize", .cases = 150, .generate = generate_codes, .exact = codes};
const struct operation dequantize_case = {
    .op = "dequantize", .cases = 150, .generate = generate_values, .exact = values};
const struct operation prepack_case = {
    .op = "prepack", .cases = 150, .generate = generate_packed, .exact = packed};
const struct operation quantized_matmul_case = {.op = "quantized_matmul",
                                                .cases = 100,
                                                .generate = generate,
                                                .exact = exact,
                                                .naive = products};
#define GOOD                                                                                       \
    "transpose=true x=[3,64] w=uint8[5,32] scales=[5,4] zeros=[5,4] group_size=16 d_out=[3,5] "    \
    "d_x=[3,64] d_scales=[5,4] d_zeros=[5,4]"
static const struct refused refused[] = {
    {EJK_STATUS_OK, "", "zeros=uint8[5,4] d_zeros="},
    {EJK_STATUS_INVALID_SHAPE, "d_scales", "d_scales=[5,3]"},
    {EJK_STATUS_INVALID_SHAPE, "d_zeros", "d_zeros=[4,4]"},
    {EJK_STATUS_INVALID_DTYPE, "d_scales: int8 given", "d_scales=int8[5,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "d_zeros is given without zeros", "zeros="},
    {EJK_STATUS_INVALID_ARGUMENT, "d_zeros is given, but zeros of uint8", "zeros=uint8[5,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "d_scales is given, but scales of float8_e8m0fnu",
     "mode=mxfp4 scales=float8_e8m0fnu[5,4] zeros= d_zeros="},
    {EJK_STATUS_INVALID_ARGUMENT, "d_scales is given, but scales of float8_e4m3fn",
     "mode=nvfp4 scales=float8_e4m3fn[5,4] zeros= d_zeros="},
    {EJK_STATUS_INVALID_ARGUMENT, "d_scales is given without scales",
     "w=uint8[5,400] scales= zeros= d_zeros="},
    {.changes = NULL}};
REFUSED_CALL(ejk_quantized_matmul_vjp)

/* Gradients have no rounded rows. */
const struct operation quantized_matmul_vjp_case = {.op = "quantized_matmul_vjp",
                                                    .never = "/bytes",
                                                    .cases = 50,
                                                    .generate = generate_vjp,
                                                    .naive = gradients,
                                                    .call = ejk_quantized_matmul_vjp_call,
                                                    .good = GOOD,
                                                    .refused = refused};
