/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a registry's implementations is preferred, and the sentences for when none fits. */
#include "base/base.h"
#include "device/cuda.h"
#include "kernels/registry/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Place of a platform among those that AUTO tries on a CPU; others come after, by number. */
static int rank(ejk_platform platform) {
    if (platform == EJK_PLATFORM_SIMD) return 0;
    if (platform == EJK_PLATFORM_REFERENCE) return 1;
    return 2 + (int)platform;
}

bool ejki_preferred(const ejk_implementation *a, const ejk_implementation *b) {
    if (a->platform != b->platform) return rank(a->platform) < rank(b->platform);
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->isa > b->isa;
}

/* What AUTO may pick: on a GPU nothing but cuda, so that no call leaves the device unasked. */
static bool automatic(ejk_backend backend, ejk_platform platform) {
    switch (backend) {
    case EJK_BACKEND_ANY:
    case EJK_BACKEND_CPU:
        return platform == EJK_PLATFORM_SIMD || platform == EJK_PLATFORM_REFERENCE;
    case EJK_BACKEND_GPU: return platform == EJK_PLATFORM_CUDA;
    case EJK_BACKEND_TPU: break;
    }
    return false;
}

static bool on_platform(const ejk_implementation *e, const ejk_query *query) {
    if (query->platform == EJK_PLATFORM_AUTO)
        return automatic(query->place == EJK_BACKEND_GPU ? EJK_BACKEND_GPU : query->backend,
                         e->platform);
    return e->platform == query->platform;
}

static bool needs_cuda(const ejk_implementation *e) {
    return e->platform == EJK_PLATFORM_CUDA && e->backend == EJK_BACKEND_GPU;
}

/* Where the sentence goes that says why something does not fit; without room only whether matters. */
typedef struct reason {
    char *text;
    size_t size;
} reason;

static bool no(const reason *why, const char *format, ...) EJKI_PRINTF(2, 3);
static bool no(const reason *why, const char *format, ...) {
    if (!why->size) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, why->size, format, arguments);
    va_end(arguments);
    return false;
}

/* What lies on a GPU is for what runs there, and for nothing else. */
static bool in_place(const ejk_implementation *e, const ejk_query *query, const reason *why) {
    const bool on_gpu = query->place == EJK_BACKEND_GPU;
    if (query->place != EJK_BACKEND_ANY && on_gpu != (e->backend == EJK_BACKEND_GPU))
        return no(why, "is for tensors on %s", on_gpu ? "the CPU" : "a GPU");
    const int has = (int)query->capability, least = (int)e->least_capability,
              most = (int)e->most_capability;
    if (!has) return true;
    if (has < least)
        return no(why, "needs compute capability %d.%d or later, the GPU has %d.%d", least / 10,
                  least % 10, has / 10, has % 10);
    if (most && has > most)
        return no(why, "is for compute capabilities up to %d.%d, the GPU has %d.%d", most / 10,
                  most % 10, has / 10, has % 10);
    return true;
}

static bool has_tier(const ejk_implementation *e, const ejk_query *query, const reason *why) {
    const ejk_features lacking = ejk_isa_features(e->isa) & ~ejk_isa_features(query->isa);
    if (lacking && query->isa != ejk_cpu()->isa)
        return no(why, "needs %s, allowed are tiers up to %s", ejk_isa_name(e->isa),
                  ejk_isa_name(query->isa));
    if (ejk_isa_features(e->isa) & ~ejk_cpu()->features)
        return no(why, "needs %s, which the processor lacks", ejk_isa_name(e->isa));
    if (!ejk_isa_allows(query->isa, e->isa))
        return no(why, "multiplies by what is slow on this processor: only if %s is asked for",
                  ejk_isa_name(e->isa));
    return true;
}

static bool takes(ejk_dtype own, ejk_dtype asked) {
    return own == EJK_DTYPE_UNSET || asked == EJK_DTYPE_UNSET || own == asked;
}

static bool has_types(const ejk_implementation *e, const ejk_query *query, const reason *why) {
    if (!takes(e->dtype, query->dtype))
        return no(why, "takes %s, the tensors have %s", ejk_dtype_name(e->dtype),
                  ejk_dtype_name(query->dtype));
    for (int i = 0; i < EJK_MAX_FURTHER_TYPES; i++)
        if (!takes(e->further_dtypes[i], query->further_dtypes[i]))
            return no(why, "takes %s as type %d of its signature, that tensor has %s",
                      ejk_dtype_name(e->further_dtypes[i]), i + 2,
                      ejk_dtype_name(query->further_dtypes[i]));
    return true;
}

