/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: what is in one that the package gguf wrote, and every way in which one can lie. */
#include "support/expect.h"

#include <ejkernel/gguf.h>
#include <stdlib.h>

#define SAMPLE EJK_SOURCE_DIR "/tests/data/weights/weights.gguf"

static void tensors_are_found_by_name(void **state) {
    (void)state;
    ejk_gguf *file = NULL;
    ejk_tensor tensor = {0};
    const char *type = NULL;
    EXPECT_OK(ejk_gguf_open(SAMPLE, &file));
    assert_int_equal(ejk_gguf_count(file), 11);
    assert_string_equal(ejk_gguf_name(file, 0), "f32");
    assert_null(ejk_gguf_name(file, 11));
    assert_null(ejk_gguf_name(file, -1));
    EXPECT_OK(ejk_gguf_tensor(file, "f16", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_F16);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.shape[0], 3);
    assert_int_equal(tensor.shape[1], 5);
    EXPECT_OK(ejk_gguf_tensor(file, "q6_k", &tensor));
    EXPECT_OK(ejk_gguf_type(file, "q6_k", &type));
    assert_string_equal(type, "q6_k");
    assert_int_equal(tensor.dtype, EJK_DTYPE_U8);
    assert_int_equal(tensor.shape[1], 2 * 210);
    EXPECT_FAIL(UNKNOWN_NAME, "f32, f16, q4_0", ejk_gguf_tensor(file, "q9", &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "name is NULL", ejk_gguf_tensor(file, NULL, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_gguf_type(file, "f16", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "file is NULL", ejk_gguf_tensor(NULL, "f16", &tensor));
    ejk_gguf_close(file);
    EXPECT_FAIL(IO, "none.gguf", ejk_gguf_open("none.gguf", &file));
}

static void a_command_line_names_them(void **state) {
    (void)state;
    ejk_owned_tensor f32 = {0}, f16 = {0};
    EXPECT_OK(ejk_tensor_load(SAMPLE ":f32", &f32));
    EXPECT_OK(ejk_tensor_load(SAMPLE ":f16", &f16));
    const float *values = f32.tensor.data;
    const uint16_t *halves = f16.tensor.data;
    for (int i = 0; i < 5; i++) assert_int_equal(halves[i], ejk_f32_to_f16(values[i]));
    ejk_owned_tensor_close(&f32);
    ejk_owned_tensor_close(&f16);
    EXPECT_FAIL(UNKNOWN_NAME, "no tensor 'x'", ejk_tensor_load(SAMPLE ":x", &f32));
}

/* ---- Files that lie ---------------------------------------------------------------------------------- */

static unsigned char bytes[4096];
static size_t used;

static void put(uint64_t value, int size) {
    for (int i = 0; i < size; i++) bytes[used++] = (unsigned char)(value >> (8 * i));
}

static void put_text(const char *text) {
    put(strlen(text), 8);
    memcpy(bytes + used, text, strlen(text));
    used += strlen(text);
}

static void head(uint32_t version, uint64_t tensors, uint64_t entries) {
    used = 0;
    memcpy(bytes, "GGUF", used = 4);
    put(version, 4);
    put(tensors, 8);
    put(entries, 8);
}

static void tensor_of(const char *name, uint64_t columns, uint32_t type, uint64_t offset) {
    put_text(name);
    put(1, 4);
    put(columns, 8);
    put(type, 4);
    put(offset, 8);
}

/* Pads as a writer does and adds so much data; in exactly as much memory. */
static ejk_status check(size_t data) {
    const size_t size = data ? (used + 31) / 32 * 32 + data : used;
    unsigned char *copy = calloc(1, size);
    assert_non_null(copy);
    memcpy(copy, bytes, used);
    ejk_gguf *file = NULL;
    const ejk_status status = ejk_gguf_parse(copy, size, &file);
    assert_true((status == EJK_OK) == (file != NULL));
    for (int64_t i = 0; i < ejk_gguf_count(file); i++) {
        ejk_tensor view;
        if (ejk_gguf_tensor(file, ejk_gguf_name(file, i), &view) == EJK_OK)
            EXPECT_OK(ejk_tensor_check(&view, "view"));
    }
    ejk_gguf_close(file);
    free(copy);
    return status;
}

static void heads_are_checked(void **state) {
    (void)state;
    head(3, 0, 0);
    EXPECT_OK(check(0));
    bytes[0] = 'g';
    EXPECT_FAIL(MALFORMED, "does not begin with 'GGUF'", check(0));
    head(1, 0, 0);
    EXPECT_FAIL(MALFORMED, "version 1, expected 2 or 3", check(0));
    head(3, UINT64_MAX, 0);
    EXPECT_FAIL(MALFORMED, "ends within its list of tensors", check(0));
    head(3, 0, UINT64_MAX);
    EXPECT_FAIL(MALFORMED, "ends within its metadata", check(0));
    head(3, 0, 0);
    used = 20;
    EXPECT_FAIL(MALFORMED, "ends within its head", check(0));
}

static void metadata_is_passed_by(void **state) {
    (void)state;
    head(3, 0, 2);
    put_text("a");
    put(8, 4); /* text */
    put_text("b");
    put_text("c");
    put(9, 4); /* array */
    put(8, 4);
    put(2, 8);
    put_text("d");
    put_text("");
    EXPECT_OK(check(0));
    head(3, 0, 1);
    put_text("a");
    put(13, 4);
    put(0, 8);
    EXPECT_FAIL(MALFORMED, "a metadata value is of type 13", check(0));
    head(3, 0, 1);
    put_text("a");
    put(9, 4);
    put(12, 4); /* of float64 */
    put(UINT64_MAX / 4, 8);
    EXPECT_FAIL(MALFORMED, "ends within an array of the metadata", check(0));
    head(3, 0, 1);
    put_text("a");
    put(9, 4);
    for (int i = 0; i < 6; i++) put(9, 4), put(1, 8);
    EXPECT_FAIL(MALFORMED, "nested more than 4 deep", check(0));
    head(3, 0, 1);
    put_text("general.alignment");
    put(4, 4);
    put(24, 4);
    EXPECT_FAIL(MALFORMED, "general.alignment is 24, expected a power of two", check(0));
}

static void tensors_are_checked(void **state) {
    (void)state;
    head(3, 2, 0);
    tensor_of("a", 4, 0, 0);
    tensor_of("b", 32, 2, 32);
    EXPECT_OK(check(32 + 18));
    EXPECT_FAIL(MALFORMED, "tensor 'b' has 18 bytes from byte 32 on, the data 49", check(32 + 17));
    head(3, 2, 0);
    tensor_of("a", 4, 0, 0);
    tensor_of("a", 4, 0, 32);
    EXPECT_FAIL(MALFORMED, "two tensors have the name 'a'", check(64));
    head(3, 1, 0);
    tensor_of("a", 4, 0, 8);
    EXPECT_FAIL(MALFORMED, "begins at byte 8 of the data, expected a multiple of 32", check(64));
    head(3, 1, 0);
    tensor_of("a", 33, 2, 0);
    EXPECT_FAIL(MALFORMED, "rows of 33 elements, expected whole blocks of 32", check(64));
    head(3, 1, 0);
    tensor_of("a", UINT64_MAX, 0, 0);
    EXPECT_FAIL(OVERFLOW, "has a length of", check(64));
    head(3, 1, 0);
    tensor_of("a", UINT64_MAX / 4, 28, 0);
    EXPECT_FAIL(OVERFLOW, "more bytes than 63 bits count", check(64));
    head(3, 1, 0);
    tensor_of("a", 4, 0, UINT64_C(1) << 63);
    EXPECT_FAIL(MALFORMED, "the data 64", check(64));
    head(3, 1, 0);
    put_text("a");
    put(5, 4);
    used += 60;
    EXPECT_FAIL(MALFORMED, "has 5 axes, expected at most 4", check(64));
}

static void types_that_are_not_known_are_told(void **state) {
    (void)state;
    head(3, 1, 0);
    tensor_of("a", 256, 16, 0);
    ejk_gguf *file = NULL;
    ejk_tensor view;
    EXPECT_OK(ejk_gguf_parse(bytes, used, &file));
    EXPECT_FAIL(INVALID_DTYPE, "is of type 16, which this library has not",
                ejk_gguf_tensor(file, "a", &view));
    ejk_gguf_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(a_command_line_names_them),
        cmocka_unit_test(heads_are_checked),
        cmocka_unit_test(metadata_is_passed_by),
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(types_that_are_not_known_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
