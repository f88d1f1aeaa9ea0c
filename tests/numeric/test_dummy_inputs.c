/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of masks without masks, random masks, and inputs of ragged paged attention. */
#include "support/expect.h"

#include <ejkernel/numeric.h>
#include <ejkernel/splash_mask.h>
#include <math.h>

/* ---- Elements of masks ----------------------------------------------------------------------------- */

static void expect_elements(const uint8_t *bytes, const char *wanted) {
    for (int i = 0; wanted[i] != '\0'; i++) assert_int_equal(bytes[i], wanted[i] - '0');
}

static void elements_are_those_of_the_rule(void **state) {
    (void)state;
    uint8_t bytes[24];
    ejk_tensor out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 4, 6);
    EXPECT_OK(ejk_make_causal_mask(0, NULL, &out));
    expect_elements(bytes, "100000110000111000111100");
    EXPECT_OK(ejk_make_causal_mask(-2, NULL, &out));
    expect_elements(bytes, "000000000000100000110000");
    EXPECT_OK(ejk_make_local_attention_mask((ejk_window){ejk_int(1), ejk_int(0)}, 1, NULL, &out));
    expect_elements(bytes, "110000011000001100000110");
    EXPECT_OK(ejk_make_local_attention_mask((ejk_window){{0, false}, ejk_int(-1)}, 0, NULL, &out));
    expect_elements(bytes, "000000100000110000111000");
    EXPECT_OK(ejk_make_chunk_attention_mask(2, NULL, &out));
    expect_elements(bytes, "100000110000001000001100");
}

/* Rows may lie apart; what is between them stays. */
static void rows_may_lie_apart(void **state) {
    (void)state;
    uint8_t bytes[15];
    memset(bytes, 7, sizeof bytes);
    ejk_tensor out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 3, 2);
    out.strides[0] = 5;
    EXPECT_OK(ejk_make_causal_mask(0, NULL, &out));
    expect_elements(bytes, "107771177711777");
}

static void large_elements_by_threads(void **state) {
    (void)state;
    enum { ROWS = 1500, COLUMNS = 2000 };
    static uint8_t alone[ROWS * COLUMNS], shared[ROWS * COLUMNS];
    ejk_tensor one = ejk_tensor_2d(alone, EJK_DTYPE_BOOL, ROWS, COLUMNS), all = one;
    ejk_window window = {ejk_int(70), ejk_int(3)};
    ejk_threads *threads;
    all.data = shared;
    EXPECT_OK(ejk_threads_create(3, &threads));
    EXPECT_OK(ejk_make_causal_mask(5, NULL, &one));
    EXPECT_OK(ejk_make_causal_mask(5, threads, &all));
    assert_memory_equal(alone, shared, sizeof alone);
    assert_int_equal(alone[(ROWS - 1) * COLUMNS + ROWS + 4], 1);
    assert_int_equal(alone[(ROWS - 1) * COLUMNS + ROWS + 5], 0);
    EXPECT_OK(ejk_make_local_attention_mask(window, -9, NULL, &one));
    EXPECT_OK(ejk_make_local_attention_mask(window, -9, threads, &all));
    assert_memory_equal(alone, shared, sizeof alone);
    EXPECT_OK(ejk_make_chunk_attention_mask(77, NULL, &one));
    EXPECT_OK(ejk_make_chunk_attention_mask(77, threads, &all));
    assert_memory_equal(alone, shared, sizeof alone);
    ejk_threads_destroy(threads);
}

static void bad_outputs_are_refused(void **state) {
    (void)state;
    uint8_t bytes[24] = {9};
    ejk_tensor out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 4, 6);
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size", ejk_make_chunk_attention_mask(0, NULL, &out));
    assert_int_equal(ejk_splash_last_reason(), EJK_SPLASH_REASON_CHUNK_SIZE);
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_make_causal_mask(0, NULL, NULL));
    out = ejk_tensor_3d(bytes, EJK_DTYPE_BOOL, 1, 4, 6);
    EXPECT_FAIL(INVALID_SHAPE, "out has 3 axes", ejk_make_causal_mask(0, NULL, &out));
    out = ejk_tensor_2d(bytes, EJK_DTYPE_I8, 4, 6);
    EXPECT_FAIL(INVALID_DTYPE, "", ejk_make_causal_mask(0, NULL, &out));
    out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 4, 6);
    out.strides[0] = 5;
    EXPECT_FAIL(INVALID_LAYOUT, "rows that meet", ejk_make_causal_mask(0, NULL, &out));
    out = ejk_tensor_2d(NULL, EJK_DTYPE_BOOL, 4, 6);
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_make_causal_mask(0, NULL, &out));
    out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 4, 6);
    out.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "device", ejk_make_causal_mask(0, NULL, &out));
    out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 0, 6);
    EXPECT_FAIL(INVALID_ARGUMENT, "",
                ejk_make_local_attention_mask((ejk_window){0}, 0, NULL, &out));
    assert_int_equal(bytes[0], 9);
}

