/* SPDX-License-Identifier: Apache-2.0 */
/* .npy files: the samples of tests/data/npy, headers of every kind built here, and writing. */
#include "support/expect.h"

#include <ejkernel/tensor.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLE(name) EJK_SOURCE_DIR "/tests/data/npy/" name ".npy"

/* Reads a sample and compares its elements, in row-major order, as f64. */
static void check_sample(const char *path, ejk_dtype dtype, int32_t rank, const int64_t *shape,
                         const double *wanted) {
    ejk_owned_tensor owned = {0};
    EXPECT_OK(ejk_npy_read(path, &owned));
    assert_int_equal(owned.tensor.dtype, dtype);
    assert_int_equal(owned.tensor.rank, rank);
    for (int32_t i = 0; i < rank; i++) assert_int_equal(owned.tensor.shape[i], shape[i]);
    assert_int_equal((uintptr_t)owned.tensor.data % 64, 0);
    double values[8] = {0};
    ejk_tensor target = ejk_tensor_contiguous(values, EJK_DTYPE_F64, rank, shape);
    EXPECT_OK(ejk_tensor_copy(&owned.tensor, &target));
    for (int64_t i = 0; i < ejk_tensor_count(&target); i++) assert_true(values[i] == wanted[i]);
    ejk_owned_tensor_close(&owned);
}

static void samples_of_every_kind(void **state) {
    (void)state;
    const double six[] = {0, 1, 2, 3, 4, 5}, brain[] = {1, -2, 0.5};
    const int64_t two_three[] = {2, 3}, three[] = {3}, two[] = {2};
    check_sample(SAMPLE("v1_f4"), EJK_DTYPE_F32, 2, two_three, six);
    check_sample(SAMPLE("fortran_f4"), EJK_DTYPE_F32, 2, two_three, six);
    check_sample(SAMPLE("v2_i8"), EJK_DTYPE_I64, 1, three, (double[]){-0x1p63, -1, 0x1p63});
    check_sample(SAMPLE("v3_f2"), EJK_DTYPE_F16, 2, (int64_t[]){2, 2},
                 (double[]){0.5, -1, 65504, 0x1p-24});
    check_sample(SAMPLE("big_endian_f8"), EJK_DTYPE_F64, 1, two, (double[]){0.1, -2.5});
    check_sample(SAMPLE("big_endian_i4"), EJK_DTYPE_I32, 1, three, (double[]){1, -2, 2147483647});
    check_sample(SAMPLE("big_endian_i2"), EJK_DTYPE_I16, 1, two, (double[]){258, -2});
    check_sample(SAMPLE("bool"), EJK_DTYPE_BOOL, 1, three, (double[]){1, 0, 1});
    check_sample(SAMPLE("i1"), EJK_DTYPE_I8, 1, two, (double[]){-128, 127});
    check_sample(SAMPLE("u1"), EJK_DTYPE_U8, 1, two, (double[]){0, 255});
    check_sample(SAMPLE("i2"), EJK_DTYPE_I16, 2, (int64_t[]){1, 1}, (double[]){-32768});
    check_sample(SAMPLE("scalar_f8"), EJK_DTYPE_F64, 0, NULL, (double[]){0.1});
    check_sample(SAMPLE("empty_f4"), EJK_DTYPE_F32, 2, (int64_t[]){0, 3}, NULL);
    check_sample(SAMPLE("bfloat16"), EJK_DTYPE_BF16, 1, three, brain);
    check_sample(SAMPLE("bfloat16_raw"), EJK_DTYPE_BF16, 1, three, brain);
    check_sample(SAMPLE("bfloat16_named"), EJK_DTYPE_BF16, 1, three, brain);
    check_sample(SAMPLE("odd_header"), EJK_DTYPE_I32, 2, (int64_t[]){2, 1}, (double[]){7, -7});
}

