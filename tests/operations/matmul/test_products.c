/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matmul, grouped_matmul and gradients of quantized_matmul: what was wrong elsewhere, bits of a row among others, the
 * sentences of bad calls.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include <math.h>
#include <string.h>

static ejk_context *context;

enum { ROWS = 65, DEPTH = 70, COLUMNS = 45, GROUPS = 3 };
static float lhs[ROWS * DEPTH], rhs[GROUPS * DEPTH * COLUMNS], out[ROWS * COLUMNS],
    other[ROWS * COLUMNS];
static int32_t sizes[GROUPS], offset[1];

static float number(int n) {
    return (float)(((int64_t)n * 7919 + 13) % 2001 - 1000) / 512;
}

static void fill(void) {
    for (int i = 0; i < ROWS * DEPTH; i++) lhs[i] = number(i);
    for (int i = 0; i < GROUPS * DEPTH * COLUMNS; i++) rhs[i] = number(3 * i + 1);
    for (int i = 0; i < ROWS * COLUMNS; i++) out[i] = other[i] = -77;
}

static ejk_grouped_matmul_args grouped(int rows, int a, int b, int c) {
    sizes[0] = a, sizes[1] = b, sizes[2] = c;
    return (ejk_grouped_matmul_args){.lhs = ejk_tensor_2d(lhs, EJK_DTYPE_F32, rows, DEPTH),
                                     .rhs =
                                         ejk_tensor_3d(rhs, EJK_DTYPE_F32, GROUPS, DEPTH, COLUMNS),
                                     .group_sizes = ejk_tensor_1d(sizes, EJK_DTYPE_I32, GROUPS),
                                     .out = ejk_tensor_2d(out, EJK_DTYPE_F32, rows, COLUMNS)};
}

static double wanted(int row, int group, int column) {
    double sum = 0;
    for (int k = 0; k < DEPTH; k++)
        sum += (double)lhs[row * DEPTH + k] * (double)rhs[(group * DEPTH + k) * COLUMNS + column];
    return sum;
}

/* ---- Quantised matrices ------------------------------------------------------------------------------ */

enum { LINES = 5, CODES = 40, SIZE = 16, SHARED = 3, M = 3 };

/* Σ d_out · out of small whole numbers, which is exact. */
static double loss(const ejk_quantized_matmul_vjp_args *of, const float *d_out) {
    ejk_quantized_matmul_args args = {.x = of->x,
                                      .w = of->w,
                                      .scales = of->scales,
                                      .zeros = of->zeros,
                                      .transpose = of->transpose,
                                      .group_size = of->group_size,
                                      .out = of->d_out};
    double sum = 0;
    args.out.data = out;
    EXPECT_OK(ejk_quantized_matmul(context, &args));
    for (int64_t i = 0; i < ejk_tensor_count(&args.out); i++)
        sum += (double)out[i] * (double)d_out[i];
    return sum;
}

