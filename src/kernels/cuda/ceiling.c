/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings of a GPU: ceiling.cu, measured as everything else is. */
#include <ejkernel/gpu_measure.h>

#include "base/base.h"
#include "device/cuda.h"
#include "device/cuda_timer.h"
#include "kernels/cuda/ceiling_arguments.cuh"

/* Bytes that are read: many times what a cache holds. */
#define READ (INT64_C(1) << 30)

/* A launch of ceiling.cu. */
typedef struct load {
    ejki_cuda_function_t *function;
    ejki_cuda_launch how;
    ceiling_arguments arguments;
} load;

static ejk_status enqueue_load(void *user) {
    load *l = user;
    void *arguments[] = {&l->arguments};
    return ejki_cuda_run(l->function, &l->how, arguments);
}

static ejk_status open_load(int32_t device, const char *entry, int kind, ejk_dtype dtype,
                            uint32_t blocks, load *out) {
    const ejki_cuda_constant constants[] = {
        {"KIND", kind}, {"ELEMENT", dtype == EJK_DTYPE_F16 ? dtype : EJK_DTYPE_BF16}};
    *out = (load){.how = {.grid = {blocks, 1, 1}, .block = {CEILING_THREADS, 1, 1}}};
    return ejki_cuda_function(device, ejki_cuda_text("kernels/cuda/ceiling.cu"), entry, constants,
                              2, &out->function);
}

/* So much of a step a block has to do, and so many of blocks and steps last about a millisecond on an H100. */
typedef struct work {
    int64_t flop;
    uint32_t blocks; /* of an SM */
    int steps;
} work;

static work work_of(int kind) {
    switch (kind) {
    case CEILING_WGMMA: return (work){CEILING_FLOP_OF_WGMMA, 1, 800};
    case CEILING_MMA: return (work){CEILING_FLOP_OF_MMA, 2, 4000};
    default: return (work){CEILING_FLOP_OF_FMA, 4, 3000};
    }
}

static ejk_status measure_load(int32_t device, load *l, double amount, ejk_gpu_ceiling *out) {
    ejk_gpu_times times;
    const ejk_gpu_measure_options options = {.device = device};
    EJKI_TRY(ejk_gpu_measure(&options, enqueue_load, l, &times));
    if (!(times.alone_s > 0 && times.in_a_row_s > 0))
        return ejki_fail(EJK_STATUS_INTERNAL, "the clock of cuda:%d stands still", (int)device);
    *out = (ejk_gpu_ceiling){amount / times.alone_s, amount / times.in_a_row_s};
    return EJK_OK;
}

ejk_status ejk_gpu_measure_peak(int32_t device, ejk_dtype dtype, ejk_gpu_ceiling *out) {
    const ejk_gpu_info *gpu;
    load l;
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected one");
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    if (dtype != EJK_DTYPE_F32 && dtype != EJK_DTYPE_BF16 && dtype != EJK_DTYPE_F16)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "dtype is %s, expected float32, bfloat16 or float16",
                         ejk_dtype_name(dtype));
    const int kind = dtype == EJK_DTYPE_F32  ? CEILING_FMA
                     : gpu->capability == 90 ? CEILING_WGMMA
                                             : CEILING_MMA;
    const work each = work_of(kind);
    const uint32_t blocks = each.blocks * (uint32_t)gpu->multiprocessors;
    EJKI_TRY(open_load(device, "multiply", kind, dtype, blocks, &l));
    l.arguments.steps = each.steps;
    return measure_load(device, &l, (double)each.flop * blocks * each.steps, out);
}

ejk_status ejk_gpu_measure_bandwidth(int32_t device, ejk_gpu_ceiling *out) {
    const ejk_gpu_info *gpu;
    load l;
    void *memory = NULL;
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected one");
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    EJKI_TRY(open_load(device, "read", CEILING_FMA, EJK_DTYPE_BF16,
                       8 * (uint32_t)gpu->multiprocessors, &l));
    const size_t bytes = (size_t)ejki_min(READ, gpu->memory_bytes / 8) / 16 * 16;
    EJKI_TRY(ejk_device_allocate(device, bytes, &memory));
    l.arguments =
        (ceiling_arguments){.data = memory, .sink = memory, .pieces = (int64_t)bytes / 16};
    ejk_status status = ejki_cuda_set(device, memory, 1, bytes, NULL);
    if (status == EJK_OK) status = measure_load(device, &l, (double)bytes, out);
    ejki_cuda_release(device, memory);
    return status;
}

/* Few enough launches that the driver's queue never fills. */
enum { LAUNCHES = 200, BATCHES = 15 };

ejk_status ejk_gpu_measure_launch(int32_t device, double *seconds) {
    double times[BATCHES];
    load l;
    if (!seconds) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "seconds is NULL, expected one");
    EJKI_TRY(open_load(device, "multiply", CEILING_FMA, EJK_DTYPE_BF16, 1, &l));
    void *arguments[] = {&l.arguments};
    for (int i = -1; i < BATCHES; i++) { /* the first one warms up */
        EJKI_TRY(
            ejki_cuda_run_bare(l.function, &l.how, arguments, LAUNCHES, &times[i < 0 ? 0 : i]));
        EJKI_TRY(ejk_device_synchronise(device, NULL));
    }
    *seconds = ejki_quantile(times, BATCHES, 0.5);
    return EJK_OK;
}