/* A file in memory of this header and so many bytes of data, in exactly as much memory. */
static ejk_status parse(const char *header, size_t data, ejk_owned_tensor *out) {
    size_t length = strlen(header), size = 10 + length + data;
    unsigned char *bytes = calloc(1, size);
    assert_non_null(bytes);
    memcpy(bytes, "\x93NUMPY\x01\x00", 8);
    bytes[8] = (unsigned char)(length & 0xff);
    bytes[9] = (unsigned char)(length >> 8);
    memcpy(bytes + 10, header, length);
    ejk_status status = ejk_npy_parse(bytes, size, out);
    free(bytes);
    return status;
}

#define HEADER(descr, shape) "{'descr': " descr ", 'fortran_order': False, 'shape': " shape ", }"
#define EXPECT_SHAPE(shape, data, wanted_rank)                                                     \
    do {                                                                                           \
        ejk_owned_tensor owned_ = {0};                                                             \
        EXPECT_OK(parse(HEADER("'|u1'", shape), data, &owned_));                                   \
        assert_int_equal(owned_.tensor.rank, wanted_rank);                                         \
        ejk_owned_tensor_close(&owned_);                                                           \
    } while (0)
/* A header that fails, whatever it was given for data. */
#define EXPECT_REFUSED(status, words, header)                                                      \
    do {                                                                                           \
        ejk_owned_tensor owned_ = {0};                                                             \
        EXPECT_FAIL(status, words, parse(header, 8, &owned_));                                     \
        assert_null(owned_.owner);                                                                 \
    } while (0)

static void headers_are_read_as_python_does(void **state) {
    (void)state;
    EXPECT_SHAPE("()", 1, 0);
    EXPECT_SHAPE("( )", 1, 0);
    EXPECT_SHAPE("(3,)", 3, 1);
    EXPECT_SHAPE("( 3 , 2 )", 6, 2);
    EXPECT_SHAPE("(3,2,)", 6, 2);
    EXPECT_SHAPE("(0, 5)", 0, 2);
    EXPECT_SHAPE("(1,1,1,1,1,1,1,2)", 2, 8);
    ejk_owned_tensor owned = {0};
    EXPECT_OK(parse("{\"shape\":(),\"descr\":'=i1',\n'fortran_order':True} \n", 1, &owned));
    assert_int_equal(owned.tensor.dtype, EJK_DTYPE_I8);
    ejk_owned_tensor_close(&owned);
}

static void malformed_headers_are_refused(void **state) {
    (void)state;
    EXPECT_REFUSED(MALFORMED, "'{'", "");
    EXPECT_REFUSED(MALFORMED, "'{'", "[]");
    EXPECT_REFUSED(MALFORMED, "no 'descr'", "{}");
    EXPECT_REFUSED(MALFORMED, "no 'shape'", "{'descr': '|u1', 'fortran_order': False}");
    EXPECT_REFUSED(MALFORMED, "no 'fortran_order'", "{'descr': '|u1', 'shape': ()}");
    EXPECT_REFUSED(MALFORMED, "unknown", "{'descr': '|u1', 'colour': 3}");
    EXPECT_REFUSED(MALFORMED, "twice", "{'descr': '|u1', 'descr': '|u1'}");
    EXPECT_REFUSED(MALFORMED, "':'", "{'descr' '|u1'}");
    EXPECT_REFUSED(MALFORMED, "',' or '}'", "{'descr': '|u1' 'shape': ()}");
    EXPECT_REFUSED(MALFORMED, "string", "{,}");
    EXPECT_REFUSED(MALFORMED, "closing quote", "{'descr");
    EXPECT_REFUSED(MALFORMED, "backslash", "{'de\\x73cr': '|u1'}");
    EXPECT_REFUSED(MALFORMED, "True or False", "{'fortran_order': 0}");
    EXPECT_REFUSED(MALFORMED, "True or False", "{'fortran_order': Tru");
    EXPECT_REFUSED(MALFORMED, "after '}'", HEADER("'|u1'", "(8,)") " x");
    EXPECT_REFUSED(MALFORMED, "one axis", HEADER("'|u1'", "(8)"));
    EXPECT_REFUSED(MALFORMED, "'('", HEADER("'|u1'", "8"));
    EXPECT_REFUSED(MALFORMED, "digits", HEADER("'|u1'", "(,)"));
    EXPECT_REFUSED(MALFORMED, "digits", HEADER("'|u1'", "(8,,)"));
    EXPECT_REFUSED(MALFORMED, "digits", HEADER("'|u1'", "(-8,)"));
    EXPECT_REFUSED(MALFORMED, "',' or ')'", HEADER("'|u1'", "(8.0,)"));
    EXPECT_REFUSED(MALFORMED, "leading zeros", HEADER("'|u1'", "(08,)"));
    EXPECT_REFUSED(MALFORMED, "digits", "{'descr': '|u1', 'fortran_order': False, 'shape': (8,");
    EXPECT_REFUSED(INVALID_SHAPE, "8 axes", HEADER("'|u1'", "(1,1,1,1,1,1,1,1,8)"));
    EXPECT_REFUSED(OVERFLOW, "63 bits", HEADER("'|u1'", "(9223372036854775808,)"));
    EXPECT_REFUSED(OVERFLOW, "elements", HEADER("'|u1'", "(4294967296, 4294967296)"));
    EXPECT_REFUSED(OVERFLOW, "bytes", HEADER("'<f8'", "(2305843009213693952,)"));
}

