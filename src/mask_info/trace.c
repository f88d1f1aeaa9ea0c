/* SPDX-License-Identifier: Apache-2.0 */
/* The debug mode of a thread. */
#include "mask_info/info.h"

#include <stdio.h>

static _Thread_local struct {
    ejk_mask_info_trace_fn function;
    void *user;
    bool busy; /* inside the function */
} trace;

void ejk_mask_info_set_debug_mode(ejk_mask_info_trace_fn function, void *user) {
    trace.function = function;
    trace.user = user;
}

bool ejk_mask_info_get_debug_mode(void) {
    return trace.function != NULL;
}

void ejki_info_trace(const char *what, const char *name, const char *end) {
    if (trace.function == NULL || trace.busy) return;
    char line[128];
    snprintf(line, sizeof line, "[MaskInfo Debug] %s%s%s", what, name, end);
    trace.busy = true;
    trace.function(trace.user, line);
    trace.busy = false;
}
