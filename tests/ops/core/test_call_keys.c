/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of calls and layouts, abstract values, and what devices are called. */
#include "support/expect.h"

#include <ejkernel/flash_attention.h>
#include <ejkernel/identity.h>
#include <stdio.h>

/* The documents' examples: one or two tensors and two keywords. */
#define MODE(F, R)                                                                                 \
    F(BOOL, exact, EJK_OPTIONAL, "false", "", "")                                                  \
    F(OPT_INT, depth, EJK_OPTIONAL, "unset", "", "")
EJK_RECORD_STRUCT(mode, MODE);
#define EJK_RECORD_SELF mode
EJK_RECORD_DEFINE(mode_record, mode, MODE);
#undef EJK_RECORD_SELF

#define CALL(F, R)                                                                                 \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "unset", "", "")                                     \
    F(TENSOR, a, EJK_REQUIRED, "", "[n,m] float", "")                                              \
    F(TENSOR, b, EJK_REQUIRED, "", "[m,k] float", "")                                              \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "")                                                 \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[n] float", "")                                         \
    R(mode, mode, mode_record, "")                                                                 \
    R(ejk_fwd_params, cfg, ejk_fwd_params_record, "")                                              \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[n,k] float", "")                                     \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[n] float32", "")
EJK_RECORD_STRUCT(call, CALL);
#define EJK_RECORD_SELF call
EJK_RECORD_DEFINE(call_record, call, CALL);
#undef EJK_RECORD_SELF

static const ejk_kernel two = {
    .op_id = "two", .args = &call_record, .config = &ejk_fwd_params_record, .config_field = "cfg"};

/* The same with one required tensor only. */
#define SINGLE(F, R)                                                                               \
    F(TENSOR, a, EJK_REQUIRED, "", "any", "")                                                      \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "")                                                 \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "unset", "", "")
EJK_RECORD_STRUCT(single, SINGLE);
#define EJK_RECORD_SELF single
EJK_RECORD_DEFINE(single_record, single, SINGLE);
#undef EJK_RECORD_SELF
static const ejk_kernel one = {.op_id = "one", .version = "3", .args = &single_record};

static void assert_key(const ejk_kernel *kernel, const void *args, const char *method,
                       const char *wanted) {
    char key[EJK_SHORT_HASH_SIZE];
    EXPECT_OK(ejk_call_key(kernel, args, method, NULL, key));
    assert_string_equal(key, wanted);
}

static void assert_spec(const call *args, const char *method, const char *axes,
                        const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_call_spec(&two, args, method, axes, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static call two_tensors(void) {
    return (call){.a = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 4, 8),
                  .b = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 8, 2)};
}

static void call_keys_are_the_documented_ones(void **state) {
    (void)state;
    call pair = two_tensors();
    assert_key(&two, &pair, NULL, "d608a3419d9e5423");
    assert_spec(&pair, NULL, NULL,
                "{\"args_spec\":[{\"dtype\":\"float32\",\"shape\":[4,8]},"
                "{\"dtype\":\"float32\",\"shape\":[8,2]}],\"batch_axes\":null,"
                "\"kwargs_spec\":{},\"method\":null}");
    single small = {.a = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 2, 3)};
    assert_key(&one, &small, NULL, "83113b40e80a2205");
    single query = {.a = ejk_tensor_4d(NULL, EJK_DTYPE_BF16, 2, 128, 8, 64),
                    .causal = true,
                    .softmax_scale = ejk_float(0.125)};
    assert_key(&one, &query, "shard_map", "393008f2d99bc9e8");
}

static void a_call_is_its_inputs(void **state) {
    (void)state;
    call args = two_tensors();
    args.out = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 4, 2);
    args.lse = ejk_tensor_1d(NULL, EJK_DTYPE_F32, 4);
    args.cfg.q_blocksize = ejk_int(64);
    assert_key(&two, &args, NULL, "d608a3419d9e5423"); /* results and configuration do not count */
    args.b = (ejk_tensor){0};
    args.bias = ejk_tensor_1d(NULL, EJK_DTYPE_BF16, 4);
    args.mode.depth = ejk_int(0);
    args.softmax_scale = ejk_float(1);
    args.causal = true;
    assert_spec(&args, "shard_map", " {\"b\": 1, \"a\": [0, null]}",
                "{\"args_spec\":[{\"dtype\":\"float32\",\"shape\":[4,8]},null],"
                "\"batch_axes\":{\"a\":[0,null],\"b\":1},"
                "\"kwargs_spec\":{\"bias\":{\"dtype\":\"bfloat16\",\"shape\":[4]},\"causal\":true,"
                "\"mode\":{\"depth\":0},\"softmax_scale\":1.0},\"method\":\"shard_map\"}");
}

