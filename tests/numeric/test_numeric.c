/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, chunks, log-sum-exp, division, timer and memory: documented values, strides, errors. */
#include "support/expect.h"
#include "support/random.h"
#include "support/test_threads.h"

#include <ejkernel/numeric.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const ejk_dtype all_types[] = {EJK_DTYPE_F64, EJK_DTYPE_F32, EJK_DTYPE_BF16,
                                      EJK_DTYPE_F16, EJK_DTYPE_I64, EJK_DTYPE_I32,
                                      EJK_DTYPE_I16, EJK_DTYPE_I8,  EJK_DTYPE_U8};
enum { TYPES = sizeof all_types / sizeof all_types[0], FLOATING = 4 };

/* ---- Sizes and shapes ------------------------------------------------------------------------------ */

static void sizes(void **state) {
    (void)state;
    static const int64_t quotients[][3] = {{7, 2, 4},
                                           {8, 2, 4},
                                           {0, 3, 0},
                                           {-7, 2, -3},
                                           {-8, 2, -4},
                                           {INT64_MAX, INT64_MAX, 1},
                                           {INT64_MAX, 2, INT64_MAX / 2 + 1}};
    int64_t got = 77;
    for (size_t i = 0; i < sizeof quotients / sizeof quotients[0]; i++) {
        EXPECT_OK(ejk_cdiv(quotients[i][0], quotients[i][1], &got));
        assert_int_equal(got, quotients[i][2]);
    }
    static const int64_t powers[][2] = {{0, 1}, {1, 1},       {2, 2},
                                        {3, 4}, {1000, 1024}, {INT64_C(1) << 62, INT64_C(1) << 62}};
    for (size_t i = 0; i < sizeof powers / sizeof powers[0]; i++) {
        EXPECT_OK(ejk_next_power_of_2(powers[i][0], &got));
        assert_int_equal(got, powers[i][1]);
    }
    static const int64_t heads[][2] = {{13, 16}, {20, 32}, {0, 16}, {16, 16}, {17, 32}, {80, 128}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        EXPECT_OK(ejk_get_padded_headsize(heads[i][0], &got));
        assert_int_equal(got, heads[i][1]);
    }
    got = 77;
    EXPECT_FAIL(INVALID_ARGUMENT, "b is 0", ejk_cdiv(1, 0, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "b is -2", ejk_cdiv(1, -2, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_cdiv(1, 1, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "x is -1", ejk_next_power_of_2(-1, &got));
    EXPECT_FAIL(OVERFLOW, "x is", ejk_next_power_of_2((INT64_C(1) << 62) + 1, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_next_power_of_2(1, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "head_dim is -1", ejk_get_padded_headsize(-1, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_get_padded_headsize(1, NULL));
    assert_int_equal(got, 77);
}

static void strides(void **state) {
    (void)state;
    int64_t got[EJK_MAX_RANK] = {77, 77, 77};
    EXPECT_OK(ejk_strides_from_shape((int64_t[]){2, 3, 4}, 3, got));
    assert_memory_equal(got, ((int64_t[]){12, 4, 1}), 3 * sizeof *got);
    EXPECT_OK(ejk_strides_from_shape((int64_t[]){2, 0, 4}, 3, got));
    assert_memory_equal(got, ((int64_t[]){0, 0, 0}), 3 * sizeof *got);
    EXPECT_OK(ejk_strides_from_shape(NULL, 0, NULL));
    got[0] = 77;
    EXPECT_FAIL(INVALID_SHAPE, "rank is 9", ejk_strides_from_shape(got, 9, got));
    EXPECT_FAIL(INVALID_SHAPE, "axis 1 of shape is -3",
                ejk_strides_from_shape((int64_t[]){2, -3}, 2, got));
    EXPECT_FAIL(INVALID_ARGUMENT, "shape is NULL", ejk_strides_from_shape(NULL, 1, got));
    EXPECT_FAIL(INVALID_ARGUMENT, "strides_out is NULL",
                ejk_strides_from_shape((int64_t[]){2}, 1, NULL));
    EXPECT_FAIL(OVERFLOW, "63 bits", ejk_strides_from_shape((int64_t[]){2, INT64_MAX, 2}, 3, got));
    assert_int_equal(got[0], 77);
}

static void input_shapes(void **state) {
    (void)state;
    int64_t shapes[EJK_INPUT_SHAPES][EJK_INPUT_SHAPE_AXES];
    EXPECT_OK(ejk_get_input_shapes(shapes));
    assert_memory_equal(shapes[0], ((int64_t[]){256, 1, 256, 16, 1, 128}), sizeof shapes[0]);
    assert_memory_equal(shapes[8], ((int64_t[]){1, 1, 65536, 16, 1, 128}), sizeof shapes[0]);
    assert_memory_equal(shapes[9], ((int64_t[]){1, 1, 131072, 16, 1, 128}), sizeof shapes[0]);
    assert_memory_equal(shapes[10], ((int64_t[]){256, 1, 256, 16, 2, 128}), sizeof shapes[0]);
    assert_memory_equal(shapes[19], ((int64_t[]){1, 1, 131072, 16, 2, 128}), sizeof shapes[0]);
    EXPECT_FAIL(INVALID_ARGUMENT, "shapes_out is NULL", ejk_get_input_shapes(NULL));
}

/* ---- Chunks ---------------------------------------------------------------------------------------- */

static void documented_chunks(void **state) {
    (void)state;
    const int32_t wanted[3][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 0, 0}};
    int32_t numbers[10], chunks[3][4], back[10] = {0};
    for (int i = 0; i < 10; i++) numbers[i] = i;
    ejk_tensor array = ejk_tensor_1d(numbers, EJK_DTYPE_I32, 10);
    ejk_tensor cut = ejk_tensor_2d(chunks, EJK_DTYPE_I32, 3, 4);
    ejk_tensor joined = ejk_tensor_1d(back, EJK_DTYPE_I32, 10);
    for (int32_t axis = -1; axis <= 0; axis++) {
        memset(chunks, 0x5a, sizeof chunks);
        EXPECT_OK(ejk_chunk_array(&array, 4, axis, 0, NULL, &cut));
        assert_memory_equal(chunks, wanted, sizeof wanted);
        memset(back, 0x5a, sizeof back);
        EXPECT_OK(ejk_unchunk_array(&cut, 10, axis, NULL, &joined));
        assert_memory_equal(back, numbers, sizeof back);
    }
    EXPECT_OK(ejk_chunk_array(&array, 4, 0, -7.9, NULL, &cut));
    assert_int_equal(chunks[2][3], -7);
}

/* One case of any axis: each element of the chunks against the array or the pad value, and back again. */
static void check_chunks(struct random *r, ejk_dtype dtype) {
    int64_t shape[3], lengths[4], chunk = random_int(r, 1, 6), count = 1;
    for (int i = 0; i < 3; i++) shape[i] = random_int(r, 0, 5);
    int32_t axis = (int32_t)random_int(r, 0, 2), named = random_chance(r, 0.5) ? axis : axis - 3;
    for (int i = 0; i < 3; i++) {
        lengths[i + (i > axis)] = shape[i];
        count *= shape[i];
    }
    lengths[axis] = (shape[axis] + chunk - 1) / chunk;
    lengths[axis + 1] = chunk;
    double numbers[125], plain[125], cut[1024] = {0}, back[256];
    for (int64_t i = 0; i < count; i++) numbers[i] = plain[i] = (double)(i + 1);
    double array_room[125], cut_room[2048];
    ejk_tensor source = ejk_tensor_contiguous(numbers, EJK_DTYPE_F64, 3, shape);
    /* The array backwards along its first axis; the chunks with their axes exchanged, and every second. */
    ejk_tensor array = ejk_tensor_contiguous(array_room, dtype, 3, shape);
    if (count > 0) {
        array.data = (char *)array.data +
                     (size_t)((shape[0] - 1) * array.strides[0]) * ejk_dtype_size(dtype);
    }
    array.strides[0] = -array.strides[0];
    ejk_tensor exchanged =
        ejk_tensor_transpose(ejk_tensor_contiguous(cut, EJK_DTYPE_F64, 4, lengths), 0, 3);
    ejk_tensor chunks = ejk_tensor_contiguous(cut_room, dtype, 4, exchanged.shape);
    for (int i = 0; i < 4; i++) chunks.strides[i] *= 2;
    chunks = ejk_tensor_transpose(chunks, 0, 3);
    EXPECT_OK(ejk_tensor_copy(&source, &array));
    EXPECT_OK(ejk_chunk_array(&array, chunk, named, 9, NULL, &chunks));

    ejk_tensor seen = ejk_tensor_contiguous(cut, EJK_DTYPE_F64, 4, lengths);
    EXPECT_OK(ejk_tensor_copy(&chunks, &seen));
    for (int64_t i = 0; i < ejk_tensor_count(&seen); i++) {
        int64_t index[4], rest = i, at = 0;
        for (int k = 3; k >= 0; k--) {
            index[k] = rest % lengths[k];
            rest /= lengths[k];
        }
        int64_t along = index[axis] * chunk + index[axis + 1];
        for (int k = 0; k < 3; k++) {
            at = at * shape[k] + (k == axis ? along : index[k + (k > axis)]);
        }
        assert_true(cut[i] == (along < shape[axis] ? plain[at] : 9));
    }
    ejk_tensor joined = ejk_tensor_contiguous(back, dtype, 3, shape);
    EXPECT_OK(ejk_unchunk_array(&chunks, shape[axis], named, NULL, &joined));
    ejk_allclose_options exact = {.rtol = ejk_float(0), .atol = ejk_float(0)};
    EXPECT_OK(ejk_assert_allclose(&joined, &source, &exact, NULL));
}

static void chunks_of_every_axis_and_type(void **state) {
    (void)state;
    struct random r = {5};
    for (int round = 0; round < 4000; round++) check_chunks(&r, all_types[round % TYPES]);
}

/* Large ones, cut along any axis, and an array whose axes are in another order: as one thread has them. */
static void large_chunks_by_threads(void **state) {
    (void)state;
    const int64_t shapes[][3] = {{700, 31, 17}, {3, 90000, 2}, {2, 3, 60000}, {400000, 1, 1}};
    enum { ROOM = 900000 };
    int16_t *numbers = malloc(ROOM * sizeof *numbers), *cut[2], *back = malloc(ROOM * sizeof *back);
    for (int i = 0; i < 2; i++) cut[i] = malloc(ROOM * sizeof **cut);
    for (int i = 0; i < ROOM; i++) numbers[i] = (int16_t)(i % 32749);
    ejk_threads *threads;
    threads = test_threads_create(4);
    for (int round = 0; round < 24; round++) {
        const int64_t *shape = shapes[round % 4];
        int32_t axis = round / 4 % 3;
        int64_t length = shape[axis], chunk = length < 7 ? 2 : length / 7 + round % 5;
        int64_t lengths[4] = {0}, count = shape[0] * shape[1] * shape[2];
        for (int i = 0; i < 3; i++) lengths[i + (i > axis)] = shape[i];
        lengths[axis] = (length + chunk - 1) / chunk;
        lengths[axis + 1] = chunk;
        int64_t turned[3] = {shape[2], shape[1], shape[0]};
        ejk_tensor array =
            ejk_tensor_transpose(ejk_tensor_contiguous(numbers, EJK_DTYPE_I16, 3, turned), 0, 2);
        for (int i = 0; i < 2; i++) {
            ejk_tensor chunks = ejk_tensor_contiguous(cut[i], EJK_DTYPE_I16, 4, lengths);
            assert_true(ejk_tensor_count(&chunks) <= ROOM);
            memset(cut[i], 0x5a + i, ROOM * sizeof **cut);
            EXPECT_OK(ejk_chunk_array(&array, chunk, axis, -3, i ? threads : NULL, &chunks));
            int64_t bytes = ejk_tensor_count(&chunks) * (int64_t)sizeof **cut;
            if (i > 0) assert_memory_equal(cut[0], cut[1], (size_t)bytes);
            ejk_tensor joined =
                ejk_tensor_transpose(ejk_tensor_contiguous(back, EJK_DTYPE_I16, 3, turned), 0, 2);
            memset(back, 0x77, (size_t)count * sizeof *back);
            EXPECT_OK(ejk_unchunk_array(&chunks, length, axis, i ? threads : NULL, &joined));
            assert_memory_equal(back, numbers, (size_t)count * sizeof *back);
        }
    }
    ejk_threads_destroy(threads);
    for (int i = 0; i < 2; i++) free(cut[i]);
    free(numbers);
    free(back);
}

static void chunks_refused(void **state) {
    (void)state;
    float numbers[16] = {0}, room[16];
    for (int i = 0; i < 16; i++) room[i] = 5;
    ejk_tensor array = ejk_tensor_1d(numbers, EJK_DTYPE_F32, 10);
    ejk_tensor out = ejk_tensor_2d(room, EJK_DTYPE_F32, 3, 4), wrong = out;
    ejk_tensor flat = ejk_tensor_1d(room, EJK_DTYPE_F32, 12);
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is 0", ejk_chunk_array(&array, 0, 0, 0, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis is 1", ejk_chunk_array(&array, 4, 1, 0, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis is -2", ejk_chunk_array(&array, 4, -2, 0, NULL, &out));
    EXPECT_FAIL(INVALID_SHAPE, "out has length 3 on axis 0",
                ejk_chunk_array(&array, 5, 0, 0, NULL, &out));
    EXPECT_FAIL(INVALID_SHAPE, "out has rank 1", ejk_chunk_array(&array, 4, 0, 0, NULL, &flat));
    ejk_tensor one = ejk_tensor_contiguous(numbers, EJK_DTYPE_F32, 0, NULL);
    EXPECT_FAIL(INVALID_SHAPE, "array has rank 0", ejk_chunk_array(&one, 4, 0, 0, NULL, &out));
    ejk_tensor full =
        ejk_tensor_contiguous(numbers, EJK_DTYPE_F32, 8, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    EXPECT_FAIL(INVALID_SHAPE, "array has rank 8", ejk_chunk_array(&full, 4, 0, 0, NULL, &out));
    wrong.dtype = EJK_DTYPE_I32;
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_chunk_array(&array, 4, 0, 0, NULL, &wrong));
    wrong = out;
    wrong.strides[0] = 3;
    EXPECT_FAIL(INVALID_LAYOUT, "out", ejk_chunk_array(&array, 4, 0, 0, NULL, &wrong));
    wrong = ejk_tensor_2d(numbers + 4, EJK_DTYPE_F32, 3, 4);
    EXPECT_FAIL(INVALID_LAYOUT, "array", ejk_chunk_array(&array, 4, 0, 0, NULL, &wrong));
    wrong = out;
    wrong.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "out", ejk_chunk_array(&array, 4, 0, 0, NULL, &wrong));

    EXPECT_FAIL(INVALID_ARGUMENT, "original_length is 13",
                ejk_unchunk_array(&out, 13, 0, NULL, &array));
    EXPECT_FAIL(INVALID_ARGUMENT, "original_length is -1",
                ejk_unchunk_array(&out, -1, 0, NULL, &array));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis is 1", ejk_unchunk_array(&out, 10, 1, NULL, &array));
    EXPECT_FAIL(INVALID_SHAPE, "out has length 10 on axis 0",
                ejk_unchunk_array(&out, 9, 0, NULL, &array));
    EXPECT_FAIL(INVALID_SHAPE, "chunks has rank 1", ejk_unchunk_array(&array, 9, 0, NULL, &out));
    for (int i = 0; i < 16; i++) assert_true(room[i] == 5 && numbers[i] == 0);
}

/* ---- Log-sum-exp ----------------------------------------------------------------------------------- */

static double lse_of(const double *values, int64_t count) {
    double got = 77;
    ejk_tensor x = ejk_tensor_1d((void *)(uintptr_t)values, EJK_DTYPE_F64, count);
    ejk_tensor out = ejk_tensor_contiguous(&got, EJK_DTYPE_F64, 0, NULL);
    EXPECT_OK(ejk_log_sum_exp(&x, NULL, 0, false, NULL, &out));
    return got;
}

#define LSE(...)                                                                                   \
    lse_of((const double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / sizeof(double))

static void documented_log_sum_exp(void **state) {
    (void)state;
    EXPECT_NEAR(LSE(1000, 1001, 1002), 1002.4076059644444, 2e-13);
    float numbers[] = {1000, 1001, 1002}, got = 0;
    ejk_tensor x = ejk_tensor_1d(numbers, EJK_DTYPE_F32, 3);
    ejk_tensor out = ejk_tensor_1d(&got, EJK_DTYPE_F32, 1);
    EXPECT_OK(ejk_log_sum_exp(&x, NULL, 0, true, NULL, &out));
    assert_true(got == 1002.4076f);
}

static void log_sum_exp_of_infinities(void **state) {
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    assert_true(LSE(-inf, -inf) == -inf);
    assert_true(LSE(-inf, 3) == 3);
    assert_true(LSE(3, -inf) == 3);
    assert_true(LSE(1, inf) == inf);
    assert_true(LSE(inf, inf, -inf) == inf);
    assert_true(isnan(LSE(1, nan)));
    assert_true(isnan(LSE(nan, inf)));
    assert_true(isnan(LSE(-inf, nan)));
    assert_true(lse_of(NULL, 0) == -inf);
    assert_true(LSE(-1e308, -1e308) == -1e308);
    EXPECT_NEAR(LSE(0, 0), 0.69314718055994529, 1e-16);
}

/* The sum over marked axes of a tensor of three, element by element. */
static void check_log_sum_exp(struct random *r, ejk_dtype dtype, ejk_threads *threads) {
    int64_t shape[3], kept[3];
    int32_t axes[3], count = 0, rank = 0;
    bool keepdims = random_chance(r, 0.5), marked[3];
    for (int32_t i = 0; i < 3; i++) {
        shape[i] = random_int(r, 0, 4);
        marked[i] = random_chance(r, 0.5);
        if (marked[i]) axes[count++] = random_chance(r, 0.5) ? i : i - 3;
    }
    if (count == 0) marked[0] = marked[1] = marked[2] = true;
    for (int i = 0; i < 3; i++) {
        if (keepdims || !marked[i]) kept[rank++] = marked[i] ? 1 : shape[i];
    }
    double numbers[64], room[64], out_room[64], sums[64] = {0};
    for (int i = 0; i < 64; i++) numbers[i] = (double)random_int(r, 0, 9);
    ejk_tensor source = ejk_tensor_contiguous(numbers, EJK_DTYPE_F64, 3, shape);
    ejk_tensor x = ejk_tensor_contiguous(room, dtype, 3, (int64_t[]){shape[2], shape[1], shape[0]});
    x = ejk_tensor_transpose(x, 0, 2);
    EXPECT_OK(ejk_tensor_copy(&source, &x));
    int64_t outputs = 1;
    for (int i = 0; i < rank; i++) outputs *= kept[i];
    for (int64_t i = 0; i < shape[0]; i++) {
        for (int64_t j = 0; j < shape[1]; j++) {
            for (int64_t k = 0; k < shape[2]; k++) {
                int64_t at = 0, index[] = {i, j, k};
                for (int n = 0; n < 3; n++) at = marked[n] ? at : at * shape[n] + index[n];
                sums[at] += exp(numbers[(i * shape[1] + j) * shape[2] + k]);
            }
        }
    }
    ejk_tensor out = ejk_tensor_contiguous(out_room, EJK_DTYPE_F64, rank, kept);
    EXPECT_OK(ejk_log_sum_exp(&x, axes, count, keepdims, threads, &out));
    for (int64_t i = 0; i < outputs; i++) {
        if (sums[i] == 0)
            assert_true(isinf(out_room[i]) && out_room[i] < 0);
        else
            EXPECT_NEAR(out_room[i], log(sums[i]), 1e-13);
    }
}

static void log_sum_exp_over_any_axes(void **state) {
    (void)state;
    struct random r = {6};
    ejk_threads *threads;
    threads = test_threads_create(3);
    for (int round = 0; round < 3000; round++) {
        check_log_sum_exp(&r, all_types[round % TYPES], round % 2 ? threads : NULL);
    }
    ejk_threads_destroy(threads);
}

static void long_log_sum_exp(void **state) {
    (void)state;
    enum { ROWS = 3, COUNT = 200001 };
    struct random r = {8};
    double *numbers = malloc(sizeof *numbers * ROWS * COUNT), alone[ROWS], threaded[ROWS];
    ejk_tensor x = ejk_tensor_2d(numbers, EJK_DTYPE_F64, ROWS, COUNT);
    ejk_tensor out = ejk_tensor_1d(alone, EJK_DTYPE_F64, ROWS);
    const int32_t axis = 1;
    for (int64_t i = 0; i < ROWS * COUNT; i++) numbers[i] = 50 * random_normal(&r);
    EXPECT_OK(ejk_log_sum_exp(&x, &axis, 1, false, NULL, &out));
    for (int row = 0; row < ROWS; row++) {
        double top = -(double)INFINITY, sum = 0;
        const double *values = numbers + (int64_t)row * COUNT;
        for (int i = 0; i < COUNT; i++) top = fmax(top, values[i]);
        for (int i = 0; i < COUNT; i++) sum += exp(values[i] - top);
        EXPECT_NEAR(alone[row], top + log(sum), 1e-12);
    }
    ejk_threads *threads;
    threads = test_threads_create(4);
    out.data = threaded;
    EXPECT_OK(ejk_log_sum_exp(&x, &axis, 1, false, threads, &out));
    assert_memory_equal(threaded, alone, sizeof alone);
    out.data = numbers; /* the result may lie in what is summed */
    EXPECT_OK(ejk_log_sum_exp(&x, &axis, 1, false, threads, &out));
    assert_memory_equal(numbers, alone, sizeof alone);
    ejk_threads_destroy(threads);
    free(numbers);
}

static void log_sum_exp_refused(void **state) {
    (void)state;
    float numbers[6] = {0}, room[6] = {5, 5, 5, 5, 5, 5};
    ejk_tensor x = ejk_tensor_2d(numbers, EJK_DTYPE_F32, 2, 3);
    ejk_tensor out = ejk_tensor_1d(room, EJK_DTYPE_F32, 2), wrong = out;
    const int32_t twice[] = {1, -1}, beyond = 2, last = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "axis 1 twice", ejk_log_sum_exp(&x, twice, 2, false, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis is 2", ejk_log_sum_exp(&x, &beyond, 1, false, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis_count is -1",
                ejk_log_sum_exp(&x, &last, -1, false, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "axes NULL", ejk_log_sum_exp(&x, NULL, 1, false, NULL, &out));
    EXPECT_FAIL(INVALID_SHAPE, "out has rank 1", ejk_log_sum_exp(&x, &last, 1, true, NULL, &out));
    EXPECT_FAIL(INVALID_SHAPE, "out has rank 1", ejk_log_sum_exp(&x, NULL, 0, false, NULL, &out));
    wrong.shape[0] = 3;
    EXPECT_FAIL(INVALID_SHAPE, "out has length 3 on axis 0",
                ejk_log_sum_exp(&x, &last, 1, false, NULL, &wrong));
    wrong = out;
    wrong.dtype = EJK_DTYPE_I32;
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_log_sum_exp(&x, &last, 1, false, NULL, &wrong));
    wrong = out;
    wrong.strides[0] = 0;
    EXPECT_FAIL(INVALID_LAYOUT, "out", ejk_log_sum_exp(&x, &last, 1, false, NULL, &wrong));
    EXPECT_FAIL(INVALID_ARGUMENT, "x is NULL", ejk_log_sum_exp(NULL, &last, 1, false, NULL, &out));
    for (int i = 0; i < 6; i++) assert_true(room[i] == 5);
}

/* ---- Division -------------------------------------------------------------------------------------- */

static void division_keeps_the_sign(void **state) {
    (void)state;
    const double inf = (double)INFINITY;
    double n[] = {1, 1, 1, 1, 6, -6, 1, 1, 0}, got[9];
    double d[] = {1e-12, -1e-12, 0.0, -0.0, 3, -3, inf, (double)NAN, 0};
    const double kept[] = {1e10, -1e10, 1e10, -1e10, 2, 2, 0, 0, 0};
    const double documented[] = {1e10, 1e10, 1e10, 1e10, 2, -6e10, 0, 0, 0};
    ejk_tensor numerator = ejk_tensor_1d(n, EJK_DTYPE_F64, 9);
    ejk_tensor denominator = ejk_tensor_1d(d, EJK_DTYPE_F64, 9);
    ejk_tensor out = ejk_tensor_1d(got, EJK_DTYPE_F64, 9);
    EXPECT_OK(ejk_safe_divide(&numerator, &denominator, NULL, &out));
    for (int i = 0; i < 9; i++) assert_true(i == 7 ? isnan(got[i]) : got[i] == kept[i]);
    ejk_safe_divide_options options = {.documented = true};
    EXPECT_OK(ejk_safe_divide(&numerator, &denominator, &options, &out));
    for (int i = 0; i < 9; i++) assert_true(i == 7 ? isnan(got[i]) : got[i] == documented[i]);
    options = (ejk_safe_divide_options){.min_denominator = ejk_float(4)};
    EXPECT_OK(ejk_safe_divide(&numerator, &denominator, &options, &out));
    assert_true(got[4] == 1.5 && got[5] == 1.5 && got[1] == -0.25);
    /* In place. */
    EXPECT_OK(ejk_safe_divide(&numerator, &denominator, NULL, &numerator));
    for (int i = 0; i < 9; i++) assert_true(i == 7 ? isnan(n[i]) : n[i] == kept[i]);
}

static void division_of_every_type(void **state) {
    (void)state;
    double n[2][3] = {{6, 9, 12}, {7, 8, 100}}, d[3] = {3, 0, 4};
    ejk_tensor numbers = ejk_tensor_2d(n, EJK_DTYPE_F64, 2, 3),
               row = ejk_tensor_1d(d, EJK_DTYPE_F64, 3);
    ejk_safe_divide_options options = {.min_denominator = ejk_float(0.5)};
    for (size_t i = 0; i < TYPES; i++) {
        for (size_t j = 0; j < FLOATING; j++) {
            double x_room[16], y_room[8], z_room[8];
            ejk_tensor x = ejk_tensor_transpose(ejk_tensor_2d(x_room, all_types[i], 3, 2), 0, 1);
            ejk_tensor y = ejk_tensor_1d(y_room, all_types[i], 3);
            ejk_tensor z = ejk_tensor_2d(z_room, all_types[j], 2, 3);
            x.strides[0] = 2;
            x.strides[1] = 4;
            EXPECT_OK(ejk_tensor_copy(&numbers, &x));
            EXPECT_OK(ejk_tensor_copy(&row, &y));
            EXPECT_OK(ejk_safe_divide(&x, &y, &options, &z));
            double got[2][3];
            ejk_tensor seen = ejk_tensor_2d(got, EJK_DTYPE_F64, 2, 3);
            EXPECT_OK(ejk_tensor_copy(&z, &seen));
            double tolerance = all_types[j] == EJK_DTYPE_BF16 ? 0.01 : 0.001;
            for (int a = 0; a < 2; a++) {
                for (int b = 0; b < 3; b++) {
                    EXPECT_NEAR(got[a][b], b == 1 ? n[a][b] / 0.5 : n[a][b] / d[b], tolerance);
                }
            }
        }
    }
}

static void large_division_by_threads(void **state) {
    (void)state;
    enum { COUNT = 200003 };
    struct random r = {9};
    float *n = malloc(sizeof *n * COUNT), *d = malloc(sizeof *d * COUNT),
          *q = malloc(sizeof *q * COUNT);
    for (int i = 0; i < COUNT; i++) {
        n[i] = (float)random_normal(&r);
        d[i] = (float)random_int(&r, -2, 2);
    }
    ejk_tensor x = ejk_tensor_1d(n, EJK_DTYPE_F32, COUNT),
               y = ejk_tensor_1d(d, EJK_DTYPE_F32, COUNT);
    ejk_tensor z = ejk_tensor_1d(q, EJK_DTYPE_F32, COUNT);
    ejk_safe_divide_options options = {.min_denominator = ejk_float(0.5)};
    options.threads = test_threads_create(4);
    EXPECT_OK(ejk_safe_divide(&x, &y, &options, &z));
    for (int i = 0; i < COUNT; i++) assert_true(q[i] == n[i] / (d[i] == 0 ? 0.5f : d[i]));
    ejk_threads_destroy(options.threads);
    free(n);
    free(d);
    free(q);
}

static void division_refused(void **state) {
    (void)state;
    float n[8] = {0}, d[8] = {0}, q[8] = {5, 5, 5, 5, 5, 5, 5, 5};
    ejk_tensor x = ejk_tensor_2d(n, EJK_DTYPE_F32, 2, 3), y = ejk_tensor_1d(d, EJK_DTYPE_F32, 3);
    ejk_tensor z = ejk_tensor_2d(q, EJK_DTYPE_F32, 2, 3),
               wrong = ejk_tensor_1d(d, EJK_DTYPE_F32, 2);
    EXPECT_FAIL(INVALID_SHAPE, "axis 0 of denominator is 2", ejk_safe_divide(&x, &wrong, NULL, &z));
    wrong = ejk_tensor_1d(q, EJK_DTYPE_F32, 3);
    EXPECT_FAIL(INVALID_SHAPE, "numerator has rank 2", ejk_safe_divide(&x, &y, NULL, &wrong));
    wrong = z;
    wrong.dtype = EJK_DTYPE_I32;
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_safe_divide(&x, &y, NULL, &wrong));
    wrong = ejk_tensor_2d(n + 1, EJK_DTYPE_F32, 2, 3);
    EXPECT_FAIL(INVALID_LAYOUT, "numerator", ejk_safe_divide(&x, &y, NULL, &wrong));
    wrong = ejk_tensor_transpose(ejk_tensor_2d(n, EJK_DTYPE_F32, 3, 2), 0, 1);
    EXPECT_FAIL(INVALID_LAYOUT, "numerator", ejk_safe_divide(&x, &y, NULL, &wrong));
    const double refused[] = {0, -1, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ejk_safe_divide_options options = {.min_denominator = ejk_float(refused[i])};
        EXPECT_FAIL(INVALID_ARGUMENT, "min_denominator", ejk_safe_divide(&x, &y, &options, &z));
    }
    for (int i = 0; i < 8; i++) assert_true(q[i] == 5 && n[i] == 0);
}

/* ---- Time and memory ------------------------------------------------------------------------------- */

typedef struct heard {
    int calls;
    char text[512];
} heard;

static void hear(void *user, const char *text) {
    heard *h = user;
    h->calls++;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void timer_tells_its_sink(void **state) {
    (void)state;
    heard h = {0};
    ejk_timer timer = ejk_timer_start("Flash Attention", hear, &h);
    timer.started_s -= 0.5; /* as if half a second ago */
    double seconds = ejk_timer_stop(&timer), told = 0;
    assert_true(seconds >= 0.5);
    assert_int_equal(h.calls, 1);
    assert_int_equal(sscanf(h.text, "Flash Attention took %lf seconds", &told), 1);
    EXPECT_NEAR(told, seconds, 0.000501);
    assert_int_equal(strlen(strchr(h.text, '.')), strlen(".123 seconds"));
    assert_true(ejk_timer_stop(&timer) == 0);
    assert_true(ejk_timer_stop(NULL) == 0);
    assert_int_equal(h.calls, 1);

    timer = ejk_timer_start(NULL, hear, &h);
    assert_true(ejk_timer_stop(&timer) >= 0);
    assert_memory_equal(h.text, "Operation took ", 15);
    char name[1000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    timer = ejk_timer_start(name, hear, &h);
    ejk_timer_stop(&timer);
    assert_memory_equal(h.text + 399, "x took ", 7);
    timer = ejk_timer_start("silent", NULL, NULL);
    ejk_timer_stop(&timer);
    assert_int_equal(h.calls, 3);
}

static void memory_grows_with_what_is_touched(void **state) {
    (void)state;
    enum { BYTES = 64 << 20 };
    ejk_memory_usage before, after;
    EXPECT_OK(ejk_get_memory_usage(&before));
    assert_true(before.allocated > 0 && before.allocated < before.limit);
    assert_int_equal(before.reserved, 0);
    char *room = malloc(BYTES);
    assert_non_null(room);
    memset(room, 1, BYTES);
    EXPECT_OK(ejk_get_memory_usage(&after));
    assert_true(after.allocated >= before.allocated + BYTES / 2);
    assert_int_equal(after.limit, before.limit);
    assert_int_equal(room[BYTES - 1], 1);
    free(room);
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_get_memory_usage(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(strides),
        cmocka_unit_test(input_shapes),
        cmocka_unit_test(documented_chunks),
        cmocka_unit_test(chunks_of_every_axis_and_type),
        cmocka_unit_test(large_chunks_by_threads),
        cmocka_unit_test(chunks_refused),
        cmocka_unit_test(documented_log_sum_exp),
        cmocka_unit_test(log_sum_exp_of_infinities),
        cmocka_unit_test(log_sum_exp_over_any_axes),
        cmocka_unit_test(long_log_sum_exp),
        cmocka_unit_test(log_sum_exp_refused),
        cmocka_unit_test(division_keeps_the_sign),
        cmocka_unit_test(division_of_every_type),
        cmocka_unit_test(large_division_by_threads),
        cmocka_unit_test(division_refused),
        cmocka_unit_test(timer_tells_its_sink),
        cmocka_unit_test(memory_grows_with_what_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
