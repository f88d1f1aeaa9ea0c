/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's facts against what the kernel says of it, names of tiers, EJKERNEL_ISA, fingerprint. */
#define _GNU_SOURCE 1
#include <ejkernel/device.h>

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/child.h"

/* The value of a field of /proc/cpuinfo's first processor, with a space before and after; "" if none. */
static const char *kernel_says(const char *field) {
    static char line[8192], value[8192];
    value[0] = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return value;
    size_t length = strlen(field);
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, field, length) != 0 || !strchr("\t ", line[length])) continue;
        if (strncmp(line, "model name", 10) == 0 && strcmp(field, "model name") != 0) continue;
        snprintf(value, sizeof value, "%s", colon + 1);
        value[strcspn(value, "\n")] = ' ';
        break;
    }
    fclose(file);
    return value;
}

/* True if every one of the words, spaced, is among the kernel's flags. */
static bool flags(const char *words) {
    char copy[128], padded[64];
    snprintf(copy, sizeof copy, "%s", words);
    const char *all = kernel_says("flags");
    for (char *rest = NULL, *word = strtok_r(copy, " ", &rest); word;
         word = strtok_r(NULL, " ", &rest)) {
        snprintf(padded, sizeof padded, " %s ", word);
        if (!strstr(all, padded)) return false;
    }
    return true;
}

static void tiers_are_those_the_kernel_lists(void **state) {
    (void)state;
    if (!*kernel_says("flags")) skip();
    const ejk_cpu_info *cpu = ejk_cpu();
    bool avx2 = flags("avx2 fma f16c bmi2");
    bool avx512 = avx2 && flags("avx512f avx512bw avx512dq avx512vl avx512cd");
    assert_true(cpu->tiers[EJK_ISA_SCALAR]);
    assert_false(cpu->tiers[EJK_ISA_NEON]);
    assert_int_equal(cpu->tiers[EJK_ISA_AVX2], avx2);
    assert_int_equal(cpu->tiers[EJK_ISA_AVX512], avx512);
    const struct {
        ejk_features feature;
        const char *words;
    } features[] = {
        {EJK_FEATURE_AVX512_BF16, "avx512_bf16"},   {EJK_FEATURE_AVX512_FP16, "avx512_fp16"},
        {EJK_FEATURE_AVX512_VBMI, "avx512vbmi"},    {EJK_FEATURE_AVX512_VNNI, "avx512_vnni"},
        {EJK_FEATURE_AMX_TILE, "amx_tile"},         {EJK_FEATURE_AMX_BF16, "amx_tile amx_bf16"},
        {EJK_FEATURE_AMX_INT8, "amx_tile amx_int8"}};
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        assert_int_equal((cpu->features & features[i].feature) != 0,
                         avx512 && flags(features[i].words));
    assert_int_equal(cpu->tiers[EJK_ISA_AVX512_VNNI], avx512 && flags("avx512_vnni"));
    const bool bf16 = avx512 && flags("avx512_bf16");
    assert_int_equal(cpu->tiers[EJK_ISA_AVX512_BF16], bf16);
    assert_int_equal(cpu->slow != 0, bf16 && strcmp(cpu->vendor, "amd") != 0);
    assert_int_equal(cpu->tiers[EJK_ISA_AMX], bf16 && flags("avx512vbmi amx_tile amx_bf16"));
}

static void the_highest_tier_is_the_last_present(void **state) {
    (void)state;
    const ejk_cpu_info *cpu = ejk_cpu();
    assert_true(cpu->tiers[cpu->isa]);
    for (int isa = (int)cpu->isa + 1; isa < 64; isa++)
        assert_true(!cpu->tiers[isa] || (isa == EJK_ISA_AVX512_BF16 && cpu->slow));
    assert_ptr_equal(cpu, ejk_cpu());
}

