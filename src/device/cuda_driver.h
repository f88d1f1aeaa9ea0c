/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver as it is found at run time: the functions of libcuda that the library uses, the devices,
 * and their primary contexts. No header of CUDA is needed; the names and numbers below are its stable ABI.
 */
#ifndef EJKI_DEVICE_CUDA_DRIVER_H
#define EJKI_DEVICE_CUDA_DRIVER_H

#include "device/cuda.h"

/* Handles are pointers, a device is a number, device memory an address of 64 bits. */
typedef int ejki_cu_device;
typedef unsigned long long ejki_cu_address;

enum {
    EJKI_CU_SUCCESS = 0,
    EJKI_CU_OUT_OF_MEMORY = 2,
    EJKI_CU_NO_DEVICE = 100,
    EJKI_CU_FUNCTION_SHARED_BYTES = 1, /* attributes of functions */
    EJKI_CU_FUNCTION_LOCAL_BYTES = 3,
    EJKI_CU_FUNCTION_REGISTERS = 4,
    EJKI_CU_FUNCTION_MOST_DYNAMIC_SHARED = 8,
    EJKI_CU_CLOCK_KHZ = 13, /* attributes of devices */
    EJKI_CU_MULTIPROCESSORS = 16,
    EJKI_CU_L2_BYTES = 38,
    EJKI_CU_CAPABILITY_MAJOR = 75,
    EJKI_CU_CAPABILITY_MINOR = 76,
    EJKI_CU_SHARED_OPTIN = 97,
    EJKI_CU_PROGRAMMATIC_SERIALIZATION = 6, /* attributes of launches */
    EJKI_CU_CAPTURE_RELAXED = 2,            /* ways of capturing */
};

/* CUlaunchAttribute and CUlaunchConfig; of the attributes' values only numbers are used. */
typedef struct ejki_cu_launch_attribute {
    int id, padding;
    union {
        int number;
        char size[64];
    } value;
} ejki_cu_launch_attribute;

typedef struct ejki_cu_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    ejki_cu_launch_attribute *attributes;
    unsigned attribute_count;
} ejki_cu_launch_config;

/* Member, symbol, parameters. Every function answers a CUresult. */
#define EJKI_CU_LIST(X)                                                                            \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(version, "cuDriverGetVersion", (int *version))                                               \
    X(error_text, "cuGetErrorString", (int error, const char **text))                              \
    X(count, "cuDeviceGetCount", (int *count))                                                     \
    X(device, "cuDeviceGet", (ejki_cu_device * device, int index))                                 \
    X(name, "cuDeviceGetName", (char *name, int size, ejki_cu_device device))                      \
    X(memory, "cuDeviceTotalMem_v2", (size_t * bytes, ejki_cu_device device))                      \
    X(attribute, "cuDeviceGetAttribute", (int *value, int attribute, ejki_cu_device device))       \
    X(retain, "cuDevicePrimaryCtxRetain", (void **context, ejki_cu_device device))                 \
    X(current, "cuCtxGetCurrent", (void **context))                                                \
    X(push, "cuCtxPushCurrent_v2", (void *context))                                                \
    X(pop, "cuCtxPopCurrent_v2", (void **context))                                                 \
    X(load, "cuModuleLoadData", (void **module, const void *image))                                \
    X(function, "cuModuleGetFunction", (void **function, void *module, const char *name))          \
    X(get_attribute, "cuFuncGetAttribute", (int *value, int attribute, void *function))            \
    X(set_attribute, "cuFuncSetAttribute", (void *function, int attribute, int value))             \
    X(launch, "cuLaunchKernel",                                                                    \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments,  \
       void **extra))                                                                              \
    X(launch_with, "cuLaunchKernelEx",                                                             \
      (const ejki_cu_launch_config *config, void *function, void **arguments, void **extra))       \
    X(free_bytes, "cuMemGetInfo_v2", (size_t * free, size_t * total))                              \
    X(allocate, "cuMemAlloc_v2", (ejki_cu_address * address, size_t bytes))                        \
    X(release, "cuMemFree_v2", (ejki_cu_address address))                                          \
    X(copy, "cuMemcpyAsync",                                                                       \
      (ejki_cu_address target, ejki_cu_address source, size_t bytes, void *stream))                \
    X(set, "cuMemsetD8Async",                                                                      \
      (ejki_cu_address target, unsigned char byte, size_t bytes, void *stream))                    \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                              \
    X(wait, "cuStreamSynchronize", (void *stream))                                                 \
    X(wait_all, "cuCtxSynchronize", (void))                                                        \
    X(unload, "cuModuleUnload", (void *module))                                                    \
    X(event, "cuEventCreate", (void **event, unsigned flags))                                      \
    X(event_end, "cuEventDestroy_v2", (void *event))                                               \
    X(event_mark, "cuEventRecord", (void *event, void *stream))                                    \
    X(event_wait, "cuEventSynchronize", (void *event))                                             \
    X(event_between, "cuEventElapsedTime", (float *milliseconds, void *first, void *second))

/* Those that are NULL where the driver lacks them. */
#define EJKI_CU_OPTIONAL_LIST(X)                                                                   \
    X(encode_tiled, "cuTensorMapEncodeTiled",                                                      \
      (void *map, int type, unsigned rank, void *address, const uint64_t *sizes,                   \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,        \
       int swizzle, int promotion, int fill))                                                      \
    X(capture, "cuStreamBeginCapture_v2", (void *stream, int mode))                                \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                             \
    X(graph_end, "cuGraphDestroy", (void *graph))                                                  \
    X(graph_ready, "cuGraphInstantiateWithFlags",                                                  \
      (void **ready, void *graph, unsigned long long flags))                                       \
    X(graph_ready_end, "cuGraphExecDestroy", (void *ready))                                        \
    X(graph_launch, "cuGraphLaunch", (void *ready, void *stream))

typedef struct ejki_cuda_driver {
#define EJKI_CU_MEMBER(member, symbol, parameters) int(*member) parameters;
    EJKI_CU_LIST(EJKI_CU_MEMBER)
    EJKI_CU_OPTIONAL_LIST(EJKI_CU_MEMBER)
#undef EJKI_CU_MEMBER
    int loaded_version; /* CUDA version that it serves, 13000; 0 = no driver */
    char build[64];     /* version of the driver itself; "" = unknown */
} ejki_cuda_driver;

/* The driver, for whoever has seen ejki_cuda_available() answer OK. */
const ejki_cuda_driver *ejki_cuda_driver_get(void);

/* The driver's version even if there is no device; 0 if there is no driver. */
int ejki_cuda_driver_version(void);

/* Passes a failure of the driver on: `doing` says what failed, as "a stream could not be waited for". */
ejk_status ejki_cuda_check(int error, const char *doing);

/*
 * Makes the device's primary context current, retaining it at first, and *pushed whether there is something to
 * leave. Statuses: UNAVAILABLE, INVALID_ARGUMENT (index), OUT_OF_MEMORY, INTERNAL.
 */
ejk_status ejki_cuda_enter(int32_t device, bool *pushed);
void ejki_cuda_leave(bool pushed);

#endif
