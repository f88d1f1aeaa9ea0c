/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of multiply-adds that never leave the registers, one file per instruction set. They are assembly
 * where the instruction set has one multiply-add instruction, so that no compiler moves a value to
 * memory or drops a result that nobody reads.
 *
 * One step adds a product to each accumulator, the next takes it away again: values stay near where they
 * began, however long the loop, and their bits stay random (equal bits switch fewer gates, which lets
 * some processors clock higher than any real work). Sums of bytes wrap around, and their second factor is the
 * signed one.
 */
#ifndef EJKI_PEAK_H
#define EJKI_PEAK_H

#include <ejkernel/device.h>

typedef struct ejki_peak {
    ejk_isa isa;
    ejk_dtype dtype;
    /* `operands`: `registers` of `register_bytes` each, all of type `dtype`, the last `negated` of them
       the negatives of those before them. */
    void (*run)(const void *operands, int64_t iterations);
    /* The same with instructions that do nothing between them, three for four: of the four a cycle that
       any processor issues it leaves half a one free. NULL = there is no such loop. */
    void (*crowded)(const void *operands, int64_t iterations);
    int32_t registers, register_bytes, negated;
    int32_t iterations; /* about 10 us */
    double flops;       /* of one iteration */
    ejk_features needs; /* besides those of the tier */
} ejki_peak;

/* Room for the operands of any of them. */
#define EJKI_PEAK_OPERAND_BYTES 8192

/* `body`, as often as the operand %[left] says. */
#if defined(__x86_64__)
#define EJKI_PEAK_LOOP(body) ".p2align 6\n1:\n\t" body "dec %[left]\n\tjnz 1b\n\t"
#elif defined(__aarch64__)
#define EJKI_PEAK_LOOP(body) ".p2align 6\n1:\n\t" body "subs %[left], %[left], #1\n\tb.ne 1b\n\t"
#endif

extern const ejki_peak ejki_peak_scalar[2];
extern const ejki_peak ejki_peak_neon[2];
extern const ejki_peak ejki_peak_avx2[2];
extern const ejki_peak ejki_peak_avx512[4];
extern const ejki_peak ejki_peak_amx[2];

#endif