static void the_model_is_the_kernels(void **state) {
    (void)state;
    if (!*kernel_says("cpu family")) skip();
    const ejk_cpu_info *cpu = ejk_cpu();
    assert_int_equal(cpu->family, atoi(kernel_says("cpu family")));
    assert_int_equal(cpu->model, atoi(kernel_says("model")));
    assert_int_equal(cpu->stepping, atoi(kernel_says("stepping")));
    const char *vendor = kernel_says("vendor_id");
    if (strstr(vendor, "GenuineIntel")) assert_string_equal(cpu->vendor, "intel");
    if (strstr(vendor, "AuthenticAMD")) assert_string_equal(cpu->vendor, "amd");
    assert_true(strlen(cpu->name) > 0);
}

/* Size of the first processor's data cache of a level, from sysfs; 0 if it is not there. */
static long cache_bytes(int level) {
    for (int index = 0; index < 8; index++) {
        char path[96], type[32] = "";
        int found_level = 0;
        long kilobytes = 0;
        const char *names[] = {"level", "type", "size"};
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index,
                     names[i]);
            FILE *file = fopen(path, "r");
            if (!file) return 0;
            int read = i == 0   ? fscanf(file, "%d", &found_level)
                       : i == 1 ? fscanf(file, "%31s", type)
                                : fscanf(file, "%ldK", &kilobytes);
            fclose(file);
            if (read != 1) return 0;
        }
        if (found_level == level && strcmp(type, "Instruction") != 0) return kilobytes * 1024;
    }
    return 0;
}

static void caches_are_those_of_sysfs(void **state) {
    (void)state;
    const ejk_cpu_info *cpu = ejk_cpu();
    if (cache_bytes(1)) assert_int_equal(cpu->l1d_bytes, cache_bytes(1));
    if (cache_bytes(2)) assert_int_equal(cpu->l2_bytes, cache_bytes(2));
    if (cache_bytes(3)) assert_int_equal(cpu->l3_bytes, cache_bytes(3));
    assert_true(cpu->line_bytes >= 0 && cpu->line_bytes <= 256);
}

static void cores_are_the_cpu_set(void **state) {
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(ejk_cpu()->cores, CPU_COUNT(&set));
}

