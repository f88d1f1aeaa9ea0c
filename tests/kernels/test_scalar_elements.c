/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of 16 and 8 bits in the scalar tier's vectors have the bits that tensor/convert.h gives each alone. */
#include "kernels/simd/vec_scalar.h"

#include "kernels/simd/vec_bytes.h"
#include "support/expect.h"
#include "support/float_bits.h"

/* Floats whose bits are a multiple of this, and every tie: 16 and 13 bits are rounded away. */
enum { STEP = 251 };

static void check_lanes(vf got, const float expected[VL]) {
    for (int i = 0; i < VL; i++) assert_int_equal(bits_of(got[i]), bits_of(expected[i]));
}

static void every_code_of_16_bits_is_widened(void **state) {
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

static void every_code_of_8_bits_is_widened(void **state) {
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

static void check_narrow(const uint32_t bits[VL]) {
    float values[VL];
    uint16_t bf16[VL], f16[VL];
    for (int i = 0; i < VL; i++) values[i] = float_of(bits[i]);
    v_store_bf16(bf16, v_load(values));
    v_store_f16(f16, v_load(values));
    for (int i = 0; i < VL; i++) {
        assert_int_equal(bf16[i], ejki_f32_to_bf16(values[i]));
        assert_int_equal(f16[i], ejki_f32_to_f16(values[i]));
    }
}

static void floats_are_rounded_as_one_by_one(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_of_16_bits_is_widened),
        cmocka_unit_test(every_code_of_8_bits_is_widened),
        cmocka_unit_test(floats_are_rounded_as_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
