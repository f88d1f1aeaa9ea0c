/* SPDX-License-Identifier: Apache-2.0 */
/* quantize and dequantize: every code, what was lost elsewhere, the sentences of bad calls. */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

static ejk_context *context;

enum { CODES = 256 };
static uint8_t w[CODES], scale8[CODES];
static float scale[CODES], out[CODES], values[CODES];
static uint16_t scale16[CODES], zero16[CODES];

/* A number of a sign, `exponent` and `mantissa` bits. */
static float small_float(int code, int exponent, int mantissa, int bias) {
    const int m = code & ((1 << mantissa) - 1), e = code >> mantissa & ((1 << exponent) - 1);
    const double size =
        e == 0 ? ldexp(m, 1 - bias - mantissa) : ldexp(m + (1 << mantissa), e - bias - mantissa);
    return (float)(code >> (exponent + mantissa) ? -size : size);
}

static void dequantize(const char *mode, int count, int bytes, ejk_tensor scales) {
    ejk_dequantize_args args = {.w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, bytes),
                                .scales = scales,
                                .group_size = ejk_int(count),
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, count)};
    strcpy(args.mode, mode);
    EXPECT_OK(ejk_dequantize(context, &args));
}

static void every_code_has_its_value(void **state) {
    (void)state;
    for (int i = 0; i < CODES; i++) w[i] = (uint8_t)i;
    scale8[0] = 127 - 3; /* 2^-3 */
    const ejk_tensor power = ejk_tensor_2d(scale8, EJK_DTYPE_F8E8M0, 1, 1);
    dequantize("mxfp8", CODES, CODES, power);
    for (int i = 0; i < CODES; i++) {
        const float wanted = small_float(i, 4, 3, 7) / 8;
        if ((i & 127) == 127)
            assert_true(isnan(out[i]));
        else
            assert_memory_equal(&out[i], &wanted, sizeof wanted);
    }
    scale[0] = 0.37f;
    dequantize("int8", CODES, CODES, ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1));
    for (int i = 0; i < CODES; i++) assert_true(out[i] == (float)(int8_t)i * scale[0]);
    for (int i = 0; i < 8; i++) w[i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
    dequantize("mxfp4", 16, 8, power);
    for (int i = 0; i < 16; i++) {
        const float wanted = small_float(i, 2, 1, 1) / 8;
        assert_memory_equal(&out[i], &wanted, sizeof wanted);
    }
    dequantize("affine", 16, 8, ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1));
    for (int i = 0; i < 16; i++) assert_true(out[i] == (float)(i - 8) * scale[0]);
}

/* 256 codes of 1 to 8 bits, the lowest bits first, with zeros of whole numbers and of half ones. */
static void every_code_of_every_width_has_its_value(void **state) {
    (void)state;
    static float zero[1];
    for (int bits = 1; bits <= 8; bits++)
        for (int with = 0; with < 3; with++) {
            memset(w, 0, sizeof w);
            for (int i = 0; i < CODES * bits; i++)
                w[i / 8] |= (uint8_t)((i / bits % (1 << bits) >> (i % bits) & 1) << (i % 8));
            scale[0] = 0.37f;
            zero[0] = with == 1 ? 3 : 2.5f;
            ejk_dequantize_args args = {.w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, CODES * bits / 8),
                                        .scales = ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1),
                                        .bits = ejk_int(bits),
                                        .group_size = ejk_int(CODES),
                                        .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, CODES)};
            if (with) args.zeros = ejk_tensor_2d(zero, EJK_DTYPE_F32, 1, 1);
            EXPECT_OK(ejk_dequantize(context, &args));
            for (int i = 0; i < CODES; i++) {
                const float code = (float)(i % (1 << bits));
                const float wanted =
                    (code - (with ? zero[0] : (float)(1 << (bits - 1)))) * scale[0];
                assert_memory_equal(&out[i], &wanted, sizeof wanted);
            }
        }
}

