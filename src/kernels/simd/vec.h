/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vectors of the tier that a body is compiled for; kernels/declare.h says where its name comes from. A file of one
 * tier includes its vec_*.h first.
 */
#ifndef EJKI_SIMD_VEC_H
#define EJKI_SIMD_VEC_H

#if defined(EJKI_VEC_H)
#elif defined(EJKI_TIER_SCALAR)
#include "kernels/simd/vec_scalar.h"
#elif defined(EJKI_TIER_NEON)
#include "kernels/simd/vec_neon.h"
#elif defined(EJKI_TIER_AVX2)
#include "kernels/simd/vec_avx2.h"
#elif defined(EJKI_TIER_AVX512)
#include "kernels/simd/vec_avx512.h"
#elif defined(EJKI_TIER_AVX512_VNNI)
#include "kernels/simd/vec_avx512_vnni.h"
#elif defined(EJKI_TIER_AVX512_BF16) || defined(EJKI_TIER_AMX)
#include "kernels/simd/vec_avx512_bf16.h"
#else
#error "no vectors for this tier"
#endif

#endif
