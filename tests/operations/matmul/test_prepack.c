/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with codes whose groups run along the depth: packed beforehand or not, by any number of threads, one row by
 * itself or among many, the bits are the same, on every tier; rows rounded to 8 bits stay within what that implies.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 130, K = 200, ROWS = 30, EXPERTS = 3, PLACE = EXPERTS * N * K };

static const struct format {
    const char *mode;
    int bits, group;
    ejk_dtype scale, zero;
} formats[] = {
    {"affine", 4, 64, EJK_DTYPE_F16, EJK_DTYPE_F16},
    {"affine", 4, 32, EJK_DTYPE_F32, EJK_DTYPE_UNSET},
    {"affine", 8, 64, EJK_DTYPE_BF16, EJK_DTYPE_U8},
    {"affine", 3, 7, EJK_DTYPE_F32, EJK_DTYPE_F32},
    {"affine", 6, 200, EJK_DTYPE_F32, EJK_DTYPE_I32},
    {"int8", 8, K, EJK_DTYPE_F32, EJK_DTYPE_UNSET},
    {"nf4", 4, 64, EJK_DTYPE_F16, EJK_DTYPE_UNSET},
    {"mxfp4", 4, 32, EJK_DTYPE_F8E8M0, EJK_DTYPE_UNSET},
    {"mxfp8", 8, 32, EJK_DTYPE_F8E8M0, EJK_DTYPE_UNSET},
    {"nvfp4", 4, 16, EJK_DTYPE_F8E4M3, EJK_DTYPE_UNSET},
    {"nvfp8", 8, 16, EJK_DTYPE_F8E4M3, EJK_DTYPE_UNSET},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static ejk_context *context;
static float values[PLACE], x32[ROWS * K], gradient[ROWS * K], other[ROWS * K];
static float result[ROWS * N], again[ROWS * N], factor = 0.01f;
static uint16_t x16[ROWS * K];
enum { FIRST, SECOND }; /* matrices of experts */
static uint8_t codes[2][PLACE], packed[2][4 * PLACE], scales[2][4 * EXPERTS * N * (K / 7 + 1)],
    zeros[2][4 * EXPERTS * N * (K / 7 + 1)];

/* ---- Weights ----------------------------------------------------------------------------------------- */

static float number(void) {
    static uint32_t state = 1;
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        state = state * 1664525u + 1013904223u;
        sum += (float)(state >> 8) / 0x1p24f - 0.5f;
    }
    return sum;
}

static ejk_tensor shaped(void *data, ejk_dtype dtype, int64_t experts, int64_t rows,
                         int64_t columns) {
    return experts ? ejk_tensor_3d(data, dtype, experts, rows, columns)
                   : ejk_tensor_2d(data, dtype, rows, columns);
}

/* Matrices of a format and what prepack makes of them. */
static ejk_prepack_args quantised(int which, const struct format *f, int64_t experts, int64_t rows,
                                  int64_t columns) {
    const int64_t groups = (columns + f->group - 1) / f->group;
    ejk_quantize_args args = {
        .values = shaped(values, EJK_DTYPE_F32, experts, rows, columns),
        .bits = ejk_int(f->bits),
        .group_size = ejk_int(f->group),
        .w = shaped(codes[which], EJK_DTYPE_U8, experts, rows, (columns * f->bits + 7) / 8),
        .scales = shaped(scales[which], f->scale, experts, rows, groups)};
    strcpy(args.mode, f->mode);
    if (f->zero) args.zeros = shaped(zeros[which], f->zero, experts, rows, groups);
    if (f->scale == EJK_DTYPE_F8E4M3) args.tensor_scale = ejk_tensor_1d(&factor, EJK_DTYPE_F32, 1);
    for (int i = 0; i < PLACE; i++) values[i] = number();
    EXPECT_OK(ejk_quantize(context, &args));
    ejk_prepack_args pack = {.w = args.w,
                             .scales = args.scales,
                             .zeros = args.zeros,
                             .tensor_scale = args.tensor_scale,
                             .bits = args.bits,
                             .group_size = args.group_size,
                             .columns = ejk_int(columns)};
    int64_t width;
    strcpy(pack.mode, f->mode);
    EXPECT_OK(ejk_prepack_width(&pack, &width));
    assert_true(rows * width * (experts ? experts : 1) <= (int64_t)sizeof *packed);
    pack.packed = shaped(packed[which], EJK_DTYPE_U8, experts, rows, width);
    EXPECT_OK(ejk_prepack(context, &pack));
    return pack;
}

