/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What there is ---------------------------------------------------------------------------------- */

static const char *version_text(int32_t version, char room[16]) {
    snprintf(room, 16, "%d.%d", (int)version / 1000, (int)version % 1000 / 10);
    return version ? room : "none";
}

static void device_row(text_table *table, int32_t index) {
    ejk_gpu_info gpu;
    char memory[32], l2[32];
    if (ejk_device_info(index, &gpu) != EJK_OK) return;
    table_add(table, "cuda:%d", (int)index);
    table_add(table, "%s (%s, %d SMs), %s, L2 %s", gpu.name, gpu.architecture,
              (int)gpu.multiprocessors, machine_bytes(gpu.memory_bytes, memory),
              machine_bytes(gpu.l2_bytes, l2));
}

void gpu_rows(text_table *table) {
    int32_t count = 0;
    ejk_cuda_info cuda;
    char driver[16], nvrtc[16], bytes[32], limit[32];
    if (ejk_device_count(&count) != EJK_OK) {
        table_add(table, "gpu");
        table_add(table, "none: %s", ejk_last_error());
    }
    for (int32_t i = 0; i < count; i++) device_row(table, i);
    if (ejk_cuda_look(&cuda) != EJK_OK) return;
    table_add(table, "cuda");
    table_add(table, "driver %s%s%s%s, NVRTC %s", version_text(cuda.driver, driver),
              cuda.driver_build[0] ? " (" : "", cuda.driver_build, cuda.driver_build[0] ? ")" : "",
              version_text(cuda.nvrtc, nvrtc));
    table_add(table, "kernels");
    table_add(table, "%lld cached in %s, %s of %s", (long long)cuda.cached_kernels,
              cuda.cache_folder, cuda.cached_bytes ? machine_bytes(cuda.cached_bytes, bytes) : "0",
              machine_bytes(cuda.cache_limit, limit));
}

static json_t *device_json(int32_t index) {
    ejk_gpu_info gpu;
    if (ejk_device_info(index, &gpu) != EJK_OK) return json_null();
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:s}", "name", gpu.name,
                     "architecture", gpu.architecture, "capability", (int)gpu.capability,
                     "multiprocessors", (int)gpu.multiprocessors, "clock_mhz", (int)gpu.clock_mhz,
                     "memory_bytes", (json_int_t)gpu.memory_bytes, "l2_bytes",
                     (json_int_t)gpu.l2_bytes, "shared_bytes", (json_int_t)gpu.shared_bytes,
                     "fingerprint", gpu.fingerprint);
}

