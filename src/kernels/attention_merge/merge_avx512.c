/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx512.h"

#define MERGE_TIER          avx512
#define MERGE_NAME          "avx512"
#define MERGE_ISA           EJK_ISA_AVX512
#define MERGE_STREAM(to, v) _mm512_stream_ps((to), (v))
#define MERGE_FENCE()       _mm_sfence()
#define MERGE_HALF(p)       _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define MERGE_BF16(p)                                                                              \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(MERGE_HALF(p)), 16))
#define MERGE_F16(p) _mm512_cvtph_ps(MERGE_HALF(p))
#include "kernels/attention_merge/merge_body.h"
