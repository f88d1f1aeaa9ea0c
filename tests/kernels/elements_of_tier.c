/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of 16 and 8 bits in a tier's vectors have the bits that tensor/convert.h gives each alone, where a NaN may
 * have those of another; short powers and inverses are as near as vec_halves.h says. TIER is the tier's name.
 */
#include <math.h>

#include "elements.h"
#include "kernels/simd/vec.h"
#include "kernels/simd/vec_bytes.h"
#include "kernels/simd/vec_halves.h"
#include "support/expect.h"
#include "support/float_bits.h"

/* Floats whose bits are a multiple of this, and every tie: 16 and 13 bits are rounded away. */
enum { STEP = 251 };

#define DECLARE(check, tier) void CHECK_OF(check, tier)(void **state);
ELEMENT_CHECKS(DECLARE, TIER)
#undef DECLARE

static void check_lanes(vf got, const float expected[VL]) {
    float lanes[VL];
    v_store(lanes, got);
    for (int i = 0; i < VL; i++)
        if (!(isnan(lanes[i]) && isnan(expected[i])))
            assert_int_equal(bits_of(lanes[i]), bits_of(expected[i]));
}

void CHECK_OF(every_code_of_16_bits_is_widened, TIER)(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code += VL) {
        uint16_t codes[VL];
        float bf16[VL], f16[VL];
        for (uint32_t i = 0; i < VL; i++) {
            codes[i] = (uint16_t)(code + i);
            bf16[i] = ejki_bf16_to_f32(codes[i]);
            f16[i] = ejki_f16_to_f32(codes[i]);
        }
        check_lanes(v_load_bf16(codes), bf16);
        check_lanes(v_load_f16(codes), f16);
    }
}

void CHECK_OF(every_code_of_8_bits_is_widened, TIER)(void **state) {
    (void)state;
    for (int code = 0; code < 0x100; code += VL) {
        uint8_t codes[VL];
        float e4m3[VL], e5m2[VL], whole[VL];
        for (int i = 0; i < VL; i++) {
            codes[i] = (uint8_t)(code + i);
            e4m3[i] = ejki_e4m3_to_f32(codes[i]);
            e5m2[i] = ejki_e5m2_to_f32(codes[i]);
            whole[i] = (float)(int8_t)codes[i];
        }
        check_lanes(v_load_e4m3(codes), e4m3);
        check_lanes(v_load_e5m2(codes), e5m2);
        check_lanes(v_load_i8(codes), whole);
    }
}

/* Halves take no NaN but one with a lower half of 0. */
static uint32_t for_halves(uint32_t bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bits | 0x400000u) & 0xffff0000u : bits;
}

static void check_narrow(const uint32_t bits[VL]) {
    float values[VL], fit[VL];
    uint16_t bf16[VL], f16[VL], pairs[2 * VL];
    int64_t order[2 * VL];
    for (int i = 0; i < VL; i++) {
        values[i] = float_of(bits[i]);
        fit[i] = float_of(for_halves(bits[i]));
    }
    v_store_bf16(bf16, v_load(values));
    v_store_f16(f16, v_load(values));
    v_narrow_halves(EJK_DTYPE_BF16, false, pairs, v_load(fit), v_sub(v_set1(-0.0f), v_load(fit)));
    v_halves_order(EJK_DTYPE_BF16, order);
    for (int i = 0; i < VL; i++) {
        const uint16_t half = ejki_f32_to_bf16(fit[i]);
        assert_int_equal(bf16[i], ejki_f32_to_bf16(values[i]));
        assert_int_equal(f16[i], ejki_f32_to_f16(values[i]));
        assert_int_equal(pairs[order[i]], half);
        assert_int_equal(pairs[order[VL + i]] & 0x7fff, half & 0x7fff);
    }
}