static void random_masks_have_their_density(void **state) {
    (void)state;
    static uint8_t bytes[300 * 300], again[300 * 300];
    ejk_threads *threads = NULL;
    EXPECT_OK(ejk_threads_create(3, &threads));
    ejk_tensor out = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 300, 300);
    ejk_tensor turned = ejk_tensor_2d(again, EJK_DTYPE_BOOL, 300, 300);
    turned.strides[0] = 1;
    turned.strides[1] = 300;
    for (int tenths = 0; tenths <= 10; tenths++) {
        EXPECT_OK(ejk_make_random_mask(ejk_prng_key(7), tenths / 10.0, threads, &out));
        EXPECT_OK(ejk_make_random_mask(ejk_prng_key(7), tenths / 10.0, NULL, &turned));
        double ones = 0;
        for (int i = 0; i < 300; i++)
            for (int j = 0; j < 300; j++) {
                ones += bytes[i * 300 + j];
                assert_int_equal(bytes[i * 300 + j], again[j * 300 + i]);
            }
        EXPECT_NEAR(ones / 90000, 1 - tenths / 10.0, tenths % 10 ? 0.01 : 0);
    }
    ejk_threads_destroy(threads);
    for (int i = 0; i < 3; i++)
        EXPECT_FAIL(
            INVALID_ARGUMENT, "sparsity is",
            ejk_make_random_mask(ejk_prng_key(7), (double[]){-0.1, 1.1, NAN}[i], NULL, &out));
    out.dtype = EJK_DTYPE_I8;
    EXPECT_FAIL(INVALID_DTYPE, "expected bool",
                ejk_make_random_mask(ejk_prng_key(7), 0.5, NULL, &out));
}

/* ---- Ragged paged attention ------------------------------------------------------------------------ */

static void expect_shape(const ejk_owned_tensor *got, ejk_dtype dtype, int32_t rank,
                         const int64_t *shape) {
    assert_int_equal(got->tensor.dtype, dtype);
    assert_int_equal(got->tensor.rank, rank);
    assert_memory_equal(got->tensor.shape, shape, (size_t)rank * sizeof *shape);
}

static const int32_t *numbers(const ejk_owned_tensor *tensor) {
    return tensor->tensor.data;
}

static void expect_lengths(const ejk_rpa_inputs *in, int64_t seqs, int64_t decoding, int32_t most) {
    const int32_t *starts = numbers(&in->query_start_loc), *lens = numbers(&in->kv_lens);
    assert_int_equal(starts[0], 0);
    for (int64_t i = 0; i < seqs; i++) {
        int32_t queries = starts[i + 1] - starts[i];
        assert_in_range(lens[i], 1, most);
        assert_in_range(queries, 1, i < decoding ? 1 : lens[i]);
    }
}

static void defaults_are_the_documented_ones(void **state) {
    (void)state;
    ejk_rpa_inputs in, again;
    EXPECT_OK(ejk_make_dummy_rpa_inputs(NULL, &in));
    int64_t tokens = numbers(&in.query_start_loc)[4];
    expect_lengths(&in, 4, 0, 48);
    expect_shape(&in.queries, EJK_DTYPE_F32, 3, (int64_t[]){tokens, 8, 80});
    expect_shape(&in.keys, EJK_DTYPE_F32, 3, (int64_t[]){tokens, 2, 80});
    expect_shape(&in.values, EJK_DTYPE_F32, 3, (int64_t[]){tokens, 2, 80});
    expect_shape(&in.kv_cache, EJK_DTYPE_F32, 5, (int64_t[]){12, 16, 4, 1, 128});
    expect_shape(&in.kv_lens, EJK_DTYPE_I32, 1, (int64_t[]){4});
    expect_shape(&in.block_tables, EJK_DTYPE_I32, 1, (int64_t[]){12});
    expect_shape(&in.query_start_loc, EJK_DTYPE_I32, 1, (int64_t[]){5});
    for (int i = 0; i < 12; i++) assert_int_equal(numbers(&in.block_tables)[i], i);
    assert_memory_equal(in.distribution.tensor.data, ((int32_t[]){0, 0, 4}), 12);
    const float *cache = in.kv_cache.tensor.data;
    for (int i = 0; i < 12 * 16 * 4 * 128; i++) assert_int_equal(cache[i] == 0, i % 128 >= 80);
    EXPECT_OK(ejk_make_dummy_rpa_inputs(NULL, &again));
    assert_memory_equal(in.queries.tensor.data, again.queries.tensor.data,
                        (size_t)tokens * 8 * 80 * sizeof(float));
    assert_memory_equal(in.kv_lens.tensor.data, again.kv_lens.tensor.data, 16);
    ejk_rpa_inputs_close(&in);
    ejk_rpa_inputs_close(&again);
    assert_null(in.queries.tensor.data);
    ejk_rpa_inputs_close(&in);
}

