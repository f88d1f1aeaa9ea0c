/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of random numbers against what JAX 0.8.0 gives for the document's listing. */
#include "numeric/random.h"
#include "support/expect.h"

#include <ejkernel/numeric.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int32_t ordered(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? INT32_MIN - bits : bits;
}

/* At most four units in the last place apart. */
static void expect_ulps(float got, float wanted, const char *what, int64_t at) {
    int64_t apart = (int64_t)ordered(got) - ordered(wanted);
    if (llabs(apart) <= 4) return;
    fail_msg("%s[%d] is %.9g, expected %.9g: %d units apart", what, (int)at, (double)got,
             (double)wanted, (int)apart);
}

static void compare_file(const ejk_tensor *got, const char *prefix, const char *what) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/attention_inputs/%s_%s.npy", EJK_SOURCE_DIR, prefix,
             what);
    ejk_owned_tensor wanted = {0};
    EXPECT_OK(ejk_npy_read(path, &wanted));
    assert_int_equal(wanted.tensor.dtype, got->dtype);
    assert_int_equal(wanted.tensor.rank, 4);
    assert_memory_equal(wanted.tensor.shape, got->shape, sizeof got->shape);
    for (int64_t i = 0; i < ejk_tensor_count(got); i++) {
        expect_ulps(((const float *)got->data)[i], ((const float *)wanted.tensor.data)[i], what, i);
    }
    ejk_owned_tensor_close(&wanted);
}

static void check_files(uint64_t seed, const int64_t *shape, const char *prefix) {
    ejk_attention_inputs_options options = {.batch_size = ejk_int(shape[0]),
                                            .seq_len = ejk_int(shape[1]),
                                            .num_heads = ejk_int(shape[2]),
                                            .head_dim = ejk_int(shape[3]),
                                            .has_key = true,
                                            .key = ejk_prng_key(seed)};
    ejk_attention_inputs inputs = {0};
    EXPECT_OK(ejk_generate_attention_inputs(&options, &inputs));
    compare_file(&inputs.query.tensor, prefix, "query");
    compare_file(&inputs.key.tensor, prefix, "key");
    compare_file(&inputs.value.tensor, prefix, "value");
    ejk_attention_inputs_close(&inputs);
    assert_null(inputs.query.tensor.data);
}

static void files_of_jax(void **state) {
    (void)state;
    const int64_t odd[] = {1, 3, 2, 5}, even[] = {2, 4, 1, 8};
    check_files(0, odd, "seed0_1x3x2x5");
    check_files(0, even, "seed0_2x4x1x8");
    check_files(42, odd, "seed42_1x3x2x5");
    check_files(42, even, "seed42_2x4x1x8");
}

typedef struct golden {
    const char *name;
    float first[4], last[4];
    double sum, square_sum;
} golden;

static void check_golden(const ejk_tensor *got, const golden *wanted) {
    const int64_t shape[EJK_MAX_RANK] = {2, 128, 8, 64};
    assert_int_equal(got->dtype, EJK_DTYPE_F32);
    assert_int_equal(got->rank, 4);
    assert_memory_equal(got->shape, shape, sizeof shape);
    const float *values = got->data;
    int64_t count = ejk_tensor_count(got);
    double sum = 0, square_sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)values[i];
        square_sum += (double)values[i] * (double)values[i];
    }
    for (int64_t i = 0; i < 4; i++) {
        expect_ulps(values[i], wanted->first[i], wanted->name, i);
        expect_ulps(values[count - 4 + i], wanted->last[i], wanted->name, count - 4 + i);
    }
    EXPECT_NEAR(sum, wanted->sum, 1e-5);
    EXPECT_NEAR(square_sum, wanted->square_sum, 1e-5);
}

