/* SPDX-License-Identifier: Apache-2.0 */
/* Records: descriptions, JSON, texts, help. */
#include "support/expect.h"
#include "support/sample_record.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void expect_json(const sample *object, int flags, const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_record_to_json(&sample_record, object, flags, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static void descriptions_are_sound(void **state) {
    (void)state;
    EXPECT_OK(ejk_record_check(&sample_record));
    EXPECT_OK(ejk_record_check(&(ejk_record){.name = "nothing"}));
}

/* Checks a copy of a good record of two fields in which the second is `field`. */
static ejk_status check_with(ejk_field field) {
    const ejk_field fields[] = {{"first", EJK_FIELD_TENSOR, 0, 0, "", "[n] float", "", NULL},
                                field};
    return ejk_record_check(
        &(ejk_record){.name = "pair", .size = 400, .fields = fields, .count = 2});
}

static void faults_of_a_description_are_named(void **state) {
    (void)state;
    const ejk_field good = {"second", EJK_FIELD_TENSOR, 0, 160, "", "[n] first", "", NULL};
    EXPECT_OK(check_with(good));
#define WITH(words, ...)                                                                           \
    do {                                                                                           \
        ejk_field bad = good;                                                                      \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(INVALID_ARGUMENT, words, check_with(bad));                                     \
    } while (0)
    WITH("field name \"NULL\"", bad.name = NULL);
    WITH("field name \"a-b\" is not an identifier", bad.name = "a-b");
    WITH("field name \"2\"", bad.name = "2");
    WITH("two fields have this name", bad.name = "first");
    WITH("kind 13 does not exist", bad.kind = (ejk_field_kind)13);
    WITH("kind -1 does not exist", bad.kind = (ejk_field_kind)-1);
    WITH("role 6 does not exist", bad.role = (ejk_field_role)6);
    WITH("a int cannot be an output", bad.kind = EJK_FIELD_INT; bad.role = EJK_OUTPUT);
    WITH("a int cannot be an output", bad.kind = EJK_FIELD_INT; bad.role = EJK_INOUT);
    WITH("doc is NULL", bad.doc = NULL);
    WITH("doc is NULL", bad.unit = NULL);
    WITH("doc is NULL", bad.fallback = NULL);
    WITH("nested record", bad.kind = EJK_FIELD_RECORD);
    WITH("nested record", bad.record = &tile_record);
    WITH("lie outside the struct of 400 bytes", bad.offset = 256);
    WITH("lie outside", bad.offset = SIZE_MAX);
    WITH("not aligned", bad.offset = 164);
    WITH("overlaps first", bad.offset = 144);
    WITH("cannot be read at \"|n] float\"", bad.unit = "[|n] float");
    WITH("ends in \"third\"", bad.unit = "[n] third");
    WITH("takes its element type from itself", bad.unit = "[n] second");
#undef WITH
    EXPECT_FAIL(INVALID_ARGUMENT, "description", ejk_record_check(NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "description", ejk_record_check(&(ejk_record){.name = ""}));
    EXPECT_FAIL(INVALID_ARGUMENT, "none given",
                ejk_record_check(&(ejk_record){.name = "few", .count = 1}));
    EXPECT_FAIL(INVALID_ARGUMENT, "none given",
                ejk_record_check(&(ejk_record){.name = "few", .count = -1}));
    ejk_field inside = {"self", EJK_FIELD_RECORD, 0, 0, "", "", "", NULL};
    ejk_record endless = {.name = "endless", .size = 8, .fields = &inside, .count = 1};
    inside.record = &endless;
    EXPECT_FAIL(INVALID_ARGUMENT, "nested deeper than 8", ejk_record_check(&endless));
}

static ejk_status check_texts(const char *symbols, const char *orders) {
    const ejk_field field = {"x", EJK_FIELD_TENSOR, 0, 0, "", "[B,T,H,D+1] float", "", NULL};
    return ejk_record_check(&(ejk_record){.name = "texts",
                                          .size = sizeof(ejk_tensor),
                                          .fields = &field,
                                          .count = 1,
                                          .symbols = symbols,
                                          .orders = orders});
}

static void symbols_and_orders_are_checked(void **state) {
    (void)state;
    static const char *const good[][2] = {{"", "bthd|bhtd b=B t=T h=H d=D"},
                                          {"B=1,T,H=2*T,D", "a a=T"},
                                          {"D,T=D,H=ceil(T/2)", "ab|ba a=T|H b=B"}};
    static const struct {
        const char *symbols, *orders, *words;
    } bad[] = {
        {"B=1,", NULL, "symbols \"B=1,\" cannot be read at \"B=1,\""},
        {",B", NULL, "cannot be read at \",B\""},
        {"B=", NULL, "cannot be read at \"B=\""},
        {"B,T=1 ", NULL, "cannot be read at \"T=1 \""},
        {"B,B", NULL, "cannot be read"},
        {"B,X", NULL, "texts: X is in no unit"},
        {"B=X", NULL, "texts: X is in no unit"},
        {NULL, "", "orders \"\" cannot be read"},
        {NULL, "bt", "cannot be read"},
        {NULL, "bt b=B", "cannot be read"},
        {NULL, "bt|tb b=B t=", "cannot be read"},
        {NULL, "bt|tb b=B t=T ", "cannot be read"},
        {NULL, "bt|tb b=B b=T", "cannot be read"},
        {NULL, "bt|b b=B t=T", "cannot be read"},
        {NULL, "bt|tc b=B t=T", "cannot be read"},
        {NULL, "bb b=B", "cannot be read"},
        {NULL, "abcdefghi a=B", "cannot be read"},
        {NULL, "bt|tb b=B t=T|X", "texts: X is in no unit"},
    };
    EXPECT_OK(check_texts(NULL, NULL));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        EXPECT_OK(check_texts(good[i][0], good[i][1]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, bad[i].words, check_texts(bad[i].symbols, bad[i].orders));
}

static void symbols_are_completed_in_their_order(void **state) {
    (void)state;
    const ejk_record record = {.name = "texts", .symbols = "B=1,T,H=2*T,D=H/3"};
    ejk_axes axes;
    EXPECT_OK(ejk_axes_parse("T=6", &axes));
    EXPECT_OK(ejk_record_complete(&record, &axes));
    assert_int_equal(ejk_axes_get(&axes, "B"), 1);
    assert_int_equal(ejk_axes_get(&axes, "H"), 12);
    assert_int_equal(ejk_axes_get(&axes, "D"), 4);
    EXPECT_OK(ejk_axes_parse("H=4,B=7", &axes));
    EXPECT_OK(ejk_record_complete(&record, &axes));
    assert_int_equal(axes.count, 2); /* T is not known, and H/3 is no length */
    EXPECT_OK(ejk_record_complete(&sample_record, &axes));
    assert_int_equal(axes.count, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_complete(NULL, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_complete(&record, NULL));
}

static void fields_are_found_by_path(void **state) {
    (void)state;
    size_t offset = 0;
    const ejk_field *field = ejk_record_find(&sample_record, "seed", &offset);
    assert_string_equal(field->name, "seed");
    assert_int_equal(offset, offsetof(sample, seed));
    field = ejk_record_find(&sample_record, "shape.pinned", &offset);
    assert_ptr_equal(field, &tile_record.fields[1]);
    assert_int_equal(offset, offsetof(sample, shape) + offsetof(tile, pinned));
    assert_ptr_equal(ejk_record_find(&sample_record, "shape", NULL)->record, &tile_record);
    const char *const none[] = {"",      "see",    "seeds",      "seed.",
                                ".seed", "shape.", "shape.seed", "shape.rows.value",
                                "Shape", "pinned"};
    offset = 77;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(ejk_record_find(&sample_record, none[i], &offset));
    assert_null(ejk_record_find(&sample_record, NULL, &offset));
    assert_null(ejk_record_find(NULL, "seed", &offset));
    assert_int_equal(offset, 77);
}

static void zero_is_unset_and_nothing_else(void **state) {
    (void)state;
    sample zero = {0}, all = full_sample();
    all.shape.pinned = true;
    for (int32_t i = 0; i < sample_record.count; i++) {
        assert_false(ejk_record_is_set(&sample_record.fields[i], &zero));
        assert_true(ejk_record_is_set(&sample_record.fields[i], &all));
        assert_false(ejk_record_is_set(&sample_record.fields[i], NULL));
    }
    assert_false(ejk_record_is_set(NULL, &all));
    zero.window.left.value = zero.splits.value = 5;
    zero.dropout = -0.0;
    for (int32_t i = 0; i < sample_record.count; i++)
        assert_false(ejk_record_is_set(&sample_record.fields[i], &zero));
}

static void json_is_written(void **state) {
    (void)state;
    sample object = {0};
    expect_json(&object, EJK_JSON_SET_ONLY, "{}");
    expect_json(
        &object, 0,
        "{\"accumulate\":null,\"causal\":false,\"chunk_sizes\":null,\"dropout\":0.0,\"exact\":null,"
        "\"out\":null,\"parts\":null,\"platform\":null,\"query\":null,\"seed\":0,"
        "\"shape\":{\"pinned\":false,\"rows\":null},\"softmax_scale\":null,"
        "\"splits\":null,\"window\":null}");
    object = full_sample();
    expect_json(&object, EJK_JSON_SET_ONLY,
                "{\"accumulate\":\"float64\",\"causal\":true,\"chunk_sizes\":[-1,512,0],"
                "\"dropout\":0.5,\"exact\":false,"
                "\"out\":{\"dtype\":\"float32\",\"shape\":[]},"
                "\"parts\":[{\"dtype\":\"float16\",\"shape\":[2,128]},"
                "{\"dtype\":\"float16\",\"shape\":[2,128]}],"
                "\"platform\":\"caf\\u00E9 \\\"1\\\"\","
                "\"query\":{\"dtype\":\"bfloat16\",\"shape\":[2,128,8,64]},"
                "\"seed\":-9223372036854775808,\"shape\":{\"rows\":9223372036854775807},"
                "\"softmax_scale\":0.0,\"splits\":0,\"window\":[null,3]}");
    object = (sample){.window = {.left = ejk_int(-1)}, .exact = EJK_TRUE};
    expect_json(&object, EJK_JSON_SET_ONLY | EJK_JSON_INDENT,
                "{\n  \"exact\": true,\n  \"window\": [\n    -1,\n    null\n  ]\n}");
}

static void what_json_cannot_say_is_refused(void **state) {
    (void)state;
    char *text = (char *)&text;
#define WITH(words, ...)                                                                           \
    do {                                                                                           \
        sample bad = {0};                                                                          \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(INVALID_ARGUMENT, words, ejk_record_to_json(&sample_record, &bad, 0, &text));  \
        assert_ptr_equal(text, &text);                                                             \
    } while (0)
    WITH("dropout: inf given", bad.dropout = (double)INFINITY);
    WITH("softmax_scale: nan given", bad.softmax_scale = ejk_float((double)NAN));
    WITH("exact: 3 given", bad.exact = (ejk_opt_bool)3);
    WITH("accumulate: element type 99 does not exist", bad.accumulate = (ejk_dtype)99);
    WITH("platform: 2 bytes given that are not UTF-8", memcpy(bad.platform, "\xc3(", 2));
    WITH("platform: no closing zero", memset(bad.platform, 'x', sizeof bad.platform));
    WITH("query: element type -1", bad.query.dtype = (ejk_dtype)-1);
    WITH("query: rank 9", bad.query.dtype = EJK_DTYPE_F32; bad.query.rank = 9);
    WITH("query: rank -1", bad.query.dtype = EJK_DTYPE_F32; bad.query.rank = -1);
    WITH("query: axis 0 has the negative length -4", bad.query.dtype = EJK_DTYPE_F32;
         bad.query.rank = 1; bad.query.shape[0] = -4);
#undef WITH
    sample object = {0};
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_to_json(NULL, &object, 0, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_to_json(&sample_record, NULL, 0, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_to_json(&sample_record, &object, 0, NULL));
    /* A value that is not set is not looked at. */
    object.softmax_scale.value = (double)NAN;
    expect_json(&object, EJK_JSON_SET_ONLY, "{}");
}

static void json_is_read(void **state) {
    (void)state;
    sample object = full_sample(), wanted = full_sample();
    EXPECT_OK(ejk_record_from_json(
        &sample_record,
        " {\"query\": {\"shape\": [2, 128, 8, 64], \"dtype\": \"bf16\"},\n"
        "  \"out\": {\"dtype\": \"float32\", \"shape\": []}, \"causal\": true,\n"
        "  \"seed\": -9223372036854775808, \"dropout\": 5e-1, \"exact\": false, \"splits\": 0,\n"
        "  \"softmax_scale\": 0, \"window\": [null, 3], \"platform\": \"caf\\u00e9 \\\"1\\\"\",\n"
        "  \"parts\": [{\"dtype\": \"f16\", \"shape\": [2, 128]}, "
        "{\"shape\": [2, 128], \"dtype\": \"float16\"}],\n"
        "  \"chunk_sizes\": [-1, 512, 0], \"accumulate\": \"f64\", \"shape\": {\"rows\": "
        "9223372036854775807}}",
        &object));
    assert_true(ejk_record_equal(&sample_record, &object, &wanted));
    assert_int_equal(object.query.strides[0], 128 * 8 * 64);
    assert_int_equal(object.query.strides[3], 1);
    assert_null(object.query.data);

    EXPECT_OK(ejk_record_from_json(&sample_record,
                                   "{\"causal\": null, \"window\": null, \"shape\": null, "
                                   "\"query\": null, \"dropout\": -3}",
                                   &object));
    wanted = (sample){.dropout = -3};
    assert_memory_equal(&object, &wanted, sizeof wanted); /* what is not mentioned is zero */
    EXPECT_OK(ejk_record_from_json(&(ejk_record){.name = "nothing"}, "{}", &object));
}

static void wrong_json_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *json, *words;
    } wrong[] = {
        {"", "JSON line 1"},
        {"{\"seed\": 1} x", "end of file expected"},
        {"[1]", "expected an object"},
        {"{\"seed\": 1, \"seed\": 1}", "duplicate"},
        {"{\"sed\": 1}", "sed: no such field; sample has query, out, causal, seed"},
        {"{\"shape.rows\": 1}", "shape.rows: no such field"},
        {"{\"shape\": {\"cols\": 1}}", "shape.cols: no such field; tile has rows, pinned"},
        {"{\"shape\": {\"rows\": \"many\"}}",
         "shape.rows: \"many\" given, expected a whole number"},
        {"{\"shape\": [1]}", "shape: [1] given, expected an object"},
        {"{\"causal\": 1}", "causal: 1 given, expected true or false"},
        {"{\"exact\": 0}", "exact: 0 given, expected true or false"},
        {"{\"seed\": 1.0}", "seed: 1.0 given"},
        {"{\"seed\": 9223372036854775808}", "too big integer"},
        {"{\"seed\": true}", "seed: true given"},
        {"{\"splits\": 2.5}", "splits: 2.5 given"},
        {"{\"dropout\": NaN}", "JSON line 1"},
        {"{\"dropout\": 1e999}", "real number overflow"},
        {"{\"dropout\": \"0.5\"}", "dropout: \"0.5\" given, expected a finite number"},
        {"{\"softmax_scale\": []}", "softmax_scale: [] given"},
        {"{\"window\": 127}", "window: 127 given, expected two whole numbers"},
        {"{\"window\": [1]}", "window: [1] given"},
        {"{\"window\": [1,2,3]}", "window: [1,2,3] given"},
        {"{\"window\": [1,0.5]}", "window: [1,0.5] given"},
        {"{\"chunk_sizes\": 1}", "chunk_sizes: 1 given, expected a list of 1 to 16 whole numbers"},
        {"{\"parts\": []}", "parts: [] given, expected a list of 1 to 8 tensors"},
        {"{\"parts\": [1]}", "parts: [1] given"},
        {"{\"parts\": [null]}", "parts: [null] given"},
        {"{\"chunk_sizes\": []}", "chunk_sizes: [] given"},
        {"{\"chunk_sizes\": [1,null]}", "chunk_sizes: [1,null] given"},
        {"{\"chunk_sizes\": [1,2.0]}", "chunk_sizes: [1,2.0] given"},
        {"{\"chunk_sizes\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "chunk_sizes: "},
        {"{\"platform\": 1}", "platform: 1 given"},
        {"{\"platform\": \"012345678901234567890123456789012345678901234567\"}",
         "expected a text of fewer than 48 bytes"},
        {"{\"platform\": \"a\\u0000b\"}", "JSON line 1"},
        {"{\"accumulate\": \"float33\"}",
         "accumulate: \"float33\" given, expected an element type"},
        {"{\"accumulate\": 2}", "accumulate: 2 given"},
        {"{\"query\": []}", "query: [] given"},
        {"{\"query\": {\"dtype\": \"f32\"}}", "query: "},
        {"{\"query\": {\"shape\": [1]}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": [1], \"data\": 0}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": 1}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": [-1]}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": [1.5]}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": [1,1,1,1,1,1,1,1,1]}}", "query: "},
        {"{\"query\": {\"dtype\": \"f32\", \"shape\": [0,2147483648,2147483648]}}", "query: "},
        {"{\"seed\": 1, \"causal\": 2}", "causal: 2 given"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sample object = full_sample(), before = object;
        EXPECT_FAIL(MALFORMED, wrong[i].words,
                    ejk_record_from_json(&sample_record, wrong[i].json, &object));
        assert_memory_equal(&object, &before, sizeof before);
    }
    sample object = {0};
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_from_json(NULL, "{}", &object));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_from_json(&sample_record, NULL, &object));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_from_json(&sample_record, "{}", NULL));
    static char deep[1000000];
    memset(deep, '[', sizeof deep - 1);
    memcpy(deep, "{\"seed\":", 8);
    EXPECT_FAIL(MALFORMED, "depth", ejk_record_from_json(&sample_record, deep, &object));
}

