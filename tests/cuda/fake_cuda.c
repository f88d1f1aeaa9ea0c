/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver in place of libcuda for tests without a GPU: devices are memory of the CPU, a launch is counted and
 * does nothing, or with FAKE_CUDA_CLEARS fills all memory with zeros. It takes what fake_nvrtc.c compiles.
 * FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES and FAKE_CUDA_MEMORY say what it is.
 */
#define _GNU_SOURCE 1
#include "cuda/fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VISIBLE __attribute__((visibility("default")))

enum {
    OK,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    BAD_IMAGE = 200,
    NO_CONTEXT = 201,
    NOT_FOUND = 500
};
enum { MOST_BLOCKS = 4096, MOST_DEPTH = 8 };

VISIBLE fake_cuda_counts fake_cuda;

static struct block {
    void *bytes;
    size_t size;
} blocks[MOST_BLOCKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the blocks */
static int contexts[4];
static _Thread_local void *stack[MOST_DEPTH];
static _Thread_local int depth, capture_mode;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

#define FAKE(name, ...)                                                                            \
    VISIBLE int name(__VA_ARGS__);                                                                 \
    int name(__VA_ARGS__)

FAKE(cuInit, unsigned flags) {
    (void)flags;
    return number("FAKE_CUDA_DEVICES", 2) ? OK : NO_DEVICE;
}
FAKE(cuDriverGetVersion, int *version) {
    *version = (int)number("FAKE_CUDA_VERSION", 13000);
    return OK;
}
FAKE(cuGetErrorString, int error, const char **text) {
    *text = error == NO_MEMORY ? "out of memory" : error == BAD_IMAGE ? "bad image" : "fault";
    return OK;
}
FAKE(cuDeviceGetCount, int *count) {
    *count = (int)number("FAKE_CUDA_DEVICES", 2);
    return OK;
}
FAKE(cuDeviceGet, int *device, int index) {
    *device = index;
    return OK;
}
FAKE(cuDeviceGetName, char *name, int size, int device) {
    snprintf(name, (size_t)size, "Fake | GPU %d", device);
    return OK;
}
FAKE(cuDeviceTotalMem_v2, size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)number("FAKE_CUDA_MEMORY", 1 << 24);
    return OK;
}
FAKE(cuDeviceGetAttribute, int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16   ? 132
             : attribute == 38 ? 50 << 20
             : attribute == 75 ? 9
             : attribute == 97 ? 232448
                               : 0;
    return OK;
}
FAKE(cuDevicePrimaryCtxRetain, void **context, int device) {
    *context = &contexts[device];
    fake_cuda.retained++;
    return OK;
}
FAKE(cuCtxGetCurrent, void **context) {
    *context = depth ? stack[depth - 1] : NULL;
    return OK;
}
FAKE(cuCtxPushCurrent_v2, void *context) {
    if (depth == MOST_DEPTH) return INVALID;
    stack[depth++] = context;
    return OK;
}
FAKE(cuCtxPopCurrent_v2, void **context) {
    if (!depth) return INVALID;
    *context = stack[--depth];
    return OK;
}

/* ---- Kernels: an image is "FAKE", name, text and options ---------------------------------------------- */

FAKE(cuModuleLoadData, void **module, const void *image) {
    if (!depth || strncmp(image, "FAKE", 4) != 0) return BAD_IMAGE;
    *module = strdup(image);
    __atomic_fetch_add(&fake_cuda.loaded, 1, __ATOMIC_RELAXED);
    return *module ? OK : NO_MEMORY;
}
typedef struct kernel {
    const char *image;
    char entry[64];
} kernel;