static void default_call(void **state) {
    (void)state;
    static const golden query = {"query",
                                 {0.020080285146832466f, -0.01812674291431904f,
                                  -0.014963444322347641f, -0.023427337408065796f},
                                 {0.004084531683474779f, -0.019038598984479904f,
                                  0.024186071008443832f, -0.018763095140457153f},
                                 -8.930176381493425,
                                 52.58239662610856};
    static const golden key = {"key",
                               {-0.048849113285541534f, -0.040713608264923096f,
                                0.004110884387046099f, -0.007071003783494234f},
                               {0.03414134681224823f, 0.0017115215305238962f,
                                -0.008400319144129753f, 0.017249010503292084f},
                               -9.347832228633166,
                               52.217666040438715};
    static const golden value = {
        "value",
        {0.02591271884739399f, 0.027100209146738052f, -0.008192110806703568f,
         -0.015437709167599678f},
        {0.0245991013944149f, -0.02464386261999607f, 0.005351290572434664f, -0.008083130232989788f},
        -20.431086614873493,
        52.1411146835768};
    ejk_attention_inputs inputs = {0};
    EXPECT_OK(ejk_generate_attention_inputs(NULL, &inputs));
    check_golden(&inputs.query.tensor, &query);
    check_golden(&inputs.key.tensor, &key);
    check_golden(&inputs.value.tensor, &value);
    ejk_attention_inputs_close(&inputs);
}

static void keys_and_uniform_numbers(void **state) {
    (void)state;
    static const uint32_t wanted[3][2] = {
        {1797259609, 2579123966}, {928981903, 3453687069}, {4146024105, 2718843009}};
    static const float uniform[8] = {
        0.8423141241073608f,  0.1823786497116089f, 0.22717809677124023f, 0.12072563171386719f,
        0.19181346893310547f, 0.7220150232315063f, 0.7654455900192261f,  0.1525404453277588f};
    ejk_random_key keys[3];
    EXPECT_OK(ejk_prng_split(ejk_prng_key(0), 3, keys));
    assert_memory_equal(keys, wanted, sizeof wanted);
    static const uint32_t bits[8] = {3617712097, 783310428,  975722988,  518513098,
                                     823833061,  3101031194, 3287564252, 655156662};
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(ejki_random_bits(keys[0], i), bits[i]);
    float got[8];
    ejk_tensor out = ejk_tensor_1d(got, EJK_DTYPE_F32, 8);
    EXPECT_OK(ejk_random_uniform(keys[0], 0, 1, NULL, &out));
    assert_memory_equal(got, uniform, sizeof got);

    ejk_random_key wide = ejk_prng_key(UINT64_C(0x100000002));
    assert_int_equal(wide.words[0], 1);
    assert_int_equal(wide.words[1], 2);
    EXPECT_OK(ejk_prng_split(wide, 0, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "count is -1", ejk_prng_split(wide, -1, keys));
    EXPECT_FAIL(INVALID_ARGUMENT, "keys_out NULL", ejk_prng_split(wide, 2, NULL));
    assert_memory_equal(keys, wanted, sizeof wanted);
}

/* The published answer of 20 rounds for a key and counter of zeros is the first key split from seed 0. */
static void zero_block_is_the_published_one(void **state) {
    (void)state;
    ejk_random_key first;
    EXPECT_OK(ejk_prng_split(ejk_prng_key(0), 1, &first));
    assert_int_equal(first.words[0], 0x6b200159);
    assert_int_equal(first.words[1], 0x99ba4efe);
}

static void threads_and_strides_change_nothing(void **state) {
    (void)state;
    enum { ROWS = 601, COLUMNS = 257, COUNT = ROWS * COLUMNS };
    float *plain = malloc(COUNT * sizeof *plain), *other = calloc(2 * COUNT, sizeof *other);
    ejk_tensor contiguous = ejk_tensor_2d(plain, EJK_DTYPE_F32, ROWS, COLUMNS);
    /* Columns first, every second element. */
    ejk_tensor strided = ejk_tensor_2d(other, EJK_DTYPE_F32, ROWS, COLUMNS);
    strided.strides[0] = 2;
    strided.strides[1] = 2 * ROWS;
    ejk_random_key key = ejk_prng_key(7);
    ejk_threads *threads;
    EXPECT_OK(ejk_threads_create(4, &threads));
    EXPECT_OK(ejk_random_normal(key, 1, NULL, &contiguous));
    EXPECT_OK(ejk_random_normal(key, 1, threads, &strided));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        for (int64_t j = 0; j < COLUMNS; j++) {
            float a = plain[i * COLUMNS + j], b = other[2 * i + 2 * ROWS * j];
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(other[2 * i + 2 * ROWS * j + 1] == 0);
            sum += (double)a;
            squares += (double)a * (double)a;
        }
    }
    EXPECT_NEAR(sum / COUNT, 0, 0.01);
    EXPECT_NEAR(squares / COUNT, 1, 0.02);
    ejk_threads_destroy(threads);
    free(plain);
    free(other);
}

