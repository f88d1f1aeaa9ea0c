/* SPDX-License-Identifier: Apache-2.0 */
/* Stable JSON and hashes: against Python's tables and the values of the documents. */
#include "support/expect.h"
#include "support/sample_record.h"

#include <ejkernel/identity.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The documents' example configuration; a record is tagged with the name of its type. */
typedef struct MyConfig {
    int64_t block_size, num_warps;
    char algorithm[EJK_NAME_SIZE];
} MyConfig;

static const ejk_field my_config_fields[] = {
    {"block_size", EJK_FIELD_INT, EJK_OPTIONAL, offsetof(MyConfig, block_size), "128", "", "",
     NULL},
    {"num_warps", EJK_FIELD_INT, EJK_OPTIONAL, offsetof(MyConfig, num_warps), "4", "", "", NULL},
    {"algorithm", EJK_FIELD_NAME, EJK_OPTIONAL, offsetof(MyConfig, algorithm), "", "", "", NULL},
};
static const ejk_record my_config_record = {
    .name = "MyConfig", .size = sizeof(MyConfig), .fields = my_config_fields, .count = 3};
static const MyConfig my_config = {128, 4, "default"};

/* One number: for what a number looks like. */
typedef struct number {
    ejk_opt_float x;
} number;

static const ejk_field number_field = {
    "x", EJK_FIELD_OPT_FLOAT, EJK_OPTIONAL, offsetof(number, x), "unset", "", "", NULL};
static const ejk_record number_record = {
    .name = "number", .size = sizeof(number), .fields = &number_field, .count = 1};

static FILE *open_data(const char *name) {
    char path[512];
    snprintf(path, sizeof path, EJK_SOURCE_DIR "/tests/data/identity/%s", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

static void assert_json(const ejk_record *record, const void *object, ejk_json_style style,
                        const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_stable_json(record, object, style, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static void assert_hash(const char *text, const char *wanted) {
    char hash[EJK_SHORT_HASH_SIZE];
    EXPECT_OK(ejk_short_hash_text(text, hash));
    assert_string_equal(hash, wanted);
}

static void assert_safe_hash(const char *text, const char *algorithm, const char *wanted) {
    char *decimal = NULL;
    EXPECT_OK(ejk_get_safe_hash_int(text, algorithm, &decimal));
    assert_string_equal(decimal, wanted);
    ejk_free(decimal);
}

static char *hash_of(const ejk_record *record, const void *object) {
    char *decimal = NULL;
    EXPECT_OK(ejk_hash_fn(record, object, &decimal));
    return decimal;
}

static void assert_hash_fn(const ejk_record *record, const void *object, const char *values) {
    char *wanted = NULL, *decimal = hash_of(record, object);
    EXPECT_OK(ejk_get_safe_hash_int(values, NULL, &wanted));
    assert_string_equal(decimal, wanted);
    ejk_free(wanted);
    ejk_free(decimal);
}

/* ---- Stable JSON ----------------------------------------------------------------------------------- */

static void numbers_are_written_as_python_does(void **state) {
    (void)state;
    FILE *file = open_data("floats.txt");
    char hex[64], repr[64], wanted[96];
    int lines = 0;
    for (; fscanf(file, "%63s %63s", hex, repr) == 2; lines++) {
        number object = {ejk_float(strtod(hex, NULL))};
        snprintf(wanted, sizeof wanted, "{\"x\":%s}", repr);
        assert_json(&number_record, &object, EJK_JSON_PLAIN, wanted);
        char *text = NULL;
        EXPECT_OK(ejk_stable_json_text(wanted, &text));
        assert_string_equal(text, wanted);
        ejk_free(text);
    }
    fclose(file);
    assert_true(lines > 500);
}

static void texts_are_written_as_python_does(void **state) {
    (void)state;
    FILE *file = open_data("texts.txt");
    char line[1024];
    int lines = 0;
    for (; fgets(line, sizeof line, file) != NULL; lines++) {
        char *wanted = strchr(line, '\t'), *text = NULL;
        assert_non_null(wanted);
        *wanted++ = '\0';
        wanted[strcspn(wanted, "\n")] = '\0';
        EXPECT_OK(ejk_stable_json_text(line, &text));
        assert_string_equal(text, wanted);
        ejk_free(text);
    }
    fclose(file);
    assert_true(lines > 20);
}

static void deep_texts_are_written(void **state) {
    (void)state;
    enum { DEPTH = 2000 };
    char json[2 * DEPTH + 1], *text = NULL;
    memset(json, '[', DEPTH);
    memset(json + DEPTH, ']', DEPTH);
    json[2 * DEPTH] = '\0';
    EXPECT_OK(ejk_stable_json_text(json, &text));
    assert_string_equal(text, json);
    ejk_free(text);
}

static void what_is_no_json_is_refused(void **state) {
    (void)state;
    char *text = NULL;
    EXPECT_FAIL(MALFORMED, "line 1", ejk_stable_json_text("{", &text));
    EXPECT_FAIL(MALFORMED, "line 2", ejk_stable_json_text("[1,\n}", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("NaN", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("1 2", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("9223372036854775808", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("1e999", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("{\"a\":1,\"a\":2}", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("\"\\ud800\"", &text));
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text("\"\xff\"", &text));
    char deep[100001];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    EXPECT_FAIL(MALFORMED, "", ejk_stable_json_text(deep, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_stable_json_text(NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_stable_json_text("1", NULL));
    assert_null(text);
}

static void records_have_both_encodings(void **state) {
    (void)state;
    sample full = full_sample(), empty = {0};
    const char *data =
        "{\"accumulate\":\"float64\",\"causal\":true,\"chunk_sizes\":[-1,512,0],\"dropout\":0.5,"
        "\"exact\":false,"
        "\"out\":{%s\"dtype\":\"float32\",\"shape\":[]},"
        "\"parts\":[{%s\"dtype\":\"float16\",\"shape\":[2,128]},"
        "{%s\"dtype\":\"float16\",\"shape\":[2,128]}],"
        "\"platform\":\"caf\\u00e9 \\\"1\\\"\","
        "\"query\":{%s\"dtype\":\"bfloat16\",\"shape\":[2,128,8,64]},"
        "\"seed\":-9223372036854775808,\"shape\":{\"pinned\":false,\"rows\":9223372036854775807},"
        "\"softmax_scale\":0.0,\"splits\":0,\"window\":[null,3]}";
    char plain[1024], tagged[1024], inner[960];
    snprintf(plain, sizeof plain, data, "", "", "", "");
    const char *array = "\"_type\":\"array\",";
    snprintf(inner, sizeof inner, data, array, array, array, array);
    snprintf(tagged, sizeof tagged, "{\"_type\":\"dataclass\",\"class\":\"sample\",\"data\":%s}",
             inner);
    assert_json(&sample_record, &full, EJK_JSON_PLAIN, plain);
    assert_json(&sample_record, &full, EJK_JSON_TAGGED, tagged);
    assert_json(
        &sample_record, &empty, EJK_JSON_PLAIN,
        "{\"accumulate\":null,\"causal\":false,\"chunk_sizes\":null,\"dropout\":0.0,\"exact\":null,"
        "\"out\":null,\"parts\":null,\"platform\":null,\"query\":null,\"seed\":0,"
        "\"shape\":{\"pinned\":false,\"rows\":null},\"softmax_scale\":null,"
        "\"splits\":null,\"window\":null}");
}

static void numbers_that_are_none_have_names(void **state) {
    (void)state;
    number undefined = {ejk_float((double)NAN)}, high = {ejk_float((double)INFINITY)};
    number low = {ejk_float(-(double)INFINITY)};
    assert_json(&number_record, &undefined, EJK_JSON_PLAIN, "{\"x\":NaN}");
    assert_json(&number_record, &high, EJK_JSON_PLAIN, "{\"x\":Infinity}");
    assert_json(&number_record, &low, EJK_JSON_PLAIN, "{\"x\":-Infinity}");
    char *text = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "x: NaN", ejk_to_json(&number_record, &undefined, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "x: -Infinity", ejk_to_json(&number_record, &low, &text));
    assert_null(text);
}

static void what_was_written_is_read_back(void **state) {
    (void)state;
    sample full = full_sample(), again;
    full.softmax_scale.value = 0.1 + 0.2;
    char *text = NULL;
    EXPECT_OK(ejk_to_json(&sample_record, &full, &text));
    assert_non_null(strstr(text, "0.30000000000000004"));
    EXPECT_OK(ejk_from_json(&sample_record, text, &again));
    assert_true(ejk_record_same_signature(&sample_record, &full, &again));
    ejk_free(text);

    sample untouched = again;
    EXPECT_FAIL(MALFORMED, "causal", ejk_from_json(&sample_record, "{\"causal\":1}", &again));
    assert_memory_equal(&again, &untouched, sizeof again);
}

static void values_that_are_none_are_refused(void **state) {
    (void)state;
    char *text = NULL, hash[EJK_SHORT_HASH_SIZE] = "untouched";
    sample object = full_sample();
    object.query.rank = EJK_MAX_RANK + 1;
    EXPECT_FAIL(INVALID_SHAPE, "query: rank 9",
                ejk_stable_json(&sample_record, &object, EJK_JSON_PLAIN, &text));
    object.query.rank = 2;
    object.query.shape[1] = -1;
    EXPECT_FAIL(INVALID_SHAPE, "query: axis 1",
                ejk_short_hash(&sample_record, &object, EJK_JSON_PLAIN, hash));
    object = full_sample();
    object.accumulate = (ejk_dtype)99;
    EXPECT_FAIL(INVALID_ARGUMENT, "accumulate: element type 99",
                ejk_stable_json(&sample_record, &object, EJK_JSON_TAGGED, &text));
    object = full_sample();
    memset(object.platform, 'x', sizeof object.platform);
    EXPECT_FAIL(INVALID_ARGUMENT, "platform: no closing zero",
                ejk_stable_json(&sample_record, &object, EJK_JSON_PLAIN, &text));
    memcpy(object.platform, "\xc3(", 3);
    EXPECT_FAIL(INVALID_ARGUMENT, "platform: 2 bytes given that are not UTF-8",
                ejk_stable_json(&sample_record, &object, EJK_JSON_PLAIN, &text));
    object = full_sample();
    EXPECT_FAIL(INVALID_ARGUMENT, "style: 7",
                ejk_stable_json(&sample_record, &object, (ejk_json_style)7, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_stable_json(NULL, &object, EJK_JSON_PLAIN, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_stable_json(&sample_record, NULL, EJK_JSON_PLAIN, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_stable_json(&sample_record, &object, EJK_JSON_PLAIN, NULL));
    assert_null(text);
    assert_string_equal(hash, "untouched");
}

/* ---- Hashes ---------------------------------------------------------------------------------------- */

static void short_hashes_are_the_documented_ones(void **state) {
    (void)state;
    assert_hash("{\"block_size\":128,\"num_warps\":4}", "0eab141667be0060");
    assert_hash("{\"a\":1,\"b\":[2,3]}", "efbd0040190fb087");
    char hash[EJK_SHORT_HASH_SIZE], *text = NULL;
    EXPECT_OK(ejk_short_hash(&my_config_record, &my_config, EJK_JSON_PLAIN, hash));
    assert_string_equal(hash, "281d06298fa14151");
    EXPECT_OK(ejk_short_hash(&my_config_record, &my_config, EJK_JSON_TAGGED, hash));
    assert_string_equal(hash, "c29c9d0b02d9cc5e");
    ejk_tensor tensor = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 2, 3);
    EXPECT_OK(ejk_stable_json_tensor(&tensor, EJK_JSON_PLAIN, &text));
    assert_hash(text, "93a691c8028b621d");
    ejk_free(text);
    EXPECT_OK(ejk_stable_json_tensor(&tensor, EJK_JSON_TAGGED, &text));
    assert_hash(text, "69199b354e8f622a");
    ejk_free(text);
    tensor = (ejk_tensor){0};
    EXPECT_OK(ejk_stable_json_tensor(&tensor, EJK_JSON_TAGGED, &text));
    assert_string_equal(text, "null");
    ejk_free(text);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_stable_json_tensor(NULL, EJK_JSON_PLAIN, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_short_hash_text(NULL, hash));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_short_hash_text("", NULL));
}

static void digests_are_big_numbers(void **state) {
    (void)state;
    assert_safe_hash("test_string", NULL, "69724861852928421676059129370371402468");
    assert_safe_hash("test", "sha256",
                     "7215593948684684950975936973326648698282179581044824542316895739060764436"
                     "3272");
    assert_safe_hash("", "md5", "281949768489412648962353822266799178366");
    /* hashlib's names and libcrypto's are both known: from Python 3.11 */
    assert_safe_hash("x", "sha1", "102553945430482936228439652794448809031083237490");
    assert_safe_hash("x", "sha3_256",
                     "5252302260855330353406067171580570110934404226604277770588398555099877"
                     "0467999");
    assert_safe_hash("x", "blake2s",
                     "1068316073790528788692668627416932089096802522475110630108815972109895"
                     "45954060");
    assert_safe_hash("x", "SHA3-256",
                     "5252302260855330353406067171580570110934404226604277770588398555099877"
                     "0467999");
}

static void algorithms_that_do_not_fit_are_refused(void **state) {
    (void)state;
    char *decimal = NULL;
    EXPECT_FAIL(UNKNOWN_NAME, "'md55'", ejk_get_safe_hash_int("x", "md55", &decimal));
    EXPECT_FAIL(UNKNOWN_NAME, "''", ejk_get_safe_hash_int("x", "", &decimal));
    EXPECT_FAIL(UNKNOWN_NAME, "'new'", ejk_get_safe_hash_int("x", "new", &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "'shake_128'", ejk_get_safe_hash_int("x", "shake_128", &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "'shake_256'", ejk_get_safe_hash_int("x", "shake_256", &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_get_safe_hash_int(NULL, "md5", &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_get_safe_hash_int("x", "md5", NULL));
    assert_null(decimal);
}

static void parameters_hash_as_documented(void **state) {
    (void)state;
    ejk_fwd_params fwd = {.q_blocksize = ejk_int(128),
                          .kv_blocksize = ejk_int(256),
                          .num_warps = ejk_int(4),
                          .num_stages = ejk_int(2)};
    ejk_fwd_params none = {0};
    char *decimal = hash_of(&ejk_fwd_params_record, &fwd);
    assert_string_equal(decimal, "253798517268061605946541954397426441594");
    uint64_t python = 0; /* hash() of a Python integer: modulo 2^61 - 1 */
    for (const char *c = decimal; *c != '\0'; c++)
        python = (uint64_t)(((unsigned __int128)python * 10 + (unsigned)(*c - '0')) %
                            ((UINT64_C(1) << 61) - 1));
    assert_true(python == UINT64_C(1886528453350741447));
    ejk_free(decimal);
    decimal = hash_of(&ejk_fwd_params_record, &none);
    assert_string_equal(decimal, "281949768489412648962353822266799178366");
    ejk_free(decimal);
}

static void the_documented_collisions_are_there(void **state) {
    (void)state;
    ejk_fwd_params q128 = {.q_blocksize = ejk_int(128)}, kv128 = {.kv_blocksize = ejk_int(128)};
    ejk_fwd_params q12kv8 = {.q_blocksize = ejk_int(12), .kv_blocksize = ejk_int(8)};
    ejk_fwd_params q1kv28 = {.q_blocksize = ejk_int(1), .kv_blocksize = ejk_int(28)};
    ejk_fwd_params fwd1 = {.q_blocksize = ejk_int(1)};
    ejk_bwd_params bwd1 = {.q_blocksize = ejk_int(1)};
    ejk_fwd_params zero = {.q_blocksize = ejk_int(0)};
    assert_hash_fn(&ejk_fwd_params_record, &q128, "128");
    assert_hash_fn(&ejk_fwd_params_record, &kv128, "128");
    assert_hash_fn(&ejk_fwd_params_record, &q12kv8, "128");
    assert_hash_fn(&ejk_fwd_params_record, &q1kv28, "128");
    assert_hash_fn(&ejk_fwd_params_record, &fwd1, "1");
    assert_hash_fn(&ejk_bwd_params_record, &bwd1, "1");
    assert_hash_fn(&ejk_fwd_params_record, &zero, "0"); /* zero is set */
    char one[EJK_SHORT_HASH_SIZE], other[EJK_SHORT_HASH_SIZE];
    EXPECT_OK(ejk_short_hash(&ejk_fwd_params_record, &q128, EJK_JSON_PLAIN, one));
    EXPECT_OK(ejk_short_hash(&ejk_fwd_params_record, &kv128, EJK_JSON_PLAIN, other));
    assert_string_not_equal(one, other);
}

static void every_kind_counts_in_pythons_form(void **state) {
    (void)state;
    sample full = full_sample(), empty = {0};
    assert_hash_fn(&sample_record, &full,
                   "True-92233720368547758080.5False00.0[None, 3][-1, 512, 0]"
                   "{'rows': 9223372036854775807, 'pinned': False}");
    assert_hash_fn(&sample_record, &empty, "False00.0");
    assert_hash_fn(&my_config_record, &my_config, "1284");
    number undefined = {ejk_float((double)NAN)}, low = {ejk_float(-(double)INFINITY)};
    number small = {ejk_float(1e-5)};
    assert_hash_fn(&number_record, &undefined, "nan");
    assert_hash_fn(&number_record, &low, "-inf");
    assert_hash_fn(&number_record, &small, "1e-05");
    char *decimal = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_hash_fn(NULL, &full, &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_hash_fn(&sample_record, NULL, &decimal));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_hash_fn(&sample_record, &full, NULL));
    assert_null(decimal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_written_as_python_does),
        cmocka_unit_test(texts_are_written_as_python_does),
        cmocka_unit_test(deep_texts_are_written),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(records_have_both_encodings),
        cmocka_unit_test(numbers_that_are_none_have_names),
        cmocka_unit_test(what_was_written_is_read_back),
        cmocka_unit_test(values_that_are_none_are_refused),
        cmocka_unit_test(short_hashes_are_the_documented_ones),
        cmocka_unit_test(digests_are_big_numbers),
        cmocka_unit_test(algorithms_that_do_not_fit_are_refused),
        cmocka_unit_test(parameters_hash_as_documented),
        cmocka_unit_test(the_documented_collisions_are_there),
        cmocka_unit_test(every_kind_counts_in_pythons_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
