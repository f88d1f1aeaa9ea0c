/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_timer.h"

#include "device/cuda_driver.h"

ejk_status ejki_cuda_timer_open(int32_t device, void *stream, ejki_cuda_timer *out) {
    bool pushed;
    *out = (ejki_cuda_timer){.device = device, .stream = stream};
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    int error = driver->event(&out->start, 0);
    if (error == EJKI_CU_SUCCESS) error = driver->event(&out->end, 0);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "an event of a GPU cannot be had");
}

void ejki_cuda_timer_close(ejki_cuda_timer *timer) {
    bool pushed;
    if (!timer->start || ejki_cuda_enter(timer->device, &pushed) != EJK_OK) return;
    ejki_cuda_driver_get()->event_end(timer->start);
    if (timer->end) ejki_cuda_driver_get()->event_end(timer->end);
    ejki_cuda_leave(pushed);
    timer->start = timer->end = NULL;
}

static ejk_status mark(const ejki_cuda_timer *timer, void *event) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(timer->device, &pushed));
    const int error = ejki_cuda_driver_get()->event_mark(event, timer->stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "an event cannot be enqueued on a GPU");
}

ejk_status ejki_cuda_timer_start(const ejki_cuda_timer *timer) {
    return mark(timer, timer->start);
}

ejk_status ejki_cuda_timer_stop(const ejki_cuda_timer *timer) {
    return mark(timer, timer->end);
}

ejk_status ejki_cuda_timer_read(const ejki_cuda_timer *timer, double *seconds) {
    bool pushed;
    float milliseconds = 0;
    EJKI_TRY(ejki_cuda_enter(timer->device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    int error = driver->event_wait(timer->end);
    if (error == EJKI_CU_SUCCESS)
        error = driver->event_between(&milliseconds, timer->start, timer->end);
    ejki_cuda_leave(pushed);
    EJKI_TRY(ejki_cuda_check(error, "work on a GPU went wrong"));
    *seconds = (double)milliseconds * 1e-3;
    return EJK_OK;
}

ejk_status ejki_cuda_wait_all(int32_t device) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const int error = ejki_cuda_driver_get()->wait_all();
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "work on a GPU went wrong");
}

ejk_status ejki_cuda_set(int32_t device, void *memory, unsigned char byte, size_t bytes,
                         void *stream) {
    bool pushed;
    if (bytes == 0) return EJK_OK;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const int error =
        ejki_cuda_driver_get()->set((ejki_cu_address)(uintptr_t)memory, byte, bytes, stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "memory of a GPU cannot be set");
}

ejk_status ejki_cuda_copy_bytes(int32_t device, void *target, const void *source, size_t bytes,
                                void *stream) {
    bool pushed;
    if (bytes == 0) return EJK_OK;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const ejki_cuda_driver *driver = ejki_cuda_driver_get();
    int error = driver->copy((ejki_cu_address)(uintptr_t)target, (ejki_cu_address)(uintptr_t)source,
                             bytes, stream);
    if (error == EJKI_CU_SUCCESS) error = driver->wait(stream);
    ejki_cuda_leave(pushed);
    return ejki_cuda_check(error, "bytes cannot be copied to or from a GPU");
}
