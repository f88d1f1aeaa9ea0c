/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results below 2^-126 become 0 while a thread walks through decays: a product with a subnormal number, or one that
 * becomes such a number, costs an assist of some 150 cycles on Intel, and what decays passes by them all. Subnormal
 * numbers that come from tensors count as they are. The caller's mode is put back before the thread returns to it.
 */
#ifndef EJKI_SIMD_SUBNORMAL_H
#define EJKI_SIMD_SUBNORMAL_H

#if defined(__SSE__)
#include <xmmintrin.h>

static inline unsigned flush_subnormals(void) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON);
    return mode;
}
static inline void restore_subnormals(unsigned mode) {
    _mm_setcsr(mode);
}
#else
/* Elsewhere they cost nothing. */
static inline unsigned flush_subnormals(void) {
    return 0;
}
static inline void restore_subnormals(unsigned mode) {
    (void)mode;
}
#endif

#endif
