/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions of 16-bit floats against an oracle that knows the formats only by their definition: it finds the
 * two neighbours of a value in a sorted table of all numbers of the type, and picks by distance in f64.
 */
#include "support/expect.h"
#include "support/float_bits.h"

#include <ejkernel/tensor.h>
#include <math.h>
#include <stdlib.h>

typedef struct format {
    int mantissa, bias;
    uint16_t infinity;
} format;

static const format bf16 = {7, 127, 0x7f80}, f16 = {10, 15, 0x7c00};

/* The value of positive, finite bits. */
static double value_of(format type, uint32_t bits) {
    int exponent = (int)(bits >> type.mantissa);
    double fraction = bits & ((1u << type.mantissa) - 1);
    if (exponent > 0) fraction += 1u << type.mantissa;
    return ldexp(fraction, (exponent > 0 ? exponent : 1) - type.bias - type.mantissa);
}

/* Rounds as IEEE 754 defines it: infinity takes the place of the number after the last. */
static uint16_t oracle(format type, double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    uint32_t low = 0, high = type.infinity;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(type, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    if (isinf(value)) return (uint16_t)(sign | type.infinity);
    /* The halves are exact: value and neighbours are far from the ends of f64. */
    double middle = (value_of(type, low) + value_of(type, high)) / 2;
    bool up = size > middle || (size == middle && (low & 1));
    return (uint16_t)(sign | (up ? high : low));
}

static uint64_t random_state = 20240607;
static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* A view of one f64 converted to one 16-bit number, by way of ejk_tensor_copy(). */
static uint16_t narrow_f64(double value, ejk_dtype dtype) {
    uint16_t out = 0xdead;
    ejk_tensor source = ejk_tensor_1d(&value, EJK_DTYPE_F64, 1);
    ejk_tensor target = ejk_tensor_1d(&out, dtype, 1);
    EXPECT_OK(ejk_tensor_copy(&source, &target));
    return out;
}

static void check_widening(format type, float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float wide = widen((uint16_t)bits);
        uint32_t magnitude = bits & 0x7fff, sign = bits >> 15;
        assert_int_equal(bits_of(wide) >> 31, sign);
        if (magnitude > type.infinity) {
            uint32_t payload = magnitude << (23 - type.mantissa) & 0x7fffff;
            assert_int_equal(bits_of(wide) & 0x7fffffff, 0x7fc00000 | payload);
            assert_int_equal(narrow(wide), bits | 1u << (type.mantissa - 1));
        } else {
            if (magnitude < type.infinity) {
                assert_true(fabs((double)wide) == value_of(type, magnitude));
            } else {
                assert_true(isinf(wide));
            }
            assert_int_equal(narrow(wide), bits);
        }
    }
}

static void every_pattern_widens_exactly_and_comes_back(void **state) {
    (void)state;
    check_widening(bf16, ejk_bf16_to_f32, ejk_f32_to_bf16);
    check_widening(f16, ejk_f16_to_f32, ejk_f32_to_f16);
}