static ejk_quantized_matmul_args plain_call(const ejk_prepack_args *w, ejk_dtype dtype, int rows) {
    ejk_quantized_matmul_args args = {
        .x = ejk_tensor_2d(dtype == EJK_DTYPE_F32 ? (void *)x32 : x16, dtype, rows, K),
        .w = w->w,
        .scales = w->scales,
        .zeros = w->zeros,
        .tensor_scale = w->tensor_scale,
        .transpose = true,
        .bits = w->bits,
        .group_size = w->group_size,
        .preferred_element_type = EJK_DTYPE_F32,
        .out = ejk_tensor_2d(result, EJK_DTYPE_F32, rows, N)};
    strcpy(args.mode, w->mode);
    return args;
}

static void without_scales(ejk_quantized_matmul_args *args, const ejk_prepack_args *w) {
    args->w = w->packed;
    args->scales = args->zeros = args->tensor_scale = (ejk_tensor){0};
}

static void make_rows(void) {
    for (int i = 0; i < ROWS * K; i++) {
        x16[i] = ejk_f32_to_bf16(number());
        x32[i] = number();
    }
}

/* ---- The same bits ----------------------------------------------------------------------------------- */

static ejk_context *context_of(const char *isa, int threads) {
    ejk_context *made = NULL;
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.isa = isa, .threads = threads}, &made));
    return made;
}

/* A call, and others that should have its bits: packed, by three threads, and its last row alone. */
static void compare(ejk_context *one, ejk_context *three, const ejk_prepack_args *w,
                    ejk_dtype dtype, int rows, bool rounds) {
    ejk_quantized_matmul_args args = plain_call(w, dtype, rows);
    const size_t bytes = sizeof *result * (size_t)(rows * N), row = sizeof *result * N;
    if (rounds) args.activation_bits = ejk_int(8);
    EXPECT_OK(ejk_quantized_matmul(one, &args));
    args.out.data = again;
    EXPECT_OK(ejk_quantized_matmul(three, &args));
    assert_memory_equal(again, result, bytes);
    without_scales(&args, w);
    memset(again, 0, sizeof again);
    EXPECT_OK(ejk_quantized_matmul(three, &args));
    assert_memory_equal(again, result, bytes);
    args.x.data = (char *)args.x.data + (size_t)(rows - 1) * K * ejk_dtype_size(dtype);
    args.x.shape[0] = args.out.shape[0] = 1;
    EXPECT_OK(ejk_quantized_matmul(one, &args));
    assert_memory_equal(again, result + (rows - 1) * N, row);
}

static void packed_or_not_the_bits_are_the_same(void **state) {
    (void)state;
    static const char *const tiers[] = {"scalar",      "avx2", "avx512", "avx512_vnni",
                                        "avx512_bf16", "amx",  "neon"};
    static const int rows[] = {1, 3, 4, 5, 13, 29};
    make_rows();
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++) {
        ejk_isa isa;
        if (ejk_isa_from_name(tiers[t], &isa) != EJK_OK || !ejk_cpu()->tiers[isa]) continue;
        ejk_context *one = context_of(tiers[t], 1), *three = context_of(tiers[t], 3);
        for (int f = 0; f < FORMATS; f++) {
            const ejk_prepack_args w = quantised(FIRST, &formats[f], 0, N, K);
            for (int i = 0; i < 6; i++)
                for (int rounds = 0; rounds < 2; rounds++) {
                    compare(one, three, &w, EJK_DTYPE_F32, rows[i], rounds);
                    compare(one, three, &w, EJK_DTYPE_BF16, rows[i], rounds);
                }
        }
        ejk_context_destroy(one);
        ejk_context_destroy(three);
    }
}

