/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a thread's calls tell, for which architecture it builds, and whether it tries what making kernels costs. */
#include "device/cuda_event.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local ejki_cuda_listener listener;
static _Thread_local ejki_cuda_target *current_target;
static _Thread_local ejki_cuda_trial *current_trial;

ejki_cuda_listener ejki_cuda_listen(ejki_cuda_listener next) {
    const ejki_cuda_listener before = listener;
    listener = next;
    return before;
}

void ejki_cuda_emit(const char *event, const char *format, ...) {
    if (!listener.tell) return;
    va_list values;
    va_start(values, format);
    json_t *fields = json_vpack_ex(NULL, 0, format, values);
    va_end(values);
    char *text = fields ? json_dumps(fields, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(fields);
    if (text) listener.tell(listener.user, event, text);
    free(text);
}

/* What the architectures of data centres have; who builds ahead may have another chip of the same kind. */
static const ejk_gpu_info known[] = {
    {.architecture = "sm_80", .capability = 80, .multiprocessors = 108, .shared_bytes = 166912},
    {.architecture = "sm_86", .capability = 86, .multiprocessors = 84, .shared_bytes = 101376},
    {.architecture = "sm_89", .capability = 89, .multiprocessors = 128, .shared_bytes = 101376},
    {.architecture = "sm_90a", .capability = 90, .multiprocessors = 132, .shared_bytes = 232448},
    {.architecture = "sm_100a", .capability = 100, .multiprocessors = 148, .shared_bytes = 232448},
    {.architecture = "sm_120a", .capability = 120, .multiprocessors = 188, .shared_bytes = 101376},
};

enum { KNOWN = sizeof known / sizeof *known };

ejk_status ejki_cuda_target_begin(ejki_cuda_target *target, const char *architecture) {
    char names[128] = "";
    for (int i = 0; i < KNOWN; i++) {
        if (strcmp(known[i].architecture, architecture) == 0) {
            *target = (ejki_cuda_target){.gpu = known[i]};
            snprintf(target->gpu.name, sizeof target->gpu.name, "%s", architecture);
            snprintf(target->gpu.fingerprint, sizeof target->gpu.fingerprint, "gpu|%s; %d.%d; 0.0",
                     architecture, (int)known[i].capability / 10, (int)known[i].capability % 10);
            current_target = target;
            return EJK_OK;
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 known[i].architecture);
    }
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "architecture is '%.32s', expected one of %s",
                     architecture, names);
}

void ejki_cuda_target_end(void) {
    current_target = NULL;
}

ejki_cuda_target *ejki_cuda_target_get(void) {
    return current_target;
}

void ejki_cuda_trial_begin(ejki_cuda_trial *trial) {
    current_trial = trial;
}

ejki_cuda_trial *ejki_cuda_trial_get(void) {
    return current_trial;
}

void ejki_cuda_trial_end(void) {
    if (current_trial) ejki_cuda_unload(current_trial);
    current_trial = NULL;
}
