/* SPDX-License-Identifier: Apache-2.0 */
/* Views, their checks, and copies of every kind against element-by-element arithmetic. */
#include "support/expect.h"

#include <ejkernel/tensor.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A request that cannot be met is an answer here, not a finding of the sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static float storage[64];

static ejk_tensor view(int32_t rank, const int64_t *shape, const int64_t *strides) {
    ejk_tensor tensor = ejk_tensor_contiguous(storage, EJK_DTYPE_F32, rank, shape);
    if (strides != NULL) memcpy(tensor.strides, strides, (size_t)rank * sizeof *strides);
    return tensor;
}

static void dtypes_have_sizes_and_names(void **state) {
    (void)state;
#define CHECK(name, number, size, text)                                                            \
    {                                                                                              \
        ejk_dtype found = EJK_DTYPE_UNSET;                                                         \
        assert_int_equal(ejk_dtype_size(EJK_DTYPE_##name), size);                                  \
        EXPECT_OK(ejk_dtype_from_name(ejk_dtype_name(EJK_DTYPE_##name), &found));                  \
        assert_int_equal(found, number);                                                           \
    }
    EJK_DTYPE_LIST(CHECK)
#undef CHECK
    ejk_dtype found = EJK_DTYPE_I8;
    EXPECT_OK(ejk_dtype_from_name("bf16", &found));
    assert_int_equal(found, EJK_DTYPE_BF16);
    EXPECT_OK(ejk_dtype_from_name("u8", &found));
    assert_int_equal(found, EJK_DTYPE_U8);
    EXPECT_FAIL(UNKNOWN_NAME, "float8", ejk_dtype_from_name("float8", &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_dtype_from_name(NULL, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_dtype_from_name("f32", NULL));
    assert_int_equal(found, EJK_DTYPE_U8);
    assert_int_equal(ejk_dtype_size((ejk_dtype)77), 0);
    assert_string_equal(ejk_dtype_name(EJK_DTYPE_UNSET), "unset");
    assert_string_equal(ejk_dtype_name((ejk_dtype)77), "unknown");
}

static void contiguous_views_are_row_major(void **state) {
    (void)state;
    ejk_tensor t = ejk_tensor_4d(storage, EJK_DTYPE_F32, 2, 3, 4, 2);
    const int64_t strides[] = {24, 8, 2, 1};
    assert_memory_equal(t.strides, strides, sizeof strides);
    assert_true(ejk_tensor_is_contiguous(&t));
    assert_int_equal(ejk_tensor_count(&t), 48);
    EXPECT_OK(ejk_tensor_check(&t, "t"));
    assert_int_equal(ejk_tensor_3d(storage, EJK_DTYPE_F32, 5, 6, 7).strides[0], 42);
    assert_int_equal(ejk_tensor_2d(storage, EJK_DTYPE_F32, 5, 6).strides[0], 6);
    assert_int_equal(ejk_tensor_1d(storage, EJK_DTYPE_F32, 5).shape[0], 5);

    ejk_tensor scalar = ejk_tensor_contiguous(storage, EJK_DTYPE_F32, 0, NULL);
    EXPECT_OK(ejk_tensor_check(&scalar, "scalar"));
    assert_int_equal(ejk_tensor_count(&scalar), 1);
    ejk_tensor none = {0};
    assert_false(ejk_tensor_present(&none));
    assert_false(ejk_tensor_present(NULL));
    assert_true(ejk_tensor_present(&scalar));
}

static void contiguity_ignores_axes_of_one_and_empty_views(void **state) {
    (void)state;
    ejk_tensor one = view(3, (int64_t[]){2, 1, 3}, (int64_t[]){3, -99, 1});
    assert_true(ejk_tensor_is_contiguous(&one));
    ejk_tensor gap = view(2, (int64_t[]){2, 3}, (int64_t[]){4, 1});
    assert_false(ejk_tensor_is_contiguous(&gap));
    ejk_tensor empty = view(2, (int64_t[]){0, 3}, (int64_t[]){7, 7});
    assert_true(ejk_tensor_is_contiguous(&empty));
}

static void check_names_what_is_wrong(void **state) {
    (void)state;
    ejk_tensor t = {0};
    EXPECT_FAIL(INVALID_ARGUMENT, "query is NULL", ejk_tensor_check(NULL, "query"));
    EXPECT_FAIL(INVALID_DTYPE, "query", ejk_tensor_check(&t, "query"));
    EXPECT_FAIL(INVALID_DTYPE, "tensor", ejk_tensor_check(&t, NULL));
    t = ejk_tensor_1d(storage, (ejk_dtype)77, 1);
    EXPECT_FAIL(INVALID_DTYPE, "77", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_contiguous(storage, EJK_DTYPE_F32, 9, (int64_t[9]){1});
    EXPECT_FAIL(INVALID_SHAPE, "rank", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_contiguous(storage, EJK_DTYPE_F32, 2, NULL);
    EXPECT_FAIL(INVALID_SHAPE, "rank", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_2d(storage, EJK_DTYPE_F32, 3, -4);
    EXPECT_FAIL(INVALID_SHAPE, "axis 1 of t is -4", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_1d(NULL, EJK_DTYPE_F32, 3);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 0, 3);
    EXPECT_OK(ejk_tensor_check(&t, "t"));
}

static void check_sees_every_overflow(void **state) {
    (void)state;
    const int64_t large = (int64_t)1 << 32;
    ejk_tensor t = ejk_tensor_2d(storage, EJK_DTYPE_U8, large, large);
    EXPECT_FAIL(OVERFLOW, "elements", ejk_tensor_check(&t, "t"));
    /* Empty, but some of its axes multiply to more than any loop may count. */
    t = ejk_tensor_3d(NULL, EJK_DTYPE_U8, 0, large, large);
    EXPECT_FAIL(OVERFLOW, "elements", ejk_tensor_check(&t, "t"));
    t = ejk_tensor_1d(storage, EJK_DTYPE_F64, INT64_MAX / 4);
    EXPECT_FAIL(OVERFLOW, "spans", ejk_tensor_check(&t, "t"));
    t = view(1, (int64_t[]){3}, (int64_t[]){INT64_MAX});
    EXPECT_FAIL(OVERFLOW, "spans", ejk_tensor_check(&t, "t"));
    t = view(1, (int64_t[]){2}, (int64_t[]){INT64_MIN});
    EXPECT_FAIL(OVERFLOW, "spans", ejk_tensor_check(&t, "t"));
    t = view(2, (int64_t[]){2, 2}, (int64_t[]){INT64_MAX / 4, -(INT64_MAX / 4)});
    EXPECT_FAIL(OVERFLOW, "spans", ejk_tensor_check(&t, "t"));
    /* The stride of an axis of one element is never stepped. */
    t = view(1, (int64_t[]){1}, (int64_t[]){INT64_MIN});
    EXPECT_OK(ejk_tensor_check(&t, "t"));

    t = ejk_tensor_1d((void *)(UINTPTR_MAX - 3), EJK_DTYPE_U8, 4);
    EXPECT_FAIL(OVERFLOW, "ends of memory", ejk_tensor_check(&t, "t"));
    t.data = (void *)(UINTPTR_MAX - 4);
    EXPECT_OK(ejk_tensor_check(&t, "t"));
    t.strides[0] = -1;
    t.data = (void *)(uintptr_t)2;
    EXPECT_FAIL(OVERFLOW, "ends of memory", ejk_tensor_check(&t, "t"));
    t.data = (void *)(uintptr_t)3;
    EXPECT_OK(ejk_tensor_check(&t, "t"));
}

static void spans_cover_both_directions(void **state) {
    (void)state;
    int64_t low = 1, high = 1;
    ejk_tensor t = view(3, (int64_t[]){2, 3, 4}, (int64_t[]){20, -5, 0});
    ejk_tensor_span(&t, &low, &high);
    assert_int_equal(low, -40);
    assert_int_equal(high, 84);
    t = view(2, (int64_t[]){2, 0}, NULL);
    ejk_tensor_span(&t, &low, &high);
    assert_int_equal(low, 0);
    assert_int_equal(high, 0);
}

static void transposing_and_slicing(void **state) {
    (void)state;
    ejk_tensor t = ejk_tensor_3d(storage, EJK_DTYPE_F32, 2, 3, 4);
    ejk_tensor turned = ejk_tensor_transpose(t, 0, -1);
    assert_int_equal(turned.shape[0], 4);
    assert_int_equal(turned.strides[0], 1);
    assert_int_equal(turned.shape[2], 2);
    assert_int_equal(turned.strides[2], 12);
    ejk_tensor part = ejk_tensor_slice(t, -2, 1, 2);
    assert_ptr_equal(part.data, storage + 4);
    assert_int_equal(part.shape[1], 2);
    EXPECT_OK(ejk_tensor_check(&part, "part"));
    assert_ptr_equal(ejk_tensor_slice(t, 0, 2, 0).data, storage);

    const ejk_tensor wrong[] = {
        ejk_tensor_transpose(t, 0, 3),
        ejk_tensor_transpose(t, -4, 0),
        ejk_tensor_slice(t, 3, 0, 1),
        ejk_tensor_slice(t, INT32_MIN, 0, 1),
        ejk_tensor_slice(t, 0, -1, 1),
        ejk_tensor_slice(t, 0, 0, -1),
        ejk_tensor_slice(t, 0, 1, 2),
        ejk_tensor_slice(t, 0, 1, INT64_MAX),
        ejk_tensor_slice(ejk_tensor_contiguous(storage, EJK_DTYPE_F32, 0, NULL), 0, 0, 1),
        ejk_tensor_slice(view(1, (int64_t[]){9}, (int64_t[]){INT64_MAX / 2}), 0, 7, 1),
        ejk_tensor_transpose((ejk_tensor){.dtype = EJK_DTYPE_F32, .rank = 100}, 50, 60),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        EXPECT_FAIL(INVALID_SHAPE, "rank", ejk_tensor_check(&wrong[i], "wrong"));
    }
}

/* An element read or written as an f64, the slow and obvious way. Integers here are small. */
static double get(const ejk_tensor *t, int64_t offset) {
    const char *at = (const char *)t->data + offset * (int64_t)ejk_dtype_size(t->dtype);
    uint16_t half;
    memcpy(&half, at, t->dtype == EJK_DTYPE_BF16 || t->dtype == EJK_DTYPE_F16 ? 2 : 0);
#define AS(type)                                                                                   \
    {                                                                                              \
        type x;                                                                                    \
        memcpy(&x, at, sizeof x);                                                                  \
        return (double)x;                                                                          \
    }
    switch (t->dtype) {
    case EJK_DTYPE_F64: AS(double)
    case EJK_DTYPE_F32: AS(float)
    case EJK_DTYPE_BF16: return (double)ejk_bf16_to_f32(half);
    case EJK_DTYPE_F16: return (double)ejk_f16_to_f32(half);
    case EJK_DTYPE_F8E4M3: return (double)ejk_e4m3_to_f32(*(const uint8_t *)at);
    case EJK_DTYPE_F8E5M2: return (double)ejk_e5m2_to_f32(*(const uint8_t *)at);
    case EJK_DTYPE_F8E8M0: return (double)ejk_e8m0_to_f32(*(const uint8_t *)at);
    case EJK_DTYPE_I64: AS(int64_t)
    case EJK_DTYPE_I32: AS(int32_t)
    case EJK_DTYPE_I16: AS(int16_t)
    case EJK_DTYPE_I8: AS(int8_t)
    case EJK_DTYPE_U32: AS(uint32_t)
    case EJK_DTYPE_U8:
    case EJK_DTYPE_BOOL: AS(uint8_t)
    default: break;
    }
#undef AS
    return NAN;
}

/* Converts one f64 to a dtype. */
static void put(const ejk_tensor *t, int64_t offset, double value) {
    char *at = (char *)t->data + offset * (int64_t)ejk_dtype_size(t->dtype);
    ejk_tensor from = ejk_tensor_1d(&value, EJK_DTYPE_F64, 1);
    ejk_tensor to = ejk_tensor_1d(at, t->dtype, 1);
    EXPECT_OK(ejk_tensor_copy(&from, &to));
}

enum { BUFFER = 8 * 4096 };

/* Fills one pair of types and layouts with small numbers, copies, and compares each element. */
static void check_pair(ejk_dtype source_dtype, ejk_dtype target_dtype, const int64_t *shape,
                       const int64_t *source_strides, const int64_t *target_strides, size_t skew) {
    static char source_bytes[BUFFER], target_bytes[BUFFER];
    ejk_tensor source =
        ejk_tensor_contiguous(source_bytes + BUFFER / 2 + skew, source_dtype, 3, shape);
    ejk_tensor target =
        ejk_tensor_contiguous(target_bytes + BUFFER / 2 + skew, target_dtype, 3, shape);
    if (source_strides != NULL) memcpy(source.strides, source_strides, 3 * sizeof(int64_t));
    if (target_strides != NULL) memcpy(target.strides, target_strides, 3 * sizeof(int64_t));
    int64_t low, high;
    ejk_tensor_span(&source, &low, &high);
    int64_t size = (int64_t)ejk_dtype_size(source_dtype);
    for (int64_t i = low / size; i < high / size; i++) put(&source, i, (double)(i & 7));
    memset(target_bytes, 0x7f, sizeof target_bytes);
    EXPECT_OK(ejk_tensor_copy(&source, &target));
    for (int64_t n = 0; n < ejk_tensor_count(&source); n++) {
        int64_t i = n / (shape[1] * shape[2]), j = n / shape[2] % shape[1], k = n % shape[2];
        const int64_t *s = source.strides, *t = target.strides;
        double wanted = get(&source, i * s[0] + j * s[1] + k * s[2]);
        if (target_dtype == EJK_DTYPE_BOOL) wanted = wanted != 0;
        assert_true(get(&target, i * t[0] + j * t[1] + k * t[2]) == wanted);
    }
    ejk_tensor_span(&target, &low, &high);
    for (char *at = target_bytes; at < target_bytes + BUFFER; at++) {
        if (at < (char *)target.data + low || at >= (char *)target.data + high) {
            assert_int_equal(*at, 0x7f);
        }
    }
}

static void copies_of_every_pair_of_types_and_any_strides(void **state) {
    (void)state;
    const int64_t shape[] = {3, 5, 19}, reversed[] = {-95, -19, -1}, fortran[] = {1, 3, 15},
                  padded[] = {230, 40, 2}, broadcast[] = {0, 1, 0}, mixed[] = {19, -57, 1};
    for (ejk_dtype a = EJK_DTYPE_F64; a <= EJK_DTYPE_U32; a++) {
        for (ejk_dtype b = EJK_DTYPE_F64; b <= EJK_DTYPE_U32; b++) {
            /* Most of these numbers are no powers of two. */
            if (a == EJK_DTYPE_F8E8M0 || b == EJK_DTYPE_F8E8M0) continue;
            check_pair(a, b, shape, NULL, NULL, 0);
            check_pair(a, b, shape, NULL, NULL, 1);
            check_pair(a, b, shape, reversed, NULL, 0);
            check_pair(a, b, shape, NULL, reversed, 0);
            check_pair(a, b, shape, reversed, reversed, 0);
            check_pair(a, b, shape, fortran, padded, 3);
            check_pair(a, b, shape, padded, fortran, 0);
            check_pair(a, b, shape, broadcast, mixed, 0);
            check_pair(a, b, (int64_t[]){1, 1, 600}, NULL, padded, 0);
        }
    }
}

/* One value from one type to another. */
#define CONVERTS(from_type, from, value, to_type, to, wanted)                                      \
    do {                                                                                           \
        from_type in_ = (value);                                                                   \
        to_type out_ = (to_type)123, wanted_ = (wanted);                                           \
        ejk_tensor source_ = ejk_tensor_contiguous(&in_, EJK_DTYPE_##from, 0, NULL);               \
        ejk_tensor target_ = ejk_tensor_contiguous(&out_, EJK_DTYPE_##to, 0, NULL);                \
        EXPECT_OK(ejk_tensor_copy(&source_, &target_));                                            \
        assert_memory_equal(&out_, &wanted_, sizeof out_);                                         \
    } while (0)

static void values_saturate_truncate_and_round_once(void **state) {
    (void)state;
    CONVERTS(double, F64, -1.9, int32_t, I32, -1);
    CONVERTS(double, F64, 1e10, int32_t, I32, INT32_MAX);
    CONVERTS(double, F64, -1e300, int64_t, I64, INT64_MIN);
    CONVERTS(double, F64, 0x1p63, int64_t, I64, INT64_MAX);
    CONVERTS(double, F64, (double)NAN, int64_t, I64, 0);
    CONVERTS(float, F32, INFINITY, int8_t, I8, 127);
    CONVERTS(float, F32, -3.5f, uint8_t, U8, 0);
    CONVERTS(float, F32, 255.9f, uint8_t, U8, 255);
    CONVERTS(double, F64, 0.25, uint8_t, BOOL, 1);
    CONVERTS(double, F64, (double)NAN, uint8_t, BOOL, 1);
    CONVERTS(double, F64, -0.0, uint8_t, BOOL, 0);
    CONVERTS(int64_t, I64, INT64_MIN, int16_t, I16, INT16_MIN);
    CONVERTS(int64_t, I64, 300, int8_t, I8, 127);
    CONVERTS(int32_t, I32, -5, uint8_t, U8, 0);
    CONVERTS(int32_t, I32, 256, uint8_t, BOOL, 1);
    CONVERTS(uint8_t, BOOL, 200, uint8_t, BOOL, 1);
    CONVERTS(uint8_t, BOOL, 200, float, F32, 1.0f);
    /* Just above a tie of f32, just too little for f64 to see it: 2^62 + 2^38 + 1. */
    CONVERTS(int64_t, I64, 0x4000004000000001, float, F32, 0x1.000002p62f);
    CONVERTS(int64_t, I64, 0x4000004000000000, float, F32, 0x1p62f);
    CONVERTS(int64_t, I64, -0x4000004000000001, float, F32, -0x1.000002p62f);
    CONVERTS(int64_t, I64, INT64_MIN, float, F32, -0x1p63f);
    CONVERTS(int64_t, I64, INT64_MAX, float, F32, 0x1p63f);
    CONVERTS(int64_t, I64, 0x7f80000000000000 - 1, uint16_t, BF16, 0x5eff);
    CONVERTS(int64_t, I64, 65519, uint16_t, F16, 0x7bff);
    CONVERTS(int64_t, I64, 65520, uint16_t, F16, 0x7c00);
    /* Copying between equal types keeps a signalling NaN's bits. */
    CONVERTS(uint32_t, F32, 0x7f800001, uint32_t, F32, 0x7f800001);
    CONVERTS(double, F64, 1e39, float, F32, INFINITY);
}

static void random_whole_numbers_round_like_the_compiler(void **state) {
    (void)state;
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        int64_t value = (int64_t)bits >> (i % 60);
        CONVERTS(int64_t, I64, value, float, F32, (float)value);
    }
}

static void copies_refuse_what_they_cannot_do(void **state) {
    (void)state;
    static float other[64];
    ejk_tensor a = ejk_tensor_2d(storage, EJK_DTYPE_F32, 4, 4), b = a;
    b.data = other;
    EXPECT_OK(ejk_tensor_copy(&a, &b));
    EXPECT_FAIL(INVALID_ARGUMENT, "source", ejk_tensor_copy(NULL, &b));
    EXPECT_FAIL(INVALID_ARGUMENT, "target", ejk_tensor_copy(&a, NULL));
    ejk_tensor wrong = ejk_tensor_2d(other, EJK_DTYPE_F32, 4, 3);
    EXPECT_FAIL(INVALID_SHAPE, "axis 1", ejk_tensor_copy(&a, &wrong));
    wrong = ejk_tensor_1d(other, EJK_DTYPE_F32, 16);
    EXPECT_FAIL(INVALID_SHAPE, "rank", ejk_tensor_copy(&a, &wrong));
    wrong = b;
    wrong.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "target", ejk_tensor_copy(&a, &wrong));
    EXPECT_FAIL(UNAVAILABLE, "source", ejk_tensor_copy(&wrong, &a));

    EXPECT_FAIL(INVALID_LAYOUT, "memories", ejk_tensor_copy(&a, &a));
    wrong.device_type = EJK_DEVICE_CPU;
    wrong.data = storage + 15;
    EXPECT_FAIL(INVALID_LAYOUT, "memories", ejk_tensor_copy(&a, &wrong));
    wrong.data = storage + 16;
    EXPECT_OK(ejk_tensor_copy(&a, &wrong));

    const int64_t aliases[][2] = {{0, 1}, {4, 0}, {3, 1}, {1, 1}, {-3, 1}, {1, -2}};
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        wrong = b;
        wrong.data = other + 32;
        memcpy(wrong.strides, aliases[i], sizeof aliases[i]);
        EXPECT_FAIL(INVALID_LAYOUT, "elements", ejk_tensor_copy(&a, &wrong));
        EXPECT_OK(ejk_tensor_copy(&wrong, &a));
    }
    ejk_tensor empty = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 0, 4), none = empty;
    EXPECT_OK(ejk_tensor_copy(&empty, &none));
}

static void owned_tensors_are_zero_aligned_and_released(void **state) {
    (void)state;
    ejk_owned_tensor owned = {0};
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F64, 2, (int64_t[]){3, 5}, &owned));
    assert_int_equal((uintptr_t)owned.tensor.data % 64, 0);
    for (int i = 0; i < 15; i++) assert_true(((double *)owned.tensor.data)[i] == 0);
    ejk_owned_tensor_close(&owned);
    assert_null(owned.owner);
    assert_false(ejk_tensor_present(&owned.tensor));
    ejk_owned_tensor_close(&owned);
    ejk_owned_tensor_close(NULL);

    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_BOOL, 1, (int64_t[]){0}, &owned));
    ejk_owned_tensor_close(&owned);
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_owned_tensor_create(EJK_DTYPE_F32, 0, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "shape", ejk_owned_tensor_create(EJK_DTYPE_F32, 1, NULL, &owned));
    EXPECT_FAIL(INVALID_DTYPE, "", ejk_owned_tensor_create(EJK_DTYPE_UNSET, 0, NULL, &owned));
    EXPECT_FAIL(INVALID_SHAPE, "",
                ejk_owned_tensor_create(EJK_DTYPE_F32, 1, (int64_t[]){-1}, &owned));
    EXPECT_FAIL(OVERFLOW, "",
                ejk_owned_tensor_create(EJK_DTYPE_U8, 1, (int64_t[]){INT64_MAX}, &owned));
    EXPECT_FAIL(OUT_OF_MEMORY, "",
                ejk_owned_tensor_create(EJK_DTYPE_U8, 1, (int64_t[]){INT64_MAX / 2}, &owned));
    assert_null(owned.owner);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_have_sizes_and_names),
        cmocka_unit_test(contiguous_views_are_row_major),
        cmocka_unit_test(contiguity_ignores_axes_of_one_and_empty_views),
        cmocka_unit_test(check_names_what_is_wrong),
        cmocka_unit_test(check_sees_every_overflow),
        cmocka_unit_test(spans_cover_both_directions),
        cmocka_unit_test(transposing_and_slicing),
        cmocka_unit_test(copies_of_every_pair_of_types_and_any_strides),
        cmocka_unit_test(values_saturate_truncate_and_round_once),
        cmocka_unit_test(random_whole_numbers_round_like_the_compiler),
        cmocka_unit_test(copies_refuse_what_they_cannot_do),
        cmocka_unit_test(owned_tensors_are_zero_aligned_and_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
