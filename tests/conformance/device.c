/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU. */
#include "conformance/placement.h"

#include <stdio.h>
#include <stdlib.h>

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    printf("FAIL on the GPU: %s\n", ejk_last_error());
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

bool device_is_here(void) {
    int32_t count;
    return ejk_device_count(&count) == EJK_OK && count > 0;
}

void *device_allocate(size_t bytes) {
    void *memory = NULL;
    need(ejk_device_allocate(0, bytes ? bytes : 1, &memory));
    return memory;
}

void device_free(void *memory) {
    need(ejk_device_free(0, memory));
}

static void copy(void *there, void *here, size_t bytes, bool to_gpu) {
    const int64_t shape[] = {(int64_t)bytes};
    const ejk_tensor gpu = ejk_device_tensor(there, 0, EJK_DTYPE_U8, 1, shape);
    const ejk_tensor cpu = ejk_tensor_contiguous(here, EJK_DTYPE_U8, 1, shape);
    if (bytes == 0) return;
    need(to_gpu ? ejk_device_copy(&cpu, &gpu, NULL) : ejk_device_copy(&gpu, &cpu, NULL));
}

void device_put(void *there, const void *here, size_t bytes) {
    copy(there, (void *)(uintptr_t)here, bytes, true);
}

void device_get(void *here, const void *there, size_t bytes) {
    copy((void *)(uintptr_t)there, here, bytes, false);
}
