/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workspace on a GPU. Threads may execute a plan at once on one stream; what they enqueue must not mix, as an
 * execution may be several kernels that hand each other things in this memory. Enqueuing takes microseconds and
 * hardly ever meets another: who comes second waits actively.
 */
#include "ops/core/core.h"

#include "device/cuda.h"

#include <sched.h>
#include <stdlib.h>

struct ejki_device_memory {
    int32_t device;
    void *bytes;
    atomic_flag taken;
};

ejk_status ejki_device_memory_create(int32_t device, size_t bytes, ejki_device_memory **out) {
    ejki_device_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a workspace");
    memory->device = device;
    atomic_flag_clear(&memory->taken);
    const ejk_status status = ejk_device_allocate(device, bytes, &memory->bytes);
    if (status == EJK_OK)
        *out = memory;
    else
        free(memory);
    return status;
}

void ejki_device_memory_destroy(ejki_device_memory *memory) {
    if (!memory) return;
    ejki_cuda_release(memory->device, memory->bytes);
    free(memory);
}

void *ejki_device_memory_take(ejki_device_memory *memory) {
    while (atomic_flag_test_and_set_explicit(&memory->taken, memory_order_acquire)) sched_yield();
    return memory->bytes;
}

void ejki_device_memory_give(ejki_device_memory *memory) {
    atomic_flag_clear_explicit(&memory->taken, memory_order_release);
}