/* Values are linear in either, so that a step of 1 is a derivative. */
static void gradients_of_scales_and_zeros_are_differences(void **state) {
    (void)state;
    static uint8_t w[LINES * CODES / 2];
    static float x[M * CODES], d_out[M * CODES], scale[LINES * SHARED], zero[LINES * SHARED],
        d_x[M * CODES], d_scale[LINES * SHARED], d_zero[LINES * SHARED];
    for (int i = 0; i < M * CODES; i++)
        x[i] = (float)(i * 7 % 11 - 5), d_out[i] = (float)(i * 5 % 7 - 3);
    for (int i = 0; i < LINES * CODES / 2; i++) w[i] = (uint8_t)(i * 37);
    for (int i = 0; i < LINES * SHARED; i++)
        scale[i] = (float)(i % 4 + 1), zero[i] = (float)(i * 3 % 16);
    for (int transposed = 0; transposed < 2; transposed++) {
        const int k = transposed ? CODES : LINES, n = transposed ? LINES : CODES;
        ejk_quantized_matmul_vjp_args args = {
            .x = ejk_tensor_2d(x, EJK_DTYPE_F32, M, k),
            .w = ejk_tensor_2d(w, EJK_DTYPE_U8, LINES, CODES / 2),
            .scales = ejk_tensor_2d(scale, EJK_DTYPE_F32, LINES, SHARED),
            .zeros = ejk_tensor_2d(zero, EJK_DTYPE_F32, LINES, SHARED),
            .transpose = transposed != 0,
            .group_size = ejk_int(SIZE),
            .d_out = ejk_tensor_2d(d_out, EJK_DTYPE_F32, M, n),
            .d_x = ejk_tensor_2d(d_x, EJK_DTYPE_F32, M, k),
            .d_scales = ejk_tensor_2d(d_scale, EJK_DTYPE_F32, LINES, SHARED),
            .d_zeros = ejk_tensor_2d(d_zero, EJK_DTYPE_F32, LINES, SHARED)};
        EXPECT_OK(ejk_quantized_matmul_vjp(context, &args));
        const double start = loss(&args, d_out);
        for (int i = 0; i < LINES * SHARED; i++) {
            scale[i] += 1;
            EXPECT_NEAR((double)d_scale[i], loss(&args, d_out) - start, 0);
            scale[i] -= 1;
            zero[i] += 1;
            EXPECT_NEAR((double)d_zero[i], loss(&args, d_out) - start, 0);
            zero[i] -= 1;
        }
    }
}

/* ---- Values ------------------------------------------------------------------------------------------ */

/* Elsewhere existing_out was overwritten, ignored, refused, or an error unless the rows were a multiple of 128. */
static void existing_out_is_added_to(void **state) {
    (void)state;
    static float existing[ROWS * COLUMNS];
    fill();
    for (int i = 0; i < ROWS * COLUMNS; i++) existing[i] = number(i + 5);
    ejk_grouped_matmul_args args = grouped(ROWS, 20, 0, 30);
    args.existing_out = ejk_tensor_2d(existing, EJK_DTYPE_F32, ROWS, COLUMNS);
    EXPECT_OK(ejk_grouped_matmul(context, &args));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            const double sum = i < 20 ? wanted(i, 0, j) : i < 50 ? wanted(i, 2, j) : 0;
            EXPECT_NEAR((double)out[i * COLUMNS + j], sum + (double)existing[i * COLUMNS + j],
                        1e-3);
        }
    args.cfg = (ejk_grouped_matmul_config){.platform = "simd"};
    /* All names are the same operation, and preferred_element_type need not be given. */
    memcpy(other, out, sizeof out);
    EXPECT_OK(ejk_grouped_matmulv2(context, &args));
    assert_true(memcmp(other, out, sizeof out) == 0);
    EXPECT_OK(ejk_grouped_matmulv3(context, &args));
    assert_true(memcmp(other, out, sizeof out) == 0);
}

/* Elsewhere the tile of columns came from the wrong axis. */
static void transposed_matrices_give_the_same(void **state) {
    (void)state;
    static float turned[GROUPS * DEPTH * COLUMNS];
    fill();
    for (int g = 0; g < GROUPS; g++)
        for (int k = 0; k < DEPTH; k++)
            for (int j = 0; j < COLUMNS; j++)
                turned[(g * COLUMNS + j) * DEPTH + k] = rhs[(g * DEPTH + k) * COLUMNS + j];
    ejk_grouped_matmul_args args = grouped(ROWS, 20, 15, 30);
    EXPECT_OK(ejk_grouped_matmul(context, &args));
    args.rhs = ejk_tensor_3d(turned, EJK_DTYPE_F32, GROUPS, COLUMNS, DEPTH);
    args.out.data = other;
    args.transpose_rhs = true;
    EXPECT_OK(ejk_grouped_matmul(context, &args));
    assert_true(memcmp(other, out, sizeof out) == 0);
}

static void rows_of_no_group_have_no_bias(void **state) {
    (void)state;
    static float bias[GROUPS * COLUMNS];
    fill();
    for (int i = 0; i < GROUPS * COLUMNS; i++) bias[i] = 3;
    ejk_grouped_matmul_args args = grouped(ROWS, 1, 2, 3);
    args.rhs_bias = ejk_tensor_3d(bias, EJK_DTYPE_F32, GROUPS, 1, COLUMNS);
    EXPECT_OK(ejk_grouped_matmulv3(context, &args));
    for (int i = 6 * COLUMNS; i < ROWS * COLUMNS; i++) assert_true(out[i] == 0);
}

