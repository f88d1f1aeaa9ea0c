/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx2.h"

#define MERGE_TIER          avx2
#define MERGE_NAME          "avx2"
#define MERGE_ISA           EJK_ISA_AVX2
#define MERGE_STREAM(to, v) _mm256_stream_ps((to), (v))
#define MERGE_FENCE()       _mm_sfence()
#define MERGE_HALF(p)       _mm_loadu_si128((const __m128i *)(const void *)(p))
#define MERGE_BF16(p)                                                                              \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(MERGE_HALF(p)), 16))
#define MERGE_F16(p) _mm256_cvtph_ps(MERGE_HALF(p))
#include "kernels/attention_merge/merge_body.h"
