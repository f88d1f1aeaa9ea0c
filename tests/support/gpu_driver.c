/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_driver.h"

#include <dlfcn.h>
#include <ejkernel/ejkernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool gpu_is_here(void) {
    int32_t count;
    if (ejk_device_count(&count) == EJK_OK) return true;
    printf("skipped: %s\n", ejk_last_error());
    return false;
}

int gpu_driver(const char *name, void *a, void *b, void *c) {
    int (*function)(void *, void *, void *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = driver ? dlsym(driver, name) : NULL;
    if (!found) {
        printf("FAIL the driver has no %s\n", name);
        exit(EXIT_FAILURE);
    }
    memcpy(&function, &found, sizeof found);
    return function(a, b, c);
}

static void need(const char *name, void *a, void *b, void *c) {
    const int error = gpu_driver(name, a, b, c);
    if (error == 0) return;
    printf("FAIL %s answered %d\n", name, error);
    exit(EXIT_FAILURE);
}

void gpu_enter(void) {
    void *primary = NULL;
    need("cuDevicePrimaryCtxRetain", &primary, NULL, NULL);
    need("cuCtxSetCurrent", primary, NULL, NULL);
}

void gpu_leave(void) {
    need("cuCtxSetCurrent", NULL, NULL, NULL);
}

void *gpu_stream_create(void) {
    void *stream = NULL, *non_blocking = (void *)1;
    need("cuStreamCreate", &stream, non_blocking, NULL);
    return stream;
}

void gpu_stream_destroy(void *stream) {
    need("cuStreamDestroy_v2", stream, NULL, NULL);
}

void gpu_graph_begin(void *stream) {
    void *of_this_thread = (void *)1;
    need("cuStreamBeginCapture_v2", stream, of_this_thread, NULL);
}

struct gpu_graph gpu_graph_end(void *stream) {
    struct gpu_graph made = {.graph = NULL};
    need("cuStreamEndCapture", stream, &made.graph, NULL);
    need("cuGraphInstantiateWithFlags", &made.ready, made.graph, NULL);
    return made;
}

void gpu_graph_launch(const struct gpu_graph *graph, void *stream) {
    need("cuGraphLaunch", graph->ready, stream, NULL);
}

void gpu_graph_destroy(struct gpu_graph *graph) {
    need("cuGraphExecDestroy", graph->ready, NULL, NULL);
    need("cuGraphDestroy", graph->graph, NULL, NULL);
}