static void long_values_are_cut_in_sentences(void **state) {
    (void)state;
    sample object = {0};
    char json[400];
    snprintf(json, sizeof json, "{\"seed\": \"%0300d\"}", 0);
    EXPECT_FAIL(MALFORMED, "000… given, expected a whole",
                ejk_record_from_json(&sample_record, json, &object));
    assert_true(strlen(ejk_last_error()) < 140);
}

static void set(sample *object, const char *path, const char *text) {
    EXPECT_OK(ejk_record_set_text(&sample_record, object, path, text));
}

static void texts_set_fields(void **state) {
    (void)state;
    sample object = {0};
    set(&object, "causal", "");
    set(&object, "seed", "-12");
    set(&object, "dropout", "1e-1");
    set(&object, "exact", "false");
    set(&object, "splits", "0");
    set(&object, "softmax-scale", "2");
    set(&object, "window", "127,0");
    set(&object, "platform", "null");
    set(&object, "accumulate", "bf16");
    set(&object, "shape.rows", "32");
    set(&object, "shape.pinned", "true");
    sample wanted = {.causal = true,
                     .seed = -12,
                     .dropout = 0.1,
                     .exact = EJK_FALSE,
                     .splits = ejk_int(0),
                     .softmax_scale = ejk_float(2),
                     .window = ejk_window_of(127, 0),
                     .platform = "null",
                     .accumulate = EJK_DTYPE_BF16,
                     .shape = {.rows = ejk_int(32), .pinned = true}};
    assert_true(ejk_record_equal(&sample_record, &object, &wanted));

    set(&object, "chunk-sizes", "-7");
    assert_true(object.chunk_sizes.count == 1 && object.chunk_sizes.value[0] == -7);
    set(&object, "chunk-sizes", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,9223372036854775807");
    assert_true(object.chunk_sizes.count == 16 && object.chunk_sizes.value[15] == INT64_MAX);
    set(&object, "window", "9");
    assert_true(object.window.left.value == 9 && object.window.right.value == 9);
    set(&object, "window", "8,");
    assert_true(object.window.left.value == 8 && !object.window.right.set);
    set(&object, "window", ",7");
    assert_true(object.window.right.value == 7 && !object.window.left.set);
    set(&object, "exact", "");
    assert_int_equal(object.exact, EJK_TRUE);
    set(&object, "causal", "false");
    assert_false(object.causal);
    set(&object, "platform", "");
    assert_int_equal(object.platform[0], 0);
    set(&object, "shape", "{\"rows\": 5}");
    assert_true(object.shape.rows.value == 5 && !object.shape.pinned);
}

static void wrong_texts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *text, *words;
    } wrong[] = {
        {"seed", "", "seed: \"\" given, expected a whole number"},
        {"seed", "12x", "seed: \"12x\" given"},
        {"seed", "1.5", "seed: 1.5 given"},
        {"seed", "9223372036854775808", "seed: \"9223372036854775808\" given"},
        {"dropout", "nan", "dropout: \"nan\" given, expected a finite number"},
        {"softmax-scale", "1,5", "softmax_scale: \"1,5\" given"},
        {"causal", "yes", "causal: \"yes\" given, expected true or false"},
        {"causal", "1", "causal: 1 given, expected true or false"},
        {"window", "", "window: \"\" given, expected two whole numbers"},
        {"window", ",", "window: \",\" given"},
        {"window", "1,2,3", "window: [1,2,3] given"},
        {"window", "1],[2", "window: \"1],[2\" given"},
        {"window", "a", "window: \"a\" given"},
        {"window", "[1,2],3", "window: [[1,2],3] given"},
        {"chunk-sizes", "", "chunk_sizes: [] given, expected a list of 1 to 16 whole numbers"},
        {"chunk-sizes", "1,", "chunk_sizes: \"1,\" given"},
        {"chunk-sizes", "1,,2", "chunk_sizes: \"1,,2\" given"},
        {"chunk-sizes", "[1]", "chunk_sizes: [[1]] given"},
        {"chunk-sizes", "1,2.5", "chunk_sizes: [1,2.5] given"},
        {"chunk-sizes", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "chunk_sizes: ["},
        {"accumulate", "", "accumulate: \"\" given, expected an element type"},
        {"platform", "\xff", "expected a text of fewer than 48 bytes"},
        {"platform", "012345678901234567890123456789012345678901234567", "platform: "},
        {"query", "x.npy", "query: \"x.npy\" given, but a tensor cannot be set from text"},
        {"shape", "{\"rows\": 1.5}", "shape.rows: 1.5 given"},
        {"shape", "{", "shape: \"{\" given, expected an object"},
        {"shape.rows", "1.5", "shape.rows: 1.5 given"},
    };
    sample object = full_sample(), before = object;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_FAIL(MALFORMED, wrong[i].words,
                    ejk_record_set_text(&sample_record, &object, wrong[i].path, wrong[i].text));
    EXPECT_FAIL(UNKNOWN_NAME, "causality: no such field; sample has query",
                ejk_record_set_text(&sample_record, &object, "causality", ""));
    char path[400];
    memset(path, '-', sizeof path);
    path[sizeof path - 1] = '\0';
    EXPECT_FAIL(UNKNOWN_NAME, "no such field",
                ejk_record_set_text(&sample_record, &object, path, ""));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_record_set_text(&sample_record, &object, "seed", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_set_text(&sample_record, &object, NULL, ""));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_set_text(&sample_record, NULL, "seed", ""));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_set_text(NULL, &object, "seed", ""));
    assert_memory_equal(&object, &before, sizeof before);
}