static void other_types_are_rounded(void **state) {
    (void)state;
    const ejk_dtype types[] = {EJK_DTYPE_F64, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    ejk_attention_inputs base = {0};
    ejk_attention_inputs_options options = {.seq_len = ejk_int(3)};
    EXPECT_OK(ejk_generate_attention_inputs(&options, &base));
    int64_t count = ejk_tensor_count(&base.key.tensor);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        ejk_attention_inputs inputs = {0};
        options.dtype = types[i];
        EXPECT_OK(ejk_generate_attention_inputs(&options, &inputs));
        ejk_owned_tensor rounded = {0};
        EXPECT_OK(ejk_owned_tensor_create(types[i], 4, base.key.tensor.shape, &rounded));
        EXPECT_OK(ejk_tensor_copy(&base.key.tensor, &rounded.tensor));
        assert_memory_equal(inputs.key.tensor.data, rounded.tensor.data,
                            (size_t)count * ejk_dtype_size(types[i]));
        ejk_owned_tensor_close(&rounded);
        ejk_attention_inputs_close(&inputs);
    }
    ejk_attention_inputs_close(&base);
}

static void refusals(void **state) {
    (void)state;
    ejk_attention_inputs inputs = {0}, untouched = {0};
    ejk_attention_inputs_options options = {.dtype = EJK_DTYPE_I32};
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_generate_attention_inputs(NULL, NULL));
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_generate_attention_inputs(&options, &inputs));
    options = (ejk_attention_inputs_options){.num_heads = ejk_int(-2)};
    EXPECT_FAIL(INVALID_SHAPE, "-2", ejk_generate_attention_inputs(&options, &inputs));
    options = (ejk_attention_inputs_options){.seq_len = ejk_int(INT64_MAX)};
    EXPECT_FAIL(OVERFLOW, "", ejk_generate_attention_inputs(&options, &inputs));
    assert_memory_equal(&inputs, &untouched, sizeof inputs);
    options = (ejk_attention_inputs_options){.seq_len = ejk_int(0)};
    EXPECT_OK(ejk_generate_attention_inputs(&options, &inputs));
    assert_int_equal(ejk_tensor_count(&inputs.value.tensor), 0);
    ejk_attention_inputs_close(&inputs);
    ejk_attention_inputs_close(NULL);

    float values[4] = {5, 5, 5, 5};
    ejk_random_key key = ejk_prng_key(1);
    ejk_tensor out = ejk_tensor_1d(values, EJK_DTYPE_F32, 4);
    EXPECT_FAIL(INVALID_ARGUMENT, "scale", ejk_random_normal(key, (double)INFINITY, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "low is 2", ejk_random_uniform(key, 2, 1, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "float32", ejk_random_uniform(key, -3e38, 3e38, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "float32", ejk_random_uniform(key, 0, (double)NAN, NULL, &out));
    out.strides[0] = 0;
    EXPECT_FAIL(INVALID_LAYOUT, "out", ejk_random_normal(key, 1, NULL, &out));
    out = ejk_tensor_1d(values, EJK_DTYPE_I32, 4);
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_random_uniform(key, 0, 1, NULL, &out));
    out.dtype = EJK_DTYPE_F32;
    out.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "out", ejk_random_uniform(key, 0, 1, NULL, &out));
    for (int i = 0; i < 4; i++) assert_true(values[i] == 5);
}