static void gradients_take_packed_matrices(void **state) {
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        const ejk_prepack_args w = quantised(FIRST, &formats[f], 0, N, K);
        ejk_quantized_matmul_vjp_args args = {
            .x = ejk_tensor_2d(x32, EJK_DTYPE_F32, ROWS, K),
            .w = w.w,
            .scales = w.scales,
            .zeros = w.zeros,
            .tensor_scale = w.tensor_scale,
            .transpose = true,
            .bits = w.bits,
            .group_size = w.group_size,
            .d_out = ejk_tensor_2d(values, EJK_DTYPE_F32, ROWS, N),
            .d_x = ejk_tensor_2d(gradient, EJK_DTYPE_F32, ROWS, K)};
        strcpy(args.mode, w.mode);
        EXPECT_OK(ejk_quantized_matmul_vjp(context, &args));
        args.w = w.packed;
        args.scales = args.zeros = args.tensor_scale = (ejk_tensor){0};
        args.d_x.data = other;
        EXPECT_OK(ejk_quantized_matmul_vjp(context, &args));
        assert_memory_equal(gradient, other, sizeof gradient);
    }
}

/* A NaN of E4M3 reaches its column and no other. */
static void codes_that_are_no_numbers_stay_in_their_column(void **state) {
    (void)state;
    const ejk_prepack_args w = quantised(FIRST, &formats[8], 0, N, K);
    make_rows();
    codes[FIRST][7 * K + 150] = 0x7f;
    EXPECT_OK(ejk_prepack(context, &w));
    ejk_quantized_matmul_args args = plain_call(&w, EJK_DTYPE_F32, ROWS);
    EXPECT_OK(ejk_quantized_matmul(context, &args));
    for (int i = 0; i < ROWS * N; i++) assert_int_equal(isnan(result[i]) != 0, i % N == 7);
    without_scales(&args, &w);
    args.out.data = again;
    EXPECT_OK(ejk_quantized_matmul(context, &args));
    for (int i = 0; i < ROWS * N; i++) assert_int_equal(isnan(again[i]) != 0, i % N == 7);
}

/* ---- Rounded rows ------------------------------------------------------------------------------------ */

/* Half a step of a block for each of its elements, and float32's own errors. */
static void rounded_rows_stay_within_half_a_step(void **state) {
    (void)state;
    static float weights[N * K];
    make_rows();
    for (int f = 0; f < FORMATS; f++) {
        const ejk_prepack_args w = quantised(FIRST, &formats[f], 0, N, K);
        ejk_dequantize_args back = {.w = w.w,
                                    .scales = w.scales,
                                    .zeros = w.zeros,
                                    .tensor_scale = w.tensor_scale,
                                    .bits = w.bits,
                                    .group_size = w.group_size,
                                    .out = ejk_tensor_2d(weights, EJK_DTYPE_F32, N, K)};
        ejk_quantized_matmul_args args = plain_call(&w, EJK_DTYPE_F32, ROWS);
        strcpy(back.mode, w.mode);
        args.activation_bits = ejk_int(8);
        EXPECT_OK(ejk_dequantize(context, &back));
        EXPECT_OK(ejk_quantized_matmul(context, &args));
        double worst = 0;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < N; j++) {
                double sum = 0, bound = 0;
                for (int k = 0; k < K; k++) {
                    const int group = k / formats[f].group * formats[f].group;
                    const int first = group + (k - group) / 128 * 128;
                    const int ends[] = {first + 128, group + formats[f].group, K};
                    double most = 0;
                    for (int q = first; q < ends[0] && q < ends[1] && q < ends[2]; q++)
                        most = fmax(most, fabs((double)x32[i * K + q]));
                    const double v = (double)weights[j * K + k];
                    sum += (double)x32[i * K + k] * v;
                    bound += fabs(v) * (most / 254 + 1e-6);
                }
                const double error = fabs((double)result[i * N + j] - sum);
                assert_true(error <= bound);
                worst = fmax(worst, error / bound);
            }
        assert_true(worst > 1e-3); /* something was rounded */
    }
}