/* ---- Out of memory -------------------------------------------------------------------------------- */

static int allocations_left;

static void *scarce_malloc(size_t size) {
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* Lets the first, second, … allocation of the JSON library fail, until none has to. */
static void want_of_memory_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    const sample object = full_sample();
    sample again;
    char *text = NULL;
    int written = 0, read = 0, set_from_text = 0;
    bool out_of_memory_seen = false;
    ejk_status status = EJK_STATUS_OUT_OF_MEMORY;
    json_set_alloc_funcs(scarce_malloc, free);
    for (; status != EJK_OK && written < 1000; written++) {
        allocations_left = written;
        status = ejk_record_to_json(&sample_record, &object, 0, &text);
        if (status != EJK_OK) assert_int_equal(status, EJK_STATUS_OUT_OF_MEMORY);
    }
    /* The parser reports some of its failures as wrong tokens. */
    status = EJK_STATUS_OUT_OF_MEMORY;
    for (; status != EJK_OK && read < 1000; read++) {
        allocations_left = read;
        status = ejk_record_from_json(&sample_record, text, &again);
        out_of_memory_seen |= status == EJK_STATUS_OUT_OF_MEMORY;
    }
    status = EJK_STATUS_OUT_OF_MEMORY;
    for (; status != EJK_OK && set_from_text < 1000; set_from_text++) {
        allocations_left = set_from_text;
        status = ejk_record_set_text(&sample_record, &again, "seed", "5");
    }
    json_set_alloc_funcs(malloc, free);
    ejk_free(text);
    assert_true(out_of_memory_seen);
    assert_true(written > 10 && read > 10 && set_from_text > 1);
    assert_int_equal(again.seed, 5);
}