static void experts_without_rows_are_not_read(void **state) {
    (void)state;
    fill();
    for (int i = 0; i < DEPTH * COLUMNS; i++) rhs[DEPTH * COLUMNS + i] = NAN;
    ejk_grouped_matmul_args args = grouped(ROWS, 40, 0, 25);
    EXPECT_OK(ejk_grouped_matmul(context, &args));
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(isfinite(out[i]));
}

/* Few rows meet rhs as it lies in memory, many rows packed panels. */
enum { MANY = 130 };
static unsigned char many[MANY * DEPTH * 4], matrix[DEPTH * COLUMNS * 4], all[MANY * COLUMNS * 4],
    some[MANY * COLUMNS * 4];

static void put(ejk_dtype type, void *at, int index, float value) {
    const uint16_t half = type == EJK_DTYPE_BF16 ? ejk_f32_to_bf16(value) : ejk_f32_to_f16(value);
    if (type == EJK_DTYPE_F32)
        memcpy((char *)at + index * 4, &value, sizeof value);
    else
        memcpy((char *)at + index * 2, &half, sizeof half);
}

static void compare_rows(ejk_dtype type, bool turned) {
    const int row = DEPTH * (int)ejk_dtype_size(type), result = COLUMNS * (int)ejk_dtype_size(type);
    ejk_matmul_args args = {.lhs = ejk_tensor_2d(many, type, MANY, DEPTH),
                            .rhs = turned ? ejk_tensor_2d(matrix, type, COLUMNS, DEPTH)
                                          : ejk_tensor_2d(matrix, type, DEPTH, COLUMNS),
                            .out = ejk_tensor_2d(all, type, MANY, COLUMNS),
                            .transpose_rhs = turned};
    for (int i = 0; i < MANY * DEPTH; i++) put(type, many, i, number(i));
    for (int i = 0; i < DEPTH * COLUMNS; i++) put(type, matrix, i, number(3 * i + 1));
    put(type, many, 7, 0x1p-120f); /* VDPBF16PS would take its product for 0 */
    put(type, matrix, 7, 0x1p-10f);
    EXPECT_OK(ejk_matmul(context, &args));
    const int counts[] = {1, 2, 5, 12, 13, 40, 96, 97};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int i = 0; i + counts[c] <= MANY; i += counts[c]) {
            args.lhs = ejk_tensor_2d(many + i * row, type, counts[c], DEPTH);
            args.out = ejk_tensor_2d(some, type, counts[c], COLUMNS);
            EXPECT_OK(ejk_matmul(context, &args));
            assert_memory_equal(some, all + i * result, (size_t)(counts[c] * result));
        }
}

static void rows_have_their_bits_alone(void **state) {
    (void)state;
    const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    for (size_t i = 0; i < 3; i++)
        for (int turned = 0; turned < 2; turned++) compare_rows(types[i], turned);
}

/* More rows, columns and depth than any cache is given at a time: rows alone, and columns that are no panel. */
static void compare_long_rows(ejk_dtype to, int rows, int depth, int columns, bool turned) {
    static uint16_t a[600 * 1120], b[1120 * 576];
    static unsigned char results[600 * 576 * 4], one[1200 * 4];
    const size_t size = (size_t)columns * ejk_dtype_size(to);
    for (int i = 0; i < rows * depth; i++) put(EJK_DTYPE_BF16, a, i, number(i));
    for (int i = 0; i < depth * columns; i++) put(EJK_DTYPE_BF16, b, i, number(3 * i + 1));
    put(EJK_DTYPE_BF16, a, 40 * depth + depth - 1, 0x1p-120f);
    put(EJK_DTYPE_BF16, b, depth * columns - 1, 0x1p-90f);
    ejk_matmul_args args = {.lhs = ejk_tensor_2d(a, EJK_DTYPE_BF16, rows, depth),
                            .rhs = turned ? ejk_tensor_2d(b, EJK_DTYPE_BF16, columns, depth)
                                          : ejk_tensor_2d(b, EJK_DTYPE_BF16, depth, columns),
                            .out = ejk_tensor_2d(results, to, rows, columns),
                            .preferred_element_type = to,
                            .transpose_rhs = turned};
    EXPECT_OK(ejk_matmul(context, &args));
    args.out = ejk_tensor_2d(one, to, 1, columns);
    for (int i = 0; i < rows; i += i % 3 ? 29 : 1) {
        args.lhs = ejk_tensor_2d(a + i * depth, EJK_DTYPE_BF16, 1, depth);
        EXPECT_OK(ejk_matmul(context, &args));
        assert_memory_equal(one, results + (size_t)i * size, size);
    }
}

