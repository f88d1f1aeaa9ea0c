/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A processor that has AMX by emulation: programs that this is linked into take it for such a one, with all that
 * follows: which implementations there are, which is preferred, and how it is set. They are skipped where the kernels
 * would find other instructions missing.
 */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

enum { SKIPPED = 77 };

/* The linker puts the second in the place of the first (--wrap). */
void __real_ejki_cpu_add_x86(ejk_cpu_info *cpu, uint32_t signature);
void __wrap_ejki_cpu_add_x86(ejk_cpu_info *cpu, uint32_t signature);
void __wrap_ejki_cpu_add_x86(ejk_cpu_info *cpu, uint32_t signature) {
    __real_ejki_cpu_add_x86(cpu, signature);
    cpu->features |= EJK_FEATURE_AMX_TILE | EJK_FEATURE_AMX_BF16 | EJK_FEATURE_AMX_INT8;
}

/* Before main, which would find nothing to do and call that right. */
static __attribute__((constructor)) void skip(void) {
    if (ejk_cpu()->tiers[EJK_ISA_AMX]) return;
    printf("skipped: this processor lacks AVX512-BF16 or AVX512-VBMI\n");
    exit(SKIPPED);
}
