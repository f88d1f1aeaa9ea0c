/* SPDX-License-Identifier: Apache-2.0 */
/* What libcpuinfo does not report yet: AMX, for which Linux wants to be asked, AVX512-FP16 and AVX-VNNI. */
#include "device/device.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Leaf 7, sub-leaf 0, EDX. */
#define AMX_BF16_BIT    (1u << 22)
#define AVX512_FP16_BIT (1u << 23)
#define AMX_TILE_BIT    (1u << 24)
#define AMX_INT8_BIT    (1u << 25)
/* Leaf 7, sub-leaf 1, EAX. */
#define AVX_VNNI_BIT (1u << 4)
/* Leaf 1, ECX. */
#define OSXSAVE_BIT (1u << 27)
/* XCR0: the tiles' configuration and the tiles themselves. */
#define XCR0_TILES (3u << 17)
/* Linux: permission to use a state component that makes signal frames large. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA  18

/* The register states that the operating system saves; 0 where it does not say. */
static uint32_t saved_states(void) {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & OSXSAVE_BIT)) return 0;
    __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

static bool tiles_permitted(void) {
    return (saved_states() & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

/* Family, model and stepping, packed as in EAX of leaf 1. */
static void read_signature(ejk_cpu_info *cpu, uint32_t signature) {
    uint32_t family = signature >> 8 & 0xf, model = signature >> 4 & 0xf;
    if (family == 6 || family == 15) model |= (signature >> 16 & 0xf) << 4;
    if (family == 15) family += signature >> 20 & 0xff;
    cpu->family = (int32_t)family;
    cpu->model = (int32_t)model;
    cpu->stepping = (int32_t)(signature & 0xf);
}

void ejki_cpu_add_x86(ejk_cpu_info *cpu, uint32_t signature) {
    uint32_t eax = 0, ebx, ecx, edx;
    if (!signature && __get_cpuid(1, &eax, &ebx, &ecx, &edx)) signature = eax;
    read_signature(cpu, signature);
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;
    if (cpu->features & EJK_FEATURE_AVX512) {
        if (edx & AVX512_FP16_BIT) cpu->features |= EJK_FEATURE_AVX512_FP16;
        if ((edx & AMX_TILE_BIT) && tiles_permitted()) {
            cpu->features |= EJK_FEATURE_AMX_TILE;
            if (edx & AMX_BF16_BIT) cpu->features |= EJK_FEATURE_AMX_BF16;
            if (edx & AMX_INT8_BIT) cpu->features |= EJK_FEATURE_AMX_INT8;
        }
    }
    if ((cpu->features & EJK_FEATURE_AVX2) && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
        (eax & AVX_VNNI_BIT))
        cpu->features |= EJK_FEATURE_AVX_VNNI;
}

#endif
