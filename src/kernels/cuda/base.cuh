/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every kernel starts with: types, elements, and the constants it is compiled for. Those that a kernel's
 * launcher leaves out are off.
 *
 *   ELEMENT    of the tensors: 0 f32, 1 bf16, 2 f16
 *   HEAD_DIM, VALUE_DIM
 *   LAYOUT     of the tokens: EJKI_CUDA_DENSE, EJKI_CUDA_TOKENS or EJKI_CUDA_PADDED
 *   BIAS, MASK, SEGMENTS, SOFT_CAP, DROPOUT   1 = the problem has it
 *   CHUNKED, FUNCTION, POSITIONS                the same of a pattern's limits (problem.cuh)
 *   CELL_QUERIES, CELL_KEYS                   a block of a pattern; 0 = there are no cells
 */
#ifndef EJKI_CUDA_BASE_CUH
#define EJKI_CUDA_BASE_CUH

#include "problem.cuh"

#ifndef LAYOUT
#define LAYOUT EJKI_CUDA_DENSE
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef SEGMENTS
#define SEGMENTS 0
#endif
#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef CHUNKED
#define CHUNKED 0
#endif
#ifndef FUNCTION
#define FUNCTION 0
#endif
#ifndef POSITIONS
#define POSITIONS 0
#endif
#ifndef CELL_KEYS
#define CELL_QUERIES 0
#define CELL_KEYS    0
#endif
#define CELLS     (CELL_KEYS > 0)
#define IRREGULAR (FUNCTION || POSITIONS) /* what rows see does not rise with them */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE  static __device__ __forceinline__
#define NOTHING __int_as_float(0xff800000) /* -inf: the score of what is not visible */
#define LOG2_E  1.4426950408889634f
#define LOG_2   0.6931471805599453f

#if ELEMENT == 0
typedef float element;
#else
typedef u16 element;
#endif

DEVICE int lesser(int a, int b) {
    return a < b ? a : b;
}
DEVICE int larger(int a, int b) {
    return a > b ? a : b;
}
constexpr __host__ __device__ int cdiv(int a, int b) {
    return (a + b - 1) / b;
}
constexpr __host__ __device__ int round_up(int a, int b) {
    return cdiv(a, b) * b;
}

DEVICE float widen(element x) {
#if ELEMENT == 0
    return x;
#elif ELEMENT == 1
    return __int_as_float((u32)x << 16);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#endif
}

DEVICE element narrow(float x) {
#if ELEMENT == 0
    return x;
#elif ELEMENT == 1
    const u32 bits = __float_as_int(x);
    if (x != x) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#endif
}

/* 2^x, 0 for -inf; two units in the last place. */
DEVICE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/*
 * Of a kernel that was launched to overlap with the one before, from sm_90 on: lets the next begin; waits until what
 * comes before is done and can be seen.
 */
DEVICE void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

DEVICE float larger_of_lanes(float x, int lanes) {
    for (int n = lanes / 2; n > 0; n /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, n));
    return x;
}
DEVICE float sum_of_lanes(float x, int lanes) {
    for (int n = lanes / 2; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
    return x;
}

#endif