static void help_is_a_table(void **state) {
    (void)state;
    char *text = NULL;
    EXPECT_OK(ejk_record_help(&sample_record, &text));
    assert_string_equal(
        text,
        "--query          tensor   required     [B,T,Hq,D] float  what asks\n"
        "--out            output   not written  [B,T,Hq,D] query  what is answered\n"
        "--causal         bool     false                          see only what came before\n"
        "--seed           int      0                              of random numbers\n"
        "--dropout        float    0                              share that is dropped\n"
        "--exact          bool     as built                       the same bits every time\n"
        "--splits         int      chosen       parts             of the keys\n"
        "--softmax-scale  float    1/√D                           of the scores\n"
        "--window         window   unlimited    keys              to each side\n"
        "--platform       name     any                            where to run\n"
        "--chunk-sizes    ints     one          keys              one a level\n"
        "--parts          tensors  none         [n#,D] float      what is added\n"
        "--accumulate     dtype    float32                        type of sums\n"
        "--shape          record   unset                          of one tile\n"
        "--shape.rows     int      unset        rows              rows a tile computes at once\n"
        "--shape.pinned   bool     false                          keep the tile in cache\n");
    ejk_free(text);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_help(NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_help(&sample_record, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_are_sound),
        cmocka_unit_test(faults_of_a_description_are_named),
        cmocka_unit_test(symbols_and_orders_are_checked),
        cmocka_unit_test(symbols_are_completed_in_their_order),
        cmocka_unit_test(fields_are_found_by_path),
        cmocka_unit_test(zero_is_unset_and_nothing_else),
        cmocka_unit_test(json_is_written),
        cmocka_unit_test(what_json_cannot_say_is_refused),
        cmocka_unit_test(json_is_read),
        cmocka_unit_test(wrong_json_is_refused),
        cmocka_unit_test(long_values_are_cut_in_sentences),
        cmocka_unit_test(texts_set_fields),
        cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(want_of_memory_is_an_error_and_leaks_nothing),
        cmocka_unit_test(help_is_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
