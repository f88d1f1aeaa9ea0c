/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts of the processor: libcpuinfo's, brought into our words. It checks that the operating system saves
 * the registers of what it reports. A leaf that a hypervisor hides leaves a zero, never a guess.
 */
#define _GNU_SOURCE 1
#include "device/device.h"

#include <cpuinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* More CPUs than any machine has: where growing the mask ends. */
#define MOST_CPUS (1 << 20)

static ejk_cpu_info facts;

int32_t ejki_allowed_cpus(void) {
    for (size_t cpus = CPU_SETSIZE; cpus <= MOST_CPUS; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        /* Fails while the mask is smaller than the kernel's own. */
        int allowed = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (allowed > 0) return allowed;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online <= MOST_CPUS ? (int32_t)online : 1;
}

static const char *vendor_name(enum cpuinfo_vendor vendor) {
    switch (vendor) {
    case cpuinfo_vendor_intel: return "intel";
    case cpuinfo_vendor_amd: return "amd";
    case cpuinfo_vendor_hygon: return "hygon";
    case cpuinfo_vendor_via: return "via";
    case cpuinfo_vendor_arm: return "arm";
    case cpuinfo_vendor_qualcomm: return "qualcomm";
    case cpuinfo_vendor_apple: return "apple";
    case cpuinfo_vendor_samsung: return "samsung";
    case cpuinfo_vendor_nvidia: return "nvidia";
    case cpuinfo_vendor_cavium: return "cavium";
    case cpuinfo_vendor_broadcom: return "broadcom";
    case cpuinfo_vendor_apm: return "apm";
    case cpuinfo_vendor_huawei: return "huawei";
    default: return "unknown";
    }
}

/* Adds a feature where all that it consists of is there. */
static void add(ejk_features feature, bool present) {
    if (present) facts.features |= feature;
}

#if CPUINFO_ARCH_X86_64
static void read_architecture(const struct cpuinfo_core *core) {
    const bool avx2 = cpuinfo_has_x86_avx2() && cpuinfo_has_x86_fma3() && cpuinfo_has_x86_f16c() &&
                      cpuinfo_has_x86_bmi2();
    const bool avx512 = avx2 && cpuinfo_has_x86_avx512f() && cpuinfo_has_x86_avx512bw() &&
                        cpuinfo_has_x86_avx512dq() && cpuinfo_has_x86_avx512vl() &&
                        cpuinfo_has_x86_avx512cd();
    add(EJK_FEATURE_AVX2, avx2);
    add(EJK_FEATURE_AVX512, avx512);
    add(EJK_FEATURE_AVX512_BF16, avx512 && cpuinfo_has_x86_avx512bf16());
    add(EJK_FEATURE_AVX512_VBMI, avx512 && cpuinfo_has_x86_avx512vbmi());
    add(EJK_FEATURE_AVX512_VNNI, avx512 && cpuinfo_has_x86_avx512vnni());
    /* Measured: 0.95 of the rate of multiply-adds on AMD's family 26, a quarter of it on Intel's with AMX. */
    if (!core || core->vendor != cpuinfo_vendor_amd)
        facts.slow = facts.features & EJK_FEATURE_AVX512_BF16;
    ejki_cpu_add_x86(&facts, core ? core->cpuid : 0);
}
#elif CPUINFO_ARCH_ARM64
/* The main ID register: implementer, part, then variant and revision as one number. */
static void read_architecture(const struct cpuinfo_core *core) {
    add(EJK_FEATURE_NEON, cpuinfo_has_arm_neon() && cpuinfo_has_arm_neon_fma());
    add(EJK_FEATURE_NEON_DOT, cpuinfo_has_arm_neon_dot());
    /* libcpuinfo does not report these yet. */
    add(EJK_FEATURE_NEON_I8MM, getauxval(AT_HWCAP2) & HWCAP2_I8MM);
    add(EJK_FEATURE_NEON_BF16, getauxval(AT_HWCAP2) & HWCAP2_BF16);
    add(EJK_FEATURE_SVE, cpuinfo_has_arm_sve());
    if (!core) return;
    facts.family = (int32_t)(core->midr >> 24 & 0xff);
    facts.model = (int32_t)(core->midr >> 4 & 0xfff);
    facts.stepping = (int32_t)((core->midr >> 20 & 0xf) << 4 | (core->midr & 0xf));
}
#else
static void read_architecture(const struct cpuinfo_core *core) {
    (void)core;
}
#endif

static void read_caches(const struct cpuinfo_processor *processor) {
    const struct cpuinfo_cache *l1d = processor->cache.l1d, *l2 = processor->cache.l2,
                               *l3 = processor->cache.l3;
    facts.l1d_bytes = l1d ? l1d->size : 0;
    facts.l2_bytes = l2 ? l2->size : 0;
    facts.l3_bytes = l3 ? l3->size : 0;
    facts.line_bytes = l1d ? l1d->line_size : 0;
}

static void read_facts(void) {
    facts.cores = ejki_allowed_cpus();
    snprintf(facts.name, sizeof facts.name, "unknown");
    snprintf(facts.vendor, sizeof facts.vendor, "unknown");
    if (cpuinfo_initialize()) {
        const struct cpuinfo_processor *processor = cpuinfo_get_processor(0);
        const struct cpuinfo_package *package = cpuinfo_get_package(0);
        const struct cpuinfo_core *core = cpuinfo_get_core(0);
        if (package && package->name[0])
            snprintf(facts.name, sizeof facts.name, "%s", package->name);
        if (core) snprintf(facts.vendor, sizeof facts.vendor, "%s", vendor_name(core->vendor));
        if (processor) read_caches(processor);
        read_architecture(core);
    }
#define TIER(name, number, text, features_, multiplies)                                            \
    facts.tiers[number] = !((ejk_features)(features_) & ~facts.features);                          \
    if (facts.tiers[number] && !((ejk_features)(multiplies)&facts.slow)) facts.isa = EJK_ISA_##name;
    EJK_ISA_LIST(TIER)
#undef TIER
}

const ejk_cpu_info *ejk_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_facts);
    return &facts;
}
