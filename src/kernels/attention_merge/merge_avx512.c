/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx512.h"

#define MERGE_TIER          avx512
#define MERGE_NAME          "avx512"
#define MERGE_ISA           EJK_ISA_AVX512
#define MERGE_STREAM(to, v) _mm512_stream_ps((to), (v))
#define MERGE_STREAM_HALF(to, bits)                                                                \
    _mm256_stream_si256((to), _mm256_loadu_si256((const __m256i *)(const void *)(bits)))
#define MERGE_FENCE() _mm_sfence()
#include "kernels/attention_merge/merge_body.h"