json_t *gpu_json(void) {
    int32_t count = 0;
    ejk_cuda_info cuda = {0};
    const bool there = ejk_device_count(&count) == EJK_OK;
    json_t *devices = json_array(), *reason = there ? json_null() : json_string(ejk_last_error());
    for (int32_t i = 0; i < count; i++) json_array_append_new(devices, device_json(i));
    if (ejk_cuda_look(&cuda) != EJK_OK) cuda = (ejk_cuda_info){0};
    return json_pack("{s:o, s:o, s:i, s:s, s:i, s:s, s:{s:s, s:I, s:I, s:I}}", "devices", devices,
                     "unavailable", reason, "driver", (int)cuda.driver, "driver_build",
                     cuda.driver_build, "nvrtc", (int)cuda.nvrtc, "nvrtc_path", cuda.nvrtc_path,
                     "cache", "folder", cuda.cache_folder, "kernels",
                     (json_int_t)cuda.cached_kernels, "bytes", (json_int_t)cuda.cached_bytes,
                     "limit_bytes", (json_int_t)cuda.cache_limit);
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

bool gpu_device(const char *text, int32_t *out) {
    ejk_gpu_info gpu;
    *out = -1;
    if (!text || strcmp(text, "cpu") == 0) return true;
    char *end = NULL;
    const long number = strncmp(text, "cuda:", 5) == 0 ? strtol(text + 5, &end, 10) : 0;
    const bool numbered = end && end > text + 5 && !*end && number >= 0 && number < 4096;
    if (!numbered && strcmp(text, "cuda") != 0)
        return report_error("--device is '%s', expected cpu, cuda or cuda:N", text);
    *out = (int32_t)number;
    return succeeded(ejk_device_info(*out, &gpu));
}

void gpu_place_tensors(int32_t device, const ejk_kernel *kernel, void *args) {
    for (int32_t i = 0; device >= 0 && i < call_count(kernel); i++) {
        ejk_tensor *tensor = call_tensor(kernel, args, i);
        if (!tensor || !ejk_tensor_present(tensor)) continue;
        tensor->device_type = EJK_DEVICE_CUDA;
        tensor->device_index = device;
    }
}

bool gpu_move_owned(int32_t device, op_call *call) {
    for (int32_t i = 0; device >= 0 && i < call_count(call->kernel); i++) {
        ejk_owned_tensor *own = &call->owned[i], there;
        const ejk_tensor *here = &own->tensor;
        if (!own->owner) continue;
        if (!succeeded(
                ejk_device_tensor_create(device, here->dtype, here->rank, here->shape, &there)))
            return false;
        const bool copied = succeeded(ejk_device_copy(here, &there.tensor, NULL));
        ejk_owned_tensor_close(own);
        *own = there;
        *call_tensor(call->kernel, call->args, i) = there.tensor;
        if (!copied) return false;
    }
    return true;
}

bool gpu_copy_tensors(int32_t device, op_call *call) {
    for (int32_t i = 0; i < call_count(call->kernel); i++) {
        ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (!tensor || !ejk_tensor_present(tensor) || !tensor->data) continue;
        if (!succeeded(ejk_device_tensor_create(device, tensor->dtype, tensor->rank, tensor->shape,
                                                &call->owned[i])) ||
            !succeeded(ejk_device_copy(tensor, &call->owned[i].tensor, NULL)))
            return false;
        *tensor = call->owned[i].tensor;
    }
    gpu_place_tensors(device, call->kernel, call->args);
    return true;
}

bool gpu_copy_bytes(int32_t device, void *to, const void *from, int64_t bytes) {
    const ejk_tensor source =
        ejk_device_tensor((void *)(uintptr_t)from, device, EJK_DTYPE_U8, 1, &bytes);
    const ejk_tensor target = ejk_device_tensor(to, device, EJK_DTYPE_U8, 1, &bytes);
    return bytes == 0 || succeeded(ejk_device_copy(&source, &target, NULL));
}

bool gpu_send_bytes(int32_t device, void *there, const void *here, int64_t bytes) {
    const ejk_tensor from = ejk_tensor_1d((void *)(uintptr_t)here, EJK_DTYPE_U8, bytes);
    const ejk_tensor to = ejk_device_tensor(there, device, EJK_DTYPE_U8, 1, &bytes);
    return bytes == 0 || succeeded(ejk_device_copy(&from, &to, NULL));
}

bool gpu_fetch_bytes(int32_t device, const void *there, void *here, int64_t bytes) {
    const ejk_tensor to = ejk_tensor_1d(here, EJK_DTYPE_U8, bytes);
    const ejk_tensor from =
        ejk_device_tensor((void *)(uintptr_t)there, device, EJK_DTYPE_U8, 1, &bytes);
    return bytes == 0 || succeeded(ejk_device_copy(&from, &to, NULL));
}

bool gpu_open(const char *text, const op_call *call, gpu_call *out) {
    *out = (gpu_call){.device = -1};
    if (!gpu_device(text, &out->device)) return false;
    if (out->device < 0) return true;
    out->memory = calloc((size_t)call_count(call->kernel) + 1, sizeof *out->memory);
    return out->memory || report_error("no memory for the tensors of %s", call->kernel->op_id);
}

void gpu_close(gpu_call *gpu, const op_call *call) {
    for (int32_t i = 0; gpu->memory && i < call_count(call->kernel); i++)
        ejk_owned_tensor_close(&gpu->memory[i]);
    free(gpu->memory);
    gpu->memory = NULL;
}

bool gpu_send(gpu_call *gpu, op_call *call) {
    for (int32_t i = 0; gpu->device >= 0 && i < call_count(call->kernel); i++) {
        const ejk_tensor *here = &call->owned[i].tensor;
        if (!ejk_tensor_present(here)) continue;
        if (!succeeded(ejk_device_tensor_create(gpu->device, here->dtype, here->rank, here->shape,
                                                &gpu->memory[i])) ||
            !succeeded(ejk_device_copy(here, &gpu->memory[i].tensor, NULL)))
            return false;
        *call_tensor(call->kernel, call->args, i) = gpu->memory[i].tensor;
    }
    return true;
}

bool gpu_allocate(gpu_call *gpu, op_call *call) {
    for (int32_t i = 0; gpu->device >= 0 && i < call_count(call->kernel); i++) {
        ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (!tensor || !ejk_tensor_present(tensor) || gpu->memory[i].owner) continue;
        if (!succeeded(ejk_device_tensor_create(gpu->device, tensor->dtype, tensor->rank,
                                                tensor->shape, &gpu->memory[i])))
            return false;
        tensor->data = gpu->memory[i].tensor.data;
    }
    return true;
}

bool gpu_wait(const gpu_call *gpu) {
    return gpu->device < 0 || succeeded(ejk_device_synchronise(gpu->device, NULL));
}

bool gpu_fetch(const gpu_call *gpu, const op_call *call) {
    for (int32_t i = 0; gpu->device >= 0 && i < call_count(call->kernel); i++) {
        const ejk_field *field = call_field(call->kernel, i);
        if (!ejk_field_is_output(field) || !gpu->memory[i].owner) continue;
        if (!succeeded(ejk_device_copy(&gpu->memory[i].tensor, &call->owned[i].tensor, NULL)))
            return false;
    }
    return true;
}
