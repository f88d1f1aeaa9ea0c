/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the platforms and backends. */
#include "base/base.h"

#include <ejkernel/registry.h>
#include <strings.h>

struct named {
    int value;
    const char *name;
};

static const struct named platforms[] = {
#define PLATFORM(name, number, text) {number, text},
    EJK_PLATFORM_LIST(PLATFORM)
#undef PLATFORM
};

static const struct named backends[] = {
#define BACKEND(name, number, text) {number, text},
    EJK_BACKEND_LIST(BACKEND)
#undef BACKEND
};

#define LISTED(name, number, text) " " text

enum {
    PLATFORM_COUNT = sizeof platforms / sizeof platforms[0],
    BACKEND_COUNT = sizeof backends / sizeof backends[0],
};

static const char *name_of(const struct named *list, int count, int value) {
    for (int i = 0; i < count; i++)
        if (list[i].value == value) return list[i].name;
    return "unknown";
}

/* The entry of that name; "" is the first, which stands for no wish. */
static const struct named *find(const struct named *list, int count, const char *name) {
    if (!*name) return list;
    for (int i = 0; i < count; i++)
        if (strcasecmp(list[i].name, name) == 0) return list + i;
    return NULL;
}

const char *ejk_platform_name(ejk_platform platform) {
    return name_of(platforms, PLATFORM_COUNT, (int)platform);
}

const char *ejk_backend_name(ejk_backend backend) {
    return name_of(backends, BACKEND_COUNT, (int)backend);
}

static ejk_status check_arguments(const char *name, const void *out) {
    if (!name) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "name is NULL; expected a text");
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL; expected where to put it");
    return EJK_OK;
}

ejk_status ejk_platform_from_name(const char *name, ejk_platform *out) {
    EJKI_TRY(check_arguments(name, out));
    const struct named *found = find(platforms, PLATFORM_COUNT, name);
    if (!found)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "'%.64s' is no platform; these exist:%s", name,
                         EJK_PLATFORM_LIST(LISTED));
    *out = (ejk_platform)found->value;
    return EJK_OK;
}

ejk_status ejk_backend_from_name(const char *name, ejk_backend *out) {
    EJKI_TRY(check_arguments(name, out));
    const struct named *found = find(backends, BACKEND_COUNT, name);
    if (!found)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "'%.64s' is no backend; these exist:%s", name,
                         EJK_BACKEND_LIST(LISTED));
    *out = (ejk_backend)found->value;
    return EJK_OK;
}
