/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every kernel starts with: integer types, element types, and small functions of scalars and lanes.
 *
 * Element types have the numbers of ejk_dtype. A kernel is compiled for ELEMENT; one with several types uses
 * value_of<TYPE>() and bits_of<TYPE>(). bf16 and f16 round to nearest, ties to even; NaN stays NaN.
 */
#ifndef EJKI_CUDA_ELEMENT_CUH
#define EJKI_CUDA_ELEMENT_CUH

#define F32  2
#define BF16 3
#define F16  4

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE        static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

#define INFINITY __int_as_float(0x7f800000)
#define NEG_INF  __int_as_float(0xff800000)
#define LOG2_E   1.4426950408889634f
#define LOG_2    0.6931471805599453f

/* ---- Scalars ---------------------------------------------------------------------------------------- */

DEVICE int lesser(int a, int b) {
    return a < b ? a : b;
}
DEVICE int larger(int a, int b) {
    return a > b ? a : b;
}
DEVICE int clamped(i64 value, int high) {
    return (int)(value < 0 ? 0 : value > high ? high : value);
}
constexpr __host__ __device__ int cdiv(int a, int b) {
    return (a + b - 1) / b;
}
constexpr __host__ __device__ int round_up(int a, int b) {
    return cdiv(a, b) * b;
}

/* 2^x, 0 for -inf; two units in the last place. */
DEVICE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / (1 + e^-x), three units in the last place. */
DEVICE float logistic(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + power_of_2(-x * LOG2_E)));
    return y;
}

/*
 * e^x within 0.7 ulp: expf is off by up to twice as much, and the same way for decays that are the same at all
 * tokens, so that its error would grow with their number.
 */
DEVICE float exp_of(float x) {
    if (x < -104) return 0;
    if (x > 89) return INFINITY;
    const float n = rintf(x * LOG2_E), r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float y = 1 / 5040.0f;
    y = fmaf(y, r, 1 / 720.0f);
    y = fmaf(y, r, 1 / 120.0f);
    y = fmaf(y, r, 1 / 24.0f);
    y = fmaf(y, r, 1 / 6.0f);
    y = fmaf(y, r, 0.5f);
    y = 1 + fmaf(r * r, y, r);
    /* In two steps, so that what is below the normal numbers is rounded once. */
    const int half = (int)n / 2, rest = (int)n - half;
    return y * __int_as_float((half + 127) << 23) * __int_as_float((rest + 127) << 23);
}

/* Sum of `count` numbers `step` apart, in their order, with the loads of many under way. */
DEVICE float sum_in_order(const float *at, i64 count, i64 step) {
    constexpr int WAY = 32;
    float sum = 0;
    for (i64 n = 0; n < count; n += WAY) {
        float values[WAY];
#pragma unroll
        for (int k = 0; k < WAY; k++) values[k] = n + k < count ? at[(n + k) * step] : 0;
#pragma unroll
        for (int k = 0; k < WAY; k++)
            if (n + k < count) sum += values[k];
    }
    return sum;
}

/* ---- Elements --------------------------------------------------------------------------------------- */

template <int TYPE> struct element_of {
    typedef u16 bits;
};
template <> struct element_of<F32> {
    typedef float bits;
};

template <int TYPE> DEVICE float value_of(typename element_of<TYPE>::bits bits) {
    if constexpr (TYPE == F32) {
        return bits;
    } else if constexpr (TYPE == BF16) {
        return __int_as_float((u32)bits << 16);
    } else {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
}

template <int TYPE> DEVICE typename element_of<TYPE>::bits bits_of(float value) {
    if constexpr (TYPE == F32) {
        return value;
    } else if constexpr (TYPE == BF16) {
#if __CUDA_ARCH__ >= 800
        u16 rounded;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
        return rounded;
#else
        const u32 bits = __float_as_int(value);
        if (value != value) return (u16)(bits >> 16 | 0x40);
        return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
    } else {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
}

/* Of a type that is known only at run time, one of the three; a branch on it is the same for all threads. */
DEVICE float load_float(int type, const void *data, i64 index) {
    if (type == F32) return ((const float *)data)[index];
    if (type == BF16) return value_of<BF16>(((const u16 *)data)[index]);
    return value_of<F16>(((const u16 *)data)[index]);
}
DEVICE void store_float(int type, void *data, i64 index, float value) {
    if (type == F32)
        ((float *)data)[index] = value;
    else if (type == BF16)
        ((u16 *)data)[index] = bits_of<BF16>(value);
    else
        ((u16 *)data)[index] = bits_of<F16>(value);
}

/* LENGTH elements one after the other, aligned to their size together. */
template <int TYPE, int LENGTH> struct __align__(sizeof(typename element_of<TYPE>::bits) * LENGTH) run_of {
    typename element_of<TYPE>::bits at[LENGTH];
};

#ifdef ELEMENT
typedef element_of<ELEMENT>::bits element;

DEVICE float widen(element x) {
    return value_of<ELEMENT>(x);
}
DEVICE element narrow(float x) {
    return bits_of<ELEMENT>(x);
}
#endif

/* ---- Lanes ------------------------------------------------------------------------------------------ */

/* Reductions over groups of `lanes` neighbouring lanes of a whole warp; every lane gets the result. */
DEVICE float larger_of_lanes(float x, int lanes) {
    for (int n = lanes / 2; n > 0; n /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, n));
    return x;
}
DEVICE float sum_of_lanes(float x, int lanes) {
    for (int n = lanes / 2; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
    return x;
}

/* ---- Programmatic dependent launch ------------------------------------------------------------------ */

/* From sm_90 on: lets the next kernel of the stream begin; waits for the one before and its stores. */
DEVICE void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif
