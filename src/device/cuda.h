/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rooms above know of CUDA: kernels compiled and kept, and launches. Everything that takes time, memory or
 * locks happens in ejki_cuda_function(), when a plan is made; ejki_cuda_run() only launches.
 */
#ifndef EJKI_DEVICE_CUDA_H
#define EJKI_DEVICE_CUDA_H

#include <ejkernel/cuda.h>

#include "base/base.h"

/* OK, or UNAVAILABLE with the reason: no driver, one that is too old, no device. Looks once per process. */
ejk_status ejki_cuda_available(void);

/* Facts of a device, for the life of the process; under ejki_cuda_target_begin() those of the architecture that is
 * built for. UNAVAILABLE, INVALID_ARGUMENT. */
ejk_status ejki_cuda_gpu(int32_t device, const ejk_gpu_info **out);

/* ---- Texts of kernels: written into the library by cmake/cuda_texts.cmake --------------------------- */

typedef struct ejki_cuda_source {
    const char *name, *text; /* CUDA C; headers by #include "name", a path below src */
} ejki_cuda_source;

/* Every .cu and .cuh of src/kernels/cuda and src/operations; the list ends with a name that is NULL. */
extern const ejki_cuda_source ejki_cuda_texts[];
/* One of them; NULL if there is none. */
const ejki_cuda_source *ejki_cuda_text(const char *name);

/* ---- Functions -------------------------------------------------------------------------------------- */

typedef struct ejki_cuda_constant {
    const char *name;
    int64_t value;
} ejki_cuda_constant; /* becomes -DNAME=VALUE */

/* A kernel that is loaded on a device; it lives as long as the process. */
typedef struct ejki_cuda_function ejki_cuda_function_t;

/*
 * The kernel `entry` of a text under constants. It is compiled at most once per process and device, and found
 * in the cache on disk if it was compiled before. Its static shared memory plus what a launch asks for may
 * reach the device's limit. Statuses: UNAVAILABLE (no driver, no NVRTC, a text that does not compile or whose
 * wgmma would be serialised), INVALID_ARGUMENT (device), OUT_OF_MEMORY, INTERNAL (the driver refuses it).
 */
ejk_status ejki_cuda_function(int32_t device, const ejki_cuda_source *source, const char *entry,
                              const ejki_cuda_constant *constants, int32_t count,
                              ejki_cuda_function_t **out);

/*
 * Makes what ejki_cuda_function() would have to compile or read from the disk for these texts, side by side on as many
 * threads as there are by default. Only saves time: whatever goes wrong is for ejki_cuda_function() to find.
 */
typedef struct ejki_cuda_wish {
    const ejki_cuda_source *source;
    const char *entry;
    const ejki_cuda_constant *constants;
    int32_t count;
} ejki_cuda_wish;
void ejki_cuda_make_ahead(int32_t device, const ejki_cuda_wish *wishes, int32_t count);

/* What the compiler made of it. */
typedef struct ejki_cuda_usage {
    int32_t registers, shared_bytes,
        local_bytes; /* of a thread, of a block, of a thread (spills) */
} ejki_cuda_usage;
ejki_cuda_usage ejki_cuda_function_usage(const ejki_cuda_function_t *function);

typedef struct ejki_cuda_launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic */
    void *stream;
    /* It may begin before what is ahead of it on the stream has ended, and waits for that itself; from sm_90 on. */
    bool overlaps;
} ejki_cuda_launch;

/*
 * Enqueues a launch on the function's device: neither allocates nor waits, and can be captured into a graph.
 * Statuses: INVALID_ARGUMENT (a function that was only built, by ejki_cuda_target_begin()), INTERNAL (the driver's
 * words), OUT_OF_MEMORY (the driver's).
 */
ejk_status ejki_cuda_run(ejki_cuda_function_t *function, const ejki_cuda_launch *how,
                         void *const *arguments);

/*
 * The same launch so many times by the driver's function alone, and the seconds that one took on the host: what
 * everything else is held against.
 */
ejk_status ejki_cuda_run_bare(ejki_cuda_function_t *function, const ejki_cuda_launch *how,
                              void *const *arguments, int32_t times, double *seconds);

/* Seconds that this thread's ejki_cuda_run() spends within the driver's launch, summed up from now on. NULL ends it. */
typedef struct ejki_cuda_meter {
    double seconds;
    int64_t launches;
} ejki_cuda_meter;
void ejki_cuda_meter_set(ejki_cuda_meter *meter);

