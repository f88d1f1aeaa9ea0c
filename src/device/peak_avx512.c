/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peak.h"

#if defined(__x86_64__)

/* Registers: 24 accumulators (2 ports x latency 4 need 8), 4 and 2 factors, the 2 negated. */
#define CHAINS    24
#define REGISTERS 32

#define LOAD(n)           "vmovups 64*" #n "(%[data]), %%zmm" #n "\n\t"
#define LOAD4(a, b, c, d) LOAD(a) LOAD(b) LOAD(c) LOAD(d)

#define LOAD_ALL                                                                                   \
    LOAD4(0, 1, 2, 3)                                                                              \
    LOAD4(4, 5, 6, 7)                                                                              \
    LOAD4(8, 9, 10, 11)                                                                            \
    LOAD4(12, 13, 14, 15)                                                                          \
    LOAD4(16, 17, 18, 19) LOAD4(20, 21, 22, 23) LOAD4(24, 25, 26, 27) LOAD4(28, 29, 30, 31)

#define ADD(op, n, a, b) op " %%zmm" #b ", %%zmm" #a ", %%zmm" #n "\n\t"
#define ADD4(op, n0, n1, n2, n3, b, gap)                                                           \
    ADD(op, n0, 24, b) gap ADD(op, n1, 25, b)                                                      \
    gap ADD(op, n2, 26, b)                                                                         \
    gap ADD(op, n3, 27, b)
#define STEP(op, b0, b1, gap)                                                                      \
    ADD4(op, 0, 1, 2, 3, b0, gap)                                                                  \
    ADD4(op, 4, 5, 6, 7, b1, gap)                                                                  \
    ADD4(op, 8, 9, 10, 11, b0, gap)                                                                \
    ADD4(op, 12, 13, 14, 15, b1, gap)                                                              \
    ADD4(op, 16, 17, 18, 19, b0, gap) ADD4(op, 20, 21, 22, 23, b1, gap)

#define PEAK(name, op, gap)                                                                        \
    static void name(const void *operands, int64_t iterations) {                                   \
        __asm__ volatile(                                                                          \
            LOAD_ALL EJKI_PEAK_LOOP(STEP(op, 28, 29, gap) STEP(op, 30, 31, gap)) "vzeroupper"      \
            : [left] "+r"(iterations)                                                              \
            : [data] "r"(operands)                                                                 \
            : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",      \
              "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16",       \
              "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",     \
              "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");                               \
    }

PEAK(add_f32, "vfmadd231ps", "")
PEAK(add_f64, "vfmadd231pd", "")
PEAK(add_bf16, "vdpbf16ps", "")
PEAK(add_i8, "vpdpbusd", "")
PEAK(crowded_f32, "vfmadd231ps", "nop\n\t")

#define SHAPE .registers = REGISTERS, .register_bytes = 64, .negated = 2, .iterations = 1024

/* Two steps of an accumulation each; a register holds 32 factors of bf16, or 64 of a byte. */
const ejki_peak ejki_peak_avx512[4] = {
    {EJK_ISA_AVX512, EJK_DTYPE_F32, add_f32, crowded_f32, SHAPE, .flops = 2 * CHAINS * 16 * 2},
    {EJK_ISA_AVX512, EJK_DTYPE_F64, add_f64, NULL, SHAPE, .flops = 2 * CHAINS * 8 * 2},
    {EJK_ISA_AVX512_VNNI, EJK_DTYPE_I8, add_i8, NULL, SHAPE, .flops = 2 * CHAINS * 64 * 2},
    {EJK_ISA_AVX512_BF16, EJK_DTYPE_BF16, add_bf16, NULL, SHAPE, .flops = 2 * CHAINS * 32 * 2},
};

#endif