static bool is_trusted(const ejk_implementation *e, const reason *why) {
    const char *text = e->experimental ? getenv("EJKERNEL_EXPERIMENTAL") : NULL;
    if (!e->experimental || (text && strcmp(text, "1") == 0)) return true;
    return no(why, "is experimental: only if EJKERNEL_EXPERIMENTAL is 1");
}

static bool fits_why(const ejk_implementation *e, const ejk_query *query, const reason *why) {
    if (!in_place(e, query, why)) return false;
    if (!on_platform(e, query))
        return query->platform == EJK_PLATFORM_AUTO
                   ? no(why, "is of platform %s, which is not taken here unless it is named",
                        ejk_platform_name(e->platform))
                   : no(why, "is of platform %s, asked for is %s", ejk_platform_name(e->platform),
                        ejk_platform_name(query->platform));
    if (e->backend != EJK_BACKEND_ANY && query->backend != EJK_BACKEND_ANY &&
        e->backend != query->backend)
        return no(why, "is for backend %s, asked for is %s", ejk_backend_name(e->backend),
                  ejk_backend_name(query->backend));
    if (!has_tier(e, query, why)) return false;
    if (!has_types(e, query, why) || !is_trusted(e, why)) return false;
    if (query->problem && e->applicable && !e->applicable(query->problem))
        return no(why, "cannot compute this problem%s%s", e->needs ? ": it needs " : "",
                  e->needs ? e->needs : "");
    if (!needs_cuda(e) || ejki_cuda_target_get() || ejki_cuda_available() == EJK_OK) return true;
    return no(why, "%s", ejk_last_error());
}

static bool fits(const ejk_implementation *e, const ejk_query *query) {
    const reason unasked = {NULL, 0};
    return fits_why(e, query, &unasked);
}

ejk_status ejk_registry_explain(const ejk_query *query, const ejk_implementation *implementation,
                                char *out, size_t size) {
    if (!query || !implementation || !out || size == 0)
        return ejki_missing(!query ? "query" : !implementation ? "implementation" : "out");
    const reason why = {out, size};
    *out = '\0';
    (void)fits_why(implementation, query, &why);
    return EJK_OK;
}

/* A list for a sentence; what does not fit is shown as dots. */
struct listing {
    char text[640];
    size_t used;
};

