/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/recording.h>

#include <ejkernel/device.h>
#include <ejkernel/identity.h>
#include <ejkernel/problem.h>

#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    char *op_id_v, *problem;
    char call_key[EJK_SHORT_HASH_SIZE];
    char layout[EJK_SHORT_HASH_SIZE];
    struct call *next;
} call;

struct ejk_recording {
    pthread_mutex_t lock;
    call *first;
    call **end;
    int64_t count;
};

ejk_status ejk_recording_create(ejk_recording **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_recording *recording = calloc(1, sizeof *recording);
    if (!recording) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a recording");
    pthread_mutex_init(&recording->lock, NULL);
    recording->end = &recording->first;
    *out = recording;
    return EJK_OK;
}

static void free_call(call *c) {
    if (!c) return;
    ejk_free(c->op_id_v);
    ejk_free(c->problem);
    free(c);
}

void ejk_recording_clear(ejk_recording *recording) {
    if (!recording) return;
    pthread_mutex_lock(&recording->lock);
    for (call *c = recording->first, *next; c; c = next) {
        next = c->next;
        free_call(c);
    }
    recording->first = NULL;
    recording->end = &recording->first;
    recording->count = 0;
    pthread_mutex_unlock(&recording->lock);
}

void ejk_recording_destroy(ejk_recording *recording) {
    if (!recording) return;
    ejk_recording_clear(recording);
    pthread_mutex_destroy(&recording->lock);
    free(recording);
}

int64_t ejk_recording_count(ejk_recording *recording) {
    if (!recording) return 0;
    pthread_mutex_lock(&recording->lock);
    const int64_t count = recording->count;
    pthread_mutex_unlock(&recording->lock);
    return count;
}

/* Puts a call in, or in the place of one that is alike. Takes it over. */
static void put(ejk_recording *recording, call *own) {
    pthread_mutex_lock(&recording->lock);
    call *c = recording->first;
    while (c && (strcmp(c->call_key, own->call_key) != 0 || strcmp(c->layout, own->layout) != 0 ||
                 strcmp(c->op_id_v, own->op_id_v) != 0))
        c = c->next;
    if (c) {
        char *former = c->problem;
        c->problem = own->problem;
        own->problem = former;
    } else {
        *recording->end = own;
        recording->end = &own->next;
        recording->count++;
        own = NULL;
    }
    pthread_mutex_unlock(&recording->lock);
    free_call(own);
}

static ejk_status describe(const ejk_kernel *kernel, const void *args, call *own) {
    EJKI_TRY(ejk_versioned_op_id(kernel, &own->op_id_v));
    EJKI_TRY(ejk_call_key(kernel, args, NULL, NULL, own->call_key));
    EJKI_TRY(ejk_layout_key(kernel->args, args, own->layout));
    return ejk_problem_to_text(kernel, args, &own->problem);
}

ejk_status ejk_record_invocation(ejk_recording *recording, const ejk_kernel *kernel,
                                 const void *args) {
    if (!recording || !kernel || !args)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !recording ? "recording"
                         : !kernel  ? "kernel"
                                    : "args");
    call *own = calloc(1, sizeof *own);
    if (!own) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a recorded call");
    const ejk_status status = describe(kernel, args, own);
    if (status == EJK_OK)
        put(recording, own);
    else
        free_call(own);
    return status;
}

ejk_status ejk_get_invocations(ejk_recording *recording, const char *device,
                               ejk_status (*visit)(void *user, const ejk_recorded_invocation *),
                               void *user) {
    if (!recording || !visit)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         recording ? "visit" : "recording");
    const char *here = ejk_device_fingerprint();
    if (device && strcmp(device, here) != 0) return EJK_OK;
    for (const call *c = recording->first; c; c = c->next)
        EJKI_TRY(
            visit(user, &(ejk_recorded_invocation){here, c->op_id_v, c->call_key, c->problem}));
    return EJK_OK;
}

static ejk_status write_line(void *file, const ejk_recorded_invocation *invocation) {
    return fprintf(file, "%s\n", invocation->problem) < 0
               ? ejki_fail(EJK_STATUS_IO, "the recording could not be written: %s", strerror(errno))
               : EJK_OK;
}

ejk_status ejk_recording_save(ejk_recording *recording, const char *path) {
    if (!recording || !path)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         recording ? "path" : "recording");
    FILE *file = fopen(path, "w");
    if (!file)
        return ejki_fail(EJK_STATUS_IO, "%.512s could not be opened for writing: %s", path,
                         strerror(errno));
    fprintf(file, "# recorded on %s\n", ejk_device_fingerprint());
    ejk_status status = ejk_get_invocations(recording, NULL, write_line, file);
    if (fclose(file) != 0 && status == EJK_OK)
        status = ejki_fail(EJK_STATUS_IO, "%.512s could not be written: %s", path, strerror(errno));
    return status;
}

static ejk_status add_problem(void *recording, int64_t line, ejk_problem *problem) {
    (void)line;
    return ejk_record_invocation(recording, ejk_problem_kernel(problem), ejk_problem_args(problem));
}

ejk_status ejk_recording_load(ejk_recording *recording, ejk_context *context, const char *path) {
    if (!recording || !context || !path)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !recording ? "recording"
                         : !context ? "context"
                                    : "path");
    return ejk_problem_read_file(context, path, add_problem, recording);
}