static void types_it_has_not_are_named(void **state) {
    (void)state;
    EXPECT_REFUSED(INVALID_DTYPE, "structured", HEADER("[('x', '<f4')]", "(2,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "<c8", HEADER("'<c8'", "(1,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "|O", HEADER("'|O'", "(1,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "<u2", HEADER("'<u2'", "(4,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "|u4", HEADER("'|u4'", "(2,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "|V1", HEADER("'|V1'", "(8,)")); /* which of the 8-bit floats? */
    EXPECT_REFUSED(INVALID_DTYPE, "float8_e4m3", HEADER("'float8_e4m3'", "(8,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "|f4", HEADER("'|f4'", "(2,)"));
    EXPECT_REFUSED(INVALID_DTYPE, ">V2", HEADER("'>V2'", "(4,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "''", HEADER("''", "(2,)"));
    EXPECT_REFUSED(INVALID_DTYPE, "'<'", HEADER("'<'", "(2,)"));
}

static void sizes_must_agree(void **state) {
    (void)state;
    ejk_owned_tensor owned = {0};
    EXPECT_FAIL(MALFORMED, "expected 12", parse(HEADER("'<f4'", "(3,)"), 11, &owned));
    EXPECT_FAIL(MALFORMED, "expected 12", parse(HEADER("'<f4'", "(3,)"), 13, &owned));
    EXPECT_FAIL(MALFORMED, "expected 1 ", parse(HEADER("'|u1'", "()"), 0, &owned));
    /* A header that asks for far more than there is. */
    EXPECT_FAIL(MALFORMED, "expected", parse(HEADER("'|u1'", "(4611686018427387904,)"), 1, &owned));
}

static void every_truncation_and_version_is_noticed(void **state) {
    (void)state;
    const char *header = HEADER("'|u1'", "(2,)");
    unsigned char bytes[128] = "\x93NUMPY\x01";
    size_t length = strlen(header), size = 10 + length + 2;
    bytes[8] = (unsigned char)length;
    memcpy(bytes + 10, header, length);
    ejk_owned_tensor owned = {0};
    EXPECT_OK(ejk_npy_parse(bytes, size, &owned));
    ejk_owned_tensor_close(&owned);
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        EXPECT_FAIL(MALFORMED, "", ejk_npy_parse(part, cut, &owned));
        free(part);
    }
    bytes[6] = 4;
    EXPECT_FAIL(MALFORMED, "version 4.0", ejk_npy_parse(bytes, size, &owned));
    bytes[6] = 1;
    bytes[7] = 1;
    EXPECT_FAIL(MALFORMED, "version 1.1", ejk_npy_parse(bytes, size, &owned));
    bytes[0] = 'N';
    EXPECT_FAIL(MALFORMED, ".npy", ejk_npy_parse(bytes, size, &owned));

    size_t large = 80000;
    unsigned char *padded = calloc(1, large);
    assert_non_null(padded);
    memcpy(padded, "\x93NUMPY\x02\x00\x00\x00\x01\x00", 12);
    EXPECT_FAIL(MALFORMED, "65536", ejk_npy_parse(padded, large, &owned));
    free(padded);
    assert_null(owned.owner);
}

static void files_that_cannot_be_read(void **state) {
    (void)state;
    ejk_owned_tensor owned = {0};
    EXPECT_FAIL(IO, "No such file", ejk_npy_read("/nonexistent/a.npy", &owned));
    EXPECT_FAIL(IO, "regular", ejk_npy_read(EJK_SOURCE_DIR, &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_npy_read(NULL, &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_npy_read("a.npy", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "bytes", ejk_npy_parse(NULL, 0, &owned));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_npy_parse("x", 1, NULL));
}

/* ---- writing: in a folder of its own, so that a file left behind shows ---- */

static char folder[] = "ejk_npy_XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void written_files_come_back(void **state) {
    (void)state;
    const char *path = in_folder("a.npy");
    for (ejk_dtype dtype = EJK_DTYPE_F64; dtype <= EJK_DTYPE_U32; dtype++) {
        for (int32_t rank = 0; rank <= EJK_MAX_RANK; rank++) {
            unsigned char bytes[64 * 8];
            for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 1);
            if (dtype == EJK_DTYPE_BOOL) memset(bytes, 1, sizeof bytes);
            const int64_t shape[] = {2, 3, 1, 1, 2, 1, 1, 2};
            ejk_tensor written = ejk_tensor_contiguous(bytes, dtype, rank, shape);
            if (rank > 1) written = ejk_tensor_transpose(written, 0, 1);
            EXPECT_OK(ejk_npy_write(path, &written));
            ejk_owned_tensor read = {0}, wanted = {0};
            EXPECT_OK(ejk_npy_read(path, &read));
            EXPECT_OK(ejk_owned_tensor_create(dtype, rank, written.shape, &wanted));
            EXPECT_OK(ejk_tensor_copy(&written, &wanted.tensor));
            assert_int_equal(read.tensor.dtype, dtype);
            assert_memory_equal(read.tensor.shape, wanted.tensor.shape, sizeof wanted.tensor.shape);
            size_t size = (size_t)ejk_tensor_count(&written) * ejk_dtype_size(dtype);
            assert_memory_equal(read.tensor.data, wanted.tensor.data, size);
            ejk_owned_tensor_close(&read);
            ejk_owned_tensor_close(&wanted);
        }
    }
    unlink(path);
}

static void written_bytes_follow_the_format(void **state) {
    (void)state;
    const char *path = in_folder("b.npy");
    unsigned char flags[] = {0, 7};
    ejk_tensor tensor = ejk_tensor_1d(flags, EJK_DTYPE_BOOL, 2);
    EXPECT_OK(ejk_npy_write(path, &tensor));
    char bytes[256] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    unlink(path);
    const char *header = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }";
    assert_int_equal(size, 128 + 2);
    assert_memory_equal(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_memory_equal(bytes + 10, header, strlen(header));
    assert_int_equal(bytes[127], '\n');
    assert_int_equal(bytes[128], 0);
    assert_int_equal(bytes[129], 1);
}

static void a_failed_write_leaves_nothing(void **state) {
    (void)state;
    float value = 1;
    ejk_tensor tensor = ejk_tensor_1d(&value, EJK_DTYPE_F32, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_npy_write(NULL, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "tensor", ejk_npy_write(in_folder("c.npy"), NULL));
    EXPECT_FAIL(IO, "writing", ejk_npy_write("/nonexistent/c.npy", &tensor));
    /* The name is a folder's: the last step, the renaming, fails. */
    const char *path = in_folder("taken.npy");
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT_FAIL(IO, "writing", ejk_npy_write(path, &tensor));
    assert_int_equal(rmdir(path), 0);
    tensor.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "CPU", ejk_npy_write(in_folder("c.npy"), &tensor));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_of_every_kind),
        cmocka_unit_test(headers_are_read_as_python_does),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(types_it_has_not_are_named),
        cmocka_unit_test(sizes_must_agree),
        cmocka_unit_test(every_truncation_and_version_is_noticed),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(written_files_come_back),
        cmocka_unit_test(written_bytes_follow_the_format),
        cmocka_unit_test(a_failed_write_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