static void long_rows_have_their_bits_alone(void **state) {
    (void)state;
    compare_long_rows(EJK_DTYPE_BF16, 600, 1024, 560, false);
    compare_long_rows(EJK_DTYPE_F32, 530, 1000, 545, false);
    compare_long_rows(EJK_DTYPE_F16, 300, 1120, 530, true);
    compare_long_rows(EJK_DTYPE_BF16, 270, 520, 1200, false);
    compare_long_rows(EJK_DTYPE_BF16, 513, 33, 64, true);
    compare_long_rows(EJK_DTYPE_BF16, 270, 1120, 544, false);
    compare_long_rows(EJK_DTYPE_F32, 150, 1088, 576, false);
    compare_long_rows(EJK_DTYPE_BF16, 70, 544, 1152, false);
}

/* On AMX the matrix of the next group is packed beside products of the one before: groups of few and many rows, and
 * none, whose results are those of calls of their own. */
static void groups_have_their_bits_alone(void **state) {
    (void)state;
    enum { ALL = 7, SUM = 207, LONG = 1120, WIDE = 544 };
    static uint16_t a[SUM * LONG], b[ALL * LONG * WIDE], results[SUM * WIDE], own[SUM * WIDE];
    static int32_t counts[ALL] = {20, 3, 0, 31, 104, 17, 32};
    for (int i = 0; i < SUM * LONG; i++) put(EJK_DTYPE_BF16, a, i, number(i));
    for (int i = 0; i < ALL * LONG * WIDE; i++) put(EJK_DTYPE_BF16, b, i, number(3 * i + 1));
    put(EJK_DTYPE_BF16, b, 3 * LONG * WIDE + 5, 0x1p-90f);
    const ejk_grouped_matmul_args args = {.lhs = ejk_tensor_2d(a, EJK_DTYPE_BF16, SUM, LONG),
                                          .rhs = ejk_tensor_3d(b, EJK_DTYPE_BF16, ALL, LONG, WIDE),
                                          .group_sizes = ejk_tensor_1d(counts, EJK_DTYPE_I32, ALL),
                                          .out = ejk_tensor_2d(results, EJK_DTYPE_BF16, SUM, WIDE)};
    EXPECT_OK(ejk_grouped_matmul(context, &args));
    for (int g = 0, row = 0; g < ALL; row += counts[g++]) {
        const ejk_matmul_args one = {
            .lhs = ejk_tensor_2d(a + row * LONG, EJK_DTYPE_BF16, counts[g], LONG),
            .rhs = ejk_tensor_2d(b + g * LONG * WIDE, EJK_DTYPE_BF16, LONG, WIDE),
            .out = ejk_tensor_2d(own + row * WIDE, EJK_DTYPE_BF16, counts[g], WIDE)};
        EXPECT_OK(ejk_matmul(context, &one));
    }
    assert_memory_equal(results, own, sizeof own);
}

/* ---- Bad calls --------------------------------------------------------------------------------------- */

static void expect_untouched(void) {
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(out[i] == -77);
}

