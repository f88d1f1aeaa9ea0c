/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What code without any tier's flags can reach. A compiler may use the vectors that the architecture
 * always has (SSE2 on x86-64), so these are vectors of 16 bytes, and multiply and add are two operations
 * where it lacks one for both.
 *
 * Two steps are x * factor + term and its inverse: nothing stays the same from one iteration to the next, so
 * nothing can be moved out of the loop, and no product needs a register of its own.
 */
#include "device/peak.h"

/* 12 accumulators, factor and term of both directions: the 16 registers of SSE2. Names, not an array,
   which gcc would keep in memory. */
#define CHAINS    12
#define REGISTERS (CHAINS + 2)
#define EACH(X)   X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#define LOAD(n)    vector x##n = data[n];
#define FORTH(n)   x##n = x##n * factor + term;
#define BACK(n)    x##n = x##n * back_factor + back_term;
#define COLLECT(n) sum += x##n;

#define PEAK(name, element)                                                                        \
    static void name(const void *operands, int64_t iterations) {                                   \
        typedef element vector __attribute__((vector_size(16)));                                   \
        const vector *data = operands;                                                             \
        EACH(LOAD)                                                                                 \
        vector factor = data[CHAINS], term = data[CHAINS + 1];                                     \
        vector back_factor = 1 / factor, back_term = -term / factor;                               \
        for (int64_t i = 0; i < iterations; i++) {                                                 \
            EACH(FORTH)                                                                            \
            EACH(BACK)                                                                             \
        }                                                                                          \
        vector sum = {0};                                                                          \
        EACH(COLLECT)                                                                              \
        volatile vector result = sum;                                                              \
        (void)result;                                                                              \
    }

PEAK(add_f32, float)
PEAK(add_f64, double)

#define SHAPE .registers = REGISTERS, .register_bytes = 16, .negated = 0, .iterations = 1024

const ejki_peak ejki_peak_scalar[2] = {
    {EJK_ISA_SCALAR, EJK_DTYPE_F32, add_f32, NULL, SHAPE, .flops = 2 * CHAINS * 4 * 2},
    {EJK_ISA_SCALAR, EJK_DTYPE_F64, add_f64, NULL, SHAPE, .flops = 2 * CHAINS * 2 * 2},
};