/* The documented shape of what is chosen; which blocks is for the stream. */
static void block_indices(void **state) {
    (void)state;
    enum { B = 2, BLOCKS = 5, SIZE = 3, H = 2, S = 3 };
    int32_t got[B][BLOCKS * SIZE][H][S], again[B][BLOCKS * SIZE][H][S];
    ejk_tensor out = ejk_tensor_4d(got, EJK_DTYPE_I32, B, BLOCKS * SIZE, H, S);
    EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(42), SIZE, NULL, &out));
    bool differ = false;
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < BLOCKS * SIZE; t++) {
            for (int h = 0; h < H; h++) {
                const int32_t *row = got[b][t][h];
                int missing = S - t / SIZE - 1;
                for (int s = 0; s < S; s++) {
                    assert_int_equal(row[s] == -1, s < missing);
                    assert_in_range(row[s] + 1, 0, t / SIZE + 1);
                    if (s > 0 && row[s] >= 0) assert_true(row[s] > row[s - 1]);
                    assert_int_equal(row[s], got[b][t / SIZE * SIZE][h][s]);
                    differ |= row[s] != got[0][t][0][s];
                }
            }
        }
    }
    assert_true(differ);
    out.data = again;
    EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(42), SIZE, NULL, &out));
    assert_memory_equal(again, got, sizeof got);
    EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(43), SIZE, NULL, &out));
    assert_memory_not_equal(again, got, sizeof got);
    EXPECT_FAIL(INVALID_SHAPE, "multiple",
                ejk_generate_block_indices(ejk_prng_key(1), 4, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "block_size is 0",
                ejk_generate_block_indices(ejk_prng_key(1), 0, NULL, &out));
    ejk_tensor flat = ejk_tensor_1d(again, EJK_DTYPE_I32, 6);
    EXPECT_FAIL(INVALID_SHAPE, "rank 1",
                ejk_generate_block_indices(ejk_prng_key(1), 1, NULL, &flat));
    out.dtype = EJK_DTYPE_F32;
    EXPECT_FAIL(INVALID_DTYPE, "int32",
                ejk_generate_block_indices(ejk_prng_key(1), SIZE, NULL, &out));
}

/* Every group has numbers of its own: any number of threads chooses the same, into any strides. */
static void block_indices_by_threads(void **state) {
    (void)state;
    enum { B = 2, BLOCKS = 150, SIZE = 2, H = 3, S = 16, COUNT = B * BLOCKS * SIZE * H * S };
    static int32_t alone[COUNT], shared[COUNT], turned[COUNT];
    ejk_tensor out = ejk_tensor_4d(alone, EJK_DTYPE_I32, B, BLOCKS * SIZE, H, S);
    EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(5), SIZE, NULL, &out));
    for (int32_t count = 2; count <= 7; count += 5) {
        ejk_threads *threads;
        EXPECT_OK(ejk_threads_create(count, &threads));
        memset(shared, 0x55, sizeof shared);
        out = ejk_tensor_4d(shared, EJK_DTYPE_I32, B, BLOCKS * SIZE, H, S);
        EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(5), SIZE, threads, &out));
        assert_memory_equal(shared, alone, sizeof alone);
        memset(turned, 0x55, sizeof turned);
        out = ejk_tensor_transpose(ejk_tensor_4d(turned, EJK_DTYPE_I32, S, BLOCKS * SIZE, H, B), 0,
                                   3);
        EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(5), SIZE, threads, &out));
        ejk_tensor wanted = ejk_tensor_4d(alone, EJK_DTYPE_I32, B, BLOCKS * SIZE, H, S);
        EXPECT_OK(ejk_assert_allclose(&out, &wanted, NULL, NULL));
        ejk_threads_destroy(threads);
    }
}

/* Each block is chosen equally often: four of eight, many times. */
static void blocks_are_chosen_evenly(void **state) {
    (void)state;
    enum { B = 2000, BLOCKS = 8, S = 4 };
    int32_t *got = malloc(sizeof *got * B * BLOCKS * S);
    ejk_tensor out = ejk_tensor_4d(got, EJK_DTYPE_I32, B, BLOCKS, 1, S);
    EXPECT_OK(ejk_generate_block_indices(ejk_prng_key(3), 1, NULL, &out));
    int counts[BLOCKS] = {0};
    for (int b = 0; b < B; b++) {
        for (int s = 0; s < S; s++) counts[got[(b * BLOCKS + BLOCKS - 1) * S + s]]++;
    }
    for (int i = 0; i < BLOCKS; i++) assert_in_range(counts[i], B / 2 - 120, B / 2 + 120);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_jax),
        cmocka_unit_test(default_call),
        cmocka_unit_test(keys_and_uniform_numbers),
        cmocka_unit_test(zero_block_is_the_published_one),
        cmocka_unit_test(threads_and_strides_change_nothing),
        cmocka_unit_test(other_types_are_rounded),
        cmocka_unit_test(refusals),
        cmocka_unit_test(block_indices),
        cmocka_unit_test(block_indices_by_threads),
        cmocka_unit_test(blocks_are_chosen_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
