/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/mirror.h"

#include "base/base.h"
#include "device/cuda_timer.h"

#include <stdlib.h>
#include <string.h>

ejk_status ejki_mirror_open(const ejk_tensor *there, bool fetched, ejki_mirror *out) {
    const int32_t device = there->device_index;
    int64_t high;
    out->view = *there;
    out->view.device_type = EJK_DEVICE_CPU;
    out->view.device_index = 0;
    ejk_tensor_span(there, &out->low, &high);
    out->size = high - out->low;
    out->bytes = ejki_allocate(out->size);
    if (!out->bytes)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld bytes of a GPU",
                         (long long)out->size);
    memset(out->bytes, 0, (size_t)out->size);
    out->view.data = (char *)out->bytes - out->low;
    if (!fetched) return EJK_OK;
    ejk_status status = ejki_cuda_wait_all(device);
    if (status == EJK_OK)
        status = ejki_cuda_copy_bytes(device, out->bytes, (char *)there->data + out->low,
                                      (size_t)out->size, NULL);
    if (status != EJK_OK) {
        free(out->bytes);
        out->bytes = NULL;
    }
    return status;
}

ejk_status ejki_mirror_send(const ejki_mirror *m, const ejk_tensor *there) {
    return ejki_cuda_copy_bytes(there->device_index, (char *)there->data + m->low, m->bytes,
                                (size_t)m->size, NULL);
}