static void names_go_both_ways(void **state) {
    (void)state;
#define BOTH_WAYS(tier, number, text, features, multiplies)                                        \
    {                                                                                              \
        ejk_isa isa = (ejk_isa)-1;                                                                 \
        assert_string_equal(ejk_isa_name(EJK_ISA_##tier), text);                                   \
        assert_int_equal(ejk_isa_from_name(text, &isa), EJK_OK);                                   \
        assert_int_equal(isa, number);                                                             \
    }
    EJK_ISA_LIST(BOTH_WAYS)
    assert_string_equal(ejk_isa_name((ejk_isa)21), "unknown");
    assert_string_equal(ejk_isa_name((ejk_isa)-1), "unknown");
}

/* Tiers are sets: one allows another if it has all of its features. */
static void tiers_allow_what_they_include(void **state) {
    (void)state;
    const ejk_isa lower = EJK_ISA_AVX2, other = EJK_ISA_NEON;
    assert_int_equal(ejk_isa_features(EJK_ISA_SCALAR), 0);
    assert_int_equal(ejk_isa_features((ejk_isa)21), 0);
    assert_true(ejk_isa_allows(EJK_ISA_AVX512, lower));
    assert_true(ejk_isa_allows(EJK_ISA_SCALAR, EJK_ISA_SCALAR));
    assert_false(ejk_isa_allows(EJK_ISA_SCALAR, lower));
    assert_false(ejk_isa_allows(lower, other));
    assert_false(ejk_isa_allows(other, lower));
    assert_false(ejk_isa_allows(EJK_ISA_AVX512, (ejk_isa)21));
    assert_true(ejk_isa_allows(EJK_ISA_AVX512_BF16, EJK_ISA_AVX512_BF16));
    assert_int_equal(ejk_isa_allows(EJK_ISA_AMX, EJK_ISA_AVX512_BF16), ejk_cpu()->slow == 0);
    assert_string_equal(ejk_feature_name(EJK_FEATURE_AMX_INT8), "amx_int8");
    assert_string_equal(ejk_feature_name(0), "unknown");
}

static void unknown_names_are_refused(void **state) {
    (void)state;
    const char *wrong[] = {"", "AVX2", "avx", "avx2 ", "unknown"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ejk_isa isa = EJK_ISA_NEON;
        assert_int_equal(ejk_isa_from_name(wrong[i], &isa), EJK_STATUS_UNKNOWN_NAME);
        assert_int_equal(isa, EJK_ISA_NEON);
#define LISTED(tier, number, text, features, multiplies)                                           \
    assert_non_null(strstr(ejk_last_error(), text));
        EJK_ISA_LIST(LISTED)
    }
    ejk_isa isa;
    assert_int_equal(ejk_isa_from_name(NULL, &isa), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_isa_from_name("avx2", NULL), EJK_STATUS_INVALID_ARGUMENT);
}

struct wish {
    const char *text; /* NULL: not set */
    ejk_isa expected;
    ejk_status status;
};

static bool wish_is_answered(const void *wish_) {
    const struct wish *wish = wish_;
    if (wish->text) setenv("EJKERNEL_ISA", wish->text, 1);
    if (!wish->text) unsetenv("EJKERNEL_ISA");
    return ejk_isa_default() == wish->expected && ejk_isa_environment() == wish->status &&
           (wish->status == EJK_OK || strstr(ejk_last_error(), wish->text));
}

static void the_environment_caps_the_default(void **state) {
    (void)state;
    const ejk_cpu_info *cpu = ejk_cpu();
    struct wish general[] = {
        {NULL, cpu->isa, EJK_OK},
        {"", cpu->isa, EJK_OK},
        {"sse9", cpu->isa, EJK_STATUS_UNKNOWN_NAME},
        {"SCALAR", cpu->isa, EJK_STATUS_UNKNOWN_NAME},
    };
    for (size_t i = 0; i < sizeof general / sizeof general[0]; i++)
        assert_true(holds_in_child(wish_is_answered, &general[i]));
#define NAMED(tier, number, name, features, multiplies)                                            \
    {                                                                                              \
        bool present = cpu->tiers[number];                                                         \
        struct wish wish = {name, present ? EJK_ISA_##tier : cpu->isa,                             \
                            present ? EJK_OK : EJK_STATUS_UNAVAILABLE};                            \
        assert_true(holds_in_child(wish_is_answered, &wish));                                      \
    }
    EJK_ISA_LIST(NAMED)
}

static bool fingerprint_is(const void *expected) {
    setenv("EJKERNEL_ISA", "scalar", 1);
    return strcmp(ejk_device_fingerprint(), expected) == 0;
}

static void the_fingerprint_follows_its_grammar(void **state) {
    (void)state;
    const ejk_cpu_info *cpu = ejk_cpu();
    /* In a child first, where it is built under a cap that must not show. */
    char expected[128];
    snprintf(expected, sizeof expected, "cpu|%s %d.%d.%d; %s; %d cores", cpu->vendor, cpu->family,
             cpu->model, cpu->stepping, ejk_isa_name(cpu->isa), cpu->cores);
    assert_true(holds_in_child(fingerprint_is, expected));
    const char *line = ejk_device_fingerprint();
    assert_string_equal(line, expected);
    assert_ptr_equal(strchr(line, '|'), strrchr(line, '|'));
    assert_null(strpbrk(line, "\r\n"));
    assert_ptr_equal(line, ejk_device_fingerprint());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_are_those_the_kernel_lists),
        cmocka_unit_test(the_highest_tier_is_the_last_present),
        cmocka_unit_test(the_model_is_the_kernels),
        cmocka_unit_test(caches_are_those_of_sysfs),
        cmocka_unit_test(cores_are_the_cpu_set),
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(tiers_allow_what_they_include),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(the_environment_caps_the_default),
        cmocka_unit_test(the_fingerprint_follows_its_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
