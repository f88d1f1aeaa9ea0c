/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions of 8-bit floats: all codes, against values spelled out by the definition of the formats, and
 * roundings of everything between two neighbours, against the nearer one.
 */
#include "support/expect.h"
#include "tensor/access.h"

#include <math.h>

typedef struct format {
    const char *name;
    ejk_dtype dtype;
    int mantissa, bias;
    uint8_t greatest; /* code of the greatest number */
    float (*widen)(uint8_t);
    uint8_t (*narrow)(float);
} format;

static const format formats[] = {
    {"e4m3", EJK_DTYPE_F8E4M3, 3, 7, 0x7e, ejk_e4m3_to_f32, ejk_f32_to_e4m3},
    {"e5m2", EJK_DTYPE_F8E5M2, 2, 15, 0x7b, ejk_e5m2_to_f32, ejk_f32_to_e5m2},
};

/* The value of a code without its sign, by definition. */
static double value_of(const format *f, uint8_t code) {
    const int exponent = code >> f->mantissa, ones = 1 << f->mantissa, fraction = code & (ones - 1);
    return exponent == 0 ? ldexp(fraction, 1 - f->bias - f->mantissa)
                         : ldexp(ones + fraction, exponent - f->bias - f->mantissa);
}

static uint8_t copied(ejk_dtype from, const void *value, ejk_dtype to) {
    uint8_t code = 0x55;
    const ejk_tensor source = ejk_tensor_1d((void *)(uintptr_t)value, from, 1);
    const ejk_tensor target = ejk_tensor_1d(&code, to, 1);
    EXPECT_OK(ejk_tensor_copy(&source, &target));
    return code;
}

static void codes_have_their_values(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int code = 0; code < 256; code++) {
            const format *f = &formats[i];
            const float value = f->widen((uint8_t)code);
            const int magnitude = code & 0x7f;
            assert_int_equal(signbit(value) != 0, code >> 7);
            if (magnitude <= f->greatest) {
                assert_true((double)fabsf(value) == value_of(f, (uint8_t)magnitude));
                assert_int_equal(f->narrow(value), code);
            } else if (i == 1 && magnitude == 0x7c) {
                assert_true(isinf(value));
                assert_int_equal(f->narrow(value), f->greatest | (code & 0x80)); /* saturates */
            } else {
                assert_true(isnan(value));
                assert_int_equal(f->narrow(value), 0x7f | (code & 0x80));
            }
        }
    assert_true(ejk_e4m3_to_f32(0x7e) == 448 && ejk_e5m2_to_f32(0x7b) == 57344);
    assert_true(ejk_e4m3_to_f32(0x01) == 0x1p-9f && ejk_e5m2_to_f32(0x01) == 0x1p-16f);
}

static void check(const format *f, double value, uint8_t wanted) {
    const float single = (float)value;
    const uint8_t negative = wanted | 0x80;
    const double minus = -value;
    if ((double)single == value) {
        assert_int_equal(f->narrow(single), wanted);
        assert_int_equal(f->narrow(-single), negative);
        assert_int_equal(copied(EJK_DTYPE_F32, &single, f->dtype), wanted);
    }
    assert_int_equal(copied(EJK_DTYPE_F64, &value, f->dtype), wanted);
    assert_int_equal(copied(EJK_DTYPE_F64, &minus, f->dtype), negative);
}

/* Just below, at and just above the middle of all neighbours, in f64 by less than an f32 can tell. */
static void middles_go_to_even_codes(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int code = 0; code < formats[i].greatest; code++) {
            const format *f = &formats[i];
            const double low = value_of(f, (uint8_t)code), high = value_of(f, (uint8_t)(code + 1));
            const double middle = (low + high) / 2;
            check(f, middle, (uint8_t)(code + (code & 1)));
            check(f, nextafter(middle, 0), (uint8_t)code);
            check(f, nextafter(middle, 1e9), (uint8_t)(code + 1));
            check(f, (double)nextafterf((float)middle, 0), (uint8_t)code);
            check(f, (double)nextafterf((float)middle, 1e9f), (uint8_t)(code + 1));
        }
}