/* NF4 by its definition; nvfp4 and nvfp8 with scales E4M3 and a factor of all. */
static void every_code_of_a_table_has_its_value(void **state) {
    (void)state;
    static const float nf4[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};
    static float factor[1] = {3};
    for (int i = 0; i < 8; i++) w[i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
    scale[0] = 0.37f;
    dequantize("nf4", 16, 8, ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1));
    for (int i = 0; i < 16; i++) assert_true(out[i] == nf4[i] * scale[0]);
    for (int s = 0; s < CODES; s++) { /* every scale, too */
        scale8[0] = (uint8_t)s;
        ejk_dequantize_args args = {.mode = "nvfp4",
                                    .w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, 8),
                                    .scales = ejk_tensor_2d(scale8, EJK_DTYPE_F8E4M3, 1, 1),
                                    .tensor_scale = ejk_tensor_1d(factor, EJK_DTYPE_F32, 1),
                                    .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, 16)};
        EXPECT_OK(ejk_dequantize(context, &args));
        for (int i = 0; i < 16; i++) {
            const float wanted = small_float(i, 2, 1, 1) * small_float(s, 4, 3, 7) * factor[0];
            assert_true((s & 127) == 127 ? isnan(out[i]) : out[i] == wanted);
        }
    }
    for (int i = 0; i < CODES; i++) w[i] = (uint8_t)i;
    for (int i = 0; i < CODES / 16; i++) scale8[i] = 0x38 + 4; /* 1.5 */
    ejk_dequantize_args args = {.mode = "nvfp8",
                                .w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, CODES),
                                .scales = ejk_tensor_2d(scale8, EJK_DTYPE_F8E4M3, 1, CODES / 16),
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, CODES)};
    EXPECT_OK(ejk_dequantize(context, &args));
    for (int i = 0; i < CODES; i++)
        assert_true((i & 127) == 127 ? isnan(out[i]) : out[i] == small_float(i, 4, 3, 7) * 1.5f);
}

/* Largest error of values and what becomes of them, relative to the largest of them. */
static double lost(ejk_quantize_args args, int count) {
    double error = 0, size = 0;
    args.values = ejk_tensor_2d(values, EJK_DTYPE_F32, 1, count);
    EXPECT_OK(ejk_quantize(context, &args));
    ejk_dequantize_args back = {.w = args.w,
                                .scales = args.scales,
                                .zeros = args.zeros,
                                .tensor_scale = args.tensor_scale,
                                .bits = args.bits,
                                .group_size = args.group_size,
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, count)};
    strcpy(back.mode, args.mode);
    EXPECT_OK(ejk_dequantize(context, &back));
    for (int i = 0; i < count; i++) {
        error = fmax(error, fabs((double)(out[i] - values[i])));
        size = fmax(size, fabs((double)values[i]));
    }
    return error / size;
}

/* Elsewhere weights of 1e-4 became 0, as scales were E4M3 without a scale for all. */
#ifdef __SSE2__
/* Programs that set the processor to take subnormal floats for 0, as JAX does, lose no codes that are subnormal. */
static void subnormal_codes_stay_where_floats_do_not(void **state) {
    (void)state;
    enum { ROWS = 8, DEPTH = 32, FLUSHED = 0x8040 };
    static const char *const tiers[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    static float identity[DEPTH * DEPTH], found[DEPTH * ROWS];
    for (int i = 0; i < CODES; i++)
        w[i] = (uint8_t)((i & 127) == 127 ? 0 : i); /* NaN takes its row along */
    for (int i = 0; i < DEPTH; i++) identity[i * DEPTH + i] = 1;
    memset(scale8, 127 - 3, ROWS);
    for (size_t n = 0; n < sizeof tiers / sizeof *tiers; n++) {
        const ejk_context_options options = {.threads = 1, .isa = tiers[n]};
        ejk_context *own;
        if (ejk_context_create(&options, &own) != EJK_OK) continue;
        for (int rows = 1; rows <= DEPTH; rows += DEPTH - 1) {
            const ejk_quantized_matmul_args args = {
                .mode = "mxfp8",
                .transpose = true,
                .x = ejk_tensor_2d(identity, EJK_DTYPE_F32, rows, DEPTH),
                .w = ejk_tensor_2d(w, EJK_DTYPE_U8, ROWS, DEPTH),
                .scales = ejk_tensor_2d(scale8, EJK_DTYPE_F8E8M0, ROWS, 1),
                .out = ejk_tensor_2d(found, EJK_DTYPE_F32, rows, ROWS)};
            const unsigned before = _mm_getcsr();
            _mm_setcsr(before | FLUSHED);
            const ejk_status status = ejk_quantized_matmul(own, &args);
            _mm_setcsr(before);
            EXPECT_OK(status);
            for (int i = 0; i < rows * ROWS; i++)
                assert_true(found[i] == small_float(w[i % ROWS * DEPTH + i / ROWS], 4, 3, 7) / 8);
        }
        ejk_context_destroy(own);
    }
}
#endif

static void small_weights_stay(void **state) {
    (void)state;
    static float factor;
    ejk_quantize_args args = {.mode = "nvfp4",
                              .tensor_scale = ejk_tensor_1d(&factor, EJK_DTYPE_F32, 1),
                              .w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, 32),
                              .scales = ejk_tensor_2d(scale8, EJK_DTYPE_F8E4M3, 1, 4)};
    for (int i = 0; i < 64; i++) values[i] = (float)(i % 13 - 6) * 1e-4f / 6;
    factor = 1e-4f / (448 * 6);
    assert_true(lost(args, 64) < 0.2);
}

