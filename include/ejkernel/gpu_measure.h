/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gpu_measure.h
 * Measures the peak rates of a GPU and the time of work on it.
 *
 * A GPU under load lowers its clock within some ten milliseconds, so everything is timed in two ways: **alone**,
 * with cold caches and after a pause, and **in a row**, launched several times back to back. Both are measured
 * between events on the stream, so the host's work is not included; but where kernels are shorter than the host takes
 * to launch them, a row has gaps. A third way has none: the row captured into a **graph** and launched as one. Compare
 * a time with a peak rate only if both were measured the same way, or in a row and from a graph, and within the same
 * second, as `ejk bench --device cuda` does.
 *
 * Thread-safety: all functions may be called from any thread; two measurements on one device at once disturb each
 * other. All functions wait for the device.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_GPU_MEASURE_H
#define EJKERNEL_GPU_MEASURE_H

#include <ejkernel/cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is measured. Zero means default. */
typedef struct ejk_gpu_measure_options {
    int32_t device;
    void *stream;        /**< on which the work is enqueued */
    int32_t repetitions; /**< measurements alone; 0 = 10, at most 1000 */
    int32_t rows;        /**< measurements of a row; 0 = 5, at most 1000 */
    int32_t row;         /**< launches in a row; 0 = 10, at most 1000 */
    double pause_s;      /**< pause before the first measurement alone, at most 10; 0 = none */
    bool graph;          /**< measure a row from a graph, too; then stream may not be NULL */
} ejk_gpu_measure_options;

/** Seconds of one execution: median, 10th and 90th percentile. */
typedef struct ejk_gpu_times {
    double alone_s, alone_p10_s, alone_p90_s;
    double in_a_row_s, in_a_row_p10_s, in_a_row_p90_s;
    int32_t repetitions, rows, row;
    double graph_s, graph_p10_s, graph_p90_s; /**< 0 = not measured */
} ejk_gpu_times;

/**
 * Measures what `enqueue` enqueues: after two runs that are not counted, alone (each after a write of 256 MiB, or
 * an eighth of the memory if that is less, which evicts the caches), in a row, and if so asked from a graph, for which
 * `enqueue` may only enqueue. Statuses: those of `enqueue`, UNAVAILABLE, INVALID_ARGUMENT, OUT_OF_MEMORY, INTERNAL
 * (with the driver's message).
 */
EJK_API EJK_NODISCARD ejk_status ejk_gpu_measure(const ejk_gpu_measure_options *options,
                                                 ejk_status (*enqueue)(void *user), void *user,
                                                 ejk_gpu_times *out);

/** A peak rate, per second, measured in both ways. */
typedef struct ejk_gpu_ceiling {
    double alone, in_a_row;
} ejk_gpu_ceiling;

/**
 * Multiply-adds on random operands, in FLOP/s: of F32 by the ordinary units; of BF16 and F16 by the tensor cores, with
 * wgmma on compute capability 9.0 and with mma.sync on all others, whose tensor cores may be faster by other
 * instructions. Takes some ten milliseconds, and compiling a small kernel at the first time. Statuses: UNAVAILABLE
 * (no GPU, no compiler), INVALID_DTYPE, INVALID_ARGUMENT, INTERNAL.
 */
EJK_API EJK_NODISCARD ejk_status ejk_gpu_measure_peak(int32_t device, ejk_dtype dtype,
                                                      ejk_gpu_ceiling *out);

/**
 * Reading memory in sequence, in bytes per second: 1 GiB, or an eighth of the memory if that is less. Statuses: as
 * above, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_gpu_measure_bandwidth(int32_t device, ejk_gpu_ceiling *out);

/**
 * What the host needs to launch a kernel that does nothing, by the driver alone: the median of batches of
 * launches, in seconds. Statuses: as above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_gpu_measure_launch(int32_t device, double *seconds);

#ifdef __cplusplus
}
#endif
#endif
