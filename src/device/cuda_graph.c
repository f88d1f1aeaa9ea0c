/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_graph.h"

#include "device/cuda_driver.h"

#include <stdio.h>

static ejk_status begin(const ejki_cuda_graph *graph) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(graph->device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    const bool has_graphs = driver->capture && driver->capture_end && driver->graph_ready &&
                            driver->graph_launch && driver->graph_end && driver->graph_ready_end;
    const int error =
        has_graphs ? driver->capture(graph->stream, EJKI_CU_CAPTURE_RELAXED) : EJKI_CU_SUCCESS;
    ejki_cuda_leave(pushed);
    if (!has_graphs)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "this driver has no functions for graphs");
    return ejki_cuda_check(error, "a stream cannot be captured");
}

/* Also after a failure of what was captured, which leaves the stream as it was. */
static ejk_status end(ejki_cuda_graph *graph) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(graph->device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    int error = driver->capture_end(graph->stream, &graph->graph);
    if (error == EJKI_CU_SUCCESS) error = driver->graph_ready(&graph->ready, graph->graph, 0);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "a graph cannot be made of what was captured");
}

ejk_status ejki_cuda_graph_make(int32_t device, void *stream, ejk_status (*enqueue)(void *user),
                                void *user, int32_t times, ejki_cuda_graph *out) {
    *out = (ejki_cuda_graph){.device = device, .stream = stream};
    EJKI_TRY(begin(out));
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < times && status == EJK_OK; i++) status = enqueue(user);
    if (status == EJK_OK) return end(out);
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", ejk_last_error());
    (void)end(out);
    return ejki_fail(status, "%s", sentence);
}

void ejki_cuda_graph_close(ejki_cuda_graph *graph) {
    bool pushed;
    if (!graph->graph || ejki_cuda_enter(graph->device, &pushed) != EJK_OK) return;
    if (graph->ready) ejki_cuda_driver_get()->graph_ready_end(graph->ready);
    ejki_cuda_driver_get()->graph_end(graph->graph);
    ejki_cuda_leave(pushed);
    graph->graph = graph->ready = NULL;
}

ejk_status ejki_cuda_graph_launch(const ejki_cuda_graph *graph) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(graph->device, &pushed));
    const int error = ejki_cuda_driver_get()->graph_launch(graph->ready, graph->stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "a graph cannot be launched");
}
