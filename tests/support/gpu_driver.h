/* SPDX-License-Identifier: Apache-2.0 */
/* What tests on a real GPU need of its driver beyond the library: whether there is one, streams and graphs. */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include <stdbool.h>

/* What a test answers that could not run here. */
enum { GPU_SKIPPED = 77 };

/* Whether this process has a GPU; says why not. After it, forking is of no use: gpu_present() is for those who will. */
bool gpu_is_here(void);

/* Calls a function of the driver, as "cuCtxGetCurrent", and answers its CUresult. Ends the process if there is none. */
int gpu_driver(const char *name, void *a, void *b, void *c);

/* Makes the primary context of device 0 current in this thread, or no context. */
void gpu_enter(void);
void gpu_leave(void);

/* These exit the process where the driver refuses; a context has to be current. A stream that waits for no other. */
void *gpu_stream_create(void);
void gpu_stream_destroy(void *stream);

/* What is enqueued between begin and end, by this thread, becomes a graph. */
struct gpu_graph {
    void *graph, *ready;
};
void gpu_graph_begin(void *stream);
struct gpu_graph gpu_graph_end(void *stream);
void gpu_graph_launch(const struct gpu_graph *graph, void *stream);
void gpu_graph_destroy(struct gpu_graph *graph);

#endif