/* Elsewhere zeros overflowed float16 with a large mean. */
static void large_means_stay(void **state) {
    (void)state;
    ejk_quantize_args args = {.bits = ejk_int(8),
                              .w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, 64),
                              .scales = ejk_tensor_2d(scale16, EJK_DTYPE_F16, 1, 1),
                              .zeros = ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1)};
    for (int i = 0; i < 64; i++) values[i] = 1000 + (float)i / 64;
    assert_true(lost(args, 64) < 1e-3);
    args.zeros = ejk_tensor_2d(zero16, EJK_DTYPE_F16, 1, 1);
    EXPECT_OK(ejk_quantize(
        context, &(ejk_quantize_args){.values = ejk_tensor_2d(values, EJK_DTYPE_F32, 1, 64),
                                      .bits = args.bits,
                                      .w = args.w,
                                      .scales = args.scales,
                                      .zeros = args.zeros}));
    assert_int_equal(zero16[0] & 0x7c00, 0x7800); /* finite */
}

/* Nobody multiplies it: sanitizers would say so. */
static void the_stride_of_one_row_may_be_any(void **state) {
    (void)state;
    ejk_dequantize_args args = {.w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, 32),
                                .scales = ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1),
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, 64)};
    for (int i = 0; i < 32; i++) w[i] = (uint8_t)(7 * i);
    scale[0] = 1;
    args.w.strides[0] = args.scales.strides[0] = args.out.strides[0] = INT64_MIN;
    EXPECT_OK(ejk_dequantize(context, &args));
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == (float)((i % 2 ? w[i / 2] >> 4 : w[i / 2] & 15) - 8));
}

static void bad_calls_say_why(void **state) {
    (void)state;
    ejk_dequantize_args args = {.w = ejk_tensor_2d(w, EJK_DTYPE_U8, 1, 32),
                                .scales = ejk_tensor_2d(scale, EJK_DTYPE_F32, 1, 1),
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, 1, 64)};
    EXPECT_OK(ejk_dequantize(context, &args));
    args.bits = ejk_int(9);
    EXPECT_FAIL(INVALID_ARGUMENT, "bits is 9", ejk_dequantize(context, &args));
    args.bits = ejk_int(3);
    EXPECT_FAIL(INVALID_SHAPE, "w has rows", ejk_dequantize(context, &args));
    args.bits = ejk_int(4);
    args.group_size = ejk_int(16);
    EXPECT_FAIL(INVALID_SHAPE, "scales has rows", ejk_dequantize(context, &args));
    args.group_size = ejk_int(64);
    args.tensor_scale = ejk_tensor_1d(scale, EJK_DTYPE_F32, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "tensor_scale is given with mode affine",
                ejk_dequantize(context, &args));
    args.tensor_scale = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    strcpy(args.mode, "nf4");
    args.zeros = args.scales;
    EXPECT_FAIL(INVALID_ARGUMENT, "zeros are given with mode nf4", ejk_dequantize(context, &args));
    strcpy(args.mode, "mxfp4");
    EXPECT_FAIL(INVALID_DTYPE, "float8_e8m0fnu", ejk_dequantize(context, &args));
    strcpy(args.mode, "fp3");
    EXPECT_FAIL(UNKNOWN_NAME, "nvfp8", ejk_dequantize(context, &args));
}

static int open_context(void **state) {
    (void)state;
    return ejk_context_create(NULL, &context) == EJK_OK ? 0 : -1;
}
static int close_context(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(every_code_of_every_width_has_its_value),
        cmocka_unit_test(every_code_of_a_table_has_its_value),
#ifdef __SSE2__
        cmocka_unit_test(subnormal_codes_stay_where_floats_do_not),
#endif
        cmocka_unit_test(small_weights_stay),
        cmocka_unit_test(large_means_stay),
        cmocka_unit_test(the_stride_of_one_row_may_be_any),
        cmocka_unit_test(bad_calls_say_why),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