static void list(struct listing *listing, const char *format, ...) EJKI_PRINTF(2, 3);
static void list(struct listing *listing, const char *format, ...) {
    static const char dots[] = ", ...";
    size_t room = sizeof listing->text - sizeof dots;
    if (listing->used >= room) return;
    char item[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(item, sizeof item, format, arguments);
    va_end(arguments);
    const char *comma = listing->used ? ", " : "";
    bool fit = listing->used + strlen(comma) + strlen(item) <= room;
    int length = snprintf(listing->text + listing->used, sizeof listing->text - listing->used,
                          "%s%s", fit ? comma : dots, fit ? item : "");
    listing->used = fit ? listing->used + (size_t)length : room;
}

ejk_status ejki_unknown_algorithm(const ejk_registry *registry, const char *algorithm) {
    char *names;
    EJKI_TRY(ejk_registry_list_algorithms(registry, &names));
    ejk_status status =
        ejki_fail(EJK_STATUS_UNKNOWN_NAME, "'%.64s' is no algorithm; these exist: %.640s",
                  algorithm, *names ? names : "none");
    ejk_free(names);
    return status;
}

static void describe_wish(const ejk_query *query, char *wish, size_t size) {
    const char *dtype = query->dtype ? ejk_dtype_name(query->dtype) : "any type";
    const char *problem = query->problem ? ", for this problem" : "";
    if (query->place == EJK_BACKEND_GPU)
        snprintf(wish, size, ", tensors on a GPU of compute capability %d.%d, %s%s",
                 (int)query->capability / 10, (int)query->capability % 10, dtype, problem);
    else
        snprintf(wish, size, ", backend %s, %s%s, tiers up to %s where the processor has %s%s",
                 ejk_backend_name(query->backend), dtype,
                 query->place == EJK_BACKEND_CPU ? ", tensors on the CPU" : "",
                 ejk_isa_name(query->isa), ejk_isa_name(ejk_cpu()->isa), problem);
}

/* Says what was asked for, no more than it takes to see why nothing fits, and what there is. */
static ejk_status unavailable(const ejk_registry *registry, const ejk_query *query) {
    struct listing exist = {.used = 0};
    bool platform_exists = false, gpus_only = true;
    EJKI_REGISTRY_EACH(e, registry) {
        if (!ejki_same_name(e->algorithm, query->algorithm)) continue;
        list(&exist, "%s %.96s", ejk_platform_name(e->platform), e->name);
        platform_exists |= on_platform(e, query);
        gpus_only &= !on_platform(e, query) || needs_cuda(e);
    }
    char wish[400] = "";
    if (platform_exists && gpus_only && ejki_cuda_available() != EJK_OK)
        snprintf(wish, sizeof wish, " (%.300s)", ejk_last_error());
    else if (platform_exists || query->place == EJK_BACKEND_GPU)
        describe_wish(query, wish, sizeof wish);
    return ejki_fail(EJK_STATUS_UNAVAILABLE,
                     "%.64s on platform %s%s is unavailable, these exist: %s", query->algorithm,
                     ejk_platform_name(query->platform), wish, exist.text);
}

ejk_status ejk_registry_get(const ejk_registry *registry, const ejk_query *query,
                            const ejk_implementation **out) {
    if (!registry) return ejki_missing("registry");
    if (!query || !query->algorithm) return ejki_missing(query ? "algorithm" : "query");
    if (!out) return ejki_missing("out");
    const ejk_implementation *best = NULL;
    bool known = false;
    EJKI_REGISTRY_EACH(e, registry) {
        if (!ejki_same_name(e->algorithm, query->algorithm)) continue;
        known = true;
        if (fits(e, query) && (!best || ejki_preferred(e, best))) best = e;
    }
    if (!known) return ejki_unknown_algorithm(registry, query->algorithm);
    if (!best) return unavailable(registry, query);
    *out = best;
    return EJK_OK;
}

ejk_status ejk_detect_platform(const ejk_registry *registry, const char *algorithm,
                               ejk_platform platform, ejk_platform *out) {
    if (!out) return ejki_missing("out");
    const ejk_implementation *found = NULL;
    const ejk_query query = {
        .algorithm = algorithm, .platform = platform, .isa = ejk_isa_default()};
    ejk_status status = ejk_registry_get(registry, &query, &found);
    if (found) *out = found->platform;
    return status;
}

static bool registered(const ejk_registry *registry, const char *algorithm, ejk_platform platform,
                       ejk_backend backend) {
    EJKI_REGISTRY_EACH(e, registry)
    if (ejki_same_name(e->algorithm, algorithm) && e->platform == platform &&
        (e->backend == EJK_BACKEND_ANY || backend == EJK_BACKEND_ANY || e->backend == backend))
        return true;
    return false;
}

static bool known(const ejk_registry *registry, const char *algorithm) {
    EJKI_REGISTRY_EACH(e, registry)
    if (ejki_same_name(e->algorithm, algorithm)) return true;
    return false;
}

ejk_status ejk_detect_platform_documented(const ejk_registry *registry, const char *algorithm,
                                          ejk_platform platform, ejk_backend backend,
                                          bool maybe_pallas, ejk_platform *out) {
    if (!registry) return ejki_missing("registry");
    if (!algorithm || !out) return ejki_missing(algorithm ? "out" : "algorithm");
    if (!known(registry, algorithm)) return ejki_unknown_algorithm(registry, algorithm);
    if (platform != EJK_PLATFORM_AUTO) {
        const ejk_query query = {.algorithm = algorithm,
                                 .platform = platform,
                                 .backend = backend,
                                 .isa = ejk_cpu()->isa};
        if (!registered(registry, algorithm, platform, backend))
            return unavailable(registry, &query);
        *out = platform;
        return EJK_OK;
    }
    const bool gpu = backend == EJK_BACKEND_GPU, tpu = backend == EJK_BACKEND_TPU;
    if ((tpu || (gpu && maybe_pallas)) &&
        registered(registry, algorithm, EJK_PLATFORM_PALLAS, backend))
        *out = EJK_PLATFORM_PALLAS;
    else if (gpu && registered(registry, algorithm, EJK_PLATFORM_TRITON, backend))
        *out = EJK_PLATFORM_TRITON;
    else
        *out = EJK_PLATFORM_XLA;
    return EJK_OK;
}
