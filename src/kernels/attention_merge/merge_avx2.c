/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx2.h"

#define MERGE_TIER          avx2
#define MERGE_NAME          "avx2"
#define MERGE_ISA           EJK_ISA_AVX2
#define MERGE_STREAM(to, v) _mm256_stream_ps((to), (v))
#define MERGE_STREAM_HALF(to, bits)                                                                \
    _mm_stream_si128((to), _mm_loadu_si128((const __m128i *)(const void *)(bits)))
#define MERGE_FENCE() _mm_sfence()
#include "kernels/attention_merge/merge_body.h"
