/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is captured on a stream once and launched as a graph. */
#ifndef EJKI_DEVICE_CUDA_GRAPH_H
#define EJKI_DEVICE_CUDA_GRAPH_H

#include <ejkernel/cuda.h>

#include "base/base.h"

typedef struct ejki_cuda_graph {
    int32_t device;
    void *stream, *graph, *ready;
} ejki_cuda_graph;

/*
 * Captures what `enqueue` enqueues on the stream, which is not the default one, `times` times over. Closed by the
 * caller also after a failure. Statuses: those of `enqueue`, UNAVAILABLE (the driver has no graphs), INTERNAL (the
 * driver's, as of the default stream).
 */
ejk_status ejki_cuda_graph_make(int32_t device, void *stream, ejk_status (*enqueue)(void *user),
                                void *user, int32_t times, ejki_cuda_graph *out);
void ejki_cuda_graph_close(ejki_cuda_graph *graph);

/* Enqueues it on its stream. */
ejk_status ejki_cuda_graph_launch(const ejki_cuda_graph *graph);

#endif
