/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attention_merge and its gradients in vectors share: blocks of rows of some heads, and results that are written
 * past the caches. MERGE_STREAM(address, vector) does so for whole vectors at multiples of their size,
 * MERGE_STREAM_HALF(address, bits) for VL elements of 16 bits likewise; neither exists where the processor cannot.
 */
#ifndef EJKI_MERGE_BLOCK_H
#define EJKI_MERGE_BLOCK_H

#include "kernels/simd/vec.h"

#include "base/base.h"
#include "operations/attention/merge/merge_row.h"
#include "kernels/simd/vec_element.h"

#include "kernels/declare.h"

#define LOG2E 1.4426950408889634f
/* Rows of a task, heads of a task, vectors of a row at a time, and how many bytes ahead parts are prefetched. */
enum { ROWS = 16, HEADS = 16, AT_ONCE = 4, AHEAD = 1024 };
/* Results of more bytes than this are written past the caches. */
#define STREAMED (INT64_C(1) << 20)

_Static_assert(ROWS % VL == 0, "whole vectors of rows");

#if defined(EJKI_TIER_AVX512)
#define MERGE_STREAM(to, v) _mm512_stream_ps((to), (v))
#define MERGE_STREAM_HALF(to, bits)                                                                \
    _mm256_stream_si256((to), _mm256_loadu_si256((const __m256i *)(const void *)(bits)))
#define MERGE_FENCE() _mm_sfence()
#elif defined(EJKI_TIER_AVX2)
#define MERGE_STREAM(to, v) _mm256_stream_ps((to), (v))
#define MERGE_STREAM_HALF(to, bits)                                                                \
    _mm_stream_si128((to), _mm_loadu_si128((const __m128i *)(const void *)(bits)))
#define MERGE_FENCE() _mm_sfence()
#endif

/* A whole vector as elements, past the caches if that was decided and the place allows it. */
static inline __attribute__((always_inline)) void put(const ejk_dtype dtype, void *to, vf v,
                                                      bool streams) {
#ifdef MERGE_STREAM
    if (streams) {
        if (dtype == EJK_DTYPE_F32) {
            MERGE_STREAM(to, v);
        } else {
            uint16_t bits[VL];
            v_narrow(dtype, bits, v);
            MERGE_STREAM_HALF(to, bits);
        }
        return;
    }
#else
    (void)streams;
#endif
    v_narrow(dtype, to, v);
}

/* True if elements of this type at `to` may be written so. */
static inline bool may_stream(ejk_dtype dtype, const void *to, bool wanted) {
    return wanted && (uintptr_t)to % (uintptr_t)(VL * element_size(dtype)) == 0;
}

static int64_t row_blocks(const ejki_merge_problem *p) {
    return ejki_cdiv(p->queries, ROWS);
}
static int64_t head_blocks(const ejki_merge_problem *p) {
    return ejki_cdiv(p->heads, HEADS);
}

#endif