/* ---- Experts ----------------------------------------------------------------------------------------- */

static void dequantised(const ejk_prepack_args *w, int64_t rows, int64_t columns, float *to) {
    ejk_dequantize_args args = {.w = w->w,
                                .scales = w->scales,
                                .zeros = w->zeros,
                                .tensor_scale = w->tensor_scale,
                                .bits = w->bits,
                                .group_size = w->group_size,
                                .out = ejk_tensor_3d(to, EJK_DTYPE_F32, EXPERTS, rows, columns)};
    strcpy(args.mode, w->mode);
    EXPECT_OK(ejk_dequantize(context, &args));
}

/* As with the values that codes stand for; halves of w_gate_up do not begin at a panel. */
static void experts_may_be_codes(void **state) {
    (void)state;
    enum { TOKENS = 20, CHOSEN = 2, INNER = N / 2 };
    static float up[EXPERTS * N * K], down[EXPERTS * K * INNER], weight[TOKENS * CHOSEN];
    static float dense[TOKENS * K], coded[TOKENS * K], kept[TOKENS * K];
    static int32_t index[TOKENS * CHOSEN];
    make_rows();
    for (int i = 0; i < TOKENS * CHOSEN; i++) index[i] = i * 7 % 3 % 2 * 2, weight[i] = number();
    for (int f = 0; f < FORMATS; f++) {
        struct format format = formats[f];
        const bool row = strcmp(format.mode, "int8") == 0;
        const ejk_prepack_args first = quantised(FIRST, &format, EXPERTS, N, K);
        if (row) format.group = INNER;
        const ejk_prepack_args second = quantised(SECOND, &format, EXPERTS, K, INNER);
        dequantised(&first, N, K, up);
        dequantised(&second, K, INNER, down);
        ejk_moe_args args = {.hidden = ejk_tensor_2d(x32, EJK_DTYPE_F32, TOKENS, K),
                             .expert_index = ejk_tensor_2d(index, EJK_DTYPE_I32, TOKENS, CHOSEN),
                             .expert_weight = ejk_tensor_2d(weight, EJK_DTYPE_F32, TOKENS, CHOSEN),
                             .w_gate_up = ejk_tensor_3d(up, EJK_DTYPE_F32, EXPERTS, N, K),
                             .w_down = ejk_tensor_3d(down, EJK_DTYPE_F32, EXPERTS, K, INNER),
                             .transpose = true,
                             .out = ejk_tensor_2d(dense, EJK_DTYPE_F32, TOKENS, K)};
        EXPECT_OK(ejk_moe(context, &args));
        args.w_gate_up = first.w;
        args.gate_up_scales = first.scales;
        args.gate_up_zeros = first.zeros;
        args.gate_up_tensor_scale = first.tensor_scale;
        args.w_down = second.w;
        args.down_scales = second.scales;
        args.down_zeros = second.zeros;
        args.down_tensor_scale = second.tensor_scale;
        args.bits = first.bits;
        if (!row) args.group_size = first.group_size;
        strcpy(args.mode, first.mode);
        args.out.data = coded;
        EXPECT_OK(ejk_moe(context, &args));
        double error = 0, size = 0;
        for (int i = 0; i < TOKENS * K; i++) {
            error += pow((double)coded[i] - (double)dense[i], 2);
            size += pow((double)dense[i], 2);
        }
        assert_true(size > 0 && error < 1e-10 * size);
        args.w_gate_up = first.packed;
        args.w_down = second.packed;
        args.gate_up_scales = args.gate_up_zeros = args.gate_up_tensor_scale = (ejk_tensor){0};
        args.down_scales = args.down_zeros = args.down_tensor_scale = (ejk_tensor){0};
        args.out.data = kept;
        EXPECT_OK(ejk_moe(context, &args));
        assert_memory_equal(kept, coded, sizeof kept);
        args.w_down.shape[0]--;
        EXPECT_FAIL(INVALID_SHAPE, "w_down", ejk_moe(context, &args));
    }
}