static void values_beyond_the_greatest_are_that(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const format *f = &formats[i];
        const double greatest = value_of(f, f->greatest);
        check(f, nextafter(greatest, 1e9), f->greatest);
        check(f, greatest * 1.03, f->greatest);
        check(f, greatest * 2, f->greatest);
        check(f, 1e300, f->greatest);
        check(f, (double)INFINITY, f->greatest);
        check(f, 0, 0);
        check(f, 1e-300, 0);
        const int64_t whole = INT64_MAX;
        assert_int_equal(copied(EJK_DTYPE_I64, &whole, f->dtype), f->greatest);
    }
}

static void scales_are_powers_of_two(void **state) {
    (void)state;
    for (int code = 0; code < 255; code++) {
        const float value = ejk_e8m0_to_f32((uint8_t)code);
        assert_true((double)value == ldexp(1, code - 127));
        assert_int_equal(ejk_f32_to_e8m0(value), code);
        assert_int_equal(ejk_f32_to_e8m0(-value), 0xff);
        if (code == 254) continue;
        const double middle = 1.5 * (double)value;
        const float below = nextafterf((float)middle, 0),
                    above = nextafterf((float)middle, INFINITY);
        assert_int_equal(ejk_f32_to_e8m0((float)middle), code + (code & 1));
        assert_int_equal(ejk_f32_to_e8m0(below), code);
        assert_int_equal(ejk_f32_to_e8m0(above), code + 1);
        const double just_above = nextafter(middle, 1e300);
        assert_int_equal(copied(EJK_DTYPE_F64, &just_above, EJK_DTYPE_F8E8M0), code + 1);
    }
    assert_true(isnan(ejk_e8m0_to_f32(0xff)));
    assert_int_equal(ejk_f32_to_e8m0(NAN), 0xff);
    assert_int_equal(ejk_f32_to_e8m0(0), 0);
    assert_int_equal(ejk_f32_to_e8m0(-0.0f), 0);
    assert_int_equal(ejk_f32_to_e8m0(0x1p-149f), 0);
    assert_int_equal(ejk_f32_to_e8m0(INFINITY), 254);
    assert_int_equal(ejk_f32_to_e8m0(0x1.fffffep127f), 254);
}

static void single_elements_are_loaded_and_stored(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_F8E4M3, EJK_DTYPE_F8E5M2, EJK_DTYPE_F8E8M0};
    for (int i = 0; i < 3; i++)
        for (int code = 0; code < 256; code++) {
            uint8_t codes[24] = {1, (uint8_t)code, 2}; /* room for what gcc takes the type for */
            const double value = ejki_load_f64(types[i], codes, 1);
            codes[1] = 0;
            ejki_store_f64(types[i], codes, 1, value);
            const bool kept = !isinf(value) && !isnan(value);
            if (kept) assert_int_equal(codes[1], code);
            assert_int_equal(codes[0], 1);
            assert_int_equal(codes[2], 2);
        }
    uint32_t words[8] = {7, UINT32_MAX};
    assert_true(ejki_load_i64(EJK_DTYPE_U32, words, 1) == UINT32_MAX);
    ejki_store_i64(EJK_DTYPE_U32, words, 0, 3000000000);
    assert_int_equal(words[0], 3000000000u);
}

static void unsigned_words_saturate(void **state) {
    (void)state;
    static const struct {
        double value;
        uint32_t wanted;
    } cases[] = {{-1, 0}, {3.9, 3}, {4294967295.0, UINT32_MAX}, {1e20, UINT32_MAX}, {NAN, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t word = 5;
        const ejk_tensor source =
            ejk_tensor_1d((void *)(uintptr_t)&cases[i].value, EJK_DTYPE_F64, 1);
        const ejk_tensor target = ejk_tensor_1d(&word, EJK_DTYPE_U32, 1);
        EXPECT_OK(ejk_tensor_copy(&source, &target));
        assert_int_equal(word, cases[i].wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_have_their_values),
        cmocka_unit_test(middles_go_to_even_codes),
        cmocka_unit_test(values_beyond_the_greatest_are_that),
        cmocka_unit_test(scales_are_powers_of_two),
        cmocka_unit_test(single_elements_are_loaded_and_stored),
        cmocka_unit_test(unsigned_words_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