static void options_are_followed(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        ejk_rpa_inputs_options options = {.num_seqs = ejk_int(9),
                                          .pages_per_seq = ejk_int(5),
                                          .page_size = ejk_int(8),
                                          .num_kv_heads = ejk_int(3),
                                          .head_dim = ejk_int(200),
                                          .kv_len_max = ejk_int(seed % 2 ? 11 : 1000),
                                          .kv_dtype = EJK_DTYPE_BF16,
                                          .q_dtype = EJK_DTYPE_F32,
                                          .has_distribution = true,
                                          .decode_prefill_mixed = {4, 6, 9},
                                          .has_key = true,
                                          .key = ejk_prng_key(seed)};
        ejk_rpa_inputs in;
        EXPECT_OK(ejk_make_dummy_rpa_inputs(&options, &in));
        int64_t tokens = numbers(&in.query_start_loc)[9];
        expect_lengths(&in, 9, 4, seed % 2 ? 11 : 40);
        expect_shape(&in.queries, EJK_DTYPE_F32, 3, (int64_t[]){tokens, 8, 200});
        expect_shape(&in.values, EJK_DTYPE_BF16, 3, (int64_t[]){tokens, 3, 200});
        expect_shape(&in.kv_cache, EJK_DTYPE_BF16, 5, (int64_t[]){45, 8, 3, 2, 256});
        assert_memory_equal(in.distribution.tensor.data, ((int32_t[]){4, 6, 9}), 12);
        ejk_rpa_inputs_close(&in);
    }
}

static void refuse(ejk_status status, const char *words, ejk_rpa_inputs_options options) {
    ejk_rpa_inputs in, before;
    memset(&in, 0x5a, sizeof in);
    before = in;
    expect_status(status, ejk_make_dummy_rpa_inputs(&options, &in), words, words, __FILE__,
                  __LINE__);
    assert_memory_equal(&in, &before, sizeof in);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    const ejk_opt_int largest = ejk_int(INT32_MAX);
    const ejk_status invalid = EJK_STATUS_INVALID_ARGUMENT;
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_make_dummy_rpa_inputs(NULL, NULL));
    refuse(invalid, "num_seqs is 0", (ejk_rpa_inputs_options){.num_seqs = ejk_int(0)});
    refuse(invalid, "head_dim is -1", (ejk_rpa_inputs_options){.head_dim = ejk_int(-1)});
    refuse(invalid, "page_size is 9223372036854775807",
           (ejk_rpa_inputs_options){.page_size = ejk_int(INT64_MAX)});
    refuse(invalid, "kv_len_max is 0", (ejk_rpa_inputs_options){.kv_len_max = ejk_int(0)});
    refuse(invalid, "page_size is 5, expected a multiple of 2",
           (ejk_rpa_inputs_options){.page_size = ejk_int(5), .kv_dtype = EJK_DTYPE_F16});
    refuse(EJK_STATUS_INVALID_DTYPE, "kv_dtype is",
           (ejk_rpa_inputs_options){.kv_dtype = EJK_DTYPE_F64});
    refuse(EJK_STATUS_INVALID_DTYPE, "q_dtype is",
           (ejk_rpa_inputs_options){.q_dtype = EJK_DTYPE_I8});
    static const int32_t wrong[][3] = {{-1, 0, 4}, {2, 1, 4}, {0, 5, 4}, {0, 0, 3}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ejk_rpa_inputs_options options = {.has_distribution = true};
        memcpy(options.decode_prefill_mixed, wrong[i], sizeof wrong[i]);
        refuse(invalid, "decode_prefill_mixed is", options);
    }
    refuse(EJK_STATUS_OVERFLOW, "do not fit into int32",
           (ejk_rpa_inputs_options){.num_seqs = largest, .pages_per_seq = largest});
    refuse(EJK_STATUS_OVERFLOW, "",
           (ejk_rpa_inputs_options){.num_q_heads = largest,
                                    .head_dim = largest,
                                    .num_kv_heads = largest,
                                    .page_size = ejk_int(1 << 20)});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_those_of_the_rule),
        cmocka_unit_test(rows_may_lie_apart),
        cmocka_unit_test(large_elements_by_threads),
        cmocka_unit_test(bad_outputs_are_refused),
        cmocka_unit_test(random_masks_have_their_density),
        cmocka_unit_test(defaults_are_the_documented_ones),
        cmocka_unit_test(options_are_followed),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