void CHECK_OF(floats_are_rounded_as_one_by_one, TIER)(void **state) {
    (void)state;
    for (uint64_t at = 0; at <= UINT32_MAX; at += (uint64_t)STEP * VL) {
        uint32_t bits[VL];
        for (uint32_t i = 0; i < VL; i++) bits[i] = (uint32_t)(at + (uint64_t)STEP * i);
        check_narrow(bits);
    }
    for (uint64_t code = 0; code < UINT64_C(1) << 20; code++) {
        const uint32_t low = (uint32_t)(code << 12);
        check_narrow((const uint32_t[VL]){low, low - 1, low + 1, low ^ 0x80000000u});
    }
}

void CHECK_OF(halves_hold_each_element_once, TIER)(void **state) {
    (void)state;
    const ejk_dtype dtypes[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        int64_t order[2 * VL], seen = 0;
        float row[2 * VL], lanes[2 * VL], elements[2 * VL], back[2 * VL],
            streamed[2 * VL] __attribute__((aligned(64)));
        v_halves_order(dtypes[t], order);
        for (int i = 0; i < 2 * VL; i++) {
            seen |= INT64_C(1) << order[i];
            row[i] = (float)(i + 1);
            element_store(dtypes[t], elements, i, row[i]);
        }
        assert_int_equal(seen, (INT64_C(1) << 2 * VL) - 1);
        v_store(lanes, v_widen_half(dtypes[t], elements, 0));
        v_store(lanes + VL, v_widen_half(dtypes[t], elements, 1));
        v_put_in_order(dtypes[t], false, row, 2 * VL);
        assert_memory_equal(row, lanes, sizeof row);
        v_narrow_halves(dtypes[t], false, back, v_load(lanes), v_load(lanes + VL));
        v_narrow_halves(dtypes[t], true, streamed, v_load(lanes), v_load(lanes + VL));
        for (int i = 0; i < 2 * VL; i++) {
            assert_float_equal(element_load(dtypes[t], back, i), (float)(i + 1), 0);
            assert_float_equal(element_load(dtypes[t], streamed, i), (float)(i + 1), 0);
        }
        v_put_in_order(dtypes[t], true, row, 2 * VL);
        for (int i = 0; i < 2 * VL; i++) assert_float_equal(row[i], (float)(i + 1), 0);
    }
}

void CHECK_OF(powers_and_inverses_are_near, TIER)(void **state) {
    (void)state;
    const double bound = 0x1p-13;
    for (int at = -126 * 1024; at < 127 * 1024; at += VL) {
        float exponents[VL], powers[VL], inverses[VL], gates[VL];
        for (int i = 0; i < VL; i++) exponents[i] = (float)(at + i) * 0x1p-10f;
        v_store(powers, v_exp2_short(v_load(exponents)));
        v_store(inverses, v_inverse_near(v_load(powers)));
        v_store(gates, v_sigmoid_of(EJK_DTYPE_BF16, v_load(exponents)));
        for (int i = 0; i < VL; i++) {
            const double power = exp2((double)exponents[i]),
                         gate = 1 / (1 + exp(-(double)exponents[i]));
            assert_true(fabs((double)powers[i] - power) <= bound * power);
            if (exponents[i] < 126)
                assert_true(fabs((double)inverses[i] * (double)powers[i] - 1) <= bound);
            assert_true(fabs((double)gates[i] - gate) <= 2 * bound * gate + 0x1p-126);
        }
    }
    float ends[VL];
    v_store(ends, v_exp2_short(v_set1(-HUGE_VALF)));
    assert_float_equal(ends[0], 0, 0);
    v_store(ends, v_exp2_short(v_set1(HUGE_VALF)));
    assert_float_equal(ends[0], HUGE_VALF, 0);
    v_store(ends, v_inverse_near(v_set1(HUGE_VALF)));
    assert_float_equal(ends[0], 0, 0);
    v_store(ends, v_exp2_short(v_set1(nanf(""))));
    assert_true(isnan(ends[0]));
}
