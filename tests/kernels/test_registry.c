/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/registry/builtin.h"
#include "support/expect.h"

#include <ejkernel/registry.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static ejk_status nothing(const ejk_run *run) {
    (void)run;
    return EJK_OK;
}

static bool even(const void *problem) {
    return *(const int *)problem % 2 == 0;
}

/* A sound implementation to start from. */
static ejk_implementation sound(const char *algorithm, const char *name, ejk_platform platform) {
    return (ejk_implementation){
        .algorithm = algorithm, .name = name, .platform = platform, .run = nothing};
}

/* A tier that no processor has beside those of its own architecture. */
#if defined(__aarch64__)
#define FOREIGN EJK_ISA_AVX2
#else
#define FOREIGN EJK_ISA_NEON
#endif

static int setup(void **state) {
    return ejk_registry_create((ejk_registry **)state) != EJK_OK;
}

static int teardown(void **state) {
    ejk_registry_destroy(*state);
    return 0;
}

static void add(ejk_registry *registry, ejk_implementation e) {
    EXPECT_OK(ejk_registry_register(registry, &e));
}

/* The name of what a query finds; NULL, and the status, if it finds nothing. */
static const char *found(const ejk_registry *registry, ejk_query query, ejk_status *status) {
    const ejk_implementation *e = NULL;
    *status = ejk_registry_get(registry, &query, &e);
    return *status == EJK_OK ? e->name : NULL;
}

#define EXPECT_FOUND(name_, registry, ...)                                                         \
    do {                                                                                           \
        ejk_status status_;                                                                        \
        const char *got_ = found((registry), (ejk_query){__VA_ARGS__}, &status_);                  \
        if (!got_) fail_msg("expected %s, got: %s", (name_), ejk_last_error());                    \
        assert_string_equal(got_, (name_));                                                        \
    } while (0)

#define EXPECT_NOT_FOUND(status, words, registry, ...)                                             \
    do {                                                                                           \
        const ejk_implementation untouched_, *out_ = &untouched_;                                  \
        const ejk_query query_ = {__VA_ARGS__};                                                    \
        EXPECT_FAIL(status, words, ejk_registry_get((registry), &query_, &out_));                  \
        assert_ptr_equal(out_, &untouched_);                                                       \
    } while (0)

