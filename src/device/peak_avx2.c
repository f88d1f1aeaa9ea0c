/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peak.h"

#if defined(__x86_64__)

/* Registers: 12 accumulators (2 ports x latency 5 need 10), 2 and 1 factors, the 1 negated. */
#define CHAINS    12
#define REGISTERS 16

#define LOAD(n)           "vmovups 32*" #n "(%[data]), %%ymm" #n "\n\t"
#define LOAD4(a, b, c, d) LOAD(a) LOAD(b) LOAD(c) LOAD(d)

#define LOAD_ALL LOAD4(0, 1, 2, 3) LOAD4(4, 5, 6, 7) LOAD4(8, 9, 10, 11) LOAD4(12, 13, 14, 15)

#define ADD(op, n, a, b) op " %%ymm" #b ", %%ymm" #a ", %%ymm" #n "\n\t"
#define ADD4(op, n0, n1, n2, n3, b, gap)                                                           \
    ADD(op, n0, 12, b) gap ADD(op, n1, 13, b)                                                      \
    gap ADD(op, n2, 12, b)                                                                         \
    gap ADD(op, n3, 13, b)
#define STEP(op, b, gap)                                                                           \
    ADD4(op, 0, 1, 2, 3, b, gap) ADD4(op, 4, 5, 6, 7, b, gap) ADD4(op, 8, 9, 10, 11, b, gap)

#define PEAK(name, op, gap)                                                                        \
    static void name(const void *operands, int64_t iterations) {                                   \
        __asm__ volatile(LOAD_ALL EJKI_PEAK_LOOP(STEP(op, 14, gap) STEP(op, 15, gap)) "vzeroupper" \
                         : [left] "+r"(iterations)                                                 \
                         : [data] "r"(operands)                                                    \
                         : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", \
                           "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",    \
                           "xmm15");                                                               \
    }

PEAK(add_f32, "vfmadd231ps", "")
PEAK(add_f64, "vfmadd231pd", "")
PEAK(crowded_f32, "vfmadd231ps", "nop\n\t")

#define SHAPE .registers = REGISTERS, .register_bytes = 32, .negated = 1, .iterations = 2048

const ejki_peak ejki_peak_avx2[2] = {
    {EJK_ISA_AVX2, EJK_DTYPE_F32, add_f32, crowded_f32, SHAPE, .flops = 2 * CHAINS * 8 * 2},
    {EJK_ISA_AVX2, EJK_DTYPE_F64, add_f64, NULL, SHAPE, .flops = 2 * CHAINS * 4 * 2},
};

#endif
