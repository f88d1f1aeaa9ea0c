/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peak.h"

#if defined(__aarch64__)

/* Registers: 24 accumulators (4 ports x latency 4 need 16), 4 and 2 factors, the 2 negated. */
#define CHAINS    24
#define REGISTERS 32

#define LOAD4(a, b, c, d)                                                                          \
    "ld1 {v" #a ".16b, v" #b ".16b, v" #c ".16b, v" #d ".16b}, [%[data]], #64\n\t"

#define LOAD_ALL                                                                                   \
    LOAD4(0, 1, 2, 3)                                                                              \
    LOAD4(4, 5, 6, 7)                                                                              \
    LOAD4(8, 9, 10, 11)                                                                            \
    LOAD4(12, 13, 14, 15)                                                                          \
    LOAD4(16, 17, 18, 19) LOAD4(20, 21, 22, 23) LOAD4(24, 25, 26, 27) LOAD4(28, 29, 30, 31)

#define ADD(lanes, n, a, b) "fmla v" #n "." lanes ", v" #a "." lanes ", v" #b "." lanes "\n\t"
#define ADD4(lanes, n0, n1, n2, n3, b)                                                             \
    ADD(lanes, n0, 24, b) ADD(lanes, n1, 25, b) ADD(lanes, n2, 26, b) ADD(lanes, n3, 27, b)
#define STEP(lanes, b0, b1)                                                                        \
    ADD4(lanes, 0, 1, 2, 3, b0)                                                                    \
    ADD4(lanes, 4, 5, 6, 7, b1)                                                                    \
    ADD4(lanes, 8, 9, 10, 11, b0)                                                                  \
    ADD4(lanes, 12, 13, 14, 15, b1) ADD4(lanes, 16, 17, 18, 19, b0) ADD4(lanes, 20, 21, 22, 23, b1)

#define PEAK(name, lanes)                                                                          \
    static void name(const void *operands, int64_t iterations) {                                   \
        __asm__ volatile(LOAD_ALL EJKI_PEAK_LOOP(STEP(lanes, 28, 29) STEP(lanes, 30, 31))          \
                         : [left] "+r"(iterations), [data] "+r"(operands)                          \
                         :                                                                         \
                         : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8",   \
                           "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18",    \
                           "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",   \
                           "v29", "v30", "v31");                                                   \
    }

PEAK(add_f32, "4s")
PEAK(add_f64, "2d")

#define SHAPE .registers = REGISTERS, .register_bytes = 16, .negated = 2, .iterations = 1024

const ejki_peak ejki_peak_neon[2] = {
    {EJK_ISA_NEON, EJK_DTYPE_F32, add_f32, NULL, SHAPE, .flops = 2 * CHAINS * 4 * 2},
    {EJK_ISA_NEON, EJK_DTYPE_F64, add_f64, NULL, SHAPE, .flops = 2 * CHAINS * 2 * 2},
};

#endif
