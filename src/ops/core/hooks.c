/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks by name: which names there are, and which of a kernel's hooks is the most specific. */
#include "ops/core/core.h"

#include <stdio.h>
#include <string.h>

/* Room for the longest name, "fwd_with_residuals_shard_map_reference". */
#define NAME_SIZE 64

/* What kind of function a method's hooks have. */
typedef enum kind { CALLS, ADVISES, LISTS } kind;

static const struct {
    const char *method, *alias;
    kind kind;
} methods[] = {
    {"run", NULL, CALLS},
    {"fwd_with_residuals", NULL, CALLS},
    {"vjp", "custom_vjp", CALLS},
    {"heuristic_cfg", NULL, ADVISES},
    {"candidate_cfgs", "config_space", LISTS},
};

enum { METHODS = sizeof methods / sizeof *methods };

static const ejk_hook *find(const ejk_kernel *kernel, const char *method, const char *context,
                            const char *place) {
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s%s%s%s%s", method, context ? "_" : "", context ? context : "",
             place ? "_" : "", place ? place : "");
    for (int32_t i = 0; i < kernel->hook_count; i++)
        if (strcmp(kernel->hooks[i].name, name) == 0) return &kernel->hooks[i];
    return NULL;
}

/* The most specific of one context; `places` go from the most specific on and end with NULL, which stands
 * for the hook without a place. */
static const ejk_hook *find_in(const ejk_kernel *kernel, const char *method, const char *context,
                               const char *const *places) {
    for (;; places++) {
        const ejk_hook *hook = find(kernel, method, context, *places);
        if (hook || !*places) return hook;
    }
}

static const ejk_hook *resolve(const ejk_kernel *kernel, const char *method, const char *context,
                               ejk_platform platform, ejk_backend backend) {
    const char *places[4];
    int32_t count = 0;
    if (platform != EJK_PLATFORM_AUTO) {
        places[count++] = ejk_platform_name(platform);
    } else if (backend <= EJK_BACKEND_CPU) {
        places[count++] = ejk_platform_name(EJK_PLATFORM_SIMD);
        places[count++] = ejk_platform_name(EJK_PLATFORM_REFERENCE);
    } else if (backend == EJK_BACKEND_GPU) {
        places[count++] = ejk_platform_name(EJK_PLATFORM_CUDA);
    }
    places[count++] = ejk_backend_name(backend == EJK_BACKEND_ANY ? EJK_BACKEND_CPU : backend);
    places[count] = NULL;
    const ejk_hook *hook = context ? find_in(kernel, method, context, places) : NULL;
    return hook ? hook : find_in(kernel, method, NULL, places);
}

const ejk_hook *ejk_hook_resolve(const ejk_kernel *kernel, const char *method, const char *context,
                                 ejk_platform platform, ejk_backend backend) {
    if (!kernel || !method) return NULL;
    const ejk_hook *hook = resolve(kernel, method, context, platform, backend);
    for (int i = 0; !hook && i < METHODS; i++)
        if (methods[i].alias && strcmp(methods[i].method, method) == 0)
            hook = resolve(kernel, methods[i].alias, context, platform, backend);
    return hook;
}

/* True if `rest` is "", or "_" and the name of a platform or a kind of hardware. */
static bool is_place(const char *rest) {
    ejk_platform platform;
    ejk_backend backend;
    if (!*rest) return true;
    if (*rest++ != '_' || !*rest) return false;
    const bool known = ejk_platform_from_name(rest, &platform) == EJK_OK ||
                       ejk_backend_from_name(rest, &backend) == EJK_OK;
    return known && strcmp(rest, "auto") != 0 && strcmp(rest, "any") != 0;
}

/* The rest of a name after a method; NULL if it does not begin with it. */
static const char *after(const char *name, const char *method) {
    const size_t length = method ? strlen(method) : 0;
    return length && strncmp(name, method, length) == 0 ? name + length : NULL;
}

static bool kind_of(const char *name, kind *out) {
    static const char context[] = "_shard_map";
    for (int i = 0; i < METHODS; i++) {
        const char *rest = after(name, methods[i].method);
        if (!rest) rest = after(name, methods[i].alias);
        if (!rest) continue;
        if (strncmp(rest, context, sizeof context - 1) == 0) rest += sizeof context - 1;
        *out = methods[i].kind;
        if (is_place(rest)) return true;
    }
    return false;
}

static ejk_status check(const ejk_kernel *kernel, const ejk_hook *hook) {
    kind own;
    if (!hook->name || !kind_of(hook->name, &own))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': '%.64s' is no hook, expected a method, perhaps "
                         "_shard_map, perhaps _ and a platform or a backend, as run_simd",
                         kernel->op_id, hook->name ? hook->name : "");
    const bool fits = (own == CALLS) == (hook->call != NULL) &&
                      (own == ADVISES) == (hook->heuristic_cfg != NULL) &&
                      (own == LISTS) == (hook->candidate_cfgs != NULL);
    if (!fits)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': hook '%.64s' expects its %s function and no other",
                         kernel->op_id, hook->name,
                         own == CALLS     ? "call"
                         : own == ADVISES ? "heuristic_cfg"
                                          : "candidate_cfgs");
    if (own != CALLS && !kernel->config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': hook '%.64s' is given, but no config for it to fill",
                         kernel->op_id, hook->name);
    return EJK_OK;
}

ejk_status ejki_hooks_check(const ejk_kernel *kernel) {
    if (kernel->hook_count < 0 || (kernel->hook_count > 0 && !kernel->hooks))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': hook_count is %d, expected the number of hooks",
                         kernel->op_id, (int)kernel->hook_count);
    for (int32_t i = 0; i < kernel->hook_count; i++) {
        EJKI_TRY(check(kernel, &kernel->hooks[i]));
        for (int32_t k = 0; k < i; k++)
            if (strcmp(kernel->hooks[k].name, kernel->hooks[i].name) == 0)
                return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                                 "kernel '%.64s': hook '%.64s' is given twice", kernel->op_id,
                                 kernel->hooks[i].name);
    }
    return EJK_OK;
}