static void sizes_that_do_not_fit_are_errors(void **state) {
    (void)state;
    fill();
    ejk_grouped_matmul_args args = grouped(ROWS, 40, 25, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "group_sizes", ejk_grouped_matmul(context, &args));
    args = grouped(ROWS, 40, -1, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "group_sizes", ejk_grouped_matmul(context, &args));
    args = grouped(ROWS, INT32_MAX, INT32_MAX, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "group_sizes", ejk_grouped_matmul(context, &args));
    args = grouped(ROWS, 1, 1, 1);
    args.rhs = ejk_tensor_3d(rhs, EJK_DTYPE_F32, GROUPS, COLUMNS, DEPTH);
    EXPECT_FAIL(INVALID_SHAPE, "rhs has depth 45, expected 70", ejk_grouped_matmul(context, &args));
    args = grouped(ROWS, 1, 1, 1);
    args.rhs.shape[0] = 2;
    EXPECT_FAIL(INVALID_SHAPE, "group_sizes", ejk_grouped_matmul(context, &args));
    args.group_offset = ejk_tensor_1d(offset, EJK_DTYPE_I32, 1);
    offset[0] = 2;
    EXPECT_FAIL(INVALID_ARGUMENT, "group_offset", ejk_grouped_matmul(context, &args));
    expect_untouched();
    offset[0] = 1;
    EXPECT_OK(ejk_grouped_matmul(context, &args));
}

static void rows_out_of_range_are_errors(void **state) {
    (void)state;
    static int32_t rows[ROWS];
    fill();
    ejk_grouped_matmul_args args = grouped(ROWS, 40, 20, 5);
    rows[64] = ROWS;
    args.lhs_indices = ejk_tensor_1d(rows, EJK_DTYPE_I32, ROWS);
    EXPECT_FAIL(INVALID_ARGUMENT, "lhs_indices", ejk_grouped_matmul(context, &args));
    args = grouped(ROWS, 40, 20, 5);
    args.out_weights = ejk_tensor_1d(lhs, EJK_DTYPE_F32, ROWS);
    EXPECT_FAIL(INVALID_ARGUMENT, "out_weights", ejk_grouped_matmul(context, &args));
    rows[64] = -1;
    args.out_indices = ejk_tensor_1d(rows, EJK_DTYPE_I32, ROWS);
    EXPECT_FAIL(INVALID_ARGUMENT, "out_indices", ejk_grouped_matmul(context, &args));
    expect_untouched();
}

static void matrices_have_to_fit(void **state) {
    (void)state;
    fill();
    ejk_matmul_args args = {.lhs = ejk_tensor_2d(lhs, EJK_DTYPE_F32, ROWS, DEPTH),
                            .rhs = ejk_tensor_2d(rhs, EJK_DTYPE_F32, DEPTH, COLUMNS),
                            .out = ejk_tensor_2d(out, EJK_DTYPE_F32, ROWS, COLUMNS)};
    args.transpose_rhs = true;
    EXPECT_FAIL(INVALID_SHAPE, "rhs", ejk_matmul(context, &args));
    args.transpose_rhs = false;
    strcpy(args.activation, "swish");
    EXPECT_FAIL(UNKNOWN_NAME, "activation", ejk_matmul(context, &args));
    strcpy(args.activation, "swiglu");
    EXPECT_FAIL(INVALID_SHAPE, "columns", ejk_matmul(context, &args));
    args.activation[0] = 0;
    args.preferred_element_type = EJK_DTYPE_BF16;
    EXPECT_FAIL(INVALID_DTYPE, "out", ejk_matmul(context, &args));
    expect_untouched();
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
        cmocka_unit_test(existing_out_is_added_to),
        cmocka_unit_test(transposed_matrices_give_the_same),
        cmocka_unit_test(rows_of_no_group_have_no_bias),
        cmocka_unit_test(experts_without_rows_are_not_read),
        cmocka_unit_test(rows_have_their_bits_alone),
        cmocka_unit_test(long_rows_have_their_bits_alone),
        cmocka_unit_test(groups_have_their_bits_alone),
        cmocka_unit_test(sizes_that_do_not_fit_are_errors),
        cmocka_unit_test(rows_out_of_range_are_errors),
        cmocka_unit_test(matrices_have_to_fit),
        cmocka_unit_test(gradients_of_scales_and_zeros_are_differences),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
