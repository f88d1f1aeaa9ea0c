/* SPDX-License-Identifier: Apache-2.0 */
/* Times as a GPU sees them: between two events on a stream. */
#ifndef EJKI_DEVICE_CUDA_TIMER_H
#define EJKI_DEVICE_CUDA_TIMER_H

#include <ejkernel/cuda.h>

#include "base/base.h"

typedef struct ejki_cuda_timer {
    int32_t device;
    void *stream;
    void *start, *end; /* events */
} ejki_cuda_timer;

/* Closed by the caller also after a failure. UNAVAILABLE, INVALID_ARGUMENT (device), what the driver says. */
ejk_status ejki_cuda_timer_open(int32_t device, void *stream, ejki_cuda_timer *out);
void ejki_cuda_timer_close(ejki_cuda_timer *timer);

/* Enqueue the two events. */
ejk_status ejki_cuda_timer_start(const ejki_cuda_timer *timer);
ejk_status ejki_cuda_timer_stop(const ejki_cuda_timer *timer);

/* Waits until the second has passed; seconds between both. INTERNAL if what was enqueued failed. */
ejk_status ejki_cuda_timer_read(const ejki_cuda_timer *timer, double *seconds);

/* Waits for all work on a GPU, on whatever stream. */
ejk_status ejki_cuda_wait_all(int32_t device);

/* Enqueues setting bytes on a GPU. */
ejk_status ejki_cuda_set(int32_t device, void *memory, unsigned char byte, size_t bytes,
                         void *stream);

/* Copies bytes between the CPU and a GPU, either way, behind the work on a stream, and waits for them. */
ejk_status ejki_cuda_copy_bytes(int32_t device, void *target, const void *source, size_t bytes,
                                void *stream);

#endif