static void keys_of_attention_leave_its_configuration_out(void **state) {
    (void)state;
    ejk_flash_attention_args args = {.query = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, 8, 2, 16),
                                     .key = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, 8, 2, 16),
                                     .value = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, 8, 2, 16),
                                     .sliding_window = ejk_window_of(3, 0)};
    char plain[EJK_SHORT_HASH_SIZE], *text = NULL;
    EXPECT_OK(ejk_call_spec(&ejk_flash_attention_kernel, &args, NULL, NULL, &text));
    assert_non_null(strstr(text, "\"kwargs_spec\":{\"sliding_window\":[3,0]}"));
    ejk_free(text);
    EXPECT_OK(ejk_call_key(&ejk_flash_attention_kernel, &args, NULL, NULL, plain));
    args.cfg.fwd_params.q_blocksize = ejk_int(32);
    args.out = args.query;
    assert_key(&ejk_flash_attention_kernel, &args, NULL, plain);
    args.causal = true;
    char other[EJK_SHORT_HASH_SIZE];
    EXPECT_OK(ejk_call_key(&ejk_flash_attention_kernel, &args, NULL, NULL, other));
    assert_string_not_equal(plain, other);
}

static void calls_that_make_no_sense_are_refused(void **state) {
    (void)state;
    call args = two_tensors();
    char key[EJK_SHORT_HASH_SIZE] = "untouched", *text = NULL;
    EXPECT_FAIL(UNKNOWN_NAME, "method 'vmap'", ejk_call_key(&two, &args, "vmap", NULL, key));
    EXPECT_FAIL(MALFORMED, "batch_axes", ejk_call_key(&two, &args, NULL, "{1}", key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_call_key(NULL, &args, NULL, NULL, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_call_key(&two, NULL, NULL, NULL, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_call_key(&two, &args, NULL, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_call_spec(&two, &args, NULL, NULL, NULL));
    args.a.shape[0] = -4;
    EXPECT_FAIL(INVALID_SHAPE, "a: axis 0", ejk_call_key(&two, &args, NULL, NULL, key));
    EXPECT_FAIL(INVALID_SHAPE, "a: axis 0", ejk_call_spec(&two, &args, NULL, NULL, &text));
    EXPECT_FAIL(INVALID_SHAPE, "a: axis 0",
                ejk_default_key_builder_with_sharding(&two, &args, NULL, NULL, key));
    assert_null(text);
    assert_string_equal(key, "untouched");
}

static void shardings_are_part_of_their_key(void **state) {
    (void)state;
    single args = {.a = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 4, 8)};
    char key[EJK_SHORT_HASH_SIZE], wanted[EJK_SHORT_HASH_SIZE];
    const char *none[3] = {NULL, NULL, NULL}, *some[3] = {"", "text of a flag", NULL};
    EXPECT_OK(ejk_default_key_builder_with_sharding(&one, &args, NULL, NULL, key));
    assert_string_equal(key, "d457fef7fe821ce5");
    EXPECT_OK(ejk_default_key_builder_with_sharding(&one, &args, none, NULL, key));
    assert_string_equal(key, "d457fef7fe821ce5");
    EXPECT_OK(ejk_default_key_builder_with_sharding(&one, &args, some, NULL, key));
    assert_string_equal(key, "d457fef7fe821ce5");

    call pair = two_tensors();
    pair.bias = ejk_tensor_1d(NULL, EJK_DTYPE_F32, 4);
    pair.causal = true;
    const char *spread[9] = {[1] = "P('x')", [4] = "P(None)", [7] = "of a result"};
    EXPECT_OK(ejk_default_key_builder_with_sharding(&two, &pair, spread, "0", key));
    EXPECT_OK(ejk_short_hash_text(
        "{\"args_spec\":[{\"dtype\":\"float32\",\"shape\":[4,8]},"
        "{\"dtype\":\"float32\",\"shape\":[8,2]}],\"batch_axes\":0,"
        "\"kwargs_spec\":{\"bias\":{\"dtype\":\"float32\",\"shape\":[4]},\"causal\":true},"
        "\"sharding\":{\"args\":[\"P('x')\",null],"
        "\"kwargs\":{\"bias\":\"P(None)\",\"causal\":null}}}",
        wanted));
    assert_string_equal(key, wanted);

    spread[1] = "\xff";
    EXPECT_FAIL(INVALID_ARGUMENT, "a: 1 bytes given that are not UTF-8",
                ejk_default_key_builder_with_sharding(&two, &pair, spread, NULL, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_default_key_builder_with_sharding(NULL, &pair, spread, NULL, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_default_key_builder_with_sharding(&two, &pair, spread, NULL, NULL));
    assert_string_equal(key, wanted);

    ejk_tensor absent = {0};
    assert_string_equal(ejk_sharding_fingerprint(&pair.a, "P('x')"), "P('x')");
    assert_null(ejk_sharding_fingerprint(&pair.a, ""));
    assert_null(ejk_sharding_fingerprint(&pair.a, NULL));
    assert_null(ejk_sharding_fingerprint(&absent, "P('x')"));
    assert_null(ejk_sharding_fingerprint(NULL, "P('x')"));
}

static void operations_are_named_with_their_version(void **state) {
    (void)state;
    char *text = NULL;
    EXPECT_OK(ejk_versioned_op_id(&one, &text));
    assert_string_equal(text, "one@v3");
    ejk_free(text);
    EXPECT_OK(ejk_versioned_op_id(&two, &text));
    assert_string_equal(text, "two@v0");
    ejk_free(text);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_versioned_op_id(NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_versioned_op_id(&one, NULL));
}

/* ---- Layouts --------------------------------------------------------------------------------------- */

static bool same_layout(ejk_tensor a, ejk_tensor b) {
    char first[EJK_SHORT_HASH_SIZE], second[EJK_SHORT_HASH_SIZE];
    single left = {.a = a}, right = {.a = b};
    EXPECT_OK(ejk_layout_key(&single_record, &left, first));
    EXPECT_OK(ejk_layout_key(&single_record, &right, second));
    return strcmp(first, second) == 0;
}

static ejk_tensor with_strides(ejk_tensor tensor, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
    const int64_t strides[] = {s0, s1, s2, s3};
    memcpy(tensor.strides, strides, sizeof strides);
    return tensor;
}

static void layouts_are_told_apart_by_class(void **state) {
    (void)state;
    ejk_tensor plain = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 2, 16, 4, 8);
    ejk_tensor larger = ejk_tensor_4d(NULL, EJK_DTYPE_BF16, 3, 160, 5, 64);
    ejk_tensor permuted = ejk_tensor_transpose(plain, 1, 2);
    ejk_tensor padded = with_strides(plain, 1024, 64, 16, 1);
    ejk_tensor more = with_strides(plain, 4096, 256, 32, 1);
    ejk_tensor repeated = with_strides(plain, 0, 32, 8, 1);
    ejk_tensor backwards = with_strides(plain, 512, -32, 8, 1);
    assert_true(same_layout(plain, larger));
    assert_false(same_layout(plain, permuted));
    assert_true(same_layout(permuted, ejk_tensor_transpose(larger, 1, 2)));
    assert_false(same_layout(plain, padded));
    assert_true(same_layout(padded, more));
    assert_false(same_layout(plain, repeated));
    assert_false(same_layout(plain, backwards));
    assert_false(same_layout(padded, backwards));
    assert_false(same_layout(plain, with_strides(plain, 512, 32, 8, 2)));
    assert_false(same_layout(plain, (ejk_tensor){0}));
}

static void axes_of_one_element_have_no_layout(void **state) {
    (void)state;
    ejk_tensor row = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, 16, 1, 8);
    assert_true(same_layout(row, with_strides(row, 7, 8, -9, 1)));
    assert_true(same_layout(row, with_strides(row, 0, 8, 1, 1)));
    ejk_tensor empty = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 2, 0, 4, 8);
    assert_true(same_layout(empty, with_strides(empty, 1, 2, 3, INT64_MIN)));
    ejk_tensor hostile = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 2, INT64_MAX, 4, 8);
    assert_true(same_layout(with_strides(hostile, INT64_MIN, 32, 8, 1),
                            with_strides(hostile, INT64_MIN, 64, 8, 1)));
}

static void every_tensor_counts_in_a_layout(void **state) {
    (void)state;
    call args = two_tensors();
    char key[EJK_SHORT_HASH_SIZE], other[EJK_SHORT_HASH_SIZE];
    EXPECT_OK(ejk_layout_key(&call_record, &args, key));
    args.causal = true;
    args.cfg.q_blocksize = ejk_int(3);
    EXPECT_OK(ejk_layout_key(&call_record, &args, other));
    assert_string_equal(key, other);
    args.out = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 4, 2);
    EXPECT_OK(ejk_layout_key(&call_record, &args, other));
    assert_string_not_equal(key, other);
    args.lse = args.out;
    args.out = (ejk_tensor){0};
    EXPECT_OK(ejk_layout_key(&call_record, &args, key));
    assert_string_not_equal(key, other);

    args.lse.rank = 9;
    memcpy(key, "untouched", 10);
    EXPECT_FAIL(INVALID_SHAPE, "lse: rank 9", ejk_layout_key(&call_record, &args, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_layout_key(NULL, &args, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_layout_key(&call_record, NULL, key));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_layout_key(&call_record, &args, NULL));
    assert_string_equal(key, "untouched");
}

/* ---- Abstract values and devices ------------------------------------------------------------------- */

static void abstract_values_keep_shape_and_type(void **state) {
    (void)state;
    float memory[64];
    call args = two_tensors(), out;
    args.a.data = memory;
    args.a.device_type = EJK_DEVICE_CUDA;
    args.a.device_index = 1;
    args.a = ejk_tensor_transpose(args.a, 0, 1);
    args.causal = true;
    args.mode.depth = ejk_int(2);
    EXPECT_OK(ejk_abstractify(&call_record, &args, &out));
    call wanted = args;
    wanted.a = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 8, 4);
    assert_true(ejk_record_equal(&call_record, &out, &wanted));
    EXPECT_OK(ejk_abstractify(&call_record, &args, &args));
    assert_true(ejk_record_equal(&call_record, &args, &wanted));

    call bad = two_tensors(), before;
    bad.b.rank = -1;
    before = out;
    EXPECT_FAIL(INVALID_SHAPE, "b: rank -1", ejk_abstractify(&call_record, &bad, &out));
    bad.b = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 8, 2);
    bad.b.shape[0] = -8;
    EXPECT_FAIL(INVALID_SHAPE, "b: axis 0", ejk_abstractify(&call_record, &bad, &out));
    bad.b.shape[0] = INT64_MAX;
    EXPECT_FAIL(OVERFLOW, "b: its elements", ejk_abstractify(&call_record, &bad, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_abstractify(NULL, &bad, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_abstractify(&call_record, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_abstractify(&call_record, &bad, NULL));
    assert_memory_equal(&out, &before, sizeof out);
}

static void devices_have_three_names(void **state) {
    (void)state;
    assert_string_equal(ejk_device_kind(EJK_DEVICE_CPU), "cpu");
    assert_string_equal(ejk_device_kind(EJK_DEVICE_CUDA), "gpu");
    assert_string_equal(ejk_device_kind(10), "gpu");
    assert_string_equal(ejk_device_kind(-1), "unknown");
    assert_string_equal(ejk_get_device_platform(EJK_DEVICE_CPU), "cpu");
    assert_string_equal(ejk_get_device_platform(EJK_DEVICE_CUDA), "gpu");
    assert_string_equal(ejk_get_device_platform(99), "unknown");
    assert_string_equal(ejk_get_device_platform_ex(EJK_DEVICE_CPU), "xla");
    assert_string_equal(ejk_get_device_platform_ex(EJK_DEVICE_CUDA), "triton");
    assert_string_equal(ejk_get_device_platform_ex(99), "xla");
    const char *line = ejk_device_fingerprint(), *bar = strchr(line, '|');
    assert_int_equal(strncmp(line, "cpu|", 4), 0);
    assert_ptr_equal(bar, strrchr(line, '|'));
    assert_null(strchr(line, '\n'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_keys_are_the_documented_ones),
        cmocka_unit_test(a_call_is_its_inputs),
        cmocka_unit_test(keys_of_attention_leave_its_configuration_out),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
        cmocka_unit_test(shardings_are_part_of_their_key),
        cmocka_unit_test(operations_are_named_with_their_version),
        cmocka_unit_test(layouts_are_told_apart_by_class),
        cmocka_unit_test(axes_of_one_element_have_no_layout),
        cmocka_unit_test(every_tensor_counts_in_a_layout),
        cmocka_unit_test(abstract_values_keep_shape_and_type),
        cmocka_unit_test(devices_have_three_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