FAKE(cuModuleGetFunction, void **function, void *module, const char *name) {
    if (!strstr(module, name)) return NOT_FOUND;
    kernel *made = calloc(1, sizeof *made); /* as long as the process, as those that ask for it */
    if (!made) return NO_MEMORY;
    made->image = module;
    snprintf(made->entry, sizeof made->entry, "%s", name);
    *function = made;
    return OK;
}
FAKE(cuFuncGetAttribute, int *value, int attribute, void *function) {
    (void)function;
    *value = attribute == 4 ? 40 : attribute == 1 ? 256 : 0;
    return OK;
}
FAKE(cuFuncSetAttribute, void *function, int attribute, int value) {
    (void)function;
    if (attribute == 8) fake_cuda.shared_allowed = value;
    return OK;
}
FAKE(cuLaunchKernel, void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
     void **arguments, void **extra) {
    (void)extra;
    if (!depth || !function || !arguments || grid_x * grid_y * grid_z * block_y * block_z == 0)
        return INVALID;
    if ((int)shared_bytes > fake_cuda.shared_allowed) return INVALID;
    fake_cuda.launches++;
    const size_t flushed = (size_t)number("FAKE_CUDA_MEMORY", 1 << 24) / 8; /* by what measures */
    const bool clears = number("FAKE_CUDA_CLEARS", 0) != 0;
    for (int i = 0; i < MOST_BLOCKS && clears; i++)
        if (blocks[i].bytes && blocks[i].size != flushed)
            memset(blocks[i].bytes, 0, blocks[i].size);
    fake_cuda.grid = grid_x;
    fake_cuda.block = block_x;
    fake_cuda.stream = stream;
    fake_cuda.argument = arguments[0];
    const kernel *own = function;
    if (fake_cuda.launched) fake_cuda.launched(own->entry, own->image);
    return OK;
}

/* CUlaunchConfig as the library knows it, up to its attributes. */
typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
} launch_config;

FAKE(cuLaunchKernelEx, const launch_config *config, void *function, void **arguments,
     void **extra) {
    if (config->attribute_count != 1 || *(const int *)config->attributes != 6) return INVALID;
    fake_cuda.overlapping++;
    return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2],
                          config->block[0], config->block[1], config->block[2],
                          config->shared_bytes, config->stream, arguments, extra);
}

/* The map is what it was made from. */
FAKE(cuTensorMapEncodeTiled, void *map, int type, unsigned rank, void *address,
     const uint64_t *sizes, const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
     int interleave, int swizzle, int promotion, int fill) {
    (void)promotion;
    if (!depth) return NO_CONTEXT;
    if (interleave || fill || steps[0] != 1 || box[0] > 256) return INVALID;
    const uint64_t made[16] = {(uint64_t)(uintptr_t)address,
                               (uint64_t)type,
                               rank,
                               (uint64_t)swizzle,
                               sizes[0],
                               box[0],
                               rank > 1 ? sizes[1] : 0,
                               rank > 1 ? strides[0] : 0,
                               rank > 1 ? box[1] : 0};
    memcpy(map, made, sizeof made);
    fake_cuda.maps++;
    return OK;
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

static size_t used(void) {
    size_t bytes = 0;
    for (int i = 0; i < MOST_BLOCKS; i++) bytes += blocks[i].size;
    return bytes;
}
FAKE(cuMemGetInfo_v2, size_t *idle, size_t *total) {
    cuDeviceTotalMem_v2(total, 0);
    *idle = *total - used();
    return OK;
}
static int take(unsigned long long *address, size_t bytes) {
    size_t idle, total;
    cuMemGetInfo_v2(&idle, &total);
    if (!depth || bytes > idle) return depth ? NO_MEMORY : INVALID;
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].bytes) continue;
        blocks[i] = (struct block){aligned_alloc(256, (bytes + 255) / 256 * 256), bytes};
        *address = (unsigned long long)(uintptr_t)blocks[i].bytes;
        fake_cuda.allocated++;
        fake_cuda.live++;
        return blocks[i].bytes ? OK : NO_MEMORY;
    }
    return NO_MEMORY;
}
static int give_back(unsigned long long address) {
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (!blocks[i].bytes || (uintptr_t)blocks[i].bytes != address) continue;
        free(blocks[i].bytes);
        blocks[i] = (struct block){NULL, 0};
        fake_cuda.live--;
        return OK;
    }
    return INVALID;
}
FAKE(cuMemAlloc_v2, unsigned long long *address, size_t bytes) {
    pthread_mutex_lock(&lock);
    const int answer = take(address, bytes);
    pthread_mutex_unlock(&lock);
    return answer;
}
FAKE(cuMemFree_v2, unsigned long long address) {
    pthread_mutex_lock(&lock);
    const int answer = give_back(address);
    pthread_mutex_unlock(&lock);
    return answer;
}
FAKE(cuMemcpyAsync, unsigned long long target, unsigned long long source, size_t bytes,
     void *stream) {
    (void)stream;
    if (!depth) return INVALID;
    memcpy((void *)(uintptr_t)target, (const void *)(uintptr_t)source, bytes);
    return OK;
}
FAKE(cuCtxSynchronize, void) {
    return depth ? OK : INVALID;
}
FAKE(cuMemsetD8Async, unsigned long long target, unsigned char byte, size_t bytes, void *stream) {
    (void)stream;
    if (!depth) return INVALID;
    memset((void *)(uintptr_t)target, byte, bytes);
    return OK;
}

