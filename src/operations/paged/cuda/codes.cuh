/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches of 8 bits on tensor cores: codes become float16 in registers, which has all of their values; scales come
 * later, into scores and weights. Constant: CODE, the type of the cache.
 */
#ifndef EJKI_PAGED_CUDA_CODES_CUH
#define EJKI_PAGED_CUDA_CODES_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/stored.cuh"

/* Bytes of a row in shared memory; piece c of row r lies at c ^ turn_of(r). */
constexpr __host__ __device__ int coded_pitch(int dim) {
    return round_up(dim, 128);
}
/* So that two pieces of each of four neighbouring rows, or of every other of eight, lie in different banks. That of
 * r ^ s is that of r ^ that of s. */
constexpr __host__ __device__ int turn_of(int row) {
    return (row << 1 & 6) ^ (row & 4 ? 3 : 0);
}
DEVICE u32 coded_piece(u32 rows, int pitch, int row, int piece) {
    return rows + row * pitch + ((piece ^ turn_of(row)) << 4);
}

/* ---- Two at a time ---------------------------------------------------------------------------------- */

/* a * b + c, of both halves; products with powers of 2 are exact, subnormal numbers included. */
DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
    u32 x;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

#if CODE == F8E4M3 && __CUDA_ARCH__ >= 890
#define CONVERTS 1 /* by an instruction */
#else
#define CONVERTS 0
#endif

/* Codes 2 n and 2 n + 1 of a word. */
DEVICE u32 pair_of_codes(u32 word, int n) {
    u32 x;
#if CODE == I8
    /* 1024 + the number + 128. */
    x = __byte_perm(word ^ 0x80808080, 0x64646464, n ? 0x4342 : 0x4140);
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(0x64806480));
#elif CONVERTS
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x) : "h"((u16)(word >> 16 * n)));
#elif CODE == F8E4M3
    /* Exponent and mantissa where those of float16 are, then times what exponents differ by. */
    x = __byte_perm(word, 0, n ? 0x3424 : 0x1404);
    x = fma_pair((x & 0x80008000) | (x >> 1 & 0x3f803f80), 0x5c005c00, 0x80008000);
#else
    x = __byte_perm(word, 0, n ? 0x3424 : 0x1404);
#endif
    return x;
}

/* Sets a bit of 0x80808080 where a code stands for NaN, which elements are made without. */
DEVICE void look_for_nonfinite(u32 word, u32 &seen) {
#if CODE == F8E4M3 && !CONVERTS
    seen |= (word & 0x7f7f7f7f) + 0x01010101;
#endif
}

/* Eight codes in shared memory. */
DEVICE uint2 load_codes(u32 from, u32 &seen) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
    look_for_nonfinite(x.x, seen);
    look_for_nonfinite(x.y, seen);
    return x;
}
DEVICE uint4 elements_of(uint2 codes) {
    return make_uint4(pair_of_codes(codes.x, 0), pair_of_codes(codes.x, 1), pair_of_codes(codes.y, 0),
                      pair_of_codes(codes.y, 1));
}

/* A piece byte by byte. */
DEVICE void copy_codes(u32 to, const u8 *from, bool there) {
    u32 x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < 16; n++)
        if (there) x[n / 4] |= (u32)from[n] << n % 4 * 8;
    store_piece(to, make_uint4(x[0], x[1], x[2], x[3]));
}

#endif
