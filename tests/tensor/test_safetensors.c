/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files and ejk_tensor_load(): what is in them, and every way in which a header can lie. */
#include "support/expect.h"

#include <ejkernel/tensor.h>
#include <stdio.h>
#include <stdlib.h>

#define SAMPLE(name) EJK_SOURCE_DIR "/tests/data/safetensors/" name ".safetensors"

/* Opens a file of this header and so many bytes of data, in exactly as much memory. */
static ejk_status check_header(const char *header, size_t data) {
    size_t length = strlen(header), size = 8 + length + data;
    unsigned char *bytes = calloc(1, size);
    assert_non_null(bytes);
    bytes[0] = (unsigned char)(length & 0xff);
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    ejk_safetensors *file = NULL;
    ejk_status status = ejk_safetensors_parse(bytes, size, &file);
    assert_true((status == EJK_OK) == (file != NULL));
    ejk_safetensors_close(file);
    free(bytes);
    return status;
}

#define TENSOR(name, type, shape, offsets)                                                         \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define REFUSED(status, words, data, header) EXPECT_FAIL(status, words, check_header(header, data))

static void tensors_are_found_in_the_order_of_their_data(void **state) {
    (void)state;
    ejk_safetensors *file = NULL;
    EXPECT_OK(ejk_safetensors_open(SAMPLE("two"), &file));
    assert_int_equal(ejk_safetensors_count(file), 2);
    assert_string_equal(ejk_safetensors_name(file, 0), "a");
    assert_string_equal(ejk_safetensors_name(file, 1), "b");
    assert_null(ejk_safetensors_name(file, 2));
    assert_null(ejk_safetensors_name(file, -1));

    ejk_tensor tensor = {0};
    float values[2] = {0};
    EXPECT_OK(ejk_safetensors_tensor(file, "a", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_F32);
    assert_int_equal(tensor.rank, 0);
    ejk_tensor target = ejk_tensor_contiguous(values, EJK_DTYPE_F32, 0, NULL);
    EXPECT_OK(ejk_tensor_copy(&tensor, &target));
    assert_true(values[0] == 1.5f);
    EXPECT_OK(ejk_safetensors_tensor(file, "b", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_BF16);
    target = ejk_tensor_1d(values, EJK_DTYPE_F32, 2);
    EXPECT_OK(ejk_tensor_copy(&tensor, &target));
    assert_true(values[0] == 1 && values[1] == 2);

    EXPECT_FAIL(UNKNOWN_NAME, "a, b", ejk_safetensors_tensor(file, "c", &tensor));
    EXPECT_FAIL(UNKNOWN_NAME, "a, b", ejk_safetensors_tensor(file, "__metadata__", &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_safetensors_tensor(file, NULL, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_safetensors_tensor(file, "a", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "file", ejk_safetensors_tensor(NULL, "a", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_BF16);
    ejk_safetensors_close(file);
}

static void what_cannot_be_viewed_does_not_spoil_the_file(void **state) {
    (void)state;
    ejk_safetensors *file = NULL;
    ejk_tensor tensor = {0};
    EXPECT_OK(ejk_safetensors_open(SAMPLE("unsupported"), &file));
    EXPECT_OK(ejk_safetensors_tensor(file, "f8", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_F8E4M3);
    EXPECT_FAIL(INVALID_SHAPE, "8 axes", ejk_safetensors_tensor(file, "deep", &tensor));
    ejk_safetensors_close(file);
    static const char header[] =
        "{\"u64\":{\"dtype\":\"U64\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"u32\":{\"dtype\":\"U32\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"e5m2\":{\"dtype\":\"F8_E5M2\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"e8m0\":{\"dtype\":\"F8_E8M0\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    unsigned char bytes[8 + sizeof header - 1] = {(sizeof header - 1) & 0xff,
                                                  (sizeof header - 1) >> 8};
    memcpy(bytes + 8, header, sizeof header - 1);
    EXPECT_OK(ejk_safetensors_parse(bytes, sizeof bytes, &file));
    EXPECT_FAIL(INVALID_DTYPE, "U64", ejk_safetensors_tensor(file, "u64", &tensor));
    EXPECT_OK(ejk_safetensors_tensor(file, "u32", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_U32);
    EXPECT_OK(ejk_safetensors_tensor(file, "e5m2", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_F8E5M2);
    EXPECT_OK(ejk_safetensors_tensor(file, "e8m0", &tensor));
    assert_int_equal(tensor.dtype, EJK_DTYPE_F8E8M0);
    ejk_safetensors_close(file);
    EXPECT_OK(ejk_safetensors_open(SAMPLE("empty"), &file));
    assert_int_equal(ejk_safetensors_count(file), 0);
    EXPECT_FAIL(UNKNOWN_NAME, "0 of the file", ejk_safetensors_tensor(file, "x", &tensor));
    ejk_safetensors_close(file);
    ejk_safetensors_close(NULL);
    assert_int_equal(ejk_safetensors_count(NULL), 0);
    assert_null(ejk_safetensors_name(NULL, 0));
}

static void a_long_list_of_names_is_cut(void **state) {
    (void)state;
    char header[4096] = "{", *at = header + 1;
    for (int i = 0; i < 40; i++) {
        at += sprintf(at, "%s\"a.long.enough.name.%d\":", i > 0 ? "," : "", i);
        at += sprintf(at, "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    }
    *at = '}';
    unsigned char bytes[8 + sizeof header] = {0};
    size_t length = strlen(header);
    bytes[0] = (unsigned char)(length & 0xff);
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    ejk_safetensors *file = NULL;
    ejk_tensor tensor = {0};
    EXPECT_OK(ejk_safetensors_parse(bytes, 8 + length, &file));
    assert_string_equal(ejk_safetensors_name(file, 39), "a.long.enough.name.39");
    EXPECT_FAIL(UNKNOWN_NAME, ", …", ejk_safetensors_tensor(file, "x", &tensor));
    EXPECT_OK(ejk_safetensors_tensor(file, "a.long.enough.name.17", &tensor));
    ejk_safetensors_close(file);
}

static void headers_that_hold(void **state) {
    (void)state;
    EXPECT_OK(check_header("{}   ", 0));
    EXPECT_OK(check_header("{\"__metadata__\":{\"k\":\"v\"}}", 0));
    EXPECT_OK(check_header("{" TENSOR("f", "F4", "[4]", "[0,2]") "}", 2));
    EXPECT_OK(check_header("{" TENSOR("e", "F32", "[0,3]", "[0,0]") "}", 0));
    EXPECT_OK(check_header("{" TENSOR("z", "U8", "[0]", "[2,2]") "," TENSOR(
                               "y", "U8", "[2]", "[0,2]") "," TENSOR("x", "U8", "[1]", "[2,3]") "}",
                           3));
}

static void headers_that_lie(void **state) {
    (void)state;
    REFUSED(MALFORMED, "'{'", 0, "");
    REFUSED(MALFORMED, "'{'", 0, "[]");
    REFUSED(MALFORMED, "'{'", 0, " {}");
    REFUSED(MALFORMED, "JSON", 0, "{\"a\":");
    REFUSED(MALFORMED, "JSON", 0, "{} x");
    REFUSED(MALFORMED, "distinct", 2,
            "{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}");
    REFUSED(MALFORMED, "dtype", 0, "{\"a\":3}");
    REFUSED(MALFORMED, "dtype", 0, "{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}");
    REFUSED(MALFORMED, "F7", 1, "{" TENSOR("a", "F7", "[1]", "[0,1]") "}");
    REFUSED(MALFORMED, "shape", 1, "{" TENSOR("a", "U8", "1", "[0,1]") "}");
    REFUSED(MALFORMED, "shape", 1, "{" TENSOR("a", "U8", "[-1]", "[0,1]") "}");
    REFUSED(MALFORMED, "shape", 1, "{" TENSOR("a", "U8", "[1.0]", "[0,1]") "}");
    REFUSED(MALFORMED, "data_offsets", 1, "{" TENSOR("a", "U8", "[1]", "[0]") "}");
    REFUSED(MALFORMED, "data_offsets", 1, "{" TENSOR("a", "U8", "[1]", "[0,1,1]") "}");
    REFUSED(MALFORMED, "data_offsets", 1, "{" TENSOR("a", "U8", "[1]", "[0,\"1\"]") "}");
    REFUSED(MALFORMED, "data_offsets", 1, "{" TENSOR("a", "U8", "[1]", "{}") "}");
    REFUSED(MALFORMED, "descend", 1, "{" TENSOR("a", "U8", "[1]", "[1,0]") "}");
    REFUSED(MALFORMED, "negative", 1, "{" TENSOR("a", "U8", "[1]", "[-1,0]") "}");
    REFUSED(MALFORMED, "hold 1 bytes", 1, "{" TENSOR("a", "U8", "[2]", "[0,1]") "}");
    REFUSED(MALFORMED, "12 bits", 2, "{" TENSOR("a", "F4", "[3]", "[0,2]") "}");
    REFUSED(MALFORMED, "holes", 2, "{" TENSOR("a", "U8", "[1]", "[1,2]") "}");
    REFUSED(MALFORMED, "overlaps", 3,
            "{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[2]", "[1,3]") "}");
    REFUSED(MALFORMED, "which has 1", 1, "{" TENSOR("a", "U8", "[2]", "[0,2]") "}");
    REFUSED(MALFORMED, "which has 3", 3, "{" TENSOR("a", "U8", "[2]", "[0,2]") "}");
    REFUSED(OVERFLOW, "elements", 0, "{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}");
    REFUSED(OVERFLOW, "bits", 0, "{" TENSOR("a", "F64", "[1152921504606846976]", "[0,0]") "}");
    REFUSED(MALFORMED, "JSON", 0, "{" TENSOR("a", "U8", "[99999999999999999999]", "[0,0]") "}");
}

static void lengths_that_lie(void **state) {
    (void)state;
    unsigned char bytes[16] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    ejk_safetensors *file = NULL;
    for (size_t size = 0; size < 8; size++) {
        EXPECT_FAIL(MALFORMED, "at least", ejk_safetensors_parse(bytes, size, &file));
    }
    EXPECT_FAIL(MALFORMED, "header of 3", ejk_safetensors_parse(bytes, 10, &file));
    memset(bytes, 0xff, 8);
    EXPECT_FAIL(MALFORMED, "at most", ejk_safetensors_parse(bytes, 10, &file));
    EXPECT_FAIL(INVALID_ARGUMENT, "bytes", ejk_safetensors_parse(NULL, 10, &file));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_safetensors_parse(bytes, 10, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_safetensors_open(NULL, &file));
    EXPECT_FAIL(IO, "No such file", ejk_safetensors_open("/nonexistent", &file));
    EXPECT_FAIL(IO, "regular", ejk_safetensors_open(EJK_SOURCE_DIR, &file));
    EXPECT_FAIL(MALFORMED, "npy",
                ejk_safetensors_open(EJK_SOURCE_DIR "/tests/data/npy/bool.npy", &file));
    assert_null(file);
}

static void specs_of_a_command_line(void **state) {
    (void)state;
    ejk_owned_tensor owned = {0};
    EXPECT_OK(ejk_tensor_load(EJK_SOURCE_DIR "/tests/data/npy/v1_f4.npy", &owned));
    assert_int_equal(owned.tensor.rank, 2);
    ejk_owned_tensor_close(&owned);
    EXPECT_OK(ejk_tensor_load(SAMPLE("two") ":b", &owned));
    uint16_t bits[2];
    memcpy(bits, owned.tensor.data, sizeof bits);
    assert_int_equal(bits[1], 0x4000);
    ejk_owned_tensor_close(&owned);
    EXPECT_FAIL(UNKNOWN_NAME, "a, b", ejk_tensor_load(SAMPLE("two") ":a:b.npy", &owned));
    EXPECT_FAIL(UNKNOWN_NAME, "a, b", ejk_tensor_load(SAMPLE("two") ":", &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "expected path", ejk_tensor_load(SAMPLE("two"), &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "expected path", ejk_tensor_load("npy", &owned));
    EXPECT_FAIL(IO, "No such file", ejk_tensor_load("/nonexistent.safetensors:a", &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "spec", ejk_tensor_load(NULL, &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_tensor_load("a.npy", NULL));
    assert_null(owned.owner);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_in_the_order_of_their_data),
        cmocka_unit_test(what_cannot_be_viewed_does_not_spoil_the_file),
        cmocka_unit_test(a_long_list_of_names_is_cut),
        cmocka_unit_test(headers_that_hold),
        cmocka_unit_test(headers_that_lie),
        cmocka_unit_test(lengths_that_lie),
        cmocka_unit_test(specs_of_a_command_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