/* ---- Events have the time of the CPU ------------------------------------------------------------------ */

typedef struct event {
    double milliseconds;
} event;

FAKE(cuEventCreate, void **made, unsigned flags) {
    (void)flags;
    *made = calloc(1, sizeof(event));
    fake_cuda.events++;
    return depth && *made ? OK : INVALID;
}
FAKE(cuEventDestroy_v2, void *gone) {
    free(gone);
    fake_cuda.events--;
    return OK;
}
FAKE(cuEventRecord, void *given, void *stream) {
    struct timespec now;
    (void)stream;
    if (!depth) return INVALID;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ((event *)given)->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    return OK;
}
FAKE(cuEventSynchronize, void *given) {
    return depth && given ? OK : INVALID;
}
FAKE(cuEventElapsedTime, float *milliseconds, void *first, void *second) {
    *milliseconds = (float)(((event *)second)->milliseconds - ((event *)first)->milliseconds);
    return OK;
}
FAKE(cuModuleUnload, void *module) {
    free(module);
    fake_cuda.loaded--;
    return depth ? OK : INVALID;
}
FAKE(cuThreadExchangeStreamCaptureMode, int *mode) {
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}
FAKE(cuStreamSynchronize, void *stream) {
    fake_cuda.stream = stream;
    fake_cuda.waits++;
    return depth ? OK : INVALID;
}

/* ---- Graphs: what is captured runs at once; a launch of a graph counts only ------------------------------ */

static _Thread_local bool capturing;

FAKE(cuStreamBeginCapture_v2, void *stream, int mode) {
    (void)mode;
    if (!depth || !stream || capturing) return INVALID;
    capturing = true;
    return OK;
}
FAKE(cuStreamEndCapture, void *stream, void **graph) {
    (void)stream;
    if (!depth || !capturing) return INVALID;
    capturing = false;
    *graph = malloc(1);
    fake_cuda.graphs++;
    return OK;
}
FAKE(cuGraphDestroy, void *graph) {
    free(graph);
    fake_cuda.graphs--;
    return OK;
}
FAKE(cuGraphInstantiateWithFlags, void **ready, void *graph, unsigned long long flags) {
    *ready = malloc(1);
    fake_cuda.graphs++;
    return depth && graph && !flags ? OK : INVALID;
}
FAKE(cuGraphExecDestroy, void *ready) {
    free(ready);
    fake_cuda.graphs--;
    return OK;
}
FAKE(cuGraphLaunch, void *ready, void *stream) {
    fake_cuda.stream = stream;
    fake_cuda.graph_launches++;
    return depth && ready && stream ? OK : INVALID;
}
