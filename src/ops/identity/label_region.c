/* SPDX-License-Identifier: Apache-2.0 */
/* Names of regions, one stack a thread. Names are copied: a region left open keeps nothing dangling. */
#include "base/base.h"

#include <ejkernel/labels.h>
#include <string.h>

static _Thread_local struct {
    char names[EJK_MAX_LABELS][EJK_NAME_SIZE];
    int depth;
} open_regions;

ejk_status ejk_label_begin(const char *name) {
    size_t length = name != NULL ? strnlen(name, EJK_NAME_SIZE) : 0;
    if (length == 0 || length == EJK_NAME_SIZE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "name: '%.60s' given, expected 1 to %d bytes",
                         name != NULL ? name : "", EJK_NAME_SIZE - 1);
    if (open_regions.depth == EJK_MAX_LABELS)
        return ejki_fail(EJK_STATUS_OVERFLOW, "name: '%s' given inside of %d regions, the most",
                         name, EJK_MAX_LABELS);
    memcpy(open_regions.names[open_regions.depth++], name, length + 1);
    return EJK_OK;
}

void ejk_label_end(void) {
    if (open_regions.depth > 0) open_regions.depth--;
}

const char *ejk_label_current(void) {
    return open_regions.depth > 0 ? open_regions.names[open_regions.depth - 1] : NULL;
}

ejk_status ejk_label(const char *name, ejk_status (*function)(void *user), void *user) {
    if (function == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_label: function is NULL");
    int outside = open_regions.depth;
    EJKI_TRY(ejk_label_begin(name));
    ejk_status status = function(user);
    open_regions.depth = outside;
    return status;
}