/* ---- Tensor maps ------------------------------------------------------------------------------------ */

/* What the copy engine of sm_90 and later needs to know of a tensor: a parameter of a kernel, by value. */
typedef struct ejki_cuda_tensor_map {
    _Alignas(64) uint64_t opaque[16];
} ejki_cuda_tensor_map;

/*
 * Of `rank` axes, 1 to 5, the first of which is contiguous: their sizes, the strides in bytes of those after the
 * first, and the box that one copy takes. A row of the box lies in shared memory under a swizzle of 32, 64 or 128
 * bytes, 0 = none, and must not be longer than that; what is beyond the tensor is 0 there. The driver wants a context
 * to be current. It takes 68 ns and neither allocates nor waits. Statuses: UNAVAILABLE (a driver without it),
 * INVALID_ARGUMENT (dtype, rank, swizzle), INVALID_LAYOUT (an address or stride that is no multiple of 16
 * bytes, or what else the driver refuses).
 */
ejk_status ejki_cuda_tensor_map_encode(const void *data, ejk_dtype dtype, int32_t rank,
                                       const int64_t *sizes, const int64_t *strides,
                                       const int32_t *box, int32_t swizzle,
                                       ejki_cuda_tensor_map *out);

/* ---- Compiling without a device --------------------------------------------------------------------- */

/* A kernel as the compiler made it. */
typedef struct ejki_cuda_image {
    void *bytes; /* owned; the cubin */
    size_t size;
    char *log; /* owned; warnings, registers and spills of each kernel */
} ejki_cuda_image;
void ejki_cuda_image_close(ejki_cuda_image *image);

/* Compiles for an architecture, as "sm_90a", without looking at any cache. UNAVAILABLE. */
ejk_status ejki_cuda_compile(const char *architecture, const ejki_cuda_source *source,
                             const ejki_cuda_constant *constants, int32_t count,
                             ejki_cuda_image *out);

/*
 * Until the end, this thread's plans are for device 0 of an architecture that need not be there, as "sm_90a":
 * ejki_cuda_function() compiles into the cache on disk and answers functions that cannot be launched.
 * `built` counts those that were compiled, `found` those that were there. INVALID_ARGUMENT: no architecture.
 */
typedef struct ejki_cuda_target {
    ejk_gpu_info gpu;
    int32_t built, found;
} ejki_cuda_target;
ejk_status ejki_cuda_target_begin(ejki_cuda_target *target, const char *architecture);
void ejki_cuda_target_end(void);
/* That of this thread; NULL = none. */
ejki_cuda_target *ejki_cuda_target_get(void);

/*
 * Until the end, this thread's plans have kernels of their own, made anew: by the compiler without a look at any
 * cache, or from the disk. The end unloads them; plans of that time must be gone.
 */
typedef struct ejki_cuda_trial {
    bool compile;
    int32_t compiled, kernels; /* by the compiler; all that were loaded */
    struct ejki_cuda_module *modules;
} ejki_cuda_trial;
void ejki_cuda_trial_begin(ejki_cuda_trial *trial);
void ejki_cuda_trial_end(void);
/* That of this thread; NULL = none. */
ejki_cuda_trial *ejki_cuda_trial_get(void);

/* ---- Events ----------------------------------------------------------------------------------------- */

/* Who is told what happens in this thread's calls until it is set again: as on_event of a context. NULL = nobody. */
typedef struct ejki_cuda_listener {
    void (*tell)(void *user, const char *event, const char *fields);
    void *user;
} ejki_cuda_listener;
/* Answers the one before. */
ejki_cuda_listener ejki_cuda_listen(ejki_cuda_listener listener);

/* ---- Memory ----------------------------------------------------------------------------------------- */

/* Enqueues a copy of bytes of a GPU to another place there. */
ejk_status ejki_cuda_copy_on(int32_t device, void *target, const void *source, size_t bytes,
                             void *stream);

/*
 * Until the end, this thread may allocate and load kernels while streams are captured into graphs, whoever captures
 * them. `before` is for the end. UNAVAILABLE.
 */
ejk_status ejki_cuda_capture_begin(int *before);
void ejki_cuda_capture_end(int before);

/* As ejk_device_free(), where nobody would hear of a failure. */
void ejki_cuda_release(int32_t device, void *memory);

#endif