static void check_narrowing(float value) {
    if (isnan(value)) {
        uint32_t bits = bits_of(value);
        assert_int_equal(ejk_f32_to_bf16(value), bits >> 16 | 0x40);
        assert_int_equal(ejk_f32_to_f16(value),
                         (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
    } else {
        assert_int_equal(ejk_f32_to_bf16(value), oracle(bf16, (double)value));
        assert_int_equal(ejk_f32_to_f16(value), oracle(f16, (double)value));
    }
}

/* Every number of both types, every middle between two, and their neighbours in f32, of both signs. */
static void narrowing_is_right_at_every_edge(void **state) {
    (void)state;
    const format types[] = {bf16, f16};
    for (int t = 0; t < 2; t++) {
        for (uint32_t bits = 0; bits < types[t].infinity; bits++) {
            double here = value_of(types[t], bits), next = value_of(types[t], bits + 1);
            const double edges[] = {here, (here + next) / 2};
            for (int e = 0; e < 2; e++) {
                uint32_t middle = bits_of((float)edges[e]);
                for (uint32_t near = middle - (middle > 0); near <= middle + 1; near++) {
                    check_narrowing(float_of(near));
                    check_narrowing(float_of(near | 0x80000000));
                }
            }
        }
    }
}

static void narrowing_is_right_for_special_and_random_bits(void **state) {
    (void)state;
    const uint32_t special[] = {0x7f800000, 0x7f800001, 0x7f801fff, 0x7f80ffff, 0x7fbfffff,
                                0x7fc00000, 0x7fffffff, 0x7f7fffff, 0x7f7f8000, 0x7f7f7fff,
                                0x477fefff, 0x477ff000, 0x47800000, 0x33000000, 0x33000001,
                                0x00000001, 0x00007fff, 0x00008000, 0x00008001, 0x00000000};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        check_narrowing(float_of(special[i]));
        check_narrowing(float_of(special[i] | 0x80000000));
    }
    for (int i = 0; i < 300000; i++) check_narrowing(float_of((uint32_t)random_bits()));
}

/* Values a hair beside a tie: through f32 they would land on the tie and round to even. */
static void f64_is_rounded_once(void **state) {
    (void)state;
    const format types[] = {bf16, f16};
    const ejk_dtype dtypes[] = {EJK_DTYPE_BF16, EJK_DTYPE_F16};
    for (int t = 0; t < 2; t++) {
        for (uint32_t bits = 0; bits < types[t].infinity; bits += 7) {
            double tie = (value_of(types[t], bits) + value_of(types[t], bits + 1)) / 2;
            const double near[] = {tie, nextafter(tie, 0), nextafter(tie, INFINITY)};
            for (int n = 0; n < 3; n++) {
                assert_int_equal(narrow_f64(near[n], dtypes[t]), oracle(types[t], near[n]));
                assert_int_equal(narrow_f64(-near[n], dtypes[t]), oracle(types[t], -near[n]));
            }
        }
        const double special[] = {0, 1e300, 5e-324, 1e-40, 1e-46, INFINITY, 65519.999999999};
        for (int s = 0; s < 7; s++) {
            assert_int_equal(narrow_f64(special[s], dtypes[t]), oracle(types[t], special[s]));
            assert_int_equal(narrow_f64(-special[s], dtypes[t]), oracle(types[t], -special[s]));
        }
        assert_true((narrow_f64(NAN, dtypes[t]) & 0x7fff) > types[t].infinity);
    }
}

enum { LONGEST = 67, GUARD = 4 };

/* All lengths around the blocks, at odd starts; nothing beyond the end is written. */
static void runs_agree_with_single_conversions(void **state) {
    (void)state;
    for (int count = 0; count <= LONGEST; count++) {
        uint16_t narrow[LONGEST + GUARD], back[LONGEST + GUARD];
        float wide[LONGEST + GUARD];
        for (int i = 0; i < count; i++) narrow[i] = (uint16_t)random_bits();
        memset(wide, 0x5a, sizeof wide);
        ejk_convert_bf16_to_f32(narrow, wide, count);
        for (int i = 0; i < count; i++) {
            assert_int_equal(bits_of(wide[i]), bits_of(ejk_bf16_to_f32(narrow[i])));
        }
        assert_int_equal(bits_of(wide[count]), 0x5a5a5a5a);
        ejk_convert_f16_to_f32(narrow, wide, count);
        for (int i = 0; i < count; i++) {
            assert_int_equal(bits_of(wide[i]), bits_of(ejk_f16_to_f32(narrow[i])));
        }
        assert_int_equal(bits_of(wide[count]), 0x5a5a5a5a);
        for (int i = 0; i < count; i++) wide[i] = float_of((uint32_t)random_bits());
        memset(back, 0x5a, sizeof back);
        ejk_convert_f32_to_bf16(wide, back, count);
        for (int i = 0; i < count; i++) assert_int_equal(back[i], ejk_f32_to_bf16(wide[i]));
        assert_int_equal(back[count], 0x5a5a);
        ejk_convert_f32_to_f16(wide, back, count);
        for (int i = 0; i < count; i++) assert_int_equal(back[i], ejk_f32_to_f16(wide[i]));
        assert_int_equal(back[count], 0x5a5a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_widens_exactly_and_comes_back),
        cmocka_unit_test(narrowing_is_right_at_every_edge),
        cmocka_unit_test(narrowing_is_right_for_special_and_random_bits),
        cmocka_unit_test(f64_is_rounded_once),
        cmocka_unit_test(runs_agree_with_single_conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
