/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of the types that ejk_dtype numbers, as bits, and runs of them read and written at once. bf16 and f16
 * round to nearest, ties to even; NaN stays NaN.
 */
#ifndef EJKI_CUDA_ELEMENT_CUH
#define EJKI_CUDA_ELEMENT_CUH

#define F32  2
#define BF16 3
#define F16  4

#define INFINITY __int_as_float(0x7f800000)

template <int KIND> struct element {
    typedef unsigned short bits;
};
template <> struct element<F32> {
    typedef float bits;
};

__device__ static inline float half_value(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ static inline unsigned short half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ static inline unsigned short bfloat_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

template <int KIND> __device__ static inline float value_of(typename element<KIND>::bits bits) {
    if constexpr (KIND == F32)
        return bits;
    else if constexpr (KIND == BF16)
        return __uint_as_float((unsigned)bits << 16);
    else
        return half_value(bits);
}

template <int KIND> __device__ static inline typename element<KIND>::bits bits_of(float value) {
    if constexpr (KIND == F32)
        return value;
    else if constexpr (KIND == BF16)
        return bfloat_bits(value);
    else
        return half_bits(value);
}

/* LENGTH elements that lie one after the other, aligned to their size together. */
template <int KIND, int LENGTH> struct __align__(sizeof(typename element<KIND>::bits) * LENGTH) run_of {
    typename element<KIND>::bits at[LENGTH];
};

#endif
