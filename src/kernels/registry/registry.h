/* SPDX-License-Identifier: Apache-2.0 */
/* How the files of this room read a registry. */
#ifndef EJKI_KERNELS_REGISTRY_H
#define EJKI_KERNELS_REGISTRY_H

#include <ejkernel/registry.h>

#include "base/base.h"
#include <strings.h>

/* The entry after `previous` in the order of registration, the first for NULL; NULL at the end. */
const ejk_implementation *ejki_registry_next(const ejk_registry *registry,
                                             const ejk_implementation *previous);

#define EJKI_REGISTRY_EACH(e, registry)                                                            \
    for (const ejk_implementation *e = ejki_registry_next(registry, NULL); e;                      \
         e = ejki_registry_next(registry, e))

/* Algorithms and implementations are named without regard to case. */
static inline bool ejki_same_name(const char *a, const char *b) {
    return strcasecmp(a, b) == 0;
}

/* True if `a` comes before `b` when both fit; with neither before the other, registration decides. */
bool ejki_preferred(const ejk_implementation *a, const ejk_implementation *b);

/* Failures: an argument that is NULL; an algorithm that no entry has, with the list of those that exist. */
static inline ejk_status ejki_missing(const char *argument) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL; expected it to be given", argument);
}
ejk_status ejki_unknown_algorithm(const ejk_registry *registry, const char *algorithm);

#endif