static void names_are_read_and_written(void **state) {
    (void)state;
    ejk_platform platform = EJK_PLATFORM_PALLAS;
    ejk_backend backend = EJK_BACKEND_TPU;
#define PLATFORM(name, number, text)                                                               \
    assert_string_equal(ejk_platform_name(EJK_PLATFORM_##name), text);                             \
    EXPECT_OK(ejk_platform_from_name(text, &platform));                                            \
    assert_int_equal(platform, number);
    EJK_PLATFORM_LIST(PLATFORM)
#define BACKEND(name, number, text)                                                                \
    assert_string_equal(ejk_backend_name(EJK_BACKEND_##name), text);                               \
    EXPECT_OK(ejk_backend_from_name(text, &backend));                                              \
    assert_int_equal(backend, number);
    EJK_BACKEND_LIST(BACKEND)

    EXPECT_OK(ejk_platform_from_name("SimD", &platform));
    assert_int_equal(platform, EJK_PLATFORM_SIMD);
    EXPECT_FAIL(UNKNOWN_NAME, "auto reference simd cuda xla triton pallas",
                ejk_platform_from_name("simd ", &platform));
    EXPECT_FAIL(UNKNOWN_NAME, "any cpu gpu tpu", ejk_backend_from_name("npu", &backend));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_platform_from_name(NULL, &platform));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_backend_from_name(NULL, &backend));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_platform_from_name("simd", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_backend_from_name("cpu", NULL));
    assert_int_equal(platform, EJK_PLATFORM_SIMD);
    assert_int_equal(backend, EJK_BACKEND_TPU);

    EXPECT_OK(ejk_platform_from_name("", &platform));
    EXPECT_OK(ejk_backend_from_name("", &backend));
    assert_int_equal(platform, EJK_PLATFORM_AUTO);
    assert_int_equal(backend, EJK_BACKEND_ANY);
    assert_string_equal(ejk_platform_name((ejk_platform)99), "unknown");
    assert_string_equal(ejk_backend_name((ejk_backend)-1), "unknown");
}

static void unsound_implementations_are_refused(void **state) {
    ejk_registry *registry = *state;
    ejk_parameter p = {.name = "size", .minimum = 2, .maximum = 10, .step = 4, .fallback = 6};
    ejk_implementation e;
#define REFUSED(words, change)                                                                     \
    e = sound("a", "x", EJK_PLATFORM_SIMD);                                                        \
    e.parameters = &p;                                                                             \
    e.parameter_count = 1;                                                                         \
    change;                                                                                        \
    EXPECT_FAIL(INVALID_ARGUMENT, words, ejk_registry_register(registry, &e));                     \
    assert_int_equal(ejk_registry_count(registry), 0)

    REFUSED("algorithm", e.algorithm = NULL);
    REFUSED("algorithm", e.algorithm = "");
    REFUSED("name", e.name = NULL);
    REFUSED("name", e.name = "");
    REFUSED("run", e.run = NULL);
    REFUSED("platform", e.platform = EJK_PLATFORM_AUTO);
    REFUSED("platform", e.platform = (ejk_platform)77);
    REFUSED("backend", e.backend = (ejk_backend)4);
    REFUSED("isa", e.isa = (ejk_isa)64);
    REFUSED("isa", e.isa = (ejk_isa)-1);
    REFUSED("dtype", e.dtype = (ejk_dtype)1000);
    REFUSED("parameters", e.parameter_count = -1);
    REFUSED("parameters", e.parameter_count = EJK_MAX_PARAMETERS + 1);
    REFUSED("no list", e.parameters = NULL);
    REFUSED("no name", p.name = NULL);
    REFUSED("no name", p.name = "");
    p.name = "size";
    REFUSED("minimum 11", p.minimum = 11);
    p.minimum = 2;
    REFUSED("step 0", p.step = 0);
    REFUSED("step -4", p.step = -4);
    p.step = 4;
    REFUSED("fallback 1", p.fallback = 1);
    REFUSED("fallback 11", p.fallback = 11);
    REFUSED("fallback 7", p.fallback = 7);
    p.fallback = 6;
    const ejk_parameter twice[] = {p, {.name = "SIZE", .step = 1}};
    REFUSED("two parameters", (e.parameters = twice, e.parameter_count = 2));
    const ejk_candidate good = {{0}}, bad = {{7}};
    REFUSED("candidates", (e.candidates = &good, e.candidate_count = -1));
    REFUSED("no list", e.candidate_count = 1);
    REFUSED("size = 7", (e.candidates = &bad, e.candidate_count = 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "implementation", ejk_registry_register(registry, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "registry", ejk_registry_register(NULL, &e));

    /* The widest bounds there are: distances do not overflow. */
    p = (ejk_parameter){"size", INT64_MIN, INT64_MAX, 1, INT64_MAX, ""};
    e = sound("a", "x", EJK_PLATFORM_SIMD);
    e.parameters = &p;
    e.parameter_count = 1;
    e.candidates = &good;
    e.candidate_count = 1;
    EXPECT_OK(ejk_registry_register(registry, &e));
}

static void a_name_is_taken_once(void **state) {
    ejk_registry *registry = *state;
    ejk_implementation e = sound("attention", "f32/row", EJK_PLATFORM_SIMD);
    EXPECT_OK(ejk_registry_register(registry, &e));
    e.run = NULL; /* the registry has its own copy */
    const ejk_implementation *entry = ejk_registry_entry(registry, 0);
    assert_true(entry->run == nothing);

    e = sound("ATTENTION", "F32/Row", EJK_PLATFORM_REFERENCE);
    EXPECT_FAIL(INVALID_ARGUMENT, "already", ejk_registry_register(registry, &e));
    assert_int_equal(ejk_registry_count(registry), 1);
    add(registry, sound("attention_merge", "f32/row", EJK_PLATFORM_SIMD));
    assert_int_equal(ejk_registry_count(registry), 2);
    assert_ptr_equal(ejk_registry_entry(registry, 0), entry);
    assert_string_equal(ejk_registry_entry(registry, 1)->algorithm, "attention_merge");
    assert_null(ejk_registry_entry(registry, 2));
    assert_null(ejk_registry_entry(registry, -1));
    assert_null(ejk_registry_entry(NULL, 0));
    assert_int_equal(ejk_registry_count(NULL), 0);
}

static void auto_tries_simd_then_reference(void **state) {
    ejk_registry *registry = *state;
    ejk_implementation e = sound("a", "reference", EJK_PLATFORM_REFERENCE);
    e.priority = 100;
    add(registry, e);
    add(registry, sound("a", "cuda", EJK_PLATFORM_CUDA));
    EXPECT_FOUND("reference", registry, .algorithm = "A");
    e = sound("a", "simd", EJK_PLATFORM_SIMD);
    e.applicable = even;
    add(registry, e);
    const int odd = 1, two = 2;
    EXPECT_FOUND("simd", registry, .algorithm = "a");
    EXPECT_FOUND("simd", registry, .algorithm = "a", .problem = &two);
    EXPECT_FOUND("reference", registry, .algorithm = "a", .problem = &odd);
    EXPECT_FOUND("reference", registry, .algorithm = "a", .platform = EJK_PLATFORM_REFERENCE);
    EXPECT_FOUND("cuda", registry, .algorithm = "a", .platform = EJK_PLATFORM_CUDA);
    EXPECT_NOT_FOUND(UNAVAILABLE, "for this problem", registry, .algorithm = "a",
                     .platform = EJK_PLATFORM_SIMD, .problem = &odd);
    /* On a GPU auto means cuda and nothing else; the reference is there for those who name it. */
    EXPECT_FOUND("cuda", registry, .algorithm = "a", .backend = EJK_BACKEND_GPU);
    EXPECT_FOUND("reference", registry, .algorithm = "a", .backend = EJK_BACKEND_GPU,
                 .platform = EJK_PLATFORM_REFERENCE);
    EXPECT_NOT_FOUND(UNAVAILABLE, "platform auto", registry, .algorithm = "a",
                     .backend = EJK_BACKEND_TPU);
}

static void what_is_experimental_is_taken_when_asked_for(void **state) {
    ejk_registry *registry = *state;
    const ejk_query query = {.algorithm = "a"};
    const ejk_implementation *found_now = NULL;
    char why[128];
    ejk_implementation e = sound("a", "new", EJK_PLATFORM_REFERENCE);
    e.priority = 9;
    e.experimental = true;
    add(registry, e);
    EXPECT_NOT_FOUND(UNAVAILABLE, "these exist: reference new", registry, .algorithm = "a");
    add(registry, sound("a", "old", EJK_PLATFORM_REFERENCE));
    EXPECT_FOUND("old", registry, .algorithm = "a");
    assert_int_equal(setenv("EJKERNEL_EXPERIMENTAL", "1", 1), 0);
    EXPECT_FOUND("new", registry, .algorithm = "a");
    EXPECT_OK(ejk_registry_get(registry, &query, &found_now));
    assert_int_equal(setenv("EJKERNEL_EXPERIMENTAL", "0", 1), 0);
    EXPECT_FOUND("old", registry, .algorithm = "a");
    EXPECT_OK(ejk_registry_explain(&query, found_now, why, sizeof why));
    assert_string_equal(why, "is experimental: only if EJKERNEL_EXPERIMENTAL is 1");
    assert_int_equal(unsetenv("EJKERNEL_EXPERIMENTAL"), 0);
}

static void preference_is_priority_then_tier_then_order(void **state) {
    ejk_registry *registry = *state;
    const ejk_isa best = ejk_cpu()->isa;
    ejk_implementation e = sound("a", "first", EJK_PLATFORM_SIMD);
    add(registry, e);
    add(registry, sound("a", "second", EJK_PLATFORM_SIMD));
    EXPECT_FOUND("first", registry, .algorithm = "a", .isa = best);
    if (best != EJK_ISA_SCALAR) {
        e = sound("a", "tier", EJK_PLATFORM_SIMD);
        e.isa = best;
        add(registry, e);
        EXPECT_FOUND("tier", registry, .algorithm = "a", .isa = best);
        EXPECT_FOUND("first", registry, .algorithm = "a", .isa = EJK_ISA_SCALAR);
    }
    e = sound("a", "foreign", EJK_PLATFORM_SIMD);
    e.isa = FOREIGN;
    e.priority = 9;
    add(registry, e);
    e = sound("a", "prior", EJK_PLATFORM_SIMD);
    e.priority = 1;
    add(registry, e);
    e = sound("a", "late", EJK_PLATFORM_SIMD);
    e.priority = -1;
    add(registry, e);
    EXPECT_FOUND("prior", registry, .algorithm = "a", .isa = EJK_ISA_AMX);

    const ejk_implementation *list[8] = {NULL};
    int32_t count = -1;
    EXPECT_OK(ejk_registry_list_implementations(registry, "A", list, 8, &count));
    const char *const with_tier[] = {"foreign", "prior", "tier", "first", "second", "late"};
    assert_int_equal(count, best == EJK_ISA_SCALAR ? 5 : 6);
    for (int32_t i = 0, j = 0; i < count; i++, j++) {
        if (j == 2 && best == EJK_ISA_SCALAR) j++;
        assert_string_equal(list[i]->name, with_tier[j]);
    }
    const ejk_implementation *short_list[3] = {NULL};
    EXPECT_OK(ejk_registry_list_implementations(registry, "a", short_list, 2, &count));
    assert_ptr_equal(short_list[0], list[0]);
    assert_ptr_equal(short_list[1], list[1]);
    assert_null(short_list[2]);
    assert_true(count > 2);
}

static void types_and_backends_fit(void **state) {
    ejk_registry *registry = *state;
    ejk_implementation e = sound("a", "f32", EJK_PLATFORM_SIMD);
    e.dtype = EJK_DTYPE_F32;
    e.backend = EJK_BACKEND_CPU;
    add(registry, e);
    EXPECT_FOUND("f32", registry, .algorithm = "a");
    EXPECT_FOUND("f32", registry, .algorithm = "a", .dtype = EJK_DTYPE_F32,
                 .backend = EJK_BACKEND_CPU);
    EXPECT_NOT_FOUND(UNAVAILABLE, "bfloat16", registry, .algorithm = "a", .dtype = EJK_DTYPE_BF16);
    EXPECT_NOT_FOUND(UNAVAILABLE, "backend gpu", registry, .algorithm = "a",
                     .platform = EJK_PLATFORM_SIMD, .backend = EJK_BACKEND_GPU);
    e = sound("a", "any", EJK_PLATFORM_SIMD);
    e.priority = -1;
    add(registry, e);
    EXPECT_FOUND("any", registry, .algorithm = "a", .dtype = EJK_DTYPE_BF16);
    EXPECT_FOUND("any", registry, .algorithm = "a", .platform = EJK_PLATFORM_SIMD,
                 .backend = EJK_BACKEND_GPU);
    e = sound("b", "foreign", EJK_PLATFORM_SIMD);
    e.isa = FOREIGN;
    add(registry, e);
    EXPECT_NOT_FOUND(UNAVAILABLE, "simd foreign", registry, .algorithm = "b", .isa = EJK_ISA_AMX);
}

static void known_names_without_implementations_are_unavailable(void **state) {
    ejk_registry *registry = *state;
    static const struct {
        ejk_platform platform;
        const char *sentence;
    } without[] = {
#define WITHOUT(name)                                                                              \
    {EJK_PLATFORM_##name, " is unavailable, these exist: simd f32/scalar/row, reference "          \
                          "f32/plain"}
        WITHOUT(CUDA), WITHOUT(XLA), WITHOUT(TRITON), WITHOUT(PALLAS)};
    add(registry, sound("flash_attention", "f32/scalar/row", EJK_PLATFORM_SIMD));
    add(registry, sound("flash_attention", "f32/plain", EJK_PLATFORM_REFERENCE));
    add(registry, sound("other", "f32", EJK_PLATFORM_CUDA));
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        char words[160];
        snprintf(words, sizeof words, "flash_attention on platform %s%s",
                 ejk_platform_name(without[i].platform), without[i].sentence);
        EXPECT_NOT_FOUND(UNAVAILABLE, words, registry, .algorithm = "flash_attention",
                         .platform = without[i].platform);
        ejk_platform platform = EJK_PLATFORM_AUTO;
        EXPECT_FAIL(
            UNAVAILABLE, words,
            ejk_detect_platform(registry, "flash_attention", without[i].platform, &platform));
        assert_int_equal(platform, EJK_PLATFORM_AUTO);
    }
    EXPECT_NOT_FOUND(UNAVAILABLE, "platform unknown", registry, .algorithm = "other",
                     .platform = (ejk_platform)50);
}

static void unknown_algorithms_are_told_what_exists(void **state) {
    ejk_registry *registry = *state;
    const ejk_implementation *e;
    EXPECT_NOT_FOUND(UNKNOWN_NAME, "these exist: none", registry, .algorithm = "flash");
    add(registry, sound("Zeta", "x", EJK_PLATFORM_XLA));
    add(registry, sound("alpha", "x", EJK_PLATFORM_SIMD));
    add(registry, sound("ZETA", "y", EJK_PLATFORM_SIMD));
    EXPECT_NOT_FOUND(UNKNOWN_NAME, "'flash' is no algorithm; these exist: alpha, zeta", registry,
                     .algorithm = "flash");
    EXPECT_NOT_FOUND(INVALID_ARGUMENT, "algorithm", registry, .algorithm = NULL);
    EXPECT_NOT_FOUND(INVALID_ARGUMENT, "registry", NULL, .algorithm = "alpha");
    EXPECT_FAIL(INVALID_ARGUMENT, "query", ejk_registry_get(registry, NULL, &e));
    EXPECT_FAIL(INVALID_ARGUMENT, "out",
                ejk_registry_get(registry, &(ejk_query){.algorithm = "alpha"}, NULL));

    char *names;
    EXPECT_OK(ejk_registry_list_algorithms(registry, &names));
    assert_string_equal(names, "alpha, zeta");
    ejk_free(names);
    EXPECT_FAIL(INVALID_ARGUMENT, "registry", ejk_registry_list_algorithms(NULL, &names));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_registry_list_algorithms(registry, NULL));

    int32_t count = -1;
    EXPECT_OK(ejk_registry_list_implementations(registry, "flash", NULL, 0, &count));
    assert_int_equal(count, 0);
    EXPECT_OK(ejk_registry_list_implementations(registry, "zeta", NULL, 0, &count));
    assert_int_equal(count, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "capacity",
                ejk_registry_list_implementations(registry, "zeta", &e, -1, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "entries",
                ejk_registry_list_implementations(registry, "zeta", NULL, 1, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "algorithm",
                ejk_registry_list_implementations(registry, NULL, &e, 1, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "count",
                ejk_registry_list_implementations(registry, "zeta", &e, 1, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "registry",
                ejk_registry_list_implementations(NULL, "zeta", &e, 1, &count));
    assert_int_equal(count, 2);
}

static void platforms_are_detected(void **state) {
    ejk_registry *registry = *state;
    ejk_platform platform = EJK_PLATFORM_PALLAS;
    add(registry, sound("a", "x", EJK_PLATFORM_REFERENCE));
    EXPECT_OK(ejk_detect_platform(registry, "a", EJK_PLATFORM_AUTO, &platform));
    assert_int_equal(platform, EJK_PLATFORM_REFERENCE);
    EXPECT_FAIL(UNAVAILABLE, "platform simd",
                ejk_detect_platform(registry, "a", EJK_PLATFORM_SIMD, &platform));
    add(registry, sound("a", "y", EJK_PLATFORM_SIMD));
    EXPECT_OK(ejk_detect_platform(registry, "a", EJK_PLATFORM_AUTO, &platform));
    assert_int_equal(platform, EJK_PLATFORM_SIMD);
    EXPECT_OK(ejk_detect_platform(registry, "A", EJK_PLATFORM_REFERENCE, &platform));
    assert_int_equal(platform, EJK_PLATFORM_REFERENCE);
    EXPECT_FAIL(UNKNOWN_NAME, "these exist: a",
                ejk_detect_platform(registry, "b", EJK_PLATFORM_AUTO, &platform));
    EXPECT_FAIL(INVALID_ARGUMENT, "out",
                ejk_detect_platform(registry, "a", EJK_PLATFORM_AUTO, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "registry",
                ejk_detect_platform(NULL, "a", EJK_PLATFORM_AUTO, &platform));
}

static void endless_names_and_lists_are_cut(void **state) {
    ejk_registry *registry = *state;
    enum { ENTRIES = 100, LENGTH = 2000 };
    static char names[ENTRIES][LENGTH];
    for (int i = 0; i < ENTRIES; i++) {
        memset(names[i], 'n', LENGTH - 1);
        snprintf(names[i], 12, "entry-%d", i);
        if (i % 2) names[i][strlen(names[i])] = '-';
        add(registry, sound(i == 7 ? names[7] : "a", names[i], EJK_PLATFORM_SIMD));
    }
    EXPECT_NOT_FOUND(UNAVAILABLE, "entry-0, simd entry-1", registry, .algorithm = "a",
                     .platform = EJK_PLATFORM_XLA);
    assert_non_null(strstr(ejk_last_error(), ", ..."));
    EXPECT_NOT_FOUND(UNKNOWN_NAME, "is no algorithm", registry, .algorithm = names[9]);
}

static void siblings_take_the_same_parameters(void **state) {
    ejk_registry *registry = *state;
    static const ejk_parameter keys = {"keys", 1, 64, 1, 32, "keys"};
    static const ejk_parameter steps = {"keys", 1, 64, 3, 31, "keys"};
    static const ejk_parameter rows = {"rows", 1, 64, 1, 32, "rows"};
    ejk_implementation e = sound("a", "f32/avx2/tile", EJK_PLATFORM_SIMD);
    e.isa = EJK_ISA_AVX2;
    e.parameters = &keys;
    e.parameter_count = 1;
    add(registry, e);
    add(registry, sound("a", "f32/avx2/row", EJK_PLATFORM_SIMD));      /* another way */
    add(registry, sound("a", "f32/tile", EJK_PLATFORM_REFERENCE));     /* another platform */
    add(registry, sound("a", "f16/avx512/tile", EJK_PLATFORM_SIMD));   /* another type */
    add(registry, sound("a", "f32/avx512/tile/2", EJK_PLATFORM_SIMD)); /* longer */
    add(registry, sound("other", "f32/avx2/tile", EJK_PLATFORM_SIMD));
    e.name = "F32/avx512/tile";
    e.isa = EJK_ISA_AVX512;
    add(registry, e);
    EXPECT_OK(ejk_registry_validate_signatures(registry, "A"));
    EXPECT_OK(ejk_registry_validate_signatures(registry, NULL));
    EXPECT_FAIL(UNKNOWN_NAME, "these exist: a, other",
                ejk_registry_validate_signatures(registry, "b"));
    EXPECT_FAIL(INVALID_ARGUMENT, "registry", ejk_registry_validate_signatures(NULL, NULL));

    e = sound("b", "f32/scalar/tile", EJK_PLATFORM_SIMD);
    e.parameters = &keys;
    e.parameter_count = 1;
    add(registry, e);
    e = sound("b", "f32/amx/tile", EJK_PLATFORM_SIMD);
    e.isa = EJK_ISA_AMX;
    e.parameters = &steps;
    e.parameter_count = 1;
    add(registry, e);
    EXPECT_FAIL(MISMATCH, "1 to 64 by 3", ejk_registry_validate_signatures(registry, "b"));
    EXPECT_FAIL(MISMATCH, "b:", ejk_registry_validate_signatures(registry, NULL));
    EXPECT_OK(ejk_registry_validate_signatures(registry, "a"));
    e.algorithm = "c";
    add(registry, e);
    e.name = "f32/tile/scalar";
    e.isa = EJK_ISA_SCALAR;
    e.parameters = &rows;
    add(registry, e);
    EXPECT_FAIL(MISMATCH, "'rows'", ejk_registry_validate_signatures(registry, "c"));
    e.algorithm = "d";
    add(registry, e);
    e.name = "f32/tile";
    e.parameter_count = 0;
    add(registry, e);
    EXPECT_FAIL(MISMATCH, "takes 0", ejk_registry_validate_signatures(registry, "d"));
}

/* VDPBF16PS is for processors where it is fast, and for who asks for its tier. */
static void slow_dots_are_for_who_asks(void **state) {
    ejk_registry *registry = *state;
    const ejk_cpu_info *cpu = ejk_cpu();
    if (!cpu->tiers[EJK_ISA_AVX512_BF16]) skip();
    ejk_implementation e = sound("a", "plain", EJK_PLATFORM_SIMD);
    e.isa = EJK_ISA_AVX512;
    add(registry, e);
    e = sound("a", "dots", EJK_PLATFORM_SIMD);
    e.isa = EJK_ISA_AVX512_BF16;
    add(registry, e);
    EXPECT_FOUND("dots", registry, .algorithm = "a", .isa = EJK_ISA_AVX512_BF16);
    EXPECT_FOUND("plain", registry, .algorithm = "a", .isa = EJK_ISA_AVX512);
    if (!cpu->slow)
        EXPECT_FOUND("dots", registry, .algorithm = "a", .isa = EJK_ISA_AMX);
    else
        EXPECT_FOUND("plain", registry, .algorithm = "a", .isa = EJK_ISA_AMX);
}

static void builtin_ones_come_all_or_none(void **state) {
    ejk_registry *registry = *state;
    EXPECT_OK(ejk_registry_add_builtin(registry));
    assert_int_equal(ejk_registry_count(registry), ejki_builtin_implementation_count);
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        assert_string_equal(ejk_registry_entry(registry, i)->name,
                            ejki_builtin_implementations[i]->name);
        assert_true(ejk_registry_entry(registry, i)->run == ejki_builtin_implementations[i]->run);
    }
    EXPECT_OK(ejk_registry_validate_signatures(registry, NULL));
    EXPECT_FOUND("f64/reference", registry, .algorithm = "flash_attention", .dtype = EJK_DTYPE_F64);
    EXPECT_FOUND("f32/reference", registry, .algorithm = "flash_attention",
                 .platform = EJK_PLATFORM_REFERENCE, .dtype = EJK_DTYPE_F32);
    EXPECT_FAIL(INVALID_ARGUMENT, "already", ejk_registry_add_builtin(registry));
    assert_int_equal(ejk_registry_count(registry), ejki_builtin_implementation_count);
    EXPECT_FAIL(INVALID_ARGUMENT, "registry", ejk_registry_add_builtin(NULL));

    /* One name taken in the middle of the list keeps all out. */
    ejk_registry *taken;
    EXPECT_OK(ejk_registry_create(&taken));
    add(taken, *ejki_builtin_implementations[ejki_builtin_implementation_count - 1]);
    EXPECT_FAIL(INVALID_ARGUMENT, "already", ejk_registry_add_builtin(taken));
    assert_int_equal(ejk_registry_count(taken), 1);
    ejk_registry_destroy(taken);
}

static void registries_come_and_go(void **state) {
    (void)state;
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_registry_create(NULL));
    ejk_registry_destroy(NULL);
}

/* ---- Many threads --------------------------------------------------------------------------------- */

enum { ADDERS = 2, READERS = 2, EACH = 200 };

struct crowd {
    ejk_registry *registry;
    int number;
    atomic_int *taken;   /* registrations refused as already there */
    atomic_int *strange; /* answers that must not be */
    char names[EACH][32];
};

/* Adds names of its own and names that the other adds too. */
static void *adds(void *argument) {
    struct crowd *c = argument;
    for (int i = 0; i < EACH; i++) {
        if (i % 2)
            snprintf(c->names[i], sizeof c->names[i], "shared/%d", i);
        else
            snprintf(c->names[i], sizeof c->names[i], "own/%d/%d", c->number, i);
        ejk_implementation e = sound("crowd", c->names[i], EJK_PLATFORM_SIMD);
        e.priority = i;
        const ejk_status status = ejk_registry_register(c->registry, &e);
        if (status == EJK_STATUS_INVALID_ARGUMENT)
            atomic_fetch_add(c->taken, 1);
        else if (status != EJK_OK)
            atomic_fetch_add(c->strange, 1);
    }
    return NULL;
}

/* What is found only ever becomes better, and every list is whole. */
static void *reads(void *argument) {
    struct crowd *c = argument;
    const ejk_implementation *list[ADDERS * EACH];
    int32_t best = -1, count = 0, before = 0;
    while (before < ADDERS * EACH - EACH / 2) {
        const ejk_implementation *e;
        const ejk_query query = {.algorithm = "crowd"};
        if (ejk_registry_get(c->registry, &query, &e) == EJK_OK) {
            if (e->priority < best || e->run != nothing) atomic_fetch_add(c->strange, 1);
            best = e->priority;
        }
        if (ejk_registry_list_implementations(c->registry, "crowd", list, ADDERS * EACH, &count) !=
                EJK_OK ||
            count < before)
            atomic_fetch_add(c->strange, 1);
        for (int32_t i = 1; i < count; i++)
            if (list[i - 1]->priority < list[i]->priority) atomic_fetch_add(c->strange, 1);
        before = count;
    }
    return NULL;
}

static void reading_and_adding_go_together(void **state) {
    static struct crowd crowd[ADDERS + READERS];
    pthread_t threads[ADDERS + READERS];
    atomic_int taken = 0, strange = 0;
    for (int i = 0; i < ADDERS + READERS; i++) {
        crowd[i] =
            (struct crowd){.registry = *state, .number = i, .taken = &taken, .strange = &strange};
        assert_int_equal(pthread_create(&threads[i], NULL, i < ADDERS ? adds : reads, &crowd[i]),
                         0);
    }
    for (int i = 0; i < ADDERS + READERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(strange, 0);
    assert_int_equal(taken, EACH / 2);
    assert_int_equal(ejk_registry_count(*state), ADDERS * EACH - EACH / 2);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_read_and_written),
        cmocka_unit_test(registries_come_and_go),
        TEST(unsound_implementations_are_refused),
        TEST(a_name_is_taken_once),
        TEST(auto_tries_simd_then_reference),
        TEST(what_is_experimental_is_taken_when_asked_for),
        TEST(preference_is_priority_then_tier_then_order),
        TEST(slow_dots_are_for_who_asks),
        TEST(types_and_backends_fit),
        TEST(known_names_without_implementations_are_unavailable),
        TEST(unknown_algorithms_are_told_what_exists),
        TEST(platforms_are_detected),
        TEST(endless_names_and_lists_are_cut),
        TEST(siblings_take_the_same_parameters),
        TEST(builtin_ones_come_all_or_none),
        TEST(reading_and_adding_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