/* ---- Bad calls --------------------------------------------------------------------------------------- */

static void bad_matrices_are_refused(void **state) {
    (void)state;
    const ejk_prepack_args w = quantised(FIRST, &formats[0], 0, N, K);
    ejk_quantized_matmul_args good = plain_call(&w, EJK_DTYPE_F32, 2), args;
    without_scales(&good, &w);
    EXPECT_OK(ejk_quantized_matmul(context, &good));
    memset(result, 7, sizeof result);
    memcpy(again, result, sizeof result);
    args = good;
    args.bits = ejk_int(3);
    EXPECT_FAIL(INVALID_ARGUMENT, "packed from", ejk_quantized_matmul(context, &args));
    args = good;
    args.group_size = ejk_int(32);
    EXPECT_FAIL(INVALID_ARGUMENT, "groups of 64", ejk_quantized_matmul(context, &args));
    args = good;
    args.x.shape[1] = K - 1;
    EXPECT_FAIL(INVALID_SHAPE, "130 x 200", ejk_quantized_matmul(context, &args));
    args = good;
    args.transpose = false;
    EXPECT_FAIL(INVALID_ARGUMENT, "transpose", ejk_quantized_matmul(context, &args));
    args = good;
    args.zeros = w.zeros;
    EXPECT_FAIL(INVALID_ARGUMENT, "zeros is given", ejk_quantized_matmul(context, &args));
    args = good;
    args.w = ejk_tensor_2d(packed[FIRST], EJK_DTYPE_U8, N, 40);
    EXPECT_FAIL(INVALID_ARGUMENT, "not whole", ejk_quantized_matmul(context, &args));
    args = good;
    args.activation_bits = ejk_int(4);
    EXPECT_FAIL(INVALID_ARGUMENT, "activation_bits is 4", ejk_quantized_matmul(context, &args));
    packed[FIRST][0] ^= 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "prepack", ejk_quantized_matmul(context, &good));
    packed[FIRST][0] ^= 1;
    packed[FIRST][4] = 2; /* another version */
    EXPECT_FAIL(INVALID_ARGUMENT, "prepack", ejk_quantized_matmul(context, &good));
    packed[FIRST][4] = 1;
    packed[FIRST][16] = 77; /* a type that scales never have */
    EXPECT_FAIL(INVALID_ARGUMENT, "not whole", ejk_quantized_matmul(context, &good));
    assert_memory_equal(result, again, sizeof result);
    ejk_prepack_args pack = w;
    pack.packed = ejk_tensor_2d(packed[FIRST], EJK_DTYPE_U8, N, w.packed.shape[1] + 1);
    EXPECT_FAIL(INVALID_SHAPE, "packed has rows", ejk_prepack(context, &pack));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_prepack_width(&pack, NULL));
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
        cmocka_unit_test(packed_or_not_the_bits_are_the_same),
        cmocka_unit_test(gradients_take_packed_matrices),
        cmocka_unit_test(codes_that_are_no_numbers_stay_in_their_column),
        cmocka_unit_test(rounded_rows_stay_within_half_a_step),
        cmocka_unit_test(experts_may_be_codes),
        cmocka_unit_test(bad_matrices_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
